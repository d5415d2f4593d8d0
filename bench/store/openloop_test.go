package store

import (
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/storetest"
)

func redisTarget(t testing.TB, addr string) *bench.Target {
	t.Helper()
	target, err := Parse("redis", "redis://"+addr, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// TestStallIsCounted freezes a server for a second: every operation that was due meanwhile is charged for what was left
// of it, whether it was sent or waited for a worker. What else the machine does can only lengthen a stall, so that one of
// three tries has to agree with the clock of the test.
func TestStallIsCounted(t *testing.T) {
	const freeze = time.Second
	length := 4 * time.Second
	if os.Getenv("NSOP_SOAK") != "" {
		length = 10 * time.Second
	}
	for _, c := range []struct {
		client      string
		concurrency int
	}{{"redigo", 4}, {"go-redis", 1200}} {
		t.Run(c.client, func(t *testing.T) {
			t.Parallel()
			server := storetest.Redis(t)
			target := redisTarget(t, server.Addr)
			try := func() bool {
				var (
					frozen time.Duration
					once   sync.Once
					wait   sync.WaitGroup
				)
				report, err := run(t, target, "get", func(p bench.Progress) {
					if p.Fraction > 0.25 {
						once.Do(func() {
							wait.Go(func() {
								server.Pause(t)
								begun := time.Now()
								time.Sleep(freeze)
								server.Resume(t)
								frozen = time.Since(begun)
							})
						})
					}
				}, func(s *bench.Spec) {
					s.Clients, s.Concurrency, s.Benchtime, s.Rates = []string{c.client}, []int{c.concurrency}, bench.Extent{Time: length}, []float64{1000}
				})
				wait.Wait()
				if err != nil {
					t.Fatal(err)
				}
				r := report.Results[0]
				if r.Iterations != length.Milliseconds() || r.Errors != 0 || r.Rate != 1000 || r.Shape != "constant" || !strings.HasSuffix(r.Name, "/keyspace=1/rate=1000") {
					t.Fatalf("%s: %d iterations, %d errors %v", r.Name, r.Iterations, r.Errors, r.ErrorSamples)
				}
				// A tenth or a quarter was due in the freeze; the slowest 1% of all waited 90% of it or longer.
				if p99 := time.Duration(*r.Latency.P99); p99 < frozen*88/100 {
					t.Errorf("p99 %s, frozen for %s", p99, frozen)
				}
				// Those that had a connection to wait on were in flight; the others waited for one of four.
				if queued := slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.HasPrefix(w, "concurrency was reached") }); queued != (c.concurrency < 1000) {
					t.Logf("%d workers: warnings %q", c.concurrency, r.Warnings)
					return false
				}
				stall := time.Duration(*r.LongestStall)
				t.Logf("frozen for %s, longest stall %s, p99 %s, max %s", frozen, stall, time.Duration(*r.Latency.P99), time.Duration(*r.Latency.Max))
				return stall > frozen*95/100 && stall < frozen*105/100
			}
			for range 3 {
				if try() {
					return
				}
			}
			t.Error("the longest stall is not the freeze")
		})
	}
}

// TestOpenLoopEverywhere performs exactly what is due, whatever the workload and the client.
func TestOpenLoopEverywhere(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	memcached, err := Parse("memcached", "memcached://"+storetest.Memcached(t).Addr, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range append(InProcess(), memcached, redisTarget(t, storetest.Redis(t).Addr)) {
		for _, shape := range []bench.Arrivals{{Shape: "constant"}, {Shape: "ramp", From: 1000, To: 3000}} {
			report, err := run(t, target, "all", ignore, func(s *bench.Spec) {
				s.Concurrency, s.Shape, s.Benchtime = []int{3}, shape, bench.Extent{Count: 40}
				if shape.Shape == "constant" {
					s.Rates = []float64{2000}
				}
			})
			if err != nil {
				t.Fatalf("%s: %v", target.Name, err)
			}
			for _, r := range report.Results {
				if r.Iterations != 40 || r.Errors+r.Misses > 0 || r.Service == nil || r.Late == nil || *r.Service.Min > *r.Latency.Min ||
					*r.LongestStall <= 0 || r.ElapsedNS < int64(20*time.Millisecond) {
					t.Errorf("%s: %d iterations, %d errors %v, %d misses in %d ns", r.Name, r.Iterations, r.Errors, r.ErrorSamples, r.Misses, r.ElapsedNS)
				}
			}
		}
	}
}

// BenchmarkOpenLoop compares with closed loops of as many workers: CPU of an operation, the rate reached, and what counting
// from due adds to the median.
func BenchmarkOpenLoop(b *testing.B) {
	target := redisTarget(b, storetest.Redis(b).Addr)
	cpu := func() (time.Duration, bool) {
		var u syscall.Rusage
		err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err == nil
	}
	measure := func(client string, concurrency int, rate float64) (*bench.Result, float64) {
		spec := bench.DefaultSpec()
		spec.Clients, spec.Concurrency = []string{client}, []int{concurrency}
		if rate > 0 {
			spec.Rates = []float64{rate}
		}
		plan, err := bench.NewPlan(target, "get", spec, bench.DefaultLimits(""))
		if err != nil {
			b.Fatal(err)
		}
		report, err := plan.Run(b.Context(), "test", bench.Meter{CPU: cpu, Throttled: func() (time.Duration, bool) { return 0, false }}, ignore)
		if err != nil {
			b.Fatal(err)
		}
		r := report.Results[0]
		return r, float64(*r.ClientCPU) / 100 * float64(r.ElapsedNS) / float64(r.Iterations)
	}
	for _, client := range []string{"redigo", "go-redis", "floor"} {
		for _, concurrency := range []int{2, 50} {
			b.Run(client, func(b *testing.B) {
				for range b.N {
					_, closed := measure(client, concurrency, 0)
					fast, open := measure(client, concurrency, 20_000)
					slow, _ := measure(client, concurrency, 1000)
					b.ReportMetric(float64(concurrency), "workers")
					b.ReportMetric(float64(*fast.OpsPerSec), "ops/s-at-20000")
					b.ReportMetric(closed, "closed-cpu-ns/op")
					b.ReportMetric(open/closed, "cpu-ratio")
					b.ReportMetric(float64(*slow.Latency.P50-*slow.Service.P50)/1e3, "due-us")
				}
			})
		}
	}
}
