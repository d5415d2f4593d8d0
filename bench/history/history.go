// Package history keeps every run, failed ones too, in SQLite or Postgres. One SQL serves both.
//
// A [Run] is what is kept of one run, a [Row] the figures of one sample of one row of it. history.go opens the database,
// save.go writes, read.go reads, jobs.go keeps what the tasks of a job share.
package history

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"modernc.org/sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrNotFound says that there is no such run.
var ErrNotFound = errors.New("no such run")

var errClosed = errors.New("the history is closed")

const (
	// openTime is what a caller waits for the database. The opening goes on without it, so that an upgrade of a large
	// history does not begin anew with each run.
	openTime    = 2 * time.Second
	migrateTime = time.Minute
	// saveTime bounds the saving of one run, the opening included, and rowTime is added for each row of it.
	saveTime = 2 * time.Second
	rowTime  = 5 * time.Millisecond
	// readTime bounds the reading of one page.
	readTime = 10 * time.Second
	// idleTime is how long a connection is believed to be alive: a platform may freeze the process and drop it.
	idleTime = 10 * time.Second
)

// Schema is the schema of the tables in Postgres.
const Schema = "nsop_history"

// A History is a database of runs. Its methods may be called from many goroutines at once.
type History struct {
	url     string
	dialect goose.Dialect
	connect func() (*sql.DB, error)
	files   fs.FS // the migrations
	keep    time.Duration
	now     func() time.Time
	opens   time.Duration // openTime and saveTime, but for tests on a machine that is busy
	saves   time.Duration
	prunes  int           // pruneSome, but for tests
	writing chan struct{} // holds an element while someone writes: SQLite has others sleep and try again

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	db     *sql.DB // nil: not opened yet
	going  *opening
	pruned time.Time
}

// An opening is an attempt to open the database.
type opening struct {
	done chan struct{} // closed once db and err are set
	db   *sql.DB
	err  error
}

// New returns the history at rawURL, sqlite:PATH or postgres://..., which keeps runs for keep. It does no network or
// database I/O: the database is opened at the first use, and again at a later one where that fails. No error holds any part of
// rawURL, which may have a password.
func New(rawURL string, keep time.Duration, now func() time.Time) (*History, error) {
	h := &History{url: rawURL, keep: keep, now: now, opens: openTime, saves: saveTime, prunes: pruneSome, writing: make(chan struct{}, 1)}
	scheme, rest, _ := strings.Cut(rawURL, ":")
	switch scheme {
	case "sqlite":
		if rest == "" || strings.ContainsRune(rest, 0) {
			return nil, errors.New("want sqlite:PATH with the path of a file")
		}
		h.dialect, h.connect = goose.DialectSQLite3, func() (*sql.DB, error) { return connectSQLite(rest) }
	case "postgres", "postgresql":
		config, err := pgx.ParseConfig(rawURL)
		if err != nil {
			return nil, errors.New("the URL does not parse: want postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE, the password percent-encoded")
		}
		h.dialect, h.connect = goose.DialectPostgres, func() (*sql.DB, error) { return connectPostgres(config), nil }
	default:
		return nil, errors.New("want sqlite:PATH or postgres://HOST/DATABASE")
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("find migrations: %w", err)
	}
	h.files = files
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h, nil
}

func connectSQLite(path string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	// A process that is killed loses nothing it had committed with synchronous=normal, a machine that loses power at most
	// the latest runs. The tables are upgraded and written in transactions that hold the lock from their begin on.
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_pragma": {"busy_timeout(" + strconv.FormatInt(saveTime.Milliseconds(), 10) + ")", "journal_mode(wal)", "synchronous(normal)"},
		"_txlock": {"immediate"},
	}.Encode()}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(2)
	return db, nil
}

func connectPostgres(config *pgx.ConnConfig) *sql.DB {
	config = config.Copy()
	config.RuntimeParams["search_path"] = Schema
	config.RuntimeParams["application_name"] = "nsop history"
	config.ConnectTimeout = openTime
	// Parsed and performed in one round trip: most statements are sent once on a connection.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(_ context.Context, p stdlib.ShouldPingParams) bool {
		if p.IdleDuration > idleTime {
			// A ping would wait for a peer that may be gone; on a closed socket it fails, and the pool dials anew.
			_ = p.Conn.PgConn().Conn().Close() // it is given up
		}
		return p.IdleDuration > time.Second // a server may have been restarted
	}))
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(2)
	return db
}

// database returns the database, opened and at the present version.
func (h *History) database(ctx context.Context) (*sql.DB, error) {
	h.mu.Lock()
	if h.db != nil {
		defer h.mu.Unlock()
		return h.db, nil
	}
	if h.ctx.Err() != nil {
		h.mu.Unlock()
		return nil, errClosed
	}
	o := h.going
	if o == nil {
		o = &opening{done: make(chan struct{})}
		h.going = o
		h.wait.Go(func() {
			o.db, o.err = h.open()
			h.mu.Lock()
			h.db, h.going = o.db, nil
			h.mu.Unlock()
			close(o.done)
		})
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, h.opens)
	defer cancel()
	select {
	case <-o.done:
		return o.db, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("open the history: %w", ctx.Err())
	}
}

func (h *History) open() (_ *sql.DB, err error) {
	db, err := h.connect()
	if err != nil {
		return nil, fmt.Errorf("open the history: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	ctx, cancel := context.WithTimeout(h.ctx, migrateTime)
	defer cancel()
	if err := h.migrate(ctx, db); err != nil {
		return nil, fmt.Errorf("open the history: %w", err)
	}
	return db, nil
}

// migrate brings the tables to the present version. Other instances may be doing the same.
func (h *History) migrate(ctx context.Context, db *sql.DB) error {
	options := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger())}
	if h.dialect == goose.DialectPostgres {
		options = append(options, goose.WithSessionLocker(migrateLock{}))
		if err := createSchema(ctx, db); err != nil {
			return err
		}
	}
	provider, err := goose.NewProvider(h.dialect, db, h.files, options...)
	if err != nil {
		return err
	}
	// SQLite has no lock that spans migrations: one that another process has performed meanwhile fails, and is not
	// pending any more.
	for range 5 {
		var pending bool
		if pending, err = provider.HasPending(ctx); err == nil && !pending {
			return nil
		}
		if _, err = provider.Up(ctx); err == nil || h.dialect == goose.DialectPostgres {
			return err
		}
	}
	return err
}

// migrateLock lets one instance at a time migrate. goose's own looks once a second whether the lock is free, which is
// longer than a run waits for its history.
type migrateLock struct{}

var _ lock.SessionLocker = migrateLock{}

// migrateLockID is a number that nobody else is likely to lock: nsop and the year.
const migrateLockID = "6e736f7032303236"

func (migrateLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock(x'"+migrateLockID+"'::bigint)")
	return err
}

func (migrateLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock(x'"+migrateLockID+"'::bigint)")
	return err
}

// createSchema asks first: to create what is there already is refused to a role that may not create.
func createSchema(ctx context.Context, db *sql.DB) error {
	const query = "SELECT count(*) FROM pg_namespace WHERE nspname = '" + Schema + "'"
	var n int
	if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil || n > 0 {
		return err
	}
	_, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+Schema)
	if err != nil && db.QueryRowContext(ctx, query).Scan(&n) == nil && n > 0 {
		return nil // another instance was first
	}
	return err
}

// Close closes the database once what is going on has ended.
func (h *History) Close() error {
	h.cancel()
	h.wait.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.db == nil {
		return nil
	}
	db := h.db
	h.db = nil
	return db.Close()
}

// ParseAge reads a positive duration, in which days are allowed: 90d, 12h, 1d12h.
func ParseAge(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is no positive duration such as 90d or 12h", text)
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		days, rest = "0", text
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || n > 36_500 || ok && rest != "" && (rest[0] == '-' || rest[0] == '+') {
		return 0, wrong
	}
	age := time.Duration(n) * 24 * time.Hour
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || age+d < age {
			return 0, wrong
		}
		age += d
	}
	if age <= 0 {
		return 0, wrong
	}
	return age, nil
}
