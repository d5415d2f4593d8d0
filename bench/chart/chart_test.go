package chart

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
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

func check(t *testing.T, svg string) {}
