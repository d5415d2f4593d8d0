package chart

import (
	"math"
	"testing"
)

func TestScale(t *testing.T) {
	for _, tt := range []struct {
		name   string
		axis   axis
		values []float64
		label  string
		ticks  []string
	}{
		{"linear from 0", axis{name: "latency", kind: duration}, []float64{.9e6, 1.4e6}, "latency, ms", []string{"0", "0.5", "1", "1.5"}},
		{"log where it has to be", axis{name: "latency", kind: duration}, []float64{1e6, 41e6}, "latency, ms (log axis)", []string{"1", "2", "5", "10", "20"}},
		{"log where asked for", axis{name: "latency", kind: duration, log: true}, []float64{.8e6, 2.2e6}, "latency, ms (log axis)", []string{"1", "1.5", "2"}},
		{"all equal", axis{name: "latency", kind: duration, log: true}, []float64{500, 500}, "latency, ns (log axis)", []string{"350", "400", "500", "600", "700"}},
		{"many decades", axis{name: "latency", kind: duration, log: true}, []float64{1, 1e12}, "latency, ms (log axis)", []string{"0.000001", "0.001", "1", "1,000", "1,000,000"}},
		{"rates", axis{name: "throughput", kind: rate}, []float64{900, 12000}, "throughput, operations/s", []string{"0", "5,000", "10,000", "15,000"}},
		{"nothing", axis{name: "n"}, nil, "n", []string{"0", "0.2", "0.4", "0.6", "0.8", "1", "1.2"}},
		{"no number", axis{name: "n"}, []float64{math.NaN(), math.Inf(1), 4}, "n", []string{"0", "1", "2", "3", "4", "5"}},
	} {
		s := newScale(tt.axis, tt.values, 5)
		var ticks []string
		for _, tick := range s.ticks {
			ticks = append(ticks, tick.label)
		}
		if s.name != tt.label || len(ticks) != len(tt.ticks) {
			t.Errorf("%s: %q %q, want %q %q", tt.name, s.name, ticks, tt.label, tt.ticks)
			continue
		}
		for i := range ticks {
			if ticks[i] != tt.ticks[i] {
				t.Errorf("%s: %q, want %q", tt.name, ticks, tt.ticks)
				break
			}
		}
		s.Domain = 1000
		for _, v := range tt.values {
			if at := s.Translate(v); at < 0 || at > 1000 {
				t.Errorf("%s: %g is at %d", tt.name, v, at)
			}
		}
	}
}

func TestSpan(t *testing.T) {
	for want, v := range map[string][2]float64{
		"0.95 to 1.21 ms": {.95e6, 1.21e6}, "412 to 980 ns": {412, 980}, "57.1 us to 41.0 ms": {57100, 41e6}, "1.00 to 2.30 s": {1e9, 2.3e9},
	} {
		if got := span(v[0], v[1]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
