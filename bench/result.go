package bench

import (
	"math"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Report is what a run answers.
type Report struct {
	Run        string            `json:"run"`
	Suite      string            `json:"suite,omitempty"`    // whose plan it was
	Imported   string            `json:"imported,omitempty"` // the tool that measured it, where that was not nsop
	StartedAt  time.Time         `json:"started_at"`
	ElapsedNS  int64             `json:"elapsed_ns"`
	Vantage    any               `json:"vantage"`
	Target     *TargetInfo       `json:"target,omitempty"`
	Targets    []*TargetInfo     `json:"targets,omitempty"`
	Results    []*Result         `json:"results"`
	Summaries  []Summary         `json:"summaries,omitempty"`  // of rows with several samples
	Knee       *Knee             `json:"knee,omitempty"`       // of a search for the limit, as
	BoundBy    string            `json:"bound_by,omitempty"`   // this
	Evidence   map[string]any    `json:"evidence,omitempty"`   // and this
	Phases     *Phases           `json:"phases_ns,omitempty"`  // of a probe, as
	Classes    *Classes          `json:"classes,omitempty"`    // this
	Unmeasured map[string]string `json:"unmeasured,omitempty"` // why one of these is null, by its place
	Change     string            `json:"change,omitempty"`     // what the history shows of the rows' levels, as a sentence
	Changes    []Change          `json:"changes,omitempty"`    // and as figures
	Assertions []Assertion       `json:"assertions"`
	Warnings   []string          `json:"warnings"`

	// Unsaved tells that the run is in no history, so that there is no permalink.
	Unsaved bool `json:"-"`
}

// TargetInfo describes the store that was measured.
type TargetInfo struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Address  string `json:"address,omitempty"`
	Server   string `json:"server,omitempty"`
	Mode     string `json:"mode,omitempty"`
	TLS      bool   `json:"tls"`
	Embedded bool   `json:"embedded"`
}

// A Result is one sample of one row. What could not be measured is null, never 0.
type Result struct {
	Name          string            `json:"name"`
	Target        string            `json:"target"`
	Embedded      bool              `json:"embedded"`
	Workload      string            `json:"workload"`
	Client        string            `json:"client"`
	ClientVersion string            `json:"client_version"`
	Concurrency   int               `json:"concurrency"`
	Pipeline      int               `json:"pipeline,omitempty"`
	Size          int               `json:"size,omitempty"`
	Keyspace      int               `json:"keyspace,omitempty"`
	Rate          float64           `json:"rate,omitempty"`  // operations a second, of an open loop
	Shape         string            `json:"shape,omitempty"` // of an open loop
	Flavor        string            `json:"flavor,omitempty"`
	Sync          string            `json:"sync,omitempty"`
	Scale         int               `json:"scale,omitempty"`    // of pgbench, as
	Protocol      string            `json:"protocol,omitempty"` // this
	Sample        int               `json:"sample"`
	Iterations    int64             `json:"iterations"`
	ElapsedNS     int64             `json:"elapsed_ns"`
	NSPerOp       *Figure           `json:"ns_per_op"`
	OpsPerSec     *Figure           `json:"ops_per_sec"`
	OpsWithDial   *Figure           `json:"ops_per_sec_with_connect,omitempty"` // of pgbench: connect_ns counts too
	Latency       Latency           `json:"latency_ns"`
	Service       *Latency          `json:"service_ns,omitempty"` // of an open loop: from when an operation was sent, not from when it was due
	Late          *int64            `json:"late,omitempty"`       // of an open loop: operations that began 1 ms or more after they were due
	LongestStall  *int64            `json:"longest_stall_ns"`     // in which nothing completed while something was due or in flight
	Histogram     string            `json:"histogram,omitempty"`  // V2, base64, where it was asked for
	Errors        int64             `json:"errors"`
	ErrorKinds    map[string]int64  `json:"error_kinds"`
	ErrorSamples  map[string]string `json:"error_samples"`
	Misses        int64             `json:"misses"`
	Mismatches    int64             `json:"mismatches"`
	Moved         int64             `json:"moved,omitempty"` // commands that a cluster's nodes redirected: MOVED and ASK
	Connections   int               `json:"connections"`
	ConnectNS     *int64            `json:"connect_ns"`
	BytesPerOp    *Figure           `json:"bytes_per_op"`
	AllocsPerOp   *Figure           `json:"allocs_per_op"`
	ClientCPU     *Figure           `json:"client_cpu_percent"` // 100 is one core
	ThrottledNS   *int64            `json:"throttled_ns"`
	Server        *ServerCost       `json:"server"`
	Settings      map[string]any    `json:"settings"`
	Labels        map[string]string `json:"labels,omitempty"`
	Warnings      []string          `json:"warnings"`

	Latencies *hdrhistogram.Histogram `json:"-"` // nil where nothing completed, or where only figures are known
}

// ServerCost is what the store itself reports of a row: null where it does not say.
type ServerCost struct {
	NSPerCall  *Figure `json:"ns_per_call"`
	CPUPercent *Figure `json:"cpu_percent"`
}

// Latency is the distribution of an operation's latency in nanoseconds. A percentile with too few samples to mean
// anything is nil: p99 under 100, p99.9 under 1,000.
type Latency struct {
	Min    *int64 `json:"min"`
	Mean   *int64 `json:"mean"`
	Stddev *int64 `json:"stddev"`
	P50    *int64 `json:"p50"`
	P90    *int64 `json:"p90"`
	P95    *int64 `json:"p95"`
	P99    *int64 `json:"p99"`
	P999   *int64 `json:"p99_9"`
	Max    *int64 `json:"max"`
}

// An Assertion is what became of one expression of the request's assert parameters.
type Assertion struct {
	Expr   string `json:"expr"`
	Actual string `json:"actual"`
	Row    string `json:"row"`
	OK     bool   `json:"ok"`
}

// A Figure is a measured number, rounded to what it can mean.
type Figure float64

// NewFigure returns v as a figure: whole from 100 on, with two decimals from 1 on, with four below. It is nil where v
// is no number, so that NaN and Inf never reach an encoder.
func NewFigure(v float64) *Figure {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return nil
	case a >= 99.995:
		return rounded(v, 1)
	case a >= 1:
		return rounded(v, 100)
	default:
		return rounded(v, 10_000)
	}
}

// NewRate returns v, a number a second, with one decimal, or four below 1.
func NewRate(v float64) *Figure {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return nil
	case math.Abs(v) < 1:
		return rounded(v, 10_000)
	default:
		return rounded(v, 10)
	}
}

func rounded(v, unit float64) *Figure {
	f := Figure(math.Round(v*unit) / unit)
	return &f
}

// MarshalJSON never writes an exponent: shell scripts read these numbers.
func (f Figure) MarshalJSON() ([]byte, error) { return []byte(f.String()), nil }

func (f Figure) String() string { return strconv.FormatFloat(float64(f), 'f', -1, 64) }
