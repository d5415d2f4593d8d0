package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/buntdb"
	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/storetest"
)

// folders returns what is in the temporary folder, which is the test's own.
func folders(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestInProcess(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	targets := InProcess()
	var names []string
	for _, target := range targets {
		names = append(names, target.Name+"/"+target.Kind)
	}
	if got := strings.Join(names, " "); got != "map/map bbolt/bbolt buntdb/buntdb buntdb-disk/buntdb sqlite/sqlite sqlite-disk/sqlite" {
		t.Errorf("targets %s", got)
	}
	if left := folders(t); len(left) > 0 {
		t.Errorf("before Connect there is %q", left)
	}
	for _, target := range targets {
		t.Run(target.Name, func(t *testing.T) { testInProcess(t, target) })
	}
}

func testInProcess(t *testing.T, target *bench.Target) {
	before := goleak.IgnoreCurrent()
	disk := target.Name == "bbolt" || strings.HasSuffix(target.Name, "-disk")
	if !target.Embedded || target.Syncs != disk || len(target.Clients) != 1 || target.Clients[0].Name != target.Kind ||
		!slices.Equal(target.Default, []string{target.Kind}) {
		t.Errorf("target %+v", target)
	}
	session, err := target.Connect(t.Context(), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if server := session.Server(); !strings.Contains(server.Version, target.Kind) || server.Free != -1 {
		t.Errorf("server %+v", server)
	}
	open := func(t *testing.T, o bench.Options) bench.Store {
		t.Helper()
		s, err := session.Open(t.Context(), target.Kind, o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, sync := range []bool{false, true} {
		if !sync || disk {
			t.Run(fmt.Sprintf("sync=%v", sync), func(t *testing.T) {
				storetest.Test(t, func(t *testing.T, o bench.Options) bench.Store {
					o.Sync = sync
					return open(t, o)
				})
			})
		}
	}

	s := open(t, bench.Options{Connections: 2, Timeout: 20 * time.Second})
	settings := s.Info().Settings
	if settings["file"] != disk || disk && settings["sync"] != "off" {
		t.Errorf("settings %v", settings)
	}
	if disk {
		full := open(t, bench.Options{Connections: 1, Timeout: 20 * time.Second, Sync: true})
		if got := full.Info().Settings["sync"]; got != "full" {
			t.Errorf("sync = %v", got)
		}
		full.Close()
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	if err := s.Set(t.Context(), "large", large); err != nil {
		t.Errorf("Set of 8 MiB: %v", err)
	}
	if v, err := s.Get(t.Context(), "large"); err != nil || !bytes.Equal(v, large) {
		t.Errorf("Get of 8 MiB = %d bytes, %v", len(v), err)
	}
	first, err := s.Get(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := s.Set(t.Context(), "large", bytes.Repeat([]byte{byte(i)}, len(large))); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first, large) {
		t.Error("a value changed after it was read")
	}
	if err := s.Set(t.Context(), "large", large); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "nil", nil); err != nil {
		t.Errorf("Set of nil: %v", err)
	}
	if v, err := s.Get(t.Context(), "nil"); err != nil || len(v) != 0 {
		t.Errorf("Get of what was set to nil = %q, %v", v, err)
	}
	testRemove(t, session, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	another := open(t, bench.Options{Connections: 1, Timeout: 20 * time.Second})
	if v, err := another.Get(t.Context(), "large"); err != nil || len(v) != len(large) {
		t.Errorf("the next store of the session: Get = %d bytes, %v", len(v), err)
	}
	another.Close()

	if _, err := session.Open(t.Context(), "redigo", bench.Options{Connections: 1, Timeout: time.Second}); err == nil {
		t.Error("it opens with redigo")
	}
	if _, err := session.Counters(t.Context(), "get"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Counters: %v", err)
	}
	if err := session.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	testOtherSession(t, target)
	if left := folders(t); disk != (len(left) == 1) {
		t.Errorf("folders %q", left)
	}
	for range 2 {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := session.Ping(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Ping after Close: %v", err)
	}
	if left := folders(t); len(left) > 0 {
		t.Errorf("after Close there is %q", left)
	}
	if target.Kind != "buntdb" { // whose own goroutine sleeps up to a second more
		goleak.VerifyNone(t, before)
	}
}

// testRemove checks that what was named is removed, in several batches, and nothing else.
func testRemove(t *testing.T, session bench.Session, s bench.Store) {
	t.Helper()
	const keys = 2*removeBatch + 10
	key := func(i int) string { return "nsop:test:" + strconv.Itoa(i) }
	for i := range keys + 1 {
		if err := s.Set(t.Context(), key(i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to remove
		err := session.Remove(t.Context(), func(yield func(string) bool) {
			for i := range keys {
				if !yield(key(i)) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range keys {
		if v, err := s.Get(t.Context(), key(i)); err != bench.ErrMiss {
			t.Fatalf("key %d after Remove: %q, %v", i, v, err)
		}
	}
	if v, err := s.Get(t.Context(), key(keys)); err != nil || string(v) != "x" {
		t.Errorf("a key that was not named: %q, %v", v, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := session.Remove(ctx, slices.Values([]string{key(keys)})); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove after the end: %v", err)
	}
}

// testOtherSession checks that sessions share nothing, and that one that is cut off leaves nothing.
func testOtherSession(t *testing.T, target *bench.Target) {
	t.Helper()
	other, err := target.Connect(t.Context(), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s, err := other.Open(t.Context(), target.Kind, bench.Options{Connections: 1, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "large"); err != bench.ErrMiss {
		t.Errorf("Get of what another session wrote: %v", err)
	}
	s.Close()
	other.Close()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := target.Connect(ctx, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect after the end: %v", err)
	}
}

func TestNoTemporaryFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/absent")
	for _, target := range InProcess() {
		session, err := target.Connect(t.Context(), time.Second)
		if err == nil {
			session.Close()
		}
		if (err != nil) != target.Syncs {
			t.Errorf("%s: Connect: %v", target.Name, err)
		}
	}
}

// TestSync checks that each library was told what Info says.
func TestSync(t *testing.T) {
	for _, p := range inProcesses {
		if !p.disk {
			continue
		}
		e, err := p.start(t.TempDir(), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, full := range []bool{false, true, false} {
			s, err := e.open(t.Context(), bench.Options{Connections: 2, Timeout: 20 * time.Second, Sync: full})
			if err != nil {
				t.Fatal(err)
			}
			if got := syncs(t, s); got != full {
				t.Errorf("%s: flushes %v, want %v", p.name, got, full)
			}
			s.Close()
		}
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}
}

// syncs asks the library of s whether it flushes every write.
func syncs(t *testing.T, s bench.Store) bool {
	t.Helper()
	switch s := s.(type) {
	case *bboltStore:
		return !s.db.NoSync
	case *buntdbStore:
		var config buntdb.Config
		if err := s.db.ReadConfig(&config); err != nil {
			t.Fatal(err)
		}
		return config.SyncPolicy == buntdb.Always
	case *sqliteStore:
		all := 0
		for _, w := range s.workers {
			var synchronous int
			var journal string
			if err := w.conn.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&synchronous); err != nil {
				t.Fatal(err)
			}
			if err := w.conn.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&journal); err != nil || journal != "wal" {
				t.Errorf("journal %s, %v", journal, err)
			}
			all += synchronous
		}
		return all == 2*len(s.workers)
	}
	t.Fatalf("unknown store %T", s)
	return false
}

// TestSQLiteWrites checks that to set a value which is there already writes it once more.
func TestSQLiteWrites(t *testing.T) {
	folder := t.TempDir()
	e, err := startSQLite(folder, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	s, err := e.open(t.Context(), bench.Options{Connections: 1, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	size := int64(0)
	for i := range 20 { // far fewer than after which the journal would begin anew
		if err := s.Set(t.Context(), "a", []byte("same")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(folder + "/sqlite.db-wal")
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() < size+4096 {
			t.Errorf("write %d made the journal grow from %d to %d bytes", i, size, info.Size())
		}
		size = info.Size()
	}
}

// TestSQLiteFull fills a database that may not grow, which is what a full disk looks like to it, and expects it to work
// on.
func TestSQLiteFull(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} {
		e, err := startSQLite(folder, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer e.close()
		s, err := e.open(t.Context(), bench.Options{Connections: 1, Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.(*sqliteStore).workers[0].conn.ExecContext(t.Context(), "PRAGMA max_page_count = 20"); err != nil {
			t.Fatal(err)
		}
		if err := s.Set(t.Context(), "small", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.Set(t.Context(), "large", make([]byte, 1<<20)); bench.Kind(err) != "oom" {
			t.Errorf("Set beyond the limit: %s: %v", bench.Kind(err), err)
		}
		if v, err := s.Get(t.Context(), "small"); err != nil || string(v) != "x" {
			t.Errorf("Get after that = %q, %v", v, err)
		}
	}
}

// TestSQLiteLocked has another connection keep the database, as a checkpoint might.
func TestSQLiteLocked(t *testing.T) {
	e, err := startSQLite(t.TempDir(), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	opened, err := e.open(t.Context(), bench.Options{Connections: 2, Timeout: short})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	s := opened.(*sqliteStore)
	if _, err := s.data.owner.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if err := s.Set(t.Context(), "a", nil); bench.Kind(err) != "timeout" {
		t.Errorf("Set while another writes: %s: %v", bench.Kind(err), err)
	}
	if took := time.Since(started); took > soon {
		t.Errorf("it took %v of a timeout of %v", took, short)
	}
	if _, err := s.data.owner.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for worker := range 2 {
		wg.Go(func() {
			if err := s.Dedicate(worker).Set(t.Context(), "a", nil); err != nil {
				t.Errorf("Set after that: %v", err)
			}
		})
	}
	wg.Wait()
}
