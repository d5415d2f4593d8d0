package handlers_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nsop/handlers"
)

const (
	audience = "https://nsop-1234.a.run.app"
	caller   = "scheduler@project.iam.gserviceaccount.com"
)

// A keyServer stands in for Google's.
type keyServer struct {
	*httptest.Server
	asked   atomic.Int32
	mu      sync.Mutex
	status  int
	body    []byte
	control string
}

func newKeyServer(t testing.TB, keys ...any) *keyServer {
	k := &keyServer{status: http.StatusOK, control: "public, max-age=20000, must-revalidate"}
	k.serve(keys...)
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.asked.Add(1)
		k.mu.Lock()
		defer k.mu.Unlock()
		w.Header().Set("Cache-Control", k.control)
		if k.status == http.StatusFound && r.URL.Path == "/" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		if k.status != http.StatusFound {
			w.WriteHeader(k.status)
		}
		_, _ = w.Write(k.body)
	}))
	t.Cleanup(k.Close)
	return k
}

func (k *keyServer) serve(keys ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.body, _ = json.Marshal(map[string]any{"keys": keys})
}

func (k *keyServer) answer(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = status
}

func webKey(kid string, key *rsa.PublicKey) map[string]string {
	b64 := base64.RawURLEncoding.EncodeToString
	return map[string]string{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid,
		"n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes())}
}

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0") // a weak one is to be refused
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A clock stands still until it is moved.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.Unix(0, c.at.Load()) }
func (c *clock) move(d time.Duration) { c.at.Add(int64(d)) }

// A mint makes ID tokens as Google does, and others.
type mint struct {
	key    *rsa.PrivateKey
	header object
	claims object
}

func (m mint) unsigned() string {
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return encode(m.header) + "." + encode(m.claims)
}

func (m mint) token() string {
	text := m.unsigned()
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, m.key, crypto.SHA256, digest[:])
	if err != nil {
		panic(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// with returns m with another value of a claim, without it where value is nil.
func (m mint) with(claim string, value any) mint {
	m.claims = changed(m.claims, claim, value)
	return m
}

func (m mint) head(field string, value any) mint {
	m.header = changed(m.header, field, value)
	return m
}

func (m mint) signedBy(key *rsa.PrivateKey) mint {
	m.key = key
	return m
}

func changed(o object, name string, value any) object {
	o = maps.Clone(o)
	if o[name] = value; value == nil {
		delete(o, name)
	}
	return o
}

func hmacToken(m mint, key []byte) string {
	text := m.head("alg", "HS256").unsigned()
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// newOIDC is a service that wants ID tokens, the clock it lives by, and the mint of those it takes.
func newOIDC(t testing.TB, edit func(*handlers.Auth)) (*handlers.Service, *keyServer, *clock, mint) {
	t.Helper()
	key := rsaKey(t, 2048)
	keys := newKeyServer(t, webKey("one", &key.PublicKey))
	c := &clock{}
	c.at.Store(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixNano())
	s := newService(t, func(config *handlers.Config) {
		config.Auth = handlers.Auth{Mode: "oidc", OIDC: &handlers.IDTokens{
			Audiences: []string{audience, "other-audience"}, Emails: []string{"dev@example.com", caller}, KeysURL: keys.URL, Now: c.now,
		}}
		if edit != nil {
			edit(&config.Auth)
		}
	})
	now := c.now().Unix()
	return s, keys, c, mint{key, object{"alg": "RS256", "kid": "one", "typ": "JWT"}, object{
		"iss": "https://accounts.google.com", "aud": audience, "azp": "1234", "sub": "1234",
		"email": caller, "email_verified": true, "iat": now, "exp": now + 3600,
	}}
}

// TestOIDC: the right tokens are taken, and each forged request is refused.
func TestOIDC(t *testing.T) {
	s, keys, clock, good := newOIDC(t, nil)
	other, weak := rsaKey(t, 2048), rsaKey(t, 1024)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys.serve(webKey("one", &good.key.PublicKey), object{"kty": "EC", "kid": "curve", "crv": "P-256"},
		changed(object{"kty": "RSA", "kid": "encryption", "use": "enc"}, "n", webKey("", &good.key.PublicKey)["n"]))
	der, err := x509.MarshalPKIXPublicKey(&good.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	now := clock.now().Unix()
	valid := good.token()
	parts := strings.Split(valid, ".")
	es256 := func() string {
		text := good.head("alg", "ES256").unsigned()
		digest := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, curve, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return text + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
	}
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	basic := func(token string) []string {
		return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+token))}
	}
	tests := []struct {
		name   string
		header []string
		status int
		detail string // a part of it
	}{
		{"right", bearer(valid), 200, ""},
		{"right, as a password", basic(valid), 200, ""},
		{"right, issuer without a scheme", bearer(good.with("iss", "accounts.google.com").token()), 200, ""},
		{"right, the other audience", bearer(good.with("aud", "other-audience").token()), 200, ""},
		{"right, a list of audiences", bearer(good.with("aud", []string{"x", audience}).token()), 200, ""},
		{"right, the other caller", bearer(good.with("email", "dev@example.com").token()), 200, ""},
		{"right, just expired, within the skew", bearer(good.with("exp", now-20).token()), 200, ""},
		{"right, not yet issued, within the skew", bearer(good.with("iat", now+20).token()), 200, ""},

		{"no header", nil, 401, "wants a Google-signed ID token"},
		{"empty bearer", bearer(""), 401, "is not valid"},
		{"another scheme", []string{"Authorization", "Token " + valid}, 401, "wants a Google-signed ID token"},
		{"in another header", []string{"X-Serverless-Authorization", "Bearer " + valid}, 401, "wants a Google-signed ID token"},
		{"two headers, the first right", append(bearer(valid), bearer("x")...), 401, "wants a Google-signed ID token"},
		{"two headers, the second right", append(bearer("x"), bearer(valid)...), 401, "wants a Google-signed ID token"},
		{"two tokens in one header", bearer(valid + ", Bearer " + valid), 401, "is not valid"},
		{"no token", bearer("hunter2"), 401, "is not valid"},
		{"not JSON", bearer("e30.e30.e30"), 401, "is not valid"},
		{"too long", bearer(good.with("pad", strings.Repeat("x", 9000)).token()), 401, "is over 8192 bytes"},
		{"issuer", bearer(good.with("iss", "https://accounts.example.com").token()), 401, "was issued by"},
		{"issuer with a path", bearer(good.with("iss", "https://accounts.google.com/").token()), 401, "was issued by"},
		{"issuer missing", bearer(good.with("iss", nil).token()), 401, "was issued by"},
		{"issuer, a list", bearer(good.with("iss", []string{"accounts.google.com"}).token()), 401, "was issued by"},
		{"audience", bearer(good.with("aud", "https://nsop-9.a.run.app").token()), 401, "AUTH_AUDIENCE"},
		{"audience that begins alike", bearer(good.with("aud", audience+".example.com").token()), 401, "AUTH_AUDIENCE"},
		{"audience empty", bearer(good.with("aud", "").token()), 401, "AUTH_AUDIENCE"},
		{"audience missing", bearer(good.with("aud", nil).token()), 401, "AUTH_AUDIENCE"},
		{"audience, a number", bearer(good.with("aud", 1).token()), 401, "AUTH_AUDIENCE"},
		{"audience of the platform itself", bearer(good.with("aud", "32555940559.apps.googleusercontent.com").token()), 401, "AUTH_AUDIENCE"},
		{"expired", bearer(good.with("exp", now-31).token()), 401, "is expired"},
		{"replayed a day later", bearer(good.with("iat", now-86400).with("exp", now-82800).token()), 401, "is expired"},
		{"never expires", bearer(good.with("exp", nil).token()), 401, "exp claim is required"},
		{"expires as text", bearer(good.with("exp", "9999999999").token()), 401, "is not valid"},
		{"lives for ever", bearer(good.with("exp", now+10*365*86400).token()), 401, "lives longer than"},
		{"issued never", bearer(good.with("iat", nil).token()), 401, "does not say when"},
		{"issued in the future", bearer(good.with("iat", now+31).token()), 401, "used before issued"},
		{"not valid yet", bearer(good.with("nbf", now+31).token()), 401, "not valid yet"},
		{"no email", bearer(good.with("email", nil).token()), 401, "no verified e-mail"},
		{"email not verified", bearer(good.with("email_verified", false).token()), 401, "no verified e-mail"},
		{"email verified missing", bearer(good.with("email_verified", nil).token()), 401, "no verified e-mail"},
		{"email verified as text", bearer(good.with("email_verified", "true").token()), 401, "no verified e-mail"},
		{"email of another", bearer(good.with("email", "mallory@example.com").token()), 403, `"mallory@example.com" is not in AUTH_EMAILS`},
		{"email that ends alike", bearer(good.with("email", "x"+caller).token()), 403, "AUTH_EMAILS"},
		{"email in other letters", bearer(good.with("Email", caller).with("email", "x@example.com").token()), 403, "AUTH_EMAILS"},
		{"email, two in one", bearer(good.with("email", caller+",dev@example.com").token()), 403, "AUTH_EMAILS"},
		{"another key", bearer(good.signedBy(other).token()), 401, "signature is invalid"},
		{"a weak key", bearer(good.signedBy(weak).token()), 401, "signature is invalid"},
		{"key that nobody published", bearer(good.head("kid", "two").signedBy(other).token()), 401, "does not publish"},
		{"key of another kind", bearer(good.head("kid", "curve").token()), 401, "does not publish"},
		{"key for encryption", bearer(good.head("kid", "encryption").token()), 401, "does not publish"},
		{"no key named", bearer(good.head("kid", nil).token()), 401, "names no key"},
		{"key name, a number", bearer(good.head("kid", 1).token()), 401, "names no key"},
		{"key name, a path", bearer(good.head("kid", "../../one").token()), 401, "does not publish"},
		{"key in the header", bearer(good.signedBy(other).head("kid", "x").head("jwk", webKey("x", &other.PublicKey)).token()), 401, "does not publish"},
		{"key server in the header", bearer(good.signedBy(other).head("kid", "x").head("jku", keys.URL+"/forged").token()), 401, "does not publish"},
		{"critical header", bearer(good.head("crit", []string{"exp"}).token()), 401, "critical"},
		{"algorithm none", bearer(good.head("alg", "none").unsigned() + "."), 401, "signing method none is invalid"},
		{"algorithm None", bearer(good.head("alg", "None").unsigned() + "."), 401, "is not valid"},
		{"algorithm none, signed", bearer(good.head("alg", "none").token()), 401, "signing method none is invalid"},
		{"algorithm missing", bearer(good.head("alg", nil).token()), 401, "is not valid"},
		{"HS256 with the public key", bearer(hmacToken(good, public)), 401, "signing method HS256 is invalid"},
		{"HS256 with its DER", bearer(hmacToken(good, der)), 401, "signing method HS256 is invalid"},
		{"HS256 with nothing", bearer(hmacToken(good, nil)), 401, "signing method HS256 is invalid"},
		{"ES256", bearer(es256()), 401, "signing method ES256 is invalid"},
		{"RS512 in name", bearer(good.head("alg", "RS512").token()), 401, "signing method RS512 is invalid"},
		{"PS256 in name", bearer(good.head("alg", "PS256").token()), 401, "signing method PS256 is invalid"},
		{"signature missing", bearer(parts[0] + "." + parts[1] + "."), 401, "is not valid"},
		{"signature cut off", bearer(parts[0] + "." + parts[1]), 401, "is not valid"},
		{"signature of another", bearer(parts[0] + "." + parts[1] + "." + strings.Split(good.with("sub", "9").token(), ".")[2]), 401, "signature is invalid"},
		{"signature removed by the platform", bearer(parts[0] + "." + parts[1] + ".SIGNATURE_REMOVED_BY_GOOGLE"), 401, "has lost its signature"},
		{"claims changed", bearer(parts[0] + "." + strings.Split(good.with("email", "dev@example.com").unsigned(), ".")[1] + "." + parts[2]), 401, "signature is invalid"},
		{"padded", bearer(valid + "=="), 401, "is not valid"},
		{"another spelling of the signature", bearer(valid[:len(valid)-1] + string(valid[len(valid)-1]+1)), 401, "is not valid"},
		{"a fourth part", bearer(valid + ".x"), 401, "is not valid"},
		{"cron elsewhere than on App Engine", []string{"X-Appengine-Cron", "true"}, 401, "wants a Google-signed ID token"},
		{"said to be checked by a proxy", []string{"X-Goog-Authenticated-User-Email", "accounts.google.com:" + caller}, 401, "wants a Google-signed ID token"},
	}
	forged := 0
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := get(s, "/targets", test.header...)
			if test.status == 200 {
				if w.Code != 200 {
					t.Errorf("status %d: %s", w.Code, w.Body)
				}
				return
			}
			forged++
			if p := problemOf(t, w, test.status); !strings.Contains(p.Detail, test.detail) {
				t.Errorf("detail %q, want %q in it", p.Detail, test.detail)
			}
			if strings.Contains(w.Body.String(), parts[1]) || strings.Contains(w.Body.String(), parts[2]) {
				t.Error("a token is in the answer")
			}
		})
	}
	if forged < 30 {
		t.Errorf("%d forged requests", forged)
	}
	if n := keys.asked.Load(); n != 1 {
		t.Errorf("the key server was asked %d times", n)
	}
}

// TestOIDCKeys: when the key server is asked, and what happens where it does not answer.
func TestOIDCKeys(t *testing.T) {
	s, keys, clock, good := newOIDC(t, nil)
	second := rsaKey(t, 2048)
	rotated := good.head("kid", "two").signedBy(second)
	forever := func(m mint) []string { // valid at any moment of the test
		now := clock.now().Unix()
		return []string{"Authorization", "Bearer " + m.with("iat", now).with("exp", now+60).token()}
	}
	steps := []struct {
		name   string
		do     func()
		mint   mint
		status int
		asked  int32 // in all
	}{
		{"unreachable", func() { keys.answer(500) }, good, 503, 1},
		{"unreachable, a moment later", func() { clock.move(time.Second) }, good, 503, 1},
		{"unreachable still", func() { clock.move(5 * time.Second) }, good, 503, 2},
		{"redirected", func() { keys.answer(302); clock.move(5 * time.Second) }, good, 503, 3},
		{"back", func() { keys.answer(200); clock.move(5 * time.Second) }, good, 200, 4},
		{"again", nil, good, 200, 4},
		{"a key it does not know", nil, rotated, 401, 4},
		{"a key it does not know, later", func() { clock.move(time.Minute) }, rotated, 401, 5},
		{"the same at once", nil, rotated, 401, 5},
		{"rotated, too early", func() { keys.serve(webKey("two", &second.PublicKey)) }, rotated, 401, 5},
		{"rotated", func() { clock.move(time.Minute) }, rotated, 200, 6},
		{"the old one is gone", func() { clock.move(time.Second) }, good, 401, 6},
		{"down, but the keys are fresh", func() { keys.answer(500); clock.move(time.Minute) }, rotated, 200, 6},
		{"down, and the key is not known", nil, good, 503, 7},
		{"down, known all the same", nil, rotated, 200, 7},
		{"down, and no longer fresh", func() { clock.move(20000 * time.Second) }, rotated, 503, 8},
		{"back, no keys in it", func() { keys.answer(200); keys.serve(); clock.move(time.Minute) }, rotated, 503, 9},
	}
	for _, step := range steps {
		if step.do != nil {
			step.do()
		}
		w := get(s, "/targets", forever(step.mint)...)
		if w.Code != step.status || keys.asked.Load() != step.asked {
			t.Errorf("%s: status %d, want %d; asked %d times, want %d: %s", step.name, w.Code, step.status, keys.asked.Load(), step.asked, w.Body)
		}
		if w.Code == 503 && (!strings.Contains(w.Body.String(), "can't check ID tokens now: ") || w.Header().Get("Retry-After") != "5") {
			t.Errorf("%s: %v %s", step.name, w.Header(), w.Body)
		}
	}
}

// TestOIDCHammer: many callers at once with keys that nobody published make no more than one request.
func TestOIDCHammer(t *testing.T) {
	s, keys, _, good := newOIDC(t, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			m, want := good, 200
			if i%2 == 0 {
				m, want = good.head("kid", fmt.Sprint("forged", i)), 401
			}
			if w := get(s, "/targets", "Authorization", "Bearer "+m.token()); w.Code != want {
				t.Errorf("status %d, want %d: %s", w.Code, want, w.Body)
			}
		})
	}
	wg.Wait()
	if n := keys.asked.Load(); n != 1 {
		t.Errorf("the key server was asked %d times", n)
	}
}

// TestOIDCCron: the header of App Engine's cron is believed where the front end removes it from other requests.
func TestOIDCCron(t *testing.T) {
	s, keys, _, _ := newOIDC(t, func(a *handlers.Auth) { a.AppEngine, a.Platform = true, "app-engine" })
	if w := get(s, "/targets", "X-Appengine-Cron", "true"); w.Code != 200 || keys.asked.Load() != 0 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if w := get(s, "/targets"); w.Code != 401 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// FuzzIDToken: nothing that is not signed is let in, whatever it looks like.
func FuzzIDToken(f *testing.F) {
	s, _, _, good := newOIDC(f, nil)
	f.Add(good.unsigned() + ".")
	f.Add(good.head("alg", "none").unsigned() + ".")
	f.Add(hmacToken(good, []byte("k")))
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		if w := get(s, "/targets", "Authorization", "Bearer "+token); w.Code != 401 {
			t.Errorf("status %d for %q: %s", w.Code, token, w.Body)
		}
	})
}
