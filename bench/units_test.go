package bench

import (
	"math"
	"slices"
	"testing"
)

func TestFormatDuration(t *testing.T) {
	for _, tt := range []struct {
		ns   float64
		want string
	}{
		{0, "0 ns"}, {0.5, "0.500 ns"}, {0.05, "0.0500 ns"}, {1, "1.00 ns"}, {57.1, "57.1 ns"}, {412, "412 ns"}, {999.4, "999 ns"},
		{999.6, "1.00 us"}, {57100, "57.1 us"}, {1081234, "1.08 ms"}, {999_600, "1.00 ms"}, {2.3e9, "2.30 s"},
		{61e9, "61.0 s"}, {4100e9, "4,100 s"}, {-1500, "-1.50 us"}, {math.NaN(), "-"}, {math.Inf(1), "-"},
		{math.MaxFloat64, ""}, {math.SmallestNonzeroFloat64, ""},
	} {
		if got := FormatDuration(tt.ns); got != tt.want && tt.want != "" {
			t.Errorf("FormatDuration(%v) = %q, want %q", tt.ns, got, tt.want)
		}
	}
}

func TestFormatDurations(t *testing.T) {
	for _, tt := range []struct {
		column []int64 // -1 for nil
		want   []string
	}{
		{[]int64{1010000, 1000000, 961000}, []string{"1.01 ms", "1.00 ms", "0.96 ms"}},
		{[]int64{-1, 57100}, []string{"-", "57.1 us"}},
		{[]int64{84000, 21300000}, []string{"0.084 ms", "21.300 ms"}},
		{[]int64{960000, 12100000}, []string{"0.96 ms", "12.10 ms"}},
		{[]int64{412, 2300000000}, []string{"0.000412 ms", "2,300 ms"}},
		{[]int64{57, 412}, []string{"57 ns", "412 ns"}},
		{[]int64{0, 412}, []string{"0 ns", "412 ns"}},
		{[]int64{0}, []string{"0 ns"}},
		{[]int64{-1}, []string{"-"}},
		{nil, []string{}},
	} {
		var column []*int64
		for _, n := range tt.column {
			if n < 0 {
				column = append(column, nil)
			} else {
				column = append(column, &n)
			}
		}
		if got := FormatDurations(column); !slices.Equal(got, tt.want) {
			t.Errorf("FormatDurations(%v) = %q, want %q", tt.column, got, tt.want)
		}
	}
}

func TestFormatNumbers(t *testing.T) {
	for got, want := range map[string]string{
		FormatCount(0): "0", FormatCount(999): "999", FormatCount(1035): "1,035", FormatCount(-1234567): "-1,234,567",
		FormatCount(math.MinInt64): "-9,223,372,036,854,775,808",
		FormatFigure(1026929.4):    "1,026,929", FormatFigure(57.123): "57.1", FormatFigure(99.96): "100", FormatFigure(0.5): "0.500",
		FormatFigure(math.NaN()): "-",
		FormatBytes(100):         "100 B", FormatBytes(1000): "1 KB", FormatBytes(1024): "1 KiB", FormatBytes(1500): "1,500 B",
		FormatBytes(8 << 20): "8 MiB",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for name, want := range map[string]string{"ns_per_op": "1.08 ms", "ops_per_sec": "924/s", "client_cpu_percent": "9.10%",
		"bytes_per_op": "312 B", "errors": "12", "allocs_per_op": "6"} {
		u, _ := UnitByName(name)
		v := map[string]float64{"ns_per_op": 1082788, "ops_per_sec": 923.5, "client_cpu_percent": 9.1, "bytes_per_op": 312,
			"errors": 12, "allocs_per_op": 6}[name]
		if got := u.Format(v); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	seen := map[string]bool{"": true}
	full := sampleResult("get", "redigo", 1000, 1000)
	full.Latency.P999 = full.Latency.Max
	full.Service, full.Late, full.LongestStall = &full.Latency, ptr(int64(0)), full.Latency.Max // of an open loop
	null := &Result{}
	nan := &Result{NSPerOp: ptr(Figure(math.NaN())), OpsPerSec: ptr(Figure(math.Inf(1)))}
	for _, u := range Units {
		if seen[u.Name] {
			t.Errorf("%q stands twice", u.Name)
		}
		seen[u.Name] = true
		if u.Better != "lower" && u.Better != "higher" {
			t.Errorf("%s: better %q", u.Name, u.Better)
		}
		if _, ok := u.Of(full); !ok {
			t.Errorf("%s: null where it was measured", u.Name)
		}
		for _, r := range []*Result{null, nan} {
			if v, ok := u.Of(r); !finite(v) || ok && v != 0 {
				t.Errorf("%s: %v", u.Name, v)
			}
		}
	}
	if u, ok := UnitByName("p99_9"); !ok || u.Name != "p99.9" {
		t.Errorf("p99_9 is %q", u.Name)
	}
	if _, ok := UnitByName(""); ok {
		t.Error("there is a metric without a name")
	}
}
