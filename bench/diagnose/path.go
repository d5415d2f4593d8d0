package diagnose

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"nsop/bench"
)

// A Path is the way to the server, each stage of it fresh.
type Path struct {
	Host      string    `json:"host"`
	Addresses []Address `json:"addresses"` // in the order in which a dial tries them
	Family    string    `json:"family"`    // of the address used: ipv4 or ipv6
	// Stages are those of a fresh dial in their order: dns, connect, tls, auth, select, first, second and third (commands).
	// hello is that of a dial of its own.
	Stages []Stage `json:"stages"`
	// Retransmitted is how many of Connects had to repeat their SYN, as the kernel says or as their time does.
	Connects      int         `json:"connects"`
	Retransmitted int         `json:"retransmitted"`
	KernelRTTNS   *int64      `json:"kernel_rtt_ns"` // the kernel's estimate of a round trip; nil where the socket does not tell
	HelloRefused  string      `json:"hello_refused,omitempty"`
	FanOut        []FanOut    `json:"fan_out"`
	Throughput    *Throughput `json:"throughput"`
	// FailedDials and StartingNS say that the first dials failed, and for how long, before one did not.
	FailedDials int      `json:"failed_dials"`
	StartingNS  int64    `json:"starting_ns,omitempty"`
	Failure     *Failure `json:"failure"` // what kept the server from being reached
}

// An Address is one that the host's name has.
type Address struct {
	Address   string `json:"address"`
	ConnectNS *int64 `json:"connect_ns"` // nil: it failed
	Error     string `json:"error,omitempty"`
	ErrorKind string `json:"error_kind,omitempty"`
}

// A Stage is one of a fresh dial.
type Stage struct {
	Name string `json:"name"`
	Stat
}

// stage returns the distribution of the stage called name, nil where it was not reached.
func (p *Path) stage(name string) *Stat {
	if p == nil {
		return nil
	}
	for i := range p.Stages {
		if p.Stages[i].Name == name {
			return &p.Stages[i].Stat
		}
	}
	return nil
}

// A Failure is the stage that failed.
type Failure struct {
	Stage     string `json:"stage"`
	Kind      string `json:"error_kind"`
	Text      string `json:"error"`
	ElapsedNS int64  `json:"elapsed_ns"`
}

// A FanOut is some fresh dials at once, each up to the answer to its first command.
type FanOut struct {
	Dials  int   `json:"dials"`
	Failed int   `json:"failed"`
	P50NS  int64 `json:"p50_ns"`
	MaxNS  int64 `json:"max_ns"`
	// Warm are the commands on an open connection meanwhile.
	Warm *Stat  `json:"warm"`
	Skip string `json:"skipped,omitempty"` // why there were fewer dials than meant
}

// Throughput is that of large values.
type Throughput struct {
	Size        int   `json:"size"`
	BestNS      int64 `json:"best_ns"`
	RoundTripNS int64 `json:"round_trip_ns"` // the least of a small command meanwhile
	BytesPerSec int64 `json:"bytes_per_sec"` // of the best, less the round trip of a small command
}

// A line is a talk that the end of a context ends.
type line struct {
	bench.Talk
	mu     sync.Mutex
	closed bool
	stop   func() bool
}

// newLine returns a line over talk, which ends with ctx.
func newLine(ctx context.Context, talk bench.Talk) *line {
	l := &line{Talk: talk}
	l.stop = context.AfterFunc(ctx, l.shut)
	return l
}

func (l *line) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed { // a descriptor that is closed may be another's by now
		l.Shut()
	}
}

func (l *line) Close() error {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return l.Talk.Close()
}

// A dialled is what a fresh dial took.
type dialled struct {
	stages        []timed
	retransmitted bool
	rtt           time.Duration // of the kernel, 0: it does not tell
	failed        string        // the stage that failed
}

type timed struct {
	name string
	took time.Duration
}

// sum is the time of the stages up to the first command.
func (d *dialled) sum() (sum time.Duration) {
	for _, s := range d.stages {
		if s.name != "second" && s.name != "third" {
			sum += s.took
		}
	}
	return sum
}

// dial opens a connection to addr in stages; the line ends with life.
func (d *diagnosis) dial(ctx, life context.Context, addr string) (*line, *dialled, error) {
	return dial(ctx, life, d.target.Wire, addr, d.Timeout)
}

// dial opens a connection to addr, one of w's, in stages, each of which has timeout; the line ends with life.
func dial(ctx, life context.Context, w *bench.Wire, addr string, timeout time.Duration) (*line, *dialled, error) {
	at := &dialled{failed: "connect"}
	started := time.Now()
	done := func(next string) {
		at.stages = append(at.stages, timed{at.failed, time.Since(started)})
		at.failed, started = next, time.Now()
	}
	staged, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var nd net.Dialer
	conn, err := nd.DialContext(staged, "tcp", addr)
	took := time.Since(started)
	if err != nil {
		return nil, at, err
	}
	retransmits, rtt, told := kernelTimes(conn)
	at.rtt, at.retransmitted = rtt, retransmits > 0
	if !told { // what is left is to go by the time
		at.retransmitted = took > synTimeout-100*time.Millisecond
	}
	done("tls")
	if w.TLS != nil {
		staged, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		deadline, _ := staged.Deadline()
		err := conn.SetDeadline(deadline)
		if err == nil && w.StartTLS != nil {
			err = w.StartTLS(conn)
		}
		secure := tls.Client(conn, w.TLS)
		if err == nil {
			err = secure.HandshakeContext(staged)
		}
		if err == nil {
			err = conn.SetDeadline(time.Time{})
		}
		if err != nil {
			conn.Close()
			return nil, at, err
		}
		conn = secure
		done("login")
	}
	at.failed, started = "login", time.Now()
	login, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	talk, err := w.Login(login, conn, timeout, func(name string) {
		if at.failed == "login" {
			at.failed, started = name, time.Now()
			return
		}
		done(name)
	})
	if err != nil {
		return nil, at, err
	}
	if at.failed != "login" {
		done("")
	}
	return newLine(life, talk), at, nil
}

// synTimeout is after how long a SYN without an answer is repeated, for the first time (RFC 6298, 2.1: 1 s).
const synTimeout = time.Second

// freshDials is how many dials are made one after the other, as long as they take less than freshTime in all.
const (
	freshDials = 5
	freshTime  = 2500 * time.Millisecond
)

// path measures fresh dials and opens the connections for what comes after. It returns false where the server could not
// be reached.
func (d *diagnosis) path(ctx context.Context) bool {
	p := &Path{Addresses: []Address{}, Stages: []Stage{}, FanOut: []FanOut{}}
	d.r.Path = p
	host, port, err := net.SplitHostPort(d.target.Wire.Addr)
	if err != nil {
		p.Failure = &Failure{Stage: "dns", Kind: "other", Text: err.Error()}
		return false
	}
	p.Host = host
	addresses, lookups, err := d.resolve(ctx, host)
	if err != nil {
		p.Failure = d.failure("dns", err, 0)
		return false
	}
	began := time.Now()
	addr := d.addresses(ctx, addresses, port)
	if addr == "" && young(d.r.Vantage) {
		addr = d.await(ctx, addresses, port, began)
	}
	if addr == "" {
		return false
	}
	return d.fresh(ctx, addr, lookups)
}

// starting is how long the network of a fresh instance may take to be there (Cloud Run, Direct VPC egress: a minute or more).
const starting = 2 * time.Minute

// resolve looks the host up, up to three times.
func (d *diagnosis) resolve(ctx context.Context, host string) (addresses []netip.Addr, took []time.Duration, err error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil, nil
	}
	for range 3 {
		var once time.Duration
		if addresses, once, err = lookup(ctx, host, d.Timeout); err != nil {
			return nil, nil, err
		}
		took = append(took, once)
		if once > time.Second {
			break
		}
	}
	d.stages("dns", took)
	return addresses, took, nil
}

// lookup resolves host once.
func lookup(ctx context.Context, host string, timeout time.Duration) (addresses []netip.Addr, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	started := time.Now()
	addresses, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	return addresses, time.Since(started), err
}

// stages adds a stage, where it has samples.
func (d *diagnosis) stages(name string, samples []time.Duration) {
	if s := stat(append([]time.Duration{}, samples...)); s != nil {
		d.r.Path.Stages = append(d.r.Path.Stages, Stage{name, *s})
	}
}

// maxAddresses of a name are tried.
const maxAddresses = 4

// addresses connects to each address at once and returns the first in order that answers, "" where none does.
func (d *diagnosis) addresses(ctx context.Context, addresses []netip.Addr, port string) (first string) {
	p := d.r.Path
	addresses = addresses[:min(len(addresses), maxAddresses)]
	p.Addresses = make([]Address, len(addresses))
	errs := make([]error, len(addresses))
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	started := time.Now()
	var wait sync.WaitGroup
	for i, a := range addresses {
		wait.Go(func() {
			var nd net.Dialer
			conn, err := nd.DialContext(ctx, "tcp", net.JoinHostPort(a.String(), port))
			p.Addresses[i] = Address{Address: a.Unmap().String()}
			if err != nil {
				errs[i] = err
				p.Addresses[i].Error, p.Addresses[i].ErrorKind = err.Error(), kindOf(err)
				return
			}
			p.Addresses[i].ConnectNS = new(int64(time.Since(started)))
			conn.Close()
		})
	}
	wait.Wait()
	for i, a := range addresses {
		if errs[i] != nil {
			continue
		}
		p.Failure, p.Family = nil, "ipv6"
		if a.Unmap().Is4() {
			p.Family = "ipv4"
		}
		return net.JoinHostPort(a.String(), port)
	}
	p.Failure = d.failure("connect", errs[0], time.Since(started))
	return ""
}

// kindOf is bench.Kind, and unreachable where the network said so.
func kindOf(err error) string {
	if errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return "unreachable"
	}
	return bench.Kind(err)
}

// await tries again until the network is there or the time is over.
func (d *diagnosis) await(ctx context.Context, addresses []netip.Addr, port string, began time.Time) string {
	for failed := 1; ; failed++ {
		deadline, _ := ctx.Deadline()
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(200 * time.Millisecond):
		}
		if time.Until(deadline) < d.Effort+d.Timeout {
			return ""
		}
		d.r.Path.FailedDials = failed
		if addr := d.addresses(ctx, addresses, port); addr != "" {
			d.r.Path.StartingNS = int64(time.Since(began))
			return addr
		}
	}
}

// fresh dials some times up to the third command.
func (d *diagnosis) fresh(ctx context.Context, addr string, lookups []time.Duration) bool {
	p := d.r.Path
	samples := map[string][]time.Duration{}
	var order []string
	var cold []time.Duration
	began := time.Now()
	for i := range freshDials {
		started := time.Now()
		l, at, err := d.dial(ctx, ctx, addr)
		for _, name := range []string{"first", "second", "third"} {
			if err != nil {
				break
			}
			asked := time.Now()
			if err = l.Echo(100); err != nil {
				at.failed = name
				break
			}
			at.stages = append(at.stages, timed{name, time.Since(asked)})
		}
		for _, s := range at.stages {
			if samples[s.name] == nil {
				order = append(order, s.name)
			}
			samples[s.name] = append(samples[s.name], s.took)
		}
		if len(at.stages) > 0 { // it has connected
			p.Connects++
			if at.retransmitted {
				p.Retransmitted++
			} else if at.rtt > 0 && (p.KernelRTTNS == nil || int64(at.rtt) < *p.KernelRTTNS) {
				p.KernelRTTNS = new(int64(at.rtt))
			}
		}
		if err != nil {
			if l != nil {
				l.Close()
			}
			d.failed, d.errors = err, d.errors+1
			if i == 0 || time.Since(began) > freshTime {
				if len(cold) == 0 {
					p.Failure = d.failure(at.failed, err, time.Since(started))
				}
				break
			}
			continue
		}
		total := at.sum()
		if len(lookups) > 0 {
			total += lookups[i%len(lookups)]
		}
		cold = append(cold, total)
		if i == 0 && d.Vantage.Cold {
			d.r.Classes.ProcessCold = stat([]time.Duration{total})
		}
		l.Close()
		if time.Since(began) > freshTime {
			break
		}
	}
	for _, name := range order {
		d.stages(name, samples[name])
	}
	d.r.Classes.ConnectionCold = stat(cold)
	if p.KernelRTTNS == nil {
		d.unmeasured("path.kernel_rtt_ns", errors.New("the socket does not tell"))
	}
	return len(cold) > 0 && d.hold(ctx, addr)
}

// hold opens the warm connection and those that wait.
func (d *diagnosis) hold(ctx context.Context, addr string) bool {
	var err error
	if d.talk, _, err = d.dial(ctx, ctx, addr); err != nil {
		d.r.Path.Failure = d.failure("connect", err, 0)
		return false
	}
	for i, gap := range append([]time.Duration{0}, d.Options.Idle...) {
		life := ctx
		if i > 0 {
			life = context.WithoutCancel(ctx)
		}
		l, _, err := d.dial(ctx, life, addr)
		if err == nil {
			err = l.Echo(100)
		}
		if err != nil {
			d.unmeasured("idle", err)
			break
		}
		d.holds = append(d.holds, hold{gap, time.Now(), l})
	}
	return true
}

func (d *diagnosis) failure(stage string, err error, elapsed time.Duration) *Failure {
	f := &Failure{Stage: stage, Kind: kindOf(err), Text: err.Error(), ElapsedNS: int64(elapsed)}
	if f.Kind == "timeout" {
		f.Text = "no answer within " + d.Timeout.String()
	}
	return f
}

// hello asks for the newest protocol, on a connection of its own.
func (d *diagnosis) hello(ctx context.Context) {
	l, _, err := d.dial(ctx, ctx, d.addr())
	if err != nil {
		return
	}
	defer l.Close()
	greeter, ok := l.Talk.(bench.Greeter)
	if !ok {
		return
	}
	started := time.Now()
	err = greeter.Hello()
	switch took := time.Since(started); {
	case err == nil:
		d.stages("hello", []time.Duration{took})
	case bench.Kind(err) == "timeout" || bench.Kind(err) == "reset":
		d.unmeasured("path.hello", err)
	default:
		d.stages("hello", []time.Duration{took})
		d.r.Path.HelloRefused = err.Error()
	}
}

// addr is the address of the path, without another look-up.
func (d *diagnosis) addr() string {
	_, port, _ := net.SplitHostPort(d.target.Wire.Addr)
	for _, a := range d.r.Path.Addresses {
		if a.ConnectNS != nil {
			return net.JoinHostPort(a.Address, port)
		}
	}
	return d.target.Wire.Addr
}

// fans are how many dials are made at once. Where it is not known what the server has free, no more than cautious.
var fans = []int{1, 8, 32}

const cautious = 8

// fanOut dials several times at once while commands go on on an open connection.
func (d *diagnosis) fanOut(ctx context.Context) {
	most, why := d.room()
	for _, n := range fans {
		skip := ""
		if n > most {
			n, skip = most, why
		}
		if n < 1 || ctx.Err() != nil {
			d.unmeasured("path.fan_out", cmpErr(ctx.Err() != nil, errSkipped, errors.New(why)))
			return
		}
		f, ok := d.fan(ctx, n)
		if ok && f.exploded(d.r.Path.FanOut) {
			// Once more: a machine that was busy elsewhere for a moment looks alike.
			if again, ok := d.fan(ctx, n); ok && again.MaxNS < f.MaxNS && again.Failed <= f.Failed {
				f = again
			}
		}
		if !ok {
			d.unmeasured("path.fan_out", errSkipped)
			return
		}
		f.Skip = skip
		d.r.Path.FanOut = append(d.r.Path.FanOut, f)
		if skip != "" {
			return
		}
	}
}

func cmpErr(first bool, a, b error) error {
	if first {
		return a
	}
	return b
}

// room is how many connections may be opened at once: half of what the server has free.
func (d *diagnosis) room() (n int, why string) {
	s := d.r.Server
	if s == nil || s.MaxClients == nil || s.ConnectedClients == nil {
		return cautious, "the server does not say how many connections it has free"
	}
	free := *s.MaxClients - *s.ConnectedClients - s.OwnConnections
	return int(max(0, free/2)), fmt.Sprintf("the server has %d connections free, of which no more than half are taken", free)
}

// fan dials n times at once.
func (d *diagnosis) fan(ctx context.Context, n int) (FanOut, bool) {
	addr := d.addr()
	took := make([]time.Duration, n)
	lines := make([]*line, n)
	failed := make([]bool, n)
	var dials sync.WaitGroup
	for i := range n {
		dials.Go(func() {
			started := time.Now()
			l, _, err := d.dial(ctx, ctx, addr)
			lines[i] = l
			if err == nil {
				err = l.Echo(4)
			}
			took[i], failed[i] = time.Since(started), err != nil
		})
	}
	ended := make(chan struct{})
	go func() { dials.Wait(); close(ended) }()
	var warm []time.Duration
	for going := true; going; {
		asked := time.Now()
		if d.talk.Echo(4) == nil {
			warm = append(warm, time.Since(asked))
		}
		select {
		case <-ended:
			going = false
		case <-time.After(time.Millisecond): // rather than to compete with the dials for the CPU
		}
	}
	f := FanOut{Dials: n, Warm: stat(warm)}
	for i, l := range lines {
		if l != nil {
			l.Close()
		}
		if failed[i] {
			f.Failed++
		}
	}
	s := stat(took)
	f.P50NS, f.MaxNS = s.P50NS, s.MaxNS
	return f, ctx.Err() == nil
}

// exploded tells whether the dials of f took much longer than one alone while commands did not: a quarter of a second
// more and ten times as long, or that some failed.
func (f *FanOut) exploded(smaller []FanOut) bool {
	if len(smaller) == 0 || f.Dials == 1 {
		return false
	}
	alone := smaller[0]
	if alone.Failed > 0 {
		return false
	}
	return f.Failed > 0 || f.MaxNS-alone.MaxNS > int64(250*time.Millisecond) && f.MaxNS > 10*alone.MaxNS
}

// largeSize is what throughput is measured with: enough that a round trip is little beside it.
const largeSize = 256 << 10

// throughput reads a large value some times.
func (d *diagnosis) throughput(ctx context.Context) {
	const part = "path.throughput"
	if free := d.session.Server().Free; free >= 0 && free < 16*largeSize {
		d.unmeasured(part, errors.New("the server has no room for a large value"))
		return
	}
	if err := ctx.Err(); err != nil {
		d.unmeasured(part, err)
		return
	}
	if err := d.talk.Set(d.largeKey(), make([]byte, largeSize)); err != nil {
		d.unmeasured(part, err)
		return
	}
	small, best := time.Duration(-1), time.Duration(-1)
	began := time.Now()
	for i := 0; i < 8 && (i < 4 && time.Since(began) < 2*time.Second || time.Since(began) < d.Effort/2); i++ {
		started := time.Now()
		if err := d.talk.Echo(4); err != nil {
			d.unmeasured(part, err)
			return
		}
		if took := time.Since(started); small < 0 || took < small {
			small = took
		}
		started = time.Now()
		if n, err := d.talk.Get(d.largeKey()); err != nil || n != largeSize {
			d.unmeasured(part, cmpErr(err != nil, err, errors.New("the value was evicted at once, "+strconv.Itoa(n)+" bytes came back")))
			return
		}
		if took := time.Since(started); best < 0 || took < best {
			best = took
		}
	}
	rate := float64(largeSize) / max(best-small, time.Microsecond).Seconds()
	d.r.Path.Throughput = &Throughput{Size: largeSize, BestNS: int64(best), RoundTripNS: int64(small), BytesPerSec: int64(rate)}
}
