package store

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"nsop/bench"
)

// maxRedirects is how often a command follows MOVED or ASK: the default of go-redis, which rueidis is given too.
const maxRedirects = 3

// A goRedisCluster store takes, for each operation, a connection of the pool that go-redis has for each node.
type goRedisCluster struct {
	dialer  *dialer
	rdb     *redis.ClusterClient
	o       bench.Options
	masters atomic.Int64 // when it was opened
	policy  bool         // the server says how commands are routed
}

func openGoRedisCluster(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error) {
	s := &goRedisCluster{dialer: d, o: o, rdb: newClusterClient(d, e, o, true)}
	if err := s.ready(ctx, e); err != nil {
		s.Close()
		return nil, explain(ctx, o.Timeout, err)
	}
	return s, nil
}

// ready has every connection answer, and the client know what it asks for at its first operation.
func (s *goRedisCluster) ready(ctx context.Context, e endpoint) error {
	asking, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	switch err := s.rdb.Process(asking, onceCmd{redis.NewCmd(asking, "command")}); {
	case err == nil:
		s.policy = true
	case answered(err):
		// Where COMMAND is refused, the library would ask for it again, of up to three nodes, before each operation.
		s.rdb.Close()
		s.rdb = newClusterClient(s.dialer, e, s.o, false)
	default:
		return refusal(ctx, e, s.o, err)
	}
	// All workers may need the same node at once, so each node has as many connections as there are workers.
	return s.rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		s.masters.Add(1)
		return proveGoRedis(ctx, node, e.node(node.Options().Addr), s.o)
	})
}

// newClusterClient returns a client of the cluster that e is a node of, with up to o.Connections to each node; policies
// has it ask the server how to route each command.
func newClusterClient(d *dialer, e endpoint, o bench.Options, policies bool) *redis.ClusterClient {
	redis.SetLogger(quiet{}) // as for a single server
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      []string{e.addr},
		CredentialsProviderContext: e.login,
		Dialer:                     d.dialNode,
		Protocol:                   2,
		DisableIdentity:            true,
		MaxRedirects:               maxRedirects,
		DisableRoutingPolicies:     !policies,
		MaxRetries:                 -1,
		DialerRetries:              1,
		DialTimeout:                o.Timeout,
		ReadTimeout:                o.Timeout,
		WriteTimeout:               o.Timeout,
		PoolTimeout:                o.Timeout,
		ContextTimeoutEnabled:      true,
		PoolSize:                   o.Connections,
		PipelinePoolSize:           -1,
		ConnMaxIdleTime:            idleLimit,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	})
}

// The library's cluster client repeats a command after whatever may be temporary as often as it follows redirects, under
// one bound. Commands that say they are not to be repeated are only redirected. It can't be kept from dialling a node for
// a pipeline as often, nor from looking for the master after READONLY.
type (
	onceCmd    struct{ *redis.Cmd }
	onceString struct{ *redis.StringCmd }
	onceStatus struct{ *redis.StatusCmd }
)

func (onceCmd) NoRetry() bool    { return true }
func (onceString) NoRetry() bool { return true }
func (onceStatus) NoRetry() bool { return true }

func (s *goRedisCluster) Get(ctx context.Context, key string) ([]byte, error) {
	cmd := redis.NewStringCmd(ctx, "get", key)
	s.rdb.Process(ctx, onceString{cmd}) // its error is the command's
	v, err := cmd.Bytes()
	if err == redis.Nil {
		return nil, bench.ErrMiss
	}
	return v, err
}

func (s *goRedisCluster) Set(ctx context.Context, key string, value []byte) error {
	cmd := redis.NewStatusCmd(ctx, "set", key, value, "ex", int64(bench.TTL.Seconds()))
	return s.rdb.Process(ctx, onceStatus{cmd})
}

func (s *goRedisCluster) Do(ctx context.Context, cmds []bench.Cmd, replies []bench.Reply) {
	if len(cmds) == 1 {
		cmd := redis.NewCmd(ctx, goRedisArgs(cmds[0])...)
		s.rdb.Process(ctx, onceCmd{cmd})
		replies[0] = goRedisReply(cmd)
		return
	}
	pipe := s.rdb.Pipeline()
	sent := make([]*redis.Cmd, len(cmds))
	for i, cmd := range cmds {
		sent[i] = redis.NewCmd(ctx, goRedisArgs(cmd)...)
		pipe.Process(ctx, onceCmd{sent[i]}) // only queues it
	}
	pipe.Exec(ctx) // its error is the first command's that has one
	for i, cmd := range sent {
		replies[i] = goRedisReply(cmd)
	}
}

func (s *goRedisCluster) Info() bench.Info {
	return bench.Info{Connections: s.dialer.open(), Settings: map[string]any{
		"retries": 0, "max_redirects": maxRedirects, "dial_retries": 0, "masters": s.masters.Load(),
		"pool_size": s.o.Connections, "pool_size_is_per": "node", "pipeline_pool_size": -1, "protocol": 2,
		"timeout_ms": s.o.Timeout.Milliseconds(), "idle_timeout_ms": idleLimit.Milliseconds(),
		"routing_policies": s.policy, "identity": false, "maintenance_notifications": false,
		"pooling": "a pooled connection to the key's node for each operation",
	}}
}

func (s *goRedisCluster) Close() error {
	s.dialer.close() // first, so that nothing in flight delays the rest
	s.rdb.Close()    // fails: its sockets are closed already
	return nil
}
