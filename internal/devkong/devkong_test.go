package devkong

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"kong-quota/internal/kongconfig"
)

const testSchema = `{"name":"quota","fields":[{"config":{"type":"record","fields":[
	{"limit":{"type":"integer","default":7,"between":[1,10]}},{"secret":{"type":"string","referenceable":true}},
	{"list":{"type":"array","elements":{"type":"string"}}},{"inner":{"type":"record","fields":[{"a":{"type":"string"}},{"b":{"type":"string"}}]}}]}}]}`

func testSchemas(t testing.TB) schemas {
	t.Helper()
	known, err := newSchemas(&dump{schema: []byte(testSchema)})
	if err != nil {
		t.Fatal(err)
	}
	return known
}

const testKongYML = `
_format_version: "3.0"
services:
- name: s
  url: http://up:8080/base
  routes:
  - { name: r, paths: [/r] }
  - { name: deep, paths: [/r/deep] }
  - { name: keep, paths: [/keep], strip_path: false, preserve_host: true }
  - { name: regex, paths: ['~/v\d+/'] }
  - { name: post, paths: [/r], methods: [POST] }
  - { name: two, paths: [/r/deep/and/deeper, /a] }
  - { name: a, paths: [/a/b] }
  - { name: host, hosts: ['*.example.com'], paths: [/r] }
- name: other
  host: up
  routes: [ { name: o, paths: [/o] } ]
consumers:
- { username: alice, custom_id: c-1, keyauth_credentials: [ { key: a } ] }
- { username: bob }
keyauth_credentials: [ { key: b, consumer: bob } ]
`

func TestRouting(t *testing.T) {
	s, err := load([]byte(testKongYML), testSchemas(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, host, path, want string }{
		{"GET", "x", "/r", "r /r"}, {"GET", "x", "/r/1", "r /r"}, {"GET", "x", "/r/deep/1", "deep /r/deep"},
		{"POST", "x", "/r/deep", "post /r"}, {"GET", "a.example.com:80", "/r/deep", "host /r"}, {"GET", "x", "/v12/a", "regex /v12/"},
		{"GET", "x", "/keep/1", "keep /keep"}, {"GET", "x", "/", ""}, {"GET", "x", "/v/a", ""},
		// The paths are sorted, not the routes.
		{"GET", "x", "/a/b", "a /a/b"}, {"GET", "x", "/a/c", "two /a"}, {"GET", "x", "/r/deep/and/deeper", "two /r/deep/and/deeper"},
	} {
		r, prefix := s.match(&http.Request{Method: c.method, Host: c.host, URL: &url.URL{Path: c.path}})
		got := ""
		if r != nil {
			got = r.Name + " " + prefix
		}
		if got != c.want {
			t.Errorf("%s %s %s: %q, want %q", c.method, c.host, c.path, got, c.want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	scopes := []string{
		"route: r, service: s, consumer: alice", "route: r, consumer: alice", "service: s, consumer: alice", "route: r, service: s",
		"consumer: alice", "route: r", "service: s", "",
	}
	for skip := range scopes {
		text := testKongYML + "plugins:\n"
		for i, scope := range scopes[skip:] {
			text += fmt.Sprintf("- { name: quota, %s config: { limit: %d } }\n", strings.TrimPrefix(scope+",", ","), skip+i+1)
		}
		s, err := load([]byte(text), testSchemas(t))
		if err != nil {
			t.Fatal(err)
		}
		p := s.pick("quota", findNamed(s.routes, "r"), s.findConsumer("alice"))
		if p == nil || p.Config["limit"] != float64(skip+1) {
			t.Errorf("without the first %d scopes: %+v", skip, p)
		}
	}
	s, err := load([]byte(testKongYML+"plugins: [ { name: quota, enabled: false }, { name: quota, consumer: alice } ]"), testSchemas(t))
	if err != nil {
		t.Fatal(err)
	}
	if p := s.pick("quota", findNamed(s.routes, "r"), nil); p != nil {
		t.Errorf("a disabled plugin: %+v", p)
	}
}

func TestBadDeclarations(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                           `_format_version: "" must be "3.0"`,
		`_format_version: "2.1"`:       `_format_version: "2.1" must be "3.0"`,
		"_format_version: '3.0'\nx: 1": `unknown field "x"`,
		"a: [":                         `yaml`,
		head + `services: [ { nam: s, host: h } ]`:                                               `services[1]: json: unknown field "nam"`,
		head + `services: [ { name: s } ]`:                                                       `services[1]: host: "" must not be empty`,
		head + `services: [ { name: s, url: "ftp://x" } ]`:                                       `services[1]: protocol: "ftp" must be http, https, grpc or grpcs`,
		head + `services: [ { name: s, host: h }, { name: s, host: h } ]`:                        `services[2]: name: "s" is taken already`,
		head + `services: [ { name: s, host: h, routes: [ { name: r } ] } ]`:                     `services[1].routes[1]: must set one of 'methods', 'hosts', 'paths'`,
		head + `routes: [ { name: r, paths: [/], service: s } ]`:                                 `routes[1]: service: "s" is no service`,
		head + `services: [ { name: s, host: h, routes: [ { paths: [x] } ] } ]`:                  `services[1].routes[1]: paths: "x" must begin with / or ~`,
		head + `consumers: [ { tags: [x] } ]`:                                                    `consumers[1]: at least one of these fields must be non-empty: 'custom_id', 'username'`,
		head + `consumers: [ { username: a }, { username: a } ]`:                                 `consumers[2]: username: "a" is taken already`,
		head + `keyauth_credentials: [ { key: k, consumer: a } ]`:                                `keyauth_credentials[1]: consumer: "a" is no consumer`,
		head + `consumers: [ { username: a, keyauth_credentials: [ { key: k }, { key: k } ] } ]`: `consumers[1].keyauth_credentials[2]: key: another credential has the same`,
		head + `plugins: [ { name: nope } ]`:                                                     `plugins[1]: schema violation (name: plugin 'nope' not enabled; add it to the 'plugins' configuration property)`,
		head + `plugins: [ { config: {} } ]`:                                                     `plugins[1]: schema violation (name: required field missing)`,
		head + `plugins: [ { name: quota, service: s } ]`:                                        `plugins[1]: service: "s" is no service`,
		head + `plugins: [ { name: quota, config: { limit: 11 } } ]`:                             `plugins[1]: schema violation (config.limit: value should be between 1 and 10)`,
		head + `plugins: [ { name: quota }, { name: quota } ]`:                                   `plugins[2]: UNIQUE violation`,
	} {
		_, err := load([]byte(text), testSchemas(t))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
	_, err := load([]byte(head+"plugins: [ { name: nope }, { name: quota, config: { limit: 0 } } ]"), testSchemas(t))
	if err == nil || !strings.Contains(err.Error(), "plugins[1]") || !strings.Contains(err.Error(), "plugins[2]") {
		t.Errorf("two problems: %v", err)
	}
}

const head = "_format_version: '3.0'\n"

func FuzzLoad(f *testing.F) {
	f.Add([]byte(testKongYML))
	f.Add([]byte(head + "plugins: [ { name: quota, config: { limit: 11 } } ]"))
	known := testSchemas(f)
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = load(text, known) })
}

func TestInstanceConfig(t *testing.T) {
	t.Setenv("REDIS_SECRET", "s3cret")
	known := testSchemas(t)
	s, err := load([]byte(testKongYML+"plugins: [ { name: quota, service: s, consumer: alice, config: { secret: '{vault://env/redis-secret}' } } ]"), known)
	if err != nil {
		t.Fatal(err)
	}
	p := s.plugins[s.order[0]]
	if p.Config["secret"] != "{vault://env/redis-secret}" {
		t.Errorf("the reference is not kept: %v", p.Config)
	}
	text, err := known.instanceConfig(p)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"__key__":"plugins:quota::%s:%s::%s","__plugin_id":"%s","__seq__":%d,"__ws_id":"%s","consumer_id":"%s","inner":{},"limit":7,"secret":"s3cret","service_id":"%s"}`,
		p.Service, p.Consumer, workspace, p.ID, p.seq, workspace, p.Consumer, p.Service)
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// running is a devkong with the recorder plugin in front of an upstream.
func running(t *testing.T, config string, change func(*Options)) (*Gateway, *[]*http.Request) {
	t.Helper()
	folder := t.TempDir()
	binary := filepath.Join(folder, "quota")
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/recorder").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var seen []*http.Request
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r)
		w.Header().Set("X-A", "upstream's")
		_, _ = io.WriteString(w, "ok")
	}))
	t.Cleanup(upstream.Close)
	o := Options{Config: []byte(config), Plugin: binary, Prefix: folder, Resolve: map[string]string{"up:8080": upstream.Listener.Addr().String()}, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g, &seen
}

func ask(t *testing.T, method, address, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	request, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

func TestProxy(t *testing.T) {
	g, seen := running(t, testKongYML+"plugins: [ { name: quota, service: s, config: { limits: [ { name: a } ] } }, { name: key-auth, route: keep } ]", nil)
	status, _, header := ask(t, "GET", g.ProxyURL()+"/r/a?x=1", "", "X-Consumer-Username", "left alone where nobody authenticates")
	last := (*seen)[len(*seen)-1]
	if status != 200 || last.URL.Path != "/base/a" || last.URL.RawQuery != "x=1" || last.Host != "up:8080" || last.Header.Get("X-Up") != "u" || last.Header.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("status %d, upstream got %v %v %v", status, last.URL, last.Host, last.Header)
	}
	if got := header["X-A"]; !reflect.DeepEqual(got, []string{"1", "upstream's"}) {
		t.Errorf("X-A %q: the plugin's comes first, the upstream's stays", got)
	}
	status, _, _ = ask(t, "GET", g.ProxyURL()+"/keep/a", "", "apikey", "a", "X-Consumer-Username", "forged", "X-Anonymous-Consumer", "true")
	last = (*seen)[len(*seen)-1]
	if status != 200 || last.URL.Path != "/base/keep/a" || last.Host != g.proxyListener.Addr().String() || last.Header.Get("X-Consumer-Username") != "alice" ||
		last.Header.Get("X-Consumer-Custom-Id") != "c-1" || last.Header.Get("X-Anonymous-Consumer") != "" {
		t.Errorf("status %d, upstream got %v %v %v", status, last.URL, last.Host, last.Header)
	}
	for _, c := range []struct {
		path, key string
		status    int
		body      string
	}{
		{"/keep", "", 401, `"message":"No API key found in request"`}, {"/keep", "wrong", 401, `"message":"Unauthorized"`},
		{"/none", "", 404, `"message":"no Route matched with those values"`}, {"/o", "", 502, `"message":"An invalid response was received from the upstream server"`},
		{"/keep?apikey=b", "", 200, "ok"},
	} {
		status, body, _ := ask(t, "GET", g.ProxyURL()+c.path, "", "apikey", c.key)
		if status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %s", c.path, status, body)
		}
	}
}

func TestAdminAPI(t *testing.T) {
	g, _ := running(t, testKongYML, nil)
	base := g.AdminURL()
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/status", "", 200, "server"},
		{"GET", "/services", "", 200, `"name":"other"`},
		{"GET", "/routes", "", 200, `"name":"deep"`},
		{"GET", "/consumers", "", 200, `"username":"alice"`},
		{"GET", "/consumers/alice", "", 200, `"custom_id":"c-1"`},
		{"GET", "/consumers/nobody", "", 404, `"message":"Not found"`},
		{"GET", "/nothing", "", 404, `"message":"Not found"`},
		{"POST", "/consumers", `{"username":"carol"}`, 201, `"username":"carol"`},
		{"POST", "/consumers", `{"username":"carol"}`, 400, `taken already`},
		{"POST", "/schemas/plugins/validate", `{"name":"quota","config":{"identifier":"x"}}`, 201, "schema validation successful"},
		{"POST", "/schemas/plugins/validate", `{"name":"quota","config":{"identifier":5}}`, 400, `"name":"schema violation","message":"schema violation (config.identifier: expected a string)","fields":{"config":{"identifier":"expected a string"}}`},
		{"POST", "/consumers/alice/plugins", `{"name":"quota","service":{"name":"s"},"config":{"redis":{"host":"h","port":1},"limits":[{"name":"x"}]}}`, 201, `"service":{"id":`},
		{"POST", "/consumers/alice/plugins", `{"name":"quota","service":{"name":"s"}}`, 409, `"name":"unique constraint violation"`},
		{"POST", "/consumers/nobody/plugins", `{"name":"quota"}`, 404, "Not found"},
		{"POST", "/services/s/plugins", `{"name":"quota","confg":{}}`, 400, `unknown field \"confg\"`},
		{"POST", "/services/s/plugins", `{"name":"quota"}`, 201, `"redis":{"host":null,"port":null}`},
		{"POST", "/routes/r/plugins", `{"name":"key-auth"}`, 201, `"key_names":["apikey"]`},
		{"GET", "/consumers/alice/plugins", "", 200, `"host":"h"`},
		{"POST", "/config", `{"config":"_format_version: '1'"}`, 400, `"code":14`},
	} {
		status, body, _ := ask(t, c.method, base+c.path, c.body, "Content-Type", "application/json")
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: %d %s\nwant %d %s", c.method, c.path, c.body, status, body, c.status, c.want)
		}
	}
	alices := idOf("plugin", strings.Join([]string{"quota", "", kongconfig.ID("services", "s"), kongconfig.ID("consumers", "alice")}, ":"))
	status, body, _ := ask(t, "PATCH", base+"/plugins/"+alices, `{"config":{"redis":{"port":2},"limits":[{"name":"y"}]}}`, "Content-Type", "application/json")
	if status != 200 || !strings.Contains(body, `"redis":{"host":"h","port":2}`) || strings.Contains(body, `"name":"x"`) {
		t.Errorf("PATCH merges tables and replaces lists: %d %s", status, body)
	}
	status, body, _ = ask(t, "PUT", base+"/plugins/"+alices, `{"name":"quota","consumer":{"username":"alice"}}`, "Content-Type", "application/json")
	if status != 200 || !strings.Contains(body, `"redis":{"host":null,"port":null}`) || !strings.Contains(body, `"service":null`) {
		t.Errorf("PUT replaces: %d %s", status, body)
	}
	if status, _, _ := ask(t, "DELETE", base+"/plugins/"+alices, ""); status != 204 {
		t.Errorf("DELETE: %d", status)
	}
	if status, _, _ := ask(t, "GET", base+"/plugins/"+alices, ""); status != 404 {
		t.Errorf("GET after DELETE: %d", status)
	}
	status, body, _ = ask(t, "POST", base+"/consumers/bob/plugins", "name=quota&config.limits[1].name=a&config.limits[1].limit=5&config.redis.host=h", "Content-Type", "application/x-www-form-urlencoded")
	if status != 201 || !strings.Contains(body, `"limits":[{"limit":5,"name":"a","window":null}]`) {
		t.Errorf("a form: %d %s", status, body)
	}
}

func TestForwardedIP(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct{ ip, header, value, want string }{
		{"192.0.2.1", "X-Real-Ip", "198.51.100.7", "192.0.2.1"},
		{"10.1.1.1", "X-Real-Ip", "198.51.100.7", "198.51.100.7"},
		{"10.1.1.1", "X-Real-Ip", "nonsense", "10.1.1.1"},
		{"10.1.1.1", "X-Forwarded-For", "198.51.100.7", "10.1.1.1"},
	} {
		g := &Gateway{options: Options{TrustedIPs: trusted}}
		if got := g.forwardedIP(c.ip, http.Header{c.header: {c.value}}); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	g := &Gateway{options: Options{TrustedIPs: trusted, RealIPHeader: "X-Forwarded-For"}}
	if got := g.forwardedIP("10.1.1.1", http.Header{"X-Forwarded-For": {"203.0.113.9, 198.51.100.7"}}); got != "198.51.100.7" {
		t.Errorf("the last of several: %s", got)
	}
}

// A plugin server that dies is started again, and the event runs again.
func TestSupervision(t *testing.T) {
	g, _ := running(t, testKongYML+"plugins: [ { name: quota, service: s } ]", nil)
	first := g.PluginPID()
	if status, _, _ := ask(t, "GET", g.ProxyURL()+"/r", ""); status != 200 {
		t.Fatalf("status %d", status)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		status, _, _ := ask(t, "GET", g.ProxyURL()+"/r", "")
		if status == 200 && g.PluginPID() != first {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %d, pid %d", status, g.PluginPID())
		}
	}
}

func TestStartRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no plugin": {func(o *Options) { o.QueryCommand = []string{"/nowhere/quota"} }, "query command"},
		"no dump":   {func(o *Options) { o.QueryCommand = []string{"echo", "hello"} }, "did not print a dump"},
		"another phase": {func(o *Options) {
			o.QueryCommand = []string{"echo", `{"Protocol":"ProtoBuf:1","Plugins":[{"Name":"quota","Phases":["log"]}]}`}
		}, "devkong runs access alone"},
		"a weak schema": {func(o *Options) {
			o.QueryCommand = []string{"echo", `{"Protocol":"ProtoBuf:1","Plugins":[{"Name":"quota","Phases":["access"],"Schema":{"name":"quota","fields":[{"config":{"type":"record","fields":[{"a":{"type":"int64"}}]}}]}}]}`}
		}, "invalid type: int64"},
		"bad config": {func(o *Options) { o.Config = []byte("x: 1") }, "unknown field"},
		"taken port": {func(o *Options) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			o.ProxyAddress = l.Addr().String()
		}, "proxy: "},
	} {
		o := Options{Config: []byte(head), QueryCommand: []string{"echo", `{"Protocol":"ProtoBuf:1","Plugins":[{"Name":"quota","Phases":["access"],"Schema":` + testSchema + `}]}`}}
		c.change(&o)
		g, err := Start(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if err == nil {
			_ = g.Close()
		}
	}
}
