package store

import (
	"context"

	"github.com/gomodule/redigo/redis"

	"nsop/bench"
)

// A redigo store takes a connection of redigo's pool for each operation.
type redigo struct {
	dialer *dialer
	pool   *redis.Pool
	o      bench.Options
}

func openRedigo(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error) {
	s := &redigo{dialer: d, o: o, pool: &redis.Pool{
		MaxIdle:     o.Connections, // 0 would keep none
		MaxActive:   o.Connections,
		Wait:        true,
		IdleTimeout: idleLimit,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			user, password, err := e.login(ctx)
			if err != nil {
				return nil, err
			}
			return redis.DialContext(ctx, "tcp", e.addr,
				redis.DialContextFunc(d.dialNet),
				redis.DialReadTimeout(o.Timeout),
				redis.DialWriteTimeout(o.Timeout),
				redis.DialUsername(user),
				redis.DialPassword(password),
				redis.DialDatabase(e.db))
		},
	}}
	err := prove(ctx, o, func(ctx context.Context) (func() error, error) {
		conn, err := s.pool.GetContext(ctx)
		if err != nil {
			return conn.Close, err
		}
		_, err = redis.DoWithTimeout(conn, left(ctx), "ECHO", "nsop")
		return conn.Close, err
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *redigo) Get(_ context.Context, key string) ([]byte, error) {
	conn := s.pool.Get()
	v, err := redis.Bytes(conn.Do("GET", key))
	conn.Close()
	if err == redis.ErrNil {
		return nil, bench.ErrMiss
	}
	return v, err
}

func (s *redigo) Set(_ context.Context, key string, value []byte) error {
	conn := s.pool.Get()
	_, err := conn.Do("SET", key, value, "EX", int(bench.TTL.Seconds()))
	conn.Close()
	return err
}

func (s *redigo) Do(_ context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	conn := s.pool.Get()
	defer conn.Close()
	if len(cmds) == 1 {
		v, err := conn.Do(cmds[0][0], redigoArgs(cmds[0])...)
		replies[0] = redigoReply(v, err)
		return
	}
	// A failure to send is found again in Receive, which returns it for each reply that is missing.
	for _, cmd := range cmds {
		if err := conn.Send(cmd[0], redigoArgs(cmd)...); err != nil {
			fail(replies, err)
			return
		}
	}
	if err := conn.Flush(); err != nil {
		fail(replies, err)
		return
	}
	for i := range cmds {
		v, err := conn.Receive()
		if err != nil && conn.Err() != nil {
			fail(replies[i:], err)
			return
		}
		replies[i] = redigoReply(v, err)
	}
}

func redigoArgs(cmd bench.Cmd) []any {
	args := make([]any, len(cmd)-1)
	for i, a := range cmd[1:] {
		args[i] = a
	}
	return args
}

func redigoReply(v any, err error) bench.Reply {
	switch v := v.(type) {
	case []byte:
		return bench.Reply{Bytes: v, Err: err}
	case string:
		return bench.Reply{Bytes: []byte(v), Err: err}
	case int64:
		return bench.Reply{Int: v, Err: err}
	case []any:
		return bench.Reply{Len: len(v), Nils: nils(v), Nil: v == nil, Err: err}
	}
	return bench.Reply{Nil: err == nil, Err: err}
}

func (s *redigo) Info() bench.Info {
	return bench.Info{Connections: s.pool.ActiveCount(), Settings: map[string]any{
		"retries": 0, "pool_size": s.o.Connections, "protocol": 2, "timeout_ms": s.o.Timeout.Milliseconds(),
		"idle_timeout_ms": idleLimit.Milliseconds(), "pooling": "a pooled connection for each operation",
	}}
}

// Pool says how the library's pool was used.
func (s *redigo) Pool() bench.PoolStats {
	p := s.pool.Stats()
	return bench.PoolStats{Size: s.pool.MaxActive, Dials: s.dialer.dials.Load(), Waits: p.WaitCount, WaitTime: p.WaitDuration}
}

func (s *redigo) Close() error {
	s.dialer.close() // first: the pool closes only what is idle
	return s.pool.Close()
}

// nils counts the elements of an array reply that are null.
func nils(list []any) (n int) {
	for _, v := range list {
		if v == nil {
			n++
		}
	}
	return n
}

// fail stores err in every reply.
func fail(replies []bench.Reply, err error) {
	for i := range replies {
		replies[i] = bench.Reply{Err: err}
	}
}
