package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchproc"
	"golang.org/x/perf/benchunit"
)

// readBenchfmt returns the results and the units of text, every line of which must be without a syntax error.
func readBenchfmt(t *testing.T, text string) ([]*benchfmt.Result, benchfmt.UnitMetadataMap) {
	t.Helper()
	reader := benchfmt.NewReader(strings.NewReader(text), "report")
	var results []*benchfmt.Result
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.Result:
			results = append(results, rec.Clone())
		case *benchfmt.SyntaxError:
			t.Error(rec)
		}
	}
	if err := reader.Err(); err != nil {
		t.Error(err)
	}
	return results, reader.Units()
}

func TestBenchfmtReadsBack(t *testing.T) {
	for name, r := range reports() {
		got, units := readBenchfmt(t, encodeString(t, "benchfmt", r, EncodeOptions{}))
		var want []*Result
		for _, res := range r.Results {
			if res.NSPerOp != nil {
				want = append(want, res)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %d results, want %d", name, len(got), len(want))
		}
		for i, res := range want {
			if int64(got[i].Iters) != res.Iterations {
				t.Errorf("%s %s: %d iterations, want %d", name, res.Name, got[i].Iters, res.Iterations)
			}
			values := map[string]float64{}
			for _, v := range got[i].Values {
				values[v.Unit] = v.Value
			}
			for _, u := range Units {
				v, ok := u.Of(res)
				if u.Bench == "" || !ok || u.Kind == CountUnit && v == 0 {
					continue
				}
				if u.Kind != DurationUnit && u.Kind != CountUnit {
					v = parseFloat(t, Figure(v).String())
				} else if v >= 100 {
					v = parseFloat(t, Figure(v).String())
				}
				tidy, unit := benchunit.Tidy(v, u.Bench)
				if values[unit] != tidy {
					t.Errorf("%s %s: %s is %v, want %v", name, res.Name, unit, values[unit], tidy)
				}
				delete(values, unit)
				if better := units.GetBetter(unit); (better > 0) != (u.Better == "higher") || better == 0 {
					t.Errorf("%s: better is %d, want %s", unit, better, u.Better)
				}
			}
			if len(values) > 0 {
				t.Errorf("%s %s: more values than the result has: %v", name, res.Name, values)
			}
		}
	}
}

// The parameters in a name are whole for benchstat's own extractors, whatever the name ends with.
func TestBenchfmtNames(t *testing.T) {
	for suffix, want := range map[string][2]string{
		"":                    {"/keyspace", "1"},
		"/shape=ramp:10-20":   {"/shape", "ramp:10-20"},
		"/label=a b\n-7":      {"/label", "a_b_-7"},
		"/flavor=compatible":  {"/flavor", "compatible"},
		"/rate=1000":          {"/rate", "1000"},
		"/client=go-redis-v9": {"/keyspace", "1"},
	} {
		r := sampleReport(sampleResult("get", "go-redis", 10, 10))
		r.Results[0].Name += suffix
		text := encodeString(t, "benchfmt", r, EncodeOptions{})
		got, _ := readBenchfmt(t, text)
		if len(got) != 1 {
			t.Fatalf("%q: %d results in\n%s", suffix, len(got), text)
		}
		var parser benchproc.ProjectionParser
		for key, want := range map[string]string{want[0]: want[1], "/target": "redis", "/client": "go-redis", ".name": "Get", "target": "redis",
			"server": "redis 7.0.15", "region": "asia-northeast1"} {
			projection, err := parser.Parse(key, nil)
			if err != nil {
				t.Fatal(err)
			}
			if value := projection.Project(got[0]).Get(projection.Fields()[0]); value != want {
				t.Errorf("%q: %s is %q, want %q", suffix, key, value, want)
			}
		}
	}
}

// Two runs of one setup have the same configuration lines, so that benchstat sets them side by side.
func TestBenchstat(t *testing.T) {
	dir := t.TempDir()
	var heads [2]string
	for i, factor := range []float64{1, 0.7} {
		var results []*Result
		for s := range 8 {
			r := sampleResult("get", "redigo", 1237, 974203*factor*(1+float64(s)/1000))
			r.Sample = s + 1
			results = append(results, r)
		}
		report := sampleReport(results...)
		report.Run = strings.Repeat(string(rune('a'+i)), 32)
		report.StartedAt = report.StartedAt.AddDate(0, i, 0)
		text := encodeString(t, "benchfmt", report, EncodeOptions{})
		heads[i], _, _ = strings.Cut(text, "\n\n")
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if heads[0] != heads[1] {
		t.Errorf("configuration differs:\n%s\n%s", heads[0], heads[1])
	}
	cmd := exec.Command("go", "run", "golang.org/x/perf/cmd/benchstat", filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	t.Logf("%s%s", out, stderr.Bytes())
	for _, want := range []string{"-30.00% (p=0.000 n=8)", "+42.86%", "p50-sec/op", "ops/s", "sec/op"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("benchstat does not say %q", want)
		}
	}
}

func parseFloat(t *testing.T, s string) float64 {
	t.Helper()
	r := benchfmt.NewReader(strings.NewReader("BenchmarkX 1 "+s+" x"), "")
	if !r.Scan() {
		t.Fatal(s)
	}
	return r.Result().(*benchfmt.Result).Values[0].Value
}
