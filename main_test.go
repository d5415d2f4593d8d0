package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"nsop/bench/storetest"
)

// TestMain keeps runs out of the history of whoever runs the tests.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	cache, err := os.MkdirTemp("", "nsop-test-")
	if err == nil {
		err = os.Setenv("XDG_CACHE_HOME", cache)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(cache)
	return m.Run()
}

// patience bounds what a test waits for: far above what it takes, so that a slow machine fails no test.
const patience = 30 * time.Second

// command performs run with an environment of its own.
func command(t testing.TB, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = run(t.Context(), args, func(name string) string { return env[name] }, &out, &errs)
	return out.String(), errs.String(), err
}

// TestWrongVariables: a wrong variable is one line that names it and what is allowed, and no password is in it.
func TestWrongVariables(t *testing.T) {
	const (
		secret = "hunter2"
		redis  = "redis://[user:password@]host[:port][/db]"
		forms  = redis + ", rediss://[user:password@]host[:port][/db][?ca=FILE|?ca_env=NAME], valkey://[user:password@]host[:port][/db], " +
			"valkeys://[user:password@]host[:port][/db][?ca=FILE|?ca_env=NAME], " +
			"postgres://user[:password]@host[:port][/database][?sslmode=disable|require|verify-ca|verify-full][&sslrootcert=FILE|&ca=FILE|&ca_env=NAME], " +
			"postgresql://, which is the same, memcached://host[:port][,host[:port]...], embedded:redis"
		pairs  = "TARGETS: want name=url pairs separated by white space, names of letters, digits, _ and -"
		limits = "want name=value with a name of benchtime, total, concurrency, size, keyspace, data, rows, body"
	)
	type env = map[string]string
	for _, test := range []struct {
		name string
		env  env
		want string
	}{
		{"port no number", env{"PORT": "http"}, `PORT: "http" is no port from 0 to 65535`},
		{"port too large", env{"PORT": "65536"}, `PORT: "65536" is no port from 0 to 65535`},
		{"port negative", env{"PORT": "-1"}, `PORT: "-1" is no port from 0 to 65535`},
		{"port with an address", env{"PORT": ":8080"}, `PORT: ":8080" is no port from 0 to 65535`},
		{"both forms", env{"REDIS_URL": "redis://a", "REDIS_ADDR": "b:1"}, "REDIS_ADDR: REDIS_URL is set too, want one of them"},
		{"address with a password", env{"REDIS_ADDR": "user:" + secret + "@host:1"}, "REDIS_ADDR: want host:port"},
		{"address that is a URL", env{"REDIS_ADDR": "redis://host:1"}, "REDIS_ADDR: want host:port"},
		{"address, port", env{"REDIS_ADDR": "host:99999"}, `REDIS_ADDR: target "redis": port "99999": want 1 to 65535 (allowed: ` + redis + ")"},
		{"no scheme", env{"REDIS_URL": "host:6379"}, `REDIS_URL: target "redis": no scheme that is known (allowed: ` + forms + ")"},
		{"scheme with a password", env{"REDIS_URL": "mysql://user:" + secret + "@host"}, `REDIS_URL: target "redis": unknown scheme "mysql" (allowed: ` + forms + ")"},
		{"password that is not encoded", env{"REDIS_URL": "redis://user:" + secret + "/@host"},
			`REDIS_URL: target "redis": /, ?, #, @ and % in a user name or password must be percent-encoded (allowed: ` + redis + ")"},
		{"port in a URL with a password", env{"REDIS_URL": "redis://user:" + secret + "@host:x"},
			`REDIS_URL: target "redis": the URL does not parse: check the port, and that the password is percent-encoded (allowed: ` + redis + ")"},
		{"two passwords", env{"REDIS_URL": "redis://:" + secret + "@host", "REDIS_PASSWORD": "other"},
			`REDIS_URL: target "redis": the URL and REDIS_PASSWORD hold different passwords: give one (allowed: ` + redis + ")"},
		{"two passwords, of TARGETS", env{"TARGETS": "redis=redis://:" + secret + "@host", "REDIS_PASSWORD": "other"},
			`TARGETS: target "redis": the URL and REDIS_PASSWORD hold different passwords: give one (allowed: ` + redis + ")"},
		{"targets, no pair", env{"TARGETS": "redis://user:" + secret + "@host"}, pairs},
		{"targets, no name", env{"TARGETS": "=redis://user:" + secret + "@host"}, pairs},
		{"targets, name", env{"TARGETS": "a/b=redis://user:" + secret + "@host"}, pairs},
		{"targets, the second", env{"TARGETS": "a=redis://host b=mysql://user:" + secret + "@host"},
			`TARGETS: target "b": unknown scheme "mysql" (allowed: ` + forms + ")"},
		{"targets, twice", env{"TARGETS": "a=redis://host a=redis://other"}, "TARGETS: there is a target a already"},
		{"targets, an in-process store's name", env{"TARGETS": "map=redis://host"}, "TARGETS: there is a target map already"},
		{"targets and the short form", env{"TARGETS": "redis=redis://host", "REDIS_ADDR": "host:1"}, "TARGETS: there is a target redis already"},
		{"limits, name", env{"LIMITS": "time=1s"}, "LIMITS: time=1s: " + limits},
		{"limits, no value", env{"LIMITS": "benchtime"}, "LIMITS: benchtime: want a positive duration such as 60s"},
		{"limits, duration", env{"LIMITS": "total=10"}, "LIMITS: total=10: want a positive duration such as 60s"},
		{"limits, number", env{"LIMITS": "rows=0"}, "LIMITS: rows=0: want a positive whole number"},
		{"limits, size", env{"LIMITS": "size=8Mb"}, "LIMITS: size=8Mb: want a size such as 1000, 1KB or 8MiB"},
		{"labels, no pair", env{"LABELS": "egress"}, "LABELS: egress: want name=value pairs separated by white space"},
		{"labels, name", env{"LABELS": "1a=b"}, `LABELS: label name "1a": want a letter, then letters, digits, _ . or -, at most 63`},
		{"auth", env{"AUTH": "basic"}, `AUTH: "basic" is none of none, iam, token, oidc`},
		{"auth in capitals", env{"AUTH": "None"}, `AUTH: "None" is none of none, iam, token, oidc`},
		{"OTLP, endpoint", env{"OTEL_EXPORTER_OTLP_ENDPOINT": secret + ":4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL such as http://localhost:4318 or https://telemetry.googleapis.com"},
		{"OTLP, endpoint of metrics", env{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://u:" + secret + "@h"}, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: want a URL such as http://localhost:4318 or https://telemetry.googleapis.com"},
		{"OTLP, protocol", env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: want http/protobuf, or nothing"},
		{"OTLP, headers", env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_EXPORTER_OTLP_HEADERS": secret}, "OTEL_EXPORTER_OTLP_HEADERS: want name=value pairs separated by commas, percent-encoded"},
		{"OTLP, attributes", env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_RESOURCE_ATTRIBUTES": secret}, "OTEL_RESOURCE_ATTRIBUTES: want name=value pairs of a resource separated by commas, percent-encoded"},
		{"history, scheme", env{"HISTORY_URL": "mysql://user:" + secret + "@host/db"}, "HISTORY_URL: want sqlite:PATH or postgres://..."},
		{"history, no path", env{"HISTORY_URL": "sqlite:"}, "HISTORY_URL: want sqlite:PATH with the path of a file"},
		{"history, port", env{"HISTORY_URL": "postgres://user:" + secret + "@host:x/db"},
			"HISTORY_URL: the URL does not parse: want postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE, the password percent-encoded"},
		{"history, how long", env{"HISTORY_KEEP": "90"}, `HISTORY_KEEP: "90" is no positive duration such as 90d or 12h`},
		{"history, nothing", env{"HISTORY_KEEP": "0d"}, `HISTORY_KEEP: "0d" is no positive duration such as 90d or 12h`},
		{"token missing", env{"AUTH": "token"}, "AUTH_TOKEN: AUTH=token wants a token here"},
		{"audience missing", env{"AUTH": "oidc", "AUTH_EMAILS": "a@b.c"}, "AUTH_AUDIENCE: AUTH=oidc wants the audiences of the ID tokens here, such as the service's URL"},
		{"emails missing", env{"AUTH": "oidc", "AUTH_AUDIENCE": "a", "AUTH_EMAILS": " ,"}, "AUTH_EMAILS: AUTH=oidc wants the e-mail addresses of who may call here"},
		{"no email", env{"AUTH": "oidc", "AUTH_AUDIENCE": "a", "AUTH_EMAILS": "a@b.c d"}, "AUTH_EMAILS: AUTH=oidc wants the e-mail addresses of who may call here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, args := range [][]string{nil, {"/targets"}} { // serving and one request
				stdout, stderr, err := command(t, test.env, args...)
				wrong := (*usageError)(nil)
				if !errors.As(err, &wrong) {
					t.Fatalf("%q: %v is no usage error", args, err)
				}
				if err.Error() != test.want {
					t.Errorf("%q\nwant\n%q", err, test.want)
				}
				if stdout != "" || stderr != "" {
					t.Errorf("printed %q and %q", stdout, stderr)
				}
				if text := err.Error(); strings.Contains(text, secret) || strings.Contains(text, "\n") {
					t.Errorf("a password or a line feed in %q", text)
				}
			}
		})
	}
}

// TestVariables: what a right configuration makes of the targets, limits and labels.
func TestVariables(t *testing.T) {
	type env = map[string]string
	for _, test := range []struct {
		name    string
		env     env
		targets string // name, kind, address, embedded
	}{
		{"nothing", env{}, "redis redis  true"},
		{"empty is unset", env{"PORT": "", "REDIS_URL": "", "REDIS_ADDR": "", "TARGETS": "", "LIMITS": "", "LABELS": "", "AUTH": "", "REDIS_PASSWORD": ""}, "redis redis  true"},
		{"empty beside the other form", env{"REDIS_URL": "", "REDIS_ADDR": "h:1"}, "redis redis h:1 false"},
		{"address", env{"REDIS_ADDR": "10.0.0.3:6379"}, "redis redis 10.0.0.3:6379 false"},
		{"address without a port", env{"REDIS_ADDR": "10.0.0.3"}, "redis redis 10.0.0.3:6379 false"},
		{"URL", env{"REDIS_URL": "redis://user:pw@h:1/2", "AUTH": "token", "AUTH_TOKEN": "t"}, "redis redis h:1 false"},
		{"targets", env{"TARGETS": " a=redis://h:1\n\tb=valkey://h:2 "}, "a redis h:1 false,b redis h:2 false"},
		{"all short forms", env{"REDIS_ADDR": "h:1", "MEMCACHED_URL": "memcached://h:2,i:3", "POSTGRES_URL": "postgres://u@h:4", "POSTGRES_PASSWORD": "pw"},
			"redis redis h:1 false,memcached memcached h:2,i:3 false,postgres postgres h:4 false"},
		{"all", env{"REDIS_ADDR": "h:1", "TARGETS": "e=embedded:redis"}, "redis redis h:1 false,e redis  true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, _, err := command(t, test.env, "/targets")
			if err != nil {
				t.Fatal(err)
			}
			var list struct {
				Targets []struct {
					Name, Kind, Address string
					Embedded            bool
				}
			}
			if err := json.Unmarshal([]byte(stdout), &list); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, target := range list.Targets {
				got = append(got, fmt.Sprint(target.Name, " ", target.Kind, " ", target.Address, " ", target.Embedded))
			}
			const always = ",map map  true,bbolt bbolt  true,buntdb buntdb  true,buntdb-disk buntdb  true,sqlite sqlite  true,sqlite-disk sqlite  true"
			if strings.Join(got, ",") != test.targets+always {
				t.Errorf("%q, want %q", got, test.targets+always)
			}
		})
	}
	t.Run("limits and labels", func(t *testing.T) {
		env := env{"LIMITS": "benchtime=1ms concurrency=2", "LABELS": "egress=direct-vpc team=a"}
		stdout, _, err := command(t, env, "/bench/map/get?benchtime=5x&label.team=b")
		if err != nil || !strings.Contains(stdout, `"egress": "direct-vpc"`) || !strings.Contains(stdout, `"team": "b"`) {
			t.Errorf("%v: %s", err, stdout)
		}
		for _, query := range []string{"benchtime=2ms", "benchtime=5x&concurrency=3"} {
			if _, _, err := command(t, env, "/bench/map/get?"+query); !errors.Is(err, exitCode(1)) {
				t.Errorf("%s: %v", query, err)
			}
		}
	})
	t.Run("AUTH is for the listener", func(t *testing.T) {
		for _, env := range []env{{"AUTH": "token", "AUTH_TOKEN": "t"}, {"GAE_ENV": "standard"}} {
			if _, _, err := command(t, env, "/targets"); err != nil {
				t.Errorf("%v: %v", env, err)
			}
		}
	})
}

// TestCommandLine: the grammar, the exit codes, and what a command line can hold and a request can't.
func TestCommandLine(t *testing.T) {
	const white = `"detail": "the path and its query hold white space or a control character: write a space as %20"`
	for _, test := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		err    string
	}{
		{"version", []string{"version"}, 0, "nsop " + buildVersion() + " go1.", ""},
		{"one request", []string{"/bench/map/get?benchtime=5x"}, 0, `"workload": "get"`, ""},
		{"format", []string{"/bench/map/get?benchtime=5x&format=benchfmt"}, 0, "BenchmarkGet/target=map/", ""},
		{"encoded path", []string{"/bench/map/set%2Cget?benchtime=5x"}, 0, `"workload": "set"`, ""},
		{"fragment", []string{"/bench/map/get?benchtime=5x#top"}, 0, `"iterations": 5`, ""},
		{"index", []string{"/"}, 0, "nsop '/bench/redis?format=text'", ""},
		{"health", []string{"/health"}, 0, `"ok"`, ""},
		{"trailing slash", []string{"/targets/"}, 0, `"targets"`, ""},
		{"not found", []string{"/nope"}, 1, `"detail": "no such path: /nope"`, ""},
		{"wrong parameter", []string{"/bench/map?size=0"}, 1, `"parameter": "size"`, ""},
		{"assertion", []string{"/bench/map/get?benchtime=5x&assert=iterations%3E5"}, 1, `"actual": "5"`, ""},
		{"space in the query", []string{"/bench/map/get?assert=p99 <3ms"}, 1, white, ""},
		{"space in the path", []string{"/bench/map/set, get"}, 1, white, ""},
		{"space behind", []string{"/bench/map "}, 1, white, ""},
		{"tab", []string{"/bench/map\tget"}, 1, white, ""},
		{"line feed", []string{"/bench/map\n"}, 1, white, ""},
		{"bad encoding in the path", []string{"/bench/m%zzap"}, 1, `"detail": "path: invalid URL escape \"%zz\""`, ""},
		{"bad encoding in the query", []string{"/bench/map?size=%zz"}, 1, `"detail": "query string: invalid URL escape \"%zz\""`, ""},
		{"semicolon", []string{"/bench/map?size=1;count=2"}, 1, `"detail": "query string: invalid semicolon separator in query"`, ""},
		{"two slashes", []string{"//bench/map"}, 1, `"status": 404`, ""},
		{"no leading slash", []string{"bench/map"}, 2, "", `arguments ["bench/map"]: want none, version, or one path such as /bench/redis`},
		{"URL", []string{"http://localhost/bench/map"}, 2, "", `arguments ["http://localhost/bench/map"]: want none, version, or one path such as /bench/redis`},
		{"empty", []string{""}, 2, "", `arguments [""]: want none, version, or one path such as /bench/redis`},
		{"two", []string{"/bench/map", "/health"}, 2, "", `arguments ["/bench/map" "/health"]: want none, version, or one path such as /bench/redis`},
		{"version of what", []string{"version", "x"}, 2, "", `arguments ["version" "x"]: want none, version, or one path such as /bench/redis`},
		{"flag", []string{"-h"}, 2, "", `arguments ["-h"]: want none, version, or one path such as /bench/redis`},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, err := command(t, nil, test.args...)
			code, wrong, exit := 0, (*usageError)(nil), exitCode(0)
			switch {
			case errors.As(err, &wrong):
				code = 2
			case errors.As(err, &exit):
				code = int(exit)
			case err != nil:
				t.Fatal(err)
			}
			if code != test.code || test.err != "" && err.Error() != test.err {
				t.Errorf("%v is exit code %d, want %d %q: %s", err, code, test.code, test.err, stdout)
			}
			if !strings.Contains(stdout, test.stdout) || test.stdout == "" && stdout != "" {
				t.Errorf("%q is not in %s", test.stdout, stdout)
			}
			if stderr != "" {
				t.Errorf("standard error, which is no terminal: %q", stderr)
			}
		})
	}
}

// TestCutOff: a command line that is cut off prints what was measured.
func TestCutOff(t *testing.T) {
	ctx, cut := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cut()
	var stdout bytes.Buffer
	err := run(ctx, []string{"/bench/map/get?benchtime=30s&warmup=0x"}, func(string) string { return "" }, &stdout, io.Discard)
	var p struct {
		Title   string
		Results []struct{ Iterations int64 }
	}
	if jerr := json.Unmarshal(stdout.Bytes(), &p); jerr != nil || !errors.Is(err, exitCode(1)) || p.Title != "shutting down" || len(p.Results) != 1 || p.Results[0].Iterations == 0 {
		t.Errorf("%v, %v: %s", err, jerr, &stdout)
	}
}

// TestNoPassword: passwords and tokens are in no output, whatever is asked and however it fails.
func TestNoPassword(t *testing.T) {
	const secret, token = "hunter2-Secret", "t0ken-Secret"
	real := storetest.Redis(t, "--requirepass", secret)
	open := storetest.Redis(t)
	// An old proxy that quotes what it does not understand, the password among it.
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					text := strings.Map(func(r rune) rune {
						if r < ' ' {
							return ' '
						}
						return r
					}, string(buf[:n]))
					fmt.Fprintf(c, "-ERR unknown command, with args beginning with: %s\r\n", text)
				}
			}()
		}
	}()
	env := map[string]string{"AUTH": "token", "AUTH_TOKEN": token, "REDIS_ADDR": real.Addr, "REDIS_PASSWORD": secret,
		"TARGETS": "wrong=redis://user:" + secret + "@" + real.Addr + " needless=redis://:" + secret + "@" + open.Addr +
			" closed=redis://user:" + secret + "@127.0.0.1:1 echo=redis://user:" + secret + "@" + echo.Addr().String() +
			" name=redis://user:" + secret + "@nowhere.invalid tls=rediss://user:" + secret + "@" + open.Addr}
	var all strings.Builder
	for _, path := range []string{"/", "/targets", "/openapi.json", "/ready", "/runs", "/runs/x", "/nope"} {
		stdout, stderr, err := command(t, env, path)
		fmt.Fprintln(&all, path, stdout, stderr, err)
	}
	for _, target := range []string{"redis", "wrong", "needless", "closed", "echo", "name", "tls"} {
		for _, format := range []string{"json", "text", "markdown", "csv", "benchfmt"} {
			stdout, stderr, err := command(t, env, "/bench/"+target+"/get?client=redigo,go-redis,rueidis,floor&benchtime=5x&warmup=0x&timeout=300ms&format="+format)
			fmt.Fprintln(&all, target, format, stdout, stderr, err)
			if target == "redis" && err != nil {
				t.Errorf("%s: %v: %s", target, err, stdout)
			}
		}
	}
	config, _, err := configure(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&all, "%+v", config.Targets)
	for line := range strings.Lines(all.String()) {
		if strings.Contains(line, secret) || strings.Contains(line, token) {
			t.Errorf("a secret is in the output: %s", line)
		}
	}
}

// build builds the command once for a test.
func build(t testing.TB, flags ...string) string {
	t.Helper()
	return goBuild(t, "nsop", ".", flags...)
}

func goBuild(t testing.TB, name, pkg string, flags ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	args := append(append([]string{"build", "-buildvcs=false", "-o", bin}, flags...), pkg)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %q: %v\n%s", args, err, out)
	}
	return bin
}

// cleanEnv is this process's environment without what would configure the service.
func cleanEnv(more ...string) []string {
	keep := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"PORT", "TARGETS", "REDIS_URL", "REDIS_ADDR", "REDIS_PASSWORD", "LIMITS", "LABELS", "AUTH", "AUTH_TOKEN", "AUTH_AUDIENCE", "AUTH_EMAILS",
			"HISTORY_URL", "HISTORY_KEEP", "NO_COLOR", "K_SERVICE", "GAE_ENV", "CLOUD_RUN_JOB", "GCE_METADATA_HOST", "GODEBUG"}, name)
	})
	return append(keep, more...)
}

// A process is the command that serves.
type process struct {
	cmd    *exec.Cmd
	base   string // URL
	stderr *bytes.Buffer
	ended  chan error
}

// listen starts bin and waits until it says that it listens.
func listen(t *testing.T, bin string, env ...string) *process {
	t.Helper()
	return listenAs(t, exec.Command(bin), env...)
}

// listenAs is listen for a command that ends up as the service.
func listenAs(t *testing.T, cmd *exec.Cmd, env ...string) *process {
	t.Helper()
	p := &process{cmd: cmd, stderr: &bytes.Buffer{}, ended: make(chan error, 1)}
	p.cmd.Env = cleanEnv(append([]string{"PORT=0"}, env...)...)
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%v after %q", err, first)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(p.stderr, lines) // ends with the process
	}()
	go func() {
		<-read
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // most have ended by then
	m := regexp.MustCompile(`^nsop .*: listening on port (\d+); try  curl localhost:(\d+)/\n$`).FindStringSubmatch(first)
	if m == nil || m[1] != m[2] {
		t.Fatalf("first line %q", first)
	}
	p.base = "http://127.0.0.1:" + m[1]
	return p
}

// terminate ends p as a platform does and checks that it takes it for no failure.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil || p.stderr.Len() > 0 {
			t.Errorf("ended with %v and %q", err, p.stderr)
		}
	case <-time.After(patience):
		t.Fatal("does not end")
	}
}

// TestProcess: what only a process of its own can show.
func TestProcess(t *testing.T) {
	bin := build(t)
	t.Run("exit codes", func(t *testing.T) {
		for _, test := range []struct {
			args           []string
			env            string
			code           int
			stdout, stderr string
		}{
			{[]string{"version"}, "", 0, `^nsop devel go1\.\S+\n$`, `^$`},
			{[]string{"/bench/map/get?benchtime=5x"}, "", 0, `(?s)^\{.*"results".*\}\n$`, `^$`},
			{[]string{"/nope"}, "", 1, `(?s)^\{.*"status": 404.*\}\n$`, `^$`},
			{[]string{"nope"}, "", 2, `^$`, `^nsop: arguments \["nope"\]: want .*\n$`},
			{nil, "PORT=x", 2, `^$`, `^nsop: PORT: "x" is no port from 0 to 65535\n$`},
			{[]string{"/targets"}, "AUTH=x", 2, `^$`, `^nsop: AUTH: "x" is none of none, iam, token, oidc\n$`},
		} {
			cmd := exec.Command(bin, test.args...)
			var stdout, stderr bytes.Buffer
			cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(test.env), &stdout, &stderr
			_ = cmd.Run() // the code says it
			if got := cmd.ProcessState.ExitCode(); got != test.code {
				t.Errorf("%q %s: exit code %d, want %d", test.args, test.env, got, test.code)
			}
			if !regexp.MustCompile(test.stdout).MatchString(stdout.String()) || !regexp.MustCompile(test.stderr).MatchString(stderr.String()) {
				t.Errorf("%q %s: printed %q and %q", test.args, test.env, &stdout, &stderr)
			}
		}
	})
	t.Run("port in use", func(t *testing.T) {
		p := listen(t, bin)
		cmd := exec.Command(bin)
		cmd.Env = cleanEnv("PORT=" + p.base[strings.LastIndexByte(p.base, ':')+1:])
		out, _ := cmd.CombinedOutput() // the code says it
		if cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), "nsop: listen: ") {
			t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
		}
		p.terminate(t)
	})
	// The caller has the answer before the process ends, which is 1.8 s at the latest, whatever the run had asked for.
	t.Run("SIGTERM in a run", func(t *testing.T) {
		p := listen(t, bin)
		type reply struct {
			status int
			body   []byte
			err    error
		}
		answered := make(chan reply, 1)
		go func() {
			for {
				resp, err := http.Get(p.base + "/bench/map/get?benchtime=30s")
				if err != nil {
					answered <- reply{err: err}
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusTooManyRequests { // the one below was there first
					answered <- reply{resp.StatusCode, body, err}
					return
				}
			}
		}()
		for began := time.Now(); ; {
			resp, err := http.Get(p.base + "/bench/map/get?benchtime=1x&warmup=0x")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusTooManyRequests {
				break
			}
			if time.Since(began) > patience {
				t.Fatal("no run begins")
			}
		}
		// Neither a connection on which nothing was asked nor one that is kept keeps the process.
		silent, err := net.Dial("tcp", strings.TrimPrefix(p.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		time.Sleep(200 * time.Millisecond) // for the run to have measured something; it asks for 30 s
		p.terminate(t)
		r := <-answered
		var problem struct {
			Title   string
			Results []struct{ Iterations int64 }
		}
		if r.err != nil || r.status != 503 || json.Unmarshal(r.body, &problem) != nil || problem.Title != "shutting down" || len(problem.Results) != 1 || problem.Results[0].Iterations == 0 {
			t.Errorf("%v, status %d: %s", r.err, r.status, r.body)
		}
	})
	t.Run("metadata is asked after the port listens", func(t *testing.T) {
		hangs, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
		if err != nil {
			t.Fatal(err)
		}
		defer hangs.Close()
		p := listen(t, bin, "K_SERVICE=nsop", "GCE_METADATA_HOST="+hangs.Addr().String())
		for path, want := range map[string]int{"/health": 200, "/healthz": 200, "/ready": 200, "/targets": 403, "/": 403, "/bench/map": 403, "/_ah/warmup": 200} {
			resp, err := http.Get(p.base + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s: status %d, want %d", path, resp.StatusCode, want)
			}
		}
		p.terminate(t)
	})
	t.Run("interrupted on a terminal", func(t *testing.T) {
		out, code := onTerminal(t, bin, "/bench/map/get?benchtime=30s", true)
		if code != 1 || !strings.Contains(out, "0 of 1 rows") || !strings.Contains(screen(out), "nsop: shutting down\r\n\r\nmeasured before that:") || strings.Contains(screen(out), "rows") {
			t.Errorf("exit code %d: %q", code, out)
		}
	})
	t.Run("on a terminal", func(t *testing.T) {
		out, code := onTerminal(t, bin, "/bench/map?benchtime=300ms", false)
		if code != 0 || !strings.Contains(out, "of 2 rows") || !strings.Contains(out, "\x1b[1mmap\x1b[0m") || strings.Contains(screen(out), "of 2 rows") || !strings.HasPrefix(screen(out), "\x1b[1mmap") {
			t.Errorf("exit code %d: %q", code, out)
		}
		out, code = onTerminal(t, bin, "/bench/map?benchtime=5x&client=nope", false)
		if want := "nsop: client: map has no client \"nope\"\r\n\r\n  allowed  map\r\n"; code != 1 || out != want {
			t.Errorf("exit code %d: %q, want %q", code, out, want)
		}
		t.Setenv("NO_COLOR", "1")
		out, _ = onTerminal(t, bin, "/bench/map?benchtime=50ms", false)
		if strings.Contains(strings.ReplaceAll(out, "\x1b[2K", ""), "\x1b[") || !strings.Contains(out, "ns/op") {
			t.Errorf("%q", out)
		}
	})
}

// onTerminal runs bin with path on a terminal of its own and returns what it wrote there. With interrupt it gets
// a Ctrl-C soon after the progress bar has shown.
func onTerminal(t *testing.T, bin, path string, interrupt bool) (string, int) {
	t.Helper()
	cmd := exec.Command("script", "--quiet", "--return", "--flush", "--command", "exec "+bin+" '"+path+"'", "/dev/null")
	cmd.Env = cleanEnv("NO_COLOR="+os.Getenv("NO_COLOR"), "SHELL=/bin/sh")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("this test needs script, of Debian's bsdutils: %v", err)
	}
	var all bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := pipe.Read(buf)
		all.Write(buf[:n])
		if interrupt && strings.Contains(all.String(), "rows") {
			// The command is script's only child and leads a group of its own.
			children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
			if pid, err := strconv.Atoi(strings.TrimSpace(string(children))); err == nil {
				time.Sleep(200 * time.Millisecond)    // for the run to have measured something
				_ = syscall.Kill(pid, syscall.SIGINT) // its exit code says whether it arrived
			}
			interrupt = false
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait() // the code says it
	return all.String(), cmd.ProcessState.ExitCode()
}

// screen is what is left of out on a terminal: of a line that was erased, what follows.
func screen(out string) string {
	if i := strings.LastIndex(out, "\r\x1b[2K"); i >= 0 {
		return out[i+len("\r\x1b[2K"):]
	}
	return out
}
