package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"nsop/bench/storetest"
)

// pairs is how many times a figure and its peer are taken in turn; the median of their ratios is what counts.
const pairs = 5

// BenchmarkPeers sets GET of 100 bytes beside redis-benchmark on the same server: medians of five pairs taken in turn.
// ratio is operations a second over redis-benchmark's, for floor at concurrency 1 its inverse: ns/op over ns/op.
func BenchmarkPeers(b *testing.B) {
	s := storetest.Redis(b)
	// redis-benchmark's GETs would miss else; with a TTL as every key here has one, which the server looks up at each GET.
	s.Do(b, "SET", "key:__rand_int__", strings.Repeat("x", 100), "EX", "3600")
	l := redisLab(b, s.Addr)
	for _, row := range []struct {
		client                string
		concurrency, pipeline int
		count                 int
		target                string
	}{
		{"floor", 1, 1, 50_000, "at most 1.05"},
		{"floor", 50, 1, 200_000, "at least 1.2"},
		{"go-redis", 50, 1, 200_000, "at least 1.0"},
		{"rueidis", 50, 1, 400_000, "at least 2.5"},
		{"floor", 50, 16, 2_000_000, "at least 1.0"},
	} {
		b.Run(fmt.Sprintf("client=%s/concurrency=%d/pipeline=%d", row.client, row.concurrency, row.pipeline), func(b *testing.B) {
			ours := func() float64 {
				r := l.get(fmt.Sprintf("/bench/redis/get?client=%s&concurrency=%d&pipeline=%d&benchtime=%dx", row.client, row.concurrency, row.pipeline, row.count))
				if r.status != http.StatusOK {
					b.Fatal(r.body)
				}
				return float64(*r.Results[0].OpsPerSec)
			}
			peer := func() float64 {
				out, err := exec.Command("redis-benchmark", "-p", strconv.Itoa(s.Port), "-t", "get", "-d", "100", "-n", strconv.Itoa(row.count),
					"-c", strconv.Itoa(row.concurrency), "-P", strconv.Itoa(row.pipeline), "--csv").Output()
				if err != nil {
					b.Fatal(err)
				}
				_, line, _ := strings.Cut(string(out), `"GET","`)
				rate, _, _ := strings.Cut(line, `"`)
				v, err := strconv.ParseFloat(rate, 64)
				if err != nil {
					b.Fatal(err)
				}
				return v
			}
			for b.Loop() {
				var ratios, us, them []float64
				for range pairs {
					a, c := ours(), peer()
					us, them = append(us, 1e9/a), append(them, 1e9/c)
					if row.concurrency == 1 {
						a, c = c, a
					}
					ratios = append(ratios, a/c)
				}
				b.Logf("ratio %.2f (%s): %.0f ns/op against %.0f", median(ratios), row.target, median(us), median(them))
				b.ReportMetric(median(ratios), "ratio")
				b.ReportMetric(median(us), "nsop-ns/op")
				b.ReportMetric(median(them), "peer-ns/op")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
