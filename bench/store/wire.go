package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"nsop/bench"
)

// redisWire is how to reach a Redis server without a library.
func redisWire(e endpoint) *bench.Wire {
	return &bench.Wire{Addr: e.addr, TLS: e.tls, Login: func(ctx context.Context, conn net.Conn, timeout time.Duration, step func(string)) (bench.Talk, error) {
		l, err := newTalkLink(conn, timeout)
		if err != nil {
			conn.Close()
			return nil, at("dial", err)
		}
		t := &redisTalk{link: l}
		t.in.fill = l.read
		defer context.AfterFunc(ctx, l.shut)()
		if err := t.login(ctx, e, step); err != nil {
			l.close()
			return nil, err
		}
		return t, nil
	}}
}

// newTalkLink takes over conn. It waits in the runtime's poller, as libraries do: a thread that sleeps in a read wakes
// sooner, but keeps the other goroutines of a small machine waiting meanwhile.
func newTalkLink(conn net.Conn, timeout time.Duration) (link, error) {
	return newLink(conn, timeout, false)
}

// A redisTalk is the connection of a floor, without its pool.
type redisTalk struct {
	link  link
	in    respReader
	out   []byte
	reply [1]bench.Reply
}

func (t *redisTalk) login(ctx context.Context, e endpoint, step func(string)) error {
	user, password, err := e.login(ctx)
	if err != nil {
		return at("auth", err)
	}
	if password != "" {
		step("auth")
		cmd := bench.Cmd{"AUTH", user, password}
		if user == "" {
			cmd = bench.Cmd{"AUTH", password}
		}
		err := t.do(cmd)
		if reply := replyError(""); errors.As(err, &reply) { // one that does not know AUTH quotes what came with it
			err = replyError(strings.ReplaceAll(string(reply), password, "***"))
		}
		if err != nil {
			return at("auth", err)
		}
	}
	if e.db != 0 {
		step("select")
		if err := t.do(bench.Cmd{"SELECT", strconv.Itoa(e.db)}); err != nil {
			return at("select", err)
		}
	}
	return nil
}

// do performs one command, whose reply is valid until the next.
func (t *redisTalk) do(cmd bench.Cmd) error {
	t.out = appendCommand(t.out[:0], cmd)
	return t.exchange()
}

func (t *redisTalk) exchange() error {
	if err := t.link.send(t.out, false); err != nil {
		return err
	}
	if _, err := t.in.batch(t.reply[:]); err != nil {
		return err
	}
	return t.reply[0].Err
}

// refused reports whether err is a server's reply and not the failure of a connection.
func refused(err error) bool {
	reply := replyError("")
	return errors.As(err, &reply)
}

// payload is what echoes carry.
var payload = strings.Repeat("nsop", 256)

func (t *redisTalk) Echo(size int) error {
	err := t.do(bench.Cmd{"ECHO", payload[:min(size, len(payload))]})
	if refused(err) && answered(err) {
		return nil
	}
	return err
}

func (t *redisTalk) Get(key string) (int, error) {
	t.out = append(t.out[:0], "*2\r\n$3\r\nGET\r\n"...)
	t.out = appendBulk(t.out, key)
	if err := t.exchange(); err != nil {
		return 0, err
	}
	if t.reply[0].Nil {
		return 0, bench.ErrMiss
	}
	return len(t.reply[0].Bytes), nil
}

func (t *redisTalk) Set(key string, value []byte) error {
	t.out = append(t.out[:0], "*5\r\n$3\r\nSET\r\n"...)
	t.out = appendBulk(t.out, key)
	t.out = appendBulk(t.out, value)
	t.out = append(t.out, "$2\r\nEX\r\n$4\r\n3600\r\n"...) // bench.TTL
	return t.exchange()
}

// Hello asks for RESP3. The answer is a map of that protocol, of which no more than the kind is looked at.
func (t *redisTalk) Hello() error {
	if err := t.link.send([]byte("*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"), false); err != nil {
		return err
	}
	kind, line, err := t.in.line()
	switch {
	case err != nil:
		return err
	case kind == '-':
		return replyError(line)
	}
	return nil
}

func (t *redisTalk) Shut()        { t.link.shut() }
func (t *redisTalk) Close() error { t.link.close(); return nil }

// Facts are the fields of INFO, those of CONFIG with the prefix config. and the length of the slow log.
func (s *redisSession) Facts(ctx context.Context) (facts map[string]string, refused map[string]error, err error) {
	facts, refused = map[string]string{}, map[string]error{}
	err = s.use(ctx, func(c redis.Conn) error {
		text, err := redis.String(c.Do("INFO", "all"))
		if c.Err() != nil {
			return at("info", err)
		}
		if err != nil {
			refused["INFO"] = err
		}
		for key, value := range parseInfo(text) {
			facts[key] = value
		}
		for _, name := range []string{"timeout", "maxclients", "maxmemory-policy", "slowlog-log-slower-than"} {
			pair, err := redis.Strings(c.Do("CONFIG", "GET", name))
			if c.Err() != nil {
				return at("config", err)
			}
			if err != nil {
				refused["CONFIG"] = err
				break
			}
			if len(pair) == 2 {
				facts["config."+name] = pair[1]
			}
		}
		// The number of the newest entry grows also where the log is full.
		entries, err := redis.Values(c.Do("SLOWLOG", "GET", 1))
		if c.Err() != nil {
			return at("slowlog", err)
		}
		if err != nil {
			refused["SLOWLOG"] = err
			return nil
		}
		facts["slowlog"] = "0"
		if len(entries) > 0 {
			if entry, err := redis.Values(entries[0], nil); err == nil && len(entry) > 0 {
				id, err := redis.Int64(entry[0], nil)
				if err == nil {
					facts["slowlog"] = strconv.FormatInt(id+1, 10)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read facts: %w", err)
	}
	return facts, refused, nil
}

// memcachedWire is how to reach a Memcached server without a library.
func memcachedWire(addr string) *bench.Wire {
	return &bench.Wire{Addr: addr, Login: func(_ context.Context, conn net.Conn, timeout time.Duration, _ func(string)) (bench.Talk, error) {
		l, err := newTalkLink(conn, timeout)
		if err != nil {
			conn.Close()
			return nil, at("dial", err)
		}
		return &memcachedTalk{l, bufio.NewReaderSize(reader{l}, 64<<10)}, nil
	}}
}

// A reader is what a link reads, as io.Reader wants it.
type reader struct{ link link }

func (r reader) Read(p []byte) (int, error) {
	n, err := r.link.read(p)
	if n == 0 && err == nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

type memcachedTalk struct {
	link link
	in   *bufio.Reader
}

// ask sends one command and returns the first line of the answer, valid until more is read.
func (t *memcachedTalk) ask(parts ...[]byte) ([]byte, error) {
	if err := t.link.send(bytes.Join(parts, nil), false); err != nil {
		return nil, err
	}
	line, err := t.in.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

// Echo asks for the version: no command of Memcached carries something of any size back without an item.
func (t *memcachedTalk) Echo(int) error {
	line, err := t.ask([]byte("version\r\n"))
	if err == nil && !bytes.HasPrefix(line, []byte("VERSION ")) {
		err = memcachedRefusal(line)
	}
	return err
}

func (t *memcachedTalk) Get(key string) (int, error) {
	line, err := t.ask([]byte("get "), []byte(key), []byte("\r\n"))
	if err != nil {
		return 0, err
	}
	if string(line) == "END" {
		return 0, bench.ErrMiss
	}
	fields := bytes.Fields(line)
	if len(fields) != 4 || string(fields[0]) != "VALUE" {
		return 0, memcachedRefusal(line)
	}
	n, err := strconv.ParseUint(string(fields[3]), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("protocol: malformed length %.32q", fields[3])
	}
	_, err = t.in.Discard(int(n) + len("\r\nEND\r\n"))
	return int(n), err
}

func (t *memcachedTalk) Set(key string, value []byte) error {
	line, err := t.ask([]byte(fmt.Sprintf("set %s 0 %d %d\r\n", key, int(bench.TTL.Seconds()), len(value))), value, []byte("\r\n"))
	if err == nil && string(line) != "STORED" {
		err = memcachedRefusal(line)
	}
	return err
}

func (t *memcachedTalk) Shut()        { t.link.shut() }
func (t *memcachedTalk) Close() error { t.link.close(); return nil }

// Facts are the general statistics and, with the prefix settings., the settings. Of several servers they are the first's.
func (s *memcachedSession) Facts(ctx context.Context) (facts map[string]string, refused map[string]error, err error) {
	err = s.use(ctx, func(n *memcachedNode) error {
		if n != s.nodes[0] {
			return nil
		}
		if facts, err = n.stats("stats"); err != nil {
			return at("stats", err)
		}
		settings, err := n.stats("stats settings")
		for name, value := range settings {
			facts["settings."+name] = value
		}
		return at("stats settings", err)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read facts: %w", err)
	}
	return facts, nil, nil
}

// postgresWire is how to reach a Postgres server without a library, but for the messages up to the end of the
// authentication, which are the library's.
func postgresWire(e endpoint, database string) *bench.Wire {
	w := &bench.Wire{Addr: e.addr, TLS: e.tls}
	if e.tls != nil {
		w.StartTLS = func(conn net.Conn) error {
			// SSLRequest (PostgreSQL, "Message Formats"): length 8, code 80877103.
			if _, err := conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil {
				return at("tls", err)
			}
			var answer [1]byte
			if _, err := io.ReadFull(conn, answer[:]); err != nil {
				return at("tls", err)
			}
			if answer[0] != 'S' {
				return &bench.KindError{Kind: "tls", Text: "tls: the server takes no TLS connections"}
			}
			return nil
		}
	}
	w.Login = func(ctx context.Context, conn net.Conn, timeout time.Duration, step func(string)) (bench.Talk, error) {
		step("auth")
		config, err := postgresConfig(nil, e, database, "simple")
		if err != nil {
			conn.Close()
			return nil, at("auth", err)
		}
		config.TLSConfig = nil // it is done
		config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		c, err := pgconn.ConnectConfig(ctx, &config.Config)
		if err != nil {
			conn.Close()
			return nil, at("auth", connectFailed(err))
		}
		hijacked, err := c.Hijack()
		if err == nil {
			err = conn.SetDeadline(time.Time{})
		}
		var l link
		if err == nil {
			l, err = newTalkLink(conn, timeout)
		}
		if err != nil {
			conn.Close()
			return nil, at("auth", err)
		}
		_ = hijacked // holds nothing but the connection
		return &postgresTalk{link: l, in: bufio.NewReaderSize(reader{l}, 16<<10)}, nil
	}
	return w
}

type postgresTalk struct {
	link link
	in   *bufio.Reader
	out  []byte
}

// query sends a simple query and reads up to ReadyForQuery. It returns the bytes of the rows.
func (t *postgresTalk) query(sql string) (bytes int, err error) {
	n := 4 + len(sql) + 1
	t.out = append(t.out[:0], 'Q', byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	t.out = append(append(t.out, sql...), 0)
	if err := t.link.send(t.out, false); err != nil {
		return 0, err
	}
	var refusal error
	for {
		head, err := t.in.Peek(5)
		if err != nil {
			return 0, err
		}
		kind, length := head[0], int(head[1])<<24|int(head[2])<<16|int(head[3])<<8|int(head[4])
		if length < 4 || length > maxLine {
			return 0, errors.New("protocol: a message of an impossible length")
		}
		if kind == 'E' && refusal == nil {
			text, err := t.in.Peek(min(1+length, t.in.Size()))
			if err != nil {
				return 0, err
			}
			refusal = postgresRefusal(text[5:])
		}
		if _, err := t.in.Discard(1 + length); err != nil {
			return 0, err
		}
		switch kind {
		case 'D':
			bytes += length - 4
		case 'Z':
			return bytes, refusal
		}
	}
}

// postgresRefusal is what the fields of an ErrorResponse say.
func postgresRefusal(fields []byte) error {
	e := &pgconn.PgError{}
	for field := range bytes.SplitSeq(fields, []byte{0}) {
		if len(field) < 2 {
			continue
		}
		switch value := string(field[1:]); field[0] {
		case 'S':
			e.Severity = value
		case 'C':
			e.Code = value
		case 'M':
			e.Message = value
		}
	}
	return e
}

// Echo is an empty query.
func (t *postgresTalk) Echo(int) error {
	_, err := t.query("")
	return err
}

func (t *postgresTalk) Get(string) (int, error) { return t.query("SELECT 1") }

func (t *postgresTalk) Set(string, []byte) error {
	return fmt.Errorf("set a key in postgres: %w", errors.ErrUnsupported)
}

func (t *postgresTalk) Shut() { t.link.shut() }

func (t *postgresTalk) Close() error {
	t.link.send([]byte{'X', 0, 0, 0, 4}, false) // lest the server complains in its log
	t.link.close()
	return nil
}

// postgresFacts are queries of one row; the columns' names are those of the facts.
var postgresFacts = []struct{ name, sql string }{
	{"settings", `SELECT current_setting('server_version') AS server_version, current_setting('max_connections') AS max_connections,
		(current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true), '0')::int)::text AS reserved_connections,
		pg_is_in_recovery()::text AS in_recovery, current_setting('transaction_read_only') AS read_only,
		extract(epoch FROM pg_postmaster_start_time())::text AS started`},
	{"pg_stat_database", `SELECT sum(numbackends)::text AS numbackends, sum(xact_commit)::text AS xact_commit, sum(deadlocks)::text AS deadlocks,
		sum(blks_hit)::text AS blks_hit, sum(blks_read)::text AS blks_read FROM pg_stat_database`},
	{"pg_stat_activity", `SELECT count(*) FILTER (WHERE state = 'active' AND pid <> pg_backend_pid())::text AS active,
		coalesce(max(extract(epoch FROM now() - query_start)) FILTER (WHERE state = 'active' AND pid <> pg_backend_pid()), 0)::text AS longest_seconds,
		count(*) FILTER (WHERE wait_event_type = 'Lock')::text AS waiting FROM pg_stat_activity WHERE backend_type = 'client backend'`},
	{"pg_stat_replication", `SELECT count(*)::text AS connected_replicas FROM pg_stat_replication`},
}

// Facts are the columns of postgresFacts and, as select_ms, what the server says that selecting a constant takes it.
func (s *postgresSession) Facts(ctx context.Context) (facts map[string]string, refused map[string]error, err error) {
	facts, refused = map[string]string{}, map[string]error{}
	err = s.use(ctx, s.timeout, func(ctx context.Context, c *pgx.Conn) error {
		for _, q := range postgresFacts {
			rows, err := c.Query(ctx, q.sql)
			if err == nil {
				var row map[string]any
				if row, err = pgx.CollectOneRow(rows, pgx.RowToMap); err == nil {
					for name, value := range row {
						facts[name], _ = value.(string)
					}
				}
			}
			if err = forgive(err, q.name, refused); err != nil {
				return err
			}
		}
		return forgive(explainSelect(ctx, c, facts), "EXPLAIN", refused)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read facts: %w", err)
	}
	return facts, refused, nil
}

// explainSelect asks a few times what planning and executing takes, and keeps the least.
func explainSelect(ctx context.Context, c *pgx.Conn, facts map[string]string) error {
	least := -1.0
	for range 5 {
		rows, err := c.Query(ctx, "EXPLAIN (ANALYZE, SUMMARY) SELECT 1")
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		sum := 0.0
		for _, line := range lines {
			_, text, ok := strings.Cut(line, " Time: ")
			ms, err := strconv.ParseFloat(strings.TrimSuffix(text, " ms"), 64)
			if ok && err == nil {
				sum += ms
			}
		}
		if sum > 0 && (least < 0 || sum < least) {
			least = sum
		}
	}
	if least >= 0 {
		facts["select_ms"] = strconv.FormatFloat(least, 'f', -1, 64)
	}
	return nil
}

// forgive notes err as the answer to a question, where it is the server's.
func forgive(err error, question string, refused map[string]error) error {
	if reply := (*pgconn.PgError)(nil); errors.As(err, &reply) {
		refused[question] = reply
		return nil
	}
	return err
}

// Select selects a constant through the library.
func (s *bankStore) Select(ctx context.Context) error {
	w := <-s.free
	defer func() { s.free <- w }()
	return w.(bench.Selector).Select(ctx)
}

func (w *pgxWorker) Select(ctx context.Context) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	var one int
	return w.conn.QueryRow(ctx, "SELECT 1").Scan(&one)
}

func (w *sqlWorker) Select(ctx context.Context) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	var one int
	err := w.conn.QueryRowContext(ctx, "SELECT 1").Scan(&one)
	if err != nil {
		w.inspect()
	}
	return err
}
