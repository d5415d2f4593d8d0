package store

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/storetest"
)

// BenchmarkGet is what redis-benchmark -t get -d 100 measures, and that program itself beside it on the same server:
// ns/op is wall time for an operation. Compare neighbours of one run, never two runs.
func BenchmarkGet(b *testing.B) {
	server := storetest.Redis(b)
	session := connect(b, "redis://"+server.Addr)
	server.Do(b, "SET", "key:__rand_int__", strings.Repeat("x", 100))
	for _, concurrency := range []int{1, 50} {
		for _, pipeline := range []int{1, 16} {
			row := fmt.Sprintf("concurrency=%d/pipeline=%d", concurrency, pipeline)
			b.Run("client=redis-benchmark/"+row, func(b *testing.B) {
				out, err := exec.Command("redis-benchmark", "-p", strconv.Itoa(server.Port), "-t", "get", "-d", "100",
					"-n", strconv.Itoa(b.N), "-c", strconv.Itoa(concurrency), "-P", strconv.Itoa(pipeline), "--csv").Output()
				if err != nil {
					b.Fatal(err)
				}
				_, row, _ := strings.Cut(string(out), "\"GET\",\"")
				rate, _, _ := strings.Cut(row, "\"")
				perSecond, err := strconv.ParseFloat(rate, 64)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(1e9/perSecond, "ns/op")
			})
			for _, client := range redisClients {
				b.Run("client="+client+"/"+row, func(b *testing.B) {
					s, err := session.Open(b.Context(), client, bench.Options{Connections: concurrency, Timeout: 5 * time.Second})
					if err != nil {
						b.Fatal(err)
					}
					defer s.Close()
					b.ReportAllocs()
					b.ResetTimer()
					var wg sync.WaitGroup
					for worker := range concurrency {
						own := s
						if d, ok := s.(bench.Dedicated); ok {
							own = d.Dedicate(worker)
						}
						n := (b.N + worker) / concurrency
						wg.Go(func() { get(b, own, n, pipeline) })
					}
					wg.Wait()
				})
			}
		}
	}
}

func get(b *testing.B, s bench.Store, n, pipeline int) {
	ctx := b.Context()
	if pipeline == 1 {
		for range n {
			if v, err := s.Get(ctx, "key:__rand_int__"); err != nil || len(v) != 100 {
				b.Errorf("Get = %d bytes, %v", len(v), err)
				return
			}
		}
		return
	}
	cmds, replies := make([]bench.Cmd, pipeline), make([]bench.Reply, pipeline)
	for i := range cmds {
		cmds[i] = bench.Cmd{"GET", "key:__rand_int__"}
	}
	for ; n > 0; n -= pipeline {
		s.(bench.Commander).Do(ctx, cmds, replies)
		for i := range replies {
			if r := &replies[i]; r.Err != nil || len(r.Bytes) != 100 {
				b.Errorf("reply %+v", r)
				return
			}
		}
	}
}
