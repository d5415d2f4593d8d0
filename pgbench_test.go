package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nsop/bench"
	"nsop/bench/storetest"
	"nsop/handlers"
)

// postgresEnv is an environment in which the target postgres is server, with the password apart from the URL.
func postgresEnv(server *storetest.PostgresServer, role, password string) func(string) string {
	return func(name string) string {
		return map[string]string{"POSTGRES_URL": server.URL(role, "", "postgres"), "POSTGRES_PASSWORD": password}[name]
	}
}

// postgresRun performs one request in-process and returns the report.
func postgresRun(t testing.TB, getenv func(string) string, path string) (body string, report bench.Report, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = run(t.Context(), []string{path}, getenv, &stdout, &stderr)
	if jsonErr := json.Unmarshal(stdout.Bytes(), &report); jsonErr != nil {
		t.Fatalf("%s: %v\n%s%s", path, jsonErr, stdout.String(), stderr.String())
	}
	return stdout.String(), report, err
}

func userSchemas(t testing.TB, server *storetest.PostgresServer) []string {
	t.Helper()
	return server.Query(t, `SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY 1`)
}

func TestPgbenchRuns(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Password: "hunter2"})
	env := postgresEnv(server, "postgres", "hunter2")
	// The history's own schema, a user's tables of pgbench's names and what is not ours stay as they are.
	server.Exec(t, "CREATE SCHEMA nsop_history", "CREATE SCHEMA nsop_x", "CREATE TABLE pgbench_accounts(aid int)", "INSERT INTO pgbench_accounts VALUES (7)",
		`CREATE SCHEMA "nsop_0198c0de-0000-7000-8000-000000000000"`)
	for _, protocol := range []string{"simple", "extended", "prepared"} {
		body, report, err := postgresRun(t, env, "/bench/postgres/pgbench?client=pgx&concurrency=1,3&benchtime=60x&scale=2&count=2&protocol="+protocol)
		if err != nil {
			t.Fatalf("%s: %v\n%s", protocol, err, body)
		}
		if strings.Contains(body, "hunter2") {
			t.Errorf("the password is in the answer")
		}
		if len(report.Results) != 12 || len(report.Warnings) != 0 {
			t.Errorf("%s: %d results, warnings %q", protocol, len(report.Results), report.Warnings)
		}
		if got := report.Target; got.Kind != "postgres" || !strings.HasPrefix(got.Server, "PostgreSQL ") || got.Mode != "primary" {
			t.Errorf("target %+v", got)
		}
		for _, r := range report.Results {
			if r.Iterations != 60 || r.Errors != 0 || r.Misses != 0 || r.Connections != r.Concurrency || r.Scale != 2 || r.Protocol != protocol ||
				r.OpsPerSec == nil || r.OpsWithDial == nil || float64(*r.OpsWithDial) >= float64(*r.OpsPerSec) || r.Settings["protocol"] != protocol {
				t.Errorf("%s: %+v", r.Name, r)
			}
		}
		want := fmt.Sprintf("Tpcb/target=postgres/client=pgx/concurrency=1/scale=2/protocol=%s", protocol)
		if report.Results[0].Name != want {
			t.Errorf("name %s, want %s", report.Results[0].Name, want)
		}
		if got := userSchemas(t, server); !slices.Equal(got, []string{"nsop_history", "nsop_x", "public"}) {
			t.Errorf("schemas %q", got)
		}
	}
	_, report, err := postgresRun(t, env, "/bench/postgres?benchtime=20x")
	if err != nil || len(report.Results) != 2 || report.Results[0].Workload != "tpcb" || report.Results[1].Workload != "select" || report.Results[0].Protocol != "prepared" {
		t.Errorf("by default: %v, %+v", err, report.Results)
	}
	if got := server.Query(t, "SELECT aid FROM pgbench_accounts"); !slices.Equal(got, []string{"7"}) {
		t.Errorf("the user's table: %q", got)
	}
	if err := run(t.Context(), []string{"version"}, env, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
}

func TestPgbenchRefusals(t *testing.T) {
	server := storetest.Postgres(t, storetest.PostgresOptions{Password: "hunter2", Settings: []string{"max_connections=20"}})
	server.Exec(t, "CREATE ROLE plain LOGIN PASSWORD 'hunter2'", "CREATE ROLE reader LOGIN SUPERUSER PASSWORD 'hunter2'", "ALTER ROLE reader SET default_transaction_read_only = on",
		"CREATE ROLE bench LOGIN PASSWORD 'hunter2'", "GRANT CREATE ON DATABASE postgres TO bench")
	for _, c := range []struct {
		name, role, password, path string
		status                     int
		kind, text                 string
	}{
		{"wrong password", "bench", "hunter3", "tpcb", 502, "auth", "password authentication failed"},
		{"role without CREATE", "plain", "hunter2", "tpcb", 502, "noperm", "permission denied"},
		{"read-only role", "reader", "hunter2", "select", 502, "readonly", "read-only"},
		{"a connection too many", "bench", "hunter2", "select?concurrency=18", 502, "maxclients", "max_connections is 20"},
		{"a pipeline", "bench", "hunter2", "select?pipeline=4", 422, "unsupported", "pipeline"},
		{"keys", "bench", "hunter2", "get", 422, "unsupported", "get"},
	} {
		config, _, err := configure(postgresEnv(server, c.role, c.password))
		if err != nil {
			t.Fatal(err)
		}
		config.Auth = handlers.Auth{Mode: "none"}
		var body bytes.Buffer
		answer := &response{header: http.Header{}, status: http.StatusOK, body: &body}
		handlers.New(config).ServeHTTP(answer, newRequest(t.Context(), "/bench/postgres/"+c.path, false))
		var problem struct {
			Detail string `json:"detail"`
			Kind   string `json:"error_kind"`
		}
		if err := json.Unmarshal(body.Bytes(), &problem); err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, body.String())
		}
		if answer.status != c.status || problem.Kind != c.kind || !strings.Contains(body.String(), c.text) || strings.Contains(body.String(), "hunter") {
			t.Errorf("%s: %d %s\n%s", c.name, answer.status, problem.Kind, body.String())
		}
	}
	// The role does get all it may have.
	_, report, err := postgresRun(t, postgresEnv(server, "bench", "hunter2"), "/bench/postgres/tpcb,select?concurrency=17&benchtime=170x")
	if err != nil || len(report.Results) != 2 || report.Results[1].Connections != 17 || report.Results[1].Iterations != 170 || len(report.Warnings) != 0 {
		t.Errorf("17 of 20 connections: %v, %+v, %q", err, report.Results, report.Warnings)
	}
}

func TestPostgresVariables(t *testing.T) {
	for _, env := range []map[string]string{
		{"POSTGRES_URL": "postgres://u:hunter2@h/d", "POSTGRES_PASSWORD": "hunter3"},
		{"POSTGRES_URL": "mysql://u:hunter2@h/d"},
		{"POSTGRES_URL": "postgres://u:hunter2@h/d?sslmode=maybe"},
	} {
		_, err := configureTargets(func(name string) string { return env[name] })
		if err == nil || !strings.HasPrefix(err.Error(), "POSTGRES_URL: ") || strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", env, err)
		}
	}
}

var tps = regexp.MustCompile(`tps = ([0-9.]+) \(without`)

// BenchmarkPgbench runs select and tpcb in turn through pgbench and through nsop on one server, and reports the medians
// of the ratios: above 1 nsop performs more operations a second.
func BenchmarkPgbench(b *testing.B) {
	server := storetest.Postgres(b, storetest.PostgresOptions{})
	env := postgresEnv(server, "postgres", "")
	pgbench := func(args ...string) float64 {
		args = append([]string{"-h", "127.0.0.1", "-p", strconv.Itoa(server.Port), "-U", "postgres"}, append(args, "postgres")...)
		out, err := exec.Command(storetest.PostgresProgram(b, "pgbench"), args...).CombinedOutput()
		if err != nil {
			b.Fatalf("pgbench: %v\n%s", err, out)
		}
		m := tps.FindSubmatch(out)
		if m == nil {
			return 0
		}
		rate, _ := strconv.ParseFloat(string(m[1]), 64)
		return rate
	}
	const scale, seconds, pairs = "10", "3", 5
	pgbench("-i", "-q", "-s", scale)
	for _, row := range []struct {
		name, workload string
		target         float64
		args           []string
	}{
		{"select", "select", 1, []string{"-S", "-M", "prepared", "-c", "10", "-j", "2", "-T", seconds}},
		{"select-one-thread", "select", 1, []string{"-S", "-M", "prepared", "-c", "10", "-T", seconds}},
		{"tpcb", "tpcb", 0.75, []string{"-M", "prepared", "-c", "10", "-T", seconds}},
	} {
		for _, client := range []string{"pgx", "database-sql"} {
			b.Run(row.name+"/"+client, func(b *testing.B) {
				for range b.N {
					var ratios []float64
					for range pairs {
						theirs := pgbench(row.args...)
						body, report, err := postgresRun(b, env, "/bench/postgres/"+row.workload+"?concurrency=10&warmup=1000x&scale="+scale+"&benchtime="+seconds+"s&client="+client)
						if err != nil {
							b.Fatalf("%v\n%s", err, body)
						}
						ratios = append(ratios, float64(*report.Results[0].OpsPerSec)/theirs)
					}
					slices.Sort(ratios)
					b.ReportMetric(ratios[pairs/2], "x-pgbench")
					b.Logf("%s through %s: %.2f of pgbench (from %.2f to %.2f), target for pgx %.2f", row.name, client, ratios[pairs/2], ratios[0], ratios[pairs-1], row.target)
				}
			})
		}
	}
}
