package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// TestCompose reads docker-compose.yml as Docker does, and finds what it names.
func TestCompose(t *testing.T) {
	o, err := cli.NewProjectOptions([]string{"../../docker-compose.yml"}, cli.WithName("kong-quota"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kong", "redis", "prometheus", "grafana"} {
		if _, err := project.GetService(name); err != nil {
			t.Error(err)
		}
	}
	targets := map[string]bool{} // the files inside of Kong's container
	for _, s := range project.Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				t.Errorf("%s: %s is no file of the checkout", s.Name, v.Source)
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
			if s.Name == "kong" {
				targets[v.Target] = true
			}
		}
		if s.Build != nil {
			if text := string(dockerfile(t)); !strings.Contains(text, " AS "+s.Build.Target+"\n") || filepath.Base(s.Build.Dockerfile) != "Dockerfile" {
				t.Errorf("%s: the Dockerfile has no target %s", s.Name, s.Build.Target)
			}
		} else if image, tag, ok := strings.Cut(s.Image, ":"); !ok || tag == "latest" {
			t.Errorf("%s: image %s has no version", s.Name, image)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to others", s.Name, p.Published)
			}
		}
	}
	kong := project.Services["kong"]
	start := strings.Fields(*kong.Environment["KONG_PLUGINSERVER_QUOTA_START_CMD"])
	if i := slices.Index(start, "-env-file"); i < 0 || !targets[start[i+1]] {
		t.Errorf("the plugin server reads %v, there are %v", start, targets)
	}
	if !targets[*kong.Environment["KONG_DECLARATIVE_CONFIG"]] {
		t.Errorf("Kong reads %s, there are %v", *kong.Environment["KONG_DECLARATIVE_CONFIG"], targets)
	}
}
