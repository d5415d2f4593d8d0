package vantage

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	gvisorVersion = "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n"
	linuxVersion  = "Linux version 6.8.0-139-generic (buildd@lcy02) (gcc 13.3.0) #139-Ubuntu SMP PREEMPT_DYNAMIC\n"
)

// A metadataServer answers as the one of Cloud Run and App Engine does, and counts.
type metadataServer struct {
	mu     sync.Mutex
	counts map[string]int
}

func (m *metadataServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.counts[r.URL.Path]++
	m.mu.Unlock()
	value, ok := map[string]string{
		"/computeMetadata/v1/project/project-id": "p",
		"/computeMetadata/v1/instance/region":    "projects/123456/regions/asia-northeast1",
		"/computeMetadata/v1/instance/id":        "0a1b2c\n",
	}[r.URL.Path]
	switch {
	case r.Header.Get("Metadata-Flavor") != "Google":
		w.WriteHeader(http.StatusForbidden)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, value)
	}
}

// startMetadata starts a server for h and returns its address.
func startMetadata(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// newTest returns a vantage that started 81 s ago and sees only env and root.
func newTest(env map[string]string, root fs.FS) *Vantage {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	v := New(func(name string) string { return env[name] }, start, func() time.Time { return start.Add(81 * time.Second) })
	v.root = root
	return v
}

// dialTo counts dials and the addresses asked for, and connects to address in their place.
func dialTo(address string, asked *sync.Map) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, want string) (net.Conn, error) {
		asked.Store(want, true)
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
}

func keys(m *sync.Map) []string {
	var all []string
	m.Range(func(k, _ any) bool { all = append(all, k.(string)); return true })
	return all
}

func TestInfo(t *testing.T) {
	const metadataIP = "169.254.169.254:80"
	tests := []struct {
		name       string
		env        map[string]string
		root       fstest.MapFS
		host       bool // GCE_METADATA_HOST is set
		want       Info
		asked      string // address dialled
		lookups    []string
		serverless string
	}{
		{
			name: "cloud run",
			env:  map[string]string{"K_SERVICE": "nsop", "K_REVISION": "nsop-00007", "K_CONFIGURATION": "nsop", "GOOGLE_CLOUD_PROJECT": "billing"},
			root: fstest.MapFS{
				"proc/version":                {Data: []byte(gvisorVersion)},
				"sys/fs/cgroup/cpu.max":       {Data: []byte("100000 100000\n")},
				"sys/fs/cgroup/memory.max":    {Data: []byte("536870912\n")},
				"proc/self/cgroup":            {Data: []byte("0::/\n")},
				"sys/fs/cgroup/cpu.stat":      {Data: []byte("usage_usec 1\nthrottled_usec 2\n")},
				"sys/fs/cgroup/unrelated.max": {Data: []byte("1\n")},
			},
			want: Info{Platform: "cloud-run", Project: "p", Region: "asia-northeast1", Service: "nsop", Revision: "nsop-00007",
				Instance: "0a1b2c", Sandbox: "gvisor", CPUQuota: new(1.0), MemoryLimitBytes: new(int64(536870912))},
			asked: metadataIP, lookups: []string{"instance/id", "instance/region", "project/project-id"}, serverless: "cloud-run",
		},
		{
			name: "cloud run job",
			env:  map[string]string{"CLOUD_RUN_JOB": "nsop-job", "CLOUD_RUN_EXECUTION": "nsop-job-x7k2p", "CLOUD_RUN_TASK_INDEX": "0"},
			want: Info{Platform: "cloud-run-job", Project: "p", Region: "asia-northeast1", Service: "nsop-job",
				Revision: "nsop-job-x7k2p", Instance: "0a1b2c", Sandbox: "none"},
			asked: metadataIP, lookups: []string{"instance/id", "instance/region", "project/project-id"}, serverless: "cloud-run-job",
		},
		{
			name: "app engine",
			env: map[string]string{"GAE_ENV": "standard", "GAE_APPLICATION": "e~proj", "GAE_SERVICE": "default", "GAE_VERSION": "v1",
				"GAE_INSTANCE": "00c61b", "GAE_MEMORY_MB": "384", "GOOGLE_CLOUD_PROJECT": "proj"},
			root: fstest.MapFS{"proc/version": {Data: []byte("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n")}},
			want: Info{Platform: "app-engine", Project: "proj", Region: "asia-northeast1", Service: "default", Revision: "v1",
				Instance: "00c61b", Sandbox: "gvisor", MemoryLimitBytes: new(int64(384 << 20))},
			asked: metadataIP, lookups: []string{"instance/region"}, serverless: "app-engine",
		},
		{
			name: "app engine, the cgroup speaks",
			env:  map[string]string{"GAE_ENV": "standard", "GAE_MEMORY_MB": "384", "GAE_INSTANCE": "i", "GOOGLE_CLOUD_PROJECT": "proj"},
			root: fstest.MapFS{"sys/fs/cgroup/memory.max": {Data: []byte("1000")}},
			want: Info{Platform: "app-engine", Project: "proj", Region: "asia-northeast1", Instance: "i", Sandbox: "none",
				MemoryLimitBytes: new(int64(1000))},
			asked: metadataIP, lookups: []string{"instance/region"}, serverless: "app-engine",
		},
		{
			name: "app engine flexible is not standard",
			env:  map[string]string{"GAE_ENV": "flex"},
			want: Info{Platform: "local", Sandbox: "none"},
		},
		{
			name: "kubernetes",
			env:  map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
			root: fstest.MapFS{"proc/version": {Data: []byte(linuxVersion)}},
			want: Info{Platform: "kubernetes", Sandbox: "none"},
		},
		{
			name: "local",
			env:  map[string]string{"GOOGLE_CLOUD_PROJECT": "elsewhere", "GAE_MEMORY_MB": "none"},
			root: fstest.MapFS{"proc/version": {Data: []byte(linuxVersion)}},
			want: Info{Platform: "local", Sandbox: "none"},
		},
		{
			name: "local with a metadata server", host: true,
			want:    Info{Platform: "local", Project: "p", Region: "asia-northeast1", Instance: "0a1b2c", Sandbox: "none"},
			lookups: []string{"instance/id", "instance/region", "project/project-id"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := &metadataServer{counts: map[string]int{}}
			address := startMetadata(t, server)
			t.Setenv("GCE_METADATA_HOST", "")
			if tt.host {
				t.Setenv("GCE_METADATA_HOST", address)
				tt.asked = address
			}
			v := newTest(tt.env, tt.root)
			var asked sync.Map
			v.dial = dialTo(address, &asked)

			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a client that has gone away costs the later ones nothing
			got := v.Info(ctx)
			tt.want.InstanceAge = 81 * time.Second
			tt.want.Go = runtime.Version()
			tt.want.CPUs = runtime.GOMAXPROCS(0)
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Info:\n got %+v\nwant %+v", got, tt.want)
			}
			if got := v.Serverless(); got != tt.serverless {
				t.Errorf("Serverless = %q, want %q", got, tt.serverless)
			}
			if got := strings.Join(keys(&asked), " "); got != tt.asked {
				t.Errorf("dialled %q, want %q", got, tt.asked)
			}
			var lookups []string
			for path, n := range server.counts {
				lookups = append(lookups, strings.TrimPrefix(path, "/computeMetadata/v1/"))
				if n != 1 {
					t.Errorf("%s asked %d times", path, n)
				}
			}
			slices.Sort(lookups)
			if !slices.Equal(lookups, tt.lookups) {
				t.Errorf("looked up %q, want %q", lookups, tt.lookups)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	tests := []struct {
		name string
		info Info
		want string
	}{
		{
			name: "full",
			info: Info{Platform: "cloud-run", Project: "p", Region: "asia-northeast1", Service: "nsop", Revision: "nsop-00007",
				Instance: "0a1b", InstanceAge: 81 * time.Second, Sandbox: "gvisor", Go: "go1.26.8", CPUs: 1, CPUQuota: new(1.0),
				MemoryLimitBytes: new(int64(536870912)), Warnings: []string{"w"}},
			want: `{"platform":"cloud-run","project":"p","region":"asia-northeast1","service":"nsop","revision":"nsop-00007",` +
				`"instance":"0a1b","instance_age_ns":81000000000,"cold":false,"sandbox":"gvisor","go":"go1.26.8","cpus":1,` +
				`"cpu_quota":1,"memory_limit_bytes":536870912}`,
		},
		{
			name: "unknown",
			info: Info{Platform: "local"},
			want: `{"platform":"local","instance_age_ns":0,"cold":false,"sandbox":"","go":"","cpus":0,"cpu_quota":null,"memory_limit_bytes":null}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(tt.info)
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v\nwant %s", got, err, tt.want)
			}
		})
	}
}

func TestConcurrentInfo(t *testing.T) {
	server := &metadataServer{counts: map[string]int{}}
	t.Setenv("GCE_METADATA_HOST", startMetadata(t, server))
	v := newTest(map[string]string{"K_SERVICE": "nsop"}, fstest.MapFS{})

	const callers = 100
	var wg sync.WaitGroup
	var cold atomic.Int32
	for range callers {
		wg.Go(func() {
			if v.Cold() {
				cold.Add(1)
			}
			if got := v.Info(t.Context()); got.Region != "asia-northeast1" || got.Warnings != nil {
				t.Errorf("Info = %+v", got)
			}
		})
	}
	wg.Wait()
	if len(server.counts) != len(lookups) {
		t.Errorf("asked for %v", server.counts)
	}
	for path, n := range server.counts {
		if n != 1 {
			t.Errorf("%s asked %d times", path, n)
		}
	}
	if cold.Load() != 1 {
		t.Errorf("%d of %d callers were cold", cold.Load(), callers)
	}
}

// TestSilentMetadata has three ways to get no answer; each costs the first call a second at most and the second nothing.
func TestSilentMetadata(t *testing.T) {
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) { // no route
		<-ctx.Done()
		return nil, ctx.Err()
	}
	accept := func(ctx context.Context, _, _ string) (net.Conn, error) { // accepts, reads, never answers
		client, server := net.Pipe()
		go func() {
			_, _ = io.Copy(io.Discard, server)
			_ = server.Close()
		}()
		return client, nil
	}
	refuse := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"hangs": hang, "accepts": accept, "refuses": refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GCE_METADATA_HOST", "")
			synctest.Test(t, func(t *testing.T) {
				var dials atomic.Int32
				v := newTest(map[string]string{"K_SERVICE": "nsop", "K_REVISION": "r"}, fstest.MapFS{})
				v.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					dials.Add(1)
					return dial(ctx, network, address)
				}
				start := time.Now()
				first := v.Info(t.Context())
				if took := time.Since(start); took > metadataTimeout {
					t.Errorf("first call took %v", took)
				}
				if first.Project+first.Region+first.Instance != "" || first.Service != "nsop" || first.Revision != "r" {
					t.Errorf("Info = %+v", first)
				}
				const want = "the metadata server did not answer for project, region, instance: "
				if len(first.Warnings) != 1 || !strings.HasPrefix(first.Warnings[0], want) {
					t.Errorf("Warnings = %q, want one of %q", first.Warnings, want)
				}

				n := dials.Load()
				start = time.Now()
				second := v.Info(t.Context())
				if took := time.Since(start); took != 0 || dials.Load() != n {
					t.Errorf("second call took %v and %d dials", took, dials.Load()-n)
				}
				if !reflect.DeepEqual(first, second) {
					t.Errorf("second call = %+v, want %+v", second, first)
				}
			})
		})
	}
}

// TestRealSockets has the same with the dialer that New sets.
func TestRealSockets(t *testing.T) {
	stop := make(chan struct{})
	hanging := startMetadata(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stop }))
	t.Cleanup(func() { close(stop) }) // before the server's Close, which waits for the handlers
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"hangs": hanging, "refused": l.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GCE_METADATA_HOST", address)
			v := newTest(map[string]string{"K_SERVICE": "nsop"}, fstest.MapFS{})
			start := time.Now()
			if got := v.Info(t.Context()); len(got.Warnings) != 1 {
				t.Errorf("Warnings = %q, want one", got.Warnings)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestUndefinedMetadata(t *testing.T) {
	server := &metadataServer{counts: map[string]int{}}
	t.Setenv("GCE_METADATA_HOST", startMetadata(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/region") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		server.ServeHTTP(w, r)
	})))
	got := newTest(map[string]string{"K_SERVICE": "nsop"}, fstest.MapFS{}).Info(t.Context())
	want := []string{`the metadata server did not answer for region: metadata: GCE metadata "instance/region" not defined`}
	if got.Project != "p" || got.Region != "" || got.Instance != "0a1b2c" || !slices.Equal(got.Warnings, want) {
		t.Errorf("Info = %+v, want warnings %q", got, want)
	}
}

func TestNewDoesNoIO(t *testing.T) {
	v := newTest(map[string]string{"K_SERVICE": "nsop"}, noFiles{t})
	v.dial = func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialled")
		return nil, errors.ErrUnsupported
	}
	if v.Serverless() != "cloud-run" || !v.Cold() || v.Cold() {
		t.Error("want cloud-run, cold once")
	}
}

type noFiles struct{ t *testing.T }

func (f noFiles) Open(name string) (fs.File, error) {
	f.t.Errorf("opened %s", name)
	return nil, fs.ErrNotExist
}

// TestThisMachine reads the real files, whatever they say.
func TestThisMachine(t *testing.T) {
	t.Setenv("GCE_METADATA_HOST", "")
	info := New(func(string) string { return "" }, time.Now(), time.Now).Info(t.Context())
	if info.Platform != "local" || info.CPUs < 1 || info.InstanceAge < 0 || info.Warnings != nil {
		t.Errorf("Info = %+v", info)
	}
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
}

func TestCPUTime(t *testing.T) {
	before, ok := CPUTime()
	if !ok {
		t.Skip("this system does not say")
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if after, _ := CPUTime(); after > before {
			return
		}
	}
	t.Errorf("CPU time stayed at %v", before)
}
