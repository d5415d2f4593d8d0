// Package gcp asks Google Cloud for what it gives to a process that runs there without a key of its own: access tokens,
// and secrets.
package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"cloud.google.com/go/compute/metadata"
	"golang.org/x/sync/semaphore"
)

// tokenTimeout bounds one look-up of a token, the library's retries included.
const tokenTimeout = 3 * time.Second

// The metadata server keeps a token until some four minutes before it expires, and only then has another.
const tokenMargin = 4 * time.Minute

// maxLifetime is what a token is taken to live at most: Google's longest live twelve hours.
const maxLifetime = 12 * time.Hour

// Tokens are the access tokens of the service account that this process runs as, from the metadata server, which is where
// the process environment's GCE_METADATA_HOST says or at its usual address. Its methods may be called from many goroutines
// at once.
type Tokens struct {
	turn    *semaphore.Weighted // a lock, the wait for which ctx bounds; guards what follows
	token   string
	renew   time.Time // when another is asked for
	expires time.Time
}

// NewTokens returns tokens, of which none has been asked for.
func NewTokens() *Tokens { return &Tokens{turn: semaphore.NewWeighted(1)} }

// Token returns a token that has not expired. It asks the metadata server where it has none, or where the one it has comes
// near its end; while that fails, the one it has serves until it expires. The error is one line, without a token.
func (t *Tokens) Token(ctx context.Context) (string, error) {
	if err := t.turn.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("get access token: %w", err)
	}
	defer t.turn.Release(1)
	now := time.Now()
	if now.Before(t.renew) {
		return t.token, nil
	}
	token, lifetime, err := fetchToken(ctx)
	switch {
	case err == nil:
		t.token, t.expires = token, now.Add(lifetime)
		// At the latest half-way: one of a short life must not be asked for at each call.
		t.renew = now.Add(max(lifetime-tokenMargin, lifetime/2))
	case now.Before(t.expires):
		t.renew = now.Add(min(t.expires.Sub(now)/2, tokenMargin/4))
	default:
		return "", fmt.Errorf("get access token: %w", err)
	}
	return t.token, nil
}

// fetchToken asks the metadata server for a token and how long it lives.
func fetchToken(ctx context.Context) (string, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: tokenTimeout}).DialContext}
	defer transport.CloseIdleConnections()
	text, err := metadata.NewClient(&http.Client{Transport: transport}).GetWithContext(ctx, "instance/service-accounts/default/token")
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // what the library says of it names the address alone
		}
		return "", 0, fmt.Errorf("ask the metadata server: %w", oneLine{err})
	}
	var answer struct {
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"` // seconds
	}
	if json.Unmarshal([]byte(text), &answer) != nil || answer.AccessToken == "" || answer.ExpiresIn <= 0 {
		return "", 0, errors.New("the metadata server's answer holds no access token")
	}
	return answer.AccessToken, time.Duration(min(answer.ExpiresIn, maxLifetime.Seconds()) * float64(time.Second)), nil
}

// oneLine is an error whose text is one line, and not a page.
type oneLine struct{ err error }

func (e oneLine) Error() string {
	text := strings.Join(strings.Fields(e.err.Error()), " ")
	if len(text) > 300 {
		text = text[:300] + "..."
	}
	return text
}
func (e oneLine) Unwrap() error { return e.err }
