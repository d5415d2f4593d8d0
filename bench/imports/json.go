package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"nsop/bench"
)

func isJSON(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "{") || strings.HasPrefix(line, "[")
}

// A member is one name of a JSON object with its value.
type member struct {
	name  string
	value json.RawMessage
	at    int64 // where the value ends
}

// members returns what object holds in its order, a name that is there twice twice. at is where object begins in the
// file.
func members(object []byte, at int64) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, &placed{at, errors.New("not a JSON object")}
	}
	var ms []member
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, &placed{at + d.InputOffset(), err}
		}
		m := member{name: t.(string)} // a decoder gives nothing else in this place
		if err := d.Decode(&m.value); err != nil {
			return nil, &placed{at + d.InputOffset(), err}
		}
		m.at = at + d.InputOffset()
		ms = append(ms, m)
	}
	return ms, nil
}

// start is where the value begins in the file.
func (m member) start() int64 { return m.at - int64(len(m.value)) }

// A placed error is at an offset of the file.
type placed struct {
	at  int64
	err error
}

func (e *placed) Error() string { return e.err.Error() }

// readJSON reads a file of JSON values one after another: they are all of nsop, or one is memtier's, or all are events of
// go test.
func readJSON(data []byte, o Options) ([]*bench.Report, error) {
	data = withoutNaN(data)
	reports, err := readValues(data, o)
	if err == nil {
		return reports, nil
	}
	var (
		known  *Error
		where  *placed
		syntax *json.SyntaxError
		typed  *json.UnmarshalTypeError
	)
	if errors.As(err, &known) {
		return nil, err
	}
	at := int64(len(data))
	switch {
	case errors.As(err, &where):
		at = where.at
		if errors.As(where.err, &typed) {
			err = fmt.Errorf("%s is a JSON %s", typed.Field, typed.Value)
		}
	case errors.As(err, &syntax):
		at = syntax.Offset
	}
	at = min(max(at, 0), int64(len(data)))
	return nil, errorf(1+bytes.Count(bytes.TrimRight(data[:at], " \t\r\n"), []byte("\n")), "%w", err)
}

func readValues(data []byte, o Options) (reports []*bench.Report, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	rows := 0
	for {
		var value json.RawMessage
		if err := d.Decode(&value); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		start := d.InputOffset() - int64(len(value))
		var more []*bench.Report
		switch value[0] {
		case '[':
			more, err = ownList(value, start)
		case '{':
			ms, err := members(value, start)
			if err != nil {
				return nil, err
			}
			has := func(name string) bool { return slices.ContainsFunc(ms, func(m member) bool { return m.name == name }) }
			switch first := len(reports) == 0; {
			case first && has("Action") && has("Time"):
				return one(readGoJSON)(data, o)
			case has("results"):
				var r *bench.Report
				r, err = ownReport(value, start)
				more = []*bench.Report{r}
			case has("runs"):
				for _, m := range ms {
					if m.name == "runs" {
						more, err = ownList(m.value, m.start())
					}
				}
			case first && slices.ContainsFunc(ms, isMemtierRun):
				if rest := bytes.TrimLeft(data[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
					return nil, &placed{int64(len(data)-len(rest)) + 1, errors.New("something follows memtier's JSON")}
				}
				r, err := readMemtier(ms, o)
				return []*bench.Report{r}, err
			default:
				err = errors.New("neither a report of nsop nor memtier's JSON: want results, runs or ALL STATS")
			}
			if err != nil {
				return nil, placeAt(start, err)
			}
		default:
			err = errors.New("want a JSON object or a list of them")
		}
		if err != nil {
			return nil, placeAt(start, err)
		}
		for _, r := range more {
			rows += len(r.Results)
		}
		if rows > maxRows {
			return nil, placeAt(start, fmt.Errorf("more than %d rows", maxRows))
		}
		reports = append(reports, more...)
	}
	if len(reports) == 0 {
		return nil, errors.New("no reports")
	}
	return reports, nil
}

// placeAt says where err is, if it does not.
func placeAt(at int64, err error) error {
	if errors.As(err, new(*placed)) || errors.As(err, new(*Error)) {
		return err
	}
	return &placed{at + 1, err}
}

func ownList(list []byte, at int64) (reports []*bench.Report, err error) {
	d := json.NewDecoder(bytes.NewReader(list))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, placeAt(at, errors.New("runs is no list"))
	}
	for d.More() {
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, &placed{at + d.InputOffset(), err}
		}
		r, err := ownReport(value, at+d.InputOffset()-int64(len(value)))
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// ownReport reads a report of nsop, which keeps what it has.
func ownReport(value []byte, at int64) (*bench.Report, error) {
	if bytes.Count(value, []byte("{")) > 10*maxRows { // before they are made: an empty one takes 600 bytes
		return nil, placeAt(at, fmt.Errorf("more than %d rows", maxRows))
	}
	// The vantage's form is its writer's: kept as it is, so is the order of its names.
	var own struct {
		bench.Report
		Vantage json.RawMessage `json:"vantage"`
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber() // of settings, which may hold any
	if err := d.Decode(&own); err != nil {
		if typed := (*json.UnmarshalTypeError)(nil); errors.As(err, &typed) {
			at += typed.Offset
		}
		return nil, placeAt(at, err)
	}
	r := own.Report
	if own.Vantage != nil {
		r.Vantage = own.Vantage
	}
	if err := check(&r); err != nil {
		return nil, placeAt(at, err)
	}
	return r.Normalize(), nil
}

var runID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// maxHistogram bounds a histogram's memory in bytes: those of nsop take 30 KiB, of memtier 140 KiB.
const maxHistogram = 1 << 20

// checkHistogram decodes a histogram and forgets it: a file may hold more of them than fit into memory.
func checkHistogram(text string) (*hdrhistogram.Histogram, error) {
	h, err := bench.DecodeHistogram(text)
	if err != nil {
		return nil, err
	}
	if h.ByteSize() > maxHistogram {
		return nil, fmt.Errorf("histogram: %d bytes in memory are more than %d", h.ByteSize(), maxHistogram)
	}
	return h, nil
}

// check says what is wrong with a report that anybody may have written.
func check(r *bench.Report) error {
	if r.Run != "" && !runID.MatchString(r.Run) {
		return fmt.Errorf("run: %.40q is no run id", r.Run)
	}
	if r.Results == nil || slices.Contains(r.Results, nil) || slices.Contains(r.Targets, nil) {
		return errors.New("results or targets: null where an object must be")
	}
	if r.ElapsedNS < 0 {
		return errors.New("elapsed_ns is negative")
	}
	for i, res := range r.Results {
		if err := checkResult(res); err != nil {
			return fmt.Errorf("results[%d]: %w", i, err)
		}
	}
	return nil
}

func checkResult(r *bench.Result) error {
	if r.Name == "" || r.Workload == "" {
		return errors.New("no name or no workload")
	}
	if len(r.Name) > 8*maxName || len(r.Workload) > 2*maxName {
		return errors.New("a name that is too long")
	}
	for _, n := range []int64{int64(r.Concurrency), int64(r.Pipeline), int64(r.Size), int64(r.Keyspace), int64(r.Scale), int64(r.Sample),
		r.Iterations, r.ElapsedNS, r.Errors, r.Misses, r.Mismatches, int64(r.Connections)} {
		if n < 0 {
			return errors.New("a negative count")
		}
	}
	l := &r.Latency
	for _, n := range []*int64{l.Min, l.Mean, l.Stddev, l.P50, l.P90, l.P95, l.P99, l.P999, l.Max, r.ConnectNS, r.ThrottledNS} {
		if n != nil && *n < 0 {
			return errors.New("a negative duration")
		}
	}
	for _, f := range []*bench.Figure{r.NSPerOp, r.OpsPerSec, r.OpsWithDial} {
		if f != nil && !(*f > 0) {
			return errors.New("a figure that is not above 0: what was not measured is null")
		}
	}
	for name, value := range r.Labels {
		if err := bench.CheckLabel(name, value); err != nil {
			return err
		}
	}
	if r.Histogram != "" {
		if _, err := checkHistogram(r.Histogram); err != nil {
			return err
		}
	}
	return nil
}

// bareNaN are the numbers that C prints and JSON has not.
var bareNaN = regexp.MustCompile(`(?i)"(?:[^"\\\n]|\\.)*"|-?\b(?:nan|inf)\b`)

// withoutNaN replaces them by null outside of strings. Lines stay as they are.
func withoutNaN(data []byte) []byte {
	return bareNaN.ReplaceAllFunc(data, func(match []byte) []byte {
		if match[0] == '"' {
			return match
		}
		return []byte("null")
	})
}
