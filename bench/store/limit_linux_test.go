package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nsop/bench"
	"nsop/bench/storetest"
	"nsop/bench/vantage"
)

// searchLimit searches for the limit of workload on target.
func searchLimit(t *testing.T, target *bench.Target, workload string, edit func(s *bench.Spec)) *bench.Report {
	t.Helper()
	spec := bench.DefaultSpec()
	spec.Benchtime, spec.Warmup, spec.Concurrency = bench.Extent{Time: 100 * time.Millisecond}, bench.Extent{Count: 20}, []int{32}
	edit(&spec)
	plan, err := bench.NewLimit(target, workload, spec, bench.DefaultLimits(""), true)
	if err != nil {
		t.Fatal(err)
	}
	root := os.DirFS("/")
	report, err := plan.Run(t.Context(), "test", bench.Meter{CPU: vantage.CPUTime, Throttled: func() (time.Duration, bool) { return vantage.Throttled(root) },
		Cores: func() float64 { return vantage.Cores(root) }}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(report.Results, func(a, b *bench.Result) int { return a.Concurrency - b.Concurrency }) || len(report.Results) > plan.Size() {
		t.Errorf("%d rows of at most %d, or out of order", len(report.Results), plan.Size())
	}
	var text strings.Builder
	for _, name := range []string{"text", "json"} {
		format, _ := bench.FormatByName(name)
		if err := format.Encode(&text, report, bench.EncodeOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"<- knee", "bound by " + report.BoundBy, `"series": [`, `"bound_by": "` + report.BoundBy + `"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), `"results"`) {
		t.Error("the rows are in the JSON twice")
	}
	for _, r := range report.Results {
		t.Logf("%d workers: %v/s", r.Concurrency, r.OpsPerSec)
	}
	t.Logf("bound by %s: %v", report.BoundBy, report.Evidence["summary"])
	return report
}

// boundBy tries a few times: on a machine that others use too the figures of a row may be anything.
func boundBy(t *testing.T, want string, search func() *bench.Report) *bench.Report {
	t.Helper()
	for range 4 {
		if report := search(); report.BoundBy == want {
			return report
		}
	}
	t.Fatalf("not bound by %s", want)
	return nil
}

// A server that has one core, and takes longer for a command than the client for its reply: the client as it is built
// for use, since the race detector makes it many times slower.
func TestLimitServer(t *testing.T) {
	server := storetest.Redis(t)
	var first unix.CPUSet
	first.Set(0)
	if err := unix.SchedSetaffinity(server.PID, &first); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "nsop")
	if out, err := exec.Command("go", "build", "-o", bin, "nsop").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	boundBy(t, "server-cpu", func() *bench.Report {
		cmd := exec.Command(bin, "/limit/redis/lrange_600?client=floor&concurrency=32&benchtime=100ms")
		cmd.Env = append(os.Environ(), "REDIS_ADDR="+server.Addr, "REDIS_URL=", "LIMITS=")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var report struct {
			bench.Report
			Series []*bench.Result
		}
		if err := json.Unmarshal(out, &report); err != nil || len(report.Series) < 3 {
			t.Fatalf("%v: %s", err, out)
		}
		t.Logf("bound by %s: %v", report.BoundBy, report.Evidence["summary"])
		return &report.Report
	})
}

// A path of 2 ms, and fewer operations in flight than the server would take.
func TestLimitLatency(t *testing.T) {
	proxy := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Delay: 2 * time.Millisecond})
	report := boundBy(t, "latency", func() *bench.Report {
		return searchLimit(t, redisTarget(t, proxy.Addr), "get", func(s *bench.Spec) { s.Concurrency = []int{8} })
	})
	if report.Knee == nil || report.Knee.Concurrency != 8 {
		t.Errorf("knee %+v, want at the highest load asked for", report.Knee)
	}
}

// A path that carries 20 MB/s.
func TestLimitBandwidth(t *testing.T) {
	const bandwidth = 20e6
	proxy := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Bandwidth: bandwidth})
	report := boundBy(t, "bandwidth", func() *bench.Report {
		return searchLimit(t, redisTarget(t, proxy.Addr), "get", func(s *bench.Spec) {
			s.Size, s.Warmup = []int{64 << 10}, bench.Extent{Count: 1}
		})
	})
	if got, _ := report.Evidence["value_bytes_per_sec"].(float64); got < 0.8*bandwidth || got > 1.2*bandwidth {
		t.Errorf("%v bytes/s, want %g", got, bandwidth)
	}
}

// A client that a quota of its cgroup allows a tenth of a core. Where cgroups can't be written it has one thread for
// Go code, which is less of a bound where the server is slow too.
func TestLimitClient(t *testing.T) {
	const child = "NSOP_TEST_LIMIT_CLIENT" // the store's address, for the process under the quota
	if addr := os.Getenv(child); addr != "" {
		if group := os.Getenv(child + "_CGROUP"); group != "" {
			if err := os.WriteFile(group, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
				t.Fatal(err)
			}
		}
		boundBy(t, "client-cpu", func() *bench.Report {
			return searchLimit(t, redisTarget(t, addr), "get", func(s *bench.Spec) { s.Benchtime.Time = 300 * time.Millisecond })
		})
		return
	}
	server := storetest.Redis(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLimitClient$", "-test.v")
	cmd.Env = append(os.Environ(), child+"="+server.Addr)
	if group, err := quota(t, 0.1); err == nil {
		cmd.Env = append(cmd.Env, child+"_CGROUP="+filepath.Join(group, "cgroup.procs"))
	} else {
		t.Logf("no quota here (%v): GOMAXPROCS=1", err)
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// quota makes a cgroup whose processes may use so many cores.
func quota(t *testing.T, cores float64) (folder string, err error) {
	if runtime.GOOS != "linux" {
		return "", errors.ErrUnsupported
	}
	name := fmt.Sprintf("nsop-test-%d", os.Getpid())
	const period = 20_000 // us
	for _, c := range []struct {
		parent string
		files  []string // and what they are to hold
	}{
		{"/sys/fs/cgroup/cpu", []string{"cpu.cfs_period_us", strconv.Itoa(period), "cpu.cfs_quota_us", fmt.Sprintf("%.0f", cores*period)}}, // v1
		{"/sys/fs/cgroup", []string{"cpu.max", fmt.Sprintf("%.0f %d", cores*period, period)}},
	} {
		folder = filepath.Join(c.parent, name)
		if err = os.Mkdir(folder, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(folder) })
		for i := 0; i < len(c.files) && err == nil; i += 2 {
			var f *os.File
			if f, err = os.OpenFile(filepath.Join(folder, c.files[i]), os.O_WRONLY, 0); err == nil { // and not made
				_, err = f.WriteString(c.files[i+1])
				err = errors.Join(err, f.Close())
			}
		}
		if err == nil {
			return folder, nil
		}
	}
	return "", err
}

// The load at which an assertion breaks is the limit, and the knee is below it.
func TestLimitAssertion(t *testing.T) {
	proxy := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Delay: 2 * time.Millisecond})
	assert, err := bench.ParseAssert("ops_per_sec<1000") // 2 ms a round trip: broken at the latest with 4
	if err != nil {
		t.Fatal(err)
	}
	report := boundBy(t, "assertion", func() *bench.Report {
		return searchLimit(t, redisTarget(t, proxy.Addr), "get", func(s *bench.Spec) { s.Asserts = []bench.Assert{assert} })
	})
	if k := report.Knee; k == nil || k.Concurrency > 3 || *k.OpsPerSec >= 1000 || len(report.Assertions) != 1 || !report.Assertions[0].OK || report.Assertions[0].Row != k.Row {
		t.Errorf("knee %+v, assertions %+v", k, report.Assertions)
	}
}

// A server that has no more connections is a finding, not a failure.
func TestLimitConnections(t *testing.T) {
	server := storetest.Redis(t, "--maxclients", "12")
	report := boundBy(t, "connections", func() *bench.Report {
		return searchLimit(t, redisTarget(t, server.Addr), "get", func(s *bench.Spec) { s.Clients = []string{"redigo"} })
	})
	if report.Knee == nil || report.Knee.Concurrency > 12 || !strings.Contains(report.Evidence["summary"].(string), "max number of clients") {
		t.Errorf("knee %+v, %v", report.Knee, report.Evidence["summary"])
	}
}

// With rate=auto the knee is the highest rate that was held.
func TestLimitRate(t *testing.T) {
	proxy := storetest.Proxy(t, storetest.Redis(t).Addr, storetest.ProxyOptions{Delay: 5 * time.Millisecond})
	report := boundBy(t, "latency", func() *bench.Report { // 10 workers of at most 200/s each
		return searchLimit(t, redisTarget(t, proxy.Addr), "get", func(s *bench.Spec) {
			s.AutoRate, s.Concurrency, s.Benchtime.Time = true, []int{10}, 200*time.Millisecond
		})
	})
	k := report.Knee
	if k == nil || k.Rate < 250 || k.Rate > 2000 || k.Concurrency != 10 || float64(*k.OpsPerSec) < 0.95*k.Rate {
		t.Fatalf("knee %+v", k)
	}
	for _, r := range report.Results {
		if r.Rate == 0 || r.Service == nil {
			t.Errorf("%s is a closed loop", r.Name)
		}
	}
}

func TestLimitRefuses(t *testing.T) {
	target := Map()
	for name, c := range map[string]struct {
		workload  string
		parameter string
		edit      func(s *bench.Spec)
	}{
		"two clients":      {"get", "client", func(s *bench.Spec) { s.Clients = []string{"map", "map"} }},
		"two sizes":        {"get", "size", func(s *bench.Spec) { s.Size = []int{1, 2} }},
		"two concurrences": {"get", "concurrency", func(s *bench.Spec) { s.Concurrency = []int{1, 2} }},
		"samples":          {"get", "count", func(s *bench.Spec) { s.Count = 2 }},
		"a rate":           {"get", "rate", func(s *bench.Spec) { s.Rates = []float64{5} }},
		"a ramp":           {"get", "rate", func(s *bench.Spec) { s.Shape = bench.Arrivals{Shape: "ramp", To: 5} }},
		"two workloads":    {"get,set", "workload", func(*bench.Spec) {}},
		"a group":          {"all", "workload", func(*bench.Spec) {}},
		"too long":         {"get", "benchtime", func(s *bench.Spec) { s.Benchtime.Time = time.Minute }},
		"a number, auto":   {"get", "benchtime", func(s *bench.Spec) { s.AutoRate, s.Benchtime = true, bench.Extent{Count: 5} }},
	} {
		spec := bench.DefaultSpec()
		c.edit(&spec)
		_, err := bench.NewLimit(target, c.workload, spec, bench.DefaultLimits(""), false)
		var wrong *bench.ParamError
		if !errors.As(err, &wrong) || wrong.Parameter != c.parameter || len(wrong.Allowed) == 0 || (wrong.Estimate > 0) != (name == "too long") {
			t.Errorf("%s: %v", name, err)
		}
	}
	spec := bench.DefaultSpec()
	spec.AutoRate = true
	var wrong *bench.ParamError
	if _, err := bench.NewPlan(target, "get", spec, bench.DefaultLimits("")); !errors.As(err, &wrong) || wrong.Parameter != "rate" {
		t.Errorf("auto without a search: %v", err)
	}
}
