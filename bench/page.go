package bench

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A page is what people see of a report; text and markdown are two ways to write it.
type page struct {
	head       []pageHeading
	warnings   []string
	table      Table
	summary    Table    // of several samples, below it
	notes      []string // below the table: what its cells are, why some are empty
	assertions []pageAssertion
	footer     string
}

// A pageHeading is a name, which may be "", and the phrases that say what it is.
type pageHeading struct {
	name    string
	phrases []string
}

type pageAssertion struct {
	ok                bool
	expr, actual, row string
}

func newPage(r *Report, o EncodeOptions) page {
	var varied []dimension
	var constants []string
	for _, d := range dimensionsOf(r.Results) {
		switch vs := d.values(r.Results); {
		case len(vs) > 1:
			varied = append(varied, d)
		case len(vs) == 1 && vs[0] != d.standard:
			constants = append(constants, d.say(vs[0]))
		}
	}
	name := rowNamer(r.Results, varied)
	p := page{
		head:       pageHead(r, constants),
		warnings:   pageWarnings(r, name),
		assertions: pageAssertions(r, name),
	}
	if suite, err := FindSuite(r.Suite); err == nil && len(r.Results) > 0 {
		p.table, p.notes = suite.table(r.Results)
	} else if r.BoundBy != "" {
		p.table, p.notes = limitTable(r)
	} else if len(varied) == 1 && slices.ContainsFunc(dimensions, func(d dimension) bool { return d.name == varied[0].name }) &&
		len(varied[0].values(r.Results)) >= 3 {
		p.table, p.notes = sweepTable(r.Results, varied[0])
		// A cell of a sweep has no column beside it that would say so.
		for _, g := range groupRows(r.Results, name, wrongReads) {
			p.notes = append(p.notes, g.rows+": "+g.text)
		}
	} else {
		p.table, p.notes = rowTable(r.Results, varied)
	}
	p.summary = summaryTable(r, varied)
	p.notes = append(p.notes, probeNotes(r)...)
	if r.Change != "" {
		p.warnings = append(p.warnings, r.Change)
	}
	for _, g := range groupRows(r.Results, name, failure) {
		p.notes = append(p.notes, g.rows+": "+g.text)
	}

	var foot []string
	if r.Run != "" {
		id := r.Run
		if len(id) > 8 {
			id = id[:8]
		}
		foot = append(foot, "run "+id)
	}
	if r.ElapsedNS > 0 {
		foot = append(foot, FormatDuration(float64(r.ElapsedNS)))
	}
	if r.Run != "" && o.URL != "" && !r.Unsaved {
		foot = append(foot, strings.TrimRight(o.URL, "/")+"/runs/"+r.Run)
	}
	p.footer = strings.Join(foot, "  ")
	return p
}

// pageHead says what was measured, from where, and what is the same in all rows.
func pageHead(r *Report, constants []string) []pageHeading {
	var rest []string
	if v := vantageOf(r); v.Platform != "" {
		from := strings.TrimSpace("from " + v.Platform + " " + v.Region)
		var machine []string
		switch v.Sandbox {
		case "", "none":
		case "gvisor":
			machine = append(machine, "gVisor")
		default:
			machine = append(machine, v.Sandbox)
		}
		cpus := v.CPUs
		if v.CPUQuota != nil && *v.CPUQuota > 0 && (cpus == 0 || *v.CPUQuota < cpus) {
			cpus = *v.CPUQuota
		}
		if cpus > 0 {
			machine = append(machine, strconv.FormatFloat(cpus, 'g', 3, 64)+" vCPU")
		}
		if len(machine) > 0 {
			from += " (" + strings.Join(machine, ", ") + ")"
		}
		rest = append(rest, from)
	}
	rest = append(rest, constants...)

	if r.Target != nil {
		return []pageHeading{{r.Target.Name, append(describe(r.Target), rest...)}}
	}
	var head []pageHeading
	for _, t := range r.Targets {
		head = append(head, pageHeading{t.Name, describe(t)})
	}
	if len(rest) > 0 {
		head = append(head, pageHeading{"", rest})
	}
	return head
}

// describe returns "redis 7.0.15 cluster at 10.0.0.3:6379 over TLS", then "in-process" where it is.
func describe(t *TargetInfo) []string {
	if t.Embedded && t.Server == "" && t.Address == "" {
		return []string{"in-process"}
	}
	s := cmp.Or(t.Server, t.Kind)
	if t.Mode != "" && t.Mode != "standalone" && t.Mode != "embedded" {
		s += " " + t.Mode
	}
	if t.Address != "" {
		s += " at " + t.Address
	}
	if t.TLS {
		s += " over TLS"
	}
	if t.Embedded {
		return []string{s, "in-process"}
	}
	return []string{s}
}

// pageWarnings returns the warnings of the report, then those of rows with the rows they are about, each once.
func pageWarnings(r *Report, name func(*Result) string) []string {
	isEmbedded := func(w string) bool {
		return strings.Contains(w, "no real store") || strings.Contains(w, "embedded store")
	}
	ws := slices.Clone(r.Warnings)
	// It comes first, since nothing else on the page means what it seems to mean.
	slices.SortStableFunc(ws, func(a, b string) int {
		switch {
		case isEmbedded(a) && !isEmbedded(b):
			return -1
		case isEmbedded(b) && !isEmbedded(a):
			return 1
		}
		return 0
	})
	rows := r.Results
	if r.Knee != nil {
		// What is amiss beyond the knee is what the search was for.
		rows = slices.DeleteFunc(slices.Clone(rows), func(res *Result) bool { return res.Name != r.Knee.Row })
	}
	for _, g := range groupRows(rows, name, func(res *Result) []string { return res.Warnings }) {
		switch {
		case slices.Contains(ws, g.text):
		case g.all && (len(rows) > 1 || r.Knee != nil):
			ws = append(ws, g.text)
		default:
			ws = append(ws, g.rows+": "+g.text)
		}
	}
	for _, s := range r.Summaries {
		i := slices.IndexFunc(r.Results, func(res *Result) bool { return res.Name == s.Name })
		for _, w := range s.Warnings {
			row := s.Name
			if i >= 0 {
				row = name(r.Results[i])
			}
			ws = append(ws, row+": "+w)
		}
	}
	return ws
}

// summaryTable has a line for each row with several samples: medians, each with its 95% confidence interval.
func summaryTable(r *Report, varied []dimension) (t Table) {
	targets := slices.ContainsFunc(r.Results, func(res *Result) bool { return res.Target != r.Results[0].Target })
	shown := []string{"ns_per_op", "ops_per_sec", "p50", "p99"}
	for _, s := range r.Summaries {
		i := slices.IndexFunc(r.Results, func(res *Result) bool { return res.Name == s.Name })
		if i < 0 || s.Samples == 0 {
			continue
		}
		if len(t.Rows) == 0 {
			t.Head = make([]string, len(testOf(r.Results[i], targets)))
			t.Head[len(t.Head)-1] = "client"
			t.Left = len(t.Head)
			for _, d := range varied {
				t.Head = append(t.Head, d.name)
			}
			t.Head = append(t.Head, "samples", "ns/op", "95% CI", "ops/s", "95% CI", "p50", "95% CI", "p99", "95% CI")
		}
		row := testOf(r.Results[i], targets)
		for _, d := range varied {
			row = append(row, cmp.Or(d.show(d.of(r.Results[i])), "-"))
		}
		row = append(row, strconv.Itoa(s.Samples))
		for _, metric := range shown {
			u, _ := UnitByName(metric)
			v, ok := s.Metrics[metric]
			if !ok {
				row = append(row, "-", "-")
				continue
			}
			text := u.Format(float64(v.Median))
			switch metric {
			case "ns_per_op", "ops_per_sec": // their units are in the heading
				text = FormatFigure(float64(v.Median))
			}
			row = append(row, text, v.percent())
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// A rowGroup is a text with the rows it is about.
type rowGroup struct {
	text, rows string
	all        bool // every row
}

// groupRows collects what texts says of each sample, each text once, with the names of its rows.
func groupRows(results []*Result, name func(*Result) string, texts func(*Result) []string) []rowGroup {
	var order []string
	groups := map[string]map[string][]string{} // by text and row, its samples
	total := map[string]int{}                  // samples by row
	var rows []string
	for _, r := range results {
		row := name(r)
		if total[row]++; total[row] == 1 {
			rows = append(rows, row)
		}
		for _, text := range texts(r) {
			if groups[text] == nil {
				order = append(order, text)
				groups[text] = map[string][]string{}
			}
			groups[text][row] = append(groups[text][row], strconv.Itoa(r.Sample))
		}
	}
	out := make([]rowGroup, len(order))
	for i, text := range order {
		all := true
		var names []string
		for _, row := range rows {
			samples := groups[text][row]
			all = all && len(samples) == total[row]
			switch {
			case len(samples) == total[row]:
				names = append(names, row)
			case len(samples) > 0:
				names = append(names, row+" sample "+strings.Join(samples, "+"))
			}
		}
		if n := len(names); n > 4 {
			names = append(names[:3], FormatCount(int64(n-3))+" more rows")
		}
		out[i] = rowGroup{text, strings.Join(names, ", "), all}
	}
	return out
}

// failure says what failed in a row: nothing where all went well.
func failure(r *Result) []string {
	_, ok := figure(r.NSPerOp)
	if ok && r.Errors == 0 {
		return nil
	}
	var parts []string
	for _, kind := range sortedKinds(r) {
		part := FormatCount(r.ErrorKinds[kind]) + " " + kind
		if sample := r.ErrorSamples[kind]; sample != "" {
			part += " (" + sample + ")"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 && r.Errors > 0 {
		parts = append(parts, FormatCount(r.Errors)+" errors")
	}
	reasons := strings.Join(parts, ", ")
	switch {
	case ok:
		return []string{reasons}
	case reasons == "":
		return []string{"nothing completed"}
	default:
		return []string{"nothing completed, " + reasons}
	}
}

// wrongReads says how many operations of a row read no value, or another than was written.
func wrongReads(r *Result) []string {
	var texts []string
	if r.Misses > 0 {
		texts = append(texts, FormatCount(r.Misses)+" misses")
	}
	if r.Mismatches > 0 {
		texts = append(texts, FormatCount(r.Mismatches)+" mismatches")
	}
	return texts
}

func pageAssertions(r *Report, name func(*Result) string) []pageAssertion {
	// An assertion names its row; the samples of a row come in their order.
	samples := map[string][]*Result{}
	for _, res := range r.Results {
		samples[res.Name] = append(samples[res.Name], res)
	}
	seen := map[[2]string]int{}
	var as []pageAssertion
	for _, a := range r.Assertions {
		row := a.Row
		n := seen[[2]string{a.Expr, a.Row}]
		seen[[2]string{a.Expr, a.Row}]++
		if rs := samples[a.Row]; n < len(rs) {
			row = name(rs[n])
			if len(rs) > 1 {
				row += " sample " + strconv.Itoa(rs[n].Sample)
			}
		}
		as = append(as, pageAssertion{a.OK, a.Expr, a.Actual, row})
	}
	return as
}

// rowTable has a line for each sample of each row.
func rowTable(results []*Result, varied []dimension) (Table, []string) {
	targets, samples, misses, mismatches, fewP99 := false, false, false, false, false
	closed, open, stall := false, false, int64(0)
	var p50, p99, longest []*int64
	for _, r := range results {
		targets = targets || r.Target != results[0].Target
		samples = samples || r.Sample > 1
		misses = misses || r.Misses > 0
		mismatches = mismatches || r.Mismatches > 0
		closed, open = closed || r.Shape == "", open || r.Shape != ""
		if r.LongestStall != nil && r.Shape == "" {
			stall = max(stall, *r.LongestStall)
		}
		fewP99 = fewP99 || r.Iterations > 0 && r.Latency.P99 == nil
		p50, p99, longest = append(p50, r.Latency.P50), append(p99, r.Latency.P99), append(longest, r.Latency.Max)
	}
	optional := func(used bool, cell string) []string {
		if used {
			return []string{cell}
		}
		return nil
	}
	var t Table
	t.Head = slices.Concat(optional(targets, ""), []string{"", "client"})
	t.Left = len(t.Head)
	for _, d := range varied {
		t.Head = append(t.Head, d.name)
	}
	t.Head = slices.Concat(t.Head, optional(samples, "sample"), []string{"iterations", "ns/op", "ops/s", "p50", "p99", "max", "errors"},
		optional(misses, "misses"), optional(mismatches, "mismatches"))

	p50s, p99s, maxima := FormatDurations(p50), FormatDurations(p99), FormatDurations(longest)
	for i, r := range results {
		row := testOf(r, targets)
		for _, d := range varied {
			row = append(row, cmp.Or(d.show(d.of(r)), "-"))
		}
		iterations := FormatCount(r.Iterations)
		if r.Iterations == 0 {
			iterations = "-"
		}
		row = slices.Concat(row, optional(samples, strconv.Itoa(r.Sample)),
			[]string{iterations, showFigure(r.NSPerOp), showFigure(r.OpsPerSec), p50s[i], p99s[i], maxima[i], FormatCount(r.Errors)},
			optional(misses, FormatCount(r.Misses)), optional(mismatches, FormatCount(r.Mismatches)))
		t.Rows = append(t.Rows, row)
	}
	var notes []string
	if fewP99 {
		notes = append(notes, "p99 is - where fewer than 100 operations completed")
	}
	if closed {
		note := "closed loop: a stall delays the next operation and is counted once"
		if stall > 0 {
			note += "; the longest here was " + FormatDuration(float64(stall))
		}
		notes = append(notes, note)
	}
	if open {
		notes = append(notes, "open loop: latency counts from when an operation was due, a stall is charged to each that was due in it")
	}
	return t, notes
}

func showFigure(f *Figure) string {
	if v, ok := figure(f); ok {
		return FormatFigure(v)
	}
	return "-"
}

// sweepTable has the values of d across and the tests down.
func sweepTable(results []*Result, d dimension) (Table, []string) {
	targets, samples := false, 1
	for _, r := range results {
		targets = targets || r.Target != results[0].Target
		samples = max(samples, r.Sample)
	}
	values := d.values(results)
	var tests [][]string
	cells := map[string][]*Result{} // by test and value
	for _, r := range results {
		test := testOf(r, targets)
		if !slices.ContainsFunc(tests, func(t []string) bool { return slices.Equal(t, test) }) {
			tests = append(tests, test)
		}
		key := strings.Join(test, "\x00") + "\x00" + d.of(r)
		cells[key] = append(cells[key], r)
	}

	// The parameter's name stands before its values.
	t := Table{Left: len(tests[0]), Head: make([]string, len(tests[0]))}
	t.Head[t.Left-1] = d.name
	for _, v := range values {
		t.Head = append(t.Head, cmp.Or(d.show(v), "-"))
	}
	partial := false
	for _, test := range tests {
		row := slices.Clone(test)
		for _, v := range values {
			sum, n := 0.0, 0
			rs := cells[strings.Join(test, "\x00")+"\x00"+v]
			for _, r := range rs {
				if ops, ok := figure(r.OpsPerSec); ok {
					sum += ops
					n++
				}
			}
			partial = partial || n > 0 && n < len(rs)
			if n == 0 {
				row = append(row, "-")
			} else {
				row = append(row, FormatFigure(sum/float64(n)))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	note := "each cell is operations a second (ops/s)"
	if samples > 1 {
		note += ", the mean of " + strconv.Itoa(samples) + " samples"
	}
	if partial {
		note += ", failed ones left out"
	}
	return t, []string{note}
}
