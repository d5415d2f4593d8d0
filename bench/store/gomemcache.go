package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"golang.org/x/sync/errgroup"

	"nsop/bench"
)

// A gomemcache store takes a connection of the library's pool for each operation.
type gomemcache struct {
	servers fleet
	client  *memcache.Client
	o       bench.Options
}

func openGomemcache(ctx context.Context, servers fleet, o bench.Options) (bench.Store, error) {
	var list memcache.ServerList
	addrs := make([]string, len(servers))
	for i, d := range servers {
		addrs[i] = d.addr
	}
	if err := list.SetServers(addrs...); err != nil {
		return nil, err
	}
	s := &gomemcache{servers: servers, client: memcache.NewFromSelector(&list), o: o}
	s.client.Timeout, s.client.MaxIdleConns = o.Timeout, o.Connections
	if o.Defaults {
		s.client.MaxIdleConns = 0
	}
	proven := make([]*provenConns, len(servers))
	err := servers.each(ctx, func(ctx context.Context, i int) (err error) {
		proven[i], err = proveConns(ctx, servers[i], o)
		return err
	})
	if err == nil {
		err = s.fill(ctx, proven)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// provenConns are connections to one server that it has answered on, as many as there are workers.
type provenConns struct {
	conns chan net.Conn
	taken atomic.Int32
	full  chan struct{} // closed once all have been taken
}

func proveConns(ctx context.Context, d *dialer, o bench.Options) (*provenConns, error) {
	p := &provenConns{conns: make(chan net.Conn, o.Connections), full: make(chan struct{})}
	return p, prove(ctx, o, func(ctx context.Context) (func() error, error) {
		release := func() error { return nil }
		conn, err := d.dial(ctx)
		if err != nil {
			return release, err
		}
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		n := &memcachedNode{conn: conn, in: bufio.NewReader(conn)}
		if _, err := n.ping(); err != nil {
			return release, err
		}
		p.conns <- conn
		return release, nil
	})
}

// fill puts the connections into the library's pool, which it does with those that it asks its dialer for: as many
// pings at once as there are connections, each holding its own until all have one.
func (s *gomemcache) fill(ctx context.Context, proven []*provenConns) error {
	g, ctx := errgroup.WithContext(ctx)
	at := map[string]int{}
	for i, d := range s.servers {
		at[d.addr] = i
	}
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		i, ok := at[address]
		if !ok {
			return nil, fmt.Errorf("dial: unknown server %s", address)
		}
		return s.servers[i].dial(ctx)
	}
	s.client.DialContext = func(_ context.Context, _, address string) (net.Conn, error) {
		p := proven[at[address]]
		conn := <-p.conns // one for each ping
		if int(p.taken.Add(1)) == s.o.Connections {
			close(p.full)
		}
		select {
		case <-p.full:
			return conn, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for range s.o.Connections {
		g.Go(s.client.Ping)
	}
	err := g.Wait()
	s.client.DialContext = dial
	return gomemcacheError(err)
}

// gomemcacheError is err with what the server said as an error of its own, where the library quotes it.
func gomemcacheError(err error) error {
	if err == nil {
		return nil
	}
	line := ""
	if number := (*strconv.NumError)(nil); errors.As(err, &number) { // the answer to incr
		line = number.Num
	} else if text, ok := strings.CutPrefix(err.Error(), "memcache: unexpected "); ok {
		_, text, _ = strings.Cut(text, `: "`)
		line, _ = strconv.Unquote(`"` + text)
	}
	if refused := memcachedRefusal(strings.TrimRight(line, "\r\n")); errors.As(refused, new(replyError)) {
		return fmt.Errorf("memcache: %w", refused)
	}
	return err
}

func (s *gomemcache) Get(_ context.Context, key string) ([]byte, error) {
	item, err := s.client.Get(key)
	switch {
	case err == memcache.ErrCacheMiss:
		return nil, bench.ErrMiss
	case err != nil:
		return nil, gomemcacheError(err)
	}
	return item.Value, nil
}

func (s *gomemcache) Set(_ context.Context, key string, value []byte) error {
	return gomemcacheError(s.client.Set(&memcache.Item{Key: key, Value: value, Expiration: int32(bench.TTL / time.Second)}))
}

// Incr adds one to the number at key.
func (s *gomemcache) Incr(_ context.Context, key string) error {
	_, err := s.client.Increment(key, 1)
	if err == memcache.ErrCacheMiss {
		return bench.ErrMiss
	}
	return gomemcacheError(err)
}

// GetMulti asks all servers at once.
func (s *gomemcache) GetMulti(_ context.Context, keys []string) (int, error) {
	items, err := s.client.GetMulti(keys)
	return len(items), gomemcacheError(err)
}

func (s *gomemcache) Info() bench.Info {
	settings := memcachedSettings(s.servers, s.o)
	delete(settings, "pool_size")
	settings["max_idle_conns"] = s.o.Connections // for each server; there is no bound on those in use
	settings["pooling"] = "a pooled connection for each operation"
	return bench.Info{Connections: s.servers.open(), Settings: settings}
}

// Pool says how many connections the library opened: it has no bound on those in use.
func (s *gomemcache) Pool() (p bench.PoolStats) {
	for _, d := range s.servers {
		p.Dials += d.dials.Load()
	}
	return p
}

func (s *gomemcache) Close() error {
	s.servers.close() // first, so that nothing in flight delays the rest
	s.client.Close()  // fails: its sockets are closed already
	return nil
}
