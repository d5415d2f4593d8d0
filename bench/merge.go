package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Task is what one task of a job contributed to its run.
type Task struct {
	Task       int        `json:"task"`
	Attempt    int        `json:"attempt"`
	State      string     `json:"state"` // TaskDone, TaskFailed, TaskRunning or TaskMissing
	Error      string     `json:"error,omitempty"`
	StartedAt  *time.Time `json:"started_at"` // null until it has begun
	ElapsedNS  *int64     `json:"elapsed_ns"` // null until it has ended
	Iterations int64      `json:"iterations"`
	Errors     int64      `json:"errors"`
	Vantage    any        `json:"vantage"`
	Results    []TaskRow  `json:"results"`
	Warnings   []string   `json:"warnings"`
}

// A TaskRow is a task's share of a row.
type TaskRow struct {
	Name       string  `json:"name"`
	Sample     int     `json:"sample"`
	Iterations int64   `json:"iterations"`
	Errors     int64   `json:"errors"`
	ElapsedNS  int64   `json:"elapsed_ns"`
	OpsPerSec  *Figure `json:"ops_per_sec"`
	Latency    Latency `json:"latency_ns"`
}

// The states of a task.
const (
	TaskDone    = "done"
	TaskFailed  = "failed"
	TaskRunning = "running" // or killed
	TaskMissing = "missing" // it never came, or has not come yet
)

// NewTask returns the summary of a part.
func NewTask(task, attempt int, state, fault string, part *Report) Task {
	t := Task{Task: task, Attempt: attempt, State: state, Error: fault, Results: []TaskRow{}, Warnings: []string{}}
	if part == nil {
		return t
	}
	t.StartedAt, t.ElapsedNS, t.Vantage = &part.StartedAt, &part.ElapsedNS, part.Vantage
	t.Warnings = append(t.Warnings, part.Warnings...)
	for _, r := range part.Results {
		t.Iterations += r.Iterations
		t.Errors += r.Errors
		t.Results = append(t.Results, TaskRow{r.Name, r.Sample, r.Iterations, r.Errors, r.ElapsedNS, r.OpsPerSec, r.Latency})
		for _, w := range r.Warnings {
			t.Warnings = append(t.Warnings, r.Workload+" "+r.Client+": "+w)
		}
	}
	return t
}

// Merge returns the run of which parts, each with the histograms of its results, are the shares: iterations, errors and
// histograms are added, the elapsed time is the longest, and rates and percentiles are computed from these. Rows are
// matched by name and sample. What the server says of itself each part has seen of all, so that it is averaged; CPU
// percentages of clients are added, 100 being one core of any of them.
func Merge(parts []*Report) (*Report, error) {
	if len(parts) == 0 {
		return nil, errors.New("merge: no parts")
	}
	m := *parts[0]
	m.Results, m.Assertions, m.Warnings, m.Summaries = nil, []Assertion{}, []string{}, nil
	type key struct {
		name   string
		sample int
	}
	rows := map[key][]*Result{}
	var order []key
	for _, p := range parts {
		if p.Run != m.Run {
			return nil, fmt.Errorf("merge: parts of two runs, %s and %s", m.Run, p.Run)
		}
		if p.StartedAt.Before(m.StartedAt) {
			m.StartedAt = p.StartedAt
		}
		m.ElapsedNS = max(m.ElapsedNS, p.ElapsedNS)
		if m.Target == nil {
			m.Target = p.Target
		} else if p.Target != nil && m.Target.Server == "" {
			m.Target = p.Target // the first part had not reached it
		}
		if len(p.Targets) > len(m.Targets) {
			m.Targets = p.Targets
		}
		m.Warnings = appendNew(m.Warnings, p.Warnings)
		for _, r := range p.Results {
			k := key{r.Name, r.Sample}
			if rows[k] == nil {
				order = append(order, k)
			}
			rows[k] = append(rows[k], r)
		}
	}
	for _, k := range order {
		if n := len(rows[k]); n < len(parts) {
			m.Warnings = append(m.Warnings, fmt.Sprintf("%s, sample %d: only %d of %d parts have it", k.name, k.sample, n, len(parts)))
		}
		r, err := mergeRow(rows[k])
		if err != nil {
			return nil, fmt.Errorf("merge %s: %w", k.name, err)
		}
		m.Results = append(m.Results, r)
	}
	m.Results = notNil(m.Results)
	m.Summaries = Summarize(m.Results)
	return &m, nil
}

// appendNew appends what is not there yet.
func appendNew(texts, more []string) []string {
	for _, t := range more {
		if !slices.Contains(texts, t) {
			texts = append(texts, t)
		}
	}
	return texts
}

// mergeRow adds up the shares of a sample of a row.
func mergeRow(shares []*Result) (*Result, error) {
	m := *shares[0]
	m.Iterations, m.Errors, m.Misses, m.Mismatches, m.Connections, m.Moved, m.ElapsedNS = 0, 0, 0, 0, 0, 0, 0
	m.ErrorKinds, m.ErrorSamples, m.Warnings = map[string]int64{}, map[string]string{}, []string{}
	m.Late, m.LongestStall, m.ConnectNS, m.ThrottledNS, m.Server, m.Service = nil, nil, nil, nil, nil, nil
	var latency, service []spread
	for _, r := range shares {
		m.Iterations += r.Iterations
		m.Errors += r.Errors
		m.Misses += r.Misses
		m.Mismatches += r.Mismatches
		m.Connections += r.Connections
		m.Moved = max(m.Moved, r.Moved) // the server counts those of all
		m.ElapsedNS = max(m.ElapsedNS, r.ElapsedNS)
		m.Late, m.ThrottledNS = sum(m.Late, r.Late), sum(m.ThrottledNS, r.ThrottledNS)
		m.LongestStall, m.ConnectNS = longest(m.LongestStall, r.LongestStall), longest(m.ConnectNS, r.ConnectNS)
		for kind, n := range r.ErrorKinds {
			m.ErrorKinds[kind] += n
		}
		for kind, text := range r.ErrorSamples {
			m.ErrorSamples[kind] = cmp.Or(m.ErrorSamples[kind], text)
		}
		m.Warnings = appendNew(m.Warnings, r.Warnings)
		if r.Iterations == 0 {
			continue
		}
		if r.Latencies == nil {
			return nil, errors.New("a part has no histogram")
		}
		latency = append(latency, spread{&r.Latency, r.Latencies, r.Iterations})
		if r.Service != nil && r.ServiceTimes != nil {
			service = append(service, spread{r.Service, r.ServiceTimes, r.Iterations})
		}
	}
	m.NSPerOp, m.OpsPerSec, m.OpsWithDial, m.Latency, m.Latencies, m.ServiceTimes, m.Histogram = nil, nil, nil, Latency{}, nil, nil, ""
	m.BytesPerOp, m.AllocsPerOp = weighted(shares, func(r *Result) *Figure { return r.BytesPerOp }), weighted(shares, func(r *Result) *Figure { return r.AllocsPerOp })
	m.ClientCPU = added(shares, func(r *Result) *Figure { return r.ClientCPU })
	m.Server = mergeServer(shares)
	if m.Iterations == 0 {
		return &m, nil
	}
	elapsed := float64(m.ElapsedNS)
	m.NSPerOp, m.OpsPerSec = NewFigure(elapsed/float64(m.Iterations)), NewRate(float64(m.Iterations)/elapsed*1e9)
	m.Latency, m.Latencies = mergeLatency(latency)
	if len(service) > 0 {
		times, histogram := mergeLatency(service)
		m.Service, m.ServiceTimes = &times, histogram
	}
	if slices.ContainsFunc(shares, func(r *Result) bool { return r.Histogram != "" }) {
		text, err := EncodeHistogram(m.Latencies)
		if err != nil {
			return nil, err
		}
		m.Histogram = text
	}
	return &m, nil
}

// A spread is the latency of a share.
type spread struct {
	*Latency
	histogram  *hdrhistogram.Histogram
	iterations int64
}

// mergeLatency derives the latency of all from the added histograms and the exact figures beside them.
func mergeLatency(shares []spread) (Latency, *hdrhistogram.Histogram) {
	all := newDistribution()
	for _, s := range shares {
		one := distribution{histogram: s.histogram, min: math.MaxInt64, iterations: s.iterations}
		if s.Min != nil {
			one.min = *s.Min
		}
		if s.Max != nil {
			one.max = *s.Max
		}
		if s.Mean != nil {
			one.sum = float64(*s.Mean) * float64(s.iterations)
		}
		all.merge(&one)
	}
	return latency(&all), all.histogram
}

func sum(a, b *int64) *int64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	n := *a + *b
	return &n
}

func longest(a, b *int64) *int64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	n := max(*a, *b)
	return &n
}

// weighted is the mean over operations of what a share says of one, nil where none does.
func weighted(shares []*Result, of func(r *Result) *Figure) *Figure {
	var total, n float64
	for _, r := range shares {
		if f := of(r); f != nil {
			total, n = total+float64(*f)*float64(r.Iterations), n+float64(r.Iterations)
		}
	}
	return NewFigure(total / n)
}

func added(shares []*Result, of func(r *Result) *Figure) *Figure {
	var total float64
	for _, r := range shares {
		f := of(r)
		if f == nil {
			if r.Iterations == 0 {
				continue
			}
			return nil // a sum of some would be taken for that of all
		}
		total += float64(*f)
	}
	return NewFigure(total)
}

// mergeServer averages what each share has seen of one server.
func mergeServer(shares []*Result) *ServerCost {
	own := slices.DeleteFunc(slices.Clone(shares), func(r *Result) bool { return r.Server == nil || r.Iterations == 0 })
	if len(own) == 0 {
		return nil
	}
	return &ServerCost{NSPerCall: weighted(own, func(r *Result) *Figure { return r.Server.NSPerCall }),
		CPUPercent: weighted(own, func(r *Result) *Figure { return r.Server.CPUPercent })}
}
