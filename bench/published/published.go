// Package published holds the figures of comparisons that others have published, as reports that compare with a run.
package published

import (
	"embed"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"nsop/bench"
	"nsop/bench/imports"
)

//go:embed *.csv
var files embed.FS

// comparisons are what was published, by the name of the file that holds its figures, and what every line of it shares.
var comparisons = []struct {
	name, kind string
	workload   string // where no column names it
	client     string // likewise
	warnings   []string
}{
	{"clients", "redis", "", "", nil},
	{"concurrency", "redis", "", "redis-benchmark", []string{"each figure is the mean of 3 samples of 500 requests"}},
	{"limit", "redis", "limit", "redis-benchmark", []string{"4 loaders on one store; which commands they sent was not published"}},
	{"payload", "redis", "", "redis-benchmark", nil},
	{"pgbench", "postgres", "", "pgbench", []string{"ops_per_sec counts the time to connect: the rate without it was not published"}},
	{"stores", "", "roundtrip", "", []string{"the client's column names the store"}},
}

// Names are the names of the comparisons.
func Names() []string {
	var names []string
	for _, c := range comparisons {
		names = append(names, c.name)
	}
	return names
}

// Report returns the figures of a comparison: a result for each of its lines, named as a row of bench.Plan, without the
// parameters that were not published. The target is the environment of the line, as is the label environment, letter by
// letter. Its error is a *bench.NotFoundError where there is no such comparison.
func Report(name string) (*bench.Report, error) {
	i := slices.Index(Names(), name)
	if i < 0 {
		return nil, &bench.NotFoundError{Detail: fmt.Sprintf("no published comparison %q", name), Allowed: Names()}
	}
	c := comparisons[i]
	f, err := files.Open(name + ".csv")
	if err != nil {
		return nil, fmt.Errorf("open published figures: %w", err)
	}
	defer f.Close()
	reader := csv.NewReader(f)
	records, err := reader.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read published figures of %s: %w", name, err)
	}
	p := &bench.Report{Imported: "published:" + name, Warnings: slices.Clone(c.warnings)}
	samples := map[string]int{}
	for n, record := range records[1:] {
		r := &bench.Result{Workload: c.workload, Client: c.client, Labels: map[string]string{}, Settings: map[string]any{}}
		for i, column := range records[0] {
			if err := set(r, column, record[i]); err != nil {
				return nil, fmt.Errorf("published figures of %s: line %d: %s: %w", name, n+2, column, err)
			}
		}
		follow(r)
		r.Name = imports.Name(r)
		samples[r.Name]++
		r.Sample = samples[r.Name]
		p.Results = append(p.Results, r)
		if !slices.ContainsFunc(p.Targets, func(t *bench.TargetInfo) bool { return t.Name == r.Target }) {
			p.Targets = append(p.Targets, &bench.TargetInfo{Name: r.Target, Kind: c.kind})
		}
	}
	if len(p.Targets) == 1 {
		p.Target, p.Targets = p.Targets[0], nil
	}
	return p.Normalize(), nil
}

// set stores the value of a column.
func set(r *bench.Result, column, text string) error {
	switch column {
	case "environment":
		// In a row's name / begins a parameter.
		r.Target, r.Labels["environment"] = strings.NewReplacer("/", "-", " ", "-").Replace(text), text
		return nil
	case "client", "store":
		r.Client = text
		return nil
	case "test":
		r.Workload = imports.TitleWorkload(text)
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return fmt.Errorf("%q is no figure", text)
	}
	figure := bench.Figure(v) // as it was published, not rounded
	switch column {
	case "iterations", "requests":
		r.Iterations = int64(v)
	case "ns_per_op":
		r.NSPerOp = &figure
	case "ops_per_sec":
		r.OpsPerSec = &figure
	case "tps_including_connections":
		r.OpsPerSec, r.OpsWithDial = &figure, &figure
	case "seconds":
		r.ElapsedNS = int64(math.Round(v * 1e9))
	case "concurrency", "clients":
		r.Concurrency = int(v)
	case "transactions_per_client":
		r.Iterations = int64(r.Concurrency) * int64(v)
	case "size_bytes":
		r.Size = int(v)
	case "keyspace":
		r.Keyspace = int(v)
	case "keys": // each once, one after another
		r.Keyspace, r.Iterations, r.Concurrency = int(v), int64(v), 1
	case "scale":
		r.Scale, r.Protocol = int(v), "simple" // pgbench's default
	case "samples", "loaders":
		r.Settings[column] = int(v)
	default:
		return fmt.Errorf("no such column")
	}
	return nil
}

// follow fills the figures that follow from the published ones.
func follow(r *bench.Result) {
	if r.NSPerOp == nil && r.OpsPerSec == nil {
		r.NSPerOp = bench.NewFigure(float64(r.ElapsedNS) / float64(r.Iterations))
		r.OpsPerSec = bench.NewRate(float64(r.Iterations) / float64(r.ElapsedNS) * 1e9)
	}
	if r.NSPerOp == nil {
		r.NSPerOp = bench.NewFigure(1e9 / float64(*r.OpsPerSec))
	}
	if r.OpsPerSec == nil {
		r.OpsPerSec = bench.NewRate(1e9 / float64(*r.NSPerOp))
	}
	if r.ElapsedNS == 0 {
		r.ElapsedNS = int64(math.Round(float64(r.Iterations) / float64(*r.OpsPerSec) * 1e9))
	}
}
