package bench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"nsop/bench/chart"
)

// encodeSVG draws throughput and p99 over the parameter that was swept, else latency over percentile. Where nothing is
// there to be drawn it returns an *UnsupportedError.
func encodeSVG(w io.Writer, r *Report, o EncodeOptions) error {
	if len(r.Results) == 0 {
		return noChart("no results")
	}
	if r.BoundBy != "" {
		return limitSVG(w, r, o)
	}
	varied := variedIn(r.Results)
	f := svgFrame(r, varied, o)
	if d, ok := sweptIn(r.Results, varied); ok {
		f.Title += "throughput and p99 over " + d.name
		curves, notes := sweepCurves(r.Results, d, slices.DeleteFunc(slices.Clone(varied), func(v dimension) bool { return v.name == d.name }))
		f.Notes = append(notes, f.Notes...)
		return drawn(chart.Sweep(w, f, d.name, curves))
	}
	f.Title += "latency by percentile"
	rows, unknown := distributions(r.Results, rowNamer(r.Results, varied))
	if len(unknown) > 0 {
		f.Notes = append(f.Notes, "not drawn, as no latency is known: "+strings.Join(firstOf(unknown, 4), ", "))
	}
	return drawn(chart.Percentiles(w, f, rows))
}

// limitSVG draws throughput and latency over the load that a search raised.
func limitSVG(w io.Writer, r *Report, o EncodeOptions) error {
	var knee *Result
	if r.Knee != nil {
		if i := slices.IndexFunc(r.Results, func(x *Result) bool { return x.Name == r.Knee.Row }); i >= 0 {
			knee = r.Results[i]
		}
	}
	varied := variedIn(r.Results)
	load := dimensions[0]
	for _, d := range varied {
		if sweepable(d) {
			load = d
			break
		}
	}
	f := svgFrame(r, varied, o)
	f.Title += strings.Join(testOf(r.Results[0], false), " ") + " over " + load.name
	curves, notes := sweepCurves(r.Results, load, nil)
	f.Notes = append(notes, f.Notes...)
	var points []chart.Load
	for _, c := range curves {
		points = append(points, c.Points...)
	}
	k := chart.Knee{X: math.NaN()}
	if knee != nil {
		if x, err := strconv.ParseFloat(load.of(knee), 64); err == nil {
			k.X, k.Text = x, load.name+" "+load.show(load.of(knee))
			if ops, ok := figure(knee.OpsPerSec); ok {
				k.Text += ": " + FormatFigure(ops) + "/s"
			}
			k.Text += ", bound by " + r.BoundBy
		}
	}
	return drawn(chart.Limit(w, f, load.name, points, k))
}

func noChart(reason string) error {
	return &UnsupportedError{Kind: "unsupported", Detail: "no chart: " + reason, Allowed: []string{"format=json", "format=text"}}
}

func drawn(err error) error {
	if errors.Is(err, chart.ErrEmpty) {
		return noChart("nothing completed")
	}
	return err
}

// variedIn returns the parameters in which results differ.
func variedIn(results []*Result) (varied []dimension) {
	for _, d := range dimensionsOf(results) {
		if len(d.values(results)) > 1 {
			varied = append(varied, d)
		}
	}
	return varied
}

// svgFrame says around a picture what a page says around its table. The title wants its end.
func svgFrame(r *Report, varied []dimension, o EncodeOptions) chart.Frame {
	p := newPage(r, o)
	f := chart.Frame{Warnings: firstOf(p.warnings, 4), Inline: o.Inline}
	var heads []string
	for _, h := range p.head {
		text := strings.Join(h.phrases, ", ")
		if r.Target == nil && h.name != "" {
			text = h.name + ": " + text
		}
		heads = append(heads, text)
	}
	f.Subtitle = strings.Join(heads, "; ")
	if r.Target != nil {
		f.Title = r.Target.Name + ": "
	}
	for _, g := range groupRows(r.Results, rowNamer(r.Results, varied), failure) {
		f.Notes = append(f.Notes, g.rows+": "+g.text)
	}
	f.Notes = firstOf(f.Notes, 4)
	return f
}

// firstOf returns at most n texts, the last of which says how many more there are.
func firstOf(texts []string, n int) []string {
	if len(texts) <= n {
		return texts
	}
	return append(texts[:n-1:n-1], FormatCount(int64(len(texts)-n+1))+" more")
}

// sweepable says whether values of d are numbers that a chart has an axis for.
func sweepable(d dimension) bool {
	return d.name == "rate" || d.name == "scale" || slices.ContainsFunc(dimensions, func(k dimension) bool { return k.name == d.name })
}

// sweptIn returns the parameter that has the most values of those that vary, three at least: two make no line.
func sweptIn(results []*Result, varied []dimension) (swept dimension, ok bool) {
	most := 2
	for _, d := range varied {
		if values := d.values(results); sweepable(d) && len(values) > most && !slices.ContainsFunc(values, func(v string) bool {
			_, err := strconv.ParseFloat(v, 64)
			return err != nil
		}) {
			swept, most, ok = d, len(values), true
		}
	}
	return swept, ok
}

// sweepCurves returns a curve over d for each test. others are what else varies. Of several samples throughput is the
// mean, as in the table, and a percentile the median.
func sweepCurves(results []*Result, d dimension, others []dimension) (curves []chart.Curve, notes []string) {
	name := rowNamer(results, others)
	samples := map[string]map[string][]*Result{} // by curve and value
	most := 1
	for _, r := range results {
		test, value := name(r), d.of(r)
		if value == "" {
			continue
		}
		if samples[test] == nil {
			samples[test] = map[string][]*Result{}
			curves = append(curves, chart.Curve{Name: test})
		}
		samples[test][value] = append(samples[test][value], r)
		most = max(most, len(samples[test][value]))
	}
	for i, c := range curves {
		for _, value := range d.values(results) {
			rs := samples[c.Name][value]
			x, err := strconv.ParseFloat(value, 64)
			if err != nil || len(rs) == 0 {
				continue
			}
			var ops, p50, p99 []float64
			for _, r := range rs {
				for _, m := range []struct {
					to *[]float64
					of func() (float64, bool)
				}{{&ops, func() (float64, bool) { return figure(r.OpsPerSec) }}, {&p50, func() (float64, bool) { return integer(r.Latency.P50) }},
					{&p99, func() (float64, bool) { return integer(r.Latency.P99) }}} {
					if v, ok := m.of(); ok {
						*m.to = append(*m.to, v)
					}
				}
			}
			curves[i].Points = append(curves[i].Points, chart.Load{X: x, Label: d.show(value), OpsPerSec: mean(ops), P50: middle(p50), P99: middle(p99)})
		}
	}
	if most > 1 {
		notes = append(notes, fmt.Sprintf("of %d samples: throughput is the mean, latency the median", most))
	}
	return curves, notes
}

// mean is NaN of nothing.
func mean(vs []float64) float64 {
	sum := 0.0
	for _, v := range vs {
		sum += v
	}
	return sum / float64(len(vs))
}

// middle is the median, NaN of nothing.
func middle(vs []float64) float64 {
	if len(vs) == 0 {
		return math.NaN()
	}
	slices.Sort(vs)
	return (vs[len(vs)/2] + vs[(len(vs)-1)/2]) / 2
}

// distributions returns the latencies of each row, its samples added up where their histograms are known. unknown are
// rows that completed and of whose latency nothing is known.
func distributions(results []*Result, name func(*Result) string) (rows []chart.Distribution, unknown []string) {
	samples := map[string][]*Result{}
	for _, r := range results {
		samples[r.Name] = append(samples[r.Name], r)
	}
	for _, r := range results {
		rs := samples[r.Name]
		if rs == nil {
			continue // told with the first of its samples
		}
		samples[r.Name] = nil
		if h := merged(rs); h != nil {
			rows = append(rows, chart.Distribution{Name: name(r), Points: quantilesOf(h, rs)})
			continue
		}
		for _, s := range rs {
			title := name(s)
			if len(rs) > 1 {
				title += " sample " + strconv.Itoa(s.Sample)
			}
			points := figuresOf(s)
			if _, completed := figure(s.NSPerOp); len(points) == 0 && completed {
				unknown = append(unknown, title)
			}
			rows = append(rows, chart.Distribution{Name: title, Points: points})
		}
	}
	return rows, unknown
}

// merged adds the histograms of samples that completed; nil where one is not known, or none completed.
func merged(samples []*Result) *hdrhistogram.Histogram {
	var sum *hdrhistogram.Histogram
	for _, s := range samples {
		h := s.Latencies
		if h == nil && s.Histogram != "" {
			var err error
			if h, err = DecodeHistogram(s.Histogram); err != nil {
				return nil // its figures are drawn
			}
		}
		switch {
		case s.Latency.P50 == nil && (h == nil || h.TotalCount() == 0): // nothing completed
		case h == nil:
			return nil
		case sum == nil:
			sum = h.Clone()
		default:
			if dropped := sum.Merge(h); dropped > 0 {
				return nil
			}
		}
	}
	if sum == nil || sum.TotalCount() == 0 {
		return nil
	}
	return sum
}

// quantilesOf reads a histogram as far as it has operations to tell: the slowest of n is at 1 - 1/n. Minimum and maximum
// are exact in the samples' figures.
func quantilesOf(h *hdrhistogram.Histogram, samples []*Result) (points []chart.Quantile) {
	least, most := int64(math.MaxInt64), int64(-1)
	for _, s := range samples {
		if s.Latency.Min != nil && s.Latency.Max != nil {
			least, most = min(least, *s.Latency.Min), max(most, *s.Latency.Max)
		}
	}
	if most < 0 {
		least, most = h.Min(), h.Max()
	}
	n := h.TotalCount()
	last := 1 - 1/float64(n)
	ps := []float64{.5}
	for i := 1; ; i++ { // twenty for each decade of 1/(1-p)
		p := 1 - math.Pow(10, -float64(i)/20)
		if p >= last {
			break
		}
		ps = append(ps, p)
	}
	slices.Sort(ps)
	points = append(points, chart.Quantile{P: 0, NS: float64(least)})
	for _, p := range ps {
		if p < last {
			points = append(points, chart.Quantile{P: p, NS: float64(min(max(h.ValueAtQuantile(p*100), least), most))})
		}
	}
	if last > 0 {
		points = append(points, chart.Quantile{P: last, NS: float64(most)})
	}
	return points
}

// figuresOf returns what is known without a histogram.
func figuresOf(r *Result) (points []chart.Quantile) {
	l := r.Latency
	for _, q := range []struct {
		p  float64
		ns *int64
	}{{0, l.Min}, {.5, l.P50}, {.9, l.P90}, {.95, l.P95}, {.99, l.P99}, {.999, l.P999}, {1 - 1/float64(max(r.Iterations, 1)), l.Max}} {
		if q.ns != nil && (len(points) == 0 || q.p > points[len(points)-1].P) {
			points = append(points, chart.Quantile{P: q.p, NS: float64(*q.ns)})
		}
	}
	return points
}
