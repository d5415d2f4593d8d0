package bench

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Table has a heading and a cell for each column of each row.
type Table struct {
	Head []string
	Left int // columns that are aligned left; the others are right-aligned
	Rows [][]string
}

// WriteTable writes t in plain columns, closer together where it would be wider than width otherwise. Cells are
// written as they are.
func WriteTable(w io.Writer, t Table, width int) error {
	var b bytes.Buffer
	for _, line := range tableLines(t, width) {
		b.WriteString(line + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// tableLines returns the lines of t, the heading first if there is one.
func tableLines(t Table, width int) []string {
	rows := t.Rows
	if len(t.Head) > 0 {
		rows = slices.Concat([][]string{t.Head}, t.Rows)
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	gap := 3
	total := gap * max(0, len(widths)-1)
	for _, n := range widths {
		total += n
	}
	if total > width {
		gap = 2
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			if i > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < t.Left {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// Wrap breaks s at spaces into lines for a place that indent's columns stand before: lines of at most width columns
// with it, every line but the first beginning with it. A word that is longer stays whole, so that it can be copied.
func Wrap(s string, width int, indent string) string {
	return wrapWords(strings.Fields(s), width, indent)
}

func wrapWords(words []string, width int, indent string) string {
	var b strings.Builder
	start := utf8.RuneCountInString(indent)
	column := start
	for i, word := range words {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = start
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// wrapPhrases writes phrases with commas, broken between them as long as each is short.
func wrapPhrases(phrases []string, width int, indent string) string {
	var words []string
	for i, phrase := range phrases {
		if i < len(phrases)-1 {
			phrase += ","
		}
		if utf8.RuneCountInString(phrase) > width/2 {
			words = append(words, strings.Fields(phrase)...)
		} else {
			words = append(words, phrase)
		}
	}
	return wrapWords(words, width, indent)
}
