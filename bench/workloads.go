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
	{Name: "ping_inline", Doc: "PING as a line of text", Title: "PING_INLINE", Command: "ping", Kinds: redisKinds, Clients: []string{"floor"}, Real: true, Op: opPingInline},
	{Name: "ping_mbulk", Alias: "ping", Doc: "PING: the round trip and nothing else", Title: "PING_MBULK", Command: "ping", Kinds: redisKinds, Op: opPing},
	{Name: "set", Doc: "SET of a value", Title: "SET", Command: "set", Kinds: keyValue, Keys: keysBelow("key:"), Op: opSet},
	{Name: "get", Doc: "GET of a value that is there", Title: "GET", Command: "get", Kinds: keyValue, Keys: loadedKeys, Load: loadValues, Op: opGet},
	{Name: "incr", Doc: "INCR of a counter", Title: "INCR", Command: "incr", Kinds: counting, Keys: keysBelow("counter:"), Load: loadCounters, Op: opIncr},
	{Name: "lpush", Doc: "LPUSH of a value", Title: "LPUSH", Command: "lpush", Kinds: redisKinds, Keys: writes("mylist"), Grows: true, Load: loadList(1), Op: push("LPUSH")},
	{Name: "rpush", Doc: "RPUSH of a value", Title: "RPUSH", Command: "rpush", Kinds: redisKinds, Keys: writes("mylist"), Grows: true, Load: loadList(1), Op: push("RPUSH")},
	{Name: "lpop", Doc: "LPOP of a value that is there", Title: "LPOP", Command: "lpop", Kinds: redisKinds, Keys: reads("mylist"), Drains: true, Load: loadList(supplied), Op: pop("LPOP", "mylist")},
	{Name: "rpop", Doc: "RPOP of a value that is there", Title: "RPOP", Command: "rpop", Kinds: redisKinds, Keys: reads("mylist"), Drains: true, Load: loadList(supplied), Op: pop("RPOP", "mylist")},
	{Name: "sadd", Doc: "SADD of a member", Title: "SADD", Command: "sadd", Kinds: redisKinds, Keys: writes("myset"), Load: loadSet(1), Op: opSadd},
	{Name: "hset", Doc: "HSET of a field", Title: "HSET", Command: "hset", Kinds: redisKinds, Keys: writes("myhash"), Load: loadHash, Op: opHset},
	{Name: "spop", Doc: "SPOP of a member that is there", Title: "SPOP", Command: "spop", Kinds: redisKinds, Keys: reads("myset"), Drains: true, Load: loadSet(supplied), Op: pop("SPOP", "myset")},
	{Name: "zadd", Doc: "ZADD of a member", Title: "ZADD", Command: "zadd", Kinds: redisKinds, Keys: writes("myzset"), Load: loadZset(1), Op: opZadd},
	{Name: "zpopmin", Doc: "ZPOPMIN of a member that is there", Title: "ZPOPMIN", Command: "zpopmin", Kinds: redisKinds, Keys: reads("myzset"), Drains: true, Load: loadZset(supplied), Op: pop("ZPOPMIN", "myzset")},
	{Name: "lrange_lpush", Doc: "the LPUSH before LRANGE", Title: "LPUSH (needed to benchmark LRANGE)", Command: "lpush", Kinds: redisKinds, Keys: writes("mylist"), Grows: true, Load: loadList(1), Op: push("LPUSH")},
	{Name: "lrange_100", Doc: "LRANGE of 100 elements", Title: "LRANGE_100 (first 100 elements)", Command: "lrange", Kinds: redisKinds, Keys: reads("mylist"), Elements: 100, Load: loadList(100), Op: lrange(100)},
	{Name: "lrange_300", Doc: "LRANGE of 300 elements", Title: "LRANGE_300 (first 300 elements)", Command: "lrange", Kinds: redisKinds, Keys: reads("mylist"), Elements: 300, Load: loadList(300), Op: lrange(300)},
	{Name: "lrange_500", Doc: "LRANGE of 500 elements", Title: "LRANGE_500 (first 500 elements)", Command: "lrange", Kinds: redisKinds, Keys: reads("mylist"), Elements: 500, Load: loadList(500), Op: lrange(500)},
	{Name: "lrange_600", Doc: "LRANGE of 600 elements", Title: "LRANGE_600 (first 600 elements)", Command: "lrange", Kinds: redisKinds, Keys: reads("mylist"), Elements: 600, Load: loadList(600), Op: lrange(600)},
	{Name: "mset", Doc: "MSET of 10 keys", Title: "MSET (10 keys)", Command: "mset", Kinds: redisKinds, Keys: keysBelow("key:"), Forever: true, Several: true, Op: opMset},
	{Name: "mget", Doc: "MGET of 10 keys that are there", Title: "MGET (10 keys)", Command: "mget", Kinds: counting, Keys: loadedKeys, Load: loadValues, Several: true, Op: opMget},
	{Name: "xadd", Doc: "XADD to a stream", Title: "XADD", Command: "xadd", Kinds: redisKinds, Keys: writes("mystream"), Grows: true, Load: loadStream, Op: opXadd},
	{Name: "roundtrip", Doc: "SET of a new key, GET, compare: both are one operation", Kinds: keyValue, Keys: allKeys, Op: opRoundtrip},
	{Name: "tpcb", Doc: "TPC-B's transaction as pgbench has it: 7 round trips", Kinds: sqlKinds, Load: loadBank, Op: opTPCB},
	{Name: "simple-update", Doc: "the same without tellers and branches: 5 round trips", Kinds: sqlKinds, Load: loadBank, Op: opSimpleUpdate},
	{Name: "select", Doc: "SELECT of an account's balance", Kinds: sqlKinds, Load: loadBank, Op: opSelect},
}

var (
	keyValue   = []string{"redis", "memcached", "map", "bbolt", "buntdb", "sqlite"}
	counting   = []string{"redis", "memcached"} // or reading several keys at once
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
	keys, value := p.drawKeys("key:", sequenceSet, 1), p.values()
	if p.Compatible { // without a TTL, which Set would give
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			i := keys.index(n, 0)
			return append(c, "SET", keys.At(i), value(i))
		}, nil)
	}
	if pipeline > 1 {
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			i := keys.index(n, 0)
			return append(c, "SET", keys.At(i), value(i), "EX", ttlSeconds)
		}, nil)
	}
	return func(ctx context.Context, n uint64, errs []error) {
		i := keys.index(n, 0)
		errs[0] = s.Set(ctx, keys.At(i), p.Values.Bytes(i))
	}
}

func opGet(s Store, p *Params, pipeline int) Op {
	keys, value := p.drawKeys("key:", sequenceGet, 1), p.values()
	check := func(n uint64, got []byte) error {
		if p.Verify && string(got) != value(keys.index(n, 0)) {
			return ErrMismatch
		}
		return nil
	}
	if pipeline > 1 {
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			return append(c, "GET", keys.at(n, 0))
		}, func(n uint64, r *Reply) error {
			if r.Nil {
				return ErrMiss
			}
			return check(n, r.Bytes)
		})
	}
	return func(ctx context.Context, n uint64, errs []error) {
		got, err := s.Get(ctx, keys.at(n, 0))
		if err == nil {
			err = check(n, got)
		}
		errs[0] = err
	}
}

// opRoundtrip works on one key after another. A batch writes all of its keys in one round trip and reads them in the next.
func opRoundtrip(s Store, p *Params, pipeline int) Op {
	key := func(n uint64) uint64 { return n % p.Keys.n }
	compare := func(n uint64, got []byte) error {
		if !bytes.Equal(got, p.Values.Bytes(key(n))) {
			return ErrMismatch
		}
		return nil
	}
	if pipeline > 1 {
		set := pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			return append(c, "SET", p.Keys.At(key(n)), p.Values.At(key(n)), "EX", ttlSeconds)
		}, nil)
		get := pipelined(s, pipeline, func(n uint64, c Cmd) Cmd { return append(c, "GET", p.Keys.At(key(n))) },
			func(n uint64, r *Reply) error {
				if r.Nil {
					return ErrMiss
				}
				return compare(n, r.Bytes)
			})
		unset := make([]error, pipeline)
		return func(ctx context.Context, n uint64, errs []error) {
			set(ctx, n, unset[:len(errs)])
			get(ctx, n, errs)
			for i := range errs {
				if unset[i] != nil {
					errs[i] = unset[i]
				}
			}
		}
	}
	return func(ctx context.Context, n uint64, errs []error) {
		i := key(n)
		if errs[0] = s.Set(ctx, p.Keys.At(i), p.Values.Bytes(i)); errs[0] != nil {
			return
		}
		got, err := s.Get(ctx, p.Keys.At(i))
		if err == nil {
			err = compare(n, got)
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

// loadValues writes every key.
func loadValues(ctx context.Context, s Store, p *Params) error {
	return loadKeys(ctx, s, p, p.Values.size, p.Values.At)
}

// loadKeys writes a value of size bytes to every key, in large round trips where the client can.
func loadKeys(ctx context.Context, s Store, p *Params, size int, value func(i uint64) string) error {
	c, batches := s.(Commander)
	most := 1
	if batches {
		most = int(max(1, min(loadBatch, 1<<20/uint64(max(size, 1)))))
	}
	var (
		cmds    = make([]Cmd, 0, most)
		replies = make([]Reply, most)
	)
	send := func() error {
		clear(replies)
		c.Do(ctx, cmds, replies[:len(cmds)])
		for _, r := range replies[:len(cmds)] {
			if r.Err != nil {
				return fmt.Errorf("load keys: %w", r.Err)
			}
		}
		cmds = cmds[:0]
		return nil
	}
	for i := range p.Keys.Len() {
		if !p.Share.has(i) {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("load keys: %w", err)
		}
		if !batches {
			if err := s.Set(ctx, p.Keys.At(i), []byte(value(i))); err != nil {
				return fmt.Errorf("load keys: %w", err)
			}
			continue
		}
		cmds = append(cmds, Cmd{"SET", p.Keys.At(i), value(i), "EX", ttlSeconds})
		if len(cmds) == most {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if len(cmds) == 0 {
		return nil
	}
	return send()
}
