package handlers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/history"
)

const (
	metricsTime = 5 * time.Second // bounds the reading of the history, below Prometheus' usual 10 s
	metricsRuns = 200             // of which rows are told, the newest
	probed      = 100             // targets whose probes are told
)

// metrics answers what the history knows last of each row and of each target's probe, in Prometheus' text format.
func (s *Service) metrics(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.only(r); err != nil {
		return err
	}
	format, _ := bench.FormatByName("prometheus")
	var b bytes.Buffer
	if s.History != nil {
		ctx, cancel := context.WithTimeout(r.Context(), metricsTime)
		defer cancel()
		rows, starts, err := s.latestRows(ctx)
		if err != nil {
			return &historyError{err}
		}
		probes, err := s.latestProbes(ctx)
		if err != nil {
			return &historyError{err}
		}
		for _, p := range probes {
			starts[p.target] = later(starts[p.target], p.run.StartedAt)
		}
		if err := format.Encode(&b, &bench.Report{Results: rows}, bench.EncodeOptions{}); err != nil {
			return fmt.Errorf("encode metrics: %w", err)
		}
		bench.WriteMetrics(&b, probeMetrics(starts, probes, time.Now()))
	}
	w.Header().Set("Content-Type", format.ContentType)
	_, _ = w.Write(b.Bytes()) // the client has left: nobody is there to be told
	return nil
}

// latestRows are the rows of the newest run of each series, and when the newest run of each target began.
func (s *Service) latestRows(ctx context.Context) (results []*bench.Result, starts map[string]time.Time, err error) {
	latest, err := s.History.Latest(ctx, history.Filter{})
	if err != nil {
		return nil, nil, err
	}
	starts = map[string]time.Time{}
	wanted := map[string]map[string]bool{} // the rows of each run
	began := map[string]time.Time{}
	for _, row := range latest {
		starts[row.Target] = later(starts[row.Target], row.StartedAt)
		if wanted[row.Run] == nil {
			wanted[row.Run] = map[string]bool{}
		}
		wanted[row.Run][row.Name], began[row.Run] = true, row.StartedAt
	}
	var ids []string
	for id := range wanted {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(began[b].Compare(began[a]), strings.Compare(a, b)) })
	runs, err := s.History.Runs(ctx, ids[:min(len(ids), metricsRuns)]...)
	if err != nil {
		return nil, nil, err
	}
	for _, run := range runs {
		if run.Body == nil {
			continue // it was removed meanwhile
		}
		report, err := run.Report()
		if err != nil {
			return nil, nil, err
		}
		for _, r := range report.Results {
			if wanted[run.ID][r.Name] {
				results = append(results, r)
			}
		}
	}
	slices.SortStableFunc(results, func(a, b *bench.Result) int {
		return cmp.Or(strings.Compare(a.Target, b.Target), strings.Compare(a.Name, b.Name), cmp.Compare(a.Sample, b.Sample))
	})
	return results, starts, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A latestProbe is the newest probe of a target, however it ended.
type latestProbe struct {
	target string
	run    *history.Run
	report *bench.Report
}

func (s *Service) latestProbes(ctx context.Context) (probes []latestProbe, err error) {
	targets, err := s.History.Values(ctx, "target")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(targets, func(a, b history.Value) int { return cmp.Or(b.Last.Compare(a.Last), strings.Compare(a.Value, b.Value)) })
	for _, target := range targets[:min(len(targets), probed)] {
		runs, err := s.History.List(ctx, history.Filter{Target: target.Value, Kind: "probe", Limit: 1, Bodies: true})
		if err != nil {
			return nil, err
		}
		for _, run := range runs {
			if run.Body == nil {
				continue
			}
			report, err := run.Report()
			if err != nil {
				return nil, err
			}
			probes = append(probes, latestProbe{target.Value, run, report})
		}
	}
	slices.SortFunc(probes, func(a, b latestProbe) int { return strings.Compare(a.target, b.target) })
	return probes, nil
}

// probeMetrics are those of the newest probes, and of when runs began.
func probeMetrics(starts map[string]time.Time, probes []latestProbe, now time.Time) []bench.Metric {
	var (
		runStart = bench.Metric{Name: "nsop_run_start_timestamp_seconds", Help: "When the newest run of the target started."}
		start    = bench.Metric{Name: "nsop_probe_start_timestamp_seconds", Help: "When the newest probe started."}
		age      = bench.Metric{Name: "nsop_probe_age_seconds", Help: "How long ago the newest probe started."}
		ratio    = bench.Metric{Name: "nsop_latency_change_ratio", Help: "Level of the median latency after its latest change, within a week, over the one before."}
		changed  = bench.Metric{Name: "nsop_latency_change_timestamp_seconds", Help: "When the level of the median latency changed."}
		of       []bench.Metric // what each probe has
	)
	seconds := func(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
	add := func(m *bench.Metric, value float64, labels ...bench.MetricLabel) {
		m.Points = append(m.Points, bench.MetricPoint{Labels: labels, Value: value})
	}
	for _, name := range slices.Sorted(maps.Keys(starts)) {
		add(&runStart, seconds(starts[name]), bench.MetricLabel{Name: "target", Value: name})
	}
	for _, p := range probes {
		target := bench.MetricLabel{Name: "target", Value: p.target}
		add(&start, seconds(p.run.StartedAt), target)
		add(&age, now.Sub(p.run.StartedAt).Round(time.Millisecond).Seconds(), target)
		for i, m := range bench.ProbeMetrics(p.report, p.run.Outcome == history.OK) {
			if len(of) <= i {
				of = append(of, bench.Metric{Name: m.Name, Help: m.Help})
			}
			of[i].Points = append(of[i].Points, m.Points...)
		}
		told := map[string]bool{}
		for _, c := range p.report.Changes { // the latest first
			i := slices.IndexFunc(p.report.Results, func(r *bench.Result) bool { return r.Name == c.Row })
			if i < 0 || told[c.Row] {
				continue
			}
			told[c.Row] = true
			workload := bench.MetricLabel{Name: "workload", Value: p.report.Results[i].Workload}
			client := bench.MetricLabel{Name: "client", Value: p.report.Results[i].Client}
			add(&ratio, c.Ratio, target, workload, client)
			add(&changed, seconds(c.At), target, workload, client)
		}
	}
	return slices.Concat([]bench.Metric{runStart, start, age}, of, []bench.Metric{ratio, changed})
}
