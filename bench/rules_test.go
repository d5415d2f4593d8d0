package bench

import (
	"strings"
	"testing"
	"time"
)

// fineRow is a row of which no rule says anything: 1,000 operations of 1 ms.
func fineRow(edit func(o *observed)) *observed {
	d := newDistribution()
	for range 1000 {
		d.record(1e6, 1)
	}
	o := &observed{Result: sampleResult("get", "redigo", 1000, 1e6), measured: &measured{elapsed: time.Second, distribution: d}, due: 1000,
		end: time.Second, batch: 1, clock: 50, cores: 2, pauses: time.Millisecond, workers: 1}
	if edit != nil {
		edit(o)
	}
	return o
}

func TestRules(t *testing.T) {
	open := func(o *observed) {
		o.Arrivals = Arrivals{Shape: "constant", Rate: 1000}
		o.service = &o.distribution
	}
	provoked := map[string]bool{}
	for _, c := range []struct {
		rule, want string // what the warning says; "": nothing
		edit       func(o *observed)
	}{
		{"", "", nil},
		{"", "", open},
		{"client-cpu", "170% of the 200% CPU", func(o *observed) { o.ClientCPU = NewFigure(170) }},
		{"client-cpu", "45% of the 50% CPU", func(o *observed) { o.ClientCPU, o.cores = NewFigure(45), 0.5 }},
		{"client-cpu", "", func(o *observed) { o.ClientCPU = NewFigure(160) }},
		{"client-cpu", "", func(o *observed) { o.ClientCPU, o.elapsed = NewFigure(190), 20*time.Millisecond }},
		{"client-cpu", "", func(o *observed) { o.ClientCPU, o.cores = NewFigure(190), 0 }},
		{"throttled", "for 20.0 ms", func(o *observed) { o.ThrottledNS = ptr(int64(20e6)) }},
		{"throttled", "", func(o *observed) { o.ThrottledNS = nil }},
		{"gc-pauses", "1.5% of the time", func(o *observed) { o.pauses = 15 * time.Millisecond }},
		{"gc-pauses", "", func(o *observed) { o.pauses = 10 * time.Millisecond }},
		{"coarse-clock", "20.0 us, 2.0% of 1.00 ms", func(o *observed) { o.clock = 20 * time.Microsecond }},
		{"coarse-clock", "", func(o *observed) { o.clock = 9 * time.Microsecond }},
		{"coarse-clock", "", func(o *observed) { o.clock, o.batch = 20*time.Microsecond, 10 }},
		{"coarse-clock", "18.0 us, 1.8%", func(o *observed) { open(o); o.clock = 9 * time.Microsecond }},
		{"misses", "1.1% of the operations missed", func(o *observed) { o.misses = 11 }},
		{"misses", "", func(o *observed) { o.misses = 10 }},
		{"pool", "concurrency 5 is above the pool of 4", func(o *observed) { o.workers, o.Settings = 5, map[string]any{"pool_size": 4} }},
		{"pool", "", func(o *observed) { o.workers, o.Settings = 4, map[string]any{"pool_size": 4} }},
		{"pool", "", func(o *observed) {
			o.workers, o.Settings = 50, map[string]any{"pool_size": 4, "multiplexing": "operations share connections"}
		}},
		{"rate-not-held", "500/s in place of 1,000/s", func(o *observed) { open(o); o.elapsed = 2 * time.Second }},
		{"rate-not-held", "and 1,000 operations that were due never began", func(o *observed) { open(o); o.due = 2000 }},
		{"rate-not-held", "", func(o *observed) { open(o); o.elapsed = 1009 * time.Millisecond }},
		{"rate-not-held", "", func(o *observed) { o.elapsed = 2 * time.Second }},
		{"concurrency-reached", "3 operations were due while all 4 workers were busy", func(o *observed) { open(o); o.queued, o.workers = 3, 4; o.Settings = nil }},
		{"late", "1.1% of the operations began 1ms or more", func(o *observed) { open(o); o.late = 11 }},
		{"late", "", func(o *observed) { open(o); o.late = 10 }},
		{"coarse-timers", "coarse timers", func(o *observed) { open(o); o.imprecise = true }},
	} {
		provoked[c.rule] = provoked[c.rule] || c.want != ""
		o := fineRow(c.edit)
		for _, r := range rules {
			got, want := r.of(o), ""
			if r.name == c.rule {
				want = c.want
			}
			if (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s, for %q: %q, want %q", r.name, c.rule, got, want)
			}
		}
	}
	for _, r := range rules {
		if !provoked[r.name] {
			t.Errorf("no test provokes %s", r.name)
		}
	}
}

// A row of nothing provokes nothing, and divides by nothing.
func TestRulesOfNothing(t *testing.T) {
	o := &observed{Result: &Result{}, measured: &measured{distribution: newDistribution()}, Arrivals: Arrivals{Shape: "constant", Rate: 1}}
	for _, r := range rules {
		if got := r.of(o); got != "" {
			t.Errorf("%s: %q", r.name, got)
		}
	}
}

func TestClockCost(t *testing.T) {
	for _, c := range []struct{ cost, step, want time.Duration }{
		{50, 1, 50}, {50, time.Microsecond, time.Microsecond}, {50, time.Millisecond, time.Millisecond},
	} {
		var at time.Duration
		got := clockCost(func() time.Duration { at += c.cost; return at / c.step * c.step })
		if got != c.want {
			t.Errorf("a clock that costs %s and counts in %s: %s", c.cost, c.step, got)
		}
	}
	begun := time.Now()
	if got := clockCost(func() time.Duration { return time.Since(begun) }); got <= 0 || got > 100*time.Microsecond {
		t.Errorf("this clock: %s", got)
	}
}
