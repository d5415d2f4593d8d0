package history

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// writerURL makes the test's binary a process that writes runs there until it is killed.
const writerURL = "NSOP_TEST_WRITER"

// write saves runs and says which it has saved; false where that is not what this process is for.
func write() bool {
	url := os.Getenv(writerURL)
	if url == "" {
		return false
	}
	h, err := New(url, 90*day, time.Now)
	for n := 0; err == nil; n++ {
		var run *Run
		if run, err = NewRun("bench", report(fmt.Sprintf("%d-%d", os.Getpid(), n), "redis", time.Now(), 1e6, "get/redigo", "set/redigo", "get/floor", "set/floor")); err != nil {
			break
		}
		run.Body = []byte(`{"run":"` + run.ID + `"}`)
		if err = h.Save(context.Background(), run); err == nil {
			fmt.Println(run.ID)
		}
	}
	fmt.Println("error:", err)
	return true
}

// testKilled: SIGKILL in the middle of a write loses at most the run that was being written, and leaves no part of it.
func testKilled(t *testing.T, fresh func(testing.TB) string) {
	url := fresh(t)
	h := open(t, url)
	confirmed := map[string]bool{}
	const kills = 5
	for i := range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerURL+"="+url)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if strings.HasPrefix(lines.Text(), "error:") {
				t.Error(lines.Text())
			}
			confirmed[lines.Text()] = true
			if n == 3 { // at another moment of a write each time
				time.AfterFunc(time.Duration(i)*300*time.Microsecond, func() { _ = cmd.Process.Kill() })
			}
		}
		_ = cmd.Wait() // it was killed
	}
	list, err := h.List(t.Context(), Filter{Bodies: true, Histograms: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(confirmed) < 4*kills || len(list) > len(confirmed)+kills {
		t.Errorf("%d runs, %d of them confirmed", len(list), len(confirmed))
	}
	for _, r := range list {
		delete(confirmed, r.ID)
		if len(r.Rows) != 4 || r.Rows[3].Histogram == "" || len(r.Body) == 0 || len(r.Targets) != 1 || r.Labels["egress"] != "direct" {
			t.Errorf("a part of a run: %+v", r)
		}
	}
	if len(confirmed) > 0 {
		t.Errorf("lost: %v", confirmed)
	}
	db, err := h.database(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"reports", "run_labels", "results", "histograms"} {
		var n int
		if err := db.QueryRow("SELECT count(*) FROM " + table + " WHERE run_id NOT IN (SELECT id FROM runs)").Scan(&n); err != nil || n > 0 {
			t.Errorf("%s: %v, %d rows of no run", table, err, n)
		}
	}
}
