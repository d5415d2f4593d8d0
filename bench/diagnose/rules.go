package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nsop/bench"
)

// A Finding is something that is wrong, or worth knowing.
type Finding struct {
	Rule     string         `json:"rule"`
	Severity string         `json:"severity"` // info, warning or error
	Summary  string         `json:"summary"`
	Evidence map[string]any `json:"evidence"`
	Cause    string         `json:"cause"`
	Next     string         `json:"next"` // the command or setting to try
}

// The severities, the gravest last.
const (
	info    = "info"
	warning = "warning"
	failure = "error"
)

// A Rule finds one thing in a report; nil where it is not there. Hides are the rules whose findings it explains.
type Rule struct {
	Name  string
	Hides []string
	Check func(r *Report) *Finding
}

// Rules is the table of rules. A finding of one rule hides those of the rules that it explains.
var Rules = []Rule{
	{"embedded-store", []string{"noisy-vantage"}, embeddedStore},
	{"dns-failed", nil, dnsFailed},
	{"refused", nil, refusedRule},
	{"no-route", nil, noRoute},
	{"no-answer", []string{"first-command-slow"}, noAnswer},
	{"tls-failed", nil, tlsFailed},
	{"auth", nil, authRule},
	{"loading", []string{"first-command-slow"}, loading},
	{"egress-starting", []string{"no-route", "refused", "syn-loss"}, egressStarting},
	{"dns-slow", nil, dnsSlow},
	{"address-family", nil, addressFamily},
	{"syn-loss", []string{"connector-handshakes"}, synLoss},
	{"another-region", []string{"pool-too-small"}, anotherRegion},
	{"connector-handshakes", []string{"first-command-slow"}, connectorHandshakes},
	{"tls-cost", nil, tlsCost},
	{"blocked-commands", nil, blockedCommands},
	{"protocol-fallback", nil, protocolFallback},
	{"cpu-throttled", []string{"noisy-vantage", "another-region", "first-command-slow", "pool-too-small", "bandwidth-bound"}, cpuThrottled},
	{"background-throttled", nil, backgroundThrottled},
	{"noisy-vantage", nil, noisyVantage},
	{"server-cpu-bound", []string{"pool-too-small", "bandwidth-bound", "first-command-slow"}, serverCPUBound},
	{"slow-commands", []string{"pool-too-small", "bandwidth-bound", "first-command-slow"}, slowCommands},
	{"memory-full", []string{"evicting"}, memoryFull},
	{"evicting", nil, evicting},
	{"read-only", nil, readOnly},
	{"failover", nil, failover},
	{"maxclients-near", nil, maxclientsNear},
	{"pool-too-small", nil, poolTooSmall},
	{"idle-limit", nil, idleLimitRule},
	{"hidden-retries", nil, hiddenRetries},
	{"bandwidth-bound", nil, bandwidthBound},
	{"first-command-slow", nil, firstCommandSlow},
}

// find applies the rules: what is gravest comes first, else the table's order holds.
func find(r *Report) []Finding {
	found := []Finding{}
	hidden := map[string]bool{}
	for _, rule := range Rules {
		f := rule.Check(r)
		if f == nil {
			continue
		}
		f.Rule = rule.Name
		if f.Evidence == nil {
			f.Evidence = map[string]any{}
		}
		found = append(found, *f)
		if f.Severity != info {
			for _, name := range rule.Hides {
				hidden[name] = true
			}
		}
	}
	found = slices.DeleteFunc(found, func(f Finding) bool { return hidden[f.Rule] })
	grave := func(f Finding) int { return slices.Index([]string{failure, warning, info}, f.Severity) }
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(grave(a), grave(b)) })
	return found
}

// show writes nanoseconds for people.
func show[N int | int64 | time.Duration](ns N) string { return bench.FormatDuration(float64(ns)) }

// shellWord is s as a shell takes it for one word.
func shellWord(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./:", r)
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// failed returns the path's failure where it is one of kinds, or of any kind where none is given, at one of stages.
func failed(r *Report, stages []string, kinds ...string) *Failure {
	if r.Path == nil || r.Path.Failure == nil {
		return nil
	}
	f := r.Path.Failure
	if stages != nil && !slices.Contains(stages, f.Stage) || len(kinds) > 0 && !slices.Contains(kinds, f.Kind) {
		return nil
	}
	return f
}

func (f *Failure) evidence(r *Report) map[string]any {
	e := map[string]any{"stage": f.Stage, "error_kind": f.Kind, "error": f.Text}
	if f.ElapsedNS > 0 {
		e["elapsed_ns"] = f.ElapsedNS
	}
	if len(r.Path.Addresses) > 0 {
		e["address"] = r.Path.Addresses[0].Address
	}
	return e
}

// hostPort are the target's, as words of a shell.
func hostPort(r *Report) (host, port string) {
	host, port, err := net.SplitHostPort(r.Target.Address)
	if err != nil {
		host = r.Target.Address
	}
	return shellWord(host), port
}

// describeService is the command that shows how the service reaches the network, on the platform it is on.
func describeService(r *Report) string {
	v := r.Vantage
	region := ""
	if v.Region != "" {
		region = " --region " + shellWord(v.Region)
	}
	host, port := hostPort(r)
	switch v.Platform {
	case "cloud-run":
		return "gcloud run services describe " + shellWord(cmp.Or(v.Service, "SERVICE")) + region + " --format='value(spec.template.metadata.annotations)'"
	case "cloud-run-job":
		return "gcloud run jobs describe " + shellWord(cmp.Or(v.Service, "JOB")) + region + " --format='value(spec.template.metadata.annotations)'"
	case "app-engine":
		return "gcloud app versions describe " + shellWord(cmp.Or(v.Revision, "VERSION")) + " --service " + shellWord(cmp.Or(v.Service, "default")) + " --format='value(vpcAccessConnector)'"
	case "kubernetes":
		return "kubectl run nsop-check --rm -it --restart=Never --image=busybox -- nc -zv -w 3 " + host + " " + port
	}
	return "nc -zv -w 3 " + host + " " + port
}

// askServer is the command that asks the server something, on a machine that reaches it.
func askServer(r *Report, command string) string {
	host, port := hostPort(r)
	tls := ""
	if r.Target.TLS {
		tls = " --tls"
	}
	return "redis-cli -h " + host + " -p " + port + tls + " " + command
}

func embeddedStore(r *Report) *Finding {
	if !r.Target.Embedded {
		return nil
	}
	return &Finding{Severity: warning, Summary: "no real store was measured: " + r.Target.Name + " lives in this process",
		Evidence: map[string]any{"kind": r.Target.Kind, "server": r.Target.Server},
		Cause:    "no store of that kind is configured, or an in-process one was asked for",
		Next:     map[bool]string{true: "REDIS_URL=redis://HOST:6379 nsop '/diagnose/redis?format=text'", false: "nsop /targets"}[r.Target.Kind == "redis"]}
}

func dnsFailed(r *Report) *Finding {
	f := failed(r, []string{"dns"})
	if f == nil {
		return nil
	}
	return &Finding{Severity: failure, Summary: "the name " + r.Path.Host + " has no address: " + f.Text, Evidence: f.evidence(r),
		Cause: "the name is wrong, or its private zone is not visible from this network",
		Next:  "nslookup " + shellWord(r.Path.Host)}
}

func refusedRule(r *Report) *Finding {
	f := failed(r, []string{"connect"}, "refused")
	if f == nil {
		return nil
	}
	return &Finding{Severity: failure, Summary: "the host answers, but refuses connections to " + r.Target.Address, Evidence: f.evidence(r),
		Cause: "nothing listens on this port: the server is down, or the port is another (Memorystore with TLS has its own), or a firewall rejects",
		Next:  describeService(&Report{Target: r.Target, Vantage: &Vantage{}})}
}

func noRoute(r *Report) *Finding {
	f := failed(r, []string{"connect"}, "timeout", "unreachable")
	if f == nil {
		return nil
	}
	address, private := r.Target.Address, false
	if len(r.Path.Addresses) > 0 {
		if a, err := netip.ParseAddr(r.Path.Addresses[0].Address); err == nil {
			private = a.IsPrivate()
		}
	}
	finding := &Finding{Severity: failure, Summary: "no answer to SYN from " + address + " within " + show(f.ElapsedNS), Evidence: f.evidence(r),
		Cause: "a firewall drops it, or the host is down", Next: describeService(r)}
	if f.Kind == "unreachable" {
		finding.Summary = "the network has no route to " + address
	}
	if private {
		finding.Cause = "the instance has no route to this private address: no VPC egress, one of another region or network, peering gone, or a firewall"
	}
	if young(r.Vantage) {
		finding.Cause += "; or its egress is still starting: the instance is " + show(r.Vantage.InstanceAge) + " old"
	}
	finding.Evidence["private"] = private
	return finding
}

func noAnswer(r *Report) *Finding {
	f := failed(r, []string{"first", "second", "third", "session", "login", "select", "auth"}, "timeout", "reset", "protocol", "other")
	if f == nil {
		return nil
	}
	what := "does not answer"
	if f.Kind != "timeout" {
		what = "ends or garbles them"
	}
	return &Finding{Severity: failure, Summary: "the server accepts connections but " + what + ": " + f.Stage + ": " + f.Text, Evidence: f.evidence(r),
		Cause: "the server hangs, is paused or runs a command that blocks it, or what listens there is no " + r.Target.Kind + ", or wants TLS",
		Next:  askServer(r, "--latency-history -i 1")}
}

func tlsFailed(r *Report) *Finding {
	f := failed(r, nil, "tls")
	if f == nil {
		if f = failed(r, []string{"tls"}); f == nil {
			return nil
		}
	}
	host, port := hostPort(r)
	return &Finding{Severity: failure, Summary: "the TLS handshake fails: " + f.Text, Evidence: f.evidence(r),
		Cause: "the certificate is not signed by an authority that this process trusts or is for another name, or the port takes no TLS",
		Next:  "openssl s_client -connect " + host + ":" + port + " -showcerts </dev/null"}
}

func authRule(r *Report) *Finding {
	f := failed(r, nil, "auth")
	if f == nil {
		return nil
	}
	cause := "the password or the user is wrong"
	if f.Stage != "auth" {
		cause = "the server wants a password and the target's URL holds none"
	}
	variable := map[string]string{"postgres": "POSTGRES_PASSWORD"}[r.Target.Kind]
	return &Finding{Severity: failure, Summary: "the server does not let this client in: " + f.Text, Evidence: f.evidence(r), Cause: cause,
		Next: cmp.Or(variable, "REDIS_PASSWORD") + "=... nsop '/diagnose/" + r.Target.Name + "?format=text'"}
}

func loading(r *Report) *Finding {
	f := failed(r, nil, "loading")
	if f == nil {
		return nil
	}
	return &Finding{Severity: failure, Summary: "the server is up but not serving yet: " + f.Text, Evidence: f.evidence(r),
		Cause: "it has just been started, or a failover made it read its data anew", Next: askServer(r, "INFO persistence")}
}

// young tells whether the instance may still be getting its way into the network.
func young(v *Vantage) bool { return v.Platform != "local" && v.InstanceAge < starting }

func egressStarting(r *Report) *Finding {
	if r.Path == nil || !young(r.Vantage) {
		return nil
	}
	if r.Path.FailedDials == 0 { // a SYN that is repeated often enough gets through in the end
		if len(r.Path.Addresses) == 0 || r.Path.Addresses[0].ConnectNS == nil || *r.Path.Addresses[0].ConnectNS < int64(synTimeout)*9/10 || r.Path.Retransmitted > 0 {
			return nil
		}
		if s := r.Path.stage("connect"); s == nil || s.P50NS > int64(synTimeout)/2 {
			return nil
		}
		return startingFinding(r, fmt.Sprintf("the first connect took %s, later ones %s; the instance is %s old", show(*r.Path.Addresses[0].ConnectNS),
			show(r.Path.stage("connect").P50NS), show(r.Vantage.InstanceAge)))
	}
	if r.Path.StartingNS == 0 {
		return nil // it never came: the failure has a rule of its own
	}
	return startingFinding(r, fmt.Sprintf("%d dials failed before one succeeded, %s after the first; the instance is %s old", r.Path.FailedDials,
		show(r.Path.StartingNS), show(r.Vantage.InstanceAge)))
}

func startingFinding(r *Report, summary string) *Finding {
	return &Finding{Severity: warning, Summary: summary, Evidence: map[string]any{"failed_dials": r.Path.FailedDials, "starting_ns": r.Path.StartingNS,
		"first_connect_ns": r.Path.Addresses[0].ConnectNS, "instance_age_ns": int64(r.Vantage.InstanceAge)},
		Cause: "the instance's way into the network (Direct VPC egress, a connector) is set up while it already runs",
		Next:  "gcloud run services update " + shellWord(cmp.Or(r.Vantage.Service, "SERVICE")) + " --startup-probe=httpGet.path=/readyz,periodSeconds=5,failureThreshold=24"}
}

func dnsSlow(r *Report) *Finding {
	s := r.Path.stage("dns")
	if s == nil || s.MinNS < int64(100*time.Millisecond) {
		return nil
	}
	return &Finding{Severity: warning, Summary: "a look-up of " + r.Path.Host + " takes " + show(s.P50NS), Evidence: map[string]any{"p50_ns": s.P50NS, "min_ns": s.MinNS, "max_ns": s.MaxNS, "lookups": s.Count},
		Cause: "the resolver is far away, overloaded or tries search domains first; each dial by name pays it",
		Next:  "cat /etc/resolv.conf"}
}

func addressFamily(r *Report) *Finding {
	if r.Path == nil || len(r.Path.Addresses) < 2 {
		return nil
	}
	first := r.Path.Addresses[0]
	family := func(a Address) string {
		if strings.Contains(a.Address, ":") {
			return "IPv6"
		}
		return "IPv4"
	}
	for _, a := range r.Path.Addresses[1:] {
		if family(a) == family(first) || a.ConnectNS == nil {
			continue
		}
		// Go gives the preferred family 300 ms before it tries the other (RFC 6555; net.Dialer.FallbackDelay).
		if first.ConnectNS != nil && *first.ConnectNS-*a.ConnectNS < int64(250*time.Millisecond) {
			continue
		}
		why := first.Error
		if first.ConnectNS != nil {
			why = "it takes " + show(*first.ConnectNS)
		}
		return &Finding{Severity: warning, Summary: family(first) + " is tried first and does not work; " + family(a) + " connects in " + show(*a.ConnectNS),
			Evidence: map[string]any{"first": first.Address, "error": why, "works": a.Address},
			Cause:    "the name has addresses of both families and the server, or the way to it, has only one: a dial waits up to 300 ms for the first",
			Next:     "use the address " + a.Address + " in the target's URL, or take the other record out of the zone"}
	}
	return nil
}

func synLoss(r *Report) *Finding {
	if r.Path == nil || r.Path.Retransmitted == 0 {
		return nil
	}
	s := r.Path.stage("connect")
	if s == nil {
		return nil
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("%d of %d connects had to repeat their SYN: %s in place of %s", r.Path.Retransmitted, r.Path.Connects, show(s.MaxNS), show(s.MinNS)),
		Evidence: map[string]any{"connects": r.Path.Connects, "retransmitted": r.Path.Retransmitted, "min_ns": s.MinNS, "max_ns": s.MaxNS},
		Cause:    "packets are lost on the way, or the server's listen queue overflows; the first repetition comes after 1 s, the next after 2 s more",
		Next:     "nstat -az TcpExtListenOverflows TcpExtListenDrops TcpRetransSegs"}
}

// far is a round trip above which the store is hardly in the same region: there it is 0.3 to 3 ms.
const far = 5 * time.Millisecond

func anotherRegion(r *Report) *Finding {
	connect, echo := r.Path.stage("connect"), r.Path.stage("third")
	if connect == nil || echo == nil || connect.MinNS < int64(far) || echo.MinNS < int64(far) {
		return nil
	}
	trip := min(connect.MinNS, echo.MinNS)
	f := &Finding{Severity: warning,
		Summary:  fmt.Sprintf("one round trip takes %s: typical of another region; in the same it is 0.3-3 ms. 10 operations in a row cost %s", show(trip), show(10*trip)),
		Evidence: map[string]any{"connect_min_ns": connect.MinNS, "echo_min_ns": echo.MinNS},
		Cause:    "the store is in another region than this process, or the way between them is a detour",
		Next:     "gcloud redis instances list --region=- --format='table(name,locationId,host)'"}
	if r.Path.KernelRTTNS != nil {
		f.Evidence["kernel_rtt_ns"] = *r.Path.KernelRTTNS
	}
	if r.Vantage.Region != "" {
		f.Evidence["region"] = r.Vantage.Region
	}
	return f
}

func connectorHandshakes(r *Report) *Finding {
	if r.Path == nil {
		return nil
	}
	for i := len(r.Path.FanOut) - 1; i > 0; i-- {
		many, alone := r.Path.FanOut[i], r.Path.FanOut[0]
		if !many.exploded(r.Path.FanOut[:i]) {
			continue
		}
		// Where the commands stall too it is not the dials.
		if many.Warm == nil || many.Warm.P50NS > int64(50*time.Millisecond)+2*alone.MaxNS {
			return nil
		}
		summary := fmt.Sprintf("%d dials at once took %s, one alone %s; warm commands stay at %s", many.Dials, show(many.MaxNS), show(alone.MaxNS), show(many.Warm.P50NS))
		if many.Failed > 0 {
			summary = fmt.Sprintf("%d of %d dials at once failed, one alone took %s; warm commands stay at %s", many.Failed, many.Dials, show(alone.MaxNS), show(many.Warm.P50NS))
		}
		region := cmp.Or(r.Vantage.Region, "REGION")
		return &Finding{Severity: warning, Summary: summary,
			Evidence: map[string]any{"dials": many.Dials, "failed": many.Failed, "max_ns": many.MaxNS, "alone_ns": alone.MaxNS, "warm_p50_ns": many.Warm.P50NS},
			Cause:    "the connector is short of machines: it forwards, but cannot set up connections fast enough",
			Next:     "gcloud compute networks vpc-access connectors update CONNECTOR --region " + shellWord(region) + " --min-instances 3"}
	}
	return nil
}

func tlsCost(r *Report) *Finding {
	handshake, connect := r.Path.stage("tls"), r.Path.stage("connect")
	if handshake == nil || connect == nil {
		return nil
	}
	return &Finding{Severity: info, Summary: "TLS adds " + show(handshake.P50NS) + " to a dial of " + show(connect.P50NS),
		Evidence: map[string]any{"handshake_p50_ns": handshake.P50NS, "connect_p50_ns": connect.P50NS},
		Cause:    "a handshake is one or two round trips and some CPU on both sides; each operation pays for encryption as well",
		Next:     "keep connections open: a pool as large as the concurrency, idle ones kept as long as the path does"}
}

func blockedCommands(r *Report) *Finding {
	if r.Client != nil && bench.Kind(replyError(r.Client.Error)) == "noperm" {
		return &Finding{Severity: warning, Summary: "this user may not do what is measured: " + r.Client.Error,
			Evidence: map[string]any{"error": r.Client.Error}, Cause: "its access list lacks GET, SET or keys that begin with nsop:",
			Next: askServer(r, "ACL SETUSER USER '~nsop:*' +get +set +del +echo +exists +info")}
	}
	if r.Server == nil || len(r.Server.Refused) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(r.Server.Refused))
	evidence := map[string]any{}
	for _, name := range names {
		evidence[name] = r.Server.Refused[name]
	}
	var lost []string
	for _, m := range []struct {
		question string
		missing  bool
		what     string
	}{
		{"INFO", r.Server.ConnectedClients == nil, "memory, clients, CPU and the server's own time"},
		{"CONFIG", r.Server.MaxClients == nil, "the limit of clients"},
		{"CONFIG", r.Server.IdleTimeoutS == nil, "the idle timeout"},
		{"SLOWLOG", r.Server.SlowLogged == nil, "the slow log"},
	} {
		if r.Server.Refused[m.question] != "" && m.missing {
			lost = append(lost, m.what)
		}
	}
	return &Finding{Severity: info, Summary: "not allowed: " + strings.Join(names, ", ") + "; not known for that: " + cmp.Or(strings.Join(lost, ", "), "nothing of weight"),
		Evidence: evidence, Cause: "managed stores and access lists keep these commands back", Next: "nothing has to be done: the figures that need them are left out"}
}

// replyError is the text of an error, as an error.
type replyError string

func (e replyError) Error() string { return string(e) }

func protocolFallback(r *Report) *Finding {
	if r.Path == nil || r.Path.HelloRefused == "" {
		return nil
	}
	cost := ""
	if s := r.Path.stage("hello"); s != nil {
		cost = ", for " + show(s.P50NS) + " more a dial"
	}
	return &Finding{Severity: info, Summary: "the server refuses HELLO 3: clients fall back to RESP2" + cost, Evidence: map[string]any{"error": r.Path.HelloRefused},
		Cause: "the server is older than Redis 6, or HELLO is taken away", Next: "go-redis: redis.Options{Protocol: 2}; rueidis: AlwaysRESP2: true"}
}

func cpuThrottled(r *Report) *Finding {
	v := r.Vantage
	if v.ThrottledNS == nil || r.ElapsedNS == 0 || float64(*v.ThrottledNS) < 0.02*float64(r.ElapsedNS) {
		return nil
	}
	evidence := map[string]any{"throttled_ns": *v.ThrottledNS, "elapsed_ns": r.ElapsedNS, "longest_stall_ns": v.LongestStallNS}
	quota := "its CPU quota"
	if v.CPUQuota != nil {
		evidence["cpu_quota"] = *v.CPUQuota
		quota = fmt.Sprintf("its quota of %.2g cores", *v.CPUQuota)
	}
	if v.CPUPercent != nil {
		evidence["cpu_percent"] = *v.CPUPercent
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("this process was kept from running for %s of %s by %s", show(*v.ThrottledNS), show(r.ElapsedNS), quota),
		Evidence: evidence, Cause: "it uses more CPU than it is given, be it by many threads at once for a moment; every latency has that in it",
		Next: "gcloud run services update " + shellWord(cmp.Or(v.Service, "SERVICE")) + " --cpu 2"}
}

func backgroundThrottled(r *Report) *Finding {
	share := r.Vantage.BackgroundPercent
	if share == nil || *share >= 70 {
		return nil
	}
	return &Finding{Severity: warning, Summary: "work after the previous response got " + share.String() + "% of its time: CPU is taken away between requests",
		Evidence: map[string]any{"background_percent": *share},
		Cause:    "with request-based billing the platform lends CPU only while a request is in flight: pings, refreshes and pools' upkeep stand still, their deadlines pass",
		Next:     "gcloud run services update " + shellWord(cmp.Or(r.Vantage.Service, "SERVICE")) + " --no-cpu-throttling"}
}

func noisyVantage(r *Report) *Finding {
	v := r.Vantage
	if v.CPUPercent == nil || *v.CPUPercent >= 95 && v.LongestStallNS < int64(20*time.Millisecond) {
		return nil
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("a busy loop here got %s%% of the CPU, with a stall of %s: part of what was measured is this machine", v.CPUPercent, show(v.LongestStallNS)),
		Evidence: map[string]any{"cpu_percent": *v.CPUPercent, "longest_stall_ns": v.LongestStallNS, "stalls": v.Stalls},
		Cause:    "other processes or virtual machines want the same CPU, or the process does something else meanwhile",
		Next:     "nsop '/diagnose/" + r.Target.Name + "?format=text' once more, when nothing else runs; else a larger instance"}
}

func serverCPUBound(r *Report) *Finding {
	if r.Server == nil || r.Server.CPUPercent == nil || *r.Server.CPUPercent < 75 || r.Target.Kind != "redis" {
		return nil
	}
	return &Finding{Severity: warning, Summary: "the server uses " + r.Server.CPUPercent.String() + "% of a core while this process asks nothing of it",
		Evidence: map[string]any{"cpu_percent": *r.Server.CPUPercent, "commands": r.Server.Commands},
		Cause:    "commands are executed by one thread, which others keep busy: an operation waits for its turn",
		Next:     askServer(r, "INFO commandstats")}
}

// slow is a command's own time above which all others feel it; Redis logs from 10 ms on too.
const slow = 10 * time.Millisecond

func slowCommands(r *Report) *Finding {
	if r.Server == nil {
		return nil
	}
	// One alone is a server that did not get its CPU for a moment.
	var list []string
	for _, c := range r.Server.Commands {
		if c.NSPerCall >= int64(slow) && c.Calls > 1 {
			list = append(list, fmt.Sprintf("%s %s (%s calls)", strings.ToUpper(c.Name), show(c.NSPerCall), bench.FormatCount(c.Calls)))
		}
	}
	logged := int64(0)
	if r.Server.SlowLogged != nil {
		logged = *r.Server.SlowLogged
	}
	if len(list) == 0 && logged < 2 || r.Server.SlowLogged != nil && logged < 2 {
		return nil
	}
	summary := bench.FormatCount(logged) + " commands came into the slow log while this was measured"
	if len(list) > 0 {
		summary = "commands that take the server long: " + strings.Join(list, ", ")
	}
	return &Finding{Severity: warning, Summary: summary, Evidence: map[string]any{"commands": r.Server.Commands, "slow_logged": logged},
		Cause: "a command over many elements, a script or a slow disk; each blocks all clients for as long", Next: askServer(r, "SLOWLOG GET 10")}
}

func memoryFull(r *Report) *Finding {
	if r.Client != nil && bench.Kind(replyError(r.Client.Error)) == "oom" {
		return &Finding{Severity: failure, Summary: "the server takes no writes: " + r.Client.Error, Evidence: memory(r), Cause: "its memory is full and its policy is to refuse writes rather than to evict",
			Next: askServer(r, "INFO memory")}
	}
	s := r.Server
	if s == nil || s.UsedMemoryBytes == nil || s.MaxMemoryBytes == nil || *s.MaxMemoryBytes == 0 || s.Policy != "noeviction" ||
		float64(*s.UsedMemoryBytes) < 0.95*float64(*s.MaxMemoryBytes) {
		return nil
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("the server has used %.0f%% of its memory; once it is full it refuses writes", 100*float64(*s.UsedMemoryBytes)/float64(*s.MaxMemoryBytes)),
		Evidence: memory(r), Cause: "more data than it was sized for, or keys without a TTL", Next: askServer(r, "INFO memory")}
}

func memory(r *Report) map[string]any {
	if r.Server == nil {
		return nil
	}
	return map[string]any{"used_memory_bytes": r.Server.UsedMemoryBytes, "max_memory_bytes": r.Server.MaxMemoryBytes, "policy": r.Server.Policy}
}

func evicting(r *Report) *Finding {
	if r.Server == nil || r.Server.Evicted == nil || *r.Server.Evicted == 0 {
		return nil
	}
	evidence := memory(r)
	evidence["evicted"] = *r.Server.Evicted
	return &Finding{Severity: warning, Summary: bench.FormatCount(*r.Server.Evicted) + " keys were evicted while this was measured: reads miss what was written",
		Evidence: evidence, Cause: "the server's memory is full, and each write pushes something out", Next: askServer(r, "INFO stats")}
}

func readOnly(r *Report) *Finding {
	if f := failed(r, nil, "readonly"); f != nil {
		return &Finding{Severity: failure, Summary: "the server is a replica and not serving: " + f.Text, Evidence: f.evidence(r), Cause: "it has lost its primary", Next: askServer(r, "INFO replication")}
	}
	if r.Server == nil {
		return nil
	}
	role := cmp.Or(r.Server.RoleAfter, r.Server.Role)
	refused := r.Client != nil && bench.Kind(replyError(r.Client.Error)) == "readonly"
	if role != "slave" && role != "standby" && !refused {
		return nil
	}
	evidence := map[string]any{"role": role}
	if refused {
		evidence["error"] = r.Client.Error
	}
	if r.Server.PrimaryLink != "" {
		evidence["primary_link"] = r.Server.PrimaryLink
	}
	return &Finding{Severity: warning, Summary: "the server is a replica: it refuses writes", Evidence: evidence,
		Cause: "the address is that of a read endpoint, or a failover has made this server a replica", Next: askServer(r, "INFO replication")}
}

func failover(r *Report) *Finding {
	s := r.Server
	if s == nil || s.RoleAfter == "" && s.RunIDAfter == "" {
		return nil
	}
	what := "another server answers at this address than a moment ago"
	if s.RunIDAfter == "" {
		what = "the server's role changed"
	}
	if s.RoleAfter != "" {
		what += ": " + s.Role + " became " + s.RoleAfter
	}
	return &Finding{Severity: warning, Summary: what, Evidence: map[string]any{"run_id": s.RunID, "run_id_after": s.RunIDAfter, "role": s.Role, "role_after": s.RoleAfter},
		Cause: "a failover, a restart or maintenance while this was measured; connections made before may still lead to the old one", Next: askServer(r, "INFO replication")}
}

func maxclientsNear(r *Report) *Finding {
	if f := failed(r, nil, "maxclients"); f != nil {
		return &Finding{Severity: failure, Summary: "the server has no room for another connection: " + f.Text, Evidence: f.evidence(r), Cause: "pools of all instances together are larger than the server's limit, or connections leak",
			Next: askServer(r, "CLIENT LIST")}
	}
	s := r.Server
	if s == nil || s.ConnectedClients == nil || s.MaxClients == nil || *s.MaxClients <= 0 {
		return nil
	}
	others := *s.ConnectedClients - s.OwnConnections
	if 10*others < 8**s.MaxClients {
		return nil
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("%s of %s connections are taken, by others than this", bench.FormatCount(others), bench.FormatCount(*s.MaxClients)),
		Evidence: map[string]any{"connected_clients": others, "max_clients": *s.MaxClients}, Cause: "pools of all instances together are nearly as large as the server's limit, or connections leak",
		Next: askServer(r, "CLIENT LIST")}
}

// longWait is a wait for a pool's connection that matters.
const longWait = 5 * time.Millisecond

func poolTooSmall(r *Report) *Finding {
	if r.Client == nil {
		return nil
	}
	for _, p := range r.Client.Pools {
		// On a quick path it is this machine that makes operations wait.
		quick := r.Classes.Warm == nil || r.Classes.Warm.P50NS < int64(2*time.Millisecond)
		if p.Timeouts == 0 && (quick || p.MeanWaitNS < int64(longWait)) {
			continue
		}
		summary := fmt.Sprintf("of %d operations at once %s waited for one of %s's %d connections, %s each", p.Concurrency, bench.FormatCount(p.Waits), p.Client, p.Size, show(p.MeanWaitNS))
		if p.Timeouts > 0 {
			summary += fmt.Sprintf("; %d waited in vain", p.Timeouts)
		}
		next := "redis.Options{PoolSize: 32}: as many connections as requests at once"
		return &Finding{Severity: warning, Summary: summary, Evidence: map[string]any{"client": p.Client, "pool_size": p.Size, "concurrency": p.Concurrency, "waits": p.Waits, "mean_wait_ns": p.MeanWaitNS, "timeouts": p.Timeouts, "max_ns": p.MaxNS},
			Cause: "the pool's default size goes by the number of processors, of which a small instance has few, and not by the requests at once", Next: next}
	}
	return nil
}

// idleLimits are how long the libraries keep a connection that nothing uses, by default; 0 is for ever.
var idleLimits = map[string]time.Duration{"go-redis": 30 * time.Minute, "redigo": 0, "gomemcache": 0, "pgx": 30 * time.Minute, "database-sql": 0}

func idleLimitRule(r *Report) *Finding {
	var died, lived time.Duration
	kind := ""
	for _, i := range r.Idle {
		switch gap := time.Duration(i.GapNS); {
		case i.Survived:
			lived = max(lived, gap)
		case died == 0 || gap < died:
			died, kind = gap, i.ErrorKind
		}
	}
	if died == 0 && r.Server != nil && r.Server.IdleTimeoutS != nil && *r.Server.IdleTimeoutS > 0 {
		died, kind = time.Duration(*r.Server.IdleTimeoutS)*time.Second, "server setting"
		return &Finding{Severity: info, Summary: "the server closes connections that are idle for " + show(died), Evidence: map[string]any{"idle_timeout_s": *r.Server.IdleTimeoutS},
			Cause: "its setting timeout", Next: "let the pool give connections up sooner: redis.Options{ConnMaxIdleTime: ...}"}
	}
	if died == 0 || r.Client == nil {
		return nil
	}
	var names []string
	for _, l := range r.Client.Libraries {
		if limit, ok := idleLimits[l.Client]; ok && (limit == 0 || limit > died) {
			keeps := "for ever"
			if limit > 0 {
				keeps = limit.String()
			}
			names = append(names, l.Client+" "+keeps)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("a connection idle for %s was dead (%s); by default pools keep one longer: %s", show(died), kind, strings.Join(names, ", ")),
		Evidence: map[string]any{"died_after_ns": int64(died), "survived_ns": int64(lived), "error_kind": kind},
		Cause:    "something on the way, or the server, drops idle connections: the next operation on one fails with a broken pipe, a reset or a timeout",
		Next:     "set the pool's idle limit below " + show(died) + ": redis.Options{ConnMaxIdleTime: ...}, redis.Pool{IdleTimeout: ...}, db.SetConnMaxIdleTime(...)"}
}

func hiddenRetries(r *Report) *Finding {
	if r.Client == nil || r.Client.Errors == 0 {
		return nil
	}
	for _, t := range r.Client.Retried {
		if t.Errors > 0 || t.Operations == 0 {
			continue
		}
		return &Finding{Severity: warning, Summary: fmt.Sprintf("%d operations failed without retries (%s); %s as it is set up by itself shows none of it in %d", r.Client.Errors, r.Client.Error, t.Client, t.Operations),
			Evidence: map[string]any{"errors": r.Client.Errors, "error": r.Client.Error, "client": t.Client, "operations": t.Operations, "dials": t.Dials},
			Cause:    "the library repeats what fails, go-redis three times with pauses of up to 512 ms: an outage shows as latency, and a write may happen twice",
			Next:     "redis.Options{MaxRetries: -1} to see the errors; then mend what breaks the connections"}
	}
	return nil
}

// narrow is a throughput below which large values take long: 100 Mbit/s, a half of what the smallest connector forwards.
const narrow = 12_500_000

func bandwidthBound(r *Report) *Finding {
	if r.Path == nil || r.Path.Throughput == nil || r.Path.Throughput.BytesPerSec >= narrow {
		return nil
	}
	t := r.Path.Throughput
	if t.BestNS < 7*t.RoundTripNS {
		return nil // a window that still grows takes a few round trips for as much, however wide the way is
	}
	return &Finding{Severity: warning, Summary: fmt.Sprintf("large values come at %.1f MB/s: one of %s takes %s", float64(t.BytesPerSec)/1e6, bench.FormatBytes(int64(t.Size)), show(t.BestNS)),
		Evidence: map[string]any{"bytes_per_sec": t.BytesPerSec, "size": t.Size, "best_ns": t.BestNS},
		Cause:    "the way is narrow: a connector of the smallest machines, a limit on the instance's egress or a proxy",
		Next:     "nsop '/bench/" + r.Target.Name + "/get?size=1KB,10KB,100KB&format=text'"}
}

func firstCommandSlow(r *Report) *Finding {
	first, second := r.Path.stage("first"), r.Path.stage("second")
	if first == nil || second == nil || first.MinNS < 5*second.MinNS || first.MinNS-second.MinNS < int64(5*time.Millisecond) {
		return nil
	}
	e := map[string]any{"first_p50_ns": first.P50NS, "second_p50_ns": second.P50NS}
	if third := r.Path.stage("third"); third != nil {
		e["third_p50_ns"] = third.P50NS
	}
	return &Finding{Severity: warning, Summary: "the first command on a fresh connection takes " + show(first.P50NS) + ", the second " + show(second.P50NS),
		Evidence: e, Cause: "something on the way, or the server, sets itself up only when the first bytes come: a proxy, a backend process, a cache",
		Next: "open the pool's connections before traffic comes: redis.Options{MinIdleConns: ...}, and answer /readyz only then"}
}
