package diagnose

import (
	"errors"
	"io"

	"nsop/bench"
	"nsop/bench/chart"
)

// SVG draws the budget as a stacked bar. Where there is none its error is a *bench.UnsupportedError.
func (r *Report) SVG(w io.Writer, o bench.EncodeOptions) error {
	none := &bench.UnsupportedError{Kind: "unsupported", Detail: "no chart: no operation was measured", Allowed: []string{"format=json", "format=text"}}
	if r.Budget == nil {
		return none
	}
	var parts []chart.Part
	for _, p := range r.Budget.Parts {
		part := chart.Part{Name: p.Name}
		if p.NS != nil {
			part.NS = float64(*p.NS)
		}
		parts = append(parts, part)
	}
	f := chart.Frame{Title: "where the time of one " + r.Budget.Operation + " goes", Inline: o.Inline}
	if r.Target != nil {
		f.Subtitle = r.Target.Name
		if r.Target.Address != "" {
			f.Subtitle += " at " + r.Target.Address
		}
		f.Subtitle += ", through " + r.Budget.Client
	}
	for _, finding := range r.Findings {
		if finding.Severity != "info" {
			f.Warnings = append(f.Warnings, finding.Rule+": "+finding.Summary)
		}
	}
	err := chart.Budget(w, f, r.Budget.Operation, float64(r.Budget.TotalNS), parts)
	if errors.Is(err, chart.ErrEmpty) {
		return none
	}
	return err
}
