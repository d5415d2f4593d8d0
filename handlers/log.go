package handlers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/vantage"
)

// A logEntry is one line as Cloud Logging reads it (cloud.google.com/logging/docs/structured-logging): the fields with a
// meaning of their own, then those that log-based metrics may read.
type logEntry struct {
	Severity string      `json:"severity"`
	Message  string      `json:"message"`
	Time     time.Time   `json:"time"`
	Trace    string      `json:"logging.googleapis.com/trace,omitempty"`
	Span     string      `json:"logging.googleapis.com/spanId,omitempty"`
	HTTP     *logRequest `json:"httpRequest,omitempty"`

	Run       string   `json:"run"`
	Kind      string   `json:"kind"`
	Outcome   string   `json:"outcome"`
	ErrorKind string   `json:"error_kind,omitempty"`
	Targets   []string `json:"targets"`
	Revision  string   `json:"revision,omitempty"`
	Instance  string   `json:"instance,omitempty"`
	Cold      bool     `json:"cold"`
	ElapsedNS int64    `json:"elapsed_ns"`
	Rows      int      `json:"rows"`
	// Figures are by workload and client, of several such rows those of the first: figures.get.redigo.p50_ns is a path that
	// a log-based metric can name.
	Figures map[string]map[string]logFigures `json:"figures"`
	Phases  *bench.Phases                    `json:"phases_ns,omitempty"`
	Change  string                           `json:"change,omitempty"`
	Labels  map[string]string                `json:"labels,omitempty"`
}

type logRequest struct {
	Method    string `json:"requestMethod"`
	URL       string `json:"requestUrl"`
	Status    int    `json:"status"`
	UserAgent string `json:"userAgent,omitempty"`
	Latency   string `json:"latency"`
	Protocol  string `json:"protocol,omitempty"`
}

type logFigures struct {
	NSPerOp    *bench.Figure `json:"ns_per_op"`
	OpsPerSec  *bench.Figure `json:"ops_per_sec"`
	P50        *int64        `json:"p50_ns"`
	P99        *int64        `json:"p99_ns"`
	Max        *int64        `json:"max_ns"`
	Iterations int64         `json:"iterations"`
	Errors     int64         `json:"errors"`
}

// severities are those of a run by how it ended.
var severities = map[string]string{history.OK: "INFO", history.AssertionFailed: "WARNING", history.Stopped: "NOTICE", history.Failed: "ERROR"}

// log writes a line about a run that err ended, if one did. What was asked for is in it as the history keeps it; no header
// is.
func (s *Service) log(o origin, report *bench.Report, err error) {
	if s.Log == nil || o.r == nil {
		return
	}
	run, failure := record(report, nil, o, err)
	if failure != nil {
		run = &history.Run{Outcome: history.Failed, Status: http.StatusInternalServerError, Error: failure.Error()}
	}
	e := logEntry{Severity: severities[run.Outcome], Time: time.Now().UTC(), Run: report.Run, Kind: o.kind, Outcome: run.Outcome, ErrorKind: run.ErrorKind,
		Targets: run.Targets, Revision: run.Revision, Instance: run.Instance, Cold: run.Cold, ElapsedNS: report.ElapsedNS, Rows: len(report.Results),
		Figures: map[string]map[string]logFigures{}, Phases: report.Phases, Change: report.Change, Labels: run.Labels,
		HTTP: &logRequest{Method: o.r.Method, URL: baseURL(o.r) + o.request, Status: run.Status, UserAgent: o.r.UserAgent(),
			Latency: fmt.Sprintf("%.6fs", time.Duration(report.ElapsedNS).Seconds()), Protocol: o.r.Proto}}
	where, _ := report.Vantage.(vantage.Info)
	e.Trace, e.Span = trace(o.r.Header, where.Project)
	said := ""
	for _, r := range bench.NormalizeResults(report.Results) {
		if e.Figures[r.Workload] == nil {
			e.Figures[r.Workload] = map[string]logFigures{}
		}
		if _, ok := e.Figures[r.Workload][r.Client]; ok {
			continue
		}
		e.Figures[r.Workload][r.Client] = logFigures{r.NSPerOp, r.OpsPerSec, r.Latency.P50, r.Latency.P99, r.Latency.Max, r.Iterations, r.Errors}
		if r.Latency.P50 != nil && len(said) < 200 {
			said += fmt.Sprintf(", %s %s p50 %s", r.Workload, r.Client, bench.FormatDuration(float64(*r.Latency.P50)))
		}
	}
	e.Message = bench.Printable(strings.TrimSpace(o.kind+" "+strings.Join(run.Targets, ","))+": "+cmp.Or(run.Error, run.Outcome)+said, true)
	line, failure := json.Marshal(e)
	if failure != nil {
		line = []byte(`{"severity":"ERROR","message":"a run can't be logged"}`)
	}
	s.logging.Lock()
	defer s.logging.Unlock()
	_, _ = s.Log.Write(append(line, '\n')) // there is nowhere else to say it
}

var (
	traceParent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)     // W3C Trace Context
	cloudTrace  = regexp.MustCompile(`^([0-9a-fA-F]{32})(?:/[0-9]{1,20})?(?:;o=[0-9]+)?$`) // Google's own, the span in decimal
)

// trace is the request's trace as Cloud Logging names it, and the span where the header has it in hexadecimal.
func trace(h http.Header, project string) (name, span string) {
	if project == "" {
		return "", ""
	}
	if m := traceParent.FindStringSubmatch(h.Get("traceparent")); m != nil {
		return "projects/" + project + "/traces/" + m[1], m[2]
	}
	if m := cloudTrace.FindStringSubmatch(h.Get("X-Cloud-Trace-Context")); m != nil {
		return "projects/" + project + "/traces/" + strings.ToLower(m[1]), ""
	}
	return "", ""
}
