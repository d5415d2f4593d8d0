package bench

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func newLoad(workers, pipeline int, op Op) *load {
	l := &load{pipeline: pipeline, batch: 1, timeout: time.Second, abort: func() {}, sleeper: timers}
	for range workers {
		l.ops = append(l.ops, op)
	}
	return l
}

func fine(_ context.Context, _ uint64, errs []error) { clear(errs) }

// Exactly the asked-for operations are performed, each once, whatever divides them.
func TestCountIsExact(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, c := range []struct{ workers, pipeline, batch, count int }{
		{1, 1, 1, 100}, {7, 1, 1, 100}, {1, 16, 1, 100}, {7, 16, 1, 100}, {100, 1, 1, 3}, {3, 1, 64, 1000}, {1, 100, 1, 7}, {4, 1, 1, 0},
	} {
		var mu sync.Mutex
		var seen []uint64
		l := newLoad(c.workers, c.pipeline, func(_ context.Context, n uint64, errs []error) {
			mu.Lock()
			defer mu.Unlock()
			for i := range errs {
				seen = append(seen, n+uint64(i))
			}
			clear(errs)
		})
		l.batch = c.batch
		m := l.with(Extent{Count: uint64(c.count)}).run(t.Context())
		slices.Sort(seen)
		if m.iterations != int64(c.count) || len(seen) != c.count || m.histogram.TotalCount() != int64(c.count) {
			t.Errorf("%+v: %d iterations, %d performed, %d in the histogram", c, m.iterations, len(seen), m.histogram.TotalCount())
		}
		for i, n := range seen {
			if n != uint64(i) {
				t.Errorf("%+v: operation %d performed in place of %d", c, n, i)
				break
			}
		}
	}
}

// Of a time and a number of operations, whichever ends first bounds a row.
func TestBothBounds(t *testing.T) {
	for _, c := range []struct {
		extent Extent
		want   int64
	}{
		{Extent{Time: time.Second, Count: 10}, 10}, {Extent{Time: 10 * time.Millisecond, Count: 1000}, 10}, {Extent{Count: 20}, 20}, {Extent{Time: 20 * time.Millisecond}, 20}, {Extent{}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLoad(1, 1, func(_ context.Context, _ uint64, errs []error) {
				time.Sleep(time.Millisecond)
				clear(errs)
			})
			if m := l.with(c.extent).run(t.Context()); m.iterations != c.want || m.elapsed != time.Duration(c.want)*time.Millisecond {
				t.Errorf("%s: %d iterations in %s", c.extent, m.iterations, m.elapsed)
			}
		})
	}
}

// In fake time every figure is exact.
func TestFiguresAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(4, 1, func(_ context.Context, n uint64, errs []error) {
			time.Sleep(time.Millisecond)
			if n%100 == 7 {
				time.Sleep(9 * time.Millisecond)
			}
			clear(errs)
		})
		m := l.with(Extent{Count: 1000}).run(t.Context())
		var r Result
		r.count(m)
		if r.Iterations != 1000 || *r.Latency.Min != 1e6 || *r.Latency.Max != 10e6 || *r.Latency.Mean != 1.09e6 {
			t.Errorf("iterations %d, min %d, max %d, mean %d", r.Iterations, *r.Latency.Min, *r.Latency.Max, *r.Latency.Mean)
		}
		if got := *r.Latency.P50; math.Abs(float64(got)-1e6) > 1e4 {
			t.Errorf("p50 %d", got)
		}
		if got := float64(*r.NSPerOp) * float64(r.Iterations); math.Abs(got-float64(r.ElapsedNS)) > 1 {
			t.Errorf("iterations x ns/op = %f, elapsed %d", got, r.ElapsedNS)
		}
	})
}

// The deadline ends the load with the operation that is in flight.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(1, 1, func(_ context.Context, _ uint64, errs []error) {
			time.Sleep(30 * time.Millisecond)
			clear(errs)
		})
		m := l.with(Extent{Time: 100 * time.Millisecond}).run(t.Context())
		if m.iterations != 4 || m.elapsed != 120*time.Millisecond || m.lost {
			t.Errorf("%d iterations in %s, lost %v", m.iterations, m.elapsed, m.lost)
		}
	})
}

// Failures are counted by kind, are in no latency, and their first text is kept.
func TestFailuresAreApart(t *testing.T) {
	oom := errors.New("OOM command not allowed when used memory > 'maxmemory'.")
	l := newLoad(2, 1, func(_ context.Context, n uint64, errs []error) {
		switch n % 4 {
		case 0:
			errs[0] = nil
		case 1:
			errs[0] = oom
		case 2:
			errs[0] = ErrMiss
		case 3:
			errs[0] = ErrMismatch
		}
	})
	m := l.with(Extent{Count: 400}).run(t.Context())
	if m.iterations != 200 || m.misses != 100 || m.mismatches != 100 || m.errors["oom"] != 100 || m.errors["mismatch"] != 100 {
		t.Errorf("%d iterations, %d misses, %d mismatches, %v", m.iterations, m.misses, m.mismatches, m.errors)
	}
	if m.histogram.TotalCount() != 200 || m.samples["oom"] != oom.Error() || m.lost {
		t.Errorf("%d in the histogram, %v, lost %v", m.histogram.TotalCount(), m.samples, m.lost)
	}
}

// Nothing completed: every figure is null.
func TestNothingCompleted(t *testing.T) {
	l := newLoad(1, 1, func(_ context.Context, _ uint64, errs []error) { errs[0] = errors.New("READONLY") })
	m := l.with(Extent{Count: 50}).run(t.Context())
	var r Result
	r.count(m)
	if r.NSPerOp != nil || r.OpsPerSec != nil || r.Latency != (Latency{}) || r.Errors != 50 {
		t.Errorf("%+v", r)
	}
}

// A connection that fails 100 times in a row ends the row, and does not spin meanwhile.
func TestDeadConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l := newLoad(1, 1, func(_ context.Context, _ uint64, errs []error) { errs[0] = syscall.ECONNREFUSED })
		l.timeout = time.Hour
		m := l.with(Extent{Time: time.Minute}).run(t.Context())
		took := time.Since(begun)
		if !m.lost || m.errors["refused"] != failuresInARow || took < 4*time.Second || took > 5*time.Second {
			t.Errorf("lost %v, %v, after %s", m.lost, m.errors, took)
		}
	})
}

// A connection that comes back goes on.
func TestConnectionThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(1, 1, func(_ context.Context, n uint64, errs []error) {
			time.Sleep(time.Millisecond)
			if errs[0] = nil; n >= 10 && n < 60 {
				errs[0] = syscall.ECONNRESET
			}
		})
		l.timeout = time.Minute
		m := l.with(Extent{Count: 100}).run(t.Context())
		if m.lost || m.iterations != 50 || m.errors["reset"] != 50 || m.max != 1e6 {
			t.Errorf("lost %v, %d iterations, %v, max %d", m.lost, m.iterations, m.errors, m.max)
		}
	})
}

// A store that falls silent ends the row after timeout, and what was in flight is a timeout.
func TestSilenceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		begun := time.Now()
		l := newLoad(3, 1, func(_ context.Context, n uint64, errs []error) {
			errs[0] = nil
			if n >= 30 {
				<-closed
				errs[0] = syscall.ECONNRESET
			}
		})
		l.timeout = 2 * time.Second
		l.abort = func() { close(closed) }
		m := l.with(Extent{Time: time.Minute}).run(t.Context())
		if took := time.Since(begun); !m.lost || m.iterations != 30 || m.errors["timeout"] != 3 || took > 3*time.Second {
			t.Errorf("lost %v, %d iterations, %v, after %s", m.lost, m.iterations, m.errors, took)
		}
	})
}

// The caller's end stops the load within 100 ms, although operations hang.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		closed := make(chan struct{})
		l := newLoad(2, 1, func(_ context.Context, _ uint64, errs []error) {
			<-closed
			errs[0] = syscall.ECONNRESET
		})
		l.timeout, l.abort = time.Hour, func() { close(closed) }
		var ended time.Time
		time.AfterFunc(time.Second, func() { ended = time.Now(); cancel() })
		m := l.with(Extent{Time: time.Minute}).run(ctx)
		if took := time.Since(ended); took > 100*time.Millisecond || m.errors["canceled"] != 2 || m.lost {
			t.Errorf("after %s, %v, lost %v", took, m.errors, m.lost)
		}
	})
}

// The loop itself allocates nothing an operation, so that memory does not depend on how many there are.
func TestMemoryIsConstant(t *testing.T) {
	allocated := func(count uint64) uint64 {
		l := newLoad(2, 1, fine)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		l.with(Extent{Count: count}).run(t.Context())
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := allocated(100_000), allocated(10_000_000)
	if many > few+64<<10 {
		t.Errorf("100 thousand operations allocate %d bytes, 10 million %d", few, many)
	}
}

// What the loop adds to an operation.
func BenchmarkLoop(b *testing.B) {
	for _, workers := range []int{1, 50} {
		b.Run("", func(b *testing.B) {
			l := newLoad(workers, 1, fine)
			b.ReportAllocs()
			l.with(Extent{Count: uint64(b.N)}).run(context.Background())
		})
	}
}
