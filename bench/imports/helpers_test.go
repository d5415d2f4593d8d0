package imports

import "github.com/HdrHistogram/hdrhistogram-go"

// newHistogram holds the values from 1 to n.
func newHistogram(n int64) *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, 1_000_000, 3)
	for v := range n {
		if err := h.RecordValue(v + 1); err != nil {
			panic(err)
		}
	}
	return h
}
