package history

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// multiply copies every run of h, times-1 times over, each copy a minute older than the one before it.
func multiply(t testing.TB, h *History, times int) {
	t.Helper()
	db, err := h.database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	older := int64(24 * time.Hour)
	for _, c := range []struct{ table, columns, values string }{
		{"results", "run_id, position, series_id, level, started_at, cold, sample, iterations, elapsed_ns, errors, misses, mismatches, ns_per_op, p50_ns, max_ns",
			"run_id || '-' || k.n, position, series_id, level, started_at - k.n * CAST($2 AS BIGINT), cold, sample, iterations, elapsed_ns, errors, misses, mismatches, ns_per_op, p50_ns, max_ns"},
		{"run_labels", "run_id, name, value, started_at", "run_id || '-' || k.n, name, value, started_at - k.n * CAST($2 AS BIGINT)"},
		{"runs", "id, kind, started_at, saved_at, elapsed_ns, status, outcome, error_kind, error, platform, region, service, revision, instance, cold, request",
			"id || '-' || k.n, kind, started_at - k.n * CAST($2 AS BIGINT), saved_at, elapsed_ns, status, outcome, error_kind, error, platform, region, service, revision, instance, cold, request"},
	} {
		query := "WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < CAST($1 AS BIGINT) - 1) INSERT INTO " + c.table + " (" + c.columns + ") SELECT " + c.values + " FROM " + c.table + ", k"
		if c.table == "run_labels" {
			query += " WHERE name IN ('target', 'client')"
		}
		if _, err := db.Exec(query, int64(times), older); err != nil {
			t.Fatalf("%s: %v", c.table, err)
		}
	}
}

// analyze has the database count what it has, as Postgres does by itself after a while and SQLite only when it is told to.
func analyze(t testing.TB, h *History) {
	t.Helper()
	db, err := h.database(t.Context())
	if err == nil {
		_, err = db.Exec("ANALYZE")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// months returns a history of a hundred runs times times, of two series on two targets.
func months(t testing.TB, url string, times int) *History {
	t.Helper()
	var runs []*Run
	for i := range 100 {
		target := []string{"redis", "map"}[i%2]
		r := runOf(t, report(fmt.Sprintf("r%d", i), target, noon.Add(-time.Duration(i)*864*time.Second), 1e6, "get/floor"))
		r.Revision = fmt.Sprintf("nsop-%05d", i/10)
		runs = append(runs, r)
	}
	h := open(t, url)
	save(t, h, runs...)
	multiply(t, h, times)
	return h
}

// reads are what a dashboard asks.
var reads = []struct {
	name string
	read func(h *History, t testing.TB) (int, error)
}{
	{"list", func(h *History, t testing.TB) (int, error) {
		runs, err := h.List(t.Context(), Filter{Limit: 50})
		return len(runs), err
	}},
	{"list of a target", func(h *History, t testing.TB) (int, error) {
		runs, err := h.List(t.Context(), Filter{Target: "redis", Client: "floor", Limit: 50})
		return len(runs), err
	}},
	{"latest", func(h *History, t testing.TB) (int, error) {
		rows, err := h.Latest(t.Context(), Filter{})
		return len(rows), err
	}},
	{"series", func(h *History, t testing.TB) (int, error) {
		rows, _, err := h.Series(t.Context(), Filter{Target: "redis", Workload: "get"}, 1000)
		return len(rows), err
	}},
	{"series of a day", func(h *History, t testing.TB) (int, error) {
		rows, _, err := h.Series(t.Context(), Filter{Target: "redis", Workload: "get", Since: noon.Add(-24 * time.Hour)}, 1000)
		return len(rows), err
	}},
	{"values", func(h *History, t testing.TB) (int, error) {
		values, err := h.Values(t.Context(), "revision")
		return len(values), err
	}},
	{"run", func(h *History, t testing.TB) (int, error) {
		_, err := h.Run(t.Context(), "r50")
		return 1, err
	}},
}

// testScale: what a dashboard reads of twenty thousand runs takes at most three times as long as of a thousand, and well below
// 300 ms.
func testScale(t *testing.T, fresh func(testing.TB) string) {
	const times = 20
	small, large := months(t, fresh(t), 10), months(t, fresh(t), 10*times)
	compareReads(t, small, large, times)
	analyze(t, small)
	analyze(t, large)
	compareReads(t, small, large, times)
}

func compareReads(t *testing.T, small, large *History, times int) {
	t.Helper()
	const maxRatio, maxTime = 3, 300 * time.Millisecond
	for _, r := range reads {
		var took [2][]time.Duration
		var n [2]int
		for range 5 {
			for i, h := range []*History{small, large} {
				began := time.Now()
				var err error
				if n[i], err = r.read(h, t); err != nil || n[i] == 0 {
					t.Fatalf("%s: %v, %d", r.name, err, n[i])
				}
				took[i] = append(took[i], time.Since(began))
			}
		}
		slices.Sort(took[0])
		slices.Sort(took[1])
		a, b := took[0][0], took[1][0] // the fastest, which other processes disturbed least
		t.Logf("%-17s %6d runs: %8s (%d), %6d runs: %8s (%d), ratio %.2f", r.name, 1000, a.Round(10*time.Microsecond), n[0], 1000*times, b.Round(10*time.Microsecond), n[1], float64(b)/float64(a))
		if float64(b)/float64(a) > maxRatio || b > maxTime {
			t.Errorf("%s: %s among %d runs, %s among 1000", r.name, b, 1000*times, a)
		}
	}
}

// BenchmarkMillion prints what a dashboard's reads take in a history of a million runs.
func BenchmarkMillion(b *testing.B) {
	large := months(b, "sqlite:"+b.TempDir()+"/history.db", 10_000)
	for _, r := range reads {
		b.Run(r.name, func(b *testing.B) {
			for range b.N {
				if _, err := r.read(large, b); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
