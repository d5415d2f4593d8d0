package store

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"nsop/bench"
)

var bboltBucket = []byte("nsop")

func startBbolt(folder string, timeout time.Duration) (*engine, error) {
	// The timeout is for another process's lock on the file, which nobody else has.
	db, err := bbolt.Open(filepath.Join(folder, "bbolt.db"), 0o600, &bbolt.Options{Timeout: timeout, NoSync: true})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(bboltBucket)
		return err
	})
	if err != nil {
		db.Close()
		return nil, err
	}
	return &engine{
		version: libraryVersion("bbolt", "go.etcd.io/bbolt"),
		open: func(_ context.Context, o bench.Options) (bench.Store, error) {
			// Inside a transaction no other one writes, which would read the field.
			err := db.Update(func(*bbolt.Tx) error {
				db.NoSync = !o.Sync
				return nil
			})
			return &bboltStore{db: db, folder: folder, o: o}, err
		},
		remove: func(keys []string) error {
			return db.Update(func(tx *bbolt.Tx) error {
				for _, key := range keys {
					if err := tx.Bucket(bboltBucket).Delete([]byte(key)); err != nil {
						return err
					}
				}
				return nil
			})
		},
		close: db.Close,
	}, nil
}

// A bboltStore performs each operation in a transaction of its own.
type bboltStore struct {
	db     *bbolt.DB
	folder string
	o      bench.Options
	closed atomic.Bool
}

func (s *bboltStore) Get(_ context.Context, key string) (value []byte, err error) {
	if s.closed.Load() {
		return nil, net.ErrClosed
	}
	err = s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bboltBucket).Get([]byte(key))
		if v == nil {
			return bench.ErrMiss
		}
		value = bytes.Clone(v) // v is a part of the file, which may move once the transaction is over
		return nil
	})
	return value, err
}

func (s *bboltStore) Set(_ context.Context, key string, value []byte) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bboltBucket).Put([]byte(key), value) })
}

func (s *bboltStore) Info() bench.Info {
	return bench.Info{Settings: durability(s.folder, s.o, map[string]any{"transaction": "one for each operation", "batch": false})}
}

func (s *bboltStore) Close() error {
	s.closed.Store(true)
	return nil
}
