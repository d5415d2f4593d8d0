package handlers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/detect"
	"nsop/bench/diagnose"
	"nsop/bench/history"
)

// probeParameters are the names that /probe takes, beside labels.
var probeParameters = []string{"client", "size", "timeout", "assert", "save", "format"}

const (
	// probeTime bounds a probe.
	probeTime = 4800 * time.Millisecond
	// probeTimeout bounds an operation and a phase of a probe that does not say otherwise, so that a store which is gone is
	// told within the time.
	probeTimeout = 2 * time.Second
	// changeTime bounds the look for a change in the history, after the measurement.
	changeTime = time.Second
)

// probe is the short check for schedulers.
func (s *Service) probe(w http.ResponseWriter, r *http.Request) error {
	return s.measure(w, r, "probe", func(values url.Values) (*bench.Plan, error) {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if !slices.Contains(probeParameters, name) && !strings.HasPrefix(name, "label.") {
				return nil, &bench.ParamError{Parameter: name, Detail: "no such parameter of a probe", Allowed: append(slices.Clone(probeParameters), "label.NAME")}
			}
		}
		target, err := s.target(pathParam(r, "target"))
		if err != nil {
			return nil, err
		}
		values = maps.Clone(values)
		if !values.Has("assert") {
			values.Set("assert", "errors=0")
		}
		if !values.Has("timeout") {
			values.Set("timeout", probeTimeout.String())
		}
		limits := s.Limits
		limits.Total = min(limits.Total, probeTime)
		spec, err := s.spec(values, []*bench.Target{target}, "format")
		if err != nil {
			return nil, err
		}
		plan, err := bench.ProbePlan(target, spec, limits)
		if err != nil {
			return nil, err
		}
		p := &prober{Service: s, plan: plan, target: target, timeout: spec.Timeout, client: plan.Spec.Clients[len(plan.Spec.Clients)-1], save: spec.Save}
		plan.Before, plan.After = p.before, p.after
		return plan, nil
	})
}

// A prober is what a probe measures beside its rows.
type prober struct {
	*Service
	plan    *bench.Plan
	target  *bench.Target
	client  string // the library
	timeout time.Duration
	save    bool
	conn    *diagnose.Connection
	stop    context.CancelFunc
}

// before dials twice: the first dial of a process is a class of its own.
func (p *prober) before(ctx context.Context, report *bench.Report) error {
	report.Classes = &bench.Classes{}
	if p.target.Wire == nil {
		return nil // in this process: there is nothing to dial
	}
	cold := p.plan.Cold
	var held context.Context
	held, p.stop = context.WithCancel(ctx)
	for range 2 {
		conn, err := diagnose.Fresh(held, p.target, p.timeout)
		report.Phases = &conn.Phases
		if err != nil {
			p.stop()
			report.Describe(p.target, false)
			return bench.Lost(ctx, p.target, err)
		}
		if p.conn != nil {
			_ = p.conn.Close() // it was only to be dialled
		}
		p.conn = conn
		took := conn.Phases.Ready()
		switch {
		case cold:
			report.Classes.ProcessCold, cold = bench.OneSample(took), false
		case report.Classes.ConnectionCold == nil:
			report.Classes.ConnectionCold = bench.OneSample(took)
		default:
			report.Classes.ConnectionCold = bench.TwoSamples(*report.Classes.ConnectionCold.Min, took.Nanoseconds())
		}
	}
	return nil
}

// after resumes the connection that rested while the rows were measured, and looks into the history.
func (p *prober) after(ctx context.Context, report *bench.Report) {
	if p.conn != nil {
		took, gap, err := p.conn.Resume()
		if err != nil {
			report.Warnings = append(report.Warnings, err.Error())
		} else {
			report.Classes.IdleResumed = bench.OneSample(took)
			report.Classes.IdleResumed.Gap = gap.Nanoseconds()
		}
		_ = p.conn.Close()
		p.stop()
	}
	for _, row := range report.Results { // the last is the one that reads, through the library
		if row.Workload != "set" && report.Classes.Warm == nil {
			report.Classes.Warm = bench.WarmClass(row)
		}
	}
	if p.History == nil || !p.save {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	change, err := p.change(ctx, report)
	if err != nil {
		report.Warnings = append(report.Warnings, "no look for a change: "+(&historyError{err}).Error())
	} else if change != nil {
		report.Change = change.Sentence
	}
}

// change is the latest change of the series that the probe's last row belongs to, if it was within a day.
func (p *prober) change(ctx context.Context, report *bench.Report) (*detect.Change, error) {
	if len(report.Results) == 0 {
		return nil, nil
	}
	last := report.Results[len(report.Results)-1]
	now := report.StartedAt
	var points []detect.Point
	f := history.Filter{Target: p.target.Name, Workload: last.Workload, Client: p.client, Kind: "probe", Since: detect.Since(now)}
	for run, err := range p.History.All(ctx, f) {
		if err != nil {
			return nil, err
		}
		points = append(points, probePoint(run, last.Name))
	}
	slices.Reverse(points) // the history has the newest first
	points = append(points, pointOfResult(report, last, p.info(ctx).Revision))
	change := detect.Latest(last.Workload, points)
	if change == nil || now.Sub(change.At) > 24*time.Hour {
		return nil, nil
	}
	return change, nil
}

// probePoint is what a stored probe says of the row called name.
func probePoint(run *history.Run, name string) detect.Point {
	p := detect.Point{At: run.StartedAt, Revision: run.Revision, Cold: run.Cold, Failed: true}
	for _, row := range run.Rows {
		if row.Name == name && row.Latency.P50 != nil {
			p.P50, p.Failed = float64(*row.Latency.P50), false
		}
	}
	return p
}

func pointOfResult(report *bench.Report, r *bench.Result, revision string) detect.Point {
	p := detect.Point{At: report.StartedAt, Revision: revision, Failed: r.Latency.P50 == nil}
	if !p.Failed {
		p.P50 = float64(*r.Latency.P50)
	}
	return p
}

// idempotency is the key under which a caller may send its request again, and a digest of what it asks for; both are empty
// where there is no key. A scheduler sends the name of its job and the time that it was due.
func idempotency(r *http.Request, request string) (key, plan string) {
	key = r.Header.Get("Idempotency-Key")
	if job, due := r.Header.Get("X-CloudScheduler-JobName"), r.Header.Get("X-CloudScheduler-ScheduleTime"); key == "" && job != "" && due != "" {
		key = job + "@" + due
	}
	if key == "" {
		return "", ""
	}
	sum := sha256.Sum256([]byte(request))
	return key, hex.EncodeToString(sum[:])
}

// replay answers the run that is stored under o's key, if it was completed. A history that is down costs the caller a probe.
func (s *Service) replay(w http.ResponseWriter, r *http.Request, format bench.Format, o origin) (done bool, err error) {
	if o.key == "" || s.History == nil {
		return false, nil
	}
	run, err := s.History.ByKey(r.Context(), o.key)
	switch {
	case err != nil:
		return false, nil
	case run.Plan != o.plan:
		return true, &conflictError{fmt.Sprintf("another plan was sent under the key %q: %s", o.key, run.Request)}
	case run.Outcome != history.OK && run.Outcome != history.AssertionFailed:
		return false, nil
	}
	w.Header().Set("Idempotency-Replayed", "true")
	if format.Name != "json" {
		report, err := run.Report()
		if err != nil {
			return true, err
		}
		return true, s.answer(w, r, format, report, run.Status)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, run.Body, "", "  "); err != nil {
		return true, fmt.Errorf("read run %s: %w", run.ID, err)
	}
	w.Header().Set("Content-Type", format.ContentType)
	w.WriteHeader(run.Status)
	_, _ = w.Write(append(b.Bytes(), '\n')) // the client has left: nobody is there to be told
	return true, nil
}
