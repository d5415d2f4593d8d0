package store

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/tidwall/buntdb"

	"nsop/bench"
)

// startBuntdb opens a database. A goroutine of the library's ends up to a second after the database is closed.
func startBuntdb(folder string, _ time.Duration) (*engine, error) {
	path := ":memory:"
	if folder != "" {
		path = filepath.Join(folder, "buntdb.aof")
	}
	db, err := buntdb.Open(path)
	if err != nil {
		return nil, err
	}
	return &engine{
		version: libraryVersion("buntdb", "github.com/tidwall/buntdb"),
		open: func(_ context.Context, o bench.Options) (bench.Store, error) {
			var config buntdb.Config
			if err := db.ReadConfig(&config); err != nil {
				return nil, err
			}
			config.SyncPolicy = buntdb.Never
			if o.Sync {
				config.SyncPolicy = buntdb.Always
			}
			return &buntdbStore{db: db, folder: folder, o: o}, db.SetConfig(config)
		},
		remove: func(keys []string) error {
			return db.Update(func(tx *buntdb.Tx) error {
				for _, key := range keys {
					if _, err := tx.Delete(key); err != nil && err != buntdb.ErrNotFound {
						return err
					}
				}
				return nil
			})
		},
		close: db.Close,
	}, nil
}

// A buntdbStore performs each operation in a transaction of its own.
type buntdbStore struct {
	db     *buntdb.DB
	folder string
	o      bench.Options
	closed atomic.Bool
}

func (s *buntdbStore) Get(_ context.Context, key string) ([]byte, error) {
	if s.closed.Load() {
		return nil, net.ErrClosed
	}
	var value string
	err := s.db.View(func(tx *buntdb.Tx) (err error) {
		value, err = tx.Get(key)
		return err
	})
	switch {
	case err == buntdb.ErrNotFound:
		return nil, bench.ErrMiss
	case err != nil:
		return nil, err
	}
	return []byte(value), nil
}

func (s *buntdbStore) Set(_ context.Context, key string, value []byte) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return s.db.Update(func(tx *buntdb.Tx) error {
		_, _, err := tx.Set(key, string(value), nil)
		return err
	})
}

func (s *buntdbStore) Info() bench.Info {
	more := map[string]any{"transaction": "one for each operation"}
	if s.folder != "" {
		more["journal"] = "append-only file" // there is nothing else: it is rewritten once it has doubled, beyond 32 MiB
	}
	return bench.Info{Settings: durability(s.folder, s.o, more)}
}

func (s *buntdbStore) Close() error {
	s.closed.Store(true)
	return nil
}
