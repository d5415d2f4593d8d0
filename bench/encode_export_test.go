package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// prometheusValues reads text by Prometheus' own parser: series by name and labels, their values.
func prometheusValues(t *testing.T, text string) map[string]float64 {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	values := map[string]float64{}
	decoder := expfmt.NewDecoder(strings.NewReader(text), expfmt.NewFormat(expfmt.TypeTextPlain))
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); err == io.EOF {
			return values
		} else if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, &family)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			key := s.Metric.String()
			if _, ok := values[key]; ok {
				t.Errorf("%s is there twice", key)
			}
			values[key] = float64(s.Value)
		}
	}
}

func TestPrometheus(t *testing.T) {
	for name, r := range reports() {
		text := encodeString(t, "prometheus", r, EncodeOptions{})
		values := prometheusValues(t, text)
		want := 0
		for _, res := range r.Results {
			for _, m := range prometheusMetrics {
				unit, ok := UnitByName(m.unit)
				if !ok {
					t.Fatalf("no unit %s", m.unit)
				}
				if _, ok := unit.Of(res); ok {
					want++
				}
			}
			for _, q := range prometheusQuantiles {
				unit, ok := UnitByName(q.unit)
				if !ok {
					t.Fatalf("no unit %s", q.unit)
				}
				if _, ok := unit.Of(res); ok {
					want++
				}
			}
			want += len(res.ErrorKinds)
			if res.Latency.Mean != nil {
				want += 2
			}
		}
		if !r.StartedAt.IsZero() {
			want++
		}
		got := 0
		for key := range values {
			// The parser makes up what a summary lacks.
			if !(strings.HasPrefix(key, "nsop_latency_seconds_") && values[key] == 0) {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %d series, want %d\n%s", name, got, want, text)
		}
		for _, word := range []string{r.Run, "instance"} {
			if word != "" && strings.Contains(text, word) {
				t.Errorf("%s: %q is in the text: the series would end with it", name, word)
			}
		}
	}
	values := prometheusValues(t, encodeString(t, "prometheus", basicReport(), EncodeOptions{}))
	labels := `client="redigo", concurrency="1", keyspace="1", pipeline="1", size="100", target="redis", workload="set"`
	for key, want := range map[string]float64{
		"nsop_time_per_operation_seconds{" + labels + "}":                                           0.001026929,
		"nsop_operations_per_second{" + labels + "}":                                                973.8,
		"nsop_client_cpu_ratio{" + labels + "}":                                                     0.091,
		"nsop_latency_seconds_count{" + labels + "}":                                                1383,
		"nsop_failed_operations{" + labels + "}":                                                    0,
		"nsop_latency_seconds{" + strings.Replace(labels, "size", `quantile="0.99", size`, 1) + "}": 0.001406892,
	} {
		if got, ok := values[key]; !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v (%v), want %v", key, got, ok, want)
		}
	}
}

// Whatever rows and labels are called, the series are valid and no two alike.
func TestPrometheusUntrusted(t *testing.T) {
	evil := "a\\b\n\"c\" {d=\"e\"} \xff\u2028"
	r := sampleReport(sampleResult("get", "redigo", 1000, 10), sampleResult("get", "redigo", 1000, 20), sampleResult("get", "redigo", 1000, 30),
		sampleResult("get", "redigo", 1000, 40), sampleFailure("get", "redigo"))
	r.Results[0].Target, r.Results[0].Workload = evil, evil
	r.Results[1].Labels = map[string]string{"a.b": "1", "a-b": "2", "concurrency": "3", "__x": "4", "sample": "5", "quantile": "6"}
	r.Results[2].Name += "/Sub/shape=ramp:1-2/a.b=x/1=y/name=z/sample=w"
	r.Results[3].Name += "/Other"
	r.Results[4].ErrorKinds = map[string]int64{evil: 1}
	values := prometheusValues(t, encodeString(t, "prometheus", r, EncodeOptions{}))
	seen := 0
	for key := range values {
		if strings.HasPrefix(key, "nsop_time_per_operation_seconds{") {
			seen++
			if !strings.Contains(key, `concurrency="1"`) {
				t.Errorf("a label has taken a parameter's place: %s", key)
			}
		}
	}
	if seen != 4 {
		t.Errorf("%d rows of 4", seen)
	}
	var metric model.Metric
	for key := range values {
		if strings.Contains(key, "nsop_time") && strings.Contains(key, `\\b`) {
			metric = model.Metric{"target": model.LabelValue(strings.ToValidUTF8(evil, "\ufffd"))}
			if !strings.Contains(key, strings.Trim(metric.String(), "{}")) {
				t.Errorf("%s, want in it %s", key, metric)
			}
		}
	}
	if metric == nil {
		t.Error("the value is not there as it was")
	}
}

func TestGitHubActionBenchmark(t *testing.T) {
	for name, r := range reports() {
		var entries []struct {
			Name, Unit, Range, Extra string
			Value                    *float64
		}
		text := encodeString(t, "github-action-benchmark", r, EncodeOptions{})
		if err := json.Unmarshal([]byte(text), &entries); err != nil || entries == nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		seen := map[string]bool{}
		for _, e := range entries {
			if e.Name == "" || e.Unit == "" || e.Value == nil || *e.Value <= 0 || seen[e.Name] {
				t.Errorf("%s: %+v", name, e)
			}
			seen[e.Name] = true
		}
		rows := 0
		for _, row := range samplesByRow(r.Results) {
			if rows++; !seen[row[0].Name] {
				t.Errorf("%s: no entry for %s", name, row[0].Name)
			}
		}
		if rows == 0 && len(entries) > 0 {
			t.Errorf("%s: entries for nothing: %s", name, text)
		}
	}
	text := encodeString(t, "github-action-benchmark", reports()["samples"], EncodeOptions{})
	for _, want := range []string{`"value": 993687`, `"range": "± 19484"`, `3,711 operations in 3 samples, 0 errors\nredis 7.0.15\nfrom cloud-run asia-northeast1`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestBencher(t *testing.T) {
	type metric struct {
		Value *float64 `json:"value"`
		Lower *float64 `json:"lower_value"`
		Upper *float64 `json:"upper_value"`
	}
	for name, r := range reports() {
		var rows map[string]map[string]metric
		text := encodeString(t, "bencher", r, EncodeOptions{})
		if err := json.Unmarshal([]byte(text), &rows); err != nil || rows == nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		if want := len(samplesByRow(r.Results)); len(rows) != want {
			t.Errorf("%s: %d rows, want %d", name, len(rows), want)
		}
		for row, measures := range rows {
			if _, ok := measures["latency"]; !ok {
				t.Errorf("%s: no latency of %s", name, row)
			}
			for measure, m := range measures {
				if m.Value == nil || *m.Value <= 0 || (m.Lower == nil) != (m.Upper == nil) || m.Lower != nil && (*m.Lower > *m.Value || *m.Upper < *m.Value) {
					t.Errorf("%s: %s of %s: %s", name, measure, row, text)
				}
			}
		}
	}
}

func TestRedisBenchmarkFormat(t *testing.T) {
	const head = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n"
	few := sampleResult("get", "redigo", 87, 974203)
	few.Latency.P99 = nil
	short := sampleResult("get", "map", 1000, 100)
	custom := sampleResult("get", "redigo", 1000, 1e6)
	custom.Workload = `eval return "a,b" 0`
	for _, tt := range []struct {
		r    *Result
		want string
	}{
		{sampleResult("set", "redigo", 1383, 1026929), `"SET","973.80","1.027","0.770","1.006","1.232","1.407","2.157"`},
		{sampleResult("ping_mbulk", "redigo", 1383, 1026929), `"PING_MBULK",`},
		{sampleResult("lrange_lpush", "redigo", 1383, 1026929), `"LPUSH (needed to benchmark LRANGE)",`},
		{sampleResult("lrange_500", "redigo", 1383, 1026929), `"LRANGE_500 (first 500 elements)",`},
		{sampleResult("roundtrip", "redigo", 1383, 1026929), `"ROUNDTRIP",`},
		{sampleResult("simple-update", "redigo", 1383, 1026929), `"SIMPLE-UPDATE",`},
		{custom, `"eval return "a,b" 0","1000.00",`},
		{few, `"GET","1026.50","0.974","0.731","0.955","1.169","","2.046"`},
		{short, `"GET","10000000.00","0.0001","0.000075","0.000098","0.00012","0.000137","0.00021"`},
		{sampleFailure("get", "redigo"), ""},
	} {
		got := encodeString(t, "redis-benchmark", sampleReport(tt.r), EncodeOptions{})
		line, ok := strings.CutPrefix(got, head)
		if !ok || !strings.HasPrefix(line, tt.want) || (tt.want == "") != (line == "") {
			t.Errorf("%s: got %q, want %q", tt.r.Workload, got, tt.want)
		}
	}
	var titles []string
	for _, w := range Workloads {
		if w.Title != "" {
			titles = append(titles, redisTitle(w.Name))
		}
	}
	if len(titles) == 0 || slices.Contains(titles, "") {
		t.Error(titles)
	}
}

// New formats are chosen by their name alone: what Accept chose before it chooses still.
func TestExportsByName(t *testing.T) {
	for _, name := range []string{"redis-benchmark", "prometheus", "github-action-benchmark", "bencher"} {
		f, ok := FormatByName(name)
		if !ok || f.Accept != "" || f.ContentType == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	for accept, want := range map[string]string{"text/plain; version=0.0.4": "text", "application/json": "json", "text/csv": "csv",
		"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1": "text"} {
		if f, _ := NegotiateAccept(accept); f.Name != want {
			t.Errorf("%s: %s", accept, fmt.Sprint(f.Name))
		}
	}
}
