package handlers_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"nsop/bench"
	"nsop/bench/history"
	"nsop/handlers"
)

// accept is what a browser sends.
const accept = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"

// browse asks for a page as a browser does and checks what holds for every page.
func browse(t testing.TB, s *handlers.Service, target string, status int) string {
	t.Helper()
	w := get(s, target, "Accept", accept)
	checkPage(t, target, w, status)
	return w.Body.String()
}

var (
	styles  = regexp.MustCompile(`(?s)<style>(.*?)</style>`)
	scripts = regexp.MustCompile(`(?s)<script>(.*?)</script>`)
	outside = regexp.MustCompile(`(?i)(src|href|action|url)\s*[=(]\s*["']?(https?:)?//`)
)

func checkPage(t testing.TB, target string, w *httptest.ResponseRecorder, status int) {
	t.Helper()
	if w.Code != status || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%s: status %d, %s: %s", target, w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	page, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if len(page) > 100_000 {
		t.Errorf("%s: %d bytes", target, len(page))
	}
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("%s: policy %s", target, policy)
	}
	for _, block := range []struct {
		find      *regexp.Regexp
		directive string
	}{{styles, "style-src"}, {scripts, "script-src"}} {
		found := block.find.FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("%s: %d of %s", target, len(found), block.directive)
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		if want := block.directive + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("%s: no %s in %s", target, want, policy)
		}
	}
	rest := scripts.ReplaceAllString(styles.ReplaceAllString(page, ""), "")
	for _, forbidden := range []string{"<script", "<style", " style=", " onclick=", "javascript:", "NaN", "ZgotmplZ"} {
		if strings.Contains(rest, forbidden) {
			t.Errorf("%s: %s is there", target, forbidden)
		}
	}
	if m := outside.FindString(rest); m != "" {
		t.Errorf("%s: something from elsewhere: %s", target, m)
	}
}

// A past is what fill puts into a history.
type past struct {
	runs   int           // probes of each target
	every  time.Duration // between them
	target []string
	few    bool    // GET through redigo alone
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
					if p.few && (workload != "get" || client != "redigo") {
						continue
					}
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
		if len(runs) >= 5 { // a statement with many parameters costs more than many statements
			save()
		}
	}
	save()
}

// TestPagesEscape: what others write is text on every page.
func TestPagesEscape(t *testing.T) {
	const evil = `<script>alert(1)</script><img src=x onerror=alert(1)>"'`
	h := tempHistory(t)
	now := time.Now()
	fill(t, h, now, past{runs: 60, every: 5 * time.Minute, target: []string{"redis"}, bodies: true, edit: func(i int, r *history.Run) {
		r.Labels[evil], r.Region, r.Revision = evil, evil, fmt.Sprint(evil, i/20)
		for n := range r.Rows {
			r.Rows[n].Name = strings.Replace(r.Rows[n].Name, "/pipeline=1/", "/pipeline="+evil+"/", 1)
			r.Rows[n].Client, r.Rows[n].Workload = evil, evil
		}
		r.Body = []byte(strings.ReplaceAll(string(r.Body), `"redigo"`, mustJSON(t, evil)))
		if i == 59 {
			r.Outcome, r.Status, r.ErrorKind, r.Error, r.Rows = history.Failed, 502, "other", evil, nil
		}
	}})
	err := h.Save(t.Context(), &history.Run{ID: "diagnosis", Kind: "diagnose", StartedAt: now, Outcome: history.OK, Status: 200, Targets: []string{"redis"}, Labels: map[string]string{},
		Request: "/diagnose/redis?x=" + evil, Body: fmt.Appendf(nil, `{"findings": [{"rule": %[1]s, "severity": "error", "summary": %[1]s, "cause": %[1]s, "next": %[1]s}],
			"budget": {"operation": %[1]s, "client": %[1]s, "total_ns": 2000, "parts": [{"name": %[1]s, "ns": 2000}]}}`, mustJSON(t, evil))})
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, func(c *handlers.Config) {
		keeping(h)(c)
		c.Version, c.Labels = evil, map[string]string{"x": evil}
	})
	ran := decode(t, get(s, "/bench/map?"+fast+"&label.y="+url.QueryEscape(evil)).Body.Bytes())
	for _, page := range []struct {
		target string
		status int
	}{
		{"/", 200}, {"/?target=redis&range=6h", 200}, {"/?target=redis&row=" + url.QueryEscape(evil), 200}, {"/runs/redis-000010", 200}, {"/runs/redis-000059", 200}, {"/runs/diagnosis", 200},
		{"/runs/" + ran.Run, 200}, {"/compare?a=redis-000010&b=redis-000011", 200}, {"/compare?a=since:1h&b=" + url.QueryEscape("label.x="+strings.ReplaceAll(evil, ",", "")), 200}, {"/compare", 200},
		{"/runs/" + url.PathEscape(evil), 404}, {"/?range=" + url.QueryEscape(evil), 400}, {"/?" + url.QueryEscape(evil) + "=1", 400}, {"/plan?target=" + url.QueryEscape(evil), 404},
		{"/bench/map/" + url.PathEscape(evil) + "?format=html", 404},
	} {
		text := browse(t, s, page.target, page.status)
		rest := scripts.ReplaceAllString(styles.ReplaceAllString(text, ""), "")
		if strings.Contains(rest, "<img") || strings.Contains(rest, "onerror=alert(1)>\"") {
			t.Errorf("%s: not escaped", page.target)
		}
	}
	if text := browse(t, s, "/runs/"+ran.Run, 200); !strings.Contains(text, html.EscapeString("<script>alert(1)")) {
		t.Error("the label is not there")
	}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEmptyStates: each says what to type, and nothing fails without a history.
func TestEmptyStates(t *testing.T) {
	closed := newHistory(t, "postgres://nobody:secretpassword@127.0.0.1:1/none")
	for _, test := range []struct {
		name  string
		edit  func(*handlers.Config)
		want  []string
		plain string
	}{
		{"no history", nil, []string{"there is no history", "curl &#34;http://nsop.test/"}, "redis"},
		{"history that is down", keeping(closed), []string{"the history: ", "Run something", "curl &#34;http://nsop.test/"}, "history unknown"},
		{"nothing measured", keeping(tempHistory(t)), []string{"Nothing has been measured yet", "nothing measured yet", "/diagnose/redis?format=text", "None yet."}, "never probed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newService(t, test.edit)
			page := browse(t, s, "/", 200)
			for _, want := range test.want {
				if !strings.Contains(page, want) {
					t.Errorf("no %q in %s", want, scripts.ReplaceAllString(styles.ReplaceAllString(page, ""), ""))
				}
			}
			if strings.Contains(page, "secretpassword") {
				t.Error("the password is there")
			}
			began := time.Now()
			plain := get(s, "/", "Accept", "*/*")
			if plain.Code != 200 || !strings.Contains(plain.Body.String(), test.plain) || time.Since(began) > patience/4 {
				t.Errorf("status %d after %v: %s", plain.Code, time.Since(began), plain.Body)
			}
		})
	}
}

// TestStandings: the word of each target on both pages, the failing one first.
func TestStandings(t *testing.T) {
	h := tempHistory(t)
	now := time.Now()
	fill(t, h, now, past{runs: 300, every: 5 * time.Minute, target: []string{"redis"}})
	fill(t, h, now, past{runs: 60, every: 5 * time.Minute, target: []string{"map"}, edit: func(i int, r *history.Run) {
		if i > 57 {
			r.Rows, r.Outcome, r.Status, r.ErrorKind, r.Error = nil, history.Failed, 502, "refused", "connect: refused"
		}
	}})
	s := newService(t, keeping(h))
	plain := get(s, "/").Body.String()
	for _, want := range []*regexp.Regexp{regexp.MustCompile(`redis +redis, in this process +last probe 5 min ago: \S+ (ms|us) p50, normal`), regexp.MustCompile(`map +map, in this process +last probe 5 min ago: failing, refused`)} {
		if !want.MatchString(plain) {
			t.Errorf("no %v in %s", want, plain)
		}
	}
	page := browse(t, s, "/", 200)
	failing, normal := strings.Index(page, `class="card failing"`), strings.Index(page, `class="card normal"`)
	if failing < 0 || normal < failing || !strings.Contains(page, "refused: connect: refused") {
		t.Errorf("failing at %d, normal at %d", failing, normal)
	}
	for _, x := range []string{"6h", "24h", "7d", "30d"} {
		page := browse(t, s, "/?target=redis&range="+x, 200)
		if !strings.Contains(page, "redis: get through redigo") || x != "6h" && !strings.Contains(page, "nsop-00008") {
			t.Errorf("%s: no chart", x)
		}
	}
}

// TestPlan: what a form's fields ask for, as JSON for a script and as the way for a browser.
func TestPlan(t *testing.T) {
	s := newService(t, nil)
	for _, test := range []struct{ query, path, command string }{
		{"target=map&workloads=&client=&size=", "/bench/map", `curl "http://nsop.test/bench/map?format=text"`},
		{"target=redis&workloads=set,+get&client=redigo,floor&concurrency=1,2", "/bench/redis/set,get?client=redigo,floor&concurrency=1,2",
			`curl "http://nsop.test/bench/redis/set,get?client=redigo,floor&concurrency=1,2&format=text"`},
	} {
		w := get(s, "/plan?"+test.query)
		var p struct {
			Path, Command string
			Rows          int
			Seconds       float64 `json:"estimated_seconds"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 200 || p.Path != test.path || p.Command != test.command || p.Rows == 0 || p.Seconds == 0 {
			t.Errorf("%v: %s", err, w.Body)
		}
		location := get(s, "/plan?"+test.query, "Accept", accept)
		want := p.Path + "?format=html"
		if strings.Contains(p.Path, "?") {
			want = p.Path + "&format=html"
		}
		if location.Code != 303 || location.Header().Get("Location") != want {
			t.Errorf("status %d, to %s", location.Code, location.Header().Get("Location"))
		}
	}
	problemOf(t, get(s, "/plan?target=redis&concurrency=0"), 400)
	problemOf(t, get(s, "/plan?target=nope"), 404)
	// The way there measures, so that no page of another origin can send a browser along it.
	problem := get(s, "/bench/map?format=html", "Accept", accept, "Sec-Fetch-Site", "cross-site")
	checkPage(t, "cross-site", problem, 403)
	ran := get(s, "/bench/map?format=html&"+fast, "Accept", accept, "Sec-Fetch-Site", "same-origin")
	if ran.Code != 303 || !strings.HasPrefix(ran.Header().Get("Location"), "/runs/") {
		t.Fatalf("status %d: %s", ran.Code, ran.Body)
	}
	if page := browse(t, s, ran.Header().Get("Location"), 200); !strings.Contains(page, "What was measured") {
		t.Error("no table")
	}
}

// TestPagesWantToken: a browser asks for the password where it is told to.
func TestPagesWantToken(t *testing.T) {
	s := newService(t, func(c *handlers.Config) { c.Auth = handlers.Auth{Mode: "token", Token: "correct"} })
	w := get(s, "/", "Accept", accept)
	checkPage(t, "/", w, 401)
	if !slices.ContainsFunc(w.Header().Values("WWW-Authenticate"), func(v string) bool { return strings.HasPrefix(v, "Basic ") }) {
		t.Errorf("WWW-Authenticate %q", w.Header().Values("WWW-Authenticate"))
	}
	r := newRequest("GET", "/", "", "Accept", accept)
	r.SetBasicAuth("anyone", "correct")
	checkPage(t, "/", serve(s, r), 200)
}

// TestDiagnosisIsKept: it is found again in each of its formats, on the dashboard, and in no comparison.
func TestDiagnosisIsKept(t *testing.T) {
	s := newService(t, keeping(tempHistory(t)))
	w := get(s, "/diagnose/map?timeout=1s&format=json")
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	kept := list(t, s, "?kind=diagnose").Runs
	if len(kept) != 1 || kept[0].Request != "/diagnose/map?timeout=1s" || !slices.Equal(kept[0].Targets, []string{"map"}) {
		t.Fatalf("%+v", kept)
	}
	id := kept[0].Run
	if again := get(s, "/runs/"+id); again.Body.String() != w.Body.String() {
		t.Errorf("%s\nwas\n%s", again.Body, w.Body)
	}
	if text := get(s, "/runs/"+id+"?format=text"); text.Code != 200 || !strings.Contains(text.Body.String(), "embedded-store") {
		t.Errorf("status %d: %s", text.Code, text.Body)
	}
	problemOf(t, get(s, "/runs/"+id+"?format=csv"), 422)
	problemOf(t, get(s, "/compare?a="+id+"&b="+id), 404)
	if c := get(s, "/compare?a=target:map&b=target:map"); c.Code != 200 {
		t.Errorf("status %d: %s", c.Code, c.Body)
	}
	for _, page := range []string{"/?target=map", "/runs/" + id} {
		if text := browse(t, s, page, 200); !strings.Contains(text, "embedded-store") {
			t.Errorf("%s: no finding", page)
		}
	}
}

// TestNow: the run that is going on can be found by whoever does not know its name yet.
func TestNow(t *testing.T) {
	s := newService(t, nil)
	if w := get(s, "/runs/now"); w.Code != 204 || w.Body.Len() > 0 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	done := make(chan answer, 1)
	go func() { done <- decode(t, get(s, "/bench/map/get?benchtime=30s").Body.Bytes()) }()
	var a answer
	for a.Run == "" {
		if w := get(s, "/runs/now"); w.Code == 200 {
			a = decode(t, w.Body.Bytes())
		}
	}
	if stopped := serve(s, newRequest("DELETE", "/runs/"+a.Run, "")); stopped.Code != 200 || a.State != "running" {
		t.Errorf("status %d: %+v", stopped.Code, a)
	}
	if ended := <-done; ended.Run != a.Run || ended.Title != "stopped" {
		t.Errorf("%+v, want %s", ended, a.Run)
	}
}
