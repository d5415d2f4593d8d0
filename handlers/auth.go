package handlers

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"
)

// Auth says who may call.
type Auth struct {
	Mode      string    // none, iam, token, oidc, or empty: not set
	Token     string    // of mode token
	OIDC      *IDTokens // of mode oidc
	Platform  string    // the serverless runtime, or empty on a developer's machine
	AppEngine bool      // its front end removes X-Appengine-* from outside requests; nowhere else can they be believed
}

// authError refuses a request: 401 where credentials would help, else 403.
type authError struct {
	status int
	detail string
}

func (e *authError) Error() string { return e.detail }

// check is nil for a request that may pass.
func (a Auth) check(r *http.Request) error {
	switch {
	case a.Mode == "none", a.Mode == "" && a.Platform == "":
		return nil
	case a.Mode == "iam" && a.Platform == "":
		return &authError{http.StatusForbidden, "AUTH=iam relies on the check of a serverless platform, and this is none: set AUTH to token or oidc"}
	case a.Mode == "iam":
		// The platform has checked the token before the request came here, and may have taken its signature away: there is
		// nothing left to check.
		return nil
	case a.Mode == "token", a.Mode == "oidc" && a.OIDC != nil:
		if a.AppEngine && r.Header.Get("X-Appengine-Cron") == "true" {
			return nil
		}
	default:
		return &authError{http.StatusForbidden, "AUTH is not set on " + a.Platform + ", so that nobody may call but health checks: set it to iam where the platform checks callers, else to oidc or token"}
	}
	given, ok := credential(r)
	switch {
	case a.Mode == "oidc" && ok:
		return a.OIDC.check(r.Context(), given)
	case a.Mode == "oidc":
		return &authError{http.StatusUnauthorized, "this service wants a Google-signed ID token as bearer token or as password"}
	case ok && same(given, a.Token):
		return nil
	}
	return &authError{http.StatusUnauthorized, "this service wants AUTH_TOKEN as bearer token or as password"}
}

// credential is the bearer token or the password that the request carries. Of two, another reader of the request might
// take the other: there is none then.
func credential(r *http.Request) (string, bool) {
	if len(r.Header.Values("Authorization")) != 1 {
		return "", false
	}
	if _, password, ok := r.BasicAuth(); ok {
		return password, true
	}
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// same compares digests, so that neither the content nor the length of the token shows in the time it takes.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return b != "" && subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// sameOrigin refuses what a browser sends for a page of another origin: GET starts runs here, and a browser adds the
// credentials of this service by itself.
func sameOrigin(r *http.Request) error {
	// Origin is not sent with every GET, Sec-Fetch-Site not by old browsers; no command-line client sends one of the three.
	site, origin := r.Header.Get("Sec-Fetch-Site"), cmp.Or(r.Header.Get("Origin"), r.Header.Get("Referer"))
	foreign := site != "" && site != "same-origin" && site != "none"
	if site == "" && origin != "" {
		u, err := url.Parse(origin)
		foreign = err != nil || u.Host != r.Host
	}
	if foreign {
		return &authError{http.StatusForbidden, "a page of another origin can't start or stop a run"}
	}
	return nil
}
