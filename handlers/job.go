package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"nsop/bench"
	"nsop/bench/history"
)

// A Job is a run that several processes, its tasks, perform together, and which of them this one is.
type Job struct {
	Execution   string // the name of the run
	Task, Tasks int    // Task is below Tasks
	Attempt     int    // of this task, from 0
}

// A part is what a task keeps for the others in the history: first that it runs, then what it measured.
type part struct {
	Tasks   int             `json:"tasks"`
	State   string          `json:"state"`
	Request string          `json:"request"`
	Asserts []string        `json:"asserts"`
	Error   *runFault       `json:"error,omitempty"`
	Report  json.RawMessage `json:"report,omitempty"`
	// The histograms of the report's results, "" where there is none.
	Latencies    []string `json:"latencies,omitempty"`
	ServiceTimes []string `json:"service_times,omitempty"`
}

// taskError says that a task of a job failed.
type taskError struct {
	task  int
	fault runFault
}

func (e *taskError) Error() string { return fmt.Sprintf("task %d: %s", e.task, e.fault.Detail) }

// A crew is the tasks of a job, as one of them sees them.
type crew struct {
	*Job
	service *Service
	gone    map[int]bool // tasks that are not waited for
}

// join makes plan that of this task.
func (s *Service) join(plan *bench.Plan) (*crew, error) {
	if !plan.Spec.Save {
		return nil, &bench.ParamError{Parameter: "save", Detail: "what the tasks of a job measure is put together in the history", Allowed: []string{"true"}}
	}
	c := &crew{Job: s.Job, service: s, gone: map[int]bool{}}
	if c.Tasks == 1 {
		return c, nil
	}
	return c, plan.Join(&bench.Team{Share: bench.Share{Index: uint64(c.Task), Of: uint64(c.Tasks)}, Meet: c.meet, Leave: c.leave,
		Apart: fmt.Sprintf("%s:%d.%d", c.Execution, c.Task, time.Now().UnixMilli())})
}

// stage is where the history keeps who has reached a stage.
func (c *crew) stage(row, stage string) string { return c.Execution + "/" + row + "/" + stage }

// left is the stage of who is not to be waited for.
func (c *crew) left() string { return c.Execution + "/left" }

// interval is how often a task looks for the others: all of them together ask the history some hundred times a second.
func (c *crew) interval() time.Duration {
	return min(50*time.Millisecond+time.Duration(c.Tasks)*2*time.Millisecond, 5*time.Second)
}

// meet is bench.Team's.
func (c *crew) meet(ctx context.Context, row, stage string, bound time.Duration) (absent []uint64, late bool, err error) {
	var (
		h       = c.service.History
		here    = c.stage(row, stage)
		stages  = []string{here, c.left(), c.stage(row, bench.MeetGather), c.stage(row, bench.MeetEnd)}
		arrived map[string]map[int]history.Arrival
	)
	if stage == bench.MeetGather {
		// Whoever has loaded the row's data does not wait for this task any more.
		begun := c.stage(row, bench.MeetLoaded)
		if arrived, err = h.Arrived(ctx, begun); err != nil {
			return nil, false, err
		}
		for task := range arrived[begun] {
			late = late || task != c.Task
		}
		if late {
			return c.others(), true, nil
		}
	}
	if err := h.Arrive(ctx, here, c.Task, c.Attempt); err != nil {
		return nil, false, err
	}
	deadline := time.Now().Add(bound)
	for {
		arrived, err = h.Arrived(ctx, stages...)
		first, last, waits := deadline.Add(-bound), time.Time{}, false
		if err == nil {
			for _, a := range arrived[here] {
				if a.At.Before(first) {
					first = a.At
				}
				if a.At.After(last) {
					last = a.At
				}
			}
			for task := range c.Tasks {
				waits = waits || c.waitsFor(arrived, stages, task)
			}
		}
		now := time.Now()
		// By the clock of the first that came, so that all give up at one time.
		until := first.Add(bound)
		switch {
		case err == nil && !waits:
			if stage == bench.MeetStart { // when every task has seen that all are there, by the clock
				err = sleep(ctx, min(last.Add(2*c.interval()).Sub(now), 2*c.interval()))
			}
			return c.absent(arrived[here]), false, err
		case err != nil && !now.Before(deadline):
			return nil, false, err
		case err == nil && !now.Before(until):
			for task := range c.Tasks {
				c.gone[task] = c.gone[task] || c.waitsFor(arrived, stages, task)
			}
			return c.absent(arrived[here]), false, nil
		}
		if err := sleep(ctx, min(c.interval(), until.Sub(now))); err != nil {
			return nil, false, err
		}
	}
}

// waitsFor tells whether task has not reached the first of stages and may still do so. stages are that one, of those who
// left, of those who began the row, and of those who ended it.
func (c *crew) waitsFor(arrived map[string]map[int]history.Arrival, stages []string, task int) bool {
	if _, here := arrived[stages[0]][task]; here {
		delete(c.gone, task)
		return false
	}
	began, hasBegun := arrived[stages[2]][task]
	left, hasLeft := arrived[stages[1]][task]
	ended, hasEnded := arrived[stages[3]][task]
	switch {
	case task == c.Task:
		return false
	case hasEnded && !(hasBegun && ended.At.Before(began.At)): // it broke off
		return false
	case hasBegun && hasLeft && left.At.Before(began.At): // it was tried again
		return true
	case hasLeft:
		return false
	}
	return !c.gone[task]
}

func (c *crew) absent(here map[int]history.Arrival) (absent []uint64) {
	for task := range c.Tasks {
		if _, ok := here[task]; !ok && task != c.Task {
			absent = append(absent, uint64(task))
		}
	}
	return absent
}

func (c *crew) others() []uint64 { return c.absent(nil) }

// leave is bench.Team's.
func (c *crew) leave(ctx context.Context) (alone bool, err error) {
	if err := c.service.History.Arrive(ctx, c.left(), c.Task, c.Attempt); err != nil {
		return false, err
	}
	arrived, err := c.service.History.Arrived(ctx, c.left())
	if err != nil {
		return false, err
	}
	for task := range c.Tasks {
		if _, ok := arrived[c.left()][task]; !ok && !c.gone[task] {
			return false, nil
		}
	}
	return true, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// announce says in the history that this task runs. What an earlier attempt measured is gone with that.
func (c *crew) announce(ctx context.Context, plan *bench.Plan, o origin) error {
	return c.save(ctx, &part{State: bench.TaskRunning}, plan, o)
}

func (c *crew) save(ctx context.Context, p *part, plan *bench.Plan, o origin) error {
	p.Tasks, p.Request, p.Asserts = c.Tasks, o.request, []string{}
	for _, a := range plan.Spec.Asserts {
		p.Asserts = append(p.Asserts, a.Expr)
	}
	body, err := compact(p)
	if err != nil {
		return err
	}
	return c.service.History.SavePart(ctx, c.Execution, history.Part{Task: c.Task, Attempt: c.Attempt, Body: body})
}

// keep puts what this task measured into the history, and the last of all the whole run. Its error is the run's, or that
// nothing could be kept.
func (c *crew) keep(ctx context.Context, report *bench.Report, plan *bench.Plan, o origin, err error) error {
	// What was measured until the process is told to end is kept too: Cloud Run gives 10 s for that.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	p := &part{State: bench.TaskDone}
	if err != nil {
		fault := status(err)
		p.State, p.Error = bench.TaskFailed, &runFault{fault.Title, fault.Status, fault.Detail, fault.ErrorKind}
	}
	failure := p.fill(report)
	if failure == nil {
		failure = c.save(ctx, p, plan, o)
	}
	report.Unsaved = failure != nil
	if failure != nil {
		failure = &historyError{failure}
		report.Warnings = append(report.Warnings, failure.Error())
	}
	alone, lerr := c.leave(ctx)
	if lerr == nil && alone {
		lerr = c.saveRun(ctx, plan.Spec.Labels) // all have ended
	}
	if lerr != nil {
		report.Warnings = append(report.Warnings, "the list of runs: "+(&historyError{lerr}).Error())
	}
	return cmp.Or(err, failure)
}

// keepTime bounds the keeping of a part.
const keepTime = 8 * time.Second

// fill puts report with its histograms into p.
func (p *part) fill(report *bench.Report) (err error) {
	if p.Report, err = compact(report.Normalize()); err != nil {
		return err
	}
	for _, r := range report.Results {
		var latencies, times string
		if r.Latencies != nil {
			if latencies, err = bench.EncodeHistogram(r.Latencies); err != nil {
				return err
			}
		}
		if r.ServiceTimes != nil {
			if times, err = bench.EncodeHistogram(r.ServiceTimes); err != nil {
				return err
			}
		}
		p.Latencies, p.ServiceTimes = append(p.Latencies, latencies), append(p.ServiceTimes, times)
	}
	return nil
}

// report reads p's report with its histograms; nil while the task runs.
func (p *part) report() (*bench.Report, error) {
	if p.Report == nil {
		return nil, nil
	}
	report, err := bench.ReadReport(p.Report)
	if err != nil {
		return nil, err
	}
	if len(p.Latencies) != len(report.Results) || len(p.ServiceTimes) != len(report.Results) {
		return nil, errors.New("not as many histograms as results")
	}
	for i, r := range report.Results {
		if p.Latencies[i] != "" {
			if r.Latencies, err = bench.DecodeHistogram(p.Latencies[i]); err != nil {
				return nil, err
			}
		}
		if p.ServiceTimes[i] != "" {
			if r.ServiceTimes, err = bench.DecodeHistogram(p.ServiceTimes[i]); err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// saveRun keeps the run as it is now, for lists and comparisons.
func (c *crew) saveRun(ctx context.Context, labels map[string]string) error {
	j, err := c.service.jobParts(ctx, c.Execution)
	if err != nil || j == nil {
		return err
	}
	report, fault, err := j.merge()
	if err != nil {
		return err
	}
	run, err := record(report, labels, origin{kind: "job", request: j.request}, fault)
	if err != nil {
		return err
	}
	if err := c.service.History.Save(ctx, run); !errors.Is(err, history.ErrPrune) {
		return err
	}
	return nil
}

// A jobRun is the parts of a job that there are.
type jobRun struct {
	id      string
	request string
	asserts []string
	tasks   []bench.Task // all of them, by number
	reports []*bench.Report
	fault   error // of the first task that failed
}

// jobParts reads the parts of the job called id; nil where there are none.
func (s *Service) jobParts(ctx context.Context, id string) (*jobRun, error) {
	stored, err := s.History.Parts(ctx, id)
	if err != nil {
		return nil, &historyError{err}
	}
	if len(stored) == 0 {
		return nil, nil
	}
	j := &jobRun{id: id}
	for _, one := range stored {
		var p part
		if err := json.Unmarshal(one.Body, &p); err != nil {
			return nil, fmt.Errorf("read the part of task %d: %w", one.Task, err)
		}
		report, err := p.report()
		if err != nil {
			return nil, fmt.Errorf("read the part of task %d: %w", one.Task, err)
		}
		for len(j.tasks) < max(p.Tasks, one.Task+1) {
			j.tasks = append(j.tasks, bench.NewTask(len(j.tasks), 0, bench.TaskMissing, "", nil))
		}
		j.request, j.asserts = p.Request, p.Asserts
		text := ""
		if p.Error != nil {
			text = p.Error.Detail
			j.fault = cmp.Or(j.fault, error(&taskError{one.Task, *p.Error}))
		}
		j.tasks[one.Task] = bench.NewTask(one.Task, one.Attempt, p.State, text, report)
		if report != nil {
			j.reports = append(j.reports, report)
		}
	}
	return j, nil
}

// merge is the run as far as its tasks have ended, and the error that it is answered with, if one.
func (j *jobRun) merge() (report *bench.Report, fault, err error) {
	if len(j.reports) == 0 {
		report = &bench.Report{Run: j.id, Results: []*bench.Result{}, Assertions: []bench.Assertion{}}
	} else if report, err = bench.Merge(j.reports); err != nil {
		return nil, nil, err
	}
	var open []string
	for _, t := range j.tasks {
		switch t.State {
		case bench.TaskMissing:
			open = append(open, fmt.Sprintf("task %d is missing: it has not come yet, or never will", t.Task))
		case bench.TaskRunning:
			open = append(open, fmt.Sprintf("task %d has not ended: it is running, or was killed", t.Task))
		case bench.TaskFailed:
			open = append(open, fmt.Sprintf("task %d failed: %s", t.Task, t.Error))
		}
	}
	report.Warnings = append(open, report.Warnings...)
	report.Tasks = j.tasks
	for _, expr := range j.asserts {
		a, err := bench.ParseAssert(expr)
		if err != nil {
			return nil, nil, err
		}
		report.Assertions = append(report.Assertions, a.Check(report.Results)...)
	}
	fault = j.fault
	if fault == nil && !bench.AssertionsHold(report.Assertions) {
		fault = assertionError{}
	}
	return report, fault, nil
}

// merged is the run of the job called id; nil where there is none.
func (s *Service) merged(ctx context.Context, id string) (report *bench.Report, fault, err error) {
	j, err := s.jobParts(ctx, id)
	if err != nil || j == nil {
		return nil, nil, err
	}
	return j.merge()
}
