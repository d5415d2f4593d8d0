package handlers_test

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/diagnose"
	"nsop/bench/store"
	"nsop/bench/storetest"
)

// unreachable is a target whose port nothing listens on.
func unreachable(t *testing.T) *bench.Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return redisAt(t, l.Addr().String())
}

func redisAt(t *testing.T, addr string) *bench.Target {
	t.Helper()
	target, err := store.Parse("redis", "redis://"+addr, "", environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestDiagnose(t *testing.T) {
	s := newService(t, onlyTarget(redisAt(t, storetest.Redis(t).Addr)))
	began := time.Now()
	w := get(s, "/diagnose/redis")
	var r diagnose.Report
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s", w.Code, err, w.Body)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if r.Budget == nil || r.Path == nil || r.Server == nil || r.Client == nil || r.Vantage.Platform != "local" || r.Classes.ProcessCold == nil {
		t.Errorf("incomplete: %s", w.Body)
	}
	if !strings.Contains(w.Header().Get("Server-Timing"), "diagnosis;dur=") {
		t.Errorf("Server-Timing: %q", w.Header().Get("Server-Timing"))
	}
}

// TestDiagnoseUnreachable is 200 with what is wrong, in each format.
func TestDiagnoseUnreachable(t *testing.T) {
	s := newService(t, onlyTarget(unreachable(t)))
	for _, test := range []struct{ method, target, body, accept, contentType, want string }{
		{"GET", "/diagnose/redis", "", "", "application/json", `"rule": "refused"`},
		{"GET", "/diagnose/redis?format=text", "", "", "text/plain; charset=utf-8", "E refused "},
		{"GET", "/diagnose/redis", "", "text/markdown", "text/markdown; charset=utf-8", "- **error** `refused`"},
		{"GET", "/diagnose/redis", "", "text/csv", "application/json", `"rule": "refused"`},
		{"POST", "/diagnose/redis", `{"format": "text", "client": ["redigo", "go-redis"], "timeout": "1s", "idle": "1ms", "background": false}`, "",
			"text/plain; charset=utf-8", "E refused "},
	} {
		r := newRequest(test.method, test.target, test.body)
		if test.accept != "" {
			r.Header.Set("Accept", test.accept)
		}
		w := serve(s, r)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != test.contentType || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s %s %s: %d %s\n%s", test.method, test.target, test.accept, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
	}
}

func TestDiagnoseParameters(t *testing.T) {
	s := newService(t, onlyTarget(unreachable(t)))
	for query, parameter := range map[string]string{
		"format=csv": "format", "format=nothing": "format", "format=text&format=text": "format",
		"client=": "client", "client=memcache": "client", "client=redigo,redigo": "client", "client=redigo&client=redigo": "client",
		"timeout=0": "timeout", "timeout=1h": "timeout", "timeout=x": "timeout",
		"idle=": "idle", "idle=10m": "idle", "idle=-1s": "idle", "idle=1s,2s,3s,4s,5s,6s,7s,8s,9s": "idle",
		"background=perhaps": "background", "size=100": "size", "target=other": "target",
	} {
		w := get(s, "/diagnose/redis?"+query)
		var a answer
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusBadRequest || a.Parameter != parameter {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := get(s, "/diagnose/nothing"); w.Code != http.StatusNotFound {
		t.Errorf("no target: %d", w.Code)
	}
	if w := serve(s, newRequest("DELETE", "/diagnose/redis", "")); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d", w.Code)
	}
}

// TestDiagnoseBackground has the second request tell what work got after the response of the first.
func TestDiagnoseBackground(t *testing.T) {
	s := newService(t, onlyTarget(unreachable(t)))
	defer s.Drain()
	var r diagnose.Report
	for i := range 2 {
		r = diagnose.Report{}
		w := get(s, "/diagnose/redis?background=true")
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if missing := r.Unmeasured["vantage.background_percent"] != ""; missing != (i == 0) {
			t.Errorf("request %d: unmeasured %v", i, r.Unmeasured)
		}
		time.Sleep(300 * time.Millisecond)
	}
	if r.Vantage.BackgroundPercent == nil || *r.Vantage.BackgroundPercent <= 0 || *r.Vantage.BackgroundPercent > 100 {
		t.Errorf("background %v", r.Vantage.BackgroundPercent)
	}
}

// TestDiagnoseAlone is that neither a benchmark nor another diagnosis runs beside one, and that a shutdown ends it.
func TestDiagnoseAlone(t *testing.T) {
	redis := storetest.Redis(t)
	redis.Pause(t)
	s := newService(t, onlyTarget(redisAt(t, redis.Addr)))
	ended := make(chan int)
	go func() { ended <- get(s, "/diagnose/redis").Code }()
	codes := map[string]int{}
	for deadline := time.Now().Add(patience); codes["/diagnose/redis"] != http.StatusTooManyRequests; {
		if time.Now().After(deadline) {
			t.Fatal("the diagnosis does not begin")
		}
		time.Sleep(10 * time.Millisecond)
		for _, path := range []string{"/bench/redis?benchtime=1x", "/diagnose/redis"} {
			codes[path] = get(s, path+map[bool]string{true: "&timeout=100ms", false: "?timeout=1ms"}[strings.Contains(path, "?")]).Code
		}
	}
	if codes["/bench/redis?benchtime=1x"] != http.StatusTooManyRequests {
		t.Errorf("bench: %v", codes)
	}
	s.Drain()
	select {
	case code := <-ended:
		if !slices.Contains([]int{http.StatusServiceUnavailable}, code) {
			t.Errorf("at a shutdown: %d", code)
		}
	case <-time.After(patience):
		t.Error("a shutdown does not end it")
	}
	if w := get(s, "/diagnose/redis"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("after it: %d", w.Code)
	}
}

// A diagnosis is kept, and answered again in every format that it has.
func TestDiagnoseKept(t *testing.T) {
	s := newService(t, keeping(tempHistory(t)))
	w := get(s, "/diagnose/redis?timeout=500ms")
	var report struct{ Run string }
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil || report.Run == "" {
		t.Fatalf("%v: %s", err, w.Body)
	}
	if again := get(s, "/runs/"+report.Run); again.Body.String() != w.Body.String() {
		t.Errorf("afterwards: %s", again.Body)
	}
	for format, has := range map[string]string{"text": "embedded-store", "markdown": "embedded-store", "svg": "<svg"} {
		if w := get(s, "/runs/"+report.Run+"?format="+format); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), has) {
			t.Errorf("%s: status %d: %s", format, w.Code, w.Body)
		}
	}
	problemOf(t, get(s, "/runs/"+report.Run+"?format=benchfmt"), http.StatusUnprocessableEntity)
	if list := get(s, "/runs?kind=diagnose").Body.String(); !strings.Contains(list, report.Run) {
		t.Errorf("%s", list)
	}
}
