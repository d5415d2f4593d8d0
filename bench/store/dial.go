package store

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"nsop/bench"
)

// An endpoint is where a server listens and how it lets a client in.
type endpoint struct {
	addr           string
	user, password string
	credentials    credentials // nil: user and password
	db             int
	tls            *tls.Config // nil: plain TCP
}

// node is the same at the address of another node of the cluster, whose certificate is for its own host.
func (e endpoint) node(addr string) endpoint {
	if e.tls != nil && addr != e.addr {
		e.tls = e.tls.Clone()
		e.tls.ServerName, _, _ = net.SplitHostPort(addr)
	}
	e.addr = addr
	return e
}

// A dialer opens connections to one server or cluster and remembers them, so that closing it ends whatever any client has in
// flight. It hands out the bare connection: a wrapper would cost in the timed path, and would hide from a library that it
// is a socket.
type dialer struct {
	addr    string
	tls     *tls.Config
	timeout time.Duration
	ended   context.Context // done once the dialer is closed
	end     context.CancelFunc

	dials atomic.Int64 // connections opened so far

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
	prune int // size of conns at which those closed since are forgotten
}

// newDialer returns a dialer to e; timeout bounds the dial and the TLS handshake together.
func newDialer(e endpoint, timeout time.Duration) *dialer {
	ended, end := context.WithCancel(context.Background())
	return &dialer{
		addr: e.addr, tls: e.tls, timeout: timeout, ended: ended, end: end,
		conns: map[*net.TCPConn]struct{}{}, prune: 16,
	}
}

// dial opens a connection. Its error begins with the stage that failed, dial or tls.
func (d *dialer) dial(ctx context.Context) (net.Conn, error) { return d.dialNode(ctx, "", d.addr) }

// dialNode dials a node of a cluster in the form that libraries take.
func (d *dialer) dialNode(ctx context.Context, _, addr string) (net.Conn, error) {
	e := endpoint{addr: d.addr, tls: d.tls}.node(addr)
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	defer context.AfterFunc(d.ended, cancel)()
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, "tcp", e.addr)
	if err != nil {
		if d.ended.Err() != nil {
			err = net.ErrClosed
		}
		return nil, at("dial", err)
	}
	tcp := conn.(*net.TCPConn)
	if err := d.track(tcp); err != nil {
		tcp.Close()
		return nil, at("dial", err)
	}
	d.dials.Add(1)
	if e.tls == nil {
		return tcp, nil
	}
	secure := tls.Client(tcp, e.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		tcp.Close()
		if d.ended.Err() != nil {
			err = net.ErrClosed
		}
		return nil, at("tls", fmt.Errorf("handshake: %w", err))
	}
	return secure, nil
}

// dialNet is dial in the form that libraries take, which name the address themselves.
func (d *dialer) dialNet(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx) }

func (d *dialer) track(c *net.TCPConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended.Err() != nil {
		return net.ErrClosed
	}
	if len(d.conns) >= d.prune {
		d.forget()
		d.prune = 2*len(d.conns) + 16
	}
	d.conns[c] = struct{}{}
	return nil
}

// forget drops the connections that are closed. The caller holds mu.
func (d *dialer) forget() {
	for c := range d.conns {
		if isClosed(c) {
			delete(d.conns, c)
		}
	}
}

// open returns how many of the connections are not closed.
func (d *dialer) open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget()
	return len(d.conns)
}

// close closes every connection, ends dials under way and fails those to come. It may be called twice.
func (d *dialer) close() {
	d.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		// The socket below TLS: closing the TLS connection would wait for a write in flight.
		c.Close()
	}
	clear(d.conns)
}

// isClosed reports whether this process has closed c; it costs no system call.
func isClosed(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// maxDials is how many connections are opened at once: more would overflow the listen queue of a server with the usual
// backlog and measure that.
const maxDials = 64

// prove opens o.Connections connections and returns once each has answered, or one failed. It holds every connection
// until then, so that a pool has to open that many, and only then calls their release. Each has o.Timeout in all.
func prove(ctx context.Context, o bench.Options, open func(ctx context.Context) (release func() error, err error)) error {
	var g *errgroup.Group
	g, ctx = errgroup.WithContext(ctx)
	g.SetLimit(maxDials)
	releases := make([]func() error, o.Connections)
	for i := range releases {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, o.Timeout)
			defer cancel()
			var err error
			releases[i], err = open(ctx)
			if err != nil && !answered(err) {
				return explain(ctx, o.Timeout, err)
			}
			return nil
		})
	}
	err := g.Wait()
	for _, release := range releases {
		release()
	}
	return err
}

// answered reports whether err is the reply of a server that would not perform this command but does serve: one that
// asks for a password, is loading its data or has no room for the connection does not.
func answered(err error) bool {
	return strings.HasPrefix(err.Error(), "NOPERM") || strings.Contains(err.Error(), "unknown command")
}

// left returns the time until ctx's deadline, at least a moment, since libraries take 0 for no limit.
func left(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(deadline), time.Microsecond)
}
