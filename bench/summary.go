package bench

import (
	"fmt"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// A Summary is what the samples of one row say together.
type Summary struct {
	Name     string              `json:"name"`
	Samples  int                 `json:"samples"` // in which an operation completed
	Metrics  map[string]Interval `json:"metrics"` // by a name of Units
	Warnings []string            `json:"warnings"`
}

// An Interval is a median with its confidence interval, as benchstat has them: nothing is assumed of the distribution.
type Interval struct {
	Median     Figure  `json:"median"`
	Low        *Figure `json:"low"`        // null with fewer samples than the interval needs,
	High       *Figure `json:"high"`       // as this
	Confidence Figure  `json:"confidence"` // the interval's, at least 0.95
}

const (
	confidence = 0.95
	// fewest samples whose range is a 95% confidence interval of their median: 1 - 2/2^6 is 97%.
	fewest = 6
	// drifted is the difference between the first and the last third of the samples that is worth a word.
	drifted = 0.05
	// ranked is how many samples a test of ranks needs in each third to tell anything at 1%: 2/252 is 0.8%.
	ranked = 5
)

// Summarize returns a summary of each row that has more than one sample, in the order of results. Samples in which
// nothing completed are left out.
func Summarize(results []*Result) (summaries []Summary) {
	samples := map[string][]*Result{}
	var names []string
	for _, r := range results {
		if samples[r.Name] == nil {
			names = append(names, r.Name)
		}
		samples[r.Name] = append(samples[r.Name], r)
	}
	for _, name := range names {
		if len(samples[name]) > 1 {
			summaries = append(summaries, summarize(name, samples[name]))
		}
	}
	return summaries
}

func summarize(name string, samples []*Result) Summary {
	s := Summary{Name: name, Metrics: map[string]Interval{}, Warnings: []string{}}
	for _, r := range samples {
		if r.Iterations > 0 {
			s.Samples++
		}
	}
	for _, u := range Units {
		if u.Bench == "" {
			continue
		}
		var values []float64
		for _, r := range samples {
			if v, ok := u.Of(r); ok && r.Iterations > 0 {
				values = append(values, v)
			}
		}
		if len(values) == 0 {
			continue
		}
		if u.Name == "ns_per_op" {
			if text := drift(values); text != "" {
				s.Warnings = append(s.Warnings, text)
			}
		}
		s.Metrics[u.Name] = interval(values)
	}
	if s.Samples < fewest {
		s.Warnings = append([]string{fmt.Sprintf("%d samples are too few for a confidence interval of %.0f%%, which needs %d", s.Samples, 100*confidence, fewest)}, s.Warnings...)
	}
	return s
}

func interval(values []float64) Interval {
	sum := benchmath.AssumeNothing.Summary(sample(values), confidence)
	bound := func(v float64) *Figure {
		if len(values) < fewest || !finite(v) {
			return nil
		}
		f := Figure(v)
		return &f
	}
	return Interval{Figure(sum.Center), bound(sum.Lo), bound(sum.Hi), Figure(sum.Confidence)}
}

// percent is how far the interval reaches from the median on its longer side: "+-3%", "-" where there is none.
func (v Interval) percent() string {
	if v.Low == nil || v.High == nil || v.Median == 0 {
		return "-"
	}
	far := max(float64(v.Median-*v.Low), float64(*v.High-v.Median)) / float64(v.Median)
	return fmt.Sprintf("+-%.0f%%", 100*far)
}

// sample copies values, which NewSample would sort.
func sample(values []float64) *benchmath.Sample {
	return benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds)
}

// drift says that the samples, in the order in which they were taken, became larger or smaller: the medians of the first
// and of the last third differ by more than 5%, and not by chance. Few samples do where each third lies wholly above, or
// below, the one before: by chance 6 do so in 2% of all cases. With more a test of ranks tells.
func drift(values []float64) string {
	third := len(values) / 3
	if third < 2 {
		return ""
	}
	first, middle, last := values[:third], values[third:len(values)-third], values[len(values)-third:]
	if third >= ranked {
		if benchmath.AssumeNothing.Compare(sample(first), sample(last)).P >= 0.01 {
			return ""
		}
	} else if !(below(first, middle) && below(middle, last)) && !(below(last, middle) && below(middle, first)) {
		return ""
	}
	from, to := median(slices.Sorted(slices.Values(first))), median(slices.Sorted(slices.Values(last)))
	if math.Abs(to-from) <= drifted*from {
		return ""
	}
	word := "above"
	if to < from {
		word = "below"
	}
	return fmt.Sprintf("samples drift: ns/op of the last third is %.0f%% %s that of the first", 100*math.Abs(to-from)/from, word)
}

func below(a, b []float64) bool { return slices.Max(a) < slices.Min(b) }
