package store

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"

	"github.com/redis/rueidis"

	"nsop/bench"
)

// A multiplexedCluster store shares one connection of rueidis to each node between all operations. Commands with and
// without a key can't be mixed in one round trip.
type multiplexedCluster struct{ multiplexed }

func openRueidisCluster(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error) {
	delay := flushDelay
	if o.Connections == 1 {
		delay = 0
	}
	// The library dials without a context, so the end of ctx closes the dialer instead.
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
		// Beside the dialer, which does without, since it tells which of a node's two ports is meant.
		TLSConfig: e.tls,
		DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.dialNode(ctx, "", addr)
		},
		Dialer:           net.Dialer{Timeout: o.Timeout, KeepAlive: pingGap},
		ConnWriteTimeout: o.Timeout,
		ClientSetInfo:    rueidis.DisableClientSetInfo,
		DisableRetry:     true,
		DisableCache:     true,
		AlwaysRESP2:      true,
		MaxFlushDelay:    delay,
		ClusterOption:    rueidis.ClusterOption{MaxMovedRedirections: maxRedirects},
	})
	s := &multiplexedCluster{multiplexed{dialer: d, client: c, o: o, conns: 1, delay: delay}}
	if err == nil {
		err = s.reachAll(ctx)
	}
	if err != nil {
		s.Close()
		return nil, explain(ctx, o.Timeout, err)
	}
	return s, nil
}

// reachKeys are as many keys as it takes to have, of a hundred equal nodes, each hold one: it misses one in 300 times.
const reachKeys = 1024

// reachAll has every master answer once, each of which is dialled when a command is first sent to it.
func (s *multiplexedCluster) reachAll(ctx context.Context) error {
	cmds := make(rueidis.Commands, reachKeys)
	for i := range cmds {
		cmds[i] = s.client.B().Arbitrary("ECHO").Keys("nsop:" + strconv.Itoa(i)).Build()
	}
	for _, r := range s.client.DoMulti(ctx, cmds...) {
		if err := r.Error(); err != nil && !answered(err) {
			return err
		}
	}
	return nil
}

func (s *multiplexedCluster) Info() bench.Info {
	info := s.multiplexed.Info()
	info.Settings["pool_size_is_per"], info.Settings["max_redirects"] = "node", maxRedirects
	return info
}
