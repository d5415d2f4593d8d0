package bench

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func openLoad(workers, pipeline int, a Arrivals, e Extent, op Op) *load {
	l := newLoad(workers, pipeline, op).with(e)
	l.open(a, e)
	return l
}

func sleepy(d time.Duration) Op {
	return func(_ context.Context, _ uint64, errs []error) { time.Sleep(d); clear(errs) }
}

// frozen answers after 1 ms, but for the time from from to to, in which it answers nothing.
func frozen(from, to time.Duration) Op {
	start := time.Now()
	return func(_ context.Context, _ uint64, errs []error) {
		time.Sleep(time.Millisecond)
		if at := time.Since(start); at > from && at < to {
			time.Sleep(to - at)
		}
		clear(errs)
	}
}

var constant1000 = Arrivals{Shape: "constant", Rate: 1000}

// In fake time a store that stands still for a second costs every operation that was due in it what was left of it.
func TestStallIsExact(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{2, 50, 1100} { // with a worker for every operation that waits, and with too few
		synctest.Test(t, func(t *testing.T) {
			m := openLoad(workers, 1, constant1000, Extent{Time: 10 * time.Second}, frozen(4*time.Second, 5*time.Second)).run(t.Context())
			var r Result
			r.count(m)
			if m.iterations != 10_000 || m.elapsed != 10*time.Second || *r.OpsPerSec != 1000 {
				t.Errorf("%d workers: %d iterations in %s", workers, m.iterations, m.elapsed)
			}
			// The operation due at 3.999 s is answered at 4.000 s, the next at 5 s: it was due at 4.000 s.
			if m.stall != time.Second {
				t.Errorf("%d workers: longest stall %s", workers, m.stall)
			}
			if got := time.Duration(m.max); got != time.Second {
				t.Errorf("%d workers: max %s", workers, got)
			}
			// One in ten was due in the freeze: a tenth of these, the slowest 1% of all, waited 0.9 s or longer.
			if got := time.Duration(*r.Latency.P99); got < 890*time.Millisecond {
				t.Errorf("%d workers: p99 %s", workers, got)
			}
			if got := time.Duration(*r.Latency.P50); got > 1100*time.Microsecond {
				t.Errorf("%d workers: p50 %s", workers, got)
			}
			if workers == 1100 && (*r.Late != 0 || m.queued != 0) {
				t.Errorf("%d late, %d of them queued, with a worker for each", *r.Late, m.queued)
			}
			if workers == 2 && (*r.Late < 990 || m.queued != *r.Late) {
				t.Errorf("%d late, %d of them queued", *r.Late, m.queued)
			}
			if workers == 2 && time.Duration(*r.Service.P99) > 1100*time.Microsecond {
				t.Errorf("service p99 %s: what waited is not in it", time.Duration(*r.Service.P99))
			}
		})
	}
}

// A closed loop counts the same stall once, and tells how long it was.
func TestClosedLoopStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLoad(3, 1, frozen(4*time.Second, 5*time.Second)).with(Extent{Time: 10 * time.Second}).run(t.Context())
		var r Result
		r.count(m)
		if m.stall != time.Second || r.Late != nil || r.Service != nil || *r.LongestStall != int64(time.Second) {
			t.Errorf("longest stall %s", m.stall)
		}
		if got := time.Duration(*r.Latency.P99); got > 1100*time.Microsecond {
			t.Errorf("p99 %s", got)
		}
	})
}

// Between operations that are far apart nothing stalls.
func TestIdleIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l := openLoad(3, 1, Arrivals{Shape: "constant", Rate: 0.5}, Extent{Time: 20 * time.Second}, sleepy(time.Millisecond))
		l.timeout = time.Second // and the load is not taken for lost
		m := l.run(t.Context())
		if m.stall != time.Millisecond || m.iterations != 10 || m.lost || m.elapsed != 20*time.Second || time.Since(begun) != m.elapsed {
			t.Errorf("longest stall %s, %d iterations in %s, lost %v", m.stall, m.iterations, m.elapsed, m.lost)
		}
	})
}

// A store that never answers again is a stall until the end, and one that fails is too.
func TestStallAtTheEnd(t *testing.T) {
	for _, open := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			closed := make(chan struct{})
			start := time.Now()
			op := func(_ context.Context, _ uint64, errs []error) {
				time.Sleep(time.Millisecond)
				if errs[0] = nil; time.Since(start) > 2*time.Second {
					<-closed
					errs[0] = syscall.ECONNRESET
				}
			}
			l := newLoad(2, 1, op).with(Extent{Time: 10 * time.Second})
			if open {
				l.open(constant1000, Extent{Time: 10 * time.Second})
			}
			l.abort = func() { close(closed) }
			m := l.run(t.Context())
			if got := m.stall.Round(100 * time.Millisecond); !m.lost || got < l.timeout || got > l.timeout+300*time.Millisecond {
				t.Errorf("open %v: lost %v, longest stall %s", open, m.lost, m.stall)
			}
		})
	}
}

// What is due within the time is performed exactly, in pipelines and in shares too.
func TestDueIsExact(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, c := range []struct {
		workers, pipeline int
		of                uint64
		arrivals          Arrivals
		extent            Extent
		want              int64
	}{
		{1, 1, 1, constant1000, Extent{Time: 500 * time.Millisecond}, 500},
		{7, 1, 1, constant1000, Extent{Count: 123}, 123},
		{3, 16, 1, constant1000, Extent{Time: 500 * time.Millisecond}, 500},
		{3, 16, 3, constant1000, Extent{Time: 501 * time.Millisecond}, 501},
		{2, 1, 5, Arrivals{Shape: "ramp", From: 0, To: 1000}, Extent{Time: time.Second}, 500},
		{2, 1, 1, Arrivals{Shape: "constant", Rate: 10}, Extent{Count: 0}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var performed int64
			var seen [1000]atomic.Bool
			for i := range c.of {
				l := openLoad(c.workers, c.pipeline, c.arrivals, c.extent, func(_ context.Context, n uint64, errs []error) {
					for i := range errs {
						if seen[n+uint64(i)].Swap(true) {
							t.Errorf("%+v: operation %d performed twice", c, n)
						}
					}
					clear(errs)
				})
				l.share = Share{i, c.of}
				m := l.run(t.Context())
				performed += m.iterations
				if m.elapsed != l.end || m.late != 0 {
					t.Errorf("%+v: %s, want %s; %d late", c, m.elapsed, l.end, m.late)
				}
			}
			if performed != c.want {
				t.Errorf("%+v: %d performed", c, performed)
			}
		})
	}
}

// A pipeline's commands are due together, when the first is.
func TestPipelineIsDueTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := openLoad(2, 10, constant1000, Extent{Time: time.Second}, func(_ context.Context, n uint64, errs []error) {
			if at := time.Since(start); at != time.Duration(n)*time.Millisecond {
				t.Errorf("operations %d to %d sent after %s", n, n+9, at)
			}
			time.Sleep(3 * time.Millisecond)
			clear(errs)
		})
		if m := l.run(t.Context()); m.iterations != 1000 || m.min != 3e6 || m.max != 3e6 {
			t.Errorf("%d iterations, %d to %d ns", m.iterations, m.min, m.max)
		}
	})
}

// A rate that can't be held ends, and what could not begin in time is left.
func TestRateTooHigh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l := openLoad(1, 1, constant1000, Extent{Time: 500 * time.Millisecond}, sleepy(10*time.Millisecond))
		m := l.run(t.Context())
		if took := time.Since(begun); took < time.Second || took > 1010*time.Millisecond || m.iterations < 100 || m.iterations > 101 {
			t.Errorf("%d iterations in %s", m.iterations, took)
		}
		if m.queued < 95 || m.min != int64(10*time.Millisecond) || m.service.max != m.min {
			t.Errorf("%d queued, min %d, service %d to %d", m.queued, m.min, m.service.min, m.service.max)
		}
	})
}

// The caller's end stops workers that wait for a far due time.
func TestCancelOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		l := openLoad(5, 1, Arrivals{Shape: "constant", Rate: 0.01}, Extent{Count: 10}, fine)
		m := l.run(ctx)
		if took := time.Since(begun); took > 1100*time.Millisecond || m.iterations != 1 {
			t.Errorf("%d iterations, after %s", m.iterations, took)
		}
	})
}

// The kernel's timer wakes neither early nor never; how late depends on the machine.
func TestSleeper(t *testing.T) {
	s := newSleeper()
	defer s.close()
	if !s.precise {
		t.Error("timers are coarse here")
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Microsecond, 50 * time.Microsecond, time.Millisecond, 3 * time.Millisecond} {
		for range 20 {
			begun := time.Now()
			if s.sleep(d); time.Since(begun) < d {
				t.Errorf("slept %s in place of %s", time.Since(begun), d)
			}
		}
	}
}

// What an open loop adds to an operation, against BenchmarkLoop.
func BenchmarkOpenLoop(b *testing.B) {
	b.ReportAllocs()
	l := newLoad(50, 1, fine).with(Extent{Count: uint64(b.N)})
	l.sleeper = newSleeper
	l.open(Arrivals{Shape: "constant", Rate: maxRate}, Extent{Count: uint64(b.N)})
	l.run(context.Background())
}
