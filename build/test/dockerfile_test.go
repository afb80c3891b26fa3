// Package test compiles the Dockerfile and the compose file as Docker does, as far as
// that goes without an engine. It is a module of its own, so that Docker's parts never
// enter the product's.
package test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

// base answers for the images that the Dockerfile begins with, which cannot be had
// here: they have nothing but a PATH.
type base struct{}

func (base) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	return ref, digest.FromString(ref), []byte(`{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/bin"]}}`), nil
}

// options are those of `docker build` for a target, a machine and arguments.
func options(t *testing.T, text []byte, target, architecture string, args map[string]string) dockerfile2llb.ConvertOpt {
	t.Helper()
	source := llb.NewSourceMap(nil, "Dockerfile", "dockerfile", text)
	var err error
	if source.Definition, err = llb.Scratch().Marshal(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dockerfile2llb.ConvertOpt{
		Config:         dockerui.Config{Target: target, BuildArgs: args},
		TargetPlatform: &ocispecs.Platform{OS: "linux", Architecture: architecture},
		MetaResolver:   base{},
		SourceMap:      source,
	}
}

func dockerfile(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Docker's own build checks have nothing to say, for any target.
func TestBuildChecks(t *testing.T) {
	text := dockerfile(t)
	check := func(text []byte, target string) (found []string) {
		t.Helper()
		results, err := dockerfile2llb.DockerfileLint(t.Context(), text, options(t, text, target, "amd64", nil))
		if err != nil {
			t.Fatal(err)
		}
		if results.Error != nil {
			found = append(found, fmt.Sprint(results.Error))
		}
		for _, w := range results.Warnings {
			found = append(found, fmt.Sprintf("line %v, %s: %s", w.Location.GetRanges(), w.RuleName, w.Detail))
		}
		return found
	}
	for _, target := range []string{"plugin", "tools", "kong", ""} {
		if found := check(text, target); found != nil {
			t.Errorf("target %q: %v", target, found)
		}
	}
	// They do see what is wrong.
	bad := strings.Replace(string(text), `ENTRYPOINT ["/quota"]`, "ENTRYPOINT /quota", 1)
	if found := check([]byte(bad), "plugin"); len(found) != 1 || !strings.Contains(found[0], "JSONArgsRecommended") {
		t.Errorf("a shell form is %v", found)
	}
}

// Each target, for each machine: what it runs, as whom, and what it says of itself.
func TestImages(t *testing.T) {
	text := dockerfile(t)
	for target, want := range map[string]struct {
		entrypoint, user string
		copies           []string
	}{
		"plugin": {"/quota", "65532:65532", []string{"/quota", "/etc/ssl/certs/ca-certificates.crt"}},
		"tools":  {"/quotactl", "65532:65532", []string{"/quotactl", "/etc/ssl/certs/ca-certificates.crt"}},
		"kong":   {"", "kong", []string{"/usr/local/bin/quota", "/etc/kong-quota/quota.env"}},
	} {
		for _, architecture := range []string{"amd64", "arm64"} {
			args := map[string]string{"VERSION": "9.8.7", "REVISION": "abc", "CREATED": "2026-11-21T00:00:00Z"}
			result, err := dockerfile2llb.Dockerfile2LLB(t.Context(), text, options(t, text, target, architecture, args))
			if err != nil {
				t.Fatal(err)
			}
			c := result.Image.Config
			if got := strings.Join(c.Entrypoint, " "); got != want.entrypoint || c.User != want.user {
				t.Errorf("%s: entrypoint %q, user %q", target, got, c.User)
			}
			if result.Image.Architecture != architecture {
				t.Errorf("%s is for %s, not %s", target, result.Image.Architecture, architecture)
			}
			for label, value := range map[string]string{"version": "9.8.7", "revision": "abc", "created": "2026-11-21T00:00:00Z", "title": "*", "description": "*"} {
				if got := c.Labels["org.opencontainers.image."+label]; got != value && (value != "*" || got == "") {
					t.Errorf("%s: label %s is %q", target, label, got)
				}
			}
			copies, runs := steps(t, result)
			for _, destination := range want.copies {
				if !slices.Contains(copies, destination) {
					t.Errorf("%s has %v, not %s", target, copies, destination)
				}
			}
			i := slices.IndexFunc(runs, func(command string) bool { return strings.Contains(command, "go build") })
			if i < 0 || !strings.Contains(runs[i], "-trimpath") || !strings.Contains(runs[i], "GOARCH=${TARGETARCH}") {
				t.Errorf("%s for %s is built by %v", target, architecture, runs)
			}
		}
	}
}

// steps are what a build copies to, and what it runs.
func steps(t *testing.T, result *dockerfile2llb.Result) (copies, runs []string) {
	t.Helper()
	definition, err := result.State.Marshal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range definition.Def {
		var op pb.Op
		if err := op.UnmarshalVT(text); err != nil {
			t.Fatal(err)
		}
		for _, action := range op.GetFile().GetActions() {
			if c := action.GetCopy(); c != nil {
				copies = append(copies, c.Dest)
			}
		}
		if e := op.GetExec(); e != nil {
			runs = append(runs, strings.Join(e.Meta.Args, " "))
		}
	}
	return copies, runs
}
