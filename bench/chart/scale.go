package chart

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-analyze/charts/chartdraw"
)

// A scale is a range of the library over which values are spread by f, and what stands at its axis.
type scale struct {
	chartdraw.ContinuousRange
	f      func(float64) float64
	ticks  []tick
	marked []tick // have a line across the picture; nil: ticks do
	name   string
}

type tick struct {
	value float64
	label string
}

// What is beyond these is no measurement: in nanoseconds it is 30 years, in operations a second one in 20 minutes.
const (
	most  = 1e18
	least = 1e-3
)

func finite(v float64) bool { return math.Abs(v) <= most } // NaN is not

// positive says whether v can stand on a logarithmic axis.
func positive(v float64) bool { return v >= least && v <= most }

func linear(v float64) float64 { return v }

// Translate implements chartdraw.Range. What is outside stands at the edge, and so does what is no number.
func (s *scale) Translate(v float64) int {
	from, to := s.f(s.Min), s.f(s.Max)
	at := (s.f(min(max(v, s.Min), s.Max)) - from) / (to - from)
	if math.IsNaN(at) || math.IsInf(at, 0) {
		return 0
	}
	return int(math.Round(at * float64(s.Domain)))
}

// logAbove is how many times the smallest value the largest is where an axis becomes logarithmic.
const logAbove = 20

// An axis asks for a scale.
type axis struct {
	name   string // "latency"
	kind   kind
	log    bool // whatever the values are
	linear bool // likewise
	narrow bool // need not begin at 0
}

// A kind says in which units values are told.
type kind int

const (
	number   kind = iota
	duration      // nanoseconds
	rate          // a second

)

// newScale returns a scale that holds values; those that are no number, or not above 0 on a logarithmic axis, are
// passed over. ticks is about how many of them there is room for.
func newScale(a axis, values []float64, ticks int) *scale {
	lo, hi := math.Inf(1), math.Inf(-1)
	above := math.Inf(1)
	for _, v := range values {
		if finite(v) {
			lo, hi = min(lo, v), max(hi, v)
		}
		if positive(v) {
			above = min(above, v)
		}
	}
	if lo > hi {
		lo, hi = 0, 0
	}
	s := &scale{f: linear}
	if positive(hi) && !a.linear && (a.log || hi/above > logAbove) {
		s.f = math.Log10
		lo = above
		// A little air, so that no line lies on the edge.
		s.Min, s.Max = lo/1.1, hi*1.1
		if hi/lo < 2 {
			s.Min, s.Max = lo/1.5, hi*1.5
		}
		s.label(a, logTicks(s.Min, s.Max, ticks), math.Sqrt(lo*hi))
		s.name += " (log axis)"
		return s
	}
	if !a.narrow {
		lo = min(lo, 0)
	}
	if hi == lo {
		hi = lo + max(1, math.Abs(lo))
	}
	step := niceStep((hi - lo) / float64(ticks))
	s.Min, s.Max = math.Floor(lo/step)*step, math.Ceil(hi*1.02/step-1e-9)*step
	if a.narrow {
		s.Min, s.Max = lo, hi
	}
	var at []float64
	for i := math.Ceil(s.Min/step - 1e-9); i*step <= s.Max*(1+1e-9); i++ {
		at = append(at, i*step)
	}
	s.label(a, at, hi)
	return s
}

// label writes ticks in the one unit that suits typical.
func (s *scale) label(a axis, at []float64, typical float64) {
	u := unitOf(a.kind, typical)
	s.name = a.name
	if u.name != "" {
		s.name += ", " + u.name
	}
	for _, v := range at {
		s.ticks = append(s.ticks, tick{v, plain(v / u.size)})
	}
}

// niceStep returns the smallest of 1, 2, 5, 10, ... that is at least v, times a power of ten.
func niceStep(v float64) float64 {
	if !(v > 0) || math.IsInf(v, 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if n*unit >= v*(1-1e-9) {
			return n * unit
		}
	}
	return 10 * unit
}

// logTicks returns from 3 to about n ticks between lo and hi.
func logTicks(lo, hi float64, n int) []float64 {
	within := func(digits []float64, decades int) (at []float64) {
		for exp := int(math.Floor(math.Log10(lo))); exp <= int(math.Ceil(math.Log10(hi))); exp++ {
			if exp%decades != 0 {
				continue
			}
			for _, d := range digits {
				if v := d * math.Pow10(exp); v >= lo*(1-1e-9) && v <= hi*(1+1e-9) {
					at = append(at, v)
				}
			}
		}
		return at
	}
	for _, digits := range [][]float64{{1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9}, {1, 1.5, 2, 3, 4, 5, 7}, {1, 2, 5}, {1, 3}} {
		if at := within(digits, 1); len(at) <= n && len(at) >= 3 {
			return at
		}
	}
	for decades := 1; decades < 400; decades++ {
		if at := within([]float64{1}, decades); len(at) <= n && len(at) >= 2 {
			return at
		}
	}
	return []float64{lo, hi}
}

type unit struct {
	name string
	size float64
}

var kindUnits = map[kind][]unit{
	number:   {{"", 1}},
	duration: {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}},
	rate:     {{"operations/s", 1}},
}

func unitOf(k kind, v float64) unit {
	us := kindUnits[k]
	u := us[0]
	for _, larger := range us[1:] {
		if math.Abs(v) >= larger.size {
			u = larger
		}
	}
	return u
}

// plain writes a tick without digits that mean nothing.
func plain(v float64) string {
	if v == 0 {
		return "0" // and not "-0"
	}
	format := byte('f')
	if math.Abs(v) < 1e-6 {
		format = 'g' // rather than a row of zeros
	}
	return thousands(strconv.FormatFloat(roundTo(v, 3), format, -1, 64))
}

// roundTo rounds v to significant digits.
func roundTo(v float64, digits int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', digits-1, 64), 64)
	if err != nil { // beyond the largest number
		return v
	}
	return r
}

// Duration writes nanoseconds with three significant digits: "412 ns", "57.1 us", "1.08 ms".
func Duration(ns float64) string {
	if !finite(ns) {
		return "-"
	}
	u := unitOf(duration, roundTo(ns, 3))
	return significant(ns/u.size) + " " + u.name
}

// Rate writes a number a second: "20,112/s".
func Rate(v float64) string {
	if !finite(v) {
		return "-"
	}
	return significant(v) + "/s"
}

// significant writes v with three significant digits; whole digits are never dropped.
func significant(v float64) string {
	if math.Abs(v) < 1e-6 {
		return "0"
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(roundTo(v, 3))))))
	return thousands(strconv.FormatFloat(v, 'f', decimals, 64))
}

// count writes a number with thousands separators.
func count(n int) string { return thousands(strconv.Itoa(n)) }

// span writes two durations in one unit: "0.95 to 1.21 ms".
func span(lo, hi float64) string {
	u := unitOf(duration, roundTo(hi, 3))
	text := significant(hi / u.size)
	decimals := 0
	if _, fraction, ok := strings.Cut(text, "."); ok {
		decimals = len(fraction)
	}
	low := strconv.FormatFloat(lo/u.size, 'f', decimals, 64)
	if lo/u.size < .1 { // too small for these
		return Duration(lo) + " to " + Duration(hi)
	}
	return thousands(low) + " to " + text + " " + u.name
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

// thin drops ticks whose labels would touch the one before, from is where a value is in px. The last one stays.
func (c *canvas) thin(ticks []tick, size float64, at func(float64) float64) []tick {
	var kept []tick
	overlap := func(a, b tick) bool {
		return at(b.value)-at(a.value) < (c.measure(a.label, size)+c.measure(b.label, size))/2+10
	}
	for _, t := range ticks {
		if len(kept) == 0 || !overlap(kept[len(kept)-1], t) {
			kept = append(kept, t)
		}
	}
	if last := len(ticks) - 1; last > 0 && len(kept) > 1 && kept[len(kept)-1] != ticks[last] {
		kept[len(kept)-1] = ticks[last]
		if n := len(kept); n > 2 && overlap(kept[n-2], kept[n-1]) {
			kept = slices.Delete(kept, n-2, n-1)
		}
	}
	return kept
}
