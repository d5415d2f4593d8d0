package storetest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ProxyOptions are the faults of a proxy from its start on.
type ProxyOptions struct {
	// Delay holds back each piece of a request, which a command of a few kilobytes is one of.
	Delay time.Duration
	// CutAfter closes a connection once it has passed on so many bytes of replies; 0 never does.
	CutAfter int
	// Corrupt may change each piece of a reply. Many goroutines call it.
	Corrupt func(reply []byte)
	// Throttle is how many bytes of replies a second one connection passes on; 0 is no limit.
	Throttle int
	// Bandwidth is how many bytes of replies a second all connections together pass on; 0 is no limit.
	Bandwidth int
}

// A ProxyServer stands between a client and a server, and adds faults of which it keeps the measure. It ends with the test.
type ProxyServer struct {
	Addr string // 127.0.0.1:port

	upstream string
	o        ProxyOptions
	delay    atomic.Int64
	accepted atomic.Int64
	open     atomic.Int64
	trips    atomic.Int64

	mu      sync.Mutex
	conns   map[net.Conn]struct{} // both sides; nil once the proxy is closed
	resumed chan struct{}         // closed while nothing is paused
	held    []time.Duration
	free    time.Time // when the bandwidth has passed on all that it was given
}

// Proxy starts a proxy before the server at upstream.
func Proxy(t testing.TB, upstream string, o ProxyOptions) *ProxyServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &ProxyServer{Addr: listener.Addr().String(), upstream: upstream, o: o, conns: map[net.Conn]struct{}{}, resumed: make(chan struct{})}
	close(p.resumed)
	p.delay.Store(int64(o.Delay))
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			p.accepted.Add(1)
			wait.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.Resume()
		p.SetDelay(0)
		p.mu.Lock()
		for c := range p.conns {
			c.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		wait.Wait()
	})
	return p
}

// SetDelay changes the delay of the pieces to come.
func (p *ProxyServer) SetDelay(d time.Duration) { p.delay.Store(int64(d)) }

// Accepted is the number of connections so far, Open that of those there are.
func (p *ProxyServer) Accepted() int { return int(p.accepted.Load()) }

// Open is the number of connections there are.
func (p *ProxyServer) Open() int { return int(p.open.Load()) }

// RoundTrips is the number of round trips so far.
func (p *ProxyServer) RoundTrips() int { return int(p.trips.Load()) }

// Pause passes nothing on until Resume; connections stay open and new ones are accepted.
func (p *ProxyServer) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.resumed:
		p.resumed = make(chan struct{})
	default:
	}
}

// Resume ends a pause.
func (p *ProxyServer) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.resumed:
	default:
		close(p.resumed)
	}
}

// Held returns for how long the proxy kept each caller waiting: from the first piece of a request to the first of its
// reply, the server's own time included. It forgets them.
func (p *ProxyServer) Held() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.held
	p.held = nil
	return held
}

// track remembers c, so that the end of the test closes it, and reports whether that is still to come.
func (p *ProxyServer) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *ProxyServer) close(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *ProxyServer) serve(client net.Conn) {
	defer p.close(client)
	if !p.track(client) {
		return
	}
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer p.close(server)
	if !p.track(server) {
		return
	}
	p.open.Add(1)
	defer p.open.Add(-1)
	var (
		wait  sync.WaitGroup
		asked atomic.Int64 // when the request began that has no reply yet, 0: there is none
		began = time.Now()
	)
	wait.Go(func() {
		defer client.Close()
		defer server.Close()
		p.requests(client, server, &asked, began)
	})
	p.replies(server, client, &asked, began)
	client.Close()
	server.Close()
	wait.Wait()
}

// requests passes on what the client sends.
func (p *ProxyServer) requests(client, server net.Conn, asked *atomic.Int64, began time.Time) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		asked.CompareAndSwap(0, int64(time.Since(began)))
		if d := time.Duration(p.delay.Load()); d > 0 {
			time.Sleep(d)
		}
		p.wait()
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// replies passes on what the server sends.
func (p *ProxyServer) replies(server, client net.Conn, asked *atomic.Int64, began time.Time) {
	size := 64 << 10
	if p.o.Throttle > 0 {
		size = max(1, p.o.Throttle/100)
	}
	buf := make([]byte, size)
	for left := p.o.CutAfter; ; {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		piece := buf[:n]
		p.wait()
		if p.o.Throttle > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(p.o.Throttle))
		}
		if p.o.Bandwidth > 0 {
			time.Sleep(time.Until(p.transmit(n)))
		}
		if p.o.Corrupt != nil {
			p.o.Corrupt(piece)
		}
		cut := p.o.CutAfter > 0 && n >= left
		if cut {
			piece = piece[:left]
		}
		// Noted before the reply leaves: once it has, the next request may come.
		if at := asked.Swap(0); at > 0 {
			p.note(time.Since(began) - time.Duration(at))
		}
		if _, err := client.Write(piece); err != nil || cut {
			return
		}
		left -= n
	}
}

func (p *ProxyServer) note(held time.Duration) {
	p.trips.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, held)
}

// transmit returns when n bytes more have gone over the path that all connections share.
func (p *ProxyServer) transmit(n int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(n) * time.Second / time.Duration(p.o.Bandwidth))
	return p.free
}

// wait returns once nothing is paused.
func (p *ProxyServer) wait() {
	p.mu.Lock()
	resumed := p.resumed
	p.mu.Unlock()
	<-resumed
}
