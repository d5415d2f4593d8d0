package handlers_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/store"
	"nsop/bench/vantage"
	"nsop/handlers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for: far above what it takes, so that a slow machine fails no test.
const patience = 20 * time.Second

// environment is a getenv that knows vars alone.
func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// newService is a service with an embedded Redis and a map, changed by edit.
func newService(t testing.TB, edit func(*handlers.Config)) *handlers.Service {
	t.Helper()
	redis, err := store.Parse("redis", "embedded:redis", "", environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	c := handlers.Config{
		Targets: []*bench.Target{redis, store.Map()},
		Limits:  bench.DefaultLimits(""),
		Auth:    handlers.Auth{Mode: "none"},
		Vantage: vantage.New(environment(nil), time.Now(), time.Now),
		Meter: bench.Meter{
			CPU:       func() (time.Duration, bool) { return 0, false },
			Throttled: func() (time.Duration, bool) { return 0, false },
		},
		Version: "test", Started: time.Now(),
	}
	if edit != nil {
		edit(&c)
	}
	return handlers.New(c)
}

// onlyTarget is an edit for a service with one target.
func onlyTarget(target *bench.Target) func(*handlers.Config) {
	return func(c *handlers.Config) { c.Targets = []*bench.Target{target} }
}

// newRequest is a request as the server or, where no client could have sent it, the command line hands it on.
// httptest.NewRequest panics on the latter.
func newRequest(method, target, body string, header ...string) *http.Request {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		u = &url.URL{Path: target}
	}
	r := &http.Request{Method: method, URL: u, Host: "nsop.test", RequestURI: target, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func serve(s http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func get(s http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	return serve(s, newRequest("GET", target, "", header...))
}

// answer is a report or a problem, as a script reads it.
type answer struct {
	Run              string          `json:"run"`
	Type             string          `json:"type"`
	Title            string          `json:"title"`
	Status           int             `json:"status"`
	Detail           string          `json:"detail"`
	Parameter        string          `json:"parameter"`
	Allowed          []string        `json:"allowed"`
	ErrorKind        string          `json:"error_kind"`
	EstimatedSeconds float64         `json:"estimated_seconds"`
	Results          []*bench.Result `json:"results"`
	Warnings         []string        `json:"warnings"`

	State    string   `json:"state"`
	Fraction *float64 `json:"fraction"`
	Error    *answer  `json:"error"`
}

func decode(t testing.TB, body []byte) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return a
}

// problemOf decodes an error's answer and checks what every one must have.
func problemOf(t testing.TB, w *httptest.ResponseRecorder, status int) answer {
	t.Helper()
	if w.Code != status {
		t.Fatalf("status %d, want %d: %s", w.Code, status, w.Body)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	a := decode(t, w.Body.Bytes())
	if a.Type == "" || a.Title == "" || a.Detail == "" || a.Status != status || a.Results == nil {
		t.Errorf("type, title, detail, status or results are missing: %s", w.Body)
	}
	return a
}

// A fake is a target that does what a test tells it to.
type fake struct {
	free    int64
	connect func(ctx context.Context) error
	ping    error
	op      func(closed <-chan struct{}) error
	dials   atomic.Int64
}

// target is a key-value store called redis with one client.
func (f *fake) target() *bench.Target {
	return &bench.Target{Name: "redis", Kind: "redis", Address: "10.0.0.3:6379", Clients: []bench.Client{{Name: "redigo", Version: "v1", Pipeline: true}},
		Default: []string{"redigo"}, Connect: func(ctx context.Context, _ time.Duration) (bench.Session, error) {
			f.dials.Add(1)
			if f.connect != nil {
				if err := f.connect(ctx); err != nil {
					return nil, err
				}
			}
			return fakeSession{f}, nil
		}}
}

type fakeSession struct{ *fake }

func (f fakeSession) Server() bench.Server {
	free := f.free
	if free == 0 {
		free = -1
	}
	return bench.Server{Version: "redis 7.0.15", Mode: "standalone", Free: free, RoundTrip: time.Millisecond}
}
func (f fakeSession) Open(context.Context, string, bench.Options) (bench.Store, error) {
	return &fakeStore{fake: f.fake, closed: make(chan struct{})}, nil
}
func (f fakeSession) Counters(context.Context, string) (bench.Counters, error) {
	return bench.Counters{}, errors.ErrUnsupported
}
func (f fakeSession) Ping(context.Context) error                     { return f.ping }
func (f fakeSession) Remove(context.Context, iter.Seq[string]) error { return nil }
func (f fakeSession) Close() error                                   { return nil }

type fakeStore struct {
	*fake
	shut   atomic.Bool
	closed chan struct{}
}

func (f *fakeStore) Get(context.Context, string) ([]byte, error) {
	if f.op == nil {
		return nil, tick(f.closed)
	}
	return nil, f.op(f.closed)
}
func (f *fakeStore) Set(ctx context.Context, key string, _ []byte) error {
	_, err := f.Get(ctx, key)
	return err
}
func (f *fakeStore) Info() bench.Info {
	return bench.Info{Connections: 1, Settings: map[string]any{"pool_size": 1}}
}
func (f *fakeStore) Close() error {
	if !f.shut.Swap(true) {
		close(f.closed)
	}
	return nil
}

// tick is an operation that takes a millisecond.
func tick(closed <-chan struct{}) error {
	select {
	case <-time.After(time.Millisecond):
		return nil
	case <-closed:
		return io.EOF
	}
}

// going is a service on a real port with a run of half a minute through a fake target going on.
type going struct {
	service *handlers.Service
	server  *httptest.Server
	run     string
	answer  chan *http.Response // of the one who asked for the run; nil where it left
	leave   context.CancelFunc
}

const halfAMinute = "/bench/redis/set?benchtime=30s&warmup=0x"

func startRun(t *testing.T, path string, header ...string) *going {
	t.Helper()
	return startRunWith(t, nil, path, header...)
}

// startRunWith is startRun on a service that edit has changed.
func startRunWith(t *testing.T, edit func(*handlers.Config), path string, header ...string) *going {
	t.Helper()
	begun := make(chan string, 1)
	g := &going{answer: make(chan *http.Response, 1)}
	g.service = newService(t, func(c *handlers.Config) {
		c.Targets = []*bench.Target{(&fake{}).target()}
		c.Observe = func(p bench.Progress) {
			if p.Fraction > 0 {
				select {
				case begun <- p.Run:
				default:
				}
			}
		}
		if edit != nil {
			edit(c)
		}
	})
	g.server = httptest.NewServer(g.service)
	t.Cleanup(g.server.Close)
	ctx, leave := context.WithTimeout(t.Context(), patience)
	g.leave = leave
	t.Cleanup(leave)
	r, err := http.NewRequestWithContext(ctx, "GET", g.server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	go func() {
		answer, err := g.server.Client().Do(r)
		if err != nil {
			answer = nil
		}
		g.answer <- answer
	}()
	select {
	case g.run = <-begun:
	case <-time.After(patience):
		t.Fatal("the run did not begin")
	}
	return g
}

// body waits for the answer of the one who asked for the run.
func (g *going) body(t *testing.T) (*http.Response, []byte) {
	t.Helper()
	select {
	case answer := <-g.answer:
		if answer == nil {
			t.Fatal("no answer")
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, body
	case <-time.After(patience):
		t.Fatal("the run did not end")
	}
	return nil, nil
}

// free waits until another run can begin.
func (g *going) free(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		w := get(g.service, "/bench/redis/set?benchtime=1x&warmup=0x")
		if w.Code == http.StatusOK {
			return
		}
		if w.Code != http.StatusTooManyRequests || time.Now().After(end) {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
}

func TestAnswers(t *testing.T) {
	s := newService(t, func(c *handlers.Config) { c.Labels = map[string]string{"egress": "vpc"} })
	const short = "benchtime=20x&warmup=0x"
	for _, test := range []struct {
		name, method, target, body string
		header                     []string
		contentType                string
		contains                   []string
	}{
		{"default", "GET", "/bench/redis?" + short, "", nil, "application/json", []string{`"workload": "set"`, `"workload": "get"`, `"client": "redigo"`, `"client": "go-redis"`, `"embedded": true`, `"egress": "vpc"`}},
		{"trailing slash", "GET", "/bench/redis/?" + short, "", nil, "application/json", []string{`"workload": "set"`}},
		{"one workload", "GET", "/bench/map/get?" + short, "", nil, "application/json", []string{`"iterations": 20`}},
		{"encoded comma in the path", "GET", "/bench/map/set%2Cget?" + short, "", nil, "application/json", []string{`"workload": "set"`, `"workload": "get"`}},
		{"encoded letter in the path", "GET", "/bench/m%61p/get?" + short, "", nil, "application/json", []string{`"workload": "get"`}},
		{"alias", "GET", "/bench/redis/ping?client=floor&" + short, "", nil, "application/json", []string{`"workload": "ping_mbulk"`}},
		{"group", "GET", "/bench/map/all?" + short, "", nil, "application/json", []string{`"workload": "set"`, `"workload": "get"`}},
		{"text", "GET", "/bench/map?format=text&" + short, "", nil, "text/plain; charset=utf-8", []string{"! embedded store: no real store was measured", "http://nsop.test/runs/"}},
		{"markdown", "GET", "/bench/map?format=markdown&" + short, "", nil, "text/markdown; charset=utf-8", []string{"| set |"}},
		{"csv", "GET", "/bench/map?format=csv&" + short, "", nil, "text/csv; charset=utf-8; header=present", []string{"run,started_at,name"}},
		{"benchfmt", "GET", "/bench/map?format=benchfmt&" + short, "", nil, "text/plain; charset=utf-8", []string{"BenchmarkSet/target=map/"}},
		{"svg", "GET", "/bench/map?format=svg&" + short, "", nil, "image/svg+xml", []string{"<svg ", "<title>map: latency by percentile</title>", "set map: median "}},
		{"svg of a sweep", "GET", "/bench/map/get?concurrency=1,2,4&format=svg&" + short, "", nil, "image/svg+xml", []string{"<title>map: throughput and p99 over concurrency</title>"}},
		{"an image's Accept", "GET", "/bench/map?" + short, "", []string{"Accept", "image/avif,image/webp,image/svg+xml,image/*,*/*;q=0.8"}, "image/svg+xml", []string{"<svg "}},
		{"Accept", "GET", "/bench/map?" + short, "", []string{"Accept", "text/markdown"}, "text/markdown; charset=utf-8", []string{"| set |"}},
		{"format wins over Accept", "GET", "/bench/map?format=csv&" + short, "", []string{"Accept", "text/markdown"}, "text/csv; charset=utf-8; header=present", []string{"run,"}},
		{"format wins over a stream", "GET", "/bench/map?format=json&" + short, "", []string{"Accept", "text/event-stream"}, "application/json", []string{`"results"`}},
		{"browser's Accept", "GET", "/bench/map?" + short, "", []string{"Accept", "text/html,application/xhtml+xml,*/*;q=0.8"}, "application/json", []string{`"results"`}},
		{"POST without a body", "POST", "/bench/map/get?" + short, "", nil, "application/json", []string{`"iterations": 20`}},
		{"body", "POST", "/bench/redis/get", `{"client": ["redigo", "floor"], "concurrency": [1, 2], "benchtime": "20x", "warmup": "0x", "verify": true, "label.a": "b"}`, nil,
			"application/json", []string{`"client": "floor"`, `"concurrency": 2`, `"a": "b"`}},
		{"body and query", "POST", "/bench/map/get?size=1KB", `{"benchtime": "20x", "warmup": "0x", "assert": ["errors=0", "misses=0"]}`, nil, "application/json", []string{`"size": 1000`, `"expr": "misses=0"`}},
		{"format in the body", "POST", "/bench/map/get", `{"benchtime": "20x", "format": "text"}`, nil, "text/plain; charset=utf-8", []string{"map"}},
		{"repeated assert", "GET", "/bench/map/get?assert=errors%3D0&assert=misses%3C1&" + short, "", nil, "application/json", []string{`"expr": "errors=0"`, `"expr": "misses<1"`}},
		{"label over LABELS", "GET", "/bench/map/get?label.egress=connector&" + short, "", nil, "application/json", []string{`"egress": "connector"`}},
		{"index", "GET", "/", "", nil, "text/plain; charset=utf-8", []string{`curl "http://nsop.test/bench/redis?format=text"`, "targets", "/bench/{target}", "embedded"}[:3]},
		{"index for an https front end", "GET", "/", "", []string{"X-Forwarded-Proto", "https"}, "text/plain; charset=utf-8", []string{`curl "https://nsop.test/`}},
		{"targets", "GET", "/targets", "", nil, "application/json", []string{`"workloads"`, `"ping_mbulk"`, `"go-redis"`}},
		{"health", "GET", "/health", "", nil, "application/json", []string{`"ok"`}},
		{"healthz", "GET", "/healthz", "", nil, "application/json", []string{`"ok"`}},
		{"ready", "GET", "/ready", "", nil, "application/json", []string{`"ready"`}},
		{"readyz", "GET", "/readyz", "", nil, "application/json", []string{`"ready"`}},
		{"warm-up", "GET", "/_ah/warmup", "", nil, "application/json", []string{`"ok"`}},
		{"HEAD", "HEAD", "/targets", "", nil, "application/json", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := serve(s, newRequest(test.method, test.target, test.body, test.header...))
			if w.Code != http.StatusOK {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			if got := w.Header().Get("Content-Type"); got != test.contentType {
				t.Errorf("Content-Type %q, want %q", got, test.contentType)
			}
			for _, text := range test.contains {
				if !strings.Contains(w.Body.String(), text) {
					t.Errorf("%q is not in %s", text, w.Body)
				}
			}
			for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestServerTiming(t *testing.T) {
	w := get(newService(t, nil), "/bench/map/get?benchtime=20x")
	var measured, ours float64
	if _, err := fmt.Sscanf(w.Header().Get("Server-Timing"), `measured;dur=%f;desc="operations under the clock", nsop;dur=%f;`, &measured, &ours); err != nil {
		t.Fatalf("%v in %q", err, w.Header().Get("Server-Timing"))
	}
	if measured < 0 || ours <= 0 {
		t.Errorf("measured %v ms, ours %v ms", measured, ours)
	}
}

// TestColour: only on a terminal, and there only where it is wanted.
func TestColour(t *testing.T) {
	for _, test := range []struct{ terminal, noColor, want bool }{
		{false, false, false}, {true, false, true}, {true, true, false},
	} {
		s := newService(t, func(c *handlers.Config) { c.Terminal, c.NoColor = test.terminal, test.noColor })
		w := get(s, "/bench/map/get?benchtime=20x&format=text")
		if got := strings.Contains(w.Body.String(), "\x1b["); got != test.want {
			t.Errorf("terminal %v, NO_COLOR %v: colour %v", test.terminal, test.noColor, got)
		}
	}
}

// TestJSONKeys compares a run's JSON with the example of section 4 of the contract, key by key.
func TestJSONKeys(t *testing.T) {
	type keys = map[string]any
	contract := keys{"run": 0, "started_at": 0, "elapsed_ns": 0,
		"vantage": keys{"platform": 0, "project": 0, "region": 0, "service": 0, "revision": 0, "instance": 0, "instance_age_ns": 0, "cold": 0,
			"sandbox": 0, "go": 0, "cpus": 0, "cpu_quota": 0, "memory_limit_bytes": 0},
		"target": keys{"name": 0, "kind": 0, "address": 0, "server": 0, "mode": 0, "tls": 0, "embedded": 0},
		"results": keys{"name": 0, "target": 0, "workload": 0, "client": 0, "client_version": 0, "concurrency": 0, "pipeline": 0, "size": 0,
			"keyspace": 0, "sample": 0, "iterations": 0, "elapsed_ns": 0, "ns_per_op": 0, "ops_per_sec": 0,
			"latency_ns": keys{"min": 0, "mean": 0, "stddev": 0, "p50": 0, "p90": 0, "p95": 0, "p99": 0, "p99_9": 0, "max": 0},
			"errors":     0, "error_kinds": keys{}, "error_samples": keys{}, "misses": 0, "mismatches": 0, "connections": 0, "connect_ns": 0,
			"bytes_per_op": 0, "allocs_per_op": 0, "client_cpu_percent": 0, "throttled_ns": 0,
			"server":   keys{"ns_per_call": 0, "cpu_percent": 0},
			"settings": 0, "warnings": 0, "longest_stall_ns": 0,
			"embedded": 0, "labels": 0},
		"assertions": keys{"expr": 0, "actual": 0, "row": 0, "ok": 0},
		"warnings":   0,
	}
	// Left out where they say nothing.
	optional := []string{"vantage.project", "vantage.region", "vantage.service", "vantage.revision", "vantage.instance",
		"target.address", "target.mode", "results.server.ns_per_call", "results.server.cpu_percent"}
	w := get(newService(t, nil), "/bench/redis/get?benchtime=20x&assert=errors%3D0&label.a=b")
	var got any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	var compare func(path string, want keys, v any)
	compare = func(path string, want keys, v any) {
		if list, ok := v.([]any); ok {
			if len(list) == 0 {
				t.Errorf("%s is empty", path)
			}
			for _, item := range list {
				compare(path, want, item)
			}
			return
		}
		m, _ := v.(map[string]any) // null has no keys
		for name, value := range m {
			sub, ok := want[name]
			if !ok {
				t.Errorf("%s%s is not in the contract", path, name)
			}
			if sub, ok := sub.(keys); ok {
				compare(path+name+".", sub, value)
			}
		}
		for name := range want {
			if _, ok := m[name]; !ok && !slices.Contains(optional, path+name) {
				t.Errorf("%s%s is missing", path, name)
			}
		}
	}
	compare("", contract, got)
}

func TestAuth(t *testing.T) {
	token := handlers.Auth{Mode: "token", Token: "s3cret"}
	unset := handlers.Auth{Platform: "cloud-run"}
	const refusal = "AUTH is not set on cloud-run, so that nobody may call but health checks: set it to iam where the platform checks callers, else to oidc or token"
	const wanted = "this service wants AUTH_TOKEN as bearer token or as password"
	for _, test := range []struct {
		name   string
		auth   handlers.Auth
		path   string
		header []string
		status int
		detail string
	}{
		{"none", handlers.Auth{Mode: "none"}, "/targets", nil, 200, ""},
		{"iam", handlers.Auth{Mode: "iam", Platform: "cloud-run"}, "/targets", nil, 200, ""},
		{"iam, the signature taken away", handlers.Auth{Mode: "iam", Platform: "cloud-run"}, "/targets", []string{"Authorization", "Bearer e30.e30.SIGNATURE_REMOVED_BY_GOOGLE"}, 200, ""},
		{"iam, cron of App Engine", handlers.Auth{Mode: "iam", Platform: "app-engine", AppEngine: true}, "/targets", []string{"X-Appengine-Cron", "true"}, 200, ""},
		{"iam where no platform checks", handlers.Auth{Mode: "iam"}, "/targets", nil, 403,
			"AUTH=iam relies on the check of a serverless platform, and this is none: set AUTH to token or oidc"},
		{"not set, on a developer's machine", handlers.Auth{}, "/targets", nil, 200, ""},
		{"not set, serverless", unset, "/targets", nil, 403, refusal},
		{"not set, index", unset, "/", nil, 403, refusal},
		{"not set, description", unset, "/openapi.json", nil, 403, refusal},
		{"not set, unknown path", unset, "/nope", nil, 403, refusal},
		{"not set, a run", unset, "/runs/x", nil, 403, refusal},
		{"not set, health", unset, "/health", nil, 200, ""},
		{"not set, healthz", unset, "/healthz", nil, 200, ""},
		{"not set, ready", unset, "/ready", nil, 200, ""},
		{"not set, warm-up", unset, "/_ah/warmup", nil, 200, ""},
		{"not set, start of an instance", unset, "/_ah/start", nil, 404, "no such path: /_ah/start"},
		{"not set, cron", handlers.Auth{Platform: "app-engine", AppEngine: true}, "/targets", []string{"X-Appengine-Cron", "true"}, 403, strings.Replace(refusal, "cloud-run", "app-engine", 1)},
		{"unknown mode refuses", handlers.Auth{Mode: "oidc"}, "/targets", nil, 403, strings.Replace(refusal, "cloud-run", "", 1)},
		{"token missing", token, "/targets", nil, 401, wanted},
		{"token wrong", token, "/targets", []string{"Authorization", "Bearer s3cre"}, 401, wanted},
		{"token empty", token, "/targets", []string{"Authorization", "Bearer "}, 401, wanted},
		{"token of an empty AUTH_TOKEN", handlers.Auth{Mode: "token"}, "/targets", []string{"Authorization", "Bearer "}, 401, wanted},
		{"token without a scheme", token, "/targets", []string{"Authorization", "s3cret"}, 401, wanted},
		{"bearer", token, "/targets", []string{"Authorization", "Bearer s3cret"}, 200, ""},
		{"bearer in small letters", token, "/targets", []string{"Authorization", "bearer s3cret"}, 200, ""},
		{"basic", token, "/targets", []string{"Authorization", "Basic YW55Ym9keTpzM2NyZXQ="}, 200, ""}, // anybody:s3cret
		{"two, the first right", token, "/targets", []string{"Authorization", "Bearer s3cret", "Authorization", "Bearer x"}, 401, wanted},
		{"two, the second right", token, "/targets", []string{"Authorization", "Bearer x", "Authorization", "Bearer s3cret"}, 401, wanted},
		{"basic, wrong", token, "/targets", []string{"Authorization", "Basic czNjcmV0Og=="}, 401, wanted},
		{"token, unknown path", token, "/nope", nil, 401, wanted},
		{"token, unknown method", token, "/targets", nil, 401, wanted},
		{"token, health", token, "/health", nil, 200, ""},
		{"cron on App Engine", handlers.Auth{Mode: "token", Token: "s3cret", AppEngine: true}, "/targets", []string{"X-Appengine-Cron", "true"}, 200, ""},
		{"cron that is not", handlers.Auth{Mode: "token", Token: "s3cret", AppEngine: true}, "/targets", []string{"X-Appengine-Cron", "false"}, 401, wanted},
		{"cron elsewhere", token, "/targets", []string{"X-Appengine-Cron", "true"}, 401, wanted},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newService(t, func(c *handlers.Config) { c.Auth = test.auth })
			w := get(s, test.path, test.header...)
			if test.status == http.StatusOK {
				if w.Code != test.status {
					t.Errorf("status %d: %s", w.Code, w.Body)
				}
				return
			}
			if p := problemOf(t, w, test.status); p.Detail != test.detail {
				t.Errorf("detail %q, want %q", p.Detail, test.detail)
			}
			if got := w.Header().Values("WWW-Authenticate"); (len(got) == 2) != (test.status == 401) {
				t.Errorf("WWW-Authenticate %q", got)
			}
			if strings.Contains(w.Body.String(), "s3cret") {
				t.Error("the token is in the answer")
			}
		})
	}
}

func TestSameOrigin(t *testing.T) {
	const run = "/bench/map/get?benchtime=5x"
	for _, test := range []struct {
		name, method, target string
		header               []string
		status               int
	}{
		{"curl", "GET", run, nil, 200},
		{"curl POST", "POST", run, nil, 200},
		{"typed into the address bar", "GET", run, []string{"Sec-Fetch-Site", "none"}, 200},
		{"own page", "GET", run, []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://nsop.test"}, 200},
		{"own page behind a proxy that changes Host", "POST", run, []string{"Sec-Fetch-Site", "same-origin", "Origin", "https://front.test"}, 200},
		{"own page of an old browser", "POST", run, []string{"Origin", "http://nsop.test"}, 200},
		{"link on another page", "GET", run, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 403},
		{"another service of the site", "GET", run, []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"another origin in an old browser", "POST", run, []string{"Origin", "http://evil.test"}, 403},
		{"another port in an old browser", "POST", run, []string{"Origin", "http://nsop.test:81"}, 403},
		{"origin that a sandbox hides", "POST", run, []string{"Origin", "null"}, 403},
		{"origin that does not parse", "POST", run, []string{"Origin", "http://%zz"}, 403},
		{"image on another page in an old browser", "GET", run, []string{"Referer", "http://evil.test/page"}, 403},
		{"image on our own page in an old browser", "GET", run, []string{"Referer", "http://nsop.test/page"}, 200},
		{"stop", "DELETE", "/runs/x", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"stop, own page", "DELETE", "/runs/x", []string{"Sec-Fetch-Site", "same-origin"}, 404},
		{"reading starts nothing", "GET", "/targets", []string{"Sec-Fetch-Site", "cross-site"}, 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := serve(newService(t, nil), newRequest(test.method, test.target, "", test.header...))
			if w.Code != test.status {
				t.Errorf("status %d, want %d: %s", w.Code, test.status, w.Body)
			}
			if test.status == 403 {
				if p := problemOf(t, w, 403); p.Detail != "a page of another origin can't start or stop a run" {
					t.Errorf("detail %q", p.Detail)
				}
			}
		})
	}
}

func TestBusy(t *testing.T) {
	g := startRun(t, halfAMinute)
	w := get(g.service, "/bench/redis/set?benchtime=1x")
	p := problemOf(t, w, http.StatusTooManyRequests)
	var seconds int
	if _, err := fmt.Sscan(w.Header().Get("Retry-After"), &seconds); err != nil || seconds < 1 || seconds > 31 {
		t.Errorf("Retry-After %q for a run of 30 s", w.Header().Get("Retry-After"))
	}
	if want := fmt.Sprintf("a benchmark is running on this instance, for about %d more seconds", seconds); p.Detail != want {
		t.Errorf("detail %q, want %q", p.Detail, want)
	}
	// What is no run is answered meanwhile.
	for _, path := range []string{"/health", "/ready", "/targets", "/", "/openapi.json"} {
		if w := get(g.service, path); w.Code != http.StatusOK {
			t.Errorf("%s: status %d", path, w.Code)
		}
	}
	g.service.Drain()
	g.body(t)
}

// TestClientLeaves: with its client a run ends, of which the half minute it asked for is the proof.
func TestClientLeaves(t *testing.T) {
	for _, accept := range []string{"application/json", "text/event-stream"} {
		t.Run(accept, func(t *testing.T) {
			g := startRunWith(t, keeping(tempHistory(t)), halfAMinute, "Accept", accept)
			g.leave()
			g.free(t)
			w := get(g.service, "/runs/"+g.run)
			if a := decode(t, w.Body.Bytes()); len(a.Results) != 1 || a.Error == nil || a.Error.Title != "the client left" {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
			if answer := <-g.answer; answer != nil {
				answer.Body.Close()
			}
		})
	}
}

// TestClientLeavesWithBody: a server notices that a client left only once it has read the body.
func TestClientLeavesWithBody(t *testing.T) {
	g := startRun(t, halfAMinute)
	g.service.Drain()
	g.body(t)

	for _, method := range []string{"POST", "GET"} {
		r := newRequest(method, "/bench/redis/set?benchtime=1x", `{"size": 10}`)
		serve(g.service, r)
		if rest, err := io.ReadAll(r.Body); err != nil || len(rest) > 0 {
			t.Errorf("%s left %q of its body, %v", method, rest, err)
		}
	}
}

func TestRunGoingOn(t *testing.T) {
	g := startRun(t, halfAMinute)
	w := get(g.service, "/runs/"+g.run)
	if a := decode(t, w.Body.Bytes()); w.Code != 200 || a.Run != g.run || a.State != "running" || a.Fraction == nil || *a.Fraction < 0 || *a.Fraction > 1 ||
		a.Results == nil || a.EstimatedSeconds < 30 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if w := get(g.service, "/runs/"+g.run+"?format=svg"); w.Code != 422 || !strings.Contains(w.Body.String(), `"run": "`+g.run) || !strings.Contains(w.Body.String(), "no chart: no results") {
		t.Errorf("nothing to draw yet: status %d: %s", w.Code, w.Body)
	}
	if w := get(g.service, "/runs/"+g.run+"?format=text"); w.Code != 200 || !strings.Contains(w.Body.String(), "still running: 0 of 1 rows are done") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	for _, test := range []struct {
		method, target string
		status         int
		detail         string
	}{
		{"GET", "/runs/nope", 404, `no run "nope"`},
		{"DELETE", "/runs/nope", 404, `no run "nope"`},
		{"DELETE", "/runs/" + g.run + "?force=1", 400, "force: no such parameter"},
		{"DELETE", "/runs/" + g.run + "?format=nope", 400, `format: no format "nope"`},
	} {
		if p := problemOf(t, serve(g.service, newRequest(test.method, test.target, "")), test.status); p.Detail != test.detail {
			t.Errorf("%s %s: detail %q, want %q", test.method, test.target, p.Detail, test.detail)
		}
	}
	if a := decode(t, get(g.service, "/runs/"+g.run).Body.Bytes()); a.State != "running" {
		t.Fatal("a request that was refused has stopped the run")
	}

	w = serve(g.service, newRequest("DELETE", "/runs/"+g.run, ""))
	a := decode(t, w.Body.Bytes())
	if w.Code != 200 || len(a.Results) != 1 || a.Results[0].Iterations == 0 || a.Run != g.run || a.Error == nil || a.Error.Title != "stopped" || a.Error.Status != 503 {
		t.Errorf("DELETE: status %d: %s", w.Code, w.Body)
	}
	answer, body := g.body(t)
	if a := decode(t, body); answer.StatusCode != 503 || a.Title != "stopped" || a.Status != 503 || len(a.Results) != 1 || a.Results[0].Iterations == 0 || a.Run != g.run {
		t.Errorf("the one who asked for the run: status %d: %s", answer.StatusCode, body)
	}
	if got := answer.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	for _, method := range []string{"GET", "DELETE"} { // afterwards both are the report
		w = serve(g.service, newRequest(method, "/runs/"+g.run, ""))
		if a := decode(t, w.Body.Bytes()); w.Code != 200 || a.State != "" || len(a.Results) != 1 {
			t.Errorf("%s afterwards: status %d: %s", method, w.Code, w.Body)
		}
	}
	if w := get(g.service, "/runs/"+g.run+"?format=csv"); w.Code != 200 || !strings.HasPrefix(w.Body.String(), "run,") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	g.free(t)
}

// TestLatestRun: without a history the latest run can be asked for, one that went well as the report alone.
func TestLatestRun(t *testing.T) {
	s := newService(t, nil)
	var runs []string
	for range 2 {
		w := get(s, "/bench/map/get?benchtime=5x&warmup=0x")
		runs = append(runs, decode(t, w.Body.Bytes()).Run)
		if again := get(s, "/runs/"+runs[len(runs)-1]); again.Body.String() != w.Body.String() {
			t.Fatalf("%s, then %s", w.Body, again.Body)
		}
	}
	problemOf(t, get(s, "/runs/"+runs[0]), 404)
}

func TestDrain(t *testing.T) {
	g := startRun(t, halfAMinute)
	g.service.Drain()
	g.service.Drain() // a second signal
	for _, test := range []struct{ target, title string }{
		{"/bench/redis/set?benchtime=1x", "shutting down"}, // and not 429, while the run still ends and afterwards
		{"/ready", "shutting down"},
	} {
		if p := problemOf(t, get(g.service, test.target), 503); p.Title != test.title || len(p.Results) != 0 {
			t.Errorf("%s: %+v", test.target, p)
		}
	}
	answer, body := g.body(t)
	if a := decode(t, body); answer.StatusCode != 503 || a.Title != "shutting down" || len(a.Results) != 1 || a.Results[0].Iterations == 0 {
		t.Errorf("status %d: %s", answer.StatusCode, body)
	}
	problemOf(t, get(g.service, "/bench/redis/set?benchtime=1x"), 503)
	if w := get(g.service, "/health"); w.Code != 200 {
		t.Errorf("/health: status %d", w.Code)
	}
}

// TestOutOfTime: a run whose end the estimate could not foresee answers what it had measured.
func TestOutOfTime(t *testing.T) {
	s := newService(t, func(c *handlers.Config) {
		c.Targets = []*bench.Target{(&fake{op: func(closed <-chan struct{}) error {
			for range 5 {
				if err := tick(closed); err != nil {
					return err
				}
			}
			return nil
		}}).target()}
		c.Limits.Total = 400 * time.Millisecond
	})
	p := problemOf(t, get(s, "/bench/redis/set?benchtime=300x&warmup=0x"), 504)
	if p.Title != "out of time" || len(p.Results) != 1 || p.Results[0].Iterations == 0 {
		t.Errorf("%+v", p)
	}
}

// event is a server-sent event.
type event struct {
	name string
	data answer
}

func eventsOf(t *testing.T, body io.Reader) (events []event) {
	t.Helper()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, ok := strings.CutPrefix(lines.Text(), "event: ")
		if !ok {
			t.Fatalf("line %q", lines.Text())
		}
		lines.Scan()
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			t.Fatalf("line %q", lines.Text())
		}
		events = append(events, event{name, decode(t, []byte(data))})
		if lines.Scan(); lines.Text() != "" {
			t.Fatalf("line %q", lines.Text())
		}
	}
	return events
}

func TestStream(t *testing.T) {
	stream := []string{"Accept", "text/event-stream"}
	t.Run("events", func(t *testing.T) {
		w := get(newService(t, nil), "/bench/map?benchtime=5x&warmup=0x&assert=errors%3E0", stream...)
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/event-stream" || !w.Flushed {
			t.Fatalf("status %d, header %v", w.Code, w.Header())
		}
		// Each progress event of a row that ended has that row.
		rows := strings.Count(w.Body.String(), `"result":{"name"`)
		events := eventsOf(t, w.Body)
		first, last := events[0], events[len(events)-1]
		if first.name != "started" || first.data.Run == "" || first.data.EstimatedSeconds <= 0 {
			t.Errorf("first event %+v", first)
		}
		if last.name != "result" || len(last.data.Results) != 2 || last.data.Run != first.data.Run {
			t.Errorf("last event %+v", last)
		}
		for _, e := range events[1 : len(events)-1] {
			if e.name != "progress" || e.data.Fraction == nil || e.data.Run != first.data.Run {
				t.Errorf("event %+v", e)
			}
		}
		if rows != 2 {
			t.Errorf("%d rows in progress events, want 2", rows)
		}
	})
	t.Run("refused", func(t *testing.T) {
		problemOf(t, get(newService(t, nil), "/bench/map?benchtime=nope", stream...), 400)
	})
	t.Run("unreachable", func(t *testing.T) {
		s := newService(t, onlyTarget((&fake{connect: func(context.Context) error { return &bench.KindError{Kind: "refused", Text: "no"} }}).target()))
		if p := problemOf(t, get(s, "/bench/redis", stream...), 502); p.ErrorKind != "refused" {
			t.Errorf("%+v", p)
		}
	})
	t.Run("failed", func(t *testing.T) {
		s := newService(t, onlyTarget((&fake{op: func(<-chan struct{}) error { return errors.New("OOM command not allowed") }}).target()))
		w := get(s, "/bench/redis/set?benchtime=5x&warmup=0x", stream...)
		events := eventsOf(t, w.Body)
		if last := events[len(events)-1]; w.Code != 200 || last.name != "result" || last.data.Status != 502 || last.data.ErrorKind != "oom" || len(last.data.Results) != 1 {
			t.Errorf("last event %+v", last)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		g := startRun(t, halfAMinute, stream...)
		serve(g.service, newRequest("DELETE", "/runs/"+g.run, ""))
		_, body := g.body(t)
		events := eventsOf(t, bytes.NewReader(body))
		if last := events[len(events)-1]; last.name != "result" || last.data.Title != "stopped" || len(last.data.Results) != 1 {
			t.Errorf("last event %+v", last)
		}
	})
	// A client that reads no more is one that left: the half minute is not waited for.
	t.Run("stalled", func(t *testing.T) {
		s := newService(t, onlyTarget((&fake{}).target()))
		w := &stalled{header: http.Header{}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.ServeHTTP(w, newRequest("GET", halfAMinute, "", stream...))
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("the run goes on")
		}
		if !w.bounded {
			t.Error("the write had no deadline")
		}
	})
}

// stalled is a connection whose other end reads the first event and no other.
type stalled struct {
	header  http.Header
	events  int
	bounded bool
}

func (s *stalled) Header() http.Header { return s.header }
func (s *stalled) WriteHeader(int)     {}
func (s *stalled) Flush()              {}
func (s *stalled) SetWriteDeadline(end time.Time) error {
	s.bounded = time.Until(end) < time.Minute
	return nil
}
func (s *stalled) Write(b []byte) (int, error) {
	if s.events++; s.events > 1 {
		return 0, errors.New("i/o timeout")
	}
	return len(b), nil
}

func TestReady(t *testing.T) {
	const password = "hunter2"
	target, err := store.Parse("cache", "redis://user:"+password+"@127.0.0.1:1", "", environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	fine, down := &fake{}, atomic.Bool{}
	edit := func(c *handlers.Config) { c.Targets = []*bench.Target{fine.target(), target, store.Map()} }
	for _, test := range []struct {
		name   string
		auth   handlers.Auth
		header []string
		detail string
	}{
		{"for all", handlers.Auth{Mode: "none"}, nil, "not reached yet: cache: dial: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"for those who may know", handlers.Auth{Mode: "token", Token: "t"}, []string{"Authorization", "Bearer t"},
			"not reached yet: cache: dial: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"for a stranger", handlers.Auth{Mode: "token", Token: "t"}, nil, "not reached yet: cache: refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newService(t, func(c *handlers.Config) { edit(c); c.Auth = test.auth })
			w := get(s, "/ready", test.header...)
			if p := problemOf(t, w, 503); p.Detail != test.detail || p.Title != "not ready" {
				t.Errorf("%q: %q, want %q", p.Title, p.Detail, test.detail)
			}
			if strings.Contains(w.Body.String(), password) {
				t.Error("the password is in the answer")
			}
			if w := get(s, "/health"); w.Code != 200 {
				t.Errorf("/health: status %d", w.Code)
			}
		})
	}
	t.Run("once is enough", func(t *testing.T) {
		f := &fake{connect: func(context.Context) error {
			if down.Load() {
				return errors.New("down")
			}
			return nil
		}}
		s := newService(t, onlyTarget(f.target()))
		for _, is := range []bool{true, false, true} {
			down.Store(is)
			want := map[bool]int{true: 503, false: 200}[is && f.dials.Load() < 2]
			if w := get(s, "/ready"); w.Code != want {
				t.Errorf("down %v: status %d, want %d", is, w.Code, want)
			}
		}
		if f.dials.Load() != 2 {
			t.Errorf("%d dials, want 2", f.dials.Load())
		}
	})
}

// TestNothingIsOpened: what is not asked for is neither dialled nor looked up.
func TestNothingIsOpened(t *testing.T) {
	f := &fake{}
	s := newService(t, onlyTarget(f.target()))
	for _, path := range []string{"/", "/targets", "/health", "/openapi.json", "/_ah/warmup", "/runs/x", "/nope", "/bench/redis?x=1"} {
		get(s, path)
	}
	if n := f.dials.Load(); n != 0 {
		t.Errorf("%d dials", n)
	}
}

// TestPanic: what breaks one run must not leave the service busy for good.
func TestPanic(t *testing.T) {
	first := true
	s := newService(t, onlyTarget((&fake{connect: func(context.Context) error {
		if first {
			first = false
			panic("as a library might")
		}
		return nil
	}}).target()))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed: the server could not log it")
			}
		}()
		get(s, "/bench/redis/set?benchtime=1x")
	}()
	if w := get(s, "/bench/redis/set?benchtime=1x"); w.Code != 200 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
