package bench

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// encodeRedisBenchmark writes the CSV that redis-benchmark --csv writes since 6.2, a line for each sample of each row. As
// there, a test that completed nothing has no line; a latency that was not measured is an empty field.
func encodeRedisBenchmark(w io.Writer, r *Report, _ EncodeOptions) error {
	var b bytes.Buffer
	b.WriteString(`"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n")
	for _, res := range r.Results {
		ops, ok := figure(res.OpsPerSec)
		if !ok {
			continue
		}
		// Titles are not escaped: a reader counts columns from the right.
		fmt.Fprintf(&b, `"%s","%s"`, redisTitle(res.Workload), fixed(ops, 2))
		l := &res.Latency
		for _, ns := range []*int64{l.Mean, l.Min, l.P50, l.P95, l.P99, l.Max} {
			ms := ""
			if ns != nil {
				ms = fixed(float64(*ns)/1e6, 3)
			}
			fmt.Fprintf(&b, `,"%s"`, ms)
		}
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// redisTitle is what redis-benchmark calls a workload. One that is in no table is a test of its own that was imported,
// and is called as it is.
func redisTitle(workload string) string {
	switch w := findWorkload(workload); {
	case w == nil:
		return strings.Map(func(c rune) rune {
			if unicode.IsControl(c) {
				return ' '
			}
			return c
		}, workload)
	case w.Title != "":
		return w.Title
	default:
		return strings.ToUpper(w.Name)
	}
}

// fixed writes v with so many decimals, and with more where it would be taken for 0.
func fixed(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if v > 0 && strings.Trim(s, "0.") == "" {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return s
}
