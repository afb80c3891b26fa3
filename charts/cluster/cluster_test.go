package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	core "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const folder = "../kong-quota"

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// namespace makes one that takes no pod which Kubernetes' restricted profile forbids,
// and warns of what makes such pods.
func namespace(t *testing.T, name string) {
	t.Helper()
	labels := map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
	if _, err := kube.client.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controller that makes it is not here.
	if _, err := kube.client.CoreV1().ServiceAccounts(name).Create(t.Context(), &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: "default"}}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func helm(t *testing.T, namespace string) *action.Configuration {
	t.Helper()
	c := &action.Configuration{}
	if err := c.Init(kube.getter(namespace), namespace, "secret", func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	return c
}

func decode(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// define makes custom resources known whose definitions are not here; the server then
// takes any object of theirs. charts/test holds these to their Go types.
func define(t *testing.T, group, version string, kinds map[string]string) {
	t.Helper()
	anything := true
	for kind, plural := range kinds {
		create(t, &apiextensions.CustomResourceDefinition{
			TypeMeta:   meta.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
			ObjectMeta: meta.ObjectMeta{Name: plural + "." + group},
			Spec: apiextensions.CustomResourceDefinitionSpec{
				Group: group, Scope: apiextensions.NamespaceScoped,
				Names: apiextensions.CustomResourceDefinitionNames{Kind: kind, Plural: plural, Singular: strings.ToLower(kind), ListKind: kind + "List"},
				Versions: []apiextensions.CustomResourceDefinitionVersion{{
					Name: version, Served: true, Storage: true,
					Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything}},
				}},
			},
		})
	}
}

// create makes a definition and waits until the server serves it.
func create(t *testing.T, definition *apiextensions.CustomResourceDefinition) {
	t.Helper()
	text, err := yaml.Marshal(definition)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(object.Object, "status")
	definitions := client(t).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Create(t.Context(), object, meta.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("%s: %v", definition.Name, err)
	}
	served := schema.GroupVersionResource{Group: definition.Spec.Group, Version: definition.Spec.Versions[0].Name, Resource: definition.Spec.Names.Plural}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := client(t).Resource(served).List(t.Context(), meta.ListOptions{})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not served: %v", definition.Name, err)
		}
	}
}

func client(t *testing.T) *dynamic.DynamicClient {
	t.Helper()
	c, err := dynamic.NewForConfig(rest.CopyConfig(kube.config))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestInstall installs, changes and removes the chart with each file of values.
func TestInstall(t *testing.T) {
	define(t, "monitoring.coreos.com", "v1", map[string]string{"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"})
	files, err := filepath.Glob(folder + "/ci/*.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d files of values, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			namespace(t, name)
			kube.warned()
			install := action.NewInstall(helm(t, name))
			install.ReleaseName, install.Namespace = "quota", name
			values := decode(t, file)
			if p, ok := values["priorityClassName"].(string); ok {
				priorityClass(t, p)
			}
			first, err := install.Run(load(t), values)
			if err != nil {
				t.Fatal(err)
			}
			if w := kube.warned(); len(w) > 0 {
				t.Errorf("the server warns: %q", w)
			}
			before := generation(t, name)
			pods(t, name)

			// A changed setting rolls the pods; the same values once more do not.
			same, err := upgrade(t, name, values)
			if err != nil {
				t.Fatal(err)
			}
			if same != first.Version+1 || generation(t, name) != before {
				t.Errorf("an upgrade with equal values rolls: generation %d, was %d", generation(t, name), before)
			}
			values["settings"] = map[string]any{"log_level": "warn"}
			if _, err := upgrade(t, name, values); err != nil {
				t.Fatal(err)
			}
			if after := generation(t, name); before > 0 && after != before+1 {
				t.Errorf("a changed setting gives generation %d after %d", after, before)
			}
			if w := kube.warned(); len(w) > 0 {
				t.Errorf("the server warns: %q", w)
			}

			rollback := action.NewRollback(helm(t, name))
			rollback.Version = 1
			if err := rollback.Run("quota"); err != nil {
				t.Error(err)
			}
			if _, err := action.NewUninstall(helm(t, name)).Run("quota"); err != nil {
				t.Fatal(err)
			}
			if left := generation(t, name); left != 0 {
				t.Error("a Deployment stays behind")
			}
		})
	}
}

// upgrade gives the number of the new revision.
func upgrade(t *testing.T, namespace string, values map[string]any) (int, error) {
	t.Helper()
	u := action.NewUpgrade(helm(t, namespace))
	u.Namespace = namespace
	r, err := u.Run("quota", load(t), values)
	if err != nil {
		return 0, err
	}
	return r.Version, nil
}

// generation is how often the Deployment of Kong was changed, 0 where there is none.
func generation(t *testing.T, namespace string) int64 {
	t.Helper()
	all, err := kube.client.AppsV1().Deployments(namespace).List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) == 0 {
		return 0
	}
	return all.Items[0].Generation
}

// pods asks the server for the pods that controllers would make, which are not here.
func pods(t *testing.T, namespace string) {
	t.Helper()
	templates := map[string]core.PodTemplateSpec{}
	deployments, err := kube.client.AppsV1().Deployments(namespace).List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range deployments.Items {
		templates[d.Name] = d.Spec.Template
	}
	sets, err := kube.client.AppsV1().StatefulSets(namespace).List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets.Items {
		template := s.Spec.Template
		for _, claim := range s.Spec.VolumeClaimTemplates { // as the controller does
			template.Spec.Volumes = append(template.Spec.Volumes, core.Volume{Name: claim.Name, VolumeSource: core.VolumeSource{PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-0"}}})
		}
		templates[s.Name] = template
	}
	for name, template := range templates {
		pod := &core.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Name = name
		if _, err := kube.client.CoreV1().Pods(namespace).Create(t.Context(), pod, meta.CreateOptions{DryRun: []string{meta.DryRunAll}}); err != nil {
			t.Errorf("pod of %s: %v", name, err)
		}
	}
}

func priorityClass(t *testing.T, name string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": map[string]any{"name": name}, "value": int64(1)}}
	if _, err := client(t).Resource(schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}).Create(t.Context(), object, meta.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// The server does refuse: a pod of the chart that may not run here is not taken.
func TestTheServerRefuses(t *testing.T) {
	namespace(t, "refuses")
	install := action.NewInstall(helm(t, "refuses"))
	install.ReleaseName, install.Namespace = "quota", "refuses"
	values := map[string]any{"redis": map[string]any{"address": "r:1"}, "replicaCount": 1}
	if _, err := install.Run(load(t), values); err != nil {
		t.Fatal(err)
	}
	d, err := kube.client.AppsV1().Deployments("refuses").Get(t.Context(), "quota-kong-quota", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kube.warned()
	patch := []byte(`{"spec":{"template":{"spec":{"hostNetwork":true}}}}`)
	if _, err := kube.client.AppsV1().Deployments("refuses").Patch(t.Context(), d.Name, types.StrategicMergePatchType, patch, meta.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if w := kube.warned(); len(w) == 0 || !strings.Contains(w[0], "hostNetwork") {
		t.Errorf("warnings %q", w)
	}
	pod := &core.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	pod.Name, pod.Spec.HostNetwork = "p", true
	if _, err := kube.client.CoreV1().Pods("refuses").Create(t.Context(), pod, meta.CreateOptions{DryRun: []string{meta.DryRunAll}}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
}

// TestExamples applies the examples for Kong's Ingress Controller to its own
// definitions: KONG_CRDS names the file that has them, as the controller's releases
// do.
func TestExamples(t *testing.T) {
	file := os.Getenv("KONG_CRDS")
	if file == "" {
		t.Skip("KONG_CRDS names no file with the definitions of Kong's resources")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	resources := map[string]schema.GroupVersionResource{
		"v1/Secret": {Version: "v1", Resource: "secrets"}, "v1/Service": {Version: "v1", Resource: "services"},
		"networking.k8s.io/v1/Ingress": {Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	}
	cluster := map[string]bool{}
	for _, document := range documents(t, text) {
		var definition apiextensions.CustomResourceDefinition
		if err := yaml.Unmarshal(document, &definition); err != nil {
			t.Fatal(err)
		}
		if definition.Kind != "CustomResourceDefinition" {
			continue
		}
		create(t, &definition)
		for _, v := range definition.Spec.Versions {
			key := definition.Spec.Group + "/" + v.Name + "/" + definition.Spec.Names.Kind
			resources[key] = schema.GroupVersionResource{Group: definition.Spec.Group, Version: v.Name, Resource: definition.Spec.Names.Plural}
			cluster[key] = definition.Spec.Scope == apiextensions.ClusterScoped
		}
	}
	examples, err := filepath.Glob(folder + "/examples/*.yaml")
	if err != nil || len(examples) < 3 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	namespace(t, "examples")
	kube.warned()
	applied := 0
	for _, file := range examples {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range documents(t, text) {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(document, &object.Object); err != nil {
				t.Fatal(err)
			}
			key := object.GetAPIVersion() + "/" + object.GetKind()
			resource, known := resources[key]
			if !known {
				t.Errorf("%s: no definition of %s", file, key)
				continue
			}
			var into dynamic.ResourceInterface = client(t).Resource(resource)
			if !cluster[key] {
				object.SetNamespace("examples")
				into = client(t).Resource(resource).Namespace("examples")
			}
			if _, err := into.Create(t.Context(), object, meta.CreateOptions{FieldValidation: meta.FieldValidationStrict}); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Errorf("%s: %s %s: %v", file, object.GetKind(), object.GetName(), err)
			}
			applied++
		}
	}
	t.Logf("%d objects were taken", applied)
	if w := kube.warned(); len(w) > 0 {
		t.Errorf("the server warns: %q", w)
	}
}

// documents are those of a YAML file that are not empty.
func documents(t *testing.T, text []byte) (all [][]byte) {
	t.Helper()
	for _, document := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		var head struct{ Kind string }
		if err := yaml.Unmarshal(document, &head); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(fmt.Errorf("%w in\n%s", err, document))
		}
		if head.Kind != "" {
			all = append(all, document)
		}
	}
	return all
}
