package vantage

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/compute/metadata"
)

// metadataTimeout bounds all look-ups together, the library's retries included.
const metadataTimeout = time.Second

var lookups = []struct {
	name, path string
	field      func(*Info) *string
}{
	{"project", "project/project-id", func(i *Info) *string { return &i.Project }},
	{"region", "instance/region", func(i *Info) *string { return &i.Region }},
	{"instance", "instance/id", func(i *Info) *string { return &i.Instance }},
}

// askMetadata fills those of the looked-up fields that are empty, or adds a warning that names the ones still empty.
func (info *Info) askMetadata(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	// The answer is for every later request as well: the first one's client may go away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), metadataTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	client := metadata.NewClient(&http.Client{Transport: transport})

	var wg sync.WaitGroup
	errs := make([]error, len(lookups))
	for i, l := range lookups {
		field := l.field(info)
		if *field != "" {
			continue
		}
		wg.Go(func() {
			var value string
			value, errs[i] = client.GetWithContext(ctx, l.path) // not ProjectID or InstanceID, which cache package-wide
			value = strings.TrimSpace(value)
			*field = value[strings.LastIndexByte(value, '/')+1:] // a region is projects/NUMBER/regions/REGION
		})
	}
	wg.Wait()

	var unknown []string
	var reason error
	for i, err := range errs {
		if err != nil {
			unknown = append(unknown, lookups[i].name)
			reason = err
		}
	}
	if unknown != nil {
		info.Warnings = append(info.Warnings,
			fmt.Sprintf("the metadata server did not answer for %s: %v", strings.Join(unknown, ", "), reason))
	}
}
