package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/storetest"
)

// TestJobVariables: what tells a task which one it is, and what is wrong with it in one line.
func TestJobVariables(t *testing.T) {
	type env = map[string]string
	const path, shared = "/bench/map/get?benchtime=5x", "sqlite:/tmp/none.db"
	cloudRun := func(index, count, execution, attempt string) env {
		return env{"CLOUD_RUN_TASK_INDEX": index, "CLOUD_RUN_TASK_COUNT": count, "CLOUD_RUN_EXECUTION": execution, "CLOUD_RUN_TASK_ATTEMPT": attempt}
	}
	for _, test := range []struct {
		name string
		env  env
		want string // execution, task, tasks, attempt
		err  string
	}{
		{"Cloud Run", cloudRun("3", "8", "nsop-x7k2p", "1"), "nsop-x7k2p 3 8 1", ""},
		{"Kubernetes", env{"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "2", "JOB_NAME": "load"}, "load 0 2 0", ""},
		{"no attempt", cloudRun("0", "1", "e", ""), "e 0 1 0", ""},
		{"both", maps.Collect(func(yield func(string, string) bool) {
			for k, v := range cloudRun("1", "2", "e", "0") {
				yield(k, v)
			}
			yield("JOB_NAME", "other")
		}), "e 1 2 0", ""},
		{"index missing", cloudRun("", "8", "e", "0"), "", `CLOUD_RUN_TASK_INDEX: "" is no whole number from 0 to 9999: a task is told by CLOUD_RUN_TASK_INDEX, CLOUD_RUN_TASK_COUNT and CLOUD_RUN_EXECUTION`},
		{"count missing", env{"JOB_COMPLETION_INDEX": "0", "JOB_NAME": "e"}, "", `JOB_COMPLETIONS: "" is no whole number from 1 to 10000: a task is told by JOB_COMPLETION_INDEX, JOB_COMPLETIONS and JOB_NAME`},
		{"name missing", cloudRun("0", "8", "", "0"), "", `CLOUD_RUN_EXECUTION: "" is no name of a run: want 1 to 100 letters, digits, - _ and ., alike for all tasks of a run and for no others`},
		{"name", cloudRun("0", "8", "a/b", "0"), "", `CLOUD_RUN_EXECUTION: "a/b" is no name of a run: want 1 to 100 letters, digits, - _ and ., alike for all tasks of a run and for no others`},
		{"index too large", cloudRun("8", "8", "e", "0"), "", "CLOUD_RUN_TASK_INDEX: 8 is not below CLOUD_RUN_TASK_COUNT, which is 8"},
		{"index no number", cloudRun("x", "8", "e", "0"), "", `CLOUD_RUN_TASK_INDEX: "x" is no whole number from 0 to 9999: a task is told by CLOUD_RUN_TASK_INDEX, CLOUD_RUN_TASK_COUNT and CLOUD_RUN_EXECUTION`},
		{"attempt", cloudRun("0", "8", "e", "-1"), "", `CLOUD_RUN_TASK_ATTEMPT: "-1" is no whole number from 0 to 1000: a task is told by CLOUD_RUN_TASK_INDEX, CLOUD_RUN_TASK_COUNT and CLOUD_RUN_EXECUTION`},
	} {
		t.Run(test.name, func(t *testing.T) {
			getenv := func(name string) string { return test.env[name] }
			job, err := configureJob(getenv)
			wrong := (*usageError)(nil)
			if test.err != "" {
				if !errors.As(err, &wrong) || err.Error() != test.err {
					t.Errorf("%v, want %s", err, test.err)
				}
				return
			}
			if got := fmt.Sprint(job.Execution, " ", job.Task, " ", job.Tasks, " ", job.Attempt); err != nil || got != test.want {
				t.Errorf("%v, %s, want %s", err, got, test.want)
			}
		})
	}
	const noHistory = "HISTORY_URL: the tasks of a job put their parts together in the history: want one that all of them reach, " +
		"postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE, or on a single machine sqlite:PATH"
	for _, test := range []struct{ path, history, platform, err string }{
		{path, "", "", noHistory},
		{path, shared, "CLOUD_RUN_JOB", noHistory},
		{"/limit/map/get", shared, "", "job /limit/map/get: want a path that begins with /bench/ or /suites/"},
		{"bench/map", shared, "", "job bench/map: want a path that begins with /bench/ or /suites/"},
	} {
		e := cloudRun("0", "2", "e", "0")
		e["HISTORY_URL"] = test.history
		e[test.platform] = "x"
		_, _, err := command(t, e, "job", test.path)
		if wrong := (*usageError)(nil); !errors.As(err, &wrong) || err.Error() != test.err {
			t.Errorf("%s: %v, want %s", test.path, err, test.err)
		}
	}
	t.Run("by hand", func(t *testing.T) {
		e := env{"HISTORY_URL": "sqlite:" + t.TempDir() + "/h.db"}
		stdout, _, err := command(t, e, "job", path)
		var r struct {
			Run     string
			Results []struct{ Iterations int64 }
		}
		if jerr := json.Unmarshal([]byte(stdout), &r); err != nil || jerr != nil || len(r.Results) != 1 || r.Results[0].Iterations != 5 {
			t.Fatalf("%v, %v: %s", err, jerr, stdout)
		}
		if stdout, _, err := command(t, e, "/runs/"+r.Run); err != nil || !strings.Contains(stdout, `"tasks"`) {
			t.Errorf("%v: %s", err, stdout)
		}
		if stdout, _, err := command(t, e, "job", path+"&save=false"); !errors.Is(err, exitCode(1)) || !strings.Contains(stdout, `"parameter": "save"`) {
			t.Errorf("%v: %s", err, stdout)
		}
	})
}

// A merged is what is asked of the answer of /runs/{execution}.
type merged struct {
	Run     string
	Results []*bench.Result
	Tasks   []struct {
		Task, Attempt int
		State         string
		Iterations    int64
	}
	Assertions []bench.Assertion
	Warnings   []string
}

// A jobTest is a store and a history for tasks that are processes.
type jobTest struct {
	bin   string
	redis *storetest.RedisServer
	env   map[string]string
}

func newJobTest(t testing.TB) *jobTest {
	j := &jobTest{bin: build(t), redis: storetest.Redis(t)}
	db := storetest.Postgres(t, storetest.PostgresOptions{})
	j.env = map[string]string{"REDIS_ADDR": j.redis.Addr, "HISTORY_URL": db.URL("postgres", "", "postgres")}
	return j
}

// A task is a process that is one of a job.
type task struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

func (j *jobTest) start(t testing.TB, execution string, index, count, attempt int, path string) *task {
	t.Helper()
	k := &task{cmd: exec.Command(j.bin, "job", path)}
	k.cmd.Env = cleanEnv(fmt.Sprintf("CLOUD_RUN_TASK_INDEX=%d", index), fmt.Sprintf("CLOUD_RUN_TASK_COUNT=%d", count),
		"CLOUD_RUN_EXECUTION="+execution, fmt.Sprintf("CLOUD_RUN_TASK_ATTEMPT=%d", attempt))
	for name, value := range j.env {
		k.cmd.Env = append(k.cmd.Env, name+"="+value)
	}
	k.cmd.Stdout, k.cmd.Stderr = &k.out, &k.out
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.cmd.Process.Kill() }) // most have ended by then
	return k
}

// end waits for tasks, which are to succeed.
func end(t testing.TB, tasks ...*task) {
	t.Helper()
	for i, k := range tasks {
		if err := k.cmd.Wait(); err != nil {
			t.Errorf("process %d: %v: %s", i, err, &k.out)
		}
	}
}

// run is the merged run as another service with the same history answers it.
func (j *jobTest) run(t testing.TB, execution string) (m merged) {
	t.Helper()
	stdout, _, err := command(t, j.env, "/runs/"+execution)
	if err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if err := json.Unmarshal([]byte(stdout), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// await returns once the run satisfies what is asked of it.
func (j *jobTest) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("%s takes too long", what)
		}
	}
}

// monitor counts the commands with keys of a run that a server is sent until stop, by command and key without the run.
func monitor(t *testing.T, addr, execution string) (stop func() map[string]int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 1<<20) // data is loaded by long commands
	lines.Scan()             // +OK
	counts, done := map[string]int{}, make(chan struct{})
	go func() {
		defer close(done)
		for lines.Scan() {
			words := strings.Split(lines.Text(), `"`)
			if len(words) < 4 {
				continue
			}
			if words[1] == "ECHO" && words[3] == "the end" {
				return
			}
			if key, ok := strings.CutPrefix(words[3], "nsop:"+execution+":"); ok {
				counts[strings.ToUpper(words[1])+" "+key]++
			}
		}
	}()
	return func() map[string]int {
		e, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if _, err := e.Write([]byte("ECHO \"the end\"\r\n")); err != nil {
			t.Fatal(err)
		}
		<-done
		c.Close()
		return counts
	}
}

func (j *jobTest) size(t *testing.T) string {
	t.Helper()
	c, err := net.Dial("tcp", j.redis.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("DBSIZE\r\n")); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestJob: tasks that are processes of their own, with one store and one history.
func TestJob(t *testing.T) {
	j := newJobTest(t)
	// What eight tasks send is, command by command and key by key, what one process sends.
	t.Run("exact", func(t *testing.T) {
		const tasks, path = 8, "/bench/redis/set,get,lrange_100,lpop,mset?client=redigo&concurrency=20&keyspace=300&benchtime=5003x&warmup=101x&assert=iterations=5003&assert=misses=0"
		stop := monitor(t, j.redis.Addr, "one")
		end(t, j.start(t, "one", 0, 1, 0, path))
		want := stop()
		stop = monitor(t, j.redis.Addr, "eight")
		var all []*task
		for i := range tasks {
			all = append(all, j.start(t, "eight", i, tasks, 0, path))
		}
		end(t, all...)
		got := stop()
		for name, n := range want {
			command, _, _ := strings.Cut(name, " ")
			if strings.Contains("RPUSH EXPIRE", command) { // the elements of a list are loaded by as many
				continue
			}
			if got[name] != n {
				t.Errorf("%s: %d times, one process %d", name, got[name], n)
			}
		}
		for name := range got {
			if want[name] == 0 {
				t.Errorf("%s is sent by tasks alone", name)
			}
		}
		if size := j.size(t); size != ":0" {
			t.Errorf("%s keys are left", size)
		}
		m := j.run(t, "eight")
		if len(m.Results) != 5 || len(m.Tasks) != tasks || len(m.Assertions) != 10 || !bench.AssertionsHold(m.Assertions) {
			t.Fatalf("%+v", m)
		}
		checkMerged(t, j, m)
		for _, r := range m.Results {
			if r.Iterations != 5003 || r.Errors != 0 || r.Connections < 20 || r.Concurrency != 20 {
				t.Errorf("%s: %d iterations, %d errors, %d connections", r.Name, r.Iterations, r.Errors, r.Connections)
			}
		}
		if stdout, _, err := command(t, j.env, "/runs?kind=job&target=redis"); err != nil || !strings.Contains(stdout, `"run": "eight"`) {
			t.Errorf("%v: %s", err, stdout)
		}
		if stdout, _, err := command(t, j.env, "/compare?a=one&b=eight"); err != nil {
			t.Errorf("%v: %s", err, stdout)
		}
	})
	// An open loop of three of which one is killed and tried again: its operations count once.
	t.Run("killed", func(t *testing.T) {
		const path = "/bench/redis/get?client=redigo&rate=300&benchtime=600x&concurrency=6&keyspace=50&timeout=1s"
		others := []*task{j.start(t, "killed", 0, 3, 0, path), j.start(t, "killed", 1, 3, 0, path)}
		victim := j.start(t, "killed", 2, 3, 0, path)
		stop := monitor(t, j.redis.Addr, "killed")
		time.Sleep(time.Second) // it may be anywhere by then
		_ = victim.cmd.Process.Kill()
		_ = victim.cmd.Wait()
		if m := j.run(t, "killed"); m.Tasks[2].State != bench.TaskRunning || !slices.Contains(m.Warnings, "task 2 has not ended: it is running, or was killed") {
			t.Errorf("after the kill: %+v", m)
		}
		again := j.start(t, "killed", 2, 3, 1, path)
		end(t, append(others, again)...)
		stop()
		m := j.run(t, "killed")
		if len(m.Results) != 1 || m.Results[0].Iterations != 600 || m.Results[0].Misses != 0 || m.Tasks[2].Attempt != 1 || m.Tasks[2].Iterations != 200 {
			t.Errorf("%+v: %+v", m, m.Results[0])
		}
		checkMerged(t, j, m)
		if size := j.size(t); size != ":0" {
			t.Errorf("%s keys are left", size)
		}
	})
	// One of four never comes: the others do their shares, on the data of all.
	t.Run("missing", func(t *testing.T) {
		const path = "/bench/redis/get?client=redigo&benchtime=4000x&concurrency=8&keyspace=1000&timeout=200ms"
		began := time.Now()
		var all []*task
		for _, i := range []int{0, 1, 3} {
			all = append(all, j.start(t, "missing", i, 4, 0, path))
		}
		j.await(t, "the first part", func() bool {
			stdout, _, err := command(t, j.env, "/runs/missing")
			return err == nil && strings.Contains(stdout, "task 2 is missing: it has not come yet, or never will")
		})
		end(t, all...)
		t.Logf("reported in %v", time.Since(began))
		m := j.run(t, "missing")
		if len(m.Results) != 1 || m.Results[0].Iterations != 3000 || m.Results[0].Misses != 0 || m.Tasks[2].State != bench.TaskMissing {
			t.Errorf("%+v", m)
		}
		if size := j.size(t); size != ":0" {
			t.Errorf("%s keys are left", size)
		}
		// It comes after all: late, and alone.
		end(t, j.start(t, "missing", 2, 4, 0, path))
		if m := j.run(t, "missing"); m.Results[0].Iterations != 4000 || m.Results[0].Misses != 0 || m.Tasks[2].State != bench.TaskDone {
			t.Errorf("%+v", m)
		}
		if size := j.size(t); size != ":0" {
			t.Errorf("%s keys are left", size)
		}
	})
	t.Run("SIGTERM", func(t *testing.T) {
		const path = "/bench/redis/get?client=redigo&benchtime=20s&concurrency=2&keyspace=10"
		all := []*task{j.start(t, "ended", 0, 2, 0, path), j.start(t, "ended", 1, 2, 0, path)}
		j.await(t, "the run", func() bool { return j.size(t) == ":10" })
		time.Sleep(time.Second)
		for _, k := range all {
			if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		for _, k := range all {
			_ = k.cmd.Wait() // the code says it
			if code := k.cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit code %d: %s", code, &k.out)
			}
		}
		m := j.run(t, "ended")
		if len(m.Results) != 1 || m.Results[0].Iterations == 0 || m.Tasks[0].State != bench.TaskFailed || m.Tasks[1].Iterations == 0 {
			t.Errorf("%+v", m)
		}
		if size := j.size(t); size != ":0" {
			t.Errorf("%s keys are left", size)
		}
	})
}

// checkMerged computes the merged figures from the parts in the history by another way.
func checkMerged(t *testing.T, j *jobTest, m merged) {
	t.Helper()
	h, err := history.New(j.env["HISTORY_URL"], time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	parts, err := h.Parts(t.Context(), m.Run)
	if err != nil || len(parts) != len(m.Tasks) {
		t.Fatalf("%v: %d parts", err, len(parts))
	}
	for i, r := range m.Results {
		var iterations, longest int64
		all := hdrhistogram.New(1, int64(time.Hour), 2)
		for _, p := range parts {
			var body struct {
				Report struct {
					Results []struct {
						Name       string
						Iterations int64
						Elapsed    int64 `json:"elapsed_ns"`
					}
				}
				Latencies []string
			}
			if err := json.Unmarshal(p.Body, &body); err != nil {
				t.Fatal(err)
			}
			own := body.Report.Results[i]
			if own.Name != r.Name {
				t.Fatalf("%s in place of %s", own.Name, r.Name)
			}
			iterations, longest = iterations+own.Iterations, max(longest, own.Elapsed)
			if body.Latencies[i] == "" {
				continue
			}
			one, err := bench.DecodeHistogram(body.Latencies[i])
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range one.Distribution() {
				if b.Count > 0 {
					_ = all.RecordValues(b.To, b.Count) // in range
				}
			}
		}
		if r.Iterations != iterations || r.ElapsedNS != longest || float64(*r.OpsPerSec) != float64(*bench.NewRate(float64(iterations) / float64(longest) * 1e9)) {
			t.Errorf("%s: %d iterations in %d, want %d in %d", r.Name, r.Iterations, r.ElapsedNS, iterations, longest)
		}
		l := r.Latency
		for p, got := range map[float64]*int64{50: l.P50, 90: l.P90, 95: l.P95, 99: l.P99} {
			if want := all.ValueAtPercentile(p); got == nil || *got != min(max(want, *l.Min), *l.Max) {
				t.Errorf("%s: p%v is %v, want %d", r.Name, p, *got, want)
			}
		}
	}
}

// BenchmarkJob is the throughput of four tasks over that of one process with as many workers, in pairs.
func BenchmarkJob(b *testing.B) {
	j := newJobTest(b)
	const path = "/bench/redis/get?client=redigo&concurrency=32&keyspace=1000&benchtime=2s"
	var once sync.Once
	pairs := 0
	for b.Loop() {
		var ratios []float64
		for range 5 {
			pairs++
			rate := func(tasks int) float64 {
				execution := fmt.Sprintf("bench-%d-%d", pairs, tasks)
				var all []*task
				for i := range tasks {
					all = append(all, j.start(b, execution, i, tasks, 0, path))
				}
				end(b, all...)
				return float64(*j.run(b, execution).Results[0].OpsPerSec)
			}
			one := rate(1)
			ratios = append(ratios, rate(4)/one)
		}
		slices.Sort(ratios)
		once.Do(func() { b.ReportMetric(ratios[len(ratios)/2], "four/one") })
		b.Logf("four tasks over one: %.2f", ratios)
	}
}
