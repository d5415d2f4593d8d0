// Package handlers is nsop's HTTP interface. This file holds every route; problem.go is the one place that turns an
// error into a status.
package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/vantage"
)

// Config is what the service is made of.
type Config struct {
	Targets  []*bench.Target
	Limits   bench.Limits
	Labels   map[string]string
	Auth     Auth
	Vantage  *vantage.Vantage
	Meter    bench.Meter
	Version  string
	Started  time.Time
	Terminal bool                 // answers go to a terminal: colour, and not only ASCII
	NoColor  bool                 // no colour, on a terminal either
	Observe  func(bench.Progress) // told of a run's progress, may be nil
	History  *history.History     // nil: runs are not kept, but for the latest
	Dies     bool                 // what History keeps ends with this instance
	Compare  CompareSources       // where Run is nil, History and what is published
	Log      io.Writer            // a line for each run, for Cloud Logging; nil: none
	// Push sends a probe's figures to where metrics are collected, ok saying whether it succeeded; nil: nowhere.
	Push func(ctx context.Context, report *bench.Report, ok bool) error
}

// A Service is the handler and what it has going on.
type Service struct {
	Config
	http.Handler
	runs  runs
	ready readiness

	background background
	logging    sync.Mutex
}

// A route is one line of the table of routes, from which the router and the OpenAPI description are made.
type route struct {
	methods []string
	path    string
	doc     string
	open    bool     // needs no authorisation
	starts  bool     // begins or ends a run, which a browser's request from another origin must not
	query   []string // parameters of its own
	spec    bool     // takes the parameters of a benchmark,
	only    []string // of them these; nil: all
	alias   bool     // another name of a route above
	answers string   // the schema of its answer, where that is no report of a run
	serve   func(*Service, http.ResponseWriter, *http.Request) error
}

var (
	get     = []string{http.MethodGet, http.MethodHead}
	getPost = []string{http.MethodGet, http.MethodPost}
)

// routes is every endpoint. They name one another (the description lists them), so it is a func.
func routes() []route {
	return []route{
		{methods: get, path: "/", doc: "What this is: endpoints, targets, examples", serve: (*Service).index},
		{methods: get, path: "/targets", doc: "Targets, their clients, the workloads each supports", serve: (*Service).targets},
		{methods: getPost, path: "/bench/{target}", doc: "Run the default workloads", starts: true, spec: true, query: []string{"format"}, serve: (*Service).bench},
		{methods: getPost, path: "/bench/{target}/{workloads}", doc: "Run workloads: a comma list or a group", starts: true, spec: true, query: []string{"format"}, serve: (*Service).bench},
		{methods: getPost, path: "/suites/{suite}", doc: "Run a named plan that reproduces a published comparison", starts: true, spec: true, query: []string{"format", "target"}, serve: (*Service).suite},
		{methods: getPost, path: "/limit/{target}/{workload}", doc: "Raise the concurrency, or with rate=auto the rate, until throughput stops growing or an assertion breaks", starts: true, spec: true, query: []string{"format"}, serve: (*Service).limit},
		{methods: getPost, path: "/probe/{target}", doc: "The short check for schedulers: a fresh dial in phases, first and warm commands, assertions", starts: true, spec: true, only: bench.ProbeParameters, query: []string{"format"}, serve: (*Service).probe},
		{methods: getPost, path: "/diagnose/{target}", doc: "Where the time goes, and what is wrong", starts: true, query: diagnoseParameters, answers: "Diagnosis", serve: (*Service).diagnose},
		{methods: get, path: "/runs", doc: "The history, newest first; label.NAME searches too", query: runParameterNames(), serve: (*Service).listRuns},
		{methods: []string{http.MethodPost}, path: "/runs", doc: "Store what was measured elsewhere: the body is a file", starts: true, query: append(importNames, "label.NAME"), serve: (*Service).importRuns},
		{methods: get, path: "/runs/{id}", doc: "A run of the history, or how far one is that is going on", query: []string{"format"}, serve: (*Service).run},
		{methods: []string{http.MethodDelete}, path: "/runs/{id}", doc: "Stop a run and answer what it had measured", starts: true, query: []string{"format"}, serve: (*Service).stopRun},
		{methods: get, path: "/compare", doc: "How two runs, or what two filters find, differ", query: []string{"a", "b", "format"}, serve: (*Service).compare},
		{methods: get, path: "/metrics", doc: "The latest of each row and of each probe, for Prometheus: from the history, so that every instance answers alike", serve: (*Service).metrics},
		{methods: get, path: "/health", doc: "The process is up", open: true, serve: (*Service).health},
		{methods: get, path: "/healthz", doc: "Alias of /health", open: true, alias: true, serve: (*Service).health},
		{methods: get, path: "/ready", doc: "Every configured target has been reached", open: true, serve: (*Service).readyz},
		{methods: get, path: "/readyz", doc: "Alias of /ready", open: true, alias: true, serve: (*Service).readyz},
		{methods: get, path: "/_ah/warmup", doc: "App Engine's warm-up request", open: true, serve: (*Service).warmup},
		{methods: get, path: "/openapi.json", doc: "This description", serve: (*Service).openapi},
	}
}

// New returns the service. It opens, dials and asks nothing.
func New(c Config) *Service {
	s := &Service{Config: c}
	if s.Compare.Published == nil && s.Compare.Runs == nil {
		s.Compare = compareSources(c.History)
	}
	s.runs.drained, s.runs.drainNow = context.WithCancel(context.Background())
	r := chi.NewRouter()
	r.Use(middleware.StripSlashes)
	for _, rt := range routes() {
		for _, m := range rt.methods {
			r.Method(m, rt.path, s.wrap(rt))
		}
	}
	// What is not there is told to those alone who may know, but for the platform's own paths: App Engine takes 404 for an
	// answer to /_ah/start, and 401 for an instance that is broken.
	r.NotFound(func(w http.ResponseWriter, req *http.Request) {
		s.wrap(route{open: strings.HasPrefix(req.URL.Path, "/_ah/"), serve: func(*Service, http.ResponseWriter, *http.Request) error {
			return &bench.NotFoundError{Detail: "no such path: " + req.URL.Path, Allowed: paths()}
		}}).ServeHTTP(w, req)
	})
	r.MethodNotAllowed(s.wrap(route{serve: func(_ *Service, w http.ResponseWriter, req *http.Request) error {
		path := cmp.Or(req.URL.RawPath, req.URL.Path)
		if len(path) > 1 {
			path = strings.TrimSuffix(path, "/")
		}
		var allowed []string
		for _, m := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPost} {
			if r.Match(chi.NewRouteContext(), m, path) {
				allowed = append(allowed, m)
			}
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return &methodError{req.Method, allowed}
	}}).ServeHTTP)
	s.Handler = r
	return s
}

// paths are the endpoints as a user types them.
func paths() (paths []string) {
	for _, rt := range routes() {
		if !rt.alias && !slices.Contains(paths, rt.path) && !strings.HasPrefix(rt.path, "/_ah/") {
			paths = append(paths, rt.path)
		}
	}
	return paths
}

// wrap checks who calls, performs the route and turns its error into an answer.
func (s *Service) wrap(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		err := error(nil)
		if !rt.open {
			err = s.Auth.check(r)
		}
		if err == nil && rt.starts {
			err = sameOrigin(r)
		}
		if err == nil {
			err = checkTarget(r.RequestURI)
		}
		if err == nil {
			err = rt.serve(s, w, r)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	})
}

// Drain ends the run that is going on, which then answers what it had measured, and refuses further ones.
func (s *Service) Drain() {
	s.runs.drain()
	s.background.end()
}

var (
	errShutdown = errors.New("shutting down")
	errStopped  = errors.New("stopped by DELETE")
	errTotal    = errors.New("out of time")
)

// info is where the service runs, as a report says it.
func (s *Service) info(ctx context.Context) vantage.Info {
	info := s.Vantage.Info(ctx)
	info.Cold = s.Vantage.Cold()
	return info
}

// pathParam is a parameter of the path as it was meant: the router leaves one encoded that was sent in another encoding
// than the usual one, as set%2Cget.
func pathParam(r *http.Request, name string) string {
	text := chi.URLParam(r, name)
	if r.URL.RawPath == "" {
		return text // decoded already
	}
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}

func (s *Service) target(name string) (*bench.Target, error) {
	i := slices.IndexFunc(s.Targets, func(t *bench.Target) bool { return t.Name == name })
	if i < 0 {
		e := &bench.NotFoundError{Detail: fmt.Sprintf("no target %q", name)}
		for _, t := range s.Targets {
			e.Allowed = append(e.Allowed, t.Name)
		}
		return nil, e
	}
	return s.Targets[i], nil
}
