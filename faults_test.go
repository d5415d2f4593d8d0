package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/storetest"
	"nsop/handlers"
)

// redisClients are the clients that faults, figures and data are tested through.
var redisClients = []string{"redigo", "go-redis", "rueidis", "floor"}

// A lab is a service of a test's own, configured as the command is.
type lab struct {
	t       testing.TB
	server  *httptest.Server
	service *handlers.Service
	history *history.History
}

func newLab(t testing.TB, env map[string]string, observe func(bench.Progress)) *lab {
	t.Helper()
	config, _, err := configure(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	config.Observe = observe
	service := handlers.New(config)
	l := &lab{t, httptest.NewServer(service), service, config.History}
	t.Cleanup(l.close)
	return l
}

// close ends the service and every connection to it. It may be called twice.
func (l *lab) close() {
	l.server.Client().CloseIdleConnections()
	l.server.Close()
	if err := l.history.Close(); err != nil {
		l.t.Error(err)
	}
}

// redisLab is a service with one target called redis.
func redisLab(t testing.TB, addr string) *lab {
	t.Helper()
	return newLab(t, map[string]string{"REDIS_URL": "redis://" + addr}, nil)
}

// A reply is what a service answered to one request for a benchmark.
type reply struct {
	status int
	took   time.Duration
	body   string

	ErrorKind string         `json:"error_kind"`
	Detail    string         `json:"detail"`
	Run       string         `json:"run"`
	Results   []bench.Result `json:"results"`
	Warnings  []string       `json:"warnings"`
}

// get performs a request whose answer is JSON, and checks what holds for every such answer.
func (l *lab) get(path string) reply {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := l.try(ctx, path)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func (l *lab) try(ctx context.Context, path string) (reply, error) {
	l.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.server.URL+path, nil)
	if err != nil {
		return reply{}, err
	}
	begun := time.Now()
	response, err := l.server.Client().Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{status: response.StatusCode, took: time.Since(begun), body: string(body)}
	if err := json.Unmarshal(body, &r); err != nil {
		l.t.Errorf("GET %s: %v in %s", path, err, body)
	}
	checkHonest(l.t, r)
	return r, nil
}

// checkHonest checks what holds for every answer: results are there, a row that completed nothing has no figures, and
// those of another row fit together.
func checkHonest(t testing.TB, r reply) {
	t.Helper()
	var raw struct{ Results []map[string]any }
	if err := json.Unmarshal([]byte(r.body), &raw); err != nil || raw.Results == nil {
		t.Errorf("no results in %s", r.body)
		return
	}
	for i, row := range r.Results {
		var inKinds int64
		for kind, n := range row.ErrorKinds {
			inKinds += n
			if !slices.Contains(bench.Kinds, kind) {
				t.Errorf("%s: no error kind %q", row.Name, kind)
			}
			if row.ErrorSamples[kind] == "" {
				t.Errorf("%s: no sample of %s", row.Name, kind)
			}
		}
		if inKinds != row.Errors || row.Mismatches != row.ErrorKinds["mismatch"] {
			t.Errorf("%s: %d errors, %d mismatches, by kind %v", row.Name, row.Errors, row.Mismatches, row.ErrorKinds)
		}
		latency := raw.Results[i]["latency_ns"].(map[string]any)
		if row.Iterations > 0 {
			elapsed, rounding := float64(*row.NSPerOp)*float64(row.Iterations), 0.5*float64(row.Iterations)
			if *row.NSPerOp < 100 {
				rounding /= 100
			}
			if math.Abs(elapsed-float64(row.ElapsedNS)) > rounding+1 {
				t.Errorf("%s: %d iterations x %v ns/op are not the %d ns elapsed", row.Name, row.Iterations, *row.NSPerOp, row.ElapsedNS)
			}
			continue
		}
		for _, name := range []string{"ns_per_op", "ops_per_sec", "bytes_per_op", "allocs_per_op"} {
			if v, ok := raw.Results[i][name]; !ok || v != nil {
				t.Errorf("%s completed nothing, and %s is %v", row.Name, name, v)
			}
		}
		for _, name := range []string{"min", "mean", "stddev", "p50", "p90", "p95", "p99", "p99_9", "max"} {
			if v, ok := latency[name]; !ok || v != nil {
				t.Errorf("%s completed nothing, and its %s is %v", row.Name, name, v)
			}
		}
	}
}

// A scene is what a fault happens in.
type scene struct {
	env    map[string]string
	strike func() // what goes wrong while the row runs; nil: it is wrong from the start
}

func at(url string) scene { return scene{env: map[string]string{"REDIS_URL": url}} }

// unusedAddr is an address that refuses connections.
func unusedAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

const hangup = "hang up" // in place of a reply

// fakeRedis serves what answer returns to each command, which many goroutines call; conn numbers connections from 0. An
// empty reply is none.
func fakeRedis(t testing.TB, answer func(conn int, cmd []string) string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	wait.Go(func() {
		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wait.Go(func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					cmd, err := readCommand(r)
					if err != nil {
						return
					}
					reply := answer(n, cmd)
					if reply == hangup {
						return
					}
					if _, err := io.WriteString(conn, reply); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	return listener.Addr().String()
}

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func(mark byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != mark {
			return 0, fmt.Errorf("%q does not begin with %c", line, mark)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	cmd := make([]string, n)
	for i := range cmd {
		var size int
		if size, err = number('$'); err != nil {
			return nil, err
		}
		arg := make([]byte, size+2)
		if _, err = io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		cmd[i] = string(arg[:size])
	}
	return cmd, err
}

// healthy is what a server answers that has nothing stored.
func healthy(cmd []string) string {
	switch strings.ToUpper(cmd[0]) {
	case "ECHO":
		return fmt.Sprintf("$%d\r\n%s\r\n", len(cmd[1]), cmd[1])
	case "GET":
		return "$-1\r\n"
	case "INFO":
		return "$0\r\n\r\n"
	case "DEL", "EXISTS", "STRLEN":
		return ":0\r\n"
	case "PING":
		return "+PONG\r\n"
	case "HELLO":
		return "-ERR unknown command 'HELLO'\r\n"
	}
	return "+OK\r\n"
}

// secondly is a server whose first connection, which is not measured, is healthy, and whose others answer reply.
func secondly(reply string) func(t *testing.T) scene {
	return func(t *testing.T) scene {
		return at("redis://" + fakeRedis(t, func(conn int, cmd []string) string {
			if conn == 0 {
				return healthy(cmd)
			}
			return reply
		}))
	}
}

// user is a server with a user of that name, who has the password pw and may do what rules say.
func user(rules ...any) func(t *testing.T) scene {
	return func(t *testing.T) scene {
		s := storetest.Redis(t)
		s.Do(t, "ACL", append([]any{"SETUSER", "bench", "on", ">pw", "~nsop:*"}, rules...)...)
		return at("redis://bench:pw@" + s.Addr)
	}
}

const loadingReply = "-LOADING Redis is loading the dataset in memory\r\n"

// flip changes the first byte of every value of 100 bytes, from the one numbered from on, in each so many.
func flip(from, each int) func([]byte) {
	var mu sync.Mutex
	seen := 0
	return func(reply []byte) {
		mu.Lock()
		defer mu.Unlock()
		const head = "$100\r\n"
		for rest := string(reply); ; {
			i := strings.Index(rest, head)
			if i < 0 || i+len(head) == len(rest) {
				return
			}
			if seen++; seen > from && seen%each == 0 {
				reply[len(reply)-len(rest)+i+len(head)] ^= 1
			}
			rest = rest[i+len(head):]
		}
	}
}

func TestFaults(t *testing.T) {
	faults := []struct {
		name    string
		scene   func(t *testing.T) scene
		path    string // below /bench/redis/; its query goes on with client and timeout
		clients []string
		kinds   []string // any of them
		status  int
		rows    int // of the answer
		check   func(t *testing.T, r reply)
	}{
		// Before the first row: there is no client yet whose fault it could be.
		{name: "name", scene: func(*testing.T) scene { return at("redis://nosuch.invalid") }, kinds: []string{"dns"}, status: 502},
		{name: "refused", scene: func(t *testing.T) scene { return at("redis://" + unusedAddr(t)) }, kinds: []string{"refused"}, status: 502},
		{name: "silent", scene: func(t *testing.T) scene {
			return at("redis://" + fakeRedis(t, func(int, []string) string { return "" }))
		}, kinds: []string{"timeout"}, status: 502},
		{name: "silent TLS", scene: func(t *testing.T) scene {
			return at("rediss://" + fakeRedis(t, func(int, []string) string { return "" }))
		}, kinds: []string{"tls", "timeout", "reset"}, status: 502},
		{name: "hangs up", scene: func(t *testing.T) scene {
			return at("redis://" + fakeRedis(t, func(int, []string) string { return hangup }))
		}, kinds: []string{"reset"}, status: 502},
		{name: "another CA", scene: func(t *testing.T) scene {
			return at("rediss://" + storetest.RedisTLS(t).Addr + "?ca=" + url.QueryEscape(storetest.RedisTLS(t).CA))
		}, kinds: []string{"tls"}, status: 502},
		{name: "no CA", scene: func(t *testing.T) scene { return at("rediss://" + storetest.RedisTLS(t).Addr) }, kinds: []string{"tls"}, status: 502},
		{name: "TLS to a plain port", scene: func(t *testing.T) scene { return at("rediss://" + storetest.Redis(t).Addr) }, kinds: []string{"tls"}, status: 502},
		// All that a TLS server says of it is that it closes the connection, some with an alert before.
		{name: "plain to a TLS port", scene: func(t *testing.T) scene { return at("redis://" + storetest.RedisTLS(t).Addr) },
			kinds: []string{"tls", "protocol", "reset"}, status: 502},
		{name: "wrong password", scene: func(t *testing.T) scene {
			return at("redis://:wrong@" + storetest.Redis(t, "--requirepass", "right").Addr)
		}, kinds: []string{"auth"}, status: 502},
		{name: "no password", scene: func(t *testing.T) scene { return at("redis://" + storetest.Redis(t, "--requirepass", "right").Addr) },
			kinds: []string{"auth"}, status: 502},
		{name: "no such user", scene: func(t *testing.T) scene { return at("redis://nobody:pw@" + storetest.Redis(t).Addr) }, kinds: []string{"auth"}, status: 502},
		{name: "a password too many", scene: func(t *testing.T) scene { return at("redis://:pw@" + storetest.Redis(t).Addr) }, kinds: []string{"auth"}, status: 502},
		{name: "loading", scene: func(t *testing.T) scene {
			return at("redis://" + fakeRedis(t, func(int, []string) string { return loadingReply }))
		}, kinds: []string{"loading"}, status: 502},
		{name: "loading its file", scene: loadingServer, kinds: []string{"loading"}, status: 502},
		{name: "garbage", scene: func(t *testing.T) scene {
			return at("redis://" + fakeRedis(t, func(int, []string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" }))
		}, kinds: []string{"protocol"}, status: 502},
		{name: "binary garbage", scene: func(t *testing.T) scene {
			return at("redis://" + fakeRedis(t, func(int, []string) string { return "\x00\xff\xfe\x80\r\n" }))
		}, kinds: []string{"protocol"}, status: 502},
		{name: "stopped", scene: func(t *testing.T) scene {
			s := storetest.Redis(t)
			s.Pause(t)
			return at("redis://" + s.Addr)
		}, kinds: []string{"timeout"}, status: 502},
		{name: "little memory", scene: func(t *testing.T) scene { return at("redis://" + storetest.Redis(t, "--maxmemory", "20mb").Addr) },
			path: "set?size=1MB&keyspace=15", kinds: []string{"oom"}, status: 422},
		{name: "no memory", scene: func(t *testing.T) scene { return at("redis://" + storetest.Redis(t, "--maxmemory", "1").Addr) },
			path: "set", kinds: []string{"oom"}, status: 422},

		// While a client opens its connections.
		{name: "open silent", scene: secondly(""), clients: redisClients, kinds: []string{"timeout"}, status: 502, rows: 1},
		{name: "open hangs up", scene: secondly(hangup), clients: redisClients, kinds: []string{"reset"}, status: 502, rows: 1},
		{name: "open garbage", scene: secondly("HTTP/1.1 400 Bad Request\r\n\r\n"), clients: redisClients, kinds: []string{"protocol"}, status: 502, rows: 1},
		{name: "open loading", scene: secondly(loadingReply), clients: redisClients, kinds: []string{"loading"}, status: 502, rows: 1},
		{name: "open wants a password", scene: secondly("-NOAUTH Authentication required.\r\n"), clients: redisClients, kinds: []string{"auth"}, status: 502, rows: 1},
		{name: "maxclients", scene: func(t *testing.T) scene { return at("redis://" + storetest.Redis(t, "--maxclients", "10").Addr) },
			path: "set?concurrency=50", clients: []string{"redigo", "go-redis", "floor"}, kinds: []string{"maxclients"}, status: 502, rows: 1},
		{name: "maxclients taken", scene: func(t *testing.T) scene { return at("redis://" + storetest.Redis(t, "--maxclients", "1").Addr) },
			path: "set?concurrency=4", clients: []string{"rueidis"}, kinds: []string{"maxclients"}, status: 502, rows: 1},

		// What the server refuses to do.
		{name: "SET is not allowed", scene: user("+@all", "-set"), clients: redisClients, kinds: []string{"noperm"}, status: 502, rows: 1},
		{name: "SET is not allowed and no warm-up tells", scene: user("+@all", "-set"), path: "set?warmup=0x&benchtime=50x&concurrency=3", clients: redisClients,
			kinds: []string{"noperm"}, status: 502, rows: 1},
		{name: "SET is not answered", scene: func(t *testing.T) scene {
			return at("redis://" + fakeRedis(t, func(_ int, cmd []string) string {
				if strings.EqualFold(cmd[0], "SET") {
					return ""
				}
				return healthy(cmd)
			}))
		}, path: "set?warmup=0x", clients: redisClients, kinds: []string{"timeout"}, status: 502, rows: 1},
		{name: "keys are not allowed", scene: user("+@all", "resetkeys", "~other:*"), clients: redisClients, kinds: []string{"noperm"}, status: 502, rows: 1},
		{name: "loading SET is not allowed", scene: user("+@all", "-set"), path: "get", clients: redisClients, kinds: []string{"noperm"}, status: 502, rows: 1},
		{name: "replica", scene: replica, clients: redisClients, kinds: []string{"readonly"}, status: 502, rows: 1},
		{name: "loading a replica", scene: replica, path: "get", clients: redisClients, kinds: []string{"readonly"}, status: 502, rows: 1},
		{name: "full and silent about it", scene: func(t *testing.T) scene {
			s := storetest.Redis(t, "--maxmemory", "1")
			s.Do(t, "ACL", "SETUSER", "bench", "on", ">pw", "~nsop:*", "+@all", "-info")
			return at("redis://bench:pw@" + s.Addr)
		}, clients: redisClients, kinds: []string{"oom"}, status: 502, rows: 1},
		{name: "every value corrupted", scene: func(t *testing.T) scene {
			return at("redis://" + storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Corrupt: flip(0, 1)}).Addr)
		}, path: "get?verify=true&benchtime=300x", clients: redisClients, kinds: []string{"mismatch"}, status: 502, rows: 1, check: func(t *testing.T, r reply) {
			if r.Results[0].Mismatches == 0 {
				t.Error("no mismatches")
			}
		}},

		// In the middle of a row.
		{name: "killed", scene: func(t *testing.T) scene {
			s := storetest.Redis(t)
			return scene{at("redis://" + s.Addr).env, func() { s.Kill(t) }}
		}, path: "set?concurrency=4", clients: redisClients, kinds: []string{"refused", "reset"}, status: 502, rows: 1, check: completedSome},
		{name: "stopped in a row", scene: func(t *testing.T) scene {
			s := storetest.Redis(t)
			return scene{at("redis://" + s.Addr).env, func() { s.Pause(t) }}
		}, path: "set?concurrency=4", clients: redisClients, kinds: []string{"timeout"}, status: 502, rows: 1, check: completedSome},
		{name: "stopped in a pipeline", scene: func(t *testing.T) scene {
			s := storetest.Redis(t)
			return scene{at("redis://" + s.Addr).env, func() { s.Pause(t) }}
		}, path: "get?pipeline=16", clients: redisClients, kinds: []string{"timeout"}, status: 502, rows: 1, check: completedSome},
		{name: "network gone", scene: func(t *testing.T) scene {
			p := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{})
			return scene{at("redis://" + p.Addr).env, p.Pause}
		}, clients: redisClients, kinds: []string{"timeout"}, status: 502, rows: 1, check: completedSome},
		{name: "garbage in a row", scene: func(t *testing.T) scene {
			n := make(chan struct{})
			addr := fakeRedis(t, func(conn int, cmd []string) string {
				select {
				case <-n:
					return "HTTP/1.1 400 Bad Request\r\n\r\n"
				default:
					return healthy(cmd)
				}
			})
			return scene{at("redis://" + addr).env, func() { close(n) }}
		}, clients: redisClients, kinds: []string{"protocol"}, status: 502, rows: 1, check: completedSome},
	}
	for _, fault := range faults {
		clients := fault.clients
		if clients == nil {
			clients = []string{"redigo"}
		}
		for _, client := range clients {
			t.Run(fault.name+"/"+client, func(t *testing.T) {
				t.Parallel()
				const timeout = 1500 * time.Millisecond
				sc := fault.scene(t)
				struck, observe := whileRunning(0, sc.strike)
				l := newLab(t, sc.env, observe)
				path := "/bench/redis/" + fault.path
				if fault.path == "" {
					path += "set"
				}
				if !strings.Contains(path, "?") {
					path += "?"
				}
				if !strings.Contains(path, "benchtime") {
					path += "&benchtime=20s"
				}
				r := l.get(strings.Replace(path, "?&", "?", 1) + "&client=" + client + "&timeout=" + timeout.String())
				took := r.took
				if sc.strike != nil {
					at := struck()
					if at.IsZero() {
						t.Fatalf("the row ended before anything went wrong: %s", r.body)
					}
					took = time.Since(at)
				}
				// The row would take 20 s: what is in between, a busy machine may need.
				if limit := timeout + 8*time.Second; took > limit {
					t.Errorf("answered after %s, want at most %s", took, limit)
				}
				if r.status != fault.status || !slices.Contains(fault.kinds, r.ErrorKind) {
					t.Errorf("status %d, error_kind %q, want %d, %v: %s", r.status, r.ErrorKind, fault.status, fault.kinds, r.Detail)
				}
				if len(r.Results) != fault.rows {
					t.Fatalf("%d results, want %d: %s", len(r.Results), fault.rows, r.body)
				}
				for _, row := range r.Results {
					if row.ErrorKinds[r.ErrorKind] == 0 {
						t.Errorf("error_kind %s, and the row has %v", r.ErrorKind, row.ErrorKinds)
					}
					if fault.check == nil && row.Iterations != 0 {
						t.Errorf("%d iterations", row.Iterations)
					}
				}
				if fault.check != nil {
					fault.check(t, r)
				}
			})
		}
	}
}

func completedSome(t *testing.T, r reply) {
	if r.Results[0].Iterations == 0 {
		t.Error("what was measured before is lost")
	}
}

// whileRunning returns an observer that calls f once, while row is under the clock, and a func that tells when that was.
func whileRunning(row int, f func()) (when func() time.Time, observe func(bench.Progress)) {
	var (
		once sync.Once
		mu   sync.Mutex
		at   time.Time
	)
	when = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
	return when, func(p bench.Progress) {
		if f == nil || p.Row != row || p.Fraction*float64(p.Rows) <= float64(p.Row) {
			return
		}
		once.Do(func() {
			mu.Lock()
			at = time.Now()
			mu.Unlock()
			f()
		})
	}
}

// replica is a server that copies another, and is done with it.
func replica(t *testing.T) scene {
	host, port, _ := net.SplitHostPort(storetest.Redis(t, "--repl-diskless-sync-delay", "0").Addr)
	s := storetest.Redis(t, "--replicaof", host, port)
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.Do(t, "INFO", "replication").(string), "master_link_status:up"); {
		if time.Now().After(deadline) {
			t.Fatal("the replica does not come up")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return at("redis://" + s.Addr)
}

// loadingServer is a server that reads its data for as long as the test takes.
func loadingServer(t *testing.T) scene {
	dir := t.TempDir()
	source := storetest.Redis(t, "--dir", dir)
	source.Do(t, "EVAL", "for i = 1, 50000 do redis.call('SET', i, i) end", 0)
	source.Do(t, "SAVE")
	return at("redis://" + storetest.Redis(t, "--dir", dir, "--key-load-delay", "200", "--loading-process-events-interval-bytes", "1024").Addr)
}

// A user who may do nothing beside what is measured can measure it.
func TestFewRights(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, user("-@all", "+get", "+set", "+del")(t).env, nil)
			r := l.get("/bench/redis?benchtime=50x&client=" + client)
			if r.status != 200 || len(r.Results) != 2 || r.Results[0].Iterations != 50 || r.Results[1].Iterations != 50 {
				t.Errorf("status %d: %s", r.status, r.body)
			}
			for _, row := range r.Results {
				if row.Server != nil {
					t.Errorf("figures of a server that does not tell them: %+v", row.Server)
				}
			}
		})
	}
}

// Keys that may not be removed are told of, and expire.
func TestKeysThatStay(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	s.Do(t, "ACL", "SETUSER", "bench", "on", ">pw", "~nsop:*", "+@all", "-del", "-unlink")
	l := newLab(t, at("redis://bench:pw@"+s.Addr).env, nil)
	r := l.get("/bench/redis/set?benchtime=50x&client=redigo")
	if r.status != 200 || len(r.Results[0].Warnings) == 0 {
		t.Errorf("status %d: %s", r.status, r.body)
	}
	if ttl := s.Do(t, "TTL", s.Do(t, "RANDOMKEY")).(int64); ttl <= 0 || ttl > 3600 {
		t.Errorf("a key that was left behind lives for %d seconds", ttl)
	}
}

// A replica can't be written, and what reads alone works.
func TestReplicaReads(t *testing.T) {
	t.Parallel()
	l := newLab(t, replica(t).env, nil)
	if r := l.get("/bench/redis/ping?benchtime=50x"); r.status != 200 {
		t.Errorf("ping on a replica: %s", r.body)
	}
	r := l.get("/bench/redis/ping,set?benchtime=50x&client=floor")
	if r.status != 502 || r.ErrorKind != "readonly" || len(r.Results) != 2 || r.Results[0].Iterations != 50 {
		t.Errorf("status %d, %s: %s", r.status, r.ErrorKind, r.body)
	}
}

// Memory that runs out in the middle of a row: the operations refused are no operations.
func TestOutOfMemoryInARow(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			_, observe := whileRunning(0, func() { s.Do(t, "CONFIG", "SET", "maxmemory", "1") })
			l := newLab(t, at("redis://"+s.Addr).env, observe)
			r := l.get("/bench/redis/set?benchtime=1s&timeout=500ms&client=" + client)
			row := r.Results[0]
			if r.status != 200 || row.Iterations == 0 || row.ErrorKinds["oom"] == 0 || len(row.ErrorKinds) != 1 {
				t.Errorf("status %d, %d iterations, %v", r.status, row.Iterations, row.ErrorKinds)
			}
			if calls := commandCalls(t, s, "set"); row.Iterations > calls.ok {
				t.Errorf("%d iterations, and the server performed %d", row.Iterations, calls.ok)
			}
		})
	}
}

// calls is what a server counts of a command.
type calls struct{ all, ok int64 }

func commandCalls(t testing.TB, s *storetest.RedisServer, command string) calls {
	t.Helper()
	for line := range strings.Lines(s.Do(t, "INFO", "commandstats").(string)) {
		if fields, found := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_"+command+":"); found {
			n := map[string]int64{}
			for field := range strings.SplitSeq(fields, ",") {
				name, value, _ := strings.Cut(field, "=")
				n[name], _ = strconv.ParseInt(value, 10, 64) // others have a point
			}
			return calls{n["calls"], n["calls"] - n["failed_calls"]} // those rejected are no calls
		}
	}
	return calls{}
}

// A value that was changed on the way is found, in single operations and in batches, and counts as no operation.
func TestCorruption(t *testing.T) {
	for _, client := range redisClients {
		for _, pipeline := range []int{1, 16} {
			t.Run(fmt.Sprintf("%s/%d", client, pipeline), func(t *testing.T) {
				t.Parallel()
				p := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Corrupt: flip(0, 4)})
				l := redisLab(t, p.Addr)
				path := fmt.Sprintf("/bench/redis/get?benchtime=400x&warmup=0x&keyspace=50&pipeline=%d&client=%s", pipeline, client)
				r := l.get(path + "&verify=true")
				row := r.Results[0]
				// A reply may lie over the border of two pieces, where the proxy leaves it as it is.
				if r.status != 200 || row.Mismatches < 80 || row.Mismatches > 100 || row.Iterations != 400-row.Mismatches {
					t.Errorf("status %d, %d mismatches, %d iterations: %s", r.status, row.Mismatches, row.Iterations, r.Detail)
				}
				if r := l.get(path); r.status != 200 || r.Results[0].Mismatches != 0 || r.Results[0].Iterations != 400 {
					t.Errorf("without verify: status %d: %s", r.status, r.body)
				}
			})
		}
	}
}

// A server that comes back costs the operations of the time between, not the row.
func TestRestart(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			var again *exec.Cmd
			_, observe := whileRunning(0, func() {
				s.Kill(t)
				time.Sleep(100 * time.Millisecond)
				again = exec.Command("redis-server", "--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
				if err := again.Start(); err != nil {
					t.Errorf("start redis-server again: %v", err)
				}
			})
			t.Cleanup(func() {
				again.Process.Kill()
				again.Wait()
			})
			l := newLab(t, at("redis://"+s.Addr).env, observe)
			r := l.get("/bench/redis/set?benchtime=3s&timeout=3s&concurrency=4&client=" + client)
			row := r.Results[0]
			if r.status != 200 || row.Errors == 0 {
				t.Fatalf("status %d, %v: %s", r.status, row.ErrorKinds, r.Detail)
			}
			for kind := range row.ErrorKinds {
				if kind != "reset" && kind != "refused" {
					t.Errorf("error kinds %v", row.ErrorKinds)
				}
			}
			// The new server counts from 0: what it performed came after the restart.
			if calls := commandCalls(t, s, "set"); calls.all == 0 || row.Iterations <= calls.all {
				t.Errorf("%d iterations in all, %d of them after the restart", row.Iterations, calls.all)
			}
		})
	}
}

// A path that cuts connections costs an operation each time.
func TestCutConnections(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			p := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{CutAfter: 20011})
			l := redisLab(t, p.Addr)
			r := l.get("/bench/redis/get?benchtime=2000x&concurrency=2&timeout=1s&client=" + client)
			row := r.Results[0]
			if r.status != 200 || row.ErrorKinds["reset"] == 0 || row.Errors != row.ErrorKinds["reset"] || row.Iterations+row.Errors != 2000 {
				t.Errorf("status %d, %d iterations, %v %v: %s", r.status, row.Iterations, row.ErrorKinds, row.ErrorSamples, r.Detail)
			}
			if row.Errors > 40 {
				t.Errorf("%d errors by %d connections", row.Errors, p.Accepted())
			}
		})
	}
}

// What was measured before a server died is answered.
func TestResultsAreKept(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	when, observe := whileRunning(1, func() { s.Kill(t) })
	l := newLab(t, at("redis://"+s.Addr).env, observe)
	r := l.get("/bench/redis/ping,set,get?benchtime=1s&client=go-redis&timeout=500ms")
	if took := time.Since(when()); took > 8*time.Second {
		t.Errorf("answered %s after the server died", took)
	}
	if r.status != 502 || len(r.Results) != 2 || r.Results[0].Errors != 0 || r.Results[0].Iterations == 0 {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	if r.Results[1].Iterations == 0 || r.Results[1].Errors == 0 {
		t.Errorf("the row that went on then: %+v", r.Results[1])
	}
	// As text they are there too.
	response, err := l.server.Client().Get(l.server.URL + "/bench/redis/ping?format=text&timeout=500ms")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != 502 || !strings.Contains(string(body), "refused") {
		t.Errorf("status %d: %s", response.StatusCode, body)
	}
}

// Time that runs out costs the rows that are left.
func TestOutOfTime(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			p := storetest.Proxy(t, s.Addr, storetest.ProxyOptions{})
			_, observe := whileRunning(1, func() { p.SetDelay(time.Second) })
			l := newLab(t, map[string]string{"REDIS_URL": "redis://" + p.Addr, "LIMITS": "total=3s"}, observe)
			r := l.get("/bench/redis?benchtime=500ms&count=2&warmup=1x&timeout=3s&client=" + client)
			if r.status != 504 || len(r.Results) < 2 || r.Results[0].Iterations == 0 || r.Results[0].Errors != 0 {
				t.Errorf("status %d: %s", r.status, r.body)
			}
			if r.took > 12*time.Second {
				t.Errorf("answered after %s", r.took)
			}
		})
	}
}

// A caller who leaves stops the run: its keys and connections go, and the next one may begin.
func TestCallerLeaves(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			ctx, cancel := context.WithCancel(t.Context())
			when, observe := whileRunning(0, cancel)
			l := newLab(t, at("redis://"+s.Addr).env, observe)
			if _, err := l.try(ctx, "/bench/redis/set?benchtime=30s&concurrency=8&keyspace=1000&client="+client); err == nil {
				t.Fatal("answered although the caller left")
			}
			for {
				r := l.get("/bench/map/get?benchtime=1x")
				if r.status == 200 {
					break
				}
				if since := time.Since(when()); r.status != 429 || since > 2*time.Second {
					t.Fatalf("%s after the caller left: status %d", since, r.status)
				}
				time.Sleep(10 * time.Millisecond)
			}
			checkGone(t, s)
		})
	}
}

// checkGone checks that nobody but the question itself is connected, and that no key is left.
func checkGone(t testing.TB, s *storetest.RedisServer) {
	t.Helper()
	var list string
	// The server notices a little later that its peer has closed.
	for range 100 {
		if list = s.Do(t, "CLIENT", "LIST").(string); strings.Count(list, "\n") == 1 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if strings.Count(list, "\n") != 1 {
		t.Errorf("connections are left:\n%s", list)
	}
	if keys := s.Do(t, "KEYS", "nsop:*").([]any); len(keys) != 0 {
		t.Errorf("%d keys are left", len(keys))
	}
}

// A dead server costs its callers no processor: what a row against it uses is far from one core.
func TestDeadServerIsCheap(t *testing.T) {
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, client := range redisClients {
		for _, concurrency := range []int{1, 256} {
			t.Run(fmt.Sprintf("%s/%d", client, concurrency), func(t *testing.T) {
				s := storetest.Redis(t)
				var used time.Duration
				when, observe := whileRunning(0, func() {
					s.Kill(t)
					used = cpu()
				})
				l := newLab(t, at("redis://"+s.Addr).env, observe)
				r := l.get(fmt.Sprintf("/bench/redis/ping?benchtime=20s&timeout=2s&concurrency=%d&client=%s", concurrency, client))
				used, took := cpu()-used, time.Since(when())
				if r.status != 502 {
					t.Fatalf("status %d: %s", r.status, r.body)
				}
				t.Logf("%.0f%% of a core for %s, %d failures", 100*float64(used)/float64(took), took.Round(time.Millisecond), r.Results[0].Errors)
				if used > took/2 {
					t.Errorf("%s of processor in %s", used, took)
				}
			})
		}
	}
}

// A resolver that does not answer is a fault of the name, not of the store.
func TestSilentResolver(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", silent.LocalAddr().String())
	}}
	l := redisLab(t, "store.internal")
	r := l.get("/bench/redis/set?timeout=500ms")
	if r.status != 502 || r.ErrorKind != "dns" || r.took > 10*time.Second {
		t.Errorf("status %d, error_kind %s after %s: %s", r.status, r.ErrorKind, r.took, r.Detail)
	}
}

// The command line answers faults as the service does.
func TestFaultOnTheCommandLine(t *testing.T) {
	t.Parallel()
	env := map[string]string{"REDIS_URL": "redis://" + unusedAddr(t)}
	var out, errs strings.Builder
	err := run(t.Context(), []string{"/bench/redis?timeout=500ms"}, func(name string) string { return env[name] }, &out, &errs)
	if err != exitCode(1) || errs.Len() > 0 {
		t.Errorf("%v, on standard error %q", err, errs.String())
	}
	r := reply{body: out.String()}
	if err := json.Unmarshal([]byte(r.body), &r); err != nil {
		t.Fatal(err)
	}
	checkHonest(t, r)
	if r.ErrorKind != "refused" {
		t.Errorf("error_kind %q", r.ErrorKind)
	}
}
