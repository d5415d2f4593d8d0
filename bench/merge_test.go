package bench

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// part is a report of one row whose latencies are ns.
func part(run string, started time.Time, elapsed time.Duration, ns ...int64) (*Report, *distribution) {
	d := newDistribution()
	for _, n := range ns {
		d.record(n, 1)
	}
	r := &Result{Name: "Get", Sample: 1, Warnings: []string{"w"}}
	r.count(&measured{elapsed: elapsed, distribution: d, errors: map[string]int64{"timeout": 1}, samples: map[string]string{"timeout": "slow"}, misses: 2})
	return &Report{Run: run, StartedAt: started, ElapsedNS: int64(elapsed), Results: []*Result{r}, Warnings: []string{"x"}}, &d
}

// What is merged is what one distribution of all would be.
func TestMerge(t *testing.T) {
	var (
		at    = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		rnd   = rand.New(rand.NewPCG(1, 2))
		all   = newDistribution()
		parts []*Report
	)
	for i := range 5 {
		var ns []int64
		for range 1000 * i { // the first has none
			ns = append(ns, int64(1000*(i+1))+rnd.Int64N(1_000_000))
		}
		p, d := part("r", at.Add(-time.Duration(i)*time.Second), time.Duration(i+1)*time.Second, ns...)
		parts = append(parts, p)
		all.merge(d)
	}
	m, err := Merge(parts)
	if err != nil {
		t.Fatal(err)
	}
	r, want := m.Results[0], latency(&all)
	if r.Iterations != 10_000 || r.Errors != 5 || r.ErrorKinds["timeout"] != 5 || r.Misses != 10 || r.ElapsedNS != int64(5*time.Second) || *r.OpsPerSec != 2000 || *r.NSPerOp != 500_000 {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct{ got, want *int64 }{{r.Latency.Min, want.Min}, {r.Latency.P50, want.P50}, {r.Latency.P90, want.P90}, {r.Latency.P99, want.P99},
		{r.Latency.P999, want.P999}, {r.Latency.Max, want.Max}, {r.Latency.Stddev, want.Stddev}} {
		if *c.got != *c.want {
			t.Errorf("%+v, want %+v", r.Latency, want)
			break
		}
	}
	if d := *r.Latency.Mean - *want.Mean; d < -1 || d > 1 { // the parts' are whole nanoseconds
		t.Errorf("mean %d, want %d", *r.Latency.Mean, *want.Mean)
	}
	if !m.StartedAt.Equal(at.Add(-4*time.Second)) || m.ElapsedNS != int64(5*time.Second) || !slices.Equal(m.Warnings, []string{"x"}) || !slices.Equal(r.Warnings, []string{"w"}) {
		t.Errorf("%+v", m)
	}
	other, _ := part("other", at, time.Second, 1)
	if _, err := Merge([]*Report{parts[0], other}); err == nil {
		t.Error("parts of two runs are merged")
	}
	if _, err := Merge(nil); err == nil {
		t.Error("nothing is merged")
	}
	more, _ := part("r", at, time.Second, 1)
	more.Results[0].Name = "Set"
	if m, err := Merge(append(parts, more)); err != nil || len(m.Results) != 2 || len(m.Warnings) != 3 {
		t.Errorf("%v: %+v", err, m)
	}
}

// The workers of all shares are those asked for, and each share has one.
func TestShareWorkers(t *testing.T) {
	for _, c := range []struct{ concurrency, of, sum int }{{20, 8, 20}, {8, 8, 8}, {3, 8, 8}, {1, 1, 1}, {1024, 7, 1024}} {
		sum := 0
		for i := range c.of {
			sum += Share{uint64(i), uint64(c.of)}.workers(c.concurrency)
		}
		if sum != c.sum {
			t.Errorf("%d workers over %d shares are %d", c.concurrency, c.of, sum)
		}
	}
}
