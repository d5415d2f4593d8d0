package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/vantage"
)

const (
	probeDials = 3 // fresh dials of a probe, and one more where the process is cold,
	// as long as they take less than this in all.
	probeDialTime = 600 * time.Millisecond
)

// errLate says that a probe's time was over.
var errLate = errors.New("the probe's time was over")

// Probe has plan, which bench.NewProbe made, dial its target afresh in phases before its rows, and use a connection that was
// left alone after them. It ends at by, or a moment after. The error of its run is a *bench.LostError where the target can't be
// measured until then.
func Probe(plan *bench.Plan, by time.Time) {
	plan.Around = func(ctx context.Context, report *bench.Report, rows func(context.Context) error) error {
		bounded, cancel := context.WithDeadlineCause(ctx, by, errLate)
		defer cancel()
		plan.Describe(report)
		report.Phases, report.Classes, report.Unmeasured = &bench.Phases{}, &bench.Classes{}, map[string]string{}
		p := &probe{plan: plan, target: plan.Parts[0].Target, timeout: plan.Spec.Timeout, report: report, samples: map[string][]time.Duration{}}
		if info, ok := report.Vantage.(vantage.Info); ok {
			p.cold = info.Cold
		}
		defer p.close()
		err := p.fresh(bounded)
		if err == nil {
			p.fit(by)
			err = p.settle(ctx, rows(bounded))
		} else {
			if errors.Is(context.Cause(bounded), errLate) {
				err = errLate
			}
			err = p.lost(ctx, err)
		}
		p.classes(bounded)
		p.missing(err)
		return err
	}
}

// A probe is one that is going on.
type probe struct {
	plan    *bench.Plan
	target  *bench.Target
	timeout time.Duration
	report  *bench.Report
	cold    bool

	samples map[string][]time.Duration // of the phases
	dials   []time.Duration            // up to the answer to the first command
	idle    *line                      // is left alone from since on
	since   time.Time
}

// fresh dials some times, each up to the third command.
func (p *probe) fresh(ctx context.Context) error {
	began := time.Now()
	for i := 0; len(p.dials) < probeDials; i++ {
		if i > 0 && time.Since(began) > probeDialTime {
			break
		}
		phases, err := p.dial(ctx)
		if err != nil && i > 0 {
			p.report.Warnings = append(p.report.Warnings, fmt.Sprintf("dial %d of %d failed: %v", i+1, probeDials, err))
			break
		}
		if err != nil {
			return err
		}
		var sum time.Duration
		for _, x := range phases {
			if x.name != "second" && x.name != "third" {
				sum += x.took
			}
		}
		if i == 0 && p.cold {
			p.report.Classes.ProcessCold = stat([]time.Duration{sum})
			p.keep(phases) // until there are others
			continue
		}
		if len(p.dials) == 0 {
			clear(p.samples)
		}
		p.dials = append(p.dials, sum)
		p.keep(phases)
	}
	p.report.Classes.ConnectionCold = stat(slices.Clone(p.dials))
	if p.target.Wire == nil {
		p.report.Unmeasured["phases_ns"] = "the store is in this process: there is no dial, and the commands are the library's"
	}
	for name, to := range map[string]**int64{"dns": &p.report.Phases.DNS, "connect": &p.report.Phases.TCP, "tls": &p.report.Phases.TLS, "auth": &p.report.Phases.Auth,
		"select": &p.report.Phases.Select, "first": &p.report.Phases.First, "second": &p.report.Phases.Second, "third": &p.report.Phases.Third} {
		if s := stat(p.samples[name]); s != nil {
			*to = &s.P50NS
		}
	}
	return nil
}

func (p *probe) keep(phases []timed) {
	for _, x := range phases {
		p.samples[x.name] = append(p.samples[x.name], x.took)
	}
}

// dial opens one connection and performs three commands on it, which then is the one left alone.
func (p *probe) dial(ctx context.Context) (phases []timed, err error) {
	if p.target.Wire == nil {
		return p.open(ctx)
	}
	host, port, err := net.SplitHostPort(p.target.Wire.Addr)
	if err != nil {
		return nil, err
	}
	addresses := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, a)
	} else {
		var took time.Duration
		if addresses, took, err = lookup(ctx, host, p.timeout); err != nil {
			return nil, p.failed("dns", err)
		}
		phases = append(phases, timed{"dns", took})
	}
	var l *line
	var at *dialled
	for _, a := range addresses[:min(len(addresses), maxAddresses)] {
		l, at, err = dial(ctx, ctx, p.target.Wire, net.JoinHostPort(a.String(), port), p.timeout)
		if err == nil || at.failed != "connect" {
			break
		}
	}
	if err != nil {
		return nil, p.failed(at.failed, err)
	}
	phases = append(phases, at.stages...)
	for _, name := range []string{"first", "second", "third"} {
		asked := time.Now()
		if err := l.Echo(100); err != nil {
			l.Close()
			return nil, p.failed(name+" command", err)
		}
		phases = append(phases, timed{name, time.Since(asked)})
	}
	p.close()
	p.idle, p.since = l, time.Now()
	return phases, nil
}

// failed is err with the stage of a dial that it ended.
func (p *probe) failed(stage string, err error) error {
	kind, text := bench.Kind(err), err.Error()
	if kind == "timeout" {
		text = "no answer within " + p.timeout.String()
	}
	if strings.HasPrefix(text, stage+": ") {
		return &bench.KindError{Kind: kind, Text: text}
	}
	return &bench.KindError{Kind: kind, Text: stage + ": " + text}
}

// open is dial for a store in this process: a new client of it.
func (p *probe) open(ctx context.Context) (phases []timed, err error) {
	started := time.Now()
	session, err := p.target.Connect(ctx, p.timeout)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	store, err := session.Open(ctx, p.plan.Parts[0].Rows[0].Client.Name, bench.Options{Connections: 1, Timeout: p.timeout})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	took := time.Since(started)
	for _, name := range []string{"first", "second", "third"} {
		asked := time.Now()
		if _, err := store.Get(ctx, "nsop:"+p.report.Run+":probe"); ignoreMiss(err) != nil {
			return nil, err
		}
		phases = append(phases, timed{name, time.Since(asked)})
	}
	return append(phases, timed{"open", took}), nil
}

// What a session takes to open and what a row takes beside its operations, in round trips.
const (
	sessionTrips = 10
	rowTrips     = 9
	probeMargin  = 200 * time.Millisecond
)

// fit makes the rows end in time on a long path.
func (p *probe) fit(by time.Time) {
	var trip time.Duration
	if s := stat(slices.Clone(p.samples["second"])); s != nil {
		trip = time.Duration(s.P50NS)
	}
	each := func() time.Duration {
		n := time.Duration(len(p.plan.Parts[0].Rows))
		return ((time.Until(by)-probeMargin-sessionTrips*trip)/n - rowTrips*trip) * 4 / 5 // a fifth is the warm-up's
	}
	few := func(d time.Duration) bool { return d < 5*trip }
	if few(each()) {
		before := len(p.plan.Parts[0].Rows)
		p.plan.Shorten(p.plan.Spec.Benchtime.Time, true)
		if len(p.plan.Parts[0].Rows) < before {
			p.report.Warnings = append(p.report.Warnings, fmt.Sprintf("a round trip takes %s: the bare socket was left out, so that the probe ends in time", bench.FormatDuration(float64(trip))))
		}
	}
	p.plan.Shorten(max(each(), 2*trip, time.Millisecond), false)
}

// settle is the error of a run that ended with err: rows that were measured are the answer, also where others were not.
func (p *probe) settle(ctx context.Context, err error) error {
	if !errors.Is(err, errLate) {
		return err
	}
	if len(p.report.Results) == 0 {
		return p.lost(ctx, err)
	}
	if len(p.report.Results) == len(p.plan.Parts[0].Rows) {
		return nil // the last was cut short
	}
	p.report.Warnings = append(p.report.Warnings, fmt.Sprintf("the time of a probe was over after %d of %d rows", len(p.report.Results), len(p.plan.Parts[0].Rows)))
	return nil
}

// lost is err as the error of a target that can't be measured, unless it was the caller who ended the probe.
func (p *probe) lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, errLate) {
		err = &bench.KindError{Kind: "timeout", Text: "it is too slow to be measured within the time of a probe"}
	}
	name := p.target.Name
	if p.target.Address != "" {
		name += " at " + p.target.Address
	}
	return &bench.LostError{Target: name, Err: err}
}

// classes adds what the rows and the connection that was left alone tell.
func (p *probe) classes(ctx context.Context) {
	c := p.report.Classes
	for _, r := range p.report.Results {
		if r.Client == p.plan.Parts[0].Rows[0].Client.Name { // the last of it is the one that reads
			c.Warm = r.Stat()
		}
	}
	if p.idle == nil || ctx.Err() != nil || c.Warm == nil {
		return
	}
	asked := time.Now()
	gap := asked.Sub(p.since)
	if err := p.idle.Echo(100); err != nil {
		p.report.Unmeasured["classes.idle_resumed"] = fmt.Sprintf("after %s: %v", gap.Round(time.Millisecond), err)
		return
	}
	c.IdleResumed, c.IdleGapNS = stat([]time.Duration{time.Since(asked)}), int64(gap)
}

// missing says why a class is nil.
func (p *probe) missing(err error) {
	c := p.report.Classes
	why := "out of time"
	if err != nil {
		why = err.Error()
	}
	for _, class := range []struct {
		name   string
		stat   *Stat
		reason string
	}{
		{"process_cold", c.ProcessCold, "this is not the first request of the process"},
		{"connection_cold", c.ConnectionCold, why},
		{"idle_resumed", c.IdleResumed, why},
		{"warm", c.Warm, why},
	} {
		reason := class.reason
		switch {
		case class.name == "process_cold" && p.cold:
			reason = why
		case class.name == "idle_resumed" && p.target.Wire == nil:
			reason = "the store is in this process"
		}
		if at := "classes." + class.name; class.stat == nil && p.report.Unmeasured[at] == "" {
			p.report.Unmeasured[at] = reason
		}
	}
	if p.report.Phases.First == nil && p.report.Unmeasured["phases_ns"] == "" {
		p.report.Unmeasured["phases_ns"] = why
	}
}

func (p *probe) close() {
	if p.idle != nil {
		p.idle.Close()
	}
}
