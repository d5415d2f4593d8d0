package imports

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
)

const (
	memtierAll     = "ALL STATS"
	memtierRun     = "RUN #"
	memtierAverage = "AGGREGATED AVERAGE RESULTS"
	memtierTotals  = "Totals"
)

func isMemtierRun(m member) bool {
	return m.name == memtierAll || strings.HasPrefix(m.name, memtierRun) || strings.HasPrefix(m.name, memtierAverage)
}

// A memtierNumber is printed as a number, as a string, which may hold another thing, or as null where there is none.
type memtierNumber float64

func (n *memtierNumber) UnmarshalJSON(text []byte) error {
	*n = memtierNumber(math.NaN())
	if string(text) == "null" {
		return nil
	}
	quoted := text[0] == '"'
	v, err := number(strings.Trim(string(text), `"`))
	if err == nil {
		*n = memtierNumber(v)
	} else if !quoted {
		return err
	}
	return nil
}

// whole is n as a parameter, 0 where it is none.
func (n memtierNumber) whole() int {
	if !(n >= 0 && n <= math.MaxInt32) {
		return 0
	}
	return int(n)
}

// A boolean is printed as a string.
type boolean bool

func (f *boolean) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	*f = s == "true" || s == "1"
	return nil
}

type memtierConfiguration struct {
	Server   string        `json:"server"` // its password is not read
	Port     memtierNumber `json:"port"`
	Protocol string        `json:"protocol"`
	TLS      boolean       `json:"tls"`
	Ratio    string        `json:"ratio"`
	Pattern  string        `json:"key_pattern"`
	Pipeline memtierNumber `json:"pipeline"`
	DataSize memtierNumber `json:"data_size"`
	First    memtierNumber `json:"key_minimum"`
	Last     memtierNumber `json:"key_maximum"`
	Clients  memtierNumber `json:"clients"`
	Threads  memtierNumber `json:"threads"`
}

type memtierStats struct {
	Count    *memtierNumber  `json:"Count"`
	Ops      memtierNumber   `json:"Ops/sec"`
	Misses   memtierNumber   `json:"Misses/sec"`
	Errors   memtierNumber   `json:"Connection Errors"`
	Average  *memtierNumber  `json:"Average Latency"`
	Latency  *memtierNumber  `json:"Latency"` // the same, of older versions
	Min      *memtierNumber  `json:"Min Latency"`
	Max      *memtierNumber  `json:"Max Latency"`
	Quantile json.RawMessage `json:"Percentile Latencies"`
}

// readMemtier reads what --json-out-file writes: a row for each command, and their sum where there are several. Several
// runs are samples; where they were not printed, their average is the only one.
func readMemtier(ms []member, o Options) (*bench.Report, error) {
	p := newReport("memtier", "redis", o)
	var config memtierConfiguration
	var setup struct {
		Threads memtierNumber `json:"Threads"`
		Clients memtierNumber `json:"Connections per thread"`
	}
	var last int64
	runs := slices.DeleteFunc(slices.Clone(ms), func(m member) bool { return !strings.HasPrefix(m.name, memtierRun) })
	for _, m := range ms {
		last = m.at
		var err error
		switch {
		case m.name == "configuration":
			err = json.Unmarshal(m.value, &config)
		case m.name == "run information":
			err = json.Unmarshal(m.value, &setup)
		case len(runs) == 0 && isMemtierRun(m):
			runs = append(runs, m)
			if strings.HasPrefix(m.name, memtierAverage) {
				p.Warnings = append(p.Warnings, "figures are "+strings.ToLower(oneLine(m.name)))
			}
		}
		if err != nil {
			return nil, &placed{m.start() + 1, fmt.Errorf("%s: %w", m.name, err)}
		}
	}
	if strings.HasPrefix(config.Protocol, "memcache") {
		p.Target.Kind = "memcached"
	}
	p.Target.TLS = bool(config.TLS)
	if port := config.Port.whole(); config.Server != "" && port > 0 {
		p.Target.Address = oneLine(net.JoinHostPort(config.Server, strconv.Itoa(port)))
	}
	template := *newResult("")
	threads, clients := cmp.Or(setup.Threads.whole(), config.Threads.whole()), cmp.Or(setup.Clients.whole(), config.Clients.whole())
	if threads > 0 && clients > 0 && threads <= math.MaxInt32/clients {
		template.Concurrency = threads * clients
		template.Connections = template.Concurrency
	}
	template.Pipeline, template.Size = config.Pipeline.whole(), config.DataSize.whole()
	if config.Last > config.First {
		template.Keyspace = (config.Last - config.First + 1).whole()
	}
	settings := map[string]string{"protocol": config.Protocol, "ratio": config.Ratio, "key_pattern": config.Pattern}
	for _, run := range runs {
		if err := memtierRows(p, run, template, settings); err != nil {
			return nil, err
		}
	}
	if len(p.Results) == 0 {
		return nil, &placed{last, errors.New("no results of memtier")}
	}
	return finish(p, o, 1)
}

// memtierRows adds the rows of one run.
func memtierRows(p *bench.Report, run member, template bench.Result, settings map[string]string) error {
	parts, err := members(run.value, run.start())
	if err != nil {
		return err
	}
	var rows []*bench.Result
	var total *bench.Result
	var elapsed time.Duration
	for _, m := range parts {
		if m.name == "Runtime" {
			var runtime struct {
				Start    memtierNumber `json:"Start time"`
				Duration memtierNumber `json:"Total duration"`
			}
			if err := json.Unmarshal(m.value, &runtime); err != nil {
				return &placed{m.start() + 1, fmt.Errorf("%s: %w", m.name, err)}
			}
			if p.StartedAt.IsZero() && runtime.Start > 0 && runtime.Start < 1e14 {
				p.StartedAt = time.UnixMilli(int64(runtime.Start)).UTC()
			}
			if ns := nanoseconds(float64(runtime.Duration)); ns != nil {
				elapsed = time.Duration(*ns)
				p.ElapsedNS += *ns
			}
			continue
		}
		if len(m.value) == 0 || m.value[0] != '{' || !strings.Contains(string(m.value), `"Ops/sec"`) {
			continue // a distribution, or the clients there were
		}
		var stats memtierStats
		if err := json.Unmarshal(m.value, &stats); err != nil {
			return &placed{m.start() + 1, fmt.Errorf("%s: %w", m.name, err)}
		}
		r := template
		r.ErrorKinds, r.ErrorSamples, r.Warnings, r.Settings = map[string]int64{}, map[string]string{}, []string{}, map[string]any{}
		for name, value := range settings {
			if value != "" {
				r.Settings[name] = oneLine(value)
			}
		}
		r.ElapsedNS = elapsed.Nanoseconds()
		if err := stats.fill(&r); err != nil {
			return &placed{m.start() + 1, fmt.Errorf("%s: %w", m.name, err)}
		}
		if m.name == memtierTotals {
			r.Workload = "totals"
			total = &r
			continue
		}
		if r.Workload = cmp.Or(commandWorkload(oneLine(strings.TrimSuffix(m.name[:min(len(m.name), maxName)], "s"))), "other"); r.OpsPerSec != nil {
			if rows = append(rows, &r); len(rows) > maxRows {
				break // add says it
			}
		}
	}
	if total != nil && len(rows) != 1 {
		rows = append(rows, total)
	}
	return add(p, 1, rows...)
}

// fill stores what is known: of a command that was never sent, nothing is, whatever is printed.
func (s *memtierStats) fill(r *bench.Result) error {
	if s.Errors > 0 && s.Errors < math.MaxInt64/2 {
		r.Errors = int64(s.Errors)
		r.ErrorKinds["other"] = r.Errors
	}
	if r.OpsPerSec = rate(float64(s.Ops)); r.OpsPerSec == nil {
		return nil
	}
	seconds := float64(r.ElapsedNS) / 1e9
	whole := func(v float64) int64 {
		if !(v > 0 && v < math.MaxInt64/2) {
			return 0
		}
		return int64(math.Round(v))
	}
	if r.Iterations = whole(float64(s.Ops) * seconds); s.Count != nil {
		r.Iterations = whole(float64(*s.Count))
	}
	r.Misses = whole(float64(s.Misses) * seconds)
	set := func(field **int64, ms *memtierNumber) {
		if ms != nil {
			*field = nanoseconds(float64(*ms))
		}
	}
	l := &r.Latency
	set(&l.Mean, s.Latency)
	set(&l.Mean, s.Average)
	set(&l.Min, s.Min)
	set(&l.Max, s.Max)
	if s.Quantile == nil || s.Quantile[0] != '{' {
		return nil
	}
	quantiles, err := members(s.Quantile, 0)
	if err != nil {
		return err
	}
	for name, field := range map[string]**int64{"p50.00": &l.P50, "p90.00": &l.P90, "p95.00": &l.P95, "p99.00": &l.P99, "p99.90": &l.P999} {
		for _, q := range quantiles {
			if q.name == name && *field == nil {
				var ms memtierNumber
				if err := json.Unmarshal(q.value, &ms); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				set(field, &ms)
			}
		}
	}
	return histogramLatencies(l, quantiles)
}

// histogramLatencies takes from memtier's own histogram, whose unit is the microsecond, what it was not asked to print.
func histogramLatencies(l *bench.Latency, quantiles []member) error {
	for _, q := range quantiles {
		if q.name != "Histogram log format" {
			continue
		}
		var log struct {
			Histogram string `json:"Compressed Histogram"`
		}
		if err := json.Unmarshal(q.value, &log); err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		if log.Histogram == "" {
			continue
		}
		h, err := checkHistogram(log.Histogram)
		if err != nil {
			return err
		}
		if h.TotalCount() == 0 {
			continue
		}
		for quantile, field := range map[float64]**int64{50: &l.P50, 90: &l.P90, 95: &l.P95, 99: &l.P99, 99.9: &l.P999} {
			if *field == nil {
				*field = nanoseconds(float64(h.ValueAtQuantile(quantile)) / 1e3)
			}
		}
		if l.Stddev == nil {
			l.Stddev = nanoseconds(h.StdDev() / 1e3)
		}
	}
	return nil
}
