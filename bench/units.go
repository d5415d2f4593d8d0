package bench

import (
	"math"
	"strconv"
	"strings"
)

// UnitKind says how a metric's value is written for people.
type UnitKind int

const (
	DurationUnit UnitKind = iota // nanoseconds
	CountUnit
	RateUnit    // a second
	PercentUnit // 100 is one core
	BytesUnit
)

// A Unit is one metric of a result: what assertions, formats and charts know of it.
type Unit struct {
	Name   string // as in assertions and, flattened, in the JSON
	Alias  string // another name it answers to
	Better string // "lower" or "higher"
	Kind   UnitKind
	Bench  string // its unit in the Go benchmark format; "" where that leaves it out
	// Of returns the value in r, and false where it was not measured. It is never NaN or infinite.
	Of func(r *Result) (float64, bool)
}

// Units is the table of metrics.
var Units = []Unit{
	{"ns_per_op", "", "lower", DurationUnit, "ns/op", func(r *Result) (float64, bool) { return figure(r.NSPerOp) }},
	{"ops_per_sec", "", "higher", RateUnit, "ops/s", func(r *Result) (float64, bool) { return figure(r.OpsPerSec) }},
	{"min", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.Latency.Min) }},
	{"mean", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.Latency.Mean) }},
	{"stddev", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.Latency.Stddev) }},
	{"p50", "", "lower", DurationUnit, "p50-ns/op", func(r *Result) (float64, bool) { return integer(r.Latency.P50) }},
	{"p90", "", "lower", DurationUnit, "p90-ns/op", func(r *Result) (float64, bool) { return integer(r.Latency.P90) }},
	{"p95", "", "lower", DurationUnit, "p95-ns/op", func(r *Result) (float64, bool) { return integer(r.Latency.P95) }},
	{"p99", "", "lower", DurationUnit, "p99-ns/op", func(r *Result) (float64, bool) { return integer(r.Latency.P99) }},
	{"p99.9", "p99_9", "lower", DurationUnit, "p99.9-ns/op", func(r *Result) (float64, bool) { return integer(r.Latency.P999) }},
	{"max", "", "lower", DurationUnit, "max-ns/op", func(r *Result) (float64, bool) { return integer(r.Latency.Max) }},
	{"service_p50", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.serviceTimes().P50) }},
	{"service_p99", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.serviceTimes().P99) }},
	{"longest_stall_ns", "longest_stall", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.LongestStall) }},
	{"late", "", "lower", CountUnit, "", func(r *Result) (float64, bool) { return integer(r.Late) }},
	{"errors", "", "lower", CountUnit, "errors", func(r *Result) (float64, bool) { return float64(r.Errors), true }},
	{"misses", "", "lower", CountUnit, "misses", func(r *Result) (float64, bool) { return float64(r.Misses), true }},
	{"mismatches", "", "lower", CountUnit, "mismatches", func(r *Result) (float64, bool) { return float64(r.Mismatches), true }},
	{"connect_ns", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.ConnectNS) }},
	{"client_cpu_percent", "", "lower", PercentUnit, "", func(r *Result) (float64, bool) { return figure(r.ClientCPU) }},
	{"throttled_ns", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return integer(r.ThrottledNS) }},
	{"iterations", "", "higher", CountUnit, "", func(r *Result) (float64, bool) { return float64(r.Iterations), true }},
	{"elapsed_ns", "", "lower", DurationUnit, "", func(r *Result) (float64, bool) { return float64(r.ElapsedNS), true }},
	{"server_ns_per_call", "", "lower", DurationUnit, "server-ns/op", func(r *Result) (float64, bool) {
		if r.Server == nil {
			return 0, false
		}
		return figure(r.Server.NSPerCall)
	}},
	{"server_cpu_percent", "", "lower", PercentUnit, "", func(r *Result) (float64, bool) {
		if r.Server == nil {
			return 0, false
		}
		return figure(r.Server.CPUPercent)
	}},
	// Last, as go test prints them last.
	{"bytes_per_op", "", "lower", BytesUnit, "B/op", func(r *Result) (float64, bool) { return figure(r.BytesPerOp) }},
	{"allocs_per_op", "", "lower", CountUnit, "allocs/op", func(r *Result) (float64, bool) { return figure(r.AllocsPerOp) }},
}

// UnitByName returns the metric called name, which may be its alias.
func UnitByName(name string) (Unit, bool) {
	for _, u := range Units {
		if name != "" && (name == u.Name || name == u.Alias) {
			return u, true
		}
	}
	return Unit{}, false
}

// Format writes a value of u for people: "1.08 ms", "20,112/s", "9.10%", "312 B", "1,035".
func (u Unit) Format(v float64) string {
	switch u.Kind {
	case DurationUnit:
		return FormatDuration(v)
	case RateUnit:
		return FormatFigure(v) + "/s"
	case PercentUnit:
		return FormatFigure(v) + "%"
	case BytesUnit:
		return FormatFigure(v) + " B"
	default:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return FormatCount(int64(v))
		}
		return FormatFigure(v)
	}
}

func figure(f *Figure) (float64, bool) {
	if f == nil || !finite(float64(*f)) {
		return 0, false
	}
	return float64(*f), true
}

func integer(n *int64) (float64, bool) {
	if n == nil {
		return 0, false
	}
	return float64(*n), true
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// timeUnits are the units of a duration with their length in nanoseconds as a power of ten. Plain ASCII: "us".
var timeUnits = []struct {
	name string
	exp  int
}{{"ns", 0}, {"us", 3}, {"ms", 6}, {"s", 9}}

// FormatDuration writes nanoseconds with three significant digits: "412 ns", "57.1 us", "1.08 ms", "2.30 s".
// A value that is no number is "-".
func FormatDuration(ns float64) string {
	s, unit := duration(ns, 3)
	if unit == "" {
		return s
	}
	return thousands(s) + " " + unit
}

// duration returns nanoseconds with digits significant digits in the largest unit that keeps them at or above 1.
func duration(ns float64, digits int) (number, unit string) {
	if !finite(ns) {
		return "-", ""
	}
	// The unit is chosen after rounding, so that 999.9 ns is 1.00 us and not 1000 ns.
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(math.Abs(ns), 'e', digits-1, 64), 64)
	if err != nil {
		rounded = math.Abs(ns)
	}
	u := timeUnits[0]
	for _, t := range timeUnits[1:] {
		if rounded >= math.Pow10(t.exp) {
			u = t
		}
	}
	return significant(ns/math.Pow10(u.exp), digits), u.name
}

// FormatDurations writes a column: nanoseconds in one unit, with as many decimals in each cell, "-" for nil. The
// largest value has three significant digits and the smallest two at least. Where they are too far apart for that,
// every cell has three significant digits of its own, still in one unit.
func FormatDurations(column []*int64) []string {
	lo, hi := math.Inf(1), 0.0
	for _, n := range column {
		if n != nil && *n > 0 {
			lo, hi = min(lo, float64(*n)), max(hi, float64(*n))
		}
	}
	cells := make([]string, len(column))
	u, decimals := timeUnits[0], 0
	if hi > 0 {
		// Half a unit is still readable in it: 0.96 ms beside 1.01 ms.
		for _, t := range timeUnits[1:] {
			if math.Sqrt(lo*hi) >= 0.5*math.Pow10(t.exp) {
				u = t
			}
		}
		lo, hi = lo/math.Pow10(u.exp), hi/math.Pow10(u.exp)
		decimals = max(decimalsFor(hi, 3), decimalsFor(lo, 2))
		if u.exp == 0 && lo >= 1 {
			decimals = 0 // these are whole nanoseconds
		} else if decimals > decimalsFor(hi, 3)+2 {
			decimals = -1
		}
	}
	for i, n := range column {
		switch {
		case n == nil:
			cells[i] = "-"
		case *n == 0:
			cells[i] = "0 " + u.name
		case decimals < 0:
			cells[i] = thousands(significant(float64(*n)/math.Pow10(u.exp), 3)) + " " + u.name
		default:
			cells[i] = thousands(strconv.FormatFloat(float64(*n)/math.Pow10(u.exp), 'f', decimals, 64)) + " " + u.name
		}
	}
	return cells
}

// FormatFigure writes v as a whole number with thousands separators from 100 on, and with three significant digits
// below. A value that is no number is "-".
func FormatFigure(v float64) string {
	if !finite(v) {
		return "-"
	}
	return thousands(significant(v, 3))
}

// FormatCount writes n with thousands separators: "1,035".
func FormatCount(n int64) string { return thousands(strconv.FormatInt(n, 10)) }

// FormatBytes writes a size as it would be asked for, exactly: "100 B", "1 KB" (1000), "1 KiB" (1024).
func FormatBytes(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}} {
		if n >= u.size && n%u.size == 0 {
			return FormatCount(n/u.size) + " " + u.name
		}
	}
	return FormatCount(n) + " B"
}

// significant writes v with digits significant digits, without an exponent; whole digits are never dropped.
func significant(v float64, digits int) string {
	return strconv.FormatFloat(v, 'f', decimalsFor(v, digits), 64)
}

// decimalsFor returns the decimals that digits significant digits of v need, at least 0.
func decimalsFor(v float64, digits int) int {
	if v == 0 {
		return 0
	}
	// FormatFloat has done the rounding that may carry into another digit.
	s := strconv.FormatFloat(v, 'e', digits-1, 64)
	exp, err := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if err != nil {
		return 0
	}
	return max(0, digits-1-exp)
}

// thousands puts separators into the whole part of a decimal number.
func thousands(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	whole, fraction, found := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if found {
		whole += "." + fraction
	}
	return sign + whole
}
