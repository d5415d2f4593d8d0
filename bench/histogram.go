package bench

import (
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// EncodeHistogram writes h as every HdrHistogram library reads it: V2, compressed, in base64.
func EncodeHistogram(h *hdrhistogram.Histogram) (string, error) {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("encode histogram: %w", err)
	}
	return string(b), nil
}

// DecodeHistogram reads what EncodeHistogram, or another HdrHistogram library, wrote.
func DecodeHistogram(text string) (*hdrhistogram.Histogram, error) {
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("decode histogram: %w", err)
	}
	return h, nil
}
