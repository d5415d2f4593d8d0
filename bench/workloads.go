package bench

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Workloads are the operations there are. A new one is a line here and the funcs it names.
var Workloads = []Workload{
	{Name: "set", Doc: "SET of a value", Title: "SET", Command: "set", Kinds: keyValue, Keys: allKeys, Op: opSet},
	{Name: "get", Doc: "GET of a value that is there", Title: "GET", Command: "get", Kinds: keyValue, Keys: allKeys, Load: loadValues, Op: opGet},
	{Name: "ping_mbulk", Alias: "ping", Doc: "PING: the round trip and nothing else", Title: "PING_MBULK", Command: "ping", Kinds: redisKinds, Op: opPing},
	{Name: "tpcb", Doc: "TPC-B's transaction as pgbench has it: 7 round trips", Kinds: sqlKinds, Load: loadBank, Op: opTPCB},
	{Name: "simple-update", Doc: "the same without tellers and branches: 5 round trips", Kinds: sqlKinds, Load: loadBank, Op: opSimpleUpdate},
	{Name: "select", Doc: "SELECT of an account's balance", Kinds: sqlKinds, Load: loadBank, Op: opSelect},
}

var (
	keyValue   = []string{"redis", "memcached", "map", "bbolt", "buntdb", "sqlite"}
	redisKinds = []string{"redis"}
	sqlKinds   = []string{"postgres"}
)

// A Group is a name for several workloads.
type Group struct {
	Name, Doc string
	Holds     func(*Workload) bool
}

// Groups are the groups there are.
var Groups = []Group{
	{"all", "every workload that the target supports", func(*Workload) bool { return true }},
	{"redis-benchmark", "the tests of redis-benchmark", func(w *Workload) bool { return w.Title != "" }},
	{"lrange", "LRANGE of 100 to 600 elements, and the LPUSH before", func(w *Workload) bool { return strings.HasPrefix(w.Name, "lrange_") }},
	{"pgbench", "the scripts of pgbench", (*Workload).transacts},
}

// defaultWorkloads are measured where none is named.
func defaultWorkloads(kind string) string {
	if kind == "postgres" {
		return "tpcb,select"
	}
	return "set,get"
}

// transacts tells whether w is of pgbench, whose rows have a scale and a protocol in place of keys and values.
func (w *Workload) transacts() bool { return slices.Equal(w.Kinds, sqlKinds) }

// allKeys yields the keys of the keyspace.
func allKeys(p *Params) iter.Seq[string] { return p.Keys.All() }

// Supports tells whether a client of a kind of target can perform w.
func (w *Workload) Supports(kind string, c Client) bool {
	return slices.Contains(w.Kinds, kind) && (w.Clients == nil || slices.Contains(w.Clients, c.Name))
}

// findWorkload returns the workload called name, which may be an alias, or nil.
func findWorkload(name string) *Workload {
	for i := range Workloads {
		if w := &Workloads[i]; w.Name == name || w.Alias != "" && w.Alias == name {
			return w
		}
	}
	return nil
}

// title is w's name in a row's key: Go's benchmark format wants a capital first.
func (w *Workload) title() string {
	var b strings.Builder
	for part := range strings.SplitSeq(w.Name, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// ttlSeconds is TTL as a Redis command carries it.
var ttlSeconds = strconv.Itoa(int(TTL.Seconds()))

func opSet(s Store, p *Params, pipeline int) Op {
	if pipeline > 1 {
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			i := p.Keys.Index(n)
			return append(c, "SET", p.Keys.At(i), p.Values.At(i), "EX", ttlSeconds)
		}, nil)
	}
	return func(ctx context.Context, n uint64, errs []error) {
		i := p.Keys.Index(n)
		errs[0] = s.Set(ctx, p.Keys.At(i), p.Values.Bytes(i))
	}
}

func opGet(s Store, p *Params, pipeline int) Op {
	check := func(n uint64, got []byte) error {
		if p.Verify && !bytes.Equal(got, p.Values.Bytes(p.Keys.Index(n))) {
			return ErrMismatch
		}
		return nil
	}
	if pipeline > 1 {
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			return append(c, "GET", p.Keys.At(p.Keys.Index(n)))
		}, func(n uint64, r *Reply) error {
			if r.Nil {
				return ErrMiss
			}
			return check(n, r.Bytes)
		})
	}
	return func(ctx context.Context, n uint64, errs []error) {
		got, err := s.Get(ctx, p.Keys.At(p.Keys.Index(n)))
		if err == nil {
			err = check(n, got)
		}
		errs[0] = err
	}
}

func opPing(s Store, _ *Params, pipeline int) Op {
	return pipelined(s, pipeline, func(_ uint64, c Cmd) Cmd { return append(c, "PING") }, nil)
}

// pipelined returns the operation that sends the commands that build appends to an empty one, pipeline in one round
// trip, and judges each reply that is not an error by check, which may be nil.
func pipelined(s Store, pipeline int, build func(n uint64, c Cmd) Cmd, check func(n uint64, r *Reply) error) Op {
	var (
		commander = s.(Commander) // every client of a kind that has such workloads is one
		cmds      = make([]Cmd, pipeline)
		replies   = make([]Reply, pipeline)
	)
	return func(ctx context.Context, n uint64, errs []error) {
		for i := range errs {
			cmds[i] = build(n+uint64(i), cmds[i][:0])
		}
		clear(replies[:len(errs)])
		commander.Do(ctx, cmds[:len(errs)], replies[:len(errs)])
		for i := range errs {
			if errs[i] = replies[i].Err; errs[i] == nil && check != nil {
				errs[i] = check(n+uint64(i), &replies[i])
			}
		}
	}
}

// loadBatch is how many keys are written in one round trip while loading.
const loadBatch = 500

// loadValues writes every key, in large round trips where the client can.
func loadValues(ctx context.Context, s Store, p *Params) error {
	c, batches := s.(Commander)
	size := 1
	if batches {
		size = int(max(1, min(loadBatch, 1<<20/uint64(max(p.Values.size, 1)))))
	}
	var (
		cmds    = make([]Cmd, 0, size)
		replies = make([]Reply, size)
	)
	for i := range p.Keys.Len() {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("load keys: %w", err)
		}
		if !batches {
			if err := s.Set(ctx, p.Keys.At(i), p.Values.Bytes(i)); err != nil {
				return fmt.Errorf("load keys: %w", err)
			}
			continue
		}
		cmds = append(cmds, Cmd{"SET", p.Keys.At(i), p.Values.At(i), "EX", ttlSeconds})
		if len(cmds) < size && i+1 < p.Keys.Len() {
			continue
		}
		clear(replies)
		c.Do(ctx, cmds, replies[:len(cmds)])
		for _, r := range replies[:len(cmds)] {
			if r.Err != nil {
				return fmt.Errorf("load keys: %w", r.Err)
			}
		}
		cmds = cmds[:0]
	}
	return nil
}
