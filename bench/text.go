package bench

import (
	"bytes"
	"cmp"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// encodeText writes the page in plain columns.
func encodeText(w io.Writer, r *Report, o EncodeOptions) error {
	p := newPage(r, o)
	width := cmp.Or(max(o.Width, 0), 100)
	show := func(s string) string { return Printable(s, o.Terminal) }
	paint := func(sgr, s string) string {
		if !o.Terminal || o.NoColor {
			return s
		}
		return "\x1b[" + sgr + "m" + s + "\x1b[0m"
	}
	const bold, dim, red, green, yellow = "1", "2", "31", "32", "33"
	var b bytes.Buffer

	nameWidth := 0
	for _, h := range p.head {
		nameWidth = max(nameWidth, utf8.RuneCountInString(show(h.name)))
	}
	for _, h := range p.head {
		name, indent := show(h.name), ""
		if name != "" {
			indent = strings.Repeat(" ", nameWidth+2)
			b.WriteString(paint(bold, name) + indent[utf8.RuneCountInString(name):])
		}
		b.WriteString(wrapPhrases(mapped(h.phrases, show), width, indent) + "\n")
	}
	section := func() {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
	}
	if len(p.warnings) > 0 {
		section()
	}
	for _, warning := range p.warnings {
		b.WriteString(paint(yellow, "!") + " " + Wrap(show(warning), width, "  ") + "\n")
	}
	section()
	if len(p.table.Rows) == 0 {
		b.WriteString("no results\n")
	} else {
		for i, row := range p.table.Rows {
			p.table.Rows[i] = mapped(row, show)
		}
		p.table.Head = mapped(p.table.Head, show)
		for i, line := range tableLines(p.table, width) {
			if i == 0 {
				line = paint(dim, line)
			}
			b.WriteString(line + "\n")
		}
	}
	if len(p.summary.Rows) > 0 {
		section()
		b.WriteString("medians, each with its 95% confidence interval:\n\n")
		for i, row := range p.summary.Rows {
			p.summary.Rows[i] = mapped(row, show)
		}
		for i, line := range tableLines(p.summary, width) {
			if i == 0 {
				line = paint(dim, line)
			}
			b.WriteString(line + "\n")
		}
	}
	if len(p.notes) > 0 {
		section()
	}
	for _, note := range p.notes {
		b.WriteString(Wrap(show(note), width, "  ") + "\n")
	}
	if len(p.assertions) > 0 {
		section()
		t := Table{Left: 4}
		for _, a := range p.assertions {
			mark := "FAIL"
			if a.ok {
				mark = "ok"
			}
			t.Rows = append(t.Rows, mapped([]string{mark, a.expr, a.actual, a.row}, show))
		}
		for i, line := range tableLines(t, 0) {
			mark, rest, _ := strings.Cut(line, " ")
			colour := red
			if p.assertions[i].ok {
				colour = green
			}
			b.WriteString(paint(colour, mark) + " " + rest + "\n")
		}
	}
	if p.footer != "" {
		section()
		b.WriteString(paint(dim, show(p.footer)) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

func mapped(cells []string, f func(string) string) []string {
	out := make([]string, len(cells))
	for i, cell := range cells {
		out[i] = f(cell)
	}
	return out
}

// Printable makes s fit to be shown: one line, nothing that a terminal would obey, since the text of an error comes
// from the network; plain ASCII where wide is false.
func Printable(s string, wide bool) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c >= ' ' && c <= '~':
			b.WriteRune(c)
		case unicode.IsSpace(c):
			b.WriteByte(' ')
		case wide && c != utf8.RuneError && unicode.IsPrint(c):
			b.WriteRune(c)
		case c == '\u00b5' || c == '\u03bc':
			b.WriteByte('u') // of microseconds
		default:
			quoted := strconv.QuoteRuneToASCII(c)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
