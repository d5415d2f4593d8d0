package handlers

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"nsop/bench"
	"nsop/bench/history"
)

// metricsTime bounds the reading of the history for a scrape.
const metricsTime = 5 * time.Second

// metrics answers the latest of every series and the latest probe of every target for Prometheus. All of it is from the
// history, so that every instance answers alike.
func (s *Service) metrics(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.only(r); err != nil {
		return err
	}
	var b bytes.Buffer
	if s.History != nil {
		ctx, cancel := context.WithTimeout(r.Context(), metricsTime)
		defer cancel()
		if err := s.writeMetrics(ctx, &b); err != nil {
			return &historyError{err}
		}
	}
	format, _ := bench.FormatByName("prometheus")
	w.Header().Set("Content-Type", format.ContentType)
	_, _ = w.Write(b.Bytes()) // the client has left: nobody is there to be told
	return nil
}

func (s *Service) writeMetrics(ctx context.Context, b *bytes.Buffer) error {
	rows, err := s.History.Latest(ctx, history.Filter{})
	if err != nil {
		return err
	}
	report := &bench.Report{}
	for _, row := range rows {
		report.Results = append(report.Results, row.Result())
		if row.StartedAt.After(report.StartedAt) {
			report.StartedAt = row.StartedAt
		}
	}
	format, _ := bench.FormatByName("prometheus")
	if len(rows) > 0 {
		if err := format.Encode(b, report, bench.EncodeOptions{}); err != nil {
			return fmt.Errorf("encode metrics: %w", err)
		}
	}
	var success, age strings.Builder
	for _, t := range s.Targets {
		runs, err := s.History.List(ctx, history.Filter{Target: t.Name, Kind: "probe", Limit: 1})
		if err != nil {
			return err
		}
		for _, run := range runs {
			ok := 0
			if run.Outcome == history.OK {
				ok = 1
			}
			fmt.Fprintf(&success, "nsop_probe_success{target=%q} %d\n", t.Name, ok)
			fmt.Fprintf(&age, "nsop_probe_timestamp_seconds{target=%q} %d\n", t.Name, run.StartedAt.Unix())
		}
	}
	if success.Len() > 0 {
		b.WriteString("# HELP nsop_probe_success Whether the latest probe completed and its assertions held.\n# TYPE nsop_probe_success gauge\n" + success.String())
		b.WriteString("# HELP nsop_probe_timestamp_seconds When the latest probe began.\n# TYPE nsop_probe_timestamp_seconds gauge\n" + age.String())
	}
	return nil
}
