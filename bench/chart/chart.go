// Package chart draws what is measured as SVG: for a browser, a README, an issue.
//
// Every picture is drawn in px, [Width] wide (or [SmallWidth]), with text that can still be read where a phone shows it
// at 390 px. It styles itself for a light and a dark screen, says in its title and desc elements what it shows, tells
// lines apart by dashes and marks as well as by colour, and is the same byte for byte for the same data.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"sort"
	"strings"
	"unicode"

	"github.com/go-analyze/charts/chartdraw"
	"github.com/go-analyze/charts/chartdraw/drawing"
)

// ErrEmpty says that there is nothing to draw: no value is there, or none is a number.
var ErrEmpty = errors.New("nothing to draw")

// Widths in px.
const (
	Width      = 560
	SmallWidth = 240
)

// A Frame is what stands around a picture.
type Frame struct {
	Title    string
	Subtitle string   // what was measured, from where
	Warnings []string // above the picture, where they can't be missed
	Notes    []string // below it
	// Inline is for an HTML page that has CSS among its styles: there is then no style element, which a strict
	// content security policy forbids.
	Inline bool
}

// lines bounds how many lines a picture tells apart.
const lines = 8

// A canvas is drawn from top to bottom.
type canvas struct {
	r     chartdraw.Renderer
	width float64 // px
	y     float64 // px that are taken
}

// grain is how many units of the picture's coordinates are 1 px: the renderer knows whole units alone.
const grain = 10

// Sizes of text in px, as in the style sheet.
const (
	titleSize = 17
	textSize  = 15
	bold      = 1.2 // times as wide

	// Text is measured at one size: the library makes a face of its font for each, which takes it milliseconds for a large one.
	measured = 16
	wide     = 1.12 // times the library's font is a common wide one
)

const (
	margin     = 12 // px, around everything
	lineHeight = 20 // px, of text
)

func newCanvas(width float64) *canvas {
	c := &canvas{r: chartdraw.SVG(0, 0), width: width, y: margin}
	c.r.SetDPI(72) // so that a point is a px
	c.r.SetFont(chartdraw.GetDefaultFont())
	return c
}

// units are px in the picture's coordinates.
func units(px float64) int {
	if math.IsNaN(px) || math.IsInf(px, 0) {
		return 0
	}
	return int(math.Round(px * grain))
}

// class is what the primitives after it are styled as.
func (c *canvas) class(name string) {
	if name == "" {
		name = "plain" // without one the library writes colours of its own
	}
	c.r.ResetStyle()
	c.r.SetClassName(name)
}

func (c *canvas) text(class, s string, x, y float64) {
	c.class(class)
	c.r.Text(clean(s), units(x), units(y))
}

// measure returns the width of s in px at a size. Which font a reader has is not known: a wide one is assumed.
func (c *canvas) measure(s string, size float64) float64 {
	c.r.SetFontSize(measured)
	return float64(c.r.MeasureText(s).Right) * size / measured * wide
}

// fit shortens s to width px.
func (c *canvas) fit(s string, size, width float64) string {
	if c.measure(s, size) <= width {
		return s
	}
	runes := []rune(s)
	shortened := func(n int) string { return strings.TrimSpace(string(runes[:n])) + "..." }
	n := sort.Search(len(runes), func(n int) bool { return c.measure(shortened(n), size) > width })
	if n <= 1 {
		return ""
	}
	return shortened(n - 1)
}

// wrap breaks s at spaces into lines of width px, at most limit of them.
func (c *canvas) wrap(s string, size, width float64, limit int) []string {
	var out []string
	line := ""
	for word := range strings.FieldsSeq(clean(s)) {
		switch longer := strings.TrimSpace(line + " " + word); {
		case c.measure(longer, size) <= width:
			line = longer
		case len(out) == limit-1: // the rest is cut off where it does not fit
			line = longer
		default:
			if line != "" {
				out = append(out, c.fit(line, size, width))
			}
			line = word
		}
	}
	if line != "" {
		out = append(out, c.fit(line, size, width))
	}
	return out
}

// paragraph writes s below what is there.
func (c *canvas) paragraph(class, s string, size float64) {
	width := size
	if class != "dim" {
		width *= bold
	}
	for _, line := range c.wrap(s, width, c.width-2*margin, 4) {
		c.text(class, line, margin, c.y+size)
		c.y += lineHeight
	}
}

// path draws a line through points in px.
func (c *canvas) path(class string, points ...float64) {
	c.class(class)
	c.trace(points)
	c.r.Stroke()
}

// polygon fills what points in px enclose.
func (c *canvas) polygon(class string, points ...float64) {
	c.class(class)
	c.trace(points)
	c.r.Close()
	c.r.Fill()
}

func (c *canvas) trace(points []float64) {
	for i := 0; i+1 < len(points); i += 2 {
		x, y := units(points[i]), units(points[i+1])
		if i == 0 {
			c.r.MoveTo(x, y)
		} else {
			c.r.LineTo(x, y)
		}
	}
}

func (c *canvas) rect(class string, left, top, right, bottom float64) {
	c.polygon(class, left, top, right, top, right, bottom, left, bottom)
}

func (c *canvas) circle(class string, x, y, radius float64) {
	c.class(class)
	c.r.Circle(radius*grain, units(x), units(y))
	c.r.FillStroke()
}

// mark draws the mark of line i, which differs from the others' in its shape.
func (c *canvas) mark(i int, x, y float64) {
	class := fmt.Sprintf("mark c%d", i%lines+1)
	if i%lines >= lines/2 {
		class += " hollow"
	}
	const r = 4.5
	switch i % 4 {
	case 0:
		c.circle(class, x, y, r-.5)
	case 1:
		c.polygon(class, x-r+1, y-r+1, x+r-1, y-r+1, x+r-1, y+r-1, x-r+1, y+r-1)
	case 2:
		c.polygon(class, x-r, y+r-1, x, y-r, x+r, y+r-1)
	case 3:
		c.polygon(class, x-r, y, x, y-r, x+r, y, x, y+r)
	}
}

// head writes the title and what else stands above the picture.
func (c *canvas) head(f Frame) {
	for _, line := range c.wrap(f.Title, titleSize*bold, c.width-2*margin, 2) {
		c.text("title", line, margin, c.y+titleSize-2)
		c.y += lineHeight + 2
	}
	c.paragraph("dim", f.Subtitle, textSize)
	for _, warning := range f.Warnings {
		c.paragraph("warning", "! "+warning, textSize)
	}
	c.y += 4
}

// A key is one entry of a legend: draw shows what it means, between two points in px at one height.
type key struct {
	name string
	draw func(left, right, y float64)
}

// lineKeys are the entries of lines, in their order.
func (c *canvas) lineKeys(names []string) (keys []key) {
	for i, name := range names {
		keys = append(keys, key{name, func(left, right, y float64) {
			c.path(fmt.Sprintf("line c%d", i%lines+1), left, y, right, y)
			c.mark(i, (left+right)/2, y)
		}})
	}
	return keys
}

// legend says what is what.
func (c *canvas) legend(keys []key) {
	const sample, gap = 34, 18
	x := float64(margin)
	for _, k := range keys {
		name := c.fit(clean(k.name), textSize, c.width-2*margin-sample)
		width := sample + c.measure(name, textSize)
		if x > margin && x+width > c.width-margin {
			x = margin
			c.y += lineHeight + 2
		}
		k.draw(x, x+sample-8, c.y+lineHeight/2)
		c.text("", name, x+sample, c.y+lineHeight/2+5)
		x += width + gap
	}
	c.y += lineHeight + 6
}

// finish writes the picture. desc says in words what it shows.
func (c *canvas) finish(w io.Writer, f Frame, desc []string) error {
	if len(f.Notes) > 0 {
		c.y += 4
	}
	for _, note := range f.Notes {
		c.paragraph("dim", note, textSize)
	}
	height := c.y + margin - 4

	var drawn bytes.Buffer
	if err := c.r.Save(&drawn); err != nil {
		return fmt.Errorf("draw %s: %w", f.Title, err)
	}
	// The renderer's own start tag knows neither size nor title.
	_, body, _ := bytes.Cut(drawn.Bytes(), []byte(">"))
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="nsop-chart" role="img" width="%g" height="%g" viewBox="0 0 %d %d">`,
		c.width, math.Ceil(height), units(c.width), units(math.Ceil(height)))
	fmt.Fprintf(&b, "<title>%s</title>", html.EscapeString(clean(f.Title)))
	desc = append(append([]string{f.Subtitle}, f.Warnings...), append(desc, f.Notes...)...)
	fmt.Fprintf(&b, "<desc>%s</desc>", html.EscapeString(sentences(desc)))
	if !f.Inline {
		fmt.Fprintf(&b, "<style>%s</style>", CSS())
	}
	// A page behind the picture may be light or dark whatever the system's setting is.
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d" rx="60"/>`, units(c.width), units(math.Ceil(height)))
	b.Write(body)
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// sentences joins parts to a text.
func sentences(parts []string) string {
	var b strings.Builder
	for _, part := range parts {
		if part = strings.TrimSpace(clean(part)); part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(part)
		if !strings.ContainsAny(part[len(part)-1:], ".!?") {
			b.WriteByte('.')
		}
	}
	return b.String()
}

// clean drops what is not to be printed: labels are others' text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// stroke is a style that makes the library draw a line as class says.
func stroke(class string) chartdraw.Style {
	return chartdraw.Style{ClassName: class, StrokeWidth: 1, StrokeColor: drawing.ColorBlack}
}
