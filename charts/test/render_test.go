// Package test renders the chart as helm does, holds what comes out to Kubernetes'
// own types and to golden files, and runs it: the commands, files and sockets of the
// manifests, with devkong in Kong's place. It is a module of its own, so that helm
// and Kubernetes never enter the product's.
package test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const chart = "../kong-quota"

var update = flag.Bool("update", false, "write the golden files anew")

// render is `helm template`, with helm's own check of the values.
func render(t testing.TB, values map[string]any) (*release.Release, error) {
	t.Helper()
	return renderFor(t, "1.31", values)
}

// renderFor is render for a version of Kubernetes.
func renderFor(t testing.TB, kubernetes string, values map[string]any) (*release.Release, error) {
	t.Helper()
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{Log: t.Logf})
	install.ClientOnly, install.DryRun = true, true
	install.ReleaseName, install.Namespace = "r", "default"
	major, minor, _ := strings.Cut(kubernetes, ".")
	install.KubeVersion = &chartutil.KubeVersion{Version: "v" + kubernetes + ".0", Major: major, Minor: minor}
	return install.Run(loaded, values)
}

func valuesOf(t testing.TB, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// matrix are the values in ci/, by file name.
func matrix(t testing.TB) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(chart + "/ci/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files of values, %v", len(files), err)
	}
	all := map[string]map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = valuesOf(t, string(text))
	}
	return all
}

func manifest(t testing.TB, values map[string]any) string {
	t.Helper()
	r, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	text := r.Manifest
	for _, hook := range r.Hooks {
		text += "---\n# Source: " + hook.Path + "\n" + hook.Manifest + "\n"
	}
	return text
}

func TestLint(t *testing.T) {
	for name, values := range matrix(t) {
		lint := action.NewLint()
		lint.Strict = true
		lint.KubeVersion = &chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}
		result := lint.Run([]string{chart}, values)
		for _, err := range result.Errors {
			t.Errorf("%s: %v", name, err)
		}
		for _, m := range result.Messages {
			if !strings.Contains(m.Err.Error(), "icon is recommended") {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// notes are what helm prints after an install, as a comment.
func notes(t testing.TB, values map[string]any) string {
	t.Helper()
	r, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return "---\n# NOTES.txt\n# " + strings.ReplaceAll(strings.TrimSpace(r.Info.Notes), "\n", "\n# ") + "\n"
}

func TestGolden(t *testing.T) {
	for name, values := range matrix(t) {
		file := filepath.Join("testdata", name+".yaml")
		got := manifest(t, values) + notes(t, values)
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from what the chart renders: look at the difference and run go test -update", file)
		}
	}
}

// kinds are the types of what the chart may render.
var kinds = map[string]func() any{
	"v1/ConfigMap":                            func() any { return new(core.ConfigMap) },
	"v1/Secret":                               func() any { return new(core.Secret) },
	"v1/Service":                              func() any { return new(core.Service) },
	"v1/ServiceAccount":                       func() any { return new(core.ServiceAccount) },
	"v1/Pod":                                  func() any { return new(core.Pod) },
	"apps/v1/Deployment":                      func() any { return new(apps.Deployment) },
	"apps/v1/StatefulSet":                     func() any { return new(apps.StatefulSet) },
	"autoscaling/v2/HorizontalPodAutoscaler":  func() any { return new(autoscaling.HorizontalPodAutoscaler) },
	"policy/v1/PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1/NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1/PodMonitor":     func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule": func() any { return new(monitoring.PrometheusRule) },
}

// objects decodes a manifest strictly: what Kubernetes does not know is an error.
func objects(t testing.TB, text string) (all []any) {
	t.Helper()
	for _, document := range strings.Split("\n"+text, "\n---") {
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if head.Kind == "" {
			continue
		}
		make := kinds[head.APIVersion+"/"+head.Kind]
		if make == nil {
			t.Fatalf("the chart rendered a %s of %s", head.Kind, head.APIVersion)
		}
		object := make()
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%s: %v in\n%s", head.Kind, err, document)
		}
		all = append(all, object)
	}
	return all
}

// find gives the object of a type that has the name.
func find[T any](t testing.TB, all []any, match func(T) bool) T {
	t.Helper()
	for _, object := range all {
		if o, ok := object.(T); ok && match(o) {
			return o
		}
	}
	t.Fatalf("no such %T among %d objects", *new(T), len(all))
	panic("unreachable")
}

// TestObjects holds every pod to what people expect of one, and what names
// something to what is there.
func TestObjects(t *testing.T) {
	for name, values := range matrix(t) {
		t.Run(name, func(t *testing.T) {
			all := objects(t, manifest(t, values))
			if len(all) < 2 {
				t.Fatalf("%d objects", len(all))
			}
			for _, object := range all {
				switch o := object.(type) {
				case *apps.Deployment:
					checkPod(t, all, o.Spec.Template.Spec)
					if !contains(o.Spec.Template.Labels, o.Spec.Selector.MatchLabels) {
						t.Errorf("%s selects %v, its pods have %v", o.Name, o.Spec.Selector.MatchLabels, o.Spec.Template.Labels)
					}
				case *apps.StatefulSet:
					checkPod(t, all, o.Spec.Template.Spec)
				case *core.Pod:
					checkPod(t, all, o.Spec)
				case *core.Service:
					checkService(t, all, o)
				}
			}
		})
	}
}

func contains(all, some map[string]string) bool {
	for k, v := range some {
		if all[k] != v {
			return false
		}
	}
	return len(some) > 0
}

func checkService(t *testing.T, all []any, s *core.Service) {
	t.Helper()
	if s.Spec.Selector["app.kubernetes.io/component"] == "app" {
		return // pods of Kong's own chart
	}
	ports := map[string]bool{}
	for _, object := range all {
		var pod *core.PodTemplateSpec
		switch o := object.(type) {
		case *apps.Deployment:
			pod = &o.Spec.Template
		case *apps.StatefulSet:
			pod = &o.Spec.Template
		default:
			continue
		}
		if contains(pod.Labels, s.Spec.Selector) {
			for _, c := range pod.Spec.Containers {
				for _, p := range c.Ports {
					ports[p.Name], ports[fmt.Sprint(p.ContainerPort)] = true, true
				}
			}
		}
	}
	for _, p := range s.Spec.Ports {
		if !ports[p.TargetPort.String()] {
			t.Errorf("service %s: no pod that it selects has port %s", s.Name, p.TargetPort.String())
		}
	}
}

func checkPod(t *testing.T, all []any, spec core.PodSpec) {
	t.Helper()
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("the token of the service account is mounted")
	}
	if s := spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context of the pod: %+v", spec.SecurityContext)
	}
	volumes := map[string]bool{"data": true} // that of the StatefulSet may be claimed
	for _, v := range spec.Volumes {
		if volumes[v.Name] && v.Name != "data" {
			t.Errorf("volume %s is there twice", v.Name)
		}
		volumes[v.Name] = true
		if v.ConfigMap != nil {
			find(t, all, func(c *core.ConfigMap) bool { return c.Name == v.ConfigMap.Name })
		}
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				if !strings.HasPrefix(source.Secret.Name, "r-kong-quota") {
					continue // somebody's own
				}
				secret := find(t, all, func(s *core.Secret) bool { return s.Name == source.Secret.Name })
				for _, item := range source.Secret.Items {
					if secret.StringData[item.Key] == "" {
						t.Errorf("volume %s: %s has no key %s", v.Name, secret.Name, item.Key)
					}
				}
			}
		}
		if v.Secret != nil && strings.HasPrefix(v.Secret.SecretName, "r-kong-quota") {
			find(t, all, func(s *core.Secret) bool { return s.Name == v.Secret.SecretName })
		}
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		s := c.SecurityContext
		if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
			s.Capabilities == nil || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
			t.Errorf("security context of %s: %+v", c.Name, s)
		}
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("resources of %s: %+v", c.Name, c.Resources)
		}
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || paths[m.MountPath] {
				t.Errorf("%s mounts %s at %s", c.Name, m.Name, m.MountPath)
			}
			paths[m.MountPath] = true
		}
		env := map[string]bool{}
		for _, e := range c.Env {
			if env[e.Name] {
				t.Errorf("%s has %s twice", c.Name, e.Name)
			}
			env[e.Name] = true
		}
	}
}

const base = `redis: { address: "redis:6379" }` + "\n"

// conditionals has a case for what the values switch.
var conditionals = map[string]struct{ values, has, hasNot string }{
	"external redis":         {base, `QUOTA_REDIS_ADDRESS="redis:6379"`, "StatefulSet"},
	"trial":                  {`trial: { enabled: true }`, `QUOTA_REDIS_ADDRESS="r-kong-quota-redis:6379"`, "PASSWORD"},
	"trial, storage":         {`trial: { enabled: true, storage: 2Gi }`, "--appendonly yes", "--save"},
	"trial, password":        {"trial: { enabled: true }\nredis: { password: p }", `--requirepass "$REDIS_PASSWORD"`, "password: p\n"},
	"no metrics":             {base + "metrics: { enabled: false }", "kind: Deployment", "quota-metrics"},
	"metrics":                {base, `QUOTA_LISTEN_ADDRESS="0.0.0.0:9542"`, "PodMonitor"},
	"autoscaling":            {base + "autoscaling: { enabled: true }", "HorizontalPodAutoscaler", "replicas: 2"},
	"replicas":               {base + "replicaCount: 3", "replicas: 3", "HorizontalPodAutoscaler"},
	"no disruption budget":   {base + "podDisruptionBudget: { enabled: false }", "kind: Deployment", "PodDisruptionBudget"},
	"digest":                 {base + `image: { digest: "sha256:` + strings.Repeat("a", 64) + `" }`, "kong-quota/plugin@sha256:aaaa", "kong-quota/plugin:"},
	"appVersion":             {base, "image: kong-quota/plugin:0.1.0", ""},
	"sidecar":                {"mode: sidecar\n" + base, "/bin/cat /opt/kong-quota/dump.json", "START_CMD"},
	"gateway":                {base, "START_CMD", "/bin/cat"},
	"overlay":                {"mode: overlay\n" + base, "pluginserver_quota_start_cmd", "kind: Deployment"},
	"setting":                {base + "settings: { max_waiters: 7 }", `QUOTA_MAX_WAITERS="7"`, ""},
	"own Kong config":        {base + "kong: { existingSecret: mine }", "secretName: mine", "kong.yml: |"},
	"no service account":     {base + "serviceAccount: { create: false, name: given }", "serviceAccountName: given", "kind: ServiceAccount"},
	"database":               {"redis: { address: \"redis:6379\", database: 4 }", `QUOTA_REDIS_DATABASE="4"`, ""},
	"Cluster":                {"redis: { address: \"a:1,b:2\", cluster: true }", `QUOTA_REDIS_CLUSTER="true"`, "SENTINEL"},
	"Sentinels":              {"redis: { address: \"a:1,b:2\", sentinel: { master: m } }", `QUOTA_REDIS_SENTINEL_MASTER="m"`, "SENTINEL_PASSWORD"},
	"Sentinels, password":    {"redis: { address: \"a:1\", sentinel: { master: m, existingSecret: s, existingSecretKey: k } }", "secret: { name: s, items: [ { key: k, path: sentinel-password } ] }", "redis-password }"},
	"two passwords":          {"redis: { address: \"a:1\", password: p, sentinel: { master: m, username: u, password: q } }", `sentinel-password: "q"`, ""},
	"ports of Redis":         {"redis: { address: \"a:26379,b:26379\", sentinel: { master: m } }\nnetworkPolicy: { enabled: true, redisPorts: [6379] }", "    - { port: 6379 }\n    - { port: 26379 }\n  - to:", ""},
	"service monitor":        {base + "metrics: { serviceMonitor: { enabled: true, labels: { a: b } } }", "name: r-kong-quota-metrics", "PodMonitor"},
	"monitor of the overlay": {"mode: overlay\n" + base + "overlay: { release: gate }\nmetrics: { serviceMonitor: { enabled: true } }", "    app.kubernetes.io/instance: gate\n    app.kubernetes.io/component: app", "kind: Deployment"},
	"labels of the overlay":  {"mode: overlay\n" + base + "overlay: { podLabels: { app: mine } }\nmetrics: { serviceMonitor: { enabled: true } }", "  selector:\n    app: mine\n  ports", "component: app"},
	"alerts of the overlay":  {"mode: overlay\n" + base + "metrics: { prometheusRule: { enabled: true }, dashboard: { enabled: true } }", `pod=~"kong-.*",namespace="default"`, "kind: Deployment"},
	"policy of the overlay":  {"mode: overlay\ntrial: { enabled: true }\nnetworkPolicy: { enabled: true }", "  - from:\n    - podSelector:\n        matchLabels:\n          app.kubernetes.io/instance: kong", "policyTypes: [Egress]"},
	"users of OpenShift":     {base + "podSecurityContext: { runAsUser: null, runAsGroup: null, fsGroup: null }", "      securityContext:\n        runAsNonRoot: true\n        seccompProfile", "runAsUser"},
	"TLS":                    {"redis: { address: \"redis:6379\", tls: { enabled: true, existingSecret: s } }", "QUOTA_REDIS_TLS_CA_FILE=/etc/kong-quota/tls/ca.crt", "CERT_FILE"},
}

func TestConditionals(t *testing.T) {
	for name, c := range conditionals {
		t.Run(name, func(t *testing.T) {
			text := manifest(t, valuesOf(t, c.values))
			if !strings.Contains(text, c.has) {
				t.Errorf("%q is not in\n%s", c.has, text)
			}
			if name == "trial, password" { // it is in the Secret alone
				text = strings.Replace(text, `password: "p"`, "", 1)
			}
			if c.hasNot != "" && strings.Contains(text, c.hasNot) {
				t.Errorf("%q is in\n%s", c.hasNot, text)
			}
			objects(t, text)
		})
	}
}

// badValues has the error for each.
var badValues = map[string]string{
	``: "redis.address must be set, host:port of your Redis, or trial.enabled for a small one in the cluster",
	"trial: { enabled: true }\nredis: { address: \"r:1\" }":                                  "redis.address and trial.enabled exclude each other",
	"trial: { enabled: true }\nredis: { tls: { enabled: true } }":                            "trial.enabled: the trial Redis has no TLS",
	"trial: { enabled: true }\nredis: { username: u }":                                       "trial.enabled: the trial Redis has the default user only",
	"redis: { address: \"r:1\", password: p, existingSecret: s }":                            "redis.password and redis.existingSecret exclude each other",
	"redis: { address: \"r:1\" }\nsettings: { redis_address: x }":                            "settings.redis_address: set redis.* or metrics.* instead",
	"redis: { address: \"r:1\" }\nmode: other":                                               "at /mode: value must be one of gateway, sidecar, overlay",
	"redis: { address: \"r:1,s:1\" }":                                                        "redis.address: several are for redis.cluster or redis.sentinel.master",
	"redis: { address: \"r:1\", cluster: true, sentinel: { master: m } }":                    "redis.cluster and redis.sentinel.master exclude each other",
	"redis: { address: \"r:1\", cluster: true, database: 2 }":                                "redis.database: a Redis Cluster has database 0 only",
	"redis: { address: \"r:1\", sentinel: { password: p } }":                                 "redis.sentinel: set master, the name of what the Sentinels watch",
	"redis: { address: \"r:1\", sentinel: { master: m, password: p, existingSecret: s } }":   "redis.sentinel.password and redis.sentinel.existingSecret exclude each other",
	"trial: { enabled: true }\nredis: { cluster: true }":                                     "trial.enabled: the trial Redis is one server, without redis.cluster and redis.sentinel",
	"mode: overlay\nredis: { address: \"r:1\" }\nmetrics: { podMonitor: { enabled: true } }": "metrics.podMonitor.enabled: no container of Kong's own chart declares the port; use metrics.serviceMonitor",
	"redis: { adress: \"r:1\" }":                                                             "at /redis: additional properties adress not allowed",
	"redis: { address: \"r:1\" }\nimage: { digest: latest }":                                 "digest",
	"redis: { address: \"r:1\", database: -1 }":                                              "database",
}

func TestBadValues(t *testing.T) {
	for values, want := range badValues {
		if _, err := render(t, valuesOf(t, values)); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "'", ""), strings.ReplaceAll(want, "'", "")) {
			t.Errorf("%s:\n got %v\nwant %s", values, err, want)
		}
	}
}

// TestOldKubernetes: a sidecar needs 1.29, the other modes do not.
func TestOldKubernetes(t *testing.T) {
	for mode, want := range map[string]string{"gateway": "", "overlay": "", "sidecar": "mode: sidecar needs Kubernetes 1.29"} {
		_, err := renderFor(t, "1.28", valuesOf(t, "mode: "+mode+"\nredis: { address: \"r:1\" }"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// TestChangesRoll: what changes the configuration changes the pods.
func TestChangesRoll(t *testing.T) {
	const base = "redis: { address: \"redis:6379\", password: p }\n"
	template := func(values string) string {
		t.Helper()
		d := find(t, objects(t, manifest(t, valuesOf(t, values))), func(*apps.Deployment) bool { return true })
		text, err := yaml.Marshal(d.Spec.Template)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := template(base)
	for _, change := range []string{
		strings.Replace(base, "6379", "6380", 1), strings.Replace(base, "password: p", "password: q", 1),
		strings.Replace(base, "password: p", "password: p, sentinel: { master: m }", 1),
		base + "settings: { log_level: debug }", base + "kong: { config: { services: [] } }",
	} {
		if template(change) == before {
			t.Errorf("the pods stay with\n%s", change)
		}
	}
}
