package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/store"
	"nsop/bench/storetest"
	"nsop/handlers"
)

func parseTarget(t testing.TB, name, rawURL string) *bench.Target {
	t.Helper()
	target, err := store.Parse(name, rawURL, "", environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// probeAnswer is a probe's answer as a program reads it.
func probeAnswer(t testing.TB, body []byte) *bench.Report {
	t.Helper()
	r, err := bench.ReadReport(body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return r
}

// TestProbe: what each kind of target answers, the first probe of the process and a later one.
func TestProbe(t *testing.T) {
	redis := storetest.Redis(t, "--requirepass", "pw")
	secure := storetest.RedisTLS(t)
	db := storetest.Postgres(t, storetest.PostgresOptions{})
	for _, test := range []struct {
		name, query string
		target      *bench.Target
		rows        string // workload/client
		phases      string // that are not null
	}{
		{"redis", "", parseTarget(t, "redis", "redis://:pw@"+redis.Addr+"/1"), "set/redigo get/redigo set/floor get/floor", "tcp auth select first second third"},
		{"redis by name", "?client=go-redis&size=1KB", parseTarget(t, "redis", "redis://:pw@"+strings.Replace(redis.Addr, "127.0.0.1", "localhost", 1)), "set/go-redis get/go-redis set/floor get/floor", "dns tcp auth first second third"},
		{"redis over TLS", "?client=floor", parseTarget(t, "redis", "rediss://"+secure.Addr+"?ca="+secure.CA), "set/floor get/floor", "tcp tls first second third"},
		{"memcached", "", parseTarget(t, "memcached", "memcached://"+storetest.Memcached(t).Addr), "set/gomemcache get/gomemcache set/floor get/floor", "tcp first second third"},
		{"postgres", "", parseTarget(t, "postgres", db.URL("postgres", "", "postgres")), "select_1/pgx", "tcp auth first second third"},
		{"postgres through the other", "?client=database-sql", parseTarget(t, "postgres", db.URL("postgres", "", "postgres")), "select_1/database-sql", "tcp auth first second third"},
		{"embedded", "", parseTarget(t, "redis", "embedded:redis"), "set/redigo get/redigo set/floor get/floor", "first second third"},
		{"map", "", store.Map(), "set/map get/map", "first second third"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, onlyTarget(test.target))
			for i := range 2 {
				began := time.Now()
				w := get(s, "/probe/"+test.target.Name+test.query)
				took := time.Since(began)
				if w.Code != http.StatusOK || took > 5*time.Second {
					t.Fatalf("status %d after %s: %s", w.Code, took, w.Body)
				}
				r := probeAnswer(t, w.Body.Bytes())
				var rows, phases []string
				for _, row := range r.Results {
					rows = append(rows, row.Workload+"/"+row.Client)
					if row.Iterations < 1 || row.Iterations > 400 || row.Errors > 0 || row.Misses > 0 {
						t.Errorf("%s: %d iterations, %d errors %v, %d misses", row.Name, row.Iterations, row.Errors, row.ErrorSamples, row.Misses)
					}
				}
				for _, p := range r.Phases.All() {
					if p.NS != nil {
						phases = append(phases, p.Name)
					}
				}
				if strings.Join(rows, " ") != test.rows || strings.Join(phases, " ") != test.phases {
					t.Errorf("rows %q, phases %q", rows, phases)
				}
				if len(r.Assertions) != len(rows) || r.Assertions[0].Expr != "errors=0" || !r.Assertions[0].OK {
					t.Errorf("assertions %+v", r.Assertions)
				}
				c := r.Classes
				first := c.ProcessCold != nil && r.Unmeasured["classes.process_cold"] == ""
				if first != (i == 0) || c.ConnectionCold == nil || c.Warm == nil || (c.IdleResumed != nil) != (test.target.Wire != nil) ||
					(c.IdleResumed == nil) != (r.Unmeasured["classes.idle_resumed"] != "") {
					t.Errorf("classes %+v, unmeasured %v", c, r.Unmeasured)
				}
			}
			if got := redis.Do(t, "DBSIZE"); test.name == "redis" && fmt.Sprint(got) != "0" {
				t.Errorf("%v keys are left", got)
			}
		})
	}
}

// TestProbeOperations: a probe is below 2,000 operations as the server counts them, all of its dials, pings and keys included.
func TestProbeOperations(t *testing.T) {
	redis := storetest.Redis(t)
	s := newService(t, onlyTarget(redisAt(t, redis.Addr)))
	total := func() int {
		m := regexp.MustCompile(`total_commands_processed:(\d+)`).FindStringSubmatch(redis.Do(t, "INFO", "stats").(string))
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := total()
	if w := get(s, "/probe/redis"); w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	if n := total() - before; n < 100 || n >= 2000 {
		t.Errorf("%d operations", n)
	}
}

// TestProbeUnreachable: 502 with the kind, within 5 s, with what was learnt.
func TestProbeUnreachable(t *testing.T) {
	hung := storetest.Redis(t)
	hung.Pause(t)
	locked := storetest.Redis(t, "--requirepass", "pw")
	for _, test := range []struct {
		name string
		of   *bench.Target
		kind string
	}{
		{"refused", unreachable(t), "refused"},
		{"hung", redisAt(t, hung.Addr), "timeout"},
		{"no such name", parseTarget(t, "redis", "redis://nsop.invalid:6379"), "dns"},
		{"unknown authority", parseTarget(t, "redis", "rediss://"+storetest.RedisTLS(t).Addr), "tls"},
		{"wrong password", parseTarget(t, "redis", "redis://:hunter2@"+locked.Addr), "auth"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := tempHistory(t)
			s := newService(t, func(c *handlers.Config) { c.Targets, c.History = []*bench.Target{test.of}, h })
			began := time.Now()
			w := get(s, "/probe/redis")
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			a := problemOf(t, w, http.StatusBadGateway)
			if a.ErrorKind != test.kind || strings.Contains(w.Body.String(), "hunter2") || !strings.Contains(w.Body.String(), `"classes.warm"`) {
				t.Errorf("%s", w.Body)
			}
			if l := list(t, s, "?kind=probe").Runs; len(l) != 1 || l[0].Outcome != "failed" || l[0].ErrorKind != test.kind {
				t.Errorf("%+v", l)
			}
		})
	}
}

// TestProbeSlow: however long the path, the answer comes in time, with what there was time for.
func TestProbeSlow(t *testing.T) {
	redis := storetest.Redis(t)
	for _, test := range []struct {
		delay  time.Duration
		status []int
	}{{20 * time.Millisecond, []int{200}}, {100 * time.Millisecond, []int{200}}, {400 * time.Millisecond, []int{200, 502}}, {1500 * time.Millisecond, []int{502}}} {
		t.Run(test.delay.String(), func(t *testing.T) {
			t.Parallel()
			proxy := storetest.Proxy(t, redis.Addr, storetest.ProxyOptions{Delay: test.delay})
			s := newService(t, onlyTarget(redisAt(t, proxy.Addr)))
			began := time.Now()
			w := get(s, "/probe/redis")
			if took := time.Since(began); took > 5*time.Second || !slices.Contains(test.status, w.Code) {
				t.Errorf("status %d after %s: %s", w.Code, took, w.Body)
			}
			r := probeAnswer(t, w.Body.Bytes())
			if w.Code == 200 && len(r.Results) == 0 || w.Code == 502 && !strings.Contains(w.Body.String(), `"error_kind": "timeout"`) {
				t.Errorf("%s", w.Body)
			}
			t.Logf("%s: status %d after %s, %d rows, %q", test.delay, w.Code, time.Since(began).Round(time.Millisecond), len(r.Results), r.Warnings)
		})
	}
}

func TestProbeParameters(t *testing.T) {
	s := newService(t, func(c *handlers.Config) {
		c.Targets = append(c.Targets, parseTarget(t, "postgres", "postgres://u@127.0.0.1:1/d"))
	})
	for target, want := range map[string]struct {
		status    int
		parameter string
	}{
		"/probe/redis?benchtime=1s": {400, "benchtime"}, "/probe/redis?concurrency=1": {400, "concurrency"}, "/probe/redis?clients=redigo": {400, "clients"},
		"/probe/redis?client=redigo,go-redis": {400, "client"}, "/probe/redis?client=jedis": {400, "client"}, "/probe/redis?size=1,2": {400, "size"},
		"/probe/redis?timeout=4s": {400, "timeout"}, "/probe/redis?timeout=0": {400, "timeout"}, "/probe/redis?assert=p50": {400, "assert"},
		"/probe/redis?label.1=x": {400, "label.1"}, "/probe/redis?save=perhaps": {400, "save"}, "/probe/redis?format=xml": {400, "format"},
		"/probe/postgres?size=1": {422, ""}, "/probe/mysql": {404, ""}, "/probe": {404, ""}, "/probe/": {404, ""},
	} {
		w := get(s, target)
		if a := problemOf(t, w, want.status); a.Parameter != want.parameter {
			t.Errorf("%s: %s", target, w.Body)
		}
	}
	w := serve(s, newRequest("POST", "/probe/map", `{"label.a": "b", "assert": ["errors=0", "p50>1ns"], "size": 10, "save": false}`))
	if r := probeAnswer(t, w.Body.Bytes()); w.Code != 200 || len(r.Assertions) != 4 || r.Results[0].Labels["a"] != "b" || r.Results[0].Size != 10 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// TestProbeAssertion: 417 with the whole report; what was given replaces the default. People's formats show what a probe has.
func TestProbeAssertion(t *testing.T) {
	s := newService(t, onlyTarget(redisAt(t, storetest.Redis(t).Addr)))
	w := get(s, "/probe/redis?assert=p50%3C1ns")
	r := probeAnswer(t, w.Body.Bytes())
	if w.Code != http.StatusExpectationFailed || len(r.Assertions) != 4 || r.Phases.TCP == nil || r.Classes.Warm == nil {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	for _, format := range []string{"text", "markdown"} {
		w := get(s, "/probe/redis?format="+format)
		for _, want := range []string{"fresh dial: tcp ", "first ", "p50 by class: first of the process -, fresh connection ", " idle ", "warm "} {
			if !strings.Contains(strings.Join(strings.Fields(w.Body.String()), " "), strings.TrimSpace(want)) {
				t.Errorf("%s: no %q in %s", format, want, w.Body)
			}
		}
	}
	if w := get(s, "/probe/redis", "Accept", "text/event-stream"); !strings.Contains(w.Body.String(), "event: result") || !strings.Contains(w.Body.String(), `"phases_ns"`) {
		t.Errorf("stream: %s", w.Body)
	}
}

// scheduled is what Cloud Scheduler sends with each attempt of one execution.
func scheduled(at string) []string {
	return []string{"X-CloudScheduler", "true", "X-CloudScheduler-JobName", "nsop-probe", "X-CloudScheduler-ScheduleTime", at}
}

// TestProbeOnce: another attempt is answered what the first was, on every instance, unless that failed.
func TestProbeOnce(t *testing.T) {
	redis := storetest.Redis(t)
	h := tempHistory(t)
	instance := func() *handlers.Service {
		return newService(t, func(c *handlers.Config) {
			c.Targets, c.History = []*bench.Target{redisAt(t, redis.Addr), store.Map()}, h
		})
	}
	a, b := instance(), instance()
	for _, test := range []struct {
		name, target string
		header       []string
		status       int
	}{
		{"scheduler", "/probe/redis", scheduled("2026-11-30T12:00:00Z"), 200},
		{"scheduler, 417", "/probe/redis?assert=p50%3C1ns", scheduled("2026-11-30T12:05:00Z"), 417},
		{"key", "/probe/redis", []string{"Idempotency-Key", "k1"}, 200},
		{"key of both", "/probe/map", append(scheduled("2026-11-30T12:00:00Z"), "Idempotency-Key", "k2"), 200},
	} {
		first := get(a, test.target, test.header...)
		again := get(b, test.target, test.header...)
		if first.Code != test.status || again.Code != test.status || first.Body.String() != again.Body.String() || first.Header().Get("Idempotent-Replayed") != "" || again.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %d %s\nand %d %s", test.name, first.Code, first.Body, again.Code, again.Body)
		}
		id := probeAnswer(t, first.Body.Bytes()).Run
		text := get(b, test.target+map[bool]string{true: "&", false: "?"}[strings.Contains(test.target, "?")]+"format=text", test.header...)
		if text.Code != test.status || !strings.Contains(text.Body.String(), "/runs/"+id) || !strings.Contains(text.Body.String(), "p50 by class") {
			t.Errorf("%s: %d %s", test.name, text.Code, text.Body)
		}
		w := get(b, "/probe/redis?size=7", test.header...)
		if problemOf(t, w, http.StatusConflict); !strings.Contains(w.Body.String(), test.target[:len("/probe/map")]) {
			t.Errorf("%s: %s", test.name, w.Body)
		}
	}
	if w := get(a, "/probe/redis", scheduled("2026-11-30T12:10:00Z")...); w.Header().Get("Idempotent-Replayed") != "" {
		t.Error("another time is another execution")
	}
	if n := len(list(t, a, "?kind=probe").Runs); n != 5 {
		t.Errorf("%d runs, want 5", n)
	}
	if w := get(a, "/probe/redis", "Idempotency-Key", strings.Repeat("k", 600)); w.Code != 400 {
		t.Errorf("a long key: %d", w.Code)
	}

	// A failed one is probed again.
	redis.Pause(t)
	if w := get(a, "/probe/redis?timeout=200ms", "Idempotency-Key", "k3"); w.Code != 502 {
		t.Errorf("hung: %d", w.Code)
	}
	redis.Resume(t)
	if w := get(b, "/probe/redis?timeout=200ms", "Idempotency-Key", "k3"); w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("again: %d %s", w.Code, w.Body)
	}
}

// TestProbeTogether: of attempts at the same time one measures; the others are told to come again, and then get its answer.
func TestProbeTogether(t *testing.T) {
	redis := storetest.Redis(t)
	s := newService(t, func(c *handlers.Config) {
		c.Targets, c.History = []*bench.Target{redisAt(t, redis.Addr)}, tempHistory(t)
	})
	var mu sync.Mutex
	var wait sync.WaitGroup
	codes, runs := map[int]int{}, map[string]bool{}
	for range 8 {
		wait.Go(func() {
			w := get(s, "/probe/redis", scheduled("2026-11-30T12:00:00Z")...)
			mu.Lock()
			defer mu.Unlock()
			codes[w.Code]++
			if w.Code == 200 {
				runs[decode(t, w.Body.Bytes()).Run] = true
			} else if w.Header().Get("Retry-After") == "" {
				t.Errorf("%d without Retry-After: %s", w.Code, w.Body)
			}
		})
	}
	wait.Wait()
	if codes[200] < 1 || codes[200]+codes[429] != 8 || len(runs) != 1 {
		t.Errorf("statuses %v, runs %v", codes, runs)
	}
	if n := len(list(t, s, "?kind=probe").Runs); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// TestProbeWithoutHistory: one that is down costs a warning and no more than the time that there is.
func TestProbeWithoutHistory(t *testing.T) {
	h := newHistory(t, "sqlite:"+filepath.Join(t.TempDir(), "no", "\x01", strings.Repeat("x", 300), "h.db"))
	s := newService(t, keeping(h))
	w := get(s, "/probe/map", "Idempotency-Key", "k")
	if r := probeAnswer(t, w.Body.Bytes()); w.Code != 200 || !strings.Contains(strings.Join(r.Warnings, "\n"), "the history") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestProbePush: what can't be pushed costs a warning, and each probe is pushed, failed ones too.
func TestProbePush(t *testing.T) {
	pushed := map[string]bool{}
	s := newService(t, func(c *handlers.Config) {
		c.Targets = []*bench.Target{store.Map(), unreachable(t)}
		c.Push = func(ctx context.Context, r *bench.Report, ok bool) error {
			if _, bounded := ctx.Deadline(); !bounded || r.Vantage == nil {
				t.Error("not bounded, or no vantage")
			}
			pushed[r.Target.Name] = ok
			return errors.New("push metrics: no")
		}
	})
	for target, status := range map[string]int{"/probe/map": 200, "/probe/redis": 502, "/bench/map?" + fast: 200} {
		w := get(s, target)
		if a := decode(t, w.Body.Bytes()); w.Code != status || slices.Contains(a.Warnings, "push metrics: no") != strings.HasPrefix(target, "/probe") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if len(pushed) != 2 || !pushed["map"] || pushed["redis"] {
		t.Errorf("%v", pushed)
	}
}

// TestProbeChange: a step of the level within the last week is in the answer, with the deploy that it came with.
func TestProbeChange(t *testing.T) {
	h := tempHistory(t)
	s := newService(t, func(c *handlers.Config) { c.Targets, c.History = []*bench.Target{store.Map()}, h })
	w := get(s, "/probe/map?save=false")
	r := probeAnswer(t, w.Body.Bytes())
	if r.Change != "" || r.Changes != nil {
		t.Fatalf("a change of nothing: %s", w.Body)
	}
	seedProbes(t, h, r, 300, 100)
	w = get(s, "/probe/map")
	r = probeAnswer(t, w.Body.Bytes())
	if w.Code != 200 || !strings.Contains(r.Change, " rose ") || !strings.Contains(r.Change, "revision nsop-00002") || len(r.Changes) != 2 || r.Changes[0].Ratio < 1.5 || r.Unmeasured["change"] != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = get(s, "/runs/"+r.Run+"?format=text")
	if !strings.Contains(w.Body.String(), "! "+r.Change[:20]) {
		t.Errorf("%s", w.Body)
	}
}

// seedProbes puts n probes with the rows of like into h, one every five minutes until now, of which the last ones, of another
// revision, are slower.
func seedProbes(t testing.TB, h *history.History, like *bench.Report, n, slower int) {
	t.Helper()
	body, err := json.Marshal(like)
	if err != nil {
		t.Fatal(err)
	}
	var runs []*history.Run
	for i := range n {
		r := probeAnswer(t, bytes.Clone(body))
		r.Run = fmt.Sprintf("seed-%d", i)
		r.StartedAt = time.Now().Add(-time.Duration(n-i) * 5 * time.Minute)
		revision, level := "nsop-00001", int64(10_000_000)
		if i >= n-slower {
			revision, level = "nsop-00002", 20_000_000
		}
		r.Vantage = map[string]any{"platform": "cloud-run", "revision": revision}
		for _, row := range r.Results {
			p50 := level + int64(i*7919%100)*level/1000
			row.Latency.P50, row.Latencies = &p50, nil
		}
		run, err := history.NewRun("probe", r)
		if err != nil {
			t.Fatal(err)
		}
		if run.Body, err = json.Marshal(r.Normalize()); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	for part := range slices.Chunk(runs, 50) {
		if err := h.Save(t.Context(), part...); err != nil {
			t.Fatal(err)
		}
	}
}
