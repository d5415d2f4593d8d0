package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/compare"
	"nsop/bench/history"
	"nsop/bench/published"
)

// CompareSources is where /compare finds what it compares. A func that is nil finds nothing.
type CompareSources struct {
	// Run returns the stored run called id, or an error that wraps history.ErrNotFound.
	Run func(ctx context.Context, id string) (*bench.Report, error)
	// Runs returns the stored runs that f means, newest first, at most f.Limit. Their rows of another target, workload or
	// client are left out.
	Runs func(ctx context.Context, f history.Filter) ([]*bench.Report, error)
	// Published returns published figures, which are one of PublishedNames.
	Published      func(name string) (*bench.Report, error)
	PublishedNames []string
	// Page writes the page for browsers; nil where there is none.
	Page func(w io.Writer, p compare.Page) error
}

// compareSources compares what is in h, which may be nil, and published figures.
func compareSources(h *history.History) CompareSources {
	c := CompareSources{Published: published.Report, PublishedNames: published.Names()}
	if h == nil {
		return c
	}
	c.Run = func(ctx context.Context, id string) (*bench.Report, error) {
		run, err := h.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		if run.Kind == "diagnose" { // which has no rows
			return nil, history.ErrNotFound
		}
		return run.Report()
	}
	c.Runs = func(ctx context.Context, f history.Filter) (reports []*bench.Report, err error) {
		f.Bodies = true
		runs, err := h.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, run := range runs {
			if run.Kind == "diagnose" {
				continue
			}
			report, err := run.Report()
			if err != nil {
				return nil, err
			}
			report.Results = slices.DeleteFunc(report.Results, func(r *bench.Result) bool {
				return f.Target != "" && r.Target != f.Target || f.Workload != "" && r.Workload != f.Workload || f.Client != "" && r.Client != f.Client
			})
			reports = append(reports, report)
		}
		return reports, nil
	}
	return c
}

// maxCompared is how many runs of one side are compared, the newest.
const maxCompared = 1000

// A sideTerm is one line of the table of what a side of a comparison may be made of.
type sideTerm struct {
	name, example string
	set           func(f *history.Filter, value string, now time.Time) error // nil: it stands alone
}

var sideTerms = []sideTerm{
	{"run", "ID", nil},
	{"published", "NAME", nil},
	{"revision", "nsop-00007", func(f *history.Filter, v string, _ time.Time) error { f.Revision = v; return nil }},
	{"target", "redis", func(f *history.Filter, v string, _ time.Time) error { f.Target = v; return nil }},
	{"workload", "get", func(f *history.Filter, v string, _ time.Time) error { f.Workload = v; return nil }},
	{"client", "redigo", func(f *history.Filter, v string, _ time.Time) error { f.Client = v; return nil }},
	{"since", "24h", func(f *history.Filter, v string, now time.Time) (err error) {
		f.Since, err = parseTime(v, now)
		return err
	}},
	{"until", "24h", func(f *history.Filter, v string, now time.Time) (err error) {
		f.Until, err = parseTime(v, now)
		return err
	}},
}

// A compareSide is a parsed side: a run, published figures or a filter.
type compareSide struct {
	text      string // as it was given
	run       string
	published string
	filter    history.Filter
}

// allowedSides says what a side may be.
func allowedSides(published []string) (allowed []string) {
	for _, t := range sideTerms {
		switch {
		case t.name == "run":
			allowed = append(allowed, "a run's ID")
		case t.name == "published":
			for _, name := range published {
				allowed = append(allowed, "published:"+name)
			}
		default:
			allowed = append(allowed, t.name+":"+t.example)
		}
	}
	return append(allowed, "label.NAME=VALUE", "several of these with commas, but for a run and published")
}

// parseSide reads one side of a comparison: a run's identifier, published:NAME, or terms such as revision:nsop-00007 and
// label.egress=direct with commas between them. A term's name ends at its first colon or equals sign. Its error is one
// line.
func parseSide(text string, now time.Time) (compareSide, error) {
	side := compareSide{text: text, filter: history.Filter{Labels: map[string]string{}}}
	if text == "" {
		return side, errors.New("missing")
	}
	terms := strings.Split(text, ",")
	var seen []string
	for _, term := range terms {
		if term == "" {
			return side, errors.New("an empty term")
		}
		i := strings.IndexAny(term, ":=")
		if i < 0 {
			i, term = 3, "run:"+term
		}
		name, value := term[:i], term[i+1:]
		label, isLabel := strings.CutPrefix(name, "label.")
		n := slices.IndexFunc(sideTerms, func(t sideTerm) bool { return t.name == name })
		switch {
		case n < 0 && !isLabel:
			return side, fmt.Errorf("no term %s", quoteTerm(name))
		case slices.Contains(seen, name):
			return side, fmt.Errorf("%s is given twice", name)
		case isLabel:
			if err := bench.CheckLabel(label, value); err != nil {
				return side, err
			}
			side.filter.Labels[label] = value
		case value == "":
			return side, fmt.Errorf("%s has no value", name)
		case sideTerms[n].set == nil && len(terms) > 1:
			return side, fmt.Errorf("%s can't be joined with other terms", quoteTerm(strings.TrimPrefix(term, "run:")))
		case name == "run":
			side.run = value
		case name == "published":
			side.published = value
		default:
			if err := sideTerms[n].set(&side.filter, value, now); err != nil {
				return side, fmt.Errorf("%s: %w", name, err)
			}
		}
		seen = append(seen, name)
	}
	if f := side.filter; !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return side, errors.New("since is not before until")
	}
	return side, nil
}

func quoteTerm(text string) string {
	if r := []rune(text); len(r) > 60 {
		text = string(r[:57]) + "..."
	}
	return strconv.QuoteToASCII(text)
}

// compare answers how two runs, or what two filters find, differ.
func (s *Service) compare(w http.ResponseWriter, r *http.Request) error {
	values, err := query(r, s.Limits.Body)
	if err != nil {
		return err
	}
	if err := checkNames(values, "a", "b", "format"); err != nil {
		return err
	}
	format, err := s.compareFormat(values, r)
	if err != nil {
		return err
	}
	if format.Name == "html" {
		a, err := loadPages()
		if err != nil {
			return fmt.Errorf("load pages: %w", err)
		}
		if !values.Has("a") && !values.Has("b") { // the form
			return writePage(w, http.StatusOK, "Compare", compareNode(nil))
		}
		pageHeader(w, a)
	}
	var sides [2]compare.Side
	var warnings []string
	now := time.Now()
	for i, name := range []string{"a", "b"} {
		wrong := func(detail string) error {
			return s.compareError(format, &bench.ParamError{Parameter: name, Detail: detail, Allowed: allowedSides(s.Compare.PublishedNames)})
		}
		if len(values[name]) > 1 {
			return wrong("given twice")
		}
		side, err := parseSide(values.Get(name), now)
		if err != nil {
			return wrong(err.Error())
		}
		if side.published != "" && (s.Compare.Published == nil || !slices.Contains(s.Compare.PublishedNames, side.published)) {
			return wrong("no published figures " + quoteTerm(side.published))
		}
		if sides[i], err = s.findSide(r.Context(), side); err != nil {
			return s.compareError(format, fmt.Errorf("%s: %w", name, err))
		}
		if len(sides[i].Reports) == maxCompared {
			warnings = append(warnings, fmt.Sprintf("of %s the newest %s runs are compared", name, bench.FormatCount(maxCompared)))
		}
	}
	c := compare.Compare(sides[0], sides[1])
	c.Warnings = append(c.Warnings, warnings...)
	var body bytes.Buffer
	if err := format.Encode(&body, c, s.encodeOptions(r)); err != nil {
		return fmt.Errorf("encode %s: %w", format.Name, err)
	}
	w.Header().Set("Content-Type", format.ContentType)
	_, _ = w.Write(body.Bytes()) // the client has left: nobody is there to be told
	return nil
}

// compareError is err in the format that was asked for, where errors have it.
func (s *Service) compareError(format compare.Format, err error) error {
	if f, ok := bench.FormatByName(format.Name); ok {
		return &formatted{err, f}
	}
	return &formatted{err, bench.Formats[0]}
}

// findSide finds the runs of a side.
func (s *Service) findSide(ctx context.Context, side compareSide) (compare.Side, error) {
	count := func(n int) string {
		if n == 1 {
			return "1 run"
		}
		return bench.FormatCount(int64(n)) + " runs"
	}
	switch {
	case side.published != "":
		report, err := s.Compare.Published(side.published)
		if err != nil {
			return compare.Side{}, fmt.Errorf("read published figures %s: %w", side.published, err)
		}
		return compare.Side{Description: "published figures " + side.published, Reports: []*bench.Report{report}}, nil
	case side.run != "":
		report, err := s.findRun(ctx, side.run)
		if err != nil {
			return compare.Side{}, err
		}
		description := "run " + side.run
		if !report.StartedAt.IsZero() {
			description += ", " + report.StartedAt.UTC().Format("2006-01-02 15:04") + " UTC"
		}
		return compare.Side{Description: description, Reports: []*bench.Report{report}}, nil
	}
	found := compare.Side{}
	if s.Compare.Runs != nil {
		side.filter.Limit = maxCompared
		reports, err := s.Compare.Runs(ctx, side.filter)
		if err != nil {
			return compare.Side{}, fmt.Errorf("read the history: %w", err)
		}
		found.Reports = reports
	}
	words := strings.NewReplacer(":", " ", "=", " ", ",", ", ").Replace(side.text)
	if len(side.filter.Labels) > 0 {
		words = strings.ReplaceAll(side.text, ",", ", ")
	}
	found.Description = words + ", " + count(len(found.Reports))
	return found, nil
}

// findRun finds a run among the latest of this instance, else in the history.
func (s *Service) findRun(ctx context.Context, id string) (*bench.Report, error) {
	if e := s.runs.find(id); e != nil {
		return e.report, nil
	}
	missing := &bench.NotFoundError{Detail: "no run " + quoteTerm(id)}
	if s.Compare.Run == nil {
		return nil, missing
	}
	report, err := s.Compare.Run(ctx, id)
	if errors.Is(err, history.ErrNotFound) {
		return nil, missing
	}
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", quoteTerm(id), err)
	}
	return report, nil
}

// compareFormats are the formats of a comparison, the page for browsers last.
func (s *Service) compareFormats() []compare.Format {
	formats := slices.Clone(compare.Formats)
	if s.Compare.Page != nil {
		formats = append(formats, compare.Format{Name: "html", ContentType: "text/html; charset=utf-8", Accept: "text/html",
			Encode: func(w io.Writer, c *compare.Comparison, _ bench.EncodeOptions) error {
				return s.Compare.Page(w, c.Page())
			}})
	}
	return formats
}

// compareFormat is the format that the request wants: by its parameter, else by Accept.
func (s *Service) compareFormat(values url.Values, r *http.Request) (compare.Format, error) {
	formats := s.compareFormats()
	names := values["format"]
	if len(names) == 0 {
		best, weight := formats[0], 0.0
		for _, f := range formats {
			if q := bench.AcceptQuality(r.Header.Get("Accept"), f.Accept); q > weight {
				best, weight = f, q
			}
		}
		return best, nil
	}
	wrong := &bench.ParamError{Parameter: "format", Detail: "no format " + strconv.Quote(names[0])}
	for _, f := range formats {
		if f.Name == names[0] && len(names) == 1 {
			return f, nil
		}
		wrong.Allowed = append(wrong.Allowed, f.Name)
	}
	if len(names) > 1 {
		wrong.Detail = "given twice"
	}
	return formats[0], wrong
}
