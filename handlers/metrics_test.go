package handlers_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"nsop/bench"
	"nsop/bench/store"
	"nsop/bench/storetest"
	"nsop/bench/vantage"
	"nsop/handlers"
)

// withoutAge is the exposition without the one thing that differs from scrape to scrape.
func withoutAge(text string) string {
	return regexp.MustCompile(`(?m)^nsop_probe_age_seconds\{.*\n`).ReplaceAllString(text, "")
}

// TestMetrics: whatever instance measured, each answers the latest of every row and probe, in a form that Prometheus' own linter
// has nothing to say of.
func TestMetrics(t *testing.T) {
	redis := storetest.Redis(t)
	h := tempHistory(t)
	instance := func() *handlers.Service {
		return newService(t, func(c *handlers.Config) {
			c.Targets, c.History = []*bench.Target{redisAt(t, redis.Addr), store.Map(), parseTarget(t, "gone", "redis://127.0.0.1:1")}, h
		})
	}
	a, b := instance(), instance()
	if w := get(a, "/metrics"); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("of nothing: %d %s", w.Code, w.Body)
	}
	for _, r := range []struct {
		target string
		status int
	}{
		{"/probe/redis?label.x=%3Cscript%3E%22%5C", 200}, {"/probe/map", 200}, {"/probe/map?assert=p50%3C1ns", 417}, {"/probe/gone", 502},
		{"/bench/redis/get,ping?client=redigo,floor&concurrency=1,2&count=2&label.x=y&" + fast, 200},
	} {
		if w := get(a, r.target); w.Code != r.status {
			t.Fatalf("%s: %d %s", r.target, w.Code, w.Body)
		}
	}
	w := get(b, "/metrics", "Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2")
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Fatalf("%d %q", w.Code, w.Header().Get("Content-Type"))
	}
	text := w.Body.String()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %+v in\n%s", err, problems, text)
	}
	if other := get(a, "/metrics").Body.String(); withoutAge(other) != withoutAge(text) {
		t.Errorf("another instance answers\n%s\nand not\n%s", other, text)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, " ")
		if name != "#" && seen[name] {
			t.Errorf("twice: %s", name)
		}
		seen[name] = true
	}
	for _, want := range []string{
		`nsop_probe_success{target="redis"} 1`, `nsop_probe_success{target="map"} 0`, `nsop_probe_success{target="gone"} 0`,
		`nsop_probe_phase_seconds{target="redis",phase="tcp"} `, `nsop_probe_class_seconds{target="redis",class="warm"} `,
		`nsop_run_start_timestamp_seconds{target="gone"} 1`, `nsop_probe_start_timestamp_seconds{target="redis"} 1`,
		`nsop_latency_seconds{target="redis",workload="set",client="redigo",concurrency="1",pipeline="1",size="100",keyspace="1",label_x="<script>\"\\",quantile="0.5"}`,
		`nsop_operations{target="redis",workload="get",client="floor",concurrency="2",pipeline="1",size="100",keyspace="1",label_x="y",sample="2"} 5`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for target, status := range map[string]int{"/metrics?format=json": 400, "/metrics/x": 404} {
		if w := get(a, target); w.Code != status {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	down := newHistory(t, "sqlite:"+filepath.Join(t.TempDir(), strings.Repeat("x", 300), "h.db"))
	if w := get(newService(t, keeping(down)), "/metrics"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("history down: %d", w.Code)
	}
}

// TestMetricsChange: a step of the level is there with the row that it is of.
func TestMetricsChange(t *testing.T) {
	h := tempHistory(t)
	s := newService(t, func(c *handlers.Config) { c.Targets, c.History = []*bench.Target{store.Map()}, h })
	seedProbes(t, h, probeAnswer(t, get(s, "/probe/map?save=false").Body.Bytes()), 200, 80)
	get(s, "/probe/map")
	text := get(s, "/metrics").Body.String()
	if !regexp.MustCompile(`(?m)^nsop_latency_change_ratio\{target="map",workload="get",client="map"\} [12]\.\d`).MatchString(text) ||
		!strings.Contains(text, "nsop_latency_change_timestamp_seconds{") {
		t.Errorf("%s", text)
	}
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v %+v", err, problems)
	}
}

// TestMetricsScale: of 20,000 runs they take at most three times as long as of 1,000.
func TestMetricsScale(t *testing.T) {
	const small, large, maxRatio = 1000, 20_000, 3
	like := newService(t, func(c *handlers.Config) { c.Targets = []*bench.Target{store.Map()} })
	report := probeAnswer(t, get(like, "/probe/map").Body.Bytes())
	var services []*handlers.Service
	for _, n := range []int{small, large} {
		path := filepath.Join(t.TempDir(), "h.db")
		h := newHistory(t, "sqlite:"+path)
		seedProbes(t, h, report, 100, 0)
		multiplyRuns(t, path, n/100)
		services = append(services, newService(t, func(c *handlers.Config) { c.Targets, c.History = []*bench.Target{store.Map()}, h }))
	}
	var took [2][]time.Duration
	for range 15 {
		for i, s := range services {
			began := time.Now()
			w := get(s, "/metrics")
			took[i] = append(took[i], time.Since(began))
			if w.Code != 200 || !strings.Contains(w.Body.String(), `nsop_probe_success{target="map"} 1`) {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	a, b := took[0][7], took[1][7]
	t.Logf("%d runs: %s, %d runs: %s, ratio %.2f", small, a, large, b, float64(b)/float64(a))
	if float64(b)/float64(a) > maxRatio {
		t.Errorf("%d runs: %s, %d runs: %s", small, a, large, b)
	}
}

// multiplyRuns copies every run in the SQLite file times-1 times over, each copy some days older than the one before it. What
// only the newest are asked for is not copied.
func multiplyRuns(t testing.TB, path string, times int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, c := range []struct{ table, columns string }{
		{"results", "run_id, position, series_id, level, started_at, cold, sample, iterations, elapsed_ns, errors, misses, mismatches, ns_per_op, p50_ns, max_ns"},
		{"run_labels", "run_id, name, value, started_at"},
		{"runs", "id, kind, started_at, saved_at, elapsed_ns, status, outcome, error_kind, error, platform, region, service, revision, instance, cold, request"},
	} {
		values := strings.NewReplacer("run_id", "run_id || '-' || k.n", "started_at", "started_at - k.n * 86400000000000").Replace(c.columns)
		values = regexp.MustCompile(`^id`).ReplaceAllString(values, "id || '-' || k.n")
		query := fmt.Sprintf("WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < %d) INSERT INTO %s (%s) SELECT %s FROM %s, k", times-1, c.table, c.columns, values, c.table)
		if _, err := db.Exec(query); err != nil {
			t.Fatalf("%s: %v", c.table, err)
		}
	}
}

// TestLog: each run that was served leaves one line with what Cloud Logging and log-based metrics read, and nothing that the
// caller sent beside what was asked for.
func TestLog(t *testing.T) {
	t.Setenv("GCE_METADATA_HOST", "127.0.0.1:1") // where nobody answers
	var log bytes.Buffer
	s := newService(t, func(c *handlers.Config) {
		c.Targets = []*bench.Target{redisAt(t, storetest.Redis(t).Addr), store.Map(), parseTarget(t, "gone", "redis://:hunter2@127.0.0.1:1")}
		c.Log = &log
		c.Vantage = vantage.New(environment(map[string]string{"GAE_ENV": "standard", "GOOGLE_CLOUD_PROJECT": "p-1", "GAE_INSTANCE": "i"}), time.Now(), time.Now)
	})
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, test := range []struct {
		target, severity, trace string
		status                  int
		header                  []string
	}{
		{"/probe/redis?label.a=b", "INFO", "projects/p-1/traces/" + id, 200, []string{"traceparent", "00-" + id + "-00f067aa0ba902b7-01", "X-Cloud-Trace-Context", strings.Repeat("0", 32) + "/1;o=1"}},
		{"/probe/map?assert=p50%3C1ns", "WARNING", "projects/p-1/traces/" + id, 417, []string{"X-Cloud-Trace-Context", id + "/123;o=1"}},
		{"/probe/gone", "ERROR", "", 502, []string{"traceparent", "00-" + id, "X-Cloud-Trace-Context", "x\ny"}},
		{"/bench/redis?client=redigo,go-redis&" + fast, "INFO", "", 200, []string{"Authorization", "Bearer s3cret", "Idempotency-Key", "s3cret"}},
		{"/targets", "", "", 200, nil}, {"/probe/none", "", "", 404, nil}, {"/probe/map?size=x", "", "", 400, nil},
	} {
		log.Reset()
		if w := get(s, test.target, test.header...); w.Code != test.status {
			t.Fatalf("%s: %d %s", test.target, w.Code, w.Body)
		}
		if test.severity == "" {
			if log.Len() > 0 {
				t.Errorf("%s: %s", test.target, &log)
			}
			continue
		}
		var line struct {
			Severity, Message, Run, Kind, Outcome string
			Trace                                 string `json:"logging.googleapis.com/trace"`
			Request                               struct {
				Method  string `json:"requestMethod"`
				URL     string `json:"requestUrl"`
				Status  int
				Latency string
			} `json:"httpRequest"`
			Figures map[string]map[string]map[string]*float64
			Labels  map[string]string
		}
		if err := json.Unmarshal(log.Bytes(), &line); err != nil || bytes.Count(log.Bytes(), []byte("\n")) != 1 {
			t.Fatalf("%s: %v: %s", test.target, err, &log)
		}
		if line.Severity != test.severity || line.Trace != test.trace || line.Request.Status != test.status || line.Request.Method != "GET" || line.Run == "" ||
			!strings.HasPrefix(line.Request.URL, "http://nsop.test/") || !regexp.MustCompile(`^\d+\.\d+s$`).MatchString(line.Request.Latency) || line.Message == "" {
			t.Errorf("%s: %s", test.target, &log)
		}
		if strings.Contains(log.String(), "s3cret") || strings.Contains(log.String(), "hunter2") {
			t.Errorf("a secret in %s", &log)
		}
		if test.status != 502 && (len(line.Figures) == 0 || slices.Max([]float64{*figureOf(line.Figures)}) <= 0) {
			t.Errorf("no figures in %s", &log)
		}
	}
}

// figureOf is one p50 of a log line.
func figureOf(figures map[string]map[string]map[string]*float64) *float64 {
	for _, clients := range figures {
		for _, f := range clients {
			if f["p50_ns"] != nil {
				return f["p50_ns"]
			}
		}
	}
	return new(float64)
}
