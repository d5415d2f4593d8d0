package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkStart compares the time from exec to the first answer with that of a service which has the router and nothing
// else, in pairs, and fails above 2 times; it also reports memory at rest (limit 30 MB) and the stripped binary (40 MB).
func BenchmarkStart(b *testing.B) {
	const maxRatio, maxMemory, maxBinary = 2.0, 30e6, 40e6
	ours, bare := goBuild(b, "nsop", ".", "-trimpath", "-ldflags=-s -w"), goBuild(b, "chi", "./testdata/chi", "-trimpath", "-ldflags=-s -w")
	const pairs = 40
	var memory int64
	var a, c []time.Duration
	b.ResetTimer()
	for range b.N {
		a, c = nil, nil
		for range pairs {
			took, resident := startOnce(b, ours)
			a, memory = append(a, took), max(memory, resident)
			took, _ = startOnce(b, bare)
			c = append(c, took)
		}
	}
	b.StopTimer()
	slices.Sort(a)
	slices.Sort(c)
	start, reference := a[len(a)/2], c[len(c)/2]
	info, err := os.Stat(ours)
	if err != nil {
		b.Fatal(err)
	}
	ratio := float64(start) / float64(reference)
	b.ReportMetric(0, "ns/op") // of no meaning here
	b.ReportMetric(float64(start.Microseconds())/1000, "ms/start")
	b.ReportMetric(float64(reference.Microseconds())/1000, "ms/start-chi")
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(float64(memory)/1e6, "MB-resident")
	b.ReportMetric(float64(info.Size())/1e6, "MB-binary")
	if ratio > maxRatio || float64(memory) > maxMemory || float64(info.Size()) > maxBinary {
		b.Errorf("start %.2f times a bare service's, %d bytes resident, %d bytes of binary: at most %v, %v, %v", ratio, memory, info.Size(), maxRatio, maxMemory, maxBinary)
	}
}

// startOnce starts bin, waits for its first answer, and returns how long that took and the memory it then holds in bytes.
func startOnce(b *testing.B, bin string) (time.Duration, int64) {
	b.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	cmd := exec.Command(bin)
	cmd.Env = cleanEnv("PORT=" + addr[strings.LastIndexByte(addr, ':')+1:])
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	for time.Since(began) < patience {
		resp, err := client.Get("http://" + addr + "/health")
		if err != nil {
			time.Sleep(50 * time.Microsecond)
			continue
		}
		took := time.Since(began)
		resp.Body.Close()
		return took, resident(b, cmd.Process.Pid)
	}
	b.Fatalf("%s does not answer", filepath.Base(bin))
	return 0, 0
}

// resident is the memory that a process holds, in bytes.
func resident(b *testing.B, pid int) int64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb * 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
