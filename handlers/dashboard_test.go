package handlers_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/history"
)

// A past is what fill puts into a history.
type past struct {
	runs   int           // probes of each target
	every  time.Duration // between them
	target []string
	slower float64 // factor of the last third
	bodies bool    // whole answers, that are compared and shown
	edit   func(i int, r *history.Run)
}

// fill stores probes that ended just before now: SET and GET through two clients, log-normal about 1 ms.
func fill(t testing.TB, h *history.History, now time.Time, p past) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	number := func(v float64) *int64 { return new(int64(v)) }
	var runs []*history.Run
	save := func() {
		if err := h.Save(t.Context(), runs...); err != nil {
			t.Fatal(err)
		}
		runs = runs[:0]
	}
	for i := range p.runs {
		at := now.Add(-time.Duration(p.runs-i) * p.every).UTC()
		for _, target := range p.target {
			run := &history.Run{ID: fmt.Sprintf("%s-%06d", target, i), Kind: "probe", StartedAt: at, Elapsed: 2 * time.Second, Outcome: history.OK, Status: 200,
				Platform: "cloud-run", Region: "asia-northeast1", Service: "nsop", Revision: fmt.Sprintf("nsop-%05d", 6+i*3/p.runs), Targets: []string{target},
				Labels: map[string]string{"egress": "direct"}, Request: "/bench/" + target, Cold: i%97 == 5}
			for _, workload := range []string{"set", "get"} {
				for _, client := range []string{"floor", "redigo"} {
					ns := 1.0e6 * math.Exp(0.1*rnd.NormFloat64())
					if client == "floor" {
						ns *= .95
					}
					if i >= p.runs*2/3 && p.slower > 0 {
						ns *= p.slower
					}
					if run.Cold {
						ns *= 4
					}
					run.Rows = append(run.Rows, history.Row{Name: fmt.Sprintf("%s/target=%s/client=%s/concurrency=1/pipeline=1/size=100/keyspace=1", map[string]string{"set": "Set", "get": "Get"}[workload], target, client),
						Target: target, Workload: workload, Client: client, Sample: 1, Iterations: 1000, ElapsedNS: 1e9, NSPerOp: bench.NewFigure(ns), OpsPerSec: bench.NewRate(1e9 / ns),
						StartedAt: at, Latency: bench.Latency{Min: number(ns * .8), Mean: number(ns), P50: number(ns), P90: number(ns * 1.15), P95: number(ns * 1.25), P99: number(ns * 1.5), Max: number(ns * 2)}})
				}
			}
			if i%131 == 60 {
				run.Rows, run.Outcome, run.Status, run.ErrorKind, run.Error = nil, history.Failed, 502, "timeout", "redis at 10.0.0.3:6379: connect: timeout after 5s"
			}
			report := &bench.Report{Run: run.ID, StartedAt: at, ElapsedNS: 2e9, Target: &bench.TargetInfo{Name: target, Kind: "redis"}}
			for _, row := range run.Rows {
				if p.bodies {
					report.Results = append(report.Results, &bench.Result{Name: row.Name, Target: target, Workload: row.Workload, Client: row.Client, Concurrency: 1, Pipeline: 1, Size: 100,
						Keyspace: 1, Sample: 1, Iterations: row.Iterations, ElapsedNS: row.ElapsedNS, NSPerOp: row.NSPerOp, OpsPerSec: row.OpsPerSec, Latency: row.Latency})
				}
			}
			body, err := json.Marshal(report.Normalize())
			if err != nil {
				t.Fatal(err)
			}
			run.Body = body
			if p.edit != nil {
				p.edit(i, run)
			}
			runs = append(runs, run)
		}
		if len(runs) >= 200 {
			save()
		}
	}
	save()
}
