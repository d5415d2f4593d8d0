package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A LostError says that the target could not be reached, or was lost for good while the run was going on.
type LostError struct {
	Target string
	Err    error
}

func (e *LostError) Error() string { return e.Target + ": " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// A FailedError says that a row completed nothing.
type FailedError struct {
	Row, Kind, Sample string
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%s completed nothing: %s: %s", e.Row, e.Kind, e.Sample)
}

// Progress is how far a run has come.
type Progress struct {
	Run      string        `json:"run"`
	Rows     int           `json:"rows"` // in all, samples counted apart
	Row      int           `json:"row"`  // that are done
	Name     string        `json:"name"` // of the one going on
	Fraction float64       `json:"fraction"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	Estimate time.Duration `json:"-"`
	Seconds  float64       `json:"estimated_seconds"`
	Result   *Result       `json:"-"` // the row that just ended
}

// A Meter reads what this process has consumed so far.
type Meter struct {
	CPU       func() (time.Duration, bool) // user and system time
	Throttled func() (time.Duration, bool) // time for which the CPU quota stopped it
}

// embeddedWarning is the first warning of every report about something in-process.
const embeddedWarning = "embedded store: no real store was measured"

// Run measures the plan under the name id. The report is never nil and holds what had been measured when an error ended the run: the
// context's cause, a *LostError, a *FailedError, a *ParamError or an *UnsupportedError.
func (p *Plan) Run(ctx context.Context, id string, meter Meter, observe func(Progress)) (report *Report, err error) {
	started := time.Now()
	report = &Report{Run: id, StartedAt: started.UTC(), Results: []*Result{}, Assertions: []Assertion{}, Warnings: []string{},
		Target: &TargetInfo{Name: p.Target.Name, Kind: p.Target.Kind, Address: p.Target.Address, TLS: p.Target.TLS, Embedded: p.Target.Embedded}}
	if p.Target.Embedded {
		report.Warnings = append(report.Warnings, embeddedWarning)
	}
	report.Warnings = append(report.Warnings, p.Warnings...)
	defer func() {
		report.ElapsedNS = int64(time.Since(started))
		for _, a := range p.Spec.Asserts {
			report.Assertions = append(report.Assertions, a.Check(report.Results)...)
		}
	}()

	session, err := p.Target.Connect(ctx, p.Spec.Timeout)
	if err != nil {
		return report, p.lost(ctx, err)
	}
	defer func() {
		if cerr := session.Close(); cerr != nil && err == nil {
			report.Warnings = append(report.Warnings, "close: "+cerr.Error())
		}
	}()
	server := session.Server()
	report.Target.Server, report.Target.Mode = server.Version, server.Mode
	report.Warnings = append(report.Warnings, server.Warnings...)
	estimate := p.Estimate(server.RoundTrip)
	if err := p.checkEstimate(estimate); err != nil {
		return report, err
	}
	if err := p.checkFree(server); err != nil {
		return report, err
	}

	progress := Progress{Run: report.Run, Rows: len(p.Rows) * p.Spec.Count, Estimate: estimate, Seconds: estimate.Seconds()}
	tell := func(within float64) {
		progress.Elapsed = time.Since(started)
		progress.Fraction = (float64(progress.Row) + within) / float64(progress.Rows)
		observe(progress)
	}
	tell(0)
	// Samples are the outer loop, so that a drift of the path or of the machine meets every row alike.
	for sample := range p.Spec.Count {
		for _, row := range p.Rows {
			progress.Name, progress.Result = row.Name(p.Target.Name), nil
			result, lost := (&sampler{p, row, session, report.Run, meter, tell}).measure(ctx)
			result.Sample = sample + 1
			if err := context.Cause(ctx); err != nil && result.Iterations == 0 {
				return report, err // the row had not begun
			}
			report.Results = append(report.Results, result)
			progress.Row, progress.Result = progress.Row+1, result
			tell(0)
			if err := context.Cause(ctx); err != nil {
				return report, err
			}
			if lost != nil {
				// What failed may have been this client or this one connection: ask once more before giving up.
				pingCtx, cancel := context.WithTimeout(ctx, min(p.Spec.Timeout, lastChance))
				err := session.Ping(pingCtx)
				cancel()
				if err != nil {
					return report, p.lost(ctx, lost)
				}
			}
		}
	}
	return report, failed(report.Results)
}

// lastChance bounds the question whether a target that was lost is there.
const lastChance = 500 * time.Millisecond

// lost is err as a *LostError, unless it was the caller who ended the run.
func (p *Plan) lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	name := p.Target.Name
	if p.Target.Address != "" {
		name += " at " + p.Target.Address
	}
	return &LostError{name, err}
}

// failed is a *FailedError for the first row that completed nothing.
func failed(results []*Result) error {
	for _, r := range results {
		if r.Iterations == 0 {
			kind := mostFrequent(r.ErrorKinds)
			return &FailedError{r.Name, kind, r.ErrorSamples[kind]}
		}
	}
	return nil
}

func mostFrequent(kinds map[string]int64) (kind string) {
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		if kind == "" || kinds[k] > kinds[kind] {
			kind = k
		}
	}
	return kind
}

// checkFree refuses to fill more than half of what the store has free: others may share it.
func (p *Plan) checkFree(server Server) error {
	if server.Free < 0 {
		return nil
	}
	for _, r := range p.Rows {
		if r.Workload.Keyed && int64(r.Size)*int64(r.Keyspace) > server.Free/2 {
			return &UnsupportedError{Kind: "oom", Detail: fmt.Sprintf("%d keys of %d bytes are more than half of the %d bytes that %s has free",
				r.Keyspace, r.Size, server.Free, p.Target.Name)}
		}
	}
	return nil
}

// A sampler measures one sample of one row.
type sampler struct {
	*Plan
	Row
	session Session
	run     string
	meter   Meter
	tell    func(fraction float64)
}

// measure performs the stages of a row: open, load, warm up, run, clean up. lost is why the connection failed, if it did.
func (s *sampler) measure(ctx context.Context) (r *Result, lost error) {
	r = &Result{Name: s.Row.Name(s.Target.Name), Target: s.Target.Name, Embedded: s.Target.Embedded, Workload: s.Workload.Name,
		Client: s.Client.Name, ClientVersion: s.Client.Version, Concurrency: s.Concurrency, Pipeline: s.Pipeline, Size: s.Size,
		Keyspace: s.Keyspace, Labels: s.Spec.Labels, ErrorKinds: map[string]int64{}, ErrorSamples: map[string]string{},
		Settings: map[string]any{}, Warnings: []string{}}
	opened := time.Now()
	store, err := s.session.Open(ctx, s.Client.Name, Options{Connections: s.Concurrency, Timeout: s.Spec.Timeout})
	if err != nil {
		return r, s.stageFailed(ctx, r, err)
	}
	connect := time.Since(opened).Nanoseconds()
	r.ConnectNS = &connect
	defer store.Close()
	info := store.Info()
	r.Connections, r.Settings = info.Connections, info.Settings

	params := &Params{Keys: NewKeys("nsop:"+s.run+":key:", s.Keyspace), Values: NewValues(s.Size), Verify: s.Spec.Verify}
	if s.Workload.Keyed {
		defer func() {
			if err := s.remove(ctx, params.Keys, lost != nil); err != nil {
				r.Warnings = append(r.Warnings, fmt.Sprintf("keys were left behind, they expire within an hour: %v", err))
			}
		}()
	}
	if s.Workload.Load != nil {
		if err := s.load(ctx, store, params); err != nil {
			return r, s.stageFailed(ctx, r, err)
		}
	}
	l := &load{pipeline: s.Pipeline, batch: 1, timeout: s.Spec.Timeout, abort: func() { _ = store.Close() }}
	for i := range s.Concurrency {
		l.ops = append(l.ops, s.Workload.Op(dedicate(store, i), params, s.Pipeline))
	}
	warm := l.with(s.Spec.Warmup).run(ctx)
	if warm.lost || warm.iterations == 0 && warm.failed() > 0 {
		// The row would only repeat it: what the warm-up saw is the answer, but nothing of it is an operation measured.
		r.Errors, r.ErrorKinds, r.ErrorSamples, r.Mismatches = warm.failed(), warm.errors, warm.samples, warm.mismatches
		return r, lostBy(warm)
	}
	if warm.iterations > 0 && warm.min < int64(shortest) && s.Pipeline == 1 {
		l.batch = int(int64(batchTime) / max(warm.min, 10))
		r.Warnings = append(r.Warnings, fmt.Sprintf("an operation is shorter than %s: the clock is read once for %d, and latencies are means over so many", shortest, l.batch))
	}
	var before, after reading
	s.readServer(ctx, &before)
	runtime.GC()
	s.readProcess(&before)
	l.progress = func(done uint64, elapsed time.Duration) {
		f := float64(done) / float64(max(s.Spec.Benchtime.Count, 1))
		if s.Spec.Benchtime.Time > 0 {
			f = float64(elapsed) / float64(s.Spec.Benchtime.Time)
		}
		s.tell(min(f, 1))
	}
	m := l.with(s.Spec.Benchtime).run(ctx)
	s.readProcess(&after)
	if after.serverErr = errLost; !m.lost && ctx.Err() == nil {
		s.readServer(ctx, &after)
	}
	r.count(m)
	r.cost(&before, &after, m)
	r.Connections = max(r.Connections, store.Info().Connections)
	if m.iterations > 0 && float64(m.misses) > 0.01*float64(m.iterations) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%.1f%% of the operations missed", 100*float64(m.misses)/float64(m.iterations)))
	}
	if m.lost {
		return r, lostBy(m)
	}
	return r, nil
}

func dedicate(s Store, worker int) Store {
	if d, ok := s.(Dedicated); ok {
		return d.Dedicate(worker)
	}
	return s
}

// load writes the row's data, and gives up once the run is cut off.
func (s *sampler) load(ctx context.Context, store Store, params *Params) error {
	stop := context.AfterFunc(ctx, func() { _ = store.Close() })
	defer stop()
	if err := s.Workload.Load(ctx, store, params); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

// with is l bounded by an extent.
func (l *load) with(e Extent) *load {
	bounded := *l
	bounded.limit, bounded.deadline = math.MaxUint64/2, e.Time
	if e.Time == 0 {
		bounded.limit = e.Count
	}
	return &bounded
}

// stageFailed records why a row ended before its first operation; lost tells that the connection was the reason.
func (s *sampler) stageFailed(ctx context.Context, r *Result, err error) error {
	kind := Kind(err)
	if ctx.Err() != nil {
		kind = "canceled"
	}
	r.Errors, r.ErrorKinds[kind], r.ErrorSamples[kind] = 1, 1, err.Error()
	if lost(kind) {
		return err
	}
	return nil
}

// lostBy is the error that a load ended with.
func lostBy(m *measured) error {
	kind := mostFrequent(m.errors)
	if !lost(kind) && !m.lost {
		return nil
	}
	if kind == "" {
		return &KindError{"timeout", "nothing completed"}
	}
	return &KindError{kind, m.samples[kind]}
}

// remove deletes the row's keys. When the run was cut off there is only a moment, and a store that is lost gets none.
func (s *sampler) remove(ctx context.Context, keys Keys, lost bool) error {
	bound := 30 * time.Second
	switch {
	case lost:
		return errors.New("the store does not answer")
	case ctx.Err() != nil:
		bound = time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	return s.session.Remove(ctx, keys.All())
}

// A reading is what this process and the server had consumed at one moment.
type reading struct {
	mem            runtime.MemStats
	cpu, throttled time.Duration
	hasCPU, hasThr bool
	server         Counters
	serverErr      error
}

// readProcess takes this process's readings: the last thing before the clock starts and the first after it stopped.
func (s *sampler) readProcess(r *reading) {
	runtime.ReadMemStats(&r.mem)
	r.cpu, r.hasCPU = s.meter.CPU()
	r.throttled, r.hasThr = s.meter.Throttled()
}

// errLost spares a row that was cut off, or lost its store, the wait for an answer.
var errLost = errors.New("the row was cut off")

func (s *sampler) readServer(ctx context.Context, r *reading) {
	ctx, cancel := context.WithTimeout(ctx, min(s.Spec.Timeout, lastChance))
	defer cancel()
	r.server, r.serverErr = s.session.Counters(ctx, s.Workload.Command)
}

// count puts what a load measured into r. Figures of no operation stay null.
func (r *Result) count(m *measured) {
	r.Iterations, r.ElapsedNS = m.iterations, int64(m.elapsed)
	r.Misses, r.Mismatches = m.misses, m.mismatches
	r.Errors, r.ErrorKinds, r.ErrorSamples = m.failed(), m.errors, m.samples
	if m.iterations == 0 {
		return
	}
	n := float64(m.iterations)
	r.NSPerOp = NewFigure(float64(m.elapsed) / n)
	r.OpsPerSec = NewRate(n / m.elapsed.Seconds())
	r.Latency = latency(m)
}

// latency derives the distribution. A percentile p needs 1/(1-p) samples for one to lie above it.
func latency(m *measured) Latency {
	percentile := func(p float64, samples int64) *int64 {
		if m.iterations < samples {
			return nil
		}
		v := min(max(m.histogram.ValueAtPercentile(p), m.min), m.max)
		return &v
	}
	mean := int64(math.Round(m.sum / float64(m.iterations)))
	stddev := int64(math.Round(m.histogram.StdDev()))
	return Latency{Min: &m.min, Max: &m.max, Mean: &mean, Stddev: &stddev, P50: percentile(50, 1), P90: percentile(90, 10),
		P95: percentile(95, 20), P99: percentile(99, 100), P999: percentile(99.9, 1000)}
}

// cost puts what the row cost this process and the server into r.
func (r *Result) cost(before, after *reading, m *measured) {
	if m.elapsed <= 0 {
		return
	}
	if m.iterations > 0 {
		r.BytesPerOp = NewFigure(math.Floor(float64(after.mem.TotalAlloc-before.mem.TotalAlloc) / float64(m.iterations)))
		r.AllocsPerOp = NewFigure(math.Floor(float64(after.mem.Mallocs-before.mem.Mallocs) / float64(m.iterations)))
	}
	if before.hasCPU && after.hasCPU {
		r.ClientCPU = NewFigure(100 * float64(after.cpu-before.cpu) / float64(m.elapsed))
	}
	if before.hasThr && after.hasThr {
		t := int64(after.throttled - before.throttled)
		r.ThrottledNS = &t
	}
	if before.serverErr != nil || after.serverErr != nil {
		if err := errors.Join(before.serverErr, after.serverErr); !errors.Is(err, errors.ErrUnsupported) {
			r.Warnings = append(r.Warnings, "the server's own figures are missing: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return
	}
	if after.server.CPU < before.server.CPU || after.server.Calls < before.server.Calls {
		r.Warnings = append(r.Warnings, "the server's own figures are missing: it was restarted while the row ran")
		return
	}
	r.Server = &ServerCost{CPUPercent: NewFigure(100 * float64(after.server.CPU-before.server.CPU) / float64(m.elapsed))}
	if calls := after.server.Calls - before.server.Calls; calls > 0 {
		r.Server.NSPerCall = NewFigure(float64(after.server.Time-before.server.Time) / float64(calls))
	}
}
