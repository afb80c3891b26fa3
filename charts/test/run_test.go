package test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kong-quota/internal/devkong"
	"kong-quota/internal/testredis"
)

// pod is a pod of the manifests on this machine: its files under a folder.
type pod struct {
	t    *testing.T
	root string
	env  map[string]string // of Kong's container
}

// here turns the paths of the pod into those of this machine.
func (p pod) here(text string) string {
	for _, path := range []string{"/opt/kong-quota", "/etc/kong-quota"} {
		text = strings.ReplaceAll(text, path, p.root+path)
	}
	return text
}

func (p pod) write(path, text string) {
	p.t.Helper()
	path = p.here(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(p.here(text)), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// mount writes what the volumes of the pod hold to where they are mounted.
func (p pod) mount(all []any, volumes []core.Volume, mounts []core.VolumeMount) {
	p.t.Helper()
	for _, m := range mounts {
		i := slices.IndexFunc(volumes, func(v core.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			p.t.Fatalf("no volume %s", m.Name)
		}
		switch v := volumes[i]; {
		case v.ConfigMap != nil:
			for name, text := range find(p.t, all, func(c *core.ConfigMap) bool { return c.Name == v.ConfigMap.Name }).Data {
				p.write(m.MountPath+"/"+name, text)
			}
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				secret := find(p.t, all, func(s *core.Secret) bool { return s.Name == source.Secret.Name })
				for _, item := range source.Secret.Items {
					p.write(m.MountPath+"/"+item.Path, secret.StringData[item.Key])
				}
			}
		}
	}
}

// run runs a container's command to its end.
func (p pod) run(binary string, args []string) {
	p.t.Helper()
	for i := range args {
		args[i] = p.here(args[i])
	}
	if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func (p pod) command(name string) []string {
	return strings.Fields(p.here(p.env["KONG_PLUGINSERVER_QUOTA_"+name]))
}

// binary is the plugin as its image has it.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quota")
	build := exec.Command("go", "build", "-C", "../..", "-buildvcs=false", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

const kongConfig = `
_format_version: "3.0"
services:
- name: s
  url: http://upstream:8080
  routes: [ { name: r, paths: [/], plugins: [ { name: key-auth } ] } ]
  plugins: [ { name: quota, config: { limits: [ { name: minute, limit: 2, window: hour } ] } } ]
consumers:
- { username: alice, keyauth_credentials: [ { key: alice } ] }
`

// TestManifestsRun starts what the manifests say, as they say it, with devkong as
// Kong, and sends requests.
func TestManifestsRun(t *testing.T) {
	plugin := binary(t)
	for _, mode := range []string{"gateway", "sidecar", "overlay"} {
		t.Run(mode, func(t *testing.T) {
			redis := testredis.Start(t)
			client := redis.Client()
			if err := client.ConfigSet(t.Context(), "requirepass", "the secret").Err(); err != nil {
				t.Fatal(err)
			}
			// The path of a socket is at most 107 bytes long.
			root, err := os.MkdirTemp("", "pod")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			port := freePort(t)
			values := valuesOf(t, fmt.Sprintf("mode: %s\nredis: { address: %q, password: \"the secret\" }\nmetrics: { port: %d }\n", mode, redis.Address(), port))
			config := map[string]any{}
			if err := yaml.Unmarshal([]byte(kongConfig), &config); err != nil {
				t.Fatal(err)
			}
			values["kong"] = map[string]any{"config": config}
			all := objects(t, manifest(t, values))

			p := pod{t, root, map[string]string{}}
			var volumes []core.Volume
			var install core.Container
			options := devkong.Options{Prefix: root, Log: slog.New(slog.DiscardHandler)}
			if mode == "overlay" {
				install, volumes, options.Config = p.overlay(all)
			} else {
				install, volumes, options.Config = p.deployment(all)
			}
			p.run(plugin, install.Args)
			options.QueryCommand, options.Socket = p.command("QUERY_CMD"), p.here(p.env["KONG_PLUGINSERVER_QUOTA_SOCKET"])
			if options.StartCommand = p.command("START_CMD"); mode == "sidecar" {
				options.External = true
				d := find(t, all, func(*apps.Deployment) bool { return true })
				i := slices.IndexFunc(d.Spec.Template.Spec.InitContainers, func(c core.Container) bool { return c.Name == "quota" })
				sidecar := d.Spec.Template.Spec.InitContainers[i]
				if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != core.ContainerRestartPolicyAlways {
					t.Error("the sidecar is an init container that ends")
				}
				p.mount(all, volumes, sidecar.VolumeMounts)
				for i := range sidecar.Args {
					sidecar.Args[i] = p.here(sidecar.Args[i])
				}
				server := exec.Command(plugin, sidecar.Args...)
				if err := server.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
				for !answers(fmt.Sprintf("http://127.0.0.1:%d%s", port, sidecar.StartupProbe.HTTPGet.Path)) {
					time.Sleep(10 * time.Millisecond)
				}
			}
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
			defer upstream.Close()
			options.Resolve = map[string]string{"upstream:8080": upstream.Listener.Addr().String()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			g, err := devkong.Start(ctx, options)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = g.Close() }()
			for i, want := range []string{"200 1", "200 0", "429 0"} {
				request, err := http.NewRequest(http.MethodGet, g.ProxyURL()+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("apikey", "alice")
				answer, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if got := fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("RateLimit-Remaining")); got != want {
					t.Errorf("request %d: %s, want %s", i+1, got, want)
				}
			}
			if !answers(fmt.Sprintf("http://127.0.0.1:%d/readyz", port)) {
				t.Error("the plugin server is not ready, or not where the manifests say")
			}
		})
	}
}

// deployment takes what Kong's container says.
func (p pod) deployment(all []any) (install core.Container, volumes []core.Volume, config []byte) {
	p.t.Helper()
	d := find(p.t, all, func(*apps.Deployment) bool { return true })
	spec := d.Spec.Template.Spec
	kong := spec.Containers[0]
	for _, e := range kong.Env {
		p.env[e.Name] = e.Value
	}
	p.mount(all, spec.Volumes, kong.VolumeMounts)
	secret := find(p.t, all, func(s *core.Secret) bool { return strings.HasSuffix(s.Name, "-kong") })
	return spec.InitContainers[0], spec.Volumes, []byte(secret.StringData["kong.yml"])
}

// overlay takes what Kong's own chart would make of the values for it.
func (p pod) overlay(all []any) (install core.Container, volumes []core.Volume, config []byte) {
	p.t.Helper()
	type values struct {
		Env        map[string]string `json:"env"`
		Deployment struct {
			InitContainers          []core.Container   `json:"initContainers"`
			UserDefinedVolumes      []core.Volume      `json:"userDefinedVolumes"`
			UserDefinedVolumeMounts []core.VolumeMount `json:"userDefinedVolumeMounts"`
		} `json:"deployment"`
		PodAnnotations map[string]string `json:"podAnnotations"`
	}
	data := find(p.t, all, func(c *core.ConfigMap) bool { return strings.HasSuffix(c.Name, "-kong-values") }).Data
	var kong values
	var ingress struct {
		Gateway values `json:"gateway"`
	}
	for name, into := range map[string]any{"kong.yaml": &kong, "ingress.yaml": &ingress} {
		if err := yaml.UnmarshalStrict([]byte(data[name]), into); err != nil {
			p.t.Fatalf("%s: %v\n%s", name, err, data[name])
		}
	}
	if fmt.Sprint(ingress.Gateway.Env, ingress.Gateway.PodAnnotations) != fmt.Sprint(kong.Env, kong.PodAnnotations) {
		p.t.Errorf("kong/ingress gets %v, kong/kong %v", ingress.Gateway, kong)
	}
	for name, value := range kong.Env {
		p.env["KONG_"+strings.ToUpper(name)] = value
	}
	p.mount(all, kong.Deployment.UserDefinedVolumes, kong.Deployment.UserDefinedVolumeMounts)
	return kong.Deployment.InitContainers[0], kong.Deployment.UserDefinedVolumes, []byte(kongConfig)
}

func answers(url string) bool {
	answer, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}
