package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"nsop/bench/chart"
)

// timed returns a row with a histogram of n latencies about median.
func timed(workload, client string, n int, median float64) *Result {
	r := sampleResult(workload, client, int64(n), median)
	rnd := rand.New(rand.NewPCG(uint64(n), uint64(median)))
	r.Latencies = hdrhistogram.New(1, histogramMax, 2)
	r.Latency = Latency{Min: ptr(int64(math.MaxInt64)), P50: ptr(int64(median)), Max: ptr(int64(0))}
	for range n {
		ns := int64(median * math.Exp(rnd.NormFloat64()*.1))
		if rnd.IntN(1000) == 0 {
			ns *= 8
		}
		if err := r.Latencies.RecordValue(ns); err != nil {
			panic(err)
		}
		*r.Latency.Min, *r.Latency.Max = min(*r.Latency.Min, ns), max(*r.Latency.Max, ns)
	}
	return r
}

func TestSVGGolden(t *testing.T) {
	all := reports()
	all["histogram"] = sampleReport(timed("set", "redigo", 20000, 1.02e6), timed("get", "redigo", 20000, .96e6), timed("get", "go-redis", 300, .97e6))
	stored := all["histogram"].Results[1]
	text, err := EncodeHistogram(stored.Latencies)
	if err != nil {
		t.Fatal(err)
	}
	stored.Histogram, stored.Latencies = text, nil // as it comes out of the history
	for _, name := range []string{"basic", "histogram", "samples", "failed", "sweep", "sweepfailed", "extremes", "embedded"} {
		got := encodeString(t, "svg", all[name], EncodeOptions{})
		file := filepath.Join("testdata", name+".svg")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; go test -update writes it anew", file)
		}
	}
}

// desc returns a picture's text alternative.
func desc(t *testing.T, svg string) string {
	t.Helper()
	var doc struct {
		Title string `xml:"title"`
		Desc  string `xml:"desc"`
	}
	if err := xml.Unmarshal([]byte(svg), &doc); err != nil {
		t.Fatalf("%v in %s", err, svg)
	}
	return doc.Title + ". " + doc.Desc
}

func TestSVGSays(t *testing.T) {
	twice := sampleReport(timed("get", "redigo", 900, 1e6), timed("get", "redigo", 1100, 1e6))
	twice.Results[1].Sample = 2
	rates := sampleReport()
	for i, rate := range []string{"1000", "2000", "4000"} {
		r := sampleResult("get", "redigo", 1000, 1e6/float64(i+1))
		r.Name += "/rate=" + rate
		rates.Results = append(rates.Results, r)
	}
	for _, tt := range []struct {
		name string
		r    *Report
		want []string
		not  string
	}{
		{"figures alone", basicReport(), []string{"redis: latency by percentile.", "redis 7.0.15 at 10.0.0.3:6379, from cloud-run asia-northeast1 (gVisor, 1 vCPU), 100 B values.",
			"set redigo: median 1.01 ms, p99 1.41 ms, p99.9", "slowest 2.16 ms"}, "sample"},
		{"a sweep", sweepReport(1), []string{"redis: throughput and p99 over concurrency.", "set redigo throughput: 974/s at concurrency 1, 97,378/s at 100"}, "sample"},
		{"a sweep of samples", sweepReport(3), []string{"of 3 samples: throughput is the mean, latency the median"}, "NaN"},
		{"a sweep of rates", rates, []string{"over rate", "at rate 1,000"}, ""},
		{"samples are added", twice, []string{"get redigo: median 1.00 ms, p99 1.26 ms, p99.9 1.34 ms"}, "sample"},
		{"a failed row", reports()["failed"], []string{"set go-redis, get go-redis: nothing completed, 97 timeout (read tcp 10.0.0.3:6379: i/o timeout)"}, "go-redis: median"},
		{"an embedded store", reports()["embedded"], []string{"embedded store: no real store was measured."}, ""},
		{"a row of figures without latency", reports()["extremes"], []string{"not drawn, as no latency is known: map get map."}, ""},
	} {
		got := desc(t, encodeString(t, "svg", tt.r, EncodeOptions{}))
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in %q", tt.name, want, got)
			}
		}
		if tt.not != "" && strings.Contains(got, tt.not) {
			t.Errorf("%s: %q in %q", tt.name, tt.not, got)
		}
	}
}

func TestSVGNothing(t *testing.T) {
	failed := sampleReport(sampleFailure("get", "redigo"))
	sweep := sampleReport()
	for _, c := range []int{1, 10, 100} {
		sweep.Results = append(sweep.Results, with(sampleFailure("get", "redigo"), "concurrency", c))
	}
	for name, r := range map[string]*Report{"empty": {}, "failed": failed, "sweep": sweep} {
		var b bytes.Buffer
		for what, err := range map[string]error{"report": encodeSVG(&b, r, EncodeOptions{})} {
			var unsupported *UnsupportedError
			if !errors.As(err, &unsupported) || b.Len() > 0 {
				t.Errorf("%s, %s: %v and %q, want an UnsupportedError and nothing", name, what, err, b.String())
			}
		}
	}
}

func TestLimitSVG(t *testing.T) {
	r := sampleReport()
	for _, c := range []int{1, 2, 4, 8, 16} {
		r.Results = append(r.Results, with(sampleResult("get", "redigo", 12000, 1026929/float64(min(c, 8))), "concurrency", c))
	}
	var b bytes.Buffer
	r.BoundBy, r.Knee = "server-cpu", &Knee{Row: r.Results[3].Name}
	if err := encodeSVG(&b, r, EncodeOptions{}); err != nil {
		t.Fatal(err)
	}
	got := desc(t, b.String())
	for _, want := range []string{"redis: get redigo over concurrency.", "Knee at concurrency 8: 7,790/s, bound by server-cpu.", "throughput: 974/s at concurrency 1, 7,790/s at 16.", "p99: "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if err := limitSVG(io.Discard, sampleReport(r.Results[0]), EncodeOptions{}); err != nil {
		t.Errorf("one row: %v", err)
	}
}

// A histogram's points are its quantiles, and end where its operations do.
func TestQuantilesOf(t *testing.T) {
	for _, n := range []int{1, 2, 10, 99, 1000, 20000} {
		r := timed("get", "redigo", n, 1e6)
		points := quantilesOf(r.Latencies, []*Result{r})
		first, last := points[0], points[len(points)-1]
		if first.P != 0 || first.NS != float64(*r.Latency.Min) || last.P != 1-1/float64(n) || last.NS != float64(*r.Latency.Max) {
			t.Errorf("%d: from %v to %v, want from %d to %d", n, first, last, *r.Latency.Min, *r.Latency.Max)
		}
		for i := 1; i < len(points); i++ {
			if points[i].P <= points[i-1].P || points[i].NS < points[i-1].NS {
				t.Errorf("%d: %v after %v", n, points[i], points[i-1])
			}
		}
	}
}

// The pictures write a duration and a rate as the tables do.
func TestChartUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	values := []float64{1, 999.4, 999.6, 1000, 9.995, 99.95, 999_499, 999_500, 1e9, 1.5e12}
	for range 10_000 {
		values = append(values, math.Pow(10, r.Float64()*13-1))
	}
	for _, v := range values {
		if got, want := chart.Duration(v), FormatDuration(v); got != want {
			t.Errorf("%g: %q, want %q", v, got, want)
		}
		if got, want := chart.Rate(v), FormatFigure(v)+"/s"; got != want {
			t.Errorf("%g: %q, want %q", v, got, want)
		}
	}
}
