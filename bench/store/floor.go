package store

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"nsop/bench"
)

// A floor is what the network and the sandbox allow at least: a socket for each worker, one write and one read for each
// round trip, no library. What a library costs is its figure less this one.
type floor struct {
	dialer *dialer
	o      bench.Options
	conns  []*floorConn
	next   atomic.Uint32
}

func openFloor(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error) {
	s := &floor{dialer: d, o: o}
	for range o.Connections {
		c := &floorConn{wire: wire{dialer: d, timeout: o.Timeout, alone: o.Connections == 1}, at: e}
		c.in.fill = c.read
		s.conns = append(s.conns, c)
	}
	var next atomic.Int32
	err := prove(ctx, o, func(ctx context.Context) (func() error, error) {
		c := s.conns[next.Add(1)-1]
		c.turn.Lock()
		defer c.turn.Unlock()
		defer context.AfterFunc(ctx, c.interrupt)()
		release := func() error { return nil }
		if err := c.connect(ctx); err != nil {
			return release, err
		}
		c.out = appendCommand(c.out[:0], bench.Cmd{"ECHO", "nsop"})
		return release, c.one()
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Dedicate returns the connection of that worker alone. What its Get returns and its replies hold is valid until the
// next call.
func (s *floor) Dedicate(worker int) bench.Store { return s.conns[worker] }

// take locks a connection, one that nobody uses if there is one.
func (s *floor) take() *floorConn {
	first := int(s.next.Add(1))
	for i := range s.conns {
		if c := s.conns[(first+i)%len(s.conns)]; c.turn.TryLock() {
			return c
		}
	}
	c := s.conns[first%len(s.conns)]
	c.turn.Lock()
	return c
}

func (s *floor) Get(ctx context.Context, key string) ([]byte, error) {
	c := s.take()
	defer c.turn.Unlock()
	v, err := c.get(ctx, key)
	return bytes.Clone(v), err // the connection's next user overwrites v
}

func (s *floor) Set(ctx context.Context, key string, value []byte) error {
	c := s.take()
	defer c.turn.Unlock()
	return c.set(ctx, key, value)
}

func (s *floor) Do(ctx context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	c := s.take()
	defer c.turn.Unlock()
	c.do(ctx, cmds, replies)
	for i := range replies {
		replies[i].Bytes = bytes.Clone(replies[i].Bytes)
	}
}

func (s *floor) Info() bench.Info {
	n := 0
	for _, c := range s.conns {
		n += c.Info().Connections
	}
	return bench.Info{Connections: n, Settings: map[string]any{
		"retries": 0, "pool_size": s.o.Connections, "protocol": 2, "timeout_ms": s.o.Timeout.Milliseconds(),
		"pooling": "a connection for each worker",
	}}
}

func (s *floor) Close() error {
	s.dialer.close()
	for _, c := range s.conns {
		c.interrupt()
	}
	for _, c := range s.conns {
		c.Close()
	}
	return nil
}

// A link is a connection that sends and receives.
type link interface {
	// send sends p, by the time the next read returns or, with more to come before it, at once. It starts the time
	// of an operation.
	send(p []byte, more bool) error
	read(p []byte) (int, error)
	// shut ends a read or write that another goroutine is in. The link stays to be closed.
	shut()
	close()
}

// A wire is one connection of a bare socket's store. It dials again when it is next used after it broke.
type wire struct {
	dialer  *dialer
	timeout time.Duration
	alone   bool // the only connection that is used at a time

	turn sync.Mutex // held by the operation going on; guards what follows
	link link       // nil: not connected. Changed under mu too
	out  []byte
	in   respReader

	mu     sync.Mutex // guards closed, and link against interrupt
	closed bool
}

func (c *wire) read(p []byte) (int, error) { return c.link.read(p) }

// A floorConn is one connection of a floor.
type floorConn struct {
	wire
	at    endpoint
	reply [2]bench.Reply
}

// Get returns the value of key, valid until the next call.
func (c *floorConn) Get(ctx context.Context, key string) ([]byte, error) {
	c.turn.Lock()
	v, err := c.get(ctx, key)
	c.turn.Unlock()
	return v, err
}

// Set writes key.
func (c *floorConn) Set(ctx context.Context, key string, value []byte) error {
	c.turn.Lock()
	err := c.set(ctx, key, value)
	c.turn.Unlock()
	return err
}

// Do sends cmds in one write. The replies are valid until the next call.
func (c *floorConn) Do(ctx context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	c.turn.Lock()
	c.do(ctx, cmds, replies)
	c.turn.Unlock()
}

// Inline sends line once for each reply, in one write. The replies are valid until the next call.
func (c *floorConn) Inline(ctx context.Context, line string, replies []bench.Reply) {
	c.turn.Lock()
	c.inline(ctx, line, replies)
	c.turn.Unlock()
}

func (c *floorConn) get(ctx context.Context, key string) ([]byte, error) {
	if c.link == nil {
		if err := c.connect(ctx); err != nil {
			return nil, err
		}
	}
	c.out = append(c.out[:0], "*2\r\n$3\r\nGET\r\n"...)
	c.out = appendBulk(c.out, key)
	if err := c.one(); err != nil {
		return nil, err
	}
	if c.reply[0].Nil {
		return nil, bench.ErrMiss
	}
	return c.reply[0].Bytes, nil
}

func (c *floorConn) set(ctx context.Context, key string, value []byte) error {
	if c.link == nil {
		if err := c.connect(ctx); err != nil {
			return err
		}
	}
	c.out = append(c.out[:0], "*5\r\n$3\r\nSET\r\n"...)
	c.out = appendBulk(c.out, key)
	c.out = appendBulk(c.out, value)
	c.out = append(c.out, "$2\r\nEX\r\n$4\r\n3600\r\n"...) // bench.TTL
	return c.one()
}

// one sends out, which is one command, and reads its reply into reply[0].
func (c *floorConn) one() error {
	if _, err := c.exchange(c.reply[:1]); err != nil {
		return err
	}
	return c.reply[0].Err
}

// flushAt is how much of a batch is put together before it is sent: a batch of any usual size goes out in one write, and
// one of large values does not have to fit in memory twice.
const flushAt = 1 << 20

func (c *floorConn) do(ctx context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	if c.link == nil {
		if err := c.connect(ctx); err != nil {
			fail(replies, err)
			return
		}
	}
	c.out = c.out[:0]
	for _, cmd := range cmds {
		if len(c.out) > flushAt {
			if err := c.link.send(c.out, true); err != nil {
				c.drop()
				fail(replies, err)
				return
			}
			c.out = c.out[:0]
		}
		c.out = appendCommand(c.out, cmd)
	}
	if n, err := c.exchange(replies[:len(cmds)]); err != nil {
		fail(replies[n:], err)
	}
}

func (c *floorConn) inline(ctx context.Context, line string, replies []bench.Reply) {
	if c.link == nil {
		if err := c.connect(ctx); err != nil {
			fail(replies, err)
			return
		}
	}
	c.out = c.out[:0]
	for range replies {
		c.out = append(append(c.out, line...), "\r\n"...)
	}
	if n, err := c.exchange(replies); err != nil {
		fail(replies[n:], err)
	}
}

// exchange sends out and reads the replies. It returns how many it read; a connection that failed is dropped.
func (c *floorConn) exchange(replies []bench.Reply) (int, error) {
	err := c.link.send(c.out, false)
	n := 0
	if err == nil {
		n, err = c.in.batch(replies)
	}
	if err != nil {
		c.drop()
	}
	return n, err
}

// connect dials and lets the server know who and where.
func (c *floorConn) connect(ctx context.Context) error {
	user, password, err := c.at.login(ctx)
	if err != nil {
		return err
	}
	return c.wire.connect(ctx, func() error { return c.handshake(user, password) })
}

// connect dials and calls handshake, within the timeout in all.
func (c *wire) connect(ctx context.Context, handshake func() error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := c.dialer.dial(ctx)
	if err != nil {
		return err
	}
	l, err := newLink(conn, c.timeout, c.alone)
	if err != nil {
		conn.Close()
		return fmt.Errorf("dial: %w", err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		l.close()
		return net.ErrClosed
	}
	c.link = l
	c.mu.Unlock()
	c.in.r, c.in.w = 0, 0
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.link == l {
			l.shut()
		}
	})()
	err = handshake()
	if err != nil && ctx.Err() != nil {
		return errTimeout("read")
	}
	return err
}

func (c *floorConn) handshake(user, password string) error {
	c.out = c.out[:0]
	var stages []string
	if password != "" {
		cmd := bench.Cmd{"AUTH", user, password}
		if user == "" {
			cmd = bench.Cmd{"AUTH", password}
		}
		c.out = appendCommand(c.out, cmd)
		stages = append(stages, "auth")
	}
	if c.at.db != 0 {
		c.out = appendCommand(c.out, bench.Cmd{"SELECT", strconv.Itoa(c.at.db)})
		stages = append(stages, "select")
	}
	if len(stages) == 0 {
		return nil
	}
	replies := c.reply[:len(stages)]
	if n, err := c.exchange(replies); err != nil {
		fail(replies[n:], err)
	}
	for i, stage := range stages {
		if err := replies[i].Err; err != nil {
			c.drop()
			return fmt.Errorf("%s: %w", stage, err)
		}
	}
	return nil
}

// drop closes the link, if there is one. The caller holds turn.
func (c *wire) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		c.link.close()
		c.link = nil
	}
}

// interrupt ends the operation that is going on and fails those to come.
func (c *wire) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.link != nil {
		c.link.shut()
	}
}

func (c *wire) Info() bench.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return bench.Info{}
	}
	return bench.Info{Connections: 1}
}

// Close ends an operation in flight and closes this connection alone.
func (c *wire) Close() error {
	c.interrupt()
	c.turn.Lock()
	c.drop()
	c.turn.Unlock()
	return nil
}

// A stream is the link over any connection: TLS, and systems without a cheaper one.
type stream struct {
	conn  net.Conn
	bound bound
}

func (l *stream) send(p []byte, _ bool) error {
	if err := l.bound.renew(l.conn); err != nil {
		return err
	}
	_, err := l.conn.Write(p)
	return err
}

func (l *stream) read(p []byte) (int, error) { return l.conn.Read(p) }

func (l *stream) shut() {
	if t, ok := l.conn.(interface{ NetConn() net.Conn }); ok {
		t.NetConn().Close() // closing TLS itself would wait for a write in flight
	}
	l.conn.Close()
}

func (l *stream) close() { l.shut() }

// A bound is the deadline of a connection, moved only when less than timeout is left: setting it costs as much as a
// tenth of a fast operation. An operation ends after timeout at the earliest and timeout and slack at the latest.
type bound struct {
	timeout time.Duration
	until   time.Time
}

func (b *bound) renew(conn net.Conn) error {
	now := time.Now()
	if b.until.Sub(now) >= b.timeout {
		return nil
	}
	b.until = now.Add(b.timeout + min(b.timeout/4, 500*time.Millisecond))
	return conn.SetDeadline(b.until)
}

// errTimeout is what a read or write beyond its time returns.
func errTimeout(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Err: os.ErrDeadlineExceeded}
}
