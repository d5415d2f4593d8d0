package handlers

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/singleflight"
)

// GoogleKeys is where Google publishes the keys that it signs ID tokens with, a JSON Web Key Set (RFC 7517).
const GoogleKeys = "https://www.googleapis.com/oauth2/v3/certs"

// issuers are the two names that Google signs ID tokens under.
var issuers = []string{"accounts.google.com", "https://accounts.google.com"}

const (
	clockSkew    = 30 * time.Second // between Google's clock and ours
	maxLifetime  = 24 * time.Hour   // of a token; Google's live an hour. A longer one could be replayed for as long.
	maxTokenSize = 8 << 10          // bytes; Google's are around 1 KB
	minKeyBits   = 2048             // RFC 7518, section 3.3

	keysTimeout = 3 * time.Second
	keysMaxSize = 256 << 10 // bytes
	keysMinAge  = 5 * time.Minute
	keysMaxAge  = 24 * time.Hour
	// How long after an answer, and after a failure, the key server is not asked again: tokens with unknown keys must not
	// let a caller hammer it.
	keysPause, keysFailurePause = time.Minute, 5 * time.Second
)

// IDTokens checks ID tokens that Google signed. Its methods may be called from many goroutines at once.
type IDTokens struct {
	Audiences []string         // one of which a token must be meant for
	Emails    []string         // who may call
	KeysURL   string           // of the key server, [GoogleKeys] but in tests
	Now       func() time.Time // the clock

	fetching singleflight.Group
	mu       sync.Mutex // guards what follows
	keys     map[string]*rsa.PublicKey
	fresh    time.Time // until when keys may be used
	next     time.Time // when the key server may be asked again
	failure  error     // of the latest fetch
}

// A keysError says that the keys could not be had, so that nobody can be told from anybody.
type keysError struct{ err error }

func (e *keysError) Error() string { return "can't check ID tokens now: " + e.err.Error() }
func (e *keysError) Unwrap() error { return e.err }

// check is nil for the ID token of somebody who may call. The error is an *authError or a *keysError, and holds no part of
// the token that was not verified first.
func (v *IDTokens) check(ctx context.Context, token string) error {
	refuse := func(format string, args ...any) error {
		return &authError{http.StatusUnauthorized, fmt.Sprintf("the ID token "+format, args...)}
	}
	switch {
	case len(token) > maxTokenSize:
		return refuse("is over %d bytes", maxTokenSize)
	case strings.HasSuffix(token, ".SIGNATURE_REMOVED_BY_GOOGLE"):
		// Cloud Run has checked it. What came from elsewhere can bear the same mark, so it counts for nothing here.
		return refuse("has lost its signature, as those that Cloud Run has checked itself: AUTH=iam leaves the check to it")
	}
	claims := jwt.MapClaims{}
	_, err := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodRS256.Alg()}), // nothing else, or a token could choose how it is checked
		jwt.WithStrictDecoding(),
		jwt.WithLeeway(clockSkew),
		jwt.WithTimeFunc(v.Now),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
	).ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok {
			return nil, errors.New("has critical header fields that are not understood") // RFC 7515, section 4.1.11
		}
		kid, _ := t.Header["kid"].(string)
		if kid == "" {
			return nil, errors.New("names no key")
		}
		return v.key(ctx, kid)
	})
	if unavailable := (*keysError)(nil); errors.As(err, &unavailable) {
		return unavailable
	}
	if err != nil {
		return refuse("is not valid: %s", err)
	}
	if issuer, _ := claims["iss"].(string); !slices.Contains(issuers, issuer) {
		return refuse("was issued by %.100q and not by Google", issuer)
	}
	audience, err := claims.GetAudience()
	if err != nil || !slices.ContainsFunc(audience, func(a string) bool { return slices.Contains(v.Audiences, a) }) {
		return refuse("is for %.200q, which AUTH_AUDIENCE does not name", []string(audience))
	}
	expires, issued := claims["exp"].(float64), 0.0 // the parser has checked that exp is there
	if at, ok := claims["iat"].(float64); ok {
		issued = at
	}
	if expires-issued > maxLifetime.Seconds() {
		return refuse("does not say when it was issued, or lives longer than %v", maxLifetime)
	}
	email, _ := claims["email"].(string)
	if email == "" || claims["email_verified"] != true {
		return refuse("holds no verified e-mail address: ask for one with it (gcloud: --include-email)")
	}
	if !slices.Contains(v.Emails, email) {
		return &authError{http.StatusForbidden, fmt.Sprintf("%.200q is not in AUTH_EMAILS", email)}
	}
	return nil
}

// key returns the key called kid. The key server is asked where the keys are not fresh or kid is not among them, once for
// all callers that wait, and no more often than its pauses allow.
func (v *IDTokens) key(ctx context.Context, kid string) (*rsa.PublicKey, error) {
	key, ask, err := v.look(kid)
	if !ask {
		return key, err
	}
	_, _, _ = v.fetching.Do("", func() (any, error) {
		// The one before may have ended since look.
		if _, ask, _ := v.look(kid); ask {
			v.refresh(ctx)
		}
		return nil, nil
	})
	key, _, err = v.look(kid)
	return key, err
}

// look returns the key called kid, and whether asking the key server could help where there is none.
func (v *IDTokens) look(kid string) (key *rsa.PublicKey, ask bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.Now()
	if now.Before(v.fresh) {
		key = v.keys[kid]
	}
	switch {
	case key != nil:
		return key, false, nil
	case v.failure != nil:
		err = &keysError{v.failure}
	default:
		err = errors.New("is signed by a key that Google does not publish")
	}
	return nil, !now.Before(v.next), err
}

// refresh asks the key server. The answer is for later callers too, so that ctx may end meanwhile.
func (v *IDTokens) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
	defer cancel()
	keys, age, err := fetchKeys(ctx, v.KeysURL)
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.Now()
	v.failure = err
	if err != nil {
		v.next = now.Add(keysFailurePause)
		return
	}
	v.keys, v.fresh, v.next = keys, now.Add(age), now.Add(keysPause)
}

// fetchKeys returns the keys at url and how long they may be used.
func fetchKeys(ctx context.Context, url string) (map[string]*rsa.PublicKey, time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("fetch Google's keys: %w", err)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("fetch Google's keys: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("fetch Google's keys: %s answers %s", url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, keysMaxSize))
	if err != nil {
		return nil, 0, fmt.Errorf("fetch Google's keys: %w", err)
	}
	keys, err := parseKeys(body)
	if err != nil {
		return nil, 0, fmt.Errorf("read Google's keys: %w", err)
	}
	return keys, maxAge(response.Header.Get("Cache-Control")), nil
}

// maxAge is how long an answer with this Cache-Control may be used, within bounds.
func maxAge(control string) time.Duration {
	for directive := range strings.SplitSeq(control, ",") {
		if text, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(directive)), "max-age="); ok {
			if age, err := time.ParseDuration(text + "s"); err == nil {
				return min(max(age, keysMinAge), keysMaxAge)
			}
		}
	}
	return keysMinAge
}

// parseKeys returns the RSA keys of a JSON Web Key Set by their names. Keys of another kind or purpose are left out; a set
// without any is an error.
func parseKeys(body []byte) (map[string]*rsa.PublicKey, error) {
	var set struct {
		Keys []struct{ Kty, Alg, Use, Kid, N, E string }
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, err
	}
	keys := map[string]*rsa.PublicKey{}
	for _, k := range set.Keys {
		if k.Kty != "RSA" || k.Kid == "" || k.Alg != "" && k.Alg != "RS256" || k.Use != "" && k.Use != "sig" {
			continue
		}
		modulus, err := base64.RawURLEncoding.DecodeString(k.N)
		if err != nil {
			return nil, fmt.Errorf("modulus of a key: %w", err)
		}
		exponent, err := base64.RawURLEncoding.DecodeString(k.E)
		if err != nil {
			return nil, fmt.Errorf("exponent of a key: %w", err)
		}
		n, e := new(big.Int).SetBytes(modulus), new(big.Int).SetBytes(exponent)
		if n.BitLen() < minKeyBits || n.Bit(0) == 0 || e.BitLen() > 31 || e.Int64() < 3 || e.Bit(0) == 0 {
			return nil, errors.New("a key is too weak to be one")
		}
		keys[k.Kid] = &rsa.PublicKey{N: n, E: int(e.Int64())}
	}
	if len(keys) == 0 {
		return nil, errors.New("there is none")
	}
	return keys, nil
}
