//go:build !race

// The race detector makes the history's database so slow that nothing could be said of times.

package handlers_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"nsop/handlers"
)

// TestPagesStayFast: with 20 times the runs the pages take at most 3 times as long, and 300 ms.
func TestPagesStayFast(t *testing.T) {
	now := time.Now()
	const some = 100 // runs, of which copies are made
	sizes := []int{1000 / some, 20_000 / some}
	var services []*handlers.Service
	for _, times := range sizes {
		file := filepath.Join(t.TempDir(), "history.db")
		h := newHistory(t, "sqlite:"+file)
		fill(t, h, now, past{runs: some, every: 5 * time.Minute, target: []string{"redis"}, slower: 1.2, few: true})
		multiply(t, file, times, some*5*time.Minute)
		services = append(services, newService(t, keeping(h)))
	}
	for _, page := range []string{"/", "/?range=7d", "/?range=30d", "/runs/redis-000090", "/compare?a=since:2h&b=since:1h", "plain"} {
		took := make([][]time.Duration, len(sizes))
		for range 7 { // in turn, so that what else the machine does meets both
			for i, s := range services {
				began := time.Now()
				if page == "plain" {
					get(s, "/")
				} else {
					browse(t, s, page, 200)
				}
				took[i] = append(took[i], time.Since(began))
			}
		}
		for i := range took {
			slices.Sort(took[i])
		}
		few, many := took[0][3], took[1][3]
		t.Logf("%s: %v, with 1,000 runs %v", page, many, few)
		if many > 3*max(few, 20*time.Millisecond) { // 300 ms is for a machine that does nothing else
			t.Errorf("%s takes %v with 20,000 runs, %v with 1,000", page, many, few)
		}
	}
}

// multiply copies every run of a history times-1 times, each copy older by span than the one before it.
func multiply(t testing.TB, file string, times int, span time.Duration) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, c := range []struct{ table, columns, id string }{
		{"results", "position, series_id, level, cold, sample, iterations, elapsed_ns, errors, misses, mismatches, ns_per_op, ops_per_sec, min_ns, mean_ns, p50_ns, p95_ns, p99_ns, max_ns", "run_id"},
		{"run_labels", "name, value", "run_id"},
		{"runs", "kind, saved_at, elapsed_ns, status, outcome, error_kind, error, platform, region, service, revision, instance, cold, request", "id"},
	} {
		_, err := db.Exec(fmt.Sprintf("WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < $1 - 1) INSERT INTO %[1]s (%[3]s, started_at, %[2]s) "+
			"SELECT %[3]s, started_at - k.n * $2, %[2]s || '-' || k.n FROM %[1]s, k WHERE k.n < $1", c.table, c.id, c.columns), times, int64(span))
		if err != nil {
			t.Fatalf("%s: %v", c.table, err)
		}
	}
}
