package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"nsop/bench"
)

// An inProcess store lives in this process. What is written dies with the session.
type inProcess struct {
	name, kind string
	disk       bool // it has a file, in a folder of the session's own
	// start opens it with its file in folder, or in memory where that is "".
	start func(folder string, timeout time.Duration) (*engine, error)
}

var inProcesses = []inProcess{
	{"map", "map", false, startMap},
	{"bbolt", "bbolt", true, startBbolt},
	{"buntdb", "buntdb", false, startBuntdb},
	{"buntdb-disk", "buntdb", true, startBuntdb},
	{"sqlite", "sqlite", false, startSQLite},
	{"sqlite-disk", "sqlite", true, startSQLite},
}

// InProcess returns the stores that are always there, in this process. Those on disk have a file in the temporary
// folder from Connect until Close; it is not flushed at every write unless Options.Sync says so. The sessions of one
// target share nothing.
func InProcess() []*bench.Target {
	var targets []*bench.Target
	for _, p := range inProcesses {
		targets = append(targets, p.target())
	}
	return targets
}

// Map returns the target called map: a Go map behind a read-write lock. It is what a store costs without a network or a
// serialisation.
func Map() *bench.Target { return inProcesses[0].target() }

func (p inProcess) target() *bench.Target {
	t := describe(&bench.Target{Name: p.name, Kind: p.kind, Embedded: true, Syncs: p.disk, Connect: p.connect})
	if p.kind == "map" {
		t.Clients[0].Version = runtime.Version()
	}
	return t
}

func (p inProcess) connect(ctx context.Context, timeout time.Duration) (bench.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	folder := ""
	if p.disk {
		var err error
		if folder, err = os.MkdirTemp("", "nsop-"+p.name+"-"); err != nil {
			return nil, fmt.Errorf("make folder: %w", err)
		}
	}
	e, err := p.start(folder, timeout)
	if err != nil {
		os.RemoveAll(folder)
		return nil, fmt.Errorf("open %s: %w", p.name, err)
	}
	return &inProcessSession{kind: p.kind, folder: folder, engine: e}, nil
}

// An engine is an inProcess store that was started.
type engine struct {
	version string // as Server has it
	// open returns a client of the data. Where clients differ in Options.Sync the last one decides for all.
	open   func(ctx context.Context, o bench.Options) (bench.Store, error)
	remove func(keys []string) error
	close  func() error
}

type inProcessSession struct {
	kind, folder string
	engine       *engine
	closed       atomic.Bool
}

func (s *inProcessSession) Server() bench.Server {
	return bench.Server{Version: s.engine.version, Free: -1}
}

func (s *inProcessSession) Open(ctx context.Context, name string, o bench.Options) (bench.Store, error) {
	if _, err := clientOf(s.kind, name); err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, err
	}
	store, err := s.engine.open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return store, nil
}

func (s *inProcessSession) Counters(context.Context, string) (bench.Counters, error) {
	return bench.Counters{}, fmt.Errorf("read counters of a %s: %w", s.kind, errors.ErrUnsupported)
}

func (s *inProcessSession) Ping(ctx context.Context) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return ctx.Err()
}

func (s *inProcessSession) Remove(ctx context.Context, keys iter.Seq[string]) error {
	batch := make([]string, 0, removeBatch)
	flush := func() error {
		err := s.Ping(ctx)
		if err == nil && len(batch) > 0 {
			err = s.engine.remove(batch)
		}
		batch = batch[:0]
		if err != nil {
			return fmt.Errorf("remove keys: %w", err)
		}
		return nil
	}
	for key := range keys {
		if batch = append(batch, key); len(batch) == removeBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// Close ends the store and removes its folder. It may be called twice.
func (s *inProcessSession) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	err := s.engine.close()
	if s.folder == "" {
		return err
	}
	if os.RemoveAll(s.folder) == nil {
		return err
	}
	// A library that was rewriting its file may have added one while the folder was emptied.
	return errors.Join(err, os.RemoveAll(s.folder))
}

// libraryVersion is how a Server names a library of this process.
func libraryVersion(name, module string) string {
	return strings.TrimSpace(name + " " + strings.TrimPrefix(version(module), "v"))
}

// durability are the settings of a store on disk, or in memory where folder is "".
func durability(folder string, o bench.Options, more map[string]any) map[string]any {
	settings := map[string]any{"file": folder != ""}
	if folder != "" {
		settings["sync"] = "off"
		if o.Sync {
			settings["sync"] = "full"
		}
	}
	for name, value := range more {
		settings[name] = value
	}
	return settings
}
