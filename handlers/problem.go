package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"nsop/bench"
)

// A problem is an error as RFC 9457 tells it, with what had been measured.
type problem struct {
	Type             string          `json:"type"`
	Title            string          `json:"title"`
	Status           int             `json:"status"`
	Detail           string          `json:"detail"`
	Parameter        string          `json:"parameter,omitempty"`
	Allowed          []string        `json:"allowed,omitempty"`
	ErrorKind        string          `json:"error_kind,omitempty"`
	EstimatedSeconds float64         `json:"estimated_seconds,omitempty"`
	Results          []*bench.Result `json:"results"`
	report           *bench.Report   // whose other fields follow in JSON; nil where no run began
	retryAfter       int             // seconds
}

// MarshalJSON writes the problem's own fields, then the rest of the report.
func (p *problem) MarshalJSON() ([]byte, error) {
	type plain problem
	if p.report == nil {
		return json.Marshal((*plain)(p))
	}
	type rest struct {
		*plain
		Run        string              `json:"run"`
		StartedAt  any                 `json:"started_at"`
		ElapsedNS  int64               `json:"elapsed_ns"`
		Vantage    any                 `json:"vantage"`
		Target     *bench.TargetInfo   `json:"target,omitempty"`
		Targets    []*bench.TargetInfo `json:"targets,omitempty"`
		Assertions []bench.Assertion   `json:"assertions"`
		Warnings   []string            `json:"warnings"`
	}
	r := p.report
	return json.Marshal(rest{(*plain)(p), r.Run, r.StartedAt, r.ElapsedNS, r.Vantage, r.Target, r.Targets, r.Assertions, r.Warnings})
}

// runError is the error that ended a run, with its report.
type runError struct {
	err    error
	report *bench.Report
}

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// formatted is an error whose format a body asked for.
type formatted struct {
	error
	format bench.Format
}

func (e *formatted) Unwrap() error { return e.error }

// busyError says that a benchmark is running on this instance.
type busyError struct{ retryAfter int }

func (e *busyError) Error() string {
	return fmt.Sprintf("a benchmark is running on this instance, for about %d more seconds", e.retryAfter)
}

type methodError struct {
	method  string
	allowed []string
}

func (e *methodError) Error() string { return e.method + " is not what this path takes" }

// tooLargeError says that a body is over its limit, in bytes.
type tooLargeError struct{ limit int }

func (e *tooLargeError) Error() string { return fmt.Sprintf("the body is over %d bytes", e.limit) }

// notReadyError says which targets have not been reached.
type notReadyError struct{ missing []string }

func (e *notReadyError) Error() string { return "not reached yet: " + strings.Join(e.missing, "; ") }

// assertionError says that an assertion does not hold; the answer is the report itself.
type assertionError struct{}

func (assertionError) Error() string { return "an assertion failed" }

// status is the one place that turns an error into a status and what helps to mend it.
func status(err error) *problem {
	var (
		p           = &problem{Detail: err.Error(), Results: []*bench.Result{}}
		run         *runError
		param       *bench.ParamError
		unsupported *bench.UnsupportedError
		notFound    *bench.NotFoundError
		lost        *bench.LostError
		failed      *bench.FailedError
		auth        *authError
		busy        *busyError
		method      *methodError
		tooLarge    *tooLargeError
		notReady    *notReadyError
	)
	if errors.As(err, &run) {
		p.report, p.Results = run.report, run.report.Results
	}
	switch {
	case errors.As(err, &param):
		p.Status, p.Title, p.Parameter, p.Allowed = http.StatusBadRequest, "a parameter is wrong", param.Parameter, param.Allowed
		p.EstimatedSeconds = param.Estimate.Seconds()
	case errors.As(err, &auth):
		p.Status, p.Title = auth.status, "not allowed"
	case errors.As(err, &notFound):
		p.Status, p.Title, p.Allowed = http.StatusNotFound, "not found", notFound.Allowed
	case errors.As(err, &method):
		p.Status, p.Title, p.Allowed = http.StatusMethodNotAllowed, "method not allowed", method.allowed
	case errors.As(err, &tooLarge):
		p.Status, p.Title = http.StatusRequestEntityTooLarge, "body too large"
	case errors.As(err, &unsupported):
		p.Status, p.Title, p.ErrorKind, p.Allowed = http.StatusUnprocessableEntity, "this target can't do that", unsupported.Kind, unsupported.Allowed
	case errors.As(err, &busy):
		p.Status, p.Title, p.retryAfter = http.StatusTooManyRequests, "busy", busy.retryAfter
	case errors.As(err, &lost):
		p.Status, p.Title, p.ErrorKind = http.StatusBadGateway, "the target was lost", bench.Kind(lost.Err)
		if len(p.Results) == 0 {
			p.Title = "the target can't be reached"
		}
	case errors.As(err, &failed):
		p.Status, p.Title, p.ErrorKind = http.StatusBadGateway, "a row completed nothing", failed.Kind
	case errors.As(err, &notReady):
		p.Status, p.Title = http.StatusServiceUnavailable, "not ready"
	case errors.Is(err, errShutdown):
		p.Status, p.Title = http.StatusServiceUnavailable, "shutting down"
	case errors.Is(err, errStopped):
		p.Status, p.Title = http.StatusServiceUnavailable, "stopped"
	case errors.Is(err, errTotal):
		p.Status, p.Title = http.StatusGatewayTimeout, "out of time"
	default:
		p.Status, p.Title = http.StatusInternalServerError, "internal error"
	}
	// No page describes these: RFC 9457 has about:blank for a problem that its status tells whole.
	p.Type = "about:blank"
	return p
}

// fail answers an error, as text where text was asked for.
func (s *Service) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := status(err)
	if p.Status == http.StatusUnauthorized {
		w.Header().Add("WWW-Authenticate", `Bearer realm="nsop"`)
		w.Header().Add("WWW-Authenticate", `Basic realm="nsop", charset="UTF-8"`)
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	format, ferr := chooseFormat(r)
	if asked := (*formatted)(nil); errors.As(err, &asked) {
		format = asked.format
	}
	if ferr != nil || format.Name != "text" && format.Name != "markdown" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.Status)
		_ = writeJSON(w, p) // the client has left: nobody is there to be told
		return
	}
	w.Header().Set("Content-Type", format.ContentType)
	w.WriteHeader(p.Status)
	_ = s.problemText(w, r, p, format)
}

// hints is what to say of an error beyond its text, by kind.
var hints = map[string]struct{ likely, check string }{
	"refused":    {"the host answers but nothing listens on that port", "the port of the store, and that it is running"},
	"timeout":    {"the instance has no route to this address, or the store hangs", "VPC connector or Direct VPC egress of this service, in the region of the store"},
	"dns":        {"the name does not resolve from here", "the host name in the target's URL"},
	"tls":        {"the certificate is not from the authority that was given, or the port speaks no TLS", "ca or ca_env of the target's URL, and its port"},
	"auth":       {"the store wants a password, or another one", "REDIS_PASSWORD, or user and password in the target's URL"},
	"noperm":     {"the user may not send this command", "the store's access control list"},
	"loading":    {"the store is reading its data into memory", "again in a moment"},
	"readonly":   {"the address is a replica's", "the address of the primary"},
	"oom":        {"the store's memory is full", "maxmemory, and what else is stored there"},
	"maxclients": {"the store has no connection left", "concurrency, and who else is connected"},
}

// problemText tells a problem to a person.
func (s *Service) problemText(w io.Writer, r *http.Request, p *problem, format bench.Format) error {
	var b strings.Builder
	fmt.Fprintf(&b, "nsop: %s\n", p.Detail)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "  %-8s %s\n", name, text)
		}
	}
	hint := hints[p.ErrorKind]
	if len(p.Allowed) > 0 || hint.likely != "" {
		b.WriteString("\n")
	}
	line("allowed", wrapList(p.Allowed))
	line("likely", hint.likely)
	line("check", hint.check)
	if p.report != nil && len(p.Results) > 0 {
		b.WriteString("\nmeasured before that:\n\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if p.report == nil || len(p.Results) == 0 {
		return nil
	}
	return format.Encode(w, p.report, s.encodeOptions(r))
}

// wrapList joins items into lines of at most 100 columns.
func wrapList(items []string) string {
	var b strings.Builder
	column := 0
	for i, item := range items {
		if i > 0 {
			b.WriteString(", ")
			if column += 2 + len(item); column > 85 {
				b.WriteString("\n           ")
				column = len(item)
			}
		}
		b.WriteString(item)
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
