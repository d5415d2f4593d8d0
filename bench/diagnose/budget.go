package diagnose

import "time"

// A Budget cuts one warm operation into disjoint parts that sum to its total.
type Budget struct {
	Operation string `json:"operation"` // get, or select
	Client    string `json:"client"`
	TotalNS   int64  `json:"total_ns"` // the median
	Parts     []Part `json:"parts"`    // server, network, sandbox, library, unaccounted
	// ServerSource is where the server's part is from: its command statistics, its CPU, EXPLAIN ANALYZE.
	ServerSource string `json:"server_source,omitempty"`
}

// A Part of a budget. NS is nil where it could not be told; it counts as nothing then.
type Part struct {
	Name string `json:"name"`
	NS   *int64 `json:"ns"`
}

// part returns the nanoseconds of the part called name, 0 where it could not be told.
func (b *Budget) part(name string) int64 {
	for _, p := range b.Parts {
		if p.Name == name && p.NS != nil {
			return *p.NS
		}
	}
	return 0
}

// measures are the medians that a budget is made of; -1: not known.
type measures struct {
	total    time.Duration // of the operation through the library
	floor    time.Duration // of the operation on a bare socket
	echo     time.Duration // of a command that the server has nothing to do for, on the same socket
	sandbox  time.Duration // one way between two goroutines over a socket: a write, a wake-up, a read
	server   time.Duration // that the server says the operation takes it
	overhead time.Duration // that it says the echo takes it
}

// cut makes the parts of m:
//
//	library      = total - floor
//	server       = what the server says
//	sandbox      = what it costs here to send and to be woken, without any network
//	network      = echo - the server's time for it - sandbox: the way there and back with the kernels on it
//	unaccounted  = what is left of the total
//
// The measures are each by themselves, so that they may sum to more than the total by what they are uncertain; what is
// too much is taken off network, then sandbox, then server.
func cut(m measures) []Part {
	known := func(d time.Duration) time.Duration { return max(d, 0) }
	library := max(0, m.total-known(m.floor))
	if m.floor < 0 {
		library = 0
	}
	sandbox := min(known(m.sandbox), known(m.echo))
	network := max(0, known(m.echo)-known(m.overhead)-sandbox)
	server := known(m.server)
	left := m.total - library - sandbox - network - server
	for _, part := range []*time.Duration{&network, &sandbox, &server} {
		if left < 0 {
			less := min(*part, -left)
			*part -= less
			left += less
		}
	}
	parts := []Part{
		{"server", new(int64(server))}, {"network", new(int64(network))}, {"sandbox", new(int64(sandbox))},
		{"library", new(int64(library))}, {"unaccounted", new(int64(left))},
	}
	for i, missing := range []bool{m.server < 0, m.echo < 0, m.sandbox < 0, m.floor < 0} {
		if missing {
			parts[i].NS = nil
		}
	}
	return parts
}
