package handlers

import (
	"testing"
	"time"
)

// FuzzParseKeys: a set of keys is read or refused, and what is read can verify.
func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"a","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"a","alg":"RS256","use":"sig","n":"_____w","e":""}]}`))
	f.Add([]byte(`{"keys":[{"kty":"EC","kid":"b"}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, err := parseKeys(body)
		if (err == nil) != (len(keys) > 0) {
			t.Errorf("%d keys and %v", len(keys), err)
		}
		for _, k := range keys {
			if k.N.BitLen() < minKeyBits || k.E < 3 {
				t.Errorf("a key of %d bits, exponent %d", k.N.BitLen(), k.E)
			}
		}
	})
}

func TestMaxAge(t *testing.T) {
	for control, want := range map[string]time.Duration{
		"": keysMinAge, "no-store": keysMinAge, "max-age=0": keysMinAge, "max-age=x": keysMinAge, "max-age=-1": keysMinAge,
		"public, max-age=19800, must-revalidate, no-transform": 19800 * time.Second, "Max-Age=7200": 2 * time.Hour,
		"max-age=99999999": keysMaxAge, "max-age=1h": keysMinAge,
	} {
		if got := maxAge(control); got != want {
			t.Errorf("%q: %v, want %v", control, got, want)
		}
	}
}
