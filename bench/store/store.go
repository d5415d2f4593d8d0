// Package store opens the stores that package bench measures, each through the client libraries an application would
// use and, for Redis, through a bare socket as the floor below them.
//
// [Parse] turns a target's URL into a [bench.Target]. The tables schemes and clients hold what there is: a client is one
// file and one line of the table.
package store

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"nsop/bench"
)

// idleLimit is how long a pool keeps a connection that nothing uses. Cloud Run drops idle ones after ten minutes.
const idleLimit = 5 * time.Minute

// A scheme is a kind of target URL.
type scheme struct {
	name  string
	tls   bool
	form  string // as a user would write it
	parse func(s scheme, name, rest, password string, getenv func(string) string) (*bench.Target, error)
}

var schemes = []scheme{
	{"redis", false, "redis://[user:password@]host[:port][/db]", parseRedis},
	{"rediss", true, "rediss://[user:password@]host[:port][/db][?ca=FILE|?ca_env=NAME]", parseRedis},
	{"valkey", false, "valkey://[user:password@]host[:port][/db]", parseRedis},
	{"valkeys", true, "valkeys://[user:password@]host[:port][/db][?ca=FILE|?ca_env=NAME]", parseRedis},
	{"redis+cluster", false, "redis+cluster://[user:password@]host[:port]", parseCluster},
	{"rediss+cluster", true, "rediss+cluster://[user:password@]host[:port][?ca=FILE|?ca_env=NAME]", parseCluster},
	{"valkey+cluster", false, "valkey+cluster://, which is the same as redis+cluster", parseCluster},
	{"valkeys+cluster", true, "valkeys+cluster://, which is the same as rediss+cluster", parseCluster},
	{"postgres", false, "postgres://user[:password]@host[:port][/database][?sslmode=disable|require|verify-ca|verify-full][&sslrootcert=FILE|&ca=FILE|&ca_env=NAME]", parsePostgres},
	{"postgresql", false, "postgresql://, which is the same", parsePostgres},
	{"memcached", false, "memcached://host[:port][,host[:port]...]", parseMemcached},
	{"embedded", false, "embedded:redis", parseEmbedded},
}

// A client is a client library of one kind of store.
type client struct {
	kind, name string
	module     string // whose version is the client's; "": no library
	pipeline   bool
	byDefault  bool // measured where no client is named
	open       func(ctx context.Context, d *dialer, e endpoint, o bench.Options) (bench.Store, error)
}

var clients = []client{
	{"redis", "redigo", "github.com/gomodule/redigo", true, true, openRedigo},
	{"redis", "go-redis", "github.com/redis/go-redis/v9", true, true, openGoRedis},
	{"redis", "rueidis", "github.com/redis/rueidis", true, false, openRueidis},
	{"redis", "floor", "", true, false, openFloor},
	{clusterKind, "go-redis", "github.com/redis/go-redis/v9", true, true, openGoRedisCluster},
	{clusterKind, "rueidis", "github.com/redis/rueidis", true, true, openRueidisCluster},
	{"postgres", "pgx", "github.com/jackc/pgx/v5", false, true, nil}, // opened by bankClients
	{"postgres", "database-sql", "github.com/jackc/pgx/v5", false, false, nil},
	{"memcached", "gomemcache", "github.com/bradfitz/gomemcache", false, true, nil}, // opened by memcachedClients
	{"memcached", "floor", "", false, false, nil},
	{"map", "map", "", false, true, nil}, // opened by their engines
	{"bbolt", "bbolt", "go.etcd.io/bbolt", false, true, nil},
	{"buntdb", "buntdb", "github.com/tidwall/buntdb", false, true, nil},
	{"sqlite", "sqlite", "modernc.org/sqlite", false, true, nil},
}

// clusterKind stands in the table of clients for a target of kind redis that is a cluster.
const clusterKind = "redis cluster"

// Parse returns the target called name at rawURL, whose forms are those of the table of schemes. The password is used
// where the URL holds none; it is an error where both hold one and they differ. The variables of the environment that
// the URL names are read through getenv. Nothing is dialled. An error is one line and never holds a part of the user
// name or password.
func Parse(name, rawURL, password string, getenv func(string) string) (*bench.Target, error) {
	head, rest, found := strings.Cut(rawURL, ":")
	head = strings.ToLower(head)
	for _, s := range schemes {
		if found && s.name == head {
			t, err := s.parse(s, name, rest, password, getenv)
			if err != nil {
				return nil, fmt.Errorf("target %q: %w (allowed: %s)", name, err, s.form)
			}
			return t, nil
		}
	}
	var allowed []string
	for _, s := range schemes {
		allowed = append(allowed, s.form)
	}
	what := "no scheme that is known"
	// Without the slashes what stands before the colon may be a user name.
	if strings.HasPrefix(rest, "//") && plainScheme(head) {
		what = fmt.Sprintf("unknown scheme %q", head)
	}
	return nil, fmt.Errorf("target %q: %s (allowed: %s)", name, what, strings.Join(allowed, ", "))
}

func plainScheme(s string) bool {
	return s != "" && len(s) < 32 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '+' && r != '-' && r != '.'
	})
}

// describe fills in the clients of t's kind.
func describe(t *bench.Target) *bench.Target {
	kind := t.Kind
	if t.Cluster {
		kind = clusterKind
	}
	for _, c := range clients {
		if c.kind != kind {
			continue
		}
		t.Clients = append(t.Clients, bench.Client{Name: c.name, Version: version(c.module), Pipeline: c.pipeline})
		if c.byDefault {
			t.Default = append(t.Default, c.name)
		}
	}
	return t
}

// clientOf returns the client of that kind of store called name.
func clientOf(kind, name string) (client, error) {
	var names []string
	for _, c := range clients {
		if c.kind != kind {
			continue
		}
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return client{}, fmt.Errorf("client %q of a %s store: want one of %s", name, kind, strings.Join(names, ", "))
}

// version returns the version of module linked into this binary, "" where the binary does not say.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module })
	switch {
	case i < 0:
		return ""
	case info.Deps[i].Replace != nil:
		return info.Deps[i].Replace.Version
	}
	return info.Deps[i].Version
}
