package store

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"nsop/bench"
)

func startMap(string, time.Duration) (*engine, error) {
	m := &lockedMap{values: map[string][]byte{}}
	return &engine{
		version: runtime.Version() + " map",
		open: func(context.Context, bench.Options) (bench.Store, error) {
			return &mapStore{data: m}, nil
		},
		remove: func(keys []string) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, key := range keys {
				delete(m.values, key)
			}
			return nil
		},
		close: func() error { return nil },
	}, nil
}

type lockedMap struct {
	mu     sync.RWMutex
	values map[string][]byte
}

type mapStore struct {
	data   *lockedMap
	closed atomic.Bool
}

func (m *mapStore) Get(_ context.Context, key string) ([]byte, error) {
	if m.closed.Load() {
		return nil, net.ErrClosed
	}
	m.data.mu.RLock()
	v, ok := m.data.values[key]
	m.data.mu.RUnlock()
	if !ok {
		return nil, bench.ErrMiss
	}
	return v, nil
}

func (m *mapStore) Set(_ context.Context, key string, value []byte) error {
	if m.closed.Load() {
		return net.ErrClosed
	}
	value = bytes.Clone(value) // the caller may use its buffer again
	m.data.mu.Lock()
	m.data.values[key] = value
	m.data.mu.Unlock()
	return nil
}

func (m *mapStore) Info() bench.Info {
	return bench.Info{Settings: durability("", bench.Options{}, map[string]any{"lock": "sync.RWMutex"})}
}

func (m *mapStore) Close() error {
	m.closed.Store(true)
	return nil
}
