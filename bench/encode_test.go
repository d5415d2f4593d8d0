package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

func ptr[T any](v T) *T { return &v }

type testVantage struct {
	Platform string  `json:"platform"`
	Region   string  `json:"region"`
	Sandbox  string  `json:"sandbox"`
	GOOS     string  `json:"goos"`
	GOARCH   string  `json:"goarch"`
	CPUs     int     `json:"cpus"`
	Quota    float64 `json:"cpu_quota"`
}

// sampleResult returns a row in which every figure follows from n operations of ns nanoseconds.
func sampleResult(workload, client string, n int64, ns float64) *Result {
	lat := func(f float64) *int64 { return ptr(int64(ns * f)) }
	return &Result{
		Name:   strings.ToUpper(workload[:1]) + workload[1:] + "/target=redis/client=" + client + "/concurrency=1/pipeline=1/size=100/keyspace=1",
		Target: "redis", Workload: workload, Client: client, ClientVersion: "v1.9.3",
		Concurrency: 1, Pipeline: 1, Size: 100, Keyspace: 1, Sample: 1,
		Iterations: n, ElapsedNS: int64(ns * float64(n)), NSPerOp: NewFigure(ns), OpsPerSec: NewRate(1e9 / ns),
		Latency: Latency{Min: lat(.75), Mean: lat(1), Stddev: lat(.1), P50: lat(.98), P90: lat(1.1), P95: lat(1.2),
			P99: lat(1.37), Max: lat(2.1)},
		ErrorKinds: map[string]int64{}, ErrorSamples: map[string]string{},
		Connections: 1, ConnectNS: ptr(int64(1900000)), BytesPerOp: NewFigure(312), AllocsPerOp: NewFigure(6),
		ClientCPU: NewFigure(9.1), ThrottledNS: ptr(int64(0)),
		Server:   &ServerCost{NewFigure(1900), NewFigure(3)},
		Settings: map[string]any{"retries": 0, "pool_size": 1}, Warnings: []string{},
	}
}

func sampleFailure(workload, client string) *Result {
	r := sampleResult(workload, client, 1, 1)
	r.Iterations, r.ElapsedNS, r.NSPerOp, r.OpsPerSec, r.Latency = 0, 5e9, nil, nil, Latency{}
	r.BytesPerOp, r.AllocsPerOp, r.ClientCPU, r.ConnectNS, r.Server = nil, nil, nil, nil, nil
	r.Errors = 100
	r.ErrorKinds = map[string]int64{"reset": 3, "timeout": 97}
	r.ErrorSamples = map[string]string{"timeout": "read tcp 10.0.0.3:6379: i/o timeout", "reset": "connection reset by peer"}
	return r
}

func sampleReport(results ...*Result) *Report {
	return &Report{
		Run: "0198c0de-1111-7222-8333-444455556666", StartedAt: time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC),
		ElapsedNS: 4100000000,
		Vantage:   testVantage{"cloud-run", "asia-northeast1", "gvisor", "linux", "amd64", 1, 1},
		Target:    &TargetInfo{Name: "redis", Kind: "redis", Address: "10.0.0.3:6379", Server: "redis 7.0.15", Mode: "standalone"},
		Results:   results,
	}
}

// with changes a parameter of r, in its name too.
func with(r *Result, name string, v int) *Result {
	old := map[string]*int{"concurrency": &r.Concurrency, "pipeline": &r.Pipeline, "size": &r.Size, "keyspace": &r.Keyspace}[name]
	r.Name = strings.Replace(r.Name, fmt.Sprintf("/%s=%d", name, *old), fmt.Sprintf("/%s=%d", name, v), 1)
	*old = v
	return r
}

func basicReport() *Report {
	r := sampleReport(
		sampleResult("set", "redigo", 1383, 1026929),
		sampleResult("set", "go-redis", 986, 1021182),
		sampleResult("get", "redigo", 1237, 974203),
		sampleResult("get", "go-redis", 1256, 979747))
	for _, expr := range []string{"p99<1.4ms", "errors=0"} {
		a, err := ParseAssert(expr)
		if err != nil {
			panic(err)
		}
		r.Assertions = append(r.Assertions, a.Check(r.Results)...)
	}
	return r
}

func sweepReport(samples int) *Report {
	r := sampleReport()
	for _, workload := range []string{"set", "get"} {
		for _, client := range []string{"redigo", "go-redis"} {
			for _, c := range []int{1, 10, 25, 50, 100} {
				for s := range samples {
					row := with(sampleResult(workload, client, 12000, 1026929/float64(c)*(1+float64(s)/100)), "concurrency", c)
					row.Sample = s + 1
					r.Results = append(r.Results, row)
				}
			}
		}
	}
	return r
}

// reports are the cases of the golden files.
func reports() map[string]*Report {
	failed := basicReport()
	failed.Results[1], failed.Results[3] = sampleFailure("set", "go-redis"), sampleFailure("get", "go-redis")
	failed.Results[0].Errors = 2
	failed.Results[0].ErrorKinds = map[string]int64{"timeout": 2}
	failed.Results[0].ErrorSamples = map[string]string{"timeout": "read tcp 10.0.0.3:6379: i/o timeout"}
	failed.Results[2].Iterations, failed.Results[2].Latency.P99 = 87, nil
	failed.Assertions = Assert{"p99<3ms", "p99", "<", 3e6}.Check(failed.Results)

	embedded := sampleReport(sampleResult("set", "redigo", 13830, 41026), sampleResult("get", "redigo", 13830, 38026))
	embedded.Target = &TargetInfo{Name: "redis", Kind: "redis", Address: "127.0.0.1:41234", Server: "miniredis 2.40.0", Embedded: true}
	embedded.Vantage = testVantage{"local", "", "", "linux", "amd64", 2, 2}
	embedded.Warnings = []string{"history is in the temporary folder: it dies with the instance", "embedded store: no real store was measured"}
	for _, r := range embedded.Results {
		r.Embedded = true
		r.Warnings = []string{"the client's CPU was used up (198% of 200%): the figures are this machine's, not the store's, and a larger machine would see others"}
	}
	embedded.Results[1].Warnings = append(embedded.Results[1].Warnings, "4.0% of the reads were misses")
	embedded.Results[1].Misses = 553

	samples := basicReport()
	samples.Results, samples.Assertions = nil, nil
	for s := range 3 {
		for _, client := range []string{"redigo", "go-redis"} {
			r := sampleResult("get", client, 1237, 974203*(1+float64(s)/50))
			r.Sample = s + 1
			samples.Results = append(samples.Results, r)
		}
	}
	samples.Assertions = Assert{"p99 < 1.36ms", "p99", "<", 1.36e6}.Check(samples.Results)

	extremes := sampleReport(
		sampleResult("get", "map", 2000000000, 0.5),
		sampleResult("get", "bbolt", 1234567, 812),
		sampleResult("tpcb", "pgx", 3, 2.3e9))
	extremes.Results[0].Latency = Latency{}
	extremes.Results[1].Latency.P999 = ptr(int64(1999))
	extremes.Target = nil
	extremes.Targets = []*TargetInfo{{Name: "map", Kind: "map", Embedded: true}, {Name: "bbolt", Kind: "bbolt", Embedded: true},
		{Name: "postgres", Kind: "postgres", Server: "PostgreSQL 15", Address: "10.0.0.5:5432", TLS: true}}
	for i, r := range extremes.Results {
		r.Target = extremes.Targets[i].Name
		r.Name = strings.Replace(r.Name, "target=redis", "target="+r.Target, 1)
	}
	extremes.Results[2].Name = "Tpcb/target=postgres/client=pgx/concurrency=1/scale=10/protocol=prepared"
	extremes.Results[2].Pipeline, extremes.Results[2].Size, extremes.Results[2].Keyspace = 0, 0, 0

	labels := basicReport()
	for i, r := range labels.Results {
		r.Labels = map[string]string{"egress": "direct-vpc", "note": "a|b, \"c\""}
		with(with(r, "concurrency", 50), "size", []int{1024, 1000}[i%2])
		r.Name += "/rate=20000/shape=ramp:10-20"
	}
	labels.Assertions = nil

	sweepFailed := sweepReport(3)
	for i, r := range sweepFailed.Results {
		if r.Client == "go-redis" && r.Concurrency == 100 || i == 1 {
			f := with(sampleFailure(r.Workload, r.Client), "concurrency", r.Concurrency)
			f.Sample = r.Sample
			sweepFailed.Results[i] = f
		}
	}

	sweepFailed.Results[3].Mismatches = 12

	wide := sweepReport(1)
	for i, r := range wide.Results {
		with(with(r, "pipeline", 1+15*(i%2)), "keyspace", 100000)
	}
	wide.Results = wide.Results[:6]

	return map[string]*Report{
		"basic": basicReport(), "sweep": sweepReport(1), "samples": samples, "failed": failed, "embedded": embedded,
		"extremes": extremes, "labels": labels, "sweepfailed": sweepFailed, "wide": wide, "empty": {},
	}
}

func encodeString(t *testing.T, format string, r *Report, o EncodeOptions) string {
	t.Helper()
	f, ok := FormatByName(format)
	if !ok {
		t.Fatalf("no format %q", format)
	}
	var b bytes.Buffer
	if err := f.Encode(&b, r, o); err != nil {
		t.Fatalf("%s: %v", format, err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	check := func(t *testing.T, file, got string) {
		t.Helper()
		file = filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
			return
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; go test -update writes it anew. Got:\n%s", file, got)
		}
	}
	extensions := map[string]string{"json": "json", "text": "txt", "markdown": "md", "csv": "csv", "benchfmt": "bench",
		"redis-benchmark": "redis-benchmark.csv", "prometheus": "prom", "github-action-benchmark": "github-action.json", "bencher": "bencher.json"}
	for name, r := range reports() {
		for _, f := range Formats {
			ext, ok := extensions[f.Name]
			if !ok {
				continue
			}
			t.Run(name+"/"+f.Name, func(t *testing.T) {
				got := encodeString(t, f.Name, r, EncodeOptions{URL: "https://nsop.example"})
				check(t, name+"."+ext, got)
			})
		}
	}
	check(t, "failed.terminal", encodeString(t, "text", reports()["failed"], EncodeOptions{Terminal: true}))
}

func TestEncodeLeavesReportAlone(t *testing.T) {
	for name, want := range reports() {
		got := reports()[name]
		for _, f := range Formats {
			if f.Name == "svg" && len(got.Results) == 0 {
				continue // nothing to draw
			}
			encodeString(t, f.Name, got, EncodeOptions{})
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: encoding changed the report", name)
		}
	}
}

func TestTextLines(t *testing.T) {
	for name, r := range reports() {
		for line := range strings.Lines(encodeString(t, "text", r, EncodeOptions{})) {
			line = strings.TrimSuffix(line, "\n")
			if len(line) > 100 && name != "wide" && name != "extremes" { // tables are as wide as they are
				t.Errorf("%s: %d columns: %q", name, len(line), line)
			}
			if strings.TrimRight(line, " ") != line {
				t.Errorf("%s: trailing blanks: %q", name, line)
			}
			for _, c := range line {
				if c < ' ' || c > '~' {
					t.Errorf("%s: not plain ASCII: %q", name, line)
				}
			}
		}
	}
}

func TestTextUntrusted(t *testing.T) {
	r := basicReport()
	r.Results[0] = sampleFailure("set", "redigo")
	r.Results[0].ErrorSamples["timeout"] = "\x1b[2Jgone\r\n\u202eé\xff"
	r.Warnings = []string{"bell\a"}
	for _, o := range []EncodeOptions{{}, {Terminal: true}, {Terminal: true, NoColor: true}} {
		got := encodeString(t, "text", r, o)
		plain := got
		if o.Terminal && !o.NoColor {
			for _, sgr := range []string{"0", "1", "2", "31", "32", "33"} {
				plain = strings.ReplaceAll(plain, "\x1b["+sgr+"m", "")
			}
			if plain == got {
				t.Error("no colour on a terminal")
			}
		}
		if i := strings.IndexAny(plain, "\x1b\r\a\u202e\ufffd"); i >= 0 {
			t.Errorf("%+v: control character at %q", o, plain[i:])
		}
		if o.Terminal != strings.Contains(plain, "é") {
			t.Errorf("%+v: got %q", o, plain)
		}
	}
}

func TestNoNaN(t *testing.T) {
	nan, inf := Figure(math.NaN()), Figure(math.Inf(1))
	r := sampleReport(sampleResult("get", "redigo", 1, 1), sampleResult("set", "redigo", 1, 1))
	bad := r.Results[0]
	bad.NSPerOp, bad.OpsPerSec, bad.BytesPerOp, bad.AllocsPerOp, bad.ClientCPU = &nan, &inf, &nan, &inf, &nan
	bad.Server = &ServerCost{&nan, &inf}
	bad.Settings = map[string]any{"factor": math.NaN()}
	bad.ErrorKinds, bad.ErrorSamples, bad.Warnings = nil, nil, nil
	for _, f := range Formats {
		got := encodeString(t, f.Name, r, EncodeOptions{})
		for _, word := range []string{"NaN", "Inf"} {
			if strings.Contains(got, word) {
				t.Errorf("%s has %s:\n%s", f.Name, word, got)
			}
		}
	}
	got := encodeString(t, "json", r, EncodeOptions{})
	var read map[string]any
	if err := json.Unmarshal([]byte(got), &read); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"assertions": []`, `"warnings": []`, `"error_kinds": {}`, `"error_samples": {}`, `"ns_per_op": null`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func TestJSONReadsBack(t *testing.T) {
	for name, r := range reports() {
		var got Report
		text := encodeString(t, "json", r, EncodeOptions{})
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again := encodeString(t, "json", &got, EncodeOptions{}); name != "labels" && len(again) != len(text) {
			t.Errorf("%s: read back it encodes otherwise:\n%s\n%s", name, text, again)
		}
		if strings.Contains(text, `\u003c`) || !strings.HasSuffix(text, "}\n") {
			t.Errorf("%s: got\n%s", name, text)
		}
	}
}

func TestCSVReadsBack(t *testing.T) {
	for name, r := range reports() {
		records, err := csv.NewReader(strings.NewReader(encodeString(t, "csv", r, EncodeOptions{}))).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(records) != 1+len(r.Results) {
			t.Fatalf("%s: %d records of %d results", name, len(records), len(r.Results))
		}
		for i, res := range r.Results {
			got := map[string]string{}
			for c, field := range records[i+1] {
				got[records[0][c]] = field
			}
			// The JSON is the contract: each of its scalar fields must be there with the same text.
			text, err := json.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(text, &fields); err != nil {
				t.Fatal(err)
			}
			flat := map[string]json.RawMessage{}
			for key, value := range fields {
				var nested map[string]json.RawMessage
				switch key {
				case "latency_ns":
					_ = json.Unmarshal(value, &nested)
					for k, v := range nested {
						flat["latency_"+k+"_ns"] = v
					}
				case "server":
					_ = json.Unmarshal(value, &nested)
					for k, v := range nested {
						flat["server_"+k] = v
					}
				case "error_kinds", "error_samples", "settings", "labels", "warnings", "histogram":
				default:
					flat[key] = value
				}
			}
			for key, value := range flat {
				want := strings.Trim(string(value), `"`)
				if want == "null" {
					want = ""
				}
				if field, ok := got[key]; !ok || field != want {
					t.Errorf("%s row %d: %s is %q (%v), want %q", name, i, key, field, ok, want)
				}
			}
			for key, value := range res.Labels {
				if got["label."+key] != value {
					t.Errorf("%s row %d: label %s is %q", name, i, key, got["label."+key])
				}
			}
			if got["run"] != r.Run || got["started_at"] != r.StartedAt.Format(time.RFC3339Nano) {
				t.Errorf("%s row %d: %v", name, i, got)
			}
		}
	}
}

func TestMarkdownInjection(t *testing.T) {
	evil := "a|b\n# <script>alert(1)</script> [x](http://y) `c` ![i](j) **d** &lt;"
	r := basicReport()
	r.Target.Server, r.Target.Name = evil, evil
	r.Warnings = []string{evil}
	r.Results[0] = sampleFailure("set", "redigo")
	r.Results[0].Workload = evil
	r.Results[0].ErrorSamples["timeout"] = evil
	r.Results[1].Labels = map[string]string{"l": evil}
	r.Assertions[0].Expr = evil
	got := encodeString(t, "markdown", r, EncodeOptions{})
	bare := regexp.MustCompile(`\\[[:punct:]]`).ReplaceAllString(got, "")
	bare = strings.Replace(bare, "**", "", 2) // the target's name
	for _, bad := range []string{"<", "\n#", "[", "`", "*", "&lt;script>"} {
		if strings.Contains(bare, bad) {
			t.Errorf("markdown has %q:\n%s", bad, got)
		}
	}
	// Every line of a table has as many cells as its heading.
	cells := 0
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, "|") {
			cells = 0
			continue
		}
		n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if cells != 0 && n != cells {
			t.Errorf("%d cells, want %d: %s", n, cells, line)
		}
		cells = n
	}
}

func TestNegotiateAccept(t *testing.T) {
	for _, tt := range []struct {
		header, want string
		ok           bool
	}{
		{"", "json", true},
		{"*/*", "json", true},
		{"application/json", "json", true},
		{"application/*", "json", true},
		{"text/plain", "text", true},
		{"TEXT/Plain; charset=utf-8", "text", true},
		{"text/*", "text", true},
		{"text/markdown", "markdown", true},
		{"text/csv", "csv", true},
		{"text/x-go-bench", "benchfmt", true},
		{"text/plain;q=0.5, text/csv", "csv", true},
		{"text/plain;q=0.5, */*;q=0.1", "text", true},
		{"application/json;q=0, */*;q=0.5", "text", true},
		{"text/plain;q=0.5, application/json;q=0.5", "json", true},
		{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "json", true},
		{"text/html", "json", false},
		{"*/*;q=0", "json", false},
		{"text/plain;q=x, text/csv;q=0.1", "csv", true},
		{"text/plain;q=NaN", "json", false},
		{",;,", "json", false},
	} {
		if f, ok := NegotiateAccept(tt.header); f.Name != tt.want || ok != tt.ok {
			t.Errorf("NegotiateAccept(%q) = %s, %v, want %s, %v", tt.header, f.Name, ok, tt.want, tt.ok)
		}
	}
}
