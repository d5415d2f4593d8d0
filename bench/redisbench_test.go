package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A recorder keeps the commands it is sent and answers each with an integer.
type recorder struct {
	Store
	cmds []Cmd
	keep bool
}

func (r *recorder) Do(_ context.Context, cmds []Cmd, replies []Reply) {
	for i, c := range cmds {
		if r.keep {
			r.cmds = append(r.cmds, slices.Clone(c))
		}
		replies[i] = Reply{Int: 1}
	}
}

func (r *recorder) Get(ctx context.Context, key string) ([]byte, error) {
	replies := make([]Reply, 1)
	r.Do(ctx, []Cmd{{"GET", key}}, replies)
	return nil, replies[0].Err
}

func compatible(keyspace, size int) *Params {
	p := &Params{Run: "R", Compatible: true, Values: NewValues(size)}
	p.Keys = NewKeys(p.Key("key:"), keyspace)
	return p
}

// record returns the commands that operations 0 to count-1 of w send.
func record(w *Workload, p *Params, count uint64) []Cmd {
	r := &recorder{keep: true}
	op, errs := w.Op(r, p, 1), make([]error, 1)
	for n := range count {
		op(context.Background(), n, errs)
	}
	return r.cmds
}

// The order and the titles are those in which redis-benchmark 8 and valkey-benchmark print them.
func TestCatalogueOrder(t *testing.T) {
	want := []string{"PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "LPUSH", "RPUSH", "LPOP", "RPOP", "SADD", "HSET", "SPOP", "ZADD", "ZPOPMIN",
		"LPUSH (needed to benchmark LRANGE)", "LRANGE_100 (first 100 elements)", "LRANGE_300 (first 300 elements)", "LRANGE_500 (first 500 elements)",
		"LRANGE_600 (first 600 elements)", "MSET (10 keys)", "MGET (10 keys)", "XADD"}
	var got []string
	for i := range Workloads {
		if w := &Workloads[i]; w.Title != "" {
			got = append(got, w.Title)
			if name, _, _ := strings.Cut(w.Title, " "); !strings.EqualFold(name, w.Name) && w.Name != "lrange_lpush" {
				t.Errorf("%s is titled %s", w.Name, w.Title)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("titles\n%q, want\n%q", got, want)
	}
	if w := findWorkload("ping"); w == nil || w.Name != "ping_mbulk" {
		t.Errorf("ping is %v", w)
	}
}

// What redis-benchmark 7.0.15 was seen to send as -d 64.
func TestBenchmarkData(t *testing.T) {
	const want = "VXKeHogKgJ=[5V9_X^b?48OKF2jGA<f:iR@50o7dS3JV4Q6L68lC[GTA]0DaMg?_"
	if got := string(benchmarkData(64)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNumbered(t *testing.T) {
	for _, c := range []struct {
		n    int
		i    uint64
		want string
	}{
		{1, 0, "p:__rand_int__"}, {2, 0, "p:000000000000"}, {1000, 707, "p:000000000707"},
		{arenaKeys, arenaKeys - 1, "p:000000262143"}, {arenaKeys + 1, arenaKeys, "p:000000262144"}, {10_000_000, 9_999_999, "p:000009999999"},
	} {
		if got := numbered("p:", c.n).At(c.i); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.i, c.n, got, c.want)
		}
	}
}

// The exact commands: # stands for the 12 digits of a number below the keyspace.
func TestCompatibleCommands(t *testing.T) {
	mset, mget := strings.Repeat(" nsop:R:key:# VXK", 10), strings.Repeat(" nsop:R:key:#", 10)
	for name, want := range map[string]string{
		"ping_mbulk": "PING", "set": "SET nsop:R:key:# VXK", "get": "GET nsop:R:key:#", "incr": "INCR nsop:R:counter:#",
		"lpush": "LPUSH nsop:R:mylist VXK", "rpush": "RPUSH nsop:R:mylist VXK", "lpop": "LPOP nsop:R:mylist", "rpop": "RPOP nsop:R:mylist",
		"sadd": "SADD nsop:R:myset element:#", "hset": "HSET nsop:R:myhash element:# VXK", "spop": "SPOP nsop:R:myset",
		"zadd": "ZADD nsop:R:myzset # element:#", "zpopmin": "ZPOPMIN nsop:R:myzset", "lrange_lpush": "LPUSH nsop:R:mylist VXK",
		"lrange_100": "LRANGE nsop:R:mylist 0 99", "lrange_300": "LRANGE nsop:R:mylist 0 299", "lrange_500": "LRANGE nsop:R:mylist 0 499",
		"lrange_600": "LRANGE nsop:R:mylist 0 599", "mset": "MSET" + mset, "mget": "MGET" + mget, "xadd": "XADD nsop:R:mystream * myfield VXK",
	} {
		w := findWorkload(name)
		literally := strings.ReplaceAll(want, "#", literal)
		if name == "zadd" {
			literally = "ZADD nsop:R:myzset 0 element:__rand_int__"
		}
		for _, cmd := range record(w, compatible(1, 3), 5) {
			if got := strings.Join(cmd, " "); got != literally {
				t.Errorf("%s: %s, want %s", name, got, literally)
			}
		}
		for _, keyspace := range []int{1000, arenaKeys + 1} {
			for _, cmd := range record(w, compatible(keyspace, 3), 50) {
				if got := strings.Join(slices.Collect(generalised(cmd, keyspace)), " "); got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
		}
	}
}

// generalised yields cmd with # for each number of 12 digits below n.
func generalised(cmd Cmd, n int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, arg := range cmd {
			if from := len(arg) - 12; from >= 0 && strings.Trim(arg[from:], "0123456789") == "" && arg[from:] < fmt.Sprintf("%012d", n) {
				arg = arg[:from] + "#"
			}
			if !yield(arg) {
				return
			}
		}
	}
}

// Keys are those that the commands of a test create, no less and no more, for the same run gone for good too.
func TestCompatibleKeys(t *testing.T) {
	creates := []string{"SET", "INCR", "LPUSH", "RPUSH", "SADD", "HSET", "ZADD", "MSET", "XADD"}
	for i := range Workloads {
		w := &Workloads[i]
		if w.Title == "" || w.Keys == nil || w.Name == "ping_inline" {
			continue
		}
		for _, keyspace := range []int{1, 7} {
			p := compatible(keyspace, 3)
			written := map[string]bool{}
			for _, cmd := range record(w, p, 500) {
				for i, arg := range cmd {
					if slices.Contains(creates, cmd[0]) && i > 0 && strings.HasPrefix(arg, "nsop:R:") {
						written[arg] = true
					}
				}
			}
			got := slices.Sorted(w.Keys(p))
			if want := slices.Sorted(maps.Keys(written)); !slices.Equal(got, want) {
				t.Errorf("%s of %d: keys %q, written %q", w.Name, keyspace, got, want)
			}
			row := Row{Workload: w, Keyspace: keyspace, Flavor: "compatible"}
			noted, err := notedKeys("R", noteOf([]Row{row}))
			if err != nil || !slices.Equal(slices.Sorted(noted), got) {
				t.Errorf("%s of %d: noted keys %v, want %q", w.Name, keyspace, err, got)
			}
		}
	}
}

// Two tests do not draw alike, and neither do the places of one command.
func TestDrawsAreIndependent(t *testing.T) {
	const keyspace, count = 1000, 2000
	draws := map[string][]string{}
	for _, name := range []string{"set", "get", "incr", "sadd", "hset", "zadd", "mset", "mget"} {
		for _, cmd := range record(findWorkload(name), compatible(keyspace, 3), count) {
			for j, arg := range cmd {
				if digits := arg[max(len(arg)-12, 0):]; strings.Trim(digits, "0123456789") == "" && len(digits) == 12 {
					at := fmt.Sprintf("%s/%d", name, j)
					draws[at] = append(draws[at], digits)
				}
			}
		}
	}
	if len(draws) != 6+1+20 {
		t.Errorf("%d places, want 27", len(draws))
	}
	places := slices.Sorted(maps.Keys(draws))
	for i, a := range places {
		distinct := map[string]bool{}
		for _, v := range draws[a] {
			distinct[v] = true
		}
		// 2000 draws of 1000 leave out e^-2, 135; by chance alone 80 or 190 are out of reach.
		if len(distinct) < 810 || len(distinct) > 920 {
			t.Errorf("%s draws %d of %d in %d", a, len(distinct), keyspace, count)
		}
		for _, b := range places[:i] {
			same := 0
			for k, v := range draws[a] {
				if v == draws[b][k] {
					same++
				}
			}
			if same > 30 { // 2 are expected
				t.Errorf("%s and %s draw alike %d times", a, b, same)
			}
		}
	}
}

// Nothing is allocated for an operation beyond what the client needs.
func TestCatalogueAllocatesNothing(t *testing.T) {
	for i := range Workloads {
		w := &Workloads[i]
		if w.Title == "" || w.Name == "ping_inline" {
			continue
		}
		for _, sound := range []bool{true, false} {
			p := compatible(1000, 100)
			p.Compatible = !sound
			r := &discarding{}
			for _, pipeline := range []int{1, 16} {
				op, errs, n := w.Op(r, p, pipeline), make([]error, pipeline), uint64(0)
				op(context.Background(), n, errs)
				if allocs := testing.AllocsPerRun(200, func() { n += uint64(pipeline); op(context.Background(), n, errs) }); allocs != 0 {
					t.Errorf("%s, sound %v, pipeline %d: %v allocations", w.Name, sound, pipeline, allocs)
				}
			}
		}
	}
}

type discarding struct{ Store }

func (*discarding) Do(_ context.Context, cmds []Cmd, replies []Reply) {}
func (*discarding) Get(context.Context, string) (v []byte, err error) { return nil, nil }
func (*discarding) Set(_ context.Context, key string, _ []byte) error { return nil }
func (*discarding) Inline(context.Context, string, []Reply)           {}

// Replies are judged: what is not there is a miss, a list of another length is not what was asked for.
func TestCatalogueJudges(t *testing.T) {
	full := Reply{Bytes: []byte("x")}
	for _, c := range []struct {
		name       string
		compatible bool
		reply      Reply
		want       error
	}{
		{"lpop", false, full, nil}, {"lpop", false, Reply{Nil: true}, ErrMiss}, {"rpop", true, Reply{Nil: true}, ErrMiss},
		{"spop", false, full, nil}, {"spop", false, Reply{Nil: true}, ErrMiss},
		{"zpopmin", false, Reply{Len: 2}, nil}, {"zpopmin", false, Reply{}, ErrMiss}, {"zpopmin", true, Reply{}, ErrMiss},
		{"lrange_300", false, Reply{Len: 300}, nil}, {"lrange_300", false, Reply{Len: 299}, ErrMismatch}, {"lrange_300", false, Reply{Len: 301}, ErrMismatch},
		{"lrange_300", false, Reply{}, ErrMiss}, {"lrange_300", true, Reply{Len: 299}, ErrMiss}, {"lrange_300", true, Reply{Len: 300}, nil},
		{"mget", false, Reply{Len: 10}, nil}, {"mget", false, Reply{Len: 9}, ErrMismatch}, {"mget", false, Reply{Len: 10, Nils: 1}, ErrMiss},
		{"get", true, Reply{Nil: true}, ErrMiss}, {"lpush", false, Reply{Err: errTest}, errTest},
	} {
		p := compatible(1, 3)
		p.Compatible = c.compatible
		errs := make([]error, 2)
		findWorkload(c.name).Op(&answering{reply: c.reply}, p, 2)(context.Background(), 0, errs)
		for _, err := range errs {
			if err != c.want {
				t.Errorf("%s, compatible %v: %+v is %v, want %v", c.name, c.compatible, c.reply, err, c.want)
			}
		}
	}
}

var errTest = errors.New("OOM")

type answering struct {
	Store
	reply Reply
}

func (a *answering) Do(_ context.Context, cmds []Cmd, replies []Reply) {
	for i := range cmds {
		replies[i] = a.reply
	}
}

// A forgetful store returns a value that was written under another key, or none.
type forgetful struct {
	Store
	value []byte
	err   error
}

func (f *forgetful) Set(context.Context, string, []byte) error         { return nil }
func (f *forgetful) Get(context.Context, string) (v []byte, err error) { return f.value, f.err }

func TestRoundtripCompares(t *testing.T) {
	p := compatible(10, 20)
	p.Compatible = false
	for _, c := range []struct {
		store *forgetful
		want  error
	}{
		{&forgetful{value: p.Values.Bytes(3)}, nil}, {&forgetful{value: p.Values.Bytes(4)}, ErrMismatch},
		{&forgetful{}, ErrMismatch}, {&forgetful{err: ErrMiss}, ErrMiss},
	} {
		errs := make([]error, 1)
		findWorkload("roundtrip").Op(c.store, p, 1)(context.Background(), 23, errs)
		if errs[0] != c.want {
			t.Errorf("%q, %v is %v, want %v", c.store.value, c.store.err, errs[0], c.want)
		}
	}
	r := &recorder{keep: true}
	findWorkload("roundtrip").Op(r, p, 3)(context.Background(), 9, make([]error, 3))
	var got []string
	for _, cmd := range r.cmds {
		got = append(got, cmd[0]+" "+cmd[1])
	}
	want := []string{"SET nsop:R:key:9", "SET nsop:R:key:0", "SET nsop:R:key:1", "GET nsop:R:key:9", "GET nsop:R:key:0", "GET nsop:R:key:1"}
	if !slices.Equal(got, want) {
		t.Errorf("a batch is %q, want %q", got, want)
	}
}

// Loading writes large commands, none of them very large, and a TTL after the first.
func TestLoadElements(t *testing.T) {
	for _, c := range []struct{ count, size int }{{0, 10}, {1, 10}, {100_000, 10}, {300, 100_000}} {
		r := &recorder{keep: true}
		value := strings.Repeat("x", c.size)
		if err := loadElements(t.Context(), r, &Params{Run: "R"}, "k", uint64(c.count), "RPUSH", func(cmd Cmd, _ uint64) Cmd { return append(cmd, value) }); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i, cmd := range r.cmds {
			if i == 1 {
				if !slices.Equal(cmd, Cmd{"EXPIRE", "nsop:R:k", "3600"}) {
					t.Errorf("second command %q", cmd)
				}
				continue
			}
			if len(cmd) > loadArgs {
				t.Errorf("a command of %d arguments", len(cmd))
			}
			n += len(cmd) - 2
		}
		if n != c.count || c.count == 100_000 && len(r.cmds) > 110 {
			t.Errorf("%d elements in %d commands, want %d", n, len(r.cmds), c.count)
		}
	}
}
