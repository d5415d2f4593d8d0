// Package otlp sends a probe's figures to a receiver of the OpenTelemetry protocol over HTTP
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp). It writes the few messages that gauges need itself: the SDK, which would
// collect and send in the background, has no use where an instance gets no CPU between requests.
package otlp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"

	"nsop/bench"
	"nsop/bench/vantage"
)

// interval is how often a series is sent at most: receivers refuse points that follow one another sooner.
const interval = 10 * time.Second

// maxAnswer bounds what is read of a receiver's answer, in bytes.
const maxAnswer = 64 << 10

// An Exporter sends metrics. Its methods may be called from many goroutines at once.
type Exporter struct {
	endpoint   string
	headers    http.Header
	attributes map[string]string // of the resource, as they were given
	version    string
	instance   string // where the platform names none
	token      func(context.Context) (string, error)
	now        func() time.Time

	mu   sync.Mutex
	sent map[string]time.Time // by series
}

// Options are what an exporter is told.
type Options struct {
	Endpoint   string // the whole URL
	Headers    string // name=value pairs separated by commas, percent-encoded
	Attributes string // of the resource, likewise
	Service    string // name of the service; "": the platform's, or nsop
	Version    string // of this program
	// Token is asked for an access token where the endpoint is Google's and no header authorises already; may be nil.
	Token func(context.Context) (string, error)
	Now   func() time.Time // nil: time.Now
}

// ErrEndpoint, ErrHeaders and ErrAttributes say what is wrong, without any part of it: it may be a secret.
var (
	ErrEndpoint   = errors.New("want a URL such as http://localhost:4318 or https://telemetry.googleapis.com")
	ErrHeaders    = errors.New("want name=value pairs separated by commas, percent-encoded")
	ErrAttributes = errors.New("want name=value pairs of a resource separated by commas, percent-encoded")
)

// New returns an exporter. It does no I/O.
func New(o Options) (*Exporter, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, ErrEndpoint
	}
	e := &Exporter{endpoint: u.String(), headers: http.Header{}, version: o.Version, instance: uuid.NewString(), now: o.Now, sent: map[string]time.Time{}}
	if e.now == nil {
		e.now = time.Now
	}
	headers, err := pairs(o.Headers)
	if err != nil {
		return nil, ErrHeaders
	}
	for name, value := range headers {
		if strings.ContainsFunc(name, notInToken) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, ErrHeaders
		}
		e.headers.Set(name, value)
	}
	if e.attributes, err = pairs(o.Attributes); err != nil {
		return nil, ErrAttributes
	}
	if o.Service != "" {
		e.attributes["service.name"] = o.Service
	}
	if google(u) && e.headers.Get("Authorization") == "" {
		e.token = o.Token
	}
	return e, nil
}

// google tells whether u is an API of Google's, which takes the platform's access token; nobody else must get it.
func google(u *url.URL) bool {
	return u.Scheme == "https" && strings.HasSuffix(strings.ToLower(u.Hostname()), ".googleapis.com")
}

// notInToken tells whether a header's name can't have r (RFC 9110, 5.6.2).
func notInToken(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

// pairs reads name=value,name=value as the environment variables of OpenTelemetry have them: the values percent-encoded.
func pairs(text string) (map[string]string, error) {
	m := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || name == "" || err != nil {
			return nil, errors.New("no pair")
		}
		m[name] = value
	}
	return m, nil
}

// Push sends the figures of a probe, ok saying whether it succeeded, but for series that were sent a moment ago. Its error is one
// line without a secret.
func (e *Exporter) Push(ctx context.Context, report *bench.Report, ok bool) error {
	now := e.now()
	metrics := e.due(append(bench.Metrics(report.Results), bench.ProbeMetrics(report, ok)...), now)
	if len(metrics) == 0 {
		return nil
	}
	if err := e.send(ctx, e.request(report, metrics, now)); err != nil {
		return fmt.Errorf("push metrics: %w", err)
	}
	return nil
}

// due are the points that may be sent now, which counts as their sending.
func (e *Exporter) due(metrics []bench.Metric, now time.Time) (due []bench.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.sent, func(_ string, at time.Time) bool { return now.Sub(at) >= interval })
	for _, m := range metrics {
		m.Points = slices.DeleteFunc(slices.Clone(m.Points), func(p bench.MetricPoint) bool {
			series := m.Name + "{" + bench.PrometheusLabels(p.Labels) + "}"
			_, early := e.sent[series]
			if !early {
				e.sent[series] = now
			}
			return early
		})
		if len(m.Points) > 0 {
			due = append(due, m)
		}
	}
	return due
}

func (e *Exporter) send(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, bytes.NewReader(body))
	if err != nil {
		return ErrEndpoint
	}
	maps.Copy(r.Header, e.headers)
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("User-Agent", "nsop/"+cmp.Or(strings.Fields(e.version + " devel")[0], "devel"))
	if e.token != nil {
		token, err := e.token(ctx)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	// A connection would not live until the next probe, and a redirect would carry the token elsewhere.
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) { // it repeats the URL, of which a secret may be a part
			err = wrapped.Err
		}
		if ctx.Err() != nil {
			err = errors.New("no answer in time")
		}
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("the receiver answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	case err != nil:
		return errors.New("the receiver's answer broke off")
	}
	if n := rejected(text); n > 0 && strings.Contains(answer.Header.Get("Content-Type"), "protobuf") {
		return fmt.Errorf("the receiver rejected %d points", n)
	}
	return nil
}

// The numbers of fields are those of opentelemetry-proto 1: collector/metrics/v1, metrics/v1, resource/v1 and common/v1.

// message appends field number n with what write makes of an empty message.
func message(b []byte, n protowire.Number, write func([]byte) []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), write(nil))
}

func text(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), strings.ToValidUTF8(s, "\uFFFD"))
}

// keyValue appends an attribute whose value is a string.
func keyValue(b []byte, n protowire.Number, key, value string) []byte {
	return message(b, n, func(b []byte) []byte {
		return message(text(b, 1, key), 2, func(b []byte) []byte {
			return protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), strings.ToValidUTF8(value, "\uFFFD"))
		})
	})
}

// request is an ExportMetricsServiceRequest with a gauge for each metric.
func (e *Exporter) request(report *bench.Report, metrics []bench.Metric, now time.Time) []byte {
	attributes := e.resource(report)
	return message(nil, 1, func(b []byte) []byte { // ResourceMetrics
		b = message(b, 1, func(b []byte) []byte { // Resource
			for _, name := range slices.Sorted(maps.Keys(attributes)) {
				b = keyValue(b, 1, name, attributes[name])
			}
			return b
		})
		return message(b, 2, func(b []byte) []byte { // ScopeMetrics
			b = message(b, 1, func(b []byte) []byte { return text(text(b, 1, "nsop"), 2, e.version) }) // InstrumentationScope
			for _, m := range metrics {
				b = message(b, 2, func(b []byte) []byte { // Metric
					b = text(text(text(b, 1, m.Name), 2, m.Help), 3, unit(m.Name))
					return message(b, 5, func(b []byte) []byte { // Gauge
						for _, p := range m.Points {
							b = message(b, 1, func(b []byte) []byte { // NumberDataPoint
								for _, l := range p.Labels {
									b = keyValue(b, 7, l.Name, l.Value)
								}
								b = protowire.AppendFixed64(protowire.AppendTag(b, 3, protowire.Fixed64Type), uint64(now.UnixNano()))
								return protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), math.Float64bits(p.Value))
							})
						}
						return b
					})
				})
			}
			return b
		})
	})
}

// unit is the metric's in UCUM's spelling, which its name ends with.
func unit(name string) string {
	for suffix, unit := range map[string]string{"_seconds": "s", "_ratio": "1"} {
		if strings.HasSuffix(name, suffix) {
			return unit
		}
	}
	return ""
}

// platforms are the values of cloud.platform (OpenTelemetry's semantic conventions for cloud resources).
var platforms = map[string]string{"cloud-run": "gcp_cloud_run", "cloud-run-job": "gcp_cloud_run", "app-engine": "gcp_app_engine"}

// resource is what the attributes say of this process. No two instances have the same service.instance.id, whatever the
// variables say: their points would be of one series.
func (e *Exporter) resource(report *bench.Report) map[string]string {
	where, _ := report.Vantage.(vantage.Info)
	attributes := map[string]string{"service.name": cmp.Or(where.Service, "nsop"), "service.version": cmp.Or(where.Revision, e.version),
		"cloud.region": where.Region, "cloud.account.id": where.Project, "gcp.project_id": where.Project}
	if platform := platforms[where.Platform]; platform != "" {
		attributes["cloud.provider"], attributes["cloud.platform"] = "gcp", platform
	}
	maps.Copy(attributes, e.attributes)
	attributes["service.instance.id"] = cmp.Or(where.Instance, e.instance)
	maps.DeleteFunc(attributes, func(_, value string) bool { return value == "" })
	return attributes
}

// rejected is how many points an ExportMetricsServiceResponse says were rejected; 0 where it does not say, or is none.
func rejected(answer []byte) (n int64) {
	// partial_success, and in it rejected_data_points, are the fields with the number 1.
	if partial, ok := first(answer, protowire.BytesType); ok {
		if text, _ := protowire.ConsumeBytes(partial); text != nil {
			if count, ok := first(text, protowire.VarintType); ok {
				v, _ := protowire.ConsumeVarint(count)
				n = int64(v)
			}
		}
	}
	return n
}

// first is what follows the tag of the last field with the number 1 of that type in a message that parses.
func first(message []byte, kind protowire.Type) (value []byte, ok bool) {
	for len(message) > 0 {
		number, t, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, t, message); n < 0 {
			return nil, false
		}
		if number == 1 && t == kind {
			value, ok = message, true
		}
		message = message[n:]
	}
	return value, ok
}
