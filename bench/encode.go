package bench

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// EncodeOptions are what a format may need beside the report.
type EncodeOptions struct {
	Terminal bool   // colour and non-ASCII text are allowed
	NoColor  bool   // no colour, on a terminal either
	URL      string // of the service, without a path: permalinks begin with it; "" for none
	Width    int    // columns at which text wraps; 0 is 100
	Inline   bool   // svg is for a page that has chart.CSS among its styles
}

// A Format writes a report.
type Format struct {
	Name        string
	ContentType string
	Accept      string // the media type that chooses it; "" where only its name does
	// Encode writes r, which it leaves as it is. Where it can't encode r it writes nothing, and
	// the error is an *UnsupportedError if that is no fault.
	Encode func(w io.Writer, r *Report, o EncodeOptions) error
}

// Formats is the table of formats. The first is the default.
var Formats = []Format{
	{"json", "application/json", "application/json", encodeJSON},
	{"text", "text/plain; charset=utf-8", "text/plain", encodeText},
	{"markdown", "text/markdown; charset=utf-8", "text/markdown", encodeMarkdown},
	{"csv", "text/csv; charset=utf-8; header=present", "text/csv", encodeCSV},
	{"benchfmt", "text/plain; charset=utf-8", "text/x-go-bench", encodeBenchfmt},
	{"redis-benchmark", "text/csv; charset=utf-8; header=present", "", encodeRedisBenchmark},
	{"prometheus", "text/plain; version=0.0.4; charset=utf-8", "", encodePrometheus},
	{"github-action-benchmark", "application/json", "", encodeGitHubAction},
	{"bencher", "application/json", "", encodeBencher},
	{"svg", "image/svg+xml", "image/svg+xml", encodeSVG},
}

// FormatByName returns the format called name.
func FormatByName(name string) (Format, bool) {
	for _, f := range Formats {
		if f.Name == name {
			return f, true
		}
	}
	return Format{}, false
}

// NegotiateAccept returns the format an Accept header prefers, the first of Formats among equals. Where the header
// accepts none of them it returns the default and false.
func NegotiateAccept(header string) (Format, bool) {
	if strings.TrimSpace(header) == "" {
		return Formats[0], true
	}
	var best Format
	bestQ := 0.0
	for _, f := range Formats {
		if q := quality(header, f.Accept); f.Accept != "" && q > bestQ {
			best, bestQ = f, q
		}
	}
	if bestQ == 0 {
		return Formats[0], false
	}
	return best, true
}

// AcceptQuality is how much an Accept header wants mediaType, from 0 to 1: 0 where it does not accept it.
func AcceptQuality(header, mediaType string) float64 { return quality(header, mediaType) }

// quality returns the q-value of mediaType in an Accept header: that of the most specific range it is in, 0 if none
// (RFC 9110, 12.5.1). A range that does not parse is passed over.
func quality(header, mediaType string) float64 {
	main, _, _ := strings.Cut(mediaType, "/")
	q, specific := 0.0, 0
	for part := range strings.SplitSeq(header, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		s := map[string]int{"*/*": 1, main + "/*": 2, mediaType: 3}[name]
		weight := 1.0
		if text, ok := params["q"]; ok {
			weight, err = strconv.ParseFloat(text, 64)
			if err != nil || !(weight >= 0 && weight <= 1) {
				continue
			}
		}
		if s > specific {
			q, specific = weight, s
		}
	}
	return q
}

// Normalize returns a copy of r that encodes as the contract has it: no list or map is null, and no number is NaN or
// infinite.
func (r *Report) Normalize() *Report {
	c := *r
	c.Results = NormalizeResults(r.Results)
	c.Assertions = notNil(r.Assertions)
	c.Warnings = notNil(r.Warnings)
	return &c
}

// NormalizeResults is Normalize for results that stand in something else than a report.
func NormalizeResults(results []*Result) []*Result {
	out := make([]*Result, len(results))
	for i, r := range results {
		c := *r
		for _, f := range []**Figure{&c.NSPerOp, &c.OpsPerSec, &c.BytesPerOp, &c.AllocsPerOp, &c.ClientCPU} {
			*f = onlyFinite(*f)
		}
		if c.Server != nil {
			c.Server = &ServerCost{onlyFinite(c.Server.NSPerCall), onlyFinite(c.Server.CPUPercent)}
		}
		if c.ErrorKinds == nil {
			c.ErrorKinds = map[string]int64{}
		}
		if c.ErrorSamples == nil {
			c.ErrorSamples = map[string]string{}
		}
		c.Settings = make(map[string]any, len(r.Settings))
		for name, v := range r.Settings {
			if f, ok := v.(float64); ok && !finite(f) {
				v = nil
			}
			c.Settings[name] = v
		}
		c.Warnings = notNil(r.Warnings)
		out[i] = &c
	}
	return out
}

func onlyFinite(f *Figure) *Figure {
	if f == nil || !finite(float64(*f)) {
		return nil
	}
	return f
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// encodeJSON indents: people read it through curl.
func encodeJSON(w io.Writer, r *Report, _ EncodeOptions) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // "p99<3ms" is to be read, and no browser takes JSON for HTML
	e.SetIndent("", "  ")
	if err := e.Encode(r.Body()); err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// csvColumns are the columns in order; a label.NAME column for each label follows them.
var csvColumns = []struct {
	name string
	of   func(*Report, *Result) string
}{
	{"run", func(p *Report, _ *Result) string { return p.Run }},
	{"started_at", func(p *Report, _ *Result) string { return p.StartedAt.Format(time.RFC3339Nano) }},
	{"name", func(_ *Report, r *Result) string { return r.Name }},
	{"target", func(_ *Report, r *Result) string { return r.Target }},
	{"embedded", func(_ *Report, r *Result) string { return strconv.FormatBool(r.Embedded) }},
	{"workload", func(_ *Report, r *Result) string { return r.Workload }},
	{"client", func(_ *Report, r *Result) string { return r.Client }},
	{"client_version", func(_ *Report, r *Result) string { return r.ClientVersion }},
	{"concurrency", func(_ *Report, r *Result) string { return strconv.Itoa(r.Concurrency) }},
	{"pipeline", func(_ *Report, r *Result) string { return csvSetting(r.Pipeline) }},
	{"size", func(_ *Report, r *Result) string { return csvSetting(r.Size) }},
	{"keyspace", func(_ *Report, r *Result) string { return csvSetting(r.Keyspace) }},
	{"flavor", func(_ *Report, r *Result) string { return r.Flavor }},
	{"sync", func(_ *Report, r *Result) string { return r.Sync }},
	{"scale", func(_ *Report, r *Result) string { return csvSetting(r.Scale) }},
	{"protocol", func(_ *Report, r *Result) string { return r.Protocol }},
	{"rate", func(_ *Report, r *Result) string {
		if r.Rate == 0 {
			return ""
		}
		return formatRate(r.Rate)
	}},
	{"shape", func(_ *Report, r *Result) string { return r.Shape }},
	{"sample", func(_ *Report, r *Result) string { return strconv.Itoa(r.Sample) }},
	{"iterations", func(_ *Report, r *Result) string { return strconv.FormatInt(r.Iterations, 10) }},
	{"elapsed_ns", func(_ *Report, r *Result) string { return strconv.FormatInt(r.ElapsedNS, 10) }},
	{"ns_per_op", func(_ *Report, r *Result) string { return csvFigure(r.NSPerOp) }},
	{"ops_per_sec", func(_ *Report, r *Result) string { return csvFigure(r.OpsPerSec) }},
	{"latency_min_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.Min) }},
	{"latency_mean_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.Mean) }},
	{"latency_stddev_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.Stddev) }},
	{"latency_p50_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.P50) }},
	{"latency_p90_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.P90) }},
	{"latency_p95_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.P95) }},
	{"latency_p99_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.P99) }},
	{"latency_p99_9_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.P999) }},
	{"latency_max_ns", func(_ *Report, r *Result) string { return csvInt(r.Latency.Max) }},
	{"service_p50_ns", func(_ *Report, r *Result) string { return csvInt(r.serviceTimes().P50) }},
	{"service_p99_ns", func(_ *Report, r *Result) string { return csvInt(r.serviceTimes().P99) }},
	{"late", func(_ *Report, r *Result) string { return csvInt(r.Late) }},
	{"longest_stall_ns", func(_ *Report, r *Result) string { return csvInt(r.LongestStall) }},
	{"errors", func(_ *Report, r *Result) string { return strconv.FormatInt(r.Errors, 10) }},
	{"error_kinds", func(_ *Report, r *Result) string { return errorKinds(r) }},
	{"misses", func(_ *Report, r *Result) string { return strconv.FormatInt(r.Misses, 10) }},
	{"mismatches", func(_ *Report, r *Result) string { return strconv.FormatInt(r.Mismatches, 10) }},
	{"connections", func(_ *Report, r *Result) string { return strconv.Itoa(r.Connections) }},
	{"connect_ns", func(_ *Report, r *Result) string { return csvInt(r.ConnectNS) }},
	{"bytes_per_op", func(_ *Report, r *Result) string { return csvFigure(r.BytesPerOp) }},
	{"allocs_per_op", func(_ *Report, r *Result) string { return csvFigure(r.AllocsPerOp) }},
	{"client_cpu_percent", func(_ *Report, r *Result) string { return csvFigure(r.ClientCPU) }},
	{"throttled_ns", func(_ *Report, r *Result) string { return csvInt(r.ThrottledNS) }},
	{"server_ns_per_call", func(_ *Report, r *Result) string {
		if r.Server == nil {
			return ""
		}
		return csvFigure(r.Server.NSPerCall)
	}},
	{"server_cpu_percent", func(_ *Report, r *Result) string {
		if r.Server == nil {
			return ""
		}
		return csvFigure(r.Server.CPUPercent)
	}},
}

// serviceTimes are r's service time, without figures where r has none.
func (r *Result) serviceTimes() Latency {
	if r.Service == nil {
		return Latency{}
	}
	return *r.Service
}

// encodeCSV writes a header and a line for each sample of each row. An empty field is a value that is null in the JSON.
func encodeCSV(w io.Writer, r *Report, _ EncodeOptions) error {
	labels := map[string]bool{}
	for _, res := range r.Results {
		for name := range res.Labels {
			labels[name] = true
		}
	}
	labelNames := slices.Sorted(maps.Keys(labels))

	c := csv.NewWriter(w)
	var record []string
	for _, col := range csvColumns {
		record = append(record, col.name)
	}
	for _, name := range labelNames {
		record = append(record, "label."+name)
	}
	c.Write(record) // the writer keeps its first error for the end
	for _, res := range r.Results {
		record = record[:0]
		for _, col := range csvColumns {
			record = append(record, col.of(r, res))
		}
		for _, name := range labelNames {
			record = append(record, res.Labels[name])
		}
		c.Write(record)
	}
	c.Flush()
	return c.Error()
}

func csvFigure(f *Figure) string {
	if f = onlyFinite(f); f == nil {
		return ""
	}
	return f.String()
}

// csvSetting is empty for a parameter that a row does not have.
func csvSetting(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func csvInt(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// errorKinds writes the kinds with their counts, the most frequent first: "timeout=97 reset=3".
func errorKinds(r *Result) string {
	var parts []string
	for _, kind := range sortedKinds(r) {
		parts = append(parts, kind+"="+strconv.FormatInt(r.ErrorKinds[kind], 10))
	}
	return strings.Join(parts, " ")
}

func sortedKinds(r *Result) []string {
	return slices.SortedFunc(maps.Keys(r.ErrorKinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.ErrorKinds[b], r.ErrorKinds[a]), cmp.Compare(a, b))
	})
}

// encodeBenchfmt writes the Go benchmark format (https://golang.org/design/14313-benchmark-format). Its configuration
// lines hold only what is the same in every run of one setup, since benchstat compares nothing across a difference in
// them: no identifier, no time, no label (a label often is what tells two runs apart).
func encodeBenchfmt(w io.Writer, r *Report, _ EncodeOptions) error {
	var b bytes.Buffer
	config := func(key, value string) {
		if value = oneLine(value); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	v := vantageOf(r)
	if r.Vantage != nil {
		config("goos", cmp.Or(v.GOOS, runtime.GOOS))
		config("goarch", cmp.Or(v.GOARCH, runtime.GOARCH))
	}
	config("pkg", "nsop")
	if r.Target != nil {
		config("target", r.Target.Name)
		config("server", r.Target.Server)
	} else {
		// One line for all: were it to change between rows, stores could not be compared with each other.
		var servers []string
		for _, t := range r.Targets {
			servers = append(servers, strings.TrimSpace(t.Name+" "+t.Server))
		}
		config("targets", strings.Join(servers, ", "))
	}
	config("platform", v.Platform)
	config("region", v.Region)
	for _, u := range Units {
		switch u.Bench {
		case "", "ns/op", "B/op", "allocs/op": // these benchstat knows
		default:
			fmt.Fprintf(&b, "Unit %s better=%s\n", u.Bench, u.Better)
		}
	}
	b.WriteByte('\n')

	width := 0
	for _, res := range r.Results {
		width = max(width, len(benchName(res)))
	}
	for _, res := range r.Results {
		name := benchName(res)
		if _, ok := figure(res.NSPerOp); !ok {
			// No line of the format: readers pass over it, people see it.
			fmt.Fprintf(&b, "# failed: %s: %s\n", name, oneLine(strings.Join(failure(res), "; ")))
			continue
		}
		fmt.Fprintf(&b, "%-*s\t%8d", width, name, res.Iterations)
		for _, u := range Units {
			if value, ok := u.Of(res); ok && u.Bench != "" && !(u.Kind == CountUnit && u.Name != "allocs_per_op" && value == 0) {
				fmt.Fprintf(&b, "\t%12s %s", Figure(value), u.Bench)
			}
		}
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// benchName returns the benchmark's name without white space, and so that no reader takes its end for GOMAXPROCS.
func benchName(r *Result) string {
	name := "Benchmark" + strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) || unicode.IsControl(c) {
			return '_'
		}
		return c
	}, r.Name)
	// "/shape=ramp:10-20" would be read as "/shape=ramp:10" at 20 processors. A suffix of its own keeps it whole.
	if digits := strings.TrimRight(name, "0123456789"); len(digits) < len(name) && strings.HasSuffix(digits, "-") {
		name += "-1"
	}
	return name
}

// oneLine makes s one line without control characters.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) || unicode.IsControl(c) {
			return ' '
		}
		return c
	}, s))
}

// vantageFacts is what the formats say of the vantage. Whoever measured fills the report with a type of its own, which
// is known here by its JSON alone.
type vantageFacts struct {
	Platform string   `json:"platform"`
	Region   string   `json:"region"`
	Sandbox  string   `json:"sandbox"`
	GOOS     string   `json:"goos"`
	GOARCH   string   `json:"goarch"`
	CPUs     float64  `json:"cpus"`
	CPUQuota *float64 `json:"cpu_quota"`
}

// vantageOf returns what r's vantage tells; a vantage of another form tells nothing.
func vantageOf(r *Report) vantageFacts {
	var v vantageFacts
	text, err := json.Marshal(r.Vantage)
	if err != nil || json.Unmarshal(text, &v) != nil {
		return vantageFacts{}
	}
	return v
}
