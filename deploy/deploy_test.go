// Package deploy_test checks the deployment files without a platform.
package deploy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

// decode reads a manifest into v; a field that v does not have is an error, in what a comment offers too.
func decode(t *testing.T, file string, v any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

// annotations are those of a revision or an execution that the API documents and that these files use.
var annotations = []string{
	"autoscaling.knative.dev/minScale", "autoscaling.knative.dev/maxScale", "run.googleapis.com/execution-environment",
	"run.googleapis.com/cpu-throttling", "run.googleapis.com/vpc-access-egress", "run.googleapis.com/vpc-access-connector",
	"run.googleapis.com/network-interfaces",
}

func checkTemplate(t *testing.T, m *run.ObjectMeta, c *run.Container) {
	t.Helper()
	for name := range m.Annotations {
		if !slices.Contains(annotations, name) {
			t.Errorf("annotation %s", name)
		}
	}
	var interfaces []struct{ Network, Subnetwork string }
	if err := json.Unmarshal([]byte(m.Annotations["run.googleapis.com/network-interfaces"]), &interfaces); err != nil || len(interfaces) != 1 {
		t.Errorf("network interfaces: %v, %v", interfaces, err)
	}
	for _, e := range c.Env {
		if (e.Value == "") == (e.ValueFrom == nil) || e.ValueFrom != nil && (e.ValueFrom.SecretKeyRef.Name == "" || e.ValueFrom.SecretKeyRef.Key == "") {
			t.Errorf("variable %s has not one value", e.Name)
		}
	}
}

func TestService(t *testing.T) {
	var s run.Service
	decode(t, "service.yaml", &s)
	spec := s.Spec.Template.Spec
	checkTemplate(t, s.Spec.Template.Metadata, spec.Containers[0])
	if s.ApiVersion != "serving.knative.dev/v1" || s.Kind != "Service" || s.Metadata.Annotations["run.googleapis.com/ingress"] != "all" {
		t.Errorf("%s %s", s.ApiVersion, s.Kind)
	}
	// The answer of a run that takes all of its time has a tenth of the request's to get out.
	if spec.ContainerConcurrency != 20 || spec.TimeoutSeconds != 900 || spec.Containers[0].StartupProbe.HttpGet.Path != "/health" {
		t.Errorf("%+v", spec)
	}
	if a := s.Spec.Template.Metadata.Annotations; a["autoscaling.knative.dev/maxScale"] != "1" || a["run.googleapis.com/cpu-throttling"] != "false" {
		t.Errorf("%v", a)
	}
}

func TestJob(t *testing.T) {
	var j run.Job
	decode(t, "job.yaml", &j)
	spec := j.Spec.Template.Spec
	task := spec.Template.Spec
	checkTemplate(t, j.Spec.Template.Metadata, task.Containers[0])
	if j.ApiVersion != "run.googleapis.com/v1" || j.Kind != "Job" || spec.TaskCount != spec.Parallelism || task.Containers[0].Args[0] != "job" {
		t.Errorf("%s %s %+v", j.ApiVersion, j.Kind, spec)
	}
	text, err := os.ReadFile("job.yaml")
	if err != nil || !strings.Contains(string(text), "maxRetries: 0") { // left out it is 3, and both decode to 0
		t.Errorf("maxRetries is not 0: %v", err)
	}
}

// App Engine has no API types for its own files: these are the fields that their reference lists.
func TestAppEngine(t *testing.T) {
	var app struct {
		Runtime          string   `json:"runtime"`
		InstanceClass    string   `json:"instance_class"`
		InboundServices  []string `json:"inbound_services"`
		AutomaticScaling struct {
			Max         int `json:"max_instances"`
			MaxRequests int `json:"max_concurrent_requests"`
		} `json:"automatic_scaling"`
		Connector struct {
			Name   string `json:"name"`
			Egress string `json:"egress_setting"`
		} `json:"vpc_access_connector"`
		Env      map[string]string `json:"env_variables"`
		Handlers []struct{ URL, Script, Secure string }
	}
	decode(t, "../app.yaml", &app)
	if app.Runtime != "go126" || app.AutomaticScaling.Max != 1 || app.AutomaticScaling.MaxRequests != 20 || app.Connector.Egress != "private-ranges-only" {
		t.Errorf("%+v", app)
	}
	var cron struct {
		Cron []struct {
			Description, URL, Target, Schedule, Timezone string
			Retry                                        struct {
				Limit *int `json:"job_retry_limit"`
			} `json:"retry_parameters"`
		}
	}
	decode(t, "cron.yaml", &cron)
	if c := cron.Cron[0]; !strings.HasPrefix(c.URL, "/probe/") || !strings.HasPrefix(c.Schedule, "every 5 minutes") || *c.Retry.Limit != 0 {
		t.Errorf("%+v", cron)
	}
}

// metrics are those of the prometheus format and of /metrics that the dashboard and the alerts may use.
var metrics = []string{
	"nsop_run_start_timestamp_seconds", "nsop_latency_seconds", "nsop_operations_per_second", "nsop_operations", "nsop_elapsed_seconds",
	"nsop_failed_operations", "nsop_failed_operations_by_kind", "nsop_mismatched_reads", "nsop_throttled_seconds",
	"nsop_client_cpu_ratio", "nsop_server_time_per_call_seconds",
	"nsop_probe_success", "nsop_probe_start_timestamp_seconds", "nsop_probe_age_seconds", "nsop_probe_duration_seconds", "nsop_probe_phase_seconds",
	"nsop_probe_class_seconds", "nsop_latency_change_ratio", "nsop_latency_change_timestamp_seconds",
}

func checkExpr(t *testing.T, where, expr string) {
	t.Helper()
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			t.Errorf("%s: %s", where, expr)
		}
	}
	names := regexp.MustCompile(`\bnsop_\w+`).FindAllString(expr, -1)
	for _, name := range names {
		if !slices.Contains(metrics, name) {
			t.Errorf("%s: no metric %s", where, name)
		}
	}
	if len(names) == 0 && !strings.Contains(expr, "up{") {
		t.Errorf("%s is of nothing of ours: %s", where, expr)
	}
}

func TestAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	decode(t, "alerts.yaml", &file)
	for _, r := range file.Groups[0].Rules {
		checkExpr(t, r.Alert, r.Expr)
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s says nothing", r.Alert)
		}
	}
}

func TestDashboard(t *testing.T) {
	var d struct {
		UID, Title string
		Templating struct{ List []struct{ Name, Type string } }
		Panels     []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ RefID, Expr, LegendFormat string }
		}
	}
	text, err := os.ReadFile("grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			checkExpr(t, p.Title, target.Expr)
			for _, name := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !strings.Contains(string(text), `"name": "`+name[1]+`"`) {
					t.Errorf("%s: no variable %s", p.Title, name[0])
				}
			}
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%+v", p)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" {
					t.Fatalf("%s lies on %s", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
	}
}

// A project is what the gcloud of a test remembers.
type project struct{ state, log, bin string }

func newProject(t *testing.T, has map[string]string) *project {
	t.Helper()
	gcloud, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	p := &project{state: t.TempDir(), log: filepath.Join(t.TempDir(), "log"), bin: gcloud}
	for name, value := range has {
		if err := os.WriteFile(filepath.Join(p.state, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// run performs a command with env and returns what it printed, and what it changed.
func (p *project) run(t *testing.T, env []string, stdin string, args ...string) (out, changes string, err error) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append([]string{"PATH=" + p.bin + ":" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + t.TempDir(), "STATE=" + p.state, "LOG=" + p.log}, env...)
	text, err := cmd.CombinedOutput()
	log, rerr := os.ReadFile(p.log)
	if rerr != nil && !os.IsNotExist(rerr) {
		t.Fatal(rerr)
	}
	os.Remove(p.log) // it may not be there
	return string(text), string(log), err
}

func (p *project) has(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(p.state)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "value-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestScript: the exact commands of each way to set the service up; plan says what up does, a second up changes nothing
// that is there, and down leaves what was there before.
func TestScript(t *testing.T) {
	type state = map[string]string
	for _, test := range []struct {
		name string
		env  []string
		has  state // what is there before
	}{
		{"run-redis", []string{"STORE=redis"}, nil},
		{"run-redis-connector", []string{"STORE=redis", "EGRESS=connector", "CONNECTOR_RANGE=10.9.0.0/28"}, nil},
		{"run-redis-yours", []string{"STORE=redis", "MEMORYSTORE=mine", "CONNECTOR=conn", "DEVELOPERS=dev@example.com,b@example.com"},
			state{"redis_instances_mine": "True,SERVER_AUTHENTICATION"}},
		{"run-cluster", []string{"STORE=cluster", "NETWORK=net", "SUBNET=sub"}, nil},
		{"run-cluster-yours", []string{"STORE=cluster", "MEMORYSTORE=mine"}, state{"redis_clusters_mine": ""}},
		{"run-valkey", []string{"STORE=valkey", "SCHEDULE="}, nil},
		{"run-valkey-yours", []string{"STORE=valkey", "MEMORYSTORE=mine"}, state{"memorystore_instances_mine": ""}},
		{"run-url", []string{"REDIS_URL=redis://10.1.2.3:6379/2", "REDIS_PASSWORD=s3cret"}, nil},
		{"run-none", []string{"PROBE=/probe/map"}, nil},
		{"app-redis", []string{"PLATFORM=app", "STORE=redis", "DEVELOPERS=dev@example.com"}, state{"app": ""}},
		{"app-valkey-yours", []string{"PLATFORM=app", "STORE=valkey", "MEMORYSTORE=mine", "CONNECTOR=conn"}, state{"app": "", "memorystore_instances_mine": ""}},
		{"app-none", []string{"PLATFORM=app", "PROBE=/probe/map"}, state{"app": ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"PROJECT=p-1", "REGION=europe-west1"}, test.env...)
			p := newProject(t, test.has)
			before := p.has(t)
			secret := func(what, text string) {
				t.Helper()
				if strings.Contains(text, "s3cret") {
					t.Errorf("%s shows a secret: %s", what, text)
				}
			}

			plan, changes, err := p.run(t, env, "", "./gcp.sh", "plan")
			if err != nil || changes != "" || !slices.Equal(p.has(t), before) {
				t.Fatalf("plan: %v: %s%s", err, plan, changes)
			}
			secret("plan", plan)
			golden(t, test.name+".plan", plan)

			out, up, err := p.run(t, env, "", "./gcp.sh", "up")
			if err != nil {
				t.Fatalf("up: %v: %s", err, out)
			}
			secret("up", out+up)
			golden(t, test.name+".up", up)

			again, changes, err := p.run(t, env, "", "./gcp.sh", "up")
			if err != nil {
				t.Fatalf("up again: %v: %s", err, again)
			}
			for line := range strings.Lines(changes) {
				if strings.Contains(line, " create ") || strings.HasPrefix(line, "secrets versions add") {
					t.Errorf("up again: %s", line)
				}
			}

			// The plan is a script, and does the same from the start.
			other := newProject(t, test.has)
			out, pasted, err := other.run(t, env, plan, "bash", "-e")
			if err != nil || pasted != up {
				t.Errorf("the plan: %v: %s\ndoes\n%s\nand up\n%s", err, out, pasted, up)
			}
			secret("the plan", out)

			out, down, err := p.run(t, env, "", "./gcp.sh", "down")
			if err != nil || !slices.Equal(p.has(t), before) {
				t.Errorf("down: %v: %s; is there %q, was there %q", err, out, p.has(t), before)
			}
			golden(t, test.name+".down", down)
			if out, changes, err := p.run(t, env, "", "./gcp.sh", "down"); err != nil || out != "" || changes != "" {
				t.Errorf("down again: %v: %s%s", err, out, changes)
			}
		})
	}
}

// TestScriptFirst: the application is made where there is none, and its first service can't have a name of its own.
func TestScriptFirst(t *testing.T) {
	p := newProject(t, nil)
	out, up, err := p.run(t, []string{"PROJECT=p-1", "REGION=us-central1", "PLATFORM=app", "FIRST=1"}, "", "./gcp.sh", "up")
	if err != nil {
		t.Fatal(out)
	}
	for _, want := range []string{"app create --region=us-central\n", "  service: default\n", "--uri=https://p-1.ew.r.appspot.com/probe/redis "} {
		if !strings.Contains(up, want) {
			t.Errorf("%q is not in\n%s", want, up)
		}
	}
}

// TestScriptWrong: what is wrong is told before anything is asked or changed.
func TestScriptWrong(t *testing.T) {
	for _, test := range []struct {
		args []string
		env  []string
		want string
	}{
		{nil, nil, "want plan, up or down"},
		{[]string{"deploy"}, nil, "want plan, up or down"},
		{[]string{"plan"}, []string{"PROJECT="}, "PROJECT is not set"},
		{[]string{"plan"}, []string{"REGION="}, "REGION is not set"},
		{[]string{"plan"}, []string{"PLATFORM=gke"}, "PLATFORM: want run or app"},
		{[]string{"plan"}, []string{"STORE=memcached"}, "STORE: want redis, cluster or valkey"},
		{[]string{"plan"}, []string{"STORE=redis", "REDIS_URL=redis://h"}, "STORE and REDIS_URL are both set: want one"},
		{[]string{"up"}, []string{"MEMORYSTORE=mine"}, "MEMORYSTORE: STORE says of which kind it is"},
		{[]string{"up"}, []string{"PLATFORM=app", "EGRESS=direct"}, "EGRESS: App Engine wants a connector"},
		{[]string{"up"}, []string{"EGRESS=all"}, "EGRESS: want direct, connector or none"},
		{[]string{"up"}, []string{"REDIS_URL=redis://:hunter2@h"}, "REDIS_URL: the user's password belongs into REDIS_PASSWORD"},
		{[]string{"up"}, []string{"PROJECT=p$(id)"}, "PROJECT: a character that it can't hold"},
		{[]string{"up"}, []string{"DEVELOPERS=a|b"}, "DEVELOPERS: a character that it can't hold"},
		{[]string{"up"}, []string{"NETWORK=--project=x"}, "NETWORK: a character that it can't hold"},
	} {
		p := newProject(t, nil)
		out, changes, err := p.run(t, append([]string{"PROJECT=p-1", "REGION=europe-west1"}, test.env...), "", append([]string{"./gcp.sh"}, test.args...)...)
		exit, ok := err.(*exec.ExitError)
		if !ok || exit.ExitCode() != 2 || out != "gcp.sh: "+test.want+"\n" || changes != "" {
			t.Errorf("%q %q: %v: %s%s", test.args, test.env, err, out, changes)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}
