package handlers_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/store"
	"nsop/bench/storetest"
)

func probeOf(t *testing.T, body []byte) *bench.Report {
	t.Helper()
	var r bench.Report
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return &r
}

// A probe dials afresh in phases, measures few operations through the bare socket and a library, and keeps the classes apart.
func TestProbe(t *testing.T) {
	server := storetest.Redis(t, "--requirepass", "secret")
	target, err := store.Parse("redis", "redis://:secret@"+server.Addr, "", environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, onlyTarget(target))
	began := time.Now()
	w := get(s, "/probe/redis?client=go-redis&label.a=b")
	r := probeOf(t, w.Body.Bytes())
	if w.Code != http.StatusOK || len(r.Results) != 4 || time.Since(began) > 5*time.Second {
		t.Fatalf("status %d after %s: %s", w.Code, time.Since(began), w.Body)
	}
	var operations int64
	for i, row := range r.Results {
		if row.Client != []string{"floor", "go-redis"}[i%2] || row.Workload != []string{"set", "get"}[i/2] || row.Errors != 0 || row.Iterations == 0 || row.Labels["a"] != "b" {
			t.Errorf("row %d: %+v", i, row)
		}
		operations += row.Iterations
	}
	if operations > 1300 {
		t.Errorf("%d operations", operations)
	}
	p, c := r.Phases, r.Classes
	if p == nil || p.DNS != nil || p.Connect == nil || p.TLS != nil || p.Auth == nil || p.First == nil || p.Second == nil || p.Third == nil {
		t.Errorf("phases %+v", p)
	}
	if c == nil || c.ProcessCold == nil || c.ConnectionCold == nil || c.ConnectionCold.Count != 1 || c.IdleResumed == nil || c.IdleResumed.Gap <= 0 || c.Warm == nil || c.Warm.Count != r.Results[2].Iterations {
		t.Errorf("classes %+v", c)
	}
	if len(r.Assertions) != 4 || r.Assertions[0].Expr != "errors=0" {
		t.Errorf("assertions %+v", r.Assertions)
	}
	if again := probeOf(t, get(s, "/probe/redis").Body.Bytes()); again.Classes.ProcessCold != nil || again.Classes.ConnectionCold.Count != 2 {
		t.Errorf("the second probe of a process: %+v", again.Classes)
	}
	if w := get(s, "/probe/redis?assert=p99%3C1ns"); w.Code != http.StatusExpectationFailed || len(probeOf(t, w.Body.Bytes()).Results) != 4 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	for _, format := range []string{"text", "markdown"} {
		if text := get(s, "/probe/redis?format="+format).Body.String(); !strings.Contains(text, "fresh dial: connect ") || !strings.Contains(text, "after a gap of ") {
			t.Errorf("%s", text)
		}
	}
	for _, query := range []string{"benchtime=1s", "concurrency=2", "client=redigo,floor", "client=nope", "timeout=x"} {
		problemOf(t, get(s, "/probe/redis?"+query), http.StatusBadRequest)
	}
	server.Kill(t)
	began = time.Now()
	if p := problemOf(t, get(s, "/probe/redis"), http.StatusBadGateway); p.ErrorKind != "refused" || time.Since(began) > 5*time.Second {
		t.Errorf("%s after %s", p.ErrorKind, time.Since(began))
	}
}

// A store that falls silent is told within the time that a probe has.
func TestProbeOfASilentStore(t *testing.T) {
	server := storetest.Redis(t)
	s := newService(t, onlyTarget(redisAt(t, server.Addr)))
	server.Pause(t)
	began := time.Now()
	p := problemOf(t, get(s, "/probe/redis?timeout=500ms"), http.StatusBadGateway)
	if p.ErrorKind != "timeout" || time.Since(began) > 5*time.Second {
		t.Errorf("%s after %s", p.ErrorKind, time.Since(began))
	}
}

// Other stores are probed by what they can do.
func TestProbeOfOtherStores(t *testing.T) {
	memcached, postgres := storetest.Memcached(t), storetest.Postgres(t, storetest.PostgresOptions{})
	for url, want := range map[string]string{"memcached://" + memcached.Addr: "set floor,set gomemcache,get floor,get gomemcache", postgres.URL("postgres", "", "postgres"): "select pgx"} {
		target, err := store.Parse("it", url, "", environment(nil))
		if err != nil {
			t.Fatal(err)
		}
		w := get(newService(t, onlyTarget(target)), "/probe/it")
		r := probeOf(t, w.Body.Bytes())
		var rows []string
		for _, row := range r.Results {
			rows = append(rows, row.Workload+" "+row.Client)
		}
		if w.Code != http.StatusOK || strings.Join(rows, ",") != want || r.Phases == nil || r.Phases.First == nil || r.Classes.Warm == nil {
			t.Errorf("%s: status %d, %q: %s", target.Kind, w.Code, rows, w.Body)
		}
	}
	if w := get(newService(t, nil), "/probe/map"); w.Code != http.StatusOK || probeOf(t, w.Body.Bytes()).Phases != nil {
		t.Errorf("map: status %d: %s", w.Code, w.Body)
	}
}

// What a scheduler sends again is answered from the history, if it was completed.
func TestProbeSentAgain(t *testing.T) {
	h := tempHistory(t)
	s := newService(t, keeping(h))
	headers := []string{"X-CloudScheduler-JobName", "nsop", "X-CloudScheduler-ScheduleTime", "2026-11-30T12:00:00Z"}
	first := get(s, "/probe/map?assert=p50%3C1ns", headers...)
	again := get(s, "/probe/map?assert=p50%3C1ns", headers...)
	if first.Code != http.StatusExpectationFailed || again.Code != first.Code || again.Body.String() != first.Body.String() || again.Header().Get("Idempotency-Replayed") != "true" {
		t.Errorf("status %d, then %d: %s\n%s", first.Code, again.Code, first.Body, again.Body)
	}
	if text := get(s, "/probe/map?assert=p50%3C1ns&format=text", headers...); text.Code != first.Code || !strings.Contains(text.Body.String(), probeOf(t, first.Body.Bytes()).Run[:8]) {
		t.Errorf("status %d: %s", text.Code, text.Body)
	}
	problemOf(t, get(s, "/probe/map", headers...), http.StatusConflict)
	if later := get(s, "/probe/map", headers[0], headers[1], headers[2], "2026-11-30T12:05:00Z"); later.Code != http.StatusOK || later.Header().Get("Idempotency-Replayed") != "" {
		t.Errorf("status %d: %s", later.Code, later.Body)
	}
	// One that failed is probed again.
	gone := newService(t, keeping(h))
	gone.Targets = append(gone.Targets, redisAt(t, "127.0.0.1:1"))
	gone.Targets[len(gone.Targets)-1].Name = "gone"
	for range 2 {
		if w := get(gone, "/probe/gone", "Idempotency-Key", "k"); w.Code != http.StatusBadGateway || w.Header().Get("Idempotency-Replayed") != "" {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
	}
	runs, err := h.List(t.Context(), history.Filter{Kind: "probe"})
	if err != nil || len(runs) != 4 {
		t.Errorf("%d probes in the history, %v", len(runs), err)
	}
}
