package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestInKongsCharts merges what mode overlay renders into Kong's own charts, kong/kong
// and kong/ingress, and finds it in the pods of the gateway. KONG_CHARTS names the
// folder that has both, as the repository of Kong's charts does; no registry that can
// be reached here has them.
func TestInKongsCharts(t *testing.T) {
	folder := os.Getenv("KONG_CHARTS")
	if folder == "" {
		t.Skip("KONG_CHARTS names no folder with Kong's charts")
	}
	overlay := objects(t, manifest(t, valuesOf(t, "mode: overlay\nredis: { address: \"redis:6379\", password: p, tls: { enabled: true, existingSecret: s } }")))
	values := find(t, overlay, func(c *core.ConfigMap) bool { return strings.HasSuffix(c.Name, "-kong-values") }).Data
	load := func(name string) *helm.Chart {
		t.Helper()
		c, err := loader.Load(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	kong, ingress := load("kong"), load("ingress")
	if len(ingress.Dependencies()) == 0 { // they are downloaded from a registry
		ingress.AddDependency(load("kong"))
		for _, d := range ingress.Metadata.Dependencies {
			d.Version = kong.Metadata.Version
		}
	}
	for name, c := range map[string]struct {
		chart *helm.Chart
		key   string // of the ConfigMap
		own   string // values that a user may have
	}{
		"kong":             {kong, "kong.yaml", "podAnnotations: { mine: kept }\nenv: { log_level: info }"},
		"kong on Postgres": {load("kong"), "kong.yaml", "podAnnotations: { mine: kept }\nenv: { log_level: info, database: postgres, pg_host: p }"},
		"ingress":          {ingress, "ingress.yaml", "gateway: { podAnnotations: { mine: kept }, env: { log_level: info } }"},
	} {
		t.Run(name, func(t *testing.T) {
			install := action.NewInstall(&action.Configuration{Log: t.Logf})
			install.ClientOnly, install.DryRun = true, true
			install.ReleaseName, install.Namespace = "kong", "default"
			install.KubeVersion = &chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}
			merged := chartutil.CoalesceTables(valuesOf(t, values[c.key]), valuesOf(t, c.own))
			r, err := install.Run(c.chart, merged)
			if err != nil {
				t.Fatal(err)
			}
			var gateways []core.PodSpec
			text := r.Manifest
			for _, hook := range r.Hooks {
				text += "\n---\n" + hook.Manifest
			}
			for _, document := range strings.Split("\n"+text, "\n---") {
				// Whatever is told of the plugin must have it: jobs of migrations, too.
				var d apps.Deployment
				if err := yaml.Unmarshal([]byte(document), &d); err != nil || d.Kind != "Deployment" && d.Kind != "Job" {
					continue
				}
				pod := d.Spec.Template
				for i, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
					told := slices.ContainsFunc(container.Env, func(e core.EnvVar) bool { return e.Name == "KONG_PLUGINSERVER_NAMES" })
					installed := slices.IndexFunc(pod.Spec.InitContainers, func(c core.Container) bool { return c.Name == "install-quota" })
					mounted := slices.ContainsFunc(container.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == "/opt/kong-quota" })
					if told && (installed < 0 || installed >= i || !mounted) && container.Name != "clear-stale-pid" {
						t.Errorf("%s %s, container %s is told of the plugin, but does not have it", d.Kind, d.Name, container.Name)
					}
				}
				if d.Kind == "Job" {
					continue
				}
				if slices.ContainsFunc(pod.Spec.Containers, func(c core.Container) bool { return c.Name == "proxy" }) {
					gateways = append(gateways, pod.Spec)
					if pod.Annotations["mine"] != "kept" || pod.Annotations["checksum/quota-env"] == "" || pod.Annotations["checksum/quota-passwords"] == "" {
						t.Errorf("annotations %v", pod.Annotations)
					}
				}
			}
			if len(gateways) != 1 {
				t.Fatalf("%d gateways", len(gateways))
			}
			pod := gateways[0]
			if !slices.ContainsFunc(pod.InitContainers, func(c core.Container) bool { return c.Name == "install-quota" }) {
				t.Error("no init container installs the plugin")
			}
			for _, v := range []string{"quota", "quota-env", "quota-secrets", "quota-tls"} {
				if !slices.ContainsFunc(pod.Volumes, func(volume core.Volume) bool { return volume.Name == v }) {
					t.Errorf("no volume %s", v)
				}
			}
			proxy := pod.Containers[slices.IndexFunc(pod.Containers, func(c core.Container) bool { return c.Name == "proxy" })]
			paths := map[string]bool{}
			for _, m := range proxy.VolumeMounts {
				if paths[m.MountPath] {
					t.Errorf("two volumes at %s", m.MountPath)
				}
				paths[m.MountPath] = true
			}
			for _, path := range []string{"/opt/kong-quota", "/etc/kong-quota/env", "/etc/kong-quota/secrets", "/etc/kong-quota/tls"} {
				if !paths[path] {
					t.Errorf("nothing is mounted at %s", path)
				}
			}
			env := map[string]string{}
			for _, e := range proxy.Env {
				env[e.Name] = e.Value
			}
			for variable, want := range map[string]string{
				"KONG_LOG_LEVEL": "info", "KONG_PLUGINS": "bundled,quota", "KONG_PLUGINSERVER_NAMES": "quota",
				"KONG_PLUGINSERVER_QUOTA_SOCKET":    "/opt/kong-quota/run/quota.socket",
				"KONG_PLUGINSERVER_QUOTA_START_CMD": "/opt/kong-quota/quota -kong-prefix /opt/kong-quota/run -env-file /etc/kong-quota/env/quota.env",
				"KONG_PLUGINSERVER_QUOTA_QUERY_CMD": "/opt/kong-quota/quota -kong-prefix /opt/kong-quota/run -dump",
			} {
				if env[variable] != want {
					t.Errorf("%s is %q, want %q", variable, env[variable], want)
				}
			}
		})
	}
}
