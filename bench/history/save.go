package history

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
)

// maxLevel is the highest level of a row: one run in 16,384 is there.
const maxLevel = 7

// level is a number from 0 to maxLevel that id has by chance, each a quarter as often as the one below it: the rows from
// some level on are a fair sample of all, found without reading the others.
func level(id string) int {
	sum := sha256.Sum256([]byte(id))
	return min(bits.TrailingZeros64(binary.LittleEndian.Uint64(sum[:]))/2, maxLevel)
}

// seriesID is the key of a series: the same in every database, so that nobody need be asked for it.
func seriesID(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return int64(binary.LittleEndian.Uint64(sum[:]) >> 1)
}

// ErrPrune says that what is older than is to be kept could not be removed; everything else has been done.
var ErrPrune = errors.New("remove old runs")

// Save keeps runs, all of them or none, in place of runs with their IDs, if there are. It takes at most about two seconds, and
// removes what is older than is to be kept, or its error is ErrPrune.
func (h *History) Save(ctx context.Context, runs ...*Run) error {
	if len(runs) == 0 {
		return nil
	}
	bound := h.saves
	for _, r := range runs {
		bound += time.Duration(len(r.Rows)) * rowTime
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if err := h.write(ctx, func(tx *sql.Tx) error { return h.save(ctx, tx, runs) }); err != nil {
		return fmt.Errorf("save run %s: %w", runs[0].ID, err)
	}
	if err := h.prune(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrPrune, err)
	}
	return nil
}

// write performs f in a transaction, twice where the first connection proves to be dead. f must have the same effect then.
func (h *History) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	db, err := h.database(ctx)
	if err != nil {
		return err
	}
	select {
	case h.writing <- struct{}{}:
		defer func() { <-h.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	attempt := func() error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing once it is committed
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	err = attempt()
	if err != nil && ctx.Err() == nil {
		err = attempt()
	}
	if err != nil && ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// columns of the table results, of which the first are those of a row's place.
var resultColumns = []string{"run_id", "position", "series_id", "level", "started_at", "cold", "sample", "iterations", "elapsed_ns", "errors",
	"misses", "mismatches", "ns_per_op", "ops_per_sec", "min_ns", "mean_ns", "stddev_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "p99_9_ns",
	"max_ns", "connect_ns"}

func (h *History) save(ctx context.Context, tx *sql.Tx, runs []*Run) error {
	var ids []string
	seen := map[string]bool{}
	var kept, reports, labels, results, histograms [][]any
	latest := map[int64][]any{}
	for _, r := range runs {
		if r.ID == "" || seen[clean(r.ID)] {
			return fmt.Errorf("want a run ID of its own, not %q", r.ID)
		}
		seen[clean(r.ID)] = true
		ids = append(ids, clean(r.ID))
		at := r.StartedAt.UnixNano()
		kept = append(kept, []any{clean(r.ID), r.Kind, at, h.now().UnixNano(), int64(r.Elapsed), int64(r.Status), r.Outcome, r.ErrorKind, clean(r.Error),
			clean(r.Platform), clean(r.Region), clean(r.Service), clean(r.Revision), clean(r.Instance), r.Cold, clean(r.Request), clean(r.Key), r.Plan})
		body, err := pack(r.Body)
		if err != nil {
			return err
		}
		reports = append(reports, []any{clean(r.ID), body})
		for _, l := range r.searchable() {
			labels = append(labels, []any{clean(r.ID), l.name, l.value, at})
		}
		for i, row := range r.Rows {
			id, l := seriesID(row.Name), row.Latency
			if was := latest[id]; was == nil || was[5].(int64) < at {
				latest[id] = []any{id, clean(row.Name), clean(row.Target), clean(row.Workload), clean(row.Client), at, clean(r.ID)}
			}
			results = append(results, []any{clean(r.ID), int64(i), id, int64(level(r.ID)), at, r.Cold, int64(row.Sample), row.Iterations, row.ElapsedNS, row.Errors,
				row.Misses, row.Mismatches, figure(row.NSPerOp), figure(row.OpsPerSec), integer(l.Min), integer(l.Mean), integer(l.Stddev), integer(l.P50),
				integer(l.P90), integer(l.P95), integer(l.P99), integer(l.P999), integer(l.Max), integer(row.ConnectNS)})
			if row.Histogram != "" {
				histograms = append(histograms, []any{clean(r.ID), int64(i), clean(row.Histogram)})
			}
		}
	}
	if err := remove(ctx, tx, ids); err != nil {
		return err
	}
	// In one order everywhere: two instances that meet in these rows would wait for each other otherwise.
	var series [][]any
	for _, id := range slices.Sorted(maps.Keys(latest)) {
		series = append(series, latest[id])
	}
	for _, i := range []struct {
		table   string
		columns []string
		rows    [][]any
		more    string
	}{
		{"runs", []string{"id", "kind", "started_at", "saved_at", "elapsed_ns", "status", "outcome", "error_kind", "error",
			"platform", "region", "service", "revision", "instance", "cold", "request", "idempotency_key", "plan"}, kept, ""},
		{"reports", []string{"run_id", "body"}, reports, ""},
		{"run_labels", []string{"run_id", "name", "value", "started_at"}, labels, ""},
		{"results", resultColumns, results, ""},
		{"histograms", []string{"run_id", "position", "data"}, histograms, ""},
		{"series", []string{"id", "name", "target", "workload", "client", "latest_at", "latest_run"}, series,
			" ON CONFLICT (id) DO UPDATE SET latest_at = excluded.latest_at, latest_run = excluded.latest_run WHERE series.latest_at <= excluded.latest_at"},
	} {
		if err := insert(ctx, tx, i.table, i.columns, i.rows, i.more); err != nil {
			return err
		}
	}
	return nil
}

// A label is one of the things that runs are searched by.
type label struct{ name, value string }

// searchable is everything that finds r, each once.
func (r *Run) searchable() []label {
	seen := map[label]bool{}
	add := func(name, value string) {
		if value != "" {
			seen[label{clean(name), clean(value)}] = true
		}
	}
	add("kind", r.Kind)
	add("outcome", r.Outcome)
	add("revision", r.Revision)
	for _, t := range r.Targets {
		add("target", t)
	}
	for _, row := range r.Rows {
		add("target", row.Target)
		add("workload", row.Workload)
		add("client", row.Client)
	}
	for name, value := range r.Labels {
		add("label."+name, value)
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b label) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.value, b.value))
	})
}

// insert adds rows to a table, many with each statement.
func insert(ctx context.Context, tx *sql.Tx, table string, columns []string, rows [][]any, more string) error {
	const atOnce = 100
	for part := range slices.Chunk(rows, atOnce) {
		query := "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES "
		var args []any
		for i, row := range part {
			if i > 0 {
				query += ", "
			}
			query += "(" + placeholders(len(args)+1, len(row)) + ")"
			args = append(args, row...)
		}
		if _, err := tx.ExecContext(ctx, query+more, args...); err != nil {
			return fmt.Errorf("write %s: %w", table, err)
		}
	}
	return nil
}

// placeholders are n of them, the first being $from.
func placeholders(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("$" + strconv.Itoa(from+i))
	}
	return b.String()
}

// remove deletes runs. The table runs is the first: of two instances that delete the same ones the second waits there.
func remove(ctx context.Context, tx *sql.Tx, ids []string) error {
	args := anys(ids)
	for _, table := range []string{"runs", "reports", "run_labels", "results", "histograms"} {
		column := "run_id"
		if table == "runs" {
			column = "id"
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE "+column+" IN ("+placeholders(1, len(ids))+")", args...); err != nil {
			return fmt.Errorf("delete from %s: %w", table, err)
		}
	}
	return nil
}

const (
	pruneEvery = time.Minute
	pruneSome  = 500 // runs, so that a run whose saving meets a backlog does not wait long
)

// prune removes some of what is older than is to be kept, at most once in a while.
func (h *History) prune(ctx context.Context) error {
	now := h.now()
	h.mu.Lock()
	due := now.Sub(h.pruned) >= pruneEvery
	if due {
		h.pruned = now
	}
	h.mu.Unlock()
	if !due {
		return nil
	}
	cutoff := now.Add(-h.keep).UnixNano()
	return h.write(ctx, func(tx *sql.Tx) error {
		ids, err := queryStrings(ctx, tx, "SELECT id FROM runs WHERE saved_at < $1 ORDER BY saved_at, id LIMIT $2", cutoff, int64(h.prunes))
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			if err := remove(ctx, tx, ids); err != nil {
				return err
			}
			const idle = "DELETE FROM series WHERE latest_at < $1 AND NOT EXISTS (SELECT 1 FROM results WHERE results.series_id = series.id)"
			if _, err := tx.ExecContext(ctx, idle, cutoff); err != nil {
				return err
			}
		}
		for _, old := range []string{"DELETE FROM parts WHERE saved_at < $1", "DELETE FROM arrivals WHERE arrived_at < $1"} {
			if _, err := tx.ExecContext(ctx, old, cutoff); err != nil {
				return err
			}
		}
		return nil
	})
}

func figure(f *bench.Figure) any {
	if f == nil {
		return nil
	}
	return float64(*f)
}

func integer(n *int64) any {
	if n == nil {
		return nil
	}
	return *n
}

func anys(texts []string) []any {
	out := make([]any, len(texts))
	for i, t := range texts {
		out[i] = t
	}
	return out
}
