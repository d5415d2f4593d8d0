package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"nsop/bench"
)

// runs is the run that is going on, of which there is one at most, and the latest that ended: whoever was cut off from its
// answer finds it here, whatever becomes of the history.
type runs struct {
	mu       sync.Mutex
	now      *running
	latest   *ended
	draining bool // no run begins any more

	drained  context.Context // ends when draining begins
	drainNow context.CancelFunc
}

// A running is a run that is going on.
type running struct {
	id       string
	cancel   context.CancelCauseFunc
	done     chan struct{}
	progress bench.Progress
	results  []*bench.Result
	started  time.Time
	describe func(*bench.Report) // says what is measured
}

// An ended is a run with the error that ended it, if one did.
type ended struct {
	report *bench.Report
	err    error
}

// begin makes run the one that is going on, or says how long the present one still takes.
func (rs *runs) begin(run *running) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.draining {
		return errShutdown // and not busy: to try again here is no use
	}
	if rs.now == nil {
		rs.now = run
		return nil
	}
	left := rs.now.progress.Estimate - time.Since(rs.now.started)
	return &busyError{max(1, int(left.Seconds()+1))}
}

// end keeps what the run that was going on measured; report is nil where it broke off in a panic.
func (rs *runs) end(report *bench.Report, err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	close(rs.now.done)
	rs.now = nil
	if report == nil {
		return
	}
	rs.latest = &ended{report, err}
}

// state is what the run called id has measured so far and how far it is; false where it is not going on.
func (rs *runs) state(id string) (*bench.Report, bench.Progress, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.now == nil || rs.now.id != id {
		return nil, bench.Progress{}, false
	}
	p := rs.now.progress
	report := &bench.Report{Run: id, StartedAt: rs.now.started.UTC(), ElapsedNS: int64(time.Since(rs.now.started)),
		Results:  slices.Clone(rs.now.results),
		Warnings: []string{fmt.Sprintf("still running: %d of %d rows are done", p.Row, p.Rows)}}
	rs.now.describe(report)
	return report, p, true
}

func (rs *runs) drains() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.draining
}

// update is told of the progress of the run that is going on.
func (rs *runs) update(p bench.Progress) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.now.progress = p
	if p.Result != nil {
		rs.now.results = append(rs.now.results, p.Result)
	}
}

// stop ends the run called id and returns it, or nil where it is not going on.
func (rs *runs) stop(id string) *running {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.now == nil || rs.now.id != id {
		return nil
	}
	rs.now.cancel(errStopped)
	return rs.now
}

// drain ends the run that is going on and lets no other begin.
func (rs *runs) drain() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.draining = true
	rs.drainNow()
	if rs.now != nil {
		rs.now.cancel(errShutdown)
	}
}

func (rs *runs) find(id string) *ended {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.latest == nil || rs.latest.report.Run != id {
		return nil
	}
	return rs.latest
}

// perform measures plan, one run at a time, tells observe how far it is, and keeps the run as origin says. Its error, if any, is a *runError, a
// *busyError or errShutdown.
func (s *Service) perform(ctx context.Context, plan *bench.Plan, o origin, observe func(bench.Progress)) (report *bench.Report, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, plan.Limits.Total, errTotal)
	defer stop()
	run := &running{id: uuid.Must(uuid.NewV7()).String(), cancel: cancel, done: make(chan struct{}), started: time.Now(), describe: plan.Describe}
	estimate := plan.Estimate(0)
	run.progress = bench.Progress{Run: run.id, Rows: plan.Size(), Estimate: estimate, Seconds: estimate.Seconds()}
	if o.claim != nil {
		if err := o.claim(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.runs.begin(run); err != nil {
		return nil, err
	}
	// Deferred, so that a panic, of which the server makes a broken connection, does not leave the service busy for good.
	defer func() {
		s.runs.end(report, err)
		if report != nil {
			s.log(o, report, err)
		}
		if err != nil && report != nil {
			err = &runError{err, report}
		}
	}()
	if o.claim != nil { // a run under the same key may have ended since
		if err := o.claim(ctx); err != nil {
			return nil, err
		}
	}
	info := s.info(ctx)
	plan.Vantage = info
	report, err = plan.Run(ctx, run.id, s.Meter, func(p bench.Progress) {
		s.runs.update(p)
		observe(p)
	})
	report.Vantage = info
	report.Warnings = append(report.Warnings, info.Warnings...)
	if err == nil && !bench.AssertionsHold(report.Assertions) {
		err = assertionError{}
	}
	if o.after != nil {
		o.after(ctx, report, err)
	}
	if report.Unsaved = !plan.Spec.Save; plan.Spec.Save {
		s.keep(ctx, report, plan.Spec.Labels, o, err)
	}
	return report, err
}

// runFault is why a run that can be asked for failed.
type runFault struct {
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	ErrorKind string `json:"error_kind,omitempty"`
}

// run answers how far a run is, or what it measured.
func (s *Service) run(w http.ResponseWriter, r *http.Request) error {
	format, err := s.only(r, "format")
	if err != nil {
		return err
	}
	return s.answerRun(w, r, format)
}

// stopRun stops a run and answers what it had measured.
func (s *Service) stopRun(w http.ResponseWriter, r *http.Request) error {
	format, err := s.only(r, "format")
	if err != nil {
		return err
	}
	if now := s.runs.stop(pathParam(r, "id")); now != nil {
		select {
		case <-now.done:
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	return s.answerRun(w, r, format)
}

func (s *Service) answerRun(w http.ResponseWriter, r *http.Request, format bench.Format) error {
	id := pathParam(r, "id")
	if report, progress, ok := s.runs.state(id); ok {
		if format.Name != "json" {
			return s.answer(w, r, format, report, http.StatusOK)
		}
		w.Header().Set("Content-Type", format.ContentType)
		return writeJSON(w, struct {
			*bench.Report
			State    string  `json:"state"`
			Fraction float64 `json:"fraction"`
			Rows     int     `json:"rows"` // in all, samples counted apart
			Row      int     `json:"row"`  // that are done
			Name     string  `json:"name"` // of the one going on
			Seconds  float64 `json:"estimated_seconds"`
		}{report.Normalize(), "running", progress.Fraction, progress.Rows, progress.Row, progress.Name, progress.Seconds})
	}
	e := s.runs.find(id)
	switch {
	case e == nil:
		return s.answerKept(w, r, format, id)
	case format.Name != "json":
		return s.answer(w, r, format, e.report, http.StatusOK)
	}
	w.Header().Set("Content-Type", format.ContentType)
	return writeJSON(w, document(e.report, e.err))
}

// document is what a run is answered as: the report, with the error that ended it, if one did.
func document(report *bench.Report, err error) any {
	if err == nil || errors.As(err, &assertionError{}) {
		return report.Body()
	}
	p := status(err)
	return struct {
		*bench.Report
		Error runFault `json:"error"`
	}{report.Normalize(), runFault{p.Title, p.Status, p.Detail, p.ErrorKind}}
}
