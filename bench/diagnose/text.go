package diagnose

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"nsop/bench"
)

// columns is the width of a line of text.
const columns = 100

// barWidth is the width of the whole of a budget's bar.
const barWidth = 48

// Text writes the report for people, on one screen: what is wrong first, then where the time goes.
func (r *Report) Text(w io.Writer, o bench.EncodeOptions) error {
	var b strings.Builder
	p := printer{b: &b, o: o}
	p.line(p.paint("1", r.Target.Name)+"  ", r.headline())
	if len(r.Findings) > 0 {
		b.WriteString("\n")
	}
	width := 0
	for _, f := range r.Findings {
		width = max(width, len(f.Rule))
	}
	indent := strings.Repeat(" ", min(width, 24)+5)
	for _, f := range r.Findings {
		mark := map[string]string{failure: p.paint("31", "E"), warning: p.paint("33", "!"), info: "i"}[f.Severity]
		b.WriteString(mark + " " + p.paint("1", f.Rule) + strings.Repeat(" ", max(1, len(indent)-2-len(f.Rule))))
		b.WriteString(p.wrap(f.Summary, indent) + "\n")
		if f.Severity == info {
			continue
		}
		b.WriteString(indent + p.wrap(f.Cause, indent) + "\n")
		b.WriteString(indent + p.paint("36", p.show(f.Next)) + "\n") // to be pasted, so it is not wrapped
	}
	if len(r.Findings) == 0 || r.Findings[0].Severity == info {
		b.WriteString("\nnothing is wrong\n")
	}
	if r.Budget != nil {
		b.WriteString("\n")
		r.bars(&p)
	}
	b.WriteString("\n")
	for _, row := range r.rows() {
		p.phrases(fmt.Sprintf("%-9s ", row.name), row.phrases)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

type printer struct {
	b *strings.Builder
	o bench.EncodeOptions
}

func (p *printer) show(s string) string { return bench.Printable(s, p.o.Terminal) }

func (p *printer) paint(sgr, s string) string {
	if !p.o.Terminal || p.o.NoColor {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

func (p *printer) wrap(s, indent string) string {
	// A number and its unit stay together.
	kept := units.ReplaceAllString(p.show(s), "$1\x00$2")
	return strings.ReplaceAll(bench.Wrap(kept, columns, indent), "\x00", " ")
}

var units = regexp.MustCompile(`([0-9]) (ns|us|ms|s|MB/s|vCPU)\b`)

// line writes a name and a text that wraps below itself.
func (p *printer) line(name, text string) {
	plain := strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").Replace(name)
	indent := strings.Repeat(" ", len(plain))
	p.b.WriteString(name + p.wrap(text, indent) + "\n")
}

// phrases writes a name and phrases set apart by their distance; none is broken unless it is longer than a line.
func (p *printer) phrases(name string, phrases []string) {
	indent := strings.Repeat(" ", len(name))
	line := name
	for i, phrase := range phrases {
		phrase = p.show(phrase)
		switch {
		case i == 0:
			line += bench.Wrap(phrase, columns, indent)
		case len(line[strings.LastIndexByte(line, '\n')+1:])+3+len(phrase) > columns:
			line += "\n" + indent + bench.Wrap(phrase, columns, indent)
		default:
			line += "   " + phrase
		}
	}
	p.b.WriteString(line + "\n")
}

// A row is a name with what there is to say of it.
type row struct {
	name    string
	phrases []string
}

// headline says what was measured and from where.
func (r *Report) headline() string {
	parts := r.Target.Server
	if parts == "" {
		parts = r.Target.Kind
	}
	if r.Target.Address != "" {
		parts += " at " + r.Target.Address
	}
	if r.Target.TLS {
		parts += ", TLS"
	}
	v := r.Vantage
	parts += ", from " + v.Platform
	if v.Region != "" {
		parts += " " + v.Region
	}
	if v.Sandbox == "gvisor" {
		parts += ", gVisor"
	}
	return parts + fmt.Sprintf(", %d vCPU", v.CPUs)
}

// bars writes the budget.
func (r *Report) bars(p *printer) {
	p.b.WriteString("one " + strings.ToUpper(r.Budget.Operation) + ": " + show(r.Budget.TotalNS) + " through " + p.show(r.Budget.Client) + "\n")
	parts := slices.Clone(r.Budget.Parts)
	slices.SortStableFunc(parts, func(a, b Part) int {
		if (a.Name == "unaccounted") != (b.Name == "unaccounted") {
			if a.Name == "unaccounted" {
				return 1
			}
			return -1
		}
		return int(r.Budget.part(b.Name) - r.Budget.part(a.Name))
	})
	for _, part := range parts {
		name, note := part.Name, ""
		if name == "unaccounted" {
			name, note = "?", "   unaccounted"
		}
		if part.NS == nil {
			fmt.Fprintf(p.b, "  %-8s %-*s %9s\n", name, barWidth, "", "-   not told")
			continue
		}
		share := float64(*part.NS) / float64(max(r.Budget.TotalNS, 1))
		bar := strings.Repeat("#", int(share*barWidth+0.5))
		if bar == "" {
			bar = "."
		}
		fmt.Fprintf(p.b, "  %-8s %-*s %9s %3.0f%%%s\n", name, barWidth, bar, show(*part.NS), 100*share, p.show(note))
	}
}

// rows are the facts below the budget.
func (r *Report) rows() (rows []row) {
	add := func(name string, parts ...string) {
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		if len(parts) > 0 {
			rows = append(rows, row{name, parts})
		}
	}
	if r.Path != nil {
		var parts []string
		for _, s := range r.Path.Stages {
			name := s.Name
			if name == "first" {
				name = "first command"
			}
			parts = append(parts, name+" "+show(s.P50NS))
		}
		for _, f := range r.Path.FanOut {
			if f.Dials > 1 {
				parts = append(parts, fmt.Sprintf("%d at once %s", f.Dials, show(f.MaxNS)))
			}
		}
		if t := r.Path.Throughput; t != nil {
			parts = append(parts, fmt.Sprintf("large values %.0f MB/s", float64(t.BytesPerSec)/1e6))
		}
		add("connect", parts...)
	}
	if r.Client != nil {
		var parts []string
		for _, l := range r.Client.Libraries {
			switch {
			case l.OverFloorNS != nil && l.Client != "floor":
				parts = append(parts, l.Client+" "+show(l.Latency.P50NS)+" ("+signed(*l.OverFloorNS)+")")
			case l.Latency != nil:
				parts = append(parts, l.Client+" "+show(l.Latency.P50NS))
			default:
				parts = append(parts, l.Client+" -")
			}
		}
		if r.Client.Floor != nil {
			parts = append(parts, "(over a bare socket)")
		}
		add("clients", parts...)
	}
	class := func(name string, s *Stat) string {
		if s == nil {
			return name + " -"
		}
		return fmt.Sprintf("%s %s (%s)", name, show(s.P50NS), bench.FormatCount(int64(s.Count)))
	}
	gap := "after a gap"
	if r.Classes.IdleGapNS > 0 {
		gap = "after a gap of " + show(r.Classes.IdleGapNS)
	}
	add("samples", class("cold process", r.Classes.ProcessCold), class("fresh connection", r.Classes.ConnectionCold),
		class(gap, r.Classes.IdleResumed), class("warm", r.Classes.Warm))
	for _, i := range r.Idle {
		what := "survived"
		if !i.Survived {
			what = "did not survive: " + i.Error
		}
		add("idle", "a connection held for "+show(i.GapNS)+" "+what)
	}
	v := r.Vantage
	if v.CPUPercent != nil {
		throttled := ""
		if v.ThrottledNS != nil {
			throttled = ", throttled " + show(*v.ThrottledNS)
		}
		add("vantage", v.CPUPercent.String()+"% of the CPU asked for, longest stall "+show(v.LongestStallNS)+", system call "+show(v.SyscallNS)+throttled)
	}
	if s := r.Server; s != nil {
		var parts []string
		if s.Role != "" {
			parts = append(parts, s.Role)
		}
		if s.CPUPercent != nil {
			parts = append(parts, "CPU "+s.CPUPercent.String()+"%")
		}
		if s.ConnectedClients != nil && s.MaxClients != nil {
			parts = append(parts, fmt.Sprintf("%s of %s connections", bench.FormatCount(*s.ConnectedClients), bench.FormatCount(*s.MaxClients)))
		}
		if s.UsedMemoryBytes != nil && s.MaxMemoryBytes != nil && *s.MaxMemoryBytes > 0 {
			parts = append(parts, fmt.Sprintf("%.0f%% of its memory", 100*float64(*s.UsedMemoryBytes)/float64(*s.MaxMemoryBytes)))
		}
		add("server", strings.Join(parts, ", "))
	}
	add("not told", r.untold())
	return rows
}

func signed(ns int64) string {
	if ns < 0 {
		return "-" + show(-ns)
	}
	return "+" + show(ns)
}

// untold names what was not measured, with the reason of each once.
func (r *Report) untold() string {
	by := map[string][]string{}
	var order []string
	for _, part := range sortedKeys(r.Unmeasured) {
		if strings.HasPrefix(part, "classes.") || part == "path" && r.Target.Embedded || strings.HasPrefix(part, "budget.") {
			continue
		}
		why := r.Unmeasured[part]
		if by[why] == nil {
			order = append(order, why)
		}
		by[why] = append(by[why], part)
	}
	if r.Server != nil {
		for _, question := range sortedKeys(r.Server.Refused) {
			why := r.Server.Refused[question]
			if by[why] == nil {
				order = append(order, why)
			}
			by[why] = append(by[why], question)
		}
	}
	var parts []string
	for _, why := range order {
		parts = append(parts, strings.Join(by[why], ", ")+" ("+why+")")
	}
	return strings.Join(parts, "; ")
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Markdown writes the report for an issue tracker.
func (r *Report) Markdown(w io.Writer, o bench.EncodeOptions) error {
	var b strings.Builder
	show := func(s string) string { return escape.Replace(bench.Printable(s, true)) }
	fmt.Fprintf(&b, "### Diagnosis of %s\n\n%s\n\n", show(r.Target.Name), show(r.headline()))
	if len(r.Findings) == 0 {
		b.WriteString("Nothing is wrong.\n\n")
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "- **%s** `%s`: %s\n", f.Severity, f.Rule, show(f.Summary))
		if f.Severity != info {
			fmt.Fprintf(&b, "  - cause: %s\n  - next: `%s`\n", show(f.Cause), strings.ReplaceAll(bench.Printable(f.Next, true), "`", "'"))
		}
	}
	if len(r.Findings) > 0 {
		b.WriteString("\n")
	}
	if r.Budget != nil {
		fmt.Fprintf(&b, "| one %s, %s | time | share |\n| --- | ---: | ---: |\n", strings.ToUpper(r.Budget.Operation), show(r.Budget.Client))
		for _, p := range r.Budget.Parts {
			if p.NS == nil {
				fmt.Fprintf(&b, "| %s | - | - |\n", p.Name)
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %.0f%% |\n", p.Name, bench.FormatDuration(float64(*p.NS)), 100*float64(*p.NS)/float64(max(r.Budget.TotalNS, 1)))
		}
		fmt.Fprintf(&b, "| total | %s | 100%% |\n\n", bench.FormatDuration(float64(r.Budget.TotalNS)))
	}
	for _, row := range r.rows() {
		fmt.Fprintf(&b, "- %s: %s\n", row.name, show(strings.Join(row.phrases, ", ")))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var escape = strings.NewReplacer("|", `\|`, "<", "&lt;", "`", "'", "*", `\*`, "_", `\_`)
