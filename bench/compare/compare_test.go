package compare

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nsop/bench"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func p64(v float64) *int64 { n := int64(v); return &n }

// sample is one result of a row whose latency is ns nanoseconds.
func sample(name string, ns float64, edit ...func(*bench.Result)) *bench.Result {
	r := &bench.Result{Name: name, Target: parameter(name, "target"), Client: parameter(name, "client"), Sample: 1, Iterations: 1000,
		NSPerOp: bench.NewFigure(ns * 1.02), OpsPerSec: bench.NewRate(1e9 / (ns * 1.02)),
		Latency: bench.Latency{P50: p64(ns), P99: p64(ns * 1.4)}}
	r.Workload = test(r)
	for _, f := range edit {
		f(r)
	}
	return r
}

// probes is n runs of each row, each with one sample around ns, log-normal with a deviation of 10%.
func probes(seed uint64, n int, ns float64, names ...string) (reports []*bench.Report) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		report := &bench.Report{Run: fmt.Sprintf("%d-%d", seed, i)}
		for _, name := range names {
			s := sample(name, ns*math.Exp(0.1*r.NormFloat64()))
			s.Latency.P99 = p64(1.42e6 * math.Exp(0.2*r.NormFloat64()))
			report.Results = append(report.Results, s)
		}
		reports = append(reports, report)
	}
	return reports
}

// samples is one run with samples of the row at each of ns.
func samples(run, name string, edit func(*bench.Result), ns ...float64) *bench.Report {
	report := &bench.Report{Run: run}
	for i, v := range ns {
		s := sample(name, v)
		s.Sample = i + 1
		if edit != nil {
			edit(s)
		}
		report.Results = append(report.Results, s)
	}
	return report
}

// bare leaves one metric alone, as published figures have it.
func bare(metric string) func(*bench.Result) {
	return func(r *bench.Result) {
		r.Latency, r.Iterations = bench.Latency{}, 0
		if metric == "ops_per_sec" {
			r.NSPerOp = nil
		} else {
			r.OpsPerSec = nil
		}
	}
}

func row(workload, target, client, rest string) string {
	return workload + "/target=" + target + "/client=" + client + "/concurrency=1/pipeline=1/size=100/keyspace=1" + rest
}

func join(reports ...*bench.Report) []*bench.Report { return reports }

// merge puts the results of reports into one.
func merge(run string, reports ...*bench.Report) *bench.Report {
	m := &bench.Report{Run: run}
	for _, r := range reports {
		m.Results = append(m.Results, r.Results...)
	}
	return m
}

func cases() map[string]*Comparison {
	get, set := row("Get", "redis", "redigo", ""), row("Set", "redis", "redigo", "")
	six := []float64{1.01e6, 1.03e6, 1.02e6, 1.00e6, 1.04e6, 1.05e6}
	times := func(f float64) []float64 {
		var out []float64
		for _, v := range six {
			out = append(out, v*f)
		}
		return out
	}
	at := func(concurrency string) string {
		return strings.Replace(get, "concurrency=1", "concurrency="+concurrency, 1)
	}
	failed := func(r *bench.Result) {
		if r.Sample%3 == 0 {
			r.NSPerOp, r.OpsPerSec, r.Latency, r.Errors = nil, nil, bench.Latency{}, 100
		} else {
			r.Errors = int64(r.Sample % 2)
		}
	}
	embedded := func(r *bench.Result) { r.Embedded = true }
	return map[string]*Comparison{
		"deploy": Compare(Side{"revision nsop-00006, 288 runs", probes(1, 288, 1.03e6, get, set)},
			Side{"revision nsop-00007, 288 runs", probes(2, 288, 0.72e6, get, set)}),
		"noise": Compare(Side{"revision nsop-00006, 20 runs", probes(3, 20, 1e6, get, set)}, Side{"revision nsop-00007, 20 runs", probes(4, 20, 1e6, get, set)}),
		"sweep": Compare(Side{"run 0198c0de", join(merge("1", samples("", at("1"), nil, six...), samples("", at("10"), nil, times(2)...), samples("", at("50"), nil, times(9)...)))},
			Side{"run 0198c0df", join(merge("2", samples("", at("1"), nil, six...), samples("", at("10"), nil, times(2.4)...), samples("", at("50"), nil, times(3)...), samples("", at("100"), nil, times(6)...)))}),
		"single": Compare(Side{"run 0198c0de", join(samples("1", get, nil, 1e6))}, Side{"run 0198c0df", join(samples("2", get, nil, 0.8e6))}),
		"published": Compare(Side{"published clients, ns per operation", join(merge("", samples("", "Get/client=redigo", bare("ns_per_op"), 974203, 1134000, 1242443), samples("", "Set/client=redigo", bare("ns_per_op"), 1026929, 1096002, 1101032)))},
			Side{"since 24h, 30 runs", probes(5, 30, 0.5e6, get, set)}),
		"publishedrates": Compare(Side{"published concurrency, operations a second", join(samples("", "Get/client=redis-benchmark", bare("ops_per_sec"), 4e5, 4.1e5, 4.2e5, 3.9e5))},
			Side{"run 0198c0df", join(samples("2", get, bare("ns_per_op"), times(0.3)...))}),
		"clients": Compare(Side{"client redigo, 1 run", join(samples("1", get, nil, six...))},
			Side{"target other, 1 run", join(samples("2", row("Get", "other", "go-redis", ""), nil, times(1.2)...))}),
		"failed": Compare(Side{"run 0198c0de", join(samples("1", get, nil, append(six, six...)...))}, Side{"run 0198c0df", join(samples("2", get, failed, append(six, six...)...))}),
		"embedded": Compare(Side{"label.x=<script>alert(1)</script> | `b`", join(samples("1", row("Get", "r<b>", "x|y", ""), embedded, six...))},
			Side{"label.x=\x1b[31m\u00e9", join(samples("2", row("Get", "r<b>", "x|y", ""), nil, times(1.002)...))}),
		"nothing":  Compare(Side{"run 0198c0de", join(samples("1", get, nil, six...))}, Side{"run 0198c0df", join(samples("2", set, nil, six...))}),
		"empty":    Compare(Side{"since 24h, 0 runs", nil}, Side{"run 0198c0df", join(samples("2", set, nil, six...))}),
		"nometric": Compare(Side{"run 0198c0de", join(samples("1", get, func(r *bench.Result) { *r = bench.Result{Name: r.Name} }, six...))}, Side{"run 0198c0de", join(samples("1", get, nil, six...))}),
	}
}

func TestGolden(t *testing.T) {
	for name, c := range cases() {
		for _, f := range Formats {
			var b bytes.Buffer
			if err := f.Encode(&b, c, bench.EncodeOptions{}); err != nil {
				t.Fatal(err)
			}
			golden(t, name+"."+map[string]string{"json": "json", "text": "txt", "markdown": "md", "csv": "csv"}[f.Name], b.Bytes())
			if f.Name == "json" {
				var back Comparison
				if err := json.Unmarshal(b.Bytes(), &back); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if f.Name == "text" {
				for line := range strings.Lines(b.String()) {
					if n := len(strings.TrimSuffix(line, "\n")); n > 100 {
						t.Errorf("%s: %d columns: %s", name, n, line)
					}
				}
			}
		}
	}
	var b bytes.Buffer
	if err := encodeText(&b, cases()["sweep"], bench.EncodeOptions{Terminal: true}); err != nil {
		t.Fatal(err)
	}
	golden(t, "sweep.terminal", b.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
}

func TestOutcome(t *testing.T) {
	all := cases()
	for name, want := range map[string]struct{ outcome, verdict string }{
		"deploy":         {"faster", "b is 30% faster."},
		"noise":          {"same", "no difference that is more than noise."},
		"sweep":          {"mixed", "b is faster in 1 of 3 rows and slower in 1."},
		"single":         {"unknown", "b measures 20% faster, but that may be noise: too few samples (4 of each row on each side would tell: count=4, or more runs)."},
		"published":      {"faster", "b is 55% faster."},
		"publishedrates": {"faster", "b is 24% faster."},
		"clients":        {"slower", "b is 20% slower."},
		"failed":         {"same", "no difference that is more than noise."},
		"embedded":       {"same", "no difference that is more than noise."},
		"nothing": {"nothing", "nothing to compare: a has Get/target=redis/client=redigo/concurrency=1/pipeline=1/size=100/keyspace=1, " +
			"b has Set/target=redis/client=redigo/concurrency=1/pipeline=1/size=100/keyspace=1."},
		"empty":    {"nothing", "nothing to compare: a has no runs, b has Set/target=redis/client=redigo/concurrency=1/pipeline=1/size=100/keyspace=1."},
		"nometric": {"nothing", "nothing to compare: the rows that match have no metric that both sides have."},
	} {
		if c := all[name]; c.Outcome != want.outcome || c.Verdict != want.verdict {
			t.Errorf("%s: %s, %q\nwant %s, %q", name, c.Outcome, c.Verdict, want.outcome, want.verdict)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		name          string
		a, b          []string
		pairs         string
		left, without string
	}{
		{"full", []string{"Get/target=a/client=x", "Set/target=a/client=x"}, []string{"Get/target=a/client=x", "Get/target=b/client=x"}, "Get/target=a/client=x|Get/target=a/client=x", "Set/target=a/client=x Get/target=b/client=x", ""},
		{"defaults", []string{"Get/target=a/client=x/concurrency=1/pipeline=1/size=100/keyspace=1"}, []string{"Get/client=x/target=a"}, "Get/target=a/client=x/concurrency=1/pipeline=1/size=100/keyspace=1|Get/client=x/target=a", "", ""},
		{"target", []string{"Get/target=a/client=x", "Get/target=a/client=y"}, []string{"Get/target=b/client=x"}, "Get/target=a/client=x|Get/target=b/client=x", "Get/target=a/client=y", "target"},
		{"client", []string{"Get/target=a/client=x"}, []string{"Get/target=b/client=y", "Get/target=b/client=z"}, "Get/target=a/client=x|Get/target=b/client=y Get/target=a/client=x|Get/target=b/client=z", "", "target and client"},
		{"none", []string{"Get/size=5"}, []string{"Get/size=6"}, "", "Get/size=5 Get/size=6", ""},
		{"nothing", nil, nil, "", "", ""},
	} {
		rows := func(names []string) (rs []*sideRow) {
			for _, n := range names {
				rs = append(rs, &sideRow{name: n})
			}
			return rs
		}
		pairs, left, without := match(rows(c.a), rows(c.b))
		var got, gotLeft []string
		for _, p := range pairs {
			got = append(got, p.a.name+"|"+p.b.name)
		}
		for _, r := range left {
			gotLeft = append(gotLeft, r.name)
		}
		if strings.Join(got, " ") != c.pairs || strings.Join(gotLeft, " ") != c.left || without != c.without {
			t.Errorf("%s: pairs %v, left %v, without %q", c.name, got, gotLeft, without)
		}
	}
}

// The critical values of U are those of the published tables (two-sided, 5%): U at or below them is significant.
func TestBelow(t *testing.T) {
	for _, c := range []struct{ n, m, critical int }{{3, 3, -1}, {4, 4, 0}, {5, 5, 2}, {8, 12, 22}, {10, 10, 23}, {20, 20, 127}} {
		if got := below(c.n, c.m) - 1; got != c.critical {
			t.Errorf("%d and %d: %d, want %d", c.n, c.m, got, c.critical)
		}
	}
	// Where the exact distribution ends, the normal one goes on.
	if exact, normal := below(20, 20), below(21, 20); normal < exact || normal > exact+8 {
		t.Errorf("20 and 20: %d, 21 and 20: %d", exact, normal)
	}
}

func TestKth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		a, b := make([]float64, 1+r.IntN(12)), make([]float64, 1+r.IntN(12))
		for _, vs := range [][]float64{a, b} {
			for i := range vs {
				vs[i] = math.Round(10*r.NormFloat64()) / 10 // with ties
			}
			slices.Sort(vs)
		}
		var all []float64
		for _, x := range a {
			for _, y := range b {
				all = append(all, y-x)
			}
		}
		slices.Sort(all)
		for k := 1; k <= len(all); k++ {
			if got := kth(a, b, k); math.Abs(got-all[k-1]) > 1e-12 {
				t.Fatalf("%d of %v: %v, want %v", k, all, got, all[k-1])
			}
		}
	}
}

// The interval holds the true ratio in 95% of cases, and agrees with the p-value.
func TestInterval(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{4, 6, 12, 40} {
		const trials, ratio = 500, 0.9
		covered := 0
		for range trials {
			a, b := make([]float64, n), make([]float64, n)
			for i := range a {
				a[i], b[i] = 1e6*math.Exp(0.1*r.NormFloat64()), ratio*1e6*math.Exp(0.1*r.NormFloat64())
			}
			e := effect("p50", a, b)
			if e.Low == nil || *e.Low > *e.Ratio || *e.High < *e.Ratio {
				t.Fatalf("%d samples: %+v", n, e)
			}
			if *e.Low <= ratio && ratio <= *e.High {
				covered++
			}
			if out := *e.Low > 1 || *e.High < 1; out != (*e.P < Alpha) && math.Abs(*e.P-Alpha) > 0.01 {
				t.Fatalf("%d samples: the interval %v .. %v and p = %v disagree", n, *e.Low, *e.High, *e.P)
			}
		}
		if share := float64(covered) / trials; share < 0.935 {
			t.Errorf("%d samples: the interval holds the ratio in %.3f of cases", n, share)
		}
	}
}

// Of comparisons of a thing with itself, with six rows each, at most about 5% say that there is a difference.
func TestVerdictOfNothing(t *testing.T) {
	wrong := 0
	const trials = 150
	names := []string{row("Get", "a", "x", ""), row("Set", "a", "x", ""), row("Get", "a", "y", ""), row("Set", "a", "y", ""), row("Incr", "a", "x", ""), row("Incr", "a", "y", "")}
	for i := range uint64(trials) {
		if c := Compare(Side{"a", probes(1000+i, 10, 1e6, names...)}, Side{"b", probes(9000+i, 10, 1e6, names...)}); c.Outcome != "same" {
			wrong++
		}
	}
	if wrong > trials*9/100 {
		t.Errorf("%d of %d comparisons with itself tell a difference", wrong, trials)
	}
}

func TestBars(t *testing.T) {
	p := cases()["sweep"].Page()
	if len(p.Rows) != 9 {
		t.Fatalf("%d rows", len(p.Rows))
	}
	for _, r := range p.Rows {
		if len(r.Labels) != len(p.Columns) || r.Bar == nil || r.Bar.From > r.Bar.At || r.Bar.At > r.Bar.To || r.Bar.From < 0 || r.Bar.To > 100 {
			t.Errorf("%+v", r)
		}
	}
	if same := p.Rows[0].Bar; same.At != 50 {
		t.Errorf("a ratio of 1 is at %v", same.At)
	}
	if p.Columns[2] != "concurrency" {
		t.Errorf("columns %q", p.Columns)
	}
}

func BenchmarkCompare(b *testing.B) {
	get, set := row("Get", "redis", "redigo", ""), row("Set", "redis", "redigo", "")
	for _, n := range []int{288, 2016} {
		x, y := Side{"a", probes(1, n, 1e6, get, set)}, Side{"b", probes(2, n, 1e6, get, set)}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Compare(x, y)
			}
		})
	}
}
