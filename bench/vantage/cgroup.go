package vantage

import (
	"io/fs"
	"math"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Throttled returns how long the kernel has kept this process's cgroup from running because its CPU quota was used up,
// since the cgroup was made and added over its CPUs; false if the kernel does not say. root is the root of the file system.
func Throttled(root fs.FS) (time.Duration, bool) {
	var total time.Duration
	var known bool
	for _, c := range []struct {
		controller, key string
		unit            time.Duration
	}{
		{"", "throttled_usec", time.Microsecond},
		{"cpu", "throttled_time", time.Nanosecond},
	} {
		// A quota stalls every cgroup below it and is counted only where it is set.
		for _, dir := range cgroups(root, c.controller) {
			for line := range strings.Lines(readText(root, dir+"/cpu.stat")) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				n, err := strconv.ParseInt(value, 10, 64)
				if key == c.key && err == nil {
					total += time.Duration(n) * c.unit
					known = true
				}
			}
		}
	}
	return total, known
}

// cpuQuota returns the cores that the tightest quota on this process allows, nil if there is none.
func cpuQuota(root fs.FS) *float64 {
	cores := math.Inf(1)
	for _, dir := range cgroups(root, "") {
		quota, period, _ := strings.Cut(readText(root, dir+"/cpu.max"), " ")
		cores = min(cores, ratio(quota, period))
	}
	for _, dir := range cgroups(root, "cpu") {
		cores = min(cores, ratio(readText(root, dir+"/cpu.cfs_quota_us"), readText(root, dir+"/cpu.cfs_period_us")))
	}
	if math.IsInf(cores, 1) {
		return nil
	}
	return &cores
}

// Cores returns how many cores this process may keep busy: what its CPU quota allows, and no more than run Go code at once.
// root is the root of the file system.
func Cores(root fs.FS) float64 {
	cores := float64(runtime.GOMAXPROCS(0))
	if quota := cpuQuota(root); quota != nil {
		cores = min(cores, *quota)
	}
	return cores
}

// ratio returns quota over period, +Inf where one of them is not a positive number: no quota is "max" or -1.
func ratio(quota, period string) float64 {
	q, err := strconv.ParseInt(quota, 10, 64)
	if err != nil || q <= 0 {
		return math.Inf(1)
	}
	p, err := strconv.ParseInt(period, 10, 64)
	if err != nil || p <= 0 {
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}

// memoryLimit returns the bytes that the tightest limit on this process allows, nil if there is none.
func memoryLimit(root fs.FS) *int64 {
	// Without a limit cgroup v1 says 2^63 less a page, or 2^63-1.
	const none = 1 << 62
	limit := int64(none)
	for _, f := range []struct{ controller, name string }{
		{"", "memory.max"},
		{"memory", "memory.limit_in_bytes"},
	} {
		for _, dir := range cgroups(root, f.controller) {
			n, err := strconv.ParseInt(readText(root, dir+"/"+f.name), 10, 64)
			if err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
	}
	if limit == none {
		return nil
	}
	return &limit
}

// cgroups returns the folders of the process's own cgroup and of all those above it, innermost first: a limit on any of
// them holds, and in a container the own path may be one that only the host can see. controller is "" for cgroup v2.
func cgroups(root fs.FS, controller string) []string {
	own := "/"
	for line := range strings.Lines(readText(root, "proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // ID:CONTROLLERS:PATH; v2 has no controllers
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			own = f[2]
		}
	}
	var dirs []string
	for p := path.Clean("/" + own); ; p = path.Dir(p) {
		dirs = append(dirs, path.Join("sys/fs/cgroup", controller, p))
		if p == "/" {
			return dirs
		}
	}
}

// readText returns the trimmed content of a file, "" if it can't be read: what a platform hides is unknown, not an error.
func readText(root fs.FS, name string) string {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
