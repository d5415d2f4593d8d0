package bench

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits bound what one request may ask for.
type Limits struct {
	Benchtime   time.Duration // of one row
	Total       time.Duration // of a request
	Concurrency int
	Size        int // bytes
	Keyspace    int
	Data        int // keyspace x size, bytes
	Rows        int // before count
	Body        int // bytes
}

// DefaultLimits are in force where LIMITS says nothing. Total stays below the time after which a platform answers in the
// service's place: 10 minutes on App Engine, by default 5 on Cloud Run.
func DefaultLimits(platform string) Limits {
	l := Limits{Benchtime: time.Minute, Total: 10 * time.Minute, Concurrency: 1024, Size: 8 << 20, Keyspace: 10_000_000,
		Data: 256 << 20, Rows: 500, Body: 64 << 10}
	switch platform {
	case "app-engine":
		l.Total = 9 * time.Minute
	case "cloud-run":
		l.Total = 270 * time.Second
	}
	return l
}

// Override applies name=value pairs separated by white space, as in LIMITS.
func (l Limits) Override(text string) (Limits, error) {
	durations := map[string]*time.Duration{"benchtime": &l.Benchtime, "total": &l.Total}
	counts := map[string]*int{"concurrency": &l.Concurrency, "keyspace": &l.Keyspace, "rows": &l.Rows}
	sizes := map[string]*int{"size": &l.Size, "data": &l.Data, "body": &l.Body}
	for pair := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case durations[name] != nil:
			d, err := time.ParseDuration(value)
			if err != nil || d <= 0 {
				return l, fmt.Errorf("%s: want a positive duration such as 60s", pair)
			}
			*durations[name] = d
		case counts[name] != nil:
			n, err := strconv.Atoi(value)
			if err != nil || n <= 0 {
				return l, fmt.Errorf("%s: want a positive whole number", pair)
			}
			*counts[name] = n
		case sizes[name] != nil:
			n, err := ParseSize(value)
			if err != nil || n <= 0 {
				return l, fmt.Errorf("%s: want a size such as 1000, 1KB or 8MiB", pair)
			}
			*sizes[name] = n
		default:
			return l, fmt.Errorf("%s: want name=value with a name of benchtime, total, concurrency, size, keyspace, data, rows, body", pair)
		}
	}
	return l, nil
}
