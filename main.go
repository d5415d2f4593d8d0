// Command nsop measures what one operation on a data store costs, from inside a serverless runtime.
//
//	nsop                    serve HTTP on $PORT until SIGTERM
//	nsop /bench/redis/get   perform that one request and print its body
//	nsop version            print the version
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/bench/otlp"
	"nsop/bench/store"
	"nsop/bench/vantage"
	"nsop/gcp"
	"nsop/handlers"
)

// version of a release, set by the linker.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	if code := (exitCode)(0); errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nsop:", err)
		if wrong := (*usageError)(nil); errors.As(err, &wrong) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// exitCode ends the process without a further word.
type exitCode int

func (c exitCode) Error() string { return "exit status " + strconv.Itoa(int(c)) }

// usageError is a wrong variable or argument.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// run does what args say and returns when it is done or ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) (err error) {
	if len(args) == 1 && args[0] == "version" {
		_, err := fmt.Fprintln(stdout, "nsop", buildVersion(), runtime.Version())
		return err
	}
	if len(args) > 1 || len(args) == 1 && !strings.HasPrefix(args[0], "/") {
		return &usageError{fmt.Sprintf("arguments %q: want none, version, or one path such as /bench/redis", args)}
	}
	bounded, cancel := context.WithTimeout(ctx, secretsTimeout)
	defer cancel()
	secrets := newSecrets(bounded, getenv)
	config, port, err := configure(secrets.getenv)
	if err := secrets.explain(err); err != nil {
		return err
	}
	defer func() {
		if cerr := config.History.Close(); cerr != nil && err == nil {
			err = fmt.Errorf("close the history: %w", cerr)
		}
	}()
	if len(args) == 1 {
		config.Auth = handlers.Auth{Mode: "none"}
		return request(ctx, config, args[0], stdout, stderr)
	}
	for _, version := range secrets.versions { // of two instances one may have started before the latest version came
		fmt.Fprintln(stderr, "nsop:", version)
	}
	return serve(ctx, config, port, stderr)
}

// shutdownTime is what the answer of a run that is cut off has, below the 2 s that App Engine gives.
const shutdownTime = 1800 * time.Millisecond

// serve answers requests until ctx ends, then lets the run that is going on answer what it had measured.
func serve(ctx context.Context, config handlers.Config, port string, stderr io.Writer) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	config.Log = stderr
	service := handlers.New(config)
	server := &http.Server{Handler: service, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	fmt.Fprintf(stderr, "nsop %s: listening on port %d; try  curl localhost:%[2]d/\n", config.Version, listener.Addr().(*net.TCPAddr).Port)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	service.Drain()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if server.Shutdown(end) != nil {
		// What is open still has asked for nothing, or does not read its answer.
		server.Close()
	}
	<-ended
	return nil
}

// request performs one request without a listener: body on stdout, progress on stderr where that is a terminal.
func request(ctx context.Context, config handlers.Config, path string, stdout, stderr io.Writer) (err error) {
	answer := &response{header: http.Header{}, status: http.StatusOK, body: stdout}
	config.Terminal = isTerminal(stdout)
	if isTerminal(stderr) {
		config.Observe, answer.before = progressOn(stderr)
	}
	service := handlers.New(config)
	stop := context.AfterFunc(ctx, service.Drain)
	defer stop()
	defer func() {
		if r := recover(); r == http.ErrAbortHandler { // a list that breaks off
			err = exitCode(1)
		} else if r != nil {
			panic(r)
		}
	}()
	service.ServeHTTP(answer, newRequest(ctx, path, config.Terminal))
	if answer.err != nil {
		return fmt.Errorf("write: %w", answer.err)
	}
	if answer.status/100 != 2 {
		return exitCode(1)
	}
	return nil
}

// newRequest is what the server would read if a client had sent target, a path with its query. What no client could send
// reaches the handler as it is, and is refused there.
func newRequest(ctx context.Context, target string, terminal bool) *http.Request {
	target, _, _ = strings.Cut(target, "#") // no client sends a fragment
	u, err := url.ParseRequestURI(target)
	if err != nil {
		u = &url.URL{Path: target}
	}
	// The run is ended by Drain and not by ctx, so that what was measured until then is printed.
	r := (&http.Request{Method: http.MethodGet, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: http.NoBody, RequestURI: target}).WithContext(context.WithoutCancel(ctx))
	if terminal {
		r.Header.Set("Accept", "text/plain")
	}
	return r
}

// A response passes a body on and keeps the status.
type response struct {
	header http.Header
	status int
	body   io.Writer
	before func() // is called before the body begins, may be nil
	err    error
}

func (r *response) Header() http.Header    { return r.header }
func (r *response) WriteHeader(status int) { r.status = status }
func (r *response) Write(b []byte) (int, error) {
	if r.before != nil {
		r.before()
		r.before = nil
	}
	n, err := r.body.Write(b)
	r.err = cmp.Or(r.err, err)
	return n, err
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progressOn shows a run's progress on a terminal; clear takes it away again.
func progressOn(w io.Writer) (observe func(bench.Progress), clear func()) {
	const steps = 1000
	bar := progressbar.NewOptions(steps, progressbar.OptionSetWriter(w), progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100*time.Millisecond))
	shown := false
	observe = func(p bench.Progress) {
		shown = true
		bar.Describe(fmt.Sprintf("%d of %d rows", p.Row, p.Rows))
		_ = bar.Set(int(p.Fraction * steps)) // a progress bar that can't be drawn is not worth a word
	}
	clear = func() {
		if shown {
			// The bar's own Clear leaves a bar that is full; with the line goes what the terminal echoed of a Ctrl-C.
			fmt.Fprint(w, "\r\x1b[2K")
		}
	}
	return observe, clear
}

// configure reads the environment. Its errors are *usageError and name the variable.
func configure(getenv func(string) string) (handlers.Config, string, error) {
	var (
		config  = handlers.Config{Started: time.Now(), Version: buildVersion(), NoColor: getenv("NO_COLOR") != ""}
		port    = cmp.Or(getenv("PORT"), "8080")
		invalid = func(variable string, err error) error { return &usageError{variable + ": " + err.Error()} }
		err     error
	)
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return config, "", invalid("PORT", fmt.Errorf("%q is no port from 0 to 65535", port))
	} else {
		port = strconv.FormatUint(n, 10)
	}
	config.Vantage = vantage.New(getenv, config.Started, time.Now)
	root := os.DirFS("/")
	config.Meter = bench.Meter{CPU: vantage.CPUTime, Throttled: func() (time.Duration, bool) { return vantage.Throttled(root) },
		Cores: func() float64 { return vantage.Cores(root) }}
	if config.Limits, err = bench.DefaultLimits(config.Vantage.Serverless()).Override(getenv("LIMITS")); err != nil {
		return config, "", invalid("LIMITS", err)
	}
	if config.Labels, err = bench.ParseLabels(getenv("LABELS")); err != nil {
		return config, "", invalid("LABELS", err)
	}
	if config.Auth, err = configureAuth(getenv, config.Vantage.Serverless()); err != nil {
		return config, "", err
	}
	if config.Targets, err = configureTargets(getenv); err != nil {
		return config, "", err
	}
	if config.Push, err = configurePush(getenv, config.Version); err != nil {
		return config, "", err
	}
	config.History, config.Dies, err = configureHistory(getenv, config.Vantage.Serverless() != "")
	return config, port, err
}

// configurePush returns what sends a probe's figures to a receiver of OpenTelemetry's protocol, nil where none is named. The
// variables are those of its specification.
func configurePush(getenv func(string) string, version string) (func(context.Context, *bench.Report, bool) error, error) {
	variable := "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	endpoint := getenv(variable)
	if base := getenv("OTEL_EXPORTER_OTLP_ENDPOINT"); endpoint == "" && base != "" {
		variable, endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT", strings.TrimSuffix(base, "/")+"/v1/metrics"
	}
	if endpoint == "" {
		return nil, nil
	}
	if protocol := getenv("OTEL_EXPORTER_OTLP_PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, &usageError{"OTEL_EXPORTER_OTLP_PROTOCOL: want http/protobuf, or nothing"}
	}
	e, err := otlp.New(otlp.Options{Endpoint: endpoint, Headers: getenv("OTEL_EXPORTER_OTLP_HEADERS"), Attributes: getenv("OTEL_RESOURCE_ATTRIBUTES"),
		Service: getenv("OTEL_SERVICE_NAME"), Version: version, Token: gcp.NewTokens().Token})
	switch {
	case errors.Is(err, otlp.ErrHeaders):
		variable = "OTEL_EXPORTER_OTLP_HEADERS"
	case errors.Is(err, otlp.ErrAttributes):
		variable = "OTEL_RESOURCE_ATTRIBUTES"
	}
	if err != nil {
		return nil, &usageError{variable + ": " + err.Error()}
	}
	return e.Push, nil
}

// configureHistory makes the history; dies tells that it ends with this instance.
func configureHistory(getenv func(string) string, serverless bool) (h *history.History, dies bool, err error) {
	const keep = 90 * 24 * time.Hour
	age := time.Duration(keep)
	if text := getenv("HISTORY_KEEP"); text != "" {
		if age, err = history.ParseAge(text); err != nil {
			return nil, false, &usageError{"HISTORY_KEEP: " + err.Error()}
		}
	}
	rawURL := getenv("HISTORY_URL")
	if rawURL == "" {
		// A serverless runtime has a folder for files too, which is as short-lived and counts against the memory.
		folder, err := os.UserCacheDir()
		if dies = serverless || err != nil; dies {
			folder = os.TempDir()
		}
		rawURL = "sqlite:" + filepath.Join(folder, "nsop", "history.db")
	}
	if h, err = history.New(rawURL, age, time.Now); err != nil {
		return nil, false, &usageError{"HISTORY_URL: " + err.Error()}
	}
	return h, dies, nil
}

func configureAuth(getenv func(string) string, platform string) (handlers.Auth, error) {
	auth := handlers.Auth{Mode: getenv("AUTH"), Token: getenv("AUTH_TOKEN"), Platform: platform, AppEngine: platform == "app-engine"}
	switch {
	case !slices.Contains([]string{"", "none", "iam", "token", "oidc"}, auth.Mode):
		return auth, &usageError{fmt.Sprintf("AUTH: %q is none of none, iam, token, oidc", auth.Mode)}
	case auth.Mode == "token" && auth.Token == "":
		return auth, &usageError{"AUTH_TOKEN: AUTH=token wants a token here"}
	case auth.Mode == "oidc":
		audiences, emails := list(getenv("AUTH_AUDIENCE")), list(getenv("AUTH_EMAILS"))
		if len(audiences) == 0 {
			return auth, &usageError{"AUTH_AUDIENCE: AUTH=oidc wants the audiences of the ID tokens here, such as the service's URL"}
		}
		if len(emails) == 0 || slices.ContainsFunc(emails, func(e string) bool { return !strings.Contains(e, "@") }) {
			return auth, &usageError{"AUTH_EMAILS: AUTH=oidc wants the e-mail addresses of who may call here"}
		}
		auth.OIDC = &handlers.IDTokens{Audiences: audiences, Emails: emails, KeysURL: handlers.GoogleKeys, Now: time.Now}
	}
	return auth, nil
}

// list is what a variable holds, separated by white space or commas.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// configureTargets makes the targets: what TARGETS and the short forms name, then what is always there.
func configureTargets(getenv func(string) string) ([]*bench.Target, error) {
	var targets []*bench.Target
	always := store.InProcess()
	add := func(variable, name, rawURL, password string) error {
		if slices.ContainsFunc(slices.Concat(targets, always), func(t *bench.Target) bool { return t.Name == name }) {
			return &usageError{fmt.Sprintf("%s: there is a target %s already", variable, name)}
		}
		t, err := store.Parse(name, rawURL, password, getenv)
		if err != nil {
			return &usageError{fmt.Sprintf("%s: %v", variable, err)}
		}
		targets = append(targets, t)
		return nil
	}
	redis, address := getenv("REDIS_URL"), getenv("REDIS_ADDR")
	if redis != "" && address != "" {
		return nil, &usageError{"REDIS_ADDR: REDIS_URL is set too, want one of them"}
	}
	if redis != "" {
		if err := add("REDIS_URL", "redis", redis, getenv("REDIS_PASSWORD")); err != nil {
			return nil, err
		}
	}
	if address != "" {
		if strings.Contains(address, "/") || strings.Contains(address, "@") {
			return nil, &usageError{"REDIS_ADDR: want host:port"}
		}
		if err := add("REDIS_ADDR", "redis", "redis://"+address, getenv("REDIS_PASSWORD")); err != nil {
			return nil, err
		}
	}
	if memcached := getenv("MEMCACHED_URL"); memcached != "" {
		if err := add("MEMCACHED_URL", "memcached", memcached, ""); err != nil {
			return nil, err
		}
	}
	if postgres := getenv("POSTGRES_URL"); postgres != "" {
		if err := add("POSTGRES_URL", "postgres", postgres, getenv("POSTGRES_PASSWORD")); err != nil {
			return nil, err
		}
	}
	for pair := range strings.FieldsSeq(getenv("TARGETS")) {
		name, rawURL, ok := strings.Cut(pair, "=")
		if !ok || !targetName(name) {
			// The pair may hold a password, so it is not repeated.
			return nil, &usageError{"TARGETS: want name=url pairs separated by white space, names of letters, digits, _ and -"}
		}
		password := ""
		switch name { // whose short forms have a variable for it
		case "redis":
			password = getenv("REDIS_PASSWORD")
		case "postgres":
			password = getenv("POSTGRES_PASSWORD")
		}
		if err := add("TARGETS", name, rawURL, password); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(targets, func(t *bench.Target) bool { return t.Kind == "redis" }) {
		if err := add("TARGETS", "redis", "embedded:redis", ""); err != nil {
			return nil, err
		}
	}
	return append(targets, always...), nil
}

func targetName(name string) bool {
	return name != "" && len(name) <= 63 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// buildVersion is the release and the commit it was built from.
func buildVersion() string {
	var b bytes.Buffer
	b.WriteString(version)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				fmt.Fprintf(&b, " (%s)", s.Value[:12])
			}
		}
	}
	return b.String()
}
