package imports

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"nsop/bench"
)

func isPgbench(line string) bool {
	for _, prefix := range []string{"transaction type:", "pgbench (", "starting vacuum", "tps = "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return strings.HasPrefix(line, "progress: ") && strings.Contains(line, " tps, lat ")
}

var (
	pgVersion = regexp.MustCompile(`^pgbench \(([0-9][0-9A-Za-z.]*)(?:.*, server ([0-9][0-9A-Za-z.]*))?.*\)$`)
	pgTPS     = regexp.MustCompile(`^tps = (\S+) \((.*)\)$`)
	pgScript  = regexp.MustCompile(`^SQL script \d+: (.*)$`)
	pgPart    = regexp.MustCompile(`^ - (\d+) transactions \(.*tps = ([^ )]+)\)$`)
	pgField   = regexp.MustCompile(`^([a-z][a-z -]*[a-z])(?: = |: )(\S+)(.*)$`)
)

// A pgBlock is what one call of pgbench printed.
type pgBlock struct {
	line    int
	result  *bench.Result
	scripts []*bench.Result // of several, each by itself
	rate    bool            // has been read
	counted bool            // so has the number of transactions
}

// readPgbench reads what calls of pgbench printed, of version 9 and later. Rows of several scripts come after their sum.
func readPgbench(data []byte, o Options) (*bench.Report, error) {
	p := newReport("pgbench", "postgres", o)
	version, last := "", 1
	var b *pgBlock
	for n, line := range lines(data) {
		last = n
		if m := pgVersion.FindStringSubmatch(line); m != nil {
			version = m[1]
			p.Target.Server = "PostgreSQL " + cmp.Or(m[2], m[1]) // said where it is another than pgbench's
			continue
		}
		if kind, ok := strings.CutPrefix(line, "transaction type: "); ok {
			if err := b.end(p); err != nil {
				return nil, err
			}
			b = &pgBlock{line: n, result: newResult(scriptWorkload(kind))}
			b.result.ClientVersion = version
			continue
		}
		if b == nil {
			if strings.HasPrefix(line, "tps = ") {
				return nil, errorf(n, "tps before a transaction type: the file's beginning is missing")
			}
			continue
		}
		if err := b.read(line); err != nil {
			return nil, errorf(n, "%w", err)
		}
	}
	if err := b.end(p); err != nil {
		return nil, err
	}
	return finish(p, o, last)
}

// scriptWorkload is the workload of a built-in script, or the name of another.
func scriptWorkload(kind string) string {
	kind = strings.TrimSuffix(strings.TrimPrefix(kind, "<builtin: "), ">")
	switch kind {
	case "TPC-B (sort of)":
		return "tpcb"
	case "simple update", "Update only pgbench_accounts":
		return "simple-update"
	case "select only", "SELECT only":
		return "select"
	}
	return kind[strings.LastIndexByte(kind, '/')+1:] // a file's folder is not told
}

// end adds the rows of a block that has been read to its end.
func (b *pgBlock) end(p *bench.Report) error {
	if b == nil {
		return nil
	}
	r := b.result
	if !b.counted || !b.rate && r.Iterations > 0 {
		return errorf(b.line, "the result that begins here has no tps: the file is cut off")
	}
	if r.OpsPerSec != nil && r.OpsWithDial == nil && r.ConnectNS != nil && r.Iterations > 0 {
		seconds := float64(r.Iterations)/float64(*r.OpsPerSec) + float64(*r.ConnectNS)/1e9
		r.OpsWithDial = bench.NewRate(float64(r.Iterations) / seconds)
	}
	for _, s := range b.scripts {
		s.ClientVersion, s.Scale, s.Protocol, s.Concurrency = r.ClientVersion, r.Scale, r.Protocol, r.Concurrency
	}
	return add(p, b.line, append([]*bench.Result{r}, b.scripts...)...)
}

// read reads one line. Those of a script's statements begin with a blank.
func (b *pgBlock) read(line string) (err error) {
	r := b.result
	if m := pgTPS.FindStringSubmatch(line); m != nil {
		return b.tps(m[1], m[2])
	}
	if strings.HasPrefix(line, "tps = ") {
		return errors.New("tps without its meaning: the line is cut off")
	}
	if m := pgScript.FindStringSubmatch(line); m != nil {
		if b.scripts = append(b.scripts, newResult(scriptWorkload(m[1]))); len(b.scripts) > maxRows {
			return fmt.Errorf("more than %d scripts", maxRows)
		}
		return nil
	}
	if n := len(b.scripts); n > 0 && strings.HasPrefix(line, " - ") {
		return readScript(b.scripts[n-1], line)
	}
	if strings.HasPrefix(line, "Run was aborted") {
		r.Warnings = append(r.Warnings, "the run was aborted: its figures are incomplete")
		return nil
	}
	m := pgField.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	value := strings.TrimSuffix(m[2], ",")
	var n int64
	switch m[1] {
	case "scaling factor":
		r.Scale, err = parameter(value)
	case "query mode":
		if r.Protocol = value; value != "simple" && value != "extended" && value != "prepared" {
			err = errors.New("is neither simple, extended nor prepared")
		}
	case "number of clients":
		r.Concurrency, err = parameter(value)
	case "number of threads":
		if n, err = count(value); err == nil {
			r.Settings["threads"] = n
		}
	case "number of transactions actually processed":
		done, _, _ := strings.Cut(value, "/")
		r.Iterations, err = count(done)
		b.counted = true
	case "number of failed transactions":
		if r.Errors, err = count(value); r.Errors > 0 {
			r.ErrorKinds["other"] = r.Errors
		}
	case "latency average", "latency stddev":
		err = latency(r, m[1], value)
	case "initial connection time":
		var ms float64
		if ms, err = number(value); err == nil {
			r.ConnectNS = nanoseconds(ms)
			r.Connections = r.Concurrency
		}
	}
	if err != nil {
		return errors.Join(errors.New(m[1] + ": " + err.Error()))
	}
	return nil
}

// tps reads a rate and what it counts: up to 13 there are two, with the time to connect and without it; -C connects
// anew for each transaction, and has one.
func (b *pgBlock) tps(text, meaning string) error {
	v, err := number(text)
	if err != nil {
		return fmt.Errorf("tps: %w", err)
	}
	b.rate = true
	if meaning == "including connections establishing" {
		b.result.OpsWithDial = rate(v)
		return nil
	}
	b.result.OpsPerSec = rate(v)
	if meaning == "including reconnection times" {
		b.result.OpsWithDial = rate(v)
		b.result.Settings["reconnect"] = true
	}
	return nil
}

func readScript(r *bench.Result, line string) (err error) {
	if m := pgPart.FindStringSubmatch(line); m != nil {
		if r.Iterations, err = count(m[1]); err != nil {
			return err
		}
		v, err := number(m[2])
		if err != nil {
			return fmt.Errorf("tps: %w", err)
		}
		r.OpsPerSec = rate(v)
		return nil
	}
	if m := pgField.FindStringSubmatch(strings.TrimPrefix(line, " - ")); m != nil && (m[1] == "latency average" || m[1] == "latency stddev") {
		return latency(r, m[1], m[2])
	}
	return nil
}

// latency stores a latency in milliseconds. An average of 0 is a fault of pgbench before 9.6 and 10.
func latency(r *bench.Result, name, text string) error {
	ms, err := number(text)
	if err != nil {
		return err
	}
	field := &r.Latency.Mean
	if name == "latency stddev" {
		field = &r.Latency.Stddev
	}
	if *field = nanoseconds(ms); ms == 0 {
		*field = nil
	}
	return nil
}
