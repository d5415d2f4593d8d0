package handlers_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"nsop/handlers"
)

// What Prometheus scrapes is from the history: another instance with the same history answers alike.
func TestMetrics(t *testing.T) {
	h := tempHistory(t)
	s := newService(t, keeping(h))
	if w := get(s, "/metrics"); w.Code != http.StatusOK || w.Body.Len() != 0 {
		t.Errorf("status %d without a run: %s", w.Code, w.Body)
	}
	get(s, "/bench/map/get?"+fast)
	get(s, "/probe/map")
	get(s, "/probe/redis?assert=p50%3C1ns")
	w := get(newService(t, keeping(h)), "/metrics")
	text := w.Body.String()
	if w.Code != http.StatusOK || text != get(s, "/metrics").Body.String() || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("status %d, %s: %s", w.Code, w.Header().Get("Content-Type"), text)
	}
	for _, want := range []string{`nsop_probe_success{target="map"} 1`, `nsop_probe_success{target="redis"} 0`, `nsop_probe_timestamp_seconds{target="map"} `,
		`nsop_latency_seconds{target="map",workload="get",client="map",concurrency="1",pipeline="1",size="100",keyspace="1",quantile="0.5"} `} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", err, problems)
	}
	problemOf(t, get(s, "/metrics?x=1"), http.StatusBadRequest)
}

// A run that was served leaves one line in the log, with its figures and its trace.
func TestLog(t *testing.T) {
	const trace = "0123456789abcdef0123456789abcdef"
	var log bytes.Buffer
	s := newService(t, func(c *handlers.Config) { c.Log = &log })
	for _, test := range []struct {
		path, severity string
		status         int
	}{{"/bench/map/get?" + fast, "INFO", 200}, {"/bench/map/get?assert=p50%3C1ns&" + fast, "WARNING", 417}} {
		log.Reset()
		get(s, test.path, "Traceparent", "00-"+trace+"-0123456789abcdef-01")
		var line struct {
			Severity, Message, Run, Kind, Request string
			Status                                int
			Rows                                  []struct {
				Name string
				P50  *int64 `json:"p50_ns"`
			}
		}
		if err := json.Unmarshal(log.Bytes(), &line); err != nil || strings.Count(log.String(), "\n") != 1 {
			t.Fatalf("%v: %s", err, log.String())
		}
		if line.Severity != test.severity || line.Status != test.status || line.Run == "" || line.Kind != "bench" || len(line.Rows) != 1 || line.Rows[0].P50 == nil {
			t.Errorf("%s", log.String())
		}
	}
	log.Reset()
	if get(s, "/targets"); log.Len() != 0 {
		t.Errorf("%s", log.String())
	}
}
