package store

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"nsop/bench"
	"nsop/bench/storetest"
)

// A metadataServer stands in for the platform's: it hands out one token until it is given another.
type metadataServer struct {
	asked    atomic.Int32
	mu       sync.Mutex
	token    string
	lifetime float64 // seconds
	status   int     // 0: it answers
	hold     chan struct{}
}

func newMetadataServer(t *testing.T) *metadataServer {
	m := &metadataServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.asked.Add(1)
		m.mu.Lock()
		token, lifetime, status, hold := m.token, m.lifetime, m.status, m.hold
		m.mu.Unlock()
		if hold != nil {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		if status != 0 || r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/token" {
			http.Error(w, "no "+r.URL.Path, max(status, 404))
			return
		}
		fmt.Fprintf(w, `{"access_token":%q,"expires_in":%v,"token_type":"Bearer"}`, token, lifetime)
	}))
	t.Cleanup(server.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	return m
}

func (m *metadataServer) set(token string, lifetime float64, status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token, m.lifetime, m.status = token, lifetime, status
}

// An iamServer is a redis-server whose user default has a token for its password, as Memorystore's has.
type iamServer struct {
	*storetest.RedisServer
	admin redis.Conn
}

func newIAMServer(t *testing.T) *iamServer {
	s := &iamServer{RedisServer: storetest.Redis(t, "--user", "admin", "on", ">admin", "~*", "&*", "+@all")}
	var err error
	if s.admin, err = redis.Dial("tcp", s.Addr, redis.DialUsername("admin"), redis.DialPassword("admin")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.admin.Close() })
	return s
}

// take makes the server take token alone from now on; who is connected already stays so.
func (s *iamServer) take(t *testing.T, token string) {
	t.Helper()
	if _, err := s.admin.Do("ACL", "SETUSER", "default", "resetpass", ">"+token); err != nil {
		t.Fatal(err)
	}
}

// TestIAM: every client authenticates with the platform's token, with the next one once that is due, and outlives its own.
func TestIAM(t *testing.T) {
	m, server := newMetadataServer(t), newIAMServer(t)
	const first, second = "ya29.first-token", "ya29.second-token"
	server.take(t, first)
	m.set(first, 1, 0) // renewed after half a second
	target, err := Parse("redis", "redis://"+server.Addr+"/1?auth=iam", "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	session, err := target.Connect(t.Context(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	open := func(client string) bench.Store {
		t.Helper()
		s, err := session.Open(t.Context(), client, bench.Options{Connections: 3, Timeout: patience})
		if err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		return s
	}
	use := func(s bench.Store) error {
		if err := s.Set(t.Context(), "nsop:iam", []byte("v")); err != nil {
			return err
		}
		_, err := s.Get(t.Context(), "nsop:iam")
		return err
	}
	var old []bench.Store
	for _, client := range redisClients {
		s := open(client)
		defer s.Close()
		old = append(old, s)
	}

	server.take(t, second)
	m.set(second, 1, 0)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		again, err := target.Connect(t.Context(), patience)
		if err == nil {
			again.Close()
			break
		}
		if bench.Kind(err) != "auth" || strings.Contains(err.Error(), first) {
			t.Errorf("with the token of before: %v", err)
		}
		if time.Since(began) > patience {
			t.Fatal("the token is not renewed")
		}
	}
	for i, client := range redisClients {
		if err := use(old[i]); err != nil {
			t.Errorf("%s, connected before: %v", client, err)
		}
		s := open(client)
		if err := use(s); err != nil {
			t.Errorf("%s: %v", client, err)
		}
		s.Close()
	}

	// Those who lose their connection come back with the token of now.
	if _, err := server.admin.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"); err != nil {
		t.Fatal(err)
	}
	for i, client := range redisClients {
		began := time.Now()
		err := use(old[i])
		for err != nil && time.Since(began) < patience {
			time.Sleep(5 * time.Millisecond)
			err = use(old[i])
		}
		if err != nil {
			t.Errorf("%s, cut off: %v", client, err)
		}
	}
	began := time.Now()
	err = session.Ping(t.Context())
	for err != nil && time.Since(began) < patience {
		err = session.Ping(t.Context())
	}
	if err != nil {
		t.Errorf("the session, cut off: %v", err)
	}
}

// TestIAMOneLookup: a token is asked for once, however many connections there are, and serves while no other can be had.
func TestIAMOneLookup(t *testing.T) {
	m, server := newMetadataServer(t), newIAMServer(t)
	server.take(t, "ya29.token")
	m.set("ya29.token", 3600, 0)
	session := connect(t, "redis://"+server.Addr+"?auth=iam")
	m.set("", 0, 500)
	for _, client := range redisClients {
		s, err := session.Open(t.Context(), client, bench.Options{Connections: 20, Timeout: patience})
		if err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		s.Close()
	}
	if n := m.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestIAMNoToken: what keeps a token away is told in time.
func TestIAMNoToken(t *testing.T) {
	m, server := newMetadataServer(t), newIAMServer(t)
	server.take(t, "ya29.token")
	for _, test := range []struct {
		name    string
		setup   func()
		timeout time.Duration
		kind    string
		want    string
	}{
		{"refused by the store", func() { m.set("ya29.stale", 3600, 0) }, patience, "auth", "auth: WRONGPASS"},
		{"no service account", func() { m.set("", 0, 404) }, patience, "auth", "auth: auth=iam: get access token: ask the metadata server: "},
		{"nothing in it", func() { m.set("", 10, 0) }, patience, "auth", "auth: auth=iam: get access token: the metadata server's answer holds no access token"},
		{"expired already", func() { m.set("ya29.token", 0, 0) }, patience, "auth", "auth: auth=iam: get access token: the metadata server's answer holds no access token"},
		{"no answer", func() { m.hold = make(chan struct{}) }, 100 * time.Millisecond, "timeout", "auth: no answer within 100ms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.setup()
			target, err := Parse("redis", "redis://"+server.Addr+"?auth=iam", "", noEnv)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			session, err := target.Connect(ctx, test.timeout)
			if err == nil {
				session.Close()
				t.Fatal("connected")
			}
			if bench.Kind(err) != test.kind || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "ya29") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", bench.Kind(err), err)
			}
		})
	}
}
