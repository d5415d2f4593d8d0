package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
		{"embedded", "embedded:redis"},
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

var _ = []any{context.Background, fmt.Sprint, net.Dial, os.Open, filepath.Join, strings.Cut, sync.Mutex{}}
