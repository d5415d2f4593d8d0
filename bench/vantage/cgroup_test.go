package vantage

import (
	"math"
	"runtime"
	"testing"
	"testing/fstest"
	"time"
)

// files returns a file system of name, content pairs.
func files(pairs ...string) fstest.MapFS {
	root := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		root[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return root
}

const selfV1 = "9:name=systemd:/\n4:memory:/docker/c1\n3:cpuset:/\n2:cpu,cpuacct:/docker/c1\n0::/\n"

func TestCgroup(t *testing.T) {
	const none = -1
	tests := []struct {
		name      string
		root      fstest.MapFS
		cores     float64
		memory    int64
		throttled time.Duration
	}{
		{"nothing readable", files(), none, none, none},
		{
			"v2 container",
			files("proc/self/cgroup", "0::/\n",
				"sys/fs/cgroup/cpu.max", "150000 100000\n",
				"sys/fs/cgroup/memory.max", "536870912\n",
				"sys/fs/cgroup/cpu.stat", "usage_usec 900\nnr_periods 10\nnr_throttled 2\nthrottled_usec 1234\n"),
			1.5, 536870912, 1234 * time.Microsecond,
		},
		{
			"v2 without limits",
			files("proc/self/cgroup", "0::/\n",
				"sys/fs/cgroup/cpu.max", "max 100000\n",
				"sys/fs/cgroup/memory.max", "max\n",
				"sys/fs/cgroup/cpu.stat", "usage_usec 900\nthrottled_usec 0\n"),
			none, none, 0,
		},
		{
			"v2 host: the root has no limits",
			files("proc/self/cgroup", "0::/system.slice/nsop.service\n",
				"sys/fs/cgroup/cpu.stat", "usage_usec 900\n",
				"sys/fs/cgroup/system.slice/nsop.service/cpu.max", "20000 100000\n",
				"sys/fs/cgroup/system.slice/nsop.service/memory.max", "1048576\n",
				"sys/fs/cgroup/system.slice/nsop.service/cpu.stat", "throttled_usec 7\n"),
			0.2, 1048576, 7 * time.Microsecond,
		},
		{
			"v2: the tightest limit holds, throttling adds up",
			files("proc/self/cgroup", "0::/a/b\n",
				"sys/fs/cgroup/a/cpu.max", "50000 100000\n",
				"sys/fs/cgroup/a/memory.max", "max\n",
				"sys/fs/cgroup/a/cpu.stat", "throttled_usec 3\n",
				"sys/fs/cgroup/a/b/cpu.max", "max 100000\n",
				"sys/fs/cgroup/a/b/memory.max", "4096\n",
				"sys/fs/cgroup/a/b/cpu.stat", "throttled_usec 4\n"),
			0.5, 4096, 7 * time.Microsecond,
		},
		{
			"v2: a path outside the namespace",
			files("proc/self/cgroup", "0::/../../x\n", "sys/fs/cgroup/cpu.max", "100000 100000"),
			1, none, none,
		},
		{
			"v1 container whose own path only the host sees",
			files("proc/self/cgroup", selfV1,
				"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n",
				"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n",
				"sys/fs/cgroup/cpu/cpu.stat", "nr_periods 5\nnr_throttled 1\nthrottled_time 987654321\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"),
			2, 268435456, 987654321,
		},
		{
			"v1 host",
			files("proc/self/cgroup", selfV1,
				"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n",
				"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n",
				"sys/fs/cgroup/cpu/docker/c1/cpu.cfs_quota_us", "25000\n",
				"sys/fs/cgroup/cpu/docker/c1/cpu.cfs_period_us", "100000\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n",
				"sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "1000\n"),
			0.25, 1000, none,
		},
		{
			"v1 without limits",
			files("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n",
				"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n",
				"sys/fs/cgroup/cpu/cpu.stat", "throttled_time 0\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
			none, none, 0,
		},
		{
			"gVisor's v1: no cpu.stat",
			files("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n",
				"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854775807\n"),
			1, none, none,
		},
		{
			"nonsense",
			files("proc/self/cgroup", "what\n::\n0::\n",
				"sys/fs/cgroup/cpu.max", "100000 0\n",
				"sys/fs/cgroup/memory.max", "18446744073709551615\n",
				"sys/fs/cgroup/cpu.stat", "throttled_usec\nthrottled_usec x\n",
				"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n"),
			none, none, none,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cores := float64(none)
			if q := cpuQuota(tt.root); q != nil {
				cores = *q
			}
			memory := int64(none)
			if m := memoryLimit(tt.root); m != nil {
				memory = *m
			}
			throttled := time.Duration(none)
			if d, ok := Throttled(tt.root); ok {
				throttled = d
			}
			if cores != tt.cores || memory != tt.memory || throttled != tt.throttled {
				t.Errorf("got %v cores, %d bytes, throttled %d; want %v, %d, %d",
					cores, memory, throttled, tt.cores, tt.memory, tt.throttled)
			}
		})
	}
}

func TestSandbox(t *testing.T) {
	for version, want := range map[string]string{
		"":           "none",
		linuxVersion: "none",
		"Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n":           "gvisor",
		"Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n":   "gvisor",
		"Linux version 5.15.0-gvisor #2 SMP Fri Jan 1 00:00:00 UTC 2027\n":    "gvisor",
		"Linux version 4.4.0-210-generic (buildd@x) #242-Ubuntu SMP Fri Apr ": "none",
	} {
		if got := sandbox(files("proc/version", version)); got != want {
			t.Errorf("sandbox of %q = %q, want %q", version, got, want)
		}
	}
	if got := sandbox(files()); got != "none" {
		t.Errorf("sandbox without /proc = %q", got)
	}
}

// FuzzCgroup says that no content makes a limit that isn't one.
func FuzzCgroup(f *testing.F) {
	f.Add("0::/\n", "150000 100000\n", "throttled_usec 1\n", "max")
	f.Add(selfV1, "max 100000", "", "9223372036854771712")
	f.Fuzz(func(t *testing.T, self, cpuMax, cpuStat, memoryMax string) {
		root := files("proc/self/cgroup", self, "sys/fs/cgroup/cpu.max", cpuMax, "sys/fs/cgroup/cpu.stat", cpuStat,
			"sys/fs/cgroup/memory.max", memoryMax)
		if q := cpuQuota(root); q != nil && (math.IsNaN(*q) || math.IsInf(*q, 0) || *q <= 0) {
			t.Errorf("quota %v", *q)
		}
		if m := memoryLimit(root); m != nil && *m <= 0 {
			t.Errorf("limit %d", *m)
		}
		Throttled(root)
	})
}

// A process may keep as many cores busy as its quota allows, and no more than run Go code at once.
func TestCores(t *testing.T) {
	all := float64(runtime.GOMAXPROCS(0))
	for max, want := range map[string]float64{"max 100000": all, "50000 100000": 0.5, "100000000 100000": all} {
		root := fstest.MapFS{"proc/self/cgroup": {Data: []byte("0::/\n")}, "sys/fs/cgroup/cpu.max": {Data: []byte(max + "\n")}}
		if got := Cores(root); got != want {
			t.Errorf("%s: %g cores, want %g", max, got, want)
		}
	}
}
