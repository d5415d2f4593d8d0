package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"nsop/bench"
)

// A goRedis store takes a connection of go-redis's pool for each operation.
type goRedis struct {
	dialer *dialer
	rdb    *redis.Client
	o      bench.Options
}

func openGoRedis(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error) {
	// The library writes what fails to standard error beside returning it. The setting is the library's own and
	// belongs to the process; setting it again changes nothing.
	redis.SetLogger(quiet{})
	options := &redis.Options{
		Addr:                       e.addr,
		CredentialsProviderContext: e.login,
		DB:                         e.db,
		Dialer:                     d.dialNet,
		Protocol:                   2,
		DisableIdentity:            true, // CLIENT SETINFO is refused by managed servers
		MaxRetries:                 -1,
		DialerRetries:              1,
		DialTimeout:                o.Timeout,
		ReadTimeout:                o.Timeout,
		WriteTimeout:               o.Timeout,
		PoolTimeout:                o.Timeout,
		ContextTimeoutEnabled:      true,
		PoolSize:                   o.Connections,
		PipelinePoolSize:           -1, // or pipelines would have connections beside the pool's
		ConnMaxIdleTime:            idleLimit,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	if o.Defaults {
		options.MaxRetries, options.DialerRetries, options.PoolTimeout, options.PoolSize = 0, 0, 0, 0
	}
	s := &goRedis{dialer: d, o: o, rdb: redis.NewClient(options)}
	if err := proveGoRedis(ctx, s.rdb, e, o); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// proveGoRedis has the pool of rdb open its connections to e.
func proveGoRedis(ctx context.Context, rdb *redis.Client, e endpoint, o bench.Options) error {
	return prove(ctx, o, func(ctx context.Context) (func() error, error) {
		conn := rdb.Conn()
		err := conn.Echo(ctx, "nsop").Err()
		return conn.Close, refusal(ctx, e, o, err)
	})
}

// refusal adds to err, where it is a broken connection, what the server says to a bare socket: a server without room for
// another client says so and hangs up, but this library takes the first error reply for an old server's answer to HELLO.
func refusal(ctx context.Context, e endpoint, o bench.Options, err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	d := newDialer(e, o.Timeout)
	defer d.close()
	s, cause := openFloor(ctx, d, e, bench.Options{Connections: 1, Timeout: o.Timeout})
	if cause == nil {
		s.Close()
		return err
	}
	if reply := replyError(""); errors.As(cause, &reply) {
		return fmt.Errorf("%w: %w", reply, err)
	}
	return err
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func (s *goRedis) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := s.rdb.Get(ctx, key).Bytes()
	if err == redis.Nil {
		return nil, bench.ErrMiss
	}
	return v, err
}

func (s *goRedis) Set(ctx context.Context, key string, value []byte) error {
	return s.rdb.Set(ctx, key, value, bench.TTL).Err()
}

func (s *goRedis) Do(ctx context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	if len(cmds) == 1 {
		replies[0] = goRedisReply(s.rdb.Do(ctx, goRedisArgs(cmds[0])...))
		return
	}
	pipe := s.rdb.Pipeline()
	sent := make([]*redis.Cmd, len(cmds))
	for i, cmd := range cmds {
		sent[i] = pipe.Do(ctx, goRedisArgs(cmd)...)
	}
	pipe.Exec(ctx) // its error is the first command's that has one
	for i, cmd := range sent {
		replies[i] = goRedisReply(cmd)
	}
}

func goRedisArgs(cmd bench.Cmd) []any {
	args := make([]any, len(cmd))
	for i, a := range cmd {
		args[i] = a
	}
	return args
}

func goRedisReply(cmd *redis.Cmd) bench.Reply {
	v, err := cmd.Result()
	switch {
	case err == redis.Nil:
		return bench.Reply{Nil: true}
	case err != nil:
		return bench.Reply{Err: err}
	}
	switch v := v.(type) {
	case string:
		return bench.Reply{Bytes: []byte(v)}
	case int64:
		return bench.Reply{Int: v}
	case []any:
		return bench.Reply{Len: len(v), Nils: nils(v)}
	}
	return bench.Reply{Nil: true}
}

func (s *goRedis) Info() bench.Info {
	return bench.Info{Connections: int(s.rdb.PoolStats().TotalConns), Settings: map[string]any{
		"retries": 0, "dial_retries": 0, "pool_size": s.o.Connections, "pipeline_pool_size": -1, "protocol": 2,
		"timeout_ms": s.o.Timeout.Milliseconds(), "idle_timeout_ms": idleLimit.Milliseconds(),
		"identity": false, "maintenance_notifications": false,
		"pooling": "a pooled connection for each operation",
	}}
}

// Pool says how the library's pool was used.
func (s *goRedis) Pool() bench.PoolStats {
	p := s.rdb.PoolStats()
	return bench.PoolStats{Size: s.rdb.Options().PoolSize, Dials: s.dialer.dials.Load(), Waits: int64(p.WaitCount),
		WaitTime: time.Duration(p.WaitDurationNs), Timeouts: int64(p.Timeouts)}
}

func (s *goRedis) Close() error {
	s.dialer.close() // first, so that nothing in flight delays the rest
	s.rdb.Close()    // fails: its sockets are closed already
	return nil
}
