package chart

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// A Part is one of the disjoint parts of an operation.
type Part struct {
	Name   string
	NS     float64
	Detail string // "redigo 31 us over the floor"
}

// Budget draws one operation as a bar of its parts, in their order, with a line of text for each below it.
func Budget(w io.Writer, f Frame, operation string, total float64, parts []Part) error {
	sum := 0.0
	for _, p := range parts {
		if positive(p.NS) {
			sum += p.NS
		}
	}
	if !positive(sum) || !positive(total) {
		return ErrEmpty
	}
	c := newCanvas(Width)
	c.head(f)
	desc := []string{fmt.Sprintf("One %s takes %s", operation, Duration(total))}
	c.text("strong", c.fit(fmt.Sprintf("one %s: %s", clean(operation), Duration(total)), textSize, c.width-2*margin), margin, c.y+textSize)
	c.y += lineHeight + 6

	const height = 44
	left, right := float64(margin), c.width-margin
	before := left
	for i, p := range parts {
		if !positive(p.NS) {
			continue
		}
		end := min(left+p.NS/sum*(c.width-2*margin), right)
		c.rect(fmt.Sprintf("part c%d", i%lines+1), left, c.y, end, c.y+height)
		if i > 0 && min(left-before, end-left) > 3 { // it would hide a part that is hardly wider
			c.path("edge", left, c.y, left, c.y+height)
		}
		if name := clean(p.Name); c.measure(name, textSize)+10 < end-left {
			c.text("middle inside", name, (left+end)/2, c.y+height/2+5)
		}
		before, left = left, end
	}
	c.y += height + 10

	names, values, percents := 0.0, 0.0, c.measure("100%", textSize)
	for _, p := range parts {
		names = max(names, c.measure(clean(p.Name), textSize))
		values = max(values, c.measure(Duration(p.NS), textSize))
	}
	names = min(names, 200)
	for i, p := range parts {
		percent := "-"
		if finite(p.NS) && math.Abs(p.NS) < 100*total {
			percent = fmt.Sprintf("%.0f%%", p.NS/total*100)
		}
		x := float64(margin)
		c.rect(fmt.Sprintf("part c%d", i%lines+1), x, c.y+3, x+14, c.y+17)
		x += 22
		c.text("", c.fit(clean(p.Name), textSize, names), x, c.y+15)
		x += names + 18 + values
		c.text("end", Duration(p.NS), x, c.y+15)
		x += 14 + percents
		c.text("end", percent, x, c.y+15)
		c.y += lineHeight + 2
		for _, line := range c.wrap(p.Detail, textSize, c.width-2*margin-22, 2) {
			c.text("dim", line, margin+22, c.y+14)
			c.y += lineHeight
		}
		desc = append(desc, strings.TrimSpace(fmt.Sprintf("%s %s, %s. %s", p.Name, Duration(p.NS), percent, p.Detail)))
	}
	return c.finish(w, f, desc)
}

// A Range is a value and the band it lies in where all is normal, in nanoseconds. A value that is not above 0 was not
// measured.
type Range struct{ Value, P5, P95 float64 }

// Band draws a bar that shows where a value lies in its normal band.
func Band(w io.Writer, f Frame, r Range) error {
	if !positive(r.P5) || !positive(r.P95) || r.P5 > r.P95 {
		return ErrEmpty
	}
	const size, left, right = 13, 10, SmallWidth - 10
	lo, hi := r.P5, r.P95
	desc := "Normal is " + span(r.P5, r.P95)
	switch {
	case !positive(r.Value):
		desc += "; nothing was measured"
	case r.Value < r.P5:
		desc = fmt.Sprintf("%s is below normal. ", Duration(r.Value)) + desc
	case r.Value > r.P95:
		desc = fmt.Sprintf("%s is above normal. ", Duration(r.Value)) + desc
	default:
		desc = fmt.Sprintf("%s is normal. ", Duration(r.Value)) + desc
	}
	if positive(r.Value) {
		lo, hi = min(lo, r.Value), max(hi, r.Value)
	}
	// The band in the middle third or more, so that what is far outside is seen to be.
	s := &scale{f: linear}
	room := max(hi-lo, hi*.02) / 3
	s.Min, s.Max = max(0, lo-room), hi+room
	log := ""
	if hi/lo > logAbove {
		s.f = math.Log10
		s.Min, s.Max = lo/1.5, hi*1.5
		log = " (log axis)"
	}
	s.Domain = (right - left) * grain
	at := func(v float64) float64 { return left + float64(s.Translate(v))/grain }

	c := newCanvas(SmallWidth)
	c.y = 8
	const height = 14
	c.rect("track", left, c.y, right, c.y+height)
	from, to := at(r.P5), at(r.P95)
	if to-from < 3 {
		from, to = from-1.5, to+1.5
	}
	c.rect("band", from, c.y, to, c.y+height)
	for _, x := range []float64{from, to} { // the band's own colour is a faint one
		c.path("axis", x, c.y, x, c.y+height)
	}
	if positive(r.Value) {
		x := at(r.Value)
		c.path("needle", x, c.y-3, x, c.y+height+3)
		c.polygon("mark c1", x-5, c.y-6, x+5, c.y-6, x, c.y+1)
	}
	c.y += height + size + 6
	text := fmt.Sprintf("normal %s%s", span(r.P5, r.P95), log)
	text = c.fit(text, size, SmallWidth-8)
	half := c.measure(text, size) / 2
	c.text("small dim middle", text, min(max((from+to)/2, 4+half), SmallWidth-4-half), c.y)
	c.y -= 4
	f.Subtitle, f.Notes, f.Warnings = "", nil, nil
	return c.finish(w, f, []string{desc})
}
