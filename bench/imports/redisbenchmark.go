package imports

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"

	"nsop/bench"
)

const redisBenchmark = "redis-benchmark"

// columns are those of redis-benchmark's CSV and of its latency summary.
var columns = []struct {
	csv, summary string
	of           func(l *bench.Latency) **int64
}{
	{"avg_latency_ms", "avg", func(l *bench.Latency) **int64 { return &l.Mean }},
	{"min_latency_ms", "min", func(l *bench.Latency) **int64 { return &l.Min }},
	{"p50_latency_ms", "p50", func(l *bench.Latency) **int64 { return &l.P50 }},
	{"p95_latency_ms", "p95", func(l *bench.Latency) **int64 { return &l.P95 }},
	{"p99_latency_ms", "p99", func(l *bench.Latency) **int64 { return &l.P99 }},
	{"max_latency_ms", "max", func(l *bench.Latency) **int64 { return &l.Max }},
}

func isRedisCSV(line string) bool {
	return strings.HasPrefix(line, `"`) && strings.Contains(line, `","`) || strings.HasPrefix(line, "test,rps")
}

// readRedisCSV reads what --csv prints: since 6.2 a header and eight columns, before it a title and a rate. Titles are
// not escaped, and so columns are counted from the right.
func readRedisCSV(data []byte, o Options) (*bench.Report, error) {
	p := newReport(redisBenchmark, "redis", o)
	names := []string{"test", "rps"}
	last, started := 1, false
	for n, line := range lines(data) {
		last = n
		if line == "" || !started && !isRedisCSV(line) { // of a cluster, its nodes come first
			continue
		}
		started = true
		if fields, err := csvFields(line, -1); err == nil && fields[0] == "test" {
			names = fields
			continue
		}
		fields, err := csvFields(line, len(names))
		if err != nil {
			return nil, errorf(n, "%w", err)
		}
		r := newResult(TitleWorkload(fields[0]))
		empty := false
		for i, name := range names[1:] {
			v, err := number(fields[i+1])
			if err != nil {
				return nil, errorf(n, "%s: %w", name, err)
			}
			if setColumn(r, name, v); name == "rps" {
				empty = !(v > 0)
			}
		}
		if empty { // whose latencies are printed as 0
			r.Latency = bench.Latency{}
		}
		if err := add(p, n, r); err != nil {
			return nil, err
		}
	}
	return finish(p, o, last)
}

// csvFields splits a line of n columns, of as many as there are where n is below 0.
func csvFields(line string, n int) ([]string, error) {
	separator := ","
	if strings.HasPrefix(line, `"`) {
		separator = `","`
		if len(line) < 2 || !strings.HasSuffix(line, `"`) {
			return nil, fmt.Errorf("a quoted column does not end: the file is cut off")
		}
		line = line[1 : len(line)-1]
	}
	if n < 0 {
		return strings.Split(line, separator), nil
	}
	fields := make([]string, n)
	for i := n - 1; i > 0; i-- {
		at := strings.LastIndex(line, separator)
		if at < 0 {
			return nil, fmt.Errorf("%d columns, want %d", n-i, n)
		}
		line, fields[i] = line[:at], line[at+len(separator):]
	}
	if fields[0] = line; line == "" {
		return nil, fmt.Errorf("a test without a title")
	}
	return fields, nil
}

// setColumn stores a value of the CSV. One that is not known is passed over: a later version may add some.
func setColumn(r *bench.Result, name string, v float64) {
	if name == "rps" {
		if math.IsInf(v, 0) {
			r.Warnings = append(r.Warnings, "redis-benchmark printed no rate: the test took less than 1 ms")
		}
		r.OpsPerSec = rate(v)
	}
	for _, c := range columns {
		if c.csv == name {
			*c.of(&r.Latency) = nanoseconds(v)
		}
	}
}

// TitleWorkload is the workload that redis-benchmark, of any version, calls title; the title itself where there is none.
func TitleWorkload(title string) string {
	title = strings.TrimSpace(title)
	if title == "PING_BULK" { // up to 6.0
		return "ping_mbulk"
	}
	if name := findWorkload(func(w *bench.Workload) bool { return w.Title != "" && w.Title == title }); name != "" {
		return name
	}
	short, _, _ := strings.Cut(title, " (") // up to 6.2.2: LRANGE_500 (first 450 elements)
	if name := findWorkload(func(w *bench.Workload) bool {
		return strings.HasPrefix(w.Title, short+" (") && strings.EqualFold(w.Name, short)
	}); name != "" {
		return name
	}
	return title
}

func isRedisText(line string) bool {
	return strings.Contains(line, "====== ") && strings.HasSuffix(line, " ======") || strings.Contains(line, " requests per second") ||
		strings.Contains(line, ": rps=")
}

var (
	redisRate  = regexp.MustCompile(`^\s*(?:throughput summary: )?(\S+) requests per second\s*$`)
	redisQuiet = regexp.MustCompile(`^(.+): (\S+) requests per second(?:, p50=(\S+) msec)?\s*$`)
	redisHead  = regexp.MustCompile(`^  (\S+) (requests completed in|parallel clients|bytes payload)(?: (\S+) seconds)?$`)
	redisSet   = regexp.MustCompile(`^  (keep alive|multi-thread|threads): (\S+)$`)
)

// A redisBlock is the part of the text output on one test.
type redisBlock struct {
	line    int
	title   string
	result  *bench.Result
	rate    bool     // has been read
	empty   bool     // it says that nothing completed
	summary []string // names of the columns, which come before their values
	wants   bool     // a latency summary must follow
}

func (b *redisBlock) check() error {
	switch {
	case b == nil:
		return nil
	case !b.rate:
		return errorf(b.line, "test %s has no result: the file is cut off", b.title)
	case b.wants:
		return errorf(b.line, "test %s has no latency summary: the file is cut off", b.title)
	}
	return nil
}

// readRedisText reads the text output with and without -q, of every version. What is not known of a file is passed over:
// percentiles, configuration, warnings.
func readRedisText(data []byte, o Options) (*bench.Report, error) {
	p := newReport(redisBenchmark, "redis", o)
	var b *redisBlock
	last := 1
	for n, line := range lines(data) {
		last = n
		// Progress is written over itself, the next test behind it.
		for text := range strings.SplitSeq(line, "\r") {
			var err error
			if b, err = redisLine(p, b, n, text); err != nil {
				return nil, err
			}
		}
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	if tail := data[bytes.LastIndexAny(data, "\r\n")+1:]; b == nil && len(bytes.TrimSpace(tail)) > 0 && !redisQuiet.Match(tail) {
		return nil, errorf(last, "a line without its end: the file is cut off")
	}
	return finish(p, o, last)
}

// redisLine reads one line of the block b, or of the next, and returns the block that goes on.
func redisLine(p *bench.Report, b *redisBlock, n int, text string) (*redisBlock, error) {
	if title, ok := strings.CutPrefix(text, "====== "); ok && strings.HasSuffix(title, " ======") {
		if err := b.check(); err != nil {
			return nil, err
		}
		title = strings.TrimSuffix(title, " ======")
		b = &redisBlock{line: n, title: oneLine(title), result: newResult(TitleWorkload(title))}
		return b, add(p, n, b.result)
	}
	if b != nil && redisRate.MatchString(text) {
		v, err := number(redisRate.FindStringSubmatch(text)[1])
		if err != nil {
			return nil, errorf(n, "requests per second: %w", err)
		}
		setColumn(b.result, "rps", v)
		b.rate, b.empty, b.wants = true, !(v > 0), strings.Contains(text, "throughput summary")
		return b, nil
	}
	if m := redisQuiet.FindStringSubmatch(text); m != nil {
		r := newResult(TitleWorkload(m[1]))
		v, err := number(m[2])
		if err != nil {
			return nil, errorf(n, "requests per second: %w", err)
		}
		setColumn(r, "rps", v)
		if m[3] != "" {
			p50, err := number(m[3])
			if err != nil {
				return nil, errorf(n, "p50: %w", err)
			}
			if v > 0 {
				r.Latency.P50 = nanoseconds(p50)
			}
		}
		return b, add(p, n, r)
	}
	if b == nil {
		return nil, nil
	}
	switch {
	case strings.HasPrefix(text, "  latency summary (msec):"):
		b.summary = []string{}
	case b.summary != nil && len(b.summary) == 0:
		b.summary = strings.Fields(text)
	case len(b.summary) > 0:
		return b, b.latencies(n, strings.Fields(text))
	default:
		return b, b.head(n, text)
	}
	return b, nil
}

func (b *redisBlock) latencies(n int, fields []string) error {
	if len(fields) != len(b.summary) {
		return errorf(n, "latency summary: %d values for %d columns", len(fields), len(b.summary))
	}
	for i, name := range b.summary {
		v, err := number(fields[i])
		if err != nil {
			return errorf(n, "%s: %w", name, err)
		}
		for _, c := range columns {
			if c.summary == name && !b.empty {
				*c.of(&b.result.Latency) = nanoseconds(v)
			}
		}
	}
	b.summary, b.wants = nil, false
	return nil
}

func (b *redisBlock) head(n int, text string) (err error) {
	r := b.result
	if m := redisHead.FindStringSubmatch(text); m != nil {
		switch m[2] {
		case "requests completed in":
			if r.Iterations, err = count(m[1]); err == nil {
				_, err = number(m[3]) // the rate tells it with more digits
			}
		case "parallel clients":
			r.Concurrency, err = parameter(m[1])
		case "bytes payload":
			var n int
			if n, err = parameter(m[1]); findWorkload(func(w *bench.Workload) bool { return w.Name == r.Workload }) != "" {
				r.Size = n
			} else {
				r.Settings["command_bytes"] = n // of a command of one's own, it is the whole
			}
		}
		if err != nil {
			return errorf(n, "%s: %w", m[2], err)
		}
	}
	if m := redisSet.FindStringSubmatch(text); m != nil {
		r.Settings[strings.NewReplacer(" ", "_", "-", "_").Replace(m[1])] = m[2]
	}
	return nil
}
