package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"nsop/bench"
	"nsop/bench/vantage"
)

// A Client is each library against a bare socket, all taking turns so that what changes meanwhile changes for all.
type Client struct {
	Floor     *Stat     `json:"floor"` // the operation on a bare socket
	Echo      *Stat     `json:"echo"`  // a command there that the server does next to nothing for
	Libraries []Library `json:"libraries"`
	Pools     []Pool    `json:"pools"` // as the libraries are set up by themselves
	Errors    int       `json:"errors"`
	Error     string    `json:"error,omitempty"` // the first
	Retried   []Retried `json:"retried,omitempty"`
}

// A Library is one client library.
type Library struct {
	Client      string         `json:"client"`
	Version     string         `json:"client_version,omitempty"`
	Latency     *Stat          `json:"latency"`
	OverFloorNS *int64         `json:"over_floor_ns"` // of the medians
	CPUNSPerOp  *bench.Figure  `json:"cpu_ns_per_op"` // of this process
	AllocsPerOp *bench.Figure  `json:"allocs_per_op"`
	BytesPerOp  *bench.Figure  `json:"bytes_per_op"`
	Settings    map[string]any `json:"settings,omitempty"`
	Errors      int            `json:"errors"`
	Error       string         `json:"error,omitempty"`
}

// A Pool is how a library's own pool fares when some operations go on at once.
type Pool struct {
	Client      string `json:"client"`
	Concurrency int    `json:"concurrency"`
	Operations  int    `json:"operations"`
	Errors      int    `json:"errors"`
	Error       string `json:"error,omitempty"`
	Size        int    `json:"size"` // 0: no limit
	Dials       int64  `json:"dials"`
	Waits       int64  `json:"waits"`
	MeanWaitNS  int64  `json:"mean_wait_ns"` // of those that waited
	MaxNS       int64  `json:"max_ns"`       // the longest operation, its wait included
	Timeouts    int64  `json:"timeouts"`
}

// A Retried is a library set up as by itself whose operations did not fail where those without retries do.
type Retried struct {
	Client     string `json:"client"`
	Operations int    `json:"operations"`
	Errors     int    `json:"errors"`
	Dials      int64  `json:"dials"`
}

// defaults are the libraries that have pools and retries by themselves.
var defaults = map[string][]string{"redis": {"go-redis", "rueidis"}, "memcached": {"gomemcache"}}

// A contender takes its turn in the rounds.
type contender struct {
	lib     *Library
	store   bench.Store
	op      func() error
	samples []time.Duration
	inARow  int // failures
}

// open returns client's store and its operation: a GET, of a SQL store a SELECT.
func (d *diagnosis) open(ctx context.Context, client string, o bench.Options) (bench.Store, func() error, error) {
	o.Timeout, o.Protocol = d.Timeout, "simple"
	store, err := d.session.Open(ctx, client, o)
	if err != nil {
		return nil, nil, err
	}
	if selector, ok := store.(bench.Selector); ok {
		return store, func() error { return selector.Select(ctx) }, nil
	}
	return store, func() error {
		_, err := store.Get(ctx, d.key)
		if errors.Is(err, bench.ErrMiss) {
			return nil // an answer, as slow or quick as any
		}
		return err
	}, nil
}

// names of the clients to measure, the budget's first. The floor of package store is not among them unless it was asked
// for: the bare socket here is one, and that one's reads keep the other goroutines of a small machine waiting.
func (d *diagnosis) names() (names []string) {
	if d.Options.Clients != nil {
		return d.Options.Clients
	}
	names = slices.Clone(d.target.Default)
	for _, c := range d.target.Clients {
		if !slices.Contains(names, c.Name) && c.Name != "floor" {
			names = append(names, c.Name)
		}
	}
	return names
}

// clients opens the libraries, has them take turns and cuts the budget.
func (d *diagnosis) clients(ctx context.Context) {
	c := &Client{Libraries: []Library{}, Pools: []Pool{}}
	d.r.Client = c
	names := d.names()
	libs := make([]Library, len(names))
	var list []*contender
	defer func() {
		c.Libraries = append(c.Libraries, libs...)
	}()
	for i, name := range names {
		libs[i].Client = name
		if j := slices.IndexFunc(d.target.Clients, func(c bench.Client) bool { return c.Name == name }); j >= 0 {
			libs[i].Version = d.target.Clients[j].Version
		}
		store, op, err := d.open(ctx, name, bench.Options{Connections: 1})
		if err != nil {
			libs[i].Error = err.Error()
			continue
		}
		defer store.Close()
		defer context.AfterFunc(ctx, func() { store.Close() })()
		libs[i].Settings = store.Info().Settings
		list = append(list, &contender{lib: &libs[i], store: store, op: op})
	}
	if len(list) == 0 {
		d.unmeasured("budget", errors.New("no client could be opened"))
		return
	}
	d.load(ctx, list[0].store)
	m := d.rounds(ctx, list)
	d.figures(ctx, list)
	d.budget(list, names, m)
}

// load writes the key, so that GETs are of something. A store that can't be written to is measured by misses.
func (d *diagnosis) load(ctx context.Context, store bench.Store) {
	if d.target.Kind == "postgres" {
		return
	}
	value := make([]byte, 100)
	set := func() error { return store.Set(ctx, d.key, value) }
	if d.talk != nil {
		set = func() error { return d.talk.Set(d.key, value) }
	}
	if err := set(); err != nil {
		d.unmeasured("client.set", err)
		d.r.Client.Error = err.Error()
	}
}

// blocks is how often the server's own statistics are read during the rounds.
const blocks = 6

// rounds has the bare socket and the libraries take turns for Effort, and returns what that took. What fails is no
// sample.
func (d *diagnosis) rounds(ctx context.Context, list []*contender) measures {
	var (
		c                       = d.r.Client
		echoes, floors, sandbox []time.Duration
		perGet, perEcho         []time.Duration // the server's, of each block
		machine, _              = newPair()
		failed                  = func(err error) { d.fail(ctx, err) }
		began                   = time.Now()
		timed                   = func(op func() error) (time.Duration, error) { t := time.Now(); err := op(); return time.Since(t), err }
		get                     = func() error { _, err := d.talk.Get(d.key); return ignoreMiss(err) }
	)
	if machine != nil {
		defer machine.close()
	}
	for range 10 { // what is first everywhere is not warm
		for _, x := range list {
			if err := x.op(); err != nil || ctx.Err() != nil || time.Since(began) > d.Effort/4 {
				break
			}
		}
	}
	if d.talk != nil {
		_ = get()
	}
	for block := range blocks {
		before, told := d.counters(ctx)
		calls := 0
		for n := 0; n == 0 || time.Since(began) < d.Effort*time.Duration(block+1)/blocks; n++ {
			if ctx.Err() != nil {
				break
			}
			if d.talk != nil {
				if took, err := timed(func() error { return d.talk.Echo(100) }); err == nil {
					echoes = append(echoes, took)
				} else {
					failed(err)
				}
			}
			if d.talk != nil {
				if took, err := timed(get); err == nil {
					floors, calls = append(floors, took), calls+1
				} else {
					failed(err)
				}
			}
			if machine != nil {
				if took, err := timed(machine.exchange); err == nil {
					sandbox = append(sandbox, took/2)
				}
			}
			for _, x := range list {
				if x.inARow >= 5 || ctx.Err() != nil {
					continue
				}
				took, err := timed(x.op)
				if err != nil {
					x.lib.Errors, x.inARow = x.lib.Errors+1, x.inARow+1
					if x.lib.Error == "" {
						x.lib.Error = err.Error()
					}
					d.count(err)
					continue
				}
				x.inARow = 0
				x.samples, calls = append(x.samples, took), calls+1
			}
		}
		if told {
			if after, told := d.counters(ctx); told {
				perGet, perEcho = after.since(before, calls, perGet, perEcho)
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	c.Echo, c.Floor = stat(echoes), stat(floors)
	m := measures{total: -1, floor: -1, echo: -1, sandbox: -1, server: -1, overhead: -1}
	for _, of := range []struct {
		to      *time.Duration
		samples []time.Duration
	}{{&m.echo, echoes}, {&m.floor, floors}, {&m.sandbox, sandbox}, {&m.server, perGet}, {&m.overhead, perEcho}} {
		if len(of.samples) > 0 {
			slices.Sort(of.samples)
			*of.to = median(of.samples)
		}
	}
	for _, x := range list {
		x.lib.Latency = stat(x.samples)
		if x.lib.Latency != nil && m.floor >= 0 {
			x.lib.OverFloorNS = new(x.lib.Latency.P50NS - int64(m.floor))
		}
	}
	return m
}

func ignoreMiss(err error) error {
	if errors.Is(err, bench.ErrMiss) {
		return nil
	}
	return err
}

// fail counts an operation that failed on the bare socket, and dials again where the connection did.
func (d *diagnosis) fail(ctx context.Context, err error) {
	d.count(err)
	switch kind := bench.Kind(err); kind {
	case "timeout", "reset", "protocol", "other":
		d.talk.Close()
		d.talk = nil
		if l, _, err := d.dial(ctx, ctx, d.addr()); err == nil {
			d.talk = l
		}
	}
}

func (d *diagnosis) count(err error) {
	c := d.r.Client
	if c.Errors++; c.Error == "" {
		c.Error = err.Error()
	}
	if d.failed == nil {
		d.failed = err
	}
	d.errors++
}

// counters are the server's totals of the operation and of the echo.
type counters struct {
	get, echo bench.Counters
	kind      string
}

func (d *diagnosis) counters(ctx context.Context) (c counters, ok bool) {
	c.kind = d.target.Kind
	if d.target.Wire == nil {
		return c, false
	}
	var err error
	if c.get, err = d.session.Counters(ctx, "get"); err == nil {
		c.echo, err = d.session.Counters(ctx, "echo")
	}
	if err != nil {
		d.unmeasured("server.ns_per_call", err)
	}
	return c, err == nil
}

// since appends what the server spent on one operation and one echo since before; calls operations were ours.
func (c counters) since(before counters, calls int, perGet, perEcho []time.Duration) (_, _ []time.Duration) {
	if c.kind == "memcached" {
		// It tells its CPU alone, which the echoes have a third of or less; their part is as that of a GET.
		n := max(c.get.Calls-before.get.Calls, uint64(calls))
		if n > 0 {
			each := (c.get.CPU - before.get.CPU) / time.Duration(n+n/2)
			return append(perGet, each), append(perEcho, each)
		}
		return perGet, perEcho
	}
	if n := c.get.Calls - before.get.Calls; n > 0 {
		perGet = append(perGet, (c.get.Time-before.get.Time)/time.Duration(n))
	}
	if n := c.echo.Calls - before.echo.Calls; n > 0 {
		perEcho = append(perEcho, (c.echo.Time-before.echo.Time)/time.Duration(n))
	}
	return perGet, perEcho
}

// figures measures what an operation of each library costs this process.
func (d *diagnosis) figures(ctx context.Context, list []*contender) {
	for _, x := range list {
		if x.lib.Latency == nil || x.inARow > 0 {
			continue
		}
		n := int(d.Effort / 16 / max(time.Duration(x.lib.Latency.P50NS), time.Microsecond))
		n = max(10, min(n, 1000))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cpuBefore, told := vantage.CPUTime()
		done := 0
		for began := time.Now(); done < n && ctx.Err() == nil && time.Since(began) < d.Effort/8; done++ {
			if x.op() != nil {
				break
			}
		}
		cpuAfter, _ := vantage.CPUTime()
		runtime.ReadMemStats(&after)
		if done < 10 {
			continue
		}
		x.lib.AllocsPerOp = bench.NewFigure(float64(after.Mallocs-before.Mallocs) / float64(done))
		x.lib.BytesPerOp = bench.NewFigure(float64(after.TotalAlloc-before.TotalAlloc) / float64(done))
		if told && cpuAfter > cpuBefore {
			x.lib.CPUNSPerOp = bench.NewFigure(float64(cpuAfter-cpuBefore) / float64(done))
		}
	}
}

// budget cuts the operation of the first client that has one.
func (d *diagnosis) budget(list []*contender, names []string, m measures) {
	operation := "get"
	if d.target.Kind == "postgres" {
		operation = "select"
		if ms, err := strconv.ParseFloat(d.before["select_ms"], 64); err == nil {
			m.server, m.overhead = time.Duration(ms*float64(time.Millisecond)), 0
		}
	}
	for _, x := range list {
		if x.lib.Client != names[0] || x.lib.Latency == nil {
			continue
		}
		d.r.Classes.Warm = x.lib.Latency
		m.total = time.Duration(x.lib.Latency.P50NS)
		b := &Budget{Operation: operation, Client: x.lib.Client, TotalNS: int64(m.total)}
		if d.target.Wire == nil && d.target.Kind != "redis" { // without a socket in between all of it is the library's
			m.floor = 0
		}
		b.Parts = cut(m)
		if m.server >= 0 {
			b.ServerSource = map[string]string{"redis": "commandstats", "memcached": "rusage", "postgres": "EXPLAIN ANALYZE"}[d.target.Kind]
			d.r.Server.NSPerCall = bench.NewFigure(float64(m.server))
			delete(d.r.Unmeasured, "server.ns_per_call")
		}
		for _, p := range b.Parts {
			if p.NS == nil {
				d.unmeasured("budget."+p.Name, errors.New(cmp.Or(map[string]string{"server": d.untold()}[p.Name], "it could not be measured by itself")))
			}
		}
		d.r.Budget = b
		return
	}
	i := slices.IndexFunc(list, func(x *contender) bool { return x.lib.Client == names[0] })
	why := names[0] + " could not be opened"
	if i >= 0 && list[i].lib.Error != "" {
		why = names[0] + ": " + list[i].lib.Error
	}
	d.unmeasured("budget", errors.New(why))
	d.unmeasured("classes.warm", errors.New(why))
}

// crowd is how many operations go on at once in a library's own pool, at most.
const crowd = 32

// pools has some operations at once through each library as it is set up by itself and, where operations have failed
// before, looks whether its retries hide that.
func (d *diagnosis) pools(ctx context.Context) {
	room := crowd
	if d.target.Wire != nil {
		n, why := d.room()
		if room = min(n, crowd); room < 2 {
			d.unmeasured("client.pools", errors.New(why))
			return
		}
	}
	for _, name := range defaults[d.target.Kind] {
		if !slices.Contains(d.names(), name) || ctx.Err() != nil {
			continue
		}
		store, op, err := d.open(ctx, name, bench.Options{Connections: 1, Defaults: true})
		if err != nil {
			d.unmeasured("client.pools", fmt.Errorf("%s: %w", name, err))
			continue
		}
		stop := context.AfterFunc(ctx, func() { store.Close() })
		d.r.Client.Pools = append(d.r.Client.Pools, crowded(ctx, name, room, store, op))
		if d.errors > 0 {
			d.retried(ctx, name, store, op)
		}
		stop()
		store.Close()
	}
}

// crowded has n workers perform op a few times each.
func crowded(ctx context.Context, name string, n int, store bench.Store, op func() error) Pool {
	p := Pool{Client: name, Concurrency: n}
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for range 3 {
				if ctx.Err() != nil {
					return
				}
				asked := time.Now()
				err := op()
				mu.Lock()
				p.Operations++
				if err != nil {
					if p.Errors++; p.Error == "" {
						p.Error = err.Error()
					}
				}
				p.MaxNS = max(p.MaxNS, int64(time.Since(asked)))
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if pooled, ok := store.(bench.Pooled); ok {
		stats := pooled.Pool()
		p.Size, p.Dials, p.Waits, p.Timeouts = stats.Size, stats.Dials, stats.Waits, stats.Timeouts
		if stats.Waits > 0 {
			p.MeanWaitNS = int64(stats.WaitTime) / stats.Waits
		}
	}
	return p
}

// retried performs about as many operations as failed some times without retries.
func (d *diagnosis) retried(ctx context.Context, name string, store bench.Store, op func() error) {
	r := Retried{Client: name}
	for began := time.Now(); r.Operations < 400 && time.Since(began) < d.Effort/2 && ctx.Err() == nil; r.Operations++ {
		if op() != nil {
			r.Errors++
		}
	}
	if pooled, ok := store.(bench.Pooled); ok {
		r.Dials = pooled.Pool().Dials
	}
	d.r.Client.Retried = append(d.r.Client.Retried, r)
}
