package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"nsop/bench"
	"nsop/bench/store"
	"nsop/bench/storetest"
)

// catalogue are the tests of redis-benchmark in its order.
func catalogue() (tests []*bench.Workload) {
	for i := range bench.Workloads {
		if w := &bench.Workloads[i]; w.Title != "" {
			tests = append(tests, w)
		}
	}
	return tests
}

func names(tests []*bench.Workload) string {
	var list []string
	for _, w := range tests {
		list = append(list, w.Name)
	}
	return strings.Join(list, ",")
}

// peerTests are the tests that the redis-benchmark of 7.0 has too.
func peerTests() []*bench.Workload {
	return slices.DeleteFunc(catalogue(), func(w *bench.Workload) bool { return w.Name == "mget" || w.Name == "xadd" })
}

func rdbOf(t testing.TB, s *storetest.RedisServer) *goredis.Client {
	t.Helper()
	rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// checkNothingLeft expects no key of ours on the server.
func checkNothingLeft(t *testing.T, what string, s *storetest.RedisServer) {
	t.Helper()
	if reply := s.Do(t, "KEYS", "nsop:*").([]any); len(reply) > 0 {
		t.Errorf("%s: %d keys are left, %s first", what, len(reply), reply[0])
	}
}

// usersOfTheNames writes keys that have the names of redis-benchmark's, and returns what tells whether they changed.
func usersOfTheNames(t *testing.T, s *storetest.RedisServer) (check func(what string)) {
	t.Helper()
	for _, cmd := range [][]any{
		{"SET", "key:__rand_int__", "a"}, {"SET", "key:000000000001", "b"}, {"SET", "counter:__rand_int__", "7"}, {"SET", "counter:000000000001", "8"},
		{"RPUSH", "mylist", "c", "d"}, {"SADD", "myset", "e"}, {"HSET", "myhash", "f", "g"}, {"ZADD", "myzset", "1", "h"}, {"XADD", "mystream", "1-1", "i", "j"},
		{"SET", "nsop", "k"},
	} {
		s.Do(t, cmd[0].(string), cmd[1:]...)
	}
	digest := func() (all []string) {
		for _, key := range []string{"key:__rand_int__", "key:000000000001", "counter:__rand_int__", "counter:000000000001", "mylist", "myset", "myhash",
			"myzset", "mystream", "nsop"} {
			all = append(all, fmt.Sprintf("%q %d", s.Do(t, "DUMP", key), s.Do(t, "PTTL", key)))
		}
		return append(all, fmt.Sprint(s.Do(t, "DBSIZE")))
	}
	before := digest()
	return func(what string) {
		t.Helper()
		if after := digest(); !slices.Equal(after, before) {
			t.Errorf("%s: the user's keys are\n%s, were\n%s", what, after, before)
		}
	}
}

// Every test through every client in both flavors: exactly what was asked for, without errors, and in flavor sound
// without a miss; the server counts the same, and has nothing left.
func TestCatalogue(t *testing.T) {
	const count, warmup = 120, 30
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			check := usersOfTheNames(t, s)
			l := redisLab(t, s.Addr)
			for _, w := range append(catalogue(), findNamed("roundtrip")) {
				if w.Clients != nil && !slices.Contains(w.Clients, client) {
					continue
				}
				for _, flavor := range []string{"sound", "compatible"} {
					if w.Title == "" && flavor == "compatible" {
						continue
					}
					for _, keyspace := range []int{1, 50} {
						s.Do(t, "CONFIG", "RESETSTAT")
						query := fmt.Sprintf("/bench/redis/%s?client=%s&flavor=%s&keyspace=%d&pipeline=1,16&concurrency=1,3&verify=%v&benchtime=%dx&warmup=%dx",
							w.Name, client, flavor, keyspace, flavor == "sound", count, warmup)
						r := l.get(query)
						if r.status != http.StatusOK || len(r.Results) != 4 || len(r.Warnings) != 0 {
							t.Errorf("%s: status %d, warnings %q: %s", query, r.status, r.Warnings, r.Detail)
							continue
						}
						for _, row := range r.Results {
							if row.Iterations != count || row.Errors != 0 || row.Mismatches != 0 || row.Flavor != map[string]string{"compatible": flavor}[flavor] {
								t.Errorf("%s: %d iterations, %v %v", row.Name, row.Iterations, row.ErrorKinds, row.ErrorSamples)
							}
							// How busy the client is depends on the machine.
							row.Warnings = slices.DeleteFunc(row.Warnings, func(w string) bool { return strings.Contains(w, "garbage collector") || strings.Contains(w, "CPU") })
							if flavor == "sound" && (row.Misses != 0 || len(row.Warnings) != 0) {
								t.Errorf("%s: %d misses, warnings %q", row.Name, row.Misses, row.Warnings)
							}
						}
						checkNothingLeft(t, query, s)
						check(query)
						checkCalls(t, s, w, flavor, client, 4*(count+warmup))
					}
				}
			}
		})
	}
}

func findNamed(name string) *bench.Workload {
	i := slices.IndexFunc(bench.Workloads, func(w bench.Workload) bool { return w.Name == name })
	return &bench.Workloads[i]
}

// checkCalls expects the server to have counted so many calls of a test's command beyond those of loading.
func checkCalls(t *testing.T, s *storetest.RedisServer, w *bench.Workload, flavor, client string, want int64) {
	t.Helper()
	if w.Command == "" || w.Command == "ping" && client == "rueidis" { // which has PINGs of its own
		return
	}
	// What is loaded with the command that is measured, once a row, and the note of keys without a TTL.
	if flavor == "sound" && slices.Contains([]string{"rpush", "sadd", "hset", "zadd", "xadd"}, w.Name) {
		want += 4
	}
	if flavor == "compatible" && w.Name == "hset" {
		want++
	}
	if got := commandCalls(t, s, w.Command).ok; got != want {
		t.Errorf("%s, %s: the server performed %d %s, want %d", w.Name, flavor, got, w.Command, want)
	}
}

// What each test of a compatible run leaves for the next is what redis-benchmark's would: the server is asked after each row.
func TestCompatibleState(t *testing.T) {
	const count = 40
	s := storetest.Redis(t)
	rdb := rdbOf(t, s)
	type state struct{ list, set, hash, zset, stream int64 }
	var got []state
	l := newLab(t, at("redis://"+s.Addr).env, func(p bench.Progress) {
		if p.Result == nil {
			return
		}
		key, ctx := "nsop:"+p.Run+":", t.Context()
		got = append(got, state{rdb.LLen(ctx, key+"mylist").Val(), rdb.SCard(ctx, key+"myset").Val(), rdb.HLen(ctx, key+"myhash").Val(),
			rdb.ZCard(ctx, key+"myzset").Val(), rdb.XLen(ctx, key+"mystream").Val()})
	})
	r := l.get(fmt.Sprintf("/bench/redis/lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_lpush,lrange_100,xadd?client=floor&flavor=compatible&warmup=0x&benchtime=%dx", count))
	want := []state{{40, 0, 0, 0, 0}, {80, 0, 0, 0, 0}, {40, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 1, 0, 0, 0}, {0, 1, 1, 0, 0}, {0, 0, 1, 0, 0}, {0, 0, 1, 1, 0},
		{0, 0, 1, 0, 0}, {40, 0, 1, 0, 0}, {40, 0, 1, 0, 0}, {40, 0, 1, 0, 40}}
	if r.status != http.StatusOK || !slices.Equal(got, want) {
		t.Errorf("status %d, states\n%v, want\n%v", r.status, got, want)
	}
	for i, misses := range map[int]int64{2: 0, 3: 0, 6: count - 1, 8: count - 1, 10: count} {
		if row := r.Results[i]; row.Misses != misses || row.Iterations != count || row.Errors != 0 {
			t.Errorf("%s: %d misses, want %d; %d iterations, errors %v", row.Name, row.Misses, misses, row.Iterations, row.ErrorKinds)
		}
	}
	checkNothingLeft(t, "a compatible run", s)
}

var (
	monitored = regexp.MustCompile(`^[0-9.]+ \[\d+ [^\]]+\] `)
	ourPrefix = regexp.MustCompile(`nsop:[0-9a-f-]{36}:`)
	drawn     = regexp.MustCompile(`\d{12}`)
)

// trace returns what redis-cli monitor shows of the commands that f has sent, those aside that only look after a run.
func trace(t *testing.T, s *storetest.RedisServer, f func()) (commands []string) {
	t.Helper()
	cmd := exec.Command("redis-cli", "-p", strconv.Itoa(s.Port), "monitor")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != "OK" {
		t.Fatalf("monitor: %q", lines.Text())
	}
	f()
	s.Do(t, "ECHO", "the end of the trace")
	aside := regexp.MustCompile(`(?i)^"(echo|exists|info|config|del|unlink|subscribe|pubsub)" |"nsop:left"`)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "the end of the trace") {
			return commands
		}
		line := monitored.ReplaceAllString(lines.Text(), "")
		if aside.MatchString(line) {
			continue
		}
		line = drawn.ReplaceAllString(ourPrefix.ReplaceAllString(line, ""), "#")
		commands = append(commands, line)
	}
	t.Fatalf("monitor ended: %v", lines.Err())
	return nil
}

// A compatible run sends what the redis-benchmark on this machine sends, command for command.
func TestMonitorTrace(t *testing.T) {
	s := storetest.Redis(t)
	l := redisLab(t, s.Addr)
	const count = 48
	for _, options := range []struct{ keyspace, size, pipeline int }{{1, 3, 1}, {1000, 100, 1}, {7, 64, 16}} {
		args := []string{"-p", strconv.Itoa(s.Port), "-c", "1", "-n", strconv.Itoa(count), "-d", strconv.Itoa(options.size), "-P", strconv.Itoa(options.pipeline), "-q",
			"-t", strings.NewReplacer(",lrange_lpush", "").Replace(names(peerTests()))}
		if options.keyspace > 1 {
			args = append(args, "-r", strconv.Itoa(options.keyspace))
		}
		theirs := trace(t, s, func() {
			if out, err := exec.Command("redis-benchmark", args...).CombinedOutput(); err != nil {
				t.Fatalf("redis-benchmark %q: %v\n%s", args, err, out)
			}
		})
		ours := trace(t, s, func() {
			r := l.get(fmt.Sprintf("/bench/redis/%s?client=floor&flavor=compatible&warmup=0x&benchtime=%dx&keyspace=%d&size=%d&pipeline=%d",
				names(peerTests()), count, options.keyspace, options.size, options.pipeline))
			if r.status != http.StatusOK {
				t.Fatal(r.body)
			}
		})
		if want := count * len(peerTests()); len(theirs) != want || len(ours) != want {
			t.Errorf("%+v: %d commands, redis-benchmark %d, want %d", options, len(ours), len(theirs), want)
			continue
		}
		for i := range theirs {
			if ours[i] != theirs[i] {
				t.Errorf("%+v, command %d:\n%.300s\nwant\n%.300s", options, i, ours[i], theirs[i])
				break
			}
		}
		if options.keyspace > 1 && !strings.Contains(strings.Join(ours, ""), `"key:#"`) || options.keyspace == 1 && !strings.Contains(strings.Join(ours, ""), `"key:__rand_int__"`) {
			t.Errorf("%+v: a trace that tells nothing: %q", options, ours[0])
		}
		checkNothingLeft(t, fmt.Sprint(options), s)
	}
}

// The inline PING is six bytes, and a pipeline of them one write.
func TestInlineBytes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer listener.Close()
	wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					if first, err := r.Peek(1); err != nil {
						return
					} else if first[0] != '*' {
						break
					}
					cmd, err := readCommand(r) // of the session, or that by which the connection is proved
					if err != nil {
						return
					}
					fmt.Fprint(conn, healthy(cmd))
				}
				b := make([]byte, 100)
				n, _ := r.Read(b)
				fmt.Fprint(conn, strings.Repeat("+PONG\r\n", 3))
				got <- string(b[:n])
			})
		}
	})
	target, err := store.Parse("redis", "redis://"+listener.Addr().String(), "", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	session, err := target.Connect(t.Context(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	floor, err := session.Open(t.Context(), "floor", bench.Options{Connections: 1, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer floor.Close()
	replies := make([]bench.Reply, 3)
	floor.(bench.Dedicated).Dedicate(0).(bench.Inliner).Inline(t.Context(), "PING", replies)
	for _, r := range replies {
		if r.Err != nil || string(r.Bytes) != "PONG" {
			t.Errorf("reply %+v", r)
		}
	}
	if b := <-got; b != "PING\r\nPING\r\nPING\r\n" {
		t.Errorf("sent %q", b)
	}
}

// killAtWork runs the command until it is ready to be killed.
func killAtWork(t *testing.T, bin, path string, s *storetest.RedisServer, ready func() bool) {
	t.Helper()
	cmd := exec.Command(bin, path)
	cmd.Env = cleanEnv("REDIS_URL=redis://" + s.Addr)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for !ready() && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if time.Now().After(deadline) {
		t.Errorf("%s: not at work: %s", path, out.String())
	}
}

// What a killed run leaves expires or, where its commands can't carry a TTL, is removed by the next run, whatever that
// one measures; the user's keys of the same names stay.
func TestKilledCatalogue(t *testing.T) {
	t.Parallel()
	bin := build(t)
	s := storetest.Redis(t)
	rdb := rdbOf(t, s)
	check := usersOfTheNames(t, s)
	l := redisLab(t, s.Addr)
	keys := func() []string {
		return slices.DeleteFunc(scan(t, rdb, "nsop:*"), func(k string) bool { return k == "nsop:left" })
	}
	for _, w := range append(catalogue(), findNamed("roundtrip")) {
		if w.Keys == nil {
			continue
		}
		killAtWork(t, bin, "/bench/redis/"+w.Name+"?client=floor&keyspace=20&benchtime=50s&concurrency=2", s, func() bool {
			return len(keys()) > 0 && commandCalls(t, s, cmp.Or(w.Command, "get")).ok > 200
		})
		s.Do(t, "CONFIG", "RESETSTAT")
		for _, key := range keys() {
			if ttl := rdb.TTL(t.Context(), key).Val(); !w.Forever && (ttl <= 0 || ttl > bench.TTL) {
				t.Errorf("%s: %s lives for %s", w.Name, key, ttl)
			}
		}
		if left := s.Do(t, "EXISTS", "nsop:left"); (left == int64(1)) != w.Forever {
			t.Errorf("%s: nsop:left is there: %v", w.Name, left)
		}
		if len(keys()) == 0 {
			t.Errorf("%s: a killed run left nothing: this tests nothing", w.Name)
		}
		if w.Forever {
			if r := l.get("/bench/redis/ping?benchtime=1x&client=floor"); r.status != http.StatusOK || len(r.Warnings) != 0 {
				t.Error(r.body)
			}
			for _, key := range keys() {
				if rdb.TTL(t.Context(), key).Val() < 0 {
					t.Errorf("%s: %s is still there, for ever", w.Name, key)
				}
			}
		}
		for _, key := range scan(t, rdb, "nsop:*") {
			s.Do(t, "DEL", key)
		}
	}
	// In flavor compatible: two runs killed, of all the tests that write, and one more run.
	for _, keyspace := range []int{1, 30} {
		killAtWork(t, bin, fmt.Sprintf("/bench/redis/set,incr,lpush,sadd,hset,zadd,mset,xadd,lrange_100?client=floor&flavor=compatible&warmup=0x&keyspace=%d&benchtime=300ms&count=100", keyspace),
			s, func() bool { return commandCalls(t, s, "lrange").ok > 200 })
		s.Do(t, "CONFIG", "RESETSTAT")
		if n := len(keys()); n < 7 {
			t.Errorf("keyspace %d: %d keys are left, want 7 at least: this tests nothing", keyspace, n)
		}
		for _, key := range keys() {
			if ttl := rdb.TTL(t.Context(), key).Val(); ttl >= 0 {
				t.Errorf("compatible: %s has a TTL: %s", key, ttl)
			}
		}
	}
	if notes := s.Do(t, "HLEN", "nsop:left"); notes != int64(1) {
		t.Errorf("%v notes, want that of the last run alone", notes)
	}
	if r := l.get("/bench/redis/get?benchtime=1x&client=redigo"); r.status != http.StatusOK || len(r.Warnings) != 0 {
		t.Error(r.body)
	}
	checkNothingLeft(t, "the run after two that were killed", s)
	check("killed runs")
}

// What a run writes that is going on elsewhere is not taken for what a killed one left.
func TestRunGoingOnElsewhere(t *testing.T) {
	t.Parallel()
	s := storetest.Redis(t)
	one, other := redisLab(t, s.Addr), redisLab(t, s.Addr)
	var wait sync.WaitGroup
	wait.Go(func() {
		r, err := one.try(t.Context(), "/bench/redis/set?flavor=compatible&client=floor&benchtime=2s")
		if err != nil || r.status != http.StatusOK {
			t.Errorf("%v, status %d", err, r.status)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); commandCalls(t, s, "set").ok < 200; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the run does not begin")
		}
	}
	if r := other.get("/bench/redis/ping?benchtime=1x&client=floor"); r.status != http.StatusOK || len(r.Warnings) != 0 {
		t.Error(r.body)
	}
	if notes := s.Do(t, "HLEN", "nsop:left"); notes != int64(1) {
		t.Errorf("%v notes while a run is going on, want 1", notes)
	}
	wait.Wait()
	checkNothingLeft(t, "both runs", s)
}

// A server that refuses the ledger's hash is measured none the less; one that has no such command says unsupported.
func TestCatalogueRefused(t *testing.T) {
	t.Parallel()
	noHash := storetest.Redis(t)
	noHash.Do(t, "ACL", "SETUSER", "bench", "on", ">pw", "~nsop:*", "+@all", "-hset", "-hgetall", "-hdel")
	old := storetest.Redis(t, "--rename-command", "ZPOPMIN", "", "--rename-command", "XADD", "", "--rename-command", "HGETALL", "", "--rename-command", "UNLINK", "")
	noPush := storetest.Redis(t)
	noPush.Do(t, "ACL", "SETUSER", "bench", "on", ">pw", "~nsop:*", "+@all", "-lpush")
	small := storetest.Redis(t, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
	for _, client := range redisClients {
		for _, flavor := range []string{"sound", "compatible"} {
			query := "?client=" + client + "&benchtime=20x&flavor=" + flavor
			l := newLab(t, at("redis://bench:pw@"+noHash.Addr).env, nil)
			if r := l.get("/bench/redis/mset,lpush" + query); r.status != http.StatusOK || r.Results[1].Iterations != 20 {
				t.Errorf("no hash: status %d: %s", r.status, r.body)
			}
			l = redisLab(t, old.Addr)
			r := l.get("/bench/redis/set,zpopmin,xadd,lpop" + query)
			if r.status != http.StatusBadGateway || r.ErrorKind != "unsupported" || len(r.Results) != 4 {
				t.Errorf("old server: status %d, %s: %s", r.status, r.ErrorKind, r.body)
				continue
			}
			for i, row := range r.Results {
				if unsupported := i == 1 || i == 2; unsupported != (row.ErrorKinds["unsupported"] > 0) || unsupported != (row.Iterations == 0) {
					t.Errorf("%s: %d iterations, %v", row.Name, row.Iterations, row.ErrorKinds)
				}
			}
			l = newLab(t, at("redis://bench:pw@"+noPush.Addr).env, nil)
			if r := l.get("/bench/redis/lpush" + query); r.status != http.StatusBadGateway || r.ErrorKind != "noperm" {
				t.Errorf("no LPUSH: status %d, %s: %s", r.status, r.ErrorKind, r.body)
			}
			l = redisLab(t, small.Addr)
			r = l.get("/bench/redis/lpush?client=" + client + "&size=100KB&benchtime=200x&warmup=1x&flavor=" + flavor)
			if r.status != http.StatusOK || len(r.Results) != 1 || r.Results[0].Iterations == 0 || r.Results[0].ErrorKinds["oom"] == 0 || len(r.Results[0].ErrorKinds) != 1 {
				t.Errorf("full: status %d: %s", r.status, r.body)
			}
			// What is taken away does not fit into it: the row ends before it begins, and nothing of it stays.
			if flavor == "sound" {
				if r = l.get("/bench/redis/lpop?client=" + client + "&size=100KB&benchtime=200x&warmup=1x"); r.status != http.StatusBadGateway || r.ErrorKind != "oom" {
					t.Errorf("full while loading: status %d: %s", r.status, r.body)
				}
			}
			checkNothingLeft(t, client+", full", small)
		}
	}
	checkNothingLeft(t, "old server", old)
}

// Counters and reads of several keys, and the round trip, on what is no Redis.
func TestCatalogueElsewhere(t *testing.T) {
	t.Parallel()
	memcached := storetest.Memcached(t)
	l := newLab(t, map[string]string{"MEMCACHED_URL": "memcached://" + memcached.Addr}, nil)
	for _, keyspace := range []int{1, 5, 100} {
		for _, c := range []struct{ target, workloads, more string }{
			{"memcached", "incr,mget,roundtrip", "&client=gomemcache,floor"},
			{"map", "roundtrip", ""}, {"bbolt", "roundtrip", ""}, {"buntdb", "roundtrip", ""}, {"sqlite", "roundtrip", ""}, {"buntdb-disk", "roundtrip", ""},
			{"redis", "incr,mget,mset,roundtrip,lpop,zpopmin,xadd", ""},
		} {
			r := l.get(fmt.Sprintf("/bench/%s/%s?benchtime=150x&concurrency=1,4&keyspace=%d%s", c.target, c.workloads, keyspace, c.more))
			if r.status != http.StatusOK || len(r.Results) == 0 {
				t.Errorf("%s: status %d: %s", c.target, r.status, r.body)
			}
			for _, row := range r.Results {
				if row.Iterations != 150 || row.Errors+row.Misses+row.Mismatches != 0 {
					t.Errorf("%s: %d iterations, %v %v, %d misses", row.Name, row.Iterations, row.ErrorKinds, row.ErrorSamples, row.Misses)
				}
			}
		}
	}
	if got := memcached.Stats(t)["curr_items"]; got != "0" {
		t.Errorf("%s keys are left in memcached", got)
	}
}

// BenchmarkCatalogue sets every test beside the same of redis-benchmark, at 50 connections on one server, in turn: the
// geometric mean of the ratios of operations a second, each the median of its pairs.
func BenchmarkCatalogue(b *testing.B) {
	const count, rounds, target = 50_000, 3, 1.1
	tests := peerTests()
	s := storetest.Redis(b)
	l := redisLab(b, s.Addr)
	ours := func() map[string]float64 {
		s.Do(b, "FLUSHALL") // of the benchmark's own server: neither finds what the other left
		r := l.get(fmt.Sprintf("/bench/redis/%s?client=floor&flavor=compatible&concurrency=50&size=3&warmup=0x&benchtime=%dx", names(tests), count))
		if r.status != http.StatusOK {
			b.Fatal(r.body)
		}
		rates := map[string]float64{}
		for i, row := range r.Results {
			rates[tests[i].Title] = float64(*row.OpsPerSec)
		}
		return rates
	}
	theirs := func() map[string]float64 {
		s.Do(b, "FLUSHALL")
		out, err := exec.Command("redis-benchmark", "-p", strconv.Itoa(s.Port), "-c", "50", "-n", strconv.Itoa(count), "--csv",
			"-t", strings.ReplaceAll(names(tests), ",lrange_lpush", "")).Output()
		if err != nil {
			b.Fatal(err)
		}
		records, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
		if err != nil {
			b.Fatal(err)
		}
		rates := map[string]float64{}
		for _, record := range records[1:] {
			if rates[record[0]], err = strconv.ParseFloat(record[1], 64); err != nil {
				b.Fatal(err)
			}
		}
		return rates
	}
	for b.Loop() {
		ratios := map[string][]float64{}
		for round := range rounds {
			var a, c map[string]float64
			if round%2 == 0 {
				a, c = ours(), theirs()
			} else {
				c, a = theirs(), ours()
			}
			for _, w := range tests {
				if c[w.Title] == 0 {
					b.Fatalf("redis-benchmark printed no %s", w.Title)
				}
				ratios[w.Title] = append(ratios[w.Title], a[w.Title]/c[w.Title])
			}
		}
		sum := 0.0
		for _, w := range tests {
			m := median(ratios[w.Title])
			b.Logf("%-35s %.2f (%.2f)", w.Title, m, ratios[w.Title])
			sum += math.Log(m)
		}
		mean := math.Exp(sum / float64(len(tests)))
		b.Logf("geometric mean of %d tests: %.3f times redis-benchmark's operations a second (at least %.1f)", len(tests), mean, target)
		b.ReportMetric(mean, "x-redis-benchmark")
		b.ReportMetric(0, "ns/op")
	}
}
