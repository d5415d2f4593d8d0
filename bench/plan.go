package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// An UnsupportedError says that a client or a store can't do what was asked for by name.
type UnsupportedError struct {
	Kind    string // one of Kinds
	Detail  string
	Allowed []string
}

func (e *UnsupportedError) Error() string { return e.Detail }

// A NotFoundError says that there is no such workload or target.
type NotFoundError struct {
	Detail  string
	Allowed []string
}

func (e *NotFoundError) Error() string { return e.Detail }

// A Row is one combination of a plan, measured once a sample.
type Row struct {
	Workload    *Workload
	Client      Client
	Concurrency int
	Pipeline    int
	Size        int
	Keyspace    int
}

// Name is r's name in the Go benchmark format and its key in the history.
func (r Row) Name(target string) string {
	return fmt.Sprintf("%s/target=%s/client=%s/concurrency=%d/pipeline=%d/size=%d/keyspace=%d",
		r.Workload.title(), target, r.Client.Name, r.Concurrency, r.Pipeline, r.Size, r.Keyspace)
}

// A Plan is what a run measures.
type Plan struct {
	Target   *Target
	Spec     Spec
	Rows     []Row
	Warnings []string
	Deadline time.Duration // of the whole run; 0 is none
}

// NewPlan makes the cross product of what s asks for of target. workloads is a comma list, which may name a group, or
// empty. Its errors are *ParamError, *NotFoundError and *UnsupportedError.
func NewPlan(t *Target, workloads string, s Spec, l Limits) (*Plan, error) {
	p := &Plan{Target: t, Spec: s, Deadline: l.Total}
	ws, named, err := chooseWorkloads(t, workloads)
	if err != nil {
		return nil, err
	}
	clients, clientsNamed, err := chooseClients(t, s.Clients)
	if err != nil {
		return nil, err
	}
	// Counted before they are made: a few long lists would fill the memory.
	each := len(s.Concurrency) * len(s.Pipeline) * len(s.Size) * len(s.Keyspace)
	tooMany := func(rows int) error {
		return &ParamError{Detail: fmt.Sprintf("%d rows are more than %d", rows, l.Rows), Allowed: []string{fmt.Sprintf("up to %d rows", l.Rows)}}
	}
	if each > l.Rows {
		return nil, tooMany(each * len(ws) * len(clients))
	}
	for _, w := range ws {
		for _, c := range clients {
			if !w.Supports(t.Kind, c) {
				if err := p.leaveOut(named && clientsNamed, fmt.Sprintf("%s can't do %s on %s", c.Name, w.Name, t.Kind)); err != nil {
					return nil, err
				}
				continue
			}
			for _, concurrency := range s.Concurrency {
				for _, pipeline := range s.Pipeline {
					if pipeline > 1 && !c.Pipeline {
						// A pipeline is always asked for by name: its default is 1.
						return nil, &UnsupportedError{Kind: "unsupported", Detail: fmt.Sprintf("%s can't send %d commands in one round trip", c.Name, pipeline), Allowed: []string{"pipeline=1"}}
					}
					for _, size := range s.Size {
						for _, keyspace := range s.Keyspace {
							p.Rows = append(p.Rows, Row{w, c, concurrency, pipeline, size, keyspace})
						}
					}
				}
			}
		}
	}
	if len(p.Rows) > l.Rows {
		return nil, tooMany(len(p.Rows))
	}
	if len(p.Rows) == 0 {
		return nil, &UnsupportedError{Kind: "unsupported", Detail: "nothing that was asked for can be done: " + strings.Join(p.Warnings, "; ")}
	}
	if err := p.checkEstimate(p.Estimate(0)); err != nil {
		return nil, err
	}
	return p, nil
}

// leaveOut is an error for a combination that was asked for by name, a warning for another.
func (p *Plan) leaveOut(byName bool, detail string) error {
	if byName {
		return &UnsupportedError{Kind: "unsupported", Detail: detail}
	}
	if !slices.Contains(p.Warnings, detail) {
		p.Warnings = append(p.Warnings, detail+": left out")
	}
	return nil
}

// chooseWorkloads resolves a comma list of names, aliases and groups; named tells that each was asked for by name.
func chooseWorkloads(t *Target, text string) (ws []*Workload, named bool, err error) {
	names := strings.Split(text, ",")
	named = text != ""
	if !named {
		names = DefaultWorkloads
	}
	add := func(name string, w *Workload) error {
		if slices.Contains(ws, w) {
			return &ParamError{Parameter: "workloads", Detail: fmt.Sprintf("%q is given twice", name)}
		}
		ws = append(ws, w)
		return nil
	}
	for _, name := range names {
		if name == "all" {
			named = false
			for i := range Workloads {
				if w := &Workloads[i]; slices.ContainsFunc(t.Clients, func(c Client) bool { return w.Supports(t.Kind, c) }) {
					if err := add(w.Name, w); err != nil {
						return nil, false, err
					}
				}
			}
			continue
		}
		w := findWorkload(name)
		if w == nil {
			return nil, false, &NotFoundError{fmt.Sprintf("no workload %q", name), WorkloadNames(t)}
		}
		if !slices.ContainsFunc(t.Clients, func(c Client) bool { return w.Supports(t.Kind, c) }) {
			return nil, false, &UnsupportedError{Kind: "unsupported", Detail: fmt.Sprintf("%s can't do %s", t.Name, w.Name), Allowed: WorkloadNames(t)}
		}
		if err := add(name, w); err != nil {
			return nil, false, err
		}
	}
	return ws, named, nil
}

// WorkloadNames are the workloads that target supports, and the groups.
func WorkloadNames(t *Target) (names []string) {
	for i := range Workloads {
		if w := &Workloads[i]; slices.ContainsFunc(t.Clients, func(c Client) bool { return w.Supports(t.Kind, c) }) {
			names = append(names, w.Name)
		}
	}
	for _, g := range Groups {
		names = append(names, g.Name)
	}
	return names
}

func chooseClients(t *Target, names []string) (clients []Client, named bool, err error) {
	if named = names != nil; !named {
		names = t.Default
	}
	for _, name := range names {
		i := slices.IndexFunc(t.Clients, func(c Client) bool { return c.Name == name })
		if i < 0 {
			e := &ParamError{Parameter: "client", Detail: fmt.Sprintf("%s has no client %q", t.Name, name)}
			for _, c := range t.Clients {
				e.Allowed = append(e.Allowed, c.Name)
			}
			return nil, false, e
		}
		clients = append(clients, t.Clients[i])
	}
	return clients, named, nil
}

// rowOverhead is what dialling, loading little data and cleaning up take on a near store.
const rowOverhead = 20 * time.Millisecond

// Estimate is how long the run will take, given the round trip to the store, which only numbers of operations depend on.
func (p *Plan) Estimate(roundTrip time.Duration) time.Duration {
	var total float64
	for _, r := range p.Rows {
		for _, e := range []Extent{p.Spec.Benchtime, p.Spec.Warmup} {
			total += float64(e.Time)
			total += float64(e.Count) * float64(roundTrip) / float64(min(r.Concurrency, parallel)*r.Pipeline)
		}
		total += float64(rowOverhead + 4*roundTrip)
	}
	return time.Duration(min(total*float64(p.Spec.Count), float64(1<<62)))
}

// parallel is how many round trips at once a store is trusted to serve without slowing down.
const parallel = 4

// checkEstimate refuses what can't finish in time.
func (p *Plan) checkEstimate(estimate time.Duration) error {
	if p.Deadline == 0 || estimate <= p.Deadline {
		return nil
	}
	return &ParamError{Parameter: "benchtime", Estimate: estimate,
		Detail:  fmt.Sprintf("%d rows of %d samples take about %s, more than the %s that a request has", len(p.Rows), p.Spec.Count, estimate.Round(time.Second), p.Deadline),
		Allowed: []string{"fewer rows or samples, or a shorter benchtime"}}
}
