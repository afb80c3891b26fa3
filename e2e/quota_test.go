package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kong-quota/internal/refused"
	"kong-quota/internal/testredis"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

// expect sends requests and compares status and remaining, "200 4, 200 3, 429 0".
func (k *kong) expect(path, key, want string) {
	k.t.Helper()
	var got []string
	for range strings.Count(want, ",") + 1 {
		a := k.get(path, key)
		got = append(got, strings.TrimSpace(fmt.Sprint(a.status, " ", a.header.Get("RateLimit-Remaining"))))
	}
	if text := strings.Join(got, ", "); text != want {
		k.t.Errorf("%s %s: got %s, want %s\n%s", path, key, text, want, k.log)
	}
}

func TestEveryCallerHasTheirOwnQuota(t *testing.T) {
	k, redis := startWithRedis(t, `
- { name: quota, service: s, config: { limits: [ { name: hourly, limit: 2, window: hour } ] } }
- { name: quota, service: s, consumer: alice, config: { limits: [ { name: hourly, limit: 3, window: hour } ] } }
- { name: quota, config: { limits: [ { name: hourly, limit: 1, window: hour } ] } }
`)
	k.expect("/key", "alice", "200 2, 200 1, 200 0, 429 0")
	k.expect("/key", "bob", "200 1, 200 0, 429 0")
	k.expect("/open", "", "200 1, 200 0, 429 0")
	k.expect("/other", "alice", "200 0, 429 0")
	k.expect("/key", "", "401")

	keys, err := redis.Client().Keys(context.Background(), "quota:*").Result()
	if err != nil || len(keys) != 4 {
		t.Errorf("keys in Redis: %v, %v", keys, err)
	}
	a := k.get("/key", "bob")
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json", "Cache-Control": "no-store",
		"RateLimit-Limit": "2", "RateLimit-Remaining": "0", "X-RateLimit-Limit-Hour": "2", "X-RateLimit-Remaining-Hour": "0",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	retry, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || retry < 1 || retry > 3600 || a.header.Get("RateLimit-Reset") != a.header.Get("Retry-After") {
		t.Errorf("Retry-After %q, RateLimit-Reset %q", a.header.Get("Retry-After"), a.header.Get("RateLimit-Reset"))
	}
	var problem struct {
		Type     string
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil || problem.Status != 429 ||
		problem.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || len(problem.Violated) != 1 || problem.Violated[0] != "hourly" {
		t.Errorf("body %s: %v", a.body, err)
	}
}

func TestExactlyTheLimitPasses(t *testing.T) {
	const clients, each, limit = 64, 200, 1000
	k, _ := startWithRedis(t, `
- { name: quota, service: s, config: { on_error: deny, timeout: 60000, limits: [ { name: hourly, limit: 1000, window: hour }, { name: daily, limit: 100000, window: day } ] } }
`)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var passed, refused, wrong atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range each {
				request, err := http.NewRequest(http.MethodGet, k.ProxyURL()+"/key", nil)
				if err != nil {
					t.Error(err)
					return
				}
				request.Header.Set("apikey", "alice")
				switch a := do(t, client, request); a.status {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
				default:
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d passed, %d refused", passed.Load(), refused.Load())
	if passed.Load() != limit || refused.Load() != clients*each-limit || wrong.Load() != 0 {
		t.Errorf("%d passed, %d refused, %d other answers; want %d, %d, 0", passed.Load(), refused.Load(), wrong.Load(), limit, clients*each-limit)
	}
	if a := k.get("/key", "alice"); a.header.Get("X-RateLimit-Remaining-Day") != "99000" {
		t.Errorf("refused requests were charged to the day: %v", a.header)
	}
}

// Each consumer has an hour of their own, and all of them share the service's.
func TestLimitsOfSeveralIdentities(t *testing.T) {
	k, _ := startWithRedis(t, `
- name: quota
  service: s
  config:
    limits:
    - { name: own, limit: 2, window: hour }
    - { name: all, limit: 3, window: hour, algorithm: sliding_window, identify: [service] }
`)
	for i, c := range []struct {
		key      string
		status   int
		own, all string
	}{
		{"alice", 200, "1", "2"}, {"alice", 200, "0", "1"}, {"alice", 429, "0", "1"},
		{"bob", 200, "1", "0"}, {"bob", 429, "1", "0"},
	} {
		a := k.get("/key", c.key)
		if own, all := a.header.Get("X-RateLimit-Remaining-Own"), a.header.Get("X-RateLimit-Remaining-All"); a.status != c.status || own != c.own || all != c.all {
			t.Errorf("request %d, %s: %d, %s own, %s of all; want %+v", i+1, c.key, a.status, own, all, c)
		}
	}
}

// Requests over the limit arrive at the upstream one after the other.
func TestRequestsWait(t *testing.T) {
	k, _ := startWithRedis(t, `
- name: quota
  service: s
  config: { limits: [ { name: calls, algorithm: gcra, limit: 20, burst: 1, window: 1s, on_limit: delay, max_delay: 250ms } ] }
`)
	start := time.Now()
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			switch a := k.get("/key", "alice"); a.status {
			case 200:
				passed.Add(1)
			case 429:
				refused.Add(1)
			default:
				t.Errorf("%+v", a)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	// One every 50 ms since the first, and those within 250 ms may wait.
	if most := 1 + int64(took/(50*time.Millisecond)); passed.Load() > most || passed.Load() < 6 || passed.Load()+refused.Load() != 30 {
		t.Errorf("%d passed, %d refused in %v; want 6 to %d", passed.Load(), refused.Load(), took, most)
	}
}

// A node that holds a lease asks Redis for few requests, admits no more than the
// limit, and gives back what it holds when it stops.
func TestLeases(t *testing.T) {
	k, redis := startWithRedis(t, `
- name: quota
  service: s
  config: { limits: [ { name: hourly, limit: 60, window: hour, lease: { share: 0.2, max_age: 1h } } ] }
`)
	passed := 0
	for range 40 {
		if k.get("/key", "alice").status == 200 {
			passed++
		}
	}
	if passed != 40 {
		t.Errorf("%d passed of 60", passed)
	}
	_ = k.Close()
	client := redis.Client()
	eventually(t, "the rest is given back", func() bool {
		all, err := client.Keys(t.Context(), "quota:*").Result()
		if err != nil || len(all) != 1 {
			return false
		}
		counter, err := client.HGet(t.Context(), all[0], "hourly").Result()
		return err == nil && strings.HasSuffix(counter, " 40")
	})
}

// TestCallsToKong counts the PDK calls where they arrive.
func TestCallsToKong(t *testing.T) {
	k, _ := startWithRedis(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 1, window: hour } ] } }
- { name: quota, service: s, consumer: alice, config: { limits: [ { name: a, limit: 1, window: hour } ] } }
- { name: quota, service: other, consumer: alice, config: { grpc: false, headers: "off", limits: [ { name: a, limit: 1, window: hour } ] } }
`)
	for _, c := range []struct{ path, key, want string }{
		{"/key", "alice", "kong.response.set_headers"},
		{"/key", "alice", "kong.request.get_header, kong.router.get_service, kong.response.exit"},
		{"/key", "alice", "kong.response.exit"},
		{"/other", "alice", ""},
		{"/other", "alice", "kong.response.exit"},
		{"/key", "bob", "kong.client.get_consumer, kong.response.set_headers"},
		{"/key", "bob", "kong.client.get_consumer, kong.request.get_header, kong.router.get_service, kong.response.exit"},
		{"/key", "bob", "kong.client.get_consumer, kong.response.exit"},
		{"/open", "", "kong.client.get_consumer, kong.client.get_forwarded_ip, kong.response.set_headers"},
	} {
		k.get(c.path, c.key)
		if got := k.lastCalls(); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.path, c.key, got, c.want)
		}
	}
}

func TestUpstreamSeesTheDecision(t *testing.T) {
	k, redis := startWithRedis(t, `
- { name: quota, service: s, config: { upstream_headers: true, timeout: 1000, limits: [ { name: a, limit: 2, window: hour } ] } }
- { name: quota, service: s, consumer: bob, config: { mode: annotate, limits: [ { name: a, limit: 1, window: hour } ] } }
`)
	forged := []string{"X-Quota-State", "forged", "X-Quota-Limit", "1", "x-quota-remaining", "1", "X-Quota-Reset", "1"}
	check := func(key string, want ...string) {
		t.Helper()
		a := k.get("/key", key, forged...)
		h := k.upstream.lastSeen()
		got := []string{h.Get("X-Quota-State"), h.Get("X-Quota-Limit"), h.Get("X-Quota-Remaining")}
		if a.status != 200 || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("status %d, upstream got %q, want %q", a.status, got, want)
		}
	}
	check("alice", "allowed", "2", "1")
	check("alice", "hit_quota", "2", "0")
	k.get("/key", "bob")
	check("bob", "over_quota", "1", "0")
	redis.Stop()
	check("alice", "unknown", "", "")
	if h := k.upstream.lastSeen(); len(h["X-Quota-Reset"]) != 0 {
		t.Errorf("the client's X-Quota-Reset reached the upstream: %v", h)
	}
}

func TestRedisIsLostAndComesBack(t *testing.T) {
	k, redis := startWithRedis(t, `
- { name: quota, service: s, config: { timeout: 2000, limits: [ { name: a, limit: 5, window: hour } ] } }
- { name: quota, service: other, config: { on_error: deny, timeout: 2000, limits: [ { name: a, limit: 5, window: hour } ] } }
`)
	k.expect("/key", "alice", "200 4")
	k.expect("/other", "alice", "200 4")

	lost := func(how string) {
		t.Helper()
		a := k.get("/key", "alice", "X-Quota-State", "forged")
		if a.status != 200 || a.header.Get("RateLimit-Limit") != "" || k.upstream.lastSeen().Get("X-Quota-State") != "unknown" {
			t.Errorf("%s, allow: status %d, headers %v, upstream %v", how, a.status, a.header, k.upstream.lastSeen())
		}
		a = k.get("/other", "alice")
		if a.status != 503 || a.header.Get("RateLimit-Limit") != "" || a.header.Get("Retry-After") != "" ||
			!strings.Contains(a.body, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity") {
			t.Errorf("%s, deny: status %d, headers %v, body %s", how, a.status, a.header, a.body)
		}
	}
	redis.Freeze()
	lost("frozen")
	redis.Thaw()
	eventually(t, "Redis answers after it hung", func() bool { return k.get("/other", "alice").status == 200 })
	redis.Stop()
	lost("gone")
	redis.Restart()
	eventually(t, "Redis answers after a restart", func() bool { return k.get("/other", "alice").status == 200 })
	for _, line := range []string{"redis gives no answer", "redis answers again"} {
		// The log comes through a pipe, after the answer perhaps.
		eventually(t, line, func() bool { return strings.Count(k.log.String(), line) >= 2 })
		if n := strings.Count(k.log.String(), line); n != 2 {
			t.Errorf("%q was logged %d times, want 2", line, n)
		}
	}
}

func TestRedisIsNotThereAtTheStart(t *testing.T) {
	redis := testredis.Start(t)
	redis.Stop()
	k := start(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 5, window: hour } ] } }
`, "QUOTA_REDIS_ADDRESS="+redis.Address())
	eventually(t, "the log says that Redis is not there", func() bool { return strings.Contains(k.log.String(), "redis gives no answer") })
	k.expect("/key", "alice", "200")
	redis.Restart()
	eventually(t, "Redis is found", func() bool { return k.get("/key", "alice").header.Get("RateLimit-Remaining") == "4" })
}

func TestGRPC(t *testing.T) {
	k, _ := startWithRedis(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 1, window: hour } ] } }
`)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	k.get("/key", "alice")
	request, err := http.NewRequest(http.MethodPost, k.ProxyURL()+"/key/pkg.Service/Method", bytes.NewReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("apikey", "alice")
	request.Header.Set("Content-Type", "application/grpc")
	a := do(t, client, request)
	if a.status != 200 || a.header.Get("Grpc-Status") != "8" || a.header.Get("Content-Type") != "application/grpc" || a.header.Get("Grpc-Message") == "" || a.body != "" {
		t.Errorf("status %d, headers %v, body %q", a.status, a.header, a.body)
	}
}

func TestPluginServerIsKilled(t *testing.T) {
	k, _ := startWithRedis(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 50, window: hour } ] } }
`)
	k.expect("/key", "alice", "200 49, 200 48")
	before := k.PluginPID()
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the plugin server runs again", func() bool { return k.PluginPID() != before })
	eventually(t, "requests pass again, with the counters that Redis kept", func() bool {
		a := k.get("/key", "alice")
		n, _ := strconv.Atoi(a.header.Get("RateLimit-Remaining"))
		return a.status == 200 && n < 48
	})
}

// A quota that is changed through the Admin API holds for the next request, and
// keeps what was used.
func TestAdminAPI(t *testing.T) {
	k, _ := startWithRedis(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 2, window: hour } ] } }
`)
	k.expect("/key", "bob", "200 1, 200 0, 429 0")
	limits := func(n int) map[string]any {
		return map[string]any{"limits": []map[string]any{{"name": "a", "limit": n, "window": "hour"}}}
	}
	a := k.admin("POST", "/consumers/bob/plugins", map[string]any{"name": "quota", "service": map[string]string{"name": "s"}, "config": limits(4)})
	var created struct{ ID string }
	if err := json.Unmarshal([]byte(a.body), &created); err != nil || a.status != 201 {
		t.Fatalf("status %d, body %s: %v", a.status, a.body, err)
	}
	k.expect("/key", "bob", "200 1, 200 0, 429 0")
	if a := k.admin("PATCH", "/plugins/"+created.ID, map[string]any{"config": limits(5)}); a.status != 200 {
		t.Fatalf("status %d, body %s", a.status, a.body)
	}
	k.expect("/key", "bob", "200 0, 429 0")
	k.expect("/key", "alice", "200 1")
	if a := k.admin("POST", "/consumers/bob/plugins", map[string]any{"name": "quota", "service": map[string]string{"name": "s"}, "config": limits(4)}); a.status != 409 {
		t.Errorf("a second one: status %d, body %s", a.status, a.body)
	}
	if a := k.admin("DELETE", "/plugins/"+created.ID, nil); a.status != 204 {
		t.Errorf("status %d, body %s", a.status, a.body)
	}
	k.expect("/key", "bob", "429 0")
	if a := k.admin("GET", "/consumers/nobody/plugins", nil); a.status != 404 {
		t.Errorf("status %d", a.status)
	}
}

// Each bad configuration of plugin/testdata: refused by the Admin API where the
// schema can tell, else when its instance starts.
func TestInvalidConfigs(t *testing.T) {
	k, _ := startWithRedis(t, "  []\n")
	bySchema := 0
	configs := refused.Configs(t)
	for _, c := range configs {
		t.Run(filepath.Base(c.File), func(t *testing.T) {
			body := map[string]any{"name": "quota", "config": c.Config}
			validated := k.admin("POST", "/schemas/plugins/validate", body)
			if *update {
				rewrite(t, c, validated)
				return
			}
			a := k.admin("POST", "/consumers/bob/plugins", body)
			if c.Schema != "" {
				bySchema++
				var violation struct {
					Code    int
					Name    string
					Message string
					Fields  map[string]any
				}
				if err := json.Unmarshal([]byte(a.body), &violation); err != nil {
					t.Fatalf("%s: %v", a.body, err)
				}
				if a.status != 400 || validated.status != 400 || violation.Code != 2 || violation.Name != "schema violation" || violation.Message != c.Schema || violation.Fields["config"] == nil {
					t.Errorf("status %d and %d, body %s\nwant 400 and %q", a.status, validated.status, a.body, c.Schema)
				}
				return
			}
			var created struct{ ID string }
			if err := json.Unmarshal([]byte(a.body), &created); err != nil || a.status != 201 || validated.status != 201 {
				t.Fatalf("status %d and %d, body %s: %v", a.status, validated.status, a.body, err)
			}
			defer k.admin("DELETE", "/plugins/"+created.ID, nil)
			if a := k.get("/key", "bob"); a.status != 500 {
				t.Errorf("status %d, want 500", a.status)
			}
			for _, line := range strings.Split(c.Start, "\n") {
				quoted := strings.ReplaceAll(line, `"`, `\\\"`)
				eventually(t, "the log says "+quoted, func() bool { return strings.Contains(k.log.String(), quoted) })
			}
		})
	}
	t.Logf("%d of %d are refused by the schema", bySchema, len(configs))
	if bySchema < 18 && !*update {
		t.Errorf("only %d are refused by the schema", bySchema)
	}
}

// rewrite puts the Admin API's message into the configuration's file.
func rewrite(t *testing.T, c refused.Config, a answer) {
	t.Helper()
	var violation struct{ Message string }
	if err := json.Unmarshal([]byte(a.body), &violation); err != nil {
		t.Fatal(err)
	}
	if c.Schema = violation.Message; a.status == http.StatusCreated {
		c.Schema = "" // the schema cannot tell
	}
	c.Write(t)
}

var update = flag.Bool("update", false, "write the Admin API's messages into plugin/testdata/invalid-* anew; read the diff")

// Equal settings share one client; other databases have their own connections.
func TestConnectionsToRedis(t *testing.T) {
	redis := testredis.Start(t, "--requirepass", "s3cret")
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	record := fmt.Sprintf("{ host: 127.0.0.1, port: %d, password: s3cret, database: 2 }", redis.Port)
	k := start(t, `
- { name: quota, service: s, config: { on_error: deny, limits: [ { name: a, limit: 5, window: hour } ] } }
- { name: quota, service: s, consumer: alice, config: { on_error: deny, limits: [ { name: a, limit: 5, window: hour } ] } }
- { name: quota, service: other, config: { on_error: deny, redis: `+record+`, limits: [ { name: a, limit: 5, window: hour } ] } }
- { name: quota, service: other, consumer: alice, config: { on_error: deny, redis: `+record+`, limits: [ { name: a, limit: 5, window: hour } ] } }
`, "QUOTA_REDIS_ADDRESS="+redis.Address(), "QUOTA_REDIS_PASSWORD_FILE="+secret)
	for _, key := range []string{"alice", "bob"} {
		k.expect("/key", key, "200 4")
		k.expect("/other", key, "200 4")
	}
	out, err := exec.Command("redis-cli", "-p", strconv.Itoa(redis.Port), "--no-auth-warning", "-a", "s3cret", "client", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	// A client has up to two by now: one said hello, one spent.
	evals := regexp.MustCompile(`(?m) db=(\d) .*cmd=evalsha`).FindAllStringSubmatch(string(out), -1)
	byDatabase := map[string]int{}
	for _, found := range evals {
		byDatabase[found[1]]++
	}
	if n := byDatabase["0"]; n < 1 || n > 2 {
		t.Errorf("%d connections to database 0:\n%s", n, out)
	}
	if n := byDatabase["2"]; n < 1 || n > 2 {
		t.Errorf("%d connections to database 2:\n%s", n, out)
	}
	if strings.Contains(k.log.String(), "s3cret") {
		t.Error("the password is in the log")
	}
}

// The same plugin on a Redis Cluster, and on the master that a Sentinel names.
func TestClusterAndSentinels(t *testing.T) {
	const plugins = `
- name: quota
  service: s
  config:
    on_error: deny
    timeout: 5000
    limits:
    - { name: own, limit: 5, window: hour }
    - { name: shared, limit: 3, window: hour, identify: [service] }
`
	servers := testredis.StartWatched(t, "s3cret", "sentinels-own")
	for name, settings := range map[string][]string{
		"Cluster":  {"QUOTA_REDIS_CLUSTER=true", "QUOTA_REDIS_ADDRESS=" + strings.Join(testredis.StartCluster(t).Options().Addrs, ",")},
		"Sentinel": {"QUOTA_REDIS_SENTINEL_MASTER=" + servers.Name, "QUOTA_REDIS_ADDRESS=" + servers.Sentinel.Address(), "QUOTA_REDIS_PASSWORD=s3cret", "QUOTA_REDIS_SENTINEL_PASSWORD=sentinels-own"},
	} {
		t.Run(name, func(t *testing.T) {
			k := start(t, plugins, settings...)
			k.expect("/key", "alice", "200 2, 200 1")
			k.expect("/key", "bob", "200 0, 429 0")
			if log := k.log.String(); strings.Contains(log, "s3cret") || strings.Contains(log, "sentinels-own") {
				t.Errorf("a password is in the log:\n%s", log)
			}
		})
	}
}

// SIGTERM lets requests finish; a stale socket is no obstacle.
func TestStopAndStaleSocket(t *testing.T) {
	k, _ := startWithRedis(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 50, window: hour } ] } }
`)
	k.expect("/key", "alice", "200 49")
	before := k.PluginPID()
	if err := syscall.Kill(before, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has stopped with status 0", func() bool {
		return strings.Contains(k.log.String(), fmt.Sprintf("plugin server ended\" pid=%d status=<nil>", before))
	})
	eventually(t, "the next server took the socket", func() bool { return k.get("/key", "alice").status == 200 })
}

// A stop waits for requests that wait for their turn, as long as their limit lets them.
func TestStopWaitsForDelays(t *testing.T) {
	k := start(t, `
- name: quota
  service: s
  config: { limits: [ { name: calls, algorithm: gcra, limit: 1, burst: 1, window: 3s, on_limit: delay, max_delay: 4s } ] }
`, "QUOTA_REDIS_ADDRESS="+testredis.Start(t).Address(), "QUOTA_LISTEN_ADDRESS=127.0.0.1:0")
	metrics := k.metrics()
	k.expect("/key", "alice", "200 0")
	answers := make(chan answer, 1)
	go func() { answers <- k.get("/key", "alice") }()
	eventually(t, "a request waits", func() bool {
		return strings.Contains(get(t, metrics+"/metrics", "").body, "\nquota_waiting_requests 1\n")
	})
	if err := syscall.Kill(k.PluginPID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if a := <-answers; a.status != 200 {
		t.Errorf("status %d, want 200 after its turn", a.status)
	}
	eventually(t, "it has stopped", func() bool { return strings.Contains(k.log.String(), "plugin server ended") })
	if log := k.log.String(); !strings.Contains(log, "status=<nil>") || strings.Contains(log, "before all requests were answered") {
		t.Error(log)
	}
}

func TestMemoryStore(t *testing.T) {
	k := start(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 2, window: hour } ] } }
`, "QUOTA_STORE=memory")
	k.expect("/key", "alice", "200 1, 200 0, 429 0")
	if !strings.Contains(k.log.String(), "counters are in this process' memory") {
		t.Error("the log does not say where the counters are")
	}
}

// metrics is the URL of the plugin server's listener; its settings must have one.
func (k *kong) metrics() (base string) {
	k.t.Helper()
	eventually(k.t, "the listener's address is in the log", func() bool {
		_, rest, found := strings.Cut(k.log.String(), `metrics and health\" address=`)
		if found {
			base = "http://" + strings.FieldsFunc(rest, func(c rune) bool { return c == '"' || c == ' ' || c == '\\' || c == '\n' })[0]
		}
		return found
	})
	return base
}

func TestMetricsAndHealth(t *testing.T) {
	redis := testredis.Start(t)
	k := start(t, `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 2, window: hour } ] } }
`, "QUOTA_REDIS_ADDRESS="+redis.Address(), "QUOTA_LISTEN_ADDRESS=127.0.0.1:0")
	k.expect("/key", "alice", "200 1, 200 0, 429 0")
	base := k.metrics()
	get := func(path string) answer { return get(t, base+path, "") }
	a := get("/metrics")
	for _, line := range []string{`quota_decisions_total{state="allowed"} 1`, `quota_decisions_total{state="hit_quota"} 1`, `quota_decisions_total{state="over_quota"} 1`, `quota_decision_seconds_count 3`} {
		if !strings.Contains(a.body, line+"\n") {
			t.Errorf("no %s in\n%s", line, a.body)
		}
	}
	if h, r := get("/healthz"), get("/readyz"); h.status != 200 || r.status != 200 {
		t.Errorf("healthz %d, readyz %d", h.status, r.status)
	}
	redis.Stop()
	if h, r := get("/healthz"), get("/readyz"); h.status != 200 || r.status != 503 {
		t.Errorf("without Redis: healthz %d, readyz %d", h.status, r.status)
	}
}

// A Go service that charges the same identity in the same scope shares the
// gateway's counter.
func TestServiceSharesTheGatewaysCounter(t *testing.T) {
	k, redis := startWithRedis(t, `
- { name: quota, service: s, config: { scope: sms, limits: [ { name: daily, limit: 10, window: day, align: calendar, timezone: Asia/Shanghai } ] } }
`)
	k.expect("/key", "alice", "200 9, 200 8")
	var alice struct{ ID string }
	if err := json.Unmarshal([]byte(k.admin("GET", "/consumers/alice", nil).body), &alice); err != nil {
		t.Fatal(err)
	}
	policy, err := quota.NewPolicy(quota.Limit{Name: "daily", Limit: 10, Window: quota.PerUnit(quota.Day), Align: quota.Calendar, Timezone: "Asia/Shanghai"})
	if err != nil {
		t.Fatal(err)
	}
	service := quota.NewLimiter(redisstore.New(redis.Client()), "sms", policy)
	d, err := service.Spend(context.Background(), quota.NewIdentity("consumer", alice.ID), 5)
	if err != nil || d.Strictest().Remaining != 3 {
		t.Errorf("the service sees %+v, %v", d, err)
	}
	k.expect("/key", "alice", "200 2")
}

// A reload of Kong starts the next server on the socket of this one, which goes on
// for a while: what it has accepted it serves, and it leaves the socket alone when
// it ends.
func TestTwoServersOnOneSocket(t *testing.T) {
	folder := t.TempDir()
	socket := filepath.Join(folder, "quota.socket")
	serve := func() (*exec.Cmd, func() bool) {
		cmd := exec.Command(pluginBinary, "-kong-prefix", folder)
		cmd.Env = []string{"QUOTA_STORE=memory"}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		return cmd, func() bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		}
	}
	old, oldEnded := serve()
	eventually(t, "the first server listens", func() bool { _, err := os.Stat(socket); return err == nil })
	before, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	kept := dialPlugin(t, socket)
	_, nextEnded := serve()
	eventually(t, "the second server took the path over", func() bool {
		now, err := os.Stat(socket)
		return err == nil && !os.SameFile(before, now)
	})
	kept.instance(1)
	if err := old.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first server ends", oldEnded)
	dialPlugin(t, socket).instance(1)
	if nextEnded() {
		t.Error("the second server ended")
	}
}
