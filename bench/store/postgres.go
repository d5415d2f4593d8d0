package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"nsop/bench"
)

// postgresModes are how a statement reaches the server, by the name of the protocol.
var postgresModes = map[string]pgx.QueryExecMode{
	"simple":   pgx.QueryExecModeSimpleProtocol, // the values in the text
	"extended": pgx.QueryExecModeExec,           // parsed each time, in the same round trip
	"prepared": pgx.QueryExecModeCacheStatement, // by the name of a statement that the server has parsed before
	"":         pgx.QueryExecModeSimpleProtocol,
}

// parsePostgres returns the target of a URL of the form that s names.
func parsePostgres(s scheme, name, rest, password string, getenv func(string) string) (*bench.Target, error) {
	e, database, err := parsePostgresURL(s, rest, password, getenv)
	if err != nil {
		return nil, err
	}
	return describe(&bench.Target{
		Name: name, Kind: "postgres", Address: e.addr, TLS: e.tls != nil, Wire: postgresWire(e, database),
		Connect: func(ctx context.Context, timeout time.Duration) (bench.Session, error) {
			return connectPostgres(ctx, e, database, timeout)
		},
	}), nil
}

// parsePostgresURL returns the server and the database that a URL means. None of its errors quotes the URL, of which a
// password may be any part.
func parsePostgresURL(s scheme, rest, password string, getenv func(string) string) (e endpoint, database string, err error) {
	authority, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return e, "", errors.New("// is missing after the scheme")
	}
	if end := strings.IndexAny(authority, "/?#"); end >= 0 && strings.Contains(authority[end:], "@") {
		return e, "", errors.New("/, ?, #, @ and % in a user name or password must be percent-encoded")
	}
	u, err := url.Parse(s.name + ":" + rest)
	if err != nil {
		return e, "", errors.New("the URL does not parse: check the port, and that the password is percent-encoded")
	}
	e.user = u.User.Username()
	e.password, _ = u.User.Password()
	if e.password != "" && password != "" && e.password != password {
		return e, "", errors.New("the URL and POSTGRES_PASSWORD hold different passwords: give one")
	}
	if e.password == "" {
		e.password = password
	}
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = "5432"
	}
	database = strings.TrimPrefix(u.Path, "/")
	if database == "" {
		database = e.user // as libpq does
	}
	unfit := func(text string) bool {
		return text == "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == '\u007f' })
	}
	n, portErr := strconv.ParseUint(port, 10, 16)
	switch {
	case unfit(e.user):
		return e, "", errors.New("a user name is wanted")
	case unfit(host) || strings.ContainsAny(host, ", "):
		return e, "", errors.New("one host is wanted")
	case portErr != nil || n == 0:
		return e, "", fmt.Errorf("port %.20q: want 1 to 65535", port)
	case unfit(database) || strings.Contains(database, "/"):
		return e, "", errors.New("the path is the name of one database")
	case u.Fragment != "":
		return e, "", errors.New("a fragment (#) has no meaning")
	}
	e.addr = net.JoinHostPort(host, port)
	e.tls, err = postgresTLS(u, getenv)
	return e, database, err
}

// sslModes are the values of sslmode. Those of libpq that try without encryption and with it are not among them: a
// result must say which of the two it measured.
var sslModes = []string{"disable", "require", "verify-ca", "verify-full"}

// postgresTLS returns how to verify the server, as libpq does for each sslmode; nil means a plain connection.
func postgresTLS(u *url.URL, getenv func(string) string) (*tls.Config, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the query does not parse")
	}
	authority := url.Values{}
	for key, values := range query {
		if len(values) > 1 || values[0] == "" {
			return nil, fmt.Errorf("want %.40q once, with a value", key)
		}
		switch key {
		case "sslmode":
			if !slices.Contains(sslModes, values[0]) {
				return nil, fmt.Errorf("sslmode %.40q: want one of %s", values[0], strings.Join(sslModes, ", "))
			}
		case "sslrootcert", "ca":
			if authority.Has("ca") {
				return nil, errors.New("want one of sslrootcert, ca and ca_env, once")
			}
			authority.Set("ca", values[0])
		case "ca_env":
			authority.Set("ca_env", values[0])
		default:
			return nil, fmt.Errorf("unknown query parameter %.40q: want sslmode, sslrootcert, ca or ca_env", key)
		}
	}
	mode := query.Get("sslmode")
	switch {
	case mode == "" && len(authority) > 0:
		mode = "verify-full"
	case mode == "" || mode == "disable" && len(authority) == 0:
		return nil, nil
	case mode == "disable":
		return nil, errors.New("sslmode=disable has no use for a certificate")
	}
	conf, err := tlsConfig(scheme{name: "postgres", tls: true}, &url.URL{Host: u.Host, RawQuery: authority.Encode()}, getenv)
	if err != nil || mode == "verify-full" {
		return conf, err
	}
	conf.InsecureSkipVerify = true // the host's name is not compared
	if mode == "verify-ca" || len(authority) > 0 {
		conf.VerifyConnection = func(state tls.ConnectionState) error {
			options := x509.VerifyOptions{Roots: conf.RootCAs, Intermediates: x509.NewCertPool()}
			for _, c := range state.PeerCertificates[1:] {
				options.Intermediates.AddCert(c)
			}
			_, err := state.PeerCertificates[0].Verify(options)
			return err
		}
	}
	return conf, nil
}

// postgresConfig is how to connect through d, or as the caller sets DialFunc where that is nil. Nothing is taken from the PG* variables or the files that libpq reads.
func postgresConfig(d *dialer, e endpoint, database, protocol string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig("host=localhost user=nsop sslmode=disable passfile=''")
	if err != nil {
		return nil, errors.New("configure pgx: PGSERVICE or another PG variable is set and wrong")
	}
	host, port, _ := net.SplitHostPort(e.addr)
	n, _ := strconv.ParseUint(port, 10, 16)
	c.Host, c.Port, c.User, c.Password, c.Database = host, uint16(n), e.user, e.password, database
	c.TLSConfig, c.Fallbacks, c.ConnectTimeout = e.tls, nil, 0
	c.ValidateConnect, c.AfterConnect, c.OnNotice = nil, nil, nil
	c.RuntimeParams = map[string]string{"application_name": "nsop", "client_encoding": "UTF8"}
	if d != nil {
		c.DialFunc = d.dialNet
	}
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // the dialer does
	c.DefaultQueryExecMode = postgresModes[protocol]
	return c, nil
}

// connectFailed is err as it is told: the stage, and what the server or the network said. The library's own text names
// the user and the database before that.
func connectFailed(err error) error {
	var (
		refused *pgconn.PgError
		staged  *stageError
		whole   *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &refused):
		return at("connect", refused)
	case errors.As(err, &staged):
		return staged
	case errors.As(err, &whole) && strings.Contains(err.Error(), "refused TLS"): // an error without a type
		return &bench.KindError{Kind: "tls", Text: "tls: the server takes no TLS connections"}
	case errors.As(err, &whole):
		return at("connect", whole.Unwrap())
	}
	return err
}

// patience is how long a server that has no room is asked again: one that has just been left needs a moment to notice.
const patience = time.Second

// patiently calls connect until the server has room.
func patiently(ctx context.Context, connect func() error) error {
	for until := time.Now().Add(patience); ; {
		err := connect()
		if err == nil {
			return nil
		}
		err = connectFailed(err)
		if bench.Kind(err) != "maxclients" || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A postgresSession holds no connection while none of its methods runs: a role may be allowed not one more than the
// measured ones.
type postgresSession struct {
	at       endpoint
	database string
	timeout  time.Duration
	run      context.Context // of Connect: once it has ended there is only a moment left for Close
	lost     bool            // the server did not answer when it was last asked
	server   bench.Server
	settings map[string]any // of the server, that the figures depend on
	room     string         // how many connections it takes, in words
	books    books
}

// connectPostgres opens a session with the server at e, which has answered within timeout.
func connectPostgres(ctx context.Context, e endpoint, database string, timeout time.Duration) (*postgresSession, error) {
	s := &postgresSession{at: e, database: database, timeout: timeout, run: ctx}
	if err := s.use(ctx, timeout, s.greet); err != nil {
		return nil, err
	}
	return s, nil
}

// use calls f with a connection that lives no longer, for at most bound in all.
func (s *postgresSession) use(ctx context.Context, bound time.Duration, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	d := newDialer(endpoint{addr: s.at.addr}, bound) // TLS begins after a first message, which is the library's business
	defer d.close()
	config, err := postgresConfig(d, s.at, s.database, "simple")
	if err != nil {
		return err
	}
	var c *pgx.Conn
	err = patiently(ctx, func() (err error) {
		c, err = pgx.ConnectConfig(ctx, config)
		return err
	})
	if err != nil {
		return explain(ctx, bound, err)
	}
	err = f(ctx, c)
	if !c.IsClosed() {
		leave(c)
	} else {
		d.close()
		<-c.PgConn().CleanupDone()
	}
	return explain(ctx, bound, err)
}

// leave ends a connection and waits a moment for the server to have freed its place.
func leave(c *pgx.Conn) {
	hijacked, err := c.PgConn().Hijack()
	if err != nil {
		return // closed, or left in the middle of something: its socket is closed next
	}
	defer hijacked.Conn.Close()
	hijacked.Conn.SetDeadline(time.Now().Add(patience))
	hijacked.Frontend.Send(&pgproto3.Terminate{})
	if hijacked.Frontend.Flush() == nil {
		io.Copy(io.Discard, hijacked.Conn)
	}
}

// greet finds out what the server is and how far away.
func (s *postgresSession) greet(ctx context.Context, c *pgx.Conn) error {
	for i := range 3 {
		started := time.Now()
		if err := c.Ping(ctx); err != nil {
			return at("ping", err)
		}
		if took := time.Since(started); i == 0 || took < s.server.RoundTrip {
			s.server.RoundTrip = took
		}
	}
	var (
		standby          bool
		commit, fsync    string
		most, kept, more int
	)
	err := c.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'),
		current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int,
		coalesce(current_setting('reserved_connections', true), '0')::int`).Scan(&standby, &commit, &fsync, &most, &kept, &more)
	if err != nil {
		return at("ask", err)
	}
	number, _, _ := strings.Cut(c.PgConn().ParameterStatus("server_version"), " ") // Debian adds its own
	s.server.Version, s.server.Mode, s.server.Free = "PostgreSQL "+number, "primary", -1
	if standby {
		s.server.Mode = "standby"
	}
	s.settings = map[string]any{"synchronous_commit": commit, "fsync": fsync}
	s.room = fmt.Sprintf("max_connections is %d, of which an ordinary role gets %d less what others use", most, most-kept-more)
	return nil
}

func (s *postgresSession) Server() bench.Server { return s.server }

func (s *postgresSession) Open(ctx context.Context, name string, o bench.Options) (bench.Store, error) {
	if _, err := clientOf("postgres", name); err != nil {
		return nil, err
	}
	if _, ok := postgresModes[o.Protocol]; !ok || o.Connections < 1 || o.Timeout <= 0 {
		return nil, fmt.Errorf("open %s: want at least one connection, a timeout and a protocol", name)
	}
	d := newDialer(endpoint{addr: s.at.addr}, o.Timeout)
	config, err := postgresConfig(d, s.at, s.database, o.Protocol)
	if err != nil {
		return nil, err
	}
	store := &bankStore{session: s, dialer: d, config: config, o: o, client: name, free: make(chan bankWorker, o.Connections), shut: func() {}}
	opening, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	stop := context.AfterFunc(opening, d.close)
	err = bankClients[name](opening, store)
	if !stop() && err == nil {
		err = opening.Err()
	}
	if err != nil {
		err = explain(opening, o.Timeout, err)
		store.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if bench.Kind(err) == "maxclients" {
			return nil, fmt.Errorf("open %s: %d connections are more than the server has room for (%s): lower concurrency or raise max_connections: %w", name, o.Connections, s.room, err)
		}
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	for _, w := range store.workers {
		store.free <- w
	}
	return store, nil
}

// Counters are not told: the statistics of Postgres are for all that happens in a database together.
func (s *postgresSession) Counters(context.Context, string) (bench.Counters, error) {
	return bench.Counters{}, fmt.Errorf("read counters of postgres: %w", errors.ErrUnsupported)
}

func (s *postgresSession) Ping(ctx context.Context) error {
	err := s.use(ctx, s.timeout, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
	s.lost = err != nil
	return err
}

// Remove has nothing to do: the workloads of Postgres write no keys.
func (s *postgresSession) Remove(context.Context, iter.Seq[string]) error { return nil }

// schemaPrefix begins the name of the schema of a run, which ends with the run's UUID.
const schemaPrefix = "nsop_"

// schemaOf is the quoted name of the schema of a run.
func schemaOf(run string) string { return pgx.Identifier{schemaPrefix + run}.Sanitize() }

// runBegan returns when the run began that has this name, which ok says is one: a UUIDv7, whose first 48 bits are
// milliseconds since 1970 (RFC 9562, section 5.7).
func runBegan(run string) (began time.Time, ok bool) {
	id, err := uuid.Parse(run)
	if err != nil || id.Version() != 7 || id.Variant() != uuid.RFC4122 || id.String() != run {
		return time.Time{}, false
	}
	return time.Unix(id.Time().UnixTime()), true
}

// stale tells whether what the run made was left behind: no run takes so long.
func stale(run string, now time.Time) bool {
	began, ok := runBegan(run)
	return ok && now.Sub(began) > bench.TTL
}

// Registered lists the runs whose schema was left behind; it may be dropped by whoever its role is granted to.
func (s *postgresSession) Registered(ctx context.Context) (map[string]string, error) {
	runs := map[string]string{}
	if s.server.Mode == "standby" {
		return runs, nil
	}
	err := s.use(ctx, s.timeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname ~ '^nsop_' AND pg_has_role(nspowner, 'USAGE')`)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, name := range names {
			if run := strings.TrimPrefix(name, schemaPrefix); stale(run, time.Now()) {
				runs[run] = ""
			}
		}
		return err
	})
	return runs, err
}

// Register has nothing to do: the name of a schema says whose it is.
func (s *postgresSession) Register(context.Context, string, string) error { return nil }

// Unregister drops the schema that a run left behind.
func (s *postgresSession) Unregister(ctx context.Context, run string) error {
	if !stale(run, time.Now()) {
		return nil
	}
	return s.use(ctx, s.timeout, func(ctx context.Context, c *pgx.Conn) error { return dropSchema(ctx, c, run) })
}

func dropSchema(ctx context.Context, c *pgx.Conn, run string) error {
	if _, err := c.Exec(ctx, "DROP SCHEMA IF EXISTS "+schemaOf(run)+" CASCADE"); err != nil {
		return fmt.Errorf("drop schema %s%s: %w", schemaPrefix, run, err)
	}
	return nil
}

// Close looks whether the books of the run are right, and drops its schema.
func (s *postgresSession) Close() error {
	if s.books.run == "" {
		return nil
	}
	bound := s.timeout + s.books.slack()
	if s.lost || s.run.Err() != nil {
		bound = min(time.Second, bound)
	}
	err := s.use(context.WithoutCancel(s.run), bound, func(ctx context.Context, c *pgx.Conn) error {
		return errors.Join(s.books.audit(ctx, c), dropSchema(ctx, c, s.books.run))
	})
	if err != nil && s.lost {
		return fmt.Errorf("schema %s%s was left behind, a run an hour from now drops it: %w", schemaPrefix, s.books.run, err)
	}
	s.books.run = ""
	return err
}
