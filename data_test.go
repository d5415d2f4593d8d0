package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"nsop/bench"
	"nsop/bench/storetest"
)

const usersKeys = 10_000 // of each type in each database

// usersTypes write key number i of each type, from a number and its hash, of which no two are alike.
var usersTypes = []struct {
	name  string
	write func(p goredis.Pipeliner, key string, i int)
}{
	{"string", func(p goredis.Pipeliner, key string, i int) {
		p.Set(context.Background(), key, fmt.Sprintf("value\x00\r\n%d", i), 0)
	}},
	{"list", func(p goredis.Pipeliner, key string, i int) { p.RPush(context.Background(), key, i, "b", i*i) }},
	{"set", func(p goredis.Pipeliner, key string, i int) { p.SAdd(context.Background(), key, i, "b", i*i+1) }},
	{"hash", func(p goredis.Pipeliner, key string, i int) {
		p.HSet(context.Background(), key, "field", i, "other", strings.Repeat("x", i%90))
	}},
	{"zset", func(p goredis.Pipeliner, key string, i int) {
		p.ZAdd(context.Background(), key, goredis.Z{Score: float64(i) / 3, Member: i}, goredis.Z{Score: -1, Member: "b"})
	}},
	{"stream", func(p goredis.Pipeliner, key string, i int) {
		p.XAdd(context.Background(), &goredis.XAddArgs{Stream: key, ID: fmt.Sprintf("%d-1", i+1), Values: []any{"field", i}})
	}},
}

// digest is what the server runs to tell one type's keys of one database apart from any others: it joins each key's
// serialised value, as DUMP returns it, and the moment at which it expires.
const digest = `
local sum, n = '', tonumber(ARGV[2])
for i = 0, n - 1 do
	local key = ARGV[1] .. i
	sum = redis.sha1hex(sum .. (redis.call('DUMP', key) or 'gone') .. redis.call('PEXPIRETIME', key))
end
return sum`

// users is a server with data of somebody's: keys of each type, every other one with a TTL, in two databases.
type users struct {
	*storetest.RedisServer
	clients []*goredis.Client // one a database
	want    []string
}

func newUsers(t *testing.T, args ...string) *users {
	t.Helper()
	u := &users{RedisServer: storetest.Redis(t, args...)}
	for _, db := range []int{0, 3} {
		rdb := goredis.NewClient(&goredis.Options{Addr: u.Addr, DB: db, Protocol: 2, ReadTimeout: time.Minute})
		t.Cleanup(func() { rdb.Close() })
		u.clients = append(u.clients, rdb)
		for _, kind := range usersTypes {
			for from := 0; from < usersKeys; from += 2000 {
				pipe := rdb.Pipeline()
				for i := from; i < from+2000; i++ {
					key := fmt.Sprintf("users:%s:%d", kind.name, i)
					kind.write(pipe, key, i)
					if i%2 == 1 {
						pipe.PExpire(t.Context(), key, time.Hour+time.Duration(i)*time.Millisecond)
					}
				}
				if _, err := pipe.Exec(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	u.want = u.digests(t)
	for i, d := range u.want {
		if slices.Index(u.want, d) != i && i < len(usersTypes) {
			t.Fatalf("digests that tell nothing: %v", u.want)
		}
	}
	return u
}

func (u *users) digests(t *testing.T) (sums []string) {
	t.Helper()
	for _, rdb := range u.clients {
		for _, kind := range usersTypes {
			sum, err := rdb.Eval(t.Context(), digest, nil, "users:"+kind.name+":", usersKeys).Text()
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, sum)
		}
	}
	return sums
}

// check checks that the data is bit for bit what it was, and that nothing stands beside it; ours says how many keys of a
// killed run may.
func (u *users) check(t *testing.T, what string, killed bool) {
	t.Helper()
	for i, sum := range u.digests(t) {
		if sum != u.want[i] {
			t.Errorf("%s: keys of type %s in database %d are not what they were", what, usersTypes[i%len(usersTypes)].name, i/len(usersTypes))
		}
	}
	for i, rdb := range u.clients {
		ours := scan(t, rdb, "nsop:*")
		if n := rdb.DBSize(t.Context()).Val(); n != int64(len(usersTypes)*usersKeys+len(ours)) {
			t.Errorf("%s: database %d holds %d keys, %d of them ours", what, i, n, len(ours))
		}
		if !killed && len(ours) > 0 {
			t.Errorf("%s: %d of our keys are left in database %d", what, len(ours), i)
		}
		for _, key := range ours {
			if ttl := rdb.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > time.Hour {
				t.Errorf("%s: %s lives for %s", what, key, ttl)
			}
		}
	}
}

func scan(t *testing.T, rdb *goredis.Client, pattern string) (keys []string) {
	t.Helper()
	for iter := rdb.Scan(t.Context(), 0, pattern, 10_000).Iterator(); iter.Next(t.Context()); {
		keys = append(keys, iter.Val())
	}
	return keys
}

// What was in the server before is there after a run of any kind, in the database that was measured and in another, and
// nothing of ours is.
func TestDataSurvives(t *testing.T) {
	t.Parallel()
	u := newUsers(t)
	for i, db := range []string{"", "/3"} {
		l := newLab(t, map[string]string{"REDIS_URL": "redis://" + u.Addr + db}, nil)
		all := "client=" + strings.Join(redisClients, ",")
		for _, query := range []string{
			"all?benchtime=200x&concurrency=5&pipeline=1,16&keyspace=1,1000&" + all,
			"set?benchtime=2000x&keyspace=10,10000&size=10,1KB&" + all,
			"get?benchtime=200x&keyspace=10000&verify=true&count=2&" + all,
			"ping?benchtime=50ms&" + all,
		} {
			if r := l.get("/bench/redis/" + query); r.status != 200 {
				t.Errorf("%s: status %d: %s", query, r.status, r.Detail)
			}
			u.check(t, query, false)
		}
		// One that fails: its caller leaves no time, and the server no memory.
		if r := l.get("/bench/redis/set?benchtime=1s&warmup=0x&timeout=1ms&concurrency=200&keyspace=1000&" + all); r.status == 400 {
			t.Error(r.body)
		}
		u.check(t, "timeouts", false)
		_, observe := whileRunning(0, func() { u.clients[0].ConfigSet(context.Background(), "maxmemory", "1") })
		l.service.Observe = observe
		if r := l.get("/bench/redis/set,get?benchtime=300ms&timeout=500ms&keyspace=1000&client=redigo"); r.Results[0].ErrorKinds["oom"] == 0 {
			t.Errorf("full: status %d: %s", r.status, r.body)
		}
		u.clients[0].ConfigSet(t.Context(), "maxmemory", "0")
		u.check(t, "full", false)
		// One that is cut off, by its caller, by DELETE and by the end of the service, while loading and while running.
		for _, client := range redisClients {
			for _, end := range [][]string{{"caller", "delete"}, {"drain"}}[i] {
				l := newLab(t, map[string]string{"REDIS_URL": "redis://" + u.Addr + db}, nil)
				ctx, cancel := context.WithCancel(t.Context())
				var deleted sync.WaitGroup
				var once sync.Once
				l.service.Observe = func(p bench.Progress) {
					if p.Fraction == 0 {
						return
					}
					once.Do(func() {
						switch end {
						case "caller":
							cancel()
						case "drain":
							l.service.Drain()
						case "delete":
							deleted.Go(func() {
								request, _ := http.NewRequest(http.MethodDelete, l.server.URL+"/runs/"+p.Run, nil)
								if response, err := l.server.Client().Do(request); err != nil {
									t.Error(err)
								} else {
									response.Body.Close()
								}
							})
						}
					})
				}
				workload := []string{"set", "get"}[i]
				r, err := l.try(ctx, "/bench/redis/"+workload+"?benchtime=20s&concurrency=4&keyspace=5000&client="+client)
				if (err != nil) != (end == "caller") || end != "caller" && r.status != 503 {
					t.Errorf("%s, %s: %v, status %d", client, end, err, r.status)
				}
				deleted.Wait()
				l.close() // returns once the run has ended
				cancel()
				u.check(t, client+", cut off by "+end, false)
			}
		}
	}
}

// A caller who leaves while keys are loaded leaves none of them behind.
func TestCutOffWhileLoading(t *testing.T) {
	for _, client := range redisClients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := storetest.Redis(t)
			rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Protocol: 2})
			defer rdb.Close()
			l := redisLab(t, s.Addr)
			ctx, cancel := context.WithCancel(t.Context())
			var wait sync.WaitGroup
			wait.Go(func() {
				defer cancel()
				for ctx.Err() == nil && rdb.DBSize(ctx).Val() == 0 {
					time.Sleep(time.Millisecond)
				}
			})
			l.try(ctx, "/bench/redis/get?keyspace=2000000&size=10&client="+client)
			cancel()
			wait.Wait()
			begun := time.Now()
			l.close()
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("the run ended %s after its caller left", took)
			}
			if n := rdb.DBSize(t.Context()).Val(); n != 0 {
				t.Errorf("%d keys are left", n)
			}
		})
	}
}

// A run whose process is killed leaves keys, which expire, and what was there before.
func TestKilledRun(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "nsop")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	u := newUsers(t)
	for _, client := range redisClients {
		for _, path := range []string{"/bench/redis/set?keyspace=1000&pipeline=16&", "/bench/redis/set?concurrency=8&", "/bench/redis/get?keyspace=1000&"} {
			cmd := exec.Command(bin, path+"benchtime=50s&client="+client)
			cmd.Env = append(os.Environ(), "REDIS_URL=redis://"+u.Addr)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(20 * time.Second); len(scan(t, u.clients[0], "nsop:*")) == 0; {
				if time.Now().After(deadline) {
					t.Fatal("the run writes no keys")
				}
				time.Sleep(10 * time.Millisecond)
			}
			cmd.Process.Kill()
			cmd.Wait()
			if len(scan(t, u.clients[0], "nsop:*")) == 0 {
				t.Errorf("%s%s: no key is left: the run had ended", path, client)
			}
		}
	}
	u.check(t, "killed", true)
}

// A password is in no answer, log or error, whoever gave it and whatever went wrong.
func TestPasswordsAppearNowhere(t *testing.T) {
	const secret = "s3cr3t/p@ss?w#rd"
	t.Parallel()
	var said bytes.Buffer // all that anybody could read
	seen := func(what, text string) {
		t.Helper()
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "s3cr3t", "w#rd"} {
			if strings.Contains(text, form) {
				t.Errorf("%s tells the password: %s", what, text)
			}
		}
		said.WriteString(text)
	}
	password := storetest.Redis(t, "--requirepass", secret)
	acl := storetest.Redis(t)
	acl.Do(t, "ACL", "SETUSER", "bench", "on", ">"+secret, "~nsop:*", "+@all")
	acl.Do(t, "ACL", "SETUSER", "limited", "on", ">"+secret, "~nsop:*", "+@all", "-set")
	secure := storetest.RedisTLS(t, "--requirepass", secret)
	quoted := url.QueryEscape(secret)
	envs := []map[string]string{
		{"REDIS_URL": "redis://:" + quoted + "@" + password.Addr},
		{"REDIS_URL": "redis://" + password.Addr, "REDIS_PASSWORD": secret},
		{"REDIS_ADDR": password.Addr, "REDIS_PASSWORD": secret},
		{"TARGETS": "redis=redis://bench:" + quoted + "@" + acl.Addr},
		{"TARGETS": "redis=rediss://:" + quoted + "@" + secure.Addr + "?ca=" + url.QueryEscape(secure.CA)},
		// These fail: wrong for the server, no right to SET, no CA, nobody there.
		{"REDIS_URL": "redis://:" + quoted + "wrong@" + password.Addr},
		{"REDIS_URL": "redis://nobody:" + quoted + "@" + acl.Addr},
		{"REDIS_URL": "redis://limited:" + quoted + "@" + acl.Addr},
		{"REDIS_URL": "rediss://:" + quoted + "@" + secure.Addr},
		{"REDIS_URL": "redis://:" + quoted + "@" + unusedAddr(t)},
	}
	for i, env := range envs {
		env["AUTH"], env["AUTH_TOKEN"] = "token", secret
		l := newLab(t, env, nil)
		var paths []string
		for _, f := range bench.Formats {
			paths = append(paths, "/bench/redis?benchtime=5x&timeout=1s&client=redigo,go-redis,rueidis,floor&format="+f.Name)
		}
		for _, path := range append(paths, "/", "/targets", "/ready", "/health", "/openapi.json", "/nosuch", "/bench/nosuch", "/runs/nosuch", "/bench/redis?nosuch=1") {
			for _, token := range []string{secret, "wrong"} {
				for _, accept := range []string{"", "text/html", "text/event-stream"} {
					if accept != "" && (token == "wrong" || strings.Contains(path, "format=")) {
						continue
					}
					request, err := http.NewRequest(http.MethodGet, l.server.URL+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					request.Header.Set("Authorization", "Bearer "+token)
					request.Header.Set("Accept", accept)
					response, err := l.server.Client().Do(request)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(response.Body)
					response.Body.Close()
					if err != nil {
						t.Fatal(err)
					}
					if i < 5 && token == secret && strings.Contains(path, "format=") && response.StatusCode != 200 {
						t.Errorf("%s with %v: status %d: %s", path, env, response.StatusCode, body)
					}
					seen(path, fmt.Sprint(response.Header, string(body)))
				}
			}
		}
		for _, args := range [][]string{{"/bench/redis?benchtime=5x&timeout=1s"}, {"/targets"}, {"/ready"}, {"version"}, {"/bench/redis?format=text&benchtime=5x&timeout=1s"}} {
			var out, errs strings.Builder
			err := run(t.Context(), args, func(name string) string { return env[name] }, &out, &errs)
			seen(args[0], fmt.Sprint(out.String(), errs.String(), err))
		}
	}
	// Configuration that is wrong is quoted in part, and never this part.
	for _, env := range []map[string]string{
		{"REDIS_URL": "redis://:" + secret + "@h"},
		{"REDIS_URL": "redis://:" + quoted + "@h:99999"},
		{"REDIS_URL": "redis://:" + quoted + "@h/x"},
		{"REDIS_URL": "redis://:" + quoted + "@h?nosuch=1"},
		{"REDIS_URL": "redis://" + quoted + "@h"},
		{"REDIS_URL": "nosuch://:" + quoted + "@h"},
		{"REDIS_URL": "redis:" + quoted},
		{"REDIS_URL": secret},
		{"REDIS_URL": "redis://:" + quoted + "@h", "REDIS_PASSWORD": "another"},
		{"REDIS_URL": "redis://:another@h", "REDIS_PASSWORD": secret},
		{"REDIS_URL": "rediss://:" + quoted + "@h?ca=/nosuch"},
		{"REDIS_ADDR": ":" + secret + "@h:1"},
		{"REDIS_ADDR": "h:1", "REDIS_URL": "redis://:" + quoted + "@h"},
		{"TARGETS": "redis://:" + quoted + "@h"},
		{"TARGETS": "a=redis://:" + quoted + "@h a=redis://:" + quoted + "@h"},
		{"TARGETS": "a=redis://:" + quoted + "@h:%zz"},
		{"LIMITS": "rows=0", "REDIS_PASSWORD": secret},
		{"AUTH": "nosuch", "AUTH_TOKEN": secret},
	} {
		_, _, err := configure(func(name string) string { return env[name] })
		if err == nil {
			t.Errorf("%v is taken for right", env)
		}
		seen(fmt.Sprint(env), fmt.Sprint(err))
	}
	if !strings.Contains(said.String(), password.Addr) {
		t.Error("nothing was looked at")
	}
}
