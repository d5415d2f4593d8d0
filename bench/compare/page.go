package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"nsop/bench"
)

// A Page is what people see of a comparison: text, markdown and the page for browsers are three ways to write it. Its
// texts are not escaped.
type Page struct {
	A, B     SideInfo
	Verdict  string
	Outcome  string
	Columns  []string // headings of Row.Labels, of which some are ""
	Rows     []PageRow
	Axis     Axis
	Warnings []string // above the table
	Notes    []string // below it
}

// A PageRow is one metric of one pair of rows.
type PageRow struct {
	Labels []string // one for each of Columns
	Metric string   // p50, ns/op, p99 or ops/s
	A, B   string   // medians, with their unit
	Ratio  string
	CI     string // "0.68 .. 0.72", "-" where there is none
	P      string // "<0.001", "-"
	Word   string // faster, slower, ~
	Bar    *Bar   // nil where there is no ratio
}

// A Bar is a ratio and its interval on the page's axis, in percent of its width from the left. Without an interval From
// and To are At.
type Bar struct{ From, At, To float64 }

// An Axis is logarithmic, with 1.0 in the middle, at 50%.
type Axis struct {
	Low, High string // what stands at its ends
}

// Page returns what people see of c.
func (c *Comparison) Page() Page {
	p := Page{A: c.A, B: c.B, Verdict: c.Verdict, Outcome: c.Outcome, Warnings: c.Warnings}
	labels := c.labels()
	for _, l := range labels {
		p.Columns = append(p.Columns, l.head)
	}
	var durations []*int64
	reach := math.Log(1.1) // of the axis, on either side
	for _, r := range c.Rows {
		for _, e := range r.Metrics {
			if e.Metric != "ops_per_sec" {
				a, b := int64(math.Round(e.A.Median)), int64(math.Round(e.B.Median))
				durations = append(durations, &a, &b)
			}
			for _, v := range []*float64{e.Ratio, e.Low, e.High} {
				if v != nil && *v > 0 {
					reach = max(reach, math.Abs(math.Log(*v)))
				}
			}
		}
	}
	reach = min(reach, math.Log(100))
	p.Axis = Axis{Low: ratio(math.Exp(-reach)), High: ratio(math.Exp(reach))}
	at := func(v float64) float64 {
		return math.Round(1000*(50+50*max(-1, min(1, math.Log(v)/reach)))) / 1000
	}
	shown := bench.FormatDurations(durations)
	for _, r := range c.Rows {
		cells := make([]string, len(labels))
		for i, l := range labels {
			cells[i] = l.of(r)
		}
		for _, e := range r.Metrics {
			row := PageRow{Labels: cells, Metric: metricName(e.Metric), Ratio: "-", CI: "-", P: pValue(e.P), Word: e.Word}
			if e.Metric == "ops_per_sec" {
				row.A, row.B = bench.FormatFigure(e.A.Median)+"/s", bench.FormatFigure(e.B.Median)+"/s"
			} else {
				row.A, row.B, shown = shown[0], shown[1], shown[2:]
			}
			if e.Ratio != nil && *e.Ratio > 0 {
				row.Ratio = ratio(*e.Ratio)
				row.Bar = &Bar{at(*e.Ratio), at(*e.Ratio), at(*e.Ratio)}
				if e.Low != nil && e.High != nil && *e.Low > 0 {
					row.CI = ratio(*e.Low) + " .. " + ratio(*e.High)
					row.Bar.From, row.Bar.To = at(*e.Low), at(*e.High)
				}
			}
			p.Rows = append(p.Rows, row)
		}
	}
	p.Notes = c.notes(labels)
	return p
}

func metricName(metric string) string {
	switch metric {
	case "ns_per_op":
		return "ns/op"
	case "ops_per_sec":
		return "ops/s"
	}
	return metric
}

// ratio writes with two decimals, or with three significant digits where that is more or less.
func ratio(v float64) string {
	switch {
	case v >= 100:
		return bench.FormatFigure(v)
	case v < 0.1:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func pValue(p *float64) string {
	switch {
	case p == nil:
		return "-"
	case *p < 0.001:
		return "<0.001"
	case *p < 0.1:
		return strconv.FormatFloat(*p, 'f', 3, 64)
	}
	return strconv.FormatFloat(*p, 'f', 2, 64)
}

// A label is one of the columns that say which row it is.
type label struct {
	head string
	of   func(r Row) string
}

// labels are the columns that tell rows apart: test and client always, target and parameters where they vary.
func (c *Comparison) labels() []label {
	both := func(a, b string) string {
		if a = cmp.Or(a, "-"); b == "" || a == b {
			return a
		}
		return a + " / " + b
	}
	target := label{"", func(r Row) string { return both(r.a.Target, r.b.Target) }}
	labels := []label{
		{"", func(r Row) string { return both(test(r.a), test(r.b)) }},
		{"", func(r Row) string { return both(r.a.Client, r.b.Client) }},
	}
	varies := func(l label) bool {
		return slices.ContainsFunc(c.Rows, func(r Row) bool { return l.of(r) != l.of(c.Rows[0]) })
	}
	if varies(target) {
		labels = slices.Insert(labels, 0, target)
	}
	var names []string
	for _, r := range c.Rows {
		for part := range strings.SplitSeq(r.Name+"/"+r.NameB, "/") {
			if name, _, ok := strings.Cut(part, "="); ok && name != "target" && name != "client" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		l := label{name, func(r Row) string { return both(parameter(r.Name, name), parameter(r.NameB, name)) }}
		if varies(l) {
			labels = append(labels, l)
		}
	}
	return labels
}

// test is what a row's operation is called.
func test(r *bench.Result) string {
	name, _, _ := strings.Cut(r.Name, "/")
	return cmp.Or(r.Workload, strings.ToLower(name))
}

// parameter is the value of one in a row's name.
func parameter(name, key string) string {
	for part := range strings.SplitSeq(name, "/") {
		if value, ok := strings.CutPrefix(part, key+"="); ok {
			return value
		}
	}
	return ""
}

// maxNames is how many rows one note names.
const maxNames = 4

// notes say what is not in the table and why, each thing once.
func (c *Comparison) notes(labels []label) (notes []string) {
	var order []string
	rows := map[string][]string{}
	note := func(text, row string) {
		if rows[text] == nil {
			order = append(order, text)
		}
		if !slices.Contains(rows[text], row) {
			rows[text] = append(rows[text], row)
		}
	}
	noise := false
	for _, r := range c.Rows {
		var words []string
		for _, l := range labels {
			words = append(words, strings.TrimPrefix(l.head+"=", "=")+l.of(r))
		}
		name := strings.Join(words, " ")
		for _, text := range r.Notes {
			note(text, name)
		}
		for _, e := range r.Metrics {
			if e.Note != "" {
				note(e.Note, name)
			}
			noise = noise || e.Word == "~" && e.P != nil
		}
	}
	if noise {
		notes = append(notes, "~ is no more than noise: p is at or above 0.05")
	}
	for _, text := range order {
		if len(rows[text]) == len(c.Rows) && len(c.Rows) > 1 {
			notes = append(notes, text)
		} else {
			notes = append(notes, list(rows[text])+": "+text)
		}
	}
	if len(c.Rows) > 0 {
		if len(c.OnlyA) > 0 {
			notes = append(notes, "only in a: "+list(c.OnlyA))
		}
		if len(c.OnlyB) > 0 {
			notes = append(notes, "only in b: "+list(c.OnlyB))
		}
	}
	return notes
}

func list(names []string) string {
	if n := len(names); n > maxNames {
		return strings.Join(names[:maxNames], ", ") + fmt.Sprintf(" and %s more", bench.FormatCount(int64(n-maxNames)))
	}
	return strings.Join(names, ", ")
}
