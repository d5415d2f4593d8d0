package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"nsop/bench/storetest"
)

// examples are the lines of a page's code blocks that begin with a dollar, without it.
func examples(page string) (lines []string) {
	fenced := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			continue
		}
		if example, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok {
			lines = append(lines, example)
		}
	}
	return lines
}

// exampleKinds are the kinds of line there can be, read from the top; what is of none fails the test.
var exampleKinds = []struct{ name, form string }{
	{"serve", `^(\w+=\S+ )*(go run \.|nsop) &$`},
	{"run", `^(\w+=\S+ )*(go run \.|nsop)( |$)`},
	{"benchstat", `^(go run golang\.org/x/perf/cmd/)?benchstat `},
	{"make", `^make( [a-z]+)+$`},
	// What needs a project of the user's is only read by a shell.
	{"parse", `^gcloud `},
	{"parse", `^curl .*\$URL`},
	{"curl", `^curl .*localhost:8080/`},
}

func exampleKind(line string) string {
	for _, kind := range exampleKinds {
		if regexp.MustCompile(kind.form).MatchString(line) {
			return kind.name
		}
	}
	return ""
}

func TestExampleKinds(t *testing.T) {
	const page = "text\n    $ go run . /bench/redis\n    output\n$ not in a block\n```sh\n$ make test\n```\n    $ rm -rf /\n"
	lines := examples(page)
	if fmt.Sprint(lines) != "[go run . /bench/redis make test rm -rf /]" {
		t.Errorf("%q", lines)
	}
	for line, want := range map[string]string{
		"go run . /bench/redis": "run", "nsop '/bench/map'": "run", "REDIS_ADDR=h:1 go run . /bench/redis": "run", "go run . &": "serve",
		"go run . '/bench/map' > old.txt": "run", "go run golang.org/x/perf/cmd/benchstat a b": "benchstat", "make check test": "make",
		"gcloud run deploy nsop": "parse", `curl "$URL/bench/redis"`: "parse", "curl localhost:8080/": "curl", "rm -rf /": "", "go run ./x": "", "curl example.com": "",
	} {
		if got := exampleKind(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestReadme runs every example of the README: in a folder of the test's own, where the command is what go run would
// build, port 8080 a port that is free and the local Redis and Postgres are the test's.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	lines := examples(string(page))
	if len(lines) == 0 {
		t.Fatal("no examples")
	}
	var (
		bin   = build(t)
		redis = storetest.Redis(t)
		db    = storetest.Postgres(t, storetest.PostgresOptions{})
		dir   = t.TempDir()
		serve *process
		whole = t // the service lives longer than the example that starts it
	)
	shell := func(line string, args ...string) (string, error) {
		cmd := exec.Command("bash", append(args, "-c", line)...)
		cmd.Dir, cmd.Env = dir, cleanEnv()
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	here := func(line string) string {
		line = regexp.MustCompile(`(go run \.|\bnsop)( |$)`).ReplaceAllString(line, bin+"$2")
		line = regexp.MustCompile(`postgres://postgres@127\.0\.0\.1/\S+`).ReplaceAllString(line, db.URL("postgres", "", "postgres"))
		return strings.ReplaceAll(line, "127.0.0.1:6379", redis.Addr)
	}
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			kind := exampleKind(line)
			if out, err := shell(line, "-n"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			switch kind {
			case "serve":
				var env []string
				for word := range strings.FieldsSeq(here(line)) {
					if regexp.MustCompile(`^\w+=`).MatchString(word) {
						env = append(env, word)
					}
				}
				serve = listen(whole, bin, env...)
			case "run":
				if out, err := shell(here(line)); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			case "benchstat":
				stat := goBuild(t, "benchstat", "golang.org/x/perf/cmd/benchstat")
				out, err := shell(regexp.MustCompile(`^(go run \S+|benchstat)`).ReplaceAllString(line, stat))
				if err != nil || !strings.Contains(out, "ns/op") && !strings.Contains(out, "sec/op") || !strings.Contains(out, "vs base") {
					t.Errorf("%v: %s", err, out)
				}
			case "make":
				for target := range strings.FieldsSeq(strings.TrimPrefix(line, "make ")) {
					if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
						t.Errorf("the Makefile has no %s", target)
					}
				}
			case "curl":
				if serve == nil {
					t.Fatal("no example before it has started the service")
				}
				out, err := shell(strings.ReplaceAll(line, "localhost:8080", strings.TrimPrefix(serve.base, "http://")) + ` -sS -o answer -w '%{http_code}'`)
				ok := out == fmt.Sprint(http.StatusOK) || out == fmt.Sprint(http.StatusExpectationFailed) && strings.Contains(line, "assert=")
				if answer, rerr := os.ReadFile(dir + "/answer"); err != nil || rerr != nil || !ok || len(answer) == 0 {
					t.Errorf("%v, %v, status %s: %s", err, rerr, out, answer)
				}
			case "parse":
			default:
				t.Error("an example of a kind that this test does not know")
			}
		})
	}
	if serve != nil {
		serve.terminate(t)
	}
}
