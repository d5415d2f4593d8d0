package handlers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"nsop/bench"
)

// bench runs benchmarks of one target.
func (s *Service) bench(w http.ResponseWriter, r *http.Request) error {
	return s.measure(w, r, "bench", func(values url.Values) (*bench.Plan, error) {
		target, err := s.target(pathParam(r, "target"))
		if err != nil {
			return nil, err
		}
		spec, err := s.spec(values, []*bench.Target{target}, "format")
		if err != nil {
			return nil, err
		}
		return bench.NewPlan(target, pathParam(r, "workloads"), spec, s.Limits)
	})
}

// limit searches for the load beyond which more brings nothing.
func (s *Service) limit(w http.ResponseWriter, r *http.Request) error {
	return s.measure(w, r, "limit", func(values url.Values) (*bench.Plan, error) {
		target, err := s.target(pathParam(r, "target"))
		if err != nil {
			return nil, err
		}
		spec, err := s.spec(values, []*bench.Target{target}, "format")
		if err != nil {
			return nil, err
		}
		return bench.NewLimit(target, pathParam(r, "workload"), spec, s.Limits, values.Has("concurrency"))
	})
}

// suite runs a named plan.
func (s *Service) suite(w http.ResponseWriter, r *http.Request) error {
	return s.measure(w, r, "suite", func(values url.Values) (*bench.Plan, error) {
		suite, err := bench.FindSuite(pathParam(r, "suite"))
		if err != nil {
			return nil, err
		}
		targets := s.Targets
		if names := cmp.Or(values.Get("target"), suite.Target); names != "" && names != "all" {
			targets = nil
			for name := range strings.SplitSeq(names, ",") {
				target, err := s.target(name)
				if err != nil {
					return nil, err
				}
				if slices.Contains(targets, target) {
					return nil, &bench.ParamError{Parameter: "target", Detail: fmt.Sprintf("%q is given twice", name)}
				}
				targets = append(targets, target)
			}
		}
		if len(values["target"]) > 1 {
			return nil, &bench.ParamError{Parameter: "target", Detail: "given twice"}
		}
		spec, err := s.spec(suite.With(values), targets, "format", "target")
		if err != nil {
			return nil, err
		}
		named := values.Get("target") != "" && values.Get("target") != "all" || suite.Target != ""
		return bench.NewSuitePlan(suite, targets, named, spec, s.Limits)
	})
}

// measure performs what makePlan makes of the request's parameters and answers the report. An edit adds to where the run
// comes from.
func (s *Service) measure(w http.ResponseWriter, r *http.Request, kind string, makePlan func(url.Values) (*bench.Plan, error), edits ...func(*origin)) error {
	arrived := time.Now()
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return err
	}
	format, err := formatOf(values, r)
	if err != nil {
		return err
	}
	plan, err := makePlan(values)
	if err != nil {
		return &formatted{err, format}
	}
	o := originOf(kind, r, values)
	for _, edit := range edits {
		edit(&o)
	}
	before := &replayedError{}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") && !values.Has("format") {
		if err := s.stream(w, r, plan, o); !errors.As(err, &before) {
			return err
		}
		return s.answerAgain(w, r, bench.Formats[0], before.run)
	}
	report, err := s.perform(r.Context(), plan, o, s.observe)
	if errors.As(err, &before) {
		return s.answerAgain(w, r, format, before.run)
	}
	if report != nil {
		w.Header().Set("Server-Timing", serverTiming(report, time.Since(arrived)))
	}
	if errors.As(err, &assertionError{}) {
		return s.answer(w, r, format, report, http.StatusExpectationFailed)
	}
	if err != nil {
		return &formatted{err, format}
	}
	return s.answer(w, r, format, report, http.StatusOK)
}

// spec reads the parameters of a benchmark of targets; names in more are the endpoint's own.
func (s *Service) spec(values url.Values, targets []*bench.Target, more ...string) (bench.Spec, error) {
	spec, err := bench.ParseSpec(values, s.Limits, more...)
	if wrong := (*bench.ParamError)(nil); errors.As(err, &wrong) && wrong.Parameter == "client" && wrong.Allowed == nil {
		for _, t := range targets { // which the parser does not know
			for _, c := range t.Clients {
				if !slices.Contains(wrong.Allowed, c.Name) {
					wrong.Allowed = append(wrong.Allowed, c.Name)
				}
			}
		}
	}
	if err != nil {
		return spec, err
	}
	for name, value := range s.Labels {
		if _, ok := spec.Labels[name]; !ok {
			spec.Labels[name] = value
		}
	}
	return spec, nil
}

func (s *Service) observe(p bench.Progress) {
	if s.Observe != nil {
		s.Observe(p)
	}
}

// answer writes a report.
func (s *Service) answer(w http.ResponseWriter, r *http.Request, format bench.Format, report *bench.Report, status int) error {
	var body bytes.Buffer
	if err := format.Encode(&body, report, s.encodeOptions(r)); err != nil {
		return &runError{fmt.Errorf("encode %s: %w", format.Name, err), report} // what was measured is answered in any case
	}
	w.Header().Set("Content-Type", format.ContentType)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // the client has left: nobody is there to be told
	return nil
}

// serverTiming says how much of the answer's time was the measuring and how much all the rest.
func serverTiming(report *bench.Report, total time.Duration) string {
	var measured time.Duration
	for _, r := range report.Results {
		measured += time.Duration(r.ElapsedNS)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf(`measured;dur=%.3f;desc="operations under the clock", nsop;dur=%.3f;desc="dialling, loading, warming up, encoding"`, ms(measured), ms(total-measured))
}

// sendTimeout bounds the sending of one event: a client that reads no more must not hold up the run.
const sendTimeout = 5 * time.Second

// stream answers with server-sent events: started, progress (with the row that just ended, if one did), result.
func (s *Service) stream(w http.ResponseWriter, r *http.Request, plan *bench.Plan, o origin) error {
	// Nothing is sent before the run has begun, so that a refusal still has its status.
	begun := false
	control := http.NewResponseController(w)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	send := func(event string, v any) {
		data, err := json.Marshal(v)
		_ = control.SetWriteDeadline(time.Now().Add(sendTimeout)) // where it can't be set the writer is no connection
		if err == nil {
			_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data)
		}
		if err == nil {
			err = control.Flush()
		}
		if err != nil {
			cancel(fmt.Errorf("send %s: %w", event, err))
		}
	}
	report, err := s.perform(ctx, plan, o, func(p bench.Progress) {
		s.observe(p)
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			send("started", map[string]any{"run": p.Run, "estimated_seconds": p.Seconds, "rows": p.Rows})
			return
		}
		event := struct {
			bench.Progress
			Result *bench.Result `json:"result,omitempty"`
		}{Progress: p}
		if p.Result != nil {
			event.Result = bench.NormalizeResults([]*bench.Result{p.Result})[0]
		}
		send("progress", event)
	})
	switch {
	case err != nil && !begun:
		return err
	case err != nil && !errors.As(err, &assertionError{}):
		send("result", status(err).body())
	default:
		send("result", report.Body())
	}
	return nil
}

// targets lists targets, their clients and the workloads that each supports.
func (s *Service) targets(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.only(r); err != nil {
		return err
	}
	type client struct {
		Name     string `json:"name"`
		Version  string `json:"version,omitempty"`
		Default  bool   `json:"default"`
		Pipeline bool   `json:"pipeline"`
	}
	type target struct {
		Name      string   `json:"name"`
		Kind      string   `json:"kind"`
		Address   string   `json:"address,omitempty"`
		TLS       bool     `json:"tls"`
		Embedded  bool     `json:"embedded"`
		Clients   []client `json:"clients"`
		Workloads []string `json:"workloads"`
	}
	list := []target{}
	for _, t := range s.Targets {
		entry := target{t.Name, t.Kind, t.Address, t.TLS, t.Embedded, nil, bench.WorkloadNames(t)}
		for _, c := range t.Clients {
			entry.Clients = append(entry.Clients, client{c.Name, c.Version, slices.Contains(t.Default, c.Name), c.Pipeline})
		}
		list = append(list, entry)
	}
	w.Header().Set("Content-Type", "application/json")
	return writeJSON(w, map[string]any{"targets": list})
}

// only refuses parameters but those named and returns the format.
func (s *Service) only(r *http.Request, names ...string) (bench.Format, error) {
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return bench.Format{}, err
	}
	if err := checkNames(values, names...); err != nil {
		return bench.Format{}, err
	}
	return formatOf(values, r)
}
