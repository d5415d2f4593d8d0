package bench

import (
	"strings"
	"testing"
	"time"
)

func TestParseExtent(t *testing.T) {
	for text, want := range map[string]Extent{
		"2s": {Time: 2 * time.Second}, "1.5s": {Time: 1500 * time.Millisecond}, "100x": {Count: 100}, "0x": {}, "0s": {}, "1h2m": {Time: 62 * time.Minute},
	} {
		if got, err := ParseExtent(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "1", "-1s", "-1x", "+1x", "1e3x", "1.5x", "2y", "NaN", "9223372036854775807x", "1 s", "1x "} {
		if got, err := ParseExtent(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{"100": 100, "100B": 100, "1KB": 1000, "1KiB": 1024, "8MiB": 8 << 20, "1MB": 1e6, "0": 0} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "-1", "+1", "1.5KB", "1kb", "1 KB", "99999999999", "KiB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}

func TestLimitsOverride(t *testing.T) {
	l, err := DefaultLimits("cloud-run").Override("  benchtime=5m total=1h\tsize=1KiB rows=7 ")
	if err != nil || l.Benchtime != 5*time.Minute || l.Total != time.Hour || l.Size != 1024 || l.Rows != 7 || l.Concurrency != 1024 {
		t.Errorf("%+v, %v", l, err)
	}
	for _, text := range []string{"rows", "rows=", "rows=-1", "rows=0", "size=x", "total=5", "nosuch=1", "=1"} {
		if _, err := l.Override(text); err == nil {
			t.Errorf("%q: want an error", text)
		}
	}
}

// What parses is in its range and reads the same again.
func FuzzParseExtent(f *testing.F) {
	for _, seed := range []string{"2s", "10000x", "0x", "-1s", "1h1m1.000000001s", "18446744073709551615x", "9223372036s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseExtent(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Errorf("error of %q is not one clean line: %q", text, err)
			}
			return
		}
		if e.Time < 0 || e.Time > 0 && e.Count > 0 {
			t.Errorf("%q: %+v", text, e)
		}
		if again, err := ParseExtent(e.String()); err != nil || again != e {
			t.Errorf("%q is %+v, read again %+v, %v", text, e, again, err)
		}
	})
}
