// Package storetest checks what every [bench.Store] must do, and starts real servers for tests to check it against.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nsop/bench"
)

// timeout is what stores are opened with: far more than a loopback server takes on a busy machine.
const timeout = 20 * time.Second

// Test checks a store that open opens. Every call of open opens one more client of the same data; keys are written
// below nsop:storetest. A store that implements [bench.Commander] must speak to a Redis server.
func Test(t *testing.T, open func(t *testing.T, o bench.Options) bench.Store) { TestNodes(t, 1, open) }

// TestNodes is Test for a store of several nodes, to each of which a client may have as many connections.
func TestNodes(t *testing.T, nodes int, open func(t *testing.T, o bench.Options) bench.Store) {
	tests := []struct {
		name        string
		connections int
		test        func(t *testing.T, s bench.Store)
	}{
		{"Miss", 1, testMiss},
		{"RoundTrip", 1, testRoundTrip},
		{"RoundTripShared", 4, testRoundTrip},
		{"Concurrent", 16, testConcurrent},
		{"Waiting", 2, testConcurrent},
		{"Info", 3, func(t *testing.T, s bench.Store) { testInfoOf(t, s, 3*nodes) }},
		{"CloseTwice", 2, testCloseTwice},
		{"CloseInFlight", 1, testCloseInFlight},
		{"CloseInFlightShared", 4, testCloseInFlight},
		{"Commands", 1, testCommands},
		{"CommandsShared", 4, testCommands},
		{"Incr", 1, testIncr},
		{"IncrShared", 4, testIncr},
		{"GetMulti", 1, testGetMulti},
		{"GetMultiShared", 4, testGetMulti},
		{"Dedicated", 4, testDedicated},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			s := open(t, bench.Options{Connections: test.connections, Timeout: timeout})
			t.Cleanup(func() { s.Close() }) // where the test ends early
			test.test(t, s)
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			// A server of the same process ends its side of each connection a little later.
			// After a connection broke, be it that we closed it, rueidis looks whether the cluster has changed, and go-redis
			// whether dials succeed again. Both sleep for up to a second first and then see that they have been closed.
			goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
				goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
		})
	}
}

func testMiss(t *testing.T, s bench.Store) {
	if v, err := s.Get(t.Context(), "nsop:storetest:absent"); !errors.Is(err, bench.ErrMiss) {
		t.Errorf("Get of an absent key = %q, %v; want ErrMiss", v, err)
	}
}

// values returns what is stored: of sizes up to a megabyte, of every byte, and what looks like a reply.
func values() [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	list := [][]byte{{}, []byte("x"), all, []byte("\r\n$-1\r\n"), bytes.Repeat([]byte("\r\n"), 50)}
	for _, n := range []int{100, 4095, 4096, 16383, 65537, 1 << 20} {
		v := make([]byte, n)
		for i := range v {
			v[i] = byte(r.Uint32())
		}
		list = append(list, v)
	}
	return list
}

func testRoundTrip(t *testing.T, s bench.Store) {
	for round := range 2 { // the second overwrites
		for i, v := range values() {
			key := fmt.Sprintf("nsop:storetest:%d", (i+round)%3)
			given := bytes.Clone(v)
			if err := s.Set(t.Context(), key, given); err != nil {
				t.Fatalf("Set of %d bytes: %v", len(v), err)
			}
			clear(given) // a caller may use its buffer again
			got, err := s.Get(t.Context(), key)
			if err != nil || !bytes.Equal(got, v) {
				t.Fatalf("Get of %d bytes = %d bytes, %v", len(v), len(got), err)
			}
		}
	}
}

func testConcurrent(t *testing.T, s bench.Store) {
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			key := "nsop:storetest:worker:" + strconv.Itoa(worker)
			for i := range 50 {
				want := bytes.Repeat([]byte{byte(worker), byte(i)}, 1+i*10)
				if err := s.Set(t.Context(), key, want); err != nil {
					t.Errorf("worker %d: Set: %v", worker, err)
					return
				}
				if got, err := s.Get(t.Context(), key); err != nil || !bytes.Equal(got, want) {
					t.Errorf("worker %d: Get = %d bytes, %v; want the %d bytes written", worker, len(got), err, len(want))
					return
				}
			}
		})
	}
	wg.Wait()
}

func testInfo(t *testing.T, s bench.Store) { testInfoOf(t, s, 3) }

func testInfoOf(t *testing.T, s bench.Store, most int) {
	t.Helper()
	info := s.Info()
	if info.Connections < 0 || info.Connections > most {
		t.Errorf("Connections = %d, want at most %d", info.Connections, most)
	}
	if len(info.Settings) == 0 {
		t.Error("no Settings")
	}
}

func testCloseTwice(t *testing.T, s bench.Store) {
	ctx := t.Context()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if n := s.Info().Connections; n != 0 {
		t.Errorf("after Close %d connections are open", n)
	}
	if _, err := s.Get(ctx, "nsop:storetest:absent"); err == nil || errors.Is(err, bench.ErrMiss) {
		t.Errorf("Get after Close = %v; want an error", err)
	}
	if err := s.Set(ctx, "nsop:storetest:absent", nil); err == nil {
		t.Error("Set after Close succeeds")
	}
	if c, ok := s.(bench.Incrementer); ok {
		if err := c.Incr(ctx, "nsop:storetest:absent"); err == nil || errors.Is(err, bench.ErrMiss) {
			t.Errorf("Incr after Close = %v; want an error", err)
		}
	}
	if c, ok := s.(bench.MultiGetter); ok {
		if _, err := c.GetMulti(ctx, []string{"nsop:storetest:absent"}); err == nil {
			t.Error("GetMulti after Close succeeds")
		}
	}
	if c, ok := s.(bench.Commander); ok {
		replies := make([]bench.Reply, 2)
		c.Do(ctx, []bench.Cmd{{"GET", "nsop:storetest:absent"}, {"GET", "nsop:storetest:absent"}}, replies)
		for _, r := range replies {
			if r.Err == nil {
				t.Errorf("Do after Close = %+v; want an error", r)
			}
		}
	}
}

// testCloseInFlight closes the store while every connection performs operations, one after the other or, where there are
// commands that wait, one that is waiting.
func testCloseInFlight(t *testing.T, s bench.Store) {
	ctx := t.Context()
	ended := make(chan error)
	started := make(chan struct{}, 4)
	for range 4 {
		go func() {
			started <- struct{}{}
			var err error
			if c, ok := s.(bench.Commander); ok {
				replies := make([]bench.Reply, 1)
				c.Do(ctx, []bench.Cmd{{"BLPOP", "nsop:storetest:nothing", "0"}}, replies)
				err = replies[0].Err
			} else {
				for err == nil {
					if _, err = s.Get(ctx, "nsop:storetest:absent"); errors.Is(err, bench.ErrMiss) {
						err = nil
					}
				}
			}
			ended <- err
		}()
	}
	for range 4 {
		<-started
	}
	time.Sleep(50 * time.Millisecond) // for the commands to reach the server; any order passes
	begin := time.Now()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range 4 {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("an operation in flight succeeded")
			}
		case <-time.After(timeout / 2):
			t.Fatalf("an operation still runs %v after Close", time.Since(begin))
		}
	}
}

func testCommands(t *testing.T, s bench.Store) {
	c, ok := s.(bench.Commander)
	if !ok {
		t.Skip("no Commander")
	}
	commands(t, c)
}

// commands keeps its keys in one slot, so that a cluster takes all of its commands.
func commands(t *testing.T, c bench.Commander) {
	ctx := t.Context()
	setup := make([]bench.Reply, 3)
	c.Do(ctx, []bench.Cmd{
		{"SET", "nsop:storetest:{commands}:string", "a\r\nb"},
		{"DEL", "nsop:storetest:{commands}:list", "nsop:storetest:{commands}:counter"},
		{"RPUSH", "nsop:storetest:{commands}:list", "1", "", "333"},
	}, setup)
	for i, r := range setup {
		if r.Err != nil {
			t.Fatalf("setup command %d: %v", i, r.Err)
		}
	}
	cases := []struct {
		cmd  bench.Cmd
		want bench.Reply
		err  string
	}{
		{bench.Cmd{"SET", "nsop:storetest:{commands}:other", "1"}, bench.Reply{Bytes: []byte("OK")}, ""},
		{bench.Cmd{"GET", "nsop:storetest:{commands}:string"}, bench.Reply{Bytes: []byte("a\r\nb")}, ""},
		{bench.Cmd{"GET", "nsop:storetest:{commands}:absent"}, bench.Reply{Nil: true}, ""},
		{bench.Cmd{"LPUSH", "nsop:storetest:{commands}:string", "x"}, bench.Reply{}, "WRONGTYPE"},
		{bench.Cmd{"STRLEN", "nsop:storetest:{commands}:string"}, bench.Reply{Int: 4}, ""},
		{bench.Cmd{"LRANGE", "nsop:storetest:{commands}:list", "0", "-1"}, bench.Reply{Len: 3}, ""},
		{bench.Cmd{"LRANGE", "nsop:storetest:{commands}:absent", "0", "-1"}, bench.Reply{Len: 0}, ""},
		{bench.Cmd{"MGET", "nsop:storetest:{commands}:absent", "nsop:storetest:{commands}:list"}, bench.Reply{Len: 2, Nils: 2}, ""},
		{bench.Cmd{"LINDEX", "nsop:storetest:{commands}:list", "1"}, bench.Reply{Bytes: []byte{}}, ""},
		{bench.Cmd{"NOSUCHCOMMAND"}, bench.Reply{}, "unknown command"},
		{bench.Cmd{"PING"}, bench.Reply{Bytes: []byte("PONG")}, ""},
	}
	check := func(i int, r bench.Reply) {
		t.Helper()
		want := cases[i%len(cases)]
		switch {
		case want.err != "":
			if r.Err == nil || !strings.Contains(r.Err.Error(), want.err) {
				t.Errorf("%v = %+v; want error %s", want.cmd, r, want.err)
			}
		case r.Err != nil || r.Nil != want.want.Nil || r.Int != want.want.Int || r.Len != want.want.Len ||
			!bytes.Equal(r.Bytes, want.want.Bytes):
			t.Errorf("%v = %+v; want %+v", want.cmd, r, want.want)
		}
	}
	for i, want := range cases {
		replies := []bench.Reply{{Err: errors.New("left over"), Int: 7, Len: 7, Nil: true, Bytes: []byte("x")}}
		c.Do(ctx, []bench.Cmd{want.cmd}, replies)
		check(i, replies[0])
	}
	for _, n := range []int{2, 16, 1000} {
		cmds, replies := make([]bench.Cmd, n), make([]bench.Reply, n)
		for i := range cmds {
			cmds[i] = cases[i%len(cases)].cmd
			replies[i] = bench.Reply{Err: errors.New("left over")}
		}
		c.Do(ctx, cmds, replies)
		for i, r := range replies {
			check(i, r)
		}
		for i := range cmds {
			cmds[i] = bench.Cmd{"INCR", "nsop:storetest:{commands}:counter"}
		}
		c.Do(ctx, append([]bench.Cmd{{"SET", "nsop:storetest:{commands}:counter", "0"}}, cmds[1:]...), replies)
		for i, r := range replies[1:] {
			if r.Err != nil || r.Int != int64(i+1) {
				t.Fatalf("reply %d of a batch of %d = %+v: out of order", i+1, n, r)
			}
		}
	}
	// Values that make the buffers of both sides grow in the middle of a batch.
	large := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	cmds, replies := make([]bench.Cmd, 20), make([]bench.Reply, 20)
	for i := range cmds {
		cmds[i] = bench.Cmd{"SET", "nsop:storetest:{commands}:large", strconv.Itoa(i) + large}
		if i%2 == 1 {
			cmds[i] = bench.Cmd{"GET", "nsop:storetest:{commands}:large"}
		}
	}
	c.Do(ctx, cmds, replies)
	for i, r := range replies {
		want := "OK"
		if i%2 == 1 {
			want = strconv.Itoa(i-1) + large
		}
		if r.Err != nil || string(r.Bytes) != want {
			t.Fatalf("reply %d of the batch of large values: %d bytes, %v", i, len(r.Bytes), r.Err)
		}
	}
}

func testIncr(t *testing.T, s bench.Store) {
	c, ok := s.(bench.Incrementer)
	if !ok {
		t.Skip("no Incrementer")
	}
	incr(t, s, c, "nsop:storetest:incr")
}

// incr counts from 98 to beyond 100, where the number becomes longer, by several goroutines at once.
func incr(t *testing.T, s bench.Store, c bench.Incrementer, key string) {
	ctx := t.Context()
	if err := s.Set(ctx, key, []byte("98")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				if err := c.Incr(ctx, key); err != nil {
					t.Errorf("Incr: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if v, err := s.Get(ctx, key); err != nil || string(v) != "198" {
		t.Errorf("after 100 Incr of 98: %q, %v", v, err)
	}
	if err := s.Set(ctx, key, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := c.Incr(ctx, key); err == nil || errors.Is(err, bench.ErrMiss) {
		t.Errorf("Incr of a text: %v", err)
	}
	testMiss(t, s) // the connection is fit for more
}

func testGetMulti(t *testing.T, s bench.Store) {
	c, ok := s.(bench.MultiGetter)
	if !ok {
		t.Skip("no MultiGetter")
	}
	getMulti(t, s, c)
}

func getMulti(t *testing.T, s bench.Store, c bench.MultiGetter) {
	ctx := t.Context()
	keys := []string{"nsop:storetest:absent"}
	for i, size := range []int{0, 1, 100, 65537, 10, 10, 10, 300000, 10} {
		keys = append(keys, "nsop:storetest:multi:"+strconv.Itoa(i))
		if err := s.Set(ctx, keys[i+1], bytes.Repeat([]byte("END\r\n"), size)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if n, err := c.GetMulti(ctx, keys); err != nil || n != 9 {
			t.Errorf("GetMulti of 9 keys and an absent one = %d, %v", n, err)
		}
		if n, err := c.GetMulti(ctx, keys[:1]); err != nil || n != 0 {
			t.Errorf("GetMulti of an absent key = %d, %v", n, err)
		}
		if v, err := s.Get(ctx, keys[2]); err != nil || string(v) != "END\r\n" {
			t.Errorf("Get after GetMulti = %q, %v", v, err)
		}
	}
}

func testDedicated(t *testing.T, s bench.Store) {
	d, ok := s.(bench.Dedicated)
	if !ok {
		t.Skip("no Dedicated")
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		own := d.Dedicate(worker)
		testMiss(t, own)
		testRoundTrip(t, own)
		if c, ok := own.(bench.Commander); ok {
			commands(t, c)
		}
		if c, ok := own.(bench.Incrementer); ok {
			incr(t, own, c, "nsop:storetest:incr:"+strconv.Itoa(worker))
		}
		if c, ok := own.(bench.MultiGetter); ok {
			getMulti(t, own, c)
		}
		wg.Go(func() {
			key := "nsop:storetest:own:" + strconv.Itoa(worker)
			for i := range 100 {
				want := []byte(key + strconv.Itoa(i))
				if err := own.Set(t.Context(), key, want); err != nil {
					t.Errorf("worker %d: Set: %v", worker, err)
				}
				if got, err := own.Get(t.Context(), key); err != nil || !bytes.Equal(got, want) {
					t.Errorf("worker %d: Get = %q, %v; want %q", worker, got, err, want)
				}
			}
		})
	}
	wg.Wait()
	if n := s.Info().Connections; n != 4 {
		t.Errorf("%d connections, want one for each of 4 workers", n)
	}
}
