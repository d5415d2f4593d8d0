package main

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nsop/bench/storetest"
)

// A redisAt is a redis-server that comes back at its address.
type redisAt struct {
	port string
	cmd  *exec.Cmd
}

func (r *redisAt) start(t *testing.T) {
	t.Helper()
	r.cmd = exec.Command("redis-server", "--port", r.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (r *redisAt) kill() {
	_ = r.cmd.Process.Kill() // it runs
	_ = r.cmd.Wait()         // it was killed
}

// TestChaos: while at random the store is killed and paused, the history is cut off and clients leave, the service stays up
// and every answer is right or a clear error; what was said to be stored is. NSOP_SOAK=1 goes on for ten minutes.
func TestChaos(t *testing.T) {
	length := 5 * time.Second
	if os.Getenv("NSOP_SOAK") != "" {
		length = 10 * time.Minute
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	_, port, _ := strings.Cut(unusedAddr(t), ":")
	redis := &redisAt{port: port}
	redis.start(t)
	defer func() { redis.kill() }()
	db := storetest.Postgres(t, storetest.PostgresOptions{})
	link := storetest.Proxy(t, db.Addr, storetest.ProxyOptions{})
	p := listen(t, build(t), "REDIS_ADDR=127.0.0.1:"+port, "HISTORY_URL="+strings.Replace(db.URL("postgres", "", "postgres"), db.Addr, link.Addr, 1))

	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() { // what breaks, and is mended a moment later
		for {
			var mend func()
			switch rnd.IntN(4) {
			case 0:
				redis.kill()
				mend = func() { redis.start(t) }
			case 1:
				_ = redis.cmd.Process.Signal(syscall.SIGSTOP) // it runs
				mend = func() { _ = redis.cmd.Process.Signal(syscall.SIGCONT) }
			case 2:
				link.Pause()
				mend = link.Resume
			default:
				mend = func() {}
			}
			select {
			case <-time.After(time.Duration(100+rnd.IntN(400)) * time.Millisecond):
				mend()
			case <-stop:
				mend()
				return
			}
			select {
			case <-time.After(time.Duration(rnd.IntN(400)) * time.Millisecond):
			case <-stop:
				return
			}
		}
	})
	var (
		statuses = map[int]int{}
		stored   []string
		left     = rand.New(rand.NewPCG(seed, 2))
	)
	for began := time.Now(); time.Since(began) < length; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if left.IntN(4) == 0 { // the client leaves in the middle
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Duration(left.IntN(150))*time.Millisecond)
		}
		status, run, saved := ask(t, ctx, p.base)
		cancel()
		statuses[status]++
		if status == http.StatusTooManyRequests {
			time.Sleep(20 * time.Millisecond)
		}
		if saved {
			stored = append(stored, run)
		}
	}
	close(stop)
	wait.Wait()
	t.Logf("answers by status, 0 being those that nobody waited for: %v", statuses)
	// Once all is mended it measures again, and has kept what it said it had.
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if status, _, saved := ask(t, t.Context(), p.base); status == http.StatusOK && saved {
			break
		}
		if time.Since(began) > patience {
			t.Fatal("it does not measure again")
		}
	}
	for _, run := range stored {
		if status, body := fetch(t, p.base+"/runs/"+run); status != http.StatusOK {
			t.Errorf("run %s, which was stored: %d %s", run, status, body)
		}
	}
	p.terminate(t)
}

// ask measures and checks the answer; status is 0 where ctx ended first. saved tells that the run is in the history.
func ask(t *testing.T, ctx context.Context, base string) (status int, run string, saved bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/bench/redis?client=redigo&benchtime=30ms&concurrency=2&timeout=200ms", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	var body []byte
	if err == nil {
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		if ctx.Err() == nil {
			t.Errorf("no answer: %v", err)
		}
		return 0, "", false
	}
	var a struct {
		Run, Title, Detail string
		Kind               string `json:"error_kind"`
		Results            []struct {
			Iterations int64
			Errors     int64
			NSPerOp    *float64         `json:"ns_per_op"`
			Kinds      map[string]int64 `json:"error_kinds"`
		}
		Warnings []string
	}
	if err := json.Unmarshal(body, &a); err != nil {
		t.Errorf("%v: %s", err, body)
		return resp.StatusCode, "", false
	}
	var clear bool
	switch resp.StatusCode {
	case http.StatusOK:
		clear = len(a.Results) == 2
	case http.StatusBadGateway:
		clear = a.Kind != "" && a.Title != "" && a.Detail != ""
	case http.StatusTooManyRequests: // one whose client has left is ending
		clear = a.Title == "busy"
	}
	for _, r := range a.Results {
		var failed int64
		for _, n := range r.Kinds {
			failed += n
		}
		clear = clear && failed == r.Errors && (r.NSPerOp != nil) == (r.Iterations > 0) && (resp.StatusCode != http.StatusOK || r.Iterations > 0)
	}
	if !clear {
		t.Errorf("status %d: %s", resp.StatusCode, body)
	}
	unkept := slices.ContainsFunc(a.Warnings, func(w string) bool { return strings.HasPrefix(w, "the history: ") })
	return resp.StatusCode, a.Run, a.Run != "" && !unkept
}
