package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"nsop/bench/storetest"
	"nsop/handlers"
)

// TestImport: what redis-benchmark and nsop itself print is stored and compares like any other run; of a broken file
// nothing is, and the files before it stay.
func TestImport(t *testing.T) {
	var (
		redis = storetest.Redis(t)
		dir   = t.TempDir()
		env   = map[string]string{"HISTORY_URL": "sqlite:" + filepath.Join(dir, "history.db")}
	)
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	type list struct {
		Runs []struct {
			Run, Kind string
			Results   []struct{ Workload, Client string }
		}
	}
	read := func(text string) (l list) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return l
	}
	csv, err := exec.Command("redis-benchmark", "-p", strconv.Itoa(redis.Port), "--csv", "-n", "500", "-t", "set,get").Output()
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := command(t, map[string]string{"HISTORY_URL": "sqlite:" + filepath.Join(dir, "elsewhere.db")}, "/bench/map/get?benchtime=50x&format=json")
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Run string }
	if err := json.Unmarshal([]byte(own), &report); err != nil {
		t.Fatal(err)
	}
	ours, theirs := write("own.json", own), write("redis.csv", string(csv))

	stdout, _, err := command(t, env, "import", theirs, ours)
	if err != nil {
		t.Fatal(err)
	}
	l := read(stdout)
	if len(l.Runs) != 2 || l.Runs[0].Kind != "import" || len(l.Runs[0].Results) != 2 || l.Runs[0].Results[1].Workload != "get" || l.Runs[1].Run != report.Run {
		t.Errorf("stored %s", stdout)
	}
	kept, _, err := command(t, env, "/runs/"+l.Runs[0].Run)
	if err != nil || !strings.Contains(kept, `"imported": "redis-benchmark"`) {
		t.Errorf("%v: %s", err, kept)
	}
	if stdout, _, err := command(t, env, "/compare?a="+l.Runs[0].Run+"&b="+report.Run); err != nil {
		t.Errorf("%v: %s", err, stdout)
	}

	broken := write("broken.csv", strings.Replace(string(csv), `"GET","`, `"GET","x`, 1))
	before, _, err := command(t, env, "/runs?format=ndjson")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		files []string
		runs  int // stored before the file that ends it
		err   string
	}{
		{"broken", []string{broken}, 0, "import " + broken + ": line 3: "},
		{"broken after a good one", []string{theirs, broken, ours}, 1, "import " + broken + ": line 3: "},
		{"unknown", []string{write("unknown", "hello\n")}, 0, "import " + filepath.Join(dir, "unknown") + ": line 1: no known format: "},
		{"empty", []string{write("empty", "")}, 0, "import " + filepath.Join(dir, "empty") + ": line 1: no known format: "},
		{"there already", []string{ours}, 0, "import " + ours + ": run " + report.Run + " is in the history already"},
		{"missing", []string{filepath.Join(dir, "nope")}, 0, "import " + filepath.Join(dir, "nope") + ": no such file or directory"},
		{"a folder", []string{dir}, 0, "import " + dir + ": is a directory"},
		{"too large", []string{write("large", strings.Repeat("x", handlers.ImportLimit+1))}, 0, "import " + filepath.Join(dir, "large") + ": it is over 16777216 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, _, err := command(t, env, append([]string{"import"}, test.files...)...)
			if err == nil || !strings.HasPrefix(err.Error(), test.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %s", err, test.err)
			}
			if wrong := (*usageError)(nil); errors.As(err, &wrong) {
				t.Error("exit code 2")
			}
			if test.runs == 0 && stdout != "" || test.runs > 0 && len(read(stdout).Runs) != test.runs {
				t.Errorf("printed %s", stdout)
			}
		})
	}
	after, _, err := command(t, env, "/runs?format=ndjson")
	if err != nil || strings.Count(after, "\n") != strings.Count(before, "\n")+1 {
		t.Errorf("%v: %d runs before, %d after", err, strings.Count(before, "\n"), strings.Count(after, "\n"))
	}
}
