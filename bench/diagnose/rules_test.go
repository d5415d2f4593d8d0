package diagnose_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"nsop/bench"
	"nsop/bench/diagnose"
	"nsop/bench/store"
	"nsop/bench/storetest"
	"nsop/bench/vantage"
)

func TestMain(m *testing.M) {
	if name := os.Getenv("NSOP_TEST_HELPER"); name != "" {
		helper(name)
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "5"); err != nil { // most tests wait for a fault to take its time
		panic(err)
	}
	os.Exit(m.Run())
}

// helper is this program as another process, which can be stopped or held back. It prints its report.
func helper(name string) {
	o := quick()
	if name == "background" {
		work := diagnose.StartBackground()
		fmt.Println("started")
		io.ReadAll(os.Stdin)
		share, ok := work.Stop()
		if !ok {
			panic("too short")
		}
		o.Background = &share
	}
	if name == "noisy" {
		o.Observe = func(part string) {
			if part == "vantage" {
				fmt.Println("started")
			}
		}
	}
	t, err := store.Parse("redis", os.Getenv("NSOP_TEST_URL"), "", os.Getenv)
	if err != nil {
		panic(err)
	}
	json.NewEncoder(os.Stdout).Encode(diagnose.Diagnose(context.Background(), t, o))
}

func local() vantage.Info {
	return vantage.New(func(string) string { return "" }, time.Now(), time.Now).Info(context.Background())
}

// quick are options under which a diagnosis takes half a second on loopback.
//
// NSOP_SOAK=1 makes it as thorough as by default.
func quick() diagnose.Options {
	if os.Getenv("NSOP_SOAK") != "" {
		return diagnose.Options{Vantage: local()}
	}
	return diagnose.Options{Effort: 100 * time.Millisecond, Vantage: local()}
}

func target(t testing.TB, url string) *bench.Target {
	t.Helper()
	for _, p := range store.InProcess() {
		if p.Name == url {
			return p
		}
	}
	target, err := store.Parse("store", url, "", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// rules are the findings of a report from severity info on as "severity rule". noisy-vantage is left out: the machine of
// a test has other things to do.
func rules(r *diagnose.Report) (list []string) {
	for _, f := range r.Findings {
		if f.Rule != "noisy-vantage" {
			list = append(list, f.Severity+" "+f.Rule)
		}
	}
	return list
}

// grave are those of rules that are a warning or worse.
func grave(r *diagnose.Report) []string {
	return slices.DeleteFunc(rules(r), func(s string) bool { return strings.HasPrefix(s, "info ") })
}

// check expects want and nothing of severity warning or above beside it.
func check(t *testing.T, r *diagnose.Report, want string) {
	t.Helper()
	got := grave(r)
	if strings.HasPrefix(want, "info ") {
		got = slices.DeleteFunc(rules(r), func(s string) bool { return strings.HasPrefix(s, "info ") && s != want })
	}
	if !slices.Equal(got, []string{want}) {
		text, _ := json.MarshalIndent(r, "", " ")
		t.Fatalf("found %q, want %q\n%s", got, want, text)
	}
	for _, f := range r.Findings {
		if f.Summary == "" || f.Cause == "" || f.Next == "" || f.Evidence == nil {
			t.Errorf("%s is incomplete: %+v", f.Rule, f)
		}
	}
}

func dropAll([]byte) bool { return true }

// linked starts a Redis behind a network and returns its URL there.
func linked(t *testing.T, o storetest.LinkOptions) string {
	l := storetest.Link(t, o)
	s := storetest.Redis(t, "--bind", "127.0.0.1", l.Local, "--protected-mode", "no")
	return fmt.Sprintf("redis://%s:%d", l.Remote, s.Port)
}

// closedPort is an address that nothing listens on as long as the test takes: a socket has it that never does.
func closedPort(t *testing.T) string {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + strconv.Itoa(name.(*syscall.SockaddrInet4).Port)
}

// A forwarder passes connections on to where upstream says. Each piece of a connection's requests goes through held first, with
// its number; a connection is accepted each pace at the most, and closed once it was idle for so long.
type forwarder struct {
	upstream func(connection int) string
	held     func(piece int)
	pace     time.Duration
	idle     time.Duration
}

func (f forwarder) start(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for n := 0; ; n++ {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			time.Sleep(f.pace)
			wait.Go(func() { f.serve(c, n) })
		}
	})
	t.Cleanup(func() { listener.Close(); wait.Wait() })
	return listener.Addr().String()
}

func (f forwarder) serve(client net.Conn, n int) {
	defer client.Close()
	server, err := net.Dial("tcp", f.upstream(n))
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(client, server)
		client.Close()
	}()
	buf := make([]byte, 64<<10)
	for piece := 0; ; piece++ {
		if f.idle > 0 {
			client.SetReadDeadline(time.Now().Add(f.idle))
		}
		n, err := client.Read(buf)
		if err != nil {
			break
		}
		if f.held != nil {
			f.held(piece)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			break
		}
	}
	server.Close()
	<-done
}

func always(addr string) func(int) string { return func(int) string { return addr } }

// busy calls f again and again until the test ends.
func busy(t *testing.T, f func()) {
	quit := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				f()
			}
		}
	})
	t.Cleanup(func() { close(quit); wait.Wait() })
}

func dial(t *testing.T, addr string) redis.Conn {
	t.Helper()
	c, err := redis.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// script is a command that keeps the server busy for some loops.
func script(loops int) []any {
	return []any{"local x = 0 for i = 1, " + strconv.Itoa(loops) + " do x = x + i % 7 end return 'ok'", 0}
}

// TestRules brings about each fault with real parts and expects its rule alone.
func TestRules(t *testing.T) {
	short := func(d time.Duration) func(o *diagnose.Options) {
		return func(o *diagnose.Options) { o.Timeout = d }
	}
	var promoted atomic.Bool
	for _, test := range []struct {
		want  string
		name  string
		start func(t *testing.T) string // returns the target's URL
		set   func(o *diagnose.Options)
		alone bool // it changes the process
	}{
		{want: "warning embedded-store", start: func(*testing.T) string { return "embedded:redis" }},
		{want: "warning embedded-store", name: "map", start: func(*testing.T) string { return "map" }},
		{want: "error refused", start: func(t *testing.T) string { return "redis://" + closedPort(t) }},
		{want: "error refused", name: "memcached", start: func(t *testing.T) string { return "memcached://" + closedPort(t) }},
		{want: "error no-route", set: short(300 * time.Millisecond), start: func(t *testing.T) string {
			return linked(t, storetest.LinkOptions{Drop: dropAll})
		}},
		{want: "error no-answer", set: short(200 * time.Millisecond), start: func(t *testing.T) string {
			s := storetest.Redis(t)
			s.Pause(t)
			return "redis://" + s.Addr
		}},
		{want: "error no-answer", name: "memcached", set: short(200 * time.Millisecond), start: func(t *testing.T) string {
			s := storetest.Memcached(t)
			s.Pause(t)
			return "memcached://" + s.Addr
		}},
		{want: "error tls-failed", start: func(t *testing.T) string { return "rediss://" + storetest.RedisTLS(t).Addr }},
		{want: "error tls-failed", name: "plain", set: short(200 * time.Millisecond), start: func(t *testing.T) string { return "rediss://" + storetest.Redis(t).Addr }},
		{want: "error auth", start: func(t *testing.T) string {
			return "redis://:wrong@" + storetest.Redis(t, "--requirepass", "right").Addr
		}},
		{want: "error auth", name: "missing", start: func(t *testing.T) string {
			return "redis://" + storetest.Redis(t, "--requirepass", "right").Addr
		}},
		{want: "error loading", start: loadingRedis},
		{want: "warning egress-starting", set: func(o *diagnose.Options) {
			o.Timeout, o.Vantage.Platform, o.Vantage.InstanceAge = 250*time.Millisecond, "cloud-run", 3*time.Second
		}, start: func(t *testing.T) string {
			var first atomic.Int64
			return linked(t, storetest.LinkOptions{Drop: func([]byte) bool {
				now := time.Now().UnixNano()
				first.CompareAndSwap(0, now)
				return now-first.Load() < int64(500*time.Millisecond)
			}})
		}},
		{want: "warning egress-starting", name: "slow", set: func(o *diagnose.Options) {
			o.Vantage.Platform, o.Vantage.InstanceAge = "cloud-run", 3*time.Second
		}, start: func(t *testing.T) string {
			first := true
			return linked(t, storetest.LinkOptions{Drop: func([]byte) bool { was := first; first = false; return was }})
		}},
		{want: "warning syn-loss", start: func(t *testing.T) string {
			ports, lost := map[int]bool{}, false
			return linked(t, storetest.LinkOptions{Drop: func(packet []byte) bool {
				port, ok := storetest.IsSYN(packet)
				if !ok || ports[port] {
					return false
				}
				ports[port] = true
				if len(ports) == 3 && !lost { // of the second dial
					lost = true
					return true
				}
				return false
			}})
		}},
		{want: "warning another-region", start: func(t *testing.T) string {
			return linked(t, storetest.LinkOptions{Delay: 4 * time.Millisecond})
		}},
		{want: "warning connector-handshakes", start: func(t *testing.T) string {
			return "redis://" + forwarder{upstream: always(storetest.Redis(t).Addr), pace: 25 * time.Millisecond}.start(t)
		}},
		{want: "info tls-cost", start: func(t *testing.T) string {
			s := storetest.RedisTLS(t)
			return "rediss://" + s.Addr + "?ca=" + s.CA
		}},
		{want: "info blocked-commands", start: func(t *testing.T) string {
			s := storetest.Redis(t)
			s.Do(t, "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-@admin", "-@dangerous", "+info")
			return "redis://app:pw@" + s.Addr
		}},
		{want: "info blocked-commands", name: "renamed", start: func(t *testing.T) string {
			var args []string
			for _, command := range []string{"CONFIG", "CLIENT", "DEBUG", "ACL", "COMMAND", "SLOWLOG"} {
				args = append(args, "--rename-command", command, "")
			}
			return "redis://" + storetest.Redis(t, args...).Addr
		}},
		{want: "info blocked-commands", name: "no INFO", start: func(t *testing.T) string {
			s := storetest.Redis(t)
			s.Do(t, "ACL", "SETUSER", "app", "on", ">pw", "~*", "+get", "+set", "+del", "+echo", "+exists")
			return "redis://app:pw@" + s.Addr
		}},
		{want: "warning blocked-commands", name: "no SET", start: func(t *testing.T) string {
			s := storetest.Redis(t)
			s.Do(t, "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-set", "-get")
			return "redis://app:pw@" + s.Addr
		}},
		{want: "info protocol-fallback", start: func(t *testing.T) string {
			return "redis://" + storetest.Redis(t, "--rename-command", "HELLO", "").Addr
		}},
		{want: "warning slow-commands", start: func(t *testing.T) string {
			s := storetest.Redis(t, "--slowlog-log-slower-than", "5000")
			c := dial(t, s.Addr)
			loops := loopsFor(t, c, 25*time.Millisecond)
			busy(t, func() {
				c.Do("EVAL", script(loops)...)
				time.Sleep(60 * time.Millisecond)
			})
			return "redis://" + s.Addr
		}, set: func(o *diagnose.Options) { o.Effort = 400 * time.Millisecond }},
		{want: "error memory-full", start: func(t *testing.T) string {
			return "redis://" + storetest.Redis(t, "--maxmemory", "100kb", "--maxmemory-policy", "noeviction").Addr
		}},
		{want: "warning memory-full", name: "near", start: func(t *testing.T) string {
			s := storetest.Redis(t, "--maxmemory", "40mb", "--maxmemory-policy", "noeviction")
			used := func() int {
				for line := range strings.Lines(s.Do(t, "INFO", "memory").(string)) {
					if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
						n, _ := strconv.Atoi(text)
						return n
					}
				}
				return 0
			}
			for i := 0; used() < 96*(40<<20)/100; i++ {
				s.Do(t, "SET", "fill:"+strconv.Itoa(i), strings.Repeat("x", 100<<10))
			}
			return "redis://" + s.Addr
		}},
		{want: "warning evicting", start: func(t *testing.T) string {
			s := storetest.Redis(t, "--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
			c, i, value := dial(t, s.Addr), 0, strings.Repeat("x", 20<<10)
			busy(t, func() {
				c.Do("SET", "fill:"+strconv.Itoa(i), value)
				i++
				time.Sleep(time.Millisecond)
			})
			return "redis://" + s.Addr
		}},
		{want: "warning read-only", start: func(t *testing.T) string {
			primary := storetest.Redis(t, "--repl-diskless-sync-delay", "0")
			replica := storetest.Redis(t, "--replicaof", "127.0.0.1", strconv.Itoa(primary.Port))
			for !strings.Contains(replica.Do(t, "INFO", "replication").(string), "master_link_status:up") {
				time.Sleep(20 * time.Millisecond)
			}
			return "redis://" + replica.Addr
		}},
		{want: "warning failover", set: func(o *diagnose.Options) {
			o.Observe = func(part string) {
				if part == "fan-out" {
					promoted.Store(true)
				}
			}
		}, start: func(t *testing.T) string {
			a, b := storetest.Redis(t), storetest.Redis(t)
			return "redis://" + forwarder{upstream: func(int) string {
				if promoted.Load() {
					return b.Addr
				}
				return a.Addr
			}}.start(t)
		}},
		{want: "warning maxclients-near", start: func(t *testing.T) string {
			s := storetest.Redis(t, "--maxclients", "60")
			for range 50 {
				dial(t, s.Addr)
			}
			return "redis://" + s.Addr
		}},
		{want: "error maxclients-near", name: "full", start: func(t *testing.T) string {
			s := storetest.Redis(t, "--maxclients", "10")
			for range 10 {
				dial(t, s.Addr)
			}
			return "redis://" + s.Addr
		}},
		{want: "warning pool-too-small", alone: true, start: func(t *testing.T) string {
			was := runtime.GOMAXPROCS(1) // ten connections, by default
			t.Cleanup(func() { runtime.GOMAXPROCS(was) })
			return "redis://" + storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Delay: 7 * time.Millisecond}).Addr
		}},
		{want: "warning idle-limit", set: func(o *diagnose.Options) {
			o.Idle = []time.Duration{50 * time.Millisecond, 1200 * time.Millisecond}
		}, start: func(t *testing.T) string {
			return "redis://" + forwarder{upstream: always(storetest.Redis(t).Addr), idle: 1000 * time.Millisecond}.start(t)
		}},
		{want: "warning hidden-retries", set: func(o *diagnose.Options) { o.Effort = 500 * time.Millisecond }, start: func(t *testing.T) string {
			return "redis://" + storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{CutAfter: 16_000}).Addr
		}},
		{want: "warning bandwidth-bound", start: func(t *testing.T) string {
			return "redis://" + storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Throttle: 3_000_000}).Addr
		}},
		{want: "warning first-command-slow", start: func(t *testing.T) string {
			return "redis://" + forwarder{upstream: always(storetest.Redis(t).Addr), held: func(piece int) {
				if piece == 0 {
					time.Sleep(20 * time.Millisecond)
				}
			}}.start(t)
		}},
		{want: "warning maxclients-near", name: "memcached", start: func(t *testing.T) string {
			s := storetest.Memcached(t, "-c", "200")
			for range 155 {
				c, err := net.Dial("tcp", s.Addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
			}
			return "memcached://" + s.Addr
		}},
	} {
		t.Run(strings.ReplaceAll(strings.Join(strings.Fields(test.want + " " + test.name)[1:], "/"), " ", "-"), func(t *testing.T) {
			if !test.alone {
				t.Parallel()
			}
			o := quick()
			url := test.start(t)
			if test.set != nil {
				test.set(&o)
			}
			began := time.Now()
			r := diagnose.Diagnose(t.Context(), target(t, url), o)
			check(t, r, test.want)
			t.Logf("diagnosed in %v", time.Since(began))
		})
	}
}

// loopsFor returns the loops of a script that the server takes about d for.
func loopsFor(t *testing.T, c redis.Conn, d time.Duration) int {
	t.Helper()
	const probe = 100_000
	best := time.Hour
	for range 5 {
		started := time.Now()
		if _, err := c.Do("EVAL", script(probe)...); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(started))
	}
	return int(float64(probe) * float64(d) / float64(best))
}

// loadingRedis starts a server that takes long to read its data.
func loadingRedis(t *testing.T) string {
	dir := t.TempDir()
	s := storetest.Redis(t, "--dir", dir)
	c := dial(t, s.Addr)
	if _, err := c.Do("EVAL", "for i = 1, 50000 do redis.call('SET', i, i) end", 0); err != nil {
		t.Fatal(err)
	}
	s.Do(t, "SAVE")
	s.Kill(t)
	return "redis://" + storetest.Redis(t, "--dir", dir, "--key-load-delay", "200", "--loading-process-events-interval-bytes", "1024").Addr
}

// TestServerCPUBound is by itself, since on a machine that is busy the server may not get its CPU: then it is tried again.
func TestServerCPUBound(t *testing.T) {
	s := storetest.Redis(t, "--slowlog-log-slower-than", "-1") // one that has to wait for its CPU looks slow
	c := dial(t, s.Addr)
	loops := loopsFor(t, c, 200*time.Microsecond)
	load := exec.Command("redis-benchmark", "-p", strconv.Itoa(s.Port), "-c", "4", "-P", "1", "-n", "100000000", "EVAL", script(loops)[0].(string), "0")
	if err := load.Start(); err != nil {
		t.Fatalf("this test needs redis-benchmark: %v", err)
	}
	defer load.Wait()
	defer load.Process.Kill()
	for _, pid := range []int{s.PID, load.Process.Pid} {
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, pid, -20); err != nil {
			t.Fatalf("this test needs to be root: %v", err)
		}
	}
	var r *diagnose.Report
	for range 5 {
		r = diagnose.Diagnose(t.Context(), target(t, "redis://"+s.Addr), quick())
		if slices.Equal(grave(r), []string{"warning server-cpu-bound"}) {
			break
		}
	}
	check(t, r, "warning server-cpu-bound")
}

// TestCPUThrottled runs the diagnosis as a process with a fifth of a core.
func TestCPUThrottled(t *testing.T) {
	t.Parallel()
	group := filepath.Join("/sys/fs/cgroup/cpu", fmt.Sprintf("nsop-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatalf("this test needs root and cgroup v1's controller cpu: %v", err)
	}
	t.Cleanup(func() { os.Remove(group) })
	for name, value := range map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000"} {
		if err := os.WriteFile(filepath.Join(group, name), []byte(value), 0o644); err != nil {
			t.Fatalf("this test needs a CPU quota: %v", err)
		}
	}
	s := storetest.Redis(t)
	cmd := exec.Command("sh", "-c", `echo $$ >"$0/tasks" && exec "$1"`, group, os.Args[0])
	cmd.Env = append(os.Environ(), "NSOP_TEST_HELPER=diagnose", "NSOP_TEST_URL=redis://"+s.Addr)
	check(t, reportOf(t, cmd, func(io.Reader) {}), "warning cpu-throttled")
}

// TestBackgroundThrottled stops a process between its requests, as a platform does that lends CPU only for them.
func TestBackgroundThrottled(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "NSOP_TEST_HELPER=background", "NSOP_TEST_URL=redis://"+s.Addr)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r := reportOf(t, cmd, func(out io.Reader) {
		fmt.Fscanln(out, new(string))
		time.Sleep(100 * time.Millisecond)
		cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(500 * time.Millisecond)
		cmd.Process.Signal(syscall.SIGCONT)
		stdin.Close()
	})
	check(t, r, "warning background-throttled")
}

// TestNoisyVantage stops a process for a moment while it looks how much CPU it gets.
func TestNoisyVantage(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "NSOP_TEST_HELPER=noisy", "NSOP_TEST_URL=redis://"+s.Addr)
	r := reportOf(t, cmd, func(out io.Reader) {
		fmt.Fscanln(out, new(string))
		time.Sleep(10 * time.Millisecond)
		cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(80 * time.Millisecond)
		cmd.Process.Signal(syscall.SIGCONT)
	})
	if got := grave(r); len(got) > 0 || len(r.Findings) == 0 || r.Findings[0].Rule != "noisy-vantage" {
		t.Errorf("found %+v", r.Findings)
	}
}

// reportOf runs a helper and reads its report.
func reportOf(t *testing.T, cmd *exec.Cmd, meanwhile func(out io.Reader)) *diagnose.Report {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	meanwhile(out)
	var r diagnose.Report
	err = json.NewDecoder(out).Decode(&r)
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

// TestClean is a healthy path: nothing of severity warning or above. NSOP_SOAK=1 looks 20 times at each.
func TestClean(t *testing.T) {
	times := 2
	if os.Getenv("NSOP_SOAK") != "" {
		times = 20
	}
	for name, url := range map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string { return "redis://" + storetest.Redis(t).Addr },
		"tls":   func(t *testing.T) string { s := storetest.RedisTLS(t); return "rediss://" + s.Addr + "?ca=" + s.CA },
		"password": func(t *testing.T) string {
			return "redis://:pw@" + storetest.Redis(t, "--requirepass", "pw").Addr + "/3"
		},
		"memcached": func(t *testing.T) string { return "memcached://" + storetest.Memcached(t).Addr },
		"postgres": func(t *testing.T) string {
			return storetest.Postgres(t, storetest.PostgresOptions{}).URL("postgres", "", "postgres")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := target(t, url(t))
			for range times {
				r := diagnose.Diagnose(t.Context(), target, quick())
				if got := grave(r); len(got) > 0 {
					text, _ := json.MarshalIndent(r, "", " ")
					t.Fatalf("found %q\n%s", got, text)
				}
				if r.Path == nil || r.Server == nil || r.Client == nil || r.Budget == nil || r.Classes.ConnectionCold == nil || r.Classes.IdleResumed == nil || r.Classes.Warm == nil {
					t.Errorf("a part is missing: %v", r.Unmeasured)
				}
			}
		})
	}
}

// TestEveryRule holds the table against the contract's names and this file's tests.
func TestEveryRule(t *testing.T) {
	contract := strings.Fields(`embedded-store refused no-route dns-failed dns-slow address-family syn-loss another-region
		connector-handshakes egress-starting tls-failed tls-cost auth blocked-commands protocol-fallback cpu-throttled
		background-throttled noisy-vantage server-cpu-bound slow-commands memory-full evicting loading read-only failover
		maxclients-near pool-too-small idle-limit hidden-retries bandwidth-bound first-command-slow`)
	var names []string
	for _, rule := range diagnose.Rules {
		names = append(names, rule.Name)
	}
	for _, name := range contract {
		if !slices.Contains(names, name) {
			t.Errorf("no rule %s", name)
		}
	}
	for _, rule := range diagnose.Rules {
		for _, name := range rule.Hides {
			if !slices.Contains(names, name) {
				t.Errorf("%s hides %s, which is no rule", rule.Name, name)
			}
		}
	}
}
