package bench

import (
	"context"
	"fmt"
	"iter"
	"strconv"
)

// The tests of redis-benchmark. In flavor sound each finds the data it works on: what it reads or takes away was loaded
// before. In flavor compatible each sends exactly what redis-benchmark sends, key prefix aside, and takes what is there.

// An Inliner sends a command as a line of text, as a person at a terminal would. No client library does.
type Inliner interface {
	// Inline sends line once for each reply, in one round trip.
	Inline(ctx context.Context, line string, replies []Reply)
}

// literal stands in redis-benchmark's commands for a number that it draws, and is sent as it is where it draws none.
const literal = "__rand_int__"

// numbered are n names as redis-benchmark makes them: prefix and 12 digits or, where there is but one, the literal.
func numbered(prefix string, n int) Keys {
	k := Keys{prefix: prefix, width: len(prefix) + len(literal), n: uint64(n)}
	if n == 1 {
		k.arena = prefix + literal
	} else if n <= arenaKeys {
		b := make([]byte, 0, n*k.width)
		for i := range k.n {
			b = k.append(b, i)
		}
		k.arena = string(b)
	}
	return k
}

// A draw is the names that the commands of a workload hold, each drawn on its own.
type draw struct {
	Keys
	seed uint64 // of the sequence
	each uint64 // names in one command
}

// index is which name the j-th of command n is.
func (d *draw) index(n, j uint64) uint64 { return d.Index(d.seed + n*d.each + j) }

// at is the j-th name in command n.
func (d *draw) at(n, j uint64) string { return d.At(d.index(n, j)) }

// seedStep sets the sequences of two workloads apart. In redis-benchmark one goes on where the last ended, so that a GET
// does not ask for just the keys that the SET before it wrote; in flavor sound all draw alike.
const seedStep = 1 << 48

// drawKeys is for commands with so many keys; what stands below prefix is redis-benchmark's.
func (p *Params) drawKeys(prefix string, sequence, each uint64) draw {
	if !p.Compatible {
		return draw{p.Keys, 0, each}
	}
	return draw{p.named(p.Key(prefix)), sequence * seedStep, each}
}

// drawElements is for commands with so many elements of a collection, which have redis-benchmark's names in both flavors.
func (p *Params) drawElements(sequence, each uint64) draw {
	d := draw{p.named("element:"), 0, each}
	if p.Compatible {
		d.seed = sequence * seedStep
	}
	return d
}

// named has the names that begin with prefix take the place of p's keys: they are made by the first worker's operation,
// before any runs, and shared by all.
func (p *Params) named(prefix string) Keys {
	if p.Keys.prefix != prefix || p.Keys.width != len(prefix)+len(literal) {
		p.Keys = numbered(prefix, int(p.Keys.n))
	}
	return p.Keys
}

// values returns the value of key i: in flavor compatible one for all, made once and shared as the names are.
func (p *Params) values() func(i uint64) string {
	if !p.Compatible {
		return p.Values.At
	}
	if len(p.Values.text) != p.Values.size {
		b := benchmarkData(p.Values.size)
		p.Values = Values{string(b), b, p.Values.size}
	}
	text := p.Values.text
	return func(uint64) string { return text }
}

// benchmarkData is the payload of redis-benchmark: genBenchmarkRandomData in redis-benchmark.c, since 6.0.4.
func benchmarkData(size int) []byte {
	b := make([]byte, size)
	state := uint32(1234)
	for i := range b {
		state = state*1103515245 + 12345
		b[i] = '0' + byte(state>>16&63)
	}
	return b
}

// nothing is the keys of a test that writes none.
func nothing(func(string) bool) {}

// keysBelow yields the keys of a test that writes many.
func keysBelow(prefix string) func(p *Params) iter.Seq[string] {
	return func(p *Params) iter.Seq[string] {
		if p.Compatible {
			return numbered(p.Key(prefix), int(p.Keys.n)).All()
		}
		return p.Keys.All()
	}
}

// loadedKeys yields the keys of a test for which Load alone writes.
func loadedKeys(p *Params) iter.Seq[string] {
	if p.Compatible {
		return nothing
	}
	return p.Keys.All()
}

// writes yields the key of a test that adds to the collection called name.
func writes(name string) func(p *Params) iter.Seq[string] {
	return func(p *Params) iter.Seq[string] {
		return func(yield func(string) bool) { yield(p.Key(name)) }
	}
}

// reads yields the key of a test that adds to the collection called name nothing that Load did not.
func reads(name string) func(p *Params) iter.Seq[string] {
	return func(p *Params) iter.Seq[string] {
		if p.Compatible {
			return nothing
		}
		return writes(name)(p)
	}
}

// perKeys is how many keys MSET and MGET name.
const perKeys = 10

// The sequences of names that workloads draw from.
const (
	sequenceSet = iota
	sequenceGet
	sequenceIncr
	sequenceSadd
	sequenceHset
	sequenceZadd
	sequenceMset
	sequenceMget
)

func opPingInline(s Store, _ *Params, pipeline int) Op {
	inliner := s.(Inliner) // of the clients that the table names, every store is one
	replies := make([]Reply, pipeline)
	return func(ctx context.Context, _ uint64, errs []error) {
		clear(replies[:len(errs)])
		inliner.Inline(ctx, "PING", replies[:len(errs)])
		for i := range errs {
			errs[i] = replies[i].Err
		}
	}
}

func opIncr(s Store, p *Params, pipeline int) Op {
	keys := p.drawKeys("counter:", sequenceIncr, 1)
	if c, ok := s.(Incrementer); ok {
		return func(ctx context.Context, n uint64, errs []error) {
			for i := range errs {
				errs[i] = c.Incr(ctx, keys.at(n+uint64(i), 0))
			}
		}
	}
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd { return append(c, "INCR", keys.at(n, 0)) }, nil)
}

// push returns the operation that adds a value to the list.
func push(command string) func(s Store, p *Params, pipeline int) Op {
	return func(s Store, p *Params, pipeline int) Op {
		key, value, keys := p.Key("mylist"), p.values(), p.Keys
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
			return append(c, command, key, value(keys.Index(n)))
		}, nil)
	}
}

// pop returns the operation that takes an element away from the collection called name.
func pop(command, name string) func(s Store, p *Params, pipeline int) Op {
	return func(s Store, p *Params, pipeline int) Op {
		key := p.Key(name)
		return pipelined(s, pipeline, func(_ uint64, c Cmd) Cmd { return append(c, command, key) }, gone)
	}
}

// gone judges the reply to a command that takes away one element. ZPOPMIN answers with an empty array where there is none.
func gone(_ uint64, r *Reply) error {
	if r.Nil || r.Len == 0 && len(r.Bytes) == 0 {
		return ErrMiss
	}
	return nil
}

func opSadd(s Store, p *Params, pipeline int) Op {
	key, members := p.Key("myset"), p.drawElements(sequenceSadd, 1)
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd { return append(c, "SADD", key, members.at(n, 0)) }, nil)
}

func opHset(s Store, p *Params, pipeline int) Op {
	key, value, fields := p.Key("myhash"), p.values(), p.drawElements(sequenceHset, 1)
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
		i := fields.index(n, 0)
		return append(c, "HSET", key, fields.At(i), value(i))
	}, nil)
}

// opZadd has the score be a number drawn beside the member's, 0 where there is one member.
func opZadd(s Store, p *Params, pipeline int) Op {
	key, members := p.Key("myzset"), p.drawElements(sequenceZadd, 2)
	if members.n == 1 {
		return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd { return append(c, "ZADD", key, "0", members.at(n, 1)) }, nil)
	}
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
		return append(c, "ZADD", key, members.at(n, 0)[len(members.prefix):], members.at(n, 1))
	}, nil)
}

// lrange returns the operation that reads the first elements of the list. In flavor compatible it may be shorter.
func lrange(elements int) func(s Store, p *Params, pipeline int) Op {
	last := strconv.Itoa(elements - 1)
	return func(s Store, p *Params, pipeline int) Op {
		key := p.Key("mylist")
		return pipelined(s, pipeline, func(_ uint64, c Cmd) Cmd { return append(c, "LRANGE", key, "0", last) },
			func(_ uint64, r *Reply) error {
				switch {
				case r.Len == elements:
					return nil
				case r.Len == 0 || p.Compatible:
					return ErrMiss
				}
				return ErrMismatch
			})
	}
}

func opMset(s Store, p *Params, pipeline int) Op {
	keys, value := p.drawKeys("key:", sequenceMset, perKeys), p.values()
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
		c = append(c, "MSET")
		for j := range uint64(perKeys) {
			i := keys.index(n, j)
			c = append(c, keys.At(i), value(i))
		}
		return c
	}, nil)
}

func opMget(s Store, p *Params, pipeline int) Op {
	keys := p.drawKeys("key:", sequenceMget, perKeys)
	if c, ok := s.(MultiGetter); ok {
		// Neighbours, so that none is named twice: some clients would count it once.
		names, want := make([]string, perKeys), int(min(perKeys, keys.n))
		return func(ctx context.Context, n uint64, errs []error) {
			for i := range errs {
				first := keys.index(n+uint64(i), 0)
				for j := range names {
					names[j] = keys.At((first + uint64(j)) % keys.n)
				}
				found, err := c.GetMulti(ctx, names)
				if err == nil && found < want {
					err = ErrMiss
				}
				errs[i] = err
			}
		}
	}
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
		c = append(c, "MGET")
		for j := range uint64(perKeys) {
			c = append(c, keys.at(n, j))
		}
		return c
	}, func(_ uint64, r *Reply) error {
		switch {
		case r.Len != perKeys:
			return ErrMismatch
		case r.Nils > 0:
			return ErrMiss
		}
		return nil
	})
}

func opXadd(s Store, p *Params, pipeline int) Op {
	key, value, keys := p.Key("mystream"), p.values(), p.Keys
	return pipelined(s, pipeline, func(n uint64, c Cmd) Cmd {
		return append(c, "XADD", key, "*", "myfield", value(keys.Index(n)))
	}, nil)
}

// What Load puts into a collection. The collections that are only added to get one element, so that there is something
// to set a TTL on: commands that add keep it.

// loadCounters writes every counter.
func loadCounters(ctx context.Context, s Store, p *Params) error {
	return loadKeys(ctx, s, p, 1, func(uint64) string { return "0" })
}

// supplied stands in place of a number of elements for as many as the row takes away.
const supplied = 0

func (p *Params) elements(n uint64) uint64 {
	if n == supplied {
		return p.Supply
	}
	return n
}

// loadList returns the Load of so many elements of the list.
func loadList(elements uint64) func(ctx context.Context, s Store, p *Params) error {
	return func(ctx context.Context, s Store, p *Params) error {
		return loadElements(ctx, s, p, "mylist", p.elements(elements), "RPUSH", func(c Cmd, i uint64) Cmd {
			return append(c, p.Values.At(i))
		})
	}
}

// loadSet returns the Load of so many members of the set.
func loadSet(elements uint64) func(ctx context.Context, s Store, p *Params) error {
	return func(ctx context.Context, s Store, p *Params) error {
		return loadElements(ctx, s, p, "myset", p.elements(elements), "SADD", func(c Cmd, i uint64) Cmd {
			return append(c, element(i))
		})
	}
}

// loadZset returns the Load of so many members of the sorted set.
func loadZset(elements uint64) func(ctx context.Context, s Store, p *Params) error {
	return func(ctx context.Context, s Store, p *Params) error {
		return loadElements(ctx, s, p, "myzset", p.elements(elements), "ZADD", func(c Cmd, i uint64) Cmd {
			return append(c, strconv.FormatUint(i, 10), element(i))
		})
	}
}

func element(i uint64) string { return fmt.Sprintf("element:%012d", i) }

func loadHash(ctx context.Context, s Store, p *Params) error {
	return loadElements(ctx, s, p, "myhash", 1, "HSET", func(c Cmd, i uint64) Cmd {
		return append(c, element(i), p.Values.At(i))
	})
}

func loadStream(ctx context.Context, s Store, p *Params) error {
	return loadElements(ctx, s, p, "mystream", 1, "XADD", func(c Cmd, i uint64) Cmd {
		return append(c, "*", "myfield", p.Values.At(i))
	})
}

// Bounds of loading a collection: a command that adds very many elements would keep the server from others.
const (
	loadArgs     = 1000     // of one command
	loadCommands = 16       // of one round trip
	loadBytes    = 1 << 20  // of one round trip
	loadCommand  = 64 << 10 // bytes of one command
)

// loadElements adds those of count elements that are of p's share to the collection called name by the variadic command,
// and sets its TTL right after the first of them. add appends the arguments of element i.
func loadElements(ctx context.Context, s Store, p *Params, name string, count uint64, command string, add func(c Cmd, i uint64) Cmd) error {
	var (
		key = p.Key(name)
		b   = batch{what: "load " + key, s: s.(Commander)}
		cmd = Cmd{command, key}
	)
	last := count
	for i := range min(count, max(p.Share.Of, 1)) { // from the end
		if p.Share.has(count - 1 - i) {
			last = count - 1 - i
			break
		}
	}
	for i, bytes := uint64(0), 0; i < count; i++ {
		if !p.Share.has(i) {
			continue
		}
		before := len(cmd)
		cmd = add(cmd, i)
		for _, arg := range cmd[before:] {
			bytes += len(arg)
		}
		if len(cmd) < loadArgs && bytes < loadCommand && i < last {
			continue
		}
		first := b.sent == 0
		if err := b.add(ctx, cmd, bytes); err != nil {
			return err
		}
		if first {
			if err := b.add(ctx, Cmd{"EXPIRE", key, ttlSeconds}, 0); err != nil {
				return err
			}
		}
		cmd, bytes = Cmd{command, key}, 0
	}
	return b.flush(ctx)
}

// A batch sends commands in large round trips. The first error reply ends it.
type batch struct {
	what  string
	s     Commander
	cmds  []Cmd
	bytes int
	sent  int
}

// add sends cmd, of so many bytes, with others or when flush is called.
func (b *batch) add(ctx context.Context, cmd Cmd, bytes int) error {
	b.cmds, b.bytes, b.sent = append(b.cmds, cmd), b.bytes+bytes, b.sent+1
	if len(b.cmds) < loadCommands && b.bytes < loadBytes {
		return nil
	}
	return b.flush(ctx)
}

func (b *batch) flush(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s: %w", b.what, err)
	}
	if len(b.cmds) == 0 {
		return nil
	}
	replies := make([]Reply, len(b.cmds))
	b.s.Do(ctx, b.cmds, replies)
	for _, r := range replies {
		if err := r.Err; err != nil {
			return fmt.Errorf("%s: %w", b.what, err)
		}
	}
	b.cmds, b.bytes = b.cmds[:0], 0
	return nil
}
