package bench

import (
	"bytes"
	"io"
	"strings"
)

// encodeMarkdown writes the page as GitHub's markdown.
func encodeMarkdown(w io.Writer, r *Report, o EncodeOptions) error {
	p := newPage(r, o)
	var b bytes.Buffer
	for i, h := range p.head {
		if i > 0 {
			b.WriteString("<br>\n")
		}
		if h.name != "" {
			b.WriteString("**" + markdown(h.name) + "** ")
		}
		b.WriteString(markdown(strings.Join(h.phrases, ", ")))
	}
	if len(p.head) > 0 {
		b.WriteString("\n\n")
	}
	for i, warning := range p.warnings {
		if i > 0 {
			b.WriteString(">\n") // a paragraph each
		}
		b.WriteString("> " + markdown("! "+warning) + "\n")
	}
	if len(p.warnings) > 0 {
		b.WriteByte('\n')
	}
	writeMarkdownTable(&b, p.table)
	if len(p.summary.Rows) > 0 {
		b.WriteString("\nmedians, each with its 95% confidence interval:\n\n")
		writeMarkdownTable(&b, p.summary)
	}
	if len(p.notes) > 0 {
		b.WriteByte('\n')
	}
	for _, note := range p.notes {
		b.WriteString("- " + markdown(note) + "\n")
	}
	if len(p.assertions) > 0 {
		t := Table{Head: []string{"", "assertion", "actual", "row"}, Left: 4}
		for _, a := range p.assertions {
			mark := "FAIL"
			if a.ok {
				mark = "ok"
			}
			t.Rows = append(t.Rows, []string{mark, a.expr, a.actual, a.row})
		}
		b.WriteByte('\n')
		writeMarkdownTable(&b, t)
	}
	if p.footer != "" {
		b.WriteString("\n" + markdown(p.footer) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// WriteMarkdownTable writes t as a table of GitHub's markdown, its cells to be read as they are.
func WriteMarkdownTable(w io.Writer, t Table) error {
	var b bytes.Buffer
	writeMarkdownTable(&b, t)
	_, err := w.Write(b.Bytes())
	return err
}

// EscapeMarkdown writes s so that it is read as it is: no markup, no HTML, one line.
func EscapeMarkdown(s string) string { return markdown(s) }

func writeMarkdownTable(b *bytes.Buffer, t Table) {
	if len(t.Rows) == 0 {
		b.WriteString("no results\n")
		return
	}
	row := func(cells []string) { b.WriteString("| " + strings.Join(mapped(cells, markdown), " | ") + " |\n") }
	row(t.Head)
	for i := range t.Head {
		if i < t.Left {
			b.WriteString("|:--")
		} else {
			b.WriteString("|--:")
		}
	}
	b.WriteString("|\n")
	for _, cells := range t.Rows {
		row(cells)
	}
}

// markdown escapes s so that it is read as written: no markup, no HTML, one line.
func markdown(s string) string {
	var b strings.Builder
	for _, c := range Printable(s, true) {
		switch c {
		case '&':
			b.WriteString("&amp;")
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '\\', '|', '`', '*', '_', '[', ']', '~':
			b.WriteString("\\" + string(c))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}
