package handlers

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"nsop/bench"
)

// kept is how many ended runs can still be asked for.
const kept = 16

// runs is the run that is going on, of which there is one at most, and the latest that ended.
type runs struct {
	mu     sync.Mutex
	now    *running
	latest []*ended // oldest first
}

// A running is a run that is going on.
type running struct {
	id       string
	cancel   context.CancelCauseFunc
	done     chan struct{}
	progress bench.Progress
	results  []*bench.Result
	started  time.Time
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
	if rs.now == nil {
		rs.now = run
		return nil
	}
	left := rs.now.progress.Estimate - time.Since(rs.now.started)
	return &busyError{max(1, int(left.Seconds()+1))}
}

func (rs *runs) end(e *ended) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	close(rs.now.done)
	rs.now = nil
	rs.latest = append(rs.latest, e)
	if len(rs.latest) > kept {
		rs.latest = slices.Delete(rs.latest, 0, 1)
	}
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

// stop ends the run called id, or whichever is going on where id is empty, and returns it, or nil.
func (rs *runs) stop(id string, cause error) *running {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.now == nil || id != "" && rs.now.id != id {
		return nil
	}
	rs.now.cancel(cause)
	return rs.now
}

func (rs *runs) find(id string) *ended {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	i := slices.IndexFunc(rs.latest, func(e *ended) bool { return e.report.Run == id })
	if i < 0 {
		return nil
	}
	return rs.latest[i]
}

// perform measures plan, one run at a time, and tells observe how far it is. Its error, if any, is a *runError or a
// *busyError.
func (s *Service) perform(ctx context.Context, plan *bench.Plan, observe func(bench.Progress)) (*bench.Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, plan.Deadline, errTotal)
	defer stop()
	run := &running{id: uuid.Must(uuid.NewV7()).String(), cancel: cancel, done: make(chan struct{}), started: time.Now()}
	run.progress.Estimate = plan.Estimate(0)
	if err := s.runs.begin(run); err != nil {
		return nil, err
	}
	select {
	case <-s.draining: // after begin, so that Drain sees either the run or this
		cancel(errShutdown)
	default:
	}
	info := s.info(ctx)
	report, err := plan.Run(ctx, run.id, s.Meter, func(p bench.Progress) {
		s.runs.update(p)
		observe(p)
	})
	report.Vantage = info
	report.Warnings = append(report.Warnings, info.Warnings...)
	if err == nil && !bench.AssertionsHold(report.Assertions) {
		err = assertionError{}
	}
	s.runs.end(&ended{report, err})
	if err != nil {
		return report, &runError{err, report}
	}
	return report, nil
}

// run answers how far a run is, or what it measured.
func (s *Service) run(w http.ResponseWriter, r *http.Request) error {
	format, err := s.only(r, "format")
	if err != nil {
		return err
	}
	id := chi.URLParam(r, "id")
	s.runs.mu.Lock()
	now := s.runs.now
	if now != nil && now.id == id {
		state := struct {
			bench.Progress
			State   string          `json:"state"`
			Results []*bench.Result `json:"results"`
		}{now.progress, "running", append([]*bench.Result{}, now.results...)}
		s.runs.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		return writeJSON(w, state)
	}
	s.runs.mu.Unlock()
	e := s.runs.find(id)
	if e == nil {
		return &bench.NotFoundError{Detail: "no run " + id + " among the latest"}
	}
	return s.answer(w, r, format, e.report, http.StatusOK)
}

// stopRun stops a run and answers what it had measured.
func (s *Service) stopRun(w http.ResponseWriter, r *http.Request) error {
	id := chi.URLParam(r, "id")
	if now := s.runs.stop(id, errStopped); now != nil {
		select {
		case <-now.done:
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	return s.run(w, r)
}
