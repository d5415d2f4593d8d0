package bench

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A ParamError says that a parameter is wrong and what is allowed.
type ParamError struct {
	Parameter, Detail string
	Allowed           []string
	Estimate          time.Duration // of what was refused because it can't finish; 0 otherwise
}

func (e *ParamError) Error() string {
	if e.Parameter == "" {
		return e.Detail
	}
	return e.Parameter + ": " + e.Detail
}

// A Spec is what a request asks for: a query string, a body and a command line all decode to it.
type Spec struct {
	Clients     []string // nil: the target's default
	Concurrency []int
	Pipeline    []int
	Size        []int
	Keyspace    []int
	Rates       []float64 // nil: a closed loop, or a ramp
	AutoRate    bool      // rate=auto, of a search for the limit
	Shape       Arrivals  // without a rate, which Rates hold
	Share       Share     // of several instances that perform one run
	Benchtime   Extent
	Warmup      Extent
	Count       int
	Verify      bool
	Histogram   bool
	Save        bool
	Timeout     time.Duration
	Flavor      string // sound or compatible
	Scale       int
	Protocol    string // simple, extended or prepared
	Sync        string // off or full
	Asserts     []Assert
	Labels      map[string]string
}

// An Extent is how long a row runs: a time or a number of operations, or whichever of the two ends first.
type Extent struct {
	Time  time.Duration // 0: no bound, unless Count is 0 too
	Count uint64        // 0: no bound, unless Time is 0 too
}

func (e Extent) String() string {
	if e.Time > 0 && e.Count > 0 {
		return fmt.Sprintf("%dx within %s", e.Count, e.Time)
	}
	if e.Time > 0 {
		return e.Time.String()
	}
	return strconv.FormatUint(e.Count, 10) + "x"
}

// DefaultSpec is what is measured where nothing is asked for.
func DefaultSpec() Spec {
	return Spec{Concurrency: []int{1}, Pipeline: []int{1}, Size: []int{100}, Keyspace: []int{1}, Shape: Arrivals{Shape: "constant"},
		Benchtime: Extent{Time: time.Second}, Warmup: Extent{Count: 100}, Count: 1, Save: true,
		Timeout: 5 * time.Second, Flavor: "sound", Scale: 1, Protocol: "prepared", Sync: "off", Labels: map[string]string{}}
}

// parameter is one line of the table of parameters.
type parameter struct {
	Name, Doc, Example string
	parse              func(s *Spec, value string, l Limits) error
}

// Parameters are the names that a request may give, in the order in which they are told to users; label.NAME comes
// on top of them.
var Parameters = []parameter{
	{"client", "client libraries, a comma list", "go-redis", func(s *Spec, v string, _ Limits) (err error) {
		s.Clients, err = list(v, func(v string) (string, error) {
			if v == "" {
				return "", fmt.Errorf("an empty name")
			}
			return v, nil
		})
		return err
	}},
	{"concurrency", "operations in flight at once, a comma list", "50", func(s *Spec, v string, l Limits) (err error) {
		s.Concurrency, err = list(v, within(1, l.Concurrency, "whole number", strconv.Atoi))
		return err
	}},
	{"pipeline", "commands per round trip, a comma list", "16", func(s *Spec, v string, l Limits) (err error) {
		s.Pipeline, err = list(v, within(1, 10_000, "whole number", strconv.Atoi))
		return err
	}},
	{"size", "value bytes, a comma list", "1KB", func(s *Spec, v string, l Limits) (err error) {
		s.Size, err = list(v, within(1, l.Size, "size in bytes", ParseSize))
		return err
	}},
	{"keyspace", "distinct keys, a comma list", "100000", func(s *Spec, v string, l Limits) (err error) {
		s.Keyspace, err = list(v, within(1, l.Keyspace, "whole number", strconv.Atoi))
		return err
	}},
	{"rate", "operations a second in all, an open loop: latency counts from when each was due; a comma list, or auto of /limit", "1000", func(s *Spec, v string, _ Limits) (err error) {
		if s.AutoRate = v == "auto"; s.AutoRate {
			return nil
		}
		s.Rates, err = list(v, func(v string) (float64, error) { return parseRate(v, minRate) })
		return err
	}},
	{"shape", "of an open loop: constant, poisson, or ramp:FROM-TO without rate", "poisson", func(s *Spec, v string, _ Limits) (err error) {
		s.Shape, err = ParseShape(v)
		return err
	}},
	{"benchtime", "a time or a number of operations for each row", "2s", func(s *Spec, v string, l Limits) (err error) {
		if s.Benchtime, err = ParseExtent(v); err != nil {
			return err
		}
		if s.Benchtime == (Extent{}) {
			return fmt.Errorf("%q is nothing", v)
		}
		return atMost(s.Benchtime.Time, l.Benchtime)
	}},
	{"count", "samples of each row", "6", func(s *Spec, v string, _ Limits) (err error) {
		s.Count, err = within(1, 10_000, "whole number", strconv.Atoi)(v)
		return err
	}},
	{"warmup", "a time or a number of operations before the clock starts", "100x", func(s *Spec, v string, l Limits) (err error) {
		if s.Warmup, err = ParseExtent(v); err != nil {
			return err
		}
		return atMost(s.Warmup.Time, l.Benchtime)
	}},
	{"verify", "check that every GET returns what was SET", "true", func(s *Spec, v string, _ Limits) (err error) {
		s.Verify, err = parseBool(v)
		return err
	}},
	{"flavor", "of the redis-benchmark catalogue", "compatible", func(s *Spec, v string, _ Limits) error {
		return oneOf(&s.Flavor, v, flavors)
	}},
	{"scale", "of pgbench: 100,000 accounts each", "10", func(s *Spec, v string, _ Limits) (err error) {
		s.Scale, err = within(1, maxScale, "whole number", strconv.Atoi)(v)
		return err
	}},
	{"protocol", "of Postgres", "simple", func(s *Spec, v string, _ Limits) error {
		return oneOf(&s.Protocol, v, protocols)
	}},
	{"sync", "full: a store on disk flushes every write", "full", func(s *Spec, v string, _ Limits) error {
		return oneOf(&s.Sync, v, syncs)
	}},
	{"timeout", "bound on one operation, and on each stage before the first", "5s", func(s *Spec, v string, l Limits) (err error) {
		if s.Timeout, err = time.ParseDuration(v); err != nil || s.Timeout < time.Millisecond {
			return fmt.Errorf("%q is no duration of at least 1ms", v)
		}
		return atMost(s.Timeout, l.Total)
	}},
	{"assert", "what must hold for every row, repeatable", "p99<3ms", func(s *Spec, v string, _ Limits) error {
		a, err := ParseAssert(v)
		if err != nil { // the parameter's name and what is allowed stand beside it
			text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "assert "), "; allowed: ")
			return errors.New(text)
		}
		s.Asserts = append(s.Asserts, a)
		return nil
	}},
	{"histogram", "put each row's HDR histogram (V2, base64) into the JSON", "true", func(s *Spec, v string, _ Limits) (err error) {
		s.Histogram, err = parseBool(v)
		return err
	}},
	{"save", "keep the run in the history", "false", func(s *Spec, v string, _ Limits) (err error) {
		s.Save, err = parseBool(v)
		return err
	}},
}

// maxScale bounds pgbench's tables: 15 MB a unit.
const maxScale = 100

var (
	flavors   = []string{"sound", "compatible"}
	protocols = []string{"simple", "extended", "prepared"}
	syncs     = []string{"off", "full"}
)

func oneOf(field *string, value string, allowed []string) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("no %q", value)
	}
	*field = value
	return nil
}

// allowed says in words what each parameter takes.
func allowed(name string, l Limits) []string {
	upTo := func(n int) []string { return []string{fmt.Sprintf("1 to %d", n)} }
	switch name {
	case "concurrency":
		return upTo(l.Concurrency)
	case "keyspace":
		return upTo(l.Keyspace)
	case "pipeline", "count":
		return upTo(10_000)
	case "size":
		return []string{fmt.Sprintf("1 to %d bytes, as 100, 1KB or 1KiB", l.Size)}
	case "benchtime", "warmup":
		return []string{"a duration up to " + l.Benchtime.String(), "a number of operations as 10000x"}
	case "timeout":
		return []string{"a duration from 1ms to " + l.Total.String()}
	case "rate":
		return []string{fmt.Sprintf("%s to %d operations a second", formatRate(minRate), maxRate)}
	case "shape":
		return []string{"constant", "poisson", "ramp:FROM-TO"}
	case "flavor":
		return flavors
	case "scale":
		return upTo(maxScale)
	case "protocol":
		return protocols
	case "sync":
		return syncs
	case "verify", "histogram", "save":
		return []string{"true", "false"}
	case "assert":
		var names []string
		for _, u := range Units {
			names = append(names, u.Name)
		}
		return names
	}
	return nil
}

// ParseSpec decodes a query. Names in more are the endpoint's own and are left alone. Its errors are *ParamError.
func ParseSpec(query url.Values, l Limits, more ...string) (Spec, error) {
	s := DefaultSpec()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := query[name]
		if slices.Contains(more, name) {
			continue
		}
		if label, ok := strings.CutPrefix(name, "label."); ok {
			if len(values) > 1 {
				return s, &ParamError{Parameter: name, Detail: "given twice"}
			}
			if err := CheckLabel(label, values[0]); err != nil {
				return s, &ParamError{Parameter: name, Detail: strings.TrimPrefix(err.Error(), "label "+label+": ")}
			}
			s.Labels[label] = values[0]
			continue
		}
		i := slices.IndexFunc(Parameters, func(p parameter) bool { return p.Name == name })
		if i < 0 {
			return s, &ParamError{Parameter: name, Detail: "no such parameter", Allowed: ParameterNames(more...)}
		}
		if len(values) > 1 && name != "assert" {
			return s, &ParamError{Parameter: name, Detail: "given twice"}
		}
		for _, v := range values {
			if err := Parameters[i].parse(&s, v, l); err != nil {
				return s, &ParamError{Parameter: name, Detail: err.Error(), Allowed: allowed(name, l)}
			}
		}
	}
	if err := s.checkShape(query.Has("shape")); err != nil {
		return s, err
	}
	if size, keys := slices.Max(s.Size), slices.Max(s.Keyspace); size*keys > l.Data {
		return s, &ParamError{Parameter: "keyspace", Detail: fmt.Sprintf("%d keys of %d bytes are more than %d bytes", keys, size, l.Data),
			Allowed: []string{fmt.Sprintf("keyspace x size up to %d bytes", l.Data)}}
	}
	return s, nil
}

// checkShape refuses a shape and a rate that don't fit each other.
func (s *Spec) checkShape(given bool) error {
	hasRate := s.Rates != nil || s.AutoRate
	switch {
	case s.Shape.Shape == "ramp" && hasRate:
		return &ParamError{Parameter: "rate", Detail: "a ramp has its rates in shape", Allowed: []string{"shape=ramp:FROM-TO without rate"}}
	case s.Shape.Shape != "ramp" && given && !hasRate:
		return &ParamError{Parameter: "shape", Detail: s.Shape.Shape + " wants a rate", Allowed: []string{"shape=" + s.Shape.Shape + " with rate", "shape=ramp:FROM-TO"}}
	}
	return nil
}

// arrivals are the rows' of the cross product.
func (s *Spec) arrivals() []Arrivals {
	if s.Shape.Shape == "ramp" {
		return []Arrivals{s.Shape}
	}
	if s.Rates == nil {
		return []Arrivals{{}}
	}
	var all []Arrivals
	for _, rate := range s.Rates {
		all = append(all, Arrivals{Shape: s.Shape.Shape, Rate: rate})
	}
	return all
}

// ParameterNames are the names that a request may give, with more at the end.
func ParameterNames(more ...string) (names []string) {
	for _, p := range Parameters {
		names = append(names, p.Name)
	}
	return append(append(names, "label.NAME"), more...)
}

var labelName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)

// CheckLabel says what is wrong with a label, if anything.
func CheckLabel(name, value string) error {
	if !labelName.MatchString(name) {
		return fmt.Errorf("label name %q: want a letter, then letters, digits, _ . or -, at most 63", name)
	}
	if len(value) > 256 {
		return fmt.Errorf("label %s: longer than 256 bytes", name)
	}
	for _, r := range value {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return fmt.Errorf("label %s: a control character or invalid UTF-8", name)
		}
	}
	return nil
}

// ParseLabels reads name=value pairs separated by white space, as in LABELS.
func ParseLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	for pair := range strings.FieldsSeq(text) {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%s: want name=value pairs separated by white space", pair)
		}
		if err := CheckLabel(name, value); err != nil {
			return nil, err
		}
		labels[name] = value
	}
	return labels, nil
}

// list parses a comma list of distinct values.
func list[T comparable](text string, parse func(string) (T, error)) ([]T, error) {
	var values []T
	seen := map[T]bool{} // a list may be as long as a header can be
	for item := range strings.SplitSeq(text, ",") {
		v, err := parse(item)
		if err != nil {
			return nil, err
		}
		if seen[v] {
			return nil, fmt.Errorf("%q is given twice", item)
		}
		seen[v] = true
		values = append(values, v)
	}
	return values, nil
}

// within bounds what parse returns; what is that in a word.
func within(from, to int, what string, parse func(string) (int, error)) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := parse(text)
		if err != nil || n < from || n > to {
			return 0, fmt.Errorf("%q is no %s from %d to %d", text, what, from, to)
		}
		return n, nil
	}
}

func atMost(d, limit time.Duration) error {
	if d > limit {
		return fmt.Errorf("%s is above %s", d, limit)
	}
	return nil
}

func parseBool(text string) (bool, error) {
	switch text {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", text)
}

// ParseExtent reads a time such as 2s or a number of operations such as 10000x, as go test's -benchtime does.
func ParseExtent(text string) (Extent, error) {
	if digits, ok := strings.CutSuffix(text, "x"); ok {
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxInt64/2 {
			return Extent{}, fmt.Errorf("%q is no number of operations such as 10000x", text)
		}
		return Extent{Count: n}, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return Extent{}, fmt.Errorf("%q is neither a time such as 2s nor a number of operations such as 10000x", text)
	}
	return Extent{Time: d}, nil
}

var sizeUnits = []struct {
	suffix string
	bytes  int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}

// ParseSize reads a number of bytes such as 100, 1KB (1000) or 1KiB (1024).
func ParseSize(text string) (int, error) {
	for _, u := range sizeUnits {
		if digits, ok := strings.CutSuffix(text, u.suffix); ok {
			n, err := strconv.ParseUint(digits, 10, 31)
			if err != nil {
				break
			}
			return int(n) * u.bytes, nil
		}
	}
	return 0, fmt.Errorf("%q is no size such as 100, 1KB or 1KiB", text)
}
