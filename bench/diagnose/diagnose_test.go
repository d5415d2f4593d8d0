package diagnose_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nsop/bench"
	"nsop/bench/diagnose"
	"nsop/bench/storetest"
)

var update = flag.Bool("update", false, "write the golden files")

// part returns the nanoseconds of a part of r's budget, which must be known.
func part(t *testing.T, r *diagnose.Report, name string) int64 {
	t.Helper()
	if r.Budget == nil {
		t.Fatalf("no budget: %v", r.Unmeasured)
	}
	for _, p := range r.Budget.Parts {
		if p.Name == name && p.NS != nil {
			return *p.NS
		}
	}
	t.Fatalf("the budget has no %s: %v", name, r.Unmeasured)
	return 0
}

func sum(r *diagnose.Report) (sum int64) {
	for _, p := range r.Budget.Parts {
		if p.NS != nil {
			sum += *p.NS
		}
	}
	return sum
}

// TestBudgetLoopback is that the parts sum to the total and next to nothing is left over.
func TestBudgetLoopback(t *testing.T) {
	for name, url := range map[string]string{
		"redis":     "redis://" + storetest.Redis(t).Addr,
		"memcached": "memcached://" + storetest.Memcached(t).Addr,
	} {
		t.Run(name, func(t *testing.T) {
			target := target(t, url)
			var shares []float64
			for range 3 {
				r := diagnose.Diagnose(t.Context(), target, quick())
				unaccounted := part(t, r, "unaccounted")
				if sum(r) != r.Budget.TotalNS {
					t.Errorf("the parts sum to %d, the total is %d", sum(r), r.Budget.TotalNS)
				}
				shares = append(shares, float64(unaccounted)/float64(r.Budget.TotalNS))
			}
			slices.Sort(shares)
			if shares[1] > 0.1 {
				t.Errorf("unaccounted is %v of the total", shares)
			}
		})
	}
}

// within fails where got is not within a tenth of want.
func within(t *testing.T, what string, got, want int64) bool {
	t.Helper()
	ok := math.Abs(float64(got-want)) <= 0.1*float64(want)
	if !ok {
		t.Logf("%s is %v, %v was measured", what, time.Duration(got), time.Duration(want))
	}
	return ok
}

// TestBudgetNetwork delays each request by 2 ms and expects that in the network's part.
func TestBudgetNetwork(t *testing.T) {
	direct := storetest.Redis(t)
	proxy := storetest.Proxy(t, direct.Addr, storetest.ProxyOptions{})
	base := diagnose.Diagnose(t.Context(), target(t, "redis://"+proxy.Addr), quick())
	for range 3 { // the machine has other things to do
		proxy.SetDelay(2 * time.Millisecond)
		proxy.Held()
		r := diagnose.Diagnose(t.Context(), target(t, "redis://"+proxy.Addr), quick())
		held := proxy.Held()
		slices.Sort(held)
		// What the proxy held back, and what the way costs without a delay but for the hop to the server, which is in it.
		want := int64(held[len(held)/2])
		network, rest := part(t, r, "network"), r.Budget.TotalNS-part(t, r, "network")
		t.Logf("network %v of %v; held %v; without delay %v of %v", time.Duration(network), time.Duration(r.Budget.TotalNS), time.Duration(want),
			time.Duration(part(t, base, "network")), time.Duration(base.Budget.TotalNS))
		if within(t, "network", network, want) && rest < network/2 {
			return
		}
	}
	t.Error("the delay is not in the network's part")
}

// TestBudgetServer has a server sleep inside GET and say so, and expects that in the server's part.
func TestBudgetServer(t *testing.T) {
	for range 3 {
		s := startSlow(t, 2*time.Millisecond)
		r := diagnose.Diagnose(t.Context(), target(t, "redis://"+s.addr), quick())
		want := s.perGet()
		server, network := part(t, r, "server"), part(t, r, "network")
		t.Logf("server %v, network %v of %v; it slept %v", time.Duration(server), time.Duration(network), time.Duration(r.Budget.TotalNS), want)
		if within(t, "server", server, int64(want)) && network < server/4 && sum(r) == r.Budget.TotalNS {
			return
		}
	}
	t.Error("the server's time is not in the server's part")
}

// A slowServer speaks as much of Redis as a diagnosis asks for. GET takes long, and commandstats tells it.
type slowServer struct {
	addr string

	mu    sync.Mutex
	calls map[string]int
	usec  map[string]int64
	gets  []time.Duration
}

func (s *slowServer) perGet() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.gets)
	return s.gets[len(s.gets)/2]
}

func startSlow(t *testing.T, get time.Duration) *slowServer {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowServer{addr: listener.Addr().String(), calls: map[string]int{}, usec: map[string]int64{}}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer c.Close()
				s.serve(bufio.NewReader(c), c, get)
			})
		}
	})
	t.Cleanup(func() { listener.Close(); wait.Wait() })
	return s
}

func (s *slowServer) serve(in *bufio.Reader, out io.Writer, get time.Duration) {
	for {
		cmd, err := readCommand(in)
		if err != nil {
			return
		}
		began := time.Now()
		name, reply := strings.ToLower(cmd[0]), "+OK\r\n"
		bulk := func(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
		switch name {
		case "get":
			time.Sleep(get)
			reply = bulk(strings.Repeat("x", 100))
		case "echo":
			reply = bulk(cmd[1])
		case "exists", "del":
			reply = ":0\r\n"
		case "info":
			reply = bulk(s.info())
		case "hello", "config", "slowlog", "client":
			reply = "-ERR unknown command '" + name + "'\r\n"
		}
		s.mu.Lock()
		if s.calls[name]++; name == "get" {
			s.gets = append(s.gets, time.Since(began))
		}
		s.usec[name] += time.Since(began).Microseconds()
		s.mu.Unlock()
		if _, err := io.WriteString(out, reply); err != nil {
			return
		}
	}
}

func (s *slowServer) info() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	b.WriteString("redis_version:7.0.0\r\nrole:master\r\nused_cpu_user:0.1\r\nused_cpu_sys:0.1\r\n")
	for name, calls := range s.calls {
		fmt.Fprintf(&b, "cmdstat_%s:calls=%d,usec=%d\r\n", name, calls, s.usec[name])
	}
	return b.String()
}

func readCommand(in *bufio.Reader) ([]string, error) {
	number := func(kind byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != kind {
			return 0, errors.New("malformed command")
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil || n < 1 {
		return nil, errors.New("malformed command")
	}
	cmd := make([]string, n)
	for i := range cmd {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		buf := make([]byte, size+2)
		if _, err := io.ReadFull(in, buf); err != nil {
			return nil, err
		}
		cmd[i] = string(buf[:size])
	}
	return cmd, nil
}

// TestBound lets the way hang at each part in turn: the report is there in time, with what had been measured.
func TestBound(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	for _, part := range []string{"path", "vantage", "server", "client", "fan-out"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			proxy := storetest.Proxy(t, s.Addr, storetest.ProxyOptions{})
			o := quick()
			o.Bound = time.Second
			o.Observe = func(now string) {
				if now == part {
					proxy.Pause()
				}
			}
			began := time.Now()
			r := diagnose.Diagnose(t.Context(), target(t, "redis://"+proxy.Addr), o)
			if took := time.Since(began); took > o.Bound+1500*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			if (part == "fan-out") != (r.Budget != nil) {
				t.Errorf("budget: %v", r.Budget)
			}
			if len(r.Unmeasured) < 2 {
				t.Errorf("unmeasured: %v", r.Unmeasured)
			}
		})
	}
}

// TestCanceled is that a diagnosis ends soon after its caller has left, and leaves nothing behind.
func TestCanceled(t *testing.T) {
	s := storetest.Redis(t)
	before := goleak.IgnoreCurrent()
	for _, part := range []string{"path", "vantage", "client", "fan-out", "idle"} {
		ctx, cancel := context.WithCancel(t.Context())
		o := quick()
		o.Idle = []time.Duration{time.Minute}
		var at time.Time
		o.Observe = func(now string) {
			if now == part {
				cancel()
				at = time.Now()
			}
		}
		diagnose.Diagnose(ctx, target(t, "redis://"+s.Addr), o)
		if late := time.Since(at); late > time.Second {
			t.Errorf("%s: it went on for %v", part, late)
		}
		cancel()
	}
	goleak.VerifyNone(t, before)
	if left := s.Do(t, "DBSIZE"); left != int64(0) {
		// What a canceled diagnosis can't remove expires.
		for _, key := range s.Do(t, "KEYS", "*").([]any) {
			if ttl := s.Do(t, "TTL", key).(int64); ttl <= 0 || ttl > 3600 {
				t.Errorf("%s stays for %d s", key, ttl)
			}
		}
	}
}

// TestLeavesNothing is that no key and no connection is left.
func TestLeavesNothing(t *testing.T) {
	s := storetest.Redis(t)
	before := goleak.IgnoreCurrent()
	diagnose.Diagnose(t.Context(), target(t, "redis://"+s.Addr), quick())
	goleak.VerifyNone(t, before)
	if left := s.Do(t, "DBSIZE"); left != int64(0) {
		t.Errorf("%v keys are left", left)
	}
}

// TestFanOutHalf is that the dials at once are no more than half of what the server has free.
func TestFanOutHalf(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t, "--maxclients", "30")
	for range 10 {
		dial(t, s.Addr)
	}
	r := diagnose.Diagnose(t.Context(), target(t, "redis://"+s.Addr), quick())
	fans := r.Path.FanOut
	if n := fans[len(fans)-1].Dials; n > 10 || n < 5 || fans[len(fans)-1].Skip == "" {
		t.Errorf("%d dials at once, of 20 free: %+v", n, fans)
	}
}

// TestOrdinaryUser is that a user of a managed store gets fewer figures and no failure.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	s.Do(t, "ACL", "SETUSER", "app", "on", ">pw", "~*", "+get", "+set", "+del", "+echo", "+exists")
	r := diagnose.Diagnose(t.Context(), target(t, "redis://app:pw@"+s.Addr), quick())
	if r.Budget == nil || r.Server == nil || len(r.Server.Refused) < 2 || r.Unmeasured["budget.server"] == "" {
		t.Errorf("budget %v, server %+v, unmeasured %v", r.Budget, r.Server, r.Unmeasured)
	}
	if got := grave(r); len(got) > 0 {
		t.Errorf("found %q", got)
	}
	text, _ := json.Marshal(r)
	if bytes.Contains(text, []byte("pw@")) || bytes.Contains(text, []byte(`"pw"`)) {
		t.Errorf("the password is told")
	}
}

// TestSecrets is that no password is in a report, however the server answers.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-secret"
	for name, url := range map[string]string{
		"wrong":    "redis://:" + secret + "@" + storetest.Redis(t, "--requirepass", "other").Addr,
		"no AUTH":  "redis://:" + secret + "@" + storetest.Redis(t, "--rename-command", "AUTH", "").Addr,
		"accepted": "redis://:" + secret + "@" + storetest.Redis(t, "--requirepass", secret).Addr,
		"postgres": storetest.Postgres(t, storetest.PostgresOptions{Password: "other"}).URL("postgres", secret, "postgres"),
	} {
		r := diagnose.Diagnose(t.Context(), target(t, url), quick())
		text, err := json.Marshal(r)
		var people bytes.Buffer
		r.Text(&people, bench.EncodeOptions{})
		if err != nil || bytes.Contains(text, []byte(secret)) || strings.Contains(people.String(), secret) {
			t.Errorf("%s: %v %s", name, err, text)
		}
		if want := name == "wrong" || name == "postgres"; want != slices.Contains(grave(r), "error auth") {
			t.Errorf("%s: found %q", name, grave(r))
		}
	}
}

// TestProcessCold is that the first request of a process has a class of its own.
func TestProcessCold(t *testing.T) {
	t.Parallel()
	o := quick()
	o.Vantage.Cold = true
	r := diagnose.Diagnose(t.Context(), target(t, "redis://"+storetest.Redis(t).Addr), o)
	if r.Classes.ProcessCold == nil || r.Classes.ProcessCold.Count != 1 || r.Classes.ConnectionCold == nil || r.Classes.Warm == nil || r.Classes.Warm.Count < 2 {
		t.Errorf("classes %+v", r.Classes)
	}
}

// TestDNS has a resolver of its own, which the whole process uses for as long.
func TestDNS(t *testing.T) {
	redis := storetest.Redis(t)
	_, port, _ := net.SplitHostPort(redis.Addr)
	var delay atomic.Int64
	stub := startDNS(t, func(name string, ipv6 bool) []net.IP {
		time.Sleep(time.Duration(delay.Load()))
		switch {
		case strings.HasPrefix(name, "both.") && ipv6:
			return []net.IP{net.IPv6loopback}
		case strings.HasPrefix(name, "none.") || ipv6:
			return nil
		}
		return []net.IP{net.IPv4(127, 0, 0, 1)}
	})
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", stub)
	}}
	for _, test := range []struct {
		host, want string
		delay      time.Duration
	}{
		{"one.nsop.test.", "", 0},
		{"none.nsop.test.", "error dns-failed", 0},
		{"slow.nsop.test.", "warning dns-slow", 110 * time.Millisecond},
		{"both.nsop.test.", "warning address-family", 0},
	} {
		t.Run(test.host, func(t *testing.T) {
			delay.Store(int64(test.delay))
			r := diagnose.Diagnose(t.Context(), target(t, "redis://"+net.JoinHostPort(test.host, port)), quick())
			if test.want == "" {
				if got := grave(r); len(got) > 0 {
					t.Errorf("found %q", got)
				}
				return
			}
			check(t, r, test.want)
		})
	}
}

// startDNS answers questions for addresses over UDP.
func startDNS(t *testing.T, answer func(name string, ipv6 bool) []net.IP) string {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			question := bytes.Clone(buf[:n])
			wait.Go(func() { conn.WriteTo(reply(question, answer), from) })
		}
	})
	t.Cleanup(func() { conn.Close(); wait.Wait() })
	return conn.LocalAddr().String()
}

// reply is the answer to the question of a message (RFC 1035, 4.1).
func reply(message []byte, answer func(name string, ipv6 bool) []net.IP) []byte {
	end, name := 12, ""
	for message[end] != 0 {
		size := int(message[end])
		name += string(message[end+1:end+1+size]) + "."
		end += 1 + size
	}
	kind := binary.BigEndian.Uint16(message[end+1:])
	end += 5
	const a, aaaa = 1, 28
	var ips []net.IP
	if kind == a || kind == aaaa {
		ips = answer(name, kind == aaaa)
	}
	out := bytes.Clone(message[:end])
	out[2], out[3] = 0x85, 0x80 // an answer with authority, recursion wanted and available
	binary.BigEndian.PutUint16(out[6:], uint16(len(ips)))
	clear(out[8:12])
	for _, ip := range ips {
		data := []byte(ip.To16())
		if kind == a {
			data = ip.To4()
		}
		out = append(out, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(data)))
		out = append(out, data...)
	}
	return out
}

// TestPostgres has the rules that are not the path's alone.
func TestPostgres(t *testing.T) {
	t.Parallel()
	primary := storetest.Postgres(t, storetest.PostgresOptions{Settings: []string{"max_connections=20", "superuser_reserved_connections=3"}})
	t.Run("budget", func(t *testing.T) {
		r := diagnose.Diagnose(t.Context(), target(t, primary.URL("postgres", "", "postgres")), quick())
		if r.Budget == nil || r.Budget.Operation != "select" || sum(r) != r.Budget.TotalNS || part(t, r, "server") == 0 {
			t.Errorf("budget %+v, unmeasured %v", r.Budget, r.Unmeasured)
		}
	})
	t.Run("standby", func(t *testing.T) {
		standby := storetest.Standby(t, primary)
		check(t, diagnose.Diagnose(t.Context(), target(t, standby.URL("postgres", "", "postgres")), quick()), "warning read-only")
	})
}

func TestText(t *testing.T) {
	file, err := os.ReadFile(filepath.Join("testdata", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r diagnose.Report
	if err := json.Unmarshal(file, &r); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(io.Writer, bench.EncodeOptions) error{"report.txt": r.Text, "report.md": r.Markdown} {
		var b bytes.Buffer
		if err := write(&b, bench.EncodeOptions{}); err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s: %v\n%s", name, err, b.Bytes())
		}
		for line := range strings.Lines(b.String()) {
			if name == "report.txt" && len(line) > 101 && !strings.Contains(line, "gcloud") {
				t.Errorf("%d columns: %s", len(line), line)
			}
		}
	}
}
