package bench

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Shape yields the times from the start of a run at which operations are due, in order: the same times whenever it is
// asked, so that instances can share a run. A closed loop has none.
type Shape = iter.Seq[time.Duration]

// Constant has an operation due every 1/rate seconds, the first at once. Each time is computed from its number: a
// running sum would drift.
func Constant(rate float64) Shape {
	return func(yield func(time.Duration) bool) {
		for n := 0.0; yield(nanoseconds(n / rate)); n++ {
		}
	}
}

// Poisson has operations due independently of one another, rate a second on average: the gaps between them are
// exponentially distributed, -ln(U)/rate. U comes from a fixed seed, so that the pattern is the same in every run, and
// at twice the rate twice as fast.
func Poisson(rate float64) Shape {
	return func(yield func(time.Duration) bool) {
		sum := 0.0 // in gaps of average length
		for n := uint64(0); ; n++ {
			// 53 bits make every U in (0, 1] that a float64 tells apart.
			sum -= math.Log(float64(mix(n^poissonSeed)>>11+1) / (1 << 53))
			if !yield(nanoseconds(sum / rate)) {
				return
			}
		}
	}
}

const poissonSeed = 0x6e736f70 // any number does

// Ramp raises, or lowers, the rate evenly from from to to in the time over, and keeps it there: operation n is due at the
// t for which from*t + (to-from)*t*t/(2*over) is n. Where to is 0 nothing is due after over.
func Ramp(from, to float64, over time.Duration) Shape {
	seconds := over.Seconds()
	slope := (to - from) / seconds
	within := (from + to) / 2 * seconds // operations due in the time over
	return func(yield func(time.Duration) bool) {
		for n := 0.0; ; n++ {
			t := 0.0
			switch {
			case n >= within && to == 0:
				return
			case n >= within:
				t = seconds + (n-within)/to
			case n > 0:
				// The solution of the quadratic equation that loses no digits where slope is small.
				t = 2 * n / (from + math.Sqrt(from*from+2*slope*n))
			}
			if !yield(nanoseconds(t)) {
				return
			}
		}
	}
}

func nanoseconds(seconds float64) time.Duration {
	return time.Duration(min(seconds*1e9, math.MaxInt64/2))
}

// A Share is the part of a run that one of several instances performs: of its batches every Of-th, the first being
// Index. The zero Share is all of them.
type Share struct{ Index, Of uint64 }

// has tells whether key or element i of a row's data is the share's.
func (s Share) has(i uint64) bool { return s.Of <= 1 || i%s.Of == s.Index }

// workers are how many of a row's workers are the share's: at least one.
func (s Share) workers(concurrency int) int { return max(1, int(s.of(uint64(concurrency), 1))) }

// batch is the number in the whole run of the share's batch m.
func (s Share) batch(m uint64) uint64 { return m*max(s.Of, 1) + s.Index }

// of is how many of operations are the share's, in batches of step.
func (s Share) of(operations uint64, step int) (n uint64) {
	if s.Of <= 1 {
		return operations
	}
	batches := operations / uint64(step)
	if s.Index < batches%s.Of {
		n = 1
	}
	n = (n + batches/s.Of) * uint64(step)
	if batches%s.Of == s.Index { // the last batch is short
		n += operations % uint64(step)
	}
	return n
}

// due yields when the share's batches of step operations are due: each when the first of its operations is.
func (s Share) due(shape Shape, step uint64) Shape {
	return func(yield func(time.Duration) bool) {
		next, n := s.batch(0)*step, uint64(0)
		for t := range shape {
			if n == next {
				if !yield(t) {
					return
				}
				next += max(s.Of, 1) * step
			}
			n++
		}
	}
}

// Arrivals say how a row's operations come. The zero Arrivals are a closed loop.
type Arrivals struct {
	Shape string  // "" in a closed loop, else constant, poisson or ramp
	Rate  float64 // operations a second in all; 0 of a ramp
	From  float64 // of a ramp, as
	To    float64
}

var shapes = []string{"constant", "poisson", "ramp"}

// maxRate is far above what a store serves one instance.
const maxRate = 1_000_000

// Open tells whether operations are due at times of their own, whatever became of those before.
func (a Arrivals) Open() bool { return a.Shape != "" }

// String is the shape as it is asked for.
func (a Arrivals) String() string {
	if a.Shape == "ramp" {
		return "ramp:" + formatRate(a.From) + "-" + formatRate(a.To)
	}
	return a.Shape
}

func formatRate(rate float64) string { return strconv.FormatFloat(rate, 'f', -1, 64) }

// mean is how many operations are due a second on average.
func (a Arrivals) mean() float64 {
	if a.Shape == "ramp" {
		return (a.From + a.To) / 2
	}
	return a.Rate
}

// length is about how long a row of an open loop takes, 0 where a closed loop can't tell.
func (a Arrivals) length(e Extent) time.Duration {
	if e.Time == 0 && a.Open() {
		return nanoseconds(float64(e.Count) / a.mean())
	}
	return e.Time
}

// in returns when operations are due in a row of that length, how many are, and when it ends: with the time given, or
// when the operation after the last would be due.
func (a Arrivals) in(e Extent) (shape Shape, count uint64, end time.Duration) {
	switch a.Shape {
	case "constant":
		shape = Constant(a.Rate)
	case "poisson":
		shape = Poisson(a.Rate)
	case "ramp":
		over := e.Time
		if over == 0 {
			over = a.length(e)
		}
		shape = Ramp(a.From, a.To, over)
		end = over
	}
	if e.Time == 0 {
		for t := range shape {
			end = max(end, t)
			if count == e.Count {
				break
			}
			count++
		}
		return shape, e.Count, end
	}
	for t := range shape {
		if t >= e.Time {
			break
		}
		count++
	}
	return shape, count, e.Time
}

// ParseShape reads constant, poisson or ramp:FROM-TO, in operations a second.
func ParseShape(text string) (Arrivals, error) {
	name, limits, has := strings.Cut(text, ":")
	if has != (name == "ramp") || !slices.Contains(shapes, name) {
		return Arrivals{}, fmt.Errorf("no %q", text)
	}
	a := Arrivals{Shape: name}
	if !has {
		return a, nil
	}
	from, to, ok := strings.Cut(limits, "-")
	var err error
	if a.From, err = parseRate(from, 0); err == nil && ok {
		a.To, err = parseRate(to, 0)
	}
	if err != nil || !ok || a.From+a.To < minRate {
		return Arrivals{}, fmt.Errorf("%q is no ramp such as ramp:100-5000", text)
	}
	return a, nil
}

// minRate is one operation in 17 minutes.
const minRate = 0.001

// parseRate reads a plain decimal number: ParseFloat takes more than a person means by one.
func parseRate(text string, least float64) (float64, error) {
	if rate, err := strconv.ParseFloat(text, 64); err == nil && strings.Trim(text, "0123456789.") == "" && rate >= least && rate <= maxRate {
		return rate, nil
	}
	return 0, fmt.Errorf("%q is no rate from %s to %d operations a second", text, formatRate(minRate), maxRate)
}
