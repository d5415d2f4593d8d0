package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"nsop/bench"
	"nsop/bench/storetest"
)

var bankNames = []string{"pgx", "database-sql"}

func newRun(t testing.TB) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// runAt is the name of a run that began then.
func runAt(t testing.TB, began time.Time) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		id[i] = byte(began.UnixMilli() >> (40 - 8*i))
	}
	return id.String()
}

func openBank(t testing.TB, session bench.Session, client string, o bench.Options) bench.Store {
	t.Helper()
	s, err := session.Open(t.Context(), client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// schemas are those of the server that are not its own.
func schemas(t testing.TB, server *storetest.PostgresServer) []string {
	t.Helper()
	return server.Query(t, `SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY 1`)
}

// deserted waits until nobody but the asking is connected.
func deserted(t testing.TB, server *storetest.PostgresServer) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if left = server.Query(t, `SELECT usename || ' ' || query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`); len(left) == 0 {
			return
		}
	}
	t.Errorf("still connected: %q", left)
}

func TestBanks(t *testing.T) {
	for _, server := range []struct {
		name string
		o    storetest.PostgresOptions
	}{
		{"trust", storetest.PostgresOptions{}},
		{"tls", storetest.PostgresOptions{Password: "p@ss/word?", TLS: true}},
	} {
		s := storetest.Postgres(t, server.o)
		for _, client := range bankNames {
			t.Run(server.name+"/"+client, func(t *testing.T) {
				session, run := connect(t, s.URL("postgres", server.o.Password, "postgres")), newRun(t)
				storetest.TestBank(t, run, func(t *testing.T, o bench.Options) bench.Store {
					return openBank(t, session, client, o)
				})
				if got := session.Server(); !strings.HasPrefix(got.Version, "PostgreSQL 1") || got.Mode != "primary" || got.Free != -1 || got.RoundTrip <= 0 {
					t.Errorf("Server %+v", got)
				}
				if _, err := session.Counters(t.Context(), ""); !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("Counters: %v", err)
				}
				if err := session.Ping(t.Context()); err != nil {
					t.Error(err)
				}
				if got := schemas(t, s); !slices.Equal(got, []string{"nsop_" + run, "public"}) {
					t.Errorf("schemas while the session is open: %q", got)
				}
				if err := session.Close(); err != nil {
					t.Error(err)
				}
				if got := schemas(t, s); !slices.Equal(got, []string{"public"}) {
					t.Errorf("schemas afterwards: %q", got)
				}
				deserted(t, s)
			})
		}
	}
}

func TestPostgresTargets(t *testing.T) {
	const secret = "hunter2"
	ca := "?sslmode=verify-full&ca_env=PEM"
	env := func(name string) string { return map[string]string{"BAD": "no pem"}[name] }
	for _, c := range []struct {
		url, password string
		address       string
		tls           bool
		want          string // of the error
	}{
		{url: "postgres://u:hunter2@db/x", address: "db:5432"},
		{url: "postgresql://u:hunter2@[::1]:6000", address: "[::1]:6000"},
		{url: "POSTGRES://u@db/x", password: secret, address: "db:5432"},
		{url: "postgres://u:hunter2@db/x", password: secret, address: "db:5432"},
		{url: "postgres://u:hunter2@db/x?sslmode=require", address: "db:5432", tls: true},
		{url: "postgres://u:hunter2@db/x?sslmode=disable", address: "db:5432"},
		{url: "postgres://u:hunter2@db/x?sslmode=verify-ca", address: "db:5432", tls: true},
		{url: "postgres://u:other@db/x", password: secret, want: "different passwords"},
		{url: "postgres:u:hunter2@db/x", want: "// is missing"},
		{url: "postgres://db/x", want: "user name"},
		{url: "postgres://:hunter2@db/x", want: "user name"},
		{url: "postgres://u:hunter2@/x", want: "one host"},
		{url: "postgres://u:hunter2@a,b/x", want: "one host"},
		{url: "postgres://u:hunter2@db:0/x", want: "65535"},
		{url: "postgres://u:hunter2@db:99999/x", want: "65535"},
		{url: "postgres://u:hunter2@db:hunter2/x", want: "does not parse"},
		{url: "postgres://u:hunter2@db/x/y", want: "one database"},
		{url: "postgres://u:hunter2@db/x#y", want: "fragment"},
		{url: "postgres://u:hunter2/@db/x", want: "percent-encoded"},
		{url: "postgres://u:hunter2?@db/x", want: "percent-encoded"},
		{url: "postgres://u:hun%ter2@db/x", want: "percent-encoded"},
		{url: "postgres://u:hunter2@db/x?sslmode=prefer", want: "disable, require, verify-ca, verify-full"},
		{url: "postgres://u:hunter2@db/x?sslmode=disable&sslmode=require", want: "once"},
		{url: "postgres://u:hunter2@db/x?sslmode=", want: "value"},
		{url: "postgres://u:hunter2@db/x?pool_max_conns=4", want: "sslmode, sslrootcert, ca or ca_env"},
		{url: "postgres://u:hunter2@db/x?sslmode=disable&ca_env=PEM", want: "no use"},
		{url: "postgres://u:hunter2@db/x" + ca, want: "empty"},
		{url: "postgres://u:hunter2@db/x?ca_env=BAD", want: "PEM"},
		{url: "postgres://u:hunter2@db/x?ca=a&sslrootcert=b", want: "one of"},
		{url: "postgres://u:hunter2@db/x?ca=/nonexistent", want: "no such file"},
	} {
		target, err := Parse("pg", c.url, c.password, env)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want %q and no password", c.url, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if target.Kind != "postgres" || target.Address != c.address || target.TLS != c.tls || target.Embedded || target.Syncs ||
			!slices.Equal(target.Default, []string{"pgx"}) || len(target.Clients) != 2 || target.Clients[0].Version != version("github.com/jackc/pgx/v5") {
			t.Errorf("%s: %+v", c.url, target)
		}
	}
}

func FuzzPostgresURL(f *testing.F) {
	f.Add("//u:p@h:1/d?sslmode=require", "p")
	f.Add("//u@[::1]/%00?ca=x", "")
	f.Fuzz(func(t *testing.T, rest, password string) {
		e, database, err := parsePostgresURL(scheme{name: "postgres"}, rest, password, noEnv)
		if err == nil && (e.user == "" || database == "" || e.addr == "") {
			t.Errorf("%q: %+v %q", rest, e, database)
		}
	})
}

// One operation is as many round trips as in pgbench, in every protocol, from the first measured one on.
func TestRoundTripsOfScripts(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	proxy := storetest.Proxy(t, server.Addr, storetest.ProxyOptions{})
	session, run := connect(t, "postgres://postgres@"+proxy.Addr+"/postgres"), newRun(t)
	for _, client := range bankNames {
		for _, protocol := range []string{"simple", "extended", "prepared"} {
			t.Run(client+"/"+protocol, func(t *testing.T) {
				s := openBank(t, session, client, bench.Options{Connections: 1, Timeout: 20 * time.Second, Protocol: protocol})
				defer s.Close()
				bank := s.(bench.Bank)
				if err := bank.Load(t.Context(), run, 1); err != nil {
					t.Fatal(err)
				}
				own := s.(bench.Dedicated).Dedicate(0).(bench.Bank)
				for i := range 3 {
					for _, c := range []struct {
						name string
						want int
						do   func() error
					}{
						{"tpcb", 7, func() error {
							return own.Transfer(t.Context(), bench.Transfer{Account: 1 + i, Branch: 1, Teller: 1, Delta: -5}, false)
						}},
						{"simple-update", 5, func() error {
							return own.Transfer(t.Context(), bench.Transfer{Account: 1 + i, Branch: 1, Teller: 1, Delta: 5}, true)
						}},
						{"select", 1, func() error { _, err := own.Balance(t.Context(), 1+i); return err }},
					} {
						before := proxy.RoundTrips()
						if err := c.do(); err != nil {
							t.Fatalf("%s: %v", c.name, err)
						}
						if got := proxy.RoundTrips() - before; got != c.want {
							t.Errorf("%s the %d. time: %d round trips, want %d", c.name, i+1, got, c.want)
						}
					}
				}
				if got, settings := s.Info().Connections, s.Info().Settings; got != 1 || settings["protocol"] != protocol {
					t.Errorf("%d connections, %v", got, settings)
				}
			})
		}
	}
}

// The tables are those that pgbench -i makes, down to the fill factor.
func TestTables(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	out, err := exec.Command(storetest.PostgresProgram(t, "pgbench"), "-h", "127.0.0.1", "-p", strconv.Itoa(server.Port), "-U", "postgres", "-i", "-q", "-s", "2", "postgres").CombinedOutput()
	if err != nil {
		t.Fatalf("pgbench: %v\n%s", err, out)
	}
	session, run := connect(t, server.URL("postgres", "", "postgres")), newRun(t)
	bank := openBank(t, session, "pgx", bench.Options{Connections: 2, Timeout: 20 * time.Second, Protocol: "simple"}).(bench.Bank)
	for range 2 {
		if err := bank.Load(t.Context(), run, 2); err != nil {
			t.Fatal(err)
		}
	}
	schema := "nsop_" + run
	same := func(what, query string) {
		t.Helper()
		ours, theirs := server.Query(t, strings.ReplaceAll(query, "SCHEMA", schema)), server.Query(t, strings.ReplaceAll(query, "SCHEMA", "public"))
		if !slices.Equal(ours, theirs) || len(ours) == 0 {
			t.Errorf("%s: %q, pgbench has %q", what, ours, theirs)
		}
	}
	same("columns", `SELECT concat_ws(' ', relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull) FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
		WHERE relnamespace = '"SCHEMA"'::regnamespace AND attnum > 0 AND relkind = 'r' ORDER BY 1`)
	same("options", `SELECT concat_ws(' ', relname, relkind, relpersistence, reloptions, relpages > 0, greatest(reltuples, 0)) FROM pg_class WHERE relnamespace = '"SCHEMA"'::regnamespace ORDER BY 1`)
	same("keys", `SELECT replace(pg_get_indexdef(indexrelid), '"', '') LIKE '%UNIQUE INDEX%pkey%' || indkey::text FROM pg_index i JOIN pg_class c ON c.oid = indrelid
		WHERE relnamespace = '"SCHEMA"'::regnamespace ORDER BY relname`)
	for _, table := range []string{"accounts", "tellers", "branches", "history"} {
		same(table, `SELECT concat(count(*), ' ', md5(coalesce(string_agg(r::text, ',' ORDER BY r::text), ''))) FROM "SCHEMA".pgbench_`+table+` r`)
	}
	if err := bank.Load(t.Context(), newRun(t), 2); err == nil {
		t.Error("a session takes the tables of a second run")
	}
	if err := bank.Load(t.Context(), run, 1); err != nil {
		t.Fatal(err)
	}
	if got := server.Query(t, `SELECT count(*) FROM "`+schema+`".pgbench_branches`); got[0] != "1" {
		t.Errorf("%s branches at scale 1", got[0])
	}
}

// An ordinary role gets 97 of 100 connections, and workers can have all of them, one row after the other.
func TestEveryConnection(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Password: "secret", Settings: []string{"max_connections=100"}})
	server.Exec(t, "CREATE ROLE bench LOGIN PASSWORD 'hunter2'", "GRANT CREATE ON DATABASE postgres TO bench")
	session, run := connect(t, server.URL("bench", "hunter2", "postgres")), newRun(t)
	for _, client := range []string{"pgx", "database-sql", "pgx"} {
		s := openBank(t, session, client, bench.Options{Connections: 97, Timeout: 20 * time.Second, Protocol: "prepared"})
		if err := s.(bench.Bank).Load(t.Context(), run, 1); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for worker := range 97 {
			own := s.(bench.Dedicated).Dedicate(worker).(bench.Bank)
			wg.Go(func() {
				if err := own.Transfer(t.Context(), bench.Transfer{Account: 1 + worker, Branch: 1, Teller: 1, Delta: worker}, false); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := s.Info().Connections; n != 97 {
			t.Errorf("%d connections", n)
		}
		s.Close()
	}
	for _, client := range bankNames {
		_, err := session.Open(t.Context(), client, bench.Options{Connections: 98, Timeout: 20 * time.Second, Protocol: "prepared"})
		if bench.Kind(err) != "maxclients" || !strings.Contains(err.Error(), "max_connections is 100") || !strings.Contains(err.Error(), "gets 97") {
			t.Errorf("%s with 98 connections: %v (%s)", client, err, bench.Kind(err))
		}
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	deserted(t, server)
	if got := schemas(t, server); !slices.Equal(got, []string{"public"}) {
		t.Errorf("left: %q", got)
	}
}

func TestPostgresRefusals(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Password: "secret", Settings: []string{"wal_level=replica"}})
	server.Exec(t, "CREATE ROLE plain LOGIN PASSWORD 'hunter2'", "CREATE ROLE reader LOGIN SUPERUSER PASSWORD 'hunter2'",
		"ALTER ROLE reader SET default_transaction_read_only = on", "CREATE ROLE locked PASSWORD 'hunter2'")
	for _, c := range []struct{ name, url, kind string }{
		{"wrong password", server.URL("plain", "hunter3", "postgres"), "auth"},
		{"no password", server.URL("plain", "", "postgres"), "auth"},
		{"no such role", server.URL("nobody", "hunter2", "postgres"), "auth"},
		{"no login", server.URL("locked", "hunter2", "postgres"), "auth"},
		{"no database", server.URL("plain", "hunter2", "nothing"), "other"},
		{"no TLS", server.URL("plain", "hunter2", "postgres") + "?sslmode=require", "tls"},
		{"nobody there", "postgres://plain:hunter2@127.0.0.1:1/postgres", "refused"},
		{"no such host", "postgres://plain:hunter2@nothing.invalid/postgres", "dns"},
	} {
		target, err := Parse("pg", c.url, "", noEnv)
		if err != nil {
			t.Fatal(err)
		}
		session, err := target.Connect(t.Context(), 20*time.Second)
		if err == nil {
			session.Close()
		}
		if err == nil || bench.Kind(err) != c.kind || strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v (%s); want kind %s", c.name, err, bench.Kind(err), c.kind)
		}
	}
	for _, c := range []struct{ role, kind string }{{"plain", "noperm"}, {"reader", "readonly"}} {
		for _, client := range bankNames {
			session := connect(t, server.URL(c.role, "hunter2", "postgres"))
			s := openBank(t, session, client, bench.Options{Connections: 2, Timeout: 20 * time.Second, Protocol: "prepared"})
			err := s.(bench.Bank).Load(t.Context(), newRun(t), 1)
			if bench.Kind(err) != c.kind {
				t.Errorf("%s through %s: %v (%s); want kind %s", c.role, client, err, bench.Kind(err), c.kind)
			}
			if err := session.Close(); err != nil {
				t.Errorf("%s: %v", c.role, err)
			}
		}
	}
	if got := schemas(t, server); !slices.Equal(got, []string{"public"}) {
		t.Errorf("left: %q", got)
	}
}

func TestStandby(t *testing.T) {
	primary := storetest.Postgres(t, storetest.PostgresOptions{})
	standby := storetest.Standby(t, primary)
	session := connect(t, standby.URL("postgres", "", "postgres"))
	if mode := session.Server().Mode; mode != "standby" {
		t.Errorf("mode %s", mode)
	}
	if runs, err := session.(bench.Registry).Registered(t.Context()); err != nil || len(runs) != 0 {
		t.Errorf("Registered: %v, %v", runs, err)
	}
	s := openBank(t, session, "pgx", bench.Options{Connections: 1, Timeout: 20 * time.Second, Protocol: "prepared"})
	if err := s.(bench.Bank).Load(t.Context(), newRun(t), 1); bench.Kind(err) != "readonly" {
		t.Errorf("Load: %v (%s)", err, bench.Kind(err))
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
}

func TestFullDisk(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Disk: 100 << 20, Settings: []string{"max_wal_size=32MB", "min_wal_size=32MB"}})
	if !server.Limited {
		server.Exec(t, `CREATE FUNCTION full_disk() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'No space left on device' USING ERRCODE = '53100'; END $$`,
			`CREATE EVENT TRIGGER full_disk ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION full_disk()`)
	}
	session, run := connect(t, server.URL("postgres", "", "postgres")), newRun(t)
	s := openBank(t, session, "pgx", bench.Options{Connections: 2, Timeout: 60 * time.Second, Protocol: "prepared"})
	err := s.(bench.Bank).Load(t.Context(), run, 20)
	if bench.Kind(err) != "oom" {
		t.Errorf("Load: %v (%s); want kind oom", err, bench.Kind(err))
	}
	s.Close()
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if got := schemas(t, server); !slices.Equal(got, []string{"public"}) {
		t.Errorf("left: %q", got)
	}
}

// What a run that was killed left behind is dropped once it is over an hour old, and nothing else is.
func TestLeftBehind(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	server.Exec(t, "CREATE ROLE bench LOGIN", "CREATE ROLE other LOGIN", "GRANT CREATE ON DATABASE postgres TO bench, other")
	now := time.Now()
	old, foreign := runAt(t, now.Add(-61*time.Minute)), runAt(t, now.Add(-24*time.Hour))
	v1, v4 := "c232ab00-9414-11ec-b3c8-9f6bdeced846", "c8c3dc0a-9d6a-4a0f-8a7e-1a2b3c4d5e6f" // v1 is of 2022
	kept := []string{"nsop_history", "nsop_x", "nsop_", "nsop_" + v4, "nsop_" + v1, "nsop_" + runAt(t, now.Add(-59*time.Minute)), "nsop_" + runAt(t, now.Add(24*time.Hour)),
		"nsop_" + strings.ToUpper(old), "nsop_" + old + "_", "nsop_{" + old[1:], "xnsop_" + old, "nsop_" + strings.ReplaceAll(old, "-", ""), old}
	var statements []string
	for _, name := range append(slices.Clone(kept), "nsop_"+old) {
		statements = append(statements, `CREATE SCHEMA "`+name+`" AUTHORIZATION bench`, `CREATE TABLE "`+name+`".pgbench_accounts(aid int)`)
	}
	kept = append(kept, "nsop_"+foreign, "public")
	server.Exec(t, append(statements, `CREATE SCHEMA "nsop_`+foreign+`" AUTHORIZATION other`, "CREATE TABLE public.pgbench_accounts(aid int)", "INSERT INTO public.pgbench_accounts VALUES (7)")...)
	session := connect(t, server.URL("bench", "", "postgres"))
	runs, err := session.(bench.Registry).Registered(t.Context())
	if err != nil || len(runs) != 1 || runs[old] != "" {
		t.Fatalf("Registered: %v, %v; want %s", runs, err, old)
	}
	for _, run := range []string{old, "history", "x", "", v1, v4, strings.ToUpper(old), strings.TrimPrefix(kept[5], "nsop_")} {
		if err := session.(bench.Registry).Unregister(t.Context(), run); err != nil {
			t.Errorf("Unregister %s: %v", run, err)
		}
	}
	s := openBank(t, session, "pgx", bench.Options{Connections: 1, Timeout: 20 * time.Second, Protocol: "prepared"})
	if err := s.(bench.Bank).Load(t.Context(), newRun(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.(bench.Bank).Transfer(t.Context(), bench.Transfer{Account: 7, Branch: 1, Teller: 1, Delta: 1}, false); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	slices.Sort(kept)
	got := schemas(t, server)
	slices.Sort(got)
	if !slices.Equal(got, kept) {
		t.Errorf("schemas %q, want %q", got, kept)
	}
	if got := server.Query(t, "SELECT aid FROM public.pgbench_accounts"); !slices.Equal(got, []string{"7"}) {
		t.Errorf("the user's table: %q", got)
	}
}

// A schema of the run's name that is the user's stays, and so does what is in it.
func TestSchemaTaken(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	run := newRun(t)
	server.Exec(t, `CREATE SCHEMA "nsop_`+run+`"`, `CREATE TABLE "nsop_`+run+`".mine()`)
	session := connect(t, server.URL("postgres", "", "postgres"))
	s := openBank(t, session, "pgx", bench.Options{Connections: 1, Timeout: 20 * time.Second, Protocol: "prepared"})
	if err := s.(bench.Bank).Load(t.Context(), run, 1); err == nil {
		t.Error("a schema that was there is used")
	}
	s.Close()
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if got := server.Query(t, `SELECT count(*) FROM pg_tables WHERE tablename = 'mine'`); got[0] != "1" {
		t.Error("the user's schema is gone")
	}
}

func TestInvariant(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	for _, c := range []struct{ name, damage, want string }{
		{"sound", "", ""},
		{"accounts", "UPDATE SCHEMA.pgbench_accounts SET abalance = abalance + 1 WHERE aid = 5", "the accounts sum up to 4, all deltas to 3"},
		{"tellers", "UPDATE SCHEMA.pgbench_tellers SET tbalance = tbalance + 1 WHERE tid = 5", "tellers sum up to 4, branches to 3"},
		{"branches", "UPDATE SCHEMA.pgbench_branches SET bbalance = bbalance - 1", "tellers sum up to 3, branches to 2"},
		{"both", "UPDATE SCHEMA.pgbench_branches SET bbalance = 9; UPDATE SCHEMA.pgbench_tellers SET tbalance = 9 WHERE tid = 1", "the history moved 3"},
		{"history", "DELETE FROM SCHEMA.pgbench_history", "all deltas to "},
	} {
		for _, when := range []string{"first row", "last row"} {
			session, run := connect(t, server.URL("postgres", "", "postgres")), newRun(t)
			damage := strings.Split(strings.ReplaceAll(c.damage, "SCHEMA", `"nsop_`+run+`"`), "; ")
			// The first row moves 3 everywhere, the second reads, the third moves 40 without tellers and branches.
			for i, row := range []func(b bench.Bank) error{
				func(b bench.Bank) error {
					return b.Transfer(t.Context(), bench.Transfer{Account: 1, Branch: 1, Teller: 1, Delta: 3}, false)
				},
				func(b bench.Bank) error { _, err := b.Balance(t.Context(), 1); return err },
				func(b bench.Bank) error {
					return b.Transfer(t.Context(), bench.Transfer{Account: 2, Branch: 1, Teller: 1, Delta: 40}, true)
				},
			} {
				s := openBank(t, session, bankNames[i%2], bench.Options{Connections: 2, Timeout: 20 * time.Second, Protocol: "extended"})
				if err := errors.Join(s.(bench.Bank).Load(t.Context(), run, 1), row(s.(bench.Bank))); err != nil {
					t.Fatal(err)
				}
				s.Close()
				if c.damage != "" && i == 0 && when == "first row" {
					server.Exec(t, damage...)
				}
			}
			if c.damage != "" && when == "last row" {
				server.Exec(t, damage...)
			}
			err := session.Close()
			want := c.want
			if c.name == "accounts" {
				want = "the accounts sum up to 44, all deltas to 43"
			}
			if c.name == "both" && when == "last row" {
				want = "the history moved 40, the tellers 6"
			}
			switch {
			case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s, damaged after the %s: %v; want %q", c.name, when, err, want)
			}
		}
	}
	if got := schemas(t, server); !slices.Equal(got, []string{"public"}) {
		t.Errorf("left: %q", got)
	}
}

// A connection that failed is dialled again, and a transaction that failed is rolled back.
func TestAfterAnError(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Settings: []string{"lock_timeout=200ms"}})
	for _, client := range bankNames {
		for _, protocol := range []string{"simple", "extended", "prepared"} {
			t.Run(client+"/"+protocol, func(t *testing.T) {
				ctx := t.Context()
				session, run := connect(t, server.URL("postgres", "", "postgres")), newRun(t)
				s := openBank(t, session, client, bench.Options{Connections: 1, Timeout: 20 * time.Second, Protocol: protocol})
				if err := s.(bench.Bank).Load(ctx, run, 1); err != nil {
					t.Fatal(err)
				}
				own := s.(bench.Dedicated).Dedicate(0).(bench.Bank)
				transfer := func(delta int) error {
					return own.Transfer(ctx, bench.Transfer{Account: 1, Branch: 1, Teller: 1, Delta: delta}, false)
				}
				if err := transfer(1); err != nil {
					t.Fatal(err)
				}
				holder, err := pgx.Connect(ctx, server.URL("postgres", "", "postgres"))
				if err != nil {
					t.Fatal(err)
				}
				defer holder.Close(ctx) // again, where the test ends early
				if _, err := holder.Exec(ctx, `BEGIN; LOCK TABLE "nsop_`+run+`".pgbench_branches`); err != nil {
					t.Fatal(err)
				}
				if err := transfer(10); bench.Kind(err) != "timeout" {
					t.Errorf("a locked table: %v (%s)", err, bench.Kind(err))
				}
				if err := holder.Close(ctx); err != nil {
					t.Fatal(err)
				}
				if balance, err := own.Balance(ctx, 1); err != nil || balance != 1 {
					t.Errorf("after a failed transaction: balance %d, %v", balance, err)
				}
				if err := transfer(2); err != nil {
					t.Errorf("after a failed transaction: %v", err)
				}
				server.Query(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'nsop'")
				if err := transfer(10); bench.Kind(err) != "reset" {
					t.Errorf("an ended connection: %v (%s)", err, bench.Kind(err))
				}
				if err := transfer(4); err != nil {
					t.Errorf("after the connection was ended: %v", err)
				}
				if n := s.Info().Connections; n != 1 {
					t.Errorf("%d connections", n)
				}
				if balance, err := own.Balance(ctx, 1); err != nil || balance != 7 {
					t.Errorf("balance %d, %v; want 7", balance, err)
				}
				s.Close()
				if err := session.Close(); err != nil {
					t.Error(err)
				}
				deserted(t, server)
			})
		}
	}
}

func TestPausedPostgres(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	for _, client := range bankNames {
		ctx := t.Context()
		session, run := connect(t, server.URL("postgres", "", "postgres")), newRun(t)
		s := openBank(t, session, client, bench.Options{Connections: 2, Timeout: 20 * time.Second, Protocol: "prepared"})
		if err := s.(bench.Bank).Load(ctx, run, 1); err != nil {
			t.Fatal(err)
		}
		s.Close()
		s = openBank(t, session, client, bench.Options{Connections: 2, Timeout: 2 * time.Second, Protocol: "prepared"})
		if err := s.(bench.Bank).Load(ctx, run, 1); err != nil {
			t.Fatal(err)
		}
		own := s.(bench.Dedicated).Dedicate(0).(bench.Bank)
		server.Pause()
		if err := own.Transfer(ctx, bench.Transfer{Account: 1, Branch: 1, Teller: 1, Delta: 1}, false); bench.Kind(err) != "timeout" {
			t.Errorf("%s: a stopped server: %v (%s)", client, err, bench.Kind(err))
		}
		if _, err := own.Balance(ctx, 1); bench.Kind(err) != "timeout" {
			t.Errorf("%s: a stopped server, dialled again: %v (%s)", client, err, bench.Kind(err))
		}
		asking, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		if err := session.Ping(asking); bench.Kind(err) != "timeout" {
			t.Errorf("%s: Ping of a stopped server: %v (%s)", client, err, bench.Kind(err))
		}
		cancel()
		server.Resume()
		if _, err := own.Balance(ctx, 1); err != nil {
			t.Errorf("%s: after it went on: %v", client, err)
		}
		if err := session.Ping(ctx); err != nil {
			t.Errorf("%s: after it went on: %v", client, err)
		}
		s.Close()
		if err := session.Close(); err != nil {
			t.Errorf("%s: %v", client, err)
		}
		deserted(t, server)
	}
}

// measure runs a plan of a few rows on server.
func measure(ctx context.Context, t *testing.T, rawURL, workloads, query string, observe func(bench.Progress)) (*bench.Report, error) {
	t.Helper()
	target, err := Parse("postgres", rawURL, "", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	limits := bench.DefaultLimits("")
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := bench.ParseSpec(values, limits)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := bench.NewPlan(target, workloads, spec, limits)
	if err != nil {
		t.Fatal(err)
	}
	meter := bench.Meter{CPU: func() (time.Duration, bool) { return 0, false }, Throttled: func() (time.Duration, bool) { return 0, false }}
	return plan.Run(ctx, newRun(t), meter, observe)
}

// A run that its caller ends leaves nothing, and the books balance.
func TestCutOff(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{})
	for _, client := range bankNames {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the client left")
		report, err := measure(ctx, t, server.URL("postgres", "", "postgres"), "tpcb", "concurrency=8&benchtime=30s&client="+client, func(p bench.Progress) {
			if p.Fraction > 0.01 {
				cancel(gone)
			}
		})
		cancel(nil)
		if !errors.Is(err, gone) || len(report.Results) != 1 || report.Results[0].Iterations == 0 {
			t.Errorf("%s: %v, %d results", client, err, len(report.Results))
		}
		if len(report.Warnings) != 0 { // of a broken invariant too
			t.Errorf("%s: %q", client, report.Warnings)
		}
		if got := schemas(t, server); !slices.Equal(got, []string{"public"}) {
			t.Errorf("%s: left %q", client, got)
		}
		deserted(t, server)
	}
}

// A server that is restarted in the middle costs some operations, and one that stays away ends the run with what there is.
func TestRestart(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Fsync: true})
	for _, client := range bankNames {
		for _, kill := range []bool{false, true} {
			name := fmt.Sprintf("%s, killed %t", client, kill)
			var once sync.Once
			report, err := measure(t.Context(), t, server.URL("postgres", "", "postgres"), "tpcb", "concurrency=4&benchtime=4s&timeout=20s&client="+client, func(p bench.Progress) {
				if p.Fraction > 0.1 {
					once.Do(func() {
						if kill {
							server.Kill()
						} else {
							server.Stop()
						}
						if !server.Start(t) {
							t.Error("postgres does not start again")
						}
					})
				}
			})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r := report.Results[0]
			if r.Errors == 0 || r.Iterations == 0 {
				t.Errorf("%s: %d operations, %d errors", name, r.Iterations, r.Errors)
			}
			for kind, sample := range r.ErrorSamples {
				if kind != "reset" && kind != "refused" && kind != "loading" {
					t.Errorf("%s: %s: %s", name, kind, sample)
				}
			}
			if len(report.Warnings) != 0 {
				t.Errorf("%s: %q", name, report.Warnings)
			}
			if got := schemas(t, server); !slices.Equal(got, []string{"public"}) {
				t.Errorf("%s: left %q", name, got)
			}
		}
	}
	var once sync.Once
	report, err := measure(t.Context(), t, server.URL("postgres", "", "postgres"), "tpcb,select", "concurrency=4&benchtime=30s&timeout=5s", func(p bench.Progress) {
		if p.Row == 0 && p.Fraction > 0.05 {
			once.Do(server.Kill)
		}
	})
	if lost := (*bench.LostError)(nil); !errors.As(err, &lost) || bench.Kind(err) != "refused" && bench.Kind(err) != "reset" {
		t.Errorf("a server that stays away: %v (%s)", err, bench.Kind(err))
	}
	if len(report.Results) != 1 || report.Results[0].Iterations == 0 {
		t.Errorf("%d results of a run whose server went away", len(report.Results))
	}
	if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.Contains(w, "was left behind") }) {
		t.Errorf("warnings %q", report.Warnings)
	}
}
