package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"nsop/bench"
	"nsop/bench/diagnose"
	"nsop/bench/history"
)

// diagnoseParameters are the names that /diagnose takes.
var diagnoseParameters = []string{"format", "client", "timeout", "idle", "background"}

// A diagnoseFormat writes a diagnosis.
type diagnoseFormat struct {
	name  string
	write func(w io.Writer, r *diagnose.Report, o bench.EncodeOptions) error
}

// diagnoseFormats are the formats of a diagnosis, the default first. What they are called and how Accept chooses one is
// as for every report.
var diagnoseFormats = []diagnoseFormat{
	{"json", func(w io.Writer, r *diagnose.Report, _ bench.EncodeOptions) error { return writeJSON(w, r) }},
	{"text", func(w io.Writer, r *diagnose.Report, o bench.EncodeOptions) error { return r.Text(w, o) }},
	{"markdown", func(w io.Writer, r *diagnose.Report, o bench.EncodeOptions) error { return r.Markdown(w, o) }},
}

func isDiagnoseFormat(name string) bool {
	return slices.ContainsFunc(diagnoseFormats, func(f diagnoseFormat) bool { return f.name == name })
}

// diagnose says where the time goes and what is wrong, also where the store can't be reached.
func (s *Service) diagnose(w http.ResponseWriter, r *http.Request) error {
	arrived := time.Now()
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return err
	}
	format, encoder, err := diagnoseFormatOf(values, r)
	if err != nil {
		return err
	}
	target, err := s.target(pathParam(r, "target"))
	if err != nil {
		return &formatted{err, format}
	}
	options, background, err := s.diagnoseOptions(values, target)
	if err != nil {
		return &formatted{err, format}
	}
	share := s.background.stop()
	if background {
		options.Background = share
	}
	report, err := s.examine(r, target, options)
	if err != nil {
		return &formatted{err, format}
	}
	if err := s.keepDiagnosis(r, originOf("diagnose", r, values), report); err != nil {
		report.Unmeasured["history"] = err.Error()
	}
	if background && share == nil {
		report.Unmeasured["vantage.background_percent"] = "ask again with background=true: the time after this response is measured"
	}
	var body bytes.Buffer
	if err := encoder.write(&body, report, s.encodeOptions(r)); err != nil {
		return fmt.Errorf("encode %s: %w", format.Name, err)
	}
	w.Header().Set("Content-Type", format.ContentType)
	w.Header().Set("Server-Timing", fmt.Sprintf(`diagnosis;dur=%.3f, nsop;dur=%.3f`, float64(report.ElapsedNS)/1e6,
		float64(time.Since(arrived)-time.Duration(report.ElapsedNS))/1e6))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body.Bytes()) // the client has left: nobody is there to be told
	if background {
		s.background.start()
	}
	return nil
}

// examine diagnoses target while no benchmark runs, which either would find in its figures.
func (s *Service) examine(r *http.Request, target *bench.Target, o diagnose.Options) (*diagnose.Report, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	run := &running{id: uuid.Must(uuid.NewV7()).String(), cancel: cancel, done: make(chan struct{}), started: time.Now(), describe: func(r *bench.Report) { r.Describe(target, false) }}
	run.progress = bench.Progress{Run: run.id, Rows: 1, Estimate: diagnoseMargin}
	if len(o.Idle) > 0 {
		run.progress.Estimate += slices.Max(o.Idle)
	}
	run.progress.Seconds = run.progress.Estimate.Seconds()
	if err := s.runs.begin(run); err != nil {
		return nil, err
	}
	defer s.runs.end(nil, nil)
	o.Vantage = s.info(ctx)
	report := diagnose.Diagnose(ctx, target, o)
	switch cause := context.Cause(ctx); cause {
	case errShutdown:
		return nil, cause
	}
	return report, nil
}

// keepDiagnosis puts a diagnosis into the history.
func (s *Service) keepDiagnosis(r *http.Request, o origin, report *diagnose.Report) error {
	if s.History == nil {
		return nil
	}
	body, err := compact(report)
	if err != nil {
		return err
	}
	info := s.Vantage.Info(r.Context())
	run := &history.Run{ID: uuid.Must(uuid.NewV7()).String(), Kind: o.kind, StartedAt: report.StartedAt, Elapsed: time.Duration(report.ElapsedNS), Outcome: history.OK,
		Status: http.StatusOK, Platform: info.Platform, Region: info.Region, Service: info.Service, Revision: info.Revision, Instance: info.Instance,
		Labels: s.Labels, Request: o.request, Body: body}
	if report.Target != nil {
		run.Targets = []string{report.Target.Name}
	}
	if err := s.History.Save(context.WithoutCancel(r.Context()), run); err != nil && !errors.Is(err, history.ErrPrune) {
		return &historyError{err}
	}
	return nil
}

// answerDiagnosis answers a diagnosis of the history as it was answered.
func (s *Service) answerDiagnosis(w http.ResponseWriter, r *http.Request, format bench.Format, run *history.Run) error {
	i := slices.IndexFunc(diagnoseFormats, func(f diagnoseFormat) bool { return f.name == format.Name })
	if i < 0 {
		return &bench.ParamError{Parameter: "format", Detail: "no format " + strconv.Quote(format.Name) + " of a diagnosis", Allowed: []string{"json", "text", "markdown"}}
	}
	var report diagnose.Report
	if err := json.Unmarshal(run.Body, &report); err != nil {
		return fmt.Errorf("read diagnosis %s: %w", run.ID, err)
	}
	var body bytes.Buffer
	if err := diagnoseFormats[i].write(&body, &report, s.encodeOptions(r)); err != nil {
		return fmt.Errorf("encode %s: %w", format.Name, err)
	}
	w.Header().Set("Content-Type", format.ContentType)
	_, _ = w.Write(body.Bytes()) // the client has left: nobody is there to be told
	return nil
}

// background is the work after a response, of which the next request tells what it got.
type background struct {
	mu   sync.Mutex
	work *diagnose.Background // nil: none
	over bool                 // none begins any more
}

func (b *background) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work == nil && !b.over {
		b.work = diagnose.StartBackground()
	}
}

// stop ends the work and returns the share of its time that it got, nil where there was none.
func (b *background) stop() *float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work == nil {
		return nil
	}
	share, ok := b.work.Stop()
	b.work = nil
	if !ok {
		return nil
	}
	return &share
}

// end stops the work for good.
func (b *background) end() {
	b.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// diagnoseFormatOf is the format that the request wants.
func diagnoseFormatOf(values url.Values, r *http.Request) (bench.Format, diagnoseFormat, error) {
	format, err := formatOf(values, r)
	i := slices.IndexFunc(diagnoseFormats, func(f diagnoseFormat) bool { return f.name == format.Name })
	if err == nil && i >= 0 {
		return format, diagnoseFormats[i], nil
	}
	if err == nil && !values.Has("format") { // what Accept chose is no format of this endpoint
		return bench.Formats[0], diagnoseFormats[0], nil
	}
	wrong := &bench.ParamError{Parameter: "format", Detail: "no format " + strconv.Quote(values.Get("format")) + " of a diagnosis"}
	if len(values["format"]) > 1 {
		wrong.Detail = "given twice"
	}
	for _, f := range diagnoseFormats {
		wrong.Allowed = append(wrong.Allowed, f.name)
	}
	return bench.Formats[0], diagnoseFormat{}, wrong
}

// diagnoseOptions are what the parameters say. Its errors are *bench.ParamError.
func (s *Service) diagnoseOptions(values url.Values, t *bench.Target) (o diagnose.Options, background bool, err error) {
	if err := checkNames(values, diagnoseParameters...); err != nil {
		return o, false, err
	}
	for name, given := range values {
		if len(given) > 1 {
			return o, false, &bench.ParamError{Parameter: name, Detail: "given twice"}
		}
	}
	if values.Has("client") {
		var known []string
		for _, c := range t.Clients {
			known = append(known, c.Name)
		}
		for name := range strings.SplitSeq(values.Get("client"), ",") {
			if !slices.Contains(known, name) || slices.Contains(o.Clients, name) {
				return o, false, &bench.ParamError{Parameter: "client", Detail: fmt.Sprintf("%q is no client of %s, or given twice", name, t.Name), Allowed: known}
			}
			o.Clients = append(o.Clients, name)
		}
	}
	if values.Has("timeout") {
		if o.Timeout, err = durationWithin(values.Get("timeout"), time.Millisecond, s.Limits.Total); err != nil {
			return o, false, &bench.ParamError{Parameter: "timeout", Detail: err.Error(), Allowed: []string{"a duration from 1ms to " + s.Limits.Total.String()}}
		}
	}
	if values.Has("idle") {
		most := s.Limits.Total - diagnoseMargin
		for text := range strings.SplitSeq(values.Get("idle"), ",") {
			gap, err := durationWithin(text, time.Millisecond, most)
			if err != nil || len(o.Idle) == maxIdle {
				return o, false, &bench.ParamError{Parameter: "idle", Detail: fmt.Sprintf("%q is no duration that ends within this request", text),
					Allowed: []string{fmt.Sprintf("up to %d durations from 1ms to %v, a comma list", maxIdle, most)}}
			}
			o.Idle = append(o.Idle, gap)
		}
	}
	switch text := values.Get("background"); {
	case !values.Has("background") || text == "false" || text == "0":
	case text == "true" || text == "1":
		background = true
	default:
		return o, false, &bench.ParamError{Parameter: "background", Detail: strconv.Quote(text) + " is neither true nor false", Allowed: []string{"true", "false"}}
	}
	return o, background, nil
}

const (
	diagnoseMargin = 12 * time.Second // what a diagnosis takes beside the longest gap
	maxIdle        = 8                // connections held at once
)

func durationWithin(text string, from, to time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < from || d > to {
		return 0, fmt.Errorf("%q is no duration from %v to %v", text, from, to)
	}
	return d, nil
}
