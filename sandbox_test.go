//go:build sandbox

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nsop/bench/storetest"
)

// sandboxed is bin in gVisor, as App Engine and Cloud Run's first generation run it. NSOP_RUNSC is gVisor's runtime, which
// make sandbox builds.
func sandboxed(t *testing.T, bin string, args ...string) *exec.Cmd {
	t.Helper()
	runsc := os.Getenv("NSOP_RUNSC")
	if runsc == "" {
		t.Fatal("NSOP_RUNSC is not set: use make sandbox")
	}
	return exec.Command(runsc, append([]string{"--rootless", "--network=host", "do", bin}, args...)...)
}

// TestSandbox: the service in the sandbox, against a Redis outside of it: every endpoint answers, and what it says it did
// is what the server counted.
func TestSandbox(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0") // the sandbox has no libraries of ours
	bin := build(t, "-trimpath", "-ldflags=-s -w")
	redis := storetest.Redis(t)
	p := listenAs(t, sandboxed(t, bin), "REDIS_ADDR="+redis.Addr, "GAE_ENV=standard", "GAE_SERVICE=default", "GAE_MEMORY_MB=384", "AUTH=none", "GCE_METADATA_HOST=127.0.0.1:1",
		"HISTORY_URL=sqlite:/tmp/"+filepath.Base(t.TempDir())+"/history.db")

	redis.Do(t, "CONFIG", "RESETSTAT")
	const iterations, warmup = 2000, 100
	began := time.Now()
	status, body := fetch(t, fmt.Sprintf("%s/bench/redis/get?benchtime=%dx&warmup=%dx&client=redigo,go-redis,rueidis,floor", p.base, iterations, warmup))
	took := time.Since(began)
	var report struct {
		Vantage struct{ Platform, Sandbox string }
		Results []struct {
			Client     string
			Iterations int64
			Errors     int64
			Elapsed    int64                           `json:"elapsed_ns"`
			PerOp      float64                         `json:"ns_per_op"`
			Latency    struct{ Min, P50, Max float64 } `json:"latency_ns"`
		}
	}
	if err := json.Unmarshal([]byte(body), &report); err != nil || status != 200 || len(report.Results) != 4 {
		t.Fatalf("%v: %d %s", err, status, body)
	}
	if report.Vantage.Platform != "app-engine" || report.Vantage.Sandbox != "gvisor" {
		t.Errorf("vantage %+v", report.Vantage)
	}
	elapsed := time.Duration(0)
	for _, r := range report.Results {
		elapsed += time.Duration(r.Elapsed)
		if l := r.Latency; r.Iterations != iterations || r.Errors != 0 || l.Min <= 0 || l.Min > l.P50 || l.P50 > l.Max || l.P50 > 2*r.PerOp {
			t.Errorf("%+v", r)
		}
		if off := r.PerOp*iterations/float64(r.Elapsed) - 1; off > 0.001 || off < -0.001 {
			t.Errorf("%s: %v ns/op of %d in %d ns", r.Client, r.PerOp, r.Iterations, r.Elapsed)
		}
		t.Logf("%-9s %6.1f us/op", r.Client, r.PerOp/1000)
	}
	if elapsed > took {
		t.Errorf("rows of %v in an answer of %v", elapsed, took)
	}
	stats := fmt.Sprint(redis.Do(t, "INFO", "commandstats"))
	if want := fmt.Sprintf("cmdstat_get:calls=%d,", 4*(iterations+warmup)); !strings.Contains(stats, want) {
		t.Errorf("%s is not in %s", want, stats)
	}

	// Every endpoint that the description names, those of which not every word is known here included.
	status, body = fetch(t, p.base+"/openapi.json")
	var description struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal([]byte(body), &description); err != nil || status != 200 || len(description.Paths) < 8 {
		t.Fatalf("%v: %d %s", err, status, body)
	}
	client := http.Client{Timeout: patience}
	for path, methods := range description.Paths {
		for method := range methods {
			target := strings.NewReplacer("{target}", "redis", "{workloads}", "get", "{workload}", "get", "{suite}", "clients", "{id}", "none").Replace(path)
			switch {
			case path == "/plan":
				target += "?target=redis"
			case strings.Contains(path, "diagnose") || strings.Contains(path, "probe"):
				target += "?timeout=1s"
			case strings.Contains(path, "{") && !strings.Contains(path, "{id}"):
				target += "?benchtime=10x"
			}
			request, err := http.NewRequest(strings.ToUpper(method), p.base+target, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Errorf("%s %s: %v", method, target, err)
				continue
			}
			response.Body.Close()
			want := response.StatusCode == 200 || response.StatusCode/100 == 4 && (strings.Contains(path, "{id}") || strings.Contains(path, "compare") || method == "post")
			if !want {
				t.Errorf("%s %s: status %d", method, target, response.StatusCode)
			}
		}
	}
	if status, body := fetch(t, p.base+"/bench/sqlite-disk?benchtime=20x"); status != 200 {
		t.Errorf("a store on disk: %d %s", status, body)
	}
	terminateInRun(t, p)

	// One request without a listener.
	for path, want := range map[string]int{"/bench/redis?benchtime=20x": 0, "/bench/none": 1} {
		cmd := sandboxed(t, bin, path)
		cmd.Env = cleanEnv()
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != want { // the code says it
			t.Errorf("%s: exit code %d: %s", path, cmd.ProcessState.ExitCode(), out)
		}
	}
}
