package bench

import (
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A Suite is a named plan that reproduces a published comparison.
type Suite struct {
	Name, Doc  string
	Target     string            // measured where none is named; "" is every target that can do it
	Workloads  string            // as in a path
	Clients    []string          // where the target has them; nil: the target's default
	Parameters map[string]string // which those of a request override
	// The summary has tests down and, across, what differs of these.
	Across  []string
	Samples bool // a line a sample, in place of their mean
	Figures []suiteFigure
}

// A suiteFigure is one of the figures in each cell of a suite's summary.
type suiteFigure struct {
	name string
	of   func(*Result) (float64, bool)
	show func(float64) string
}

var (
	nsPerOp   = suiteFigure{"ns/op", func(r *Result) (float64, bool) { return figure(r.NSPerOp) }, FormatFigure}
	opsPerSec = suiteFigure{"ops/s", func(r *Result) (float64, bool) { return figure(r.OpsPerSec) }, FormatFigure}
	seconds   = suiteFigure{"seconds", func(r *Result) (float64, bool) { return float64(r.ElapsedNS) / 1e9, r.Iterations > 0 },
		func(v float64) string {
			return strconv.FormatFloat(v, 'f', max(0, 2-int(math.Floor(math.Log10(v)))), 64)
		}} // three digits
	tpsWithDial = suiteFigure{"tps with connecting", func(r *Result) (float64, bool) { return figure(r.OpsWithDial) }, FormatFigure}
	tps         = suiteFigure{"tps without", func(r *Result) (float64, bool) { return figure(r.OpsPerSec) }, FormatFigure}
)

// Suites are the suites there are.
var Suites = []Suite{
	{Name: "clients", Doc: "redigo against go-redis: SET and GET, 3 samples of each", Target: "redis", Workloads: "set,get",
		Clients: []string{"redigo", "go-redis"}, Parameters: map[string]string{"count": "3"},
		Across: []string{"target", "client"}, Samples: true, Figures: []suiteFigure{nsPerOp}},
	{Name: "concurrency", Doc: "the catalogue of redis-benchmark at 1, 10, 25, 50 and 100 connections, 500 requests, mean of 3 samples", Target: "redis",
		Workloads: "redis-benchmark", Clients: []string{"floor"}, Parameters: map[string]string{"concurrency": "1,10,25,50,100", "benchtime": "500x", "count": "3"},
		Across: []string{"target", "concurrency"}, Figures: []suiteFigure{opsPerSec}},
	{Name: "payload", Doc: "the catalogue of redis-benchmark with 100 and 1000 bytes, 100 connections, 10,000 requests, 100,000 keys", Target: "redis",
		Workloads: "redis-benchmark", Clients: []string{"floor"},
		Parameters: map[string]string{"size": "100,1000", "concurrency": "100", "benchtime": "10000x", "keyspace": "100000"},
		Across:     []string{"size", "target"}, Figures: []suiteFigure{opsPerSec}},
	{Name: "stores", Doc: "SET then GET and compare, 100,000 distinct keys, on every key-value store: seconds for the whole loop",
		Workloads: "roundtrip", Parameters: map[string]string{"keyspace": "100000", "benchtime": "100000x", "warmup": "0x"},
		Figures: []suiteFigure{seconds, opsPerSec}},
	{Name: "pgbench", Doc: "TPC-B and select-only: 100 clients of 100 transactions", Target: "postgres", Workloads: "tpcb,select",
		Parameters: map[string]string{"concurrency": "100", "benchtime": "10000x", "warmup": "0x", "protocol": "simple"},
		Figures:    []suiteFigure{tpsWithDial, tps}},
}

// FindSuite returns the suite called name, or a *NotFoundError.
func FindSuite(name string) (*Suite, error) {
	e := &NotFoundError{Detail: fmt.Sprintf("no suite %q", name)}
	for i := range Suites {
		if Suites[i].Name == name {
			return &Suites[i], nil
		}
		e.Allowed = append(e.Allowed, Suites[i].Name)
	}
	return nil, e
}

// With is the request's parameters over those of the suite.
func (s *Suite) With(request url.Values) url.Values {
	merged := url.Values{}
	maps.Copy(merged, request)
	for name, value := range s.Parameters {
		if !merged.Has(name) {
			merged.Set(name, value)
		}
	}
	return merged
}

// NewSuitePlan plans suite on targets; named tells that the request named them. What one of them can't do is left out with a
// warning, unless nothing remains of a target that was named.
func NewSuitePlan(suite *Suite, targets []*Target, named bool, s Spec, l Limits) (*Plan, error) {
	p := &Plan{Spec: s, Limits: l, Suite: suite, Several: len(targets) > 1}
	for _, client := range s.Clients {
		if !slices.ContainsFunc(targets, func(t *Target) bool { return t.has(client) }) {
			return nil, &ParamError{Parameter: "client", Detail: fmt.Sprintf("no target has a client %q", client)}
		}
	}
	for _, t := range targets {
		before := p.rows()
		if err := p.add(t, suite.Workloads, named); err != nil {
			return nil, err
		}
		if named && p.rows() == before {
			return nil, &UnsupportedError{Kind: "unsupported", Detail: fmt.Sprintf("%s can't do anything of %s", t.Name, suite.Name)}
		}
	}
	return p, p.check()
}

// suiteClients are the clients of t that a suite measures.
func (p *Plan) suiteClients(t *Target) (names []string) {
	wanted := p.Spec.Clients
	if wanted == nil {
		wanted = p.Suite.Clients
	}
	for _, name := range wanted {
		if t.has(name) {
			names = append(names, name)
		}
	}
	if p.Spec.Clients == nil && names == nil {
		names = t.Default
	}
	return names
}

func (t *Target) has(client string) bool {
	return slices.ContainsFunc(t.Clients, func(c Client) bool { return c.Name == client })
}

// axes are what the rows of a summary can differ in.
func axes(results []*Result) []dimension {
	plain := func(v string) string { return v }
	ds := []dimension{
		{name: "target", of: func(r *Result) string { return r.Target }, show: plain},
		{name: "workload", of: func(r *Result) string { return r.Workload }, show: plain},
		{name: "client", of: func(r *Result) string { return r.Client }, show: plain},
	}
	ds = append(ds, dimensionsOf(results)...)
	return append(ds, dimension{name: "sample", of: func(r *Result) string { return strconv.Itoa(r.Sample) }, show: plain})
}

// table is the summary: tests down, and what the suite compares across. A cell is the mean of its samples that completed
// something, unless each has a line.
func (s *Suite) table(results []*Result) (Table, []string) {
	var down, across []dimension
	samples := 0
	for _, d := range axes(results) {
		varies := len(d.values(results)) > 1
		switch {
		case d.name == "sample" && !s.Samples:
			samples = len(d.values(results))
		case varies && slices.Contains(s.Across, d.name):
			across = append(across, d)
		case varies || d.name == "workload" && s.Target != "":
			down = append(down, d)
		}
	}
	slices.SortStableFunc(across, func(a, b dimension) int { return slices.Index(s.Across, a.name) - slices.Index(s.Across, b.name) })
	place := func(ds []dimension, r *Result) (key string, cells []string) {
		for _, d := range ds {
			cells = append(cells, d.show(d.of(r)))
		}
		return strings.Join(cells, "\x00"), cells
	}
	var (
		rows, columns       [][]string
		rowKeys, columnKeys []string
		cells               = map[[2]string][]*Result{}
		keep                = func(keys *[]string, all *[][]string, key string, cells []string) {
			if !slices.Contains(*keys, key) {
				*keys, *all = append(*keys, key), append(*all, cells)
			}
		}
	)
	for _, r := range results {
		row, rowCells := place(down, r)
		column, columnCells := place(across, r)
		keep(&rowKeys, &rows, row, rowCells)
		keep(&columnKeys, &columns, column, columnCells)
		cells[[2]string{row, column}] = append(cells[[2]string{row, column}], r)
	}
	t := Table{Left: len(down)}
	for _, d := range down {
		t.Head = append(t.Head, d.name)
	}
	for _, c := range columns {
		for _, f := range s.Figures {
			name := strings.Join(c, " ")
			if len(s.Figures) > 1 || name == "" {
				name = strings.TrimSpace(name + " " + f.name)
			}
			t.Head = append(t.Head, name)
		}
	}
	partial := false
	if s.Samples && len(down) > 1 {
		// Samples of one test together, though they were taken in turn.
		firsts := map[string]int{}
		for i, row := range rows {
			test := strings.Join(row[:len(row)-1], "\x00")
			if _, ok := firsts[test]; !ok {
				firsts[test] = i
			}
		}
		slices.SortStableFunc(rows, func(a, b []string) int {
			return firsts[strings.Join(a[:len(a)-1], "\x00")] - firsts[strings.Join(b[:len(b)-1], "\x00")]
		})
	}
	for _, row := range rows {
		key := strings.Join(row, "\x00")
		for _, column := range columnKeys {
			for _, f := range s.Figures {
				sum, n := 0.0, 0
				rs := cells[[2]string{key, column}]
				for _, r := range rs {
					if v, ok := f.of(r); ok {
						sum, n = sum+v, n+1
					}
				}
				partial = partial || n < len(rs)
				if n == 0 {
					row = append(row, "-")
				} else {
					row = append(row, f.show(sum/float64(n)))
				}
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t, s.notes(across, samples, partial)
}

func (s *Suite) notes(across []dimension, samples int, partial bool) []string {
	var names []string
	for _, d := range across {
		names = append(names, d.name)
	}
	var note string
	if len(s.Figures) == 1 {
		note = "each cell is " + s.Figures[0].name
		if len(names) > 0 {
			note = strings.Join(names, " and ") + " across, " + note
		}
	}
	if samples > 1 {
		note = strings.TrimPrefix(note+", the mean of "+strconv.Itoa(samples)+" samples", ", ")
	}
	if partial {
		note = strings.TrimPrefix(note+", failed ones left out", ", ")
	}
	if note == "" {
		return nil
	}
	return []string{note}
}
