package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nsop/bench"
	"nsop/bench/storetest"
)

// Each suite is the plan that it reproduces, and its summary has the layout people publish.
func TestSuites(t *testing.T) {
	t.Parallel()
	redis, memcached := storetest.Redis(t), storetest.Memcached(t)
	postgres := storetest.Postgres(t, storetest.PostgresOptions{Settings: []string{"max_connections=110"}})
	l := newLab(t, map[string]string{
		"REDIS_URL": "redis://" + redis.Addr, "MEMCACHED_URL": "memcached://" + memcached.Addr, "POSTGRES_URL": postgres.URL("postgres", "", "postgres"),
		"TARGETS": "other=redis://" + redis.Addr,
	}, nil)
	for _, test := range []struct {
		path  string
		rows  int // samples counted apart
		names string
		row   func(bench.Result) bool
		head  string // of the summary
	}{
		{"clients?benchtime=200x", 12, "redis", func(r bench.Result) bool {
			return r.Concurrency == 1 && (r.Client == "redigo" || r.Client == "go-redis")
		}, `workload   sample +redigo +go-redis`},
		{"concurrency?benchtime=20x", 22 * 5 * 3, "redis", func(r bench.Result) bool { return r.Client == "floor" && r.Iterations == 20 },
			`workload +1 +10 +25 +50 +100`},
		{"concurrency?concurrency=1,2&count=1&benchtime=50x&target=redis,other", 22 * 2 * 2, "redis,other", func(r bench.Result) bool { return r.Iterations == 50 },
			`workload +redis 1 +redis 2 +other 1 +other 2`},
		{"payload?keyspace=1000&benchtime=300x", 22 * 2, "redis", func(r bench.Result) bool { return r.Concurrency == 100 && r.Iterations == 300 },
			`workload +100 B +1 KB`},
		{"stores?keyspace=500&benchtime=500x", 2 + 1 + 2 + 6, "redis,memcached,other,map,bbolt,buntdb,buntdb-disk,sqlite,sqlite-disk",
			func(r bench.Result) bool { return r.Workload == "roundtrip" && r.Keyspace == 500 && r.Misses == 0 }, `target +client +seconds +ops/s`},
		{"pgbench?client=pgx&benchtime=1000x", 2, "postgres", func(r bench.Result) bool {
			return r.Concurrency == 100 && r.Iterations == 1000 && r.Protocol == "simple" && r.OpsWithDial != nil && *r.OpsWithDial < *r.OpsPerSec
		}, `workload +tps with connecting +tps without`},
	} {
		r := l.get("/suites/" + test.path)
		var report bench.Report
		if err := json.Unmarshal([]byte(r.body), &report); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(test.path, "?")
		if r.status != http.StatusOK || report.Suite != name || len(r.Results) != test.rows {
			t.Errorf("%s: status %d, suite %q, %d results, want %d: %.2000s", test.path, r.status, report.Suite, len(r.Results), test.rows, r.body)
			continue
		}
		var names []string
		for _, target := range report.Targets {
			names = append(names, target.Name)
		}
		if report.Target != nil {
			names = append(names, report.Target.Name)
		}
		if strings.Join(names, ",") != test.names {
			t.Errorf("%s: targets %q", test.path, names)
		}
		if i := slices.IndexFunc(report.Results, func(r *bench.Result) bool { return !test.row(*r) || r.Errors != 0 }); i >= 0 {
			t.Errorf("%s: %+v", test.path, report.Results[i])
		}
		var summary strings.Builder
		format, _ := bench.FormatByName("text")
		if err := format.Encode(&summary, &report, bench.EncodeOptions{}); err != nil || !regexp.MustCompile(`(?m)^`+test.head+`$`).MatchString(summary.String()) {
			t.Errorf("%s: %v, want %s in:\n%s", test.path, err, test.head, summary.String())
		}
	}
	for path, status := range map[string]int{
		"nosuch": 404, "clients?target=nosuch": 404, "clients?target=map": 200, "stores?target=postgres": 422, "pgbench?target=redis": 422,
		"clients?target=redis,redis": 400, "clients?client=nosuch": 400, "payload?size=0": 400, "clients?benchtime=10x&target=redis&client=floor": 200,
	} {
		if r := l.get("/suites/" + path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "timeout=2s"); r.status != status {
			t.Errorf("%s: status %d, want %d: %.500s", path, r.status, status, r.body)
		}
	}
	if left := redis.Do(t, "DBSIZE"); fmt.Sprint(left) != "0" {
		t.Errorf("%v keys are left", left)
	}
}

// What a suite asks for, where the request says nothing.
func TestSuitePlans(t *testing.T) {
	for name, want := range map[string]string{
		"clients":     "count=3",
		"concurrency": "benchtime=500x&concurrency=1%2C10%2C25%2C50%2C100&count=3",
		"payload":     "benchtime=10000x&concurrency=100&keyspace=100000&size=100%2C1000",
		"stores":      "benchtime=100000x&keyspace=100000&warmup=0x",
		"pgbench":     "benchtime=10000x&concurrency=100&protocol=simple&warmup=0x",
	} {
		suite, err := bench.FindSuite(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := suite.With(nil).Encode(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if got := suite.With(url.Values{"count": {"7"}}).Get("count"); got != "7" {
			t.Errorf("%s: count %s, want what the request says", name, got)
		}
	}
}

// A target that is not there does not keep the others of a suite from being measured.
func TestSuiteWithoutOneTarget(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]string{"REDIS_URL": "redis://" + unusedAddr(t)}, nil)
	r := l.get("/suites/stores?target=redis,map&keyspace=10&benchtime=10x")
	if r.status != http.StatusBadGateway || r.ErrorKind != "refused" || len(r.Results) != 1 || r.Results[0].Target != "map" || r.Results[0].Iterations != 10 {
		t.Errorf("status %d, %s: %s", r.status, r.ErrorKind, r.body)
	}
}
