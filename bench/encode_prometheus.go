package bench

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// prometheusMetrics are the metrics of a row, each in the base unit of Prometheus: value over per.
var prometheusMetrics = []struct {
	name, help string
	unit       string // of Units
	per        float64
}{
	{"nsop_time_per_operation_seconds", "Elapsed time over operations completed.", "ns_per_op", 1e9},
	{"nsop_operations_per_second", "Operations completed a second.", "ops_per_sec", 1},
	{"nsop_latency_min_seconds", "Shortest latency of an operation.", "min", 1e9},
	{"nsop_latency_mean_seconds", "Mean latency of an operation.", "mean", 1e9},
	{"nsop_latency_stddev_seconds", "Standard deviation of the latency.", "stddev", 1e9},
	{"nsop_latency_max_seconds", "Longest latency of an operation.", "max", 1e9},
	{"nsop_operations", "Operations completed.", "iterations", 1},
	{"nsop_failed_operations", "Operations that failed.", "errors", 1},
	{"nsop_missed_reads", "Reads of a key that was absent.", "misses", 1},
	{"nsop_mismatched_reads", "Reads of another value than was written.", "mismatches", 1},
	{"nsop_elapsed_seconds", "Time under the clock.", "elapsed_ns", 1e9},
	{"nsop_connect_seconds", "Time until all connections were ready.", "connect_ns", 1e9},
	{"nsop_client_cpu_ratio", "CPU used by the client; 1 is one core.", "client_cpu_percent", 100},
	{"nsop_throttled_seconds", "Time in which the client had no CPU by its quota.", "throttled_ns", 1e9},
	{"nsop_server_time_per_call_seconds", "Time a command took inside the server.", "server_ns_per_call", 1e9},
	{"nsop_server_cpu_ratio", "CPU used by the server; 1 is one core.", "server_cpu_percent", 100},
	{"nsop_allocated_bytes_per_operation", "Bytes that the client allocated for an operation.", "bytes_per_op", 1},
	{"nsop_allocations_per_operation", "Allocations by the client for an operation.", "allocs_per_op", 1},
}

// prometheusQuantiles are the quantiles of the summary of latencies.
var prometheusQuantiles = []struct{ quantile, unit string }{{"0.5", "p50"}, {"0.9", "p90"}, {"0.95", "p95"}, {"0.99", "p99"}, {"0.999", "p99.9"}}

// encodePrometheus writes the text format 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format). What was not measured has no line.
// No label names the run or the instance, so that the series go on from run to run.
func encodePrometheus(w io.Writer, r *Report, _ EncodeOptions) error {
	labels := seriesLabels(r.Results)
	series := make([]string, len(labels))
	for i, l := range labels {
		series[i] = PrometheusLabels(l)
	}
	var b bytes.Buffer
	family := func(name, kind, help string, lines func()) {
		start := b.Len()
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		head := b.Len()
		if lines(); b.Len() == head {
			b.Truncate(start)
		}
	}
	line := func(name, labels string, v float64) {
		fmt.Fprintf(&b, "%s{%s} %s\n", name, labels, strconv.FormatFloat(v, 'g', -1, 64))
	}
	WriteMetrics(&b, gauges(r.Results, labels))
	family("nsop_operations_with_connect_per_second", "gauge", "Operations completed a second, the time to connect included.", func() {
		for i, res := range r.Results {
			if v, ok := figure(res.OpsWithDial); ok {
				line("nsop_operations_with_connect_per_second", series[i], v)
			}
		}
	})
	family("nsop_failed_operations_by_kind", "gauge", "Operations that failed, by the kind of error.", func() {
		for i, res := range r.Results {
			for _, kind := range slices.Sorted(maps.Keys(res.ErrorKinds)) {
				line("nsop_failed_operations_by_kind", series[i]+`,kind="`+prometheusEscape(kind)+`"`, float64(res.ErrorKinds[kind]))
			}
		}
	})
	family("nsop_latency_seconds", "summary", "Latency of an operation.", func() {
		for i, res := range r.Results {
			for _, q := range prometheusQuantiles {
				unit, _ := UnitByName(q.unit)
				if v, ok := unit.Of(res); ok {
					line("nsop_latency_seconds", series[i]+`,quantile="`+q.quantile+`"`, v/1e9)
				}
			}
			if mean, ok := integer(res.Latency.Mean); ok && res.Iterations > 0 {
				line("nsop_latency_seconds_sum", series[i], mean/1e9*float64(res.Iterations))
				line("nsop_latency_seconds_count", series[i], float64(res.Iterations))
			}
		}
	})
	if !r.StartedAt.IsZero() {
		family("nsop_run_start_timestamp_seconds", "gauge", "When the run started.", func() {
			fmt.Fprintf(&b, "nsop_run_start_timestamp_seconds %s\n", strconv.FormatFloat(float64(r.StartedAt.UnixMilli())/1e3, 'f', -1, 64))
		})
	}
	_, err := w.Write(b.Bytes())
	return err
}

// A Metric is one figure of several rows, in the base unit of Prometheus.
type Metric struct {
	Name, Help string
	Points     []MetricPoint
}

// A MetricPoint is the figure of one row.
type MetricPoint struct {
	Labels []MetricLabel
	Value  float64
}

// A MetricLabel is one that tells rows apart.
type MetricLabel struct{ Name, Value string }

// Metrics are the figures of results by the names of the format prometheus; the quantiles of the latency are told apart by a
// label, quantile.
func Metrics(results []*Result) []Metric {
	labels := seriesLabels(results)
	latency := Metric{Name: "nsop_latency_seconds", Help: "Latency of an operation."}
	for i, res := range results {
		for _, q := range prometheusQuantiles {
			unit, _ := UnitByName(q.unit)
			if v, ok := unit.Of(res); ok {
				latency.Points = append(latency.Points, MetricPoint{append(slices.Clone(labels[i]), MetricLabel{"quantile", q.quantile}), v / 1e9})
			}
		}
	}
	return append(gauges(results, labels), latency)
}

// gauges are the metrics of prometheusMetrics; one that no row has has no points.
func gauges(results []*Result, labels [][]MetricLabel) (all []Metric) {
	for _, m := range prometheusMetrics {
		unit, _ := UnitByName(m.unit)
		metric := Metric{Name: m.name, Help: m.help}
		for i, res := range results {
			v, ok := unit.Of(res)
			if _, completed := figure(res.NSPerOp); completed && v == 0 && (m.unit == "iterations" || m.unit == "elapsed_ns") {
				continue // the tool that measured it did not say
			}
			if ok {
				metric.Points = append(metric.Points, MetricPoint{labels[i], v / m.per})
			}
		}
		all = append(all, metric)
	}
	return all
}

// WriteMetrics writes metrics as gauges; one without points has no line.
func WriteMetrics(b *bytes.Buffer, metrics []Metric) {
	for _, m := range metrics {
		if len(m.Points) == 0 {
			continue
		}
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %[1]s gauge\n", m.Name, m.Help)
		format := byte('g')
		if strings.HasSuffix(m.Name, "_timestamp_seconds") {
			format = 'f'
		}
		for _, p := range m.Points {
			fmt.Fprintf(b, "%s{%s} %s\n", m.Name, PrometheusLabels(p.Labels), strconv.FormatFloat(p.Value, format, -1, 64))
		}
	}
}

// PrometheusLabels writes labels as they stand between braces.
func PrometheusLabels(labels []MetricLabel) string {
	var pairs []string
	for _, l := range labels {
		pairs = append(pairs, l.Name+`="`+prometheusEscape(l.Value)+`"`)
	}
	return strings.Join(pairs, ",")
}

// seriesLabels returns the labels of each result, no two alike: samples of one row are told apart by their number.
func seriesLabels(results []*Result) [][]MetricLabel {
	labels := map[string]bool{}
	for _, r := range results {
		for name := range r.Labels {
			labels[name] = true
		}
	}
	parameters := dimensionsOf(results)
	parameters = parameters[:len(parameters)-len(labels)] // which come last, and may have a parameter's name
	series := make([][]MetricLabel, len(results))
	rows := map[string]string{} // by series, the row that has it
	for i, r := range results {
		used := map[string]bool{"sample": true, "kind": true, "quantile": true, "name": true}
		add := func(name, value string) {
			for name = prometheusName(name); used[name]; {
				name += "_"
			}
			used[name] = true
			if value != "" {
				series[i] = append(series[i], MetricLabel{name, value})
			}
		}
		add("target", r.Target)
		add("workload", r.Workload)
		add("client", r.Client)
		for _, d := range parameters {
			add(d.name, d.of(r))
		}
		for _, name := range slices.Sorted(maps.Keys(labels)) {
			add("label_"+name, r.Labels[name])
		}
		key := PrometheusLabels(series[i])
		if row, ok := rows[key]; ok && row != r.Name { // a name that was imported may hold more than parameters
			series[i] = append(series[i], MetricLabel{"name", r.Name})
		} else {
			rows[key] = r.Name
		}
	}
	total, seen := map[string]int{}, map[string]int{}
	for _, s := range series {
		total[PrometheusLabels(s)]++
	}
	for i, s := range series {
		if key := PrometheusLabels(s); total[key] > 1 {
			seen[key]++
			series[i] = append(s, MetricLabel{"sample", strconv.Itoa(seen[key])})
		}
	}
	return series
}

// prometheusName makes s the name of a label: letters, digits and _, none of them a digit first.
func prometheusName(s string) string {
	s = strings.Map(func(c rune) rune {
		if c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			return c
		}
		return '_'
	}, s)
	if s == "" || s[0] <= '9' || strings.HasPrefix(s, "__") {
		s = "label" + s
	}
	return s
}

func prometheusEscape(value string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(strings.ToValidUTF8(value, "\ufffd"))
}
