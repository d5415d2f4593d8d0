package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"nsop/bench"
	"nsop/gcp"
)

// parseRedis returns the target of a URL of the form that s names.
func parseRedis(s scheme, name, rest, password string, getenv func(string) string) (*bench.Target, error) {
	e, err := parseEndpoint(s, rest, password, getenv)
	if err != nil {
		return nil, err
	}
	return describe(&bench.Target{
		Name: name, Kind: "redis", Address: e.addr, TLS: s.tls, Wire: redisWire(e),
		Connect: func(ctx context.Context, timeout time.Duration) (bench.Session, error) {
			s, err := connectRedis(ctx, e, timeout)
			if err != nil {
				return nil, err
			}
			if err := s.alone(ctx); err != nil {
				s.Close()
				return nil, err
			}
			return s, nil
		},
	}), nil
}

// parseEndpoint returns the server that a URL means, which is rest after the name of scheme s and a colon.
func parseEndpoint(s scheme, rest, password string, getenv func(string) string) (endpoint, error) {
	authority, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return endpoint{}, errors.New("// is missing after the scheme")
	}
	// A password that is not encoded spills into what follows. Said here, since any other complaint would quote it.
	end := strings.IndexAny(authority, "/?#")
	if end >= 0 && strings.Contains(authority[end:], "@") {
		return endpoint{}, errors.New("/, ?, #, @ and % in a user name or password must be percent-encoded")
	}
	u, err := url.Parse(s.name + ":" + rest)
	if err != nil {
		// err quotes the URL.
		return endpoint{}, errors.New("the URL does not parse: check the port, and that the password is percent-encoded")
	}
	e := endpoint{user: u.User.Username()}
	e.password, _ = u.User.Password()
	switch {
	case e.password == "":
		e.password = password
	case password != "" && password != e.password:
		return endpoint{}, errors.New("the URL and REDIS_PASSWORD hold different passwords: give one")
	}
	if e.user != "" && e.password == "" {
		return endpoint{}, errors.New("a user name without a password")
	}
	if e.addr, err = address(u); err != nil {
		return endpoint{}, err
	}
	if e.db, err = database(u.Path); err != nil {
		return endpoint{}, err
	}
	if u.Fragment != "" {
		return endpoint{}, errors.New("a fragment (#) has no meaning")
	}
	byIAM, err := takeIAM(u)
	if err != nil {
		return endpoint{}, err
	}
	if byIAM {
		if e.user != "" || e.password != "" {
			return endpoint{}, errors.New("auth=iam brings its own user and password: leave yours out")
		}
		e.credentials = iam(gcp.NewTokens())
	}
	if e.tls, err = tlsConfig(s, u, getenv); err != nil {
		return endpoint{}, err
	}
	return e, nil
}

// address returns u's host and port, 6379 where it has none.
func address(u *url.URL) (string, error) {
	host, port := u.Hostname(), u.Port()
	if host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == ',' || r == '\u007f' }) {
		return "", errors.New("one host is wanted")
	}
	if port == "" {
		port = "6379"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %.20q: want 1 to 65535", port)
	}
	return net.JoinHostPort(host, port), nil
}

// database returns the number of the database in a URL's path.
func database(path string) (int, error) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(path, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("database %.40q: want a number", path)
	}
	return int(n), nil
}

// tlsConfig returns how to verify the server, nil where s has no TLS.
func tlsConfig(s scheme, u *url.URL, getenv func(string) string) (*tls.Config, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the query does not parse")
	}
	for key, values := range query {
		switch {
		case key != "ca" && key != "ca_env":
			return nil, fmt.Errorf("unknown query parameter %.40q: want auth, ca or ca_env", key)
		case !s.tls:
			return nil, fmt.Errorf("%s is for rediss and valkeys, which use TLS", key)
		case len(values) > 1 || values[0] == "" || len(query) > 1:
			return nil, errors.New("want one of ca=FILE and ca_env=NAME, once")
		}
	}
	if !s.tls {
		return nil, nil
	}
	conf := &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	if len(query) == 0 {
		return conf, nil
	}
	file, variable := query.Get("ca"), query.Get("ca_env")
	source, pem := "ca file "+strconv.Quote(file), []byte(nil)
	if file != "" {
		pem, err = os.ReadFile(file)
		if pathErr := (*os.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err // without the name a second time
		}
	} else {
		source = "ca_env " + strconv.Quote(variable)
		if pem = []byte(getenv(variable)); len(pem) == 0 {
			err = errors.New("the variable is empty")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", source, err)
	}
	conf.RootCAs = x509.NewCertPool()
	if !conf.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read %s: no certificate in PEM form in it", source)
	}
	return conf, nil
}

// parseEmbedded returns the target of a server inside this process, which starts when a session is opened and ends
// with it.
func parseEmbedded(_ scheme, name, rest, _ string, _ func(string) string) (*bench.Target, error) {
	if rest != "redis" {
		return nil, errors.New("unknown embedded store")
	}
	return describe(&bench.Target{
		Name: name, Kind: "redis", Embedded: true,
		Connect: func(ctx context.Context, timeout time.Duration) (bench.Session, error) {
			server := miniredis.NewMiniRedis()
			if err := server.Start(); err != nil {
				return nil, fmt.Errorf("start embedded redis: %w", err)
			}
			s, err := connectRedis(ctx, endpoint{addr: server.Addr()}, timeout)
			if err != nil {
				server.Close()
				return nil, err
			}
			s.embedded = server
			s.server.Version = strings.TrimSpace("miniredis " + strings.TrimPrefix(version("github.com/alicebob/miniredis/v2"), "v"))
			return s, nil
		},
	}), nil
}

// A redisSession is a connection of its own beside the measured ones. It is dialled again after it broke.
type redisSession struct {
	at       endpoint
	dialer   *dialer
	timeout  time.Duration
	server   bench.Server
	embedded *miniredis.Miniredis // nil: the server is not ours

	turn chan struct{} // holds a token while nobody uses conn
	conn redis.Conn    // nil: not connected
	sock net.Conn      // conn's

	held *redisSession // subscribed while a run is registered; nil: none is
}

// connectRedis opens a session with the server at e, which has answered within timeout. The error names the stage that
// failed: dial, tls, auth, select or ping.
func connectRedis(ctx context.Context, e endpoint, timeout time.Duration) (*redisSession, error) {
	s := newRedisSession(e, timeout)
	if err := s.use(ctx, s.greet); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// newRedisSession is a session that has not dialled.
func newRedisSession(e endpoint, timeout time.Duration) *redisSession {
	s := &redisSession{at: e, dialer: newDialer(e, timeout), timeout: timeout, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// use calls f with the connection, for at most the timeout in all. A connection that failed, or that ctx cut off, is
// closed: the next use dials again.
func (s *redisSession) use(ctx context.Context, f func(c redis.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	select {
	case <-s.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	err := s.connected(ctx, f)
	if s.conn != nil && (s.conn.Err() != nil || ctx.Err() != nil) {
		s.conn.Close()
		s.conn = nil
	}
	return explain(ctx, s.timeout, err)
}

// explain says what err meant for something done under ctx, whose deadline was timeout away: the end of ctx closes the
// connection, which by itself looks like any broken one.
func explain(ctx context.Context, timeout time.Duration, err error) error {
	stage, cause := "", err
	if e := (*stageError)(nil); errors.As(err, &e) {
		stage, cause = e.stage+": ", e.err
	}
	timedOut := func(err error) bool {
		e := net.Error(nil)
		return errors.As(err, &e) && e.Timeout()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s%w", stage, context.Canceled)
	case timedOut(cause):
		return fmt.Errorf("%sno answer within %v: %w", stage, timeout, cause)
	case ctx.Err() != nil:
		return fmt.Errorf("%sno answer within %v: %w", stage, timeout, os.ErrDeadlineExceeded)
	}
	return err
}

// A stageError is the failure of one stage.
type stageError struct {
	stage string
	err   error
}

func (e *stageError) Error() string { return e.stage + ": " + e.err.Error() }
func (e *stageError) Unwrap() error { return e.err }

// at wraps err, if it is one, with the stage it happened in.
func at(stage string, err error) error {
	if err == nil {
		return nil
	}
	return &stageError{stage, err}
}

// connected dials where that is needed and calls f; the end of ctx closes the socket under both.
func (s *redisSession) connected(ctx context.Context, f func(c redis.Conn) error) error {
	fresh := s.conn == nil
	if fresh {
		sock, err := s.dialer.dial(ctx)
		if err != nil {
			return err
		}
		s.sock, s.conn = sock, redis.NewConn(sock, s.timeout, s.timeout)
	}
	sock := s.sock
	defer context.AfterFunc(ctx, func() { sock.Close() })()
	if fresh {
		if err := s.handshake(ctx); err != nil {
			s.conn.Close()
			s.conn = nil
			return err
		}
	}
	return f(s.conn)
}

func (s *redisSession) handshake(ctx context.Context) error {
	user, password, err := s.at.login(ctx)
	if err != nil {
		return err
	}
	if password != "" {
		args := []any{user, password}
		if user == "" {
			args = args[1:]
		}
		if _, err := s.conn.Do("AUTH", args...); err != nil {
			// A server that does not know AUTH quotes what came with it.
			if reply, ok := err.(redis.Error); ok {
				err = redis.Error(strings.ReplaceAll(string(reply), password, "***"))
			}
			return at("auth", err)
		}
	}
	if s.at.db != 0 {
		if _, err := s.conn.Do("SELECT", s.at.db); err != nil {
			return at("select", err)
		}
	}
	return nil
}

// greet finds out what the server is and how far away.
func (s *redisSession) greet(c redis.Conn) error {
	s.server = bench.Server{Version: "redis", Free: -1}
	for i := range 3 {
		took, err := echo(c)
		if err != nil {
			return err
		}
		if i == 0 || took < s.server.RoundTrip {
			s.server.RoundTrip = took
		}
	}
	// ECHO is answered also by a server that can't serve data yet; a read is not. It is no command that is measured.
	_, err := c.Do("EXISTS", "nsop:ready")
	if err != nil && (c.Err() != nil || notServing(err)) {
		return at("ping", err)
	}
	info, err := readInfo(c, "server")
	if err != nil {
		return at("info", err)
	}
	switch {
	case info["valkey_version"] != "":
		s.server.Version = "valkey " + info["valkey_version"]
	case info["redis_version"] != "":
		s.server.Version = "redis " + info["redis_version"]
	}
	s.server.Mode = info["redis_mode"]
	if info, err = readInfo(c, "memory"); err != nil {
		return at("info", err)
	}
	s.server.Free = freeMemory(info)
	return nil
}

// freeMemory returns the bytes that a server has free by its INFO of memory, -1 where it has no limit or does not say.
func freeMemory(info map[string]string) int64 {
	limit, err := strconv.ParseInt(info["maxmemory"], 10, 64)
	if err != nil || limit <= 0 {
		return -1
	}
	used, err := strconv.ParseInt(info["used_memory"], 10, 64)
	if err != nil {
		return -1
	}
	return max(limit-used, 0)
}

// alone is an error where the server is one of several nodes of a cluster, which only a cluster's client gets along with.
// A proxy before a cluster, which follows redirects itself, is none.
func (s *redisSession) alone(ctx context.Context) error {
	if s.server.Mode != "cluster" {
		return nil
	}
	return s.use(ctx, func(c redis.Conn) error {
		for i := range 16 { // keys of as many slots; a node with half of them all would be taken for alone once in 65536
			_, err := c.Do("EXISTS", "nsop:ready:"+strconv.Itoa(i))
			if c.Err() != nil {
				return at("ping", err)
			}
			if bench.Kind(err) == "moved" {
				scheme := "redis"
				if s.at.tls != nil {
					scheme = "rediss"
				}
				return &bench.KindError{Kind: "moved", Text: fmt.Sprintf("the server is one of several nodes of a cluster (%v): the URL wants to begin with %s+cluster://", err, scheme)}
			}
		}
		return nil
	})
}

// echo asks for an answer and returns how long it took. It is not PING, whose count in the server's statistics belongs to
// what is measured.
func echo(c redis.Conn) (time.Duration, error) {
	started := time.Now()
	_, err := c.Do("ECHO", "nsop")
	if err != nil && (c.Err() != nil || !answered(err)) {
		return 0, at("ping", err)
	}
	return time.Since(started), nil
}

// notServing reports whether err is the reply of a server that will not serve data for now.
func notServing(err error) bool {
	for _, prefix := range []string{"LOADING", "MASTERDOWN", "BUSY", "NOAUTH", "DENIED", "CLUSTERDOWN"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// readInfo returns a section of INFO, empty where the server refuses it.
func readInfo(c redis.Conn, section string) (map[string]string, error) {
	text, err := redis.String(c.Do("INFO", section))
	if c.Err() != nil {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	return parseInfo(text), nil
}

// parseInfo returns the fields of an INFO reply.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(key, "#") {
			fields[key] = value
		}
	}
	return fields
}

func (s *redisSession) Server() bench.Server { return s.server }

func (s *redisSession) Open(ctx context.Context, name string, o bench.Options) (bench.Store, error) {
	return openRedis(ctx, "redis", name, s.at, o)
}

// openRedis opens the store of a client of that kind at e.
func openRedis(ctx context.Context, kind, name string, e endpoint, o bench.Options) (bench.Store, error) {
	c, err := clientOf(kind, name)
	if err != nil {
		return nil, err
	}
	if o.Connections < 1 || o.Timeout <= 0 {
		return nil, fmt.Errorf("open %s: want at least one connection and a timeout", name)
	}
	d := newDialer(e, o.Timeout)
	stop := context.AfterFunc(ctx, d.close) // ends a library's handshake whether or not it minds ctx
	store, err := c.open(ctx, d, e, o)
	if !stop() && err == nil {
		store.Close()
		err = ctx.Err()
	}
	if err != nil {
		d.close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return store, nil
}

func (s *redisSession) Counters(ctx context.Context, command string) (bench.Counters, error) {
	var counters bench.Counters
	err := s.use(ctx, func(c redis.Conn) error {
		stats, err := readInfo(c, "commandstats")
		if err != nil {
			return at("info", err)
		}
		if len(stats) == 0 {
			return errors.ErrUnsupported
		}
		cpu, err := readInfo(c, "cpu")
		if err != nil {
			return at("info", err)
		}
		counters = parseCounters(command, stats, cpu)
		return nil
	})
	if err != nil {
		return bench.Counters{}, fmt.Errorf("read counters: %w", err)
	}
	return counters, nil
}

// parseCounters returns the counters of command that the sections commandstats and cpu of INFO hold.
func parseCounters(command string, stats, cpu map[string]string) (counters bench.Counters) {
	// A command that was never called is not listed.
	calls := parseFields(stats["cmdstat_"+strings.ToLower(command)])
	counters.Calls, _ = strconv.ParseUint(calls["calls"], 10, 64)
	usec, _ := strconv.ParseInt(calls["usec"], 10, 64)
	counters.Time = time.Duration(usec) * time.Microsecond
	user, _ := strconv.ParseFloat(cpu["used_cpu_user"], 64) // seconds
	system, _ := strconv.ParseFloat(cpu["used_cpu_sys"], 64)
	counters.CPU = time.Duration((user + system) * float64(time.Second))
	return counters
}

// parseFields returns the fields of "calls=1,usec=2".
func parseFields(text string) map[string]string {
	fields := map[string]string{}
	for field := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(field, "="); ok {
			fields[key] = value
		}
	}
	return fields
}

func (s *redisSession) Ping(ctx context.Context) error {
	return s.use(ctx, func(c redis.Conn) error {
		_, err := echo(c)
		return err
	})
}

// removeBatch is how many keys are removed in one round trip.
const removeBatch = 500

func (s *redisSession) Remove(ctx context.Context, keys iter.Seq[string]) error {
	next, stop := iter.Pull(keys)
	defer stop()
	batch := make([]string, 0, removeBatch)
	for more := true; more; {
		batch = batch[:0]
		for len(batch) < removeBatch {
			var key string
			if key, more = next(); !more {
				break
			}
			batch = append(batch, key)
		}
		if len(batch) == 0 {
			break
		}
		if err := s.use(ctx, func(c redis.Conn) error { return remove(c, batch) }); err != nil {
			return fmt.Errorf("remove keys: %w", err)
		}
	}
	return nil
}

// remove deletes keys. UNLINK frees a large collection beside the server's work, which DEL would hold up; servers before 4.0
// and users who may not have DEL alone.
func remove(c redis.Conn, keys []string) error {
	refused, err := removeBy(c, "UNLINK", keys)
	if kind := bench.Kind(err); c.Err() == nil && (kind == "unsupported" || kind == "noperm") {
		_, err = removeBy(c, "DEL", refused)
	}
	return err
}

// removeBy sends a command for each key, since a cluster's proxy refuses one over several slots, and returns the keys for
// which it was refused, with the first reason. A refused one does not keep the rest.
func removeBy(c redis.Conn, command string, keys []string) (refused []string, first error) {
	for _, key := range keys {
		if err := c.Send(command, key); err != nil {
			return nil, err
		}
	}
	if err := c.Flush(); err != nil {
		return nil, err
	}
	for _, key := range keys {
		_, err := c.Receive()
		if c.Err() != nil {
			return nil, err
		}
		if err != nil {
			refused = append(refused, key)
			first = cmp.Or(first, err)
		}
	}
	return refused, first
}

// leftKey is the hash that holds the runs whose keys have no TTL, and which keys those are. It is gone when it is empty.
const leftKey = "nsop:left"

// Register also subscribes to a channel of the run's name, which tells others that the run is going on: a server drops a
// subscriber whose process was killed.
func (s *redisSession) Register(ctx context.Context, run, note string) error {
	s.held = newRedisSession(s.at, s.timeout)
	if _, err := s.held.ledger(ctx, "SUBSCRIBE", channelOf(run)); err != nil {
		return err
	}
	_, err := s.ledger(ctx, "HSET", leftKey, run, note)
	return err
}

func channelOf(run string) string { return "nsop:" + run }

func (s *redisSession) Registered(ctx context.Context) (notes map[string]string, err error) {
	reply, err := s.ledger(ctx, "HGETALL", leftKey)
	pairs, ok := reply.([]any)
	if err != nil || !ok { // what is no list holds no notes
		return nil, err
	}
	if notes, err = redis.StringMap(pairs, nil); err != nil {
		return nil, fmt.Errorf("read %s: %w", leftKey, err)
	}
	for run := range notes {
		reply, err := s.ledger(ctx, "PUBSUB", "NUMSUB", channelOf(run))
		if err != nil {
			return nil, err
		}
		if counts, ok := reply.([]any); ok && len(counts) == 2 && counts[1] != int64(0) {
			delete(notes, run) // it is going on elsewhere
		}
	}
	return notes, nil
}

func (s *redisSession) Unregister(ctx context.Context, run string) error {
	if s.held != nil {
		s.held.dialer.close()
		s.held = nil
	}
	_, err := s.ledger(ctx, "HDEL", leftKey, run)
	return err
}

// ledger performs a command. Who may not keep notes has none: that is no reason not to measure.
func (s *redisSession) ledger(ctx context.Context, command string, args ...any) (reply any, err error) {
	err = s.use(ctx, func(c redis.Conn) error {
		answer, err := c.Do(command, args...)
		if err == nil {
			reply = answer // beside an error it is that error
		}
		if kind := bench.Kind(err); c.Err() == nil && (kind == "noperm" || kind == "unsupported") {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(command), leftKey, err)
	}
	return reply, nil
}

// Close closes the session's own connection, and an embedded server with all that is connected to it.
func (s *redisSession) Close() error {
	s.dialer.close()
	if s.held != nil {
		s.held.dialer.close()
	}
	if s.embedded != nil {
		s.embedded.Close()
	}
	return nil
}
