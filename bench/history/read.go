package history

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// A Filter says which runs are meant; a field that is zero leaves nothing out. Of a run that it lets through it hides the
// rows of another target, workload or client.
type Filter struct {
	Target, Workload, Client string
	Revision, Kind, Outcome  string
	Labels                   map[string]string
	Since, Until             time.Time // from Since on, before Until
	Limit                    int       // 0: no limit
	Bodies                   bool      // read the whole answers too
	Histograms               bool      // read the rows' histograms too
}

// labels are those of f by which runs are searched.
func (f *Filter) labels() []label {
	all := []label{{"target", f.Target}, {"workload", f.Workload}, {"client", f.Client}, {"revision", f.Revision}, {"kind", f.Kind}, {"outcome", f.Outcome}}
	for _, name := range slices.Sorted(maps.Keys(f.Labels)) {
		all = append(all, label{"label." + clean(name), f.Labels[name]})
	}
	return slices.DeleteFunc(all, func(l label) bool { return l.value == "" })
}

// span is from Since to Until, in nanoseconds since 1970.
func (f *Filter) span() (from, to int64) {
	from, to = math.MinInt64, math.MaxInt64
	if !f.Since.IsZero() {
		from = f.Since.UnixNano()
	}
	if !f.Until.IsZero() {
		to = f.Until.UnixNano()
	}
	return from, to
}

// shows tells whether f lets a row through.
func (f *Filter) shows(r *Row) bool {
	return (f.Target == "" || f.Target == r.Target) && (f.Workload == "" || f.Workload == r.Workload) && (f.Client == "" || f.Client == r.Client)
}

// narrow hides rows and tells whether the run is still meant. One that failed before it had a row has none to show.
func (f *Filter) narrow(r *Run) bool {
	if len(r.Rows) == 0 {
		return true
	}
	r.Rows = slices.DeleteFunc(r.Rows, func(row Row) bool { return !f.shows(&row) })
	return len(r.Rows) > 0
}

// Run returns the run called id with everything that is kept of it, or ErrNotFound.
func (h *History) Run(ctx context.Context, id string) (*Run, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	runs, err := load(ctx, db, []string{clean(id)}, &Filter{Bodies: true, Histograms: true})
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", id, err)
	}
	if len(runs) == 0 {
		return nil, ErrNotFound
	}
	return runs[0], nil
}

// Runs returns the runs of these ids with their whole answers; those that are not there are left out.
func (h *History) Runs(ctx context.Context, ids ...string) ([]*Run, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	runs, err := load(ctx, db, ids, &Filter{Bodies: true})
	if err != nil {
		return nil, fmt.Errorf("read %d runs: %w", len(ids), err)
	}
	return runs, nil
}

// ByKey returns the latest run under an idempotency key, however it ended, or ErrNotFound.
func (h *History) ByKey(ctx context.Context, key string) (*Run, error) {
	bounded, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(bounded)
	if err != nil {
		return nil, err
	}
	ids, err := queryStrings(bounded, db, "SELECT id FROM runs WHERE idempotency_key = $1 AND idempotency_key <> '' ORDER BY started_at DESC LIMIT 1", clean(key))
	if err != nil {
		return nil, fmt.Errorf("look up an idempotency key: %w", err)
	}
	if len(ids) == 0 {
		return nil, ErrNotFound
	}
	return h.Run(ctx, ids[0])
}

// List returns the runs that f means, newest first.
func (h *History) List(ctx context.Context, f Filter) ([]*Run, error) {
	var runs []*Run
	for r, err := range h.All(ctx, f) {
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// pageSize is how many runs All holds at once.
const pageSize = 200

// All yields the runs that f means, newest first, a page of them in memory. It ends after an error.
func (h *History) All(ctx context.Context, f Filter) iter.Seq2[*Run, error] {
	return func(yield func(*Run, error) bool) {
		left := cmp.Or(f.Limit, math.MaxInt)
		var driver []label // the labels searched by, the rarest first
		for last := (cursor{at: math.MaxInt64}); left > 0; {
			size := min(left, pageSize)
			var runs []*Run
			more, err := false, error(nil)
			func() {
				bounded, cancel := context.WithTimeout(ctx, readTime)
				defer cancel()
				var db *sql.DB
				if db, err = h.database(bounded); err != nil {
					return
				}
				if driver == nil {
					if driver, err = rarestFirst(bounded, db, &f); err != nil {
						return
					}
				}
				var ids []string
				if ids, last, err = page(bounded, db, &f, driver, last, size); err == nil && len(ids) > 0 {
					more = len(ids) == size
					runs, err = load(bounded, db, ids, &f)
				}
			}()
			if err != nil {
				yield(nil, fmt.Errorf("list runs: %w", err))
				return
			}
			for _, r := range runs {
				if !f.narrow(r) {
					continue
				}
				if left--; !yield(r, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// A cursor is the last run of a page.
type cursor struct {
	at int64
	id string
}

// rarestFirst returns the labels of f, that which fewest runs have in front: the search goes through all of these.
func rarestFirst(ctx context.Context, db *sql.DB, f *Filter) ([]label, error) {
	labels := f.labels()
	if len(labels) < 2 {
		return labels, nil
	}
	const enough = 1000 // beyond which none is rare
	from, to := f.span()
	args := []any{from, to, int64(enough)}
	var columns []string
	found := make([]any, len(labels))
	for i, l := range labels {
		args = append(args, l.name, clean(l.value))
		columns = append(columns, fmt.Sprintf("(SELECT count(*) FROM (SELECT 1 FROM run_labels WHERE name = $%d AND value = $%d AND started_at >= $1 AND started_at < $2 LIMIT $3) AS found)", len(args)-1, len(args)))
		found[i] = new(int)
	}
	if err := db.QueryRowContext(ctx, "SELECT "+strings.Join(columns, ", "), args...).Scan(found...); err != nil {
		return nil, err
	}
	counts := map[label]int{}
	for i, l := range labels {
		counts[l] = *found[i].(*int)
	}
	slices.SortStableFunc(labels, func(a, b label) int { return cmp.Compare(counts[a], counts[b]) })
	return labels, nil
}

// page returns up to size runs before last, newest first, and the last of them.
func page(ctx context.Context, db *sql.DB, f *Filter, labels []label, last cursor, size int) ([]string, cursor, error) {
	from, to := f.span()
	var q strings.Builder
	args := []any{from, min(to, last.at), last.at, last.id, int64(size)}
	arg := func(v any) string {
		args = append(args, v)
		return placeholders(len(args), 1)
	}
	id := "id"
	if len(labels) == 0 {
		q.WriteString("SELECT id, started_at FROM runs AS r WHERE ")
	} else {
		id = "run_id"
		fmt.Fprintf(&q, "SELECT run_id, started_at FROM run_labels AS r WHERE name = %s AND value = %s AND ", arg(labels[0].name), arg(clean(labels[0].value)))
	}
	// The bound on started_at alone is for planners that make no use of the pair.
	q.WriteString("started_at >= $1 AND started_at <= $2 AND (started_at, " + id + ") < ($3, $4)")
	if to != math.MaxInt64 {
		q.WriteString(" AND started_at < " + arg(to))
	}
	for _, l := range labels[min(1, len(labels)):] {
		// Not EXISTS, of which Postgres makes a join of all that have the one label with all that have the other.
		fmt.Fprintf(&q, " AND (SELECT count(*) FROM run_labels AS o WHERE o.run_id = r.run_id AND o.name = %s AND o.value = %s) > 0", arg(l.name), arg(clean(l.value)))
	}
	fmt.Fprintf(&q, " ORDER BY started_at DESC, %s DESC LIMIT $5", id)
	rows, err := db.QueryContext(ctx, q.String(), args...)
	if err != nil {
		return nil, last, err
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		if err := rows.Scan(&last.id, &last.at); err != nil {
			return nil, last, err
		}
		ids = append(ids, last.id)
	}
	return ids, last, rows.Err()
}

// load reads runs in the order of ids. What has been deleted meanwhile is left out.
func load(ctx context.Context, db *sql.DB, ids []string, f *Filter) ([]*Run, error) {
	byID := map[string]*Run{}
	in, args := "("+placeholders(1, len(ids))+")", anys(ids)
	each := func(query string, scan func(rows *sql.Rows) error) error {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	err := each("SELECT id, kind, started_at, elapsed_ns, status, outcome, error_kind, error, platform, region, service, revision, instance, cold, request, idempotency_key, plan FROM runs WHERE id IN "+in, func(rows *sql.Rows) error {
		r := &Run{Targets: []string{}, Labels: map[string]string{}, Rows: []Row{}}
		var at int64
		err := rows.Scan(&r.ID, &r.Kind, &at, &r.Elapsed, &r.Status, &r.Outcome, &r.ErrorKind, &r.Error, &r.Platform, &r.Region, &r.Service, &r.Revision,
			&r.Instance, &r.Cold, &r.Request, &r.Key, &r.Plan)
		r.StartedAt = time.Unix(0, at).UTC()
		byID[r.ID] = r
		return err
	})
	if err != nil {
		return nil, err
	}
	err = each("SELECT run_id, name, value FROM run_labels WHERE run_id IN "+in+" ORDER BY run_id, name, value", func(rows *sql.Rows) error {
		var id, name, value string
		if err := rows.Scan(&id, &name, &value); err != nil {
			return err
		}
		r := byID[id]
		if r == nil { // saved since
			return nil
		}
		if name == "target" {
			r.Targets = append(r.Targets, value)
		} else if name, ok := strings.CutPrefix(name, "label."); ok {
			r.Labels[name] = value
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	histogram, join := "''", ""
	if f.Histograms {
		histogram, join = "COALESCE(h.data, '')", " LEFT JOIN histograms AS h ON h.run_id = r.run_id AND h.position = r.position"
	}
	err = each("SELECT "+rowColumns+", "+histogram+" FROM results AS r JOIN series AS s ON s.id = r.series_id"+join+" WHERE r.run_id IN "+in+" ORDER BY r.run_id, r.position", func(rows *sql.Rows) error {
		var text string
		row, err := scanRow(rows, &text)
		if r := byID[row.Run]; err == nil && r != nil {
			row.Histogram = text
			r.Rows = append(r.Rows, row)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if f.Bodies {
		err = each("SELECT run_id, body FROM reports WHERE run_id IN "+in, func(rows *sql.Rows) error {
			var id string
			var body []byte
			if err := rows.Scan(&id, &body); err != nil {
				return err
			}
			body, err := unpack(body)
			if r := byID[id]; r != nil {
				r.Body = body
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var runs []*Run
	for _, id := range ids {
		if r := byID[id]; r != nil {
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// rowColumns are those of results AS r and series AS s that scanRow reads.
const rowColumns = "r.run_id, r.started_at, r.cold, s.name, s.target, s.workload, s.client, r.sample, r.iterations, r.elapsed_ns, r.errors, r.misses, r.mismatches, " +
	"r.ns_per_op, r.ops_per_sec, r.min_ns, r.mean_ns, r.stddev_ns, r.p50_ns, r.p90_ns, r.p95_ns, r.p99_ns, r.p99_9_ns, r.max_ns, r.connect_ns"

func scanRow(rows *sql.Rows, more ...any) (r Row, err error) {
	var at int64
	l := &r.Latency
	err = rows.Scan(append([]any{&r.Run, &at, &r.Cold, &r.Name, &r.Target, &r.Workload, &r.Client, &r.Sample, &r.Iterations, &r.ElapsedNS, &r.Errors, &r.Misses, &r.Mismatches,
		&r.NSPerOp, &r.OpsPerSec, &l.Min, &l.Mean, &l.Stddev, &l.P50, &l.P90, &l.P95, &l.P99, &l.P999, &l.Max, &r.ConnectNS}, more...)...)
	r.StartedAt = time.Unix(0, at).UTC()
	return r, err
}

func queryRows(ctx context.Context, db *sql.DB, query string, args ...any) ([]Row, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Row
	for rows.Next() {
		r, err := scanRow(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func queryStrings(ctx context.Context, db querier, query string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var texts []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, rows.Err()
}

// Latest returns the rows of the newest run of each series of f's target, workload and client, if that is not before f.Since:
// by target, then name, then sample.
func (h *History) Latest(ctx context.Context, f Filter) ([]Row, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	from, _ := f.span()
	where, args := f.series([]any{from})
	// CROSS JOIN has SQLite, which has no statistics of its own accord, begin with the few series and not with all results.
	rows, err := queryRows(ctx, db, "SELECT "+rowColumns+" FROM series AS s CROSS JOIN results AS r WHERE r.run_id = s.latest_run AND r.series_id + 0 = s.id AND s.latest_at >= $1"+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read the latest runs: %w", err)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Target, b.Target), strings.Compare(a.Name, b.Name), cmp.Compare(a.Sample, b.Sample))
	})
	return rows, nil
}

// series is the condition on the table series AS s, with args in front of its own.
func (f *Filter) series(args []any) (string, []any) {
	where := ""
	for _, c := range []label{{"target", f.Target}, {"workload", f.Workload}, {"client", f.Client}} {
		if c.value != "" {
			args = append(args, clean(c.value))
			where += " AND s." + c.name + " = " + placeholders(len(args), 1)
		}
	}
	return where, args
}

// Series returns the rows of f's target, workload and client over f's time, oldest first. Where there are more than most it
// returns a fair sample of the runs, and every: one run in so many is among them. It costs about the same
// however many runs there are. The labels of f, and what else it has, are not looked at.
func (h *History) Series(ctx context.Context, f Filter, most int) (rows []Row, every int, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, 0, err
	}
	// First which series these are: with their numbers every planner finds the rows through the index.
	where, args := f.series(nil)
	keys, err := queryStrings(ctx, db, "SELECT CAST(s.id AS TEXT) FROM series AS s WHERE s.id >= 0"+where, args...)
	if err != nil {
		return nil, 0, fmt.Errorf("read a series: %w", err)
	}
	if len(keys) == 0 {
		return nil, 1, nil
	}
	from, to := f.span()
	query := "SELECT " + rowColumns + " FROM results AS r JOIN series AS s ON s.id = r.series_id WHERE r.series_id IN (" + strings.Join(keys, ", ") +
		") AND r.level = $1 AND r.started_at >= $2 AND r.started_at < $3 LIMIT $4"
	for l := maxLevel; l >= 0; l-- {
		some, err := queryRows(ctx, db, query, int64(l), from, to, int64(most-len(rows)+1))
		if err != nil {
			return nil, 0, fmt.Errorf("read a series: %w", err)
		}
		if len(rows)+len(some) > most && l < maxLevel {
			break
		}
		rows, every = append(rows, some...), 1<<(2*l)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.Run, b.Run), strings.Compare(a.Name, b.Name), cmp.Compare(a.Sample, b.Sample))
	})
	return rows, every, nil
}

// A Value is one value of something that runs are searched by.
type Value struct {
	Value       string
	First, Last time.Time // when runs with it began
}

// Values returns the values of name, which is target, workload, client, revision, kind, outcome or label.NAME, in the order
// in which they first appeared, at most 1,000.
func (h *History) Values(ctx context.Context, name string) ([]Value, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	// From one value to the next through the index: DISTINCT would read every run.
	rows, err := db.QueryContext(ctx, `WITH RECURSIVE v(value) AS (
		SELECT MIN(value) FROM run_labels WHERE name = $1
		UNION ALL
		SELECT (SELECT MIN(l.value) FROM run_labels AS l WHERE l.name = $1 AND l.value > v.value) FROM v WHERE v.value IS NOT NULL)
		SELECT v.value, (SELECT MIN(started_at) FROM run_labels AS l WHERE l.name = $1 AND l.value = v.value),
			(SELECT MAX(started_at) FROM run_labels AS l WHERE l.name = $1 AND l.value = v.value)
		FROM v WHERE v.value IS NOT NULL LIMIT 1000`, clean(name))
	if err != nil {
		return nil, fmt.Errorf("read the values of %s: %w", name, err)
	}
	defer rows.Close()
	var values []Value
	for rows.Next() {
		var v Value
		var first, last int64
		if err := rows.Scan(&v.Value, &first, &last); err != nil {
			return nil, fmt.Errorf("read the values of %s: %w", name, err)
		}
		v.First, v.Last = time.Unix(0, first).UTC(), time.Unix(0, last).UTC()
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b Value) int { return cmp.Or(a.First.Compare(b.First), strings.Compare(a.Value, b.Value)) })
	return values, rows.Err()
}

// Ping returns once the history can be read, or says why it can't.
func (h *History) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return err
	}
	return errors.Join(db.PingContext(ctx))
}
