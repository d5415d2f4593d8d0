package bench

import (
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/perf/benchmath"
)

func samplesOf(values ...float64) (results []*Result) {
	for i, v := range values {
		r := sampleResult("get", "redigo", 1237, v)
		r.Sample = i + 1
		results = append(results, r)
	}
	return results
}

// A summary says what benchstat prints for the benchfmt output of the same run.
func TestSummariesAreBenchstats(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{2, 5, 6, 7, 10, 20} {
		var values []float64
		for range n {
			values = append(values, 974203*math.Exp(r.NormFloat64()/20))
		}
		report := sampleReport(samplesOf(values...)...)
		summary := Summarize(report.Results)[0]
		text := encodeString(t, "benchfmt", report, EncodeOptions{})
		read, _ := readBenchfmt(t, text)
		for unit, metric := range map[string]string{"sec/op": "ns_per_op", "p99-sec/op": "p99", "ops/s": "ops_per_sec"} {
			scale := 1.0
			if strings.HasSuffix(unit, "sec/op") {
				scale = 1e9
			}
			var printed []float64
			for _, result := range read {
				for _, v := range result.Values {
					if v.Unit == unit {
						printed = append(printed, v.Value)
					}
				}
			}
			want := benchmath.AssumeNothing.Summary(benchmath.NewSample(printed, &benchmath.DefaultThresholds), 0.95)
			got := summary.Metrics[metric]
			if math.Abs(float64(got.Median)/scale/want.Center-1) > 1e-12 || float64(got.Confidence) != want.Confidence {
				t.Errorf("%d samples: %s is %s at %s, want %g at %g", n, metric, got.Median, got.Confidence, want.Center, want.Confidence)
			}
			if (got.Low == nil || got.High == nil) != (n < 6) {
				t.Errorf("%d samples: %s from %v to %v", n, metric, got.Low, got.High)
			} else if n >= 6 && (math.Abs(float64(*got.Low)/scale/want.Lo-1) > 1e-12 || math.Abs(float64(*got.High)/scale/want.Hi-1) > 1e-12) {
				t.Errorf("%d samples: %s from %s to %s, want %g to %g", n, metric, got.Low, got.High, want.Lo, want.Hi)
			}
		}
		if few := len(summary.Warnings) > 0; few != (n < 6) || summary.Samples != n {
			t.Errorf("%d samples: %+v", n, summary)
		}
	}
}

// The command itself prints the same median and the same interval.
func TestBenchstatPrintsTheSummary(t *testing.T) {
	report := sampleReport(samplesOf(974203, 981000, 969000, 1002000, 940000, 975500, 979000, 990000)...)
	file := filepath.Join(t.TempDir(), "run")
	if err := os.WriteFile(file, []byte(encodeString(t, "benchfmt", report, EncodeOptions{})), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", "golang.org/x/perf/cmd/benchstat", "-format", "csv", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	reader := csv.NewReader(strings.NewReader(string(out)))
	reader.FieldsPerRecord = -1
	records, err := reader.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	unit, seen := "", 0
	for _, record := range records {
		if len(record) == 3 && record[2] == "CI" {
			unit = record[1]
		}
		metric := map[string]string{"sec/op": "ns_per_op", "p50-sec/op": "p50", "ops/s": "ops_per_sec"}[unit]
		if metric == "" || len(record) != 3 || !strings.HasPrefix(record[0], "Get/") {
			continue
		}
		seen++
		center, err := strconv.ParseFloat(record[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		if metric != "ops_per_sec" {
			center *= 1e9
		}
		got := Summarize(report.Results)[0].Metrics[metric]
		if math.Abs(float64(got.Median)/center-1) > 1e-6 || got.percent() != "+-"+record[2] {
			t.Errorf("%s is %s %s, benchstat says %s %s", metric, got.Median, got.percent(), record[1], record[2])
		}
	}
	if seen != 3 {
		t.Errorf("%d of 3 metrics in\n%s", seen, out)
	}
	for _, format := range []string{"text", "markdown"} {
		report.Summaries = Summarize(report.Results)
		if text := encodeString(t, format, report, EncodeOptions{}); !strings.Contains(text, "977,250") {
			t.Errorf("%s has no median:\n%s", format, text)
		}
	}
}

func TestDrift(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	noisy := func(n int, slope float64) (values []float64) {
		for i := range n {
			values = append(values, (1e6+r.Float64()*1e5)*(1+slope*float64(i)/float64(n)))
		}
		return values
	}
	for _, c := range []struct {
		name   string
		values []float64
		want   string
	}{
		{"too few", []float64{1, 2, 3, 4, 5}, ""},
		{"up", []float64{100, 101, 110, 111, 120, 121}, "20% above"},
		{"down", []float64{120, 121, 110, 111, 100, 101}, "17% below"},
		{"little", []float64{100, 101, 102, 103, 104, 104.5}, ""},
		{"out and back", []float64{100, 101, 120, 121, 102, 103}, ""},
		{"many, up", noisy(30, 0.2), "above"},
		{"many, level", noisy(30, 0), ""},
	} {
		if got := drift(c.values); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	wrong := 0
	for range 1000 {
		if drift(noisy(6, 0)) != "" {
			wrong++
		}
	}
	if wrong > 40 {
		t.Errorf("%d of 1000 level runs drift", wrong)
	}
	if s := Summarize(samplesOf(100, 101, 110, 111, 120, 121)); len(s) != 1 || len(s[0].Warnings) != 1 {
		t.Errorf("%+v", s)
	}
	if s := Summarize(samplesOf(100)); s != nil {
		t.Errorf("one sample: %+v", s)
	}
	failed := samplesOf(1, 2, 3, 4, 5, 6, 7)
	failed[0] = sampleFailure("get", "redigo")
	if s := Summarize(failed); s[0].Samples != 6 || s[0].Metrics["ns_per_op"].Median != 4.5 {
		t.Errorf("a failed sample is in %+v", s)
	}
}
