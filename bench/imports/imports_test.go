package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"nsop/bench"
	"nsop/bench/storetest"
)

var update = flag.Bool("update", false, "write the golden files")

func mustRead(t *testing.T, text string, o Options) []*bench.Report {
	t.Helper()
	reports, err := Read(strings.NewReader(text), o)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return reports
}

func encode(t testing.TB, format string, r *bench.Report) string {
	t.Helper()
	f, ok := bench.FormatByName(format)
	if !ok {
		t.Fatalf("no format %s", format)
	}
	var b bytes.Buffer
	err := f.Encode(&b, r, bench.EncodeOptions{})
	if unsupported := (*bench.UnsupportedError)(nil); format == "svg" && errors.As(err, &unsupported) {
		return "" // most tools print too little of the latencies
	}
	if err != nil {
		t.Fatalf("%s: %v", format, err)
	}
	return b.String()
}

func show(f *bench.Figure) string {
	if f == nil {
		return "-"
	}
	return f.String()
}

func showInt(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

// rows are the results in short: name, sample, iterations, ops/s, mean, p50, p99, max, errors, misses.
func rows(r *bench.Report) (all []string) {
	for _, res := range r.Results {
		l := res.Latency
		all = append(all, fmt.Sprintf("%s %d: %d ops %s mean %s p50 %s p99 %s max %s errors %d misses %d", res.Name, res.Sample, res.Iterations,
			show(res.OpsPerSec), showInt(l.Mean), showInt(l.P50), showInt(l.P99), showInt(l.Max), res.Errors, res.Misses))
	}
	return all
}

// Each file is what a version of a tool prints; a golden file beside it holds the whole report.
func TestFiles(t *testing.T) {
	const (
		rb = "/target=redis-benchmark/client=redis-benchmark"
		mt = "/target=memtier/client=memtier"
		pg = "/target=pgbench/client=pgbench"
		gb = "/target=go-benchmark/client=go-benchmark"
	)
	for file, want := range map[string][]string{
		"redis-old.csv": {
			"PingInline" + rb + " 1: 0 ops 71530.76 mean - p50 - p99 - max - errors 0 misses 0",
			"PingMbulk" + rb + " 1: 0 ops 71942.45 mean - p50 - p99 - max - errors 0 misses 0",
			"Set" + rb + " 1: 0 ops 70972.32 mean - p50 - p99 - max - errors 0 misses 0",
			"LrangeLpush" + rb + " 1: 0 ops 72254.34 mean - p50 - p99 - max - errors 0 misses 0",
			"Lrange100" + rb + " 1: 0 ops 39463.3 mean - p50 - p99 - max - errors 0 misses 0",
			"Lrange500" + rb + " 1: 0 ops 13004.29 mean - p50 - p99 - max - errors 0 misses 0",
			"Mset" + rb + " 1: 0 ops 63291.14 mean - p50 - p99 - max - errors 0 misses 0",
		},
		"redis-cluster.csv": {
			"Set" + rb + " 1: 0 ops 27397.26 mean 225000 p50 199000 p99 527000 max 1759000 errors 0 misses 0",
			"Get" + rb + " 1: 0 ops - mean 165000 p50 151000 p99 367000 max 583000 errors 0 misses 0",
			"Incr" + rb + " 1: 0 ops - mean - p50 - p99 - max - errors 0 misses 0",
			"EvalReturnAB0" + rb + " 1: 0 ops 20000 mean 100000 p50 100000 p99 300000 max 400000 errors 0 misses 0",
			"Set" + rb + " 2: 0 ops 28000 mean 220000 p50 199000 p99 527000 max 1759000 errors 0 misses 0",
		},
		"redis-old.txt": {
			"PingInline" + rb + "/concurrency=10/size=3 1: 500 ops 10869.57 mean - p50 - p99 - max - errors 0 misses 0",
			"Lrange500" + rb + "/concurrency=10/size=3 1: 500 ops 3787.88 mean - p50 - p99 - max - errors 0 misses 0",
		},
		"redis-6.0.txt": {
			"Get" + rb + "/concurrency=50/size=1000 1: 100000 ops 71326.68 mean - p50 - p99 - max - errors 0 misses 0",
		},
		"redis-old-quiet.txt": {
			"PingInline" + rb + " 1: 0 ops 71530.76 mean - p50 - p99 - max - errors 0 misses 0",
			"Set" + rb + " 1: 0 ops 70972.32 mean - p50 - p99 - max - errors 0 misses 0",
			"LrangeLpush" + rb + " 1: 0 ops 72254.34 mean - p50 - p99 - max - errors 0 misses 0",
		},
		"redis-quiet.txt": {
			"Set" + rb + " 1: 0 ops 34482.76 mean - p50 159000 p99 - max - errors 0 misses 0",
			"Get" + rb + " 1: 0 ops 33333.33 mean - p50 151000 p99 - max - errors 0 misses 0",
			"Incr" + rb + " 1: 0 ops - mean - p50 39000 p99 - max - errors 0 misses 0",
		},
		"valkey-rps.txt": {
			"Set" + rb + "/concurrency=10/size=100 1: 2000 ops 999.5 mean 173000 p50 159000 p99 407000 max 1343000 errors 0 misses 0",
			"MYCOMMAND{a}1" + rb + "/concurrency=10 1: 50 ops 5000 mean 173000 p50 159000 p99 - max 1343000 errors 0 misses 0",
		},
		"memtier.json": {
			"Set" + mt + "/concurrency=2/pipeline=1/size=32/keyspace=10000001 1: 1134 ops 1134.09 mean 298000 p50 63000 p99 3967000 max 4319000 errors 3 misses 0",
			"Get" + mt + "/concurrency=2/pipeline=1/size=32/keyspace=10000001 1: 11193 ops 11193.02 mean 148000 p50 63000 p99 2991000 max 6751000 errors 0 misses 11193",
			"Totals" + mt + "/concurrency=2/pipeline=1/size=32/keyspace=10000001 1: 12327 ops 12327.11 mean 161000 p50 63000 p99 3247000 max 6751000 errors 3 misses 11193",
		},
		"memtier-runs.json": {
			"Get" + mt + "/concurrency=200/pipeline=4 1: 0 ops 1000.5 mean 500000 p50 - p99 - max - errors 0 misses 0",
			"Get" + mt + "/concurrency=200/pipeline=4 2: 0 ops 1100.5 mean 400000 p50 - p99 - max - errors 0 misses 0",
			"Totals" + mt + "/concurrency=200/pipeline=4 1: 0 ops - mean - p50 - p99 - max - errors 7 misses 0",
		},
		"memtier-average.json": {
			"Hset" + mt + " 1: 50 ops 10 mean 1000000 p50 1000000 p99 - max - errors 0 misses 0",
		},
		"pgbench-9.5.txt": {
			"Tpcb" + pg + "/concurrency=100/scale=1/protocol=simple 1: 10000 ops 81.112233 mean - p50 - p99 - max - errors 0 misses 0",
			"Select" + pg + "/concurrency=8/scale=10/protocol=prepared 1: 39212 ops 3930.5 mean 2040000 p50 - p99 - max - errors 0 misses 0",
		},
		"pgbench-13.txt": {
			"Tpcb" + pg + "/concurrency=10/scale=1/protocol=simple 1: 10000 ops 897.037612 mean 11013000 p50 - p99 - max - errors 0 misses 0",
		},
		"pgbench-14.txt": {
			"Simple-update" + pg + "/concurrency=10/scale=1/protocol=extended 1: 10000 ops 896.967014 mean 11149000 p50 - p99 - max - errors 0 misses 0",
		},
		"pgbench-15.txt": {
			"Tpcb" + pg + "/concurrency=2/scale=1/protocol=simple 1: 390 ops 839.99202 mean 2381000 p50 - p99 - max - errors 10 misses 0",
			"Select" + pg + "/concurrency=1/scale=1/protocol=simple 1: 10 ops 26.192787 mean 38181000 p50 - p99 - max - errors 0 misses 0",
			"MultipleScripts" + pg + "/concurrency=1/scale=1/protocol=simple 1: 100 ops 1510.34587 mean 662000 p50 - p99 - max - errors 0 misses 0",
			"Tpcb" + pg + "/concurrency=1/scale=1/protocol=simple 1: 23 ops 347.37955 mean 3018000 p50 - p99 - max - errors 0 misses 0",
			"MyScript.sql" + pg + "/concurrency=1/scale=1/protocol=simple 1: 77 ops 1162.96632 mean 100000 p50 - p99 - max - errors 0 misses 0",
			"Select" + pg + "/concurrency=1/scale=1/protocol=simple 2: 0 ops - mean - p50 - p99 - max - errors 0 misses 0",
		},
		"go.txt": {
			"Set" + gb + " 1: 51 ops 877.5 mean - p50 - p99 - max - errors 0 misses 0",
			"Set" + gb + " 2: 52 ops 878 mean - p50 - p99 - max - errors 0 misses 0",
			"Sub/target=go-benchmark/client=redigo/op=get 1: 191007469 ops 3258390355.2 mean - p50 - p99 - max - errors 0 misses 0",
			"Sub/target=go-benchmark/client=redigo/size=1KB 1: 1000 ops 3258390.4 mean - p50 - p99 - max - errors 0 misses 0",
		},
		"go.json": {
			"Set" + gb + " 1: 51 ops 877.5 mean - p50 - p99 - max - errors 0 misses 0",
		},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			reports := mustRead(t, string(text), Options{})
			if len(reports) != 1 {
				t.Fatalf("%d reports", len(reports))
			}
			r := reports[0]
			if got := rows(r); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			got := encode(t, "json", r)
			if strings.Contains(got, "hunter2") || strings.Contains(got, "somebody") {
				t.Errorf("a secret or a folder is in the report:\n%s", got)
			}
			golden := filepath.Join("testdata", file+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || got != string(want) {
				t.Errorf("%s differs (%v); go test -update writes it anew. Got:\n%s", golden, err, got)
			}
			// With the ends of lines of another system, and a byte order mark.
			other := "\ufeff" + strings.ReplaceAll(string(text), "\n", "\r\n")
			if again := encode(t, "json", mustRead(t, other, Options{})[0]); again != got {
				t.Errorf("with other line ends it reads as\n%s", again)
			}
			everyFormat(t, r)
			for _, f := range bench.Formats {
				for _, word := range strings.FieldsFunc(encode(t, f.Name, r), func(c rune) bool { return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '+' || c == '-') }) {
					if word == "NaN" || word == "Inf" || word == "+Inf" {
						t.Errorf("%s has %s", f.Name, word)
					}
				}
			}
		})
	}
}

// everyFormat writes an imported report in every format, and reads its JSON again.
func everyFormat(t testing.TB, r *bench.Report) {
	t.Helper()
	for _, f := range bench.Formats {
		encode(t, f.Name, r)
	}
	text := encode(t, "json", r)
	again, err := Read(strings.NewReader(text), Options{})
	if err != nil || len(again) != 1 || encode(t, "json", again[0]) != text {
		t.Fatalf("the report does not read back: %v\n%s", err, text)
	}
}

// A broken file is an error that says where, and nothing of it is returned.
func TestBroken(t *testing.T) {
	const header = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n"
	set := `"SET","27397.26","0.225","0.032","0.199","0.431","0.527","1.759"` + "\n"
	file := func(name string) string {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	own := `{"run":"r","results":[` + "\n" + `{"name":"A","workload":"a"}` + "\n"
	for name, c := range map[string]struct {
		text string
		line int
		want string
	}{
		"empty":                  {"", 1, "no known format"},
		"prose":                  {"hello\nworld\n", 1, "no known format"},
		"header only":            {header, 1, "no results"},
		"cut CSV":                {header + set + set[:20], 3, "cut off"},
		"CSV with few columns":   {header + set + `"GET","1.0"` + "\n", 3, "columns"},
		"old CSV, then prose":    {`"SET","1.0"` + "\nhello\n", 2, "columns"},
		"CSV without a number":   {header + strings.Replace(set, "0.225", "x", 1), 2, `avg_latency_ms: "x"`},
		"CSV with a negative":    {header + set + strings.Replace(set, "27397.26", "-1.00", 1), 3, "rps"},
		"CSV without a title":    {header + strings.Replace(set, "SET", "", 1), 2, "title"},
		"cut text":               {file("valkey-rps.txt")[:300], 1, "test SET has no result"},
		"text without latency":   {file("valkey-rps.txt")[:strings.Index(file("valkey-rps.txt"), "        0.173")], 1, "no latency summary"},
		"text, second test cut":  {file("redis-old.txt")[:280], 12, "LRANGE_500"},
		"text, bad number":       {strings.Replace(file("redis-old.txt"), "10869.57", "many", 1), 10, "many"},
		"cut quiet text":         {file("redis-old-quiet.txt")[:80], 3, "cut off"},
		"cut memtier":            {file("memtier.json")[:900], 38, "unexpected EOF"},
		"memtier with a word":    {strings.Replace(file("memtier.json"), "1134.09", "many", 1), 45, "invalid character"},
		"memtier, negative":      {strings.Replace(file("memtier.json"), "1134.09", "-1", 1), 43, "Sets"},
		"memtier, bad histogram": {strings.Replace(file("memtier.json"), `Histogram": ""`, `Histogram": "HISTFAAAA"`, 1), 43, "histogram"},
		"memtier, something on":  {file("memtier-runs.json") + `{"a":1}`, 8, "follows"},
		"memtier without runs":   {`{"configuration":{},"ALL STATS":{}}`, 1, "no results"},
		"cut pgbench":            {file("pgbench-13.txt")[:300], 3, "no tps"},
		"pgbench, cut tps":       {strings.Replace(file("pgbench-14.txt"), " (without initial connection time)", "", 1), 11, "cut off"},
		"pgbench without head":   {"starting vacuum...end.\ntps = 1 (including connections establishing)\n", 2, "beginning"},
		"pgbench, bad number":    {strings.Replace(file("pgbench-14.txt"), "11.149", "x", 1), 9, "latency average"},
		"pgbench, bad protocol":  {strings.Replace(file("pgbench-14.txt"), "extended", "quick", 1), 4, "query mode"},
		"go, bad number":         {"pkg: x\nBenchmarkA 1 2 ns/op\nBenchmarkB x 2 ns/op\n", 3, "iteration"},
		"go, cut":                {"pkg: x\nBenchmarkA 1 2 ns/op\nBenchmarkB 1 2\n", 3, "missing units"},
		"go, negative":           {"pkg: x\nBenchmarkA 1 -2 ns/op\n", 2, "-2"},
		"go, nothing":            {"goos: linux\npkg: x\nPASS\n", 3, "no results"},
		"go JSON, bad line":      {file("go.json") + "x\n", 9, "invalid character"},
		"go JSON, bad result":    {strings.Replace(file("go.json"), "1139628 ns/op", "x ns/op", 1), 6, "measurement"},
		"JSON of nobody":         {`{"a":` + "\n" + `1}`, 1, "neither"},
		"cut own":                {own, 2, "unexpected EOF"},
		"own, null result":       {own + `,null]}`, 1, "null"},
		"own, wrong type":        {own + `,{"name":` + "\n" + `5}]}`, 4, "number"},
		"own, negative":          {own + `,{"name":"A","workload":"a","iterations":-1}]}`, 1, "results[1]"},
		"own, zero":              {own + `,{"name":"A","workload":"a","ns_per_op":0}]}`, 1, "null"},
		"own, label":             {own + `,{"name":"A","workload":"a","labels":{"a b":"c"}}]}`, 1, "label"},
		"own, histogram":         {own + `,{"name":"A","workload":"a","histogram":"x"}]}`, 1, "histogram"},
		"own, run":               {strings.Replace(own, `"r"`, `"../x"`, 1) + "]}", 1, "run id"},
		"own, one of two broken": {own + "]}\n" + own + `,null]}`, 4, "null"},
		"list, second broken":    {`{"runs":[` + own + "]},\n" + own + `,null]}]}`, 4, "null"},
		"runs is no list":        {`{"runs":5}`, 1, "list"},
		"a number":               {own + "]}\n5", 4, "object"},
		"too many rows":          {strings.Repeat(`"SET","1.00"`+"\n", maxRows+1), maxRows + 1, "more than"},
		"too many own rows":      {`{"results":[` + strings.Repeat("{},", 10*maxRows) + "{}]}", 1, "more than"},
	} {
		reports, err := Read(strings.NewReader(c.text), Options{})
		var where *Error
		if !errors.As(err, &where) || where.Line != c.line || !strings.Contains(err.Error(), c.want) || reports != nil {
			t.Errorf("%s: %d reports, %v; want line %d, %s", name, len(reports), err, c.line, c.want)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "line ") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type failing struct{ io error }

func (f failing) Read([]byte) (int, error) { return 0, f.io }

func TestReadFails(t *testing.T) {
	want := errors.New("body too large")
	if _, err := Read(failing{want}, Options{}); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

// What the caller tells fills what the file leaves open, and no more.
func TestOptions(t *testing.T) {
	o := Options{Target: "cache one", Concurrency: 50, Pipeline: 16, Size: 3, Keyspace: 7, Labels: map[string]string{"egress": "direct"}}
	for text, want := range map[string]string{
		`"SET","1.00"`: "Set/target=cache-one/client=redis-benchmark/concurrency=50/pipeline=16/size=3/keyspace=7",
		"====== GET ======\n  10 parallel clients\n1.00 requests per second\n":                                                                                                 "Get/target=cache-one/client=redis-benchmark/concurrency=10/pipeline=16/size=3/keyspace=7",
		"pkg: nsop\nBenchmarkGet/target=redis/client=redigo/concurrency=1-8 1 2 ns/op":                                                                                         "Get/target=redis/client=redigo/concurrency=1/pipeline=16/size=3/keyspace=7",
		"transaction type: SELECT only\nscaling factor: 1\nquery mode: simple\nnumber of transactions actually processed: 1\ntps = 1.0 (excluding connections establishing)\n": "Select/target=cache-one/client=pgbench/concurrency=50/scale=1/protocol=simple",
	} {
		r := mustRead(t, text, o)[0]
		if got := r.Results[0]; got.Name != want || got.Labels["egress"] != "direct" {
			t.Errorf("%s: %s, labels %v, want %s", text, got.Name, got.Labels, want)
		}
		if r.Run != "" || !r.StartedAt.IsZero() || r.Imported == "" {
			t.Errorf("%s: run %q, start %v, imported %q", text, r.Run, r.StartedAt, r.Imported)
		}
	}
}

// A row of an imported file has the name that the same row of a plan has.
func TestNames(t *testing.T) {
	for i := range bench.Workloads {
		w := &bench.Workloads[i]
		row := bench.Row{Workload: w, Target: &bench.Target{Name: "redis"}, Client: bench.Client{Name: "go-redis"}, Concurrency: 50, Pipeline: 2, Size: 100,
			Keyspace: 7, Flavor: "compatible", Sync: "full"}
		r := &bench.Result{Target: "redis", Workload: w.Name, Client: "go-redis", Concurrency: 50, Pipeline: 2, Size: 100, Keyspace: 7, Flavor: "compatible", Sync: "full"}
		if slices.Contains(w.Kinds, "postgres") {
			row.Scale, row.Protocol = 3, "prepared"
			r.Scale, r.Protocol, r.Pipeline, r.Size, r.Keyspace = 3, "prepared", 0, 0, 0
		}
		if got, want := Name(r), row.Name(); got != want {
			t.Errorf("%s: %s, want %s", w.Name, got, want)
		}
	}
	for _, odd := range []string{"", "_", "a__b", "é", "\xff", "/", "eval x=1/2", "x_"} {
		if name := Name(&bench.Result{Workload: odd, Target: odd, Client: odd}); strings.Count(name, "/") != 2 || strings.Contains(name, " ") || !utf8.ValidString(name) {
			t.Errorf("%q: %q", odd, name)
		}
	}
}

// What nsop writes in the Go benchmark format is read with the same names.
func TestOwnBenchfmt(t *testing.T) {
	figure := func(v float64) *bench.Figure { f := bench.Figure(v); return &f }
	integer := func(n int64) *int64 { return &n }
	var r bench.Report
	r.Target = &bench.TargetInfo{Name: "redis", Server: "redis 7.0.15"}
	for _, name := range []string{"Get/target=redis/client=go-redis/concurrency=1/pipeline=1/size=100/keyspace=1",
		"LrangeLpush/target=redis/client=redigo/concurrency=50/pipeline=16/size=1000/keyspace=7/flavor=compatible/rate=1000/shape=ramp:10-20",
		"Tpcb/target=pg/client=pgx/concurrency=1/scale=10/protocol=prepared"} {
		for sample := range 2 {
			r.Results = append(r.Results, &bench.Result{Name: name, Sample: sample + 1, Iterations: 1234, NSPerOp: figure(1082788), OpsPerSec: figure(923.5),
				Latency: bench.Latency{P50: integer(1060000), P90: integer(1190000), P95: integer(1200000), P99: integer(1410000), P999: integer(1510000), Max: integer(2210000)},
				Errors:  3, Misses: 4, Mismatches: 5, BytesPerOp: figure(312), AllocsPerOp: figure(6), Server: &bench.ServerCost{NSPerCall: figure(1900)}})
		}
	}
	r.Results = append(r.Results, &bench.Result{Name: "Set/target=redis", Errors: 1})
	got := mustRead(t, encode(t, "benchfmt", &r), Options{})[0]
	if len(got.Results) != 6 || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "Set/target=redis") {
		t.Fatalf("%d results, warnings %q", len(got.Results), got.Warnings)
	}
	for i, g := range got.Results {
		w := r.Results[i]
		if g.Name != w.Name || g.Sample != w.Sample || g.Iterations != w.Iterations || show(g.NSPerOp) != show(w.NSPerOp) || show(g.OpsPerSec) != show(w.OpsPerSec) ||
			g.Errors != 3 || g.Misses != 4 || g.Mismatches != 5 || show(g.BytesPerOp) != "312" || show(g.AllocsPerOp) != "6" || show(g.Server.NSPerCall) != "1900" || len(g.Warnings) > 0 {
			t.Errorf("%+v, want %+v", g, w)
		}
		a, _ := json.Marshal(g.Latency)
		b, _ := json.Marshal(w.Latency)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: %s, want %s", g.Name, a, b)
		}
	}
	if g := got.Results[2]; g.Workload != "lrange_lpush" || g.Client != "redigo" || g.Pipeline != 16 || g.Flavor != "compatible" {
		t.Errorf("%+v", g)
	}
	if g := got.Results[4]; g.Workload != "tpcb" || g.Scale != 10 || g.Protocol != "prepared" {
		t.Errorf("%+v", g)
	}
	if len(got.Targets) != 2 || got.Target != nil {
		t.Errorf("targets %v", got.Targets)
	}
}

// Our own JSON, in each form in which it comes, reads as it was and is written as it was.
func TestOwnJSON(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.json")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %d files", err, len(files))
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(`"results"`)) {
			continue // another format's
		}
		all = append(all, string(text))
	}
	histogram := "" // of 3 values
	{
		r := mustRead(t, all[0], Options{})[0]
		h := newHistogram(3)
		if histogram, err = bench.EncodeHistogram(h); err != nil {
			t.Fatal(err)
		}
		r.Results[0].Histogram = histogram
		r.Imported, r.Results[0].Settings = "memtier", map[string]any{"n": json.Number("12345678901234567890"), "z": nil, "a": true}
		all = append(all, encode(t, "json", r))
	}
	for _, text := range all {
		got := mustRead(t, text, Options{Target: "other", Concurrency: 9, Labels: map[string]string{"x": "y"}})
		if len(got) != 1 || encode(t, "json", got[0]) != text {
			t.Errorf("read and written again:\n%s\nwant\n%s", encode(t, "json", got[0]), text)
		}
	}
	nd := ""
	for _, text := range all {
		var b bytes.Buffer
		if err := json.Compact(&b, []byte(text)); err != nil {
			t.Fatal(err)
		}
		nd += b.String() + "\n"
	}
	for form, text := range map[string]string{
		"NDJSON": nd, "concatenated": strings.Join(all, ""), "runs": `{"next": null, "runs": [` + strings.Join(all, ",") + `]}`, "a list": "[" + strings.Join(all, ",") + "]",
	} {
		got := mustRead(t, text, Options{})
		if len(got) != len(all) {
			t.Errorf("%s: %d reports of %d", form, len(got), len(all))
			continue
		}
		for i, r := range got {
			if encode(t, "json", r) != all[i] {
				t.Errorf("%s: report %d differs:\n%s", form, i, encode(t, "json", r))
			}
		}
	}
}

// memtier's own histogram tells the percentiles that it was not asked to print.
func TestMemtierHistogram(t *testing.T) {
	histogram, err := bench.EncodeHistogram(newHistogram(1000)) // microseconds
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"ALL STATS":{"Gets":{"Count":1000,"Ops/sec":1.0,"Percentile Latencies":{"p50.00":0.4,"Histogram log format":{"Compressed Histogram":%q}}}}}`, histogram)
	l := mustRead(t, text, Options{})[0].Results[0].Latency
	for name, c := range map[string]struct {
		got  *int64
		want float64
	}{"p50": {l.P50, 400_000}, "p90": {l.P90, 900_000}, "p99": {l.P99, 990_000}, "p99.9": {l.P999, 999_000}} {
		if c.got == nil || math.Abs(float64(*c.got)/c.want-1) > 0.01 {
			t.Errorf("%s is %s, want %v", name, showInt(c.got), c.want)
		}
	}
	if l.P50 == nil || *l.P50 != 400_000 {
		t.Error("what is printed must win")
	}
}

// The installed redis-benchmark: every output is read, the CSV is written again as it was.
func TestRedisBenchmark(t *testing.T) {
	server := storetest.Redis(t)
	host, port, _ := strings.Cut(server.Addr, ":")
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("redis-benchmark", append([]string{"-h", host, "-p", port, "-n", "2000", "-c", "10"}, args...)...).Output()
		if err != nil {
			t.Fatalf("redis-benchmark %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const tests = "ping,set,get,lrange,mset"
	titled := []string{"ping_inline", "ping_mbulk", "set", "get", "lrange_lpush", "lrange_100", "lrange_300", "lrange_500", "lrange_600", "mset"}
	workloads := func(r *bench.Report) (names []string) {
		for _, res := range r.Results {
			if res.OpsPerSec == nil || res.NSPerOp == nil || res.Client != "redis-benchmark" || res.Target != "cache" {
				t.Errorf("%+v", res)
			}
			names = append(names, res.Workload)
		}
		if r.Imported != "redis-benchmark" || r.Target.Kind != "redis" {
			t.Errorf("imported %s, target %+v", r.Imported, r.Target)
		}
		return names
	}
	o := Options{Target: "cache"}
	csv := run("-t", tests, "--csv") + run("--csv", "eval", `return "a,b"`, "0")
	first, second, _ := strings.Cut(csv, "\n\"eval")
	r := mustRead(t, csv, o)[0]
	if got := workloads(r); !slices.Equal(got, append(slices.Clone(titled), `eval return "a,b" 0`)) {
		t.Errorf("CSV: %q", got)
	}
	header, _, _ := strings.Cut(csv, "\n")
	if got, want := encode(t, "redis-benchmark", r), strings.Replace(first, "\n"+header, "", 1)+"\n\"eval"+second; got != want {
		t.Errorf("written again:\n%s\nwant\n%s", got, want)
	}
	for _, res := range r.Results {
		if l := res.Latency; l.Min == nil || l.Mean == nil || l.P50 == nil || l.P95 == nil || l.P99 == nil || l.Max == nil || *l.P50 > *l.Max {
			t.Errorf("%s: %+v", res.Name, l)
		}
	}
	r = mustRead(t, run("-t", tests, "-q"), o)[0]
	if got := workloads(r); !slices.Equal(got, titled) {
		t.Errorf("-q: %q", got)
	}
	for _, res := range r.Results {
		if res.Latency.P50 == nil || res.Latency.Max != nil {
			t.Errorf("-q %s: %+v", res.Name, res.Latency)
		}
	}
	r = mustRead(t, run("-t", tests, "-d", "100"), o)[0]
	if got := workloads(r); !slices.Equal(got, titled) {
		t.Errorf("text: %q", got)
	}
	for _, res := range r.Results {
		l := res.Latency
		if res.Iterations != 2000 || res.Concurrency != 10 || res.Size != 100 || res.ElapsedNS <= 0 || l.Min == nil || l.Mean == nil || l.P50 == nil ||
			l.P95 == nil || l.P99 == nil || l.Max == nil || *l.P50 > *l.Max {
			t.Errorf("text %s: %+v", res.Name, res)
		}
	}
}

// The installed pgbench: each script and protocol.
func TestPgbench(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	run := func(args ...string) string {
		t.Helper()
		args = append([]string{"-h", "127.0.0.1", "-p", strconv.Itoa(server.Port), "-U", "postgres"}, append(args, "postgres")...)
		out, err := exec.Command(storetest.PostgresProgram(t, "pgbench"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("pgbench %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("-i", "-q", "-s", "1")
	text := run("-t", "20", "-c", "2") + run("-S", "-M", "prepared", "-T", "1", "-P", "1") + run("-N", "-M", "extended", "-t", "150", "-r", "--failures-detailed") +
		run("-S", "-C", "-t", "5") + run("-S", "-t", "20", "-R", "1000", "-L", "100", "--max-tries", "2") + run("-b", "tpcb@1", "-b", "select@3", "-t", "50")
	r := mustRead(t, text, Options{Target: "pg"})[0]
	want := []struct {
		workload, protocol string
		clients            int
		iterations         int64
	}{{"tpcb", "simple", 2, 40}, {"select", "prepared", 1, 0}, {"simple-update", "extended", 1, 150}, {"select", "simple", 1, 5}, {"select", "simple", 1, 20},
		{"multiple scripts", "simple", 1, 50}, {"tpcb", "simple", 1, 0}, {"select", "simple", 1, 0}}
	if len(r.Results) != len(want) {
		t.Fatalf("%d rows of %d:\n%s\n%s", len(r.Results), len(want), strings.Join(rows(r), "\n"), text)
	}
	for i, w := range want {
		g := r.Results[i]
		if g.Workload != w.workload || g.Protocol != w.protocol || g.Concurrency != w.clients || w.iterations > 0 && g.Iterations != w.iterations || g.Iterations == 0 ||
			g.Scale != 1 || g.OpsPerSec == nil || g.NSPerOp == nil || g.Latency.Mean == nil || g.ElapsedNS <= 0 || g.ClientVersion == "" {
			t.Errorf("row %d: %+v", i, g)
		}
	}
	if g := r.Results[0]; g.ConnectNS == nil || g.OpsWithDial == nil || *g.OpsWithDial >= *g.OpsPerSec {
		t.Errorf("%+v", g)
	}
	if r.Results[1].Latency.Stddev == nil || r.Results[3].ConnectNS != nil || r.Results[3].Settings["reconnect"] != true {
		t.Errorf("%+v\n%+v", r.Results[1], r.Results[3])
	}
	if !strings.HasPrefix(r.Target.Server, "PostgreSQL ") {
		t.Errorf("%+v", r.Target)
	}
	everyFormat(t, r)
}
