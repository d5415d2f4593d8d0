package gcp

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestToken: when the metadata server is asked, by what it had said of the token's life.
func TestToken(t *testing.T) {
	answer, asked := "", 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	tokens := NewTokens()
	now := time.Now()
	for _, step := range []struct {
		name, answer string
		renew        time.Duration // moves the next look-up by so much
		expires      time.Duration // and the token's end
		want         string
		asked        int
		within       time.Duration // the next look-up is due in so long, within a minute
	}{
		{"the first", `{"access_token":"a","expires_in":3600}`, 0, 0, "a", 1, 56 * time.Minute},
		{"kept", `{"access_token":"b","expires_in":3600}`, 0, 0, "a", 1, 56 * time.Minute},
		{"due", `{"access_token":"b","expires_in":230}`, -time.Hour, 0, "b", 2, 115 * time.Second},
		{"due, none there", "", -time.Hour, 0, "b", 3, time.Minute},
		{"kept meanwhile", "", 0, 0, "b", 3, time.Minute},
		{"due, and expired", "", -time.Hour, -time.Hour, "", 4, 0},
		{"back", `{"access_token":"c","expires_in":1e300}`, -time.Hour, 0, "c", 5, maxLifetime - tokenMargin},
	} {
		answer = step.answer
		tokens.renew, tokens.expires = tokens.renew.Add(step.renew), tokens.expires.Add(step.expires)
		token, err := tokens.Token(t.Context())
		if token != step.want || (err == nil) != (step.want != "") || asked != step.asked {
			t.Errorf("%s: %q, %v; asked %d times", step.name, token, err, asked)
		}
		if off := tokens.renew.Sub(now) - step.within; step.want != "" && (off < -time.Minute || off > time.Minute) {
			t.Errorf("%s: renewed in %v, want %v", step.name, tokens.renew.Sub(now), step.within)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = tokens.turn.Acquire(t.Context(), 1)
	if _, err := tokens.Token(ctx); err == nil {
		t.Error("does not mind ctx")
	}
}

// FuzzSecret: an answer is read or refused, and a URL that is taken names one secret and nothing else.
func FuzzSecret(f *testing.F) {
	f.Add([]byte(`{"name":"v","payload":{"data":"aHVudGVyMg==","dataCrc32c":"3119834741"}}`), "sm://projects/p/secrets/s/versions/1")
	f.Add([]byte(`{"payload":{"data":""}}`), "sm://projects/p:q/secrets/s")
	f.Add([]byte(`{"payload":{"dataCrc32c":null}}`), "sm://projects/../secrets/..")
	f.Fuzz(func(t *testing.T, body []byte, url string) {
		value, _, err := parseSecret(body)
		if (err == nil) != (value != "") {
			t.Errorf("%q and %v", value, err)
		}
		if m := secretURL.FindStringSubmatch(url); m != nil && strings.ContainsAny(url[len(SecretPrefix):], "?#% \n\\") || strings.Contains(url, "..") && m != nil && strings.Contains(url, "/../") {
			t.Errorf("%q", url)
		}
	})
}
