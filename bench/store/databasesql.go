package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"nsop/bench"
)

// A sqlWorker is a connection of database/sql, which it keeps as long as that works.
type sqlWorker struct {
	*bankStore
	db   *sql.DB
	tcp  *net.TCPConn
	gone bool // conn can't be used again

	mu   sync.Mutex // guards conn against close; the worker alone changes it
	conn *sql.Conn
}

func openDatabaseSQL(ctx context.Context, s *bankStore) error {
	db := stdlib.OpenDB(*s.config)
	db.SetMaxOpenConns(s.o.Connections)
	db.SetMaxIdleConns(s.o.Connections)
	var workers []*sqlWorker
	s.shut = sync.OnceFunc(func() {
		for _, w := range workers {
			w.close()
		}
		db.Close()
	})
	return s.open(ctx, func() (bankWorker, func(ctx context.Context) error) {
		w := &sqlWorker{bankStore: s, db: db}
		workers = append(workers, w)
		return w, w.dial
	})
}

func (w *sqlWorker) dial(ctx context.Context) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return connectFailed(err)
	}
	err = rawPgx(conn, func(c *pgx.Conn) error {
		w.tcp = socketOf(c)
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn, w.gone = conn, err != nil
	return err
}

// rawPgx calls f with the connection of pgx below one of database/sql.
func rawPgx(conn *sql.Conn, f func(c *pgx.Conn) error) error {
	return conn.Raw(func(driver any) error { return f(driver.(*stdlib.Conn).Conn()) })
}

func (w *sqlWorker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.conn.Close()
	}
}

// ready is as that of pgxWorker.
func (w *sqlWorker) ready(ctx context.Context) error {
	if w.gone {
		if err := w.redial(ctx); err != nil {
			return fmt.Errorf("dial again: %w", err)
		}
	}
	return w.tcp.SetDeadline(time.Now().Add(w.o.Timeout))
}

func (w *sqlWorker) redial(ctx context.Context) error {
	w.tcp.Close()
	w.close() // gives the place in the pool back
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	err := w.dial(ctx)
	if err == nil {
		err = rawPgx(w.conn, func(c *pgx.Conn) error { return w.prepare(ctx, c) })
		w.gone = err != nil
	}
	return explain(ctx, w.o.Timeout, err)
}

// inspect finds out after an error whether the connection is still good.
func (w *sqlWorker) inspect() {
	err := rawPgx(w.conn, func(c *pgx.Conn) error {
		if c.IsClosed() || c.PgConn().TxStatus() != 'I' {
			return net.ErrClosed
		}
		return nil
	})
	w.gone = err != nil
}

func (w *sqlWorker) use(ctx context.Context, f func(c *pgx.Conn) error) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	if err := w.tcp.SetDeadline(time.Time{}); err != nil {
		return err
	}
	err := rawPgx(w.conn, f)
	if err != nil {
		w.inspect()
	}
	return err
}

func (w *sqlWorker) Balance(ctx context.Context, account int) (int, error) {
	if err := w.ready(ctx); err != nil {
		return 0, err
	}
	balance, err := scanBalance(w.conn.QueryRowContext(ctx, w.sql.balance, int32(account)))
	if err != nil && err != bench.ErrMiss {
		w.inspect()
	}
	return balance, err
}

func scanBalance(row *sql.Row) (int, error) {
	var balance int32
	err := row.Scan(&balance)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, bench.ErrMiss
	case err != nil:
		return 0, fmt.Errorf("select balance: %w", err)
	}
	return int(balance), nil
}

func (w *sqlWorker) Transfer(ctx context.Context, t bench.Transfer, simple bool) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	err := w.transfer(ctx, t, simple)
	if err != nil {
		w.inspect()
	}
	return err
}

// transfer performs pgbench's script, each statement in a round trip of its own.
func (w *sqlWorker) transfer(ctx context.Context, t bench.Transfer, simple bool) error {
	delta, account, teller, branch := int32(t.Delta), int32(t.Account), int32(t.Teller), int32(t.Branch)
	tx, err := w.conn.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	committed := false
	defer func() {
		if !committed {
			w.tcp.SetDeadline(time.Now().Add(w.o.Timeout))
			tx.Rollback() // where it fails the connection is found unusable
		}
	}()
	if _, err := tx.ExecContext(ctx, w.sql.accounts, delta, account); err != nil {
		return fmt.Errorf("update account: %w", err)
	}
	if _, err := scanBalance(tx.QueryRowContext(ctx, w.sql.balance, account)); err != nil {
		return err
	}
	if !simple {
		if _, err := tx.ExecContext(ctx, w.sql.tellers, delta, teller); err != nil {
			return fmt.Errorf("update teller: %w", err)
		}
		if _, err := tx.ExecContext(ctx, w.sql.branches, delta, branch); err != nil {
			return fmt.Errorf("update branch: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, w.sql.history, teller, branch, account, delta); err != nil {
		return fmt.Errorf("insert history: %w", err)
	}
	committed = true
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
