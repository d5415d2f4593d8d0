package history

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
)

// How a run ended.
const (
	OK              = "ok"
	AssertionFailed = "assertion-failed"
	Failed          = "failed"
	Stopped         = "stopped" // by a caller or by the end of the process
)

// A Run is what is kept of one run.
type Run struct {
	ID        string            `json:"run"`
	Kind      string            `json:"kind"` // bench, probe, suite, limit, diagnose, import, job
	StartedAt time.Time         `json:"started_at"`
	Elapsed   time.Duration     `json:"elapsed_ns"`
	Outcome   string            `json:"outcome"`
	Status    int               `json:"status"` // of the answer
	ErrorKind string            `json:"error_kind,omitempty"`
	Error     string            `json:"error,omitempty"`
	Platform  string            `json:"platform,omitempty"`
	Region    string            `json:"region,omitempty"`
	Service   string            `json:"service,omitempty"`
	Revision  string            `json:"revision,omitempty"`
	Instance  string            `json:"instance,omitempty"`
	Cold      bool              `json:"cold"`
	Targets   []string          `json:"targets"`
	Labels    map[string]string `json:"labels"`
	Request   string            `json:"request,omitempty"` // the path with its query that repeats it
	Rows      []Row             `json:"results"`

	Key  string `json:"-"` // of idempotency
	Plan string `json:"-"` // a digest of what was asked for under Key
	Body []byte `json:"-"` // the whole answer, a JSON object; nil in a list that was not asked for it
}

// A Row is the figures of one sample of one row, and where they were measured.
type Row struct {
	Run       string    `json:"-"`
	StartedAt time.Time `json:"-"` // of the run
	Cold      bool      `json:"-"`

	Name       string        `json:"name"`
	Target     string        `json:"target"`
	Workload   string        `json:"workload"`
	Client     string        `json:"client"`
	Sample     int           `json:"sample"`
	Iterations int64         `json:"iterations"`
	ElapsedNS  int64         `json:"elapsed_ns"`
	NSPerOp    *bench.Figure `json:"ns_per_op"`
	OpsPerSec  *bench.Figure `json:"ops_per_sec"`
	Latency    bench.Latency `json:"latency_ns"`
	Errors     int64         `json:"errors"`
	Misses     int64         `json:"misses"`
	Mismatches int64         `json:"mismatches"`
	ConnectNS  *int64        `json:"connect_ns"`

	Histogram string `json:"-"` // as bench.EncodeHistogram writes it; "" where there is none or it was not asked for
}

// Result is the row as a result of a report. Parameters are those that its name holds.
func (r *Row) Result() *bench.Result {
	res := &bench.Result{Name: r.Name, Target: r.Target, Workload: r.Workload, Client: r.Client, Sample: r.Sample, Iterations: r.Iterations,
		ElapsedNS: r.ElapsedNS, NSPerOp: r.NSPerOp, OpsPerSec: r.OpsPerSec, Latency: r.Latency, Errors: r.Errors, Misses: r.Misses,
		Mismatches: r.Mismatches, ConnectNS: r.ConnectNS}
	for part := range strings.SplitSeq(r.Name, "/") {
		name, value, _ := strings.Cut(part, "=")
		for known, field := range map[string]*int{"concurrency": &res.Concurrency, "pipeline": &res.Pipeline, "size": &res.Size, "keyspace": &res.Keyspace} {
			if n, err := strconv.Atoi(value); name == known && err == nil {
				*field = n
			}
		}
	}
	return res
}

// NewRun returns what report says of a run: the identity, the vantage, the rows. The outcome is that of a run in which nothing
// failed, and there is no body.
func NewRun(kind string, report *bench.Report) (*Run, error) {
	var where struct {
		Platform, Region, Service, Revision, Instance string
		Cold                                          bool
	}
	text, err := json.Marshal(report.Vantage)
	if err == nil {
		err = json.Unmarshal(text, &where)
	}
	if err != nil {
		return nil, fmt.Errorf("read the vantage: %w", err)
	}
	r := &Run{ID: report.Run, Kind: kind, StartedAt: report.StartedAt, Elapsed: time.Duration(report.ElapsedNS), Outcome: OK, Status: 200,
		Platform: where.Platform, Region: where.Region, Service: where.Service, Revision: where.Revision, Instance: where.Instance,
		Cold: where.Cold, Labels: map[string]string{}}
	if report.Target != nil {
		r.Targets = append(r.Targets, report.Target.Name)
	}
	for _, t := range report.Targets {
		r.Targets = append(r.Targets, t.Name)
	}
	for _, res := range bench.NormalizeResults(report.Results) { // a database takes no NaN, or gives none back
		row := Row{Run: r.ID, StartedAt: r.StartedAt, Cold: r.Cold, Name: res.Name, Target: res.Target, Workload: res.Workload,
			Client: res.Client, Sample: res.Sample, Iterations: res.Iterations, ElapsedNS: res.ElapsedNS, NSPerOp: res.NSPerOp,
			OpsPerSec: res.OpsPerSec, Latency: res.Latency, Errors: res.Errors, Misses: res.Misses, Mismatches: res.Mismatches,
			ConnectNS: res.ConnectNS, Histogram: res.Histogram}
		if res.Latencies != nil && row.Histogram == "" {
			if row.Histogram, err = bench.EncodeHistogram(res.Latencies); err != nil {
				return nil, err
			}
		}
		r.Rows = append(r.Rows, row)
		maps.Copy(r.Labels, res.Labels)
	}
	return r, nil
}

// Report reads the body as a report, its rows with their histograms where these were read too.
func (r *Run) Report() (*bench.Report, error) {
	report, err := bench.ReadReport(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", r.ID, err)
	}
	for i, res := range report.Results {
		text := res.Histogram
		if i < len(r.Rows) && r.Rows[i].Name == res.Name {
			text = cmp.Or(text, r.Rows[i].Histogram)
		}
		if text == "" {
			continue
		}
		h, err := bench.DecodeHistogram(text)
		if err != nil {
			return nil, fmt.Errorf("read run %s: %w", r.ID, err)
		}
		res.Latencies = h
	}
	return report, nil
}

// gzipMagic begins what pack compressed; no JSON begins so.
const gzipMagic = "\x1f\x8b"

// pack compresses a body where that is worth it.
func pack(body []byte) ([]byte, error) {
	if len(body) < 1<<10 {
		return append([]byte{}, body...), nil // nil would be NULL
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func unpack(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte(gzipMagic)) {
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// clean makes text fit for a column: Postgres takes neither invalid UTF-8 nor NUL, and an error's text is whatever came
// from the network.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}
