package handlers

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"nsop/bench"
	"nsop/bench/compare"
	"nsop/bench/diagnose"
)

// The pages are Go and no templates: html/template finds methods by their names while it runs, for which the linker keeps
// every method of every library, and the binary grows by two thirds. g.Text and attributes escape what they are given; g.Raw,
// which does not, is for our own style, script and pictures alone.

// wholePage is a page with what stands around its content.
func wholePage(a *pageAssets, title string, content ...g.Node) g.Node {
	if title != "nsop" {
		title += " - nsop"
	}
	link := func(href, text string) g.Node { return g.Group{h.A(h.Href(href), g.Text(text)), g.Text(" ")} }
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(h.Meta(h.Charset("utf-8")), h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")), h.Meta(h.Name("color-scheme"), h.Content("light dark")),
			h.TitleEl(g.Text(title)), h.Link(h.Rel("icon"), h.Href("data:,")), h.StyleEl(g.Raw(a.style))),
		h.Body(
			h.A(h.Class("skip"), h.Href("#main"), g.Text("Skip to the content")),
			h.Header(h.Class("top"), h.Nav(h.Aria("label", "Pages"), h.A(h.Class("brand"), h.Href("/"), g.Text("nsop")), g.Text(" "), link("/#run", "Run"),
				link("/compare?format=html", "Compare"), link("/runs?format=text", "Runs"), link("/openapi.json", "API"))),
			h.Main(h.ID("main"), g.Group(content)),
			h.Script(g.Raw(a.script)),
		)))
}

// timeNode is a moment, which the script writes in the reader's zone.
func timeNode(t time.Time) g.Node {
	t = t.UTC()
	return h.Time(g.Attr("datetime", t.Format(time.RFC3339)), g.Text(t.Format("2006-01-02 15:04")+" UTC"))
}

func text(class string, words ...string) g.Node {
	return h.P(g.If(class != "", h.Class(class)), g.Text(strings.Join(words, "")))
}

func notice(class, words string) g.Node {
	return h.P(h.Class("notice "+class), g.If(class != "", h.Role("status")), h.Strong(g.Text("!")), g.Text(" "+words))
}

func pasted(command string) g.Node { return h.Pre(h.Code(g.Text(command))) }

func current(yes bool) g.Node { return g.If(yes, h.Aria("current", "true")) }

// scrolled is a table that can be wider than the screen.
func scrolled(caption, label string, table ...g.Node) g.Node {
	return h.Div(h.Class("scroll"), h.Role("region"), h.Aria("label", label), h.TabIndex("0"), h.Table(h.Caption(g.Text(caption)), g.Group(table)))
}

// heads are the headings of columns, of which the first left are those of names.
func heads(left int, names ...string) g.Node {
	cells := g.Group{}
	for i, name := range names {
		cells = append(cells, h.Th(h.Scope("col"), g.If(i < left, h.Class("left")), g.Text(name)))
	}
	return h.THead(h.Tr(cells))
}

func rowHead(content ...g.Node) g.Node {
	return h.Th(h.Scope("row"), h.Class("left"), g.Group(content))
}
func leftCell(content ...g.Node) g.Node { return h.Td(h.Class("left"), g.Group(content)) }

// tableNode is a table of the report. It names the columns that a table of text leaves unnamed.
func tableNode(caption string, t bench.Table) g.Node {
	if len(t.Rows) == 0 {
		return nil
	}
	var names []string
	for i, name := range t.Head {
		if name == "" {
			name = "test"
			if i+1 < t.Left && t.Head[i+1] == "" {
				name = "target"
			}
		}
		names = append(names, name)
	}
	rows := g.Group{}
	for _, row := range t.Rows {
		cells := g.Group{}
		for i, cell := range row {
			switch {
			case i == 0 && t.Left > 0:
				cells = append(cells, rowHead(g.Text(cell)))
			case i < t.Left:
				cells = append(cells, leftCell(g.Text(cell)))
			default:
				cells = append(cells, h.Td(g.Text(cell)))
			}
		}
		rows = append(rows, h.Tr(cells))
	}
	return scrolled(caption, caption, heads(t.Left, names...), h.TBody(rows))
}

func findingsNode(findings []diagnose.Finding) g.Node {
	return h.Ul(h.Class("findings"), g.Map(findings, func(f diagnose.Finding) g.Node {
		return h.Li(h.Class("finding "+f.Severity), h.H2(h.Span(h.Class("tag"), g.Text(f.Severity)), g.Text(" "+f.Rule)), text("", f.Summary),
			g.Iff(f.Cause != "", func() g.Node { return text("dim", f.Cause) }),
			g.Iff(f.Next != "", func() g.Node { return h.P(g.Text("Try: "), h.Code(h.Class("line"), g.Text(f.Next))) }))
	}))
}

// compareForm asks for two sides.
func compareForm(a, b string) g.Node {
	side := func(id, label, name, value, example string) g.Node {
		return g.Group{h.Label(h.For(id), g.Text(label)), g.Text(" "), h.Input(h.ID(id), h.Name(name), g.If(value != "", h.Value(value)), h.Placeholder(example), h.Required(),
			g.Attr("size", "30"), h.AutoComplete("off")), g.Text(" ")}
	}
	return h.Form(h.Action("/compare"), h.Method("get"), h.Class("pair"), h.Input(h.Type("hidden"), h.Name("format"), h.Value("html")),
		side("c-a", "Compare", "a", a, "a run, since:24h, revision:NAME"), side("c-b", "with", "b", b, "a run, published:NAME"), h.Button(h.Type("submit"), g.Text("Compare")))
}

// marks are the signs beside words of a state, which colour alone would not tell.
var marks = map[string]string{"failing": "\u2717 ", "slower": "\u25b2 ", "faster": "\u25bc ", "normal": "\u2713 "}

func (c card) node() g.Node {
	what := "p50"
	if c.What != "" {
		what += " of " + c.What
	}
	if c.Word == "failing" {
		what += ", when it last worked"
	}
	kind := c.Run.Kind
	return h.Li(h.Class("card "+c.Word), h.H2(h.A(h.Href(c.Link), current(c.Selected), g.Text(c.Name))),
		h.P(h.Class("state"), h.Span(h.Class("word"), g.Text(marks[c.Word]+c.Word))),
		h.P(h.Class("figure"), g.Text(c.P50+" "), h.Span(h.Class("unit"), g.Text(what))),
		g.Raw(c.Band), g.Iff(c.Reason != "", func() g.Node { return text("small", c.Reason) }),
		h.P(h.Class("small dim"), h.A(h.Href(runLink(c.Run.ID)), g.Text(kind)), g.Text(" "), timeNode(c.Run.StartedAt), g.Text(", from "+c.Where), h.Br(), g.Text(c.About)))
}

func runLink(id string) string { return "/runs/" + url.PathEscape(id) }

func section(id, title string, content ...g.Node) g.Node {
	return h.Section(h.Aria("labelledby", id), h.H1(h.ID(id), g.Text(title)), g.Group(content))
}

func (p *dashboardPage) node() g.Node {
	about := "nsop " + p.Version + ", " + p.Where
	if p.Revision != "" {
		about += ", revision " + p.Revision
	}
	page := g.Group{text("about", about+", up "+p.Up)}
	if p.Trouble != "" {
		page = append(page, notice("failing", p.Trouble))
	}
	return append(page, section("now", "Is it all right now?", p.now()), section("when", "When did it change?", p.when()),
		section("what", "What did it?", p.what()), section("run", "Run something", p.formNode()), section("runs", "Latest runs", p.runs()))
}

func (p *dashboardPage) now() g.Node {
	cards, never := g.Group{}, g.Group{}
	for _, c := range p.Cards {
		if c.Run != nil {
			cards = append(cards, c.node())
		} else {
			never = append(never, h.Li(h.A(h.Href(c.Link), current(c.Selected), g.Text(c.Name))), g.Text(" "))
		}
	}
	out := g.Group{}
	if len(cards) > 0 {
		out = append(out, h.Ul(h.Class("cards"), cards))
	} else {
		out = append(out, text("empty", "Nothing has been measured yet. Type"), pasted(p.ProbeCommand), h.P(h.Class("empty"), g.Text("or use "), h.A(h.Href("#run"), g.Text("the form below")), g.Text(".")))
	}
	if len(never) > 0 {
		out = append(out, h.H2(g.Text("Never measured")), h.Ul(h.Class("inline"), never))
	}
	return out
}

func (p *dashboardPage) when() g.Node {
	out := g.Group{h.Nav(h.Class("choices"), h.Aria("label", "Range of time"), g.Map(p.Ranges, func(c choice) g.Node {
		return g.Group{h.A(h.Href(c.Link), current(c.Selected), g.Text(c.Name)), g.Text(" ")}
	}))}
	if p.Chart == "" {
		empty := p.Empty
		if empty == "" {
			empty = "nothing is known"
		}
		out = append(out, text("empty", p.Target+": "+empty+". Type"), pasted(p.ProbeCommand))
	} else {
		changes := g.Group{}
		for _, c := range p.Changes {
			changes = append(changes, h.P(h.Class("changed"), g.Text(c.Sentence+" "), h.A(h.Href(c.Compare), g.Text("Compare before and after"))))
		}
		if len(changes) == 0 {
			changes = append(changes, text("small dim", "No change was detected in the last "+p.Words+"."))
		}
		out = append(out, h.Div(h.Class("beside"), h.Figure(h.Class("chart"), g.Raw(p.Chart)), h.Div(changes)))
	}
	if len(p.Small) > 0 {
		out = append(out, h.H2(g.Text("Each client and operation of "+p.Target)), h.Ul(h.Class("smalls"), g.Map(p.Small, func(s small) g.Node {
			return h.Li(h.A(h.Href(s.Link), current(s.Selected), g.Raw(s.Chart)))
		})))
	}
	if p.More > 0 {
		out = append(out, h.P(h.Class("small dim"), g.Text(bench.FormatCount(int64(p.More))+" more, of fewer probes, are in "),
			h.A(h.Href("/runs?"+url.Values{"format": {"text"}, "target": {p.Target}}.Encode()), g.Text("the list of runs")), g.Text(".")))
	}
	return out
}

func (p *dashboardPage) what() g.Node {
	if p.Diagnosed == nil {
		return g.Group{text("empty", p.Target+" has not been diagnosed, or that was not kept. Type"), pasted(p.DiagnoseCommand)}
	}
	out := g.Group{h.P(h.A(h.Href(runLink(p.Diagnosed.ID)), g.Text("Diagnosis of "+p.Target)), g.Text(", "), timeNode(p.Diagnosed.StartedAt))}
	if len(p.Findings) == 0 {
		return append(out, text("", "It found nothing wrong."))
	}
	return append(out, findingsNode(p.Findings))
}

func (p *dashboardPage) formNode() g.Node {
	var chosen formTarget
	options := g.Group{}
	for _, t := range p.Targets {
		if t.Selected {
			chosen = t
		}
		options = append(options, h.Option(h.Value(t.Name), h.Data("clients", t.Clients), h.Data("workloads", t.Workloads), h.Data("default", t.Default), g.If(t.Selected, h.Selected()), g.Text(t.Name)))
	}
	field := func(name, label, example string, more ...g.Node) g.Node {
		return h.Div(h.Label(h.For("f-"+name), g.Text(label)), h.Input(h.ID("f-"+name), h.Name(name), h.Placeholder(example), h.AutoComplete("off"), g.Attr("spellcheck", "false"), g.Group(more)))
	}
	estimate := ""
	if p.Plan.Rows > 0 {
		estimate = fmt.Sprintf("%s rows, about %s", bench.FormatCount(int64(p.Plan.Rows)), p.Plan.Estimate)
	}
	return g.Group{
		h.Form(h.ID("bench"), h.Action("/plan"), h.Method("get"),
			h.Div(h.Class("fields"),
				h.Div(h.Label(h.For("f-target"), g.Text("Target")), h.Select(h.ID("f-target"), h.Name("target"), options)),
				field("workloads", "Workloads", "set,get", h.Aria("describedby", "h-workloads")), field("client", "Clients", chosen.Default, h.Aria("describedby", "h-client")),
				field("concurrency", "Concurrency", "1"), field("size", "Size of a value", "100"), field("benchtime", "Time of a row", "1s")),
			h.P(h.Class("small dim"), h.ID("h-workloads"), g.Text("Workloads of "+chosen.Name+": "+chosen.Workloads+".")),
			h.P(h.Class("small dim"), h.ID("h-client"), g.Text("Clients of "+chosen.Name+": "+chosen.Clients+". A list with commas measures every combination.")),
			h.P(h.Button(h.Type("submit"), g.Text("Run")), g.Text(" "), h.Button(h.Type("button"), h.ID("stop"), g.Attr("hidden"), g.Text("Stop")), g.Text(" "),
				h.Span(h.ID("estimate"), h.Role("status"), g.Text(estimate))),
			h.Pre(h.Code(h.ID("curl"), g.Text(p.Plan.Command)))),
		h.Div(h.ID("live"), g.Attr("hidden"),
			h.P(h.Label(h.For("bar"), h.ID("live-text"), g.Text("Running")), g.Text(" "), h.Progress(h.ID("bar"), h.Max("1"), h.Value("0"))),
			scrolled("Rows as they come", "Rows as they come", heads(2, "workload", "client", "concurrency", "size", "ops/s", "p50", "p99", "errors"), h.TBody(h.ID("rows"))),
			h.P(h.ID("done"), h.Role("status"))),
	}
}

func (p *dashboardPage) runs() g.Node {
	if len(p.Latest) == 0 {
		return text("empty", "None yet.")
	}
	return g.Group{scrolled("Latest runs", "Latest runs, a table", heads(5, "run", "started", "kind", "target", "outcome", "rows"), h.TBody(g.Map(p.Latest, func(r latestRun) g.Node {
		outcome := r.Outcome
		if r.ErrorKind != "" {
			outcome += " (" + r.ErrorKind + ")"
		}
		return h.Tr(rowHead(h.A(h.Href(runLink(r.ID)), g.Text(shortID(r.ID)))), leftCell(timeNode(r.StartedAt)), leftCell(g.Text(r.Kind)), leftCell(g.Text(r.Target)),
			leftCell(g.Text(outcome)), h.Td(g.Text(strconv.Itoa(len(r.Rows)))))
	}))), compareForm(p.Latest[0].ID, "")}
}

func facts(title string, list []fact) g.Node {
	if len(list) == 0 {
		return nil
	}
	return g.Group{h.H2(g.Text(title)), h.Dl(g.Map(list, func(f fact) g.Node { return h.Div(h.Dt(g.Text(f.Name)), h.Dd(g.Text(f.Value))) }))}
}

func picture(svg string) g.Node {
	return g.Iff(svg != "", func() g.Node { return h.Figure(h.Class("chart"), g.Raw(svg)) })
}

func (p *runPage) node() g.Node {
	diagnosis := p.Kind == "diagnose"
	title := "Run "
	if diagnosis {
		title = "Diagnosis "
	}
	out := g.Group{h.H1(g.Text(title + shortID(p.ID)))}
	for _, head := range p.Head {
		out = append(out, h.P(g.If(head.Name != "", h.Strong(g.Text(head.Name))), g.Text(" "+strings.Join(head.Phrases, ", "))))
	}
	how := ""
	if p.Elapsed != "" {
		how += ", took " + p.Elapsed
	}
	if p.Outcome != "" {
		how += ", " + p.Outcome
	}
	out = append(out, h.P(h.Class("dim"), g.If(p.Kind != "", g.Text(p.Kind+", ")), timeNode(p.Started), g.Text(how)))
	if p.Problem != "" {
		out = append(out, notice("failing", p.Problem))
	}
	if p.Running {
		out = append(out, h.Div(h.ID("watch"), h.Data("run", p.ID),
			h.P(h.Label(h.For("bar"), h.ID("live-text"), g.Text(fmt.Sprintf("%d of %d rows are done", p.Row, p.Rows))), g.Text(" "),
				h.Progress(h.ID("bar"), h.Max("100"), h.Value(strconv.Itoa(p.Percent))), g.Text(" "), h.Button(h.Type("button"), h.ID("stop"), g.Attr("hidden"), g.Text("Stop"))),
			h.NoScript(text("", "Load this page again to see how far it is."))))
	}
	for _, w := range p.Warnings {
		out = append(out, notice("", w))
	}
	switch {
	case len(p.Table.Rows) > 0:
		out = append(out, tableNode("What was measured", p.Table))
	case p.Running:
		out = append(out, text("empty", "No results yet."))
	case !diagnosis:
		out = append(out, text("empty", "No results."))
	}
	out = append(out, tableNode("Medians of the samples, each with its 95% confidence interval", p.Summary))
	for _, n := range p.Notes {
		out = append(out, text("small dim", n))
	}
	if len(p.Assertions) > 0 {
		out = append(out, h.H2(g.Text("Assertions")), scrolled("What was asserted", "Assertions, a table", heads(2, "assertion", "result", "actual", "row"),
			h.TBody(g.Map(p.Assertions, func(a bench.CheckedAssertion) g.Node {
				class, word := "failing", "fails"
				if a.OK {
					class, word = "normal", "holds"
				}
				return h.Tr(rowHead(g.Text(a.Expr)), leftCell(h.Span(h.Class("word "+class), g.Text(marks[class]+word))), h.Td(g.Text(a.Actual)), h.Td(g.Text(a.Row)))
			}))))
	}
	out = append(out, picture(p.Chart), picture(p.Budget))
	if diagnosis {
		out = append(out, h.H2(g.Text("Findings")))
		if len(p.Findings) > 0 {
			out = append(out, findingsNode(p.Findings))
		} else {
			out = append(out, text("", "Nothing is wrong."))
		}
	}
	if p.Curl != "" {
		out = append(out, h.H2(g.Text("Repeat it")), pasted(p.Curl))
	}
	if !p.Running {
		if !diagnosis {
			out = append(out, h.H2(g.Text("Compare it")), compareForm("", p.ID))
		}
		if p.Unsaved {
			out = append(out, notice("", "This run is not in the history: its address is good until this instance runs the next one."))
		}
		out = append(out, h.H2(g.Text("Download")), h.Ul(h.Class("inline"), g.Map(p.Downloads, func(d download) g.Node {
			return g.Group{h.Li(h.A(h.Href(d.URL), g.Text(d.Format))), g.Text(" ")}
		})))
	}
	return append(out, facts("Labels", p.Labels), facts("Measured from", p.Vantage))
}

// bar is a ratio on the axis of a comparison.
func bar(b *compare.Bar) g.Node {
	if b == nil {
		return nil
	}
	line := func(class string, x1, x2, y1, y2 float64) g.Node {
		n := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
		return g.El("line", h.Class(class), g.Attr("x1", n(x1)), g.Attr("x2", n(x2)), g.Attr("y1", n(y1)), g.Attr("y2", n(y2)))
	}
	return h.SVG(h.Class("ratio"), h.Width("140"), h.Height("18"), g.Attr("viewBox", "0 0 104 18"), g.Attr("preserveAspectRatio", "none"), h.Aria("hidden", "true"),
		g.El("g", g.Attr("transform", "translate(2 0)"), line("one", 50, 50, 0, 18), line("bar", 50, b.At, 9, 9), line("interval", b.From, b.To, 9, 9), line("needle", b.At, b.At, 3, 15)))
}

// compareNode is the page of a comparison; nil is the form alone.
func compareNode(p *compare.Page) g.Node {
	out := g.Group{h.H1(g.Text("Compare"))}
	if p == nil {
		code := func(words string) g.Node { return h.Code(g.Text(words)) }
		return append(out, h.P(h.Class("empty"), g.Text("Say which two to compare: a run by its ID, "), code("published:NAME"), g.Text(", or what finds runs, such as "),
			code("revision:nsop-00007"), g.Text(", "), code("since:24h,target:redis"), g.Text(", "), code("label.egress=direct"), g.Text(".")), compareForm("", ""))
	}
	out = append(out, h.P(h.Strong(g.Text("a")), g.Text(" "+p.A.Description), h.Br(), h.Strong(g.Text("b")), g.Text(" "+p.B.Description)), text("verdict "+p.Outcome, p.Verdict))
	for _, w := range p.Warnings {
		out = append(out, notice("", w))
	}
	if len(p.Rows) > 0 {
		names := g.Group{}
		left := func(name string) g.Node { return h.Th(h.Scope("col"), h.Class("left"), g.Text(name)) }
		for i, name := range p.Columns {
			if name == "" {
				name = "client"
				if i == 0 {
					name = "test"
				}
			}
			names = append(names, left(name))
		}
		right := func(name string) g.Node { return h.Th(h.Scope("col"), g.Text(name)) }
		names = append(names, left("metric"), right("a"), right("b"), right("b/a"),
			h.Th(h.Scope("col"), h.Class("axis"), h.Span(g.Text(p.Axis.Low)), h.Span(g.Text("1.0")), h.Span(g.Text(p.Axis.High))), right("95% CI"), right("p"), left("effect"))
		rows := g.Map(p.Rows, func(r compare.PageRow) g.Node {
			cells := g.Group{}
			for i, label := range r.Labels {
				if i == 0 {
					cells = append(cells, rowHead(g.Text(label)))
				} else {
					cells = append(cells, leftCell(g.Text(label)))
				}
			}
			return h.Tr(cells, leftCell(g.Text(r.Metric)), h.Td(g.Text(r.A)), h.Td(g.Text(r.B)), h.Td(g.Text(r.Ratio)), h.Td(h.Class("axis"), bar(r.Bar)), h.Td(g.Text(r.CI)),
				h.Td(g.Text(r.P)), leftCell(h.Span(h.Class("word "+r.Word), g.Text(r.Word))))
		})
		out = append(out, scrolled("Medians of a and b, their ratio with its 95% confidence interval, and the p-value of the difference", "Rows compared", h.THead(h.Tr(names)), h.TBody(rows)))
	}
	for _, n := range p.Notes {
		out = append(out, text("small dim", n))
	}
	return append(out, h.H2(g.Text("Compare others")), compareForm("", ""))
}

// problemNode tells a problem; run is what had been measured before it, or "".
func problemNode(p *problem, hint hint, run string) g.Node {
	out := g.Group{h.H1(g.Text(strconv.Itoa(p.Status) + ": " + p.Title)), notice("failing", p.Detail)}
	if len(p.Allowed) > 0 {
		out = append(out, text("", "Allowed: ", strings.Join(p.Allowed, ", ")))
	}
	if hint.likely != "" {
		out = append(out, h.P(h.Strong(g.Text("Likely:")), g.Text(" "+hint.likely)))
	}
	if hint.check != "" {
		out = append(out, text("", "Check:"), pasted(hint.check))
	}
	if hint.note != "" {
		out = append(out, text("small dim", hint.note))
	}
	if run != "" {
		out = append(out, h.P(g.Text("What had been measured before that: "), h.A(h.Href(runLink(run)), g.Text("run "+shortID(run)))))
	}
	return append(out, h.P(h.A(h.Href("/"), g.Text("Back to the dashboard"))))
}
