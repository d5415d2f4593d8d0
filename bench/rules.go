package bench

import (
	"fmt"
	"time"
)

// An observed row is what the rules look at.
type observed struct {
	*Result
	*measured
	Arrivals
	due     uint64        // operations of an open loop that were due
	end     time.Duration // of the time in which they were
	batch   int           // operations between two readings of the clock
	clock   time.Duration // what reading it costs, or the step in which it counts: the longer
	cores   float64       // that this process may use; 0 is unknown
	pauses  time.Duration // of the garbage collector
	workers int
}

// A rule finds out why a row's figures may not mean what they seem to mean.
type rule struct {
	name string
	of   func(o *observed) string // the warning, or ""
}

// rules are in the order in which their warnings stand in a row. What holds for a whole run, as that no real store was
// measured, is a warning of the report.
var rules = []rule{
	{"client-cpu", ruleClientCPU},
	{"throttled", ruleThrottled},
	{"gc-pauses", rulePauses},
	{"coarse-clock", ruleClock},
	{"misses", ruleMisses},
	{"pool", rulePool},
	{"rate-not-held", ruleRate},
	{"concurrency-reached", ruleQueued},
	{"late", ruleLate},
	{"coarse-timers", ruleTimers},
}

// settled is how long a row must be for what it cost this process to mean something: some systems count CPU in steps of 10 ms, and one
// pause of the garbage collector is much of a short row.
const settled = 500 * time.Millisecond

func ruleClientCPU(o *observed) string {
	cpu, ok := figure(o.ClientCPU)
	if o.cores <= 0 || !ok || o.elapsed < settled || cpu <= 80*o.cores {
		return ""
	}
	return fmt.Sprintf("the client used %.0f%% of the %.0f%% CPU that it may use: the figures are this machine's as much as the store's", cpu, 100*o.cores)
}

func ruleThrottled(o *observed) string {
	if o.ThrottledNS == nil || *o.ThrottledNS <= 0 {
		return ""
	}
	return fmt.Sprintf("throttled: the CPU quota stopped this process for %s while the row ran", FormatDuration(float64(*o.ThrottledNS)))
}

func rulePauses(o *observed) string {
	if o.elapsed < settled || float64(o.pauses) <= 0.01*float64(o.elapsed) {
		return ""
	}
	return fmt.Sprintf("the garbage collector stopped the client for %s, %.1f%% of the time", FormatDuration(float64(o.pauses)), 100*float64(o.pauses)/float64(o.elapsed))
}

func ruleClock(o *observed) string {
	if o.iterations == 0 {
		return ""
	}
	// A closed loop reads the clock once a round trip, an open one before it too.
	cost, took := float64(o.clock), o.sum/float64(o.iterations)*float64(max(o.batch, 1))
	if o.service != nil {
		cost, took = 2*cost, o.service.sum/float64(o.iterations)
	}
	if took <= 0 || cost <= 0.01*took {
		return ""
	}
	return fmt.Sprintf("the clock is coarse for this operation: timing takes %s, %.1f%% of %s", FormatDuration(cost), 100*cost/took, FormatDuration(took))
}

func ruleMisses(o *observed) string {
	if o.iterations == 0 || float64(o.misses) <= 0.01*float64(o.iterations) {
		return ""
	}
	return fmt.Sprintf("%.1f%% of the operations missed", 100*float64(o.misses)/float64(o.iterations))
}

func rulePool(o *observed) string {
	size, ok := o.Settings["pool_size"].(int)
	if _, shared := o.Settings["multiplexing"]; !ok || shared || size <= 0 || o.workers <= size {
		return ""
	}
	return fmt.Sprintf("concurrency %d is above the pool of %d connections: operations wait for one", o.workers, size)
}

func ruleRate(o *observed) string {
	if !o.Open() || o.end <= 0 || o.due == 0 {
		return ""
	}
	asked := float64(o.due) / o.end.Seconds()
	attempts := o.iterations + o.failed()
	reached := float64(attempts) / max(o.elapsed, o.end).Seconds()
	if reached >= 0.99*asked {
		return ""
	}
	text := fmt.Sprintf("the rate was not held: %s/s in place of %s/s", FormatFigure(reached), FormatFigure(asked))
	if left := int64(o.due) - attempts; left > 0 {
		text += fmt.Sprintf(", and %s operations that were due never began", FormatCount(left))
	}
	return text
}

func ruleQueued(o *observed) string {
	if o.queued == 0 {
		return ""
	}
	return fmt.Sprintf("concurrency was reached: %s operations were due while all %d workers were busy, and waited for one", FormatCount(o.queued), o.workers)
}

func ruleLate(o *observed) string {
	attempts := o.iterations + o.failed()
	if attempts == 0 || float64(o.late) <= 0.01*float64(attempts) {
		return ""
	}
	return fmt.Sprintf("%.1f%% of the operations began %s or more after they were due", 100*float64(o.late)/float64(attempts), lateAfter)
}

func ruleTimers(o *observed) string {
	if !o.imprecise {
		return ""
	}
	return "operations were woken by coarse timers, up to 1 ms after they were due: it is in latency_ns, not in service_ns"
}

// clockCost is what one reading of the clock costs, or the step in which it counts where that is longer.
func clockCost(now func() time.Duration) time.Duration {
	const readings = 1000
	cost, step := time.Duration(1<<62), time.Duration(1<<62)
	for range 5 { // the least of a few: other processes only add to it
		begun := now()
		last := begun
		for n := 0; n < readings || last == begun; n++ { // a coarse clock stands still for longer
			at := now()
			if at > last {
				step = min(step, at-last)
			}
			last = at
		}
		cost = min(cost, (last-begun)/readings)
	}
	return max(cost, step)
}
