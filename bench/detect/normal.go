package detect

import (
	"fmt"
	"slices"
	"time"

	"nsop/bench"
)

// A State is how the latest probe of a series compares with its last week.
type State struct {
	Word   string    `json:"word"`             // normal, slower, faster, failing or unknown
	Reason string    `json:"reason"`           // in a few words, of the figures that Word comes from
	At     time.Time `json:"at"`               // of the latest probe; the zero time where there is none
	P50    float64   `json:"p50_ns,omitempty"` // of the latest warm one that measured something, nanoseconds
	Band   *Band     `json:"band"`             // nil where too few probes are known
}

// A Band is the range in which nine of ten probes lie.
type Band struct {
	Low    float64 `json:"p5_ns"`
	High   float64 `json:"p95_ns"`
	Probes int     `json:"probes"` // it is of
	Hour   bool    `json:"hour"`   // of the same time of day, half an hour around it; else of the whole week
}

const (
	bandSpan   = 7 * 24 * time.Hour
	bandProbes = 20   // of which one is 5%
	bandSlack  = 0.02 // share beyond its edge that is still within it: a latency has two significant digits
	bandWidth  = 0.1  // share of its upper edge that it is wide at least, when it is asked what is far outside
	inARow     = 3    // probes outside their band that make a series slower or faster
)

// Now compares the latest of points with those of the week before it at the same time of day, or of the whole of that
// week where they are fewer than 20. One probe of ten is outside its band when all is well, so a series is slower or
// faster where the latest three probes are on one side of it, or the latest is further outside than the band is wide.
func Now(points []Point) State {
	points = slices.SortedStableFunc(slices.Values(points), func(a, b Point) int { return a.At.Compare(b.At) })
	if len(points) == 0 {
		return State{Word: "unknown", Reason: "never probed"}
	}
	last := points[len(points)-1]
	s := State{Word: "unknown", At: last.At}
	var warm []Point
	for _, p := range points {
		if p.usable() {
			warm = append(warm, p)
		}
	}
	var recent []Point // the latest warm ones, the latest first
	for _, p := range slices.Backward(warm) {
		if len(recent) < inARow {
			recent = append(recent, p)
		}
	}
	if len(recent) > 0 {
		latest := recent[0]
		s.P50 = latest.P50
		s.Band = band(warm[:len(warm)-1], latest.At)
	}
	failed := 0
	for _, p := range slices.Backward(points) {
		if !p.Failed {
			break
		}
		failed++
	}
	switch {
	case failed == 1:
		s.Word, s.Reason = "failing", "the latest probe failed"
	case failed == len(points):
		s.Word, s.Reason = "failing", fmt.Sprintf("all %s probes failed", bench.FormatCount(int64(failed)))
	case failed > 1:
		s.Word, s.Reason = "failing", fmt.Sprintf("the latest %s probes failed", bench.FormatCount(int64(failed)))
	case len(recent) == 0:
		s.Reason = "no warm probe yet"
	case s.Band == nil:
		known := 0
		for _, p := range warm[:len(warm)-1] {
			if within(p, recent[0].At) {
				known++
			}
		}
		s.Reason = fmt.Sprintf("%d earlier probes in a week, at least %d tell what is normal", known, bandProbes)
	default:
		s.Word, s.Reason = s.Band.judge(recent)
	}
	return s
}

// within tells whether p is of the week before at.
func within(p Point, at time.Time) bool {
	return !p.At.After(at) && at.Sub(p.At) <= bandSpan
}

// band is the range of those of points, in order of time, that are of the week before at.
func band(points []Point, at time.Time) *Band {
	var all, hour []float64
	for _, p := range points {
		if !within(p, at) {
			continue
		}
		all = append(all, p.P50)
		const day = 24 * time.Hour
		if apart := at.Sub(p.At) % day; min(apart, day-apart) <= 30*time.Minute {
			hour = append(hour, p.P50)
		}
	}
	values, byHour := hour, true
	if len(hour) < bandProbes {
		values, byHour = all, false
	}
	if len(values) < bandProbes {
		return nil
	}
	slices.Sort(values)
	return &Band{Low: quantile(values, 0.05), High: quantile(values, 0.95), Probes: len(values), Hour: byHour}
}

// quantile is the q-quantile of sorted values, interpolated (Hyndman, Fan: Sample quantiles in statistical packages, The
// American Statistician 50, 1996, definition 7).
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-2)
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// judge says what the latest probes, the latest first, are beside the band.
func (b *Band) judge(recent []Point) (word, reason string) {
	side := func(p Point) int {
		switch {
		case p.P50 > b.High*(1+bandSlack):
			return 1
		case p.P50 < b.Low*(1-bandSlack):
			return -1
		}
		return 0
	}
	same := 0
	for same < len(recent) && side(recent[same]) == side(recent[0]) {
		same++
	}
	normal := bench.FormatDuration(b.Low) + " to " + bench.FormatDuration(b.High)
	if b.Hour {
		normal += " at this hour"
	}
	word, where := "slower", "above"
	switch side(recent[0]) {
	case 0:
		return "normal", "normal is " + normal
	case -1:
		word, where = "faster", "below"
	}
	latest, width := recent[0].P50, max(b.High-b.Low, bandWidth*b.High)
	switch {
	case same >= inARow:
		return word, fmt.Sprintf("the latest %d probes are %s what is normal, %s", same, where, normal)
	case latest > b.High+width || latest < b.Low-width:
		return word, fmt.Sprintf("%s is far %s what is normal, %s", bench.FormatDuration(latest), where, normal)
	}
	return "normal", fmt.Sprintf("normal is %s, and one probe in ten is outside it", normal)
}
