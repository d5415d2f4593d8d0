package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
	Target      *Target
	Workload    *Workload
	Client      Client
	Concurrency int
	Pipeline    int
	Size        int
	Keyspace    int
	Flavor      string
	Scale       int // of pgbench, as
	Protocol    string
	Sync        string
	Arrivals
}

// Name is r's name in the Go benchmark format and its key in the history: parameters beyond the usual ones are in it
// where they are not the default.
func (r Row) Name() string {
	name := fmt.Sprintf("%s/target=%s/client=%s/concurrency=%d", r.Workload.title(), r.Target.Name, r.Client.Name, r.Concurrency)
	if r.Workload.transacts() {
		return fmt.Sprintf("%s/scale=%d/protocol=%s", name, r.Scale, r.Protocol) + r.Arrivals.name()
	}
	name += fmt.Sprintf("/pipeline=%d/size=%d/keyspace=%d", r.Pipeline, r.Size, r.Keyspace)
	if r.Flavor != flavors[0] {
		name += "/flavor=" + r.Flavor
	}
	if r.Sync != syncs[0] {
		name += "/sync=" + r.Sync
	}
	return name + r.Arrivals.name()
}

// name is what a row's name has of its arrivals.
func (a Arrivals) name() (name string) {
	if a.Rate > 0 {
		name = "/rate=" + formatRate(a.Rate)
	}
	if a.Open() && a.Shape != shapes[0] {
		name += "/shape=" + a.String()
	}
	return name
}

// A Plan is what a run measures.
type Plan struct {
	Parts    []Part
	Spec     Spec
	Limits   Limits
	Warnings []string
	Suite    *Suite // whose plan it is; nil: of none
	Several  bool   // the report lists targets, in place of one
	search   *search

	Vantage any // where the run takes place, for the report
	// Around, where there is one, is called in place of rows, which measures every row: it may measure before and after
	// them. Its error ends the run.
	Around func(ctx context.Context, report *Report, rows func(ctx context.Context) error) error
}

// A Part of a plan is what it measures of one target.
type Part struct {
	Target *Target
	Rows   []Row
}

// NewPlan makes the cross product of what s asks for of target. workloads is a comma list, which may name a group, or
// empty. Its errors are *ParamError, *NotFoundError and *UnsupportedError.
func NewPlan(t *Target, workloads string, s Spec, l Limits) (*Plan, error) {
	if s.AutoRate {
		return nil, &ParamError{Parameter: "rate", Detail: "auto is of /limit alone", Allowed: allowed("rate", l)}
	}
	p := &Plan{Spec: s, Limits: l}
	if err := p.add(t, workloads, true); err != nil {
		return nil, err
	}
	return p, p.check()
}

// add plans what the spec asks for of one more target. What can't be done is an error where strict says that it was
// asked for by name, else left out with a warning.
func (p *Plan) add(t *Target, workloads string, strict bool) error {
	ws, named, err := chooseWorkloads(t, workloads)
	if unsupported := (*UnsupportedError)(nil); !strict && errors.As(err, &unsupported) {
		return p.leaveOut(false, unsupported.Detail)
	} else if err != nil {
		return err
	}
	names := p.Spec.Clients
	if p.Suite != nil {
		named, names = false, p.suiteClients(t)
	}
	clients, clientsNamed, err := chooseClients(t, names)
	if err != nil {
		return err
	}
	part := Part{Target: t}
	var shard []string // workloads that one node of a cluster does alone
	// Counted before they are made: a few long lists would fill the memory.
	s := &p.Spec
	if each := len(s.Concurrency) * len(s.Pipeline) * len(s.Size) * len(s.Keyspace) * len(s.arrivals()); each > p.Limits.Rows {
		return p.tooMany(each * len(ws) * len(clients))
	}
	for _, w := range ws {
		if detail := w.misfit(t, &p.Spec); detail != "" {
			if err := p.leaveOut(strict && named, detail); err != nil {
				return err
			}
			continue
		}
		oneKey := false
		for _, c := range clients {
			if !w.Supports(t.Kind, c) {
				if err := p.leaveOut(strict && named && clientsNamed, fmt.Sprintf("%s can't do %s on %s", c.Name, w.Name, t.Kind)); err != nil {
					return err
				}
				continue
			}
			rows, err := p.cross(t, w, c)
			if err != nil {
				return err
			}
			part.Rows = append(part.Rows, rows...)
			oneKey = oneKey || slices.ContainsFunc(rows, func(r Row) bool { return w.keysAtMost(1, r.Keyspace) })
		}
		if t.Cluster && oneKey {
			shard = append(shard, w.Name)
		}
	}
	if len(shard) > 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: one key each, which one node of %s has: the others do nothing", strings.Join(shard, ", "), t.Name))
	}
	if len(part.Rows) > 0 {
		p.Parts = append(p.Parts, part)
	}
	return nil
}

// keysAtMost tells whether w writes to some keys, but to no more than n, of a keyspace.
func (w *Workload) keysAtMost(n, keyspace int) bool {
	if w.Keys == nil {
		return false
	}
	found := 0
	for range w.Keys(&Params{Keys: Keys{n: uint64(min(keyspace, n+1))}}) {
		found++
	}
	return found > 0 && found <= n
}

// splits tells whether w names keys of several nodes in one command, which a cluster refuses.
func (w *Workload) splits(t *Target) bool { return w.Several && t.Cluster }

// misfit says what makes no sense for w on t, if anything does.
func (w *Workload) misfit(t *Target, s *Spec) string {
	if w.Real && t.Embedded {
		return fmt.Sprintf("%s can't do %s: it is embedded", t.Name, w.Name)
	}
	if w.splits(t) {
		return fmt.Sprintf("%s names keys of several slots, which a cluster such as %s refuses", w.Name, t.Name)
	}
	d := DefaultSpec()
	for _, c := range []struct {
		wrong bool
		name  string
	}{
		{s.Flavor != d.Flavor && (w.Title == "" || t.Kind != "redis"), "flavor"},
		{s.Sync != d.Sync && !t.Syncs, "sync"},
		{s.Scale != d.Scale && !w.transacts(), "scale"},
		{s.Protocol != d.Protocol && !w.transacts(), "protocol"},
		{w.transacts() && !slices.Equal(s.Pipeline, d.Pipeline), "pipeline"},
		{w.transacts() && !slices.Equal(s.Size, d.Size), "size"},
		{w.transacts() && !slices.Equal(s.Keyspace, d.Keyspace), "keyspace"},
	} {
		if c.wrong {
			return fmt.Sprintf("%s does not apply to %s on %s", c.name, w.Name, t.Name)
		}
	}
	return ""
}

// cross is the cross product of the parameters for one workload through one client.
func (p *Plan) cross(t *Target, w *Workload, c Client) (rows []Row, err error) {
	s := &p.Spec
	for _, concurrency := range s.Concurrency {
		for _, pipeline := range s.Pipeline {
			if pipeline > 1 && !c.Pipeline {
				// A pipeline is always asked for by name: its default is 1.
				return nil, &UnsupportedError{Kind: "unsupported", Detail: fmt.Sprintf("%s can't send %d commands in one round trip", c.Name, pipeline), Allowed: []string{"pipeline=1"}}
			}
			for _, size := range s.Size {
				if w.Grows && s.Benchtime.Count > uint64(p.elements(size)) {
					return nil, &ParamError{Parameter: "benchtime", Detail: fmt.Sprintf("%d elements of %d bytes are more than %d bytes", s.Benchtime.Count, size, p.Limits.Data),
						Allowed: []string{fmt.Sprintf("up to %dx for %s", p.elements(size), w.Name)}}
				}
				if w.Elements*uint64(size) > uint64(p.Limits.Data) {
					return nil, &ParamError{Parameter: "size", Detail: fmt.Sprintf("%d elements of %d bytes are more than %d bytes", w.Elements, size, p.Limits.Data),
						Allowed: []string{fmt.Sprintf("up to %d for %s", uint64(p.Limits.Data)/w.Elements, w.Name)}}
				}
				for _, keyspace := range s.Keyspace {
					for _, a := range s.arrivals() {
						rows = append(rows, Row{t, w, c, concurrency, pipeline, size, keyspace, s.Flavor, s.Scale, s.Protocol, s.Sync, a})
					}
				}
			}
		}
	}
	return rows, nil
}

// elementOverhead is what a store keeps beside each element of a collection, about.
const elementOverhead = 64

// elements is how many elements of size bytes a run may have in a store.
func (p *Plan) elements(size int) int { return p.Limits.Data / (size + elementOverhead) }

// check refuses a plan that is empty, too large or too long.
func (p *Plan) check() error {
	switch rows := p.rows(); {
	case rows > p.Limits.Rows:
		return p.tooMany(rows)
	case rows == 0:
		return &UnsupportedError{Kind: "unsupported", Detail: "nothing that was asked for can be done: " + strings.Join(p.Warnings, "; ")}
	}
	for r := range p.all() {
		if took := r.Arrivals.length(p.Spec.Benchtime); took > p.Limits.Benchtime {
			return &ParamError{Parameter: "benchtime", Detail: fmt.Sprintf("%s of %s take %s, above %s", p.Spec.Benchtime, r.Name(), took.Round(time.Second), p.Limits.Benchtime), Estimate: took,
				Allowed: allowed("benchtime", p.Limits)}
		}
	}
	return p.checkEstimate(p.Estimate(0))
}

func (p *Plan) tooMany(rows int) error {
	return &ParamError{Detail: fmt.Sprintf("%d rows are more than %d", rows, p.Limits.Rows), Allowed: []string{fmt.Sprintf("up to %d rows", p.Limits.Rows)}}
}

// rows is the number of rows, samples aside.
func (p *Plan) rows() (n int) {
	for _, part := range p.Parts {
		n += len(part.Rows)
	}
	return n
}

// Size is the number of rows, samples counted apart.
func (p *Plan) Size() int {
	if p.search != nil {
		return p.search.steps()
	}
	return p.rows() * p.Spec.Count
}

// leaveOut is an error for a combination that was asked for by name, a warning for another.
func (p *Plan) leaveOut(byName bool, detail string) error {
	if byName {
		return &UnsupportedError{Kind: "unsupported", Detail: detail}
	}
	if detail += ": left out"; !slices.Contains(p.Warnings, detail) {
		p.Warnings = append(p.Warnings, detail)
	}
	return nil
}

// chooseWorkloads resolves a comma list of names, aliases and groups; named tells that each was asked for by name.
func chooseWorkloads(t *Target, text string) (ws []*Workload, named bool, err error) {
	supported := func(w *Workload) bool {
		return slices.ContainsFunc(t.Clients, func(c Client) bool { return w.Supports(t.Kind, c) })
	}
	named = text != ""
	if !named {
		text = defaultWorkloads(t.Kind)
	}
	for name := range strings.SplitSeq(text, ",") {
		if g := slices.IndexFunc(Groups, func(g Group) bool { return g.Name == name }); g >= 0 {
			named = false
			before := len(ws)
			for i := range Workloads {
				if w := &Workloads[i]; supported(w) && Groups[g].Holds(w) {
					if slices.Contains(ws, w) {
						return nil, false, &ParamError{Parameter: "workloads", Detail: fmt.Sprintf("%q is given twice", w.Name)}
					}
					ws = append(ws, w)
				}
			}
			if len(ws) == before {
				return nil, false, &UnsupportedError{Kind: "unsupported", Detail: fmt.Sprintf("%s can't do any of %s", t.Name, name), Allowed: WorkloadNames(t)}
			}
			continue
		}
		w := findWorkload(name)
		switch {
		case w == nil:
			return nil, false, &NotFoundError{fmt.Sprintf("no workload %q", name), WorkloadNames(t)}
		case !supported(w):
			return nil, false, &UnsupportedError{Kind: "unsupported", Detail: fmt.Sprintf("%s can't do %s", t.Name, w.Name), Allowed: WorkloadNames(t)}
		case slices.Contains(ws, w):
			return nil, false, &ParamError{Parameter: "workloads", Detail: fmt.Sprintf("%q is given twice", name)}
		}
		ws = append(ws, w)
	}
	return ws, named, nil
}

// WorkloadNames are the workloads that target supports, and the groups that hold one of them.
func WorkloadNames(t *Target) (names []string) {
	var groups []string
	for i := range Workloads {
		w := &Workloads[i]
		if w.splits(t) || !slices.ContainsFunc(t.Clients, func(c Client) bool { return w.Supports(t.Kind, c) }) {
			continue
		}
		names = append(names, w.Name)
		for _, g := range Groups {
			if g.Holds(w) && !slices.Contains(groups, g.Name) {
				groups = append(groups, g.Name)
			}
		}
	}
	return append(names, groups...)
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

// all yields every row.
func (p *Plan) all() iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for _, part := range p.Parts {
			for _, r := range part.Rows {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// rowOverhead is what dialling, loading little data and cleaning up take on a near store.
const rowOverhead = 20 * time.Millisecond

// scaleOverhead is what loading 100,000 accounts takes on a near server.
const scaleOverhead = 500 * time.Millisecond

// Estimate is how long the run will take, given the round trip to the store, which only numbers of operations depend on.
func (p *Plan) Estimate(roundTrip time.Duration) time.Duration {
	var total float64
	for r := range p.all() {
		benchtime := p.Spec.Benchtime
		if r.Open() {
			benchtime = Extent{Time: r.Arrivals.length(benchtime)}
		}
		for _, e := range []Extent{benchtime, p.Spec.Warmup} {
			took := float64(e.Count) * float64(roundTrip) / float64(min(r.Concurrency, parallel)*r.Pipeline)
			if e.Time > 0 && (e.Count == 0 || float64(e.Time) < took) {
				took = float64(e.Time)
			}
			total += took
		}
		total += float64(rowOverhead + 4*roundTrip)
	}
	for _, part := range p.Parts {
		if slices.ContainsFunc(part.Rows, func(r Row) bool { return r.Workload.transacts() }) {
			total += float64(p.Spec.Scale) * float64(scaleOverhead) / float64(p.Spec.Count) // once, however many samples
		}
	}
	if p.search != nil {
		return p.search.estimate(time.Duration(min(total, float64(1<<50))))
	}
	return time.Duration(min(total*float64(p.Spec.Count), float64(1<<62)))
}

// parallel is how many round trips at once a store is trusted to serve without slowing down.
const parallel = 4

// checkEstimate refuses what can't finish in time.
func (p *Plan) checkEstimate(estimate time.Duration) error {
	if estimate <= p.Limits.Total {
		return nil
	}
	if p.search != nil {
		return &ParamError{Parameter: "benchtime", Estimate: estimate,
			Detail:  fmt.Sprintf("a search of up to %d rows takes about %s, more than the %s that a request has", p.search.steps(), estimate.Round(time.Second), p.Limits.Total),
			Allowed: []string{"a shorter benchtime", "a lower concurrency"}}
	}
	return &ParamError{Parameter: "benchtime", Estimate: estimate,
		Detail:  fmt.Sprintf("%d rows of %d samples take about %s, more than the %s that a request has", p.rows(), p.Spec.Count, estimate.Round(time.Second), p.Limits.Total),
		Allowed: []string{"fewer rows or samples, or a shorter benchtime"}}
}
