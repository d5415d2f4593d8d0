package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"nsop/bench"
)

// A logged row is the figures of a row in a log line.
type loggedRow struct {
	Name      string        `json:"name"`
	NSPerOp   *bench.Figure `json:"ns_per_op"`
	OpsPerSec *bench.Figure `json:"ops_per_sec"`
	P50       *int64        `json:"p50_ns"`
	P99       *int64        `json:"p99_ns"`
	Errors    int64         `json:"errors"`
}

// log writes one line of JSON for a run, with the fields that Cloud Logging knows
// (https://cloud.google.com/logging/docs/structured-logging) and the figures, so that metrics can be made of the log.
func (s *Service) log(report *bench.Report, o origin, err error) {
	if s.Log == nil {
		return
	}
	line := struct {
		Severity  string      `json:"severity"`
		Message   string      `json:"message"`
		Trace     string      `json:"logging.googleapis.com/trace,omitempty"`
		Run       string      `json:"run"`
		Kind      string      `json:"kind"`
		Request   string      `json:"request"`
		Status    int         `json:"status"`
		ErrorKind string      `json:"error_kind,omitempty"`
		ElapsedNS int64       `json:"elapsed_ns"`
		Rows      []loggedRow `json:"rows"`
		Warnings  []string    `json:"warnings,omitempty"`
	}{Severity: "INFO", Run: report.Run, Kind: o.kind, Request: o.request, Status: http.StatusOK, ElapsedNS: report.ElapsedNS,
		Rows: []loggedRow{}, Warnings: report.Warnings}
	line.Message = fmt.Sprintf("%s %s: %d rows", o.kind, o.request, len(report.Results))
	if errors.As(err, &assertionError{}) {
		line.Severity, line.Status = "WARNING", http.StatusExpectationFailed
		line.Message += ": " + err.Error()
	} else if err != nil {
		p := status(err)
		line.Severity, line.Status, line.ErrorKind = "ERROR", p.Status, p.ErrorKind
		line.Message += ": " + p.Detail
	}
	for _, r := range bench.NormalizeResults(report.Results) {
		line.Rows = append(line.Rows, loggedRow{r.Name, r.NSPerOp, r.OpsPerSec, r.Latency.P50, r.Latency.P99, r.Errors})
	}
	if o.trace != "" {
		var where struct{ Project string }
		if text, err := json.Marshal(report.Vantage); err == nil && json.Unmarshal(text, &where) == nil && where.Project != "" {
			line.Trace = "projects/" + where.Project + "/traces/" + o.trace
		}
	}
	text, err := json.Marshal(line)
	if err != nil {
		text = []byte(fmt.Sprintf(`{"severity":"ERROR","message":"encode the log line of run %s"}`, report.Run))
	}
	_, _ = s.Log.Write(append(text, '\n')) // there is no other place to say that it failed
}

// traceOf is the trace that a request belongs to, "" where it says none: X-Cloud-Trace-Context is TRACE/SPAN;o=OPTIONS,
// traceparent is VERSION-TRACE-SPAN-FLAGS (https://www.w3.org/TR/trace-context/).
func traceOf(h http.Header) string {
	trace, _, _ := strings.Cut(h.Get("X-Cloud-Trace-Context"), "/")
	if trace == "" {
		if parts := strings.Split(h.Get("Traceparent"), "-"); len(parts) == 4 {
			trace = parts[1]
		}
	}
	if len(trace) != 32 || strings.Trim(trace, "0123456789abcdef") != "" {
		return ""
	}
	return trace
}
