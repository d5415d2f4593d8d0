package bench

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// histogramMax bounds what a histogram tells apart; the longest latency is kept exactly beside it.
	histogramMax = int64(10 * time.Minute)
	// failuresInARow of the connection itself end a row.
	failuresInARow = 100
	// grace is what operations in flight get when the run is cut off, before their connections are closed.
	grace = 50 * time.Millisecond
	// shortest is the operation below which the clock is read once for several: reading it takes some 50 ns.
	shortest = time.Microsecond
	// batchTime is how long the operations between two readings of the clock then take together.
	batchTime = 10 * time.Microsecond
)

// A load is the timed loop of one row: workers that claim operations and perform them one after another.
type load struct {
	ops      []Op // one a worker
	pipeline int  // commands of one round trip
	batch    int  // operations between two readings of the clock; 1 unless they are shorter than the clock can tell
	limit    uint64
	deadline time.Duration // no operation begins after it
	timeout  time.Duration // nothing completed for so long ends the row
	abort    func()        // ends operations in flight
	progress func(done uint64, elapsed time.Duration)
}

// measured is what a load saw.
type measured struct {
	elapsed    time.Duration
	histogram  *hdrhistogram.Histogram
	min, max   int64
	sum        float64
	iterations int64
	misses     int64
	mismatches int64
	errors     map[string]int64
	samples    map[string]string
	lost       bool // ended early: failures in a row, or nothing completed
}

func (m *measured) failed() (n int64) {
	for _, c := range m.errors {
		n += c
	}
	return n
}

// worker is the state of one worker. The padding keeps two workers' counters out of one cache line.
type worker struct {
	measured
	completed atomic.Uint64
	inARow    int
	last      time.Duration // when its last operation ended
	_         [64]byte
}

// shared is what the workers of a load share.
type shared struct {
	next  atomic.Uint64 // the next operation to claim
	stop  atomic.Bool
	lost  atomic.Bool
	cut   atomic.Bool // by the caller's context
	quit  chan struct{}
	once  sync.Once
	start time.Time
}

func (s *shared) end() { s.once.Do(func() { s.stop.Store(true); close(s.quit) }) }

// run performs the load and returns once every worker has ended.
func (l *load) run(ctx context.Context) *measured {
	var (
		s       = &shared{quit: make(chan struct{})}
		workers = make([]*worker, len(l.ops))
		gate    = make(chan struct{})
		wait    sync.WaitGroup
		opCtx   = context.WithoutCancel(ctx) // an operation in flight is ended by abort, which works for every client
	)
	for i := range workers {
		w := &worker{measured: measured{histogram: hdrhistogram.New(1, histogramMax, 2), min: math.MaxInt64,
			errors: map[string]int64{}, samples: map[string]string{}}}
		workers[i] = w
		wait.Go(func() {
			<-gate
			l.work(opCtx, s, w, l.ops[i])
		})
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	s.start = time.Now()
	go func() {
		defer close(watched)
		l.watch(ctx, s, workers, ended)
	}()
	close(gate)
	wait.Wait()
	close(ended)
	<-watched
	return merge(workers, s.lost.Load())
}

// work is the timed path. It reads the clock once an operation, or once a batch of short ones.
func (l *load) work(ctx context.Context, s *shared, w *worker, op Op) {
	var (
		step  = uint64(l.pipeline * l.batch)
		errs  = make([]error, l.pipeline)
		fails = make([]error, 0, step)
		last  = time.Since(s.start)
	)
	for !s.stop.Load() {
		n := s.next.Add(step) - step
		if n >= l.limit {
			break
		}
		until := min(n+step, l.limit)
		fails = fails[:0]
		for n0 := n; n0 < until; n0 += uint64(l.pipeline) {
			e := errs[:min(uint64(l.pipeline), until-n0)]
			op(ctx, n0, e)
			for _, err := range e {
				if err != nil {
					fails = append(fails, err)
				}
			}
		}
		now := time.Since(s.start)
		took, count := int64(now-last), int64(until-n)
		w.last = now
		if len(fails) > 0 {
			count -= int64(l.fail(s, w, fails))
		} else {
			w.inARow = 0
		}
		if count > 0 {
			w.record(took/int64(l.batch), count)
		}
		if l.deadline > 0 && now >= l.deadline {
			break
		}
		last = now
		if w.inARow > 0 {
			s.pause(w.inARow, len(l.ops))
			last = time.Since(s.start)
		}
	}
}

// record counts count operations that took ns each.
func (w *worker) record(ns, count int64) {
	w.min, w.max = min(w.min, ns), max(w.max, ns)
	w.sum += float64(ns) * float64(count)
	w.iterations += count
	_ = w.histogram.RecordValues(min(max(ns, 1), histogramMax), count) // in range, so it can't fail
	w.completed.Store(uint64(w.iterations))
}

// fail counts the operations that did not end well and returns how many of them did not complete: a miss did.
func (l *load) fail(s *shared, w *worker, errs []error) (failed int) {
	for _, err := range errs {
		if err == ErrMiss {
			w.misses++
			w.inARow = 0
			continue
		}
		failed++
		kind := Kind(err)
		if s.cut.Load() && (kind == "reset" || kind == "other") {
			kind = "canceled"
		} else if s.lost.Load() && (kind == "reset" || kind == "other") {
			kind = "timeout"
		}
		if kind == "mismatch" {
			w.mismatches++
		}
		w.errors[kind]++
		if w.samples[kind] == "" {
			w.samples[kind] = err.Error()
		}
		if !lost(kind) {
			w.inARow = 0
		} else if w.inARow++; w.inARow == failuresInARow {
			s.lost.Store(true)
			s.end()
		}
	}
	return failed
}

// pause keeps a worker whose connection fails from spinning: 1 ms after the first failure, twice as long after each
// further one, at most 50 ms, or as long as leaves all workers together 1,000 attempts a second.
func (s *shared) pause(inARow, workers int) {
	longest := max(50*time.Millisecond, time.Duration(workers)*time.Millisecond)
	t := time.NewTimer(min(time.Millisecond<<min(inARow-1, 10), longest))
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.quit:
	}
}

// watch ends the load when ctx ends, when the deadline has passed or when nothing completes, and reports progress.
func (l *load) watch(ctx context.Context, s *shared, workers []*worker, ended <-chan struct{}) {
	tick := time.NewTicker(min(100*time.Millisecond, max(l.timeout/10, time.Millisecond)))
	defer tick.Stop()
	var (
		seen    uint64
		seenAt  time.Duration
		cutOff  = ctx.Done()
		aborted <-chan time.Time
	)
	for {
		select {
		case <-ended:
			return
		case <-cutOff:
			cutOff = nil
			s.cut.Store(true)
			s.end()
			aborted = time.After(grace)
		case <-aborted:
			aborted = nil
			l.abort()
		case <-tick.C:
			var done uint64
			for _, w := range workers {
				done += w.completed.Load()
			}
			now := time.Since(s.start)
			if done != seen {
				seen, seenAt = done, now
			}
			// The client's own timeout comes first, since its text says more.
			if now-seenAt > l.timeout+grace && !s.lost.Load() && !s.cut.Load() {
				s.lost.Store(true)
				s.end()
				aborted = time.After(grace) // what is answered meanwhile ends by itself
			}
			if l.deadline > 0 && now > l.deadline {
				s.end()
			}
			if l.progress != nil {
				l.progress(done, now)
			}
		}
	}
}

// merge adds up what the workers measured. The load ends when its last operation does.
func merge(workers []*worker, lost bool) *measured {
	sum := &workers[0].measured
	sum.lost = lost
	sum.elapsed = workers[0].last
	for _, w := range workers[1:] {
		sum.elapsed = max(sum.elapsed, w.last)
		sum.histogram.Merge(w.histogram)
		sum.min, sum.max = min(sum.min, w.min), max(sum.max, w.max)
		sum.sum += w.sum
		sum.iterations += w.iterations
		sum.misses += w.misses
		sum.mismatches += w.mismatches
		for kind, n := range w.errors {
			sum.errors[kind] += n
			if sum.samples[kind] == "" {
				sum.samples[kind] = w.samples[kind]
			}
		}
	}
	return sum
}
