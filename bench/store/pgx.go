package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"

	"nsop/bench"
)

// A pgxWorker is a connection of pgx.
type pgxWorker struct {
	*bankStore
	conn *pgx.Conn
	tcp  *net.TCPConn // conn's, below TLS
}

func openPgx(ctx context.Context, s *bankStore) error {
	return s.open(ctx, func() (bankWorker, func(ctx context.Context) error) {
		w := &pgxWorker{bankStore: s}
		return w, w.dial
	})
}

func (w *pgxWorker) dial(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, w.config)
	if err != nil {
		return connectFailed(err)
	}
	w.conn, w.tcp = conn, socketOf(conn)
	return nil
}

// socketOf returns the socket of a connection.
func socketOf(c *pgx.Conn) *net.TCPConn {
	conn := c.PgConn().Conn()
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return conn.(*net.TCPConn) // the dialer makes no other
}

// ready dials again where the connection has failed, and bounds the operation to come: a deadline of the socket costs
// less than one of a context, for which the library starts a goroutine.
func (w *pgxWorker) ready(ctx context.Context) error {
	if w.conn.IsClosed() {
		if err := w.redial(ctx); err != nil {
			return fmt.Errorf("dial again: %w", err)
		}
	}
	return w.tcp.SetDeadline(time.Now().Add(w.o.Timeout))
}

func (w *pgxWorker) redial(ctx context.Context) error {
	w.tcp.Close() // the library may still wait for the server at the other end
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	if err := w.dial(ctx); err != nil {
		return explain(ctx, w.o.Timeout, err)
	}
	if err := w.prepare(ctx, w.conn); err != nil {
		w.tcp.Close()
		return explain(ctx, w.o.Timeout, err)
	}
	return nil
}

func (w *pgxWorker) use(ctx context.Context, f func(c *pgx.Conn) error) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	if err := w.tcp.SetDeadline(time.Time{}); err != nil { // the bound is that of ctx
		return err
	}
	return f(w.conn)
}

func (w *pgxWorker) Balance(ctx context.Context, account int) (int, error) {
	if err := w.ready(ctx); err != nil {
		return 0, err
	}
	return w.balance(ctx, int32(account))
}

func (w *pgxWorker) balance(ctx context.Context, account int32) (int, error) {
	var balance int32
	err := w.conn.QueryRow(ctx, w.sql.balance, account).Scan(&balance)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, bench.ErrMiss
	case err != nil:
		return 0, fmt.Errorf("select balance: %w", err)
	}
	return int(balance), nil
}

func (w *pgxWorker) Transfer(ctx context.Context, t bench.Transfer, simple bool) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	err := w.transfer(ctx, t, simple)
	if err != nil && !w.conn.IsClosed() {
		w.rollback(ctx)
	}
	return err
}

// transfer performs pgbench's script, each statement in a round trip of its own.
func (w *pgxWorker) transfer(ctx context.Context, t bench.Transfer, simple bool) error {
	delta, account, teller, branch := int32(t.Delta), int32(t.Account), int32(t.Teller), int32(t.Branch)
	if _, err := w.conn.Exec(ctx, "BEGIN"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if _, err := w.conn.Exec(ctx, w.sql.accounts, delta, account); err != nil {
		return fmt.Errorf("update account: %w", err)
	}
	if _, err := w.balance(ctx, account); err != nil {
		return err
	}
	if !simple {
		if _, err := w.conn.Exec(ctx, w.sql.tellers, delta, teller); err != nil {
			return fmt.Errorf("update teller: %w", err)
		}
		if _, err := w.conn.Exec(ctx, w.sql.branches, delta, branch); err != nil {
			return fmt.Errorf("update branch: %w", err)
		}
	}
	if _, err := w.conn.Exec(ctx, w.sql.history, teller, branch, account, delta); err != nil {
		return fmt.Errorf("insert history: %w", err)
	}
	if _, err := w.conn.Exec(ctx, "END"); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

// rollback ends the transaction that failed. Where that fails too the connection is given up.
func (w *pgxWorker) rollback(ctx context.Context) {
	if w.conn.PgConn().TxStatus() == 'I' {
		return
	}
	if err := w.tcp.SetDeadline(time.Now().Add(w.o.Timeout)); err != nil {
		return
	}
	if _, err := w.conn.Exec(ctx, "ROLLBACK"); err != nil {
		w.tcp.Close()
	}
}
