package store

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"modernc.org/sqlite"

	"nsop/bench"
)

// The statements of the store. REPLACE writes also what is there already, as every other store does: an UPDATE to the
// value that a row has leaves its page alone and costs a write nothing.
const (
	sqliteTable  = "CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL)"
	sqliteGet    = "SELECT value FROM kv WHERE key = ?"
	sqliteSet    = "REPLACE INTO kv (key, value) VALUES (?, ?)"
	sqliteDelete = "DELETE FROM kv WHERE key = ?"
)

// A sqliteData is a database, to which its stores have connections of their own.
type sqliteData struct {
	folder string
	name   string // of the database in memory
	owner  *sql.DB
	// writing is held by the one who writes. SQLite allows one writer at a time too, but has the others sleep and try
	// again: among 8 of them one waited for 400 ms and more, against some 40 ms behind this lock.
	writing sync.Mutex
}

func startSQLite(folder string, timeout time.Duration) (*engine, error) {
	d := &sqliteData{folder: folder, name: "nsop-" + uuid.NewString()}
	var err error
	if d.owner, err = d.connect(bench.Options{Connections: 1, Timeout: timeout}); err != nil {
		return nil, err
	}
	// Without a bound on its age: a database in memory dies with the last connection.
	d.owner.SetMaxIdleConns(1)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var number string
	if _, err = d.owner.ExecContext(ctx, sqliteTable); err == nil {
		err = d.owner.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&number)
	}
	if err != nil {
		d.owner.Close()
		return nil, err
	}
	return &engine{version: "sqlite " + number, open: d.open, remove: d.remove, close: d.owner.Close}, nil
}

// connect returns a pool that opens connections as o says.
func (d *sqliteData) connect(o bench.Options) (*sql.DB, error) {
	query := url.Values{"_pragma": {"busy_timeout(" + strconv.FormatInt(o.Timeout.Milliseconds(), 10) + ")"}}
	// Connections to one database in memory share its pages, and wait for each other by being told and not by sleeping,
	// which those of the virtual file system memdb do.
	dsn := url.URL{Scheme: "file", Opaque: d.name}
	if d.folder == "" {
		query.Set("mode", "memory")
		query.Set("cache", "shared")
	} else {
		dsn = url.URL{Scheme: "file", Path: filepath.Join(d.folder, "sqlite.db")}
		query.Add("_pragma", "journal_mode(wal)")
		synchronous := "off"
		if o.Sync {
			synchronous = "full"
		}
		query.Add("_pragma", "synchronous("+synchronous+")")
	}
	dsn.RawQuery = query.Encode()
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(o.Connections)
	db.SetMaxIdleConns(o.Connections)
	return db, nil
}

func (d *sqliteData) remove(keys []string) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	tx, err := d.owner.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing once it is committed
	for _, key := range keys {
		if _, err := tx.Exec(sqliteDelete, key); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (d *sqliteData) open(ctx context.Context, o bench.Options) (bench.Store, error) {
	if o.Connections < 1 || o.Timeout <= 0 {
		return nil, errors.New("want at least one connection and a timeout")
	}
	db, err := d.connect(o)
	if err != nil {
		return nil, err
	}
	s := &sqliteStore{data: d, db: db, o: o, free: make(chan *sqliteWorker, o.Connections)}
	for range o.Connections {
		w := &sqliteWorker{store: s}
		s.workers = append(s.workers, w)
		s.free <- w
		if err := w.open(ctx); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// A sqliteStore has a connection for each worker.
type sqliteStore struct {
	data    *sqliteData
	db      *sql.DB
	o       bench.Options
	workers []*sqliteWorker
	free    chan *sqliteWorker // for those who have none of their own
	closed  atomic.Bool
}

// Dedicate returns the store of one worker.
func (s *sqliteStore) Dedicate(worker int) bench.Store { return s.workers[worker] }

func (s *sqliteStore) Get(ctx context.Context, key string) ([]byte, error) {
	w := <-s.free
	defer func() { s.free <- w }()
	return w.Get(ctx, key)
}

func (s *sqliteStore) Set(ctx context.Context, key string, value []byte) error {
	w := <-s.free
	defer func() { s.free <- w }()
	return w.Set(ctx, key, value)
}

func (s *sqliteStore) Info() bench.Info {
	more := map[string]any{"journal": "memory", "cache": "shared"}
	if s.data.folder != "" {
		more = map[string]any{"journal": "wal"}
	}
	more["pool_size"], more["busy_timeout_ms"], more["statements"] = s.o.Connections, s.o.Timeout.Milliseconds(), "SELECT and REPLACE, prepared"
	more["writers"] = "one at a time, behind a sync.Mutex"
	return bench.Info{Connections: s.db.Stats().OpenConnections, Settings: durability(s.data.folder, s.o, more)}
}

// Close waits for the statements that are going on, each of which ends within the timeout.
func (s *sqliteStore) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.close())
	}
	return errors.Join(append(errs, s.db.Close())...)
}

// A sqliteWorker has a connection with its statements prepared.
type sqliteWorker struct {
	store    *sqliteStore
	turn     sync.Mutex // held by the operation going on: a statement closed under one crashes the process
	conn     *sql.Conn
	get, set *sql.Stmt
}

func (w *sqliteWorker) open(ctx context.Context) (err error) {
	if w.conn, err = w.store.db.Conn(ctx); err != nil {
		return err
	}
	if w.get, err = w.conn.PrepareContext(ctx, sqliteGet); err != nil {
		return err
	}
	w.set, err = w.conn.PrepareContext(ctx, sqliteSet)
	return err
}

func (w *sqliteWorker) close() error {
	w.turn.Lock()
	defer w.turn.Unlock()
	var errs []error
	for _, statement := range []*sql.Stmt{w.get, w.set} {
		if statement != nil {
			errs = append(errs, statement.Close())
		}
	}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	return errors.Join(errs...)
}

// Get returns the value of key.
func (w *sqliteWorker) Get(ctx context.Context, key string) (value []byte, err error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	if w.store.closed.Load() {
		return nil, net.ErrClosed
	}
	err = w.get.QueryRowContext(ctx, key).Scan(&value)
	if err == sql.ErrNoRows {
		err = bench.ErrMiss
	}
	return value, err
}

// Set writes key.
func (w *sqliteWorker) Set(ctx context.Context, key string, value []byte) error {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.store.data.writing.Lock()
	defer w.store.data.writing.Unlock()
	if w.store.closed.Load() {
		return net.ErrClosed
	}
	if value == nil {
		value = []byte{} // nil would be NULL
	}
	_, err := w.set.ExecContext(ctx, key, value)
	return err
}

func (w *sqliteWorker) Info() bench.Info {
	if w.store.closed.Load() {
		return bench.Info{}
	}
	return bench.Info{Connections: 1}
}

// Close leaves the connection to its store.
func (w *sqliteWorker) Close() error { return nil }
