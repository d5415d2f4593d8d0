package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"nsop/bench"
)

// parseCluster returns the target of a URL that names one node of a cluster; the others are asked for.
func parseCluster(s scheme, name, rest, password string, getenv func(string) string) (*bench.Target, error) {
	e, err := parseEndpoint(s, rest, password, getenv)
	if err != nil {
		return nil, err
	}
	if e.db != 0 {
		return nil, errors.New("a cluster has one database, 0")
	}
	return describe(&bench.Target{
		Name: name, Kind: "redis", Address: e.addr, TLS: s.tls, Cluster: true,
		Connect: func(ctx context.Context, timeout time.Duration) (bench.Session, error) {
			return connectCluster(ctx, e, timeout)
		},
	}), nil
}

// A clusterSession asks the masters of a cluster, beside the measured connections.
type clusterSession struct {
	at      endpoint
	timeout time.Duration
	server  bench.Server
	dialer  *dialer
	rdb     *redis.ClusterClient

	held *redis.PubSub // while a run is registered; nil: none is
}

// slotCount is how many slots the keys of a cluster are spread over.
const slotCount = 16384

// connectCluster opens a session with the cluster that e is a node of. All of its masters have answered.
func connectCluster(ctx context.Context, e endpoint, timeout time.Duration) (bench.Session, error) {
	// First a plain connection, whose errors name the stage that failed.
	one, err := connectRedis(ctx, e, timeout)
	if err != nil {
		return nil, err
	}
	server := one.Server()
	one.Close()
	s := &clusterSession{at: e, timeout: timeout, server: server, dialer: newDialer(e, timeout)}
	s.rdb = newClusterClient(s.dialer, e, bench.Options{Connections: 4, Timeout: timeout}, false)
	if err := s.use(ctx, s.greet); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// greet finds out what the cluster is and how far away.
func (s *clusterSession) greet(ctx context.Context) error {
	//lint:ignore SA1019 servers before 7.0 have nothing else
	slots, err := s.rdb.ClusterSlots(ctx).Result()
	if reply := redis.Error(nil); errors.As(err, &reply) && s.server.Mode != "cluster" {
		scheme := "redis"
		if s.at.tls != nil {
			scheme = "rediss"
		}
		return &bench.KindError{Kind: "unsupported", Text: fmt.Sprintf("the server is no node of a cluster (%v): the URL wants to begin with %s://", err, scheme)}
	}
	if err != nil {
		return at("cluster slots", err)
	}
	served := 0
	for _, r := range slots {
		served += r.End - r.Start + 1
	}
	s.server.Mode = "cluster"
	if served < slotCount {
		s.server.Warnings = append(s.server.Warnings, fmt.Sprintf("no node serves %d of the %d slots: their keys fail with CLUSTERDOWN", slotCount-served, slotCount))
	}
	s.server.Free = -1
	var mu sync.Mutex
	return s.rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		var fastest time.Duration
		for i := range 3 {
			began := time.Now()
			if err := echoNode(ctx, node); err != nil {
				return err
			}
			if took := time.Since(began); i == 0 || took < fastest {
				fastest = took
			}
		}
		memory, err := infoOf(ctx, node, "memory")
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		s.server.RoundTrip = min(s.server.RoundTrip, fastest)
		// Of the fullest, and not the sum: a few large keys may all be its.
		if free := freeMemory(memory); free >= 0 && (s.server.Free < 0 || free < s.server.Free) {
			s.server.Free = free
		}
		return nil
	})
}

// use calls f with a context that ends after the timeout, and explains its error.
func (s *clusterSession) use(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return explain(ctx, s.timeout, f(ctx))
}

// echoNode asks one node for an answer, as echo does.
func echoNode(ctx context.Context, node *redis.Client) error {
	if err := node.Echo(ctx, "nsop").Err(); err != nil && !answered(err) {
		return at("ping "+node.Options().Addr, err)
	}
	return nil
}

// infoOf returns a section of a node's INFO, empty where the node refuses it.
func infoOf(ctx context.Context, node *redis.Client, section string) (map[string]string, error) {
	text, err := node.Info(ctx, section).Result()
	if reply := redis.Error(nil); errors.As(err, &reply) {
		return nil, nil
	}
	if err != nil {
		return nil, at("info "+node.Options().Addr, err)
	}
	return parseInfo(text), nil
}

func (s *clusterSession) Server() bench.Server { return s.server }

func (s *clusterSession) Open(ctx context.Context, name string, o bench.Options) (bench.Store, error) {
	return openRedis(ctx, clusterKind, name, s.at, o)
}

// Counters returns the sums over all masters.
func (s *clusterSession) Counters(ctx context.Context, command string) (bench.Counters, error) {
	var (
		mu  sync.Mutex
		sum bench.Counters
	)
	err := s.use(ctx, func(ctx context.Context) error {
		return s.rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			var sections [3]map[string]string
			for i, name := range []string{"commandstats", "cpu", "errorstats"} {
				var err error
				if sections[i], err = infoOf(ctx, node, name); err != nil {
					return err
				}
			}
			if len(sections[0]) == 0 {
				return errors.ErrUnsupported
			}
			c := parseCounters(command, sections[0], sections[1])
			mu.Lock()
			defer mu.Unlock()
			sum.Calls, sum.Time, sum.CPU = sum.Calls+c.Calls, sum.Time+c.Time, sum.CPU+c.CPU
			sum.Redirects += redirects(sections[2])
			return nil
		})
	})
	if err != nil {
		return bench.Counters{}, fmt.Errorf("read counters: %w", err)
	}
	return sum, nil
}

// Ping returns once every master has answered, each of which serves data.
func (s *clusterSession) Ping(ctx context.Context) error {
	return s.use(ctx, func(ctx context.Context) error {
		return s.rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			if err := echoNode(ctx, node); err != nil {
				return err
			}
			// A cluster of which some keys are nowhere answers so for all. A key of another node is no failure.
			if err := node.Exists(ctx, "nsop:ready").Err(); err != nil && notServing(err) {
				return at("ping "+node.Options().Addr, err)
			}
			return nil
		})
	})
}

// Remove deletes keys from all nodes, as on a single server. Those of a node that fails do not keep the rest.
func (s *clusterSession) Remove(ctx context.Context, keys iter.Seq[string]) error {
	var (
		first error
		batch []string
	)
	remove := func(delete func(redis.Pipeliner, string)) error {
		return s.use(ctx, func(ctx context.Context) error {
			_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, key := range batch {
					delete(pipe, key)
				}
				return nil
			})
			return err
		})
	}
	flush := func() bool {
		err := remove(func(pipe redis.Pipeliner, key string) { pipe.Unlink(ctx, key) })
		if kind := bench.Kind(err); kind == "unsupported" || kind == "noperm" {
			err = remove(func(pipe redis.Pipeliner, key string) { pipe.Del(ctx, key) })
		}
		first = cmp.Or(first, err)
		batch = batch[:0]
		return ctx.Err() == nil && bench.Kind(err) != "timeout" // which each batch would wait for anew
	}
	for key := range keys {
		if batch = append(batch, key); len(batch) == removeBatch && !flush() {
			break
		}
	}
	if len(batch) > 0 && ctx.Err() == nil {
		flush()
	}
	if first != nil {
		return fmt.Errorf("remove keys: %w", first)
	}
	return nil
}

// Register also subscribes to a channel of the run's name, as on a single server.
func (s *clusterSession) Register(ctx context.Context, run, note string) error {
	err := s.ledger(ctx, "subscribe", func(ctx context.Context) error {
		s.held = s.rdb.Subscribe(ctx, channelOf(run))
		_, err := s.held.Receive(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return s.ledger(ctx, "hset", func(ctx context.Context) error { return s.rdb.HSet(ctx, leftKey, run, note).Err() })
}

func (s *clusterSession) Registered(ctx context.Context) (notes map[string]string, err error) {
	err = s.ledger(ctx, "hgetall", func(ctx context.Context) error {
		notes, err = s.rdb.HGetAll(ctx, leftKey).Result()
		return err
	})
	if err != nil {
		return nil, err
	}
	for run := range notes {
		var subscribers atomic.Int64
		err := s.ledger(ctx, "pubsub", func(ctx context.Context) error {
			return s.rdb.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
				counts, err := node.PubSubNumSub(ctx, channelOf(run)).Result()
				subscribers.Add(counts[channelOf(run)])
				return err
			})
		})
		if err != nil {
			return nil, err
		}
		if subscribers.Load() > 0 {
			delete(notes, run) // it is going on elsewhere
		}
	}
	return notes, nil
}

func (s *clusterSession) Unregister(ctx context.Context, run string) error {
	s.release()
	return s.ledger(ctx, "hdel", func(ctx context.Context) error { return s.rdb.HDel(ctx, leftKey, run).Err() })
}

// release ends the subscription of a run that was registered.
func (s *clusterSession) release() {
	if s.held != nil {
		s.held.Close() // fails where its socket is closed already
		s.held = nil
	}
}

// ledger performs a command. Who may not keep notes has none, as on a single server.
func (s *clusterSession) ledger(ctx context.Context, command string, f func(ctx context.Context) error) error {
	err := s.use(ctx, f)
	if kind := bench.Kind(err); err != nil && kind != "noperm" && kind != "unsupported" {
		return fmt.Errorf("%s %s: %w", command, leftKey, err)
	}
	return nil
}

// Close closes the session's own connections.
func (s *clusterSession) Close() error {
	s.release()
	s.dialer.close()
	s.rdb.Close() // fails: its sockets are closed already
	return nil
}

// redirects returns how many commands a node answered by MOVED or ASK, as it has counted since Redis 6.2.
func redirects(errorstats map[string]string) (n uint64) {
	for name, fields := range errorstats {
		if name == "errorstat_MOVED" || name == "errorstat_ASK" {
			count, _ := strconv.ParseUint(strings.TrimPrefix(fields, "count="), 10, 64)
			n += count
		}
	}
	return n
}
