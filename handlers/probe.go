package handlers

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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

// A probe answers within 5 s whatever becomes of the path, the history and the metrics: the times are from when the request
// came.
const (
	probeMeasured = 3200 * time.Millisecond // by then the target has been measured, or can't be
	probeSaved    = 4700 * time.Millisecond // by then the run is in the history
	claimTime     = 700 * time.Millisecond  // bounds the look-up of an earlier run
	changeTime    = 500 * time.Millisecond  // bounds the reading of the rows' histories,
	pushTime      = time.Second             // this the sending of metrics
)

// probe is the short check for schedulers.
func (s *Service) probe(w http.ResponseWriter, r *http.Request) error {
	arrived := time.Now()
	key, err := idempotencyKey(r.Header)
	if err != nil {
		return err
	}
	plan := func(values url.Values) (*bench.Plan, error) {
		target, err := s.target(pathParam(r, "target"))
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if name != "format" && !strings.HasPrefix(name, "label.") && !slices.Contains(bench.ProbeParameters, name) {
				return nil, &bench.ParamError{Parameter: name, Detail: "no such parameter of a probe", Allowed: append(slices.Clone(bench.ProbeParameters), "label.NAME", "format")}
			}
		}
		spec, err := s.spec(values, []*bench.Target{target}, "format")
		if err != nil {
			return nil, err
		}
		if !values.Has("timeout") {
			spec.Timeout = bench.ProbeTimeout
		}
		if !values.Has("assert") {
			none, err := bench.ParseAssert("errors=0")
			if err != nil {
				return nil, err
			}
			spec.Asserts = []bench.Assert{none}
		}
		plan, err := bench.NewProbe(target, spec, s.Limits)
		if err == nil {
			diagnose.Probe(plan, arrived.Add(probeMeasured))
		}
		return plan, err
	}
	return s.measure(w, r, "probe", plan, func(o *origin) {
		o.deadline = arrived.Add(probeSaved)
		o.after = func(ctx context.Context, report *bench.Report, err error) {
			ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), o.deadline)
			defer cancel()
			s.addChanges(ctx, report)
			s.push(ctx, report, err == nil)
		}
		if key != "" && s.History != nil {
			digest := sha256.Sum256([]byte(o.request))
			o.key, o.plan = key, hex.EncodeToString(digest[:])
			o.claim = s.claimKey(o.key, o.plan)
		}
	})
}

// push sends the figures of a report to where metrics are collected, which costs a warning at most.
func (s *Service) push(ctx context.Context, report *bench.Report, ok bool) {
	if s.Push == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pushTime)
	defer cancel()
	if err := s.Push(ctx, report, ok); err != nil {
		report.Warnings = append(report.Warnings, err.Error())
	}
}

// maxKey bounds an idempotency key, in bytes.
const maxKey = 512

// idempotencyKey is what tells a caller's second attempt from another call: the key that it sent, or what Cloud Scheduler says
// of each of a job's executions, which is the same in each attempt. It is "" where there is none.
func idempotencyKey(h http.Header) (string, error) {
	key := ""
	job, at := h.Get("X-CloudScheduler-JobName"), h.Get("X-CloudScheduler-ScheduleTime")
	switch sent := h.Values("Idempotency-Key"); {
	case len(sent) > 1:
		return "", &bench.ParamError{Parameter: "Idempotency-Key", Detail: "given twice"}
	case len(sent) == 1 && sent[0] != "":
		key = "key " + sent[0]
	case job != "" && at != "":
		key = "schedule " + job + " " + at
	}
	if len(key) > maxKey {
		return "", &bench.ParamError{Parameter: "Idempotency-Key", Detail: fmt.Sprintf("longer than %d bytes", maxKey)}
	}
	return key, nil
}

// replayedError is that a run is there already, whose answer is the answer.
type replayedError struct{ run *history.Run }

func (e *replayedError) Error() string { return "run " + e.run.ID + " is the answer" }

// claimKey looks whether a run under key was completed: then it is the answer. A history that can't be read keeps nobody from
// measuring.
func (s *Service) claimKey(key, plan string) func(context.Context) error {
	down := false
	return func(ctx context.Context) error {
		if down {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, claimTime)
		defer cancel()
		run, err := s.History.ByKey(ctx, key)
		switch {
		case errors.Is(err, history.ErrNotFound):
			return nil
		case err != nil:
			down = true // saving will say it
			return nil
		case run.Plan != plan:
			return &conflictError{"this idempotency key was used for another request: " + run.Request}
		case run.Outcome == history.OK || run.Outcome == history.AssertionFailed:
			return &replayedError{run}
		}
		return nil
	}
}

// answerAgain answers a run of the history as it was answered.
func (s *Service) answerAgain(w http.ResponseWriter, r *http.Request, format bench.Format, run *history.Run) error {
	w.Header().Set("Idempotent-Replayed", "true")
	if format.Name != "json" {
		report, err := run.Report()
		if err != nil {
			return err
		}
		return s.answer(w, r, format, report, run.Status)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, run.Body, "", "  "); err != nil {
		return fmt.Errorf("read run %s: %w", run.ID, err)
	}
	w.Header().Set("Content-Type", format.ContentType)
	w.WriteHeader(run.Status)
	_, _ = w.Write(append(b.Bytes(), '\n')) // the client has left: nobody is there to be told
	return nil
}

const (
	changePoints = 12_000 // of one series: five weeks of a probe every five minutes, and some
	changeAge    = 7 * 24 * time.Hour
)

// addChanges tells in report of steps in the level of the library's rows within the last week, the latest first. It reads the
// history, after all is measured.
func (s *Service) addChanges(ctx context.Context, report *bench.Report) {
	if s.History == nil || len(report.Results) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	library := report.Results[0].Client
	var revisions []history.Value
	now, err := history.NewRun("probe", report)
	if err == nil {
		revisions, err = s.History.Values(ctx, "revision")
	}
	for i := 0; err == nil && i < len(now.Rows); i++ {
		r := &now.Rows[i]
		if r.Client != library {
			continue
		}
		var changes []detect.Change
		changes, err = s.changesOf(ctx, now, r, revisions)
		for _, c := range changes {
			if report.StartedAt.Sub(c.At) <= changeAge {
				report.Changes = append(report.Changes, bench.Change{Row: r.Name, At: c.At, Revision: c.Revision, Ratio: c.Ratio, P: c.P, Sentence: c.Sentence})
			}
		}
	}
	if err != nil {
		if report.Unmeasured == nil {
			report.Unmeasured = map[string]string{}
		}
		report.Unmeasured["change"] = (&historyError{err}).Error()
	}
	slices.SortStableFunc(report.Changes, func(a, b bench.Change) int { return b.At.Compare(a.At) })
	if len(report.Changes) > 0 {
		report.Change = report.Changes[0].Sentence
	}
}

// changesOf are the changes of one row's series, of which row, of the run now, is the latest point.
func (s *Service) changesOf(ctx context.Context, now *history.Run, row *history.Row, revisions []history.Value) ([]detect.Change, error) {
	rows, _, err := s.History.Series(ctx, history.Filter{Target: row.Target, Workload: row.Workload, Client: row.Client,
		Since: detect.Since(now.StartedAt.Add(-changeAge))}, changePoints)
	if err != nil {
		return nil, err
	}
	var points []detect.Point
	for _, r := range append(rows, *row) {
		if r.Name != row.Name {
			continue
		}
		p := detect.Point{At: r.StartedAt, Cold: r.Cold, Failed: r.Latency.P50 == nil, Revision: revisionAt(revisions, r.StartedAt)}
		if r.Run == now.ID {
			p.Revision = cmp.Or(now.Revision, p.Revision)
		}
		if r.Latency.P50 != nil {
			p.P50 = float64(*r.Latency.P50)
		}
		points = append(points, p)
	}
	return detect.Changes(row.Workload, points), nil
}

// revisionAt is the revision that was deployed at that time: that of those there were by then which came last.
func revisionAt(revisions []history.Value, at time.Time) (name string) {
	for _, v := range revisions { // in the order in which they came
		if v.First.After(at) {
			break
		}
		name = v.Value
	}
	return name
}
