// Package compare says how much two sets of runs differ, and whether that is more than noise.
//
// A sample is one result of a row: one of count in a run, or one of many runs that a filter found. The operations within
// a result are no samples, since what differs from run to run (another machine, another neighbour) is the same for all of
// them.
//
// For each metric of a pair of rows: the medians, their ratio, a 95% confidence interval of the ratio and the p-value of
// the Mann-Whitney U test (golang.org/x/perf/benchmath). The interval inverts that test on the logarithms of the values
// (Hodges, Lehmann: Estimates of location based on rank tests, Annals of Mathematical Statistics 34, 1963; Hollander,
// Wolfe, Chicken: Nonparametric statistical methods, section 4.3): it holds every factor by which all of b could be
// divided without the test telling it from a, so it leaves 1 out where the test says that they differ. Where the ratio of
// the medians lies outside, since the two differ in more than a factor, the interval is widened to it.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"nsop/bench"
)

// Alpha is the level of significance of one comparison.
const Alpha = 0.05

// minP is the smallest p-value that is told: what is below comes from the tail of an approximation.
const minP = 1e-6

// enough is how many samples on each side are enough for the clearest of differences to be significant.
const enough = 4

// tooFew tells whether no outcome with so many samples is significant, or one side is a single figure, which says nothing
// of its own noise.
func tooFew(n, m int) bool { return min(n, m) < 2 || below(n, m) < 1 }

// A Side is what is compared: one run or many.
type Side struct {
	Description string // e.g. "revision nsop-00007, 288 runs"
	Reports     []*bench.Report
}

// A Comparison is how b differs from a.
type Comparison struct {
	A        SideInfo `json:"a"`
	B        SideInfo `json:"b"`
	Verdict  string   `json:"verdict"` // a sentence for the whole
	Outcome  string   `json:"outcome"` // faster, slower, mixed, same, unknown (too few samples) or nothing (to compare)
	Rows     []Row    `json:"rows"`
	OnlyA    []string `json:"only_a"` // names of rows that b has no counterpart of
	OnlyB    []string `json:"only_b"`
	Warnings []string `json:"warnings"`
}

// SideInfo says what a side is.
type SideInfo struct {
	Description string   `json:"description"`
	Runs        []string `json:"runs"`    // identifiers, at most maxRuns
	Reports     int      `json:"reports"` // runs in all
	Samples     int      `json:"samples"` // results in all
}

const maxRuns = 20

// A Row is a row of a beside one of b.
type Row struct {
	Name    string   `json:"name"`             // of a's row
	NameB   string   `json:"name_b,omitempty"` // of b's, where it is another
	Metrics []Effect `json:"metrics"`          // the first is what the verdict goes by
	Notes   []string `json:"notes"`            // what is left out, and why

	a, b *bench.Result // one of each, for its labels
}

// An Effect is how b's values of one metric differ from a's.
type Effect struct {
	Metric string   `json:"metric"` // p50, ns_per_op, p99 or ops_per_sec
	Better string   `json:"better"` // lower or higher
	A      Sample   `json:"a"`
	B      Sample   `json:"b"`
	Ratio  *float64 `json:"ratio"`    // median of b / median of a
	Low    *float64 `json:"ratio_lo"` // 95% confidence interval of the ratio; null where there are too few samples
	High   *float64 `json:"ratio_hi"`
	P      *float64 `json:"p"`      // at least 1e-6; null where there are too few samples
	Word   string   `json:"effect"` // faster, slower, or ~ where it is no more than noise
	Note   string   `json:"note,omitempty"`
}

// A Sample is what is known of one metric on one side.
type Sample struct {
	Median float64 `json:"median"`
	N      int     `json:"n"`
}

// Compare compares b with a.
func Compare(a, b Side) *Comparison {
	c := &Comparison{A: sideInfo(a), B: sideInfo(b), Rows: []Row{}, OnlyA: []string{}, OnlyB: []string{}, Warnings: []string{}}
	rowsA, rowsB := rowsOf(a), rowsOf(b)
	pairs, left, without := match(rowsA, rowsB)
	if without != "" {
		c.Warnings = append(c.Warnings, "no row has the same name on both sides: they are matched without "+without)
	}
	if shared := sharedRuns(a, b); shared > 0 {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s on both sides", count(shared, "run is", "runs are")))
	}
	c.Warnings = append(c.Warnings, embedded(rowsA, rowsB)...)
	for _, p := range pairs {
		c.Rows = append(c.Rows, compareRows(p.a, p.b))
	}
	for _, r := range left {
		if slices.Contains(rowsA, r) {
			c.OnlyA = append(c.OnlyA, r.name)
		} else {
			c.OnlyB = append(c.OnlyB, r.name)
		}
	}
	c.Outcome, c.Verdict = c.judge()
	return c
}

func sideInfo(s Side) SideInfo {
	info := SideInfo{Description: s.Description, Runs: []string{}, Reports: len(s.Reports)}
	for _, r := range s.Reports {
		info.Samples += len(r.Results)
		if len(info.Runs) < maxRuns && r.Run != "" {
			info.Runs = append(info.Runs, r.Run)
		}
	}
	return info
}

// sharedRuns is how many runs are on both sides.
func sharedRuns(a, b Side) (n int) {
	runs := map[string]bool{}
	for _, r := range a.Reports {
		runs[r.Run] = r.Run != ""
	}
	for _, r := range b.Reports {
		if runs[r.Run] {
			n++
		}
	}
	return n
}

// embedded warns where one side is in-process and the other is not.
func embedded(a, b []*sideRow) []string {
	inProcess := func(rows []*sideRow) (all, none bool) {
		all, none = len(rows) > 0, len(rows) > 0
		for _, r := range rows {
			all, none = all && r.results[0].Embedded, none && !r.results[0].Embedded
		}
		return all, none
	}
	allA, noneA := inProcess(a)
	allB, noneB := inProcess(b)
	switch {
	case allA && noneB:
		return []string{"a is an embedded store, b is not: the network is in one of them only"}
	case noneA && allB:
		return []string{"b is an embedded store, a is not: the network is in one of them only"}
	}
	return nil
}

// A sideRow is what one side has of one name.
type sideRow struct {
	name    string
	results []*bench.Result
}

// rowsOf are the rows of a side in the order in which they come.
func rowsOf(s Side) (rows []*sideRow) {
	byName := map[string]*sideRow{}
	for _, report := range s.Reports {
		for _, r := range report.Results {
			if byName[r.Name] == nil {
				byName[r.Name] = &sideRow{name: r.Name}
				rows = append(rows, byName[r.Name])
			}
			byName[r.Name].results = append(byName[r.Name].results, r)
		}
	}
	return rows
}

type pair struct{ a, b *sideRow }

// levels are what may differ between the names of two rows, in the order in which it is tried.
var levels = []struct {
	without []string
	words   string
}{
	{nil, ""},
	{[]string{"target"}, "target"},
	{[]string{"target", "client"}, "target and client"},
}

// match pairs the rows whose names are alike; where none are, those that are alike without their target, then without
// target and client. A row may then have several counterparts. What is left has none.
func match(as, bs []*sideRow) (pairs []pair, left []*sideRow, without string) {
	for _, level := range levels {
		byKey := map[string][]*sideRow{}
		for _, b := range bs {
			k := key(b.name, level.without)
			byKey[k] = append(byKey[k], b)
		}
		matched := map[*sideRow]bool{}
		for _, a := range as {
			for _, b := range byKey[key(a.name, level.without)] {
				pairs = append(pairs, pair{a, b})
				matched[a], matched[b] = true, true
			}
		}
		if len(pairs) > 0 || level.words == levels[len(levels)-1].words {
			for _, r := range slices.Concat(as, bs) {
				if !matched[r] {
					left = append(left, r)
				}
			}
			if len(pairs) > 0 {
				without = level.words
			}
			return pairs, left, without
		}
	}
	return nil, nil, ""
}

// standard are the parameters whose absence from a name means the same as this value.
var standard = []string{"concurrency=1", "pipeline=1", "size=100", "keyspace=1", "scale=1", "protocol=prepared", "flavor=sound", "sync=off"}

// key is a row's name without parameters that are at their default, and without those named.
func key(name string, without []string) string {
	parts := slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool {
		parameter, _, ok := strings.Cut(part, "=")
		return slices.Contains(standard, part) || ok && slices.Contains(without, parameter)
	})
	slices.Sort(parts[1:])
	return strings.Join(parts, "/")
}

// metrics are what is compared: of each group the first that both sides have.
var metrics = [][]string{{"p50", "ns_per_op", "ops_per_sec"}, {"p99"}, {"ops_per_sec"}}

func compareRows(a, b *sideRow) Row {
	r := Row{Name: a.name, Metrics: []Effect{}, Notes: []string{}, a: a.results[0], b: b.results[0]}
	if b.name != a.name {
		r.NameB = b.name
	}
	for _, group := range metrics {
		for _, name := range group {
			va, vb := values(a, name), values(b, name)
			if len(va) > 0 && len(vb) > 0 {
				if !slices.ContainsFunc(r.Metrics, func(e Effect) bool { return e.Metric == name }) {
					r.Metrics = append(r.Metrics, effect(name, va, vb))
				}
				break
			}
		}
	}
	for _, side := range []struct {
		name string
		row  *sideRow
	}{{"a", a}, {"b", b}} {
		failed, wrong := 0, 0
		for _, res := range side.row.results {
			switch _, ok := figure(res, "ns_per_op"); {
			case !ok:
				failed++
			case res.Errors > 0:
				wrong++
			}
		}
		if failed > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("in %s, %s of %s completed nothing and are left out", side.name, bench.FormatCount(int64(failed)), count(len(side.row.results), "sample", "samples")))
		}
		if wrong > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("in %s, %s of %s had errors", side.name, bench.FormatCount(int64(wrong)), count(len(side.row.results), "sample", "samples")))
		}
	}
	if len(r.Metrics) == 0 {
		r.Notes = append(r.Notes, "no metric that both sides have")
	}
	return r
}

// values are the values of a metric that were measured.
func values(r *sideRow, metric string) (vs []float64) {
	for _, res := range r.results {
		if v, ok := figure(res, metric); ok {
			vs = append(vs, v)
		}
	}
	return vs
}

// figure is the value of a metric of one result, above 0. Time per operation and operations a second are the same
// figure: where a side has only one of them, the other follows.
func figure(r *bench.Result, metric string) (float64, bool) {
	of := func(metric string) (float64, bool) {
		u, ok := bench.UnitByName(metric)
		if !ok {
			return 0, false
		}
		v, ok := u.Of(r)
		return v, ok && v > 0
	}
	if v, ok := of(metric); ok {
		return v, true
	}
	other, ok := map[string]string{"ns_per_op": "ops_per_sec", "ops_per_sec": "ns_per_op"}[metric]
	if !ok {
		return 0, false
	}
	v, ok := of(other)
	return 1e9 / v, ok
}

// effect compares the values of one metric, which are all above 0.
func effect(metric string, a, b []float64) Effect {
	thresholds := benchmath.DefaultThresholds
	thresholds.CompareAlpha = Alpha
	sa, sb := benchmath.NewSample(a, &thresholds), benchmath.NewSample(b, &thresholds)
	ma := benchmath.AssumeNothing.Summary(sa, 1-Alpha).Center
	mb := benchmath.AssumeNothing.Summary(sb, 1-Alpha).Center
	e := Effect{Metric: metric, Better: better(metric), A: Sample{round(ma), len(a)}, B: Sample{round(mb), len(b)}, Word: "~", Ratio: finite(mb / ma)}
	if tooFew(len(a), len(b)) {
		e.Note = fmt.Sprintf("too few samples to tell a difference from noise: a has %d, b has %d, and it takes %d of each", len(a), len(b), enough)
		return e
	}
	test := benchmath.AssumeNothing.Compare(sa, sb)
	for _, w := range test.Warnings {
		e.Note = w.Error()
	}
	e.P = finite(max(test.P, minP))
	if lo, hi, ok := interval(sa.Values, sb.Values); ok {
		e.Low, e.High = finite(min(lo, mb/ma)), finite(max(hi, mb/ma))
	}
	if test.P < Alpha && ma != mb {
		e.Word = "slower"
		if (mb < ma) == (e.Better == "lower") {
			e.Word = "faster"
		}
	}
	return e
}

func better(metric string) string {
	u, _ := bench.UnitByName(metric)
	return u.Better
}

// finite is v with as many digits as can mean something, or nil where it is no number.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	v = round(v)
	return &v
}

// round keeps six significant digits.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return v
	}
	unit := math.Pow10(5 - int(math.Floor(math.Log10(math.Abs(v)))))
	if math.IsInf(unit, 0) || unit == 0 {
		return v
	}
	return math.Round(v*unit) / unit
}

// judge is the verdict for the whole, which goes by the first metric of each pair. Of many rows that are alike one in twenty
// differs by chance, so a row counts only within Benjamini's and Hochberg's bounds (Controlling the false discovery rate,
// Journal of the Royal Statistical Society B 57, 1995).
func (c *Comparison) judge() (outcome, verdict string) {
	var effects []Effect
	few := 0
	for _, r := range c.Rows {
		if len(r.Metrics) == 0 {
			continue
		}
		effects = append(effects, r.Metrics[0])
		if r.Metrics[0].P == nil {
			few++
		}
	}
	switch {
	case len(effects) == 0:
		return "nothing", "nothing to compare: " + c.why() + "."
	}
	rate := !slices.ContainsFunc(effects, func(e Effect) bool { return e.Metric != "ops_per_sec" })
	if few == len(effects) {
		return "unknown", "b measures " + amount(effects, rate) + ", but that may be noise: " + fmt.Sprintf(
			"too few samples (%d of each row on each side would tell: count=%d, or more runs).", enough, enough)
	}
	tested := slices.DeleteFunc(slices.Clone(effects), func(e Effect) bool { return e.P == nil })
	slices.SortStableFunc(tested, func(a, b Effect) int { return cmp.Compare(*a.P, *b.P) })
	var differ []Effect
	for i, e := range slices.Backward(tested) {
		if *e.P <= Alpha*float64(i+1)/float64(len(tested)) {
			differ = slices.DeleteFunc(tested[:i+1], func(e Effect) bool { return e.Word == "~" })
			break
		}
	}
	better := slices.DeleteFunc(slices.Clone(differ), func(e Effect) bool { return e.Word != "faster" })
	worse := slices.DeleteFunc(slices.Clone(differ), func(e Effect) bool { return e.Word != "slower" })
	of := func(n int) string {
		return fmt.Sprintf("in %s of %s", bench.FormatCount(int64(n)), count(len(effects), "row", "rows"))
	}
	switch {
	case len(differ) == 0 && slices.ContainsFunc(effects, func(e Effect) bool { return e.Word != "~" }):
		return "same", "no difference that is more than noise: of so many rows one may differ by chance."
	case len(differ) == 0:
		return "same", "no difference that is more than noise."
	case len(better) > 0 && len(worse) > 0:
		return "mixed", fmt.Sprintf("b is faster %s and slower in %s.", of(len(better)), bench.FormatCount(int64(len(worse))))
	}
	outcome, some := "faster", better
	if len(worse) > 0 {
		outcome, some = "slower", worse
	}
	verdict = "b is " + amount(some, rate)
	switch {
	case len(some) == len(effects):
		return outcome, verdict + "."
	case few > 0:
		return outcome, verdict + " " + of(len(some)) + ", with too few samples or no difference that is more than noise in the others."
	}
	return outcome, verdict + " " + of(len(some)) + ", with no difference that is more than noise in the others."
}

// amount says how much faster or slower b is: its time per operation beside a's, the geometric mean over rows, or where
// only rates are known its operations a second.
func amount(effects []Effect, rate bool) string {
	sum, n := 0.0, 0
	for _, e := range effects {
		if e.Ratio == nil {
			continue
		}
		x := math.Log(*e.Ratio)
		if e.Metric == "ops_per_sec" && !rate {
			x = -x
		}
		sum, n = sum+x, n+1
	}
	ratio := math.Exp(sum / float64(max(n, 1)))
	switch {
	case math.Abs(ratio-1) < 0.0005:
		return "as fast as a"
	case rate && ratio > 1:
		return "faster, with " + percent(ratio) + " more operations a second"
	case rate:
		return "slower, with " + percent(ratio) + " fewer operations a second"
	case ratio < 1:
		return percent(ratio) + " faster"
	}
	return percent(ratio) + " slower"
}

// percent writes how far a ratio is from 1.
func percent(ratio float64) string {
	p := 100 * math.Abs(ratio-1)
	if p < 1 {
		return fmt.Sprintf("%.1f%%", p)
	}
	return bench.FormatCount(int64(math.Round(p))) + "%"
}

// why says what there is where nothing can be compared.
func (c *Comparison) why() string {
	has := func(side string, info SideInfo, names []string) string {
		switch {
		case info.Reports == 0:
			return side + " has no runs"
		case info.Samples == 0:
			return side + " has no results"
		}
		s := side + " has " + strings.Join(names[:min(len(names), 2)], ", ")
		if n := len(names) - 2; n > 0 {
			s += " and " + bench.FormatCount(int64(n)) + " more"
		}
		return s
	}
	if len(c.Rows) > 0 {
		return "the rows that match have no metric that both sides have"
	}
	return has("a", c.A, c.OnlyA) + ", " + has("b", c.B, c.OnlyB)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return bench.FormatCount(int64(n)) + " " + many
}
