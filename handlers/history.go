package handlers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/imports"
)

// historyError says that the history can't be read.
type historyError struct{ err error }

func (e *historyError) Error() string {
	return "the history: " + strings.Join(strings.Fields(e.err.Error()), " ")
}
func (e *historyError) Unwrap() error { return e.err }

// conflictError says that what was sent contradicts what is there.
type conflictError struct{ detail string }

func (e *conflictError) Error() string { return e.detail }

// An origin is where a run comes from, as the history keeps it.
type origin struct {
	kind    string // bench, probe, suite, ...
	request string // the path with the query that repeats it
	key     string // of idempotency, or ""
	plan    string // a digest of what was asked for under key

	r        *http.Request                               // nil: of no request
	deadline time.Time                                   // by which the run is to be in the history; zero: none
	claim    func(context.Context) error                 // whether the run may begin, asked before and once no other can; may be nil
	after    func(context.Context, *bench.Report, error) // adds to the report once all is measured, which ended with the error; may be nil
}

// originOf is the origin of what r asks for with values, which hold its body too.
func originOf(kind string, r *http.Request, values url.Values) origin {
	rest := maps.Clone(values)
	delete(rest, "format")
	request := r.URL.EscapedPath()
	if len(rest) > 0 {
		request += "?" + rest.Encode()
	}
	return origin{kind: kind, request: request, r: r}
}

// diesWarning stands in each report whose run is kept by this instance alone.
const diesWarning = "the history is a temporary file that is lost with this instance: set HISTORY_URL to keep it"

// drainTime is what is left for the history once the service is shutting down: the answer must leave before the platform
// ends the process.
const drainTime = 500 * time.Millisecond

// keep puts a run into the history. It costs the answer a warning at most, and the time that Save has.
func (s *Service) keep(ctx context.Context, report *bench.Report, labels map[string]string, o origin, err error) {
	if s.History == nil {
		return
	}
	if s.Dies {
		report.Warnings = append(report.Warnings, diesWarning)
	}
	// The run of a client that has left, or that was stopped, is kept as well.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if !o.deadline.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, o.deadline)
		defer cancel()
		ctx = bounded
	}
	stop := context.AfterFunc(s.runs.drained, func() {
		select {
		case <-time.After(drainTime):
			cancel()
		case <-ctx.Done():
		}
	})
	defer stop()
	run, failure := record(report, labels, o, err)
	if failure == nil {
		failure = s.History.Save(ctx, run)
	}
	report.Unsaved = failure != nil && !errors.Is(failure, history.ErrPrune)
	if failure != nil {
		report.Warnings = append(report.Warnings, (&historyError{failure}).Error())
	}
}

// record is what the history keeps of a run that err ended, if one did.
func record(report *bench.Report, labels map[string]string, o origin, err error) (*history.Run, error) {
	run, failure := history.NewRun(o.kind, report)
	if failure != nil {
		return nil, failure
	}
	maps.Copy(run.Labels, labels) // which a run without rows has too
	run.Request, run.Key, run.Plan = o.request, o.key, o.plan
	switch {
	case err == nil:
	case errors.As(err, &assertionError{}):
		run.Outcome, run.Status = history.AssertionFailed, http.StatusExpectationFailed
	default:
		p := status(err)
		run.Outcome, run.Status, run.ErrorKind, run.Error = history.Failed, p.Status, p.ErrorKind, p.Detail
		if errors.Is(err, errStopped) || errors.Is(err, errShutdown) || errors.Is(err, context.Canceled) {
			run.Outcome = history.Stopped
		}
	}
	run.Body, failure = compact(document(report, err))
	return run, failure
}

// compact is v as JSON that indents to what writeJSON writes.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode run: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// answerKept answers a run of the history.
func (s *Service) answerKept(w http.ResponseWriter, r *http.Request, format bench.Format, id string) error {
	missing := &bench.NotFoundError{Detail: fmt.Sprintf("no run %q", id)}
	if s.History == nil {
		return missing
	}
	run, err := s.History.Run(r.Context(), id)
	switch {
	case errors.Is(err, history.ErrNotFound):
		return missing
	case err != nil:
		return &historyError{err}
	case format.Name != "json":
		report, err := run.Report()
		if err != nil {
			return err
		}
		return s.answer(w, r, format, report, http.StatusOK)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, run.Body, "", "  "); err != nil {
		return fmt.Errorf("read run %s: %w", id, err)
	}
	w.Header().Set("Content-Type", format.ContentType)
	_, _ = w.Write(append(b.Bytes(), '\n')) // the client has left: nobody is there to be told
	return nil
}

// A runParameter is one line of the table of what GET /runs takes.
type runParameter struct {
	name, doc string
	set       func(f *history.Filter, value string, now time.Time) error
}

var runParameters = []runParameter{
	{"target", "of this target", func(f *history.Filter, v string, _ time.Time) error { f.Target = v; return nil }},
	{"workload", "rows of this workload", func(f *history.Filter, v string, _ time.Time) error { f.Workload = v; return nil }},
	{"client", "rows of this client", func(f *history.Filter, v string, _ time.Time) error { f.Client = v; return nil }},
	{"since", "not before that, as 24h, 7d or 2026-11-30T12:00:00Z", func(f *history.Filter, v string, now time.Time) (err error) {
		f.Since, err = parseTime(v, now)
		return err
	}},
	{"until", "before that, as since", func(f *history.Filter, v string, now time.Time) (err error) {
		f.Until, err = parseTime(v, now)
		return err
	}},
	{"revision", "of this revision of the service", func(f *history.Filter, v string, _ time.Time) error { f.Revision = v; return nil }},
	{"kind", "of this kind: " + strings.Join(kinds, ", "), func(f *history.Filter, v string, _ time.Time) error { return among(&f.Kind, v, kinds) }},
	{"outcome", "that ended so: " + strings.Join(outcomes, ", "), func(f *history.Filter, v string, _ time.Time) error { return among(&f.Outcome, v, outcomes) }},
	{"limit", "at most so many runs: 50 unless told, csv and ndjson all", func(f *history.Filter, v string, _ time.Time) (err error) {
		if f.Limit, err = strconv.Atoi(v); err != nil || f.Limit < 1 || f.Limit > maxRuns {
			return fmt.Errorf("%q is no whole number from 1 to %d", v, maxRuns)
		}
		return nil
	}},
}

var (
	kinds    = []string{"bench", "probe", "suite", "limit", "diagnose", "import", "job"}
	outcomes = []string{history.OK, history.AssertionFailed, history.Failed, history.Stopped}
)

const (
	someRuns = 50
	maxRuns  = 10_000
)

func among(field *string, value string, allowed []string) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("%q is none of %s", value, strings.Join(allowed, ", "))
	}
	*field = value
	return nil
}

// parseTime reads a time, or how long ago it was.
func parseTime(text string, now time.Time) (time.Time, error) {
	if age, err := history.ParseAge(text); err == nil {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 2200 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither a duration such as 24h or 7d nor a time such as 2026-11-30T12:00:00Z", text)
}

func runParameterNames() (names []string) {
	for _, p := range runParameters {
		names = append(names, p.name)
	}
	return append(names, "format")
}

// parseFilter reads which runs are meant. Names in more are the endpoint's own and are left alone. Its errors are
// *bench.ParamError.
func parseFilter(values url.Values, now time.Time, more ...string) (history.Filter, error) {
	f := history.Filter{Labels: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if slices.Contains(more, name) {
			continue
		}
		label, isLabel := strings.CutPrefix(name, "label.")
		i := slices.IndexFunc(runParameters, func(p runParameter) bool { return p.name == name })
		switch value := values[name][0]; {
		case i < 0 && !isLabel:
			return f, &bench.ParamError{Parameter: name, Detail: "no such parameter", Allowed: append(runParameterNames(), "label.NAME")}
		case len(values[name]) > 1:
			return f, &bench.ParamError{Parameter: name, Detail: "given twice"}
		case value == "":
			return f, &bench.ParamError{Parameter: name, Detail: "is empty"}
		case isLabel:
			f.Labels[label] = value
		default:
			if err := runParameters[i].set(&f, value, now); err != nil {
				return f, &bench.ParamError{Parameter: name, Detail: err.Error()}
			}
		}
	}
	return f, nil
}

// A runsFormat writes many runs. base is the service's URL.
type runsFormat struct {
	name, contentType string
	whole             bool // an export: the whole of the filter, as it comes
	bodies            bool
	encode            func(w io.Writer, runs iter.Seq2[*history.Run, error], base string) error
}

// runsFormats is the table of them. The first is the default.
var runsFormats = []runsFormat{
	{"json", "application/json", false, false, encodeRunsJSON},
	{"text", "text/plain; charset=utf-8", false, false, encodeRunsText},
	{"csv", "text/csv; charset=utf-8; header=present", true, false, encodeRunsCSV},
	{"ndjson", "application/x-ndjson", true, true, encodeRunsNDJSON},
}

func runsFormatOf(values url.Values, r *http.Request) (runsFormat, error) {
	byName := func(name string) int {
		return slices.IndexFunc(runsFormats, func(f runsFormat) bool { return f.name == name })
	}
	if names, ok := values["format"]; ok {
		if i := byName(names[0]); i >= 0 && len(names) == 1 {
			return runsFormats[i], nil
		}
		e := &bench.ParamError{Parameter: "format", Detail: "no format " + strconv.Quote(names[0]) + " of the list of runs"}
		if len(names) > 1 {
			e.Detail = "given twice"
		}
		for _, f := range runsFormats {
			e.Allowed = append(e.Allowed, f.name)
		}
		return runsFormats[0], e
	}
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "application/x-ndjson") {
		return runsFormats[byName("ndjson")], nil
	}
	f, _ := bench.NegotiateAccept(accept)
	return runsFormats[max(0, byName(f.Name))], nil
}

// listRuns answers the history, newest first.
func (s *Service) listRuns(w http.ResponseWriter, r *http.Request) error {
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return err
	}
	format, err := runsFormatOf(values, r)
	if err != nil {
		return err
	}
	f, err := parseFilter(values, time.Now(), "format")
	if err != nil {
		return err
	}
	if f.Limit == 0 && !format.whole {
		f.Limit = someRuns
	}
	f.Bodies = format.bodies
	runs := iter.Seq2[*history.Run, error](func(func(*history.Run, error) bool) {})
	if s.History != nil {
		runs = s.History.All(r.Context(), f)
	}
	// Nothing is sent before the first run is there, so that a history that is down has its status.
	out := &lateWriter{w: w, contentType: format.contentType}
	if err := format.encode(out, runs, baseURL(r)); err != nil {
		if out.begun {
			panic(http.ErrAbortHandler) // the client must see that it has not got everything
		}
		return &historyError{err}
	}
	out.begin()
	return nil
}

// A lateWriter sends its header with the first byte of the body.
type lateWriter struct {
	w           http.ResponseWriter
	contentType string
	begun       bool
}

func (l *lateWriter) begin() {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", l.contentType)
		l.w.WriteHeader(http.StatusOK)
	}
}

func (l *lateWriter) Write(b []byte) (int, error) {
	l.begin()
	return l.w.Write(b)
}

// A listed is a run in the list.
type listed struct {
	*history.Run
	URL string `json:"url,omitempty"`
}

func collect(runs iter.Seq2[*history.Run, error], base string) ([]listed, error) {
	list := []listed{}
	for r, err := range runs {
		if err != nil {
			return nil, err
		}
		list = append(list, listed{r, permalink(base, r.ID)})
	}
	return list, nil
}

// permalink is where a run can be asked for, or "" where the service has no address.
func permalink(base, id string) string {
	if base == "" {
		return ""
	}
	return base + "/runs/" + url.PathEscape(id)
}

func encodeRunsJSON(w io.Writer, runs iter.Seq2[*history.Run, error], base string) error {
	list, err := collect(runs, base)
	if err != nil {
		return err
	}
	return writeJSON(w, map[string]any{"runs": list})
}

// encodeRunsNDJSON writes each run's whole answer on a line of its own: what GET /runs/{id} answers.
func encodeRunsNDJSON(w io.Writer, runs iter.Seq2[*history.Run, error], _ string) error {
	for r, err := range runs {
		if err != nil {
			return err
		}
		if _, err := w.Write(append(r.Body, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// encodeRunsText writes a line for each row, and one for a run without.
func encodeRunsText(w io.Writer, runs iter.Seq2[*history.Run, error], base string) error {
	list, err := collect(runs, base)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		_, err := io.WriteString(w, "no runs\n")
		return err
	}
	show := func(text string) string { return bench.Printable(text, false) }
	t := bench.Table{Head: []string{"started (UTC)", "kind", "outcome", "target", "workload", "client", "p50", "p99", "errors", "  run"}, Left: 6}
	for _, r := range list {
		head := []string{r.StartedAt.Format("2006-01-02 15:04:05"), r.Kind, cmp.Or(r.ErrorKind, r.Outcome)}
		link := "  " + cmp.Or(r.URL, r.ID)
		rows := r.Rows
		if len(rows) == 0 {
			t.Rows = append(t.Rows, append(head, show(strings.Join(r.Targets, ",")), "-", "-", "-", "-", "-", link))
		}
		for _, row := range rows {
			t.Rows = append(t.Rows, append(slices.Clone(head), show(row.Target), show(row.Workload), show(row.Client), duration(row.Latency.P50), duration(row.Latency.P99),
				bench.FormatCount(row.Errors), link))
		}
	}
	return bench.WriteTable(w, t, textWidth)
}

func duration(ns *int64) string {
	if ns == nil {
		return "-"
	}
	return bench.FormatDuration(float64(*ns))
}

// runsColumns are the columns of the export, those of the run first.
var runsColumns = []string{"run", "kind", "started_at", "elapsed_ns", "outcome", "status", "error_kind", "error", "platform", "region", "service", "revision",
	"instance", "cold", "targets", "labels", "request", "name", "target", "workload", "client", "sample", "iterations", "row_elapsed_ns", "ns_per_op", "ops_per_sec",
	"latency_min_ns", "latency_mean_ns", "latency_stddev_ns", "latency_p50_ns", "latency_p90_ns", "latency_p95_ns", "latency_p99_ns", "latency_p99_9_ns",
	"latency_max_ns", "errors", "misses", "mismatches", "connect_ns"}

// encodeRunsCSV writes a header and a line for each row, and one with empty fields for a run without. An empty field is a
// value that is null in the JSON.
func encodeRunsCSV(w io.Writer, runs iter.Seq2[*history.Run, error], _ string) error {
	c := csv.NewWriter(w)
	// The writer keeps its first error for the end, and its buffer holds back the header until the first runs are there.
	c.Write(runsColumns)
	for r, err := range runs {
		if err != nil {
			return err
		}
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
			labels = append(labels, url.QueryEscape(name)+"="+url.QueryEscape(r.Labels[name]))
		}
		head := []string{r.ID, r.Kind, r.StartedAt.Format(time.RFC3339Nano), strconv.FormatInt(int64(r.Elapsed), 10), r.Outcome, strconv.Itoa(r.Status), r.ErrorKind, r.Error,
			r.Platform, r.Region, r.Service, r.Revision, r.Instance, strconv.FormatBool(r.Cold), strings.Join(r.Targets, " "), strings.Join(labels, "&"), r.Request}
		if len(r.Rows) == 0 {
			c.Write(append(head, make([]string, len(runsColumns)-len(head))...))
		}
		for _, row := range r.Rows {
			l := &row.Latency
			record := append(slices.Clone(head), row.Name, row.Target, row.Workload, row.Client, strconv.Itoa(row.Sample), strconv.FormatInt(row.Iterations, 10),
				strconv.FormatInt(row.ElapsedNS, 10), figureText(row.NSPerOp), figureText(row.OpsPerSec))
			for _, n := range []*int64{l.Min, l.Mean, l.Stddev, l.P50, l.P90, l.P95, l.P99, l.P999, l.Max, &row.Errors, &row.Misses, &row.Mismatches, row.ConnectNS} {
				text := ""
				if n != nil {
					text = strconv.FormatInt(*n, 10)
				}
				record = append(record, text)
			}
			c.Write(record)
		}
		if err := c.Error(); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

func figureText(f *bench.Figure) string {
	if f == nil {
		return ""
	}
	return f.String()
}

// importLimit bounds a file that is sent, in bytes.
const importLimit = 16 << 20

// importRuns stores what the body says was measured, all of it or nothing.
func (s *Service) importRuns(w http.ResponseWriter, r *http.Request) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &bench.ParamError{Detail: "query string: " + err.Error()}
	}
	options, err := importOptions(values)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, importLimit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return &tooLargeError{importLimit}
	} else if err != nil {
		return &bench.ParamError{Detail: "read body: " + err.Error()}
	}
	runs, err := s.Import(r.Context(), bytes.NewReader(body), options)
	if err != nil {
		return err
	}
	list := []listed{}
	for _, run := range runs {
		list = append(list, listed{run, permalink(baseURL(r), run.ID)})
	}
	w.Header().Set("Content-Type", "application/json")
	return writeJSON(w, map[string]any{"runs": list})
}

// importNames are the parameters of an import: what files of other tools leave open.
var importNames = []string{"target", "concurrency", "pipeline", "size", "keyspace"}

func importOptions(values url.Values) (o imports.Options, err error) {
	o.Labels = map[string]string{}
	numbers := map[string]*int{"concurrency": &o.Concurrency, "pipeline": &o.Pipeline, "size": &o.Size, "keyspace": &o.Keyspace}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name][0]
		label, isLabel := strings.CutPrefix(name, "label.")
		switch {
		case len(values[name]) > 1:
			return o, &bench.ParamError{Parameter: name, Detail: "given twice"}
		case isLabel:
			if err := bench.CheckLabel(label, value); err != nil {
				return o, &bench.ParamError{Parameter: name, Detail: err.Error()}
			}
			o.Labels[label] = value
		case name == "target":
			o.Target = value
		case numbers[name] != nil:
			if *numbers[name], err = bench.ParseSize(value); err != nil || *numbers[name] < 1 {
				return o, &bench.ParamError{Parameter: name, Detail: fmt.Sprintf("%q is no positive number", value)}
			}
		default:
			return o, &bench.ParamError{Parameter: name, Detail: "no such parameter", Allowed: append(slices.Clone(importNames), "label.NAME")}
		}
	}
	return o, nil
}

// Import stores the runs of a file, all of them or none, and returns them.
func (s *Service) Import(ctx context.Context, file io.Reader, o imports.Options) ([]*history.Run, error) {
	reports, err := imports.Read(file, o)
	if err != nil {
		return nil, &bench.ParamError{Detail: err.Error()}
	}
	if s.History == nil {
		return nil, &historyError{errors.New("there is none")}
	}
	var runs []*history.Run
	for i, report := range reports {
		if report.Run != "" && slices.ContainsFunc(reports[:i], func(r *bench.Report) bool { return r.Run == report.Run }) {
			return nil, &bench.ParamError{Detail: fmt.Sprintf("run %q is there twice", report.Run)}
		}
		if report.Run == "" {
			report.Run = uuid.Must(uuid.NewV7()).String()
		}
		if report.StartedAt.IsZero() {
			report.StartedAt = time.Now().UTC()
		}
		report.Imported = cmp.Or(report.Imported, "nsop")
		if err := checkImported(report); err != nil {
			return nil, &bench.ParamError{Detail: err.Error()}
		}
		if _, err := s.History.Run(ctx, report.Run); err == nil {
			return nil, &conflictError{fmt.Sprintf("run %s is in the history already", report.Run)}
		} else if !errors.Is(err, history.ErrNotFound) {
			return nil, &historyError{err}
		}
		run, err := record(report, nil, origin{kind: "import"}, nil)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(report.Results, func(r *bench.Result) bool { return r.NSPerOp == nil }) {
			run.Outcome, run.Status = history.Failed, http.StatusBadGateway
		}
		runs = append(runs, run)
	}
	if err := s.History.Save(ctx, runs...); err != nil && !errors.Is(err, history.ErrPrune) {
		return nil, &historyError{err}
	}
	return runs, nil
}

// checkImported refuses what no run of ours could be.
func checkImported(report *bench.Report) error {
	if len(report.Run) > 100 || strings.ContainsFunc(report.Run, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}) {
		return fmt.Errorf("run %.100q: want letters, digits, - _ and ., at most 100", report.Run)
	}
	if y := report.StartedAt.Year(); y < 1970 || y >= 2200 {
		return fmt.Errorf("run %s: started in the year %d", report.Run, y)
	}
	for _, r := range report.Results {
		for name, value := range r.Labels {
			if err := bench.CheckLabel(name, value); err != nil {
				return fmt.Errorf("run %s: %w", report.Run, err)
			}
		}
	}
	return nil
}
