package store

import (
	"net/url"
	"testing"

	"nsop/bench"
	"nsop/bench/storetest"
)

var clusterClients = []string{"go-redis", "rueidis"}

func parseTarget(t testing.TB, rawURL string) *bench.Target {
	t.Helper()
	target, err := Parse("redis", rawURL, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestClusterStores(t *testing.T) {
	plain := storetest.Cluster(t)
	secure := storetest.ClusterTLS(t, "--requirepass", "secret", "--masterauth", "secret")
	for _, server := range []struct{ name, url string }{
		{"plain", "redis+cluster://" + plain[1].Addr},
		{"tls", "valkeys+cluster://:secret@" + secure[2].Addr + "?ca=" + url.QueryEscape(secure[0].CA)},
	} {
		session := connect(t, server.url)
		for _, client := range clusterClients {
			t.Run(server.name+"/"+client, func(t *testing.T) {
				storetest.TestNodes(t, len(plain), func(t *testing.T, o bench.Options) bench.Store {
					s, err := session.Open(t.Context(), client, o)
					if err != nil {
						t.Fatal(err)
					}
					return s
				})
			})
		}
	}
}
