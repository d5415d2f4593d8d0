package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/vantage"
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
	report           *bench.Report   // nil where no run began
	retryAfter       int             // seconds
}

// body is what is encoded as JSON: the problem's own fields, then the rest of the report.
func (p *problem) body() any {
	if p.report == nil {
		return p
	}
	r := p.report
	return struct {
		*problem
		Run        string              `json:"run"`
		StartedAt  time.Time           `json:"started_at"`
		ElapsedNS  int64               `json:"elapsed_ns"`
		Vantage    any                 `json:"vantage"`
		Target     *bench.TargetInfo   `json:"target,omitempty"`
		Targets    []*bench.TargetInfo `json:"targets,omitempty"`
		Phases     *bench.Phases       `json:"phases_ns,omitempty"`
		Classes    *bench.Classes      `json:"classes,omitempty"`
		Unmeasured map[string]string   `json:"unmeasured,omitempty"`
		Assertions []bench.Assertion   `json:"assertions"`
		Warnings   []string            `json:"warnings"`
	}{p, r.Run, r.StartedAt, r.ElapsedNS, r.Vantage, r.Target, r.Targets, r.Phases, r.Classes, r.Unmeasured, r.Assertions, r.Warnings}
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
type busyError struct{ retryAfter int } // seconds

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
		noHistory   *historyError
		conflict    *conflictError
		tooLarge    *tooLargeError
		notReady    *notReadyError
		keys        *keysError
	)
	if errors.As(err, &run) {
		p.report = run.report.Normalize()
		p.Results = p.report.Results
	}
	switch {
	case errors.As(err, &param):
		p.Status, p.Title, p.Parameter, p.Allowed = http.StatusBadRequest, "a parameter is wrong", param.Parameter, param.Allowed
		p.EstimatedSeconds = param.Estimate.Seconds()
	case errors.As(err, &auth):
		p.Status, p.Title = auth.status, "not allowed"
	case errors.As(err, &keys):
		p.Status, p.Title, p.retryAfter = http.StatusServiceUnavailable, "can't check who calls", int(keysFailurePause.Seconds())
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
	case errors.As(err, &conflict):
		p.Status, p.Title = http.StatusConflict, "there already"
	case errors.As(err, &noHistory):
		p.Status, p.Title = http.StatusServiceUnavailable, "the history can't be reached"
	case errors.Is(err, errShutdown):
		p.Status, p.Title = http.StatusServiceUnavailable, "shutting down"
	case errors.Is(err, errStopped):
		p.Status, p.Title = http.StatusServiceUnavailable, "stopped"
	case errors.Is(err, errTotal):
		p.Status, p.Title = http.StatusGatewayTimeout, "out of time"
	case errors.Is(err, context.Canceled):
		// Nobody is left to read it, but the run can still be asked for.
		p.Status, p.Title = http.StatusServiceUnavailable, "the client left"
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
		format, ferr = asked.format, nil
	}
	if ferr != nil || format.Name != "text" && format.Name != "markdown" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.Status)
		_ = writeJSON(w, p.body()) // the client has left: nobody is there to be told
		return
	}
	w.Header().Set("Content-Type", format.ContentType)
	w.WriteHeader(p.Status)
	_ = s.problemText(w, r, p, format)
}

// A hint is what to say of an error beyond its text.
type hint struct {
	kind, platform string // of the error; of where we run, "" being any
	likely         string
	check          string // a command that can be pasted, or words
	note           string // what to look for in what the command prints
}

// hints are read from the top: the first that fits is told. HOST, PORT, TLS, SERVICE, REVISION and REGION stand for those
// of the target and of this process.
var hints = []hint{
	{"timeout", "cloud-run", "the instance has no route to this private address",
		"gcloud run services describe SERVICE --region=REGION --format='value(spec.template.metadata.annotations)'",
		"(vpc-access-connector or network-interfaces must be there, in the region of the store)"},
	{"timeout", "cloud-run-job", "the instance has no route to this private address",
		"gcloud run jobs describe SERVICE --region=REGION --format='value(spec.template.metadata.annotations)'",
		"(vpc-access-connector or network-interfaces must be there, in the region of the store)"},
	{"timeout", "app-engine", "the instance has no route to this private address",
		"gcloud app versions describe REVISION --service=SERVICE --format='value(vpcAccessConnector)'",
		"(a connector must be there, in the region of the store)"},
	{"timeout", "", "no route leads to this address, a firewall drops what is sent, or the store hangs", "redis-cli -h HOST -p PORT TLSping", ""},
	{"refused", "", "the host answers but nothing listens on that port", "redis-cli -h HOST -p PORT TLSping", ""},
	{"reset", "", "the store closed the connection: it ended, it restarted, or it speaks TLS on that port", "redis-cli -h HOST -p PORT TLSping", ""},
	{"dns", "", "the name does not resolve from here", "getent hosts HOST", ""},
	{"tls", "", "the certificate is not from the authority that was given, or the port speaks no TLS",
		"openssl s_client -connect HOST:PORT </dev/null", "(the authority is ca or ca_env of the target's URL)"},
	{"auth", "", "the store wants a password, or another one", "redis-cli -h HOST -p PORT TLS--askpass ping",
		"(the password is REDIS_PASSWORD, or stands in the target's URL)"},
	{"noperm", "", "the user may not send this command", "redis-cli -h HOST -p PORT TLS--askpass acl whoami", ""},
	{"loading", "", "the store is reading its data into memory: try again in a moment", "redis-cli -h HOST -p PORT TLSinfo persistence", ""},
	{"readonly", "", "the address is a replica's", "redis-cli -h HOST -p PORT TLSrole", ""},
	{"oom", "", "the store's memory is full", "redis-cli -h HOST -p PORT TLSinfo memory", "(maxmemory and used_memory)"},
	{"maxclients", "", "the store has no connection left", "redis-cli -h HOST -p PORT TLSinfo clients", "(maxclients and connected_clients)"},
}

// hintFor is what to say of kind, with a command only where all that it names is known.
func hintFor(kind string, report *bench.Report) hint {
	var where vantage.Info
	target := &bench.TargetInfo{}
	if report != nil {
		where, _ = report.Vantage.(vantage.Info)
		if report.Target != nil {
			target = report.Target
		}
	}
	for _, h := range hints {
		if h.kind != kind || h.platform != "" && h.platform != where.Platform {
			continue
		}
		host, port, _ := net.SplitHostPort(target.Address) // an embedded target has none
		tls := ""
		if target.TLS {
			tls = "--tls "
		}
		words := []string{"HOST", host, "PORT", port, "SERVICE", where.Service, "REVISION", where.Revision, "REGION", where.Region}
		for i := 0; i < len(words); i += 2 {
			if strings.Contains(h.check, words[i]) && !pasteable(words[i+1]) {
				h.check, h.note = "", ""
			}
		}
		h.check = strings.NewReplacer(append(words, "TLS", tls)...).Replace(h.check)
		return h
	}
	return hint{}
}

// pasteable tells whether text is safe as a word of a command.
func pasteable(text string) bool {
	return text != "" && text[0] != '-' && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".:-_%", r)
	})
}

// textWidth is the column at which text wraps, commands to paste aside.
const textWidth = 100

// problemText tells a problem to a person.
func (s *Service) problemText(w io.Writer, r *http.Request, p *problem, format bench.Format) error {
	var b strings.Builder
	show := func(text string) string { return bench.Printable(text, s.Terminal) }
	fmt.Fprintf(&b, "nsop: %s\n", bench.Wrap(show(p.Detail), textWidth, "      "))
	h := hintFor(p.ErrorKind, p.report)
	more := ""
	if p.ErrorKind != "" && p.Status == http.StatusBadGateway {
		more = command(r, "/ready")
	}
	const indent = "           "
	separator := "\n"
	for _, line := range []struct {
		name, text string
		paste      bool
	}{
		{"allowed", strings.Join(p.Allowed, ", "), false},
		{"likely", h.likely, false},
		{"check", h.check, true},
		{"", h.note, false},
		{"more", more, true},
	} {
		if line.text == "" {
			continue
		}
		text := show(line.text)
		if !line.paste {
			text = bench.Wrap(text, textWidth, indent)
		}
		fmt.Fprintf(&b, "%s  %-8s %s\n", separator, line.name, text)
		separator = ""
	}
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

// command is how the caller asks for target, a path with its query: through curl, or without a server as this request
// came.
func command(r *http.Request, target string) string {
	base := baseURL(r)
	switch {
	case base != "":
		return `curl "` + base + target + `"`
	case strings.ContainsAny(target, "?&<>*"):
		return "nsop '" + target + "'"
	}
	return "nsop " + target
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // "p99<3ms" is to be read, and no browser takes JSON for HTML
	e.SetIndent("", "  ")
	return e.Encode(v)
}
