package store

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/storetest"
)

// redisClients are the clients that every test of a Redis server goes through.
var redisClients = []string{"redigo", "go-redis", "rueidis", "floor"}

func noEnv(string) string { return "" }

// connect opens a session with rawURL for the length of a test.
func connect(t testing.TB, rawURL string) bench.Session {
	t.Helper()
	target, err := Parse("redis", rawURL, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	session, err := target.Connect(t.Context(), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

func TestStores(t *testing.T) {
	plain := storetest.Redis(t)
	password := storetest.Redis(t, "--requirepass", "p@ss/word?")
	acl := storetest.Redis(t)
	acl.Do(t, "ACL", "SETUSER", "bench", "on", ">s:cret", "~*", "+@all")
	acl.Do(t, "ACL", "SETUSER", "default", "off")
	secure := storetest.RedisTLS(t, "--requirepass", "secret")
	servers := []struct{ name, url string }{
		{"plain", "redis://" + plain.Addr + "/3"},
		{"password", "redis://:" + url.QueryEscape("p@ss/word?") + "@" + password.Addr},
		{"acl", "valkey://bench:s%3Acret@" + acl.Addr},
		{"tls", "rediss://:secret@" + secure.Addr + "/1?ca=" + url.QueryEscape(secure.CA)},
	}
	for _, server := range servers {
		session := connect(t, server.url)
		for _, client := range redisClients {
			t.Run(server.name+"/"+client, func(t *testing.T) {
				storetest.Test(t, func(t *testing.T, o bench.Options) bench.Store {
					s, err := session.Open(t.Context(), client, o)
					if err != nil {
						t.Fatal(err)
					}
					return s
				})
			})
		}
	}
}

// The embedded server is compared by Get and Set alone: unlike Redis it stops reading while a reply waits to be read, and a
// command that blocks survives its connection.
func TestEmbedded(t *testing.T) {
	before := goleak.IgnoreCurrent()
	target, err := Parse("redis", "embedded:redis", "ignored", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	session, err := target.Connect(t.Context(), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if server := session.Server(); !strings.HasPrefix(server.Version, "miniredis") || server.Free != -1 || server.RoundTrip <= 0 {
		t.Errorf("server %+v", server)
	}
	if !target.Embedded || target.TLS || target.Kind != "redis" {
		t.Errorf("target %+v", target)
	}
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			storetest.Test(t, func(t *testing.T, o bench.Options) bench.Store {
				s, err := session.Open(t.Context(), client, o)
				if err != nil {
					t.Fatal(err)
				}
				return struct{ bench.Store }{s}
			})
			s, err := session.Open(t.Context(), client, bench.Options{Connections: 1, Timeout: 20 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			replies := make([]bench.Reply, 2)
			s.(bench.Commander).Do(t.Context(), []bench.Cmd{{"SET", "a", "1"}, {"INCR", "a"}}, replies)
			if string(replies[0].Bytes) != "OK" || replies[1].Int != 2 {
				t.Errorf("replies %+v", replies)
			}
		})
	}
	if _, err := session.Counters(t.Context(), "get"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Counters: %v", err)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}

func TestMap(t *testing.T) {
	session, err := Map().Connect(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	storetest.Test(t, func(t *testing.T, o bench.Options) bench.Store {
		s, err := session.Open(t.Context(), "map", o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
	s, _ := session.Open(t.Context(), "map", bench.Options{})
	s.Set(t.Context(), "a", []byte("1"))
	s.Set(t.Context(), "b", []byte("2"))
	if err := session.Remove(t.Context(), slices.Values([]string{"a", "absent"})); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "a"); err != bench.ErrMiss {
		t.Errorf("Get of a removed key: %v", err)
	}
	if v, err := s.Get(t.Context(), "b"); err != nil || string(v) != "2" {
		t.Errorf("Get of another key = %q, %v", v, err)
	}
	if _, err := session.Open(t.Context(), "redigo", bench.Options{}); err == nil {
		t.Error("a map opens with redigo")
	}
	if _, err := session.Counters(t.Context(), "get"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Counters: %v", err)
	}
}
