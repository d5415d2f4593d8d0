package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	memoryLimit = 128 << 20 // bytes
	cpuQuota    = 0.5       // cores
)

// limits makes a cgroup with the limits above and returns the file into which a process is written to be in it, for each
// controller. None are returned where this machine does not let us.
func limits(t *testing.T) (procs []string) {
	t.Helper()
	name := fmt.Sprintf("nsop-test-%d", os.Getpid())
	const period = 100_000 // microseconds
	quota := strconv.Itoa(cpuQuota * period)
	for _, c := range []struct{ dir, file, value string }{
		{"/sys/fs/cgroup", "cpu.max", fmt.Sprint(quota, " ", period)},
		{"/sys/fs/cgroup", "memory.max", strconv.Itoa(memoryLimit)},
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", quota},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", strconv.Itoa(memoryLimit)},
	} {
		dir := filepath.Join(c.dir, name)
		if _, err := os.Stat(filepath.Join(c.dir, "cgroup.procs")); err != nil {
			continue // of the other version of cgroups
		}
		if os.Mkdir(dir, 0o755) == nil {
			t.Cleanup(func() {
				// The kernel takes a moment to forget a process that has ended.
				for range 100 {
					if os.Remove(dir) == nil {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Errorf("%s stays", dir)
			})
		}
		f, err := os.OpenFile(filepath.Join(dir, c.file), os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		if _, err = f.WriteString(c.value); err == nil {
			procs = append(procs, filepath.Join(dir, "cgroup.procs"))
		}
		f.Close()
	}
	if len(procs) < 2 { // one of the two limits is none of the runtime that is meant
		return nil
	}
	return procs
}

// inRuntime is the command that runs bin as a platform does: nothing can be written but an empty /tmp, whatever the
// cgroups allow is all there is.
func inRuntime(bin string, procs []string) *exec.Cmd {
	const script = `
set -e
for procs in $PROCS; do echo $$ >"$procs"; done
exec 9<"$BIN"
mount -o remount,ro,bind /
mount -t tmpfs -o size=64m tmpfs /tmp
exec /proc/self/fd/9`
	namespaces := "-m"
	if os.Getuid() != 0 {
		namespaces = "-rm"
	}
	return exec.Command("unshare", namespaces, "--propagation", "private", "sh", "-c",
		"BIN='"+bin+"' PROCS='"+strings.Join(procs, " ")+"'"+script)
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestRuntime: what the platforms give and take. A file system that can't be written but for /tmp, no metadata server, the
// smallest memory and half a CPU: the service starts, measures every store of its own, and ends in a run within the 2 s
// that App Engine allows (Cloud Run: 10 s).
func TestRuntime(t *testing.T) {
	bin := build(t, "-trimpath", "-ldflags=-s -w")
	platforms := map[string][]string{
		"app-engine": {"GAE_ENV=standard", "GAE_SERVICE=default", "GAE_VERSION=v1", "GAE_INSTANCE=i", "GAE_MEMORY_MB=128", "GOOGLE_CLOUD_PROJECT=p"},
		"cloud-run":  {"K_SERVICE=nsop", "K_REVISION=nsop-1", "K_CONFIGURATION=nsop"},
	}
	for platform, env := range platforms {
		t.Run(platform, func(t *testing.T) {
			procs := limits(t)
			if procs == nil {
				t.Log("no cgroup can be made here: memory is limited by GOMEMLIMIT and the CPU is not")
			}
			env = append(env, "AUTH=none", "GCE_METADATA_HOST=127.0.0.1:1", "HOME=/nonexistent")
			if procs == nil {
				env = append(env, "GOMEMLIMIT="+strconv.Itoa(memoryLimit))
			}
			p := listenAs(t, inRuntime(bin, procs), env...)
			if status, body := fetch(t, p.base+"/health"); status != 200 {
				t.Errorf("/health: %d %s", status, body)
			}
			_, body := fetch(t, p.base+"/targets")
			var list struct{ Targets []struct{ Name string } }
			if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Targets) < 5 {
				t.Fatalf("%v: %s", err, body)
			}
			for _, target := range list.Targets {
				status, body := fetch(t, p.base+"/bench/"+target.Name+"?benchtime=200x&size=1KiB&keyspace=100&timeout=20s")
				if status != 200 {
					t.Errorf("%s: %d %s", target.Name, status, body)
				}
			}
			status, body := fetch(t, p.base+"/bench/map?benchtime=500ms&concurrency=4")
			var report struct {
				Vantage struct {
					Platform string
					CPUQuota *float64 `json:"cpu_quota"`
					Memory   *int64   `json:"memory_limit_bytes"`
				}
				Results []struct {
					Iterations int64
					Throttled  *int64 `json:"throttled_ns"`
				}
				Warnings []string
			}
			if err := json.Unmarshal([]byte(body), &report); err != nil || status != 200 {
				t.Fatalf("%v: %d %s", err, status, body)
			}
			if report.Vantage.Platform != platform || !strings.Contains(fmt.Sprint(report.Warnings), "the metadata server did not answer") {
				t.Errorf("vantage %+v, warnings %q", report.Vantage, report.Warnings)
			}
			if v := report.Vantage; procs != nil && (v.CPUQuota == nil || *v.CPUQuota != cpuQuota || v.Memory == nil || *v.Memory != memoryLimit) {
				t.Errorf("vantage %s", body)
			}
			if r := report.Results[0]; procs != nil && r.Throttled == nil || r.Iterations == 0 {
				t.Errorf("results %s", body)
			}
			if peak := statusBytes(t, p.cmd.Process.Pid, "VmHWM"); peak > 100e6 {
				t.Errorf("%d bytes were resident", peak)
			}
			terminateInRun(t, p)
		})
	}
}

// statusBytes is a line of /proc/PID/status, in bytes.
func statusBytes(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kb, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// terminateInRun ends p as a platform does while a run of half a minute goes on, which answers what it has.
func terminateInRun(t *testing.T, p *process) {
	t.Helper()
	answered := make(chan int, 1)
	go func() {
		for {
			resp, err := http.Get(p.base + "/bench/map/get?benchtime=30s")
			if err != nil {
				answered <- 0
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body) // the status says it
			resp.Body.Close()
			if resp.StatusCode != http.StatusTooManyRequests { // the one below was there first
				answered <- resp.StatusCode
				return
			}
		}
	}()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if status, _ := fetch(t, p.base+"/bench/map/get?benchtime=1x&warmup=0x"); status == http.StatusTooManyRequests {
			break
		}
		if time.Since(began) > patience || len(answered) > 0 {
			t.Fatal("no run begins")
		}
	}
	sent := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if took := time.Since(sent); err != nil || took > 2*time.Second || p.said() != "" {
			t.Errorf("ended after %v with %v and %q", took, err, p.said())
		}
	case <-time.After(patience):
		t.Fatal("does not end")
	}
	if status := <-answered; status != http.StatusServiceUnavailable {
		t.Errorf("the run is answered with status %d", status)
	}
}

// TestPort: the service listens where PORT says, on every interface.
func TestPort(t *testing.T) {
	addr := unusedAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	p := listen(t, build(t), "PORT="+port)
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		if status, body := fetch(t, "http://"+host+":"+port+"/health"); status != 200 {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	p.terminate(t)
}
