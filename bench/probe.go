package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A probe is short: at most probeOperations of each of its rows, and no longer than probeTime.
const (
	probeOperations = 400
	probeTime       = 500 * time.Millisecond
	probeWarmup     = 20
	probeWarmupTime = 100 * time.Millisecond
	// ProbeTimeout bounds one stage and one operation of a probe where nothing else was asked for: a SYN that is lost is
	// repeated after a second.
	ProbeTimeout = 2 * time.Second
	// MaxProbeTimeout is the longest that leaves a probe time to say what went wrong.
	MaxProbeTimeout = 3 * time.Second
)

// ProbeParameters are those of Parameters that a probe takes; label.NAME comes on top of them.
var ProbeParameters = []string{"client", "size", "timeout", "assert", "save"}

// probeSelect is what a probe does in a SQL store: it makes no tables, which would be a load of its own every few minutes.
var probeSelect = Workload{Name: "select_1", Doc: "SELECT of a constant", Kinds: sqlKinds, Op: opSelectConstant}

func opSelectConstant(s Store, _ *Params, _ int) Op {
	selector, ok := s.(Selector)
	return func(ctx context.Context, _ uint64, errs []error) {
		if !ok {
			errs[0] = &KindError{"unsupported", "this client selects no constant"}
			return
		}
		errs[0] = selector.Select(ctx)
	}
}

// NewProbe makes the plan of a probe of t: SET and GET, or SELECT of a constant, through one library and, where there is one, the
// bare socket. s has the parameters of ProbeParameters set, or their defaults. Its errors are *ParamError and
// *UnsupportedError.
func NewProbe(t *Target, s Spec, l Limits) (*Plan, error) {
	if len(s.Clients) > 1 {
		return nil, &ParamError{Parameter: "client", Detail: "a probe is through one library", Allowed: clientNames(t)}
	}
	if len(s.Size) > 1 {
		return nil, &ParamError{Parameter: "size", Detail: "a probe has one size", Allowed: allowed("size", l)}
	}
	if s.Timeout > MaxProbeTimeout {
		return nil, &ParamError{Parameter: "timeout", Detail: fmt.Sprintf("%s is above %s: a probe answers within 5s", s.Timeout, MaxProbeTimeout),
			Allowed: []string{"a duration from 1ms to " + MaxProbeTimeout.String()}}
	}
	if s.Clients == nil {
		s.Clients = t.Default[:1]
	}
	if slices.ContainsFunc(t.Clients, func(c Client) bool { return c.Name == floor }) && s.Clients[0] != floor {
		s.Clients = append(slices.Clone(s.Clients), floor)
	}
	clients, _, err := chooseClients(t, s.Clients)
	if err != nil {
		return nil, err
	}
	s.Benchtime = Extent{Time: min(probeTime, l.Benchtime), Count: probeOperations}
	s.Warmup = Extent{Time: min(probeWarmupTime, l.Benchtime), Count: probeWarmup}
	p := &Plan{Spec: s, Limits: l}
	workloads := []*Workload{findWorkload("set"), findWorkload("get")}
	if t.Kind == "postgres" {
		workloads = []*Workload{&probeSelect}
	}
	part := Part{Target: t}
	for _, c := range clients {
		for _, w := range workloads {
			if detail := w.misfit(t, &s); detail != "" {
				return nil, &UnsupportedError{Kind: "unsupported", Detail: detail}
			}
			rows, err := p.cross(t, w, c)
			if err != nil {
				return nil, err
			}
			part.Rows = append(part.Rows, rows...)
		}
	}
	p.Parts = []Part{part}
	return p, p.check()
}

// floor is the client that is no library.
const floor = "floor"

func clientNames(t *Target) (names []string) {
	for _, c := range t.Clients {
		names = append(names, c.Name)
	}
	return names
}

// Shorten bounds each row of a probe to that time, and leaves out the bare socket's where that is said.
func (p *Plan) Shorten(each time.Duration, withoutFloor bool) {
	p.Spec.Benchtime.Time = min(p.Spec.Benchtime.Time, each)
	p.Spec.Warmup.Time = min(p.Spec.Warmup.Time, each/4+time.Millisecond)
	for i := range p.Parts {
		if withoutFloor && len(p.Parts[i].Rows) > 0 && p.Parts[i].Rows[0].Client.Name != floor {
			p.Parts[i].Rows = slices.DeleteFunc(p.Parts[i].Rows, func(r Row) bool { return r.Client.Name == floor })
		}
	}
}

// Phases are the steps of a fresh dial and the commands on it, in nanoseconds, each the median of a few; nil: there was no such
// step.
type Phases struct {
	DNS    *int64 `json:"dns"`
	TCP    *int64 `json:"tcp"`
	TLS    *int64 `json:"tls"`
	Auth   *int64 `json:"auth"`
	Select *int64 `json:"select,omitempty"` // of a database
	First  *int64 `json:"first"`
	Second *int64 `json:"second"`
	Third  *int64 `json:"third"`
}

// All yields the phases in their order.
func (p *Phases) All() []Phase {
	return []Phase{{"dns", p.DNS}, {"tcp", p.TCP}, {"tls", p.TLS}, {"auth", p.Auth}, {"select", p.Select}, {"first", p.First}, {"second", p.Second}, {"third", p.Third}}
}

// A Phase is one of Phases.
type Phase struct {
	Name string
	NS   *int64
}

// A Stat is the distribution of some durations.
type Stat struct {
	Count int    `json:"count"`
	MinNS int64  `json:"min_ns"`
	P50NS int64  `json:"p50_ns"`
	P99NS *int64 `json:"p99_ns"` // nil under 100 samples
	MaxNS int64  `json:"max_ns"`
}

// NewStat returns the distribution of samples, nil where there are none. It sorts them.
func NewStat(samples []time.Duration) *Stat {
	n := len(samples)
	if n == 0 {
		return nil
	}
	slices.Sort(samples)
	middle := samples[n/2]
	if n%2 == 0 {
		middle = (samples[n/2-1] + samples[n/2]) / 2
	}
	s := &Stat{Count: n, MinNS: int64(samples[0]), P50NS: int64(middle), MaxNS: int64(samples[n-1])}
	if n >= 100 {
		s.P99NS = new(int64(samples[(n*99+99)/100-1]))
	}
	return s
}

// Stat is the distribution of r's latencies, nil where nothing completed.
func (r *Result) Stat() *Stat {
	l := &r.Latency
	if l.Min == nil || l.P50 == nil || l.Max == nil {
		return nil
	}
	return &Stat{Count: int(r.Iterations), MinNS: *l.Min, P50NS: *l.P50, P99NS: l.P99, MaxNS: *l.Max}
}

// Classes are operations that must not be mixed.
type Classes struct {
	ProcessCold    *Stat `json:"process_cold"`    // the first of this process, dial included
	ConnectionCold *Stat `json:"connection_cold"` // a fresh dial and its first command
	IdleResumed    *Stat `json:"idle_resumed"`    // on a connection after a gap
	IdleGapNS      int64 `json:"idle_gap_ns,omitempty"`
	Warm           *Stat `json:"warm"`
}

// A Change is a step in the level of a row's p50 over the history.
type Change struct {
	Row      string    `json:"row"`
	At       time.Time `json:"at"`
	Revision string    `json:"revision,omitempty"`
	Ratio    float64   `json:"ratio"` // of the level after it to that before
	P        float64   `json:"p"`
	Sentence string    `json:"sentence"`
}

// probeNotes say in a few lines what a probe has beside its rows.
func probeNotes(r *Report) (notes []string) {
	if r.Phases != nil {
		text := "fresh dial:"
		separator := " "
		for _, p := range r.Phases.All() {
			if p.NS != nil {
				text += separator + p.Name + " " + FormatDuration(float64(*p.NS))
				separator = ", "
			}
		}
		if separator == ", " {
			notes = append(notes, text)
		}
	}
	if c := r.Classes; c != nil {
		text := "p50 by class:"
		for i, class := range []struct {
			name string
			stat *Stat
		}{{"first of the process", c.ProcessCold}, {"fresh connection", c.ConnectionCold}, {"after " + FormatDuration(float64(c.IdleGapNS)) + " idle", c.IdleResumed}, {"warm", c.Warm}} {
			if class.stat == nil {
				if i == 2 {
					class.name = "after a gap"
				}
				text += " " + class.name + " -,"
				continue
			}
			text += " " + class.name + " " + FormatDuration(float64(class.stat.P50NS)) + ","
		}
		notes = append(notes, text[:len(text)-1])
	}
	return notes
}

// ProbeMetrics are what a probe of one target has beside its rows, as Metrics are those of the rows; ok says whether it succeeded.
func ProbeMetrics(r *Report, ok bool) []Metric {
	if r.Target == nil {
		return nil
	}
	var (
		target  = MetricLabel{"target", r.Target.Name}
		success = Metric{Name: "nsop_probe_success", Help: "1 where the newest probe measured the target and all its assertions held, else 0."}
		took    = Metric{Name: "nsop_probe_duration_seconds", Help: "How long the newest probe took."}
		phases  = Metric{Name: "nsop_probe_phase_seconds", Help: "A step of a fresh dial, or a command after it."}
		classes = Metric{Name: "nsop_probe_class_seconds", Help: "Median of the operations of one class."}
	)
	value := 0.0
	if ok {
		value = 1
	}
	success.Points = []MetricPoint{{[]MetricLabel{target}, value}}
	took.Points = []MetricPoint{{[]MetricLabel{target}, float64(r.ElapsedNS) / 1e9}}
	if r.Phases != nil {
		for _, p := range r.Phases.All() {
			if p.NS != nil {
				phases.Points = append(phases.Points, MetricPoint{[]MetricLabel{target, {"phase", p.Name}}, float64(*p.NS) / 1e9})
			}
		}
	}
	if c := r.Classes; c != nil {
		for _, class := range []struct {
			name string
			stat *Stat
		}{{"process_cold", c.ProcessCold}, {"connection_cold", c.ConnectionCold}, {"idle_resumed", c.IdleResumed}, {"warm", c.Warm}} {
			if class.stat != nil {
				classes.Points = append(classes.Points, MetricPoint{[]MetricLabel{target, {"class", class.name}}, float64(class.stat.P50NS) / 1e9})
			}
		}
	}
	return []Metric{success, took, phases, classes}
}
