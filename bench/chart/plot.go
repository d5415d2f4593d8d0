package chart

import (
	"fmt"

	"github.com/go-analyze/charts/chartdraw"
)

// A plot is a field between two axes.
type plot struct {
	c                        *canvas
	left, top, right, bottom float64 // px
	x, y                     *scale
}

// labelWidth is how much room the labels of vertical axes need, in px.
func (c *canvas) labelWidth(scales ...*scale) float64 {
	width := 0.0
	for _, s := range scales {
		for _, t := range s.ticks {
			width = max(width, c.measure(t.label, textSize))
		}
	}
	return width + 10
}

// plot takes height px for a field with its axes: the vertical one's name above it, the horizontal one's below.
func (c *canvas) plot(x, y *scale, labels, height float64) *plot {
	c.text("dim", y.name, margin, c.y+textSize-1) // nothing where it is ""
	c.y += lineHeight + 10
	p := &plot{c, margin + labels, c.y, c.width - margin - 10, c.y + height, x, y}
	x.Domain, y.Domain = units(p.right)-units(p.left), units(p.bottom)-units(p.top)
	for _, t := range y.ticks {
		p.grid(y, t.value, false)
		c.text("end", t.label, p.left-8, p.yAt(t.value)+5)
	}
	lined := x.marked
	if lined == nil {
		lined = x.ticks
	}
	for _, t := range lined {
		p.grid(x, t.value, true)
	}
	for _, t := range c.thin(x.ticks, textSize, p.xAt) {
		t.label = c.fit(t.label, textSize, 150)
		at := p.xAt(t.value)
		half := c.measure(t.label, textSize) / 2
		c.text("middle", t.label, min(at, c.width-4-half), p.bottom+lineHeight-2)
	}
	c.path("axis", p.left, p.bottom, p.right, p.bottom)
	c.y = p.bottom + lineHeight + 4
	if x.name != "" {
		c.text("dim middle", x.name, (p.left+p.right)/2, c.y+textSize-1)
		c.y += lineHeight + 4
	}
	return p
}

func (p *plot) box() chartdraw.Box {
	return chartdraw.NewBox(units(p.top), units(p.left), units(p.right), units(p.bottom))
}

func (p *plot) grid(s *scale, v float64, vertical bool) {
	p.c.class("grid")
	chartdraw.GridLine{Value: v}.Render(p.c.r, p.box(), s, vertical, chartdraw.Style{})
}

func (p *plot) xAt(v float64) float64 { return p.left + float64(p.x.Translate(v))/grain }
func (p *plot) yAt(v float64) float64 { return p.bottom - float64(p.y.Translate(v))/grain }

// line draws line i through the points whose values are numbers.
func (p *plot) line(i int, xs, ys []float64) {
	s := chartdraw.ContinuousSeries{Style: stroke(fmt.Sprintf("line c%d", i%lines+1))}
	for n, x := range xs {
		if finite(x) && finite(ys[n]) {
			s.XValues, s.YValues = append(s.XValues, x), append(s.YValues, ys[n])
		}
	}
	if len(s.XValues) > 1 {
		s.Render(p.c.r, p.box(), p.x, p.y, chartdraw.Style{})
	}
}
