package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kong-quota/internal/realkong"
	"kong-quota/internal/testredis"
)

// story is a table of requests that devkong and, where there is one, a real Kong
// answer alike.
type story struct {
	name, plugins string
	steps         []storyStep
}

type storyStep struct {
	path, key string
	headers   []string // name and value in turn
	status    int
	want      map[string]string // headers of the answer; "" for none, "*" for any
	upstream  map[string]string // headers that the upstream got, in the same way
}

var stories = []story{
	{"a quota of a consumer", `
- { name: quota, service: s, config: { limits: [ { name: hourly, limit: 2, window: hour } ] } }
`, []storyStep{
		{path: "/key", key: "alice", status: 200, want: map[string]string{"RateLimit-Limit": "2", "RateLimit-Remaining": "1", "X-RateLimit-Remaining-Hour": "1", "Retry-After": ""}},
		{path: "/key", key: "alice", status: 200, want: map[string]string{"RateLimit-Remaining": "0"}},
		{path: "/key", key: "alice", status: 429, want: map[string]string{"RateLimit-Remaining": "0", "Retry-After": "*", "Content-Type": "application/problem+json", "Cache-Control": "no-store"}},
		{path: "/key", key: "alice", status: 429, want: map[string]string{"Retry-After": "*"}},
		{path: "/key", key: "bob", status: 200, want: map[string]string{"RateLimit-Remaining": "1"}},
		{path: "/key", key: "nobody", status: 401, want: map[string]string{"RateLimit-Remaining": ""}},
	}},
	{"the most specific configuration", `
- { name: quota, service: s, config: { limits: [ { name: a, limit: 5, window: hour } ] } }
- { name: quota, consumer: bob, config: { limits: [ { name: a, limit: 7, window: hour } ] } }
- { name: quota, service: s, consumer: alice, config: { limits: [ { name: a, limit: 9, window: hour } ] } }
`, []storyStep{
		{path: "/key", key: "alice", status: 200, want: map[string]string{"RateLimit-Limit": "9"}},
		{path: "/key", key: "bob", status: 200, want: map[string]string{"RateLimit-Limit": "7"}},
		{path: "/open", status: 200, want: map[string]string{"RateLimit-Limit": "5"}},
		{path: "/other", key: "alice", status: 200, want: map[string]string{"RateLimit-Limit": ""}},
	}},
	{"what the upstream gets", `
- { name: quota, service: s, config: { upstream_headers: true, headers: "off", mode: annotate, limits: [ { name: a, limit: 1, window: hour } ] } }
`, []storyStep{
		{path: "/key", key: "alice", headers: []string{"X-Quota-State", "forged", "X-Quota-Limit", "99"}, status: 200,
			want: map[string]string{"RateLimit-Limit": ""}, upstream: map[string]string{"X-Quota-State": "hit_quota", "X-Quota-Limit": "1", "X-Quota-Remaining": "0"}},
		{path: "/key", key: "alice", status: 200, upstream: map[string]string{"X-Quota-State": "over_quota", "X-Quota-Reset": "*"}},
	}},
	{"no identity", `
- { name: quota, service: s, config: { fallback: deny, limits: [ { name: a, limit: 1, window: hour } ] } }
- { name: quota, service: other, config: { identify: [header], header_name: X-Phone, limits: [ { name: a, limit: 1, window: hour } ], error_message: "5 a day", error_code: 420 } }
`, []storyStep{
		{path: "/open", status: 403, want: map[string]string{"Content-Type": "application/problem+json"}},
		{path: "/other", key: "alice", headers: []string{"X-Phone", "1"}, status: 200},
		{path: "/other", key: "bob", headers: []string{"X-Phone", "1"}, status: 420, want: map[string]string{"Content-Type": "application/json; charset=utf-8"}},
		{path: "/other", key: "bob", headers: []string{"X-Phone", "2"}, status: 200},
	}},
	{"the fields of the IETF", `
- { name: quota, service: s, config: { headers: ietf, limits: [ { name: daily, limit: 5, window: day } ] } }
`, []storyStep{
		{path: "/key", key: "alice", status: 200, want: map[string]string{"RateLimit-Policy": `"daily";q=5;w=86400`, "RateLimit": "*", "X-RateLimit-Limit-Day": ""}},
	}},
}

// storyGateway is where a story is played.
type storyGateway struct {
	proxy string
	last  func() http.Header // what the upstream got last
}

func TestStories(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			k, _ := startWithRedis(t, s.plugins)
			s.play(t, storyGateway{k.ProxyURL(), k.upstream.lastSeen})
		})
	}
}

// TestStoriesOfKong plays the same to the Kong at KONG_BIN: `make e2e-kong`.
func TestStoriesOfKong(t *testing.T) {
	command := os.Getenv("KONG_BIN")
	if command == "" {
		t.Skip("KONG_BIN names no Kong")
	}
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) { s.play(t, startKong(t, command, s.plugins)) })
	}
}

func (s story) play(t *testing.T, g storyGateway) {
	t.Helper()
	check := func(i int, where string, got http.Header, want map[string]string) {
		t.Helper()
		for name, value := range want {
			switch found := got.Get(name); {
			case value == "*" && found == "", value != "*" && found != value:
				t.Errorf("step %d, %s: %s is %q, want %q", i+1, where, name, found, value)
			}
		}
	}
	for i, step := range s.steps {
		a := get(t, g.proxy+step.path, step.key, step.headers...)
		if a.status != step.status {
			t.Errorf("step %d: status %d, want %d; body %s", i+1, a.status, step.status, a.body)
		}
		check(i, "answer", a.header, step.want)
		if step.upstream != nil {
			check(i, "upstream", g.last(), step.upstream)
		}
	}
}

// startKong starts a Kong with an upstream and a Redis of its own.
func startKong(t *testing.T, command, plugins string) storyGateway {
	t.Helper()
	upstream := startUpstream(t)
	redis := testredis.Start(t)
	env := filepath.Join(t.TempDir(), "quota.env")
	if err := os.WriteFile(env, []byte("QUOTA_REDIS_ADDRESS="+redis.Address()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := &buffer{}
	proxy, stop, err := realkong.Start(realkong.Options{
		Command: command, Config: strings.ReplaceAll(entities+plugins, "http://upstream:80", upstream.URL), Plugin: pluginBinary, EnvFile: env, Log: log,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	t.Cleanup(stop)
	return storyGateway{proxy, upstream.lastSeen}
}

// Where Docker is and no Kong, a container is the command kong: with the arguments,
// the variables and the temporary files of the caller.
func TestKongInDocker(t *testing.T) {
	folder := t.TempDir()
	docker := "#!/bin/sh\nprintf '%s\\n' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(folder, "docker"), []byte(docker), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../build/kong-in-docker.sh", "start", "-p", "/tmp/a b")
	cmd.Env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "TMPDIR=/tmp", "KONG_DATABASE=off", "KONG_PLUGINSERVER_QUOTA_START_CMD=a b", "KONG_IMAGE=kong:x", "KONG_BIN=y", "OTHER=z"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, part := range [][]string{
		{"run", "--rm", "--network", "host"}, {"--volume", "/tmp:/tmp"}, {"--env", "KONG_DATABASE"}, {"--env", "KONG_PLUGINSERVER_QUOTA_START_CMD"},
		{"--entrypoint", "kong", "kong:x", "start", "-p", "/tmp/a b"},
	} {
		if !strings.Contains("\n"+strings.Join(args, "\n")+"\n", "\n"+strings.Join(part, "\n")+"\n") {
			t.Errorf("%q is not in %q", part, args)
		}
	}
	for _, arg := range args {
		if arg == "KONG_BIN" || arg == "KONG_IMAGE" || arg == "OTHER" {
			t.Errorf("%s gets into the container", arg)
		}
	}
}
