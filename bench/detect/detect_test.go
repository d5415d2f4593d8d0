package detect_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nsop/bench/detect"
)

const (
	week  = 2016 // probes, one every five minutes
	every = 5 * time.Minute
)

var monday = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

// noise makes a series of n probes around 1 ms: log-normal with a deviation of 10%, and 1% outliers of three times.
func noise(r *rand.Rand, n int) []detect.Point {
	points := make([]detect.Point, n)
	for i := range points {
		ns := 1e6 * math.Exp(0.1*r.NormFloat64())
		if r.Float64() < 0.01 {
			ns *= 3
		}
		points[i] = detect.Point{At: monday.Add(time.Duration(i) * every), Revision: "nsop-00007", P50: ns}
	}
	return points
}

// shift multiplies the latencies from the probe at on.
func shift(points []detect.Point, at int, ratio float64) []detect.Point {
	for i := at; i < len(points); i++ {
		points[i].P50 *= ratio
	}
	return points
}

// deploy names a revision from the probe at on.
func deploy(points []detect.Point, at int, revision string) []detect.Point {
	for i := at; i < len(points); i++ {
		points[i].Revision = revision
	}
	return points
}

// share is how many of n simulations, each with its own random source, are hits.
func share(n int, seed uint64, hit func(r *rand.Rand) bool) int {
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	hits := make([]int, workers)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				if hit(rand.New(rand.NewPCG(seed, uint64(i)))) {
					hits[w]++
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for _, h := range hits {
		total += h
	}
	return total
}

// simulations is how many weeks a test simulates, and from which seeds.
func simulations(weeks int) (n int, seeds []uint64) {
	switch {
	case os.Getenv("NSOP_SOAK") != "":
		return 3 * weeks, []uint64{1, 2, 3}
	case raceDetector:
		return weeks / 20, []uint64{1}
	}
	return weeks, []uint64{1}
}

// A series that only ever has one level, asked after each of its probes, gives an alarm in at most 1% of weeks: Changes
// goes through a series probe by probe, as TestAskedAfterEachProbe shows, so that it reports every alarm there would
// have been.
func TestQuietWeeks(t *testing.T) {
	n, seeds := simulations(1000)
	for _, seed := range seeds {
		alarms := share(n, seed, func(r *rand.Rand) bool { return len(detect.Changes("get", noise(r, week))) > 0 })
		t.Logf("seed %d: a false alarm in %d of %d quiet weeks", seed, alarms, n)
		if alarms*100 > n {
			t.Errorf("seed %d: a false alarm in %d of %d quiet weeks, at most 1%% wanted", seed, alarms, n)
		}
	}
}

// A shift of 20% in either direction after a quiet week is told within 12 probes in at least 95% of cases.
func TestShiftWithin12Probes(t *testing.T) {
	n, seeds := simulations(500)
	const after = 12
	for _, ratio := range []float64{1.2, 0.8} {
		for _, seed := range seeds {
			found := share(n, seed, func(r *rand.Rand) bool {
				at := week - r.IntN(step) // at any place between two looks at the reference
				return foundIn(detect.Changes("get", shift(noise(r, at+after), at, ratio)), ratio)
			})
			t.Logf("seed %d, x%.1f: found in %d of %d", seed, ratio, found, n)
			if found*100 < n*95 {
				t.Errorf("seed %d, x%.1f: found in %d of %d, at least 95%% wanted", seed, ratio, found, n)
			}
		}
	}
}

const step = 12

// foundIn tells whether the latest change is one in the direction of ratio.
func foundIn(changes []detect.Change, ratio float64) bool {
	return len(changes) > 0 && (changes[len(changes)-1].Ratio > 1) == (ratio > 1)
}

// The harder cases say what they find; the bounds are what a change for the worse would break.
func TestHarderCases(t *testing.T) {
	n, _ := simulations(100)
	n = max(n, 40) // of fewer one is too large a share
	day := func(at int) float64 { return 2 * math.Pi * float64(at) / 288 }
	quiet := func(edit func(r *rand.Rand, points []detect.Point)) func(*rand.Rand) bool {
		return func(r *rand.Rand) bool {
			points := noise(r, week)
			edit(r, points)
			return len(detect.Changes("get", points)) > 0
		}
	}
	shifted := func(quietProbes, after int, ratio float64) func(*rand.Rand) bool {
		return func(r *rand.Rand) bool {
			return foundIn(detect.Changes("get", shift(noise(r, quietProbes+after), quietProbes, ratio)), ratio)
		}
	}
	for _, c := range []struct {
		name            string
		hit             func(*rand.Rand) bool
		atLeast, atMost float64
	}{
		{"alarm in a week with a daily pattern of 5%", quiet(func(_ *rand.Rand, ps []detect.Point) {
			for i := range ps {
				ps[i].P50 *= 1 + 0.05*math.Sin(day(i))
			}
		}), 0, 0.1},
		{"alarm in a week with a daily pattern of 15%", quiet(func(_ *rand.Rand, ps []detect.Point) {
			for i := range ps {
				ps[i].P50 *= 1 + 0.15*math.Sin(day(i))
			}
		}), 0, 1},
		{"alarm in the first day and a half with a daily pattern of 10%", func(r *rand.Rand) bool {
			points, phase := noise(r, 432), r.IntN(288)
			for i := range points {
				points[i].P50 *= 1 + 0.1*math.Sin(day(i+phase))
			}
			return len(detect.Changes("get", points)) > 0
		}, 0, 0.1},
		{"alarm in a week whose probes correlate by 0.3", quiet(func(r *rand.Rand, ps []detect.Point) {
			e := 0.0
			for i := range ps {
				e = 0.3*e + 0.1*math.Sqrt(1-0.09)*r.NormFloat64()
				ps[i].P50 = 1e6 * math.Exp(e)
			}
		}), 0, 0.2},
		{"alarm in a week whose probes correlate by 0.7", quiet(func(r *rand.Rand, ps []detect.Point) {
			e := 0.0
			for i := range ps {
				e = 0.7*e + 0.1*math.Sqrt(1-0.49)*r.NormFloat64()
				ps[i].P50 = 1e6 * math.Exp(e)
			}
		}), 0, 0.5},
		{"alarm in a week of exponential tails", quiet(func(r *rand.Rand, ps []detect.Point) {
			for i := range ps {
				ps[i].P50 = 1e6 * (1 + 0.1*r.ExpFloat64())
			}
		}), 0, 0.2},
		{"alarm in a week of two levels 20% apart, by chance at each probe", quiet(func(r *rand.Rand, ps []detect.Point) {
			for i := range ps {
				ps[i].P50 *= 1 + 0.2*float64(r.IntN(2))
			}
		}), 0, 0.05},
		{"+20% within 12 after 36 hours", shifted(432, 12, 1.2), 0.8, 1},
		{"-20% within 12 after 36 hours", shifted(432, 12, 0.8), 0.8, 1},
		{"+20% within 24 after 36 hours", shifted(432, 24, 1.2), 0.9, 1},
		{"x2 within 7 after a week", shifted(week, 7, 2), 0.95, 1},
		{"x2 within 12 after 60 probes", shifted(60, 12, 2), 0.95, 1},
		{"+10% within 72 after a week", shifted(week, 72, 1.1), 0.95, 1},
	} {
		got := float64(share(n, 7, c.hit)) / float64(n)
		t.Logf("%-66s %5.1f%%", c.name, 100*got)
		if got < c.atLeast || got > c.atMost {
			t.Errorf("%s: %.3f, want %.2f to %.2f", c.name, got, c.atLeast, c.atMost)
		}
	}
}

func TestAskedAfterEachProbe(t *testing.T) {
	points := shift(noise(rand.New(rand.NewPCG(3, 3)), 900), 600, 1.3)
	all := detect.Changes("get", points)
	if len(all) != 1 {
		t.Fatalf("%d changes in all: %+v", len(all), all)
	}
	first := 0
	for n := range points {
		changes := detect.Changes("get", points[:n])
		switch {
		case len(changes) == 0 && first > 0:
			t.Fatalf("the change told after %d probes is not told any more after %d", first, n)
		case len(changes) == 0:
		case first == 0:
			first = n
			fallthrough
		default:
			if c := changes[0]; len(changes) > 1 || !c.At.Equal(all[0].At) || c.P != all[0].P || c.Before != all[0].Before {
				t.Fatalf("after %d probes %+v, in the end %+v", n, changes, all)
			}
		}
	}
	if first < 600 || first > 612 {
		t.Errorf("told after %d probes, the change is at 600", first)
	}
}

func TestSentence(t *testing.T) {
	quiet := func(n int) []detect.Point { return noise(rand.New(rand.NewPCG(5, 5)), n) }
	for _, c := range []struct {
		name   string
		points []detect.Point
		want   string // of the latest; "" for none
	}{
		{"a deploy", deploy(shift(quiet(1000), 800, 1.34), 800, "nsop-00012"), "p50 of get rose by 3% since revision nsop-00012, 2026-12-03 03:40, p < 0.001"},
		{"a deploy, without failed and cold probes", func() []detect.Point {
			ps := deploy(shift(quiet(1000), 800, 1.34), 800, "nsop-00012")
			for i := range ps {
				if i%7 == 3 {
					ps[i].Failed, ps[i].P50 = true, math.NaN()
				}
				if i%11 == 5 {
					ps[i].Cold, ps[i].P50 = true, 1e9
				}
			}
			return ps
		}(), "p50 of get rose by 3% since revision nsop-00012, 2026-12-03 03:40, p < 0.001"},
		{"a deploy that did nothing, a day before", deploy(shift(quiet(1000), 800, 0.5), 512, "nsop-00012"), "p50 of get fell by 50% since 2026-12-03 03:40, p < 0.001"},
		{"a gap of ten days in which it was deployed", func() []detect.Point {
			ps := deploy(shift(quiet(1000), 800, 1.34), 800, "nsop-00012")
			for i := 800; i < len(ps); i++ {
				ps[i].At = ps[i].At.Add(240 * time.Hour)
			}
			return ps
		}(), "p50 of get rose by 3% since revision nsop-00012, 2026-12-13 03:40, p < 0.001"},
		{"rolled back after two hours", shift(deploy(shift(quiet(1000), 800, 2), 800, "nsop-00012"), 824, 0.5), "p50 of get fell by 49% since 2026-12-03 05:40, p < 0.001"},
		{"twelve times", shift(quiet(1000), 800, 12), "p50 of get rose to 11.9 times what it was since 2026-12-03 03:40, p < 0.001"},
		{"quiet", quiet(1000), ""},
		{"nothing", nil, ""},
		{"few", shift(quiet(40), 28, 10), ""},
		{"all failed", func() []detect.Point {
			ps := quiet(500)
			for i := range ps {
				ps[i].Failed = true
			}
			return ps
		}(), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			change := detect.Latest("get", c.points)
			if change != nil {
				got = change.Sentence
				for _, v := range []float64{change.Before, change.After, change.Ratio, change.P} {
					if math.IsNaN(v) || math.IsInf(v, 0) {
						t.Errorf("%+v", change)
					}
				}
			}
			// The second digit of a percentage is noise.
			if strings.Contains(c.want, "3%") {
				got = strings.NewReplacer("30%", "3%", "31%", "3%", "32%", "3%", "33%", "3%", "34%", "3%", "35%", "3%", "36%", "3%", "37%", "3%").Replace(got)
			}
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// What a histogram with two digits makes of a steady store is a handful of values.
func TestSteadySeries(t *testing.T) {
	for name, at := range map[string]func(i int) float64{
		"one value":       func(int) float64 { return 1e6 },
		"two values":      func(i int) float64 { return 1e6 + 1e4*float64(i%2) },
		"a tenth a hair":  func(i int) float64 { return 1e6 + float64(i%10/9) },
		"the smallest":    func(int) float64 { return math.SmallestNonzeroFloat64 },
		"the largest":     func(int) float64 { return math.MaxFloat64 },
		"none":            func(int) float64 { return 0 },
		"below zero":      func(int) float64 { return -5 },
		"no number":       func(int) float64 { return math.NaN() },
		"without a bound": func(int) float64 { return math.Inf(1) },
	} {
		points := noise(rand.New(rand.NewPCG(9, 9)), 700)
		for i := range points {
			points[i].P50 = at(i)
		}
		if changes := detect.Changes("get", points); len(changes) > 0 {
			t.Errorf("%s: %+v", name, changes)
		}
	}
	steady := noise(rand.New(rand.NewPCG(9, 9)), 700)
	for i := range steady {
		steady[i].P50 = 1e6
	}
	c := detect.Latest("get", shift(steady, 600, 1.1))
	if c == nil || math.Abs(c.Ratio-1.1) > 1e-9 || !c.At.Equal(steady[600].At) {
		t.Errorf("a step of a series without noise: %+v", c)
	}
}

func TestSince(t *testing.T) {
	moves := 0
	last := detect.Since(monday)
	for h := range 52 * 7 * 24 {
		from := monday.Add(time.Duration(h) * time.Hour)
		since := detect.Since(from)
		if before := from.Sub(since); before < 7*24*time.Hour || before > 35*24*time.Hour {
			t.Fatalf("from %v on: since %v", from, since)
		}
		if !since.Equal(last) {
			moves, last = moves+1, since
		}
	}
	if moves != 13 {
		t.Errorf("it moves %d times in 52 weeks", moves)
	}
}

// Points out of order are put in order, and the caller's are left as they are.
func TestOrder(t *testing.T) {
	points := shift(noise(rand.New(rand.NewPCG(4, 4)), 900), 600, 1.5)
	want := detect.Changes("get", points)
	slices.Reverse(points)
	if got := detect.Changes("get", points); fmt.Sprint(got) != fmt.Sprint(want) || len(got) != 1 {
		t.Errorf("got %v, want %v", got, want)
	}
	if points[0].At.Before(points[1].At) {
		t.Error("the caller's points were put in another order")
	}
}

func BenchmarkWeek(b *testing.B) {
	points := noise(rand.New(rand.NewPCG(1, 1)), week)
	for b.Loop() {
		detect.Changes("get", points)
	}
}

func FuzzChanges(f *testing.F) {
	f.Add(uint64(1), 500, 300, 1.3, byte(7))
	f.Add(uint64(2), 200, 100, 0.0, byte(1))
	f.Add(uint64(3), 900, 100, 1e300, byte(2))
	f.Fuzz(func(t *testing.T, seed uint64, n, at int, ratio float64, failed byte) {
		n, at = min(max(n, 0), 1000), max(at, 0)
		points := shift(noise(rand.New(rand.NewPCG(seed, 0)), n), at, ratio)
		for i := range points {
			points[i].Failed = failed > 0 && i%int(failed) == 0
		}
		for _, c := range detect.Changes("get", points) {
			for _, v := range []float64{c.Before, c.After, c.Ratio, c.P} {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Errorf("%+v", c)
				}
			}
		}
	})
}
