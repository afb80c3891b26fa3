package kongconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The ids of a real Kong, in the recordings of its frames.
func TestIDs(t *testing.T) {
	recordings, err := filepath.Glob("../../../shared/kong-transcripts/*.jsonl")
	if err != nil || len(recordings) == 0 {
		t.Skip("no recordings of Kong beside the checkout")
	}
	var all []byte
	for _, file := range recordings {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	for _, e := range [][2]string{{"services", "sms"}, {"services", "open"}, {"routes", "sms"}, {"routes", "bulk"}, {"consumers", "alice"}, {"consumers", "bob"}} {
		if !bytes.Contains(all, []byte(ID(e[0], e[1]))) {
			t.Errorf("%s %s: Kong does not use %s", e[0], e[1], ID(e[0], e[1]))
		}
	}
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const declared = `_format_version: "3.0"
x-limits: &limits
- { name: a, limit: 1, window: hour }
services:
- name: s
  url: http://up
  plugins:
  - name: key-auth
  - name: quota
    config: { limits: *limits, scope: null }
  routes:
  - name: r
    paths: [/]
    plugins: [ { name: quota, enabled: false, config: { limits: *limits } } ]
  - paths: [/nameless]
    plugins: [ { name: quota, config: { limits: *limits } } ]
upstreams: [ { name: up } ]
consumers:
- username: alice
  custom_id: c-1
  plugins:
  - name: quota
    id: 7a3f5d1e-0000-4000-8000-000000000001
- { id: 7a3f5d1e-0000-4000-8000-000000000002, custom_id: c-2 }
plugins:
- name: quota
  service: s
  consumer: { username: alice }
  config:
    limits:
    - name: a
      limit: 2
      window: day
- { name: quota, route: { name: r } }
- name: quota
`

func TestRead(t *testing.T) {
	file := write(t, "kong.yml", declared)
	c, err := Read(file)
	if err != nil || len(c.Problems) > 0 {
		t.Fatal(err, c.Problems)
	}
	s, alice := Entity{ID("services", "s"), "s"}, Entity{ID("consumers", "alice"), "alice"}
	want := []string{
		`kong.yml:9: services[1].plugins[2] on "s" "" "" id "" disabled false map[limits:[map[limit:1 name:a window:hour]]]`,
		`kong.yml:14: services[1].routes[1].plugins[1] on "" "r" "" id "" disabled true map[limits:[map[limit:1 name:a window:hour]]]`,
		`kong.yml:16: services[1].routes[2].plugins[1] on "" "" "" id "" disabled false map[limits:[map[limit:1 name:a window:hour]]]`,
		`kong.yml:22: consumers[1].plugins[1] on "" "" "alice" id "7a3f5d1e-0000-4000-8000-000000000001" disabled false map[]`,
		`kong.yml:26: plugins[1] on "s" "" "alice" id "" disabled false map[limits:[map[limit:2 name:a window:day]]]`,
		`kong.yml:34: plugins[2] on "" "r" "" id "" disabled false map[]`,
		`kong.yml:35: plugins[3] on "" "" "" id "" disabled false map[]`,
	}
	var got []string
	for _, p := range c.Plugins {
		p.File = filepath.Base(p.File)
		got = append(got, fmt.Sprintf("%v on %q %q %q id %q disabled %t %v", p.Place, p.Service, p.Route, p.Consumer, p.ID, p.Disabled, p.Config))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for field, line := range map[string]int{"": 30, "limits": 30, "limits[1]": 31, "limits[1].window": 33, "limits[1].none": 31, "limits[4].window": 30, "none.at.all": 30} {
		if at := c.Plugins[4].At(field); at.Line != line || at.Path != strings.TrimSuffix("plugins[1].config."+field, ".") {
			t.Errorf("%q is at %v, want line %d", field, at, line)
		}
	}
	if at := c.Plugins[0].At("limits[1].window"); at.Line != 3 {
		t.Errorf("behind an alias: line %d", at.Line)
	}
	for name, want := range map[string]Consumer{"alice": {alice, "c-1"}, "c-1": {alice, "c-1"}, alice.ID: {alice, "c-1"}, "c-2": {Entity{ID: "7a3f5d1e-0000-4000-8000-000000000002"}, "c-2"}} {
		if found, err := c.Consumer(context.Background(), name); err != nil || found != want {
			t.Errorf("consumer %s: %v, %v", name, found, err)
		}
	}
	if _, err := c.Consumer(context.Background(), "nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	instance, err := c.Plugins[4].Instance()
	if want := `{"__plugin_id":"","consumer_id":"` + alice.ID + `","limits":[{"limit":2,"name":"a","window":"day"}],"service_id":"` + s.ID + `"}`; err != nil || string(instance) != want {
		t.Errorf("got  %s, %v\nwant %s", instance, err, want)
	}
}

func TestManifests(t *testing.T) {
	secret := write(t, "secret.yaml", `
apiVersion: v1
kind: Secret
metadata: { namespace: n, name: s }
stringData: { config: "limits: [ { name: b, limit: 2, window: day } ]" }
data: { encoded: eyJsaW1pdHMiOltdfQ== }
`)
	file := write(t, "plugins.yaml", `
apiVersion: v1
kind: Service
metadata: { name: s }
---
apiVersion: configuration.konghq.com/v1
kind: KongPlugin
metadata: { name: one }
plugin: quota
config: { limits: [ { name: a, limit: 1, window: hour } ] }
---
apiVersion: configuration.konghq.com/v1
kind: KongPlugin
metadata: { name: other }
plugin: key-auth
---
apiVersion: configuration.konghq.com/v1
kind: KongPlugin
metadata: { namespace: n, name: from }
plugin: quota
configFrom: { secretKeyRef: { name: s, key: config } }
---
apiVersion: configuration.konghq.com/v1
kind: KongClusterPlugin
metadata: { name: cluster }
plugin: quota
disabled: true
configFrom: { secretKeyRef: { namespace: n, name: s, key: encoded } }
`)
	c, err := Read(file, secret)
	if err != nil || len(c.Problems) > 0 {
		t.Fatal(err, c.Problems)
	}
	var got []string
	for _, p := range c.Plugins {
		got = append(got, fmt.Sprint(p.Line, p.Path, p.Disabled, p.Config))
	}
	want := []string{"6KongPlugin/onefalse map[limits:[map[limit:1 name:a window:hour]]]", "17KongPlugin/fromfalse map[limits:[map[limit:2 name:b window:day]]]", "23KongClusterPlugin/clustertrue map[limits:[]]"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if c.Consumer != nil {
		t.Error("manifests know no consumers")
	}
}

func TestProblems(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1":                                  "f:1: file: is neither a declarative configuration (_format_version) nor a manifest (kind)",
		"a: [":                                  "f: YAML: yaml: line 1: did not find expected node content",
		"":                                      "f:1: file: is neither a declarative configuration (_format_version) nor a manifest (kind)",
		"- 1\n":                                 "f:1: file: is neither a declarative configuration (_format_version) nor a manifest (kind)",
		"_format_version: \"3.0\"\nservices: 5": "f:1: declarative configuration: yaml: unmarshal errors:\n  line 2: cannot unmarshal !!int `5` into []",
		"_format_version: \"3.0\"\nplugins: [ { name: quota, service: nowhere } ]":                                                                                                              "f:2: plugins[1].service: \"nowhere\" is no service of these files",
		"_format_version: \"3.0\"\nplugins: [ { name: quota, consumer: { username: bob } } ]":                                                                                                   "f:2: plugins[1].consumer: \"bob\" is no consumer of these files",
		"_format_version: \"3.0\"\nplugins:\n- name: quota\n  config: 5":                                                                                                                        "f:4: plugins[1].config: must be a table",
		"kind: KongPlugin\napiVersion: v1\nplugin: quota\nmetadata: { name: n }":                                                                                                                "f:1: KongPlugin/n: apiVersion: \"v1\" must be configuration.konghq.com/v1",
		"kind: KongPlugin\napiVersion: configuration.konghq.com/v1\nplugin: quota\nmetadata: { name: n, namespace: m }\nconfigFrom: { secretKeyRef: { name: s, key: k } }":                      "f:1: KongPlugin/n: note: configFrom: Secret m/s with key k is in none of the files, so the config is not looked at",
		"kind: KongPlugin\napiVersion: configuration.konghq.com/v1\nplugin: quota\nmetadata: { name: n }\nconfig: {}\nconfigFrom: { secretKeyRef: { name: s, key: k } }":                        "f:1: KongPlugin/n: config and configFrom exclude each other",
		"kind: KongPlugin\napiVersion: configuration.konghq.com/v1\nplugin: quota\nmetadata: { name: n }\nconfigPatches:\n- { path: /redis, valueFrom: { secretKeyRef: { name: s, key: k } } }": "f:6: KongPlugin/n.configPatches: note: what they put in is in Secrets of the cluster, and not looked at",
	} {
		c, err := Read(write(t, "f", text))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Problems) != 1 {
			t.Errorf("%s: %d problems %v", text, len(c.Problems), c.Problems)
			continue
		}
		c.Problems[0].File = "f"
		if got := c.Problems[0].String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
	if _, err := Read("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Pages, names, and what is not there.
func TestAdmin(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Kong-Admin-Token") != "t" {
			http.Error(w, `{"message":"Unauthorized"}`, http.StatusUnauthorized)
			return
		}
		answers := map[string]string{
			"/plugins?size=1000":           `{"data":[{"id":"p1","name":"quota","enabled":true,"config":{"scope":null,"limits":[{"name":"a","burst":null}]},"service":{"id":"s1"},"route":null,"consumer":null}],"next":"/plugins?size=1000&offset=x"}`,
			"/plugins?size=1000&offset=x":  `{"data":[{"id":"p0","name":"key-auth","enabled":true,"config":{}},{"id":"p2","name":"quota","enabled":false,"config":{},"route":{"id":"r1"},"consumer":{"id":"c1"}}],"next":null}`,
			"/services?size=1000":          `{"data":[{"id":"s1","name":"sms"}],"next":null}`,
			"/routes?size=1000":            `{"data":[{"id":"r1","name":null}],"next":null}`,
			"/consumers/c1":                `{"id":"c1","username":"alice","custom_id":null}`,
			"/consumers/a%20b":             `{"id":"c2","username":"a b","custom_id":"x"}`,
			"/consumers?custom_id=x":       `{"data":[{"id":"c2","username":"a b","custom_id":"x"}]}`,
			"/consumers?custom_id=nobody":  `{"data":[]}`,
			"/consumers?custom_id=ignored": `{"data":[{"id":"c1","username":"alice"}]}`,
		}
		if text, there := answers[r.URL.RequestURI()]; there {
			_, _ = w.Write([]byte(text))
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	admin := Admin{server.URL + "/", http.Header{"Kong-Admin-Token": {"t"}}, server.Client()}
	c, err := admin.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range c.Plugins {
		got = append(got, fmt.Sprint(p.Path, p.Service, p.Route, p.Consumer, p.Disabled, p.Config))
	}
	want := []string{"/plugins/p1smsfalsemap[limits:[map[name:a]]]", "/plugins/p2r1c1truemap[]"}
	if strings.ReplaceAll(strings.Join(got, "\n"), " ", "") != strings.ReplaceAll(strings.Join(want, "\n"), " ", "") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, name := range []string{"a b", "x"} {
		if found, err := c.Consumer(t.Context(), name); err != nil || found.ID != "c2" {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	for _, name := range []string{"nobody", "ignored"} {
		if _, err := c.Consumer(t.Context(), name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	admin.Header = nil
	if _, err := admin.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "GET /plugins?size=1000: 401 Unauthorized: {\"message\":\"Unauthorized\"}") {
		t.Errorf("got %v", err)
	}
	admin.URL += "elsewhere"
	admin.Header = http.Header{"Kong-Admin-Token": {"t"}}
	if _, err := admin.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "is that Kong's Admin API?") {
		t.Errorf("got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(declared)
	f.Add("kind: KongPlugin\napiVersion: configuration.konghq.com/v1\nplugin: quota\nconfig: { limits: [ 1 ] }")
	f.Add("_format_version: 3\nplugins: [ { name: quota, config: { a: &a [ *a ] } } ]")
	f.Fuzz(func(t *testing.T, text string) {
		r := reader{Configuration: &Configuration{}, file: "f", secrets: map[string]map[string]string{}}
		r.read([]byte(text))
		r.finish()
		for _, p := range r.Plugins {
			for _, field := range []string{"", "limits[1].window", "a[", "[1]", "..", "a]b"} {
				p.At(field)
			}
			if _, err := p.Instance(); err != nil {
				t.Error(err)
			}
		}
	})
}
