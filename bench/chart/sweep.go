package chart

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// A Curve is what one test did at each value of a swept parameter.
type Curve struct {
	Name   string
	Points []Load
}

// A Load is one value of a swept parameter, and what was measured there: NaN where nothing was.
type Load struct {
	X         float64
	OpsPerSec float64
	P50, P99  float64 // nanoseconds
	Label     string  // of X at the axis; "" for the number itself
}

// A Knee is where throughput stops growing.
type Knee struct {
	X    float64 // NaN for none
	Text string  // "concurrency 32: 61,204/s"
}

// Sweep draws throughput and, below it, p99 over a parameter, a line for each of the first 8 curves.
func Sweep(w io.Writer, f Frame, parameter string, curves []Curve) error {
	return overLoad(w, f, parameter, curves, []series{{"throughput", rate, func(l Load) float64 { return l.OpsPerSec }, ""},
		{"p99", duration, func(l Load) float64 { return l.P99 }, ""}}, Knee{X: math.NaN()})
}

// Limit draws throughput and, below it, p50 and p99 over load, and marks the knee in both.
func Limit(w io.Writer, f Frame, parameter string, points []Load, knee Knee) error {
	return overLoad(w, f, parameter, []Curve{{"", points}}, []series{{"throughput", rate, func(l Load) float64 { return l.OpsPerSec }, ""},
		{"latency", duration, func(l Load) float64 { return l.P50 }, "p50"}, {"latency", duration, func(l Load) float64 { return l.P99 }, "p99"}}, knee)
}

// A series is one figure of a load. Those of one panel share their axis.
type series struct {
	panel  string
	kind   kind
	of     func(Load) float64
	suffix string
}

func overLoad(w io.Writer, f Frame, parameter string, curves []Curve, figures []series, knee Knee) error {
	var xs []float64
	labels := map[float64]string{}
	var names, desc, left []string
	var drawn []Curve
	for _, curve := range curves {
		curve.Points = slices.DeleteFunc(slices.Clone(curve.Points), func(l Load) bool {
			return !finite(l.X) || !slices.ContainsFunc(figures, func(s series) bool { return finite(s.of(l)) })
		})
		if len(curve.Points) == 0 {
			continue
		}
		if len(drawn) == lines {
			left = append(left, curve.Name)
			continue
		}
		slices.SortStableFunc(curve.Points, func(a, b Load) int {
			if a.X < b.X {
				return -1
			} else if a.X > b.X {
				return 1
			}
			return 0
		})
		for _, l := range curve.Points {
			if !slices.Contains(xs, l.X) {
				xs = append(xs, l.X)
			}
			if labels[l.X] = clean(l.Label); l.Label == "" {
				labels[l.X] = plain(l.X)
			}
		}
		drawn = append(drawn, curve)
	}
	if len(drawn) == 0 {
		return ErrEmpty
	}
	if len(left) > 0 {
		f.Notes = append([]string{fmt.Sprintf("the first %d of %s tests", lines, count(lines+len(left)))}, f.Notes...)
	}
	slices.Sort(xs)

	// The values that were asked for are the ticks: no other was measured.
	x := newScale(axis{name: parameter, linear: !positive(xs[0]) || xs[len(xs)-1]/xs[0] < 8, narrow: true, log: true}, xs, 8)
	x.ticks = nil
	for _, v := range xs {
		x.ticks = append(x.ticks, tick{v, labels[v]})
	}

	// A line for each figure of each curve.
	type plotted struct {
		panel, name string
		xs, ys      []float64
		i           int
	}
	var all []plotted
	var panels []series
	for _, s := range figures {
		if !slices.ContainsFunc(panels, func(p series) bool { return p.panel == s.panel }) {
			panels = append(panels, s)
		}
	}
	for i, curve := range drawn {
		for _, s := range figures {
			l := plotted{panel: s.panel, name: curve.Name, i: i}
			if len(curves) == 1 && curve.Name == "" { // one test, told apart by figure
				l.name, l.i = s.panel, slices.IndexFunc(figures, func(o series) bool { return o.panel == s.panel && o.suffix == s.suffix })
				if s.suffix != "" {
					l.name = s.suffix
				}
			}
			for _, p := range curve.Points {
				if v := s.of(p); finite(v) {
					if s.kind == duration {
						v = max(v, 1)
					}
					l.xs, l.ys = append(l.xs, p.X), append(l.ys, v)
				}
			}
			all = append(all, l)
			if !slices.Contains(names, l.name) {
				names = append(names, l.name)
			}
			desc = append(desc, describe(curve.Name, parameter, s, l.xs, l.ys, labels)...)
		}
	}
	if finite(knee.X) && knee.Text != "" {
		desc = append([]string{"Knee at " + knee.Text}, desc...)
	}

	c := newCanvas(Width)
	c.head(f)
	keys := c.lineKeys(names)
	if finite(knee.X) {
		if knee.Text != "" {
			c.paragraph("strong", "knee at "+knee.Text, textSize)
			c.y += 2
		}
		keys = append(keys, key{"knee", func(left, right, y float64) { c.path("rule", (left+right)/2, y-9, (left+right)/2, y+9) }})
	}
	c.legend(keys)
	scales := make([]*scale, len(panels))
	for n, panel := range panels {
		var ys []float64
		for _, l := range all {
			if l.panel == panel.panel {
				ys = append(ys, l.ys...)
			}
		}
		scales[n] = newScale(axis{name: panel.panel, kind: panel.kind}, ys, 5)
	}
	width := c.labelWidth(scales...)
	for n, panel := range panels {
		below := *x
		if n < len(panels)-1 {
			below.name = ""
		}
		p := c.plot(&below, scales[n], width, 150)
		if finite(knee.X) {
			at := p.xAt(knee.X)
			c.path("rule", at, p.top-4, at, p.bottom)
		}
		for _, l := range all {
			if l.panel != panel.panel {
				continue
			}
			p.line(l.i, l.xs, l.ys)
			for k := range l.xs {
				c.mark(l.i, p.xAt(l.xs[k]), p.yAt(l.ys[k]))
			}
		}
	}
	return c.finish(w, f, desc)
}

// describe says in words where a line begins and ends, and where it is highest.
func describe(name, parameter string, s series, xs, ys []float64, labels map[float64]string) []string {
	if len(ys) == 0 {
		return nil
	}
	format := Rate
	if s.kind == duration {
		format = Duration
	}
	if name != "" {
		name += " "
	}
	figure := s.panel
	if s.suffix != "" {
		figure = s.suffix
	}
	last := len(ys) - 1
	text := fmt.Sprintf("%s%s: %s at %s %s", name, figure, format(ys[0]), parameter, labels[xs[0]])
	if last > 0 {
		text += fmt.Sprintf(", %s at %s", format(ys[last]), labels[xs[last]])
	}
	if top := slices.Index(ys, slices.Max(ys)); ys[top] > 1.01*max(ys[0], ys[last]) {
		text += fmt.Sprintf(", at most %s at %s", format(ys[top]), labels[xs[top]])
	}
	return []string{text}
}
