package history

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/storetest"
	"nsop/bench/vantage"
)

const (
	patience = 30 * time.Second
	day      = 24 * time.Hour
)

// noon is when the clock of these tests stands.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)

func atNoon() time.Time { return noon }

// TestDatabases: both do all of it. fresh returns the URL of a new, empty one.
func TestDatabases(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, fresh func(t testing.TB) string)
	}{
		{"round trip", testRoundTrip},
		{"filters", testFilters},
		{"sample", testSample},
		{"hostile", testHostile},
		{"retention", testRetention},
		{"keys", testKeys},
		{"jobs", testJobs},
		{"two instances", testTwoInstances},
		{"upgrade", testUpgrade},
		{"killed", testKilled},
		{"scale", testScale},
	}
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	made := 0
	for _, database := range []struct {
		name  string
		fresh func(t testing.TB) string
	}{
		{"sqlite", func(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "a b?%#.db") }},
		{"postgres", func(t testing.TB) string {
			made++
			name := fmt.Sprintf("h%d", made)
			server.Exec(t, "CREATE DATABASE "+name)
			return server.URL("postgres", "", name)
		}},
	} {
		for _, test := range tests {
			t.Run(database.name+"/"+test.name, func(t *testing.T) { test.test(t, database.fresh) })
		}
	}
}

func open(t testing.TB, url string, edit ...func(*History)) *History {
	t.Helper()
	h, err := New(url, 90*day, atNoon)
	if err != nil {
		t.Fatal(err)
	}
	h.opens, h.saves = patience, patience
	for _, e := range edit {
		e(h)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func save(t testing.TB, h *History, runs ...*Run) {
	t.Helper()
	if err := h.Save(t.Context(), runs...); err != nil {
		t.Fatal(err)
	}
}

// report is one of a run with a row for each of names, WORKLOAD/CLIENT on TARGET, whose latencies are around ns.
func report(id, target string, at time.Time, ns int64, names ...string) *bench.Report {
	r := &bench.Report{Run: id, StartedAt: at, ElapsedNS: 1e9, Target: &bench.TargetInfo{Name: target, Kind: "redis"},
		Vantage:    vantage.Info{Platform: "cloud-run", Region: "asia-northeast1", Service: "nsop", Revision: "nsop-00007", Instance: "0a1b", Cold: true},
		Assertions: []bench.Assertion{}, Warnings: []string{"a warning"}}
	for _, name := range names {
		workload, client, _ := strings.Cut(name, "/")
		h := hdrhistogram.New(1, 60e9, 2)
		for i := range int64(100) {
			if err := h.RecordValue(ns + i*ns/100); err != nil {
				panic(err)
			}
		}
		p50, highest := h.ValueAtQuantile(50), h.Max()
		r.Results = append(r.Results, &bench.Result{Name: workload + "/target=" + target + "/client=" + client, Target: target, Workload: workload, Client: client,
			Sample: 1, Iterations: 100, ElapsedNS: 1e8, NSPerOp: bench.NewFigure(float64(ns)), OpsPerSec: bench.NewRate(1e9 / float64(ns)),
			Latency: bench.Latency{P50: &p50, Max: &highest}, Settings: map[string]any{"retries": 0}, Labels: map[string]string{"egress": "direct"}, Latencies: h})
	}
	return r
}

func runOf(t testing.TB, r *bench.Report) *Run {
	t.Helper()
	run, err := NewRun("bench", r)
	if err != nil {
		t.Fatal(err)
	}
	run.Request = "/bench/" + r.Target.Name + "?count=1"
	if run.Body, err = json.Marshal(r.Normalize()); err != nil {
		t.Fatal(err)
	}
	return run
}

func ids(runs []*Run) (ids []string) {
	for _, r := range runs {
		ids = append(ids, r.ID)
	}
	return ids
}

func testRoundTrip(t *testing.T, fresh func(testing.TB) string) {
	h := open(t, fresh(t))
	was := report("r1", "redis", noon, 1e6, "get/redigo", "set/go-redis")
	run := runOf(t, was)
	save(t, h, run)
	got, err := h.Run(t.Context(), "r1")
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"identity": {fmt.Sprint(got.ID, got.Kind, got.StartedAt, got.Elapsed, got.Outcome, got.Status, got.Request), fmt.Sprint(run.ID, run.Kind, run.StartedAt, run.Elapsed, run.Outcome, run.Status, run.Request)},
		"vantage":  {fmt.Sprint(got.Platform, got.Region, got.Service, got.Revision, got.Instance, got.Cold), "cloud-runasia-northeast1nsopnsop-000070a1btrue"},
		"targets":  {fmt.Sprint(got.Targets), "[redis]"},
		"labels":   {fmt.Sprint(got.Labels), "map[egress:direct]"},
		"body":     {string(got.Body), string(run.Body)},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	asJSON := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := asJSON(got.Rows), asJSON(run.Rows); a != b {
		t.Errorf("rows\n%s, want\n%s", a, b)
	}
	back, err := got.Report()
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range back.Results {
		if r.Latencies == nil || !r.Latencies.Equals(was.Results[i].Latencies) {
			t.Errorf("row %d has another histogram", i)
		}
	}
	if _, err := h.Run(t.Context(), "r2"); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such run: %v", err)
	}
	// A run of the same ID takes its place.
	run.Outcome, run.Status, run.Rows = Failed, 502, run.Rows[:1]
	save(t, h, run)
	if list, err := h.List(t.Context(), Filter{}); err != nil || len(list) != 1 || list[0].Status != 502 || len(list[0].Rows) != 1 || list[0].Body != nil {
		t.Errorf("%v, %+v", err, list)
	}
	// It is there for the next process too.
	other := open(t, h.url)
	if list, err := other.List(t.Context(), Filter{}); err != nil || len(list) != 1 {
		t.Errorf("%v, %+v", err, list)
	}
}

func testFilters(t *testing.T, fresh func(testing.TB) string) {
	h := open(t, fresh(t))
	var runs []*Run
	add := func(id, target string, age time.Duration, edit func(*Run), names ...string) {
		r := runOf(t, report(id, target, noon.Add(-age), 1e6, names...))
		if edit != nil {
			edit(r)
		}
		runs = append(runs, r)
	}
	add("a", "redis", 5*time.Hour, nil, "get/redigo", "set/go-redis")
	add("b", "redis", 4*time.Hour, func(r *Run) { r.Kind = "probe"; r.Revision = "nsop-00008" }, "get/floor")
	add("c", "map", 3*time.Hour, nil, "get/map")
	add("d", "redis", 2*time.Hour, func(r *Run) {
		r.Outcome, r.Status, r.Labels = Failed, 502, map[string]string{"egress": "connector", "x": "1"}
	})
	add("e", "redis", 2*time.Hour, func(r *Run) { r.Labels = map[string]string{"egress": "connector"} }, "get/redigo") // at the same time as d
	save(t, h, runs...)
	for _, test := range []struct {
		name string
		f    Filter
		want string
	}{
		{"all", Filter{}, "e d c b a"},
		{"limit", Filter{Limit: 2}, "e d"},
		{"target", Filter{Target: "redis"}, "e d b a"},
		{"target and limit", Filter{Target: "redis", Limit: 3}, "e d b"},
		{"workload", Filter{Workload: "set"}, "a"},
		{"client", Filter{Client: "redigo"}, "e a"},
		{"of one row", Filter{Workload: "get", Client: "redigo"}, "e a"},
		{"of two rows", Filter{Workload: "set", Client: "redigo"}, ""},
		{"since", Filter{Since: noon.Add(-3 * time.Hour)}, "e d c"},
		{"until", Filter{Until: noon.Add(-3 * time.Hour)}, "b a"},
		{"since and target", Filter{Since: noon.Add(-3 * time.Hour), Target: "redis"}, "e d"},
		{"until and target", Filter{Until: noon.Add(-4 * time.Hour), Target: "redis"}, "a"},
		{"revision", Filter{Revision: "nsop-00008"}, "b"},
		{"kind", Filter{Kind: "probe"}, "b"},
		{"outcome", Filter{Outcome: Failed}, "d"},
		{"label", Filter{Labels: map[string]string{"egress": "connector"}}, "e d"},
		{"labels", Filter{Labels: map[string]string{"egress": "connector", "x": "1"}}, "d"},
		{"all at once", Filter{Target: "redis", Kind: "bench", Labels: map[string]string{"egress": "direct"}, Client: "go-redis", Workload: "set", Limit: 9}, "a"},
		{"none", Filter{Target: "nope"}, ""},
	} {
		list, err := h.List(t.Context(), test.f)
		if got := strings.Join(ids(list), " "); err != nil || got != test.want {
			t.Errorf("%s: %v, %q, want %q", test.name, err, got, test.want)
		}
		for _, r := range list {
			if len(r.Rows) == 0 && r.ID != "d" || slices.ContainsFunc(r.Rows, func(row Row) bool { return !test.f.shows(&row) }) {
				t.Errorf("%s: %s shows %+v", test.name, r.ID, r.Rows)
			}
		}
	}
	latest, err := h.Latest(t.Context(), Filter{Target: "redis"})
	var names []string
	for _, r := range latest {
		names = append(names, r.Run+" "+r.Workload+"/"+r.Client)
	}
	if want := "b get/floor, e get/redigo, a set/go-redis"; err != nil || strings.Join(names, ", ") != want {
		t.Errorf("latest: %v, %q, want %q", err, names, want)
	}
	if latest, err := h.Latest(t.Context(), Filter{Since: noon.Add(-3 * time.Hour)}); err != nil || len(latest) != 2 {
		t.Errorf("latest since: %v, %+v", err, latest)
	}
	values, err := h.Values(t.Context(), "revision")
	if err != nil || len(values) != 2 || values[0].Value != "nsop-00007" || !values[0].Last.Equal(noon.Add(-2*time.Hour)) || !values[1].First.Equal(noon.Add(-4*time.Hour)) {
		t.Errorf("revisions: %v, %+v", err, values)
	}
	if values, err := h.Values(t.Context(), "label.nope"); err != nil || len(values) != 0 {
		t.Errorf("no values: %v, %+v", err, values)
	}
	series, every, err := h.Series(t.Context(), Filter{Target: "redis", Workload: "get", Until: noon.Add(-2 * time.Hour)}, 100)
	if err != nil || every != 1 || len(series) != 2 || series[0].Run != "a" || series[1].Run != "b" || !series[1].StartedAt.Equal(noon.Add(-4*time.Hour)) || !series[1].Cold {
		t.Errorf("series: %v, %d, %+v", err, every, series)
	}
}

// testSample: of more runs than a chart can show it gets a fair sample.
func testSample(t *testing.T, fresh func(testing.TB) string) {
	h := open(t, fresh(t))
	var runs []*Run
	for i := range 250 {
		runs = append(runs, runOf(t, report(fmt.Sprintf("r%d", i), "redis", noon.Add(-time.Duration(i)*time.Minute), 1e6, "get/redigo")))
	}
	for part := range slices.Chunk(runs, 200) {
		save(t, h, part...)
	}
	for _, most := range []int{250, 100, 20} {
		rows, every, err := h.Series(t.Context(), Filter{Target: "redis"}, most)
		// As many as chance gives: 5 standard deviations of a binomial distribution.
		n, p := 250.0, 1/float64(every)
		spread := 25 * n * p * (1 - p)
		off := float64(len(rows)) - n*p
		if err != nil || len(rows) > most || off*off > spread {
			t.Errorf("at most %d: %v, %d rows, one in %d", most, err, len(rows), every)
		}
		if !slices.IsSortedFunc(rows, func(a, b Row) int { return a.StartedAt.Compare(b.StartedAt) }) {
			t.Errorf("at most %d: not in order", most)
		}
	}
	// An export goes through all of them, page by page, each once.
	seen := map[string]bool{}
	for r, err := range h.All(t.Context(), Filter{Target: "redis", Kind: "bench", Bodies: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[r.ID] || len(r.Body) == 0 {
			t.Fatalf("%s twice or without its body", r.ID)
		}
		seen[r.ID] = true
	}
	if len(seen) != len(runs) {
		t.Errorf("%d of %d runs", len(seen), len(runs))
	}
}

// testHostile: whatever a name, a label or an error holds is kept, and is no SQL.
func testHostile(t *testing.T, fresh func(testing.TB) string) {
	h := open(t, fresh(t))
	const evil = `'; DROP TABLE runs; -- "$1" ? % \ <script>alert(1)</script> ` + "\u202e\U0001F600"
	r := runOf(t, report("r1", evil, noon, 1e6, evil+"/"+evil))
	r.Labels, r.Request, r.Error = map[string]string{"l": evil}, evil, "not UTF-8 \xff, NUL \x00"
	save(t, h, r)
	list, err := h.List(t.Context(), Filter{Target: evil, Labels: map[string]string{"l": evil}})
	if err != nil || len(list) != 1 || list[0].Labels["l"] != evil || list[0].Request != evil || list[0].Error != "not UTF-8 \uFFFD, NUL \uFFFD" {
		t.Errorf("%v, %+v", err, list)
	}
	if _, err := h.Run(t.Context(), "\xff\x00"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	for _, f := range []Filter{{Target: "\x00"}, {Labels: map[string]string{"\xff": "\xff"}}, {Client: "' OR 1=1"}} {
		if list, err := h.List(t.Context(), f); err != nil || len(list) != 0 {
			t.Errorf("%+v: %v, %d runs", f, err, len(list))
		}
	}
}

func testRetention(t *testing.T, fresh func(testing.TB) string) {
	now := noon
	h := open(t, fresh(t), func(h *History) { h.now, h.prunes = func() time.Time { return now }, 20 })
	var old []*Run
	for i := range 20 + 10 {
		old = append(old, runOf(t, report(fmt.Sprintf("old%d", i), "old", noon, 1e6, "get/floor")))
	}
	save(t, h, old...)
	// What was measured long ago and comes in today is kept from today on.
	save(t, h, runOf(t, report("imported", "redis", noon.Add(-900*day), 1e6, "get/redigo")))
	if err := h.SavePart(t.Context(), "job", Part{Body: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	left := func(want int) {
		t.Helper()
		if list, err := h.List(t.Context(), Filter{}); err != nil || len(list) != want {
			t.Errorf("%v, %d runs, want %d", err, len(list), want)
		}
	}
	now = noon.Add(90 * day)
	save(t, h, runOf(t, report("new", "redis", now, 1e6, "get/redigo")))
	left(len(old) + 2) // nothing is older than 90 days
	now = now.Add(30 * time.Second)
	save(t, h, runOf(t, report("new2", "redis", now, 1e6, "get/redigo")))
	left(len(old) + 3) // it was looked for less than a minute ago
	now = now.Add(time.Minute)
	save(t, h, runOf(t, report("new3", "redis", now, 1e6, "get/redigo")))
	left(len(old) + 4 - 20)
	now = now.Add(time.Minute)
	save(t, h, runOf(t, report("new4", "redis", now, 1e6, "get/redigo")))
	left(4)
	if parts, err := h.Parts(t.Context(), "job"); err != nil || len(parts) != 0 {
		t.Errorf("parts: %v, %v", err, parts)
	}
	// Nothing of them is in any table.
	db, err := h.database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]int{"runs": 4, "reports": 4, "results": 4, "histograms": 4, "series": 1, "run_labels": 4 * 7} {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %v, %d rows, want %d", table, err, n, want)
		}
	}
}

func testKeys(t *testing.T, fresh func(testing.TB) string) {
	h := open(t, fresh(t))
	for i, status := range []int{502, 200} {
		r := runOf(t, report(fmt.Sprintf("r%d", i), "redis", noon.Add(time.Duration(i)*time.Second), 1e6))
		r.Key, r.Plan, r.Status = "job\x1f2026-11-30T12:00:00Z", "digest", status
		save(t, h, r)
	}
	save(t, h, runOf(t, report("other", "redis", noon, 1e6)))
	if r, err := h.ByKey(t.Context(), "job\x1f2026-11-30T12:00:00Z"); err != nil || r.ID != "r1" || r.Plan != "digest" || r.Status != 200 || r.Body == nil {
		t.Errorf("%v, %+v", err, r)
	}
	for _, key := range []string{"", "nope"} {
		if _, err := h.ByKey(t.Context(), key); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func testJobs(t *testing.T, fresh func(testing.TB) string) {
	url := fresh(t)
	a, b := open(t, url), open(t, url)
	for _, p := range []struct {
		h *History
		Part
	}{
		{a, Part{0, 0, []byte(`{"x":1}`)}},
		{b, Part{1, 1, []byte(`{"x":2}`)}},
		{a, Part{1, 0, []byte(`{"x":"late, of the attempt before"}`)}},
		{b, Part{0, 1, []byte(`{"x":3}`)}},
	} {
		if err := p.h.SavePart(t.Context(), "e1", p.Part); err != nil {
			t.Fatal(err)
		}
		if err := p.h.Arrive(t.Context(), "e1", p.Task, p.Attempt); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := a.Parts(t.Context(), "e1")
	if got := fmt.Sprintf("%d %d %s, %d %d %s", parts[0].Task, parts[0].Attempt, parts[0].Body, parts[1].Task, parts[1].Attempt, parts[1].Body); err != nil || len(parts) != 2 || got != `0 1 {"x":3}, 1 1 {"x":2}` {
		t.Errorf("%v, %s", err, got)
	}
	if arrived, err := b.Arrived(t.Context(), "e1", "e2"); err != nil || len(arrived["e1"]) != 2 || arrived["e1"][0].Attempt != 1 || arrived["e1"][1].Attempt != 1 ||
		!arrived["e1"][0].At.Equal(a.now()) || len(arrived["e2"]) != 0 {
		t.Errorf("%v, %v", err, arrived)
	}
}

// testTwoInstances: two that open a new history and write at once lose nothing.
func testTwoInstances(t *testing.T, fresh func(testing.TB) string) {
	url := fresh(t)
	instances := []*History{open(t, url), open(t, url)}
	const writers, each = 4, 20
	var wg sync.WaitGroup
	for i, h := range instances {
		for w := range writers {
			wg.Go(func() {
				for n := range each {
					names := []string{"get/redigo", "set/redigo"}
					if i == 1 {
						slices.Reverse(names) // they meet in the table of series
					}
					if err := h.Save(t.Context(), runOf(t, report(fmt.Sprintf("%d-%d-%d", i, w, n), "redis", noon, 1e6, names...))); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	list, err := instances[0].List(t.Context(), Filter{})
	if err != nil || len(list) != len(instances)*writers*each {
		t.Errorf("%v, %d runs", err, len(list))
	}
	for _, r := range list {
		if len(r.Rows) != 2 {
			t.Errorf("%s has %d rows", r.ID, len(r.Rows))
		}
	}
}

// testUpgrade: a history that an earlier version wrote is kept.
func testUpgrade(t *testing.T, fresh func(testing.TB) string) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	const first = "00001_runs.sql"
	text, err := fs.ReadFile(files, first)
	if err != nil {
		t.Fatal(err)
	}
	url := fresh(t)
	h := open(t, url, func(h *History) { h.files = fstest.MapFS{first: {Data: text}} })
	db, err := h.database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`INSERT INTO runs VALUES ('r1', 'bench', 1764504000000000001, 1764504000000000002, 3, 502, 'failed', 'timeout', 'text', 'cloud-run', 'r', 's', 'rev', 'i', true, '/bench/redis')`,
		`INSERT INTO reports VALUES ('r1', '{"run":"r1"}')`,
		`INSERT INTO run_labels VALUES ('r1', 'target', 'redis', 1764504000000000001)`,
		`INSERT INTO series VALUES (1, 'Get', 'redis', 'get', 'redigo', 1764504000000000001, 'r1')`,
		`INSERT INTO results VALUES ('r1', 0, 1, 0, 1764504000000000001, true, 1, 100, 5, 0, 0, 0, 1.5, 2.5, 1, 2, 3, 4, 5, 6, 7, NULL, 9, NULL)`,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	// Several instances come up with the new version at once.
	var wg sync.WaitGroup
	for range 4 {
		now := open(t, url)
		wg.Go(func() {
			r, err := now.Run(t.Context(), "r1")
			if err != nil || r.Key != "" || len(r.Rows) != 1 || *r.Rows[0].NSPerOp != 1.5 || r.Rows[0].Latency.P999 != nil || string(r.Body) != `{"run":"r1"}` || r.Targets[0] != "redis" {
				t.Errorf("%v, %+v", err, r)
			}
		})
	}
	wg.Wait()
	h2 := open(t, url)
	r := runOf(t, report("r2", "redis", noon, 1e6, "get/redigo"))
	r.Key = "key"
	save(t, h2, r)
	if r, err := h2.ByKey(t.Context(), "key"); err != nil || r.ID != "r2" {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestFullDisk: it is an error, and what was there is still there.
func TestFullDisk(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		h := open(t, "sqlite:"+filepath.Join(t.TempDir(), "history.db"))
		connect := h.connect
		h.connect = func() (*sql.DB, error) {
			db, err := connect()
			if err == nil {
				db.SetMaxOpenConns(1) // the limit is a connection's
				_, err = db.Exec("PRAGMA max_page_count = 300")
			}
			return db, err
		}
		save(t, h, runOf(t, report("first", "redis", noon, 1e6, "get/redigo")))
		saved, err := 1, error(nil)
		for ; err == nil && saved < 1000; saved++ {
			r := runOf(t, report(fmt.Sprint(saved), "redis", noon, 1e6, "get/redigo"))
			r.Error = strings.Repeat("x", 16<<10)
			err = h.Save(t.Context(), r)
		}
		if err == nil {
			t.Fatal("the disk does not get full")
		}
		if list, lerr := h.List(t.Context(), Filter{}); lerr != nil || len(list) != saved-1 {
			t.Errorf("%v; %v, %d runs, want %d", err, lerr, len(list), saved-1)
		}
	})
	t.Run("postgres", func(t *testing.T) {
		s := storetest.Postgres(t, storetest.PostgresOptions{Disk: 80 << 20})
		if !s.Limited {
			t.Log("no file system can be mounted here: the disk is not full")
			return
		}
		h := open(t, s.URL("postgres", "", "postgres"))
		save(t, h, runOf(t, report("first", "redis", noon, 1e6, "get/redigo")))
		filler := filepath.Join(s.Query(t, "SHOW data_directory")[0], "filler")
		if err := os.WriteFile(filler, make([]byte, 80<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk does not get full: %v", err)
		}
		saved, err := 1, error(nil)
		for ; err == nil && saved < 1000; saved++ { // there may be room in the pages that there are
			err = h.Save(t.Context(), runOf(t, report(fmt.Sprint(saved), "redis", noon, 1e6, "get/redigo")))
		}
		if err == nil {
			t.Fatal("saved on a full disk")
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		save(t, h, runOf(t, report("last", "redis", noon, 1e6, "get/redigo")))
		if list, lerr := h.List(t.Context(), Filter{}); lerr != nil || len(list) != saved {
			t.Errorf("%v; %v, %d runs, want %d", err, lerr, len(list), saved)
		}
	})
}

// TestLostConnection: it is an error within a bound, and later runs are kept again.
func TestLostConnection(t *testing.T) {
	s := storetest.Postgres(t, storetest.PostgresOptions{})
	h := open(t, s.URL("postgres", "", "postgres"))
	n := 0
	next := func() *Run {
		n++
		return runOf(t, report(fmt.Sprintf("r%d", n), "redis", noon, 1e6, "get/redigo"))
	}
	fails := func(what string) {
		t.Helper()
		began := time.Now()
		if err := h.Save(t.Context(), next()); err == nil || time.Since(began) > patience {
			t.Errorf("%s: %v after %s", what, err, time.Since(began))
		}
	}
	save(t, h, next())
	s.Stop()
	fails("stopped")
	if !s.Start(t) {
		t.Fatal("does not start again")
	}
	save(t, h, next())
	s.Pause()
	h.saves = saveTime
	fails("hanging")
	h.saves = patience
	s.Resume()
	save(t, h, next())
	if list, err := h.List(t.Context(), Filter{}); err != nil || !slices.Contains(ids(list), "r1") || !slices.Contains(ids(list), "r3") || !slices.Contains(ids(list), "r5") {
		t.Errorf("%v, %v", err, ids(list))
	}
	// A history that is not there when the process begins is opened later.
	s.Stop()
	late := open(t, s.URL("postgres", "", "postgres"))
	if err := late.Save(t.Context(), next()); err == nil {
		t.Error("saved into a server that is stopped")
	}
	if !s.Start(t) {
		t.Fatal("does not start again")
	}
	save(t, late, next())
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := h.Save(t.Context(), next()); err == nil {
		t.Error("saved into a history that is closed")
	}
}

func TestWrongURLs(t *testing.T) {
	for _, url := range []string{"", "sqlite:", "sqlite", "mysql://user:hunter2@host/db", "postgres://user:hunter2@host:x/db", "postgres://user:hunter2%@host/db", "/var/history.db", "redis://:hunter2@host"} {
		h, err := New(url, day, atNoon)
		if err == nil {
			h.Close()
			t.Errorf("%s is taken", url)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
	// Nor is a password in the error of a connection.
	h := open(t, "postgres://user:hunter2@127.0.0.1:1/db")
	if err := h.Save(t.Context(), runOf(t, report("r", "redis", noon, 1e6))); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	h = open(t, "sqlite:/proc/nope/history.db")
	if err := h.Save(t.Context(), runOf(t, report("r", "redis", noon, 1e6))); err == nil {
		t.Error("saved where there can be no file")
	}
}

func TestParseAge(t *testing.T) {
	for text, want := range map[string]time.Duration{"90d": 90 * day, "12h": 12 * time.Hour, "1d12h": 36 * time.Hour, "30m": 30 * time.Minute, "1.5h": 90 * time.Minute} {
		if got, err := ParseAge(text); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0d", "d", "-1d", "1d-1h", "1d+1h", "90", "x", "99999d", "36501d", "-1h", "0s", "1d1d", "2540400h1d", "106751d23h59m"} {
		if got, err := ParseAge(text); err == nil {
			t.Errorf("%s: %s", text, got)
		}
	}
}

func FuzzParseAge(f *testing.F) {
	for _, seed := range []string{"90d", "1d12h", "-1d", "36500d9e18ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if age, err := ParseAge(text); (err == nil) != (age > 0) {
			t.Errorf("%q: %s, %v", text, age, err)
		}
	})
}

func TestMain(m *testing.M) {
	if write() {
		return
	}
	goleak.VerifyTestMain(m)
}
