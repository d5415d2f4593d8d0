package handlers

import (
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"nsop/bench"
)

// index tells someone who has only this URL what to type.
func (s *Service) index(w http.ResponseWriter, r *http.Request) error {
	if wantsPage(r) {
		return s.dashboard(w, r)
	}
	if _, err := s.only(r); err != nil {
		return err
	}
	var (
		b    strings.Builder
		info = s.Vantage.Info(r.Context())
		name = s.Targets[0].Name
		t    = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	)
	fmt.Fprintf(&b, "nsop %s  %s", s.Version, strings.TrimSpace(info.Platform+" "+info.Region))
	if info.Revision != "" {
		fmt.Fprintf(&b, "  revision %s", info.Revision)
	}
	fmt.Fprintf(&b, "  up %s\n\n", uptime(time.Since(s.Started)))
	said := s.sayings(r.Context())
	for i, target := range s.Targets {
		head, at := "", target.Kind
		if i == 0 {
			head = "targets"
		}
		if target.Address != "" {
			at += " at " + target.Address
		} else if target.Embedded {
			at += ", in this process"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", head, target.Name, at, said[target.Name])
	}
	t.Flush()
	b.WriteString("\n")
	for i, line := range [][2]string{
		{"/bench/" + name + "?format=text", "SET and GET through the default clients"},
		{"/bench/" + name + "/get?concurrency=1,10,50&format=text", "a sweep"},
		{"/bench/" + name + "/get?assert=p99%3C5ms", "417 where it does not hold"},
	} {
		head := ""
		if i == 0 {
			head = "try"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", head, command(r, line[0]), line[1])
	}
	t.Flush()
	fmt.Fprintf(&b, "\nendpoints  %s\n", bench.Wrap(strings.Join(paths(), ", "), textWidth, "           "))
	fmt.Fprintf(&b, "described  %s/openapi.json\n", baseURL(r))
	if base := baseURL(r); base != "" {
		fmt.Fprintf(&b, "in a browser  %s/\n", base)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(trimLines(b.String()))) // the client has left: nobody is there to be told
	return nil
}

// trimLines removes the blanks at the ends of lines, which a table leaves.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// uptime is d without what is too short to matter, as 3h12m.
func uptime(d time.Duration) string {
	if d < time.Minute {
		return d.Truncate(time.Second).String()
	}
	return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
}
