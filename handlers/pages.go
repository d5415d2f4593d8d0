package handlers

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	g "maragu.dev/gomponents"

	"nsop/bench"
	"nsop/bench/chart"
	"nsop/bench/compare"
	"nsop/bench/diagnose"
	"nsop/bench/history"
)

//go:embed static
var pageFiles embed.FS

// pageAssets are what pages are made of, which is read where a browser first asks for one.
type pageAssets struct {
	style, script string
	policy        string // the content security policy
}

var loadPages = sync.OnceValues(func() (*pageAssets, error) {
	style, err := pageFiles.ReadFile("static/style.css")
	if err != nil {
		return nil, err
	}
	script, err := pageFiles.ReadFile("static/script.js")
	if err != nil {
		return nil, err
	}
	a := &pageAssets{style: string(style) + chart.CSS(), script: string(script)}
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	// Nothing is loaded but the page itself; the style and the script in it are these two and no others.
	a.policy = "default-src 'none'; style-src " + hash(a.style) + "; script-src " + hash(a.script) +
		"; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	return a, nil
})

// shortID is enough of a run's ID to tell it from its neighbours, where we made it: others' are not as random.
func shortID(id string) string {
	if _, err := uuid.Parse(id); err == nil {
		return id[:8]
	}
	return id
}

// wantsPage tells whether the request prefers HTML to everything else: a browser does, curl takes anything.
func wantsPage(r *http.Request) bool {
	values, _ := url.ParseQuery(r.URL.RawQuery) // one that doesn't parse is refused where it is used
	if values.Has("format") {
		return len(values["format"]) == 1 && values.Get("format") == "html"
	}
	accept := r.Header.Get("Accept")
	page := bench.AcceptQuality(accept, "text/html")
	for _, f := range bench.Formats {
		if f.Accept != "" && bench.AcceptQuality(accept, f.Accept) >= page {
			return false
		}
	}
	return page > 0
}

// writePage answers a page.
func writePage(w http.ResponseWriter, status int, title string, content g.Node) error {
	a, err := loadPages()
	if err != nil {
		return fmt.Errorf("load pages: %w", err)
	}
	var b bytes.Buffer
	if err := wholePage(a, title, content).Render(&b); err != nil {
		return fmt.Errorf("write page %s: %w", title, err)
	}
	pageHeader(w, a)
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client has left: nobody is there to be told
	return nil
}

func pageHeader(w http.ResponseWriter, a *pageAssets) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", a.policy)
	w.Header().Set("Referrer-Policy", "same-origin")
	w.Header().Set("Vary", "Accept")
}

// failPage tells a problem to someone at a browser.
func (s *Service) failPage(w http.ResponseWriter, p *problem) error {
	run := ""
	if p.report != nil {
		run = p.report.Run
	}
	return writePage(w, p.Status, strconv.Itoa(p.Status)+" "+p.Title, problemNode(p, hintFor(p.ErrorKind, p.report), run))
}

// A fact is a name with what it is of a run.
type fact struct{ Name, Value string }

// A download is a run in a format.
type download struct{ Format, URL string }

// A runPage is what the page of one run shows.
type runPage struct {
	ID         string
	Started    time.Time
	Elapsed    string
	Kind       string
	Outcome    string
	Problem    string // why it failed
	Running    bool
	Percent    int
	Row, Rows  int
	Head       []bench.Heading
	Warnings   []string
	Table      bench.Table
	Summary    bench.Table
	Notes      []string
	Assertions []bench.CheckedAssertion
	Chart      string
	Budget     string
	Findings   []diagnose.Finding
	Vantage    []fact
	Labels     []fact
	Curl       string
	Downloads  []download
	Unsaved    bool
}

// runPage answers a run as a page: the one that is going on, the latest of this instance, or one of the history.
func (s *Service) runPage(w http.ResponseWriter, r *http.Request, id string) error {
	if report, progress, ok := s.runs.state(id); ok {
		p := s.newRunPage(r, report, nil)
		p.Running, p.Percent, p.Row, p.Rows = true, int(100*min(1, max(0, progress.Fraction))), progress.Row, progress.Rows
		p.Outcome = "running"
		return writePage(w, http.StatusOK, "Run "+shortID(p.ID), p.node())
	}
	latest := s.runs.find(id)
	kept, err := s.keptRun(r, id)
	if err != nil && latest == nil {
		return err
	}
	var report *bench.Report
	switch {
	case latest != nil:
		report = latest.report
	case kept.Kind == "diagnose":
		return s.diagnosisPage(w, r, kept)
	default:
		if report, err = kept.Report(); err != nil {
			return err
		}
	}
	p := s.newRunPage(r, report, kept)
	if latest != nil && latest.err != nil && !errors.As(latest.err, &assertionError{}) {
		p.Outcome, p.Problem = cmp.Or(p.Outcome, history.Failed), latest.err.Error()
	}
	return writePage(w, http.StatusOK, "Run "+shortID(p.ID), p.node())
}

// keptRun is a run of the history, or an error that says why there is none.
func (s *Service) keptRun(r *http.Request, id string) (*history.Run, error) {
	missing := &bench.NotFoundError{Detail: fmt.Sprintf("no run %q", id)}
	if s.History == nil {
		return nil, missing
	}
	run, err := s.History.Run(r.Context(), id)
	switch {
	case errors.Is(err, history.ErrNotFound):
		return nil, missing
	case err != nil:
		return nil, &historyError{err}
	}
	return run, nil
}

// newRunPage is the page of a report; kept is what the history has of it, or nil.
func (s *Service) newRunPage(r *http.Request, report *bench.Report, kept *history.Run) *runPage {
	page := report.Page()
	p := &runPage{ID: report.Run, Started: report.StartedAt, Head: page.Head, Warnings: page.Warnings, Notes: page.Notes, Assertions: page.Assertions,
		Unsaved: report.Unsaved, Vantage: vantageFacts(report.Vantage)}
	if report.ElapsedNS > 0 {
		p.Elapsed = bench.FormatDuration(float64(report.ElapsedNS))
	}
	p.Table, p.Summary = page.Table, page.Summary
	if format, ok := bench.FormatByName("svg"); ok {
		var b bytes.Buffer
		if err := format.Encode(&b, report, bench.EncodeOptions{Inline: true}); err == nil { // else there is nothing to draw
			p.Chart = b.String()
		}
	}
	labels := map[string]string{}
	for _, res := range report.Results {
		maps.Copy(labels, res.Labels)
	}
	if kept != nil {
		maps.Copy(labels, kept.Labels)
		p.Kind, p.Outcome, p.Problem = kept.Kind, kept.Outcome, kept.Error
		s.repeat(r, p, kept.Request)
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		p.Labels = append(p.Labels, fact{name, labels[name]})
	}
	for _, f := range bench.Formats {
		p.Downloads = append(p.Downloads, download{f.Name, "/runs/" + url.PathEscape(report.Run) + "?format=" + f.Name})
	}
	return p
}

// repeat tells how to run it again.
func (s *Service) repeat(r *http.Request, p *runPage, request string) {
	if request == "" || !strings.HasPrefix(request, "/") {
		return
	}
	separator := "?"
	if strings.Contains(request, "?") {
		separator = "&"
	}
	request = strings.ReplaceAll(request, "%2C", ",")
	p.Curl = command(r, request+separator+"format=text")
}

// diagnosisPage is the page of a diagnosis.
func (s *Service) diagnosisPage(w http.ResponseWriter, r *http.Request, kept *history.Run) error {
	d, err := readDiagnosis(kept)
	if err != nil {
		return err
	}
	p := &runPage{ID: kept.ID, Started: kept.StartedAt, Elapsed: bench.FormatDuration(float64(kept.Elapsed)), Kind: kept.Kind, Outcome: kept.Outcome,
		Problem: kept.Error, Findings: d.Findings, Budget: budgetChart(d.Budget)}
	if len(kept.Targets) > 0 {
		p.Head = []bench.Heading{{Name: kept.Targets[0]}}
	}
	s.repeat(r, p, kept.Request)
	for _, f := range diagnoseFormats {
		p.Downloads = append(p.Downloads, download{f.name, "/runs/" + url.PathEscape(kept.ID) + "?format=" + f.name})
	}
	return writePage(w, http.StatusOK, "Diagnosis "+shortID(p.ID), p.node())
}

// A storedDiagnosis is what pages show of one.
type storedDiagnosis struct {
	Findings []diagnose.Finding `json:"findings"`
	Budget   *diagnose.Budget   `json:"budget"`
}

func readDiagnosis(kept *history.Run) (d storedDiagnosis, err error) {
	if err := json.Unmarshal(kept.Body, &d); err != nil {
		return d, fmt.Errorf("read diagnosis %s: %w", kept.ID, err)
	}
	return d, nil
}

func budgetChart(b *diagnose.Budget) string {
	if b == nil {
		return ""
	}
	var parts []chart.Part
	for _, p := range b.Parts {
		if p.NS != nil {
			parts = append(parts, chart.Part{Name: p.Name, NS: float64(*p.NS)})
		}
	}
	var svg bytes.Buffer
	f := chart.Frame{Title: "Where the time of one " + b.Operation + " goes", Subtitle: "through " + b.Client, Inline: true}
	if err := chart.Budget(&svg, f, b.Operation, float64(b.TotalNS), parts); err != nil {
		return "" // nothing to draw
	}
	return svg.String()
}

// vantageFacts are what v, an object of the vantage, says in its own names.
func vantageFacts(v any) (facts []fact) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	fields := map[string]any{}
	if d.Decode(&fields) != nil {
		return nil
	}
	for _, name := range []string{"platform", "project", "region", "service", "revision", "instance", "instance_age_ns", "cold", "sandbox", "go", "cpus", "cpu_quota", "memory_limit_bytes"} {
		value := fields[name]
		if value == nil || value == "" {
			continue
		}
		label, shown := strings.ReplaceAll(name, "_", " "), fmt.Sprint(value)
		if n, ok := value.(json.Number); ok {
			f, err := n.Float64()
			switch {
			case err != nil:
			case strings.HasSuffix(name, "_ns"):
				label, shown = strings.TrimSuffix(label, " ns"), bench.FormatDuration(f)
			case strings.HasSuffix(name, "_bytes"):
				label, shown = strings.TrimSuffix(label, " bytes"), bench.FormatBytes(int64(f))
			}
		}
		facts = append(facts, fact{label, shown})
	}
	return facts
}

// comparePage writes a comparison for browsers.
func comparePage(w io.Writer, p compare.Page) error {
	a, err := loadPages()
	if err != nil {
		return fmt.Errorf("load pages: %w", err)
	}
	return wholePage(a, "Compare", compareNode(&p)).Render(w)
}

// A planned is what a form asks for.
type planned struct {
	Path     string  `json:"path"`
	Command  string  `json:"command"`
	Rows     int     `json:"rows"`
	Seconds  float64 `json:"estimated_seconds"`
	Estimate string  `json:"estimate"`
}

// plan tells which path of /bench does what the fields of a form ask for, and how long that takes; it measures nothing. A
// browser is sent there.
func (s *Service) plan(w http.ResponseWriter, r *http.Request) error {
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return err
	}
	name, workloads := values.Get("target"), strings.ReplaceAll(values.Get("workloads"), " ", "")
	page := wantsPage(r)
	for key, texts := range values {
		if len(texts) > 1 && key != "assert" {
			return &bench.ParamError{Parameter: key, Detail: "given twice"}
		}
		if text := strings.TrimSpace(texts[0]); text == "" || key == "target" || key == "workloads" || key == "format" {
			values.Del(key) // a field that was left empty
		}
	}
	target, err := s.target(name)
	if err != nil {
		return err
	}
	spec, err := s.spec(values, []*bench.Target{target})
	if err != nil {
		return err
	}
	p, err := bench.NewPlan(target, workloads, spec, s.Limits)
	if err != nil {
		return err
	}
	path := "/bench/" + url.PathEscape(name)
	if workloads != "" {
		path += "/" + strings.ReplaceAll(url.PathEscape(workloads), "%2C", ",")
	}
	encoded := strings.ReplaceAll(values.Encode(), "%2C", ",")
	if page {
		http.Redirect(w, r, path+"?"+strings.TrimPrefix(encoded+"&format=html", "&"), http.StatusSeeOther)
		return nil
	}
	estimate := p.Estimate(0)
	answer := planned{Path: path, Rows: p.Size(), Seconds: estimate.Seconds(), Estimate: bench.FormatDuration(float64(estimate))}
	text := path + "?format=text"
	if encoded != "" {
		answer.Path += "?" + encoded
		text = path + "?" + encoded + "&format=text"
	}
	answer.Command = command(r, text)
	w.Header().Set("Content-Type", "application/json")
	return writeJSON(w, answer)
}
