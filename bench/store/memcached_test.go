package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/storetest"
)

var bothMemcachedClients = []string{"gomemcache", "floor"}

// connectTo opens a session with memcached servers for the length of a test.
func connectTo(t testing.TB, servers ...*storetest.MemcachedServer) *memcachedSession {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	target, err := Parse("memcached", "memcached://"+strings.Join(addrs, ","), "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	session, err := target.Connect(t.Context(), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session.(*memcachedSession)
}

func openFrom(t testing.TB, session bench.Session, client string, o bench.Options) bench.Store {
	t.Helper()
	s, err := session.Open(t.Context(), client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestMemcachedURL(t *testing.T) {
	tests := []struct{ url, address, err string }{
		{"memcached://host", "host:11211", ""},
		{"MEMCACHED://10.0.0.3:11212/", "10.0.0.3:11212", ""},
		{"memcached://a,b:1,[::1]:2,[fe80::1]", "a:11211,b:1,[::1]:2,[fe80::1]:11211", ""},
		{"memcached:host", "", "// is missing"},
		{"memcached://", "", "a host is missing"},
		{"memcached://a,", "", "a host is missing"},
		{"memcached://:11211", "", "a host is missing"},
		{"memcached://a:0", "", "want 1 to 65535"},
		{"memcached://a:65536", "", "want 1 to 65535"},
		{"memcached://a:x", "", "does not parse"},
		{"memcached://a,a:11211", "", "a server is given twice"},
		{"memcached://user:hunter2@a", "", "no user name and no password"},
		{"memcached://user:hunter2/@a", "", "no user name and no password"},
		{"memcached://a/hunter2", "", "have no meaning"},
		{"memcached://a?x=hunter2", "", "have no meaning"},
		{"memcached://a#hunter2", "", "have no meaning"},
		{"memcached://a b", "", "does not parse"},
	}
	for _, test := range tests {
		target, err := Parse("cache", test.url, "", noEnv)
		if err != nil {
			if test.err == "" || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want %q", test.url, err, test.err)
			}
			continue
		}
		if test.err != "" || target.Address != test.address || target.Kind != "memcached" || target.TLS || target.Embedded || target.Syncs ||
			len(target.Clients) != 2 || !slices.Equal(target.Default, []string{"gomemcache"}) {
			t.Errorf("%s: %+v; want %s %s", test.url, target, test.address, test.err)
		}
	}
}

func TestMemcached(t *testing.T) {
	// Values of a megabyte need more than the default limit of one item.
	start := func() *storetest.MemcachedServer { return storetest.Memcached(t, "-I", "4m") }
	for name, session := range map[string]bench.Session{"one": connectTo(t, start()), "three": connectTo(t, start(), start(), start())} {
		for _, client := range bothMemcachedClients {
			t.Run(name+"/"+client, func(t *testing.T) {
				storetest.Test(t, func(t *testing.T, o bench.Options) bench.Store {
					s, err := session.Open(t.Context(), client, o)
					if err != nil {
						t.Fatal(err)
					}
					if name == "one" {
						return s
					}
					counted := perServer{s.(memcachedStore), 3}
					if d, ok := s.(bench.Dedicated); ok {
						return struct {
							perServer
							bench.Dedicated
						}{counted, d}
					}
					return counted
				})
			})
		}
	}
}

type memcachedStore interface {
	bench.Store
	bench.Incrementer
	bench.MultiGetter
}

// A perServer counts a worker's connections to several servers as one, which is what the conformance test expects.
type perServer struct {
	memcachedStore
	servers int
}

func (s perServer) Info() bench.Info {
	info := s.memcachedStore.Info()
	info.Connections /= s.servers
	return info
}

// TestMemcachedIsSpread checks that both clients look for a key on the same one of several servers, that all have
// some, and that Remove finds them.
func TestMemcachedIsSpread(t *testing.T) {
	var servers []*storetest.MemcachedServer
	for range 3 {
		servers = append(servers, storetest.Memcached(t))
	}
	session := connectTo(t, servers...)
	if got := session.Server(); got.Mode != "sharded" || len(got.Warnings) > 0 {
		t.Errorf("server %+v", got)
	}
	const keys = 2*removeBatch + 10
	names := func(yield func(string) bool) {
		for i := range keys {
			if !yield("nsop:test:" + strconv.Itoa(i)) {
				return
			}
		}
	}
	for i, writer := range bothMemcachedClients {
		reader := openFrom(t, session, bothMemcachedClients[1-i], bench.Options{Connections: 2, Timeout: 20 * time.Second})
		s := openFrom(t, session, writer, bench.Options{Connections: 2, Timeout: 20 * time.Second})
		for key := range names {
			if err := s.Set(t.Context(), key, []byte(key)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Set(t.Context(), "other", []byte("x")); err != nil {
			t.Fatal(err)
		}
		for key := range names {
			if v, err := reader.Get(t.Context(), key); err != nil || string(v) != key {
				t.Fatalf("%s: Get of what %s wrote = %q, %v", bothMemcachedClients[1-i], writer, v, err)
			}
		}
		for range 2 { // the second time there is nothing to remove
			if err := session.Remove(t.Context(), names); err != nil {
				t.Fatal(err)
			}
		}
		left := 0
		for _, server := range servers {
			stats := server.Stats(t)
			if sets, _ := strconv.Atoi(stats["cmd_set"]); sets < keys/6 {
				t.Errorf("%s: a server of 3 has only %d of %d keys", writer, sets, keys)
			}
			items, _ := strconv.Atoi(stats["curr_items"])
			left += items
			if stats["cmd_flush"] != "0" {
				t.Error("something flushed the server")
			}
		}
		if v, err := reader.Get(t.Context(), "other"); left != 1 || err != nil || string(v) != "x" {
			t.Errorf("after Remove there are %d keys, want the one that was not named: %q, %v", left, v, err)
		}
	}
}

func TestMemcachedSession(t *testing.T) {
	server := storetest.Memcached(t)
	session := connectTo(t, server)
	got := session.Server()
	if !regexp.MustCompile(`^memcached \d+\.\d+\.\d+`).MatchString(got.Version) || got.Mode != "standalone" || got.Free != -1 || got.RoundTrip <= 0 {
		t.Errorf("server %+v", got)
	}
	for _, client := range bothMemcachedClients {
		for _, n := range []int{1, 2, 100} {
			accepted := server.Stats(t)["total_connections"]
			s := openFrom(t, session, client, bench.Options{Connections: n, Timeout: 20 * time.Second})
			if got := s.Info().Connections; got != n {
				t.Errorf("%s: %d connections for %d", client, got, n)
			}
			before, err := session.Counters(t.Context(), "set")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for worker := range n {
				wg.Go(func() {
					own := s
					if d, ok := s.(bench.Dedicated); ok {
						own = d.Dedicate(worker)
					}
					for range 10 {
						if err := own.Set(t.Context(), "nsop:k", []byte("5")); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			after, err := session.Counters(t.Context(), "SET")
			if err != nil || after.Calls-before.Calls != uint64(10*n) || after.Time != 0 || after.CPU < before.CPU || after.CPU == 0 {
				t.Errorf("%s: counters %+v and %+v, %v", client, before, after, err)
			}
			counted(t, session, s, "get", 1, func() error { _, err := s.Get(t.Context(), "nsop:k"); return err })
			counted(t, session, s, "incr", 1, func() error { return s.(bench.Incrementer).Incr(t.Context(), "nsop:k") })
			counted(t, session, s, "mget", 2, func() error {
				_, err := s.(bench.MultiGetter).GetMulti(t.Context(), []string{"nsop:k", "nsop:absent"})
				return err
			})
			if err := s.(bench.Incrementer).Incr(t.Context(), "nsop:absent"); err != bench.ErrMiss {
				t.Errorf("%s: Incr of an absent key: %v", client, err)
			}
			// Two are those that Stats dialled itself.
			from, _ := strconv.Atoi(accepted)
			to, _ := strconv.Atoi(server.Stats(t)["total_connections"])
			if to-from != n+1 {
				t.Errorf("%s: the server took %d connections for %d", client, to-from-1, n)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			ttl(t, server)
		}
	}
	if _, err := session.Open(t.Context(), "redigo", bench.Options{Connections: 1, Timeout: time.Second}); err == nil {
		t.Error("an unknown client opens")
	}
	if _, err := session.Open(t.Context(), "floor", bench.Options{}); err == nil {
		t.Error("a store of no connections opens")
	}
	if c, err := session.Counters(t.Context(), "zadd"); err != nil || c.Calls != 0 {
		t.Errorf("Counters of a command that memcached does not have: %+v, %v", c, err)
	}
}

// counted checks that one call of op is n of command.
func counted(t *testing.T, session bench.Session, s bench.Store, command string, n uint64, op func() error) {
	t.Helper()
	before, err := session.Counters(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	if err := op(); err != nil {
		t.Errorf("%T: %s: %v", s, command, err)
	}
	if after, err := session.Counters(t.Context(), command); err != nil || after.Calls-before.Calls != n {
		t.Errorf("%T: %s counts %+v and %+v, %v", s, command, before, after, err)
	}
}

// ttl checks that the key of TestMemcachedSession expires.
func ttl(t *testing.T, server *storetest.MemcachedServer) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "mg nsop:k t\r\n")
	line, err := bufio.NewReader(conn).ReadString('\n')
	seconds, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "HD t")))
	if err != nil || seconds < 3500 || seconds > 3600 {
		t.Errorf("a key lives for %q, %v", line, err)
	}
}

// TestMemcachedRefuses checks that what the server says reaches the caller, and that the connection survives it.
func TestMemcachedRefuses(t *testing.T) {
	server := storetest.Memcached(t)
	session := connectTo(t, server)
	oom := fakeMemcached(t, func(cmd string) string {
		if strings.HasPrefix(cmd, "version") {
			return "VERSION 1.6.18\r\n"
		}
		return "SERVER_ERROR out of memory storing object\r\n"
	})
	for _, client := range bothMemcachedClients {
		s := openFrom(t, session, client, bench.Options{Connections: 1, Timeout: 20 * time.Second})
		for range 3 {
			err := s.Set(t.Context(), "nsop:large", make([]byte, 1<<20+1))
			if bench.Kind(err) != "unsupported" || !strings.Contains(err.Error(), "SERVER_ERROR object too large for cache") {
				t.Errorf("%s: Set of more than the server's limit: %s: %v", client, bench.Kind(err), err)
			}
			if err := s.Set(t.Context(), "nsop:small", []byte("x")); err != nil {
				t.Errorf("%s: Set after it: %v", client, err)
			}
			if v, err := s.Get(t.Context(), "nsop:small"); err != nil || string(v) != "x" {
				t.Errorf("%s: Get after it = %q, %v", client, v, err)
			}
		}
		full, err := (&memcachedSession{nodes: []*memcachedNode{{at: oom}}}).Open(t.Context(), client, bench.Options{Connections: 1, Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		_, getErr := full.Get(t.Context(), "a")
		_, multiErr := full.(bench.MultiGetter).GetMulti(t.Context(), []string{"a", "b"})
		for name, err := range map[string]error{"Set": full.Set(t.Context(), "a", nil), "Get": getErr, "GetMulti": multiErr,
			"Incr": full.(bench.Incrementer).Incr(t.Context(), "a")} {
			if bench.Kind(err) != "oom" {
				t.Errorf("%s: %s of a server out of memory: %s: %v", client, name, bench.Kind(err), err)
			}
		}
	}
}

// fakeMemcached serves answer's reply to each line that is a command; "" closes the connection.
func fakeMemcached(t *testing.T, answer func(cmd string) string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if fields := strings.Fields(line); len(fields) == 5 && fields[0] == "set" {
						n, _ := strconv.Atoi(fields[4])
						io.CopyN(io.Discard, r, int64(n)+2)
					}
					reply := answer(line)
					if reply == "" {
						return
					}
					io.WriteString(conn, reply)
				}
			})
		}
	})
	return l.Addr().String()
}

func TestMemcachedUnreachable(t *testing.T) {
	stopped := storetest.Memcached(t)
	stopped.Pause(t)
	fine := storetest.Memcached(t)
	full := fakeMemcached(t, func(string) string { return "ERROR Too many open connections\r\n" })
	dropping := fakeMemcached(t, func(string) string { return "" })
	babbling := fakeMemcached(t, func(string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" })
	tests := []struct{ name, addr, kind string }{
		{"refusing", refusing(t), "refused"},
		{"unknown host", "nsop.invalid:1", "dns"},
		{"hanging", hang(t), "timeout"},
		{"stopped", stopped.Addr, "timeout"},
		{"full", full, "maxclients"},
		{"dropping", dropping, "reset"},
		{"no memcached", babbling, "protocol"},
	}
	for _, test := range tests {
		for _, others := range []string{"", fine.Addr + ","} {
			t.Run(test.name+"/"+others, func(t *testing.T) {
				before := goleak.IgnoreCurrent()
				check := func(what string, started time.Time, err error) {
					t.Helper()
					if took := time.Since(started); took > soon {
						t.Errorf("%s took %v of a timeout of %v", what, took, short)
					}
					if got := bench.Kind(err); got != test.kind && !(test.kind == "dns" && got == "timeout") {
						t.Errorf("%s: %s: %v; want %s", what, got, err, test.kind)
					}
					if strings.Contains(fmt.Sprint(err), "\n") {
						t.Errorf("%s: %q", what, err)
					}
				}
				target, err := Parse("memcached", "memcached://"+others+test.addr, "", noEnv)
				if err != nil {
					t.Fatal(err)
				}
				started := time.Now()
				session, err := target.Connect(t.Context(), short)
				if err == nil {
					session.Close()
				}
				check("Connect", started, err)
				if test.kind == "dns" {
					return // the session looks names up
				}
				for _, client := range bothMemcachedClients {
					started := time.Now()
					var nodes []*memcachedNode
					for addr := range strings.SplitSeq(others+test.addr, ",") {
						nodes = append(nodes, &memcachedNode{at: addr})
					}
					s, err := (&memcachedSession{nodes: nodes}).Open(t.Context(), client, bench.Options{Connections: 3, Timeout: short})
					if err == nil {
						s.Close()
					}
					check(client, started, err)
				}
				goleak.VerifyNone(t, before)
			})
		}
	}
}

// TestMemcachedFails has a server stop answering, and end, under load.
func TestMemcachedFails(t *testing.T) {
	for _, client := range bothMemcachedClients {
		for _, workers := range []int{1, 4} {
			for _, servers := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s/%d/%d", client, workers, servers), func(t *testing.T) {
					testMemcachedFails(t, client, workers, servers)
				})
			}
		}
	}
}

func testMemcachedFails(t *testing.T, client string, workers, servers int) {
	before := goleak.IgnoreCurrent()
	server := storetest.Memcached(t)
	all := []*storetest.MemcachedServer{server}
	for len(all) < servers {
		all = append(all, storetest.Memcached(t))
	}
	session := connectTo(t, all...)
	s := openFrom(t, session, client, bench.Options{Connections: workers, Timeout: short})
	key := "a"
	for i := 0; pick(key, servers) != 0; i++ { // of the first server
		key = strconv.Itoa(i)
	}
	keys := []string{key, "b", "c", "d", "e", "f"}
	// each performs every operation on each worker at once and returns the kinds of error.
	each := func() (kinds []string) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[string]bool{}
		started := time.Now()
		for worker := range workers {
			own := s
			if d, ok := s.(bench.Dedicated); ok {
				own = d.Dedicate(worker)
			}
			wg.Go(func() {
				_, getErr := own.Get(t.Context(), key)
				_, multiErr := own.(bench.MultiGetter).GetMulti(t.Context(), keys)
				for _, err := range []error{getErr, own.Set(t.Context(), key, []byte("1")), multiErr, own.(bench.Incrementer).Incr(t.Context(), key)} {
					if err == bench.ErrMiss {
						err = nil
					}
					mu.Lock()
					seen[bench.Kind(err)] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if took := time.Since(started); took > 4*soon {
			t.Errorf("4 operations took %v of a timeout of %v", took, short)
		}
		return slices.Sorted(maps.Keys(seen))
	}
	if got := each(); !slices.Equal(got, []string{""}) {
		t.Errorf("errors before anything failed: %q", got)
	}
	server.Pause(t)
	if got := each(); !slices.Equal(got, []string{"timeout"}) {
		t.Errorf("errors while the server is stopped: %q", got)
	}
	server.Resume(t)
	for deadline := time.Now().Add(20 * time.Second); !slices.Equal(each(), []string{""}); {
		if time.Now().After(deadline) {
			t.Error("it still fails after the server went on")
			break
		}
	}
	server.Kill(t)
	for _, kind := range each() {
		if kind != "reset" && kind != "refused" {
			t.Errorf("errors once the server is dead: %q", kind)
		}
	}
	if got := each(); !slices.Equal(got, []string{"refused"}) {
		t.Errorf("errors once all know that it is dead: %q", got)
	}
	s.Close()
	session.Close()
	for _, s := range all[1:] {
		s.Kill(t)
	}
	goleak.VerifyNone(t, before)
}

// TestMemcachedMultiFails has one of two servers not answer a multi-get: what the other answered late must not be taken
// for the answer to the next operation, and the operation has the time it was given and not the library's 500 ms.
func TestMemcachedMultiFails(t *testing.T) {
	const timeout = time.Second
	servers := []*storetest.MemcachedServer{storetest.Memcached(t), storetest.Memcached(t)}
	session := connectTo(t, servers...)
	var keys [2]string // on each server
	for i := range 100 {
		key := strconv.Itoa(i)
		keys[pick(key, 2)] = key
	}
	for _, client := range bothMemcachedClients {
		for _, workers := range []int{1, 2} {
			s := openFrom(t, session, client, bench.Options{Connections: workers, Timeout: timeout})
			if d, ok := s.(bench.Dedicated); ok {
				s = d.Dedicate(0)
			}
			for i, key := range keys {
				if err := s.Set(t.Context(), key, []byte(key)); err != nil {
					t.Fatal(err)
				}
				servers[1-i].Pause(t)
				started := time.Now()
				if _, err := s.(bench.MultiGetter).GetMulti(t.Context(), keys[:]); bench.Kind(err) != "timeout" {
					t.Errorf("%s: GetMulti: %s: %v", client, bench.Kind(err), err)
				}
				if took := time.Since(started); took < timeout*9/10 {
					t.Errorf("%s: it gave up after %v of a timeout of %v", client, took, timeout)
				}
				for range 2 {
					if v, err := s.Get(t.Context(), key); err != nil || string(v) != key {
						t.Errorf("%s: Get from the server that answers = %q, %v", client, v, err)
					}
					if v, err := s.Get(t.Context(), key+"absent"); pick(key+"absent", 2) == i && err != bench.ErrMiss {
						t.Errorf("%s: Get of an absent key from it = %q, %v", client, v, err)
					}
				}
				servers[1-i].Resume(t)
			}
		}
	}
}

// TestMemcachedMultiAsksAll has a server that answers only once the other was asked too.
func TestMemcachedMultiAsksAll(t *testing.T) {
	asked := make(chan struct{}, 100)
	answer := func(wait bool) func(cmd string) string {
		return func(cmd string) string {
			switch {
			case strings.HasPrefix(cmd, "version"):
				return "VERSION 1.6.18\r\n"
			case wait:
				select {
				case <-asked:
				case <-t.Context().Done():
				}
			default:
				asked <- struct{}{}
			}
			return "END\r\n"
		}
	}
	nodes := []*memcachedNode{{at: fakeMemcached(t, answer(true))}, {at: fakeMemcached(t, answer(false))}}
	for _, client := range bothMemcachedClients {
		for _, workers := range []int{1, 2} {
			s, err := (&memcachedSession{nodes: nodes}).Open(t.Context(), client, bench.Options{Connections: workers, Timeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if n, err := s.(bench.MultiGetter).GetMulti(t.Context(), []string{"0", "1", "2", "3", "4"}); n != 0 || err != nil {
				t.Errorf("%s: GetMulti = %d, %v", client, n, err)
			}
			s.Close()
		}
	}
}

// TestMemcachedCloseInFlight closes a store whose operations wait for a server that does not answer.
func TestMemcachedCloseInFlight(t *testing.T) {
	server := storetest.Memcached(t)
	session := connectTo(t, server)
	for _, client := range bothMemcachedClients {
		for _, workers := range []int{1, 4} {
			s := openFrom(t, session, client, bench.Options{Connections: workers, Timeout: time.Minute})
			server.Pause(t)
			ended := make(chan error)
			for range workers {
				go func() {
					_, err := s.Get(t.Context(), "a")
					ended <- err
				}()
			}
			time.Sleep(50 * time.Millisecond) // for the command to be sent; any order passes
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			for range workers {
				select {
				case err := <-ended:
					if bench.Kind(err) != "reset" {
						t.Errorf("%s: %s: %v", client, bench.Kind(err), err)
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s: an operation still runs after Close", client)
				}
			}
			server.Resume(t)
		}
	}
}

func TestMemcachedCancel(t *testing.T) {
	server := storetest.Memcached(t)
	session := connectTo(t, server)
	server.Pause(t)
	calls := map[string]func(ctx context.Context) error{
		"Ping":     session.Ping,
		"Counters": func(ctx context.Context) error { _, err := session.Counters(ctx, "get"); return err },
		"Remove":   func(ctx context.Context) error { return session.Remove(ctx, slices.Values([]string{"a"})) },
		"Connect": func(ctx context.Context) error {
			_, err := connectMemcached(ctx, []string{server.Addr}, time.Minute)
			return err
		},
	}
	for _, client := range bothMemcachedClients {
		calls["Open "+client] = func(ctx context.Context) error {
			_, err := session.Open(ctx, client, bench.Options{Connections: 2, Timeout: time.Minute})
			return err
		}
	}
	for name, call := range calls {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(50*time.Millisecond, cancel)
		started := time.Now()
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v; want canceled", name, err)
		}
		if took := time.Since(started); took > 20*time.Second {
			t.Errorf("%s took %v to notice", name, took)
		}
		timer.Stop()
		cancel()
	}
	// One that waits for the connection, which another is using, ends too.
	busy, release := context.WithCancel(t.Context())
	using := make(chan error)
	go func() { using <- session.Ping(busy) }()
	for len(session.turn) > 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	if err := session.Ping(ctx); bench.Kind(err) != "timeout" {
		t.Errorf("Ping behind another: %v", err)
	}
	cancel()
	select {
	case err := <-using:
		t.Errorf("it waited until the other ended: %v", err)
	default:
		release()
		<-using
	}
	release()
	server.Resume(t)
	if err := session.Ping(t.Context()); err != nil {
		t.Errorf("after all was cancelled: %v", err)
	}
}

// TestMemcachedAnswers feeds the bare socket what no memcached should send.
func TestMemcachedAnswers(t *testing.T) {
	tests := []struct{ answer, kind string }{
		{"VALUE a 0 3\r\nxyz\r\nEND\r\n", ""},
		{"VALUE a 0 3 17\r\nxyz\r\nEND\r\n", "protocol"}, // 17 would be the length
		{"VALUE a 0 0\r\n\r\nEND\r\n", ""},
		{"END\r\n", "miss"},
		{"VALUE a 0 4\r\nxyz\r\nEND\r\n", "protocol"},
		{"VALUE a 0 2\r\nxyz\r\nEND\r\n", "protocol"},
		{"VALUE a 0 -1\r\nEND\r\n", "protocol"},
		{"VALUE a 0 99999999999\r\nEND\r\n", "protocol"},
		{"VALUE\r\nEND\r\n", "protocol"},
		{"VALUE a 0 3\r\nxyz\r\nVALUE b 0 3\r\nxyz\r\nEND\r\n", "protocol"},
		{"STORED\r\n", "protocol"},
		{"\r\n", "protocol"},
		{"ERROR\r\n", "other"},
		{strings.Repeat("x", 100000), "protocol"},
		{"", "reset"},
	}
	for _, test := range tests {
		addr := fakeMemcached(t, func(cmd string) string {
			if strings.HasPrefix(cmd, "version") {
				return "VERSION 1.6.18\r\n"
			}
			return test.answer
		})
		s, err := (&memcachedSession{nodes: []*memcachedNode{{at: addr}}}).Open(t.Context(), "floor", bench.Options{Connections: 1, Timeout: short})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // what is wrong with one answer does not reach the next
			_, err = s.Get(t.Context(), "a")
			got := bench.Kind(err)
			if err == bench.ErrMiss {
				got = "miss"
			}
			if got != test.kind && !(test.kind == "protocol" && got == "timeout") {
				t.Errorf("%.60q: %s: %v; want %s", test.answer, got, err, test.kind)
			}
		}
		s.Close()
	}
}

// TestMemcachedFloorAllocates checks that the bare socket allocates nothing for an operation.
func TestMemcachedFloorAllocates(t *testing.T) {
	session := connectTo(t, storetest.Memcached(t), storetest.Memcached(t))
	for _, workers := range []int{1, 2} {
		s := openFrom(t, session, "floor", bench.Options{Connections: workers, Timeout: 20 * time.Second})
		own := s.(bench.Dedicated).Dedicate(0)
		value, keys := bytes.Repeat([]byte("0"), 100), []string{"nsop:a", "nsop:b", "nsop:c", "nsop:d"}
		ctx := t.Context()
		allocated := testing.AllocsPerRun(200, func() {
			setErr := own.Set(ctx, "nsop:a", value)
			incrErr := own.(bench.Incrementer).Incr(ctx, "nsop:a")
			_, getErr := own.Get(ctx, "nsop:a")
			_, multiErr := own.(bench.MultiGetter).GetMulti(ctx, keys)
			if setErr != nil || incrErr != nil || getErr != nil || multiErr != nil {
				t.Error(setErr, incrErr, getErr, multiErr)
			}
		})
		if allocated > 0 {
			t.Errorf("%d workers: %v allocations", workers, allocated)
		}
	}
}

// BenchmarkMemcached is GET at 50 connections, and memcslap's beside it on the same server, in turns: vs-memcslap is how
// many times as many operations a second the bare socket completes, pairs of neighbours averaged. memcslap's own clock is
// read, which leaves out its start.
func BenchmarkMemcached(b *testing.B) {
	const concurrency = 50
	server := storetest.Memcached(b)
	session := connectTo(b, server)
	for _, client := range bothMemcachedClients {
		b.Run("client="+client, func(b *testing.B) {
			s := openFrom(b, session, client, bench.Options{Connections: concurrency, Timeout: 20 * time.Second})
			var ratio float64
			pairs := 0
			for b.Loop() {
				theirs := memcslap(b, server.Addr, concurrency)
				ours := memcachedGets(b, s, server.Addr, concurrency)
				ratio, pairs = ratio+ours/theirs, pairs+1
				b.ReportMetric(1e9/ours, "ns/get")
			}
			b.ReportMetric(ratio/float64(pairs), "vs-memcslap")
			b.ReportMetric(0, "ns/op") // of a pair, which says nothing
		})
	}
}

// getsEach is how many GET each of memcslap's threads performs, and as many keys it loads.
const getsEach = 2000

// memcslap returns how many GET a second it completes.
func memcslap(b *testing.B, addr string, concurrency int) float64 {
	out, err := exec.Command("memcslap", "-s", addr, "-t", "get", "-c", strconv.Itoa(concurrency), "-e", strconv.Itoa(getsEach)).CombinedOutput()
	found := regexp.MustCompile(`Time to get +(\d+) keys by +\d+ threads: +([\d.]+) seconds`).FindSubmatch(out)
	if err != nil || found == nil {
		b.Fatalf("memcslap: %v: %s", err, out)
	}
	n, _ := strconv.ParseFloat(string(found[1]), 64)
	seconds, _ := strconv.ParseFloat(string(found[2]), 64)
	return n / seconds
}

// memcachedGets returns the same of s, with keys that memcslap has written.
func memcachedGets(b *testing.B, s bench.Store, addr string, concurrency int) float64 {
	keys := memcachedKeys(b, addr)
	var wg sync.WaitGroup
	started := time.Now()
	for worker := range concurrency {
		own := s
		if d, ok := s.(bench.Dedicated); ok {
			own = d.Dedicate(worker)
		}
		wg.Go(func() {
			for i := range getsEach {
				if v, err := own.Get(b.Context(), keys[(i+worker)%len(keys)]); err != nil || len(v) == 0 {
					b.Errorf("Get = %d bytes, %v", len(v), err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(concurrency*getsEach) / time.Since(started).Seconds()
}

// memcachedKeys lists keys that the server has, of letters and digits.
func memcachedKeys(b *testing.B, addr string) (keys []string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "lru_crawler metadump all\r\n")
	for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != "END"; {
		key, _, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "key="), " ")
		keys = append(keys, key)
	}
	if len(keys) < getsEach {
		b.Fatalf("the server has only %d keys", len(keys))
	}
	return keys
}
