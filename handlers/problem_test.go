package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/vantage"
	"nsop/handlers"
)

// TestUnreachable: 502 with the kind of error, whatever it is, and a text that says what to do.
func TestUnreachable(t *testing.T) {
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if strings.HasSuffix(r.URL.Path, "/region") {
			io.WriteString(w, "projects/1/regions/asia-northeast1")
			return
		}
		io.WriteString(w, "p")
	}))
	t.Cleanup(metadata.Close)
	cloudRun := map[string]string{"K_SERVICE": "nsop", "K_REVISION": "nsop-00007"}
	for _, test := range []struct {
		name, kind string
		env        map[string]string
		text       string
	}{
		{"timeout on Cloud Run", "timeout", cloudRun, `nsop: redis at 10.0.0.3:6379: dial: no answer

  likely   the instance has no route to this private address
  check    gcloud run services describe nsop --region=asia-northeast1 --format='value(spec.template.metadata.annotations)'
           (vpc-access-connector or network-interfaces must be there, in the region of the store)
  more     curl "http://nsop.test/ready"
`},
		{"timeout on App Engine", "timeout", map[string]string{"GAE_ENV": "standard", "GAE_SERVICE": "default", "GAE_VERSION": "v1"}, `nsop: redis at 10.0.0.3:6379: dial: no answer

  likely   the instance has no route to this private address
  check    gcloud app versions describe v1 --service=default --format='value(vpcAccessConnector)'
           (a connector must be there, in the region of the store)
  more     curl "http://nsop.test/ready"
`},
		{"timeout elsewhere", "timeout", nil, `nsop: redis at 10.0.0.3:6379: dial: no answer

  likely   no route leads to this address, a firewall drops what is sent, or the store hangs
  check    redis-cli -h 10.0.0.3 -p 6379 ping
  more     curl "http://nsop.test/ready"
`},
		{"refused on Cloud Run", "refused", cloudRun, `nsop: redis at 10.0.0.3:6379: dial: no answer

  likely   the host answers but nothing listens on that port
  check    redis-cli -h 10.0.0.3 -p 6379 ping
  more     curl "http://nsop.test/ready"
`},
		{"auth", "auth", nil, `nsop: redis at 10.0.0.3:6379: dial: no answer

  likely   the store wants a password, or another one
  check    redis-cli -h 10.0.0.3 -p 6379 --askpass ping
           (the password is REDIS_PASSWORD, or stands in the target's URL)
  more     curl "http://nsop.test/ready"
`},
		{"a service that no shell should see", "timeout", map[string]string{"K_SERVICE": "a;b"}, `nsop: redis at 10.0.0.3:6379: dial: no answer

  likely   the instance has no route to this private address
  more     curl "http://nsop.test/ready"
`},
		{"no hint", "other", nil, `nsop: redis at 10.0.0.3:6379: dial: no answer

  more     curl "http://nsop.test/ready"
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(metadata.URL, "http://"))
			s := newService(t, func(c *handlers.Config) {
				c.Vantage = vantage.New(environment(test.env), time.Now(), time.Now)
				c.Targets = []*bench.Target{(&fake{connect: func(context.Context) error { return &bench.KindError{Kind: test.kind, Text: "dial: no answer"} }}).target()}
			})
			p := problemOf(t, get(s, "/bench/redis"), 502)
			if p.ErrorKind != test.kind || p.Title != "the target can't be reached" || p.Detail != "redis at 10.0.0.3:6379: dial: no answer" || p.Run == "" {
				t.Errorf("%+v", p)
			}
			for format, contentType := range map[string]string{"text": "text/plain; charset=utf-8", "markdown": "text/markdown; charset=utf-8"} {
				w := get(s, "/bench/redis?format="+format)
				if w.Code != 502 || w.Header().Get("Content-Type") != contentType || w.Body.String() != test.text {
					t.Errorf("%s: status %d, %s:\n%s\nwant:\n%s", format, w.Code, w.Header().Get("Content-Type"), w.Body, test.text)
				}
			}
			if w := get(s, "/bench/redis?format=csv"); w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("csv: %s", w.Header().Get("Content-Type"))
			}
		})
	}
}

// TestKindsOfConnect: an error's kind is found through whatever wraps it.
func TestKindsOfConnect(t *testing.T) {
	for kind, err := range map[string]error{"refused": syscall.ECONNREFUSED, "timeout": os.ErrDeadlineExceeded, "loading": errors.New("LOADING Redis is loading"), "other": errors.New("odd")} {
		s := newService(t, onlyTarget((&fake{connect: func(context.Context) error { return err }}).target()))
		if p := problemOf(t, get(s, "/bench/redis"), 502); p.ErrorKind != kind {
			t.Errorf("%v: kind %q, want %q", err, p.ErrorKind, kind)
		}
	}
}

// TestTextOfNoRun: errors before a run, as text.
func TestTextOfNoRun(t *testing.T) {
	s := newService(t, nil)
	for _, test := range []struct {
		target, accept, want string
		status               int
	}{
		{"/bench/redis?format=text&client=nope", "", "nsop: client: redis has no client \"nope\"\n\n  allowed  redigo, go-redis, rueidis, floor\n", 400},
		{"/bench/redis?client=nope", "text/plain", "nsop: client: redis has no client \"nope\"\n\n  allowed  redigo, go-redis, rueidis, floor\n", 400},
		{"/nope?format=text", "", "nsop: no such path: /nope\n\n  allowed  /, /targets, /bench/{target}, /bench/{target}/{workloads}, /runs/{id}, /compare, /health,\n           /ready, /openapi.json\n", 404},
		{"/bench/redis?format=text&size=%zz", "text/plain", "nsop: query string: invalid URL escape \"%zz\"\n", 400},
	} {
		w := get(s, test.target, "Accept", test.accept)
		if w.Code != test.status || w.Body.String() != test.want {
			t.Errorf("%s: status %d\n%s\nwant\n%s", test.target, w.Code, w.Body, test.want)
		}
	}
}

// TestTextIsPrintable: the text of an error comes from the network, a terminal must not obey it.
func TestTextIsPrintable(t *testing.T) {
	s := newService(t, onlyTarget((&fake{connect: func(context.Context) error { return errors.New("ERR \x1b]0;owned\a\x1b[2J") }}).target()))
	if w := get(s, "/bench/redis?format=text"); strings.ContainsFunc(w.Body.String(), func(r rune) bool { return r < ' ' && r != '\n' }) {
		t.Errorf("%q", w.Body)
	}
}

// TestFailedRows: an error never costs what had been measured, and what completed nothing is null.
func TestFailedRows(t *testing.T) {
	var calls atomic.Int64
	for _, test := range []struct {
		name, title, kind string
		ping              error
		fail              error
	}{
		{"the store refuses", "a row completed nothing", "oom", nil, errors.New("OOM command not allowed when used memory > 'maxmemory'.")},
		{"the store is lost", "the target was lost", "reset", errors.New("gone"), io.EOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls.Store(0)
			s := newService(t, onlyTarget((&fake{ping: test.ping, op: func(<-chan struct{}) error {
				if calls.Add(1) > 300 {
					return test.fail
				}
				return nil
			}}).target()))
			const path = "/bench/redis/set?benchtime=300x&warmup=0x&size=1,2&timeout=200ms" // nothing completes for so long
			w := get(s, path)
			p := problemOf(t, w, 502)
			if p.Title != test.title || p.ErrorKind != test.kind || len(p.Results) != 2 || p.Results[0].Iterations != 300 || p.Results[1].Iterations != 0 {
				t.Fatalf("%s", w.Body)
			}
			var raw struct {
				Results []map[string]any `json:"results"`
			}
			if err := json.Unmarshal(w.Body.Bytes(), &raw); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"ns_per_op", "ops_per_sec"} {
				if v, ok := raw.Results[1][name]; !ok || v != nil {
					t.Errorf("%s is %v, want null", name, v)
				}
			}
			// The run can be asked for by its permalink, and says why it failed.
			if a := decode(t, get(s, "/runs/"+p.Run).Body.Bytes()); len(a.Results) != 2 || a.Error == nil || a.Error.ErrorKind != test.kind || a.Error.Status != 502 {
				t.Errorf("%+v", a)
			}
			calls.Store(0)
			text := get(s, path+"&format=text").Body.String()
			if !strings.Contains(text, "\nmeasured before that:\n\nredis  redis 7.0.15 at 10.0.0.3:6379") || !regexp.MustCompile(`(?m)^set +redigo +1 B +300 `).MatchString(text) {
				t.Errorf("%s", text)
			}
		})
	}
}

// TestAssertion: 417 with the full result, in every format.
func TestAssertion(t *testing.T) {
	s := newService(t, nil)
	for format, want := range map[string]string{"json": `"expr": "p99<0s"`, "text": "FAIL", "markdown": "FAIL", "csv": "run,", "benchfmt": "BenchmarkGet/"} {
		w := get(s, "/bench/map/get?benchtime=200x&assert=p99%3C0s&format="+format)
		if w.Code != 417 || !strings.Contains(w.Body.String(), want) || w.Header().Get("Content-Type") == "application/problem+json" {
			t.Errorf("%s: status %d: %s", format, w.Code, w.Body)
		}
	}
	// What was not measured does not hold: p99 of ten operations.
	if w := get(s, "/bench/map/get?benchtime=10x&assert=p99%3C1h"); w.Code != 400 {
		t.Errorf("status %d", w.Code)
	}
	if w := get(s, "/bench/map/get?benchtime=10x&assert=p99%3C100s"); w.Code != 417 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	a := decode(t, get(s, "/bench/map/get?benchtime=10x&assert=p99%3C100s").Body.Bytes())
	if again := decode(t, get(s, "/runs/"+a.Run).Body.Bytes()); again.Error != nil || len(again.Results) != 1 {
		t.Errorf("%+v", again)
	}
}
