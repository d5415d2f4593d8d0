package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/gomodule/redigo/redis"
	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/storetest"
)

// Exactly the operations asked for are performed, whatever divides them: the server itself counts warm-up and iterations.
func TestServerCountsTheSame(t *testing.T) {
	shapes := []struct{ concurrency, pipeline, warmup, count int }{
		{1, 1, 100, 100}, {1, 16, 100, 100}, {7, 1, 100, 100}, {7, 16, 13, 100}, {3, 100, 0, 7}, {20, 1, 1, 10}, {2, 3, 5, 1000},
	}
	for _, client := range redisClients {
		for _, workload := range []string{"set", "get", "ping"} {
			if client == "rueidis" && workload == "ping" {
				continue // it asks with PING of its own whether a connection lives
			}
			t.Run(client+"/"+workload, func(t *testing.T) {
				t.Parallel()
				s := storetest.Redis(t)
				l := redisLab(t, s.Addr)
				for _, shape := range shapes {
					s.Do(t, "CONFIG", "RESETSTAT")
					r := l.get(fmt.Sprintf("/bench/redis/%s?client=%s&concurrency=%d&pipeline=%d&warmup=%dx&benchtime=%dx&keyspace=10",
						workload, client, shape.concurrency, shape.pipeline, shape.warmup, shape.count))
					if r.status != 200 {
						t.Fatalf("%+v: status %d: %s", shape, r.status, r.body)
					}
					row := r.Results[0]
					if row.Iterations != int64(shape.count) || row.Errors != 0 || row.Misses != 0 {
						t.Errorf("%+v: %d iterations, %d errors, %d misses", shape, row.Iterations, row.Errors, row.Misses)
					}
					if got, want := commandCalls(t, s, workload).all, int64(shape.warmup+shape.count); got != want {
						t.Errorf("%+v: the server performed %d, want %d", shape, got, want)
					}
					if workload == "get" {
						if got := commandCalls(t, s, "set").all; got != 10 {
							t.Errorf("%+v: loading 10 keys took %d SET", shape, got)
						}
					}
				}
			})
		}
	}
}

// The warm-up is in no figure: 20 slow operations before 10 fast ones leave no trace.
func TestWarmupIsNotCounted(t *testing.T) {
	const slow = 50 * time.Millisecond
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			sets := 0
			l := redisLab(t, fakeRedis(t, func(_ int, cmd []string) string {
				mu.Lock()
				defer mu.Unlock()
				if strings.EqualFold(cmd[0], "SET") {
					if sets++; sets <= 20 {
						time.Sleep(slow)
					}
				}
				return healthy(cmd)
			}))
			row := l.get("/bench/redis/set?warmup=20x&benchtime=10x&client=" + client).Results[0]
			if row.Iterations != 10 || row.ElapsedNS >= int64(20*slow) || *row.Latency.P50 >= int64(slow) || sets != 30 {
				t.Errorf("%d iterations in %d ns, p50 %d, %d SET in all", row.Iterations, row.ElapsedNS, *row.Latency.P50, sets)
			}
		})
	}
}

func median[T int64 | float64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// A path that is longer by what a proxy adds raises p50 by what the proxy measured, within 5%. The proxy's own figure is
// for how long it kept its caller, with and without the delay, since the server too answers slower after a pause.
func TestDelayIsMeasured(t *testing.T) {
	s := storetest.Redis(t)
	p := storetest.Proxy(t, s.Addr, storetest.ProxyOptions{})
	l := redisLab(t, p.Addr)
	measure := func(client, workload string, delay time.Duration, count int) (p50, held float64) {
		p.SetDelay(delay)
		p.Held()
		r := l.get(fmt.Sprintf("/bench/redis/%s?client=%s&warmup=20x&benchtime=%dx", workload, client, count))
		if r.status != 200 {
			t.Fatalf("status %d: %s", r.status, r.body)
		}
		// What surrounds the row, a dozen round trips of the session, does not move the median.
		return float64(*r.Results[0].Latency.P50), float64(median(p.Held()))
	}
	for _, delay := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		for i, client := range redisClients {
			t.Run(fmt.Sprintf("%s/%s", delay, client), func(t *testing.T) {
				workload := []string{"get", "set"}[i%2]
				count := int(max(50, 200*time.Millisecond/delay))
				var seen []string
				for range 8 {
					without, heldWithout := measure(client, workload, 0, 400)
					with, heldWith := measure(client, workload, delay, count)
					raised, added := with-without, heldWith-heldWithout
					seen = append(seen, fmt.Sprintf("%.0f of %.0f us", raised/1e3, added/1e3))
					if heldWith < float64(delay) {
						t.Fatalf("the proxy added only %.0f ns", heldWith)
					}
					if math.Abs(raised/added-1) <= 0.05 {
						t.Log(seen)
						return
					}
				}
				t.Errorf("p50 raised by %s", strings.Join(seen, ", "))
			})
		}
	}
}

// A batch's round trip is the latency of each of its commands, and is shared by them in ns_per_op.
func TestPipelineLatency(t *testing.T) {
	const delay, pipeline = 10 * time.Millisecond, 16
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			p := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Delay: delay})
			row := redisLab(t, p.Addr).get(fmt.Sprintf("/bench/redis/get?pipeline=%d&benchtime=320x&warmup=16x&keyspace=20&client=%s", pipeline, client)).Results[0]
			if row.Iterations != 320 || *row.Latency.Min < int64(delay) {
				t.Errorf("%d iterations, min %d", row.Iterations, *row.Latency.Min)
			}
			// At concurrency 1 batch follows batch: their mean and the time of the whole are the same figure, but for what
			// the loop does between them.
			if got, want := float64(*row.NSPerOp)*pipeline, float64(*row.Latency.Mean); math.Abs(got/want-1) > 0.01 {
				t.Errorf("16 x ns_per_op is %.0f, a batch took %.0f", got, want)
			}
		})
	}
}

// A path that is narrow is in the latency: a value takes as long as its bytes at the proxy's rate.
func TestBandwidthIsMeasured(t *testing.T) {
	t.Parallel()
	const size, rate = 100_000, 10_000_000
	p := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Throttle: rate})
	for _, client := range redisClients {
		row := redisLab(t, p.Addr).get(fmt.Sprintf("/bench/redis/get?size=%d&benchtime=10x&warmup=1x&client=%s", size, client)).Results[0]
		if row.Iterations != 10 || *row.Latency.Min < int64(time.Second)*size/rate {
			t.Errorf("%s: %d iterations, min %d", client, row.Iterations, *row.Latency.Min)
		}
	}
}

// Every worker has a connection, which is there before the clock starts and is what the server sees.
func TestConnections(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			var clients int
			_, observe := whileRunning(0, func() { clients = strings.Count(s.Do(t, "CLIENT", "LIST").(string), "\n") })
			l := newLab(t, at("redis://"+s.Addr).env, observe)
			for _, concurrency := range []int{1, 3, 50} {
				_, observe := whileRunning(0, func() { clients = strings.Count(s.Do(t, "CLIENT", "LIST").(string), "\n") })
				l.service.Observe = observe
				before := totalConnections(t, s)
				row := l.get(fmt.Sprintf("/bench/redis/set?benchtime=500ms&concurrency=%d&client=%s", concurrency, client)).Results[0]
				opened := totalConnections(t, s) - before - 1 // the question itself
				if clients == 0 {
					t.Fatal("the row was not seen running")
				}
				opened-- // CLIENT LIST's
				want := concurrency
				if client == "rueidis" {
					want = row.Connections // it shares as many as it likes
				}
				// Beside them there are the session's connection and the one that asks.
				if row.Connections != want || opened != want+1 || clients != want+2 {
					t.Errorf("concurrency %d: %d connections; the server saw %d opened, %d at once", concurrency, row.Connections, opened, clients)
				}
				if row.ConnectNS == nil || *row.ConnectNS <= 0 {
					t.Errorf("connect_ns %v", row.ConnectNS)
				}
				clients = 0
			}
		})
	}
}

func totalConnections(t *testing.T, s *storetest.RedisServer) int {
	t.Helper()
	for line := range strings.Lines(s.Do(t, "INFO", "stats").(string)) {
		if n, found := strings.CutPrefix(strings.TrimSpace(line), "total_connections_received:"); found {
			total, _ := strconv.Atoi(n)
			return total
		}
	}
	t.Fatal("no total_connections_received")
	return 0
}

// The keys of a keyspace are all used, all alike, and the same in every run.
func TestKeyspaceIsUniform(t *testing.T) {
	const keys, count = 100, 20_000
	sequence := func(client string, concurrency int) (uses map[string]int, order []string) {
		var mu sync.Mutex
		uses = map[string]int{}
		l := redisLab(t, fakeRedis(t, func(_ int, cmd []string) string {
			if strings.EqualFold(cmd[0], "SET") {
				mu.Lock()
				defer mu.Unlock()
				uses[cmd[1]]++
				if len(order) < 1000 {
					order = append(order, cmd[1][strings.LastIndexByte(cmd[1], ':'):])
				}
			}
			return healthy(cmd)
		}))
		r := l.get(fmt.Sprintf("/bench/redis/set?keyspace=%d&warmup=0x&benchtime=%dx&concurrency=%d&pipeline=20&client=%s", keys, count, concurrency, client))
		if r.status != 200 {
			t.Fatalf("status %d: %s", r.status, r.body)
		}
		for key := range uses {
			if !strings.HasPrefix(key, "nsop:"+r.Run+":") {
				t.Errorf("key %q of run %s", key, r.Run)
			}
		}
		return uses, order
	}
	first, order := sequence("redigo", 1)
	if len(first) != keys {
		t.Fatalf("%d distinct keys, want %d", len(first), keys)
	}
	// Pearson's chi-squared with 99 degrees of freedom is above 149 once in a thousand uniform sequences. This sequence is
	// fixed, so that it is below or not for good.
	chi := 0.0
	for _, n := range first {
		chi += math.Pow(float64(n)-count/keys, 2) / (count / keys)
	}
	if chi > 149 {
		t.Errorf("chi-squared %.0f: not uniform: %v", chi, first)
	}
	if _, again := sequence("go-redis", 1); !slices.Equal(order, again) {
		t.Error("another run works on keys in another order")
	}
	// The workers of a run share one sequence.
	shared, _ := sequence("floor", 8)
	counts := func(uses map[string]int) (c []int) {
		for _, n := range uses {
			c = append(c, n)
		}
		slices.Sort(c)
		return c
	}
	if !slices.Equal(counts(first), counts(shared)) {
		t.Error("8 workers work on other keys than one")
	}
}

// The memory a run takes does not depend on how many operations it performs.
func TestMemoryIsConstant(t *testing.T) {
	const peak = "/proc/self/status"
	if _, err := os.Stat(peak); err != nil {
		t.Skip("the peak is read from Linux's " + peak)
	}
	l := newLab(t, nil, nil)
	grown := func(count int) int {
		debug.FreeOSMemory()
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // the peak begins anew
			t.Fatal(err)
		}
		before := residentPeak(t, peak)
		if r := l.get(fmt.Sprintf("/bench/map/get?keyspace=1000&benchtime=%dx", count)); r.status != 200 || r.Results[0].Iterations != int64(count) {
			t.Fatalf("status %d: %s", r.status, r.body)
		}
		return residentPeak(t, peak) - before
	}
	grown(1000) // what is made once
	few, many := grown(100_000), grown(10_000_000)
	t.Logf("100 thousand operations take %d KB more, 10 million %d KB", few, many)
	// One byte an operation would be 10 MB; what the runtime keeps for itself is less than half of that.
	if many > few+4<<10 {
		t.Errorf("100 thousand operations take %d KB more, 10 million %d KB", few, many)
	}
}

// residentPeak is the largest resident size so far, in KB.
func residentPeak(t *testing.T, path string) int {
	t.Helper()
	status, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}

// After a run nothing goes on: no goroutine, no connection, no key, however it ended.
func TestNothingIsLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := storetest.Redis(t)
	before2 := goleak.IgnoreCurrent() // with the server's own
	for _, client := range redisClients {
		for _, query := range []string{
			"set,get?benchtime=100x", "all?benchtime=100x&concurrency=20", "get?benchtime=100x&pipeline=16&concurrency=5&keyspace=1000",
			"set?benchtime=1s&timeout=1ms&concurrency=50", // which some operations don't keep to
			"get?benchtime=100x&assert=p50<1ns",
		} {
			l := redisLab(t, s.Addr)
			l.get("/bench/redis/" + query + "&client=" + client)
			l.close()
			checkGone(t, s)
			goleak.VerifyNone(t, before2)
		}
	}
	// An embedded server ends with its run.
	l := newLab(t, nil, nil)
	if r := l.get("/bench/redis?benchtime=100x"); r.status != 200 {
		t.Errorf("embedded: status %d: %s", r.status, r.body)
	}
	// And one that is lost.
	s.Kill(t)
	lost := redisLab(t, s.Addr)
	lost.get("/bench/redis?benchtime=100x&timeout=500ms")
	l.close()
	lost.close()
	goleak.VerifyNone(t, before)
}

// No format writes what is no number, of rows that completed and of rows that did not.
func TestNoNaN(t *testing.T) {
	l := newLab(t, map[string]string{"REDIS_URL": "redis://" + unusedAddr(t),
		"TARGETS": "odd=redis://" + fakeRedis(t, func(_ int, cmd []string) string {
			if name := strings.ToUpper(cmd[0]); name == "SET" || name == "PING" {
				return "-READONLY no\r\n"
			}
			return healthy(cmd)
		})}, nil)
	for _, path := range []string{"/bench/redis?timeout=500ms", "/bench/odd/all?benchtime=1x", "/bench/odd/set?benchtime=50x&warmup=0x",
		"/bench/map?benchtime=1x", "/bench/map?benchtime=5x&assert=p99<1ms", "/bench/map?benchtime=2000x"} {
		for _, f := range bench.Formats {
			join := "?"
			if strings.Contains(path, "?") {
				join = "&"
			}
			response, err := l.server.Client().Get(l.server.URL + path + join + "format=" + f.Name)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range strings.FieldsFunc(string(body), func(r rune) bool {
				return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '+' || r == '-')
			}) {
				if w := strings.ToLower(strings.TrimLeft(word, "+-")); w == "nan" || w == "inf" || w == "infinity" {
					t.Errorf("%s as %s: %q in %s", path, f.Name, word, body)
				}
			}
			if strings.Contains(response.Header.Get("Content-Type"), "json") && !json.Valid(body) {
				t.Errorf("%s as %s: no JSON: %s", path, f.Name, body)
			}
		}
	}
}

// BenchmarkRowAgainstBareLoop compares the ns/op of a row with those of a bare loop over the same client with the same
// settings, five pairs in one go, and reports the median ratio.
func BenchmarkRowAgainstBareLoop(b *testing.B) {
	const count, turns = 5_000, 8
	key := "nsop:" + strings.Repeat("x", 36) + ":key:0" // as long as a row's
	s := storetest.Redis(b)
	l := redisLab(b, s.Addr)
	value := strings.Repeat("x", 100)
	s.Do(b, "SET", key, value, "EX", "3600")
	pool := &redis.Pool{MaxIdle: 1, MaxActive: 1, Wait: true, IdleTimeout: 5 * time.Minute, Dial: func() (redis.Conn, error) {
		return redis.Dial("tcp", s.Addr, redis.DialReadTimeout(5*time.Second), redis.DialWriteTimeout(5*time.Second))
	}}
	defer pool.Close()
	rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialTimeout: 5 * time.Second,
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, PoolTimeout: 5 * time.Second, ContextTimeoutEnabled: true, PoolSize: 1,
		PipelinePoolSize: -1, ConnMaxIdleTime: 5 * time.Minute,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	defer rdb.Close()
	ctx := b.Context()
	bare := map[string]func() error{
		"redigo/set": func() error {
			c := pool.Get()
			_, err := c.Do("SET", key, []byte(value), "EX", 3600)
			c.Close()
			return err
		},
		"redigo/get": func() error {
			c := pool.Get()
			_, err := redis.Bytes(c.Do("GET", key))
			c.Close()
			return err
		},
		"go-redis/set": func() error { return rdb.Set(ctx, key, []byte(value), time.Hour).Err() },
		"go-redis/get": func() error { return rdb.Get(ctx, key).Err() },
	}
	for _, name := range []string{"redigo/set", "redigo/get", "go-redis/set", "go-redis/get"} {
		b.Run(name, func(b *testing.B) {
			client, workload, _ := strings.Cut(name, "/")
			loop := func() float64 {
				for range 100 {
					if err := bare[name](); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC()
				begun := time.Now()
				for range count {
					if err := bare[name](); err != nil {
						b.Fatal(err)
					}
				}
				return float64(time.Since(begun)) / count
			}
			row := func() float64 {
				r := l.get(fmt.Sprintf("/bench/redis/%s?client=%s&benchtime=%dx", workload, client, count))
				if r.status != http.StatusOK {
					b.Fatal(r.body)
				}
				return float64(*r.Results[0].NSPerOp)
			}
			for b.Loop() {
				var ratios, rows, loops []float64
				for range pairs {
					var a, c float64
					for turn := range turns { // taken in turn, so that a drift of the machine meets both
						if turn%2 == 0 {
							a += row() / turns
							c += loop() / turns
						} else {
							c += loop() / turns
							a += row() / turns
						}
					}
					ratios, rows, loops = append(ratios, a/c), append(rows, a), append(loops, c)
				}
				b.ReportMetric(median(ratios), "row/bare")
				b.ReportMetric(median(rows), "row-ns/op")
				b.ReportMetric(median(loops), "bare-ns/op")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
