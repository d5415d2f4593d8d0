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

// Options are what a client is opened with.
type Options struct {
	Connections int           // workers, and so connections to be ready before the clock starts
	Timeout     time.Duration // bound on one operation and on each stage of a dial
}

// A Target is a configured store.
type Target struct {
	Name, Kind, Address string
	TLS, Embedded       bool
	Clients             []Client
	Default             []string // clients measured where none is named
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
	Free      int64         // bytes it has free for data; -1 where it has no limit or does not say
	RoundTrip time.Duration // the fastest of a few pings: what an operation costs at least
	Warnings  []string
}

// Counters are running totals of a server.
type Counters struct {
	Calls uint64        // of the command asked for
	Time  time.Duration // the server spent inside those calls
	CPU   time.Duration // of the server's process
}

// Params is what a workload needs to know of its row.
type Params struct {
	Keys   Keys
	Values Values
	Verify bool
}

// An Op performs the operations n, n+1, ... in one round trip, one for each element of errs, and stores how each
// ended. It depends on nothing but n, so that many instances can share one run. One goroutine at a time calls it.
type Op func(ctx context.Context, n uint64, errs []error)

// A Workload is a named operation.
type Workload struct {
	Name, Doc string
	Alias     string
	Command   string   // what the server's own statistics call it
	Kinds     []string // of targets that can do it
	Clients   []string // that can do it; nil: all
	Keyed     bool     // it writes keys, which are removed afterwards
	// Load writes what the operation needs, untimed; nil where it needs nothing.
	Load func(ctx context.Context, s Store, p *Params) error
	// Op returns the operation for one worker, which sends pipeline commands in one round trip.
	Op func(s Store, p *Params, pipeline int) Op
}
