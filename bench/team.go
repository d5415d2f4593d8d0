package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A Team is how a task of a job keeps step with the other tasks, which perform the other shares of the same run on other
// machines. They load one another's data, start together, and none removes what another still uses.
type Team struct {
	Share
	// Meet returns once every task that may still come has reached a stage of a row, or bound after the first of them
	// did, and which tasks are not there. At MeetGather late tells that the others have gone on before this one came.
	// From MeetStart it returns at the same moment everywhere.
	Meet func(ctx context.Context, row, stage string, bound time.Duration) (absent []uint64, late bool, err error)
	// Leave tells the others not to wait for this task any more; it may be called twice. alone tells that all of them
	// have left before.
	Leave func(ctx context.Context) (alone bool, err error)
	// Apart is the name in keys of a task that is late: it works on data of its own.
	Apart string

	apart  bool     // it is late
	absent []uint64 // of the latest meeting
}

// The stages of a row at which tasks meet.
const (
	MeetGather = "gather" // nothing of the row has begun
	MeetLoaded = "loaded" // its data is loaded
	MeetStart  = "start"  // all are warm
	MeetEnd    = "end"    // nobody uses its data any more
)

// patience is how long tasks wait for one another, in timeouts of an operation: a platform starts them one by one.
const patience = 12

// Join makes p the plan of one task. Its errors are *UnsupportedError and *ParamError.
func (p *Plan) Join(t *Team) error {
	if p.search != nil {
		return &UnsupportedError{Kind: "unsupported", Detail: "a search for the limit can't be shared by tasks"}
	}
	for row := range p.all() {
		if row.Workload.transacts() {
			return &UnsupportedError{Kind: "unsupported", Detail: row.Workload.Name + ": the tables of pgbench can't be shared by tasks"}
		}
	}
	if t.Of < 1 || t.Index >= t.Of {
		return &ParamError{Detail: fmt.Sprintf("no task %d of %d", t.Index, t.Of)}
	}
	p.team, p.Spec.Share = t, t.Share
	if least := slices.Min(p.Spec.Concurrency); uint64(least) < t.Of {
		p.Warnings = append(p.Warnings, fmt.Sprintf("concurrency %d is below %d tasks: each has one worker", least, t.Of))
	}
	return nil
}

// keysOf is the name of the run in its keys.
func (r *runner) keysOf() string {
	if r.team != nil && r.team.apart {
		return r.team.Apart
	}
	return r.report.Run
}

// bound is how long the tasks wait for the one that takes longest.
func (r *runner) bound(took time.Duration) time.Duration { return patience*r.Spec.Timeout + took }

func (t *Team) meet(ctx context.Context, row, stage string, bound time.Duration) (late bool, err error) {
	t.absent, late, err = t.Meet(ctx, row, stage, bound)
	if err != nil {
		return late, fmt.Errorf("meet the other tasks: %w", err)
	}
	return late, nil
}

// meeting is the row by its name: tasks may have come to it by ways of different length.
func (s *sampler) meeting() string { return fmt.Sprintf("%s#%d", s.Row.Name(), s.sample) }

// gather waits for the others before a row: they may still remove the data of the row before. Whoever is late goes on alone.
func (s *sampler) gather(ctx context.Context) error {
	if s.team == nil || s.team.apart {
		return nil
	}
	late, err := s.team.meet(ctx, s.meeting(), MeetGather, s.bound(0))
	if err != nil || !late {
		return err
	}
	s.team.apart = true
	s.report.Warnings = append(s.report.Warnings, fmt.Sprintf("task %d came when the others had begun: from %s on it ran by itself", s.team.Index, s.Row.Name()))
	_, err = s.team.Leave(ctx)
	return err
}

// loaded waits until all have loaded their shares, and loads those of tasks that have gone since.
func (s *sampler) loaded(ctx context.Context, store Store, params *Params) error {
	if s.team == nil || s.team.apart {
		return nil
	}
	before := slices.Clone(s.team.absent)
	if _, err := s.team.meet(ctx, s.meeting(), MeetLoaded, s.bound(0)); err != nil {
		return err
	}
	if !s.team.leads() || s.Target.Embedded {
		return nil
	}
	for _, index := range s.team.absent {
		if slices.Contains(before, index) {
			continue // loaded before
		}
		if err := s.loadShares(ctx, store, params, Share{index, s.team.Of}); err != nil {
			return err
		}
	}
	return nil
}

// start returns when the clock is to start.
func (s *sampler) start(ctx context.Context) error {
	if s.team == nil || s.team.apart {
		return nil
	}
	_, err := s.team.meet(ctx, s.meeting(), MeetStart, s.bound(0))
	return err
}

// leave waits until all have ended the row and tells whether its data is this task's to remove.
func (s *sampler) leave(ctx context.Context, took time.Duration) (alone bool, err error) {
	return s.runner.leave(ctx, s.meeting(), s.bound(took), s.Target)
}

// last is leave for what all rows of a target have left.
func (r *runner) last(ctx context.Context, part Part) (alone bool, err error) {
	return r.leave(ctx, part.Target.Name, r.bound(0), part.Target)
}

func (r *runner) leave(ctx context.Context, row string, bound time.Duration, t *Target) (alone bool, err error) {
	switch {
	case r.team == nil || r.team.apart:
		return true, nil
	case ctx.Err() != nil: // there is no time to wait: whoever ends last removes it
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return r.team.Leave(ctx)
	}
	if _, err := r.team.meet(ctx, row, MeetEnd, bound); err != nil {
		return false, err
	}
	return r.team.leads() || t.Embedded, nil
}

// leads tells whether this is the first of the tasks that are there.
func (t *Team) leads() bool {
	for i := range t.Index {
		if !slices.Contains(t.absent, i) {
			return false
		}
	}
	return true
}

// shares are those whose data this task loads: its own, those of absent tasks where it leads, and all where nobody else
// sees what it loads.
func (s *sampler) shares() []Share {
	switch {
	case s.team == nil || s.team.apart || s.Target.Embedded:
		return []Share{{}}
	}
	shares := []Share{s.team.Share}
	if s.team.leads() {
		for _, index := range s.team.absent {
			shares = append(shares, Share{index, s.team.Of})
		}
	}
	return shares
}
