package store

import (
	"context"
	"crypto/tls"
	"math/bits"
	"net"
	"runtime"
	"time"

	"github.com/redis/rueidis"

	"nsop/bench"
)

// pingGap is after how long without a reply rueidis asks a connection whether it lives. Once several operations share a
// connection it has no other bound: up to two gaps pass before the question, then the timeout. See pipe.backgroundPing.
const pingGap = 300 * time.Millisecond

// flushDelay is how long rueidis waits at most for further operations before it writes those it has: the value that its
// documentation gives. Without it every few operations are a write of their own, which doubles what one costs.
const flushDelay = 20 * time.Microsecond

// A multiplexed store shares a few connections of rueidis between all operations.
type multiplexed struct {
	dialer *dialer
	client rueidis.Client
	o      bench.Options
	conns  int // that the client uses once all are dialled
	delay  time.Duration
}

func openRueidis(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error) {
	multiplex, delay := 0, flushDelay // 0 is the library's default, by the number of processors
	if o.Connections == 1 {
		multiplex, delay = -1, 0 // one connection: operations that never overlap have nothing to share
	}
	// The library dials its first connection without a context, so the end of ctx closes the dialer instead.
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, d.close)()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{e.addr},
		AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			ctx, cancel := context.WithTimeout(d.ended, o.Timeout)
			defer cancel()
			user, password, err := e.login(ctx)
			return rueidis.AuthCredentials{Username: user, Password: password}, err
		},
		SelectDB: e.db,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.dial(ctx)
		},
		Dialer:            net.Dialer{Timeout: o.Timeout, KeepAlive: pingGap},
		ConnWriteTimeout:  o.Timeout,
		ClientSetInfo:     rueidis.DisableClientSetInfo,
		DisableRetry:      !o.Defaults,
		DisableCache:      true,
		AlwaysRESP2:       true,
		ForceSingleClient: true,
		PipelineMultiplex: multiplex,
		MaxFlushDelay:     delay,
	})
	s := &multiplexed{dialer: d, client: c, o: o, conns: multiplexConns(multiplex), delay: delay}
	if err == nil {
		err = s.warm(ctx)
	}
	if err != nil {
		s.Close()
		return nil, explain(ctx, o.Timeout, err)
	}
	return s, nil
}

// multiplexConns returns how many connections the client uses; see singleClientMultiplex in the library.
func multiplexConns(multiplex int) int {
	if multiplex < 0 {
		return 1
	}
	return 1 << min(2, bits.Len(uint(runtime.GOMAXPROCS(0)))-1)
}

// warm has every connection answer once. The client dials one when a command is first sent to it, and chooses it at
// random for a command with a key; so one with a key is sent until all are there, one at a time, since commands that
// overlap would start the client's background loops before anything asked for them.
func (s *multiplexed) warm(ctx context.Context) error {
	for tries := 0; tries == 0 || s.dialer.open() < s.conns && tries < 1000; tries++ {
		err := s.client.Do(ctx, s.client.B().Arbitrary("ECHO").Keys("nsop").Build()).Error()
		if err != nil && !answered(err) {
			return err
		}
	}
	return nil
}

func (s *multiplexed) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := s.client.Do(ctx, s.client.B().Get().Key(key).Build()).AsBytes()
	if rueidis.IsRedisNil(err) {
		return nil, bench.ErrMiss
	}
	return v, err
}

func (s *multiplexed) Set(ctx context.Context, key string, value []byte) error {
	cmd := s.client.B().Set().Key(key).Value(rueidis.BinaryString(value)).ExSeconds(int64(bench.TTL.Seconds())).Build()
	return s.client.Do(ctx, cmd).Error()
}

func (s *multiplexed) Do(ctx context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	if len(cmds) == 1 {
		replies[0] = rueidisReply(s.client.Do(ctx, s.build(cmds[0])))
		return
	}
	built := make(rueidis.Commands, len(cmds))
	for i, cmd := range cmds {
		built[i] = s.build(cmd)
	}
	for i, r := range s.client.DoMulti(ctx, built...) {
		replies[i] = rueidisReply(r)
	}
}

// build takes the first argument for the key, as the library's own builders do for nearly every command: commands
// without a key all go to the first connection.
func (s *multiplexed) build(cmd bench.Cmd) rueidis.Completed {
	if len(cmd) == 1 {
		return s.client.B().Arbitrary(cmd[0]).Build()
	}
	return s.client.B().Arbitrary(cmd[0]).Keys(cmd[1]).Args(cmd[2:]...).Build()
}

func rueidisReply(r rueidis.RedisResult) bench.Reply {
	if err := r.Error(); err != nil {
		if rueidis.IsRedisNil(err) {
			return bench.Reply{Nil: true}
		}
		return bench.Reply{Err: err}
	}
	m, err := r.ToMessage()
	switch {
	case err != nil:
		return bench.Reply{Err: err}
	case m.IsInt64():
		n, err := m.AsInt64()
		return bench.Reply{Int: n, Err: err}
	case m.IsArray():
		list, err := m.ToArray()
		reply := bench.Reply{Len: len(list), Err: err}
		for i := range list {
			if list[i].IsNil() {
				reply.Nils++
			}
		}
		return reply
	}
	v, err := m.AsBytes()
	return bench.Reply{Bytes: v, Err: err}
}

func (s *multiplexed) Info() bench.Info {
	return bench.Info{Connections: s.dialer.open(), Settings: map[string]any{
		"retries": 0, "pool_size": s.conns, "protocol": 2, "timeout_ms": s.o.Timeout.Milliseconds(),
		"client_side_cache": false, "max_flush_delay_us": s.delay.Microseconds(), "ping_interval_ms": pingGap.Milliseconds(),
		"multiplexing": "operations share connections and round trips",
	}}
}

// Pool says how many connections were opened: operations share them and wait for none.
func (s *multiplexed) Pool() bench.PoolStats { return bench.PoolStats{Dials: s.dialer.dials.Load()} }

func (s *multiplexed) Close() error {
	s.dialer.close() // first: the client would send a PING on each connection and wait for it
	if s.client != nil {
		s.client.Close()
	}
	return nil
}
