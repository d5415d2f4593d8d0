package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
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
	Cores     func() float64               // that it may use; nil where nobody knows
}

// embeddedWarning is the first warning of every report about something in-process.
const embeddedWarning = "embedded store: no real store was measured"

// Run measures the plan under the name id. The report is never nil and holds what had been measured when an error ended
// the run: the context's cause, a *LostError, a *FailedError, a *ParamError or an *UnsupportedError.
func (p *Plan) Run(ctx context.Context, id string, meter Meter, observe func(Progress)) (report *Report, err error) {
	r := &runner{Plan: p, meter: meter, observe: observe, started: time.Now()}
	r.clock = clockCost(func() time.Duration { return time.Since(r.started) })
	r.report = &Report{Run: id, StartedAt: r.started.UTC(), Vantage: p.Vantage, Results: []*Result{}, Assertions: []Assertion{}, Warnings: []string{}}
	if warning := p.embedded(); warning != "" {
		r.report.Warnings = append(r.report.Warnings, warning)
	}
	r.report.Warnings = append(r.report.Warnings, p.Warnings...)
	r.progress = Progress{Run: id, Rows: p.Size()}
	defer func() {
		r.report.ElapsedNS = int64(time.Since(r.started))
		r.report.Summaries = Summarize(r.report.Results)
		for _, a := range p.Spec.Asserts {
			r.report.Assertions = append(r.report.Assertions, a.Check(r.asserted())...)
		}
	}()
	if p.Suite != nil {
		r.report.Suite = p.Suite.Name
	}
	if p.Around != nil {
		return r.report, p.Around(ctx, r.report, r.parts)
	}
	return r.report, r.parts(ctx)
}

// parts measures what the plan has of each target in turn.
func (r *runner) parts(ctx context.Context) error {
	var (
		lost  *LostError
		first error
	)
	for _, part := range r.Parts {
		// A target that is lost does not keep the others from being measured.
		if err := r.part(ctx, part); errors.As(err, &lost) && len(r.Parts) > 1 {
			first = cmp.Or(first, err)
			r.report.Warnings = append(r.report.Warnings, err.Error())
		} else if err != nil {
			return err
		}
	}
	return cmp.Or(first, failed(r.asserted()))
}

// embedded is the first warning of a report about something in-process, "" where nothing is.
func (p *Plan) embedded() string {
	var names []string
	for _, part := range p.Parts {
		if part.Target.Embedded {
			names = append(names, part.Target.Name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case len(p.Parts):
		return embeddedWarning
	}
	return embeddedWarning + " by the rows of " + strings.Join(names, ", ")
}

// asserted are the rows that have to complete something and for which assertions must hold: of a search the knee, or the
// lowest load where there is none.
func (r *runner) asserted() []*Result {
	results := r.report.Results
	if r.search == nil || len(results) == 0 {
		return results
	}
	if k := r.report.Knee; k != nil {
		return results[slices.IndexFunc(results, func(x *Result) bool { return x.Name == k.Row }):][:1]
	}
	return results[:1]
}

// A runner is a run that is going on.
type runner struct {
	*Plan
	meter    Meter
	observe  func(Progress)
	started  time.Time
	report   *Report
	progress Progress
	clock    time.Duration // what reading it costs
}

// tell reports how far the run is, within being the part of the present row that is done.
func (r *runner) tell(within float64) {
	r.progress.Elapsed = time.Since(r.started)
	r.progress.Fraction = (float64(r.progress.Row) + within) / float64(r.progress.Rows)
	r.observe(r.progress)
}

// Describe says in report what the plan measures.
func (p *Plan) Describe(report *Report) {
	if p.Suite != nil {
		report.Suite = p.Suite.Name
	}
	for _, part := range p.Parts {
		report.Describe(part.Target, p.Several)
	}
}

// Describe adds t, which is the only target unless there are several.
func (r *Report) Describe(t *Target, several bool) *TargetInfo {
	info := &TargetInfo{Name: t.Name, Kind: t.Kind, Address: t.Address, TLS: t.TLS, Embedded: t.Embedded}
	if several {
		r.Targets = append(r.Targets, info)
	} else {
		r.Target = info
	}
	return info
}

// part measures what the plan has of one target.
func (r *runner) part(ctx context.Context, part Part) error {
	t := part.Target
	info := r.report.Describe(t, r.Several)
	session, err := t.Connect(ctx, r.Spec.Timeout)
	if err != nil {
		return lostTarget(ctx, t, err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			r.report.Warnings = append(r.report.Warnings, fmt.Sprintf("close %s: %v", t.Name, err))
		}
	}()
	server := session.Server()
	info.Server, info.Mode = server.Version, server.Mode
	r.report.Warnings = append(r.report.Warnings, server.Warnings...)
	if r.progress.Estimate == 0 {
		r.progress.Estimate = r.Estimate(server.RoundTrip)
		r.progress.Seconds = r.progress.Estimate.Seconds()
	}
	if err := r.checkEstimate(r.progress.Estimate); err != nil {
		return err
	}
	if err := checkFree(part, server); err != nil {
		return err
	}
	r.tell(0)
	end, err := r.ledger(ctx, session, part)
	if err != nil {
		return lostTarget(ctx, t, err)
	}
	defer end()
	if r.search != nil {
		return r.limit(ctx, session)
	}
	// Samples are the outer loop, so that a drift of the path or of the machine meets every row alike.
	for sample := range r.Spec.Count {
		for _, row := range part.Rows {
			if _, err := r.row(ctx, session, row, sample+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// row measures a sample of a row and puts it into the report. Its error ends the run.
func (r *runner) row(ctx context.Context, session Session, row Row, sample int) (*Result, error) {
	r.progress.Name, r.progress.Result = row.Name(), nil
	result, lost := (&sampler{runner: r, Row: row, session: session}).measure(ctx)
	result.Sample = sample
	if err := context.Cause(ctx); err != nil && result.Iterations == 0 {
		return nil, err // the row had not begun
	}
	r.report.Results = append(r.report.Results, result)
	r.progress.Row, r.progress.Result = r.progress.Row+1, result
	r.tell(0)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if lost == nil {
		lost = brokenBy(result)
	}
	if lost != nil {
		// What failed may have been this client or this one connection: ask once more before giving up.
		pingCtx, cancel := context.WithTimeout(ctx, min(r.Spec.Timeout, lastChance))
		err := session.Ping(pingCtx)
		cancel()
		if err != nil {
			return nil, lostTarget(ctx, row.Target, lost)
		}
	}
	return result, nil
}

// lastChance bounds the question whether a target that was lost is there.
const lastChance = 500 * time.Millisecond

// lostTarget is err as a *LostError, unless it was the caller who ended the run.
func lostTarget(ctx context.Context, t *Target, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	name := t.Name
	if t.Address != "" {
		name += " at " + t.Address
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
func checkFree(part Part, server Server) error {
	if server.Free < 0 {
		return nil
	}
	for _, r := range part.Rows {
		if r.Workload.Keys != nil && int64(r.Size)*int64(r.Keyspace) > server.Free/2 {
			return &UnsupportedError{Kind: "oom", Detail: fmt.Sprintf("%d keys of %d bytes are more than half of the %d bytes that %s has free",
				r.Keyspace, r.Size, server.Free, r.Target.Name)}
		}
	}
	return nil
}

// A sampler measures one sample of one row.
type sampler struct {
	*runner
	Row
	session Session
	limit   uint64 // operations that the row's data allows; 0 is no limit
}

func (r *runner) params(row Row) *Params {
	p := &Params{Run: r.report.Run, Verify: r.Spec.Verify, Compatible: row.Flavor == "compatible", Scale: row.Scale, Values: NewValues(row.Size)}
	p.Keys = NewKeys(p.Key("key:"), row.Keyspace)
	return p
}

// measure performs the stages of a row: open, load, warm up, run, clean up. lost is why the connection failed, if it did.
func (s *sampler) measure(ctx context.Context) (r *Result, lost error) {
	r = &Result{Name: s.Row.Name(), Target: s.Target.Name, Embedded: s.Target.Embedded, Workload: s.Workload.Name,
		Client: s.Client.Name, ClientVersion: s.Client.Version, Concurrency: s.Concurrency, Labels: s.Spec.Labels,
		ErrorKinds: map[string]int64{}, ErrorSamples: map[string]string{}, Settings: map[string]any{}, Warnings: []string{}}
	if s.Workload.transacts() {
		r.Scale, r.Protocol = s.Scale, s.Protocol
	} else {
		r.Pipeline, r.Size, r.Keyspace = s.Pipeline, s.Size, s.Keyspace
	}
	if s.Flavor != flavors[0] {
		r.Flavor = s.Flavor
	}
	if s.Sync != syncs[0] {
		r.Sync = s.Sync
	}
	if s.Open() {
		r.Rate, r.Shape = s.Rate, s.Arrivals.String()
	}
	opened := time.Now()
	store, err := s.session.Open(ctx, s.Client.Name, Options{Connections: s.Concurrency, Timeout: s.Spec.Timeout,
		Sync: s.Sync == "full", Protocol: s.Protocol})
	if err != nil {
		return r, s.stageFailed(ctx, r, err)
	}
	connect := time.Since(opened).Nanoseconds()
	r.ConnectNS = &connect
	defer store.Close()
	info := store.Info()
	r.Connections, r.Settings = info.Connections, info.Settings

	params := s.params(s.Row)
	if s.Workload.Keys != nil && !params.Compatible {
		// In flavor compatible a test works on what the one before left: its keys are removed at the end of the run.
		defer func() {
			if err := s.remove(ctx, s.Workload.Keys(params), lost != nil); err != nil {
				r.Warnings = append(r.Warnings, fmt.Sprintf("keys were left behind, they expire within an hour: %v", err))
			}
		}()
	}
	warmup := s.Spec.Warmup
	if s.Workload.Drains {
		if warmup.Time > 0 {
			warmup = Extent{Count: drainWarmup}
		}
		params.Supply = warmup.Count
	}
	if err := s.load(ctx, store, params); err != nil {
		return r, s.stageFailed(ctx, r, err)
	}
	l := &load{pipeline: max(s.Pipeline, 1), batch: 1, timeout: s.Spec.Timeout, share: s.Spec.Share, sleeper: newSleeper, abort: func() { _ = store.Close() }}
	for i := range s.Concurrency {
		l.ops = append(l.ops, s.Workload.Op(dedicate(store, i), params, l.pipeline))
	}
	warm := l.with(warmup).run(ctx)
	if warm.lost || warm.iterations == 0 && warm.failed() > 0 {
		// The row would only repeat it: what the warm-up saw is the answer, but nothing of it is an operation measured.
		r.Errors, r.ErrorKinds, r.ErrorSamples, r.Mismatches = warm.failed(), warm.errors, warm.samples, warm.mismatches
		return r, lostBy(warm)
	}
	if warm.iterations > 0 && warm.min < int64(shortest) && l.pipeline == 1 && !s.Open() {
		l.batch = int(int64(batchTime) / max(warm.min, 10))
		r.Warnings = append(r.Warnings, fmt.Sprintf("an operation is shorter than %s: the clock is read once for %d, and latencies are means over so many", shortest, l.batch))
	}
	timed := l.with(s.Spec.Benchtime)
	if s.Open() {
		timed.open(s.Arrivals, s.Spec.Benchtime)
	}
	if s.limit, err = s.supply(ctx, store, params, warm, timed.limit); err != nil {
		return r, s.stageFailed(ctx, r, err)
	}
	var before, after reading
	s.readServer(ctx, &before)
	timed.begin = func() {
		runtime.GC()
		s.readProcess(&before)
	}
	timed.progress = func(done uint64, elapsed time.Duration) {
		f := float64(done) / float64(max(s.Spec.Benchtime.Count, 1))
		if s.Spec.Benchtime.Time > 0 {
			f = float64(elapsed) / float64(s.Spec.Benchtime.Time)
		}
		s.tell(min(f, 1))
	}
	if s.limit > 0 {
		timed.limit = min(timed.limit, s.limit)
	}
	m := timed.run(ctx)
	s.readProcess(&after)
	if after.serverErr = errLost; !m.lost && ctx.Err() == nil {
		s.readServer(ctx, &after)
	}
	r.count(m)
	r.cost(&before, &after, m)
	if s.Workload.transacts() && m.iterations > 0 {
		r.OpsWithDial = NewRate(float64(m.iterations) / (m.elapsed + time.Duration(connect)).Seconds())
	}
	r.Connections = max(r.Connections, store.Info().Connections)
	if s.Spec.Histogram && r.Latencies != nil {
		text, err := EncodeHistogram(r.Latencies)
		if err != nil {
			r.Warnings = append(r.Warnings, err.Error())
		}
		r.Histogram = text
	}
	o := &observed{Result: r, measured: m, Arrivals: s.Arrivals, end: timed.end, due: s.Spec.Share.of(timed.limit, l.pipeline), batch: l.batch, clock: s.clock,
		pauses: time.Duration(after.mem.PauseTotalNs - before.mem.PauseTotalNs), workers: s.Concurrency}
	o.cores = s.cores()
	for _, rule := range rules {
		if w := rule.of(o); w != "" {
			r.Warnings = append(r.Warnings, w)
		}
	}
	if s.Spec.Benchtime.Time > 0 && s.limit > 0 && uint64(m.iterations+m.failed()) >= s.limit {
		r.Warnings = append(r.Warnings, fmt.Sprintf("ended after %d operations: more data than that is not put into the store", s.limit))
	}
	if m.lost {
		return r, lostBy(m)
	}
	return r, nil
}

// drainWarmup is how many elements a warm-up that is given as a time may take away.
const drainWarmup = 1000

// supply puts into the store what the row is going to take away, and says how many operations its data allows.
func (s *sampler) supply(ctx context.Context, store Store, p *Params, warm *measured, attempts uint64) (limit uint64, err error) {
	most := uint64(s.elements(s.Size))
	switch {
	case s.Workload.Grows:
		return most, nil
	case !s.Workload.Drains || p.Compatible:
		return 0, nil
	}
	need := attempts
	if s.Spec.Benchtime.Time > 0 && !s.Open() {
		// Twice as many as the warm-up's rate would need, since it was the slower part.
		need = 1000
		if warm.elapsed > 0 {
			need += uint64(2 * float64(warm.iterations) / warm.elapsed.Seconds() * s.Spec.Benchtime.Time.Seconds())
		}
	}
	p.Supply = min(need, most)
	return p.Supply, s.load(ctx, store, p)
}

func dedicate(s Store, worker int) Store {
	if d, ok := s.(Dedicated); ok {
		return d.Dedicate(worker)
	}
	return s
}

// load writes the row's data, and gives up once the run is cut off.
func (s *sampler) load(ctx context.Context, store Store, params *Params) error {
	if s.Workload.Load == nil || params.Compatible {
		return nil
	}
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
	if e.Time == 0 || e.Count > 0 {
		bounded.limit = e.Count
	}
	return &bounded
}

// open makes l an open loop. What is due within a time but could not begin in it, since the store stalled or is too slow,
// is made up for in as much time again, and no more than the store may fall silent.
func (l *load) open(a Arrivals, e Extent) {
	l.shape, l.limit, l.end = a.in(e)
	if e.Time > 0 {
		l.deadline = l.end + min(l.end, l.timeout)
	}
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

// brokenBy is the failure of the connection that most of a row's errors are, if it had any: of a cluster, one node may be
// gone while the others serve.
func brokenBy(r *Result) error {
	kind := mostFrequent(r.ErrorKinds)
	if !lost(kind) {
		return nil
	}
	return &KindError{kind, r.ErrorSamples[kind]}
}

// remove deletes the row's keys. When the run was cut off there is only a moment, and a store that is lost gets none.
func (s *sampler) remove(ctx context.Context, keys iter.Seq[string], lost bool) error {
	bound := 30 * time.Second
	switch {
	case lost:
		return errors.New("the store does not answer")
	case ctx.Err() != nil:
		bound = time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	return s.session.Remove(ctx, keys)
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
	stall := int64(m.stall)
	r.LongestStall = &stall
	if m.service != nil {
		r.Late = &m.late
	}
	if m.iterations == 0 {
		return
	}
	n := float64(m.iterations)
	r.NSPerOp = NewFigure(float64(m.elapsed) / n)
	r.OpsPerSec = NewRate(n / m.elapsed.Seconds())
	r.Latency, r.Latencies = latency(&m.distribution), m.histogram
	if m.service != nil {
		service := latency(m.service)
		r.Service = &service
	}
}

// latency derives the distribution. A percentile p needs 1/(1-p) samples for one to lie above it.
func latency(m *distribution) Latency {
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
	if after.server.CPU < before.server.CPU || after.server.Calls < before.server.Calls || after.server.Redirects < before.server.Redirects {
		r.Warnings = append(r.Warnings, "the server's own figures are missing: it was restarted while the row ran")
		return
	}
	if moved := int64(after.server.Redirects - before.server.Redirects); moved > 0 {
		r.Moved = moved
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d commands, those of other clients included, were redirected to another node (MOVED, ASK): each cost a round trip more", moved))
	}
	r.Server = &ServerCost{CPUPercent: NewFigure(100 * float64(after.server.CPU-before.server.CPU) / float64(m.elapsed))}
	// A server that counts its calls need not time them.
	if calls := after.server.Calls - before.server.Calls; calls > 0 && after.server.Time > 0 {
		r.Server.NSPerCall = NewFigure(float64(after.server.Time-before.server.Time) / float64(calls))
	}
}
