// Package bench measures what one operation on a data store costs.
//
// A [Target] is a configured store, a [Store] one client of it, a [Workload] a named operation. [Plan.Run] measures
// every row of a plan in turn: it opens the client, loads data, warms up, then lets workers perform the operation and
// counts. This file holds the nouns; run.go runs a plan, load.go is the timed loop, result.go is what comes out.
package bench

import (
	"context"
	"errors"
	"iter"
	"time"
)

// TTL is how long a key lives that a killed run left behind.
const TTL = time.Hour

// ErrMiss says that a key is absent: the operation completed, and is counted as a miss.
var ErrMiss = errors.New("key not found")

// ErrMismatch says that a value read is not the one written.
var ErrMismatch = errors.New("value read differs from the value written")

// A Store is one client of one data store. Its methods are called from many goroutines at once. They are the timed
// path: a bound on each operation is set when the store is opened, not by a deadline of ctx.
type Store interface {
	// Get returns the value of key, or ErrMiss.
	Get(ctx context.Context, key string) ([]byte, error)
	// Set writes key; a store that can expire keys forgets it after TTL.
	Set(ctx context.Context, key string, value []byte) error
	// Info says how the client is set up and how many connections it has open.
	Info() Info
	// Close ends operations in flight with an error and closes every connection. It may be called twice.
	Close() error
}

// Info describes an open store.
type Info struct {
	Connections int            // open now
	Settings    map[string]any // what an application would have to set to get the same figures
}

// A Cmd is one Redis command: its name, then its arguments.
type Cmd []string

// A Reply is what a store answered to one command. Exactly one of Err, Nil and a value is meant.
type Reply struct {
	Err   error  // the server's error reply, or the connection's failure
	Nil   bool   // the null reply
	Int   int64  // an integer reply
	Len   int    // elements of an array reply
	Nils  int    // of which are null
	Bytes []byte // a string reply; valid until the next call
}

// A Commander is a store that sends Redis commands: cmds in one round trip, replies[i] being the answer to cmds[i].
type Commander interface {
	Do(ctx context.Context, cmds []Cmd, replies []Reply)
}

// A Dedicated store gives each worker a connection of its own, worker being below Options.Connections.
type Dedicated interface {
	Dedicate(worker int) Store
}

// A Client is a client library of one kind of store.
type Client struct {
	Name, Version string
	Pipeline      bool // can send several commands in one round trip
}

// An Incrementer is a key-value store that counts: it adds one to the number at key.
type Incrementer interface {
	Incr(ctx context.Context, key string) error
}

// A MultiGetter reads several keys in one round trip and returns how many of them were there.
type MultiGetter interface {
	GetMulti(ctx context.Context, keys []string) (found int, err error)
}

// A Bank is a store that performs pgbench's transactions on the tables that Load has made.
type Bank interface {
	// Load makes pgbench's tables at that scale in the schema of the run, once however often it is called.
	Load(ctx context.Context, run string, scale int) error
	// Transfer is TPC-B's transaction; simple leaves out tellers and branches.
	Transfer(ctx context.Context, t Transfer, simple bool) error
	// Balance reads the balance of an account.
	Balance(ctx context.Context, account int) (int, error)
}

// A Transfer is what one TPC-B transaction moves.
type Transfer struct{ Account, Branch, Teller, Delta int }

// Options are what a client is opened with.
type Options struct {
	Connections int           // workers, and so connections to be ready before the clock starts
	Timeout     time.Duration // bound on one operation and on each stage of a dial
	Sync        bool          // flush every write to disk
	Protocol    string        // of Postgres: simple, extended or prepared
	Defaults    bool          // pool and retries as the library has them by itself; Timeout holds none the less
}

// A Target is a configured store.
type Target struct {
	Name, Kind, Address string
	TLS, Embedded       bool
	Cluster             bool // keys are spread over nodes, and a command may name keys of one of them only
	Clients             []Client
	Default             []string // clients measured where none is named
	Syncs               bool     // it is on disk: writes can be flushed
	// Wire is how to reach its server without a client library; nil for a store in this process.
	Wire *Wire
	// Connect opens a session: it returns once the store has answered.
	Connect func(ctx context.Context, timeout time.Duration) (Session, error)
}

// A Session is a connection to a target beside the measured ones. It never works while the clock runs.
type Session interface {
	Server() Server
	// Open returns client's store with its connections ready: each has answered.
	Open(ctx context.Context, client string, o Options) (Store, error)
	// Counters reads what the server says of command so far; ErrUnsupported where it does not say.
	Counters(ctx context.Context, command string) (Counters, error)
	// Ping returns once the store has answered.
	Ping(ctx context.Context) error
	// Remove deletes keys.
	Remove(ctx context.Context, keys iter.Seq[string]) error
	Close() error
}

// Server is what a store says of itself.
type Server struct {
	Version   string        // "redis 7.0.15"
	Mode      string        // "standalone", "cluster", "sentinel"
	Free      int64         // bytes it has free for data, of a cluster the fullest master; -1 where it has no limit or does not say
	RoundTrip time.Duration // the fastest of a few pings: what an operation costs at least
	Warnings  []string
}

// Counters are running totals of a server.
type Counters struct {
	Calls uint64        // of the command asked for
	Time  time.Duration // the server spent inside those calls
	CPU   time.Duration // of the server's process
	// Redirects are the commands answered by naming another node of the cluster, whoever sent them.
	Redirects uint64
}

// A Registry is a session that remembers runs whose keys have no TTL, so that the next run can remove what a killed one
// left. A note says which keys those are.
type Registry interface {
	Register(ctx context.Context, run, note string) error
	Registered(ctx context.Context) (notes map[string]string, err error)
	Unregister(ctx context.Context, run string) error
}

// Params is what a workload needs to know of its row.
type Params struct {
	Run        string
	Keys       Keys // nsop:RUN:key:0 and so on
	Values     Values
	Verify     bool
	Compatible bool   // flavor=compatible: exactly what redis-benchmark sends, key prefix aside
	Supply     uint64 // elements that Load adds for a workload that drains
	Scale      int    // of pgbench
	Share      Share  // of the data, which Load writes: every Of-th key or element
}

// Key is the name of a key of the run.
func (p *Params) Key(name string) string { return "nsop:" + p.Run + ":" + name }

// An Op performs the operations n, n+1, ... in one round trip, one for each element of errs, and stores how each
// ended. It depends on nothing but n, so that many instances can share one run. One goroutine at a time calls it.
type Op func(ctx context.Context, n uint64, errs []error)

// A Workload is a named operation.
type Workload struct {
	Name, Doc string
	Alias     string
	Title     string   // redis-benchmark's name for it; empty where it has none
	Command   string   // what the server's own statistics call it
	Kinds     []string // of targets that can do it
	Clients   []string // that can do it; nil: all
	Real      bool     // the embedded server does not know it
	Drains    bool     // each operation takes away an element that Load supplied
	Grows     bool     // each operation adds an element
	Elements  uint64   // of a list that Load makes, all of which each operation reads
	Forever   bool     // its keys have no TTL in either flavor
	Several   bool     // one command names several keys
	// Keys yields the keys it writes, which are removed afterwards; nil where it writes none.
	Keys func(p *Params) iter.Seq[string]
	// Load writes what the operation needs, untimed; nil where it needs nothing. In flavor compatible it is not called.
	Load func(ctx context.Context, s Store, p *Params) error
	// Op returns the operation for one worker, which sends pipeline commands in one round trip.
	Op func(s Store, p *Params, pipeline int) Op
}
