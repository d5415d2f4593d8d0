package imports

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"

	"nsop/bench"
)

func isGoBenchmark(line string) bool {
	for _, prefix := range []string{"goos: ", "goarch: ", "pkg: ", "Unit "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	rest, ok := strings.CutPrefix(line, "Benchmark")
	return ok && len(rest) > 0 && !('a' <= rest[0] && rest[0] <= 'z')
}

// readGoBenchmark reads what go test -bench prints, and what format benchfmt writes: a name in the form of bench.Row.Name
// is read as such.
func readGoBenchmark(data []byte, o Options) (*bench.Report, error) {
	return readGoLines(data, o, nil)
}

// readGoLines reads text whose line n came from line source[n-1]; source nil says they are the same.
func readGoLines(data []byte, o Options, source []int) (*bench.Report, error) {
	at := func(n int) int {
		if n < 1 || n > len(source) {
			return n
		}
		return source[n-1]
	}
	p := newReport("go-benchmark", "", o)
	all := slices.Collect(func(yield func(string) bool) {
		for _, line := range lines(data) {
			if !yield(line) {
				return
			}
		}
	})
	for _, line := range all {
		for _, prefix := range []string{"--- FAIL: Benchmark", "# failed: Benchmark"} { // the second is of format benchfmt
			if text, ok := strings.CutPrefix(line, prefix); ok {
				p.Warnings = append(p.Warnings, "failed: "+oneLine(text))
			}
		}
	}
	reader := benchfmt.NewReader(bytes.NewReader(data), "")
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			// A sentence that begins with Unit is none of the format's.
			if i := rec.Line - 1; i >= 0 && i < len(all) && strings.HasPrefix(all[i], "Benchmark") {
				return nil, errorf(at(rec.Line), "%s", rec.Msg)
			}
		case *benchfmt.Result:
			r, err := goResult(rec, o)
			if err != nil {
				_, n := rec.Pos()
				return nil, errorf(at(n), "%w", err)
			}
			if len(p.Results) == 0 {
				goReport(p, rec)
			}
			_, n := rec.Pos()
			if err := add(p, at(n), r); err != nil {
				return nil, err
			}
		}
	}
	if err := reader.Err(); err != nil {
		return nil, errorf(at(len(all)), "%w", errors.Unwrap(err))
	}
	p, err := finish(p, o, at(len(all)))
	if err == nil {
		goTargets(p)
	}
	return p, err
}

// goReport stores what the configuration lines say of the whole.
func goReport(p *bench.Report, rec *benchfmt.Result) {
	vantage := map[string]any{}
	for _, key := range []string{"goos", "goarch", "cpu", "platform", "region"} {
		if v := oneLine(strings.TrimSpace(rec.GetConfig(key))); v != "" {
			vantage[key] = v
		}
	}
	if len(vantage) > 0 {
		p.Vantage = vantage
	}
	p.Target.Server = oneLine(rec.GetConfig("server"))
}

// goTargets lists the targets that the rows name, where they are others than the report's.
func goTargets(p *bench.Report) {
	var names []string
	for _, r := range p.Results {
		if !slices.Contains(names, r.Target) {
			names = append(names, r.Target)
		}
	}
	if p.Target.Name = names[0]; len(names) > 1 {
		p.Target = nil
		for _, name := range names {
			p.Targets = append(p.Targets, &bench.TargetInfo{Name: name})
		}
	}
}

// setGoUnit stores a value of a unit of ours and reports whether it is one. A figure that is no number stays nil.
func setGoUnit(r *bench.Result, unit string, v float64) bool {
	whole := func() *int64 { return nanoseconds(v / 1e6) }
	counted := func(n *int64) {
		if v < math.MaxInt64/2 {
			*n = int64(v)
		}
	}
	switch unit {
	case "ns/op":
		if v >= 1e-3 && v <= 1e18 { // beyond, a figure or its inverse would be rounded to 0
			r.NSPerOp = bench.NewFigure(v)
			if r.OpsPerSec == nil {
				r.OpsPerSec = bench.NewRate(1e9 / v)
			}
		}
	case "ops/s":
		r.OpsPerSec = rate(v)
	case "p50-ns/op":
		r.Latency.P50 = whole()
	case "p90-ns/op":
		r.Latency.P90 = whole()
	case "p95-ns/op":
		r.Latency.P95 = whole()
	case "p99-ns/op":
		r.Latency.P99 = whole()
	case "p99.9-ns/op":
		r.Latency.P999 = whole()
	case "max-ns/op":
		r.Latency.Max = whole()
	case "errors":
		counted(&r.Errors)
	case "misses":
		counted(&r.Misses)
	case "mismatches":
		counted(&r.Mismatches)
	case "server-ns/op":
		r.Server = &bench.ServerCost{NSPerCall: bench.NewFigure(v)}
	case "B/op":
		r.BytesPerOp = bench.NewFigure(v)
	case "allocs/op":
		r.AllocsPerOp = bench.NewFigure(v)
	default:
		return false
	}
	return true
}

func goResult(rec *benchfmt.Result, o Options) (*bench.Result, error) {
	base, parts := rec.Name.Parts()
	r := newResult(goWorkload(string(base)))
	var others []string
	for _, part := range parts {
		text := strings.TrimPrefix(string(part), "/")
		if strings.HasPrefix(text, "-") {
			continue // GOMAXPROCS
		}
		known, err := setGoParameter(r, text)
		if err != nil {
			return nil, err
		}
		if !known {
			others = append(others, oneLine(text))
		}
	}
	r.Target, r.Client = cmp.Or(r.Target, o.Target, "go-benchmark"), cmp.Or(r.Client, "go-benchmark")
	if r.Scale == 0 && r.Protocol == "" {
		r.Pipeline, r.Size, r.Keyspace = cmp.Or(r.Pipeline, o.Pipeline), cmp.Or(r.Size, o.Size), cmp.Or(r.Keyspace, o.Keyspace)
	}
	r.Concurrency = cmp.Or(r.Concurrency, o.Concurrency)
	if r.Name = strings.Join(append([]string{Name(r)}, others...), "/"); len(r.Name) > 8*maxName {
		return nil, errors.New("a name that is too long")
	}

	if rec.Iters < 0 {
		return nil, fmt.Errorf("%d iterations", rec.Iters)
	}
	r.Iterations = int64(rec.Iters)
	var unknown []string
	for _, v := range rec.Values {
		value, unit := v.Value, v.Unit
		if v.OrigUnit != "" {
			value, unit = v.OrigValue, v.OrigUnit
		}
		if value < 0 && unit == "ns/op" {
			return nil, fmt.Errorf("%v %s", value, unit)
		}
		if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 || !setGoUnit(r, unit, value) {
			unknown = append(unknown, oneLine(unit))
		}
	}
	if len(unknown) > 0 {
		r.Warnings = append(r.Warnings, "not imported: "+strings.Join(unknown, ", "))
	}
	if r.NSPerOp != nil {
		if elapsed := float64(*r.NSPerOp) * float64(r.Iterations); elapsed < math.MaxInt64/2 {
			r.ElapsedNS = int64(math.Round(elapsed))
		}
	}
	if r.Errors > 0 {
		r.ErrorKinds["other"] = r.Errors
	}
	if pkg := rec.GetConfig("pkg"); pkg != "" && pkg != "nsop" && bench.CheckLabel("pkg", pkg) == nil {
		r.Labels = map[string]string{"pkg": pkg}
	}
	return r, nil
}

// goWorkload is the workload that a row's name begins with, or the benchmark's name.
func goWorkload(base string) string {
	return cmp.Or(findWorkload(func(w *bench.Workload) bool {
		title, _, _ := strings.Cut(bench.Row{Workload: w, Target: &bench.Target{}}.Name(), "/")
		return title == base
	}), base)
}

// setGoParameter stores a part of a name in the form of bench.Row.Name, and reports whether it is one.
func setGoParameter(r *bench.Result, part string) (known bool, err error) {
	key, value, ok := strings.Cut(part, "=")
	if !ok || value == "" {
		return false, nil
	}
	value = oneLine(value)
	switch key {
	case "target":
		r.Target = value
	case "client":
		r.Client = value
	case "concurrency":
		r.Concurrency, err = parameter(value)
	case "pipeline":
		r.Pipeline, err = parameter(value)
	case "size":
		r.Size, err = parameter(value)
	case "keyspace":
		r.Keyspace, err = parameter(value)
	case "scale":
		r.Scale, err = parameter(value)
	case "protocol":
		r.Protocol = value
	case "flavor":
		r.Flavor = value
	case "sync":
		r.Sync = value
	default:
		return false, nil
	}
	return err == nil, nil // another's parameter of that name, such as size=1KB, stays as it is
}

// readGoJSON reads the events of go test -json: the lines of a benchmark come in pieces.
func readGoJSON(data []byte, o Options) (*bench.Report, error) {
	type event struct{ Action, Package, Test, Output string }
	var text bytes.Buffer
	var source []int
	type pending struct {
		line int
		text []byte
	}
	parts := map[[2]string]*pending{}
	for n, line := range lines(data) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, errorf(n, "%w", err)
		}
		if e.Action != "output" {
			continue
		}
		key := [2]string{e.Package, e.Test}
		p := parts[key]
		if p == nil {
			p = &pending{}
			parts[key] = p
		}
		if len(p.text) == 0 {
			p.line = n
		}
		if p.text = append(p.text, e.Output...); bytes.HasSuffix(p.text, []byte("\n")) {
			text.Write(p.text)
			for range bytes.Count(p.text, []byte("\n")) {
				source = append(source, p.line)
			}
			p.text = p.text[:0]
		}
	}
	if len(source) == 0 {
		return nil, errorf(1, "no output of go test")
	}
	return readGoLines(text.Bytes(), o, source)
}
