package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kong-quota/internal/devkong/schema"
	"kong-quota/plugin"
)

// The custom resources of Kong's Ingress Controller, as far as the examples use
// them: its Go types are in no module that can be had here.
type kongPlugin struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Plugin          string          `json:"plugin"`
	Config          json.RawMessage `json:"config"`
	ConfigFrom      *struct {
		SecretKeyRef struct {
			Name string `json:"name"`
			Key  string `json:"key"`
		} `json:"secretKeyRef"`
	} `json:"configFrom"`
}

type kongConsumer struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Username        string   `json:"username"`
	Credentials     []string `json:"credentials"`
}

// TestExamples decodes the examples strictly, holds their configurations to the
// plugin's schema, and what they name to what is there.
func TestExamples(t *testing.T) {
	text, err := json.Marshal(plugin.Schema())
	if err != nil {
		t.Fatal(err)
	}
	quota, err := schema.ReadPlugin(text)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(chart + "/examples/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	configs := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names, wanted := map[string]bool{}, []string{}
		secrets := map[string]map[string]string{}
		check := func(config []byte) {
			t.Helper()
			configs++
			var values any
			if err := yaml.Unmarshal(config, &values); err != nil {
				t.Fatal(err)
			}
			if _, errs := quota.Config.Validate(values); errs != nil {
				t.Errorf("%s: %v", file, errs)
			}
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			var head meta.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				t.Fatal(err)
			}
			names[head.Name] = true
			if list := head.Annotations["konghq.com/plugins"]; list != "" {
				wanted = append(wanted, strings.Split(list, ",")...)
			}
			decode := func(into any) {
				t.Helper()
				if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
					t.Errorf("%s: %v in\n%s", file, err, document)
				}
			}
			switch head.Kind {
			case "KongPlugin", "KongClusterPlugin":
				var p kongPlugin
				decode(&p)
				if p.Plugin != plugin.Name || (p.Config == nil) == (p.ConfigFrom == nil) {
					t.Errorf("%s: %+v", file, p)
				}
				if p.Config != nil {
					check(p.Config)
				} else {
					check([]byte(secrets[p.ConfigFrom.SecretKeyRef.Name][p.ConfigFrom.SecretKeyRef.Key]))
				}
			case "KongConsumer":
				var c kongConsumer
				decode(&c)
				wanted = append(wanted, c.Credentials...)
			case "Secret":
				var s core.Secret
				decode(&s)
				secrets[s.Name] = s.StringData
			case "Ingress":
				decode(new(networking.Ingress))
			default:
				t.Errorf("%s: kind %q", file, head.Kind)
			}
		}
		for _, name := range wanted {
			if !names[name] {
				t.Errorf("%s: nothing is named %s", file, name)
			}
		}
	}
	if configs < 5 {
		t.Errorf("%d configurations were checked", configs)
	}
}
