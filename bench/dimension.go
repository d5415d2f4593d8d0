package bench

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A dimension is a parameter in which rows can differ.
type dimension struct {
	name     string
	standard string                // its default, which is not worth saying
	of       func(*Result) string  // "" where a row has no such parameter
	show     func(string) string   // a value as a cell
	say      func(v string) string // a value in a sentence
}

// dimensions are the parameters every format knows. Others are found in the names of rows.
var dimensions = []dimension{
	{"concurrency", "1", func(r *Result) string { return positive(r.Concurrency) }, showCount,
		func(v string) string { return "concurrency " + showCount(v) }},
	{"pipeline", "1", func(r *Result) string { return positive(r.Pipeline) }, showCount,
		func(v string) string { return "pipeline " + showCount(v) }},
	// Said always: how much is moved is the first thing to know of a figure.
	{"size", "", func(r *Result) string { return positive(r.Size) }, showBytes,
		func(v string) string { return showBytes(v) + " values" }},
	{"keyspace", "1", func(r *Result) string { return positive(r.Keyspace) }, showCount,
		func(v string) string { return showCount(v) + " keys" }},
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func showCount(v string) string {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return FormatCount(n)
	}
	return v
}

func showBytes(v string) string {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return FormatBytes(n)
	}
	return v
}

// dimensionsOf returns dimensions, then the parameters that stand in the rows' names alone (rate, flavor, scale), then
// the labels.
func dimensionsOf(results []*Result) []dimension {
	known := []string{"target", "client"}
	for _, d := range dimensions {
		known = append(known, d.name)
	}
	ds := slices.Clone(dimensions)
	labels := map[string]bool{}
	for _, r := range results {
		for name := range r.Labels {
			labels[name] = true
		}
		for part := range strings.SplitSeq(r.Name, "/") {
			name, _, ok := strings.Cut(part, "=")
			if !ok || slices.Contains(known, name) {
				continue
			}
			known = append(known, name)
			ds = append(ds, dimension{name, map[string]string{"scale": "1", "protocol": "prepared"}[name],
				func(r *Result) string { return nameParameter(r.Name, name) }, showCount,
				func(v string) string { return name + " " + showCount(v) }})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		ds = append(ds, dimension{name, "", func(r *Result) string { return r.Labels[name] },
			func(v string) string { return v }, func(v string) string { return name + "=" + v }})
	}
	return ds
}

// nameParameter returns the value of /key=value in a row's name.
func nameParameter(name, key string) string {
	for part := range strings.SplitSeq(name, "/") {
		if value, ok := strings.CutPrefix(part, key+"="); ok {
			return value
		}
	}
	return ""
}

// values returns the values of d, each once, in the order of results. A row that has no such parameter has no value: a
// Postgres row beside others does not make size a thing that varies.
func (d dimension) values(results []*Result) []string {
	var vs []string
	for _, r := range results {
		if v := d.of(r); v != "" && !slices.Contains(vs, v) {
			vs = append(vs, v)
		}
	}
	return vs
}

// rowNamer returns what a row is called among results: workload, client, and every parameter in which they differ.
func rowNamer(results []*Result, varied []dimension) func(*Result) string {
	targets := false
	for _, r := range results {
		targets = targets || r.Target != results[0].Target
	}
	return func(r *Result) string {
		parts := testOf(r, targets)
		for _, d := range varied {
			if v := d.of(r); v != "" {
				parts = append(parts, d.name+"="+strings.ReplaceAll(d.show(v), " ", ""))
			}
		}
		return strings.Join(parts, " ")
	}
}

func testOf(r *Result, target bool) []string {
	if target {
		return []string{r.Target, r.Workload, r.Client}
	}
	return []string{r.Workload, r.Client}
}
