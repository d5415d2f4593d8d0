package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"nsop/bench"
)

// bankSQL are the statements of pgbench's scripts for the tables of one schema.
type bankSQL struct{ accounts, balance, tellers, branches, history string }

func bankStatements(schema string) *bankSQL {
	return &bankSQL{
		accounts: "UPDATE " + schema + ".pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2",
		balance:  "SELECT abalance FROM " + schema + ".pgbench_accounts WHERE aid = $1",
		tellers:  "UPDATE " + schema + ".pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2",
		branches: "UPDATE " + schema + ".pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2",
		history:  "INSERT INTO " + schema + ".pgbench_history (tid, bid, aid, delta, mtime) VALUES ($1, $2, $3, $4, CURRENT_TIMESTAMP)",
	}
}

// books are what a session knows of the tables of its run: what must balance at the end.
type books struct {
	run   string // "": no tables
	scale int
	ready bool
	// The history is emptied before each row, as pgbench does; deltas is what it summed up to each time, and tellers
	// what the tellers had when it was last empty.
	deltas, tellers int64
	broken          []error
}

// slack is how much longer a statement over whole tables may take than one operation: 15 MB a unit of scale.
func (b *books) slack() time.Duration { return time.Duration(b.scale) * 2 * time.Second }

// load makes the tables of the run, or makes them ready for another row.
func (b *books) load(ctx context.Context, c *pgx.Conn, run string, scale int) error {
	if b.ready && b.run == run && b.scale == scale {
		return b.turn(ctx, c)
	}
	if b.run != "" && b.run != run {
		return errors.New("a session has the tables of one run")
	}
	if b.run != "" { // of another scale, or left unfinished
		if err := dropSchema(ctx, c, run); err != nil {
			return err
		}
		*b = books{}
	}
	b.scale = scale
	if err := b.create(ctx, c, run); err != nil {
		if !c.IsClosed() && c.PgConn().TxStatus() != 'I' {
			c.Exec(ctx, "ROLLBACK")
		}
		return err
	}
	b.ready = true
	return nil
}

// create makes and fills the tables as pgbench -i does, but in one transaction, which leaves nothing where it fails.
func (b *books) create(ctx context.Context, c *pgx.Conn, run string) error {
	schema := schemaOf(run)
	if err := execAll(ctx, c, "BEGIN", "CREATE SCHEMA "+schema); err != nil {
		return err
	}
	b.run = run // from here on it is ours to drop
	err := execAll(ctx, c,
		"CREATE TABLE "+schema+".pgbench_history(tid int,bid int,aid int,delta int,mtime timestamp,filler char(22))",
		"CREATE TABLE "+schema+".pgbench_tellers(tid int not null,bid int,tbalance int,filler char(84)) WITH (fillfactor=100)",
		"CREATE TABLE "+schema+".pgbench_accounts(aid int not null,bid int,abalance int,filler char(84)) WITH (fillfactor=100)",
		"CREATE TABLE "+schema+".pgbench_branches(bid int not null,bbalance int,filler char(88)) WITH (fillfactor=100)")
	if err != nil {
		return err
	}
	for _, t := range []struct {
		table  string
		rows   int
		append func(line []byte, i int64) []byte
	}{
		{"branches", b.scale, func(line []byte, i int64) []byte {
			return append(strconv.AppendInt(line, i, 10), "\t0\t\\N\n"...)
		}},
		{"tellers", bench.TellersPerBranch * b.scale, func(line []byte, i int64) []byte {
			line = append(strconv.AppendInt(line, i, 10), '\t')
			return append(strconv.AppendInt(line, (i-1)/bench.TellersPerBranch+1, 10), "\t0\t\\N\n"...)
		}},
		{"accounts", bench.AccountsPerBranch * b.scale, func(line []byte, i int64) []byte {
			line = append(strconv.AppendInt(line, i, 10), '\t')
			return append(strconv.AppendInt(line, (i-1)/bench.AccountsPerBranch+1, 10), "\t0\t\n"...)
		}},
	} {
		data := &copyReader{append: t.append, last: int64(t.rows)}
		if _, err := c.PgConn().CopyFrom(ctx, data, "COPY "+schema+".pgbench_"+t.table+" FROM STDIN WITH (FREEZE ON)"); err != nil {
			return fmt.Errorf("fill pgbench_%s: %w", t.table, err)
		}
	}
	return execAll(ctx, c,
		"ALTER TABLE "+schema+".pgbench_branches ADD PRIMARY KEY (bid)",
		"ALTER TABLE "+schema+".pgbench_tellers ADD PRIMARY KEY (tid)",
		"ALTER TABLE "+schema+".pgbench_accounts ADD PRIMARY KEY (aid)",
		"COMMIT",
		"VACUUM ANALYZE "+schema+".pgbench_branches", "VACUUM ANALYZE "+schema+".pgbench_tellers",
		"VACUUM ANALYZE "+schema+".pgbench_accounts", "VACUUM ANALYZE "+schema+".pgbench_history")
}

// execAll performs statements in turn, each in a round trip of its own.
func execAll(ctx context.Context, c *pgx.Conn, statements ...string) error {
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			return fmt.Errorf("%.40s: %w", s, err)
		}
	}
	return nil
}

// A copyReader yields the lines 1 to last of a table in the text format of COPY.
type copyReader struct {
	append     func(line []byte, i int64) []byte
	done, last int64
	line, rest []byte // the line that is being copied, and what is left of it
}

func (r *copyReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(r.rest) == 0 {
			if r.done == r.last {
				break
			}
			r.done++
			r.line = r.append(r.line[:0], r.done)
			r.rest = r.line
		}
		copied := copy(p[n:], r.rest)
		n, r.rest = n+copied, r.rest[copied:]
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// turn does before a further row what pgbench does before a run, and books what the row before it moved.
func (b *books) turn(ctx context.Context, c *pgx.Conn) error {
	schema := schemaOf(b.run)
	// With the history locked no transaction is half done that could add to it.
	err := execAll(ctx, c, "BEGIN ISOLATION LEVEL READ COMMITTED", "LOCK TABLE "+schema+".pgbench_history IN ACCESS EXCLUSIVE MODE")
	var history, tellers, branches int64
	if err == nil {
		err = c.QueryRow(ctx, "SELECT "+sumOf(schema, "delta", "history")+","+sumOf(schema, "tbalance", "tellers")+","+sumOf(schema, "bbalance", "branches")).
			Scan(&history, &tellers, &branches)
	}
	if err == nil {
		err = execAll(ctx, c, "TRUNCATE "+schema+".pgbench_history", "COMMIT")
	}
	if err != nil {
		if !c.IsClosed() {
			c.Exec(ctx, "ROLLBACK")
		}
		return err
	}
	b.book(history, tellers, branches)
	return execAll(ctx, c, "VACUUM "+schema+".pgbench_branches", "VACUUM "+schema+".pgbench_tellers")
}

func sumOf(schema, column, table string) string {
	return "(SELECT coalesce(sum(" + column + "), 0)::bigint FROM " + schema + ".pgbench_" + table + ")"
}

// book adds what one row moved. All of a row's transactions are of one kind: the tellers and the branches have moved by
// what the history says, or not at all.
func (b *books) book(history, tellers, branches int64) {
	if moved := tellers - b.tellers; tellers != branches || moved != 0 && moved != history {
		b.broken = append(b.broken, fmt.Errorf("TPC-B's invariant is broken in run %s: the history moved %d, the tellers %d; tellers sum up to %d, branches to %d",
			b.run, history, moved, tellers, branches))
	}
	b.deltas += history
	b.tellers = tellers
}

// audit returns an error where the sums of TPC-B's invariant differ: of all deltas, of the accounts, and of tellers and
// branches as far as transactions changed them (TPC-B specification 2.0, section 2.3, conditions 1 to 3).
func (b *books) audit(ctx context.Context, c *pgx.Conn) error {
	if !b.ready {
		return nil
	}
	schema := schemaOf(b.run)
	var accounts, history, tellers, branches int64
	err := c.QueryRow(ctx, "SELECT "+sumOf(schema, "abalance", "accounts")+","+sumOf(schema, "delta", "history")+","+
		sumOf(schema, "tbalance", "tellers")+","+sumOf(schema, "bbalance", "branches")).Scan(&accounts, &history, &tellers, &branches)
	if err != nil {
		return fmt.Errorf("check TPC-B's invariant: %w", err)
	}
	b.book(history, tellers, branches)
	if accounts != b.deltas {
		b.broken = append(b.broken, fmt.Errorf("TPC-B's invariant is broken in run %s: the accounts sum up to %d, all deltas to %d", b.run, accounts, b.deltas))
	}
	return errors.Join(b.broken...)
}

// A bankWorker performs transactions on a connection of its own, one at a time.
type bankWorker interface {
	bench.Store
	bench.Bank
	// use calls f with the connection, outside the timed path.
	use(ctx context.Context, f func(c *pgx.Conn) error) error
}

// A bankStore is a client's connections to a server, one for each worker.
type bankStore struct {
	session *postgresSession
	dialer  *dialer
	config  *pgx.ConnConfig
	o       bench.Options
	client  string
	sql     *bankSQL // nil until Load
	workers []bankWorker
	free    chan bankWorker // for those who have none of their own
	shut    func()          // ends what the library has beside its connections
}

// bankClients open the workers of a store.
var bankClients = map[string]func(ctx context.Context, s *bankStore) error{
	"pgx":          openPgx,
	"database-sql": openDatabaseSQL,
}

// open has each worker dial, some at once, and returns once all have connected or one can't.
func (s *bankStore) open(ctx context.Context, worker func() (w bankWorker, dial func(ctx context.Context) error)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxDials)
	for range s.o.Connections {
		w, dial := worker()
		s.workers = append(s.workers, w)
		g.Go(func() error { return patiently(ctx, func() error { return dial(ctx) }) })
	}
	return g.Wait()
}

// Load makes the tables, or readies them for another row, and has every connection prepare its statements.
func (s *bankStore) Load(ctx context.Context, run string, scale int) error {
	bound := s.o.Timeout + time.Duration(scale)*2*time.Second
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := s.workers[0].use(ctx, func(c *pgx.Conn) error { return s.session.books.load(ctx, c, run, scale) })
	if err != nil {
		return explain(ctx, bound, err)
	}
	s.sql = bankStatements(schemaOf(run))
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(maxDials)
	for _, w := range s.workers {
		g.Go(func() error { return w.use(each, func(c *pgx.Conn) error { return s.prepare(each, c) }) })
	}
	return explain(ctx, bound, g.Wait())
}

// prepare names the statements to the server, where the protocol wants that. The library finds them by their text.
func (s *bankStore) prepare(ctx context.Context, c *pgx.Conn) error {
	if s.sql == nil || s.o.Protocol != "prepared" {
		return nil
	}
	for _, text := range []string{s.sql.accounts, s.sql.balance, s.sql.tellers, s.sql.branches, s.sql.history} {
		if _, err := c.Prepare(ctx, text, text); err != nil {
			return at("prepare", err)
		}
	}
	return nil
}

// Dedicate returns the store of one worker. It is not for several goroutines at once.
func (s *bankStore) Dedicate(worker int) bench.Store { return s.workers[worker] }

func (s *bankStore) Transfer(ctx context.Context, t bench.Transfer, simple bool) error {
	w := <-s.free
	defer func() { s.free <- w }()
	return w.Transfer(ctx, t, simple)
}

func (s *bankStore) Balance(ctx context.Context, account int) (int, error) {
	w := <-s.free
	defer func() { s.free <- w }()
	return w.Balance(ctx, account)
}

func (s *bankStore) Get(context.Context, string) ([]byte, error) {
	return nil, fmt.Errorf("get a key from postgres: %w", errors.ErrUnsupported)
}

func (s *bankStore) Set(context.Context, string, []byte) error {
	return fmt.Errorf("set a key in postgres: %w", errors.ErrUnsupported)
}

func (s *bankStore) Info() bench.Info {
	protocol := s.o.Protocol
	settings := map[string]any{"protocol": protocol, "retries": 0, "pool_size": s.o.Connections, "timeout_ms": s.o.Timeout.Milliseconds(),
		"round_trips": "one a statement"}
	for name, value := range s.session.settings {
		settings["server_"+name] = value
	}
	// A request to cancel a statement that timed out is a connection too, for a moment.
	return bench.Info{Connections: min(s.dialer.open(), s.o.Connections), Settings: settings}
}

func (s *bankStore) Close() error {
	s.dialer.close()
	s.shut()
	return nil
}
