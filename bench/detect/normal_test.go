package detect_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"nsop/bench/detect"
)

// daily is n probes, one every five minutes, whose latencies go round a day: 1 ms to 2 ms, the highest at noon UTC.
func daily(n int) []detect.Point {
	points := make([]detect.Point, n)
	for i := range points {
		at := monday.Add(time.Duration(i) * every)
		hour := at.Sub(at.Truncate(24 * time.Hour)).Hours()
		points[i] = detect.Point{At: at, P50: 1.5e6 - 0.5e6*math.Cos(2*math.Pi*hour/24) + 1e3*float64(i%7)}
	}
	return points
}

func TestNow(t *testing.T) {
	edit := func(points []detect.Point, f func(last []detect.Point)) []detect.Point {
		f(points[len(points)-4:])
		return points
	}
	fail := func(p *detect.Point) { p.Failed, p.P50 = true, math.NaN() }
	steady := func(n int) []detect.Point {
		points := make([]detect.Point, n)
		for i := range points {
			points[i] = detect.Point{At: monday.Add(time.Duration(i) * every), P50: 1e6 + 1e4*float64(i*7919%21)}
		}
		return points
	}
	for _, c := range []struct {
		name         string
		points       []detect.Point
		word, reason string
		hour         bool
		probes       int
	}{
		{"never", nil, "unknown", "never probed", false, 0},
		{"few", daily(20), "unknown", "19 earlier probes in a week, at least 20 tell what is normal", false, 0},
		{"just enough", daily(21), "normal", "normal is 1.86 ms to 1.97 ms", false, 20},
		{"at this hour", daily(2016), "normal", "normal is 1.80 ms to 1.89 ms at this hour", true, 84 + 1 + 5},
		{"failing", edit(daily(2016), func(l []detect.Point) { fail(&l[3]) }), "failing", "the latest probe failed", true, 0},
		{"failing for some", edit(daily(2016), func(l []detect.Point) { fail(&l[1]); fail(&l[2]); fail(&l[3]) }), "failing", "the latest 3 probes failed", true, 0},
		{"failing always", func() []detect.Point {
			ps := daily(30)
			for i := range ps {
				fail(&ps[i])
			}
			return ps
		}(), "failing", "all 30 probes failed", false, 0},
		{"recovered", edit(steady(400), func(l []detect.Point) { fail(&l[1]); fail(&l[2]) }), "normal", "normal is 1.01 ms to 1.19 ms", false, 0},
		{"cold", edit(steady(400), func(l []detect.Point) { l[3].Cold, l[3].P50 = true, 9e9 }), "normal", "normal is 1.01 ms to 1.19 ms", false, 0},
		{"three above", edit(steady(400), func(l []detect.Point) { l[1].P50, l[2].P50, l[3].P50 = 1.25e6, 1.25e6, 1.25e6 }), "slower", "the latest 3 probes are above what is normal, 1.01 ms to 1.20 ms", false, 0},
		{"three below", edit(steady(400), func(l []detect.Point) { l[1].P50, l[2].P50, l[3].P50 = 9e5, 9e5, 9e5 }), "faster", "the latest 3 probes are below what is normal, 1.00 ms to 1.19 ms", false, 0},
		{"one above", edit(steady(400), func(l []detect.Point) { l[2].P50, l[3].P50 = 1.1e6, 1.25e6 }), "normal", "normal is 1.01 ms to 1.19 ms, and one probe in ten is outside it", false, 0},
		{"one far above", edit(steady(400), func(l []detect.Point) { l[3].P50 = 5e6 }), "slower", "5.00 ms is far above what is normal, 1.01 ms to 1.19 ms", false, 0},
		{"two weeks ago", edit(steady(400), func(l []detect.Point) { l[3].At = l[3].At.Add(14 * 24 * time.Hour) }), "unknown", "0 earlier probes in a week, at least 20 tell what is normal", false, 0},
		{"all alike, and 3% above", func() []detect.Point {
			ps := steady(400)
			for i := range ps {
				ps[i].P50 = 1e6
			}
			ps[399].P50 = 1.03e6
			return ps
		}(), "normal", "normal is 1.00 ms to 1.00 ms, and one probe in ten is outside it", false, 0},
		{"all alike", func() []detect.Point {
			ps := steady(400)
			for i := range ps {
				ps[i].P50 = 1e6
			}
			return ps
		}(), "normal", "normal is 1.00 ms to 1.00 ms", false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := detect.Now(c.points)
			if s.Word != c.word || s.Reason != c.reason {
				t.Errorf("%q, %q\nwant %q, %q", s.Word, s.Reason, c.word, c.reason)
			}
			if c.probes > 0 && (s.Band == nil || s.Band.Hour != c.hour || s.Band.Probes != c.probes) {
				t.Errorf("band %+v, want %d probes, by hour %v", s.Band, c.probes, c.hour)
			}
			if _, err := json.Marshal(s); err != nil {
				t.Error(err)
			}
		})
	}
}
