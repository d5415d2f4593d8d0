package bench

import (
	"context"
	"iter"
	"math"
	"slices"
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
	// lateAfter is how long after it was due an operation of an open loop begins that counts as late: well above what it
	// takes to wake a worker.
	lateAfter = time.Millisecond
	// coarse is what Go's timers may be late by, and a bit: what is nearer than that is waited for more precisely.
	coarse = 2 * time.Millisecond
	// never is when a worker's operation is due that has none.
	never = math.MaxInt64
)

// A load is the timed loop of one row: workers that claim operations and perform them one after another. In a closed
// loop an operation is due when the worker's last one ended. In an open loop it is due when shape says so: the worker
// waits for that, or is late, and latency counts from then. A pipeline's commands are due together, when the first is.
type load struct {
	ops      []Op // one a worker
	pipeline int  // commands of one round trip
	batch    int  // operations between two readings of the clock; 1 unless they are shorter than the clock can tell
	limit    uint64
	share    Share
	shape    Shape          // nil: a closed loop
	end      time.Duration  // of an open loop, before which it does not return; operations may end later
	sleeper  func() sleeper // of one worker in an open loop
	deadline time.Duration  // no operation begins after it; 0: none
	timeout  time.Duration  // nothing completed for so long ends the row
	begin    func()         // called once all is ready, the last thing before the clock starts; may be nil
	abort    func()         // ends operations in flight
	progress func(done uint64, elapsed time.Duration)
}

// measured is what a load saw.
type measured struct {
	elapsed      time.Duration
	distribution               // of latency
	service      *distribution // of an open loop: time from when an operation was sent
	stall        time.Duration // the longest in which nothing completed, while something was due or in flight
	late         int64         // operations that began lateAfter or more after they were due,
	queued       int64         // those of them that had to wait for a worker
	imprecise    bool          // workers were woken by Go's timers

	misses     int64
	mismatches int64
	errors     map[string]int64
	samples    map[string]string
	lost       bool // ended early: failures in a row, or nothing completed
}

// A distribution is what is kept of the times that operations took, in nanoseconds.
type distribution struct {
	histogram  *hdrhistogram.Histogram
	min, max   int64
	sum        float64
	iterations int64
}

func newDistribution() distribution {
	// Two significant digits are buckets of less than 0.8% of their value, in 33 KiB.
	return distribution{histogram: hdrhistogram.New(1, histogramMax, 2), min: math.MaxInt64}
}

// record counts count operations that took ns each.
func (d *distribution) record(ns, count int64) {
	d.min, d.max = min(d.min, ns), max(d.max, ns)
	d.sum += float64(ns) * float64(count)
	d.iterations += count
	_ = d.histogram.RecordValues(min(max(ns, 1), histogramMax), count) // in range, so it can't fail
}

func (d *distribution) merge(o *distribution) {
	d.histogram.Merge(o.histogram)
	d.min, d.max = min(d.min, o.min), max(d.max, o.max)
	d.sum += o.sum
	d.iterations += o.iterations
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
	due       atomic.Int64 // of an open loop: when the operation is or was due that it has; never: it has none
	inARow    int
	last      time.Duration // when its last operation ended
	_         [64]byte
}

// shared is what the workers of a load share.
type shared struct {
	next  atomic.Uint64 // the next batch to claim
	done  atomic.Int64  // when the latest operation completed
	stop  atomic.Bool
	lost  atomic.Bool
	cut   atomic.Bool // by the caller's context
	quit  chan struct{}
	once  sync.Once
	start time.Time

	claims sync.Mutex // of an open loop: it guards next, and this
	due    func() (time.Duration, bool)
	all    []*worker
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
	s.all = workers
	if l.shape != nil {
		next, stop := iter.Pull(l.share.due(l.shape, uint64(l.pipeline*l.batch)))
		defer stop()
		s.due = next
	}
	for i := range workers {
		w := &worker{measured: measured{distribution: newDistribution(), errors: map[string]int64{}, samples: map[string]string{}}}
		if w.due.Store(never); l.shape != nil {
			service := newDistribution()
			w.service = &service
		}
		workers[i] = w
		wait.Go(func() {
			wake := waiter{quit: s.quit}
			if l.shape != nil {
				wake.sleeper = l.sleeper()
				defer wake.close()
				w.imprecise = !wake.precise
			}
			<-gate
			l.work(opCtx, s, w, wake, l.ops[i])
		})
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	if l.begin != nil {
		l.begin()
	}
	s.start = time.Now()
	go func() {
		defer close(watched)
		l.watch(ctx, s, workers, ended)
	}()
	close(gate)
	wait.Wait()
	if l.shape != nil {
		(&waiter{quit: s.quit, sleeper: timers()}).until(s.start, l.end)
	}
	rested := min(time.Since(s.start), l.end) // 0 of a closed loop
	close(ended)
	<-watched
	m := merge(workers, s.lost.Load())
	m.elapsed = max(m.elapsed, rested)
	return m
}

// claim takes the next batch of operations: n is the first.
func (l *load) claim(s *shared, step uint64) (n uint64, due time.Duration, ok bool) {
	if l.shape == nil {
		n = l.share.batch(s.next.Add(1)-1) * step
		return n, 0, n < l.limit
	}
	s.claims.Lock()
	defer s.claims.Unlock()
	n = l.share.batch(s.next.Load()) * step
	if n >= l.limit {
		return n, 0, false
	}
	s.next.Add(1)
	due, ok = s.due()
	return n, due, ok
}

// work is the timed path. A closed loop reads the clock once an operation, or once a batch of short ones; an open loop
// once more where it had to wait.
func (l *load) work(ctx context.Context, s *shared, w *worker, wake waiter, op Op) {
	var (
		step  = uint64(l.pipeline * l.batch)
		errs  = make([]error, l.pipeline)
		fails = make([]error, 0, step)
		last  = time.Since(s.start)
	)
	for !s.stop.Load() {
		n, due, ok := l.claim(s, step)
		if !ok {
			break
		}
		until := min(n+step, l.limit)
		if l.shape != nil {
			w.due.Store(int64(due))
			waits := last < due
			if waits {
				if last, ok = wake.until(s.start, due); !ok {
					break
				}
			}
			if last-due >= lateAfter {
				w.late += int64(until - n)
				if !waits {
					w.queued += int64(until - n)
				}
			}
		} else {
			due = last
		}
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
		count := int64(until - n)
		w.last = now
		if len(fails) > 0 {
			count -= int64(l.fail(s, w, fails))
		} else {
			w.inARow = 0
		}
		s.ended(w, now, count > 0)
		if count > 0 {
			w.record(int64(now-due)/int64(l.batch), count)
			if w.service != nil {
				w.service.record(int64(now-last), count)
			}
			w.completed.Store(uint64(w.iterations))
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
	w.due.Store(never)
}

// ended keeps the longest time without a completed operation, as an operation of w has ended.
func (s *shared) ended(w *worker, now time.Duration, completed bool) {
	before := time.Duration(s.done.Load())
	for completed && before < now && !s.done.CompareAndSwap(int64(before), int64(now)) {
		before = time.Duration(s.done.Load())
	}
	if now-before > w.stall {
		from := before
		if s.due != nil {
			// Nothing was amiss before the first of those in flight was due.
			due := w.due.Load()
			for _, other := range s.all {
				due = min(due, other.due.Load())
			}
			from = max(before, time.Duration(due))
		}
		w.stall = max(w.stall, now-from)
	}
	if completed && s.due != nil {
		w.due.Store(never)
	}
}

// A waiter wakes one worker when its operation is due.
type waiter struct {
	sleeper
	timer *time.Timer
	quit  <-chan struct{}
}

// until returns the time once it is due, or false once the load has ended.
func (w *waiter) until(start time.Time, due time.Duration) (now time.Duration, ok bool) {
	for now = time.Since(start); now < due; now = time.Since(start) {
		left := due - now
		if left <= 2*coarse {
			w.sleep(left)
			select {
			case <-w.quit:
				return now, false
			default:
			}
			continue
		}
		// A long wait ends with the load.
		if w.timer == nil {
			w.timer = time.NewTimer(left - coarse)
		} else {
			w.timer.Reset(left - coarse)
		}
		select {
		case <-w.timer.C:
		case <-w.quit:
			w.timer.Stop()
			return now, false
		}
	}
	return now, true
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
			if done != seen || l.shape != nil && !pending(workers, now) {
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

// pending tells whether a worker has an operation that is due.
func pending(workers []*worker, now time.Duration) bool {
	return slices.ContainsFunc(workers, func(w *worker) bool { return w.due.Load() <= int64(now) })
}

// merge adds up what the workers measured. The load ends when its last operation does.
func merge(workers []*worker, lost bool) *measured {
	sum := &workers[0].measured
	sum.lost = lost
	sum.elapsed = workers[0].last
	for _, w := range workers[1:] {
		sum.elapsed = max(sum.elapsed, w.last)
		sum.merge(&w.distribution)
		if sum.service != nil {
			sum.service.merge(w.service)
		}
		sum.stall = max(sum.stall, w.stall)
		sum.late += w.late
		sum.queued += w.queued
		sum.imprecise = sum.imprecise || w.imprecise
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
