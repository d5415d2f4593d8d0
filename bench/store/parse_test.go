package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nsop/bench/storetest"
)

func TestParse(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	if err := os.WriteFile(junk, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := storetest.RedisTLS(t) // for its certificates
	env := func(name string) string {
		return map[string]string{"CA": server.CAPEM, "JUNK": "nothing"}[name]
	}
	good := []struct {
		url, password string
		address       string
		tls           bool
	}{
		{"redis://h", "", "h:6379", false},
		{"redis://h/", "", "h:6379", false},
		{"REDIS://h:1/15", "", "h:1", false},
		{"valkey://10.0.0.3:6379/0", "", "10.0.0.3:6379", false},
		{"redis://[::1]:7/0", "", "[::1]:7", false},
		{"redis://[::1]", "", "[::1]:6379", false},
		{"redis://:secret@h:1", "", "h:1", false},
		{"redis://:secret@h:1", "secret", "h:1", false},
		{"redis://u:secret@h:1", "", "h:1", false},
		{"redis://u@h:1", "secret", "h:1", false},
		{"redis://:s%40%2F%3F%23@h:1/2", "", "h:1", false},
		{"rediss://h", "", "h:6379", true},
		{"valkeys://h:2/1?ca=" + server.CA, "", "h:2", true},
		{"rediss://h?ca_env=CA", "", "h:6379", true},
		{"valkey://h?auth=iam", "", "h:6379", false},
		{"rediss://h/2?auth=iam&ca_env=CA", "", "h:6379", true},
	}
	for _, test := range good {
		target, err := Parse("x", test.url, test.password, env)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		if target.Name != "x" || target.Kind != "redis" || target.Address != test.address || target.TLS != test.tls || target.Embedded {
			t.Errorf("%s: %+v", test.url, target)
		}
		if len(target.Clients) != 4 || len(target.Default) != 2 || target.Connect == nil {
			t.Errorf("%s: clients %+v, by default %v", test.url, target.Clients, target.Default)
		}
	}
	bad := []struct{ url, password, want string }{
		{"", "", "no scheme"},
		{"h:6379", "", "no scheme"},
		{"secret", "", "no scheme"},
		{"secret:secret@h", "", "no scheme"},
		{"http://h", "", `unknown scheme "http"`},
		{"mongodb://h", "", `unknown scheme "mongodb"`},
		{"redis:h", "", "//"},
		{"redis:secret@h", "", "//"},
		{"redis://", "", "one host"},
		{"redis://:6379", "", "one host"},
		{"redis://:secret@", "", "one host"},
		{"redis://a,b", "", "one host"},
		{"redis://h:0", "", "port"},
		{"redis://h:65536", "", "port"},
		{"redis://h:x", "", "port"},
		{"redis://h/x", "", "database"},
		{"redis://h/-1", "", "database"},
		{"redis://h/1/2", "", "database"},
		{"redis://h/99999999999", "", "database"},
		{"redis://h?db=1", "", `"db"`},
		{"redis://h?password=secret", "", `"password"`},
		{"redis://h?ca=x", "", "TLS"},
		{"redis://h#1", "", "fragment"},
		{"redis://h?%zz", "", "query"},
		{"rediss://h?ca=", "", "ca=FILE"},
		{"rediss://h?ca=a&ca=b", "", "ca=FILE"},
		{"rediss://h?ca=a&ca_env=CA", "", "ca=FILE"},
		{"rediss://h?ca=/nonexistent/file", "", "no such file"},
		{"rediss://h?ca=" + junk, "", "no certificate"},
		{"redis://h?auth=IAM", "", "want iam"},
		{"redis://h?auth=", "", "want iam"},
		{"redis://h?auth=iam&auth=iam", "", "want iam"},
		{"redis://h?auth=iam&ca=f", "", "ca is for rediss"},
		{"redis://h?auth=iam", "secret", "leave yours out"},
		{"redis://u:secret@h?auth=iam", "", "leave yours out"},
		{"redis://h?iam=secret", "", "want auth, ca or ca_env"},
		{"rediss://h?ca_env=ABSENT", "", "empty"},
		{"rediss://h?ca_env=JUNK", "", "no certificate"},
		{"redis://u@h", "", "without a password"},
		{"redis://:secret@h", "secret2", "REDIS_PASSWORD"},
		{"redis://:secret/@h:6379", "", "percent-encoded"},
		{"redis://:12/secret@h:6379", "", "percent-encoded"},
		{"redis://u:12?secret@h:6379", "", "percent-encoded"},
		{"redis://u:12#secret@h:6379", "", "percent-encoded"},
		{"redis://u:sec@ret/secret@h:6379", "", "percent-encoded"},
		{"redis://u:%zzsecret@h:6379", "", "percent-encoded"},
		{"redis://u:secret @h:6379", "", "percent-encoded"},
		{"embedded:", "", "embedded"},
		{"embedded:secret", "", "embedded"},
	}
	for _, test := range bad {
		_, err := Parse("x", test.url, test.password, env)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s: error %v; want %q and what is allowed", test.url, err, test.want)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%s: error %q", test.url, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, scheme := range []string{"redis", "rediss", "valkey", "embedded", "http", ""} {
		f.Add(scheme, "u", "p", "h:6379/1?ca=x", "other")
	}
	f.Add("redis", "u/", "p?", "h", "")
	f.Add("redis", "%zz", "\n", "h:x", "")
	f.Fuzz(func(t *testing.T, scheme, user, rest, host, password string) {
		const secret = "s3cr3t-of-the-test"
		if strings.Contains(scheme+user+rest+host, "s3cr3t") {
			return
		}
		for _, rawURL := range []string{
			scheme + "://" + user + ":" + secret + rest + "@" + host,
			scheme + "://" + user + secret + "@" + host,
			scheme + ":" + user + ":" + secret + "@" + host,
		} {
			_, err := Parse("x", rawURL, password+secret, noEnv)
			if err != nil && (strings.Contains(err.Error(), secret) || strings.ContainsAny(err.Error(), "\r\n")) {
				t.Errorf("%q: error %q", rawURL, err)
			}
		}
	})
}
