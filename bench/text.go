package bench

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A page is what people see of a report; text and markdown are two ways to write it.
type page struct {
	head       []pageHeading
	warnings   []string
	table      Table
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

// A Table has a heading and a cell for each column of each row.
type Table struct {
	Head []string
	Left int // columns that are aligned left; the others are right-aligned
	Rows [][]string
}

// WriteTable writes t in plain columns, closer together where it would be wider than width otherwise. Cells are
// written as they are.
func WriteTable(w io.Writer, t Table, width int) error {
	var b bytes.Buffer
	for _, line := range tableLines(t, width) {
		b.WriteString(line + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// tableLines returns the lines of t, the heading first if there is one.
func tableLines(t Table, width int) []string {
	rows := t.Rows
	if len(t.Head) > 0 {
		rows = slices.Concat([][]string{t.Head}, t.Rows)
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	gap := 3
	total := gap * max(0, len(widths)-1)
	for _, n := range widths {
		total += n
	}
	if total > width {
		gap = 2
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if i > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < t.Left {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// Wrap breaks s at spaces into lines for a place that indent's columns stand before: lines of at most width columns
// with it, every line but the first beginning with it. A word that is longer stays whole, so that it can be copied.
func Wrap(s string, width int, indent string) string {
	return wrapWords(strings.Fields(s), width, indent)
}

func wrapWords(words []string, width int, indent string) string {
	var b strings.Builder
	start := utf8.RuneCountInString(indent)
	column := start
	for i, word := range words {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = start
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// wrapPhrases writes phrases with commas, broken between them as long as each is short.
func wrapPhrases(phrases []string, width int, indent string) string {
	var words []string
	for i, phrase := range phrases {
		if i < len(phrases)-1 {
			phrase += ","
		}
		if utf8.RuneCountInString(phrase) > width/2 {
			words = append(words, strings.Fields(phrase)...)
		} else {
			words = append(words, phrase)
		}
	}
	return wrapWords(words, width, indent)
}

// A dimension is a parameter in which rows can differ.
type dimension struct {
	name     string
	standard string                // its default, which is not worth saying
	of       func(*Result) string  // "" where a row has no such parameter
	show     func(string) string   // a value as a cell
	say      func(v string) string // a value in a sentence
}

// dimensions are the parameters every format knows. Others are found in the names of rows.
var dimensions = []dimension{
	{"concurrency", "1", func(r *Result) string { return positive(r.Concurrency) }, showCount,
		func(v string) string { return "concurrency " + showCount(v) }},
	{"pipeline", "1", func(r *Result) string { return positive(r.Pipeline) }, showCount,
		func(v string) string { return "pipeline " + showCount(v) }},
	// Said always: how much is moved is the first thing to know of a figure.
	{"size", "", func(r *Result) string { return positive(r.Size) }, showBytes,
		func(v string) string { return showBytes(v) + " values" }},
	{"keyspace", "1", func(r *Result) string { return positive(r.Keyspace) }, showCount,
		func(v string) string { return showCount(v) + " keys" }},
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func showCount(v string) string {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return FormatCount(n)
	}
	return v
}

func showBytes(v string) string {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return FormatBytes(n)
	}
	return v
}

// dimensionsOf returns dimensions, then the parameters that stand in the rows' names alone (rate, flavor, scale), then
// the labels.
func dimensionsOf(results []*Result) []dimension {
	known := []string{"target", "client"}
	for _, d := range dimensions {
		known = append(known, d.name)
	}
	ds := slices.Clone(dimensions)
	labels := map[string]bool{}
	for _, r := range results {
		for name := range r.Labels {
			labels[name] = true
		}
		for part := range strings.SplitSeq(r.Name, "/") {
			name, _, ok := strings.Cut(part, "=")
			if !ok || slices.Contains(known, name) {
				continue
			}
			known = append(known, name)
			ds = append(ds, dimension{name, map[string]string{"scale": "1", "protocol": "prepared"}[name],
				func(r *Result) string { return nameParameter(r.Name, name) }, showCount,
				func(v string) string { return name + " " + showCount(v) }})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		ds = append(ds, dimension{name, "", func(r *Result) string { return r.Labels[name] },
			func(v string) string { return v }, func(v string) string { return name + "=" + v }})
	}
	return ds
}

// nameParameter returns the value of /key=value in a row's name.
func nameParameter(name, key string) string {
	for part := range strings.SplitSeq(name, "/") {
		if value, ok := strings.CutPrefix(part, key+"="); ok {
			return value
		}
	}
	return ""
}

// values returns the values of d, each once, in the order of results. A row that has no such parameter has no value: a
// Postgres row beside others does not make size a thing that varies.
func (d dimension) values(results []*Result) []string {
	var vs []string
	for _, r := range results {
		if v := d.of(r); v != "" && !slices.Contains(vs, v) {
			vs = append(vs, v)
		}
	}
	return vs
}

// rowNamer returns what a row is called among results: workload, client, and every parameter in which they differ.
func rowNamer(results []*Result, varied []dimension) func(*Result) string {
	targets := false
	for _, r := range results {
		targets = targets || r.Target != results[0].Target
	}
	return func(r *Result) string {
		parts := testOf(r, targets)
		for _, d := range varied {
			if v := d.of(r); v != "" {
				parts = append(parts, d.name+"="+strings.ReplaceAll(d.show(v), " ", ""))
			}
		}
		return strings.Join(parts, " ")
	}
}

func testOf(r *Result, target bool) []string {
	if target {
		return []string{r.Target, r.Workload, r.Client}
	}
	return []string{r.Workload, r.Client}
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
	if len(varied) == 1 && slices.ContainsFunc(dimensions, func(d dimension) bool { return d.name == varied[0].name }) &&
		len(varied[0].values(r.Results)) >= 3 {
		p.table, p.notes = sweepTable(r.Results, varied[0])
		// A cell of a sweep has no column beside it that would say so.
		for _, g := range groupRows(r.Results, name, wrongReads) {
			p.notes = append(p.notes, g.rows+": "+g.text)
		}
	} else {
		p.table, p.notes = rowTable(r.Results, varied)
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
	if r.Run != "" && o.URL != "" {
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
	for _, g := range groupRows(r.Results, name, func(res *Result) []string { return res.Warnings }) {
		switch {
		case slices.Contains(ws, g.text):
		case g.all && len(r.Results) > 1:
			ws = append(ws, g.text)
		default:
			ws = append(ws, g.rows+": "+g.text)
		}
	}
	return ws
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
	var p50, p99, longest []*int64
	for _, r := range results {
		targets = targets || r.Target != results[0].Target
		samples = samples || r.Sample > 1
		misses = misses || r.Misses > 0
		mismatches = mismatches || r.Mismatches > 0
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

// encodeText writes the page in plain columns.
func encodeText(w io.Writer, r *Report, o EncodeOptions) error {
	p := newPage(r, o)
	width := cmp.Or(max(o.Width, 0), 100)
	show := func(s string) string { return Printable(s, o.Terminal) }
	paint := func(sgr, s string) string {
		if !o.Terminal || o.NoColor {
			return s
		}
		return "\x1b[" + sgr + "m" + s + "\x1b[0m"
	}
	const bold, dim, red, green, yellow = "1", "2", "31", "32", "33"
	var b bytes.Buffer

	nameWidth := 0
	for _, h := range p.head {
		nameWidth = max(nameWidth, utf8.RuneCountInString(show(h.name)))
	}
	for _, h := range p.head {
		name, indent := show(h.name), ""
		if name != "" {
			indent = strings.Repeat(" ", nameWidth+2)
			b.WriteString(paint(bold, name) + indent[utf8.RuneCountInString(name):])
		}
		b.WriteString(wrapPhrases(mapped(h.phrases, show), width, indent) + "\n")
	}
	section := func() {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
	}
	if len(p.warnings) > 0 {
		section()
	}
	for _, warning := range p.warnings {
		b.WriteString(paint(yellow, "!") + " " + Wrap(show(warning), width, "  ") + "\n")
	}
	section()
	if len(p.table.Rows) == 0 {
		b.WriteString("no results\n")
	} else {
		for i, row := range p.table.Rows {
			p.table.Rows[i] = mapped(row, show)
		}
		p.table.Head = mapped(p.table.Head, show)
		for i, line := range tableLines(p.table, width) {
			if i == 0 {
				line = paint(dim, line)
			}
			b.WriteString(line + "\n")
		}
	}
	if len(p.notes) > 0 {
		section()
	}
	for _, note := range p.notes {
		b.WriteString(Wrap(show(note), width, "  ") + "\n")
	}
	if len(p.assertions) > 0 {
		section()
		t := Table{Left: 4}
		for _, a := range p.assertions {
			mark := "FAIL"
			if a.ok {
				mark = "ok"
			}
			t.Rows = append(t.Rows, mapped([]string{mark, a.expr, a.actual, a.row}, show))
		}
		for i, line := range tableLines(t, 0) {
			mark, rest, _ := strings.Cut(line, " ")
			colour := red
			if p.assertions[i].ok {
				colour = green
			}
			b.WriteString(paint(colour, mark) + " " + rest + "\n")
		}
	}
	if p.footer != "" {
		section()
		b.WriteString(paint(dim, show(p.footer)) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

func mapped(cells []string, f func(string) string) []string {
	out := make([]string, len(cells))
	for i, cell := range cells {
		out[i] = f(cell)
	}
	return out
}

// Printable makes s fit to be shown: one line, nothing that a terminal would obey, since the text of an error comes
// from the network; plain ASCII where wide is false.
func Printable(s string, wide bool) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c >= ' ' && c <= '~':
			b.WriteRune(c)
		case unicode.IsSpace(c):
			b.WriteByte(' ')
		case wide && c != utf8.RuneError && unicode.IsPrint(c):
			b.WriteRune(c)
		case c == '\u00b5' || c == '\u03bc':
			b.WriteByte('u') // of microseconds
		default:
			quoted := strconv.QuoteRuneToASCII(c)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// encodeMarkdown writes the page as GitHub's markdown.
func encodeMarkdown(w io.Writer, r *Report, o EncodeOptions) error {
	p := newPage(r, o)
	var b bytes.Buffer
	for i, h := range p.head {
		if i > 0 {
			b.WriteString("<br>\n")
		}
		if h.name != "" {
			b.WriteString("**" + markdown(h.name) + "** ")
		}
		b.WriteString(markdown(strings.Join(h.phrases, ", ")))
	}
	if len(p.head) > 0 {
		b.WriteString("\n\n")
	}
	for i, warning := range p.warnings {
		if i > 0 {
			b.WriteString(">\n") // a paragraph each
		}
		b.WriteString("> " + markdown("! "+warning) + "\n")
	}
	if len(p.warnings) > 0 {
		b.WriteByte('\n')
	}
	writeMarkdownTable(&b, p.table)
	if len(p.notes) > 0 {
		b.WriteByte('\n')
	}
	for _, note := range p.notes {
		b.WriteString("- " + markdown(note) + "\n")
	}
	if len(p.assertions) > 0 {
		t := Table{Head: []string{"", "assertion", "actual", "row"}, Left: 4}
		for _, a := range p.assertions {
			mark := "FAIL"
			if a.ok {
				mark = "ok"
			}
			t.Rows = append(t.Rows, []string{mark, a.expr, a.actual, a.row})
		}
		b.WriteByte('\n')
		writeMarkdownTable(&b, t)
	}
	if p.footer != "" {
		b.WriteString("\n" + markdown(p.footer) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeMarkdownTable(b *bytes.Buffer, t Table) {
	if len(t.Rows) == 0 {
		b.WriteString("no results\n")
		return
	}
	row := func(cells []string) { b.WriteString("| " + strings.Join(mapped(cells, markdown), " | ") + " |\n") }
	row(t.Head)
	for i := range t.Head {
		if i < t.Left {
			b.WriteString("|:--")
		} else {
			b.WriteString("|--:")
		}
	}
	b.WriteString("|\n")
	for _, cells := range t.Rows {
		row(cells)
	}
}

// markdown escapes s so that it is read as written: no markup, no HTML, one line.
func markdown(s string) string {
	var b strings.Builder
	for _, c := range Printable(s, true) {
		switch c {
		case '&':
			b.WriteString("&amp;")
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '\\', '|', '`', '*', '_', '[', ']', '~':
			b.WriteString("\\" + string(c))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}
