package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/compare"
	"nsop/bench/history"
	"nsop/handlers"
)

// stored is a history in memory with 12 runs of each of two revisions, the second a third faster.
type stored struct {
	filters []history.Filter // asked for
	err     error
}

func report(id string, ns float64) *bench.Report {
	p50 := int64(ns)
	return &bench.Report{Run: id, StartedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Results: []*bench.Result{{
		Name: "Get/target=redis/client=redigo", Target: "redis", Workload: "get", Client: "redigo", Sample: 1, Iterations: 1000,
		NSPerOp: bench.NewFigure(ns), OpsPerSec: bench.NewRate(1e9 / ns), Latency: bench.Latency{P50: &p50}}}}
}

func (s *stored) sources() handlers.CompareSources {
	level := map[string]float64{"nsop-00006": 1.03e6, "nsop-00007": 0.72e6, "": 1e6}
	return handlers.CompareSources{
		Run: func(_ context.Context, id string) (*bench.Report, error) {
			switch {
			case s.err != nil:
				return nil, s.err
			case strings.HasPrefix(id, "0198c0d"):
				return report(id, 1e6), nil
			}
			return nil, fmt.Errorf("read run: %w", history.ErrNotFound)
		},
		Runs: func(_ context.Context, f history.Filter) (reports []*bench.Report, err error) {
			s.filters = append(s.filters, f)
			if f.Target == "nowhere" {
				return nil, s.err
			}
			for i := range min(12, f.Limit) {
				reports = append(reports, report(fmt.Sprint(f.Revision, i), level[f.Revision]*(1+0.01*float64(i))))
			}
			return reports, s.err
		},
		Published: func(name string) (*bench.Report, error) {
			return &bench.Report{Results: []*bench.Result{{Name: "Get/client=redigo", Workload: "get", Client: "redigo", NSPerOp: bench.NewFigure(2e6)}}}, nil
		},
		PublishedNames: []string{"clients", "stores"},
		Page: func(w io.Writer, p compare.Page) error {
			_, err := fmt.Fprintf(w, "<p>%d rows, %s", len(p.Rows), p.Verdict)
			return err
		},
	}
}

func compareService(t *testing.T) (*handlers.Service, *stored) {
	h := &stored{}
	return newService(t, func(c *handlers.Config) { c.Compare = h.sources() }), h
}

func TestCompare(t *testing.T) {
	s, h := compareService(t)
	w := get(s, "/compare?a=revision:nsop-00006&b=revision%3Dnsop-00007,label.egress=direct,since:24h,until:1h,target:redis,workload:get,client:redigo")
	var c compare.Comparison
	if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil || w.Code != 200 {
		t.Fatalf("status %d, %v: %s", w.Code, err, w.Body)
	}
	if c.Verdict != "b is 30% faster." || len(c.Rows) != 1 || c.A.Description != "revision nsop-00006, 12 runs" ||
		c.B.Description != "revision=nsop-00007, label.egress=direct, since:24h, until:1h, target:redis, workload:get, client:redigo, 12 runs" {
		t.Errorf("%s", w.Body)
	}
	if len(h.filters) != 2 {
		t.Fatalf("%d filters", len(h.filters))
	}
	f := h.filters[1]
	if f.Revision != "nsop-00007" || f.Labels["egress"] != "direct" || f.Target != "redis" || f.Workload != "get" || f.Client != "redigo" || f.Limit != 1000 {
		t.Errorf("%+v", f)
	}
	if ago := time.Since(f.Since) - 24*time.Hour; math.Abs(ago.Minutes()) > 1 {
		t.Errorf("since %v", f.Since)
	}
	if d := f.Until.Sub(f.Since); d != 23*time.Hour {
		t.Errorf("until is %v after since", d)
	}

	for _, c := range []struct{ query, accept, contentType, has string }{
		{"a=0198c0de&b=run:0198c0df", "text/plain", "text/plain; charset=utf-8", "a: run 0198c0de, 2026-11-30 12:00 UTC     b: run 0198c0df, 2026-11-30 12:00 UTC\n"},
		{"a=published:clients&b=since:2026-11-30&format=text", "", "text/plain; charset=utf-8", "a: published figures clients     b: since 2026-11-30, 12 runs\n"},
		{"a=target:nowhere&b=0198c0de", "*/*", "application/json", "nothing to compare: a has no runs, b has Get/target=redis/client=redigo."},
		{"a=revision:nsop-00006&b=revision:nsop-00007&format=markdown", "text/html", "text/markdown; charset=utf-8", "| get | redigo | p50 | 1.09 ms |"},
		{"a=revision:nsop-00006&b=revision:nsop-00007&format=csv", "", "text/csv; charset=utf-8; header=present", "name,name_b,metric"},
		{"a=revision:nsop-00006&b=revision:nsop-00007", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8", "<p>2 rows, b is 30% faster."},
		{"a=revision:nsop-00006&b=revision:nsop-00007&format=html", "", "text/html; charset=utf-8", "<p>2 rows, b is 30% faster."},
	} {
		w := get(s, "/compare?"+c.query, "Accept", c.accept)
		if w.Code != 200 || w.Header().Get("Content-Type") != c.contentType || !strings.Contains(w.Body.String(), c.has) {
			t.Errorf("%s: %d %s\n%s", c.query, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
	}
}

// Runs of the history are compared with one another and with what is published.
func TestCompareRunsOfTheHistory(t *testing.T) {
	s := newService(t, keeping(tempHistory(t)))
	ids := []string{}
	for range 2 {
		ids = append(ids, decode(t, get(s, "/bench/map/get?benchtime=100x&count=4").Body.Bytes()).Run)
	}
	w := get(s, "/compare?format=text&a="+ids[0]+"&b="+ids[1])
	if w.Code != 200 || !strings.Contains(w.Body.String(), "a: run "+ids[0]) || !strings.Contains(w.Body.String(), "get   map") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := get(s, "/compare?a=target:nosuch&b=target:nosuch"); w.Code != 200 || !strings.Contains(w.Body.String(), "nothing to compare: a has no runs, b has no runs.") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	problemOf(t, get(s, "/compare?a=nosuch&b=nosuch"), 404)
	problemOf(t, get(s, "/compare?a=published:nosuch&b="+ids[0]), 400)
	if w := get(s, "/compare?a=published:clients&b=since:1h"); w.Code != 200 || !strings.Contains(w.Body.String(), "published figures clients") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestCompareProblems(t *testing.T) {
	s, h := compareService(t)
	for _, c := range []struct {
		query     string
		status    int
		parameter string
		detail    string
		allowed   string // one of them
	}{
		{"b=0198c0de", 400, "a", "a: missing", "a run's ID"},
		{"a=0198c0de", 400, "b", "b: missing", "published:stores"},
		{"a=0198c0de&b=", 400, "b", "b: missing", "revision:nsop-00007"},
		{"a=0198c0de&b=0198c0df&b=0198c0df", 400, "b", "b: given twice", "since:24h"},
		{"a=0198c0de&b=colour:red", 400, "b", `b: no term "colour"`, "label.NAME=VALUE"},
		{"a=0198c0de&b=revision:", 400, "b", "b: revision has no value", "label.NAME=VALUE"},
		{"a=0198c0de&b=revision:x,revision:y", 400, "b", "b: revision is given twice", "label.NAME=VALUE"},
		{"a=0198c0de&b=revision:x,,since:1h", 400, "b", "b: an empty term", "label.NAME=VALUE"},
		{"a=0198c0de&b=0198c0df,since:1h", 400, "b", `b: "0198c0df" can't be joined with other terms`, "label.NAME=VALUE"},
		{"a=published:clients,since:1h&b=0198c0df", 400, "a", `a: "published:clients" can't be joined with other terms`, "label.NAME=VALUE"},
		{"a=published:nope&b=0198c0df", 400, "a", `a: no published figures "nope"`, "published:clients"},
		{"a=since:yesterday&b=0198c0df", 400, "a", `a: since: "yesterday" is neither a duration such as 24h or 7d nor a time such as 2026-11-30T12:00:00Z`, "since:24h"},
		{"a=since:-1h&b=0198c0df", 400, "a", `a: since: "-1h" is neither`, "since:24h"},
		{"a=since:1h,until:2h&b=0198c0df", 400, "a", "a: since is not before until", "since:24h"},
		{"a=label.9=x&b=0198c0df", 400, "a", `a: label name "9"`, "label.NAME=VALUE"},
		{"a=0198c0de&b=0198c0df&format=benchfmt", 400, "format", `format: no format "benchfmt"`, "html"},
		{"a=0198c0de&b=0198c0df&x=1", 400, "x", "x: no such parameter", "format"},
		{"a=0198c0de&b=gone", 404, "", `b: no run "gone"`, ""},
	} {
		a := problemOf(t, get(s, "/compare?"+c.query), c.status)
		if a.Parameter != c.parameter || !strings.HasPrefix(a.Detail, c.detail) || c.allowed != "" && !slices.Contains(a.Allowed, c.allowed) {
			t.Errorf("%s: parameter %q, detail %q, allowed %q", c.query, a.Parameter, a.Detail, a.Allowed)
		}
	}
	if w := get(s, "/compare?b=0198c0de&format=text"); w.Code != 400 || !strings.HasPrefix(w.Body.String(), "nsop: a: missing\n\n  allowed  a run's ID, ") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	h.err = errors.New("history: no answer")
	for _, query := range []string{"a=0198c0de&b=0198c0df", "a=since:1h&b=since:1h"} {
		if a := problemOf(t, get(s, "/compare?"+query), 500); !strings.Contains(a.Detail, "no answer") {
			t.Errorf("%s: %q", query, a.Detail)
		}
	}
}

func FuzzCompareSide(f *testing.F) {
	for _, side := range []string{"0198c0de", "published:clients", "revision:nsop-00007,since:24h", "label.egress=direct", "until:2026-11-30T09:00:00Z", "a=b", ",", "since:7d12h", "label.x=\x00"} {
		f.Add(side)
	}
	h := &stored{}
	s := newService(f, func(c *handlers.Config) { c.Compare = h.sources() })
	f.Fuzz(func(t *testing.T, side string) {
		h.filters = nil
		w := get(s, "/compare?b=0198c0de&a="+url.QueryEscape(side))
		switch w.Code {
		case 200:
		case 400, 404:
			if a := decode(t, w.Body.Bytes()); w.Code == 400 && a.Parameter != "a" || a.Detail == "" || strings.Contains(a.Detail, "\n") {
				t.Errorf("%q: %s", side, w.Body)
			}
		default:
			t.Errorf("%q: status %d: %s", side, w.Code, w.Body)
		}
	})
}
