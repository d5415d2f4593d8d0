// Package detect says when a series of probes changed its level, and whether its latest probe is normal.
//
// # The change detector
//
// Runs are never compared with the run before: the latest window of probes is compared with what came before it. With
// y = ln(p50), c and s the mean and the standard deviation of y over n reference probes and m the mean of the r probes
// of the window, the statistic is Student's
//
//	z = (m - c) / (s * sqrt(v) * sqrt(1/r + 1/n)),   n-1 degrees of freedom.
//
// A window of fixed length whose sum is compared with a threshold is the test that misses the fewest changes within its
// length among all whose chance of a false alarm within a given time is bounded (Guepie, Fillatre, Nikiforov: Sequential
// detection of transient changes, Sequential Analysis 31, 2012): a CUSUM or a rank-sum over windows of several lengths
// misses more at the same rate of false alarms. A rank-sum test also loses most just where it is needed, at shifts of
// two standard deviations tested at a level of one in a million.
//
// Means and deviations leave out what lies beyond 3.5 standard deviations of the median, 5.2 median absolute deviations
// (Hampel: The breakdown points of the mean combined with some rejection rules, Technometrics 27, 1985): of the window
// about the window's own median, so that an outlier in it counts nothing while a change of the whole of it counts in
// full.
//
// Probes follow one another: a daily pattern or a noisy neighbour moves a whole window. v is how much more the means of
// the reference's blocks of the window's length vary than those of independent probes would, less a standard error of
// that estimate, and at least 1 (a variance ratio: Cochrane, How big is the random walk in GNP?, Journal of Political
// Economy 96, 1988).
//
// Latencies have a longer tail above than below, and so do the means of few: the skewness of the reference, less a standard
// error of it, is taken out of z.
//
// The detector is asked after every probe, so the level of one test must be far below that of a week of them. See the
// table windows for the levels and where they come from.
package detect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/aclements/go-moremath/stats"

	"nsop/bench"
)

// A Point is one probe of a series: one operation through one client on one target.
type Point struct {
	At       time.Time
	Revision string  // that was deployed; "" where it is not known
	P50      float64 // nanoseconds
	Failed   bool    // it measured nothing
	Cold     bool    // the first request of its process
}

// usable tells whether p counts: it measured something, warm.
func (p Point) usable() bool {
	const picosecond, century = 1e-3, 3e18
	return !p.Failed && !p.Cold && p.P50 > picosecond && p.P50 < century
}

// A Change is a step in the level of a series.
type Change struct {
	At       time.Time `json:"at"`                 // of the first probe after it
	Revision string    `json:"revision,omitempty"` // of that probe
	Deploy   bool      `json:"deploy"`             // that probe is the revision's first: the deploy may have done it
	Before   float64   `json:"before_ns"`          // level of p50 before it, nanoseconds
	After    float64   `json:"after_ns"`           // level of p50 from then to the next change, nanoseconds
	Ratio    float64   `json:"ratio"`              // After / Before
	P        float64   `json:"p"`                  // chance that a quiet week shows such a step anywhere
	Sentence string    `json:"sentence"`           // in UTC
}

// A window is one of the lengths of window that the detector looks at.
type window struct {
	points     int     // a multiple of the first's, by which the reference grows
	rise, fall float64 // levels of one test for either
}

// windows are the windows. The first is asked after every probe and finds a shift of two standard deviations within its
// length; the second is asked once for each length of the first and finds a shift of less than one within some hours.
//
// A sum over the latest w of N independent normal values exceeds z standard deviations on either side at some time with
// a chance of about 2*N*z*phi(z)/w * exp(-0.583*z*sqrt(2/w)) (Siegmund: Approximate tail probabilities for the maxima of
// some random fields, Annals of Probability 16, 1988, with his correction for discrete time). For a week of probes every
// five minutes, N = 2016, that is 0.5% for the first window and 0.02% for the second.
//
// A fall of 20% is a larger step of ln(p50) than a rise of 20%, so it is found at a far stricter level: nearly all of the
// first window's is spent on rises, which are the harder to find.
var windows = [...]window{{12, 3.5e-6, 5e-7}, {72, 5e-7, 5e-7}}

const (
	step         = 12   // usable probes between two looks at the reference
	minReference = 48   // usable probes before the first test
	maxReference = 2016 // a week of them, one every five minutes
	looks        = 2016 // tests a week, by which a p-value is multiplied (Bonferroni)
	outlier      = 3.5  // standard deviations from the median from which a probe counts nothing
	minDeviation = 0.01 // of ln(p50): a latency has two significant digits
	minEffect    = 0.05 // of ln(p50): less matters to nobody
	youngEffect  = 0.30 // the same while the reference spans less than a day, whose pattern nobody knows yet
	minAfter     = 3    // probes after a change for it to be placed there
	youngSpan    = 24 * time.Hour
	suspicious   = 3 // standard deviations below which no test of a window can tell of a change
)

// Since is the moment from which on the points of a series are to be read to tell its changes from from on: a week before
// it or up to five, and the same for four weeks. A range that moves with every probe would look at the same probes again
// and again, each time beside another reference, and so give several times as many false alarms.
func Since(from time.Time) time.Time {
	const week = 7 * 24 * time.Hour
	return from.Add(-week).UTC().Truncate(4 * week)
}

// Changes returns the changes of a series in order of time; name is what its sentences call it, e.g. "get". Failed and
// cold points, and those without a latency, count nothing. What it says of the first points does not depend on later
// ones, but for the level after the latest change. See [Since] for which points to give.
func Changes(name string, points []Point) []Change {
	if byTime := func(a, b Point) int { return a.At.Compare(b.At) }; !slices.IsSortedFunc(points, byTime) {
		points = slices.Clone(points)
		slices.SortStableFunc(points, byTime)
	}
	var d detector
	for _, p := range points {
		if p.usable() {
			d.add(p)
		}
	}
	return d.describe(name)
}

// Latest returns the latest change of a series, or nil. See [Changes].
func Latest(name string, points []Point) *Change {
	changes := Changes(name, points)
	if len(changes) == 0 {
		return nil
	}
	return &changes[len(changes)-1]
}

// A detector reads a series point by point.
type detector struct {
	points []Point
	y      []float64 // ln(p50); those before the latest change moved to the level after it
	start  int       // of the level: the first point after the latest change
	steps  []detected

	lo, hi  int          // y[lo:hi] is the reference
	sorted  []float64    // y[lo:hi] in order
	latest  []*reference // one for each step since start, the latest last
	scratch []float64
}

// detected is a change as it was found.
type detected struct {
	at            int     // index of the first point after it
	deploy        bool    // a revision begins there
	before, after float64 // levels, ln(p50)
	p             float64
}

// A reference is what is known of the probes before a window.
type reference struct {
	center, deviation float64
	n                 int // probes of the level that center is the mean of
	all               int // probes that deviation is of
	median            float64
	skew              float64               // of the mean of one probe, as much of it as is certain
	inflation         [len(windows)]float64 // v of each window; 0 where the reference is too short to tell
	effect            float64               // smallest that is reported
}

// add reads one usable point.
func (d *detector) add(p Point) {
	d.points = append(d.points, p)
	d.y = append(d.y, math.Log(p.P50))
	atStep := (len(d.y)-d.start)%step == 0
	if atStep {
		d.look()
	}
	if len(d.latest) == 0 {
		return
	}
	if d.test(0, d.latest[len(d.latest)-1]) {
		return
	}
	// The second window's reference must end before it: it is one of some steps ago.
	if back := (windows[1].points - windows[0].points) / step; atStep && len(d.latest) > back {
		d.test(1, d.latest[len(d.latest)-1-back])
	}
}

// look takes the probes that have left the first window into the reference.
func (d *detector) look() {
	for ; d.hi < len(d.y)-windows[0].points; d.hi++ {
		i, _ := slices.BinarySearch(d.sorted, d.y[d.hi])
		d.sorted = slices.Insert(d.sorted, i, d.y[d.hi])
	}
	for ; d.hi-d.lo > maxReference; d.lo++ {
		i, _ := slices.BinarySearch(d.sorted, d.y[d.lo])
		d.sorted = slices.Delete(d.sorted, i, i+1)
	}
	if d.hi-d.lo < minReference || d.hi-d.start < windows[0].points {
		return
	}
	r := &reference{median: d.sorted[len(d.sorted)/2]}
	r.deviation = max(1.4826*deviation(d.sorted, r.median), minDeviation)
	from, _ := slices.BinarySearch(d.sorted, r.median-outlier*r.deviation)
	to, _ := slices.BinarySearch(d.sorted, r.median+outlier*r.deviation)
	var mean, square, cube float64
	for _, y := range d.sorted[from:to] {
		x := y - r.median
		mean, square, cube = mean+x, square+x*x, cube+x*x*x
	}
	n := float64(to - from)
	mean, square, cube = mean/n, square/n, cube/n
	variance := square - mean*mean
	r.all = to - from
	r.deviation = max(math.Sqrt(variance), minDeviation)
	r.skew = toward0((cube-3*mean*square+2*mean*mean*mean)/(r.deviation*r.deviation*r.deviation), math.Sqrt(6/n))
	if r.center, r.n = r.median+mean, r.all; d.start > d.lo {
		if r.center, r.n = r.mean(d.y[d.start:d.hi]); r.n < windows[0].points/2 {
			return
		}
	}
	r.inflation = r.blocks(d.y[d.lo:d.hi], &d.scratch)
	r.effect = minEffect
	if d.points[d.hi-1].At.Sub(d.points[d.lo].At) < youngSpan {
		r.effect = youngEffect
	}
	d.latest = append(d.latest, r)
}

// deviation is the median absolute deviation of sorted about its median.
func deviation(sorted []float64, median float64) float64 {
	// The deviations below the median and those above it are in order already: merge them up to the middle.
	up, _ := slices.BinarySearch(sorted, median)
	down := up - 1
	var d float64
	for range len(sorted)/2 + 1 {
		switch {
		case down < 0 || up < len(sorted) && sorted[up]-median < median-sorted[down]:
			d = sorted[up] - median
			up++
		default:
			d = median - sorted[down]
			down--
		}
	}
	return d
}

// mean is the mean of ys without outliers about the reference's median, and how many it is of.
func (r *reference) mean(ys []float64) (mean float64, n int) {
	return meanAbout(ys, r.median, outlier*r.deviation)
}

func meanAbout(ys []float64, center, bound float64) (mean float64, n int) {
	for _, y := range ys {
		if x := y - center; math.Abs(x) <= bound {
			mean, n = mean+x, n+1
		}
	}
	return center + mean/float64(max(n, 1)), n
}

// toward0 is v moved towards 0 by at most by.
func toward0(v, by float64) float64 {
	return math.Copysign(max(0, math.Abs(v)-by), v)
}

// blocks is, for each window, how much more the means of blocks of its length vary than those of independent probes, at
// least 1, or 0 where there are too few blocks to tell.
func (r *reference) blocks(ys []float64, scratch *[]float64) (v [len(windows)]float64) {
	means := (*scratch)[:0]
	for ; len(ys) >= step; ys = ys[step:] {
		m, _ := r.mean(ys[:step]) // the median where all of them are outliers
		means = append(means, (m-r.median)/r.deviation)
	}
	*scratch = means
	for i, w := range windows {
		var sum, square, count float64
		for block := range slices.Chunk(means, w.points/step) {
			x := 0.0
			for _, m := range block {
				x += m / float64(len(block))
			}
			if len(block) == w.points/step {
				sum, square, count = sum+x, square+x*x, count+1
			}
		}
		if count >= 4 {
			v[i] = max(1, float64(w.points)*(square-sum*sum/count)/(count-1)*(1-math.Sqrt(2/count)))
		}
	}
	return v
}

// test compares the latest window with r and takes a change down if there is one.
func (d *detector) test(i int, r *reference) bool {
	w := windows[i].points
	if r.inflation[i] == 0 || len(d.y)-d.start < w {
		return false
	}
	m, n := d.level(d.y[len(d.y)-w:], r)
	if n < w/2 {
		return false // they agree on nothing
	}
	z := (m - r.center) / (r.deviation * math.Sqrt(r.inflation[i]*(1/float64(n)+1/float64(r.n))))
	if math.Abs(z) < suspicious || math.Abs(m-r.center) < r.effect {
		return false
	}
	z = unskew(z, r.skew/math.Sqrt(float64(n)))
	p, level := stats.TDist{V: float64(r.all - 1)}.CDF(-math.Abs(z)), windows[i].rise
	if z < 0 {
		level = windows[i].fall
	}
	if p > level {
		return false
	}
	// The p-value of both tests together, each with its share of the level.
	d.step(w, r, r.inflation[i], p*(windows[i].rise+windows[i].fall)/level)
	return true
}

// unskew is the standard normal value that is as likely as z is in a gamma distribution of that skewness (Wilson, Hilferty:
// The distribution of chi-square, Proceedings of the National Academy of Sciences 17, 1931).
func unskew(z, skew float64) float64 {
	if math.Abs(skew) < 1e-3 {
		return z
	}
	return 6/skew*(math.Cbrt(max(0, z*skew/2+1))-1) + skew/6
}

// level is the mean of ys without outliers about their own median, and how many it is of.
func (d *detector) level(ys []float64, r *reference) (float64, int) {
	d.scratch = append(d.scratch[:0], ys...)
	slices.Sort(d.scratch)
	return meanAbout(ys, d.scratch[(len(ys)-1)/2], outlier*r.deviation)
}

// step places a change that the latest w probes show, and begins a new level there. With both levels known the place is
// that of the greatest likelihood; a deploy whose likelihood is within the 95% confidence interval (half of chi-square
// at one degree of freedom, 1.92, below the greatest) is taken for the place.
func (d *detector) step(w int, r *reference, inflation, p float64) {
	from, to := max(d.start+1, len(d.y)-2*w), len(d.y)-minAfter
	loss := func(y, level float64) float64 {
		x := min(math.Abs(y-level)/r.deviation, outlier)
		return x * x / 2
	}
	at := len(d.y) - w
	deploy := false
	for range 3 { // the level after it depends on the place, and the place on the level
		after, _ := d.level(d.y[at:], r)
		var likelihood, best, bestDeploy float64
		best, bestDeploy = math.Inf(-1), math.Inf(-1)
		atDeploy := 0
		for i := len(d.y) - 1; i >= from; i-- {
			likelihood += loss(d.y[i], r.center) - loss(d.y[i], after)
			if i > to {
				continue
			}
			if likelihood > best {
				at, best = i, likelihood
			}
			if d.points[i].Revision != d.points[i-1].Revision && likelihood > bestDeploy {
				atDeploy, bestDeploy = i, likelihood
			}
		}
		if deploy = bestDeploy >= best-1.92*inflation; deploy {
			at = atDeploy
		}
	}
	after, _ := d.level(d.y[at:], r)
	d.steps = append(d.steps, detected{at: at, deploy: deploy, before: r.center, after: after, p: p})

	// What is known of the noise is kept: the probes before are moved to the new level.
	for i := range at {
		d.y[i] += after - r.center
	}
	d.start, d.hi, d.latest = at, at, nil
	d.lo = max(d.lo, d.hi-maxReference)
	d.sorted = append(d.sorted[:0], d.y[d.lo:d.hi]...)
	slices.Sort(d.sorted)
}

// describe says what the changes are.
func (d *detector) describe(name string) []Change {
	changes := make([]Change, len(d.steps))
	for i, s := range d.steps {
		// A level is that of all its probes, not only of those that told of it.
		if end := len(d.y); i == len(d.steps)-1 {
			ys := slices.Clone(d.y[s.at:end])
			slices.Sort(ys)
			s.after = ys[(len(ys)-1)/2]
		} else {
			s.after = d.steps[i+1].before
		}
		p := d.points[s.at]
		c := Change{At: p.At, Revision: p.Revision, Deploy: s.deploy, Before: math.Exp(s.before), After: math.Exp(s.after),
			Ratio: math.Exp(s.after - s.before), P: min(1, s.p*looks)}
		c.Sentence = c.sentence(name)
		changes[i] = c
	}
	return changes
}

func (c Change) sentence(name string) string {
	step := fmt.Sprintf("rose by %.0f%%", 100*(c.Ratio-1))
	switch {
	case c.Ratio < 1:
		step = fmt.Sprintf("fell by %.0f%%", 100*(1-c.Ratio))
	case c.Ratio >= 10:
		step = fmt.Sprintf("rose to %s times what it was", bench.FormatFigure(c.Ratio))
	}
	since := c.At.UTC().Format("2006-01-02 15:04")
	if c.Deploy {
		since = "revision " + cmp.Or(c.Revision, "unknown") + ", " + since
	}
	return fmt.Sprintf("p50 of %s %s since %s, %s", name, step, since, PValue(c.P))
}

// PValue writes a p-value for people: "p = 0.012", "p < 0.001".
func PValue(p float64) string {
	if p < 0.001 {
		return "p < 0.001"
	}
	return "p = " + strconv.FormatFloat(p, 'f', 3, 64)
}
