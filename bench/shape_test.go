package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"testing"
	"time"
)

func take(s Shape, n int) (times []time.Duration) {
	for t := range s {
		if len(times) == n {
			break
		}
		times = append(times, t)
	}
	return times
}

// Whatever the shape, the shares of any number of instances are together exactly the whole, in batches of any size.
func TestSharesAreTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		rate := math.Exp(r.Float64()*12) / 10
		var shape Shape
		switch r.IntN(3) {
		case 0:
			shape = Constant(rate)
		case 1:
			shape = Poisson(rate)
		case 2:
			shape = Ramp(rate, rate*5*r.Float64(), time.Second+time.Duration(r.Int64N(1e9)))
		}
		k, step := 1+r.IntN(9), 1+r.IntN(20)
		whole := take(shape, 2000)
		var batches []time.Duration // each due when the first of its operations is
		for i := 0; i < len(whole); i += step {
			batches = append(batches, whole[i])
		}
		together := make([]time.Duration, len(batches))
		for i := range k {
			share := Share{uint64(i), uint64(k)}
			m, count := uint64(0), uint64(0)
			for due := range share.due(shape, uint64(step)) {
				n := share.batch(m)
				if n >= uint64(len(batches)) {
					break
				}
				if together[n] != 0 {
					t.Fatalf("batch %d is in two of %d shares", n, k)
				}
				together[n] = due
				count += uint64(min(step, len(whole)-int(n)*step))
				m++
			}
			if got := share.of(uint64(len(whole)), step); got != count {
				t.Fatalf("share %d of %d has %d operations of %d in batches of %d, want %d", i, k, got, len(whole), step, count)
			}
		}
		if !slices.Equal(together, batches) {
			t.Fatalf("%d shares of batches of %d at %f/s are not the whole", k, step, rate)
		}
		if !slices.IsSorted(whole) || !slices.Equal(whole, take(shape, 2000)) {
			t.Fatalf("at %f/s: out of order, or not the same again", rate)
		}
	}
}

// After an hour an operation is due exactly when its number says.
func TestNoDrift(t *testing.T) {
	n := 0
	for due := range Constant(700) {
		if n == 700*3600 {
			if due != time.Hour {
				t.Errorf("operation %d is due after %s", n, due)
			}
			break
		}
		n++
	}
	if due := take(Constant(3), 4); !slices.Equal(due, []time.Duration{0, 333333333, 666666666, time.Second}) {
		t.Errorf("at 3/s: %d", due)
	}
}

// Gaps of a Poisson process are exponentially distributed: their mean and their standard deviation are one another's
// equal, and 1/e of them are longer than the mean.
func TestPoisson(t *testing.T) {
	const n, rate = 1_000_000, 1000.0
	due := take(Poisson(rate), n)
	var sum, squares, longer float64
	for i := 1; i < n; i++ {
		gap := (due[i] - due[i-1]).Seconds() * rate
		sum += gap
		squares += gap * gap
		if gap > 1 {
			longer++
		}
	}
	mean := sum / n
	// Five standard errors; the seed is fixed, so that chance has no part in it.
	for _, c := range []struct {
		name             string
		got, want, error float64
	}{
		{"mean", mean, 1, 1 / math.Sqrt(n)},
		{"standard deviation", math.Sqrt(squares/n - mean*mean), 1, math.Sqrt2 / math.Sqrt(n)},
		{"longer than the mean", longer / n, 1 / math.E, 0.5 / math.Sqrt(n)},
	} {
		if math.Abs(c.got-c.want) > 5*c.error {
			t.Errorf("%s %f, want %f", c.name, c.got, c.want)
		}
	}
	if fast := take(Poisson(2*rate), 1000); math.Abs(float64(fast[999])-float64(due[999])/2) > 1 {
		t.Errorf("at twice the rate operation 999 is due after %s, not half of %s", fast[999], due[999])
	}
}

func TestRamp(t *testing.T) {
	for _, c := range []struct{ from, to float64 }{{100, 1000}, {1000, 100}, {0, 1000}, {1000, 0}, {500, 500}, {500, 500.0001}} {
		due := take(Ramp(c.from, c.to, 10*time.Second), int(5*(c.from+c.to))+1000)
		for n, at := range due {
			x := min(at.Seconds(), 10)
			want := c.from*x + (c.to-c.from)*x*x/20 + max(0, at.Seconds()-10)*c.to // operations due by then
			if math.Abs(want-float64(n)) > 1e-3 {
				t.Fatalf("%v: operation %d is due after %s, when %f are", c, n, at, want)
			}
		}
		if c.to == 0 && len(due) != 5000 {
			t.Errorf("%v: %d operations", c, len(due))
		}
	}
}

func TestArrivalsIn(t *testing.T) {
	for _, c := range []struct {
		arrivals Arrivals
		extent   Extent
		count    uint64
		end      time.Duration
	}{
		{Arrivals{Shape: "constant", Rate: 1000}, Extent{Time: 10 * time.Second}, 10_000, 10 * time.Second},
		{Arrivals{Shape: "constant", Rate: 3}, Extent{Time: time.Second}, 3, time.Second},
		{Arrivals{Shape: "constant", Rate: 0.1}, Extent{Time: time.Second}, 1, time.Second},
		{Arrivals{Shape: "constant", Rate: 10}, Extent{Count: 25}, 25, 2500 * time.Millisecond},
		{Arrivals{Shape: "ramp", From: 0, To: 100}, Extent{Time: 2 * time.Second}, 100, 2 * time.Second},
		{Arrivals{Shape: "ramp", From: 100, To: 0}, Extent{Count: 100}, 100, 2 * time.Second},
	} {
		if _, count, end := c.arrivals.in(c.extent); count != c.count || end != c.end {
			t.Errorf("%s %s: %d in %s, want %d in %s", c.arrivals, c.extent, count, end, c.count, c.end)
		}
	}
	_, count, end := Arrivals{Shape: "poisson", Rate: 1000}.in(Extent{Time: 10 * time.Second})
	if math.Abs(float64(count)-10_000) > 500 || end != 10*time.Second {
		t.Errorf("poisson: %d in %s", count, end)
	}
}

func TestShapeParameters(t *testing.T) {
	limits := DefaultLimits("")
	for _, c := range []struct {
		query, wrong string // the parameter that is named, or ""
		want         []Arrivals
	}{
		{"", "", []Arrivals{{}}},
		{"rate=1000,2.5", "", []Arrivals{{Shape: "constant", Rate: 1000}, {Shape: "constant", Rate: 2.5}}},
		{"rate=5&shape=poisson", "", []Arrivals{{Shape: "poisson", Rate: 5}}},
		{"shape=ramp:100-5000", "", []Arrivals{{Shape: "ramp", From: 100, To: 5000}}},
		{"shape=ramp:0-1.5", "", []Arrivals{{Shape: "ramp", To: 1.5}}},
		{"shape=poisson", "shape", nil},
		{"shape=ramp:1-2&rate=5", "rate", nil},
		{"rate=0", "rate", nil}, {"rate=-1", "rate", nil}, {"rate=1e3", "rate", nil}, {"rate=inf", "rate", nil}, {"rate=nan", "rate", nil},
		{"rate=10000001", "rate", nil}, {"rate=", "rate", nil}, {"rate=5,5", "rate", nil}, {"rate=5,auto", "rate", nil},
		{"rate=5&shape=ramp", "shape", nil}, {"rate=5&shape=sine", "shape", nil}, {"rate=5&shape=constant:3", "shape", nil},
		{"shape=ramp:", "shape", nil}, {"shape=ramp:5", "shape", nil}, {"shape=ramp:0-0", "shape", nil}, {"shape=ramp:5--3", "shape", nil},
	} {
		query, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := ParseSpec(query, limits)
		wrong, _ := err.(*ParamError)
		switch {
		case c.wrong == "" && (err != nil || !slices.Equal(spec.arrivals(), c.want)):
			t.Errorf("%s: %v, %v", c.query, spec.arrivals(), err)
		case c.wrong != "" && (wrong == nil || wrong.Parameter != c.wrong || len(wrong.Allowed) == 0):
			t.Errorf("%s: %v", c.query, err)
		}
	}
}

func FuzzParseShape(f *testing.F) {
	for _, text := range []string{"constant", "poisson", "ramp:100-5000", "ramp:0-1.5", "ramp:.5-1", "ramp:1-2-3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseShape(text)
		if err != nil {
			return
		}
		if again, err := ParseShape(a.String()); err != nil || again != a {
			t.Errorf("%q is %q, and that %v, %v", text, a, again, err)
		}
		if a.Shape == "ramp" && !(a.mean() > 0) {
			t.Errorf("%q: %v", text, fmt.Sprint(a.mean()))
		}
	})
}
