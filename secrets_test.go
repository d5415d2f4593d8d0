package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"nsop/bench/storetest"
)

// A fakeGoogle stands in for the metadata server and for Secret Manager.
type fakeGoogle struct {
	url   string
	asked sync.Map                    // path -> *atomic.Int32
	token func(w http.ResponseWriter) // answers for the metadata server
	serve map[string]http.HandlerFunc // Secret Manager, by path
}

const googleToken = "ya29.access-token-of-the-test"

func newFakeGoogle(t *testing.T) *fakeGoogle {
	g := &fakeGoogle{serve: map[string]http.HandlerFunc{}, token: func(w http.ResponseWriter) {
		fmt.Fprintf(w, `{"access_token":%q,"expires_in":3599,"token_type":"Bearer"}`, googleToken)
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := g.asked.LoadOrStore(r.URL.Path, new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
		if r.URL.Path == "/computeMetadata/v1/instance/service-accounts/default/token" {
			if r.Header.Get("Metadata-Flavor") != "Google" {
				http.Error(w, "no flavor", http.StatusForbidden)
				return
			}
			g.token(w)
			return
		}
		if r.Header.Get("Authorization") != "Bearer "+googleToken {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		if h := g.serve[r.URL.Path]; h != nil {
			h(w, r)
			return
		}
		apiError(http.StatusNotFound, "NOT_FOUND", "Secret [projects/1/secrets/s] not found or has no versions.\n(second line)")(w, r)
	}))
	t.Cleanup(server.Close)
	g.url = server.URL
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	return g
}

// secret lets Secret Manager answer value at path, which is name:access.
func (g *fakeGoogle) secret(name, version, value string) {
	g.serve["/v1/"+name+":access"] = func(w http.ResponseWriter, _ *http.Request) {
		sum := crc32.Checksum([]byte(value), crc32.MakeTable(crc32.Castagnoli))
		_ = json.NewEncoder(w).Encode(map[string]any{"name": version, "payload": map[string]any{
			"data": base64.StdEncoding.EncodeToString([]byte(value)), "dataCrc32c": fmt.Sprint(sum)}})
	}
}

func (g *fakeGoogle) times(path string) int32 {
	n, ok := g.asked.Load(path)
	if !ok {
		return 0
	}
	return n.(*atomic.Int32).Load()
}

func apiError(code int, status, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": code, "status": status, "message": message}})
	}
}

// TestSecrets: a variable that names a secret has its value; one that can't be read is one line, and never secret.
func TestSecrets(t *testing.T) {
	const (
		hidden = "hunter2-of-secret-manager"
		latest = "projects/p-1/secrets/S_1/versions/latest"
	)
	redis := storetest.Redis(t, "--requirepass", hidden)
	type env = map[string]string
	for _, test := range []struct {
		name  string
		env   env
		setup func(*fakeGoogle)
		want  string // the error; empty: the store answers
	}{
		{"latest", env{"REDIS_ADDR": redis.Addr, "REDIS_PASSWORD": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) { g.secret(latest, "projects/1/secrets/S_1/versions/7", hidden) }, ""},
		{"version", env{"REDIS_ADDR": redis.Addr, "REDIS_PASSWORD": "sm://projects/p-1/secrets/S_1/versions/3"},
			func(g *fakeGoogle) { g.secret("projects/p-1/secrets/S_1/versions/3", "v", hidden) }, ""},
		{"a line feed at the end", env{"REDIS_ADDR": redis.Addr, "REDIS_PASSWORD": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) { g.secret(latest, "v", hidden+"\n") }, ""},
		{"a whole URL", env{"REDIS_URL": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) { g.secret(latest, "v", "redis://:"+hidden+"@"+redis.Addr) }, ""},
		{"of a domain's project", env{"REDIS_ADDR": redis.Addr, "REDIS_PASSWORD": "sm://projects/example.com:p/secrets/s"},
			func(g *fakeGoogle) { g.secret("projects/example.com:p/secrets/s/versions/latest", "v", hidden) }, ""},
		{"after two failures", env{"REDIS_ADDR": redis.Addr, "REDIS_PASSWORD": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) {
				g.secret(latest, "v", hidden)
				right, failures := g.serve["/v1/"+latest+":access"], 0
				g.serve["/v1/"+latest+":access"] = func(w http.ResponseWriter, r *http.Request) {
					if failures++; failures <= 2 {
						apiError(503, "UNAVAILABLE", "try again")(w, r)
						return
					}
					right(w, r)
				}
			}, ""},

		{"no such secret", env{"AUTH": "token", "AUTH_TOKEN": "sm://projects/p/secrets/s"}, nil,
			"AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: Secret [projects/1/secrets/s] not found or has no versions. (second line)"},
		{"not allowed", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) {
				g.serve["/v1/projects/p/secrets/s/versions/latest:access"] = apiError(403, "PERMISSION_DENIED", "Permission 'secretmanager.versions.access' denied")
			}, "AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: Permission 'secretmanager.versions.access' denied (the service account needs roles/secretmanager.secretAccessor)"},
		{"disabled", env{"AUTH_TOKEN": "sm://projects/p/secrets/s/versions/2"},
			func(g *fakeGoogle) {
				g.serve["/v1/projects/p/secrets/s/versions/2:access"] = apiError(400, "FAILED_PRECONDITION", "Secret Version [projects/1/secrets/s/versions/2] is in DISABLED state.")
			}, "AUTH_TOKEN: read secret projects/p/secrets/s/versions/2: Secret Version [projects/1/secrets/s/versions/2] is in DISABLED state."},
		{"down", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) {
				g.serve["/v1/projects/p/secrets/s/versions/latest:access"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }
			}, "AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: the server answers 502 Bad Gateway"},
		{"a redirect", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) {
				g.serve["/v1/projects/p/secrets/s/versions/latest:access"] = func(w http.ResponseWriter, r *http.Request) {
					http.Redirect(w, r, "http://"+redis.Addr, http.StatusFound)
				}
			}, "AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: the server answers 302 Found"},
		{"damaged", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) {
				g.serve["/v1/projects/p/secrets/s/versions/latest:access"] = func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprint(w, `{"name":"v","payload":{"data":"aHVudGVyMg==","dataCrc32c":"1"}}`)
				}
			}, "AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: the answer is damaged: its checksum is another"},
		{"empty", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) { g.secret("projects/p/secrets/s/versions/latest", "v", "\n") },
			"AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: the secret is empty"},
		{"no token", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) {
				g.token = func(w http.ResponseWriter) { http.Error(w, "no service account\n<page>", 404) }
			},
			`AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: get access token: ask the metadata server: metadata: GCE metadata "instance/service-accounts/default/token" not defined`},
		{"a token that is none", env{"AUTH_TOKEN": "sm://projects/p/secrets/s"},
			func(g *fakeGoogle) { g.token = func(w http.ResponseWriter) { fmt.Fprint(w, `{"access_token":""}`) } },
			"AUTH_TOKEN: read secret projects/p/secrets/s/versions/latest: get access token: the metadata server's answer holds no access token"},
		{"a value that is wrong", env{"AUTH": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) { g.secret(latest, "v", hidden) }, "AUTH: what sm://projects/p-1/secrets/S_1 holds is not a right value"},
		{"a port", env{"PORT": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) { g.secret(latest, "v", hidden) }, "PORT: what sm://projects/p-1/secrets/S_1 holds is not a right value"},
		{"limits", env{"LIMITS": "sm://projects/p-1/secrets/S_1"},
			func(g *fakeGoogle) { g.secret(latest, "v", hidden) }, "LIMITS: what sm://projects/p-1/secrets/S_1 holds is not a right value"},
		{"URL, no project", env{"AUTH_TOKEN": "sm://secrets/s"}, nil, "AUTH_TOKEN: want sm://projects/PROJECT/secrets/SECRET[/versions/VERSION]"},
		{"URL, version 0", env{"AUTH_TOKEN": "sm://projects/p/secrets/s/versions/0"}, nil, "AUTH_TOKEN: want sm://projects/PROJECT/secrets/SECRET[/versions/VERSION]"},
		{"URL, no version", env{"AUTH_TOKEN": "sm://projects/p/secrets/s/versions/"}, nil, "AUTH_TOKEN: want sm://projects/PROJECT/secrets/SECRET[/versions/VERSION]"},
		{"URL, a way up", env{"AUTH_TOKEN": "sm://projects/../secrets/s"}, nil, "AUTH_TOKEN: want sm://projects/PROJECT/secrets/SECRET[/versions/VERSION]"},
		{"URL, a query", env{"AUTH_TOKEN": "sm://projects/p/secrets/s?x=" + hidden}, nil, "AUTH_TOKEN: want sm://projects/PROJECT/secrets/SECRET[/versions/VERSION]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newFakeGoogle(t)
			if test.setup != nil {
				test.setup(g)
			}
			test.env[endpointVariable] = g.url
			stdout, stderr, err := command(t, test.env, "/bench/redis/get?benchtime=5x&client=floor")
			if test.want == "" {
				if err != nil {
					t.Errorf("%v: %s%s", err, stdout, stderr)
				}
			} else {
				wrong := (*usageError)(nil)
				if !errors.As(err, &wrong) || wrong.text != test.want {
					t.Errorf("%q\nwant\n%q", err, test.want)
				}
			}
			if all := fmt.Sprint(stdout, stderr, err); strings.Contains(all, hidden) || strings.Contains(all, googleToken) {
				t.Errorf("a secret in %s", all)
			}
		})
	}
}

// TestSecretsAtStart: each secret is read once, with one token, and the log says which version of it.
func TestSecretsAtStart(t *testing.T) {
	g := newFakeGoogle(t)
	g.secret("projects/p/secrets/token/versions/latest", "projects/1/secrets/token/versions/7", "hunter2")
	env := map[string]string{"AUTH": "token", "AUTH_TOKEN": "sm://projects/p/secrets/token", "REDIS_ADDR": "h:1", "REDIS_PASSWORD": "sm://projects/p/secrets/token", endpointVariable: g.url}
	s := newSecrets(t.Context(), func(name string) string { return env[name] })
	config, _, err := configure(s.getenv)
	if err = s.explain(err); err != nil {
		t.Fatal(err)
	}
	if config.Auth.Token != "hunter2" {
		t.Errorf("token %q", config.Auth.Token)
	}
	if got := fmt.Sprint(s.versions); got != "[AUTH_TOKEN is projects/1/secrets/token/versions/7]" && got != "[REDIS_PASSWORD is projects/1/secrets/token/versions/7]" {
		t.Error(got)
	}
	if a, b := g.times("/v1/projects/p/secrets/token/versions/latest:access"), g.times("/computeMetadata/v1/instance/service-accounts/default/token"); a != 1 || b != 1 {
		t.Errorf("asked for %d secrets and %d tokens", a, b)
	}
}

// TestSecretVersions: a service says in its log which version of a secret it has.
func TestSecretVersions(t *testing.T) {
	g := newFakeGoogle(t)
	g.secret("projects/p/secrets/token/versions/latest", "projects/1/secrets/token/versions/7", "hunter2")
	env := map[string]string{"AUTH": "token", "AUTH_TOKEN": "sm://projects/p/secrets/token", "PORT": "0", endpointVariable: g.url}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, nil, func(name string) string { return env[name] }, io.Discard, w)
		w.Close()
	}()
	lines := bufio.NewScanner(log)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
		if strings.Contains(lines.Text(), "listening") {
			cancel()
		}
	}
	if err := <-ended; err != nil || len(all) != 2 || all[0] != "nsop: AUTH_TOKEN is projects/1/secrets/token/versions/7" {
		t.Errorf("%v: %q", err, all)
	}
}

// TestOIDCVariables: the lists of AUTH=oidc, and the key server, which no variable names.
func TestOIDCVariables(t *testing.T) {
	env := map[string]string{"AUTH": "oidc", "AUTH_AUDIENCE": "https://a.run.app, b", "AUTH_EMAILS": " x@example.com\ty@example.com,z@example.com ", "GAE_ENV": "standard"}
	config, _, err := configure(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	a := config.Auth
	if got := fmt.Sprintf("%q %q", a.OIDC.Audiences, a.OIDC.Emails); got != `["https://a.run.app" "b"] ["x@example.com" "y@example.com" "z@example.com"]` {
		t.Error(got)
	}
	if !a.AppEngine || a.OIDC.KeysURL != "https://www.googleapis.com/oauth2/v3/certs" {
		t.Errorf("%+v", a)
	}
}
