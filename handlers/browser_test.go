package handlers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"nsop/bench/history"
)

// A browser is a real Chromium with one tab. What its console says is in complaints.
type browser struct {
	t          *testing.T
	ctx        context.Context
	axe        string // axe-core's script, where NSOP_AXE names its file
	mu         sync.Mutex
	complaints []string
}

// openBrowser starts Chromium; where there is none the test fails.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: make test installs it", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("lang", "en-US"), chromedp.Env("TZ=Asia/Tokyo"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancelAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancelAllocator)
	ctx, cancelTab := chromedp.NewContext(ctx)
	b := &browser{t: t, ctx: ctx}
	var console sync.WaitGroup
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
		cancelTab()
		console.Wait()
	})
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // without a bound, which would be the browser's own
		t.Fatal(err)
	}
	messages := chromedp.Console(ctx)
	console.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.complaints = append(b.complaints, string(m.Type)+": "+m.Text+" "+m.URL)
			b.mu.Unlock()
		}
	})
	if file := os.Getenv("NSOP_AXE"); file != "" {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.axe = string(script)
	}
	return b
}

func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// read is what an expression comes to.
func read[T any](b *browser, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// wait waits until an expression is true, on whichever page is there then.
func (b *browser) wait(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		switch {
		case ok:
			return
		case ctx.Err() != nil:
			b.t.Fatalf("%s: never true (%v): %s", what, err, expression)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// fill types text into a field in place of what is there.
func (b *browser) fill(field, text string) {
	b.t.Helper()
	read[string](b, fmt.Sprintf("document.querySelector(%q).value = ''", field))
	b.do("type into "+field, chromedp.SendKeys(chromedp.CSS(field), text))
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.do("click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// quiet fails where the console said something. allowed are what it may say.
func (b *browser) quiet(page string, allowed ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.complaints {
		ok := false
		for _, a := range allowed {
			ok = ok || strings.Contains(text, a)
		}
		if !ok {
			b.t.Errorf("%s: the console says %s", page, text)
		}
	}
	b.complaints = nil
}

// screen sets the width in px and the colours.
func (b *browser) screen(width int64, scheme string) {
	b.t.Helper()
	b.do("screen", chromedp.EmulateViewport(width, 900))
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
		b.t.Fatal(err)
	}
}

// shoot keeps a picture of the whole page in the folder NSOP_SCREENSHOTS, if that is set.
func (b *browser) shoot(name string) {
	b.t.Helper()
	folder := os.Getenv("NSOP_SCREENSHOTS")
	if folder == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// accessible checks what a person needs who does not see the page, or not well: names, headings, headers, contrast, width.
func (b *browser) accessible(page string) {
	b.t.Helper()
	for _, f := range read[[]string](b, checks) {
		b.t.Errorf("%s: %s", page, f)
	}
	if b.axe == "" {
		return
	}
	read[int](b, b.axe+";0")
	found := read[string](b, `axe.run({resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations.map(v =>
		v.id + ": " + v.help + " " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + n.failureSummary).join(" | "))))`, chromedp.EvalAwaitPromise)
	var violations []string
	if err := json.Unmarshal([]byte(found), &violations); err != nil {
		b.t.Fatal(err)
	}
	for _, v := range violations {
		b.t.Errorf("%s: axe: %s", page, v)
	}
}

// checks is the script of accessible. Contrast as in WCAG 2.2, 1.4.3: 4.5, of large text 3.
const checks = `(() => {
const faults = [], say = (e, text) => faults.push(text + ": " + e.outerHTML.slice(0, 120));
const shown = e => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
const name = e => (e.getAttribute("aria-label") || e.textContent || "").trim();
if (!document.documentElement.lang) faults.push("no language");
if (!document.title) faults.push("no title");
if (document.querySelectorAll("main").length !== 1) faults.push("not one main");
if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is " + document.documentElement.scrollWidth + " px wide on " + innerWidth);
const ids = new Set();
for (const e of document.querySelectorAll("[id]")) { if (ids.has(e.id)) say(e, "its id is there twice"); ids.add(e.id); }
let last = 0;
for (const h of document.querySelectorAll("h1,h2,h3,h4")) { const n = +h.tagName[1]; if (n > last + 1) say(h, "a heading is left out before"); last = n; }
for (const e of document.querySelectorAll("a,button")) if (!name(e)) say(e, "no name");
for (const e of document.querySelectorAll("input:not([type=hidden]),select,progress")) if (!e.labels.length && !e.getAttribute("aria-label")) say(e, "no label");
for (const e of document.querySelectorAll("svg:not([aria-hidden])")) if (e.getAttribute("role") !== "img" || !e.querySelector("title")?.textContent || !e.querySelector("desc")?.textContent) say(e, "no text alternative");
for (const t of document.querySelectorAll("table")) {
  if (!t.caption) say(t, "no caption");
  if (!t.querySelector("thead th[scope=col]")) say(t, "no header");
  for (const r of t.tBodies[0].rows) if (!r.querySelector("th[scope=row]")) say(r, "no row header");
  if (t.parentElement.tabIndex !== 0) say(t, "can't be scrolled by keyboard");
}
for (const e of document.querySelectorAll("[style],[onclick],[onchange]")) say(e, "inline style or handler");
for (const a of document.querySelectorAll("[aria-describedby],[aria-labelledby]")) for (const id of (a.getAttribute("aria-describedby") || a.getAttribute("aria-labelledby")).split(" ")) if (!document.getElementById(id)) say(a, "refers to nothing");
const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return {rgb: m.slice(0, 3), a: m.length > 3 ? m[3] : 1}; };
const luminance = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a > .99) return c.rgb; } return [255, 255, 255]; };
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let n; n = walk.nextNode();) {
  const e = n.parentElement;
  if (!n.textContent.trim() || e.closest("svg,script,style,noscript,option") || !shown(e)) continue;
  const s = getComputedStyle(e), a = luminance(parse(s.color).rgb), b = luminance(ground(e));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(s.fontSize);
  if (ratio < (size >= 24 || size >= 18.66 && s.fontWeight >= 700 ? 3 : 4.5)) say(e, "contrast " + ratio.toFixed(2));
}
for (const e of document.querySelectorAll("button,select,.choices a")) if (shown(e) && e.getBoundingClientRect().height < 24) say(e, "too small to be hit");
return faults;
})()`

// TestBrowser opens every page at the widths of a desk and of a phone, runs a benchmark, stops one and compares two runs.
func TestBrowser(t *testing.T) {
	h := tempHistory(t)
	now := time.Now()
	fill(t, h, now, past{runs: 600, bodies: true, every: 5 * time.Minute, target: []string{"redis"}, slower: 1.34})
	fill(t, h, now, past{runs: 40, every: 5 * time.Minute, target: []string{"map"}, edit: func(i int, r *history.Run) {
		if i > 36 {
			r.Rows, r.Outcome, r.ErrorKind, r.Error = nil, history.Failed, "timeout", "map: connect: timeout after 5s"
		}
	}})
	storeDiagnosis(t, h, now)
	server := httptest.NewServer(newService(t, keeping(h)))
	defer server.Close()
	b := openBrowser(t)
	open := func(path string) {
		t.Helper()
		b.do("open "+path, chromedp.Navigate(server.URL+path))
		b.wait("load "+path, `document.readyState === "complete" && document.querySelector("main") && !document.querySelector("figure.chart desc")?.textContent.includes("UTC.")`)
	}

	b.screen(1280, "light")
	open("/?target=redis")
	if at, chart := read[string](b, `document.querySelector(".card time").textContent`), read[string](b, `document.querySelector("figure.chart desc").textContent`); strings.Contains(at, "UTC") || !strings.Contains(chart, "UTC+9:00") {
		t.Errorf("times are not in the reader's zone: %q, %q", at, chart)
	}
	b.quiet("the dashboard")

	// A benchmark, with its progress.
	b.fill("#f-client", "floor,redigo")
	b.fill("#f-workloads", "get,set")
	b.fill("#f-size", "1KiB")
	b.wait("plan", `document.getElementById("curl").textContent.includes("/bench/redis/get,set?client=floor,redigo&size=1KiB&format=text")`)
	b.wait("estimate", `document.getElementById("estimate").textContent.startsWith("4 rows, about 4")`)
	b.fill("#f-concurrency", "0")
	b.wait("refusal", `document.getElementById("estimate").textContent.includes("1 to 1024")`)
	b.accessible("a field that is refused")
	b.quiet("a field that is refused", "400") // a browser tells of every answer that is an error
	b.fill("#f-concurrency", "2")
	b.fill("#f-benchtime", "400ms")
	b.click("#bench button[type=submit]")
	b.wait("rows as they come", `document.querySelectorAll("#rows tr").length > 0 && document.querySelectorAll("#rows tr").length < 4 && !document.getElementById("stop").hidden`)
	b.shoot("running")
	b.accessible("the dashboard while it runs")
	b.wait("result", `document.getElementById("done").textContent.startsWith("Done. Run")`)
	first := read[string](b, `document.querySelector("#done a").getAttribute("href")`)
	if rows := read[int](b, `document.querySelectorAll("#rows tr").length`); rows != 4 {
		t.Errorf("%d rows", rows)
	}
	b.quiet("a benchmark")

	// One that is stopped.
	b.fill("#f-benchtime", "30s")
	b.fill("#f-workloads", "get")
	b.fill("#f-client", "redigo")
	b.click("#bench button[type=submit]")
	b.wait("stop", `!document.getElementById("stop").hidden && !document.getElementById("stop").disabled`)
	b.click("#stop")
	b.wait("stopped", `document.getElementById("done").textContent.startsWith("stopped: ") && document.getElementById("stop").hidden`)
	stopped := read[string](b, `document.querySelector("#done a").getAttribute("href")`)
	b.quiet("a stopped benchmark")

	// What the form does where there is no script.
	open("/plan?target=redis&workloads=get&client=redigo&concurrency=2&size=1KiB&benchtime=200ms&count=")
	second := read[string](b, `location.pathname`)
	if !strings.HasPrefix(second, "/runs/") {
		t.Fatalf("the form leads to %s", second)
	}
	b.quiet("the form without script")

	// One that someone else started is watched at its page, and stopped there.
	done := make(chan error, 1)
	go func() {
		answer, err := server.Client().Get(server.URL + "/bench/redis/get?client=redigo&benchtime=30s")
		if err == nil {
			err = answer.Body.Close()
		}
		done <- err
	}()
	for get(server.Config.Handler, "/runs/now").Code != 200 {
		time.Sleep(10 * time.Millisecond)
	}
	open("/runs/now")
	b.wait("watch", `document.getElementById("bar").value > 0 && !document.getElementById("stop").hidden`)
	b.accessible("a run that is going on")
	b.click("#stop")
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.wait("the end of what is watched", `!document.getElementById("watch")`)
	b.quiet("a run that is watched")

	pages := []struct{ name, path, want string }{
		{"dashboard", "/", "Is it all right now?"},
		{"redis-7d", "/?target=redis&range=7d", "rose by"},
		{"run", first, "Repeat it"},
		{"stopped-run", stopped, "stopped"},
		{"stored-run", "/runs/redis-000100", "Download"},
		{"diagnosis", "/runs/diagnosis", "connector-handshakes"},
		{"compare", "/compare?a=" + url.QueryEscape("revision:nsop-00006") + "&b=" + url.QueryEscape("revision:nsop-00008"), "slower"},
		{"compare-runs", "/compare?a=" + strings.TrimPrefix(first, "/runs/") + "&b=" + strings.TrimPrefix(second, "/runs/"), "95% CI"},
		{"compare-form", "/compare", "Say which two to compare"},
	}
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.screen(width, scheme)
			for _, p := range pages {
				open(p.path)
				name := fmt.Sprintf("%s-%d-%s", p.name, width, scheme)
				if text := read[string](b, `document.querySelector("main").textContent`); !strings.Contains(text, p.want) {
					t.Errorf("%s: no %q in %s", name, p.want, text)
				}
				b.accessible(name)
				b.quiet(name)
				b.shoot(name)
			}
		}
	}
	for _, missing := range []string{"/runs/nope", "/compare?a=nope&b=nope", "/?range=2y", "/bench/redis/nope?format=html"} {
		open(missing)
		b.accessible(missing)
		b.quiet(missing, "404", "400")
	}
	b.shoot("error")
}

// storeDiagnosis keeps a diagnosis of redis called diagnosis.
func storeDiagnosis(t testing.TB, h *history.History, now time.Time) {
	t.Helper()
	err := h.Save(t.Context(), &history.Run{ID: "diagnosis", Kind: "diagnose", StartedAt: now.Add(-time.Hour), Elapsed: 8 * time.Second, Outcome: history.OK, Status: 200,
		Targets: []string{"redis"}, Labels: map[string]string{}, Request: "/diagnose/redis", Body: []byte(`{"findings": [
			{"rule": "connector-handshakes", "severity": "warning", "summary": "32 dials at once took 2.1 s, one alone 1.1 ms; warm commands stay at 1.0 ms", "evidence": {},
			"cause": "the connector is short of machines", "next": "gcloud compute networks vpc-access connectors update C --region R --min-instances 3"},
			{"rule": "tls-cost", "severity": "info", "summary": "TLS adds 0.31 ms to a dial and 14 us to a GET", "evidence": {}, "cause": "", "next": ""}],
		"budget": {"operation": "get", "client": "go-redis", "total_ns": 1030000, "parts": [{"name": "server", "ns": 2100}, {"name": "network", "ns": 840000},
			{"name": "sandbox", "ns": 110000}, {"name": "library", "ns": 38000}, {"name": "unaccounted", "ns": 39900}]}}`)})
	if err != nil {
		t.Fatal(err)
	}
}
