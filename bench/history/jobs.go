package history

import (
	"context"
	"database/sql"
	"fmt"
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

// Arrived returns the attempt of each task of a job that is ready to start.
func (h *History) Arrived(ctx context.Context, execution string) (map[int]int, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	db, err := h.database(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT task, attempt FROM arrivals WHERE execution = $1", clean(execution))
	if err != nil {
		return nil, fmt.Errorf("read who is ready in %s: %w", execution, err)
	}
	defer rows.Close()
	arrived := map[int]int{}
	for rows.Next() {
		var task, attempt int
		if err := rows.Scan(&task, &attempt); err != nil {
			return nil, fmt.Errorf("read who is ready in %s: %w", execution, err)
		}
		arrived[task] = attempt
	}
	return arrived, rows.Err()
}
