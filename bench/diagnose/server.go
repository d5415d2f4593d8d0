package diagnose

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"nsop/bench"
)

// A Server is what the store tells of itself. What it does not tell is nil or empty; Refused has the questions that it
// would not answer.
type Server struct {
	Version          string            `json:"version"`
	Mode             string            `json:"mode,omitempty"`
	Role             string            `json:"role,omitempty"`   // master, slave; of Postgres primary, standby
	RunID            string            `json:"run_id,omitempty"` // of Postgres when it was started
	UptimeSeconds    *int64            `json:"uptime_seconds"`
	NSPerCall        *bench.Figure     `json:"ns_per_call"` // its own time for the operation of the budget
	CPUPercent       *bench.Figure     `json:"cpu_percent"` // of a core, while this process asked nothing of it
	ConnectedClients *int64            `json:"connected_clients"`
	OwnConnections   int64             `json:"own_connections"` // of those, the diagnosis's own
	MaxClients       *int64            `json:"max_clients"`
	UsedMemoryBytes  *int64            `json:"used_memory_bytes"`
	MaxMemoryBytes   *int64            `json:"max_memory_bytes"` // 0: no limit
	Policy           string            `json:"policy,omitempty"` // of eviction
	EvictedTotal     *int64            `json:"evicted_total"`
	Evicted          *int64            `json:"evicted"`                // during the diagnosis
	SlowLogged       *int64            `json:"slow_logged"`            // during the diagnosis
	IdleTimeoutS     *int64            `json:"idle_timeout_s"`         // after which it closes a connection; 0: never
	Replicas         *int64            `json:"replicas"`               // connected to it
	PrimaryLink      string            `json:"primary_link,omitempty"` // of a replica: up or down
	Persisting       []string          `json:"persisting,omitempty"`   // what it writes to disk just now
	Commands         []Command         `json:"commands,omitempty"`     // during the diagnosis, by their time in all
	RoleAfter        string            `json:"role_after,omitempty"`   // at the end, where it is another
	RunIDAfter       string            `json:"run_id_after,omitempty"` // likewise
	Refused          map[string]string `json:"refused,omitempty"`
}

// A Command is what the server says of one command.
type Command struct {
	Name      string `json:"name"`
	Calls     int64  `json:"calls"`
	NSPerCall int64  `json:"ns_per_call"`
}

// ask reads the facts of session, nil where it has none to tell.
func (d *diagnosis) ask(ctx context.Context, session bench.Session) map[string]string {
	teller, ok := session.(bench.Teller)
	if !ok || d.target.Embedded {
		d.unmeasured("server.facts", errors.New("this store tells nothing of itself"))
		return nil
	}
	facts, refused, err := teller.Facts(ctx)
	d.unmeasured("server.facts", err)
	for question, why := range refused {
		if d.r.Server.Refused == nil {
			d.r.Server.Refused = map[string]string{}
		}
		d.r.Server.Refused[question] = why.Error()
	}
	return facts
}

// A names is where facts of one kind of store have what; a list is of names of which the first that is there holds.
type names struct {
	role, runID, uptime, clients, max, used, limit, policy, evicted, slow, idle, replicas, link []string
	cpu                                                                                         []string // seconds, to be added
}

var factNames = map[string]names{
	"redis": {
		role: []string{"role"}, runID: []string{"run_id"}, uptime: []string{"uptime_in_seconds"}, clients: []string{"connected_clients"},
		max: []string{"maxclients", "config.maxclients"}, used: []string{"used_memory"}, limit: []string{"maxmemory"},
		policy: []string{"maxmemory_policy", "config.maxmemory-policy"}, evicted: []string{"evicted_keys"}, slow: []string{"slowlog"},
		idle: []string{"config.timeout"}, replicas: []string{"connected_slaves"}, link: []string{"master_link_status"},
		cpu: []string{"used_cpu_user", "used_cpu_sys"},
	},
	"memcached": {
		runID: []string{"pid"}, uptime: []string{"uptime"}, clients: []string{"curr_connections"}, max: []string{"max_connections", "settings.maxconns"},
		used: []string{"bytes"}, limit: []string{"limit_maxbytes"}, evicted: []string{"evictions"}, idle: []string{"settings.idle_timeout"},
		cpu: []string{"rusage_user", "rusage_system"},
	},
	"postgres": {
		runID: []string{"started"}, clients: []string{"numbackends"}, max: []string{"max_connections"}, replicas: []string{"connected_replicas"},
	},
}

func text(facts map[string]string, names []string) string {
	for _, name := range names {
		if facts[name] != "" {
			return facts[name]
		}
	}
	return ""
}

// number returns the whole number that one of names has, nil where none has one.
func number(facts map[string]string, names []string) *int64 {
	for _, name := range names {
		if n, err := strconv.ParseInt(facts[name], 10, 64); err == nil {
			return &n
		}
	}
	return nil
}

// cpu is the CPU time of the server so far; false where it does not tell.
func cpu(facts map[string]string, names []string) (sum time.Duration, ok bool) {
	for _, name := range names {
		seconds, err := strconv.ParseFloat(facts[name], 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum, len(names) > 0
}

// facts fills in the server as it is, and its CPU since before was read.
func (d *diagnosis) facts(ctx context.Context) {
	s, n := d.r.Server, factNames[d.target.Kind]
	facts := d.ask(ctx, d.session)
	if facts == nil {
		return
	}
	s.Role, s.RunID, s.UptimeSeconds = text(facts, n.role), text(facts, n.runID), number(facts, n.uptime)
	s.ConnectedClients, s.MaxClients = number(facts, n.clients), number(facts, n.max)
	s.UsedMemoryBytes, s.MaxMemoryBytes, s.Policy = number(facts, n.used), number(facts, n.limit), text(facts, n.policy)
	s.EvictedTotal, s.IdleTimeoutS = number(facts, n.evicted), number(facts, n.idle)
	s.Replicas, s.PrimaryLink = number(facts, n.replicas), text(facts, n.link)
	s.OwnConnections = int64(len(d.holds)) + 1 // the session's
	if d.talk != nil {
		s.OwnConnections++
	}
	if d.target.Kind == "postgres" {
		s.Role = map[string]string{"true": "standby", "false": "primary"}[facts["in_recovery"]]
		if most, kept := number(facts, []string{"max_connections"}), number(facts, []string{"reserved_connections"}); most != nil && kept != nil {
			s.MaxClients = new(*most - *kept)
		}
	}
	if kept := number(facts, []string{"reserved_fds"}); kept != nil && s.MaxClients != nil { // memcached's own
		s.MaxClients = new(*s.MaxClients - *kept)
	}
	for name, what := range map[string]string{"rdb_bgsave_in_progress": "snapshot", "aof_rewrite_in_progress": "rewrite of the append-only file",
		"loading": "loading its data"} {
		if facts[name] == "1" {
			s.Persisting = append(s.Persisting, what)
		}
	}
	slices.Sort(s.Persisting)
	if before, ok := cpu(d.before, n.cpu); ok {
		if now, ok := cpu(facts, n.cpu); ok {
			wall := time.Since(d.began)
			clock := []string{"server_time_usec"} // its own clock is read with its CPU
			if began, ended := number(d.before, clock), number(facts, clock); began != nil && ended != nil {
				wall = time.Duration(*ended-*began) * time.Microsecond
			}
			if wall > 0 {
				s.CPUPercent = bench.NewFigure(100 * float64(now-before) / float64(wall))
			}
		}
	}
	for _, missing := range []struct {
		part  string
		isNil bool
	}{
		{"server.cpu_percent", s.CPUPercent == nil}, {"server.max_clients", s.MaxClients == nil},
		{"server.connected_clients", s.ConnectedClients == nil}, {"server.used_memory_bytes", s.UsedMemoryBytes == nil},
	} {
		if missing.isNil {
			d.unmeasured(missing.part, errors.New(d.untold()))
		}
	}
}

// untold is why a fact is missing.
func (d *diagnosis) untold() string {
	if why := d.r.Server.Refused["INFO"]; why != "" {
		return "INFO: " + why
	}
	return "the server does not tell"
}

// again reads the facts at the end, on a fresh connection, and says what has changed.
func (d *diagnosis) again(ctx context.Context) {
	if d.before == nil || ctx.Err() != nil {
		return
	}
	s, n := d.r.Server, factNames[d.target.Kind]
	session, err := d.target.Connect(ctx, d.Timeout)
	if err != nil {
		d.unmeasured("server.after", err)
		return
	}
	defer session.Close()
	facts := d.ask(ctx, session)
	if facts == nil {
		return
	}
	if role := text(facts, n.role); role != text(d.before, n.role) {
		s.RoleAfter = role
	}
	if id := text(facts, n.runID); id != text(d.before, n.runID) {
		s.RunIDAfter = id
		return // the totals are another's
	}
	grown := func(names []string) *int64 {
		before, now := number(d.before, names), number(facts, names)
		if before == nil || now == nil || *now < *before {
			return nil
		}
		return new(*now - *before)
	}
	s.Evicted, s.SlowLogged = grown(n.evicted), grown(n.slow)
	s.Commands = commands(d.before, facts)
}

// commands is what was called between two readings of commandstats, by its time in all.
func commands(before, now map[string]string) (list []Command) {
	type total struct{ calls, usec int64 }
	read := func(text string) (t total) {
		for field := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(field, "=")
			n, _ := strconv.ParseInt(value, 10, 64)
			switch key {
			case "calls":
				t.calls = n
			case "usec":
				t.usec = n
			}
		}
		return t
	}
	for key, value := range now {
		name, ok := strings.CutPrefix(key, "cmdstat_")
		if !ok {
			continue
		}
		a, b := read(before[key]), read(value)
		if calls := b.calls - a.calls; calls > 0 && b.usec >= a.usec {
			list = append(list, Command{name, calls, (b.usec - a.usec) * 1000 / calls})
		}
	}
	slices.SortFunc(list, func(a, b Command) int {
		if x, y := a.Calls*a.NSPerCall, b.Calls*b.NSPerCall; x != y {
			return int(y/1000 - x/1000)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list[:min(len(list), 10)]
}
