package history

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// A Part is what one task of a job measured, a JSON object.
type Part struct {
	Task, Attempt int
	Body          []byte
}

// SavePart keeps the part of a task, in place of what an earlier attempt of it measured.
func (h *History) SavePart(ctx context.Context, execution string, p Part) error {
	ctx, cancel := context.WithTimeout(ctx, h.saves)
	defer cancel()
	body, err := pack(p.Body)
	if err == nil {
		err = h.write(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO parts (execution, task, attempt, saved_at, body) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (execution, task) DO UPDATE SET attempt = excluded.attempt, saved_at = excluded.saved_at, body = excluded.body
				WHERE parts.attempt <= excluded.attempt`, clean(execution), int64(p.Task), int64(p.Attempt), h.now().UnixNano(), body)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("save the part of task %d: %w", p.Task, err)
	}
	return nil
}

// Parts returns the parts of a job, by task.
func (h *History) Parts(ctx context.Context, execution string) ([]Part, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT task, attempt, body FROM parts WHERE execution = $1 ORDER BY task", clean(execution))
	if err != nil {
		return nil, fmt.Errorf("read the parts of %s: %w", execution, err)
	}
	defer rows.Close()
	var parts []Part
	for rows.Next() {
		var p Part
		var body []byte
		err := rows.Scan(&p.Task, &p.Attempt, &body)
		if err == nil {
			p.Body, err = unpack(body)
		}
		if err != nil {
			return nil, fmt.Errorf("read the parts of %s: %w", execution, err)
		}
		parts = append(parts, p)
	}
	return parts, rows.Err()
}

// Arrive says that a task is ready to start.
func (h *History) Arrive(ctx context.Context, execution string, task, attempt int) error {
	ctx, cancel := context.WithTimeout(ctx, h.saves)
	defer cancel()
	err := h.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO arrivals (execution, task, attempt, arrived_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (execution, task) DO UPDATE SET attempt = excluded.attempt, arrived_at = excluded.arrived_at
			WHERE arrivals.attempt <= excluded.attempt`, clean(execution), int64(task), int64(attempt), h.now().UnixNano())
		return err
	})
	if err != nil {
		return fmt.Errorf("announce task %d: %w", task, err)
	}
	return nil
}

// An Arrival is when an attempt of a task was ready, by the clock of its machine.
type Arrival struct {
	Attempt int
	At      time.Time
}

// Arrived returns who is ready in each of executions, by task.
func (h *History) Arrived(ctx context.Context, executions ...string) (map[string]map[int]Arrival, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(executions))
	arrived := map[string]map[int]Arrival{}
	for i, e := range executions {
		names[i] = clean(e)
		arrived[e] = map[int]Arrival{}
	}
	rows, err := db.QueryContext(ctx, "SELECT execution, task, attempt, arrived_at FROM arrivals WHERE execution IN ("+placeholders(1, len(names))+")", anys(names)...)
	if err != nil {
		return nil, fmt.Errorf("read who is ready: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var task int
		var a Arrival
		var at int64
		if err := rows.Scan(&name, &task, &a.Attempt, &at); err != nil {
			return nil, fmt.Errorf("read who is ready: %w", err)
		}
		a.At = time.Unix(0, at)
		for i, e := range executions {
			if names[i] == name {
				arrived[e][task] = a
			}
		}
	}
	return arrived, rows.Err()
}
