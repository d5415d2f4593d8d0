package handlers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
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
		writeProbeMetrics(&b, starts, probes, time.Now())
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

// A family is one metric's name, help and lines.
type family struct {
	name, help string
	lines      []string
}

func (f *family) add(value float64, labels ...bench.MetricLabel) {
	f.lines = append(f.lines, f.name+"{"+bench.PrometheusLabels(labels)+"} "+strconv.FormatFloat(value, 'f', -1, 64)+"\n")
}

func writeProbeMetrics(w io.Writer, starts map[string]time.Time, probes []latestProbe, now time.Time) {
	var (
		runStart = &family{name: "nsop_run_start_timestamp_seconds", help: "When the newest run of the target started."}
		success  = &family{name: "nsop_probe_success", help: "1 where the newest probe measured the target and all its assertions held, else 0."}
		start    = &family{name: "nsop_probe_start_timestamp_seconds", help: "When the newest probe started."}
		age      = &family{name: "nsop_probe_age_seconds", help: "How long ago the newest probe started."}
		took     = &family{name: "nsop_probe_duration_seconds", help: "How long the newest probe took."}
		phases   = &family{name: "nsop_probe_phase_seconds", help: "A step of a fresh dial, or a command after it."}
		classes  = &family{name: "nsop_probe_class_seconds", help: "Median of the operations of one class."}
		ratio    = &family{name: "nsop_latency_change_ratio", help: "The level of the median latency after its latest change, within a week, to that before."}
		changed  = &family{name: "nsop_latency_change_timestamp_seconds", help: "When the level of the median latency changed."}
	)
	seconds := func(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
	label := func(name, value string) bench.MetricLabel { return bench.MetricLabel{Name: name, Value: value} }
	var names []string
	for name := range starts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		runStart.add(seconds(starts[name]), label("target", name))
	}
	for _, p := range probes {
		target := label("target", p.target)
		ok := 0.0
		if p.run.Outcome == history.OK {
			ok = 1
		}
		success.add(ok, target)
		start.add(seconds(p.run.StartedAt), target)
		age.add(now.Sub(p.run.StartedAt).Round(time.Millisecond).Seconds(), target)
		took.add(p.run.Elapsed.Seconds(), target)
		if p.report.Phases != nil {
			for _, phase := range p.report.Phases.All() {
				if phase.NS != nil {
					phases.add(float64(*phase.NS)/1e9, target, label("phase", phase.Name))
				}
			}
		}
		if c := p.report.Classes; c != nil {
			for _, class := range []struct {
				name string
				stat *bench.Stat
			}{{"process_cold", c.ProcessCold}, {"connection_cold", c.ConnectionCold}, {"idle_resumed", c.IdleResumed}, {"warm", c.Warm}} {
				if class.stat != nil {
					classes.add(float64(class.stat.P50NS)/1e9, target, label("class", class.name))
				}
			}
		}
		told := map[string]bool{}
		for _, c := range p.report.Changes { // the latest first
			i := slices.IndexFunc(p.report.Results, func(r *bench.Result) bool { return r.Name == c.Row })
			if i < 0 || told[c.Row] {
				continue
			}
			told[c.Row] = true
			row := []bench.MetricLabel{target, label("workload", p.report.Results[i].Workload), label("client", p.report.Results[i].Client)}
			ratio.add(c.Ratio, row...)
			changed.add(seconds(c.At), row...)
		}
	}
	for _, f := range []*family{runStart, success, start, age, took, phases, classes, ratio, changed} {
		if len(f.lines) > 0 {
			fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n%s", f.name, f.help, f.name, strings.Join(f.lines, ""))
		}
	}
}
