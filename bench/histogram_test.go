package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Percentiles of ten million samples, outliers among them, are within 1% of those of the sorted samples; the extremes
// and the count are exact.
func TestPercentilesAreExact(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"log-normal": func() float64 { return math.Exp(r.NormFloat64()*0.7 + 11) },                    // 60 us
		"bimodal":    func() float64 { return []float64{1e6, 5e7}[r.IntN(2)] * (1 + r.Float64()/10) }, // a retransmission
		"short":      func() float64 { return 80 + 300*r.Float64() },
	} {
		n := 300_000
		if name == "log-normal" {
			n = 10_000_000
		}
		workers := []*worker{{measured: measured{distribution: newDistribution()}}, {measured: measured{distribution: newDistribution()}}}
		samples := make([]int64, n)
		var sum float64
		for i := range samples {
			v := int64(draw())
			switch i { // planted
			case n / 3:
				v = 1
			case n / 2:
				v = 123_456_789_012
			case n/2 + 1:
				v = int64(time.Hour) // beyond what a histogram tells apart
			}
			samples[i] = v
			sum += float64(v)
			workers[i%2].record(v, 1)
		}
		slices.Sort(samples)
		m := merge(workers, false)
		got := latency(&m.distribution)
		if *got.Min != 1 || *got.Max != int64(time.Hour) || m.iterations != int64(n) || math.Abs(float64(*got.Mean)-sum/float64(n)) > 1 {
			t.Errorf("%s: min %d, max %d, mean %d of %d", name, *got.Min, *got.Max, *got.Mean, m.iterations)
		}
		for _, p := range []struct {
			part float64
			got  *int64
		}{{0.5, got.P50}, {0.9, got.P90}, {0.95, got.P95}, {0.99, got.P99}, {0.999, got.P999}} {
			want := float64(samples[int(math.Ceil(p.part*float64(n)))-1])
			if off := math.Abs(float64(*p.got)-want) / want; off > 0.01 {
				t.Errorf("%s: p%g is %d, exactly %.0f: %.2f%% off", name, 100*p.part, *p.got, want, 100*off)
			}
		}
	}
}

// What is in the JSON is read by the library, adds up with others, and gives the row's own percentiles.
func TestHistogramsAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var whole *hdrhistogram.Histogram
		var n atomic.Int64
		sum := newDistribution()
		for range 3 {
			m := newLoad(2, 1, func(_ context.Context, _ uint64, errs []error) {
				time.Sleep(time.Duration(n.Add(1)) * time.Microsecond)
				clear(errs)
			}).with(Extent{Count: 500}).run(t.Context())
			sum.merge(&m.distribution)
			text, err := EncodeHistogram(m.histogram)
			if err != nil {
				t.Fatal(err)
			}
			h, err := DecodeHistogram(text)
			if err != nil {
				t.Fatal(err)
			}
			if h.TotalCount() != 500 || h.ValueAtPercentile(99) != *latency(&m.distribution).P99 {
				t.Errorf("%d values, p99 %d, want %d", h.TotalCount(), h.ValueAtPercentile(99), *latency(&m.distribution).P99)
			}
			if whole == nil {
				whole = h
			} else if lost := whole.Merge(h); lost != 0 {
				t.Errorf("%d values lost", lost)
			}
		}
		if got, want := whole.ValueAtPercentile(99), *latency(&sum).P99; whole.TotalCount() != 1500 || got != want {
			t.Errorf("%d values, p99 %d, want %d", whole.TotalCount(), got, want)
		}
	})
}
