package handlers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/detect"
	"nsop/bench/history"
)

// A standing is how a target is at present, beside its last week.
type standing struct {
	detect.State
	Target *bench.Target
	Run    *history.Run // the latest; nil where it was never measured
	Row    string       // whose latency State is about; "" where no run has a row
	points []measured   // of the latest week
}

// Probed tells whether the latest run is a probe.
func (s standing) Probed() bool { return s.Run != nil && s.Run.Kind == "probe" }

const (
	// weekRows is how many rows of one series are read to tell what is normal: a week of probes every five minutes and more.
	weekRows = 2500
	week     = 7 * 24 * time.Hour
)

// standings are those of every target, in the order in which they are configured. now is the time of reading.
func (s *Service) standings(ctx context.Context, now time.Time, deploys []history.Value) ([]standing, error) {
	known, err := s.History.Values(ctx, "target")
	if err != nil {
		return nil, err
	}
	var all []standing
	for _, t := range s.Targets {
		st := standing{Target: t, State: detect.State{Word: "unknown"}}
		if slices.ContainsFunc(known, func(v history.Value) bool { return v.Value == t.Name }) {
			if err := s.stand(ctx, &st, now, deploys); err != nil {
				return nil, err
			}
		}
		all = append(all, st)
	}
	return all, nil
}

// stand finds out how st's target is.
func (s *Service) stand(ctx context.Context, st *standing, now time.Time, deploys []history.Value) error {
	name := st.Target.Name
	run, err := s.latestRun(ctx, name)
	if err != nil || run == nil {
		return err
	}
	st.Run, st.At = run, run.StartedAt
	rows := run.Rows
	if len(rows) == 0 {
		if rows, err = s.History.Latest(ctx, history.Filter{Target: name}); err != nil {
			return err
		}
	}
	row, ok := mainRow(rows)
	if !ok {
		st.State = detect.Now([]detect.Point{{At: run.StartedAt, Failed: true}})
		return nil
	}
	st.Row = row.Name
	points, err := s.series(ctx, row, now.Add(-week), time.Time{}, weekRows, deploys)
	if err != nil {
		return err
	}
	if last := len(points) - 1; (last < 0 || points[last].At.Before(row.StartedAt)) && !row.StartedAt.IsZero() {
		points = append(points, pointOf(row, deploys)) // of a sample the latest may not be a part
	}
	st.points, st.State = points, detect.Now(detectPoints(points))
	return nil
}

// latestRun is the latest probe of a target, or where there is none the latest run that measured it; nil for none.
func (s *Service) latestRun(ctx context.Context, target string) (*history.Run, error) {
	probes, err := s.History.List(ctx, history.Filter{Target: target, Kind: "probe", Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(probes) > 0 {
		return probes[0], nil
	}
	const few = 20
	runs, err := s.History.List(ctx, history.Filter{Target: target, Limit: few})
	if err != nil {
		return nil, err
	}
	for _, r := range runs {
		if r.Kind != "diagnose" && r.Kind != "import" && (r.Outcome != history.Stopped || len(r.Rows) > 0) {
			return r, nil
		}
	}
	return nil, nil
}

// mainRow is the row that stands for a target: one operation at a time, reading before writing, through a library before
// the bare socket.
func mainRow(rows []history.Row) (history.Row, bool) {
	if len(rows) == 0 {
		return history.Row{}, false
	}
	rank := func(r history.Row) int {
		n := slices.Index([]string{"get", "select", "set"}, r.Workload)
		if n < 0 {
			n = 3
		}
		if r.Client == "floor" {
			n += 4
		}
		if !strings.Contains(r.Name, "/concurrency=1/") && !strings.HasSuffix(r.Name, "/concurrency=1") {
			n += 8
		}
		return n
	}
	return slices.MinFunc(rows, func(a, b history.Row) int { return cmp.Compare(rank(a), rank(b)) }), true
}

// A measured is one run's row of a series.
type measured struct {
	history.Row
	At       time.Time
	Revision string
	Failed   bool
}

// pointOf is a row as a point of its series.
func pointOf(r history.Row, deploys []history.Value) measured {
	return measured{Row: r, At: r.StartedAt, Revision: revisionAt(deploys, r.StartedAt), Failed: r.Latency.P50 == nil}
}

// series are the points of row's series from a time on, before another if that is not zero, with the runs that failed before
// they had a row. Of several samples in one run the first is taken.
func (s *Service) series(ctx context.Context, row history.Row, from, until time.Time, most int, deploys []history.Value) ([]measured, error) {
	rows, _, err := s.History.Series(ctx, history.Filter{Target: row.Target, Workload: row.Workload, Client: row.Client, Since: from, Until: until}, most)
	if err != nil {
		return nil, err
	}
	points := make([]measured, 0, len(rows))
	for _, r := range rows {
		if r.Name == row.Name && r.Sample <= 1 {
			points = append(points, pointOf(r, deploys))
		}
	}
	const failures = 200
	failed, err := s.History.List(ctx, history.Filter{Target: row.Target, Outcome: history.Failed, Since: from, Until: until, Limit: failures})
	if err != nil {
		return nil, err
	}
	for _, r := range failed {
		if len(r.Rows) == 0 && r.Kind != "import" && r.Kind != "diagnose" {
			points = append(points, measured{At: r.StartedAt, Revision: r.Revision, Failed: true})
		}
	}
	slices.SortStableFunc(points, func(a, b measured) int { return a.At.Compare(b.At) })
	return points, nil
}

func detectPoints(points []measured) []detect.Point {
	out := make([]detect.Point, len(points))
	for i, p := range points {
		out[i] = detect.Point{At: p.At, Revision: p.Revision, Failed: p.Failed, Cold: p.Cold}
		if p.Latency.P50 != nil {
			out[i].P50 = float64(*p.Latency.P50)
		}
	}
	return out
}

// revisionAt is the revision that was the newest at a time.
func revisionAt(deploys []history.Value, at time.Time) string {
	revision := ""
	for _, d := range deploys { // in the order in which they first appeared
		if d.First.After(at) {
			break
		}
		revision = d.Value
	}
	return revision
}

// ago is how long ago at is, for people.
func ago(now, at time.Time) string {
	unit := func(n int, name string) string {
		if n != 1 {
			name += "s"
		}
		return fmt.Sprintf("%d %s ago", n, name)
	}
	switch d := now.Sub(at); {
	case d < 0:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	default:
		return unit(int(d.Hours()/24), "day")
	}
}

// sayings is what the page of plain text says of each target, by its name. The page must not wait for a history that is
// slow, nor fail with one that is down.
func (s *Service) sayings(ctx context.Context) map[string]string {
	said := map[string]string{}
	if s.History == nil {
		return said
	}
	const patience = 700 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now := time.Now()
	deploys, err := s.History.Values(ctx, "revision")
	var all []standing
	if err == nil {
		all, err = s.standings(ctx, now, deploys)
	}
	for _, t := range s.Targets {
		said[t.Name] = "history unknown" // which is what /runs tells the reason of
	}
	if err != nil {
		return said
	}
	for _, st := range all {
		said[st.Target.Name] = st.say(now)
	}
	return said
}

// say is "last probe 2 min ago: 1.06 ms p50, normal".
func (s standing) say(now time.Time) string {
	if s.Run == nil {
		return "never probed"
	}
	text := "last run "
	if s.Probed() {
		text = "last probe "
	}
	text += ago(now, s.Run.StartedAt) + ": "
	switch {
	case s.Word == "failing" && s.Run.ErrorKind != "":
		return text + "failing, " + s.Run.ErrorKind
	case s.Word == "failing" || s.P50 == 0:
		return text + s.Word
	case s.Word == "unknown":
		return text + bench.FormatDuration(s.P50) + " p50"
	}
	return text + bench.FormatDuration(s.P50) + " p50, " + s.Word
}
