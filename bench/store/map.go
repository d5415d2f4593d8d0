package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"nsop/bench"
)

// Map returns the target called map: a Go map in this process behind a read-write lock. It is what a store costs
// without a network or a serialisation.
func Map() *bench.Target {
	return &bench.Target{
		Name: "map", Kind: "map", Embedded: true,
		Clients: []bench.Client{{Name: "map", Version: runtime.Version()}},
		Default: []string{"map"},
		Connect: func(context.Context, time.Duration) (bench.Session, error) {
			return &mapSession{values: map[string][]byte{}}, nil
		},
	}
}

// A mapSession owns the data, so that what one store wrote another can remove.
type mapSession struct {
	mu     sync.RWMutex
	values map[string][]byte
}

func (s *mapSession) Server() bench.Server {
	return bench.Server{Version: runtime.Version() + " map", Free: -1}
}

func (s *mapSession) Open(ctx context.Context, client string, _ bench.Options) (bench.Store, error) {
	if client != "map" {
		return nil, fmt.Errorf("client %q of a map store: want map", client)
	}
	return &mapStore{session: s}, ctx.Err()
}

func (s *mapSession) Counters(context.Context, string) (bench.Counters, error) {
	return bench.Counters{}, fmt.Errorf("read counters of a map: %w", errors.ErrUnsupported)
}

func (s *mapSession) Ping(ctx context.Context) error { return ctx.Err() }

func (s *mapSession) Remove(ctx context.Context, keys iter.Seq[string]) error {
	for key := range keys {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.mu.Lock()
		delete(s.values, key)
		s.mu.Unlock()
	}
	return nil
}

func (s *mapSession) Close() error { return nil }

type mapStore struct {
	session *mapSession
	closed  atomic.Bool
}

func (m *mapStore) Get(_ context.Context, key string) ([]byte, error) {
	if m.closed.Load() {
		return nil, net.ErrClosed
	}
	m.session.mu.RLock()
	v, ok := m.session.values[key]
	m.session.mu.RUnlock()
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
	m.session.mu.Lock()
	m.session.values[key] = value
	m.session.mu.Unlock()
	return nil
}

func (m *mapStore) Info() bench.Info {
	return bench.Info{Settings: map[string]any{"lock": "sync.RWMutex"}}
}

func (m *mapStore) Close() error {
	m.closed.Store(true)
	return nil
}
