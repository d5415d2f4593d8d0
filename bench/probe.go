package bench

import (
	"fmt"
	"strings"
	"time"
)

// Phases are what the parts of one fresh dial took, in nanoseconds; nil is a part that there was not, or that was not reached.
type Phases struct {
	DNS     *int64 `json:"dns"`
	Connect *int64 `json:"connect"`
	TLS     *int64 `json:"tls"`
	Auth    *int64 `json:"auth"`
	Select  *int64 `json:"select"`
	First   *int64 `json:"first"` // command
	Second  *int64 `json:"second"`
	Third   *int64 `json:"third"`
}

// list names the phases in their order.
func (p *Phases) list() []struct {
	name string
	ns   **int64
} {
	return []struct {
		name string
		ns   **int64
	}{{"dns", &p.DNS}, {"connect", &p.Connect}, {"tls", &p.TLS}, {"auth", &p.Auth}, {"select", &p.Select}, {"first", &p.First},
		{"second", &p.Second}, {"third", &p.Third}}
}

// Set stores what the phase called name took. Others than there are it does not keep.
func (p *Phases) Set(name string, took time.Duration) {
	for _, phase := range p.list() {
		if phase.name == name {
			ns := took.Nanoseconds()
			*phase.ns = &ns
		}
	}
}

// Ready is what it took until the first command was answered.
func (p *Phases) Ready() (sum time.Duration) {
	for _, phase := range p.list() {
		if *phase.ns != nil && phase.name != "second" && phase.name != "third" {
			sum += time.Duration(**phase.ns)
		}
	}
	return sum
}

// Classes are the samples of a probe by what had gone before them, which are never mixed; nil is a class without samples.
type Classes struct {
	ProcessCold    *Class `json:"process_cold"`    // the first dial of this process, its first command included
	ConnectionCold *Class `json:"connection_cold"` // a fresh dial, its first command included
	IdleResumed    *Class `json:"idle_resumed"`    // a command on a connection that had rested for gap_ns
	Warm           *Class `json:"warm"`            // a GET, or a select, through the bare socket or else the library
}

// A Class is the distribution of some samples, in nanoseconds.
type Class struct {
	Count int64  `json:"count"`
	Min   *int64 `json:"min"`
	P50   *int64 `json:"p50"`
	P99   *int64 `json:"p99"`
	Max   *int64 `json:"max"`
	Gap   int64  `json:"gap_ns,omitempty"`
}

// OneSample is the class of a single sample.
func OneSample(took time.Duration) *Class {
	ns := took.Nanoseconds()
	return &Class{Count: 1, Min: &ns, P50: &ns, Max: &ns}
}

// TwoSamples is the class of two samples; the median of two is the lower one.
func TwoSamples(a, b int64) *Class {
	low, high := min(a, b), max(a, b)
	return &Class{Count: 2, Min: &low, P50: &low, Max: &high}
}

// WarmClass is the class of a row's operations, nil where none completed.
func WarmClass(r *Result) *Class {
	if r.Iterations == 0 {
		return nil
	}
	return &Class{Count: r.Iterations, Min: r.Latency.Min, P50: r.Latency.P50, P99: r.Latency.P99, Max: r.Latency.Max}
}

// probeNotes are the lines below a probe's table.
func probeNotes(r *Report) (notes []string) {
	show := func(ns *int64) string {
		if ns == nil {
			return "-"
		}
		return FormatDuration(float64(*ns))
	}
	if r.Phases != nil {
		var parts []string
		for _, phase := range r.Phases.list() {
			if *phase.ns != nil {
				parts = append(parts, phase.name+" "+show(*phase.ns))
			}
		}
		notes = append(notes, "fresh dial: "+strings.Join(parts, ", "))
	}
	if c := r.Classes; c != nil {
		var parts []string
		for _, class := range []struct {
			name string
			of   *Class
		}{{"cold process", c.ProcessCold}, {"fresh connection", c.ConnectionCold}, {"after a gap", c.IdleResumed}, {"warm", c.Warm}} {
			switch {
			case class.of == nil:
				parts = append(parts, class.name+" -")
			case class.of.Gap > 0:
				parts = append(parts, fmt.Sprintf("%s of %s %s (%s)", class.name, FormatDuration(float64(class.of.Gap)), show(class.of.P50), FormatCount(class.of.Count)))
			default:
				parts = append(parts, fmt.Sprintf("%s %s (%s)", class.name, show(class.of.P50), FormatCount(class.of.Count)))
			}
		}
		notes = append(notes, "samples: "+strings.Join(parts, ", "))
	}
	return notes
}

// ProbePlan is the plan of a probe: SET and GET, or select, through the bare socket and one library, few and short. s gives
// what a request may say; clients are the library's name, or nil for the target's first default.
func ProbePlan(t *Target, s Spec, l Limits) (*Plan, error) {
	const (
		operations = 300
		most       = 300 * time.Millisecond // of a row
		warm       = 20
		warmMost   = 60 * time.Millisecond
	)
	if len(s.Clients) > 1 {
		return nil, &ParamError{Parameter: "client", Detail: "a probe takes one"}
	}
	if s.Clients == nil {
		s.Clients = t.Default[:1]
	}
	if floor := "floor"; t.has(floor) && s.Clients[0] != floor {
		s.Clients = []string{floor, s.Clients[0]}
	}
	s.Benchtime, s.Warmup = Extent{Time: most, Count: operations}, Extent{Time: warmMost, Count: warm}
	workloads := "set,get"
	if t.Kind == "postgres" {
		workloads = "select"
	}
	return NewPlan(t, workloads, s, l)
}
