package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"nsop/bench"
	"nsop/handlers"
)

// What is allowed, as the answers below list it.
const (
	redisWorkloads = "ping_inline|ping_mbulk|set|get|incr|lpush|rpush|lpop|rpop|sadd|hset|spop|zadd|zpopmin|lrange_lpush|lrange_100|lrange_300|" +
		"lrange_500|lrange_600|mset|mget|xadd|roundtrip|all|redis-benchmark|lrange"
	names   = "client|concurrency|pipeline|size|keyspace|rate|shape|benchtime|count|warmup|verify|flavor|scale|protocol|sync|timeout|assert|histogram|save|label.NAME|format"
	metrics = "ns_per_op|ops_per_sec|min|mean|stddev|p50|p90|p95|p99|p99.9|max|service_p50|service_p99|longest_stall_ns|late|errors|misses|mismatches|connect_ns|client_cpu_percent|" +
		"throttled_ns|iterations|elapsed_ns|server_ns_per_call|server_cpu_percent|bytes_per_op|allocs_per_op"
	paths   = "/|/targets|/bench/{target}|/bench/{target}/{workloads}|/suites/{suite}|/limit/{target}/{workload}|/probe/{target}|/diagnose/{target}|/runs|/runs/{id}|/compare|/metrics|/health|/ready|/openapi.json"
	formats = "json|text|markdown|csv|benchfmt|redis-benchmark|prometheus|github-action-benchmark|bencher|svg"
	clients = "redigo|go-redis|rueidis|floor"
	extents = "a duration up to 1m0s|a number of operations as 10000x"
	blank   = "the path and its query hold white space or a control character: write a space as %20"
)

var malformed = []struct {
	name, method, target, body string
	status                     int
	parameter, detail, allowed string
}{
	{"unknown parameter", "GET", "/bench/redis?clients=redigo", "", 400, "clients", "clients: no such parameter", names},
	{"parameter of another case", "GET", "/bench/redis?Client=redigo", "", 400, "Client", "Client: no such parameter", names},
	{"parameter without a name", "GET", "/bench/redis?=1", "", 400, "", "no such parameter", names},
	{"percent sign that encodes nothing", "GET", "/bench/redis?size=%zz", "", 400, "", `query string: invalid URL escape "%zz"`, ""},
	{"percent sign at the end", "GET", "/bench/redis?size=1%", "", 400, "", `query string: invalid URL escape "%"`, ""},
	{"semicolon", "GET", "/bench/redis?size=1;count=2", "", 400, "", "query string: invalid semicolon separator in query", ""},
	{"unknown format", "GET", "/bench/redis?format=xml", "", 400, "format", `format: no format "xml"`, formats},
	{"format twice", "GET", "/bench/redis?format=json&format=json", "", 400, "format", "format: given twice", formats},
	{"format empty", "GET", "/bench/redis?format=", "", 400, "format", `format: no format ""`, formats},
	{"client unknown", "GET", "/bench/redis?client=jedis", "", 400, "client", `client: redis has no client "jedis"`, clients},
	{"client of another target", "GET", "/bench/redis?client=map", "", 400, "client", `client: redis has no client "map"`, clients},
	{"client empty", "GET", "/bench/redis?client=", "", 400, "client", "client: an empty name", clients},
	{"client with an empty item", "GET", "/bench/redis?client=redigo,", "", 400, "client", "client: an empty name", clients},
	{"client twice in the list", "GET", "/bench/redis?client=redigo,redigo", "", 400, "client", `client: "redigo" is given twice`, clients},
	{"client given twice", "GET", "/bench/redis?client=redigo&client=floor", "", 400, "client", "client: given twice", clients},
	{"concurrency zero", "GET", "/bench/redis?concurrency=0", "", 400, "concurrency", `concurrency: "0" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency over the limit", "GET", "/bench/redis?concurrency=1025", "", 400, "concurrency", `concurrency: "1025" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency negative", "GET", "/bench/redis?concurrency=-1", "", 400, "concurrency", `concurrency: "-1" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency no number", "GET", "/bench/redis?concurrency=abc", "", 400, "concurrency", `concurrency: "abc" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency with an empty item", "GET", "/bench/redis?concurrency=1,,2", "", 400, "concurrency", `concurrency: "" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency twice in the list", "GET", "/bench/redis?concurrency=1,2,1", "", 400, "concurrency", `concurrency: "1" is given twice`, "1 to 1024"},
	{"concurrency twice in the list, written otherwise", "GET", "/bench/redis?concurrency=1,01", "", 400, "concurrency", `concurrency: "01" is given twice`, "1 to 1024"},
	{"concurrency huge", "GET", "/bench/redis?concurrency=99999999999999999999", "", 400, "concurrency", `concurrency: "99999999999999999999" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency a fraction", "GET", "/bench/redis?concurrency=1.5", "", 400, "concurrency", `concurrency: "1.5" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency in hexadecimal", "GET", "/bench/redis?concurrency=0x10", "", 400, "concurrency", `concurrency: "0x10" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency with a space", "GET", "/bench/redis?concurrency=1,+2", "", 400, "concurrency", `concurrency: " 2" is no whole number from 1 to 1024`, "1 to 1024"},
	{"concurrency empty", "GET", "/bench/redis?concurrency=", "", 400, "concurrency", `concurrency: "" is no whole number from 1 to 1024`, "1 to 1024"},
	{"pipeline zero", "GET", "/bench/redis?pipeline=0", "", 400, "pipeline", `pipeline: "0" is no whole number from 1 to 10000`, "1 to 10000"},
	{"pipeline over the limit", "GET", "/bench/redis?pipeline=10001", "", 400, "pipeline", `pipeline: "10001" is no whole number from 1 to 10000`, "1 to 10000"},
	{"size over the limit", "GET", "/bench/redis?size=9MiB", "", 400, "size", `size: "9MiB" is no size in bytes from 1 to 8388608`, "1 to 8388608 bytes, as 100, 1KB or 1KiB"},
	{"size zero", "GET", "/bench/redis?size=0", "", 400, "size", `size: "0" is no size in bytes from 1 to 8388608`, "1 to 8388608 bytes, as 100, 1KB or 1KiB"},
	{"size unknown unit", "GET", "/bench/redis?size=1XB", "", 400, "size", `size: "1XB" is no size in bytes from 1 to 8388608`, "1 to 8388608 bytes, as 100, 1KB or 1KiB"},
	{"size without a number", "GET", "/bench/redis?size=KB", "", 400, "size", `size: "KB" is no size in bytes from 1 to 8388608`, "1 to 8388608 bytes, as 100, 1KB or 1KiB"},
	{"size twice in the list, written otherwise", "GET", "/bench/redis?size=1024,1KiB", "", 400, "size", `size: "1KiB" is given twice`, "1 to 8388608 bytes, as 100, 1KB or 1KiB"},
	{"keyspace over the limit", "GET", "/bench/redis?keyspace=10000001", "", 400, "keyspace", `keyspace: "10000001" is no whole number from 1 to 10000000`, "1 to 10000000"},
	{"keyspace x size over the limit", "GET", "/bench/redis?keyspace=300&size=1MiB", "", 400, "keyspace", "keyspace: 300 keys of 1048576 bytes are more than 268435456 bytes", "keyspace x size up to 268435456 bytes"},
	{"keyspace x size over the limit in one row of many", "GET", "/bench/redis?keyspace=1,300&size=100,1MiB", "", 400, "keyspace", "keyspace: 300 keys of 1048576 bytes are more than 268435456 bytes", "keyspace x size up to 268435456 bytes"},
	{"benchtime zero", "GET", "/bench/redis?benchtime=0s", "", 400, "benchtime", `benchtime: "0s" is nothing`, extents},
	{"benchtime no operations", "GET", "/bench/redis?benchtime=0x", "", 400, "benchtime", `benchtime: "0x" is nothing`, extents},
	{"benchtime over the limit", "GET", "/bench/redis?benchtime=61s", "", 400, "benchtime", "benchtime: 1m1s is above 1m0s", extents},
	{"benchtime negative", "GET", "/bench/redis?benchtime=-1s", "", 400, "benchtime", `benchtime: "-1s" is neither a time such as 2s nor a number of operations such as 10000x`, extents},
	{"benchtime unknown unit", "GET", "/bench/redis?benchtime=10y", "", 400, "benchtime", `benchtime: "10y" is neither a time such as 2s nor a number of operations such as 10000x`, extents},
	{"benchtime without a unit", "GET", "/bench/redis?benchtime=10", "", 400, "benchtime", `benchtime: "10" is neither a time such as 2s nor a number of operations such as 10000x`, extents},
	{"benchtime negative number", "GET", "/bench/redis?benchtime=-5x", "", 400, "benchtime", `benchtime: "-5x" is no number of operations such as 10000x`, extents},
	{"benchtime huge number", "GET", "/bench/redis?benchtime=99999999999999999999x", "", 400, "benchtime", `benchtime: "99999999999999999999x" is no number of operations such as 10000x`, extents},
	{"benchtime twice", "GET", "/bench/redis?benchtime=1s&benchtime=2s", "", 400, "benchtime", "benchtime: given twice", ""},
	{"warmup over the limit", "GET", "/bench/redis?warmup=2m", "", 400, "warmup", "warmup: 2m0s is above 1m0s", extents},
	{"warmup no extent", "GET", "/bench/redis?warmup=some", "", 400, "warmup", `warmup: "some" is neither a time such as 2s nor a number of operations such as 10000x`, extents},
	{"count zero", "GET", "/bench/redis?count=0", "", 400, "count", `count: "0" is no whole number from 1 to 10000`, "1 to 10000"},
	{"count that can't finish", "GET", "/bench/redis?count=10000", "", 400, "benchtime", "benchtime: 4 rows of 10000 samples take about 11h20m0s, more than the 10m0s that a request has", "fewer rows or samples, or a shorter benchtime"},
	{"operations that can't finish", "GET", "/bench/redis?count=10000&benchtime=1x", "", 400, "benchtime", "benchtime: 4 rows of 10000 samples take about 13m20s, more than the 10m0s that a request has", "fewer rows or samples, or a shorter benchtime"},
	{"rows over the limit", "GET", "/bench/redis?concurrency=1,2,3,4,5,6,7,8,9,10,11,12&pipeline=1,2,3,4,5,6,7,8,9,10,11", "", 400, "", "528 rows are more than 500", "up to 500 rows"},
	{"timeout zero", "GET", "/bench/redis?timeout=0", "", 400, "timeout", `timeout: "0" is no duration of at least 1ms`, "a duration from 1ms to 10m0s"},
	{"timeout too long", "GET", "/bench/redis?timeout=11m", "", 400, "timeout", "timeout: 11m0s is above 10m0s", "a duration from 1ms to 10m0s"},
	{"timeout no duration", "GET", "/bench/redis?timeout=5", "", 400, "timeout", `timeout: "5" is no duration of at least 1ms`, "a duration from 1ms to 10m0s"},
	{"verify", "GET", "/bench/redis?verify=maybe", "", 400, "verify", `verify: "maybe" is neither true nor false`, "true|false"},
	{"save", "GET", "/bench/redis?save=no", "", 400, "save", `save: "no" is neither true nor false`, "true|false"},
	{"assert garbage", "GET", "/bench/redis?assert=fast", "", 400, "assert", `assert: "fast": want METRIC OP VALUE, e.g. p99<3ms, where OP is one of < <= > >= =`, metrics},
	{"assert unknown metric", "GET", "/bench/redis?assert=p42%3C1ms", "", 400, "assert", `assert: "p42<1ms": no metric "p42"`, metrics},
	{"assert without a value", "GET", "/bench/redis?assert=p99%3C", "", 400, "assert", `assert: "p99<": "" is not a value of p99: want a duration that is not negative, in ns, us, ms or s`, metrics},
	{"assert not a number", "GET", "/bench/redis?assert=errors%3DNaN", "", 400, "assert", `assert: "errors=NaN": "NaN" is not a value of errors: want a number that is not negative`, metrics},
	{"assert empty", "GET", "/bench/redis?assert=", "", 400, "assert", `assert: "": want METRIC OP VALUE, e.g. p99<3ms, where OP is one of < <= > >= =`, metrics},
	{"assert, the second", "GET", "/bench/redis?assert=errors%3D0&assert=%3E", "", 400, "assert", `assert: ">": no metric ""`, metrics},
	{"label without a name", "GET", "/bench/redis?label.=a", "", 400, "label.", `label.: label name "": want a letter, then letters, digits, _ . or -, at most 63`, ""},
	{"label name", "GET", "/bench/redis?label.a%2Fb=c", "", 400, "label.a/b", `label.a/b: label name "a/b": want a letter, then letters, digits, _ . or -, at most 63`, ""},
	{"label control character", "GET", "/bench/redis?label.a=%1b%5B2J", "", 400, "label.a", "label.a: a control character or invalid UTF-8", ""},
	{"label invalid UTF-8", "GET", "/bench/redis?label.a=%FF", "", 400, "label.a", "label.a: a control character or invalid UTF-8", ""},
	{"label twice", "GET", "/bench/redis?label.a=1&label.a=2", "", 400, "label.a", "label.a: given twice", ""},
	{"workload twice", "GET", "/bench/redis/get,get", "", 400, "workloads", `workloads: "get" is given twice`, ""},
	{"workload and its alias", "GET", "/bench/redis/ping,ping_mbulk", "", 400, "workloads", `workloads: "ping_mbulk" is given twice`, ""},
	{"workload and its group", "GET", "/bench/redis/all,get", "", 400, "workloads", `workloads: "get" is given twice`, ""},
	{"group twice", "GET", "/bench/redis/all,all", "", 400, "workloads", `workloads: "ping_inline" is given twice`, ""},
	{"elements over the limit", "GET", "/bench/redis/lrange_600?size=1MiB", "", 400, "size", "size: 600 elements of 1048576 bytes are more than 268435456 bytes", "up to 447392 for lrange_600"},
	{"flavor of another store", "GET", "/bench/map/set?flavor=compatible", "", 422, "", "flavor does not apply to set on map", ""},
	{"unknown target", "GET", "/bench/mysql", "", 404, "", `no target "mysql"`, "redis|map"},
	{"unknown target encoded", "GET", "/bench/my%2Fsql", "", 404, "", `no target "my/sql"`, "redis|map"},
	{"no target", "GET", "/bench", "", 404, "", "no such path: /bench", paths},
	{"empty target", "GET", "/bench//get", "", 404, "", `no target ""`, "redis|map"},
	{"unknown workload", "GET", "/bench/redis/append", "", 404, "", `no workload "append"`, redisWorkloads},
	{"empty workload", "GET", "/bench/redis/get,", "", 404, "", `no workload ""`, redisWorkloads},
	{"path too long", "GET", "/bench/redis/get/more", "", 404, "", "no such path: /bench/redis/get/more", paths},
	{"unknown path", "GET", "/metrics2", "", 404, "", "no such path: /metrics2", paths},
	{"unknown run", "GET", "/runs/nope", "", 404, "", `no run "nope"`, ""},
	{"workload the target can't do", "GET", "/bench/map/ping", "", 422, "", "map can't do ping_mbulk", "set|get|roundtrip|all|redis-benchmark"},
	{"pipeline the client can't do", "GET", "/bench/map?pipeline=2", "", 422, "", "map can't send 2 commands in one round trip", "pipeline=1"},
	{"method of a run", "DELETE", "/bench/redis", "", 405, "", "DELETE is not what this path takes", "GET|POST"},
	{"method of a run, path with a slash", "PUT", "/bench/redis/", "", 405, "", "PUT is not what this path takes", "GET|POST"},
	{"HEAD would start a run", "HEAD", "/bench/redis", "", 405, "", "HEAD is not what this path takes", "GET|POST"},
	{"method of the index", "POST", "/", "", 405, "", "POST is not what this path takes", "GET|HEAD"},
	{"method unknown", "BREW", "/targets", "", 405, "", "BREW is not what this path takes", "GET|HEAD"},
	{"method of the runs", "POST", "/runs/x", "", 405, "", "POST is not what this path takes", "DELETE|GET|HEAD"},
	{"body of a GET", "GET", "/bench/redis", `{"client": "redigo"}`, 400, "", "body: GET takes none", "POST with a body|the same names in the query"},
	{"body no JSON", "POST", "/bench/redis", "client=redigo", 400, "", "body: not a JSON object", "a JSON object with the names of the query"},
	{"body no object", "POST", "/bench/redis", `["redigo"]`, 400, "", "body: not a JSON object", "a JSON object with the names of the query"},
	{"body null", "POST", "/bench/redis", "null", 400, "", "body: not a JSON object", "a JSON object with the names of the query"},
	{"body cut off", "POST", "/bench/redis", `{"client": "redigo"`, 400, "", "body: EOF", "a JSON object with the names of the query"},
	{"body with more behind", "POST", "/bench/redis", `{"client": "redigo"} {}`, 400, "", "body: more than one JSON object", "a JSON object with the names of the query"},
	{"body with a comma too many", "POST", "/bench/redis", `{"client": "redigo",}`, 400, "", "body: invalid character '}' looking for beginning of object key string", "a JSON object with the names of the query"},
	{"body unknown name", "POST", "/bench/redis", `{"host": "10.0.0.1"}`, 400, "host", "host: no such parameter", names},
	{"body name twice", "POST", "/bench/redis", `{"size": 1, "size": 2}`, 400, "size", "size: given twice in the body", ""},
	{"body nested object", "POST", "/bench/redis", `{"size": {"bytes": 1}}`, 400, "size", "size: want a string, a number, true, false or a list of these", ""},
	{"body nested list", "POST", "/bench/redis", `{"size": [[1]]}`, 400, "size", "size: want a string, a number, true, false or a list of these", ""},
	{"body null value", "POST", "/bench/redis", `{"size": null}`, 400, "size", "size: want a string, a number, true, false or a list of these", ""},
	{"body empty list", "POST", "/bench/redis", `{"size": []}`, 400, "size", "size: an empty list", ""},
	{"body number with an exponent", "POST", "/bench/redis", `{"concurrency": 1e1}`, 400, "concurrency", `concurrency: "1e1" is no whole number from 1 to 1024`, "1 to 1024"},
	{"body format unknown", "POST", "/bench/redis", `{"format": "xml"}`, 400, "format", `format: no format "xml"`, formats},
	{"name in body and query", "POST", "/bench/redis?size=1", `{"size": 2}`, 400, "size", "size: given both in the query and in the body", ""},
	{"format in body and query", "POST", "/bench/redis?format=json", `{"format": "json"}`, 400, "format", "format: given both in the query and in the body", ""},
	{"parameter of a path that has none", "GET", "/targets?verbose=1", "", 400, "verbose", "verbose: no such parameter: this path takes none", ""},
	{"parameter of another path", "GET", "/runs/x?client=redigo", "", 400, "client", "client: no such parameter", "format"},
	{"space in the query", "GET", "/bench/redis?assert=p99 <3ms", "", 400, "", blank, ""},
	{"space in the path", "GET", "/bench/redis/set, get", "", 400, "", blank, ""},
	{"space at the end", "GET", "/bench/redis ", "", 400, "", blank, ""},
	{"line feed", "GET", "/bench/redis\nX: y", "", 400, "", blank, ""},
	{"escape sequence", "GET", "/bench/\x1b[2Jredis", "", 400, "", blank, ""},
	{"bad encoding in the path", "GET", "/bench/red%zzis", "", 400, "", `path: invalid URL escape "%zz"`, ""},
}

// TestMalformed: each malformed request has its exact answer, and none reaches a store.
func TestMalformed(t *testing.T) {
	s := newService(t, func(c *handlers.Config) {
		for _, target := range c.Targets {
			target.Connect = refuseConnect(t)
		}
	})
	for _, test := range malformed {
		t.Run(test.name, func(t *testing.T) {
			w := serve(s, newRequest(test.method, test.target, test.body))
			p := problemOf(t, w, test.status)
			if p.Parameter != test.parameter || p.Detail != test.detail {
				t.Errorf("parameter %q: %q, want %q: %q", p.Parameter, p.Detail, test.parameter, test.detail)
			}
			if got := strings.Join(p.Allowed, "|"); got != test.allowed {
				t.Errorf("allowed %q, want %q", got, test.allowed)
			}
			if len(p.Results) != 0 {
				t.Errorf("results %v", p.Results)
			}
			if allow := strings.ReplaceAll(test.allowed, "|", ", "); test.status == 405 && w.Header().Get("Allow") != allow {
				t.Errorf("Allow %q, want %q", w.Header().Get("Allow"), allow)
			}
			if strings.HasSuffix(test.name, "can't finish") != (p.EstimatedSeconds > bench.DefaultLimits("").Total.Seconds()) {
				t.Errorf("estimated_seconds %v", p.EstimatedSeconds)
			}
			if (test.status == 422) != (p.ErrorKind == "unsupported") {
				t.Errorf("error_kind %q", p.ErrorKind)
			}
		})
	}
}

// refuseConnect is a dial that fails the test.
func refuseConnect(t *testing.T) func(context.Context, time.Duration) (bench.Session, error) {
	return func(context.Context, time.Duration) (bench.Session, error) {
		t.Error("a malformed request reached the store")
		return nil, errors.New("not here")
	}
}

func TestBodyLimit(t *testing.T) {
	s := newService(t, nil)
	body := func(size int) string {
		const head, tail = `{"benchtime": "5x", "warmup": "0x"`, `}`
		return head + strings.Repeat(" ", size-len(head)-len(tail)) + tail
	}
	if w := serve(s, newRequest("POST", "/bench/map/get", body(64<<10))); w.Code != http.StatusOK {
		t.Errorf("64 KiB: status %d: %s", w.Code, w.Body)
	}
	p := problemOf(t, serve(s, newRequest("POST", "/bench/map/get", body(64<<10+1))), http.StatusRequestEntityTooLarge)
	if p.Detail != "the body is over 65536 bytes" {
		t.Errorf("detail %q", p.Detail)
	}
}

// TestLimits: those of section 6, each at its value and one above.
func TestLimits(t *testing.T) {
	s := newService(t, func(c *handlers.Config) {
		c.Targets = []*bench.Target{(&fake{}).target()}
		c.Limits = bench.Limits{Benchtime: 20 * time.Millisecond, Total: 10 * time.Second, Concurrency: 3, Size: 200, Keyspace: 50, Data: 5000, Rows: 4, Body: 1000}
	})
	for _, test := range []struct{ name, at, above, parameter string }{
		{"benchtime", "benchtime=20ms", "benchtime=21ms", "benchtime"},
		{"warmup", "warmup=20ms", "warmup=21ms", "warmup"},
		{"concurrency", "concurrency=3", "concurrency=4", "concurrency"},
		{"size", "size=200", "size=201", "size"},
		{"keyspace", "keyspace=50", "keyspace=51", "keyspace"},
		{"data", "keyspace=50&size=100", "keyspace=50&size=101", "keyspace"},
		{"rows", "concurrency=1,2&pipeline=1&size=1,2", "concurrency=1,2,3&size=1,2", ""},
		{"rows before count", "concurrency=1,2&size=1,2&count=2", "concurrency=1,2,3&size=1,2&count=1", ""},
		{"total", "benchtime=20ms&count=10", "benchtime=20ms&count=1000", "benchtime"},
		{"total, of operations", "benchtime=1x&count=10", "benchtime=1x&count=1000", "benchtime"},
		{"total, where the store is far", "benchtime=5x", "benchtime=1000000x", "benchtime"},
	} {
		t.Run(test.name, func(t *testing.T) {
			const path = "/bench/redis/set?"
			rest := ""
			if !strings.Contains(test.at, "benchtime") {
				rest += "&benchtime=2x"
			}
			if !strings.Contains(test.at, "warmup") {
				rest += "&warmup=0x"
			}
			if w := get(s, path+test.at+rest); w.Code != http.StatusOK {
				t.Errorf("%s: status %d: %s", test.at, w.Code, w.Body)
			}
			if p := problemOf(t, get(s, path+test.above+rest), http.StatusBadRequest); p.Parameter != test.parameter || p.Allowed == nil {
				t.Errorf("%s: %+v", test.above, p)
			} else if strings.HasPrefix(test.name, "total") != (p.EstimatedSeconds > 10) {
				t.Errorf("%s: estimated_seconds %v", test.above, p.EstimatedSeconds)
			}
		})
	}
}

// TestFreeMemory: no more than half of what the store has free is written.
func TestFreeMemory(t *testing.T) {
	s := newService(t, onlyTarget((&fake{free: 2000}).target()))
	if w := get(s, "/bench/redis/set?benchtime=2x&warmup=0x&size=100&keyspace=10"); w.Code != 200 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	p := problemOf(t, get(s, "/bench/redis/set?benchtime=2x&warmup=0x&size=101&keyspace=10"), 422)
	if p.ErrorKind != "oom" || p.Detail != "10 keys of 101 bytes are more than half of the 2000 bytes that redis has free" {
		t.Errorf("%+v", p)
	}
}

// TestLongLists: refused before they cost more than reading them.
func TestLongLists(t *testing.T) {
	s := newService(t, func(c *handlers.Config) { c.Limits.Body = 4 << 20 })
	list := func(n int) string {
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprint(i + 1)
		}
		return strings.Join(items, ",")
	}
	body := fmt.Sprintf(`{"concurrency": %q, "pipeline": %q, "size": %q, "keyspace": "1,2"}`, list(1024), list(10_000), list(100_000))
	p := problemOf(t, serve(s, newRequest("POST", "/bench/redis", body)), 400)
	if p.Detail != "8192000000000 rows are more than 500" { // times two workloads and two clients
		t.Errorf("detail %q", p.Detail)
	}
}

// FuzzQuery: whatever a query holds is decoded within the limits or refused with the parameter's name.
func FuzzQuery(f *testing.F) {
	for _, test := range malformed {
		if _, query, ok := strings.Cut(test.target, "?"); ok {
			f.Add(query)
		}
	}
	f.Add("client=redigo,floor&concurrency=1,2&size=1KB,1KiB&keyspace=10&benchtime=100x&warmup=1ms&assert=p99%3C3ms&label.a=b&verify=1")
	l := bench.DefaultLimits("")
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		s, err := bench.ParseSpec(query, l, "format")
		if err != nil {
			if wrong := (*bench.ParamError)(nil); !errors.As(err, &wrong) || wrong.Detail == "" || wrong.Parameter != "" && !query.Has(wrong.Parameter) && wrong.Parameter != "keyspace" {
				t.Errorf("%q: %#v", text, err)
			}
			return
		}
		within := func(values []int, limit int) bool {
			return len(values) > 0 && slices.Min(values) >= 1 && slices.Max(values) <= limit
		}
		if !within(s.Concurrency, l.Concurrency) || !within(s.Pipeline, 10_000) || !within(s.Size, l.Size) || !within(s.Keyspace, l.Keyspace) ||
			slices.Max(s.Size)*slices.Max(s.Keyspace) > l.Data || s.Benchtime == (bench.Extent{}) || s.Benchtime.Time < 0 || s.Benchtime.Time > l.Benchtime ||
			s.Warmup.Time < 0 || s.Warmup.Time > l.Benchtime || s.Timeout < time.Millisecond || s.Timeout > l.Total || s.Count < 1 || s.Count > 10_000 {
			t.Errorf("%q: %+v", text, s)
		}
	})
}

// FuzzBody: whatever a body holds is answered with one JSON document and a status of the contract.
func FuzzBody(f *testing.F) {
	for _, test := range malformed {
		f.Add([]byte(test.body))
	}
	f.Add([]byte(`{"client": ["redigo"], "concurrency": [1, 2], "verify": true, "assert": ["errors=0"], "label.a": "b", "benchtime": "5x"}`))
	s := newService(f, onlyTarget((&fake{connect: func(context.Context) error { return &bench.KindError{Kind: "refused", Text: "no"} }}).target()))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := serve(s, newRequest("POST", "/bench/redis", string(body)))
		switch w.Code {
		case 400, 413, 422, 502:
		default:
			t.Errorf("%q: status %d", body, w.Code)
		}
		if w.Header().Get("Content-Type") == "application/problem+json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: %s", body, w.Body)
		}
	})
}

// FuzzTarget: whatever stands on the command line is answered, by no panic.
func FuzzTarget(f *testing.F) {
	for _, test := range malformed {
		f.Add(test.target)
	}
	s := newService(f, onlyTarget((&fake{connect: func(context.Context) error { return &bench.KindError{Kind: "refused", Text: "no"} }}).target()))
	f.Fuzz(func(t *testing.T, target string) {
		if w := get(s, target); w.Code < 200 || w.Code > 599 || w.Code == 500 {
			t.Errorf("%q: status %d: %s", target, w.Code, w.Body)
		}
	})
}
