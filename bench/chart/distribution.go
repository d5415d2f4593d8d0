package chart

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// A Distribution is the latency of one row: points in ascending order.
type Distribution struct {
	Name   string
	Points []Quantile
}

// A Quantile says that the fraction P of the operations, from 0 to below 1, took at most NS nanoseconds.
type Quantile struct{ P, NS float64 }

// nines spreads quantiles as 1/(1-p), so that the tail has room.
func nines(p float64) float64 { return -math.Log10(1 - p) }

// quantiles are the ticks of such an axis.
var quantiles = []struct {
	p    float64
	name string
}{{.5, "p50"}, {.9, "p90"}, {.99, "p99"}, {.999, "p99.9"}, {.9999, "p99.99"}, {.99999, "p99.999"}}

// Percentiles draws latency over percentile, both axes logarithmic, a line for each of the first 8 rows. A line ends
// where its row has no more operations to tell: at 1 - 1/n, its slowest one.
func Percentiles(w io.Writer, f Frame, rows []Distribution) error {
	const last = .999999 // where the axis ends in any case
	var (
		drawn []Distribution
		names []string
		left  []string
		all   []float64
		desc  []string
		end   = .99
	)
	for _, row := range rows {
		var points []Quantile
		for _, q := range row.Points {
			if q.P >= 0 && q.P < 1 && finite(q.NS) {
				// The clock tells no less than a nanosecond, and a logarithmic axis has no 0.
				points = append(points, Quantile{min(q.P, last), max(q.NS, 1)})
			}
		}
		if len(points) == 0 {
			continue
		}
		if len(drawn) == lines {
			left = append(left, row.Name)
			continue
		}
		drawn = append(drawn, Distribution{row.Name, points})
		names = append(names, row.Name)
		for _, q := range points {
			all = append(all, q.NS)
			end = max(end, q.P)
		}
		desc = append(desc, row.Name+": "+strings.Join(told(points), ", "))
	}
	if len(drawn) == 0 {
		return ErrEmpty
	}
	if len(left) > 0 {
		f.Notes = append([]string{fmt.Sprintf("the first %d of %s rows", lines, count(lines+len(left)))}, f.Notes...)
	}

	c := newCanvas(Width)
	c.head(f)
	c.legend(c.lineKeys(names))
	x := &scale{f: nines, name: "percentile (log axis towards 100%)"}
	x.Max = end
	x.marked = []tick{{0, ""}}
	for _, q := range quantiles {
		if q.p <= end {
			x.ticks = append(x.ticks, tick{q.p, q.name})
		}
	}
	x.marked = append(x.marked, x.ticks...)
	y := newScale(axis{name: "latency", kind: duration, log: true}, all, 8)
	p := c.plot(x, y, c.labelWidth(y), 240)
	for i, row := range drawn {
		var xs, ys []float64
		for _, q := range row.Points {
			xs, ys = append(xs, q.P), append(ys, q.NS)
		}
		p.line(i, xs, ys)
		for _, q := range quantiles {
			if ns, ok := at(row.Points, q.p); ok {
				c.mark(i, p.xAt(q.p), p.yAt(ns))
			}
		}
		if n := len(row.Points) - 1; n == 0 || row.Points[n].P > .9 { // the slowest
			c.mark(i, p.xAt(row.Points[n].P), p.yAt(row.Points[n].NS))
		}
	}
	return c.finish(w, f, desc)
}

// told says the figures of a row in words.
func told(points []Quantile) (parts []string) {
	for _, q := range []struct {
		p    float64
		name string
	}{{.5, "median"}, {.99, "p99"}, {.999, "p99.9"}} {
		if ns, ok := at(points, q.p); ok {
			parts = append(parts, q.name+" "+Duration(ns))
		}
	}
	return append(parts, "slowest "+Duration(points[len(points)-1].NS))
}

// at returns the latency at p, between the points beside it; false beyond them.
func at(points []Quantile, p float64) (float64, bool) {
	for i, q := range points {
		switch {
		case math.Abs(q.P-p) < 1e-12:
			return q.NS, true
		case q.P > p && i == 0:
			return 0, false
		case q.P > p:
			before := points[i-1]
			part := (nines(p) - nines(before.P)) / (nines(q.P) - nines(before.P))
			return math.Exp(math.Log(before.NS) + part*(math.Log(q.NS)-math.Log(before.NS))), true
		}
	}
	return 0, false
}
