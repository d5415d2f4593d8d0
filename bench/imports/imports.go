// Package imports reads what other benchmark tools print, and the reports of nsop itself, and tells them apart by
// content.
package imports

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
	"strings"
	"unicode"

	"nsop/bench"
)

// Options are what a file does not say of itself. They fill what it leaves open and override nothing; a report of
// nsop's own leaves nothing open.
type Options struct {
	Target      string // name of the target; "" is the tool's name
	Concurrency int    // 0 is unknown, as in the three below
	Pipeline    int
	Size        int // bytes
	Keyspace    int
	Labels      map[string]string
}

// An Error says what is wrong with a file and where.
type Error struct {
	Line int // from 1
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

func errorf(line int, format string, args ...any) error {
	return &Error{max(line, 1), fmt.Errorf(format, args...)}
}

// maxRows bounds the results of one file.
const maxRows = 20_000

// formats are told by the first line that is one of theirs.
var formats = []struct {
	name string
	is   func(line string) bool
	read func(data []byte, o Options) ([]*bench.Report, error)
}{
	{"JSON of nsop or memtier, go test -json", isJSON, readJSON},
	{"redis-benchmark CSV", isRedisCSV, one(readRedisCSV)},
	{"pgbench text", isPgbench, one(readPgbench)},
	{"Go benchmark text", isGoBenchmark, one(readGoBenchmark)},
	{"redis-benchmark text", isRedisText, one(readRedisText)},
}

func one(read func(data []byte, o Options) (*bench.Report, error)) func([]byte, Options) ([]*bench.Report, error) {
	return func(data []byte, o Options) ([]*bench.Report, error) {
		r, err := read(data, o)
		if err != nil {
			return nil, err
		}
		return []*bench.Report{r}, nil
	}
}

// Read returns the reports of a file, whose size the caller bounds. All but nsop's own are marked as imported and have
// no run id, and no start where the tool does not print it: the caller gives them one. A parameter that neither the file
// nor o tells is 0 and not in a row's name. A broken file is an *Error, and none of its reports is returned.
func Read(r io.Reader, o Options) ([]*bench.Report, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for _, text := range lines(data) {
		for _, f := range formats {
			if f.is(text) {
				return f.read(data, o)
			}
		}
	}
	var names []string
	for _, f := range formats {
		names = append(names, f.name)
	}
	return nil, errorf(1, "no known format: want %s", strings.Join(names, ", "))
}

// lines yields the lines of data from 1 on, without their ends.
func lines(data []byte) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		n := 0
		for text := range strings.Lines(string(data)) {
			n++
			if !yield(n, strings.TrimRight(text, "\r\n")) {
				return
			}
		}
	}
}

func newReport(tool, kind string, o Options) *bench.Report {
	return &bench.Report{Imported: tool, Target: &bench.TargetInfo{Name: cmp.Or(o.Target, tool), Kind: kind},
		Assertions: []bench.Assertion{}, Warnings: []string{}}
}

// maxName bounds a workload in bytes: a command of one's own is called by all of its arguments.
const maxName = 256

// newResult starts a row of a workload: it has no figures yet.
func newResult(workload string) *bench.Result {
	workload = strings.TrimSpace(oneLine(workload[:min(len(workload), maxName)]))
	return &bench.Result{Workload: cmp.Or(workload, "other"), ErrorKinds: map[string]int64{}, ErrorSamples: map[string]string{},
		Settings: map[string]any{}, Warnings: []string{}}
}

// add adds rows, which stood on line n, unless there are too many: a row takes more memory than its line.
func add(p *bench.Report, n int, rows ...*bench.Result) error {
	if p.Results = append(p.Results, rows...); len(p.Results) > maxRows {
		return errorf(n, "more than %d rows", maxRows)
	}
	return nil
}

// finish completes what follows from what has been read: names, samples, one figure from another. last is the file's
// last line.
func finish(p *bench.Report, o Options, last int) (*bench.Report, error) {
	if len(p.Results) == 0 {
		return nil, errorf(last, "no results of %s up to here", p.Imported)
	}
	samples := map[string]int{}
	for _, r := range p.Results {
		r.Target = cmp.Or(r.Target, p.Target.Name)
		r.Client = cmp.Or(r.Client, p.Imported)
		r.Concurrency = cmp.Or(r.Concurrency, o.Concurrency)
		if r.Scale == 0 && r.Protocol == "" {
			r.Pipeline, r.Size, r.Keyspace = cmp.Or(r.Pipeline, o.Pipeline), cmp.Or(r.Size, o.Size), cmp.Or(r.Keyspace, o.Keyspace)
		}
		if len(o.Labels) > 0 && r.Labels == nil {
			r.Labels = map[string]string{}
		}
		for name, value := range o.Labels {
			if _, ok := r.Labels[name]; !ok {
				r.Labels[name] = value
			}
		}
		if r.Name == "" {
			r.Name = Name(r)
		}
		samples[r.Name]++
		r.Sample = samples[r.Name]
		if r.OpsPerSec != nil {
			if r.NSPerOp == nil {
				r.NSPerOp = bench.NewFigure(1e9 / float64(*r.OpsPerSec))
			}
			if elapsed := float64(r.Iterations) / float64(*r.OpsPerSec) * 1e9; r.ElapsedNS == 0 && elapsed < math.MaxInt64/2 {
				r.ElapsedNS = int64(math.Round(elapsed))
			}
		}
		if r.Iterations > 0 && r.Iterations < 100 {
			r.Latency.P99 = nil
		}
		if r.Iterations > 0 && r.Iterations < 1000 {
			r.Latency.P999 = nil
		}
	}
	return p, nil
}

// Name is r's name in the form of bench.Row.Name, without the parameters that are unknown.
func Name(r *bench.Result) string {
	w := bench.Workload{Name: safe(r.Workload, "_")}
	row := bench.Row{Workload: &w, Target: &bench.Target{Name: safe(r.Target, "-")}, Client: bench.Client{Name: safe(r.Client, "-")},
		Concurrency: r.Concurrency, Pipeline: r.Pipeline, Size: r.Size, Keyspace: r.Keyspace, Scale: r.Scale, Protocol: r.Protocol,
		Flavor: cmp.Or(r.Flavor, "sound"), Sync: cmp.Or(r.Sync, "off")}
	if r.Scale > 0 || r.Protocol != "" {
		w.Kinds = []string{"postgres"}
	}
	var known []string
	for part := range strings.SplitSeq(row.Name(), "/") {
		if key, value, _ := strings.Cut(part, "="); key == "target" || value != "0" && !strings.HasSuffix(part, "=") {
			known = append(known, part)
		}
	}
	return strings.Join(known, "/")
}

// safe makes s a part of a name: what would end the part, or the name, becomes by.
func safe(s, by string) string {
	words := strings.FieldsFunc(s, func(c rune) bool {
		return strings.ContainsRune("/=,;\"'`<>", c) || string(c) == by || unicode.IsSpace(c) || unicode.IsControl(c) || c == unicode.ReplacementChar ||
			c > unicode.MaxASCII
	})
	return cmp.Or(strings.Join(words, by), "other")
}

// oneLine makes s valid UTF-8 without control characters.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
}

// findWorkload returns the name of the workload of which is holds, or "".
func findWorkload(is func(w *bench.Workload) bool) string {
	for i := range bench.Workloads {
		if is(&bench.Workloads[i]) {
			return bench.Workloads[i].Name
		}
	}
	return ""
}

// commandWorkload is the workload of a Redis or Memcached command, or the command itself in lower case.
func commandWorkload(command string) string {
	command = strings.ToLower(command)
	return cmp.Or(findWorkload(func(w *bench.Workload) bool { return w.Name == command || w.Alias == command }), command)
}

var errNegative = errors.New("is negative or no number")

// number reads a decimal number as C prints it, which may be no number or infinite.
func number(text string) (float64, error) {
	switch strings.ToLower(text) {
	case "inf":
		return math.Inf(1), nil
	case "-inf", "nan", "-nan":
		return math.NaN(), nil
	}
	if strings.ContainsAny(text, "xXpP_") {
		return 0, fmt.Errorf("%q %w", text, errNegative)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0) || math.Signbit(v) {
		return 0, fmt.Errorf("%q %w", text, errNegative)
	}
	return v, nil
}

// rate is v, a number a second, as the tool printed it: not rounded, so that it can be written again. It is nil where
// nothing completed, and where no machine can be that slow or fast: a figure would be rounded to 0.
func rate(v float64) *bench.Figure {
	if !(v >= 1e-9 && v <= 1e12) {
		return nil
	}
	f := bench.Figure(v)
	return &f
}

// nanoseconds is a time in milliseconds; nil where that is no number or takes centuries.
func nanoseconds(ms float64) *int64 {
	if !(ms >= 0 && ms < 1e12) {
		return nil
	}
	ns := int64(math.Round(ms * 1e6))
	return &ns
}

// count reads a whole number that is not negative.
func count(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is no whole number", text)
	}
	return n, nil
}

// parameter reads a whole number that is a row's parameter.
func parameter(text string) (int, error) {
	n, err := count(text)
	if err != nil || n > math.MaxInt32 {
		return 0, fmt.Errorf("%q is no whole number up to %d", text, math.MaxInt32)
	}
	return int(n), nil
}
