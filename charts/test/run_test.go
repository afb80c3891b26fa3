package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	t     *testing.T
	root  string
	env   map[string]string // of Kong's container
	names map[string]string // addresses in the cluster, as they are here
}

// here turns the paths of the pod, and names in the cluster, into those of this machine.
func (p pod) here(text string) string {
	for _, path := range []string{"/opt/kong-quota", "/etc/kong-quota"} {
		text = strings.ReplaceAll(text, path, p.root+path)
	}
	for name, address := range p.names {
		text = strings.ReplaceAll(text, name, address)
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
  plugins: [ { name: quota, config: { timeout: 10000, limits: [ { name: minute, limit: %d, window: hour } ] } } ]
consumers:
- { username: alice, keyauth_credentials: [ { key: alice } ] }
`

// running is a pod that was started as its manifests say, with devkong as Kong.
type running struct {
	proxy string // URL
	ready string // URL of the plugin server's readiness
	stop  func() // as Kubernetes does: what preStop says, then the containers' end
}

// start starts what the manifests for these values say, as they say it. The values get
// a port of their own for metrics, since all pods are on this machine.
func start(t *testing.T, plugin string, values map[string]any, resolve map[string]string) running {
	t.Helper()
	// The path of a socket is at most 107 bytes long.
	root, err := os.MkdirTemp("", "pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	port := testredis.FreePort(t)
	values = maps.Clone(values)
	values["metrics"] = map[string]any{"port": port}
	all := objects(t, manifest(t, values))

	p := pod{t, root, map[string]string{}, resolve}
	var volumes []core.Volume
	var install core.Container
	var preStop []string
	options := devkong.Options{Prefix: root, Log: slog.New(slog.DiscardHandler), Resolve: resolve}
	if values["mode"] == "overlay" {
		install, volumes, options.Config = p.overlay(all)
	} else {
		install, volumes, options.Config, preStop = p.deployment(all)
	}
	p.run(plugin, install.Args)
	options.QueryCommand, options.Socket = p.command("QUERY_CMD"), p.here(p.env["KONG_PLUGINSERVER_QUOTA_SOCKET"])
	stopSidecar := func() {}
	if options.StartCommand = p.command("START_CMD"); values["mode"] == "sidecar" {
		options.External = true
		stopSidecar = p.sidecar(plugin, all, volumes, port)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := devkong.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		if err := g.Close(); err != nil {
			t.Errorf("devkong: %v", err)
		}
		stopSidecar()
	})
	t.Cleanup(end)
	return running{g.ProxyURL(), fmt.Sprintf("http://127.0.0.1:%d/readyz", port), func() { p.preStop(preStop); end() }}
}

// sidecar starts the plugin server's own container, and waits until it has started.
func (p pod) sidecar(plugin string, all []any, volumes []core.Volume, port int) (stop func()) {
	t := p.t
	t.Helper()
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
	await(t, fmt.Sprintf("http://127.0.0.1:%d%s", port, sidecar.StartupProbe.HTTPGet.Path))
	return func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		if err := server.Wait(); err != nil {
			t.Errorf("the sidecar ended with %v", err)
		}
	}
}

// preStop runs the hook of Kong's container; its command kong is one that does
// nothing, since devkong is stopped by the test.
func (p pod) preStop(command []string) {
	p.t.Helper()
	folder := filepath.Join(p.root, "bin")
	kong := filepath.Join(folder, "kong")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(kong, []byte("#!/bin/sh\necho $* >> $0.said\n"), 0o755)); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Errorf("%v: %v\n%s", command, err, out)
	}
	if said, err := os.ReadFile(kong + ".said"); err != nil || !strings.HasPrefix(string(said), "quit --timeout=") {
		p.t.Errorf("the hook does not let Kong finish: kong %s, %v", said, err)
	}
}

// upstream answers all requests.
func upstream(t *testing.T) (resolve map[string]string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(server.Close)
	return map[string]string{"upstream:8080": server.Listener.Addr().String()}
}

// valuesToRun are for a mode, a Redis and a limit.
func valuesToRun(t *testing.T, mode, redis string, limit int) map[string]any {
	t.Helper()
	values := valuesOf(t, fmt.Sprintf("mode: %s\nredis: { address: %q, password: \"the secret\" }\npreStopSeconds: 1\n", mode, redis))
	config := map[string]any{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, kongConfig, limit), &config); err != nil {
		t.Fatal(err)
	}
	values["kong"] = map[string]any{"config": config}
	return values
}

// client keeps a connection for each of those who send requests at once.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}

// ask sends a request as alice.
func ask(proxy string) (status int, remaining string, err error) {
	request, err := http.NewRequest(http.MethodGet, proxy+"/", nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("apikey", "alice")
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Header.Get("RateLimit-Remaining"), errors.Join(err, answer.Body.Close())
}

// TestManifestsRun starts what the manifests say, with devkong as Kong, and sends
// requests.
func TestManifestsRun(t *testing.T) {
	plugin := binary(t)
	for _, mode := range []string{"gateway", "sidecar", "overlay"} {
		t.Run(mode, func(t *testing.T) {
			redis := testredis.Start(t, "--requirepass", "the secret")
			pod := start(t, plugin, valuesToRun(t, mode, redis.Address(), 2), upstream(t))
			for i, want := range []string{"200 1", "200 0", "429 0"} {
				status, remaining, err := ask(pod.proxy)
				if got := fmt.Sprint(status, " ", remaining); got != want || err != nil {
					t.Errorf("request %d: %s, %v, want %s", i+1, got, err, want)
				}
			}
			if !answers(pod.ready) {
				t.Error("the plugin server is not ready, or not where the manifests say")
			}
		})
	}
}

// TestTrialRuns starts the trial Redis as its StatefulSet says, with and without a
// password and a volume, and counts in it.
func TestTrialRuns(t *testing.T) {
	plugin := binary(t)
	for name, own := range map[string]string{
		"plain":    "trial: { enabled: true }",
		"password": "trial: { enabled: true, storage: 1Gi }\nredis: { password: \"a \\\"secret\\\" $HOME\" }",
	} {
		t.Run(name, func(t *testing.T) {
			values := valuesToRun(t, "gateway", "", 2)
			delete(values, "redis")
			maps.Copy(values, valuesOf(t, own))
			all := objects(t, manifest(t, values))
			container := find(t, all, func(*apps.StatefulSet) bool { return true }).Spec.Template.Spec.Containers[0]
			port, data := testredis.FreePort(t), t.TempDir()
			script := strings.ReplaceAll(container.Command[2], "/data", data) + fmt.Sprint(" --port ", port)
			cmd := exec.Command(container.Command[0], container.Command[1], script)
			for _, e := range container.Env {
				ref := e.ValueFrom.SecretKeyRef
				secret := find(t, all, func(s *core.Secret) bool { return s.Name == ref.Name })
				cmd.Env = append(cmd.Env, e.Name+"="+secret.StringData[ref.Key])
			}
			cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			service := find(t, all, func(s *core.Service) bool { return strings.HasSuffix(s.Name, "-redis") })
			resolve := upstream(t)
			resolve[fmt.Sprintf("%s:%d", service.Name, service.Spec.Ports[0].Port)] = fmt.Sprint("127.0.0.1:", port)
			pod := start(t, plugin, values, resolve)
			await(t, pod.ready)
			for i, want := range []string{"200 1", "200 0", "429 0"} {
				if status, remaining, err := ask(pod.proxy); fmt.Sprint(status, " ", remaining) != want {
					t.Errorf("request %d: %d %s, %v, want %s", i+1, status, remaining, err, want)
				}
			}
			files, err := os.ReadDir(data)
			if kept := err == nil && len(files) > 0; kept != strings.Contains(own, "storage") {
				t.Errorf("it keeps its data: %t, %v", kept, err)
			}
		})
	}
}

// TestHelmTest runs what the pod of `helm test` does, with a gateway and without one.
func TestHelmTest(t *testing.T) {
	redis := testredis.Start(t, "--requirepass", "the secret")
	values := valuesToRun(t, "gateway", redis.Address(), 2)
	test := find(t, objects(t, manifest(t, values)), func(p *core.Pod) bool { return p.Annotations["helm.sh/hook"] == "test" })
	script := test.Spec.Containers[0].Command[2]
	const service = "/dev/tcp/r-kong-quota/80"
	if !strings.Contains(script, service) {
		t.Fatalf("it does not ask %s:\n%s", service, script)
	}
	ask := func(address string) error {
		at := strings.Replace(strings.TrimPrefix(address, "http://"), ":", "/", 1)
		return exec.Command(test.Spec.Containers[0].Command[0], "-c", strings.ReplaceAll(script, service, "/dev/tcp/"+at)).Run()
	}
	pod := start(t, binary(t), values, upstream(t))
	if err := ask(pod.proxy); err != nil {
		t.Error(err)
	}
	if err := ask(fmt.Sprintf("127.0.0.1:%d", testredis.FreePort(t))); err == nil {
		t.Error("it passes where nobody listens")
	}
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer silent.Close()
	if err := ask(silent.URL); err == nil {
		t.Error("it passes where nothing is answered")
	}
}

// TestRollingUpdate replaces two pods one after the other, as the Deployment says, while
// requests come. Those who send them hear of a pod's end a little after it began, as in
// a cluster. Each request has an answer, and each was charged once.
func TestRollingUpdate(t *testing.T) {
	const limit, heardAfter = 1_000_000, 300 * time.Millisecond
	plugin := binary(t)
	for _, mode := range []string{"gateway", "sidecar"} {
		t.Run(mode, func(t *testing.T) {
			redis := testredis.Start(t, "--requirepass", "the secret")
			values, resolve := valuesToRun(t, mode, redis.Address(), limit), upstream(t)
			d := find(t, objects(t, manifest(t, values)), func(*apps.Deployment) bool { return true })
			if r := d.Spec.Strategy.RollingUpdate; r.MaxUnavailable.IntValue() != 0 || r.MaxSurge.IntValue() < 1 {
				t.Fatalf("a roll takes pods away before new ones are there: %+v", r)
			}
			pods := []running{start(t, plugin, values, resolve), start(t, plugin, values, resolve)}
			var endpoints atomic.Pointer[[]string]
			tell := func() {
				proxies := make([]string, len(pods))
				for i, p := range pods {
					proxies[i] = p.proxy
				}
				endpoints.Store(&proxies)
			}
			tell()

			var passed, failed atomic.Int64
			done := make(chan struct{})
			var clients sync.WaitGroup
			for n := range 4 {
				clients.Go(func() {
					for i := n; ; i++ {
						select {
						case <-done:
							return
						default:
						}
						all := *endpoints.Load()
						if status, _, err := ask(all[i%len(all)]); status == 200 && err == nil {
							passed.Add(1)
						} else if failed.Add(1) < 5 {
							t.Errorf("status %d, %v", status, err)
						}
					}
				})
			}
			for range 2 {
				next := start(t, plugin, values, resolve)
				await(t, next.ready)
				old := pods[0]
				pods = append(pods[1:], next)
				time.AfterFunc(heardAfter, tell)
				old.stop()
			}
			close(done)
			clients.Wait()
			status, remaining, err := ask(pods[0].proxy)
			if want := strconv.FormatInt(limit-passed.Load()-1, 10); status != 200 || err != nil || remaining != want || passed.Load() == 0 {
				t.Errorf("%d passed, %d failed; %s remain, want %s (%d, %v)", passed.Load(), failed.Load(), remaining, want, status, err)
			}
			t.Logf("%d requests", passed.Load())
		})
	}
}

// deployment takes what Kong's container says.
func (p pod) deployment(all []any) (install core.Container, volumes []core.Volume, config []byte, preStop []string) {
	p.t.Helper()
	d := find(p.t, all, func(*apps.Deployment) bool { return true })
	spec := d.Spec.Template.Spec
	kong := spec.Containers[0]
	for _, e := range kong.Env {
		p.env[e.Name] = e.Value
	}
	p.mount(all, spec.Volumes, kong.VolumeMounts)
	secret := find(p.t, all, func(s *core.Secret) bool { return strings.HasSuffix(s.Name, "-kong") })
	return spec.InitContainers[0], spec.Volumes, []byte(secret.StringData["kong.yml"]), kong.Lifecycle.PreStop.Exec.Command
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
	return kong.Deployment.InitContainers[0], kong.Deployment.UserDefinedVolumes, fmt.Appendf(nil, kongConfig, 2)
}

// await waits until there is an answer.
func await(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !answers(url); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no answer of %s within a minute", url)
		}
	}
}

func answers(url string) bool {
	answer, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
