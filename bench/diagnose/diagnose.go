// Package diagnose says where the time of one operation on a data store goes, and what is wrong with the way to it.
//
// [Diagnose] measures the parts one after the other: the path (path.go), this machine (machine.go), the server as it tells
// (server.go), the client libraries and the budget of one warm operation (client.go, budget.go). The table [Rules]
// (rules.go) then reads the report, and nothing but the report, for what is wrong.
package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/google/uuid"

	"nsop/bench"
	"nsop/bench/vantage"
)

// Options are what a diagnosis may be told.
type Options struct {
	Clients []string        // to measure, the budget being the first's; nil: all, and the target's default first
	Timeout time.Duration   // bound on one stage and one operation; 0: 3.5 s, which two repeated SYNs fit in
	Bound   time.Duration   // on the whole but for Idle; 0: 9.5 s
	Effort  time.Duration   // how long warm operations are measured; 0: 1.5 s
	Idle    []time.Duration // to hold connections for, each
	Vantage vantage.Info    // of this process
	Root    fs.FS           // the root of the file system; nil: /
	// Background is the share of its time, 0 to 1, that background work of this process got after the previous response;
	// nil: not known.
	Background *float64
	// Observe is told what is measured next; may be nil.
	Observe func(part string)
}

// A Report is a diagnosis. A part that could not be measured is nil, and Unmeasured has its reason.
type Report struct {
	StartedAt  time.Time         `json:"started_at"`
	ElapsedNS  int64             `json:"elapsed_ns"`
	Target     *bench.TargetInfo `json:"target"`
	Findings   []Finding         `json:"findings"`
	Budget     *Budget           `json:"budget"`
	Vantage    *Vantage          `json:"vantage"`
	Path       *Path             `json:"path"`
	Server     *Server           `json:"server"`
	Client     *Client           `json:"client"`
	Classes    Classes           `json:"classes"`
	Idle       []Idle            `json:"idle,omitempty"`
	Unmeasured map[string]string `json:"unmeasured"` // by the part's place in this object
}

// A Stat is the distribution of some durations.
type Stat = bench.Stat

// stat returns the distribution of samples, nil where there are none. It sorts them.
func stat(samples []time.Duration) *Stat { return bench.NewStat(samples) }

// median of sorted samples, of which there is one at least.
func median(samples []time.Duration) time.Duration {
	n := len(samples)
	if n%2 == 1 {
		return samples[n/2]
	}
	return (samples[n/2-1] + samples[n/2]) / 2
}

// Classes are operations that must not be mixed.
type Classes = bench.Classes

// An Idle is a connection that was held without being used.
type Idle struct {
	GapNS     int64  `json:"gap_ns"`
	Survived  bool   `json:"survived"`
	ResumedNS *int64 `json:"resumed_ns"` // what the first operation took, where it did
	Error     string `json:"error,omitempty"`
	ErrorKind string `json:"error_kind,omitempty"`
}

// A diagnosis is one that is going on.
type diagnosis struct {
	Options
	target *bench.Target
	r      *Report
	key    string

	session bench.Session
	talk    *line // warm
	holds   []hold
	before  map[string]string // facts at the beginning
	began   time.Time         // when before was read
	failed  error             // of the rounds, as a client without retries sees it: the first
	errors  int               // of the rounds
}

// A hold is a connection that waits, for gap at least.
type hold struct {
	gap   time.Duration
	since time.Time
	talk  *line
}

var errSkipped = errors.New("out of time")

// Diagnose measures target and says what is wrong. It always returns a report, within o.Bound and the longest of o.Idle,
// or soon after ctx has ended.
func Diagnose(ctx context.Context, target *bench.Target, o Options) *Report {
	o.Timeout = cmp.Or(o.Timeout, 3500*time.Millisecond)
	o.Bound = cmp.Or(o.Bound, 9500*time.Millisecond)
	o.Effort = cmp.Or(o.Effort, 1500*time.Millisecond)
	if o.Root == nil {
		o.Root = os.DirFS("/")
	}
	if o.Observe == nil {
		o.Observe = func(string) {}
	}
	started := time.Now()
	d := &diagnosis{Options: o, target: target, key: "nsop:" + uuid.Must(uuid.NewV7()).String() + ":diagnose"}
	d.r = &Report{StartedAt: started.UTC(), Unmeasured: map[string]string{}, Vantage: &Vantage{Info: o.Vantage},
		Target: &bench.TargetInfo{Name: target.Name, Kind: target.Kind, Address: target.Address, TLS: target.TLS, Embedded: target.Embedded}}
	throttled, told := vantage.Throttled(o.Root)
	cycles, pause := collections()

	bounded, cancel := context.WithTimeout(ctx, o.Bound)
	d.measure(bounded)
	cancel()
	if len(o.Idle) > 0 {
		idle, cancel := context.WithDeadline(ctx, started.Add(o.Bound+slices.Max(o.Idle)))
		d.resume(idle)
		cancel()
	}
	d.close(ctx)

	v := d.r.Vantage
	if now, ok := vantage.Throttled(o.Root); ok && told {
		v.ThrottledNS = new(int64(now - throttled))
	} else {
		d.r.Unmeasured["vantage.throttled_ns"] = "the cgroup does not say"
	}
	nowCycles, nowPause := collections()
	v.GCCycles, v.GCPauseNS = int64(nowCycles-cycles), int64(nowPause-pause)
	if o.Background != nil {
		v.BackgroundPercent = bench.NewFigure(100 * *o.Background)
	}
	d.r.ElapsedNS = int64(time.Since(started))
	d.r.Findings = find(d.r)
	return d.r
}

// collections are the garbage collections so far and the time the world was stopped for them, to within the buckets of
// the runtime's histogram.
func collections() (cycles uint64, pause time.Duration) {
	samples := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(samples)
	h := samples[1].Value.Float64Histogram()
	seconds := 0.0
	for i, n := range h.Counts {
		if n > 0 && h.Buckets[i] > 0 {
			seconds += float64(n) * h.Buckets[i]
		}
	}
	return samples[0].Value.Uint64(), time.Duration(seconds * float64(time.Second))
}

// unmeasured notes why a part is missing.
func (d *diagnosis) unmeasured(part string, err error) {
	if err == nil || d.r.Unmeasured[part] != "" {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errSkipped
	}
	d.r.Unmeasured[part] = err.Error()
}

// measure fills in the report, a part after the other.
func (d *diagnosis) measure(ctx context.Context) {
	defer d.missing()
	reached := true
	if d.target.Wire == nil {
		d.unmeasured("path", errors.New("the store is in this process"))
	} else {
		d.Observe("path")
		reached = d.path(ctx)
	}
	if reached {
		d.connect(ctx)
	}
	// The server's CPU is told over a time in which this process asks nothing of it.
	d.Observe("vantage")
	d.r.Vantage.measure(ctx, max(d.Effort/4, 100*time.Millisecond))
	if d.session == nil {
		return
	}
	d.Observe("server")
	d.facts(ctx)
	d.Observe("client")
	d.clients(ctx)
	if d.talk != nil {
		d.Observe("fan-out")
		d.hello(ctx)
		d.fanOut(ctx)
		d.throughput(ctx)
	}
	d.pools(ctx)
	d.resumed()
	d.again(ctx)
}

// connect opens the session.
func (d *diagnosis) connect(ctx context.Context) {
	session, err := d.target.Connect(ctx, d.Timeout)
	if err != nil {
		d.unmeasured("server", err)
		d.unmeasured("client", err)
		if d.r.Path != nil && d.r.Path.Failure == nil {
			d.r.Path.Failure = &Failure{Stage: "session", Kind: bench.Kind(err), Text: err.Error()}
		}
		return
	}
	d.session = session
	server := session.Server()
	d.r.Target.Server, d.r.Target.Mode = server.Version, server.Mode
	d.r.Server = &Server{Version: server.Version, Mode: server.Mode}
	d.before, d.began = d.ask(ctx, session), time.Now()
}

// missing gives every part that is nil and has no reason yet the one there is.
func (d *diagnosis) missing() {
	why := errSkipped
	if p := d.r.Path; p != nil && p.Failure != nil {
		why = fmt.Errorf("%s: %s", p.Failure.Stage, p.Failure.Text)
	}
	for _, part := range []struct {
		name  string
		isNil bool
	}{
		{"path", d.r.Path == nil}, {"server", d.r.Server == nil}, {"client", d.r.Client == nil}, {"budget", d.r.Budget == nil},
		{"classes.connection_cold", d.r.Classes.ConnectionCold == nil},
		{"classes.idle_resumed", d.r.Classes.IdleResumed == nil}, {"classes.warm", d.r.Classes.Warm == nil},
	} {
		if part.isNil {
			d.unmeasured(part.name, why)
		}
	}
	if d.r.Classes.ProcessCold == nil {
		d.unmeasured("classes.process_cold", cmp.Or(d.failureWhenCold(why), errors.New("this is not the first request of the process")))
	}
}

func (d *diagnosis) failureWhenCold(why error) error {
	if d.Vantage.Cold {
		return why
	}
	return nil
}

// resumed uses the connection that was left alone since the beginning.
func (d *diagnosis) resumed() {
	i := slices.IndexFunc(d.holds, func(h hold) bool { return h.gap == 0 })
	if i < 0 {
		return
	}
	h := d.holds[i]
	gap := time.Since(h.since)
	asked := time.Now()
	if err := h.talk.Echo(100); err != nil {
		d.unmeasured("classes.idle_resumed", fmt.Errorf("after %v: %w", gap.Round(time.Millisecond), err))
		return
	}
	d.r.Classes.IdleResumed = stat([]time.Duration{time.Since(asked)})
	d.r.Classes.IdleGapNS = int64(gap)
}

// resume uses each connection that waits, once its time has come.
func (d *diagnosis) resume(ctx context.Context) {
	d.Observe("idle")
	for _, gap := range slices.Sorted(slices.Values(d.Options.Idle)) {
		i := slices.IndexFunc(d.holds, func(h hold) bool { return h.gap == gap })
		if i < 0 {
			d.unmeasured("idle", errors.New("no connection could be held"))
			return
		}
		h := d.holds[i]
		select {
		case <-ctx.Done():
			d.unmeasured("idle", fmt.Errorf("%v: %w", gap, errSkipped))
			return
		case <-time.After(time.Until(h.since.Add(gap))):
		}
		idle := Idle{GapNS: int64(time.Since(h.since))}
		asked := time.Now()
		stop := context.AfterFunc(ctx, h.talk.shut)
		err := h.talk.Echo(100)
		stop()
		if took := time.Since(asked); err == nil {
			idle.Survived, idle.ResumedNS = true, new(int64(took))
		} else {
			idle.Error, idle.ErrorKind = err.Error(), bench.Kind(err)
		}
		d.r.Idle = append(d.r.Idle, idle)
	}
}

// close removes what was written and ends every connection. It takes as long as a stage at most.
func (d *diagnosis) close(ctx context.Context) {
	for _, h := range d.holds {
		h.talk.Close()
	}
	if d.talk != nil {
		d.talk.Close()
	}
	if d.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(d.Timeout, 500*time.Millisecond))
	defer cancel()
	// What can't be removed expires: the keys have a TTL.
	keys := iter.Seq[string](func(yield func(string) bool) { _ = yield(d.key) && yield(d.largeKey()) })
	if d.target.Kind != "postgres" && ctx.Err() == nil {
		_ = d.session.Remove(ctx, keys)
	}
	_ = d.session.Close()
}

func (d *diagnosis) largeKey() string { return d.key + ":large" }

// procs is how many threads run Go code at once.
func procs() int { return runtime.GOMAXPROCS(0) }
