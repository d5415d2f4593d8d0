package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A Knee is the load beyond which more of it brings no more throughput, or breaks an assertion.
type Knee struct {
	Row         string  `json:"row"`
	Concurrency int     `json:"concurrency"`
	Rate        float64 `json:"rate,omitempty"` // of a search for the highest rate
	OpsPerSec   *Figure `json:"ops_per_sec"`
}

// Resources are what can run out first.
var Resources = []string{"server-cpu", "client-cpu", "throttled", "connections", "bandwidth", "latency", "assertion"}

// A search raises the load on one row until it finds the knee.
type search struct {
	row   Row     // without its load
	auto  bool    // raises the rate, else the concurrency
	shape string  // of an open loop
	most  float64 // of either load
}

const (
	// growth is what another doubling of the load has to bring, over the best so far, to count.
	growth = 1.05
	// nearly is how much of a throughput, or of a rate, is as good as all of it.
	nearly = 0.95
	// busy is the part of a resource's capacity from which on it is what bounds the throughput.
	busy = 0.8
	// searchWorkers are what a search for the highest rate has where concurrency is not given.
	searchWorkers = 64
	// searchRate is where a search for the highest rate begins.
	searchRate = 1000
	// bisections narrow the knee down, to some 20% of the load.
	bisections = 3
)

// NewLimit plans a search for the limit of one workload through one client: concurrency, or with rate=auto the rate, is
// doubled until throughput stops growing or an assertion breaks, and the knee is then narrowed down. s.Concurrency is
// the highest tried, given being whether the request has it; with rate=auto it is the number of workers. Its errors are
// those of NewPlan.
func NewLimit(t *Target, workload string, s Spec, l Limits, given bool) (*Plan, error) {
	for _, list := range []struct {
		name string
		n    int
	}{{"client", len(s.Clients)}, {"concurrency", len(s.Concurrency)}, {"pipeline", len(s.Pipeline)}, {"size", len(s.Size)}, {"keyspace", len(s.Keyspace)}, {"count", s.Count}} {
		if list.n > 1 {
			return nil, &ParamError{Parameter: list.name, Detail: "a search for the limit takes one", Allowed: []string{"one value"}}
		}
	}
	if s.Rates != nil || s.Shape.Shape == "ramp" {
		return nil, &ParamError{Parameter: "rate", Detail: "a search for the limit finds the rate by itself", Allowed: []string{"auto", "none: then it raises the concurrency"}}
	}
	found := &search{auto: s.AutoRate, shape: s.Shape.Shape, most: float64(l.Concurrency)}
	switch {
	case found.auto && !given:
		s.Concurrency = []int{min(searchWorkers, l.Concurrency)}
	case !found.auto:
		if given {
			found.most = float64(s.Concurrency[0])
		}
		s.Concurrency = []int{1}
	}
	if found.auto {
		found.most = maxRate
		if s.Benchtime.Time == 0 {
			return nil, &ParamError{Parameter: "benchtime", Detail: "a search for the highest rate wants a time", Allowed: allowed("benchtime", l)[:1]}
		}
	}
	if s.Clients == nil {
		s.Clients = t.Default[:1]
	}
	s.AutoRate = false
	p := &Plan{Spec: s, Limits: l}
	if err := p.add(t, workload, true); err != nil {
		return nil, err
	}
	if p.rows() != 1 {
		return nil, &ParamError{Parameter: "workload", Detail: fmt.Sprintf("a search for the limit takes one workload, not %q", workload), Allowed: WorkloadNames(t)}
	}
	found.row = p.Parts[0].Rows[0]
	p.search = found
	return p, p.check()
}

// steps is how many rows the search measures at most.
func (s *search) steps() int {
	from := 1.0
	if s.auto {
		from = searchRate
	}
	return int(math.Ceil(math.Log2(s.most/from))) + 1 + bisections + 1 // that with smaller values
}

// at is the search's row under a load.
func (s *search) at(load float64) Row {
	row := s.row
	if s.auto {
		row.Arrivals = Arrivals{Shape: s.shape, Rate: load}
	} else {
		row.Concurrency = int(load)
	}
	return row
}

// A trial is a row of the search.
type trial struct {
	load   float64
	result *Result
	ops    float64
	broken string // the assertion that does not hold, or ""
}

// A finding is what a search found out.
type finding struct {
	trials  []trial // from the lowest load to the highest
	knee    *trial
	top     *trial // whose resources are looked at: the load at which throughput was bounded
	growing bool   // throughput still grew at the highest load that was asked for
	refused *trial // that the server or the client had no connections for
	smaller *Result
}

// limit searches.
func (r *runner) limit(ctx context.Context, session Session) error {
	var f finding
	measure := func(load float64) (*trial, error) {
		row := r.search.at(math.Round(load))
		result, err := r.row(ctx, session, row, 1)
		if err != nil {
			return nil, err
		}
		t := trial{load: math.Round(load), result: result}
		t.ops, _ = figure(result.OpsPerSec)
		for _, a := range r.Spec.Asserts {
			if t.broken == "" && !AssertionsHold(a.Check([]*Result{result})) {
				t.broken = a.Expr
			}
		}
		f.trials = append(f.trials, t)
		return &t, nil
	}
	defer func() {
		slices.SortFunc(f.trials, func(a, b trial) int { return cmp.Compare(a.load, b.load) })
		slices.SortStableFunc(r.report.Results, func(a, b *Result) int {
			return cmp.Or(cmp.Compare(a.Concurrency, b.Concurrency), cmp.Compare(a.Rate, b.Rate))
		})
		r.conclude(&f)
	}()
	search := r.byConcurrency
	if r.search.auto {
		search = r.byRate
	}
	if err := search(&f, measure); err != nil {
		return err
	}
	// What was moved counts where neither side was busy: with values a quarter of the size a path that is full carries as
	// many bytes, in more operations, and a slow server does not.
	if f.top != nil && !f.growing && f.refused == nil && f.top.broken == "" && r.search.row.Size >= smallest && !r.busy(f.top.result) {
		row := r.search.at(f.top.load)
		row.Size /= 4
		row.Rate = min(4*row.Rate, maxRate)
		result, err := r.row(ctx, session, row, 1)
		if err != nil {
			return err
		}
		r.report.Results = slices.DeleteFunc(r.report.Results, func(x *Result) bool { return x == result })
		f.smaller = result
	}
	return nil
}

// smallest are values of which a quarter is still more than what a command has around it.
const smallest = 1000

// byConcurrency doubles the concurrency until two doublings in a row bring nothing.
func (r *runner) byConcurrency(f *finding, measure func(float64) (*trial, error)) error {
	var best, good, bad *trial
	flat := 0
	for load := 1.0; ; load = min(2*load, r.search.most) {
		t, err := measure(load)
		if err != nil {
			return err
		}
		switch {
		case refused(t.result):
			f.refused = t
		case t.broken != "":
			bad = t
		default:
			good = t
		}
		if f.refused != nil || bad != nil || t.ops == 0 {
			break
		}
		grown := best == nil || t.ops > growth*best.ops
		if flat++; grown {
			flat = 0
		}
		if best == nil || t.ops > best.ops {
			best = t
		}
		if flat == 2 {
			break
		}
		if load == r.search.most {
			f.growing = grown
			break
		}
	}
	f.top = best
	f.knee = best
	if bad != nil || f.refused != nil {
		if bad != nil {
			f.top = bad
		} else {
			bad = f.refused
		}
		f.knee = good
		return bisect(good, bad, func(load float64) (bool, error) {
			t, err := measure(load)
			if err != nil {
				return false, err
			}
			ok := t.broken == "" && !refused(t.result) && t.ops > 0
			if ok {
				f.knee = t
			}
			return ok, nil
		})
	}
	if best == nil || f.growing {
		return nil
	}
	// The knee is the least load that brings as much as any.
	slices.SortFunc(f.trials, func(a, b trial) int { return cmp.Compare(a.load, b.load) })
	enough := slices.IndexFunc(f.trials, func(t trial) bool { return t.ops >= nearly*best.ops })
	knee := f.trials[enough]
	f.knee = &knee
	if enough == 0 {
		return nil
	}
	below := f.trials[enough-1]
	return bisect(&below, &knee, func(load float64) (bool, error) {
		t, err := measure(load)
		if err != nil {
			return false, err
		}
		if t.ops >= nearly*best.ops {
			f.knee = t
			return false, nil // as good with less
		}
		return true, nil
	})
}

// byRate doubles the rate until it is not held, from a rate that is.
func (r *runner) byRate(f *finding, measure func(float64) (*trial, error)) error {
	var good, bad *trial
	for load := float64(searchRate); good == nil || bad == nil; {
		t, err := measure(load)
		if err != nil {
			return err
		}
		switch {
		case refused(t.result):
			f.refused = t
			return nil // a rate does not change how many connections there are
		case t.held():
			good = t
			load *= 2
		default:
			bad = t
			load /= 2
		}
		if load > r.search.most || load < 1 {
			break
		}
	}
	f.knee, f.top, f.growing = good, bad, bad == nil
	if bad == nil {
		f.top = good
	}
	return bisect(good, bad, func(load float64) (bool, error) {
		t, err := measure(load)
		if err != nil {
			return false, err
		}
		if !t.held() {
			f.top = t
			return false, nil
		}
		f.knee = t
		return true, nil
	})
}

// held tells whether the rate was held, and every assertion with it.
func (t *trial) held() bool { return t.broken == "" && t.ops >= nearly*t.load }

// bisect tries loads between low and high, in the middle of their ratio, until they are near each other. try reports
// whether the knee is above.
func bisect(low, high *trial, try func(load float64) (above bool, err error)) error {
	if low == nil || high == nil {
		return nil
	}
	from, to := low.load, high.load
	for range bisections {
		middle := math.Round(math.Sqrt(from * to))
		if middle <= from || middle >= to || to < 1.2*from {
			return nil
		}
		above, err := try(middle)
		if err != nil {
			return err
		}
		if above {
			from = middle
		} else {
			to = middle
		}
	}
	return nil
}

// refused tells whether more than 1% of a row's operations, or the row itself, got no connection.
func refused(r *Result) bool {
	n := r.ErrorKinds["maxclients"] + r.ErrorKinds["pool_timeout"]
	return n > 0 && float64(n) > 0.01*float64(r.Iterations+r.Errors)
}

// clientLoad is the part of the CPU that this process may use which it used, and of the time for which it was throttled.
func (r *runner) clientLoad(result *Result) (cpu, throttled float64) {
	if percent, ok := figure(result.ClientCPU); ok && r.cores() > 0 {
		cpu = percent / 100 / r.cores()
	}
	if result.ThrottledNS != nil && result.ElapsedNS > 0 {
		throttled = float64(*result.ThrottledNS) / float64(result.ElapsedNS)
	}
	return cpu, throttled
}

// serverLoad is the part of the one core that a Redis server's main thread has which it used. How many cores other
// servers have nobody says.
func (r *runner) serverLoad(result *Result) (cpu float64, known bool) {
	if result.Server == nil || r.search.row.Target.Kind != "redis" {
		return 0, false
	}
	percent, ok := figure(result.Server.CPUPercent)
	return percent / 100, ok
}

func (r *runner) busy(result *Result) bool {
	client, throttled := r.clientLoad(result)
	server, _ := r.serverLoad(result)
	return client >= busy || server >= busy || throttled >= throttling
}

// throttling is the part of the time for which the CPU quota may stop a process without being what bounds it.
const throttling = 0.05

func (r *runner) cores() float64 {
	if r.meter.Cores == nil {
		return 0
	}
	return r.meter.Cores()
}

// conclude puts what the search found into the report.
func (r *runner) conclude(f *finding) {
	if f.knee != nil {
		k := f.knee.result
		r.report.Knee = &Knee{k.Name, k.Concurrency, k.Rate, k.OpsPerSec}
	}
	top := f.top
	if top == nil {
		top = f.refused
	}
	if top == nil {
		return // the search was cut off
	}
	e := map[string]any{"row": top.result.Name, "ops_per_sec": top.result.OpsPerSec, "p50_ns": top.result.Latency.P50, "connections": top.result.Connections,
		"client_cpu_percent": top.result.ClientCPU, "throttled_ns": top.result.ThrottledNS, "server_cpu_percent": nil}
	if cores := r.cores(); cores > 0 {
		e["client_cores"] = cores
	}
	if top.result.Server != nil {
		e["server_cpu_percent"] = top.result.Server.CPUPercent
	}
	if size := r.search.row.Size; size > 0 && r.search.row.Workload.Keys != nil {
		e["value_bytes_per_sec"] = math.Round(top.ops * float64(size))
	}
	if f.smaller != nil {
		ops, _ := figure(f.smaller.OpsPerSec)
		e["smaller_values"] = map[string]any{"size": f.smaller.Size, "ops_per_sec": f.smaller.OpsPerSec, "value_bytes_per_sec": math.Round(ops * float64(f.smaller.Size))}
	}
	r.report.BoundBy, e["summary"] = r.boundBy(f, top)
	r.report.Evidence = e
}

// boundBy is the resource that ran out, and the sentence that says why it is that.
func (r *runner) boundBy(f *finding, top *trial) (resource, why string) {
	client, throttled := r.clientLoad(top.result)
	server, known := r.serverLoad(top.result)
	clientText := fmt.Sprintf("the client used %.0f%% of the CPU it may use", 100*client)
	serverText := "the server does not say what its CPU does"
	if known {
		serverText = fmt.Sprintf("the server used %.0f%% of the core that its main thread has", 100*server)
	}
	if f.refused != nil {
		kind := mostFrequent(f.refused.result.ErrorKinds)
		return "connections", fmt.Sprintf("at concurrency %d: %s", f.refused.result.Concurrency, f.refused.result.ErrorSamples[kind])
	}
	if top.broken != "" {
		return "assertion", fmt.Sprintf("%s does not hold at %s; %s, %s", top.broken, r.search.say(top.load), clientText, serverText)
	}
	latencyText := fmt.Sprintf("%s, %s: each operation waits %s, and more in flight would bring more", clientText, serverText, formatMedian(top.result))
	if throttled >= throttling {
		clientText += fmt.Sprintf(", whose quota stopped it for %.0f%% of the time", 100*min(throttled, 1))
	}
	switch {
	case client >= busy && client >= server, throttled >= throttling && client >= busy/2:
		return "client-cpu", clientText
	case known && server >= busy:
		return "server-cpu", serverText
	case throttled >= throttling:
		return "throttled", clientText // in bursts: over the row it used little
	case f.growing:
		return "latency", "throughput still grows; " + latencyText
	case f.smaller != nil && r.full(f.smaller, top):
		return "bandwidth", fmt.Sprintf("the path carries %s/s with values of %s and as much with values of %s; %s, %s",
			sayBytes(top.ops*float64(top.result.Size)), FormatBytes(int64(top.result.Size)), FormatBytes(int64(f.smaller.Size)), clientText, serverText)
	case slices.ContainsFunc(top.result.Warnings, func(w string) bool { return strings.Contains(w, "above the pool") }):
		return "connections", fmt.Sprintf("%d workers share %d connections", top.result.Concurrency, top.result.Connections)
	case r.search.auto && client < busy/2 && server < busy/2 && top.result.Late != nil && *top.result.Late > 0:
		return "latency", "all workers were busy; " + latencyText
	case client > server && (known || client >= busy/2 || r.search.row.Target.Embedded):
		return "client-cpu", "by exclusion: " + clientText + ", " + serverText
	default:
		return "server-cpu", "by exclusion: " + serverText + ", " + clientText
	}
}

// full tells whether smaller values moved as many bytes, in more operations.
func (r *runner) full(smaller *Result, top *trial) bool {
	ops, ok := figure(smaller.OpsPerSec)
	return ok && ops*float64(smaller.Size) >= busy*top.ops*float64(top.result.Size)
}

func formatMedian(r *Result) string {
	if r.Latency.P50 == nil {
		return "-"
	}
	return FormatDuration(float64(*r.Latency.P50))
}

func sayBytes(n float64) string {
	switch {
	case n >= 1e9:
		return FormatFigure(n/1e9) + " GB"
	case n >= 1e6:
		return FormatFigure(n/1e6) + " MB"
	}
	return FormatFigure(n/1e3) + " KB"
}

// say is a load in words.
func (s *search) say(load float64) string {
	if s.auto {
		return FormatFigure(load) + "/s"
	}
	return "concurrency " + FormatFigure(load)
}

// limitBody is a report of a search as the contract has it: its rows are a series.
type limitBody struct {
	*Report
	Results  []*Result      `json:"results,omitempty"` // hides the report's
	Series   []*Result      `json:"series"`
	Knee     *Knee          `json:"knee"`
	BoundBy  string         `json:"bound_by"`
	Evidence map[string]any `json:"evidence"`
}

// Body is r as it is encoded in JSON.
func (r *Report) Body() any {
	n := r.Normalize()
	if r.BoundBy == "" {
		return n
	}
	return limitBody{Report: n, Series: n.Results, Knee: n.Knee, BoundBy: n.BoundBy, Evidence: n.Evidence}
}

// ReadReport reads what Body is as JSON.
func ReadReport(data []byte) (*Report, error) {
	read := struct {
		*Report
		Series []*Result `json:"series"`
	}{Report: &Report{}}
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if read.Results == nil {
		read.Results = read.Series
	}
	return read.Report, nil
}

// limitTable has a line for each load of a search.
func limitTable(r *Report) (Table, []string) {
	byRate := slices.ContainsFunc(r.Results, func(x *Result) bool { return x.Rate > 0 })
	var p50, p99, longest []*int64
	for _, x := range r.Results {
		p50, p99, longest = append(p50, x.Latency.P50), append(p99, x.Latency.P99), append(longest, x.Latency.Max)
	}
	p50s, p99s, maxima := FormatDurations(p50), FormatDurations(p99), FormatDurations(longest)
	t := Table{Head: []string{"", "client", "concurrency", "ops/s", "p50", "p99", "max", "errors", "client CPU", "server CPU", ""}, Left: 2}
	if byRate {
		t.Head[2] = "rate"
	}
	for i, x := range r.Results {
		load := FormatCount(int64(x.Concurrency))
		if byRate {
			load = FormatFigure(x.Rate)
		}
		client, server, mark := "-", "-", ""
		if v, ok := figure(x.ClientCPU); ok {
			client = fmt.Sprintf("%.0f%%", v)
		}
		if x.Server != nil {
			if v, ok := figure(x.Server.CPUPercent); ok {
				server = fmt.Sprintf("%.0f%%", v)
			}
		}
		if r.Knee != nil && r.Knee.Row == x.Name {
			mark = "<- knee"
		}
		t.Rows = append(t.Rows, []string{x.Workload, x.Client, load, showFigure(x.OpsPerSec), p50s[i], p99s[i], maxima[i], FormatCount(x.Errors), client, server, mark})
	}
	why, _ := r.Evidence["summary"].(string)
	notes := []string{"no load was low enough"}
	if r.Knee != nil {
		notes[0] = fmt.Sprintf("knee: concurrency %s, %s/s", FormatCount(int64(r.Knee.Concurrency)), showFigure(r.Knee.OpsPerSec))
		if byRate {
			notes[0] = fmt.Sprintf("knee: %s/s, with %s workers", FormatFigure(r.Knee.Rate), FormatCount(int64(r.Knee.Concurrency)))
		}
	}
	return t, append(notes, "bound by "+r.BoundBy+": "+why)
}

// searchOverhead is how much longer a row of a rate that can't be held takes than the time asked for.
const searchOverhead = 2

// estimate is what a search takes at most, given what one row does.
func (s *search) estimate(row time.Duration) time.Duration {
	d := time.Duration(s.steps()) * row
	if s.auto {
		d *= searchOverhead
	}
	return d
}
