package bench

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// A Wire is how to talk to the server of a target without a client library, a step at a time, so that each step can be
// measured and named by itself.
type Wire struct {
	Addr string      // host:port as configured; of several servers the first
	TLS  *tls.Config // nil: plain
	// StartTLS asks for TLS on a plain connection; nil where it begins at once.
	StartTLS func(conn net.Conn) error
	// Login takes over conn, on which TLS is done, and lets the server know who and where. It calls step with the name of
	// each step that it begins: auth, select. Each operation of the talk has timeout.
	Login func(ctx context.Context, conn net.Conn, timeout time.Duration, step func(name string)) (Talk, error)
}

// A Talk is a connection that is ready for commands: one write and one read for each, no library. One goroutine at a time
// uses it.
type Talk interface {
	// Echo is a round trip of which the server does next to nothing; a command that carries something carries size bytes
	// either way. A refusal is an answer too.
	Echo(size int) error
	// Get reads key, of Postgres the constant 1, and returns the bytes of the value, or ErrMiss.
	Get(key string) (int, error)
	// Set writes key; ErrUnsupported of Postgres.
	Set(key string, value []byte) error
	// Shut ends an operation that is going on in another goroutine, and those to come, with an error.
	Shut()
	Close() error
}

// A Greeter is a talk whose protocol has versions. Hello asks for the newest; nothing can be said after it.
type Greeter interface{ Hello() error }

// A Teller is a session whose server says how it is. Facts are by the server's own names, without a prefix; refused are the
// questions that it did not answer, with its reply.
type Teller interface {
	Facts(ctx context.Context) (facts map[string]string, refused map[string]error, err error)
}

// A Selector is a SQL store that selects a constant, without a table.
type Selector interface {
	Select(ctx context.Context) error
}

// A Pooled store says how its connections are used.
type Pooled interface{ Pool() PoolStats }

// PoolStats are running totals of a client's pool.
type PoolStats struct {
	Size     int           // connections it holds at most; 0: no limit
	Dials    int64         // connections it has opened
	Waits    int64         // operations that waited for a connection
	WaitTime time.Duration // of all of them
	Timeouts int64         // operations that waited in vain
}
