package diagnose

import (
	"context"
	"fmt"
	"net"
	"time"

	"nsop/bench"
)

// A Connection was dialled in stages and has performed three commands.
type Connection struct {
	Phases bench.Phases
	talk   *line
	since  time.Time // its latest command
}

// A PhaseError says in which phase a fresh dial failed.
type PhaseError struct {
	Phase string
	Err   error
}

func (e *PhaseError) Error() string { return e.Phase + ": " + e.Err.Error() }
func (e *PhaseError) Unwrap() error { return e.Err }

// Fresh dials target, which has a Wire, and performs three commands, each phase bounded by timeout. The connection ends
// with ctx. Beside a *PhaseError the phases before it are there too.
func Fresh(ctx context.Context, target *bench.Target, timeout time.Duration) (*Connection, error) {
	d := &diagnosis{target: target, Options: Options{Timeout: timeout}}
	c := &Connection{}
	host, port, err := net.SplitHostPort(target.Wire.Addr)
	if err != nil {
		return c, &PhaseError{"dns", err}
	}
	if net.ParseIP(host) == nil {
		looking, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		started := time.Now()
		addresses, err := net.DefaultResolver.LookupNetIP(looking, "ip", host)
		if err == nil && len(addresses) == 0 {
			err = &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
		}
		if err != nil {
			return c, &PhaseError{"dns", err}
		}
		c.Phases.Set("dns", time.Since(started))
		host = addresses[0].Unmap().String()
	}
	talk, at, err := d.dial(ctx, ctx, net.JoinHostPort(host, port))
	for _, s := range at.stages {
		c.Phases.Set(s.name, s.took)
	}
	if err != nil {
		return c, &PhaseError{at.failed, err}
	}
	c.talk = talk
	for _, phase := range []string{"first", "second", "third"} {
		started := time.Now()
		if err := talk.Echo(0); err != nil {
			c.Close()
			return c, &PhaseError{phase + " command", err}
		}
		c.Phases.Set(phase, time.Since(started))
	}
	c.since = time.Now()
	return c, nil
}

// Resume performs a command after the connection has rested, and says for how long it had.
func (c *Connection) Resume() (took, gap time.Duration, err error) {
	started := time.Now()
	if err := c.talk.Echo(0); err != nil {
		return 0, started.Sub(c.since), fmt.Errorf("after a gap: %w", err)
	}
	return time.Since(started), started.Sub(c.since), nil
}

// Close closes the connection. It may be called twice.
func (c *Connection) Close() error {
	if c.talk == nil {
		return nil
	}
	return c.talk.Close()
}
