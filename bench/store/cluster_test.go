package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/storetest"
)

var clusterClients = []string{"go-redis", "rueidis"}

func mustParse(t testing.TB, rawURL string) *bench.Target {
	t.Helper()
	target, err := Parse("redis", rawURL, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestParseCluster(t *testing.T) {
	for _, c := range []struct {
		url, want string // an error's text, else an address
		tls       bool
	}{
		{"redis+cluster://h", "h:6379", false},
		{"VALKEY+CLUSTER://u:secret@h:7/0", "h:7", false},
		{"rediss+cluster://[::1]:7", "[::1]:7", true},
		{"valkeys+cluster://:secret@h/", "h:6379", true},
		{"redis+cluster://h/1", "one database", false},
		{"redis+cluster://a,b", "one host", false},
		{"redis+cluster://h?ca=x", "TLS", false},
		{"rediss+cluster://h?ca_env=ABSENT", "empty", false},
		{"redis+cluster:h", "//", false},
	} {
		target, err := Parse("redis", c.url, "", noEnv)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "+cluster://") {
				t.Errorf("%s: %v; want %q", c.url, err, c.want)
			}
			continue
		}
		if target.Kind != "redis" || target.Address != c.want || target.TLS != c.tls || !target.Cluster || !slices.Equal(target.Default, clusterClients) || len(target.Clients) != 2 {
			t.Errorf("%s: %+v", c.url, target)
		}
	}
}

func TestCluster(t *testing.T) {
	nodes := storetest.Cluster(t)
	target := mustParse(t, "redis+cluster://"+nodes[1].Addr)
	t.Run("Stores", func(t *testing.T) { testClusterStores(t, nodes, target) })
	// The others have clusters of their own, most of which they wait for.
	t.Run("Shared", func(t *testing.T) {
		t.Parallel()
		t.Run("Session", func(t *testing.T) { testClusterSession(t, nodes) })
		t.Run("Scheme", func(t *testing.T) { testClusterScheme(t, nodes) })
		t.Run("Spread", func(t *testing.T) { testClusterSpread(t, nodes, target) })
		t.Run("Catalogue", func(t *testing.T) { testClusterCatalogue(t, nodes, target) })
		t.Run("Moved", func(t *testing.T) { testClusterMoved(t, nodes, target) })
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		testClusterTLS(t)
	})
	for _, client := range clusterClients {
		t.Run("Kill/"+client, func(t *testing.T) {
			t.Parallel()
			testClusterNodeDies(t, client, (*storetest.RedisServer).Kill, "refused", "reset", "other")
		})
		t.Run("Stop/"+client, func(t *testing.T) {
			t.Parallel()
			testClusterNodeDies(t, client, (*storetest.RedisServer).Pause, "timeout", "other")
		})
	}
}

// TestClusterRetries has a cluster of one node fail in all ways that pass: an operation reaches it once, and once more for
// each redirect that is followed.
func TestClusterRetries(t *testing.T) {
	for _, c := range []struct {
		reply, kind string
		most        int32
	}{
		{"-LOADING Redis is loading the dataset in memory\r\n", "loading", 1},
		{"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "moved", 1},
		{"-CLUSTERDOWN The cluster is down\r\n", "other", 1},
		{"-MASTERDOWN Link with MASTER is down\r\n", "other", 1},
		{"", "reset", 1},
		{"MOVED", "moved", 1 + maxRedirects},
	} {
		var (
			gets atomic.Int32
			addr atomic.Value
		)
		addr.Store(fake(t, func(cmd []string) string {
			host, port, _ := net.SplitHostPort(addr.Load().(string))
			switch strings.ToUpper(cmd[0]) {
			case "CLUSTER":
				return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n" + host + "\r\n:" + port + "\r\n"
			case "PING", "COMMAND": // an array of no commands
				return "*0\r\n"
			case "GET":
				gets.Add(1)
				if c.reply == "MOVED" {
					return "-MOVED 1 " + addr.Load().(string) + "\r\n"
				}
				return c.reply
			}
			return healthy(cmd)
		}))
		for _, client := range clusterClients {
			e := endpoint{addr: addr.Load().(string)}
			s, err := openRedis(t.Context(), clusterKind, client, e, bench.Options{Connections: 1, Timeout: 20 * time.Second})
			if err != nil {
				t.Fatalf("%s: %v", client, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // were it repeated until it succeeds
			for _, n := range []int{1, 2} {
				gets.Store(0)
				cmds, replies := make([]bench.Cmd, n), make([]bench.Reply, n)
				for i := range cmds {
					cmds[i] = bench.Cmd{"GET", "a"}
				}
				s.(bench.Commander).Do(ctx, cmds, replies)
				for _, r := range replies {
					if bench.Kind(r.Err) != c.kind {
						t.Errorf("%s, %d of %q: %v of kind %s, want %s", client, n, c.reply, r.Err, bench.Kind(r.Err), c.kind)
					}
				}
				if most := c.most * int32(n); gets.Load() > most {
					t.Errorf("%s, %d of %q: the server saw %d GET, want at most %d", client, n, c.reply, gets.Load(), most)
				}
			}
			gets.Store(0)
			if _, err := s.Get(ctx, "a"); bench.Kind(err) != c.kind || gets.Load() > c.most {
				t.Errorf("%s, Get of %q: %v; the server saw %d GET, want at most %d", client, c.reply, err, gets.Load(), c.most)
			}
			s.Close()
			cancel()
		}
	}
}

func testClusterStores(t *testing.T, nodes storetest.ClusterNodes, target *bench.Target) {
	session := connect(t, "redis+cluster://"+target.Address)
	for _, client := range clusterClients {
		t.Run(client, func(t *testing.T) {
			storetest.TestNodes(t, len(nodes), func(t *testing.T, o bench.Options) bench.Store {
				s, err := session.Open(t.Context(), client, o)
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
	for _, node := range nodes {
		node.Do(t, "FLUSHALL") // what the tests of every store leave
	}
}

func testClusterSession(t *testing.T, nodes storetest.ClusterNodes) {
	nodes[0].Do(t, "CONFIG", "SET", "maxmemory", "1gb")
	nodes[2].Do(t, "CONFIG", "SET", "maxmemory", "100mb")
	s := connect(t, "valkey+cluster://"+nodes[0].Addr)
	for _, node := range nodes {
		node.Do(t, "CONFIG", "SET", "maxmemory", "0")
	}
	server := s.Server()
	if server.Free <= 50<<20 || server.Free >= 100<<20 || server.Mode != "cluster" || !strings.HasPrefix(server.Version, "redis ") || server.RoundTrip <= 0 || len(server.Warnings) > 0 {
		t.Errorf("server %+v; want the free memory of the fullest master", server)
	}
	store, err := s.Open(t.Context(), "go-redis", bench.Options{Connections: 2, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	before, err := s.Counters(t.Context(), "SET")
	if err != nil {
		t.Fatal(err)
	}
	keys := bench.NewKeys("nsop:session:", 3*removeBatch)
	for key := range keys.All() {
		if err := store.Set(t.Context(), key, nil); err != nil {
			t.Fatal(err)
		}
	}
	after, err := s.Counters(t.Context(), "SET")
	if err != nil || after.Calls-before.Calls != keys.Len() || after.Time <= before.Time || after.CPU <= 0 || after.Redirects != before.Redirects {
		t.Errorf("counters %+v, then %+v, %v", before, after, err)
	}
	// The session does not know yet that a slot has moved.
	slot, owner := nodes.Slot(t, keys.At(7))
	nodes.Move(t, slot, owner, (owner+1)%3)
	defer nodes.Move(t, slot, (owner+1)%3, owner)
	if err := s.Remove(t.Context(), keys.All()); err != nil {
		t.Error(err)
	}
	registry := s.(bench.Registry)
	elsewhere := connect(t, "redis+cluster://"+nodes[0].Addr)
	if err := elsewhere.(bench.Registry).Register(t.Context(), "run", "note"); err != nil {
		t.Error(err)
	}
	if notes, err := registry.Registered(t.Context()); err != nil || len(notes) != 0 {
		t.Errorf("registered %v, %v, while the run is going on elsewhere", notes, err)
	}
	if err := elsewhere.Close(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // until the server has noticed
		if notes, _ := registry.Registered(t.Context()); len(notes) > 0 || time.Now().After(deadline) {
			break
		}
	}
	if notes, err := registry.Registered(t.Context()); err != nil || len(notes) != 1 || notes["run"] != "note" {
		t.Errorf("registered %v, %v", notes, err)
	}
	if err := registry.Unregister(t.Context(), "run"); err != nil {
		t.Error(err)
	}
	expectNoKeys(t, nodes)
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func expectNoKeys(t *testing.T, nodes storetest.ClusterNodes) {
	t.Helper()
	if keys := nodes.Keys(t); slices.Max(keys) > 0 {
		t.Errorf("keys %v are left behind", keys)
	}
}

// testClusterScheme expects that a URL with the wrong scheme says which is right.
func testClusterScheme(t *testing.T, nodes storetest.ClusterNodes) {
	for _, c := range []struct{ url, kind, text string }{
		{"redis://" + nodes[0].Addr, "moved", "redis+cluster://"},
		{"redis+cluster://" + storetest.Redis(t).Addr, "unsupported", "with redis://"},
	} {
		s, err := mustParse(t, c.url).Connect(t.Context(), 20*time.Second)
		if err == nil {
			s.Close()
		}
		if bench.Kind(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v", c.url, err)
		}
	}
}

// testClusterSpread expects every node to have keys while a run is going on, none afterwards, and connections that are
// there before the clock starts.
func testClusterSpread(t *testing.T, nodes storetest.ClusterNodes, target *bench.Target) {
	const keyspace, concurrency = 300, 4
	spread := map[string][]int64{}
	report, err := run(t, target, "set,get", func(p bench.Progress) {
		if p.Fraction > 0 && p.Name != "" && p.Result == nil {
			spread[p.Name] = nodes.Keys(t)
		}
	}, func(s *bench.Spec) {
		s.Keyspace, s.Concurrency, s.Pipeline, s.Verify = []int{keyspace}, []int{concurrency}, []int{1, 16}, true
		s.Benchtime = bench.Extent{Time: 200 * time.Millisecond}
	})
	if err != nil || report.Target.Mode != "cluster" || report.Target.Kind != "redis" || len(report.Warnings) > 0 {
		t.Errorf("%v, target %+v, warnings %q", err, report.Target, report.Warnings)
	}
	for _, r := range report.Results {
		if r.Errors+r.Misses+r.Mismatches+r.Moved > 0 || r.Server == nil || r.Server.NSPerCall == nil || len(r.Warnings) > 0 {
			t.Errorf("%s: %v, %d misses, %d mismatches, %d moved, server %+v, warnings %q", r.Name, r.ErrorSamples, r.Misses, r.Mismatches, r.Moved, r.Server, r.Warnings)
		}
		want := map[string]int{"go-redis": 3 * concurrency, "rueidis": 3}[r.Client]
		if r.Connections != want || r.Settings["retries"] != 0 || r.Settings["pool_size_is_per"] != "node" {
			t.Errorf("%s: %d connections, want %d; settings %v", r.Name, r.Connections, want, r.Settings)
		}
		if keys := spread[r.Name]; len(keys) != 3 || slices.Min(keys) == 0 {
			t.Errorf("%s: keys %v while it ran", r.Name, keys)
		}
	}
	if len(report.Results) != 8 {
		t.Errorf("%d results", len(report.Results))
	}
	expectNoKeys(t, nodes)
}

// testClusterCatalogue runs all that a cluster can, in both flavors.
func testClusterCatalogue(t *testing.T, nodes storetest.ClusterNodes, target *bench.Target) {
	for flavor, pipeline := range map[string]int{"sound": 4, "compatible": 1} {
		report, err := run(t, target, "redis-benchmark", ignore, func(s *bench.Spec) {
			s.Keyspace, s.Flavor, s.Concurrency, s.Pipeline = []int{100}, flavor, []int{2}, []int{pipeline}
			s.Benchtime = bench.Extent{Count: 50}
		})
		if err != nil {
			t.Errorf("%s: %v", flavor, err)
		}
		for _, r := range report.Results {
			if r.Iterations != 50 || r.Errors+r.Mismatches+r.Moved > 0 || flavor == "sound" && r.Misses > 0 {
				t.Errorf("%s: %d iterations, %v, %d misses, %d mismatches, %d moved", r.Name, r.Iterations, r.ErrorSamples, r.Misses, r.Mismatches, r.Moved)
			}
		}
		warnings := strings.Join(report.Warnings, "\n")
		for _, want := range []string{"mset names keys of several slots", "mget names keys of several slots", "lpush, rpush", "one node of redis has"} {
			if !strings.Contains(warnings, want) {
				t.Errorf("%s: warnings %s; want %q", flavor, warnings, want)
			}
		}
		expectNoKeys(t, nodes)
	}
	for _, name := range []string{"mset", "mget", "ping_inline"} {
		_, err := bench.NewPlan(target, name, bench.DefaultSpec(), bench.DefaultLimits(""))
		if refused := (*bench.UnsupportedError)(nil); !errors.As(err, &refused) {
			t.Errorf("%s by name: %v", name, err)
		}
	}
	if names := bench.WorkloadNames(target); slices.Contains(names, "mset") || !slices.Contains(names, "zadd") {
		t.Errorf("workloads %v", names)
	}
}

// testClusterMoved moves the slot of the key that a row works on, there and back: once half way, so that each operation
// is redirected for itself (ASK), then for good (MOVED).
func testClusterMoved(t *testing.T, nodes storetest.ClusterNodes, target *bench.Target) {
	for _, client := range clusterClients {
		for _, pipeline := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/%d", client, pipeline), func(t *testing.T) {
				var half, whole sync.Once
				slot, owner := nodes.Slot(t, "nsop:test:key:0")
				report, err := run(t, target, "set", func(p bench.Progress) {
					if p.Result == nil && p.Fraction > 0.1 {
						half.Do(func() { nodes.Migrating(t, slot, owner, (owner+1)%3) })
					}
					if p.Result == nil && p.Fraction > 0.4 {
						whole.Do(func() { nodes.Move(t, slot, owner, (owner+1)%3) })
					}
				}, func(s *bench.Spec) {
					s.Clients, s.Concurrency, s.Pipeline = []string{client}, []int{4}, []int{pipeline}
					s.Benchtime = bench.Extent{Time: 500 * time.Millisecond}
				})
				nodes.Move(t, slot, (owner+1)%3, owner)
				if err != nil {
					t.Fatal(err)
				}
				r := report.Results[0]
				if r.Errors+r.Misses > 0 || r.Moved == 0 || r.Iterations == 0 || !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "redirected") }) {
					t.Errorf("%d iterations, %v, %d moved, warnings %q", r.Iterations, r.ErrorSamples, r.Moved, r.Warnings)
				}
				expectNoKeys(t, nodes)
			})
		}
	}
}

// testClusterNodeDies has one of three nodes end, or stop answering, in the middle of a row: the others' operations are
// counted, the target is lost, and what had been measured is in the report.
func testClusterNodeDies(t *testing.T, client string, end func(*storetest.RedisServer, testing.TB), kinds ...string) {
	nodes := storetest.Cluster(t)
	var once sync.Once
	began := time.Now()
	report, err := run(t, mustParse(t, "redis+cluster://"+nodes[0].Addr), "set,get,incr", func(p bench.Progress) {
		if p.Row == 1 && p.Result == nil && p.Fraction > 0.4 {
			once.Do(func() { end(nodes[2], t) })
		}
	}, func(s *bench.Spec) {
		s.Clients, s.Concurrency, s.Keyspace, s.Timeout = []string{client}, []int{8}, []int{300}, short
		s.Benchtime = bench.Extent{Time: 500 * time.Millisecond}
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the run took %v", took)
	}
	if lost := (*bench.LostError)(nil); !errors.As(err, &lost) || !slices.Contains(kinds, bench.Kind(err)) {
		t.Errorf("%v of kind %s; want the target lost by one of %v", err, bench.Kind(err), kinds)
	}
	if len(report.Results) != 2 || report.Results[0].Errors > 0 {
		t.Fatalf("%d results", len(report.Results))
	}
	r := report.Results[1]
	if r.Iterations == 0 || r.Errors == 0 {
		t.Errorf("%d iterations, errors %v", r.Iterations, r.ErrorKinds)
	}
	for kind := range r.ErrorKinds {
		if !slices.Contains(kinds, kind) {
			t.Errorf("error of kind %s: %s", kind, r.ErrorSamples[kind])
		}
	}
}

// testClusterTLS goes through TLS and a user of its own, who may neither list commands nor keep notes.
func testClusterTLS(t *testing.T) {
	nodes := storetest.ClusterTLS(t)
	for _, node := range nodes {
		node.Do(t, "ACL", "SETUSER", "bench", "on", ">s:cret", "~nsop:test:*", "+@all", "-info", "-command", "-client")
	}
	at := func(password string) *bench.Target {
		return mustParse(t, "valkeys+cluster://bench:"+url.QueryEscape(password)+"@"+nodes[2].Addr+"?ca="+url.QueryEscape(nodes[0].CA))
	}
	report, err := run(t, at("s:cret"), "set,get,lpush", ignore, func(s *bench.Spec) {
		s.Keyspace, s.Verify, s.Flavor = []int{100}, true, "compatible"
	})
	if err != nil || len(report.Results) != 6 || !report.Target.TLS || report.Target.Mode != "cluster" {
		t.Errorf("%v, %d results, target %+v", err, len(report.Results), report.Target)
	}
	for _, r := range report.Results {
		if r.Iterations != 200 || r.Errors > 0 || r.Server != nil || len(r.Warnings) > 0 && r.Misses == 0 {
			t.Errorf("%s: %d iterations, %v, server %+v, warnings %q", r.Name, r.Iterations, r.ErrorSamples, r.Server, r.Warnings)
		}
	}
	expectNoKeys(t, nodes)
	for _, node := range nodes { // where COMMAND is refused it is not asked for before each operation
		stats := parseInfo(node.Do(t, "INFO", "commandstats").(string))
		if n, _ := strconv.Atoi(parseFields(stats["cmdstat_command"])["rejected_calls"]); n > 1000 {
			t.Errorf("COMMAND was asked for %d times", n)
		}
	}
	if _, err := at("wrong").Connect(t.Context(), 20*time.Second); bench.Kind(err) != "auth" || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: %v", err)
	}
}
