package chart

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A Timeline is what History draws.
type Timeline struct {
	// From and To bound the time axis; where they are zero the points do. From's location is that of the axis.
	From, To time.Time
	Points   []Point // in ascending order
	Deploys  []Deploy
	Step     *Step
	Band     string // what the band is, "p5 to p95" unless told
	Small    bool   // a line's height, with no axes: for one client and operation among many
}

// A Point is one probe. A latency in nanoseconds that is not above 0 was not measured.
type Point struct {
	At           time.Time
	P5, P50, P95 float64
	Cold         float64 // of a sample on a fresh process or connection, which is in no percentile
	Failed       bool
}

// A Deploy is when a revision was first seen.
type Deploy struct {
	At   time.Time
	Name string
}

// A Step is a change that was detected.
type Step struct {
	At            time.Time
	Before, After float64 // the p50 in nanoseconds; 0 where it is not known
	Text          string  // a sentence
}

// bounds of what a picture takes in: a page of many stays small.
const (
	historyPoints = 280
	smallPoints   = 90
	deployLines   = 40
)

// History draws latency over time: the median, a band from p5 to p95, failures at the axis, cold samples, deploys and a
// change. More points than there is room for are drawn as the median of their neighbours.
func History(w io.Writer, f Frame, t Timeline) error {
	points := slices.DeleteFunc(slices.Clone(t.Points), func(p Point) bool {
		return !positive(p.P50) && !positive(p.Cold) && !p.Failed || !t.From.IsZero() && p.At.Before(t.From) || !t.To.IsZero() && p.At.After(t.To)
	})
	if len(points) == 0 {
		return ErrEmpty
	}
	if t.From.IsZero() {
		t.From = points[0].At
	}
	if t.To.IsZero() {
		t.To = points[len(points)-1].At
	}
	if !t.To.After(t.From) {
		t.From, t.To = t.From.Add(-30*time.Minute), t.From.Add(30*time.Minute)
	}

	var measured, failed, cold []Point
	for _, p := range points {
		if positive(p.P50) {
			measured = append(measured, p)
		}
		if p.Failed {
			failed = append(failed, p)
		}
		if positive(p.Cold) {
			cold = append(cold, p)
		}
	}
	desc := t.told(measured, failed, cold)
	limit := historyPoints
	if t.Small {
		limit = smallPoints
	}
	shown := merge(measured, t.From, t.To, limit)
	if !t.Small && len(shown) < len(measured) {
		f.Notes = append([]string{fmt.Sprintf("%s probes are drawn as %d points, each the median of its neighbours", count(len(measured)), len(shown))}, f.Notes...)
	}
	cold = thinOut(cold, limit)

	var values []float64
	for _, p := range shown {
		values = append(values, p.P50)
		for _, v := range []float64{p.P5, p.P95} {
			if positive(v) {
				values = append(values, v)
			}
		}
	}
	if !t.Small {
		for _, p := range cold {
			values = append(values, p.Cold)
		}
	}
	x := timeScale(t.From, t.To)
	if t.Small {
		return t.small(w, f, desc, x, newScale(axis{kind: duration}, values, 3), shown, failed)
	}

	c := newCanvas(Width)
	c.head(f)
	if t.Step != nil {
		c.paragraph("strong", t.Step.Text, textSize)
		c.y += 2
	}
	c.legend(c.historyKeys(t, shown, failed, cold))
	y := newScale(axis{name: "latency", kind: duration}, values, 6)
	labelled, rows := c.deployLabels(t, x, c.labelWidth(y))
	top := c.y + lineHeight // of the labels, below the axis' name
	c.text("dim", y.name, margin, c.y+textSize-1)
	c.y += float64(rows) * lineHeight
	y.name = ""
	p := c.plot(&x.scale, y, c.labelWidth(y), 220)

	if s := t.Step; s != nil && !s.At.Before(t.From) && !s.At.After(t.To) {
		at := p.xAt(x.of(s.At))
		c.rect("step", at, p.top, p.right, p.bottom)
		p.band(x, shown)
		if positive(s.Before) && positive(s.After) {
			c.path("level", p.left, p.yAt(s.Before), at, p.yAt(s.Before), at, p.yAt(s.After), p.right, p.yAt(s.After))
		}
	} else {
		p.band(x, shown)
	}
	for _, d := range labelled {
		at := p.xAt(x.of(d.At))
		above := p.top
		if d.Name != "" {
			above = top + float64(d.row)*lineHeight + 2
			class := "dim"
			if d.left {
				class += " end"
			}
			c.text(class, d.Name, d.x, above+textSize-3)
		}
		c.path("rule", at, above, at, p.bottom)
	}
	p.median(x, shown)
	for _, q := range cold {
		c.circle("cold", p.xAt(x.of(q.At)), p.yAt(q.Cold), 4)
	}
	c.failures(p, x, failed)
	return c.finish(w, f, desc)
}

// small draws the line and its band, with no axes, beside the title and the latest value.
func (t Timeline) small(w io.Writer, f Frame, desc []string, x *timeline, y *scale, shown, failed []Point) error {
	const size, height = 13, 40
	c := newCanvas(SmallWidth)
	c.y = 4
	latest := "-"
	if len(shown) > 0 {
		latest = Duration(shown[len(shown)-1].P50)
	}
	if strings.Contains(y.name, "log") {
		latest = "log axis  " + latest
	}
	room := c.measure(latest, size) + 8
	c.text("small", c.fit(clean(f.Title), size, SmallWidth-12-room), 6, c.y+size)
	c.text("small end strong", latest, SmallWidth-6, c.y+size)
	c.y += lineHeight
	p := &plot{c, 6, c.y, SmallWidth - 8, c.y + height, &x.scale, y}
	x.Domain, y.Domain = units(p.right)-units(p.left), units(p.bottom)-units(p.top)
	if s := t.Step; s != nil && !s.At.Before(t.From) && !s.At.After(t.To) {
		c.rect("step", p.xAt(x.of(s.At)), p.top, p.right, p.bottom)
	}
	p.band(x, shown)
	p.median(x, shown)
	if n := len(shown) - 1; n >= 0 {
		c.circle("mark c1", p.xAt(x.of(shown[n].At)), p.yAt(shown[n].P50), 3)
	}
	c.path("axis", p.left, p.bottom, p.right, p.bottom)
	c.failures(p, x, failed)
	c.y = p.bottom - 2
	f.Subtitle, f.Notes = "", nil
	return c.finish(w, f, desc)
}

// told says in words what the picture shows.
func (t Timeline) told(measured, failed, cold []Point) (desc []string) {
	const layout = "2006-01-02 15:04"
	loc := t.From.Location()
	desc = append(desc, fmt.Sprintf("%s probes from %s to %s, %s of them failed", count(len(t.Points)), t.From.Format(layout), t.To.In(loc).Format(layout+" MST"), count(len(failed))))
	if len(measured) > 0 {
		medians := make([]float64, len(measured))
		for i, p := range measured {
			medians[i] = p.P50
		}
		slices.Sort(medians)
		desc = append(desc, fmt.Sprintf("Median latency: latest %s, from %s to %s, half of them up to %s", Duration(measured[len(measured)-1].P50),
			Duration(medians[0]), Duration(medians[len(medians)-1]), Duration(median(medians))))
	}
	if len(cold) > 0 {
		slowest := slices.MaxFunc(cold, func(a, b Point) int { return int(math.Copysign(1, a.Cold-b.Cold)) })
		desc = append(desc, fmt.Sprintf("%d cold samples, the slowest %s", len(cold), Duration(slowest.Cold)))
	}
	var names []string
	for _, d := range t.Deploys {
		if !d.At.Before(t.From) && !d.At.After(t.To) {
			names = append(names, d.Name+" "+d.At.In(loc).Format(layout))
		}
	}
	if n := len(names); n > 8 {
		names = append(names[:7:7], fmt.Sprintf("%d more", n-7))
	}
	if len(names) > 0 {
		desc = append(desc, "Deploys: "+strings.Join(names, ", "))
	}
	if t.Step != nil {
		desc = append(desc, t.Step.Text)
	}
	return desc
}

// historyKeys are the entries of the legend: of what is there alone.
func (c *canvas) historyKeys(t Timeline, shown, failed, cold []Point) (keys []key) {
	if len(shown) > 0 {
		keys = append(keys, key{"median", func(left, right, y float64) { c.path("line c1", left, y, right, y) }})
	}
	if slices.ContainsFunc(shown, func(p Point) bool { return positive(p.P5) && positive(p.P95) }) {
		keys = append(keys, key{cmp.Or(t.Band, "p5 to p95"), func(left, right, y float64) { c.rect("band", left, y-6, right, y+6) }})
	}
	if len(failed) > 0 {
		keys = append(keys, key{"failed", func(left, right, y float64) { c.cross((left+right)/2, y) }})
	}
	if len(cold) > 0 {
		keys = append(keys, key{"cold sample", func(left, right, y float64) { c.circle("cold", (left+right)/2, y, 4) }})
	}
	if len(t.Deploys) > 0 {
		keys = append(keys, key{"deploy", func(left, right, y float64) { c.path("rule", (left+right)/2, y-9, (left+right)/2, y+9) }})
	}
	if t.Step != nil {
		keys = append(keys, key{"change", func(left, right, y float64) {
			c.rect("step", (left+right)/2, y-8, right, y+8)
			c.path("level", left, y+4, (left+right)/2, y+4, (left+right)/2, y-4, right, y-4)
		}})
	}
	return keys
}

// cross marks a failure.
func (c *canvas) cross(x, y float64) {
	c.class("failure")
	const r = 4
	for _, sign := range []float64{1, -1} {
		c.r.MoveTo(units(x-r), units(y-sign*r))
		c.r.LineTo(units(x+r), units(y+sign*r))
	}
	c.r.Stroke()
}

// failures marks them at the axis, those that would lie on one another once.
func (c *canvas) failures(p *plot, x *timeline, failed []Point) {
	last := math.Inf(-1)
	for _, q := range failed {
		if at := p.xAt(x.of(q.At)); at-last >= 5 {
			c.cross(at, p.bottom)
			last = at
		}
	}
}

// A placed deploy has its label beside its line.
type placed struct {
	Deploy
	row  int
	x    float64
	left bool // of the line
}

// deployLabels finds room for labels in up to three rows above the plot. A deploy without a name left has none.
func (c *canvas) deployLabels(t Timeline, x *timeline, labels float64) (all []placed, rows int) {
	deploys := slices.DeleteFunc(slices.Clone(t.Deploys), func(d Deploy) bool { return d.At.Before(t.From) || d.At.After(t.To) })
	slices.SortStableFunc(deploys, func(a, b Deploy) int { return a.At.Compare(b.At) })
	if n := len(deploys); n > deployLines {
		deploys = deploys[n-deployLines:]
	}
	left, right := margin+labels, c.width-margin-10
	ends := []float64{0, 0, 0}
	for _, d := range deploys {
		q := placed{Deploy: d}
		at := left + float64(d.At.Sub(t.From))/float64(t.To.Sub(t.From))*(right-left)
		name := c.fit(clean(d.Name), textSize, 140)
		width := c.measure(name, textSize)
		q.x, q.Name = at+4, ""
		from := at
		if at+4+width > c.width-4 {
			q.left, q.x, from = true, at-4, at-4-width
		}
		for row := range ends {
			if from >= ends[row]+6 {
				q.Name, q.row = name, row
				ends[row] = max(at, from+width+4)
				rows = max(rows, row+1)
				break
			}
		}
		all = append(all, q)
	}
	return all, rows
}

// segments cuts points where probes are missing: no line stands for what was not measured.
func segments(points []Point, use func(Point) bool) (out [][]Point) {
	var gaps []float64
	for i := 1; i < len(points); i++ {
		gaps = append(gaps, float64(points[i].At.Sub(points[i-1].At)))
	}
	slices.Sort(gaps)
	longest := time.Duration(math.MaxInt64)
	if len(gaps) > 0 {
		longest = time.Duration(3.5 * median(gaps))
	}
	var current []Point
	for i, p := range points {
		if i > 0 && p.At.Sub(points[i-1].At) > longest || !use(p) {
			if len(current) > 0 {
				out = append(out, current)
			}
			current = nil
		}
		if use(p) {
			current = append(current, p)
		}
	}
	if len(current) > 0 {
		out = append(out, current)
	}
	return out
}

func (p *plot) band(x *timeline, points []Point) {
	for _, part := range segments(points, func(q Point) bool { return positive(q.P5) && positive(q.P95) }) {
		var upper, lower []float64
		for i, q := range part {
			at := p.xAt(x.of(q.At))
			upper = append(upper, at, p.yAt(q.P95))
			o := part[len(part)-1-i]
			lower = append(lower, p.xAt(x.of(o.At)), p.yAt(o.P5))
		}
		if len(part) == 1 { // one probe alone is a bar
			at := upper[0]
			p.c.rect("band", at-2, upper[1], at+2, lower[1])
			continue
		}
		p.c.polygon("band", append(upper, lower...)...)
	}
}

func (p *plot) median(x *timeline, points []Point) {
	for _, part := range segments(points, func(q Point) bool { return positive(q.P50) }) {
		var xs, ys []float64
		for _, q := range part {
			xs, ys = append(xs, x.of(q.At)), append(ys, q.P50)
		}
		if len(part) == 1 {
			p.c.circle("mark c1", p.xAt(xs[0]), p.yAt(ys[0]), 2)
		}
		p.line(0, xs, ys)
	}
}

// merge returns at most about limit points, one for each stretch of the time axis.
func merge(points []Point, from, to time.Time, limit int) []Point {
	if len(points) <= limit {
		return points
	}
	var out []Point
	slot := func(p Point) int { return int(float64(p.At.Sub(from)) / float64(to.Sub(from)) * float64(limit-1)) }
	for len(points) > 0 {
		n := 1
		for n < len(points) && slot(points[n]) == slot(points[0]) {
			n++
		}
		of := func(value func(Point) float64) float64 {
			var vs []float64
			for _, p := range points[:n] {
				if v := value(p); positive(v) {
					vs = append(vs, v)
				}
			}
			slices.Sort(vs)
			return median(vs)
		}
		out = append(out, Point{At: points[n/2].At, P5: of(func(p Point) float64 { return p.P5 }),
			P50: of(func(p Point) float64 { return p.P50 }), P95: of(func(p Point) float64 { return p.P95 })})
		points = points[n:]
	}
	return out
}

// thinOut returns the slowest cold samples, at most limit, in their order.
func thinOut(points []Point, limit int) []Point {
	if len(points) <= limit {
		return points
	}
	slow := slices.Clone(points)
	slices.SortStableFunc(slow, func(a, b Point) int { return int(math.Copysign(1, b.Cold-a.Cold)) })
	slow = slow[:limit]
	slices.SortStableFunc(slow, func(a, b Point) int { return a.At.Compare(b.At) })
	return slow
}

// median of sorted values; 0 where there are none.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return sorted[n/2]/2 + sorted[(n-1)/2]/2
}

// A timeline is a scale of seconds since its beginning.
type timeline struct {
	scale
	from time.Time
}

func (t *timeline) of(at time.Time) float64 { return at.Sub(t.from).Seconds() }

// timeScale has up to eight ticks at round times.
func timeScale(from, to time.Time) *timeline {
	const room = 7
	t := &timeline{from: from}
	t.f, t.Max = linear, to.Sub(from).Seconds()
	const day = 24 * time.Hour
	steps := []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour,
		2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day, 2 * day, 5 * day, 7 * day, 14 * day, 30 * day, 90 * day, 365 * day}
	step := steps[len(steps)-1]
	for _, s := range steps {
		if to.Sub(from) <= room*s {
			step = s
			break
		}
	}
	for to.Sub(from) > room*step && step < math.MaxInt64/4 {
		step *= 2
	}
	loc := from.Location()
	y, m, d := from.Date()
	for i := range 10_000 {
		at := time.Date(y, m, d, 0, 0, 0, 0, loc).Add(time.Duration(i) * step)
		if step >= day { // days differ in length
			at = time.Date(y, m, d+i*int(step/day), 0, 0, 0, 0, loc)
		}
		if at.After(to) {
			break
		}
		if at.Before(from) {
			continue
		}
		label := at.Format("15:04")
		if at.Hour() == 0 && at.Minute() == 0 || step >= day {
			label = at.Format("Jan 2")
		}
		if step >= 365*day {
			label = at.Format("2006")
		}
		t.ticks = append(t.ticks, tick{t.of(at), label})
	}
	const layout = "2006-01-02 15:04"
	t.name = fmt.Sprintf("%s to %s", from.Format(layout), to.In(loc).Format(layout+" MST"))
	return t
}
