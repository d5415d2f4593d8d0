package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"nsop/bench"
)

// parseMemcached returns the target of a URL of the form that s names.
func parseMemcached(s scheme, name, rest, _ string, _ func(string) string) (*bench.Target, error) {
	servers, err := parseServers(rest)
	if err != nil {
		return nil, err
	}
	return describe(&bench.Target{
		Name: name, Kind: "memcached", Address: strings.Join(servers, ","), Wire: memcachedWire(servers[0]),
		Connect: func(ctx context.Context, timeout time.Duration) (bench.Session, error) {
			return connectMemcached(ctx, servers, timeout)
		},
	}), nil
}

// parseServers returns the host:port of each server in rest, a URL after its scheme and a colon. None of its errors
// quotes more than a port: what stands there may be a password that the server would have no use for.
func parseServers(rest string) ([]string, error) {
	list, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return nil, errors.New("// is missing after the scheme")
	}
	if strings.Contains(list, "@") {
		return nil, errors.New("memcached takes no user name and no password")
	}
	list = strings.TrimSuffix(list, "/")
	if strings.ContainsAny(list, "/?#") {
		return nil, errors.New("a path, a query and a fragment have no meaning")
	}
	var servers []string
	for part := range strings.SplitSeq(list, ",") {
		u, err := url.Parse("memcached://" + part)
		if err != nil {
			return nil, errors.New("the list of servers does not parse")
		}
		host, port := u.Hostname(), u.Port()
		if host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == '\u007f' }) {
			return nil, errors.New("a host is missing")
		}
		if port == "" {
			port = "11211"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("port %.20q: want 1 to 65535", port)
		}
		server := net.JoinHostPort(host, port)
		if slices.Contains(servers, server) {
			return nil, errors.New("a server is given twice")
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// A memcachedSession has a connection to each server beside the measured ones. One that broke is dialled again.
type memcachedSession struct {
	timeout time.Duration
	nodes   []*memcachedNode
	server  bench.Server
	turn    chan struct{} // holds a token while nobody uses the nodes
}

// A memcachedNode is one server of a session.
type memcachedNode struct {
	addr   string // host:port as it was given
	at     string // the address that answered: the clients dial it, and look no name up while they are measured
	dialer *dialer
	conn   net.Conn // nil: not connected
	in     *bufio.Reader
}

// connectMemcached opens a session with servers, each of which has answered within timeout in all.
func connectMemcached(ctx context.Context, servers []string, timeout time.Duration) (*memcachedSession, error) {
	s := &memcachedSession{timeout: timeout, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	for _, addr := range servers {
		s.nodes = append(s.nodes, &memcachedNode{addr: addr, dialer: newDialer(endpoint{addr: addr}, timeout)})
	}
	if err := s.use(ctx, s.greet); err != nil {
		s.Close()
		return nil, err
	}
	for i, n := range s.nodes {
		for _, other := range s.nodes[:i] {
			if n.at == other.at {
				s.Close()
				return nil, fmt.Errorf("%s and %s are one server", other.addr, n.addr)
			}
		}
	}
	return s, nil
}

// use calls f for each server in turn, for at most the timeout in all.
func (s *memcachedSession) use(ctx context.Context, f func(n *memcachedNode) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	select {
	case <-s.turn:
	case <-ctx.Done():
		return explain(ctx, s.timeout, ctx.Err())
	}
	defer func() { s.turn <- struct{}{} }()
	for _, n := range s.nodes {
		if err := explain(ctx, s.timeout, n.use(ctx, f)); err != nil {
			if len(s.nodes) > 1 {
				err = fmt.Errorf("%s: %w", n.addr, err)
			}
			return err
		}
	}
	return nil
}

// use calls f with the connection, dialled where that is needed. One that failed, or that ctx cut off, is closed.
func (n *memcachedNode) use(ctx context.Context, f func(n *memcachedNode) error) error {
	if n.conn == nil {
		conn, err := n.dialer.dial(ctx)
		if err != nil {
			return err
		}
		n.conn, n.in, n.at = conn, bufio.NewReader(conn), conn.RemoteAddr().String()
	}
	conn := n.conn
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := f(n)
	if !stop() || err != nil {
		conn.Close()
		n.conn = nil
	}
	return err
}

// ask sends one command and returns the first line of the answer.
func (n *memcachedNode) ask(command string) (string, error) {
	if _, err := n.conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	return n.line()
}

func (n *memcachedNode) line() (string, error) {
	line, err := n.in.ReadSlice('\n') // a longer line than the buffer is none that memcached sends
	if err != nil {
		return "", err
	}
	return string(bytes.TrimRight(line, "\r\n")), nil
}

// ping returns the version of the server.
func (n *memcachedNode) ping() (string, error) {
	line, err := n.ask("version")
	if err != nil {
		return "", at("ping", err)
	}
	number, ok := strings.CutPrefix(line, "VERSION ")
	if !ok {
		return "", at("ping", memcachedRefusal(line))
	}
	return number, nil
}

// memcachedRefusal is the error that a line means which is not the answer expected.
func memcachedRefusal[T string | []byte](line T) error {
	for _, prefix := range []string{"SERVER_ERROR", "CLIENT_ERROR", "ERROR"} {
		if strings.HasPrefix(string(line), prefix) {
			return replyError(line)
		}
	}
	return fmt.Errorf("protocol: unexpected answer %.40q", line)
}

// greet finds out what a server is and how far away.
func (s *memcachedSession) greet(n *memcachedNode) error {
	for range 3 {
		started := time.Now()
		number, err := n.ping()
		if err != nil {
			return err
		}
		if took := time.Since(started); s.server.RoundTrip == 0 || took < s.server.RoundTrip {
			s.server.RoundTrip = took
		}
		version := "memcached " + number
		switch {
		case s.server.Version == "":
			// A full server drops old items rather than refuse new ones, so what is free does not matter.
			s.server.Version, s.server.Mode, s.server.Free = version, "standalone", -1
			if len(s.nodes) > 1 {
				s.server.Mode = "sharded"
			}
		case s.server.Version != version && len(s.server.Warnings) == 0:
			s.server.Warnings = append(s.server.Warnings, fmt.Sprintf("the servers differ: %s and %s", s.server.Version, version))
		}
	}
	return nil
}

func (s *memcachedSession) Server() bench.Server { return s.server }

// memcachedClients open the stores.
var memcachedClients = map[string]func(ctx context.Context, servers fleet, o bench.Options) (bench.Store, error){
	"gomemcache": openGomemcache,
	"floor":      openMemcachedFloor,
}

func (s *memcachedSession) Open(ctx context.Context, name string, o bench.Options) (bench.Store, error) {
	if _, err := clientOf("memcached", name); err != nil {
		return nil, err
	}
	if o.Connections < 1 || o.Timeout <= 0 {
		return nil, fmt.Errorf("open %s: want at least one connection and a timeout", name)
	}
	var servers fleet
	for _, n := range s.nodes {
		servers = append(servers, newDialer(endpoint{addr: n.at}, o.Timeout))
	}
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(opening, servers.close)
	store, err := memcachedClients[name](opening, servers, o)
	if !stop() && err == nil {
		store.Close()
		err = ctx.Err()
	}
	if err != nil {
		servers.close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return store, nil
}

// memcachedCalls are the statistics that count a command; those of a multi-get count its keys. Memcached does not say
// how long it takes over them.
var memcachedCalls = map[string][]string{
	"get": {"cmd_get"}, "mget": {"cmd_get"}, "set": {"cmd_set"}, "incr": {"incr_hits", "incr_misses"},
}

func (s *memcachedSession) Counters(ctx context.Context, command string) (bench.Counters, error) {
	var sum bench.Counters
	err := s.use(ctx, func(n *memcachedNode) error {
		stats, err := n.stats("stats")
		if err != nil {
			return at("stats", err)
		}
		for _, name := range memcachedCalls[strings.ToLower(command)] {
			calls, _ := strconv.ParseUint(stats[name], 10, 64)
			sum.Calls += calls
		}
		for _, name := range []string{"rusage_user", "rusage_system"} {
			seconds, _ := strconv.ParseFloat(stats[name], 64)
			sum.CPU += time.Duration(seconds * float64(time.Second))
		}
		return nil
	})
	if err != nil {
		return bench.Counters{}, fmt.Errorf("read counters: %w", err)
	}
	return sum, nil
}

// stats returns the server's answer to command, which is stats or a kind of it.
func (n *memcachedNode) stats(command string) (map[string]string, error) {
	line, err := n.ask(command)
	stats := map[string]string{}
	for ; err == nil && line != "END"; line, err = n.line() {
		fields := strings.SplitN(line, " ", 3)
		if len(fields) < 2 || fields[0] != "STAT" {
			return nil, memcachedRefusal(line)
		}
		stats[fields[1]] = strings.Join(fields[2:], "")
	}
	return stats, err
}

func (s *memcachedSession) Ping(ctx context.Context) error {
	return s.use(ctx, func(n *memcachedNode) error {
		_, err := n.ping()
		return err
	})
}

func (s *memcachedSession) Remove(ctx context.Context, keys iter.Seq[string]) error {
	batch := make([][]string, len(s.nodes)) // of each server
	index := map[*memcachedNode]int{}
	for i, n := range s.nodes {
		index[n] = i
	}
	flush := func() error {
		err := s.use(ctx, func(n *memcachedNode) error { return n.remove(batch[index[n]]) })
		for i := range batch {
			batch[i] = batch[i][:0]
		}
		return err
	}
	total := 0
	for key := range keys {
		i := pick(key, len(s.nodes))
		batch[i] = append(batch[i], key)
		if total++; total%removeBatch == 0 {
			if err := flush(); err != nil {
				return fmt.Errorf("remove keys: %w", err)
			}
		}
	}
	if total%removeBatch > 0 {
		if err := flush(); err != nil {
			return fmt.Errorf("remove keys: %w", err)
		}
	}
	return nil
}

// remove deletes keys in one round trip.
func (n *memcachedNode) remove(keys []string) error {
	var out []byte
	for _, key := range keys {
		out = append(append(append(out, "delete "...), key...), "\r\n"...)
	}
	if _, err := n.conn.Write(out); err != nil {
		return err
	}
	for range keys {
		line, err := n.line()
		if err != nil {
			return err
		}
		if line != "DELETED" && line != "NOT_FOUND" {
			return memcachedRefusal(line)
		}
	}
	return nil
}

// Close closes the session's own connections.
func (s *memcachedSession) Close() error {
	for _, n := range s.nodes {
		n.dialer.close()
	}
	return nil
}

// A fleet dials the servers of one target.
type fleet []*dialer

// open returns how many connections are not closed.
func (f fleet) open() (n int) {
	for _, d := range f {
		n += d.open()
	}
	return n
}

func (f fleet) close() {
	for _, d := range f {
		d.close()
	}
}

// each calls prove for each server at once.
func (f fleet) each(ctx context.Context, prove func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, d := range f {
		g.Go(func() error {
			err := prove(ctx, i)
			if err != nil && len(f) > 1 {
				err = fmt.Errorf("%s: %w", d.addr, err)
			}
			return err
		})
	}
	return g.Wait()
}

// memcachedSettings are those that the clients have in common.
func memcachedSettings(servers fleet, o bench.Options) map[string]any {
	return map[string]any{"retries": 0, "pool_size": o.Connections, "servers": len(servers), "protocol": "text",
		"timeout_ms": o.Timeout.Milliseconds(), "hash": "crc32 modulo servers"}
}
