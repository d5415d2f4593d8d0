package chart

import (
	"fmt"
	"strings"
)

// rules are what no screen changes. Lengths are in the picture's coordinates, ten to a px.
const rules = `.nsop-chart{max-width:100%;height:auto;font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif}
.nsop-chart text{font-size:150px}
.nsop-chart .title{font-size:170px;font-weight:600}
.nsop-chart .small{font-size:130px}
.nsop-chart .strong{font-weight:600}
.nsop-chart .warning{font-weight:600}
.nsop-chart .end{text-anchor:end}
.nsop-chart .middle{text-anchor:middle}
.nsop-chart .grid,.nsop-chart .axis{stroke-width:10;fill:none}
.nsop-chart .line{stroke-width:20;fill:none;stroke-linejoin:round;stroke-linecap:round}
.nsop-chart .line.c2,.nsop-chart .line.c6{stroke-dasharray:80 40}
.nsop-chart .line.c3,.nsop-chart .line.c7{stroke-dasharray:20 40}
.nsop-chart .line.c4,.nsop-chart .line.c8{stroke-dasharray:100 40 20 40}
.nsop-chart .mark{stroke-width:15}
.nsop-chart .rule{stroke-width:12;stroke-dasharray:50 40;fill:none}
.nsop-chart .level{stroke-width:12;fill:none}
.nsop-chart .failure{stroke-width:20;fill:none;stroke-linecap:round}
.nsop-chart .cold{stroke-width:14}
.nsop-chart .step{fill-opacity:.45}
.nsop-chart .needle{stroke-width:25;fill:none}
.nsop-chart .edge{stroke-width:10;fill:none}
`

// colours are the ones that a dark screen changes. Text has a contrast of at least 4.5 to its ground, all else that
// means something of 3 (WCAG 2.2, 1.4.3 and 1.4.11). The lines' are told apart with the common kinds of colour
// blindness: after Okabe and Ito, https://jfly.uni-koeln.de/color/, darkened or lightened for contrast.
var colours = []struct{ selector, property, light, dark string }{
	{".back", "fill", "#ffffff", "#14181d"},
	{"text", "fill", "#1c2127", "#e6eaef"},
	{".dim", "fill", "#57606a", "#a3adb8"},
	{".warning", "fill", "#9a3412", "#ffb480"},
	{".grid", "stroke", "#dfe3e8", "#2d343c"},
	{".axis", "stroke", "#8b949e", "#76808b"},
	{".rule", "stroke", "#57606a", "#a3adb8"},
	{".level", "stroke", "#9a3412", "#ffb480"},
	{".step", "fill", "#f9cfa4", "#7a4f22"},
	{".band", "fill", "#c5ddf0", "#1f4560"},
	{".track", "fill", "#eef1f4", "#232a31"},
	{".inside", "fill", "#ffffff", "#14181d"},
	{".needle", "stroke", "#1c2127", "#e6eaef"},
	{".edge", "stroke", "#ffffff", "#14181d"},
	{".failure", "stroke", "#b3261e", "#ff8a80"},
	{".cold", "stroke", "#57606a", "#a3adb8"},
	{".cold", "fill", "#ffffff", "#14181d"},
	{".c1", "", "#0072b2", "#56b4e9"},
	{".c2", "", "#d04a00", "#ff9a5c"},
	{".c3", "", "#007f5f", "#35c79c"},
	{".c4", "", "#a8457f", "#e79cc8"},
	{".c5", "", "#8a6d00", "#e8d44d"},
	{".c6", "", "#3d6fd6", "#9db8ff"},
	{".c7", "", "#5b3a8c", "#c3a6f0"},
	{".c8", "", "#4a4f55", "#d0d5da"},
}

// CSS is the style sheet of every picture. Its rules are for what is in .nsop-chart alone.
func CSS() string {
	var b strings.Builder
	b.WriteString(rules)
	for _, dark := range []bool{false, true} {
		if dark {
			b.WriteString("@media (prefers-color-scheme:dark){\n")
		}
		for _, c := range colours {
			colour, back := c.light, colours[0].light
			if dark {
				colour, back = c.dark, colours[0].dark
			}
			if c.property != "" {
				fmt.Fprintf(&b, ".nsop-chart %s{%s:%s}\n", c.selector, c.property, colour)
				continue
			}
			// A line's colour.
			fmt.Fprintf(&b, ".nsop-chart .line%[1]s{stroke:%[2]s}.nsop-chart .mark%[1]s{stroke:%[2]s;fill:%[2]s}"+
				".nsop-chart .mark%[1]s.hollow{fill:%[3]s}.nsop-chart .part%[1]s{fill:%[2]s}\n", c.selector, colour, back)
		}
		if dark {
			b.WriteString("}\n")
		}
	}
	return b.String()
}
