package store

import (
	"errors"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/storetest"
)

// run measures workloads of target as edit says, and fails the test where that takes far longer than it has to.
func run(t *testing.T, target *bench.Target, workloads string, observe func(bench.Progress), edit func(s *bench.Spec)) (*bench.Report, error) {
	t.Helper()
	spec := bench.DefaultSpec()
	spec.Benchtime, spec.Warmup = bench.Extent{Count: 200}, bench.Extent{Count: 20}
	edit(&spec)
	plan, err := bench.NewPlan(target, workloads, spec, bench.DefaultLimits(""))
	if err != nil {
		t.Fatal(err)
	}
	none := func() (time.Duration, bool) { return 0, false }
	return plan.Run(t.Context(), "test", bench.Meter{CPU: none, Throttled: none}, observe)
}

func ignore(bench.Progress) {}

// TestPlans runs a plan on every store that this file's neighbours open, and expects nothing to be left behind.
func TestPlans(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	server := storetest.Memcached(t)
	memcached, err := Parse("memcached", "memcached://"+server.Addr, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range append(InProcess(), memcached) {
		for _, sync := range []string{"off", "full"} {
			if sync == "full" && !target.Syncs {
				continue
			}
			report, err := run(t, target, "set,get", ignore, func(s *bench.Spec) {
				s.Concurrency, s.Keyspace, s.Size, s.Verify, s.Sync, s.Count = []int{1, 8}, []int{50}, []int{0, 1000}, true, sync, 2
				for _, c := range target.Clients {
					s.Clients = append(s.Clients, c.Name)
				}
			})
			if err != nil {
				t.Errorf("%s: %v", target.Name, err)
			}
			if len(report.Warnings) > 1 || target.Embedded != (len(report.Warnings) == 1) {
				t.Errorf("%s: warnings %q", target.Name, report.Warnings)
			}
			for _, r := range report.Results {
				if r.Iterations != 200 || r.Errors+r.Misses+r.Mismatches > 0 {
					t.Errorf("%s: %d iterations, %d errors %v, %d misses, %d mismatches", r.Name, r.Iterations, r.Errors, r.ErrorSamples, r.Misses, r.Mismatches)
				}
				if (r.Server != nil) == target.Embedded || r.Server != nil && r.Server.NSPerCall != nil {
					t.Errorf("%s: the server's own figures are %+v", r.Name, r.Server)
				}
				for _, w := range r.Warnings {
					t.Logf("%s: %s", r.Name, w)
				}
			}
		}
	}
	if got := server.Stats(t)["curr_items"]; got != "0" {
		t.Errorf("%s keys are left behind", got)
	}
	if left := folders(t); len(left) > 0 {
		t.Errorf("folders %q are left behind", left)
	}
}

// TestMemcachedDiesInRun has the server end, or stop answering, in the middle of a row.
func TestMemcachedDiesInRun(t *testing.T) {
	for _, client := range bothMemcachedClients {
		for name, kinds := range map[string][]string{"kill": {"reset", "refused"}, "stop": {"timeout"}} {
			server := storetest.Memcached(t)
			target, err := Parse("memcached", "memcached://"+server.Addr, "", noEnv)
			if err != nil {
				t.Fatal(err)
			}
			struck := false
			var at time.Time
			report, err := run(t, target, "get", func(p bench.Progress) {
				if struck || p.Fraction == 0 {
					return
				}
				struck, at = true, time.Now()
				if name == "kill" {
					server.Kill(t)
				} else {
					server.Pause(t)
				}
			}, func(s *bench.Spec) {
				s.Clients, s.Concurrency, s.Benchtime, s.Timeout = []string{client}, []int{4}, bench.Extent{Time: 20 * time.Second}, short
			})
			lost := (*bench.LostError)(nil)
			if !errors.As(err, &lost) || !struck || len(report.Results) != 1 {
				t.Errorf("%s: %s: %v", client, name, err)
				continue
			}
			if took := time.Since(at); took > short+10*time.Second {
				t.Errorf("%s: %s: it took %v to notice", client, name, took)
			}
			r := report.Results[0]
			if r.Iterations == 0 || r.Errors == 0 {
				t.Errorf("%s: %s: %d iterations, %d errors", client, name, r.Iterations, r.Errors)
			}
			for kind := range r.ErrorKinds {
				if kind != kinds[0] && kind != kinds[len(kinds)-1] {
					t.Errorf("%s: %s: %s: %s", client, name, kind, r.ErrorSamples[kind])
				}
			}
		}
	}
}
