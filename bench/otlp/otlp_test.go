package otlp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"nsop/bench"
	"nsop/bench/vantage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// report is a probe of target.
func report(target string) *bench.Report {
	p50, tcp := int64(1_060_000), int64(250_000)
	r := &bench.Report{Run: "r", Target: &bench.TargetInfo{Name: target, Kind: "redis"}, ElapsedNS: 2e9,
		Vantage: vantage.Info{Platform: "cloud-run", Project: "p-1", Region: "europe-west1", Service: "nsop", Revision: "nsop-00007", Instance: "0a1b"},
		Phases:  &bench.Phases{TCP: &tcp}, Classes: &bench.Classes{Warm: &bench.Stat{Count: 1, P50NS: p50}}}
	for _, workload := range []string{"set", "get"} {
		r.Results = append(r.Results, &bench.Result{Name: workload + "/target=" + target + "/client=redigo", Target: target, Workload: workload, Client: "redigo", Concurrency: 1, Sample: 1,
			Iterations: 400, NSPerOp: bench.NewFigure(1_100_000), OpsPerSec: bench.NewRate(909), Latency: bench.Latency{P50: &p50}, Labels: map[string]string{"a": "x\xff"}})
	}
	return r
}

// A receiver is a real one of the protocol, which refuses what the official messages don't have.
type receiver struct {
	*httptest.Server
	header   http.Header
	path     string
	requests []*metrics.ExportMetricsServiceRequest
	status   int
	answer   *metrics.ExportMetricsServiceResponse
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{status: 200, answer: &metrics.ExportMetricsServiceResponse{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		m := &metrics.ExportMetricsServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, m)
		}
		if err == nil && len(m.ProtoReflect().GetUnknown()) > 0 {
			err = errors.New("fields that there are not")
		}
		if err != nil || q.Method != "POST" || q.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%v %s %s", err, q.Method, q.Header.Get("Content-Type"))
		}
		r.header, r.path, r.requests = q.Header, q.URL.Path, append(r.requests, m)
		text, err := proto.Marshal(r.answer)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(r.status)
		w.Write(text)
	}))
	t.Cleanup(r.Close)
	return r
}

func texts(attributes []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range attributes {
		m[a.Key] = a.Value.GetStringValue()
	}
	return m
}

// points are the values by metric and labels.
func points(t *testing.T, m *metrics.ExportMetricsServiceRequest) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, metric := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		for _, p := range metric.GetGauge().GetDataPoints() {
			labels := texts(p.Attributes)
			key := metric.Name
			for _, name := range slices.Sorted(maps.Keys(labels)) {
				key += " " + name + "=" + labels[name]
			}
			if _, ok := all[key]; ok || p.TimeUnixNano == 0 || metric.Description == "" {
				t.Errorf("%s: twice, or without a time or a description", key)
			}
			all[key] = p.GetAsDouble()
		}
	}
	return all
}

func exporter(t *testing.T, o Options) *Exporter {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestPush(t *testing.T) {
	r := newReceiver(t)
	now := time.Now()
	e := exporter(t, Options{Endpoint: r.URL + "/v1/metrics", Headers: "api-key=s3cret%2C1, x=y", Attributes: "deployment.environment=prod,service.instance.id=same", Version: "1.0 (abc)",
		Now: func() time.Time { return now }})
	if err := e.Push(t.Context(), report("redis"), true); err != nil {
		t.Fatal(err)
	}
	if r.path != "/v1/metrics" || r.header.Get("api-key") != "s3cret,1" || r.header.Get("x") != "y" || r.header.Get("Authorization") != "" {
		t.Errorf("%s %v", r.path, r.header)
	}
	resource := texts(r.requests[0].ResourceMetrics[0].Resource.Attributes)
	want := map[string]string{"service.name": "nsop", "service.version": "nsop-00007", "service.instance.id": "0a1b", "cloud.provider": "gcp", "cloud.platform": "gcp_cloud_run",
		"cloud.region": "europe-west1", "cloud.account.id": "p-1", "gcp.project_id": "p-1", "deployment.environment": "prod"}
	if !maps.Equal(resource, want) {
		t.Errorf("resource %v", resource)
	}
	got := points(t, r.requests[0])
	for key, value := range map[string]float64{
		"nsop_latency_seconds client=redigo concurrency=1 label_a=x\uFFFD quantile=0.5 target=redis workload=get": 0.00106,
		"nsop_operations client=redigo concurrency=1 label_a=x\uFFFD target=redis workload=set":                   400,
		"nsop_probe_success target=redis": 1, "nsop_probe_phase_seconds phase=tcp target=redis": 0.00025,
		"nsop_probe_class_seconds class=warm target=redis": 0.00106, "nsop_probe_duration_seconds target=redis": 2,
	} {
		if v, ok := got[key]; !ok || v != value {
			t.Errorf("%s: %v, want %v, in %v", key, v, value, got)
		}
	}

	// Each series at most every 10 s, whatever became of the others.
	for _, step := range []struct {
		after    time.Duration
		target   string
		requests int
	}{{9 * time.Second, "redis", 1}, {0, "other", 2}, {time.Second, "redis", 3}, {8 * time.Second, "other", 3}, {time.Second, "other", 4}} {
		now = now.Add(step.after)
		if err := e.Push(t.Context(), report(step.target), true); err != nil || len(r.requests) != step.requests {
			t.Errorf("%+v: %v, %d requests", step, err, len(r.requests))
		}
	}
}

// TestPushInstances: where the platform names no instance, no two processes are of one name.
func TestPushInstances(t *testing.T) {
	r := newReceiver(t)
	seen := map[string]bool{}
	for range 2 {
		e := exporter(t, Options{Endpoint: r.URL, Service: "mine"})
		for _, target := range []string{"a", "b"} {
			failed := report(target)
			failed.Vantage, failed.Results = vantage.Info{Platform: "local"}, nil
			if err := e.Push(t.Context(), failed, false); err != nil {
				t.Fatal(err)
			}
			m := r.requests[len(r.requests)-1]
			resource := texts(m.ResourceMetrics[0].Resource.Attributes)
			seen[resource["service.instance.id"]] = true
			if got := points(t, m); resource["service.name"] != "mine" || got["nsop_probe_success target="+target] != 0 || len(got) != 4 {
				t.Errorf("%v %v", resource, got)
			}
		}
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("instances %v", seen)
	}
}

// TestPushFails: one line, without the endpoint and without what authorises; never beyond its time.
func TestPushFails(t *testing.T) {
	r := newReceiver(t)
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_, _ = io.ReadAll(q.Body)
		<-q.Context().Done()
	}))
	defer hung.Close()
	const secret = "s3cret"
	for _, test := range []struct {
		name, endpoint string
		status         int
		answer         *metrics.ExportMetricsServiceResponse
		want           string
	}{
		{"refused by the receiver", r.URL, 403, nil, "push metrics: the receiver answers 403 Forbidden"},
		{"a redirect is not followed", r.URL, 307, nil, "push metrics: the receiver answers 307 Temporary Redirect"},
		{"some points rejected", r.URL, 200, &metrics.ExportMetricsServiceResponse{PartialSuccess: &metrics.ExportMetricsPartialSuccess{RejectedDataPoints: 3, ErrorMessage: "x"}}, "push metrics: the receiver rejected 3 points"},
		{"a word with the success", r.URL, 200, &metrics.ExportMetricsServiceResponse{PartialSuccess: &metrics.ExportMetricsPartialSuccess{ErrorMessage: "x"}}, ""},
		{"nobody there", "http://127.0.0.1:1/" + secret, 0, nil, "push metrics: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"no answer", hung.URL + "/" + secret, 0, nil, "push metrics: no answer in time"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.status, r.answer = test.status, test.answer
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := exporter(t, Options{Endpoint: test.endpoint, Headers: "authorization=Bearer%20" + secret}).Push(ctx, report("redis"), true)
			if got := fmt.Sprint(err); got != test.want && (err != nil || test.want != "") {
				t.Errorf("%s", got)
			}
		})
	}
}

// TestToken: Google alone gets the platform's token, and only where no header authorises already.
func TestToken(t *testing.T) {
	token := func(context.Context) (string, error) { return "tok", nil }
	for _, test := range []struct {
		endpoint, headers string
		want              bool
	}{
		{"https://telemetry.googleapis.com/v1/metrics", "", true}, {"https://telemetry.googleapis.com/v1/metrics", "Authorization=Bearer%20x", false},
		{"http://telemetry.googleapis.com/v1/metrics", "", false}, {"https://googleapis.com.example.org/v1/metrics", "", false}, {"https://xgoogleapis.com", "", false},
		{"http://localhost:4318/v1/metrics", "", false},
	} {
		e := exporter(t, Options{Endpoint: test.endpoint, Headers: test.headers, Token: token})
		if (e.token != nil) != test.want {
			t.Errorf("%s %s: %v", test.endpoint, test.headers, e.token != nil)
		}
	}
	// The receiver of the test stands in for Google's.
	r := newReceiver(t)
	e := exporter(t, Options{Endpoint: r.URL, Token: token})
	e.token = token
	if err := e.Push(t.Context(), report("redis"), true); err != nil || r.header.Get("Authorization") != "Bearer tok" {
		t.Errorf("%v %v", err, r.header)
	}
	e = exporter(t, Options{Endpoint: r.URL})
	e.token = func(context.Context) (string, error) { return "", errors.New("get access token: no") }
	if err := e.Push(t.Context(), report("redis"), true); fmt.Sprint(err) != "push metrics: get access token: no" || len(r.requests) != 1 {
		t.Errorf("%v", err)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, test := range []struct {
		o    Options
		want error
	}{
		{Options{Endpoint: "localhost:4318"}, ErrEndpoint}, {Options{Endpoint: "grpc://h:1"}, ErrEndpoint}, {Options{Endpoint: "http://u:p@h"}, ErrEndpoint}, {Options{Endpoint: "http://"}, ErrEndpoint},
		{Options{Endpoint: "http://h", Headers: "s3cret"}, ErrHeaders}, {Options{Endpoint: "http://h", Headers: "a=%zz"}, ErrHeaders}, {Options{Endpoint: "http://h", Headers: "a b=c"}, ErrHeaders},
		{Options{Endpoint: "http://h", Headers: "a=b%0d%0ac"}, ErrHeaders}, {Options{Endpoint: "http://h", Headers: "=b"}, ErrHeaders},
		{Options{Endpoint: "http://h", Attributes: "a"}, ErrAttributes}, {Options{Endpoint: "http://h", Headers: "a=b,,c=d=e,", Attributes: "k=v w"}, nil},
	} {
		if _, err := New(test.o); err != test.want {
			t.Errorf("%+v: %v, want %v", test.o, err, test.want)
		}
	}
}

// FuzzRejected: no answer of a receiver does more than to be read.
func FuzzRejected(f *testing.F) {
	for _, m := range []*metrics.ExportMetricsServiceResponse{{}, {PartialSuccess: &metrics.ExportMetricsPartialSuccess{RejectedDataPoints: 1 << 40, ErrorMessage: "x"}}} {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		n := rejected(answer)
		m := &metrics.ExportMetricsServiceResponse{}
		// The official reader merges a message that is there twice, which nobody sends.
		if proto.Unmarshal(answer, m) == nil && strings.Count(string(answer), "\n") <= 1 && n != m.GetPartialSuccess().GetRejectedDataPoints() {
			t.Errorf("%d, want %d", n, m.GetPartialSuccess().GetRejectedDataPoints())
		}
	})
}

// FuzzPairs: whatever was read is what url would write.
func FuzzPairs(f *testing.F) {
	f.Add("a=b,c=%2C")
	f.Add(",=,%")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := pairs(text)
		if err != nil {
			return
		}
		var again []string
		for name, value := range m {
			again = append(again, name+"="+url.PathEscape(value))
		}
		if back, err := pairs(strings.Join(again, ",")); err != nil || !maps.Equal(back, m) {
			t.Errorf("%q: %v, then %v", text, m, back)
		}
	})
}
