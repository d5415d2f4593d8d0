package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/storetest"
)

// short is the timeout of what has to fail, soon the time within which it must have. Both are far apart, so that a busy
// machine fails no test.
const (
	short = 900 * time.Millisecond
	soon  = short + 4*time.Second
)

// openAt opens client without a session, as a session does.
func openAt(ctx context.Context, e endpoint, client string, o bench.Options) (bench.Store, error) {
	return (&redisSession{at: e}).Open(ctx, client, o)
}

// fake serves RESP with answer, which is called for one command at a time and returns the reply; "" closes the connection.
func fake(t *testing.T, answer func(cmd []string) string) (addr string) {
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
					cmd, err := readCommand(r)
					if err != nil {
						return
					}
					reply := answer(cmd)
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

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.Trim(line, "*$\r\n"))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	cmd := make([]string, n)
	for i := range cmd {
		size, err := number()
		if err != nil {
			return nil, err
		}
		arg := make([]byte, size+2)
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		cmd[i] = string(arg[:size])
	}
	return cmd, nil
}

// healthy answers what clients send before the first operation.
func healthy(cmd []string) string {
	switch strings.ToUpper(cmd[0]) {
	case "ECHO":
		return "$" + strconv.Itoa(len(cmd[1])) + "\r\n" + cmd[1] + "\r\n"
	case "AUTH", "SELECT":
		return "+OK\r\n"
	}
	return "-ERR unknown command '" + cmd[0] + "'\r\n"
}

// hang returns the address of a listener that accepts, by its backlog, and never answers.
func hang(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// refusing returns an address that nothing listens on.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return l.Addr().String()
}

func TestUnreachable(t *testing.T) {
	stopped := storetest.Redis(t)
	stopped.Pause(t)
	locked := storetest.Redis(t, "--requirepass", "right")
	full := storetest.Redis(t)
	full.Do(t, "CONFIG", "SET", "maxclients", "1")
	occupy := connect(t, "redis://"+full.Addr)
	if err := occupy.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	secure := storetest.RedisTLS(t)
	loading := fake(t, func(cmd []string) string {
		if strings.EqualFold(cmd[0], "echo") {
			return healthy(cmd) // as Redis does
		}
		return "-LOADING Redis is loading the dataset in memory\r\n"
	})
	dropping := fake(t, func([]string) string { return "" })
	babbling := fake(t, func([]string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" })

	tests := []struct {
		name, url string
		session   string   // what Connect's error holds
		client    []string // one of which each client's error holds; nil: it opens
	}{
		{"refusing", "redis://" + refusing(t), "dial: dial tcp 127.0.0.1", []string{"connection refused"}},
		{"unknown host", "redis://nsop.invalid", "dial: ", []string{"lookup", "no answer"}},
		{"hanging", "redis://" + hang(t), "ping: no answer", []string{"no answer", "timeout"}},
		{"hanging with a password", "redis://:x@" + hang(t), "auth: no answer", []string{"no answer", "timeout"}},
		{"hanging in TLS", "rediss://" + hang(t), "tls: no answer", []string{"no answer", "timeout"}},
		{"stopped", "redis://" + stopped.Addr, "ping: no answer", []string{"no answer", "timeout"}},
		{"password is wrong", "redis://:wrong@" + locked.Addr, "auth: WRONGPASS", []string{"WRONGPASS"}},
		{"user is wrong", "redis://nobody:wrong@" + locked.Addr, "auth: WRONGPASS", []string{"WRONGPASS"}},
		{"password is missing", "redis://" + locked.Addr, "ping: NOAUTH", []string{"NOAUTH"}},
		{"no such database", "redis://:right@" + locked.Addr + "/99", "select: ERR DB index", []string{"DB index"}},
		{"full", "redis://" + full.Addr, "max number of clients", []string{"max number of clients"}},
		{"loading", "redis://" + loading, "ping: LOADING", nil},
		{"dropping", "redis://" + dropping, "ping: EOF", []string{"EOF", "reset"}},
		{"no Redis", "redis://" + babbling, "ping: redigo: unexpected response", []string{"protocol", "unexpected", "invalid", "parse", "unknown"}},
		{"TLS to a plain server", "rediss://" + full.Addr, "tls: ", []string{"tls: "}},
		{"certificate of another authority", "rediss://" + secure.Addr, "tls: handshake: tls: failed to verify", []string{"failed to verify"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			target, err := Parse("redis", test.url, "", noEnv)
			if err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			session, err := target.Connect(t.Context(), short)
			if err == nil {
				session.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.session) {
				t.Errorf("Connect: %v; want %q", err, test.session)
			}
			if took := time.Since(started); took > soon {
				t.Errorf("Connect took %v of a timeout of %v", took, short)
			}
			e := endpointOf(t, test.url)
			for _, client := range redisClients {
				started := time.Now()
				s, err := openAt(t.Context(), e, client, bench.Options{Connections: 3, Timeout: short})
				if took := time.Since(started); took > soon {
					t.Errorf("%s took %v of a timeout of %v", client, took, short)
				}
				if err == nil {
					s.Close()
					if test.client != nil && (test.name != "no Redis" || client != "rueidis") {
						t.Errorf("%s opens", client)
					}
					continue
				}
				if test.client != nil && !slices.ContainsFunc(test.client, func(s string) bool { return strings.Contains(err.Error(), s) }) {
					t.Errorf("%s: %v; want one of %q", client, err, test.client)
				}
				t.Logf("%s: %v", client, err)
			}
		})
	}
}

// endpointOf returns what Parse makes of rawURL, without the password of another place.
func endpointOf(t *testing.T, rawURL string) endpoint {
	t.Helper()
	head, rest, _ := strings.Cut(rawURL, ":")
	i := slices.IndexFunc(schemes, func(s scheme) bool { return s.name == head })
	e, err := parseEndpoint(schemes[i], rest, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestSlowServerInOperation(t *testing.T) {
	for _, client := range redisClients {
		for _, workers := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/%d", client, workers), func(t *testing.T) {
				server := storetest.Redis(t)
				s, err := openAt(t.Context(), endpoint{addr: server.Addr}, client, bench.Options{Connections: workers, Timeout: short})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				get := func() {
					var wg sync.WaitGroup
					for range workers {
						wg.Go(func() {
							if _, err := s.Get(t.Context(), "absent"); err != bench.ErrMiss {
								t.Errorf("Get: %v", err)
							}
						})
					}
					wg.Wait()
				}
				for range 20 { // enough for rueidis to start its background loops
					get()
				}
				server.Pause(t)
				var wg sync.WaitGroup
				started := time.Now()
				for range workers {
					wg.Go(func() {
						if _, err := s.Get(t.Context(), "absent"); err == nil || err == bench.ErrMiss {
							t.Errorf("Get from a stopped server: %v", err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(started); took > soon {
					t.Errorf("Get took %v of a timeout of %v", took, short)
				}
				server.Resume(t)
				recovers(t, s)
			})
		}
	}
}

// recovers checks that s works again, after a few errors at most: each broken connection costs one.
func recovers(t *testing.T, s bench.Store) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if _, err = s.Get(t.Context(), "absent"); err == bench.ErrMiss {
			return
		}
	}
	t.Errorf("still fails: %v", err)
}

func TestNoRetries(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			var gets atomic.Int32
			addr := fake(t, func(cmd []string) string {
				if strings.EqualFold(cmd[0], "get") {
					gets.Add(1)
					return ""
				}
				return healthy(cmd)
			})
			s, err := openAt(t.Context(), endpoint{addr: addr}, client, bench.Options{Connections: 1, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for i := range int32(3) {
				if _, err := s.Get(t.Context(), "k"); err == nil || err == bench.ErrMiss {
					t.Errorf("Get: %v", err)
				}
				if n := gets.Load(); n != i+1 {
					t.Errorf("%d operations sent GET %d times", i+1, n)
				}
			}
		})
	}
}

func TestRecovery(t *testing.T) {
	server := storetest.Redis(t)
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			s, err := openAt(t.Context(), endpoint{addr: server.Addr}, client, bench.Options{Connections: 3, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			server.Do(t, "CLIENT", "KILL", "TYPE", "normal")
			failed := 0
			for range 20 {
				if _, err := s.Get(t.Context(), "absent"); err != bench.ErrMiss {
					failed++
				}
			}
			if failed > 3 {
				t.Errorf("3 broken connections made %d operations fail", failed)
			}
			if n := s.Info().Connections; n < 1 || n > 3 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

func TestFewPermissions(t *testing.T) {
	server := storetest.Redis(t)
	server.Do(t, "ACL", "SETUSER", "few", "on", ">secret", "~*", "-@all", "+get", "+set")
	e := endpoint{addr: server.Addr, user: "few", password: "secret"}
	session, err := connectRedis(t.Context(), e, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if got := session.Server(); got.Version != "redis" || got.Free != -1 || got.Mode != "" || got.RoundTrip <= 0 {
		t.Errorf("server %+v", got)
	}
	if _, err := session.Counters(t.Context(), "get"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Counters: %v", err)
	}
	if err := session.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := session.Remove(t.Context(), slices.Values([]string{"a"})); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Remove: %v", err)
	}
	for _, client := range redisClients {
		s, err := session.Open(t.Context(), client, bench.Options{Connections: 2, Timeout: 10 * time.Second})
		if err != nil {
			t.Errorf("%s: %v", client, err)
			continue
		}
		if err := s.Set(t.Context(), "k", []byte("v")); err != nil {
			t.Errorf("%s: Set: %v", client, err)
		}
		if v, err := s.Get(t.Context(), "k"); err != nil || string(v) != "v" {
			t.Errorf("%s: Get = %q, %v", client, v, err)
		}
		s.Close()
	}
}

// TestWhatIsSent checks what reaches the server beside the operations: nothing that managed servers refuse, nothing that
// would falsify its statistics.
func TestWhatIsSent(t *testing.T) {
	server := storetest.Redis(t)
	for _, client := range redisClients {
		for _, n := range []int{1, 2, 7} {
			server.Do(t, "CONFIG", "RESETSTAT")
			session := connect(t, "redis://"+server.Addr)
			s, err := session.Open(t.Context(), client, bench.Options{Connections: n, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Info().Connections; got != n && client != "rueidis" || got < 1 || got > max(n, 4) || n == 1 && got != 1 {
				t.Errorf("%s: %d connections for %d", client, got, n)
			}
			before, err := session.Counters(t.Context(), "set")
			if err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				if err := s.Set(t.Context(), "k", []byte(strconv.Itoa(i))); err != nil {
					t.Fatal(err)
				}
			}
			after, err := session.Counters(t.Context(), "SET")
			if err != nil || after.Calls-before.Calls != 10 || after.Time <= before.Time || after.CPU < before.CPU || after.CPU == 0 {
				t.Errorf("%s: counters %+v and %+v, %v", client, before, after, err)
			}
			if ttl := server.Do(t, "TTL", "k").(int64); ttl < 3500 || ttl > 3600 {
				t.Errorf("%s: a key lives for %d s", client, ttl)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			session.Close()
			allowed := map[string]bool{"echo": true, "set": true, "get": true, "info": true, "exists": true, "ttl": true, "hello": true, "config|resetstat": true}
			for _, key := range slices.Sorted(maps.Keys(parseInfo(server.Do(t, "INFO", "commandstats").(string)))) {
				if name := strings.TrimPrefix(key, "cmdstat_"); !allowed[name] && !(name == "ping" && client == "rueidis") {
					t.Errorf("%s sends %s", client, name)
				}
			}
		}
	}
}

func TestSession(t *testing.T) {
	server := storetest.Redis(t, "--maxmemory", "100mb")
	session := connect(t, "redis://"+server.Addr+"/2")
	got := session.Server()
	if !strings.HasPrefix(got.Version, "redis ") || got.Mode != "standalone" || got.Free < 50<<20 || got.Free > 100<<20 || got.RoundTrip <= 0 {
		t.Errorf("server %+v", got)
	}
	if c, err := session.Counters(t.Context(), "zunionstore"); err != nil || c.Calls != 0 {
		t.Errorf("Counters of a command never called: %+v, %v", c, err)
	}
	s, err := session.Open(t.Context(), "floor", bench.Options{Connections: 1, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key := func(i int) string { return "nsop:test:" + strconv.Itoa(i) }
	for i := range 1201 {
		if err := s.Set(t.Context(), key(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to remove, on a new connection
		err := session.Remove(t.Context(), func(yield func(string) bool) {
			for i := range 1200 {
				if !yield(key(i)) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if left := server.Do(t, "INFO", "keyspace").(string); !strings.Contains(left, "db2:keys=1,") {
			t.Errorf("after Remove: %q", left)
		}
		server.Do(t, "CLIENT", "KILL", "TYPE", "normal")
		if err := session.Ping(t.Context()); err == nil {
			t.Log("Ping on a killed connection succeeds")
		}
	}
	if _, err := session.Open(t.Context(), "nosuch", bench.Options{Connections: 1, Timeout: time.Second}); err == nil {
		t.Error("an unknown client opens")
	}
	if _, err := session.Open(t.Context(), "floor", bench.Options{}); err == nil {
		t.Error("a store of no connections opens")
	}
}

func TestCancel(t *testing.T) {
	before := goleak.IgnoreCurrent()
	server := storetest.Redis(t)
	session := connect(t, "redis://"+server.Addr)
	server.Pause(t)
	calls := map[string]func(ctx context.Context) error{
		"Ping":     session.Ping,
		"Counters": func(ctx context.Context) error { _, err := session.Counters(ctx, "get"); return err },
		"Remove":   func(ctx context.Context) error { return session.Remove(ctx, slices.Values([]string{"a"})) },
		"Connect": func(ctx context.Context) error {
			_, err := connectRedis(ctx, endpoint{addr: server.Addr}, time.Minute)
			return err
		},
	}
	for _, client := range redisClients {
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
		if took := time.Since(started); took > 4*time.Second {
			t.Errorf("%s took %v to notice", name, took)
		}
		timer.Stop()
		cancel()
	}
	server.Resume(t)
	if err := session.Ping(t.Context()); err != nil {
		t.Errorf("after all was cancelled: %v", err)
	}
	session.Close()
	server.Kill(t)
	goleak.VerifyNone(t, before)
}

func TestDialerForgets(t *testing.T) {
	d := newDialer(endpoint{addr: hang(t)}, 5*time.Second)
	for range 100 {
		c, err := d.dial(t.Context())
		if err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, context.DeadlineExceeded) {
				break // the backlog is full
			}
			t.Fatal(err)
		}
		c.Close()
		if len(d.conns) > 20 {
			t.Fatalf("%d closed connections are remembered", len(d.conns))
		}
	}
	if n := d.open(); n != 0 {
		t.Errorf("%d connections open", n)
	}
	d.close()
	d.close()
	if _, err := d.dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial after close: %v", err)
	}
}
