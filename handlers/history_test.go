package handlers_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"nsop/bench/history"
	"nsop/bench/store"
	"nsop/handlers"
)

// newHistory is one that ends with the test.
func newHistory(t testing.TB, rawURL string) *history.History {
	t.Helper()
	h, err := history.New(rawURL, 90*24*time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// keeping is an edit for a service that keeps its runs in h.
func keeping(h *history.History) func(*handlers.Config) {
	return func(c *handlers.Config) { c.History = h }
}

func tempHistory(t testing.TB) *history.History {
	t.Helper()
	return newHistory(t, "sqlite:"+filepath.Join(t.TempDir(), "history.db"))
}

// listing is what GET /runs answers.
type listing struct {
	Runs []struct {
		Run, Kind, Outcome, Error, Request, URL string
		Status                                  int
		ErrorKind                               string `json:"error_kind"`
		Targets                                 []string
		Labels                                  map[string]string
		Results                                 []struct {
			Name, Target, Workload, Client string
			NSPerOp                        *float64 `json:"ns_per_op"`
		}
	}
}

func list(t testing.TB, s *handlers.Service, query string) listing {
	t.Helper()
	w := get(s, "/runs"+query)
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var l listing
	if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || l.Runs == nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return l
}

const fast = "benchtime=5x&warmup=0x"

// TestKept: what one instance measured another one answers, in every format as the first one did.
func TestKept(t *testing.T) {
	h := tempHistory(t)
	a, b := newService(t, keeping(h)), newService(t, keeping(h))
	for _, test := range []struct {
		name, target, body, format, request string
		status                              int
		outcome                             string
	}{
		{"json", "/bench/map?" + fast, "", "json", "/bench/map?" + fast, 200, "ok"},
		{"text", "/bench/redis/set?label.x=1%262&format=text&" + fast, "", "text", "/bench/redis/set?benchtime=5x&label.x=1%262&warmup=0x", 200, "ok"},
		{"csv", "/bench/redis/set,get?count=2&format=csv&" + fast, "", "csv", "/bench/redis/set,get?benchtime=5x&count=2&warmup=0x", 200, "ok"},
		{"benchfmt", "/bench/redis/set%2Cget?format=benchfmt&" + fast, "", "benchfmt", "/bench/redis/set%2Cget?" + fast, 200, "ok"},
		{"markdown", "/bench/map?format=markdown&" + fast, "", "markdown", "/bench/map?" + fast, 200, "ok"},
		{"body", "/bench/map", `{"benchtime": "5x", "warmup": "0x", "concurrency": [1, 2]}`, "json", "/bench/map?benchtime=5x&concurrency=1%2C2&warmup=0x", 200, "ok"},
		{"assertion", "/bench/map?assert=p50%3C1ns&" + fast, "", "json", "/bench/map?assert=p50%3C1ns&" + fast, 417, "assertion-failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			method := "GET"
			if test.body != "" {
				method = "POST"
			}
			w := serve(a, newRequest(method, test.target, test.body))
			if w.Code != test.status {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			l := list(t, b, "?limit=1").Runs[0]
			if l.Kind != "bench" || l.Outcome != test.outcome || l.Status != test.status || l.Request != test.request || l.URL != "http://nsop.test/runs/"+l.Run || len(l.Results) == 0 || l.Results[0].NSPerOp == nil {
				t.Errorf("%+v", l)
			}
			again := get(b, "/runs/"+l.Run+"?format="+test.format)
			if again.Code != 200 || again.Body.String() != w.Body.String() || again.Header().Get("Content-Type") != w.Header().Get("Content-Type") {
				t.Errorf("status %d: %s\nwas\n%s", again.Code, again.Body, w.Body)
			}
			if test.format == "text" && !strings.Contains(w.Body.String(), "http://nsop.test/runs/"+l.Run) {
				t.Errorf("no permalink in %s", w.Body)
			}
		})
	}
}

// TestFailedRunsAreKept: with what ended them.
func TestFailedRunsAreKept(t *testing.T) {
	h := tempHistory(t)
	other := newService(t, keeping(h))
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	target, err := store.Parse("closed", "redis://"+closed.Addr().String(), "", environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, func(c *handlers.Config) {
		c.History = h
		c.Targets = append(c.Targets, target)
		c.Labels = map[string]string{"egress": "direct"}
	})
	p := problemOf(t, get(s, "/bench/closed/get?"+fast), 502)
	l := list(t, other, "?target=closed&label.egress=direct").Runs
	if len(l) != 1 || l[0].Run != p.Run || l[0].Outcome != "failed" || l[0].Status != 502 || l[0].ErrorKind != "refused" || l[0].Error != p.Detail || len(l[0].Results) != 0 || !slices.Equal(l[0].Targets, []string{"closed"}) {
		t.Errorf("%+v", l)
	}
	if a := decode(t, get(other, "/runs/"+p.Run).Body.Bytes()); a.Error == nil || a.Error.ErrorKind != "refused" || a.Error.Status != 502 || a.Run != p.Run {
		t.Errorf("%+v", a)
	}
	if w := get(other, "/runs/"+p.Run+"?format=text"); w.Code != 200 || !strings.Contains(w.Body.String(), "no results") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}

	// One that was stopped, with what it had measured.
	g := startRunWith(t, keeping(h), halfAMinute)
	serve(g.service, newRequest("DELETE", "/runs/"+g.run, ""))
	g.body(t)
	l = list(t, other, "?outcome=stopped").Runs
	if len(l) != 1 || l[0].Run != g.run || l[0].Status != 503 || len(l[0].Results) != 1 || l[0].Results[0].NSPerOp == nil {
		t.Errorf("%+v", l)
	}
}

func TestNotKept(t *testing.T) {
	s := newService(t, keeping(tempHistory(t)))
	w := get(s, "/bench/map?save=false&format=text&"+fast)
	if w.Code != 200 || strings.Contains(w.Body.String(), "/runs/") {
		t.Errorf("status %d, a permalink to what is not kept: %s", w.Code, w.Body)
	}
	if l := list(t, s, ""); len(l.Runs) != 0 {
		t.Errorf("%+v", l)
	}
}

// TestHistoryDown costs a warning and no result; the latest run can still be asked for.
func TestHistoryDown(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangs.Close() })
	for name, rawURL := range map[string]string{
		"no file": "sqlite:/proc/nope/history.db",
		"refused": "postgres://user:hunter2@127.0.0.1:1/db?sslmode=disable",
		"hangs":   "postgres://user:hunter2@" + hangs.Addr().String() + "/db?sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			s := newService(t, keeping(newHistory(t, rawURL)))
			w := get(s, "/bench/map?"+fast)
			a := decode(t, w.Body.Bytes())
			if w.Code != 200 || len(a.Results) != 2 || !slices.ContainsFunc(a.Warnings, func(w string) bool {
				return strings.HasPrefix(w, "the history: save run "+a.Run+": open the history: ")
			}) {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
			if strings.Contains(w.Body.String(), "hunter2") {
				t.Errorf("a password: %s", w.Body)
			}
			if again := get(s, "/runs/"+a.Run); again.Code != 200 || again.Body.String() != w.Body.String() {
				t.Errorf("status %d: %s", again.Code, again.Body)
			}
			if w := get(s, "/runs/"+a.Run+"?format=text"); strings.Contains(w.Body.String(), "/runs/") {
				t.Errorf("a permalink to what is not kept: %s", w.Body)
			}
			problemOf(t, get(s, "/runs"), 503)
			problemOf(t, get(s, "/runs/nope"), 503)
		})
	}
}

// TestShutdownWithoutHistory: a history that hangs does not keep the answer of a run that the end of the process cuts off: it is
// given up before its own time is over.
func TestShutdownWithoutHistory(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangs.Close() })
	h := newHistory(t, "postgres://u@"+hangs.Addr().String()+"/db?sslmode=disable")
	g := startRunWith(t, keeping(h), halfAMinute)
	g.service.Drain()
	if answer, body := g.body(t); answer.StatusCode != 503 || !strings.Contains(string(body), "open the history: context canceled") {
		t.Errorf("status %d: %s", answer.StatusCode, body)
	}
}

func TestDies(t *testing.T) {
	s := newService(t, func(c *handlers.Config) { c.History, c.Dies = tempHistory(t), true })
	if a := decode(t, get(s, "/bench/map?"+fast).Body.Bytes()); !slices.ContainsFunc(a.Warnings, func(w string) bool { return strings.Contains(w, "HISTORY_URL") }) {
		t.Errorf("%q", a.Warnings)
	}
}

func TestList(t *testing.T) {
	s := newService(t, keeping(tempHistory(t)))
	evil := `<script>"alert",` + "\u00e9"
	for _, path := range []string{"/bench/map?label.a=1", "/bench/redis/get?client=redigo,go-redis&label.a=2", "/bench/redis/set?client=redigo&label.a=" + url.QueryEscape(evil)} {
		if w := get(s, path+"&"+fast); w.Code != 200 {
			t.Fatalf("%s: status %d: %s", path, w.Code, w.Body)
		}
	}
	names := func(l listing) string {
		var names []string
		for _, r := range l.Runs {
			var rows []string
			for _, row := range r.Results {
				rows = append(rows, row.Target+"."+row.Workload+"."+row.Client)
			}
			names = append(names, strings.Join(rows, "+"))
		}
		return strings.Join(names, " ")
	}
	const newest, middle, oldest = "redis.set.redigo", "redis.get.redigo+redis.get.go-redis", "map.set.map+map.get.map"
	for query, want := range map[string]string{
		"":                              newest + " " + middle + " " + oldest,
		"?limit=2":                      newest + " " + middle,
		"?target=map":                   oldest,
		"?target=redis&client=go-redis": "redis.get.go-redis",
		"?workload=set":                 newest + " map.set.map",
		"?since=1h":                     newest + " " + middle + " " + oldest,
		"?until=1h":                     "",
		"?since=2100-01-01":             "",
		"?since=2020-01-01T00:00:00%2b09:00&until=2100-01-01T00:00:00Z&target=map": oldest,
		"?label.a=2":                        middle,
		"?label.a=" + url.QueryEscape(evil): newest,
		"?kind=bench&outcome=ok&limit=1":    newest,
		"?kind=probe":                       "",
		"?revision=none":                    "",
	} {
		if got := names(list(t, s, query)); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	for query, parameter := range map[string]string{
		"?limit=0": "limit", "?limit=x": "limit", "?limit=10001": "limit", "?since=x": "since", "?until=-1h": "until", "?since=0001-01-01": "since",
		"?kind=x": "kind", "?outcome=x": "outcome", "?target=": "target", "?target=a&target=b": "target", "?host=x": "host", "?format=svg": "format",
	} {
		if p := problemOf(t, get(s, "/runs"+query), 400); p.Parameter != parameter {
			t.Errorf("%s: parameter %q: %s", query, p.Parameter, p.Detail)
		}
	}

	w := get(s, "/runs?format=csv")
	records, err := csv.NewReader(w.Body).ReadAll()
	if err != nil || len(records) != 1+5 || w.Header().Get("Content-Type") != "text/csv; charset=utf-8; header=present" {
		t.Fatalf("%v: %v", err, records)
	}
	if labels := records[1][slices.Index(records[0], "labels")]; labels != "a="+url.QueryEscape(evil) {
		t.Errorf("labels %q", labels)
	}
	w = get(s, "/runs?format=text")
	if w.Code != 200 || strings.Count(w.Body.String(), "http://nsop.test/runs/") != 5 || !strings.Contains(w.Body.String(), "go-redis") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if w := get(s, "/runs?format=text&target=nope"); w.Body.String() != "no runs\n" {
		t.Errorf("%q", w.Body)
	}
	if w := get(s, "/runs", "Accept", "application/x-ndjson"); w.Header().Get("Content-Type") != "application/x-ndjson" || strings.Count(w.Body.String(), "\n") != 3 {
		t.Errorf("%s", w.Body)
	}
}

// FuzzList: whatever is asked of the history is answered or is the caller's fault.
func FuzzList(f *testing.F) {
	for _, seed := range []string{"limit=1&since=24h", "label.a=b&target=%00", "since=2026-11-30&until=1d1h", "format=csv&workload=%ff", "outcome=ok&kind=x"} {
		f.Add(seed)
	}
	s := newService(f, keeping(tempHistory(f)))
	if w := get(s, "/bench/map?"+fast); w.Code != 200 {
		f.Fatalf("status %d: %s", w.Code, w.Body)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := newRequest("GET", "/runs", "")
		r.URL.RawQuery = query
		if w := serve(s, r); w.Code != 200 && w.Code != 400 {
			t.Errorf("%q: status %d: %s", query, w.Code, w.Body)
		}
	})
}

// TestImport: what one history exports another one takes, once.
func TestImport(t *testing.T) {
	from, to := newService(t, keeping(tempHistory(t))), newService(t, keeping(tempHistory(t)))
	get(from, "/bench/map?label.a=1&"+fast)
	get(from, "/bench/redis/get?"+fast)
	export := get(from, "/runs?format=ndjson").Body.String()

	broken := export + "{\n"
	if p := problemOf(t, serve(to, newRequest("POST", "/runs", broken)), 400); !strings.HasPrefix(p.Detail, "line 3: ") {
		t.Errorf("%q", p.Detail)
	}
	for _, body := range []string{"", "[]", "{}", `{"run":"../x","results":[],"target":{}}`, `{"results":[null]}`, `{"target":{},"started_at":"0001-01-02T00:00:00Z"}`, export + export} {
		problemOf(t, serve(to, newRequest("POST", "/runs", body)), 400)
	}
	problemOf(t, serve(to, newRequest("POST", "/runs", strings.Repeat(" ", 16<<20+1))), 413)
	problemOf(t, serve(to, newRequest("POST", "/runs", export, "Origin", "http://elsewhere.test")), 403)
	if l := list(t, to, ""); len(l.Runs) != 0 {
		t.Fatalf("%+v", l)
	}

	w := serve(to, newRequest("POST", "/runs", export))
	var l listing
	if err := json.Unmarshal(w.Body.Bytes(), &l); w.Code != 200 || err != nil || len(l.Runs) != 2 || l.Runs[0].Kind != "import" {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	for _, was := range list(t, from, "").Runs {
		is := list(t, to, "?kind=import&target="+was.Targets[0]).Runs
		if len(is) != 1 || is[0].Run != was.Run || fmt.Sprint(is[0].Labels) != fmt.Sprint(was.Labels) || len(is[0].Results) != len(was.Results) || is[0].Results[0].Name != was.Results[0].Name {
			t.Errorf("%+v, was %+v", is, was)
		}
		var report struct{ Imported string }
		if err := json.Unmarshal(get(to, "/runs/"+was.Run).Body.Bytes(), &report); err != nil || report.Imported != "nsop" {
			t.Errorf("%v, imported %q", err, report.Imported)
		}
	}
	problemOf(t, serve(to, newRequest("POST", "/runs", export)), 409)
	problemOf(t, serve(newService(t, nil), newRequest("POST", "/runs", export)), 503)
}
