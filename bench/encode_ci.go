package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ciMetrics are what the formats for continuous integration tell of a row: its cost first, then what its users feel.
var ciMetrics = []string{"ns_per_op", "p50", "p99"}

// encodeGitHubAction writes what github-action-benchmark reads as customSmallerIsBetter: an entry for each metric of each
// row, its value the median of the samples. A row that completed nothing has no entry, since the format has no other
// word for it.
func encodeGitHubAction(w io.Writer, r *Report, _ EncodeOptions) error {
	type entry struct {
		Name  string `json:"name"`
		Unit  string `json:"unit"`
		Value Figure `json:"value"`
		Range string `json:"range,omitempty"` // of the samples, around the median
		Extra string `json:"extra,omitempty"`
	}
	entries := []entry{}
	for _, row := range samplesByRow(r.Results) {
		for _, metric := range ciMetrics {
			unit, _ := UnitByName(metric)
			values := valuesOf(row, unit)
			if len(values) == 0 {
				continue
			}
			e := entry{Name: row[0].Name, Unit: "ns/op", Value: *NewFigure(median(values))}
			if metric != ciMetrics[0] {
				e.Name, e.Unit = e.Name+" "+metric, "ns"
			}
			if n := len(values); n > 1 {
				middle := median(values)
				e.Range = "± " + NewFigure(max(values[n-1]-middle, middle-values[0])).String()
			}
			e.Extra = ciExtra(r, row)
			entries = append(entries, e)
		}
	}
	return writeIndented(w, entries)
}

// ciExtra says how a row was measured, for the chart's tooltip.
func ciExtra(r *Report, row []*Result) string {
	var iterations, errors int64
	for _, res := range row {
		iterations += res.Iterations
		errors += res.Errors
	}
	lines := []string{fmt.Sprintf("%d samples, %s errors", len(row), FormatCount(errors))}
	if iterations > 0 { // another tool may not have said
		lines[0] = FormatCount(iterations) + " operations in " + lines[0]
	}
	for _, t := range append(slices.Clone(r.Targets), r.Target) {
		if t != nil && t.Name == row[0].Target && t.Server != "" {
			lines = append(lines, oneLine(t.Server))
		}
	}
	if v := vantageOf(r); v.Platform != "" {
		lines = append(lines, oneLine("from "+v.Platform+" "+v.Region))
	}
	return strings.Join(lines, "\n")
}

// encodeBencher writes the Bencher Metric Format: measures by row, those that Bencher knows by itself, latency (ns) and
// throughput (operations a second), by their own names. A value is the median of the samples, lower_value and upper_value
// are the least and the greatest of several. A row that completed nothing is left out, as in the format above.
func encodeBencher(w io.Writer, r *Report, _ EncodeOptions) error {
	type metric struct {
		Value Figure  `json:"value"`
		Lower *Figure `json:"lower_value,omitempty"`
		Upper *Figure `json:"upper_value,omitempty"`
	}
	rows := map[string]map[string]metric{}
	for _, row := range samplesByRow(r.Results) {
		measures := map[string]metric{}
		for _, m := range []struct{ measure, unit string }{{"latency", "ns_per_op"}, {"throughput", "ops_per_sec"}, {"p50", "p50"}, {"p99", "p99"}} {
			unit, _ := UnitByName(m.unit)
			values := valuesOf(row, unit)
			if len(values) == 0 {
				continue
			}
			v := metric{Value: *NewFigure(median(values))}
			if n := len(values); n > 1 {
				v.Lower, v.Upper = NewFigure(values[0]), NewFigure(values[n-1])
			}
			measures[m.measure] = v
		}
		if len(measures) > 0 {
			rows[row[0].Name] = measures
		}
	}
	return writeIndented(w, rows)
}

// samplesByRow returns the samples of each row that completed something, rows in their order.
func samplesByRow(results []*Result) [][]*Result {
	var rows [][]*Result
	index := map[string]int{}
	for _, r := range results {
		if _, ok := figure(r.NSPerOp); !ok {
			continue
		}
		i, ok := index[r.Name]
		if !ok {
			i = len(rows)
			index[r.Name] = i
			rows = append(rows, nil)
		}
		rows[i] = append(rows[i], r)
	}
	return rows
}

// valuesOf returns the values of a metric that were measured, sorted.
func valuesOf(row []*Result, u Unit) []float64 {
	var values []float64
	for _, r := range row {
		if v, ok := u.Of(r); ok {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}

// median is the middle of sorted values, of which there is one at least.
func median(sorted []float64) float64 {
	n := len(sorted)
	return sorted[(n-1)/2]/2 + sorted[n/2]/2 // halved first: the sum of the largest is infinite
}

func writeIndented(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}
