package compare

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"nsop/bench"
)

// A Format writes a comparison.
type Format struct {
	Name        string
	ContentType string
	Accept      string // the media type that chooses it
	// Encode writes c, which it leaves as it is.
	Encode func(w io.Writer, c *Comparison, o bench.EncodeOptions) error
}

// Formats is the table of formats. The first is the default. The page for browsers is made elsewhere, of [Page].
var Formats = []Format{
	{"json", "application/json", "application/json", encodeJSON},
	{"text", "text/plain; charset=utf-8", "text/plain", encodeText},
	{"markdown", "text/markdown; charset=utf-8", "text/markdown", encodeMarkdown},
	{"csv", "text/csv; charset=utf-8; header=present", "text/csv", encodeCSV},
}

func encodeJSON(w io.Writer, c *Comparison, _ bench.EncodeOptions) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // no browser takes JSON for HTML
	e.SetIndent("", "  ")
	if err := e.Encode(c); err != nil {
		return fmt.Errorf("encode comparison: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func encodeText(w io.Writer, c *Comparison, o bench.EncodeOptions) error {
	p := c.Page()
	width := cmp.Or(max(o.Width, 0), 100)
	show := func(s string) string { return bench.Printable(s, o.Terminal) }
	paint := func(sgr, s string) string {
		if !o.Terminal || o.NoColor || sgr == "" {
			return s
		}
		return "\x1b[" + sgr + "m" + s + "\x1b[0m"
	}
	const bold, green, red, yellow, dim = "1", "32", "31", "33", "2"
	colours := map[string]string{"faster": green, "slower": red, "~": dim}

	var b bytes.Buffer
	left, right := "a: "+show(p.A.Description), "b: "+show(p.B.Description)
	if line := left + "     " + right; utf8.RuneCountInString(line) <= width {
		b.WriteString(line + "\n")
	} else {
		b.WriteString(bench.Wrap(left, width, "   ") + "\n" + bench.Wrap(right, width, "   ") + "\n")
	}
	for i, warning := range p.Warnings {
		if i == 0 {
			b.WriteByte('\n')
		}
		b.WriteString(paint(yellow, "!") + " " + bench.Wrap(show(warning), width, "  ") + "\n")
	}
	if len(p.Rows) > 0 {
		b.WriteByte('\n')
		var table bytes.Buffer
		t := p.table()
		for _, row := range t.Rows {
			for i := range row {
				row[i] = show(row[i])
			}
		}
		if err := bench.WriteTable(&table, t, width); err != nil {
			return fmt.Errorf("encode comparison: %w", err)
		}
		for line := range strings.Lines(table.String()) {
			line = strings.TrimSuffix(line, "\n")
			for word, colour := range colours { // the last cell
				if rest, ok := strings.CutSuffix(line, word); ok {
					line = rest + paint(colour, word)
					break
				}
			}
			b.WriteString(line + "\n")
		}
	}
	for i, note := range p.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		b.WriteString(bench.Wrap(show(note), width, "  ") + "\n")
	}
	b.WriteString("\n" + paint(bold, bench.Wrap(show(p.Verdict), width, "")) + "\n")
	_, err := w.Write(b.Bytes())
	return err
}

// table is p's rows as a table.
func (p Page) table() bench.Table {
	t := bench.Table{Head: append(append([]string{}, p.Columns...), "", "a", "b", "b/a", "95% CI", "p", ""), Left: len(p.Columns) + 1}
	for _, r := range p.Rows {
		t.Rows = append(t.Rows, append(append([]string{}, r.Labels...), r.Metric, r.A, r.B, r.Ratio, r.CI, r.P, r.Word))
	}
	return t
}

func encodeMarkdown(w io.Writer, c *Comparison, _ bench.EncodeOptions) error {
	p := c.Page()
	var b bytes.Buffer
	b.WriteString("**a** " + bench.EscapeMarkdown(p.A.Description) + "<br>\n**b** " + bench.EscapeMarkdown(p.B.Description) + "\n\n")
	b.WriteString("**" + bench.EscapeMarkdown(p.Verdict) + "**\n")
	for i, warning := range p.Warnings {
		separator := ">\n" // a paragraph each
		if i == 0 {
			separator = "\n"
		}
		b.WriteString(separator + "> " + bench.EscapeMarkdown("! "+warning) + "\n")
	}
	if len(p.Rows) > 0 {
		b.WriteByte('\n')
		if err := bench.WriteMarkdownTable(&b, p.table()); err != nil {
			return fmt.Errorf("encode comparison: %w", err)
		}
	}
	for i, note := range p.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		b.WriteString("- " + bench.EscapeMarkdown(note) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// encodeCSV writes a line for each metric of each pair of rows. Times are in nanoseconds; an empty field is a value that
// is null in the JSON.
func encodeCSV(w io.Writer, c *Comparison, _ bench.EncodeOptions) error {
	out := csv.NewWriter(w)
	out.Write([]string{"name", "name_b", "metric", "better", "a", "b", "n_a", "n_b", "ratio", "ratio_lo", "ratio_hi", "p", "effect"}) // the writer keeps its first error for the end
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	optional := func(v *float64) string {
		if v == nil {
			return ""
		}
		return number(*v)
	}
	for _, r := range c.Rows {
		for _, e := range r.Metrics {
			out.Write([]string{r.Name, cmp.Or(r.NameB, r.Name), e.Metric, e.Better, number(e.A.Median), number(e.B.Median), strconv.Itoa(e.A.N),
				strconv.Itoa(e.B.N), optional(e.Ratio), optional(e.Low), optional(e.High), optional(e.P), e.Word})
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("encode comparison: %w", err)
	}
	return nil
}
