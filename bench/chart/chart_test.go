package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// skewed returns the latency at p of a log-normal body with a heavy tail.
func skewed(median, sigma, p float64) float64 {
	t := nines(p)
	return median * math.Exp(sigma*(t-.3)) * (1 + math.Pow(t/3.5, 6))
}

func distribution(name string, median, sigma float64, n int) Distribution {
	d := Distribution{Name: name}
	for t := 0.0; t <= math.Log10(float64(n)); t += .05 {
		p := 1 - math.Pow(10, -t)
		d.Points = append(d.Points, Quantile{p, skewed(median, sigma, p)})
	}
	return d
}

func week(r *rand.Rand, change bool) (points []Point) {
	start := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)
	for i := range 7 * 24 * 12 {
		at := start.Add(time.Duration(i) * 5 * time.Minute)
		level := 1.02e6 * (1 + .06*math.Sin(float64(i)/288*2*math.Pi))
		if change && i > 1150 {
			level *= 1.34
		}
		level *= math.Exp(r.NormFloat64() * .03)
		p := Point{At: at, P5: level * .9, P50: level, P95: level * (1.2 + .1*r.Float64())}
		switch {
		case i >= 700 && i < 706:
			p = Point{At: at, Failed: true}
		case i > 800 && i < 880:
			continue
		case i%97 == 0:
			p.Cold = level * (1.8 + r.Float64())
		}
		points = append(points, p)
	}
	return points
}

var frame = Frame{Title: "redis: latency by percentile", Subtitle: "redis 7.0.15 at 10.0.0.3:6379, from cloud-run asia-northeast1 (gVisor, 1 vCPU), 100 B values"}

type picture struct {
	name string
	draw func(w io.Writer) error
}

// pictures are the golden files.
func pictures() []picture {
	titled := func(title string) Frame {
		f := frame
		f.Title = title
		return f
	}
	curve := func(name string, base, knee float64) Curve {
		c := Curve{Name: name}
		for _, x := range []float64{1, 10, 25, 50, 100} {
			ops := 1 / (1/(base*x) + 1/knee)
			c.Points = append(c.Points, Load{X: x, OpsPerSec: ops, P50: x / ops * .95e9, P99: x / ops * 1.5e9})
		}
		return c
	}
	var limit []Load
	for x := 1.0; x <= 512; x *= 2 {
		ops := math.Min(x*980, 61204-x*4)
		limit = append(limit, Load{X: x, OpsPerSec: ops, P50: x / ops * .95e9, P99: x / ops * (1.4e9 + x*2e6)})
	}
	deploy := func(day, hour int, name string) Deploy {
		return Deploy{time.Date(2026, 11, day, hour, 0, 0, 0, time.UTC), name}
	}
	timeline := Timeline{Points: week(rand.New(rand.NewPCG(1, 2)), true),
		Deploys: []Deploy{deploy(24, 10, "nsop-00009"), deploy(24, 16, "nsop-00010"), deploy(25, 9, "nsop-00011"), deploy(27, 6, "nsop-00012"), deploy(29, 22, "nsop-00013")},
		Step: &Step{At: time.Date(2026, 11, 27, 6, 0, 0, 0, time.UTC), Before: 1.02e6, After: 1.37e6,
			Text: "p50 of get rose by 34% since revision nsop-00012, 2026-11-27 06:00, p = 0.001"}}
	quiet := Timeline{Points: week(rand.New(rand.NewPCG(3, 4)), false)[:72], Deploys: []Deploy{deploy(23, 9, "nsop-00008")}}
	for i := range quiet.Points {
		if i%20 == 0 {
			quiet.Points[i].Cold = 41e6 + float64(i)*1e5
		}
	}
	small := timeline
	small.Small = true
	flat := quiet
	flat.Small = true
	parts := []Part{{"network", 840e3, ""}, {"sandbox", 110e3, ""}, {"library", 38e3, "redigo 31 us, go-redis 38 us, rueidis 29 us over the floor"},
		{"server", 2.1e3, ""}, {"unaccounted", 40e3, ""}}
	var many []Distribution
	for i := range 30 {
		many = append(many, distribution(fmt.Sprintf("get go-redis concurrency=%d size=1KB", i+1), 1e5*math.Pow(1.3, float64(i)), .2, 100000))
	}
	failed := frame
	failed.Warnings = []string{"embedded store: no real store was measured"}
	failed.Notes = []string{"set go-redis: nothing completed, 97 timeout (read tcp 10.0.0.3:6379: i/o timeout), 3 reset (connection reset by peer)"}
	return []picture{
		{"percentiles", func(w io.Writer) error {
			return Percentiles(w, frame, []Distribution{distribution("set redigo", 1.01e6, .14, 13830), distribution("set go-redis", 1.0e6, .12, 9860),
				distribution("get redigo", .96e6, .11, 123700), distribution("get go-redis", .93e6, .15, 125600)})
		}},
		{"percentiles-failed", func(w io.Writer) error {
			return Percentiles(w, failed, []Distribution{{Name: "set redigo", Points: []Quantile{{0, 801e3}, {.5, 1.06e6}, {.9, 1.19e6}, {.95, 1.24e6}, {.99, 1.41e6}, {1 - 1.0/1035, 2.21e6}}}})
		}},
		{"percentiles-many", func(w io.Writer) error { return Percentiles(w, frame, many) }},
		{"sweep", func(w io.Writer) error {
			return Sweep(w, titled("redis: throughput and p99 over concurrency"), "concurrency",
				[]Curve{curve("set redigo", 974, 41000), curve("set go-redis", 979, 36000), curve("get redigo", 1026, 52000), curve("get go-redis", 1021, 44000)})
		}},
		{"limit", func(w io.Writer) error {
			return Limit(w, titled("redis: get over concurrency"), "concurrency", limit, Knee{64, "concurrency 64: 60,948/s, bound by the server's CPU"})
		}},
		{"history", func(w io.Writer) error { return History(w, titled("redis: latency of get, 7 days"), timeline) }},
		{"history-log", func(w io.Writer) error { return History(w, titled("redis: latency of get, 6 hours"), quiet) }},
		{"history-small", func(w io.Writer) error { return History(w, Frame{Title: "get redigo"}, small) }},
		{"history-small-flat", func(w io.Writer) error { return History(w, Frame{Title: "get a client with a long name"}, flat) }},
		{"budget", func(w io.Writer) error { return Budget(w, titled("redis: where the time goes"), "GET", 1030100, parts) }},
		{"band-normal", func(w io.Writer) error { return Band(w, Frame{Title: "redis"}, Range{1.03e6, .95e6, 1.21e6}) }},
		{"band-slower", func(w io.Writer) error { return Band(w, Frame{Title: "redis"}, Range{1.73e6, .95e6, 1.21e6}) }},
		{"band-far", func(w io.Writer) error { return Band(w, Frame{Title: "redis"}, Range{41e6, .95e6, 1.21e6}) }},
		{"band-failing", func(w io.Writer) error { return Band(w, Frame{Title: "redis"}, Range{0, .95e6, 1.21e6}) }},
	}
}

func TestGolden(t *testing.T) {
	for _, p := range pictures() {
		t.Run(p.name, func(t *testing.T) {
			var b, again bytes.Buffer
			if err := errors.Join(p.draw(&b), p.draw(&again)); err != nil {
				t.Fatal(err)
			}
			check(t, b.String())
			if !bytes.Equal(b.Bytes(), again.Bytes()) {
				t.Error("the same data are drawn otherwise")
			}
			file := filepath.Join("testdata", p.name+".svg")
			if *update {
				if err := os.WriteFile(file, b.Bytes(), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b.Bytes(), want) {
				t.Errorf("%s differs; go test -update writes it anew", file)
			}
		})
	}
}

// check holds for every picture: it is XML, begins with its text alternative, every coordinate is a number inside of it,
// and no text is drawn without a class, since the library would then give it colours of its own.
func check(t testing.TB, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	var width, height float64
	var open []string
	var order []string
	text := map[string]string{}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("no XML: %v in %s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			name := token.Name.Local
			open = append(open, name)
			if len(open) == 2 {
				order = append(order, name)
			}
			attrs := map[string]string{}
			for _, a := range token.Attr {
				attrs[a.Name.Local] = a.Value
			}
			if name == "svg" {
				var x, y float64
				if _, err := fmt.Sscan(attrs["viewBox"], &x, &y, &width, &height); err != nil || width <= 0 || height <= 0 || height > 20000 {
					t.Fatalf("viewBox %q: %v", attrs["viewBox"], err)
				}
				continue
			}
			if attrs["style"] != "" {
				t.Errorf("%s has a style of its own: %v", name, attrs)
			}
			inside := func(axis string, v, size float64) {
				if math.IsNaN(v) || v < 0 || v > size {
					t.Errorf("%s: %s=%g is outside of %g", name, axis, v, size)
				}
			}
			for axis, size := range map[string]float64{"x": width, "cx": width, "y": height, "cy": height} {
				if value, ok := attrs[axis]; ok {
					v, err := strconv.ParseFloat(value, 64)
					if err != nil {
						t.Errorf("%s: %s=%q", name, axis, value)
					}
					inside(axis, v, size)
				}
			}
			if path := strings.FieldsFunc(attrs["d"], func(r rune) bool { return strings.ContainsRune("MLZ \n", r) }); len(path) > 0 {
				for i, value := range path {
					v, err := strconv.ParseFloat(value, 64)
					if err != nil {
						t.Errorf("d=%q: %v", attrs["d"], err)
					}
					inside("d", v, []float64{width, height}[i%2])
				}
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				text[open[len(open)-1]] += string(token)
			}
		}
	}
	if len(order) < 2 || order[0] != "title" || order[1] != "desc" {
		t.Errorf("children begin with %v, want title and desc", order[:min(2, len(order))])
	}
	for name, s := range map[string]string{"desc": text["desc"], "text": text["text"], "title": text["title"]} {
		if strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			t.Errorf("%s tells what is no number: %s", name, s)
		}
	}
	if text["desc"] == "" {
		t.Error("no desc")
	}
}

// The description says what the picture says.
func TestDescription(t *testing.T) {
	for name, want := range map[string][]string{
		"percentiles": {"redis 7.0.15 at 10.0.0.3:6379", "set redigo: median 1.01 ms, p99 1.33 ms, p99.9", "get go-redis: median"},
		"sweep":       {"set redigo throughput: 951/s at concurrency 1, 28,854/s at 100.", "get go-redis p99:"},
		"limit":       {"Knee at concurrency 64: 60,948/s, bound by the server's CPU.", "p99: 1.43 ms at concurrency 1, 21.0 ms at 512."},
		"history": {"1,937 probes from 2026-11-23 06:00 to 2026-11-30 05:55 UTC, 6 of them failed", "Deploys: nsop-00009 2026-11-24 10:00",
			"p50 of get rose by 34%", "cold samples, the slowest"},
		"budget":      {"One GET takes 1.03 ms.", "network 840 us, 82%."},
		"band-slower": {"1.73 ms is above normal. Normal is 0.95 to 1.21 ms."},
	} {
		for _, p := range pictures() {
			if p.name != name {
				continue
			}
			var b bytes.Buffer
			if err := p.draw(&b); err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(b.String(), "<desc>")
			desc, _, _ := strings.Cut(rest, "</desc>")
			desc = html.UnescapeString(desc)
			for _, w := range want {
				if !strings.Contains(desc, w) {
					t.Errorf("%s: no %q in %q", name, w, desc)
				}
			}
		}
	}
}

// Nothing of what others wrote is markup.
func TestEscaped(t *testing.T) {
	const evil = "<script>alert(1)</script>&amp;\"'\x00\x1b\u202e\xff]]>"
	f := Frame{Title: evil, Subtitle: evil, Warnings: []string{evil}, Notes: []string{evil}}
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for name, draw := range map[string]func(w io.Writer) error{
		"percentiles": func(w io.Writer) error { return Percentiles(w, f, []Distribution{{evil, []Quantile{{0, 1}, {.5, 2}}}}) },
		"sweep": func(w io.Writer) error {
			return Sweep(w, f, evil, []Curve{{evil, []Load{{1, 1, 1, 1, evil}, {2, 2, 2, 2, evil}}}})
		},
		"limit": func(w io.Writer) error { return Limit(w, f, evil, []Load{{1, 1, 1, 1, evil}}, Knee{1, evil}) },
		"history": func(w io.Writer) error {
			return History(w, f, Timeline{Points: []Point{{At: at, P50: 1}}, Deploys: []Deploy{{at, evil}}, Step: &Step{At: at, Text: evil}})
		},
		"budget": func(w io.Writer) error { return Budget(w, f, evil, 1, []Part{{evil, 1, evil}}) },
		"band":   func(w io.Writer) error { return Band(w, f, Range{1, 1, 2}) },
	} {
		var b bytes.Buffer
		if err := draw(&b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		check(t, b.String())
		for _, wrong := range []string{"<script", "\x00", "\x1b", "\u202e"} {
			if strings.Contains(b.String(), wrong) {
				t.Errorf("%s has %q", name, wrong)
			}
		}
	}
}

func TestInline(t *testing.T) {
	f := frame
	var b bytes.Buffer
	for _, f.Inline = range []bool{false, true} {
		b.Reset()
		if err := Band(&b, f, Range{1, 1, 2}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "style") == f.Inline {
			t.Errorf("inline %v: %s", f.Inline, b.String())
		}
	}
	// A page's other elements are left alone.
	for line := range strings.Lines(CSS()) {
		for rule := range strings.SplitSeq(line, "}") {
			if selectors, _, ok := strings.Cut(rule, "{"); ok && !strings.HasPrefix(rule, "@media") {
				for selector := range strings.SplitSeq(selectors, ",") {
					if !strings.HasPrefix(selector, ".nsop-chart") {
						t.Errorf("rule for %q", selector)
					}
				}
			}
		}
	}
}

// WCAG 2.2: text 4.5 to its ground, what else means something 3.
func TestContrast(t *testing.T) {
	luminance := func(colour string) float64 {
		var c [3]int
		if _, err := fmt.Sscanf(colour, "#%02x%02x%02x", &c[0], &c[1], &c[2]); err != nil {
			t.Fatalf("%s: %v", colour, err)
		}
		l := 0.0
		for i, v := range c {
			s := float64(v) / 255
			if s <= .04045 {
				s /= 12.92
			} else {
				s = math.Pow((s+.055)/1.055, 2.4)
			}
			l += s * []float64{.2126, .7152, .0722}[i]
		}
		return l
	}
	contrast := func(a, b string) float64 {
		la, lb := luminance(a), luminance(b)
		return (max(la, lb) + .05) / (min(la, lb) + .05)
	}
	least := map[string]float64{"text": 4.5, ".dim": 4.5, ".warning": 4.5, ".axis": 3, ".rule": 3, ".level": 3, ".failure": 3, ".needle": 3}
	for _, c := range colours {
		want := least[c.selector]
		if c.property == "" {
			want = 3
			// The name of a part stands in it.
			for i, pair := range [][2]string{{c.light, "#ffffff"}, {c.dark, "#14181d"}} {
				if got := contrast(pair[0], pair[1]); got < 4.0 {
					t.Errorf("%s: text in it has %.2f (%d)", c.selector, got, i)
				}
			}
		}
		if c.selector == ".cold" && c.property == "stroke" {
			want = 3
		}
		for i, pair := range [][2]string{{c.light, colours[0].light}, {c.dark, colours[0].dark}} {
			if got := contrast(pair[0], pair[1]); got < want {
				t.Errorf("%s %d: contrast %.2f, want %.1f", c.selector, i, got, want)
			}
		}
	}
}

// odd are numbers that a measurement may hand over.
var odd = []float64{0, 1, 1e6, 1e6, 1e6 + 1, 4e9, 1e15, -5, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, math.MaxFloat64, .3}

// Whatever the data are, a picture is one, or the error says that there is nothing to draw.
func TestOddData(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	pick := func() float64 { return odd[r.IntN(len(odd))] }
	start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	many := func(most int) int { return []int{0, 1, 2, 3, r.IntN(most)}[r.IntN(5)] }
	drew := map[string]int{}
	try := func(name string, draw func(w io.Writer) error) {
		var b bytes.Buffer
		err := draw(&b)
		switch {
		case errors.Is(err, ErrEmpty):
			if b.Len() > 0 {
				t.Errorf("%s: nothing to draw, and yet %s", name, b.String())
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			drew[name]++
			check(t, b.String())
		}
	}
	for range 150 {
		n := many(40)
		if r.IntN(50) == 0 {
			n = 1000
		}
		var rows []Distribution
		var curves []Curve
		var points []Point
		var deploys []Deploy
		var parts []Part
		for i := range n {
			d, c := Distribution{Name: strings.Repeat("row ", r.IntN(9))}, Curve{Name: fmt.Sprint("row ", i)}
			for range many(12) {
				d.Points = append(d.Points, Quantile{min(pick(), r.Float64()), pick()})
				c.Points = append(c.Points, Load{X: pick(), OpsPerSec: pick(), P50: pick(), P99: pick()})
			}
			rows, curves = append(rows, d), append(curves, c)
			at := start.Add(time.Duration(r.Int64N(1 << []int{1, 20, 40, 50, 58}[r.IntN(5)])))
			points = append(points, Point{at, pick(), pick(), pick(), pick(), r.IntN(3) == 0})
			deploys = append(deploys, Deploy{at, strings.Repeat("x", r.IntN(60))})
			parts = append(parts, Part{fmt.Sprint("part ", i), pick(), ""})
		}
		parts = parts[:min(len(parts), 20)]
		slices.SortFunc(points, func(a, b Point) int { return a.At.Compare(b.At) })
		try("percentiles", func(w io.Writer) error { return Percentiles(w, frame, rows) })
		try("sweep", func(w io.Writer) error { return Sweep(w, frame, "size", curves) })
		for _, c := range curves[:min(len(curves), 2)] {
			try("limit", func(w io.Writer) error { return Limit(w, frame, "rate", c.Points, Knee{pick(), "here"}) })
		}
		timeline := Timeline{Points: points, Deploys: deploys, Small: r.IntN(2) == 0}
		if r.IntN(2) == 0 {
			timeline.Step = &Step{start.Add(time.Duration(r.Int64N(1 << 50))), pick(), pick(), "changed"}
			timeline.From, timeline.To = start, start.Add(time.Duration(r.Int64N(1<<50)))
		}
		try("history", func(w io.Writer) error { return History(w, frame, timeline) })
		try("budget", func(w io.Writer) error { return Budget(w, frame, "get", pick(), parts) })
		try("band", func(w io.Writer) error { return Band(w, frame, Range{pick(), pick(), pick()}) })
		if t.Failed() {
			break
		}
	}
	for _, name := range []string{"percentiles", "sweep", "limit", "history", "budget", "band"} {
		if drew[name] < 10 {
			t.Errorf("%s: only %d pictures were drawn", name, drew[name])
		}
	}
}

func TestEmpty(t *testing.T) {
	for name, err := range map[string]error{
		"percentiles": Percentiles(io.Discard, frame, []Distribution{{Name: "get"}}),
		"sweep":       Sweep(io.Discard, frame, "size", []Curve{{Name: "get"}}),
		"limit":       Limit(io.Discard, frame, "rate", nil, Knee{}),
		"history":     History(io.Discard, frame, Timeline{}),
		"budget":      Budget(io.Discard, frame, "get", 0, nil),
		"band":        Band(io.Discard, frame, Range{Value: 1}),
	} {
		if !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: %v, want ErrEmpty", name, err)
		}
	}
}
func BenchmarkPictures(b *testing.B) {
	for _, p := range pictures() {
		b.Run(p.name, func(b *testing.B) {
			for b.Loop() {
				if err := p.draw(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
