// Package vantage says where a run ran: on which platform, region, revision and instance, in which sandbox, and how much
// CPU and memory it may use. A figure without its vantage can't be compared with another.
package vantage

import (
	"cmp"
	"context"
	"io/fs"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// platforms is in order of precedence: Knative on Kubernetes sets K_SERVICE too, and is taken for Cloud Run, whose
// contract it follows.
var platforms = []platform{
	{name: "cloud-run-job", mark: "CLOUD_RUN_JOB", serverless: true, service: "CLOUD_RUN_JOB", revision: "CLOUD_RUN_EXECUTION"},
	{name: "cloud-run", mark: "K_SERVICE", serverless: true, service: "K_SERVICE", revision: "K_REVISION"},
	{name: "app-engine", mark: "GAE_ENV", value: "standard", serverless: true, service: "GAE_SERVICE", revision: "GAE_VERSION",
		project: "GOOGLE_CLOUD_PROJECT", instance: "GAE_INSTANCE"},
	{name: "kubernetes", mark: "KUBERNETES_SERVICE_HOST"},
	{name: "local"},
}

// A platform is known by the environment it gives to a process.
type platform struct {
	name       string
	mark       string // the variable that is set nowhere else; none: this platform whenever no other is
	value      string // what mark must be, if not just anything
	serverless bool   // has a metadata server that can be relied upon

	// The variables that say what the metadata server need not be asked.
	project, service, revision, instance string
}

// Info is the vantage of one run.
type Info struct {
	Platform         string        `json:"platform"` // cloud-run, cloud-run-job, app-engine, kubernetes or local
	Project          string        `json:"project,omitempty"`
	Region           string        `json:"region,omitempty"`
	Service          string        `json:"service,omitempty"`  // of a Cloud Run job its name
	Revision         string        `json:"revision,omitempty"` // App Engine: version; Cloud Run job: execution
	Instance         string        `json:"instance,omitempty"`
	InstanceAge      time.Duration `json:"instance_age_ns"`    // since this process started
	Cold             bool          `json:"cold"`               // left to the caller, see [Vantage.Cold]
	Sandbox          string        `json:"sandbox"`            // gvisor or none
	Go               string        `json:"go"`                 // version of Go
	CPUs             int           `json:"cpus"`               // GOMAXPROCS: threads that run Go code at once
	CPUQuota         *float64      `json:"cpu_quota"`          // cores; nil: no quota
	MemoryLimitBytes *int64        `json:"memory_limit_bytes"` // nil: no limit

	// Warnings say what could not be found out, and why.
	Warnings []string `json:"-"`
}

// A Vantage finds out where this process runs. Its methods may be called from many goroutines at once.
type Vantage struct {
	getenv   func(string) string
	started  time.Time
	now      func() time.Time
	platform platform
	root     fs.FS
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	served   atomic.Bool

	identify sync.Once
	identity Info // what does not change while the process lives
}

// New returns the vantage of a process that started at started. It does no I/O.
func New(getenv func(string) string, started time.Time, now func() time.Time) *Vantage {
	// The transport does not wait for a dial whose request was given up: the dialer has the same bound.
	dialer := net.Dialer{Timeout: metadataTimeout}
	return &Vantage{
		getenv: getenv, started: started, now: now, platform: detect(getenv),
		root: os.DirFS("/"), dial: dialer.DialContext,
	}
}

// Serverless returns the platform's name on Cloud Run and App Engine, "" elsewhere. It does no I/O.
func (v *Vantage) Serverless() string {
	if !v.platform.serverless {
		return ""
	}
	return v.platform.name
}

// Cold reports whether this is the first call: the request that makes it may have waited for the process to start.
func (v *Vantage) Cold() bool { return !v.served.Swap(true) }

// Info returns the vantage at this moment. The first call asks the metadata server on Cloud Run and App Engine, elsewhere
// only if the process environment has GCE_METADATA_HOST; that takes at most one second, whatever becomes of ctx. Calls made
// meanwhile wait for it. What the server does not say is left empty with a warning, and is not asked again.
func (v *Vantage) Info(ctx context.Context) Info {
	v.identify.Do(func() { v.identity = v.identifyProcess(ctx) })
	info := v.identity
	info.Warnings = slices.Clone(info.Warnings)
	info.InstanceAge = v.now().Sub(v.started)
	info.CPUs = runtime.GOMAXPROCS(0)
	// The quota is read each time: Cloud Run's start-up boost lends an instance CPU that is taken back later.
	info.CPUQuota = cpuQuota(v.root)
	info.MemoryLimitBytes = cmp.Or(memoryLimit(v.root), v.appEngineMemory())
	return info
}

func (v *Vantage) identifyProcess(ctx context.Context) Info {
	env := func(name string) string {
		if name == "" {
			return ""
		}
		return v.getenv(name)
	}
	info := Info{
		Platform: v.platform.name,
		Project:  env(v.platform.project),
		Service:  env(v.platform.service),
		Revision: env(v.platform.revision),
		Instance: env(v.platform.instance),
		Sandbox:  sandbox(v.root),
		Go:       runtime.Version(),
	}
	// Elsewhere the address of the metadata server belongs to another cloud or to nobody. The variable is the one that the
	// metadata library takes from the process environment.
	if v.platform.serverless || os.Getenv("GCE_METADATA_HOST") != "" {
		info.askMetadata(ctx, v.dial)
	}
	return info
}

// appEngineMemory returns the memory of the instance class, nil where the environment does not say.
func (v *Vantage) appEngineMemory() *int64 {
	mb, err := strconv.ParseInt(v.getenv("GAE_MEMORY_MB"), 10, 32)
	if err != nil || mb <= 0 {
		return nil
	}
	return new(mb << 20)
}

func detect(getenv func(string) string) platform {
	i := slices.IndexFunc(platforms, func(p platform) bool {
		if p.mark == "" {
			return true
		}
		value := getenv(p.mark)
		return value != "" && (p.value == "" || p.value == value)
	})
	return platforms[i]
}

// sandbox returns "gvisor" or "none". gVisor's /proc/version has a fixed build date; its release was a plain "4.4.0", and
// ends in "-gvisor" in newer ones (gvisor.dev/gvisor/pkg/sentry/kernel/version).
func sandbox(root fs.FS) string {
	version := readText(root, "proc/version")
	if strings.Contains(version, "-gvisor ") || strings.Contains(version, "#1 SMP Sun Jan 10 15:06:54 PST 2016") {
		return "gvisor"
	}
	return "none"
}
