package handlers

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/chart"
	"nsop/bench/detect"
	"nsop/bench/diagnose"
	"nsop/bench/history"
)

// ranges are the spans of time that the dashboard shows. The second is the default.
var ranges = []struct {
	name, words string
	span        time.Duration
}{
	{"6h", "6 hours", 6 * time.Hour},
	{"24h", "24 hours", 24 * time.Hour},
	{"7d", "7 days", week},
	{"30d", "30 days", 30 * 24 * time.Hour},
}

const (
	olderRows   = 1000 // of one series before the latest week, for the large chart and the detector
	smallRows   = 1500 // of all series of a target
	smallCharts = 12
)

// A card says how one target is.
type card struct {
	standing
	Name, About, Clients string
	Word                 string // normal, slower, faster, failing, unknown or never
	P50                  string
	What                 string // whose latency it is
	Band                 string
	Where                string
	Link                 string
	Selected             bool
}

// A choice is a link among several.
type choice struct {
	Name, Link string
	Selected   bool
}

// A small is one of the small charts.
type small struct {
	Chart    string
	Name     string
	Link     string
	Selected bool
}

// A change is one that was detected, with the link that compares before and after.
type change struct {
	detect.Change
	Compare string
}

// A formTarget is a target as the form knows it.
type formTarget struct {
	Name, Clients, Workloads, Default string
	Selected                          bool
}

// A dashboardPage is what the dashboard shows.
type dashboardPage struct {
	Version, Where, Revision, Up string
	Trouble                      string // why there is no history
	Cards                        []card
	Target, Row                  string // shown below
	RowName                      string
	Range                        string
	Words                        string
	Ranges                       []choice
	Chart                        string
	Empty                        string // why there is no chart
	Changes                      []change
	Small                        []small
	More                         int // series without a chart
	Diagnosed                    *history.Run
	Findings                     []diagnose.Finding
	DiagnoseCommand              string
	ProbeCommand                 string
	Targets                      []formTarget
	Plan                         planned
	Latest                       []latestRun
}

// A latestRun is a line of the list of runs.
type latestRun struct {
	*history.Run
	Target string
}

// dashboard answers the page for browsers.
func (s *Service) dashboard(w http.ResponseWriter, r *http.Request) error {
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return err
	}
	if err := checkNames(values, "target", "row", "range", "format"); err != nil {
		return err
	}
	at := 1
	if values.Has("range") {
		at = -1
		var names []string
		for i, x := range ranges {
			if names = append(names, x.name); x.name == values.Get("range") {
				at = i
			}
		}
		if at < 0 {
			return &bench.ParamError{Parameter: "range", Detail: "no such range", Allowed: names}
		}
	}
	if values.Has("target") {
		if _, err := s.target(values.Get("target")); err != nil {
			return err
		}
	}
	now := time.Now()
	info := s.Vantage.Info(r.Context())
	p := &dashboardPage{Version: s.Version, Where: strings.TrimSpace(info.Platform + " " + info.Region), Revision: info.Revision, Up: uptime(time.Since(s.Started)),
		Target: values.Get("target"), Row: values.Get("row"), Range: ranges[at].name, Words: ranges[at].words}
	if err := s.observed(r, p, now, ranges[at].span); err != nil {
		p.Trouble = (&historyError{err}).Error() // the rest of the page is of use without it
	}
	if s.History == nil {
		p.Trouble = "runs are not kept: there is no history"
	}
	if p.Target == "" {
		p.Target = s.Targets[0].Name
	}
	if p.Cards == nil {
		for _, t := range s.Targets {
			p.Cards = append(p.Cards, newCard(standing{Target: t, State: detect.State{Word: "unknown"}}, now))
		}
	}
	for i := range p.Cards {
		c := &p.Cards[i]
		c.Selected, c.Link = c.Name == p.Target, dashboardLink(c.Name, "", p.Range)
	}
	for _, x := range ranges {
		p.Ranges = append(p.Ranges, choice{x.words, dashboardLink(p.Target, p.Row, x.name), x.name == p.Range})
	}
	s.form(r, p)
	return writePage(w, http.StatusOK, "nsop", p.node())
}

func dashboardLink(target, row, span string) string {
	values := url.Values{"range": {span}}
	if target != "" {
		values.Set("target", target)
	}
	if row != "" {
		values.Set("row", row)
	}
	return "/?" + values.Encode() + "#when"
}

// observed fills in what the history knows.
func (s *Service) observed(r *http.Request, p *dashboardPage, now time.Time, span time.Duration) error {
	if s.History == nil {
		return nil
	}
	ctx := r.Context()
	deploys, err := s.History.Values(ctx, "revision")
	if err != nil {
		return err
	}
	all, err := s.standings(ctx, now, deploys)
	if err != nil {
		return err
	}
	order := []string{"failing", "slower", "faster", "unknown", "normal"}
	slices.SortStableFunc(all, func(a, b standing) int {
		if (a.Run == nil) != (b.Run == nil) {
			if a.Run == nil {
				return 1
			}
			return -1
		}
		return cmp.Compare(slices.Index(order, a.Word), slices.Index(order, b.Word))
	})
	for _, st := range all {
		p.Cards = append(p.Cards, newCard(st, now))
	}
	p.Target = cmp.Or(p.Target, all[0].Target.Name)
	shown := all[slices.IndexFunc(all, func(st standing) bool { return st.Target.Name == p.Target })]
	if err := s.draw(ctx, p, shown, deploys, now, span, zone(r)); err != nil {
		return err
	}
	if err := s.findings(ctx, p); err != nil {
		return err
	}
	const few = 8
	runs, err := s.History.List(ctx, history.Filter{Limit: few})
	for _, run := range runs {
		p.Latest = append(p.Latest, latestRun{run, strings.Join(run.Targets, ", ")})
	}
	return err
}

func newCard(st standing, now time.Time) card {
	t := st.Target
	c := card{standing: st, Name: t.Name, About: t.Kind, Word: st.Word, P50: "-"}
	switch {
	case t.Address != "":
		c.About += " at " + t.Address
	case t.Embedded:
		c.About += ", in this process"
	}
	if st.Run == nil {
		c.Word, c.Reason = "never measured", ""
		return c
	}
	if st.P50 > 0 {
		c.P50 = bench.FormatDuration(st.P50)
	}
	c.What = rowTitle(st.Row)
	c.Where = strings.TrimSpace(st.Run.Platform + " " + st.Run.Region)
	if st.Word == "failing" && st.Run.Error != "" {
		c.Reason = cmp.Or(st.Run.ErrorKind, "failed") + ": " + firstSentence(st.Run.Error)
	}
	if b := st.Band; b != nil {
		var svg bytes.Buffer
		f := chart.Frame{Title: t.Name + " against its normal band", Inline: true}
		if chart.Band(&svg, f, chart.Range{Value: st.P50, P5: b.Low, P95: b.High}) == nil { // else there is nothing to draw
			c.Band = svg.String()
		}
	}
	return c
}

// firstSentence keeps a card short.
func firstSentence(text string) string {
	const most = 120
	if r := []rune(text); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return text
}

// rowTitle is what a row measures, from its key: "get through redigo".
func rowTitle(name string) string {
	parts := strings.Split(name, "/")
	title := strings.ToLower(parts[0])
	for _, part := range parts[1:] {
		if client, ok := strings.CutPrefix(part, "client="); ok {
			title += " through " + client
		}
	}
	return title
}

// zone is the reader's, as the script says it: minutes east of UTC.
func zone(r *http.Request) *time.Location {
	cookie, err := r.Cookie("tz")
	if err != nil {
		return time.UTC
	}
	minutes, err := strconv.Atoi(cookie.Value)
	if err != nil || minutes == 0 || minutes < -24*60 || minutes > 24*60 {
		return time.UTC
	}
	sign, m := "+", minutes
	if m < 0 {
		sign, m = "-", -m
	}
	return time.FixedZone("UTC"+sign+strconv.Itoa(m/60)+":"+strconv.Itoa(100 + m%60)[1:], minutes*60)
}

// draw makes the charts of a target.
func (s *Service) draw(ctx context.Context, p *dashboardPage, st standing, deploys []history.Value, now time.Time, span time.Duration, loc *time.Location) error {
	from := now.Add(-span)
	latest, err := s.History.Latest(ctx, history.Filter{Target: st.Target.Name})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(latest, func(row history.Row) bool { return row.Name == cmp.Or(p.Row, st.Row) })
	if i < 0 {
		p.Empty = "nothing measured yet"
		if p.Row != "" {
			p.Empty = "no such row of " + st.Target.Name
		}
		return nil
	}
	row := latest[i]
	p.Row, p.RowName = row.Name, rowTitle(row.Name)
	// Of the latest week every probe is there, so that a change is seen when it comes; what came before is its measure.
	points := st.points
	if row.Name != st.Row {
		if points, err = s.series(ctx, row, now.Add(-week), time.Time{}, weekRows, deploys); err != nil {
			return err
		}
	}
	if since, until := detect.Since(from), now.Add(-week); since.Before(until) {
		older, err := s.series(ctx, row, since, until, olderRows, deploys)
		if err != nil {
			return err
		}
		points = slices.Concat(older, points)
	}
	t := chart.Timeline{From: from.In(loc), To: now.In(loc), Band: "min to p95"}
	// The first revision that is known was not seen to replace another.
	for _, d := range deploys[min(1, len(deploys)):] {
		if !d.First.Before(from) {
			t.Deploys = append(t.Deploys, chart.Deploy{At: d.First, Name: d.Value})
		}
	}
	for _, q := range points {
		if !q.At.Before(from) {
			t.Points = append(t.Points, q.drawn())
		}
	}
	for _, c := range slices.Backward(detect.Changes(strings.ToLower(row.Workload), detectPoints(points))) {
		if c.At.Before(from) {
			continue
		}
		c.Sentence = strings.ReplaceAll(c.Sentence, c.At.UTC().Format(sentenceTime), c.At.In(loc).Format(sentenceTime+" MST"))
		if t.Step == nil {
			t.Step = &chart.Step{At: c.At, Before: c.Before, After: c.After, Text: c.Sentence}
		}
		p.Changes = append(p.Changes, change{c, compareLink(c, row, from)})
	}
	var svg bytes.Buffer
	f := chart.Frame{Title: st.Target.Name + ": " + p.RowName, Subtitle: strings.TrimPrefix(rowRest(row.Name), ", "), Inline: true}
	switch err := chart.History(&svg, f, t); {
	case err == nil:
		p.Chart = svg.String()
	case len(t.Points) == 0:
		p.Empty = "nothing was measured in the last " + p.Words
	default:
		return err
	}
	return s.drawSmall(ctx, p, latest, now, span, loc)
}

// sentenceTime is how a change's sentence writes when it was, in UTC.
const sentenceTime = "2006-01-02 15:04"

// drawn is q as the chart takes it.
func (q measured) drawn() chart.Point {
	out := chart.Point{At: q.At, Failed: q.Failed}
	of := func(ns *int64) float64 {
		if ns == nil {
			return 0
		}
		return float64(*ns)
	}
	if q.Cold {
		out.Cold = of(q.Latency.P50)
		return out
	}
	out.P5, out.P50, out.P95 = of(q.Latency.Min), of(q.Latency.P50), of(q.Latency.P95)
	return out
}

// compareLink compares a row before and after a change.
func compareLink(c detect.Change, row history.Row, from time.Time) string {
	side := func(since, until string) string {
		terms := []string{"target:" + row.Target, "workload:" + row.Workload, "client:" + row.Client, "since:" + since}
		if until != "" {
			terms = append(terms, "until:"+until)
		}
		return strings.Join(terms, ",")
	}
	at := c.At.UTC().Format(time.RFC3339Nano)
	return "/compare?" + url.Values{"a": {side(detect.Since(from).UTC().Format(time.RFC3339), at)}, "b": {side(at, "")}}.Encode()
}

// rowRest are the parameters in a row's key: "concurrency 1, pipeline 1, size 100".
func rowRest(name string) string {
	rest := ""
	for _, part := range strings.Split(name, "/")[1:] {
		key, value, ok := strings.Cut(part, "=")
		if ok && key != "client" && key != "target" {
			rest += ", " + key + " " + value
		}
	}
	return rest
}

// drawSmall makes a chart for each client and operation.
func (s *Service) drawSmall(ctx context.Context, p *dashboardPage, latest []history.Row, now time.Time, span time.Duration, loc *time.Location) error {
	from := now.Add(-span)
	rows, _, err := s.History.Series(ctx, history.Filter{Target: p.Target, Since: from}, smallRows)
	if err != nil {
		return err
	}
	points := map[string][]chart.Point{}
	tests := map[string]int{} // rows of a test and client
	for _, row := range rows {
		if row.Sample <= 1 {
			points[row.Name] = append(points[row.Name], pointOf(row, nil).drawn())
		}
	}
	maps.DeleteFunc(points, func(_ string, list []chart.Point) bool { // cold samples alone, which a small chart does not show
		return !slices.ContainsFunc(list, func(q chart.Point) bool { return q.P50 > 0 || q.Failed })
	})
	for name := range points {
		tests[rowTitle(name)]++
	}
	names := slices.SortedFunc(maps.Keys(points), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(points[b]), len(points[a])), cmp.Compare(a, b))
	})
	if len(names) > smallCharts {
		p.More = len(names) - smallCharts
		names = names[:smallCharts]
	}
	slices.Sort(names)
	for _, name := range names {
		title := rowTitle(name)
		if tests[title] > 1 {
			title += unusual(name)
		}
		var svg bytes.Buffer
		t := chart.Timeline{From: from.In(loc), To: now.In(loc), Points: points[name], Small: true}
		if chart.History(&svg, chart.Frame{Title: title, Inline: true}, t) != nil { // nothing to draw
			continue
		}
		p.Small = append(p.Small, small{svg.String(), title, dashboardLink(p.Target, name, p.Range), name == p.Row})
	}
	return nil
}

// unusual are the parameters in a row's key that are not the defaults.
func unusual(name string) (text string) {
	for _, part := range strings.Split(name, "/")[1:] {
		switch key, value, ok := strings.Cut(part, "="); {
		case !ok, key == "client", key == "target", part == "concurrency=1", part == "pipeline=1", part == "size=100", part == "keyspace=1":
		default:
			text += " " + key + " " + value
		}
	}
	return text
}

// findings are those of the latest diagnosis of the target.
func (s *Service) findings(ctx context.Context, p *dashboardPage) error {
	runs, err := s.History.List(ctx, history.Filter{Target: p.Target, Kind: "diagnose", Limit: 1, Bodies: true})
	if err != nil || len(runs) == 0 {
		return err
	}
	d, err := readDiagnosis(runs[0])
	if err != nil {
		return err
	}
	p.Diagnosed, p.Findings = runs[0], d.Findings
	return nil
}

// form fills in what the form that runs a benchmark offers.
func (s *Service) form(r *http.Request, p *dashboardPage) {
	for _, t := range s.Targets {
		var clients []string
		for _, c := range t.Clients {
			clients = append(clients, c.Name)
		}
		p.Targets = append(p.Targets, formTarget{t.Name, strings.Join(clients, ", "), strings.Join(bench.WorkloadNames(t), ", "), strings.Join(t.Default, ","), t.Name == p.Target})
	}
	p.DiagnoseCommand = command(r, "/diagnose/"+url.PathEscape(p.Target)+"?format=text")
	first := "/bench/"
	if slices.Contains(paths(), "/probe/{target}") {
		first = "/probe/"
	}
	p.ProbeCommand = command(r, first+url.PathEscape(p.Target)+"?format=text")
	target, err := s.target(p.Target)
	if err != nil {
		return
	}
	if plan, err := bench.NewPlan(target, "", bench.DefaultSpec(), s.Limits); err == nil { // else the form says so when it is sent
		estimate := plan.Estimate(0)
		path := "/bench/" + url.PathEscape(target.Name)
		p.Plan = planned{Path: path, Command: command(r, path+"?format=text"), Rows: plan.Size(), Seconds: estimate.Seconds(), Estimate: bench.FormatDuration(float64(estimate))}
	}
}
