package store

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/storetest"
)

// talk opens a connection of the target at url and returns it with the steps of the login.
func talk(t *testing.T, url string) (bench.Talk, []string, error) {
	t.Helper()
	target, err := Parse("t", url, "", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	w := target.Wire
	conn, err := net.Dial("tcp", w.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if w.StartTLS != nil {
		if err := w.StartTLS(conn); err != nil {
			conn.Close()
			return nil, nil, err
		}
	}
	if w.TLS != nil {
		conn = tls.Client(conn, w.TLS)
	}
	var steps []string
	talk, err := w.Login(t.Context(), conn, 2*time.Second, func(name string) { steps = append(steps, name) })
	return talk, steps, err
}

func TestTalk(t *testing.T) {
	secure, plain := storetest.RedisTLS(t), storetest.Redis(t, "--requirepass", "pw")
	primary := storetest.Postgres(t, storetest.PostgresOptions{Password: "pw", TLS: true})
	for _, test := range []struct {
		name, url string
		steps     []string
		hello     bool
	}{
		{"redis", "redis://:pw@" + plain.Addr + "/2", []string{"auth", "select"}, true},
		{"tls", "rediss://" + secure.Addr + "?ca=" + secure.CA, nil, true},
		{"memcached", "memcached://" + storetest.Memcached(t).Addr, nil, false},
		{"postgres", primary.URL("postgres", "pw", "postgres"), []string{"auth"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, steps, err := talk(t, test.url)
			if err != nil || !slices.Equal(steps, test.steps) {
				t.Fatalf("login: %v, steps %q", err, steps)
			}
			defer c.Close()
			for _, size := range []int{1, 100, 1000} {
				if err := c.Echo(size); err != nil {
					t.Fatalf("echo of %d: %v", size, err)
				}
			}
			if test.name == "postgres" {
				if n, err := c.Get(""); err != nil || n == 0 {
					t.Errorf("select: %d, %v", n, err)
				}
				if err := c.Set("k", nil); !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("set: %v", err)
				}
				return
			}
			if _, err := c.Get("nsop:absent"); !errors.Is(err, bench.ErrMiss) {
				t.Errorf("get of nothing: %v", err)
			}
			for _, size := range []int{0, 1, 300 << 10} {
				if err := c.Set("nsop:talk", make([]byte, size)); err != nil {
					t.Fatalf("set of %d: %v", size, err)
				}
				if n, err := c.Get("nsop:talk"); err != nil || n != size {
					t.Errorf("get: %d, %v; want %d", n, err, size)
				}
			}
			greeter, ok := c.(bench.Greeter)
			if ok != test.hello {
				t.Fatalf("it says hello: %v", ok)
			}
			if ok {
				if err := greeter.Hello(); err != nil {
					t.Errorf("hello: %v", err)
				}
			}
		})
	}
}

// TestTalkFailures has the errors of a login, which never hold the password.
func TestTalkFailures(t *testing.T) {
	const secret = "hunter2-secret"
	primary := storetest.Postgres(t, storetest.PostgresOptions{Password: "pw"})
	for name, test := range map[string]struct{ url, kind string }{
		"wrong":       {"redis://:" + secret + "@" + storetest.Redis(t, "--requirepass", "pw").Addr, "auth"},
		"no AUTH":     {"redis://:" + secret + "@" + storetest.Redis(t, "--rename-command", "AUTH", "").Addr, "unsupported"},
		"no database": {"redis://" + storetest.Redis(t, "--databases", "1").Addr + "/7", "other"},
		"postgres":    {primary.URL("postgres", secret, "postgres"), "auth"},
		"no TLS":      {primary.URL("postgres", "pw", "postgres") + "?sslmode=require", "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := talk(t, test.url)
			if err == nil {
				c.Close()
			}
			if bench.Kind(err) != test.kind || strings.Contains(err.Error(), secret) {
				t.Errorf("%v (%s), want %s", err, bench.Kind(err), test.kind)
			}
		})
	}
}

// TestTalkShut ends an operation from another goroutine.
func TestTalkShut(t *testing.T) {
	s := storetest.Redis(t)
	c, _, err := talk(t, "redis://"+s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.Pause(t)
	defer s.Resume(t)
	ended := make(chan error)
	go func() { ended <- c.Echo(1) }()
	time.Sleep(20 * time.Millisecond)
	c.Shut()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("an echo that nobody answered succeeded")
		}
	case <-time.After(time.Second):
		t.Error("it goes on")
	}
}

// TestFacts is that each kind of server tells what a diagnosis reads, and that refusals are told.
func TestFacts(t *testing.T) {
	redis := storetest.Redis(t)
	redis.Do(t, "ACL", "SETUSER", "app", "on", ">pw", "~*", "+get", "+echo", "+exists")
	for name, test := range map[string]struct {
		url     string
		facts   []string
		refused []string
	}{
		"redis":     {"redis://" + redis.Addr, []string{"role", "run_id", "connected_clients", "config.timeout", "config.maxclients", "slowlog", "used_cpu_user"}, nil},
		"noperm":    {"redis://app:pw@" + redis.Addr, nil, []string{"INFO", "CONFIG", "SLOWLOG"}},
		"memcached": {"memcached://" + storetest.Memcached(t).Addr, []string{"curr_connections", "max_connections", "rusage_user", "settings.maxconns"}, nil},
		"postgres":  {storetest.Postgres(t, storetest.PostgresOptions{}).URL("postgres", "", "postgres"), []string{"max_connections", "numbackends", "in_recovery", "select_ms", "longest_seconds"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			target, err := Parse("t", test.url, "", func(string) string { return "" })
			if err != nil {
				t.Fatal(err)
			}
			session, err := target.Connect(t.Context(), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			facts, refused, err := session.(bench.Teller).Facts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range test.facts {
				if facts[name] == "" {
					t.Errorf("no %s in %v", name, facts)
				}
			}
			for _, name := range test.refused {
				if bench.Kind(refused[name]) != "noperm" {
					t.Errorf("%s: %v", name, refused[name])
				}
			}
			if len(refused) != len(test.refused) {
				t.Errorf("refused: %v", refused)
			}
		})
	}
}

// A canned link answers whatever is sent with the same bytes.
type canned struct{ r io.Reader }

func (c canned) send([]byte, bool) error    { return nil }
func (c canned) read(p []byte) (int, error) { return c.r.Read(p) }
func (c canned) shut()                      {}
func (c canned) close()                     {}

// FuzzTalk has servers that answer anything: it is an error or an answer, and never more than the bytes there are.
func FuzzTalk(f *testing.F) {
	for _, seed := range []string{"$3\r\nabc\r\n", "-ERR x\r\n", "%1\r\n", "VALUE k 0 3\r\nabc\r\nEND\r\n", "END\r\n", "VERSION 1\r\n", "STORED\r\n",
		"T\x00\x00\x00\x06\x00\x00D\x00\x00\x00\x08\x00\x01\x00\x00Z\x00\x00\x00\x05I", "E\x00\x00\x00\x0bC28P01\x00Z\x00\x00\x00\x05I", "VALUE k 0 -1\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		open := func() (link, *bufio.Reader) {
			l := canned{strings.NewReader(string(data))}
			return l, bufio.NewReaderSize(reader{l}, 16<<10)
		}
		l, _ := open()
		redis := &redisTalk{link: l}
		redis.in.fill = l.read
		_, in := open()
		for _, c := range []bench.Talk{redis, &memcachedTalk{l, in}} {
			for range 3 {
				if n, err := c.Get("k"); err == nil && n > len(data) {
					t.Errorf("%d bytes of %d", n, len(data))
				}
				c.Echo(10)
				c.Set("k", []byte("v"))
			}
		}
		l, in = open()
		postgres := &postgresTalk{link: l, in: in}
		for range 3 {
			if n, err := postgres.Get(""); err == nil && n > len(data) {
				t.Errorf("%d bytes of %d", n, len(data))
			}
		}
		l, _ = open()
		redis = &redisTalk{link: l}
		redis.in.fill = l.read
		redis.Hello()
	})
}
