// Package e2e sends requests through devkong to the real plugin binary, over its
// real unix socket, with a real Redis behind it.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kong-quota/internal/devkong"
	"kong-quota/internal/testredis"
)

var pluginBinary string // the plugin server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "kong-quota-e2e-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	pluginBinary = filepath.Join(folder, "quota")
	if out, err := exec.Command("go", "build", "-o", pluginBinary, "kong-quota").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the plugin server: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// kong is a devkong with the plugin, an upstream, and what they saw.
type kong struct {
	*devkong.Gateway
	upstream *upstream
	t        *testing.T
	log      *buffer

	mu     sync.Mutex
	events []devkong.Event
}

// upstream answers all requests, and keeps their headers.
type upstream struct {
	*httptest.Server
	t    *testing.T
	mu   sync.Mutex
	seen []http.Header
}

func startUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{t: t}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen = append(u.seen, r.Header.Clone())
		u.mu.Unlock()
		_, _ = w.Write([]byte("ok"))
	}))
	t.Cleanup(u.Server.Close)
	return u
}

func (u *upstream) lastSeen() http.Header {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.seen) == 0 {
		u.t.Fatal("the upstream saw no request")
	}
	return u.seen[len(u.seen)-1]
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer // not embedded: its ReadFrom would go past the lock
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// entities are what every configuration here has beside its plugins: the
// services s and other, routes with key-auth and without, alice and bob.
const entities = `
_format_version: "3.0"
services:
- name: s
  url: http://upstream:80
  routes:
  - name: key
    paths: [/key]
    plugins: [ { name: key-auth } ]
  - name: open
    paths: [/open]
- name: other
  url: http://upstream:80
  routes:
  - name: other
    paths: [/other]
    plugins: [ { name: key-auth } ]
consumers:
- username: alice
  keyauth_credentials: [ { key: alice } ]
- username: bob
  keyauth_credentials: [ { key: bob } ]
plugins:
`

// start runs a devkong with the plugins and settings given.
func start(t *testing.T, plugins string, settings ...string) *kong {
	t.Helper()
	k := &kong{t: t, log: &buffer{}, upstream: startUpstream(t)}
	folder := t.TempDir()
	envFile := filepath.Join(folder, "quota.env")
	if err := os.WriteFile(envFile, []byte(strings.Join(settings, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := devkong.Start(ctx, devkong.Options{
		Config: []byte(entities + plugins), Plugin: pluginBinary, Prefix: folder,
		StartCommand: []string{pluginBinary, "-kong-prefix", folder, "-env-file", envFile},
		Resolve:      map[string]string{"upstream:80": k.upstream.Listener.Addr().String()},
		Log:          slog.New(slog.NewTextHandler(k.log, nil)),
		OnEvent: func(e devkong.Event) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.events = append(k.events, e)
		},
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, k.log)
	}
	t.Cleanup(func() { _ = g.Close() })
	k.Gateway = g
	return k
}

// startWithRedis is start with a Redis of its own.
func startWithRedis(t *testing.T, plugins string) (*kong, *testredis.Server) {
	t.Helper()
	redis := testredis.Start(t)
	return start(t, plugins, "QUOTA_REDIS_ADDRESS="+redis.Address()), redis
}

type answer struct {
	status int
	header http.Header
	body   string
}

// get sends a request; more are further headers, name and value in turn.
func (k *kong) get(path, key string, more ...string) answer {
	k.t.Helper()
	return get(k.t, k.ProxyURL()+path, key, more...)
}

func get(t *testing.T, url, key string, more ...string) answer {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		request.Header.Set("apikey", key)
	}
	for i := 0; i+1 < len(more); i += 2 {
		request.Header.Set(more[i], more[i+1])
	}
	return do(t, http.DefaultClient, request)
}

func do(t *testing.T, client *http.Client, request *http.Request) answer {
	t.Helper()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// admin sends JSON to the Admin API.
func (k *kong) admin(method, path string, body any) answer {
	k.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		k.t.Fatal(err)
	}
	request, err := http.NewRequest(method, k.AdminURL()+path, bytes.NewReader(text))
	if err != nil {
		k.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	return do(k.t, http.DefaultClient, request)
}

func (k *kong) lastCalls() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.events[len(k.events)-1].Calls, ", ")
}

// eventually waits for what happens beside the test, up to a generous bound.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen: " + what)
		}
	}
}
