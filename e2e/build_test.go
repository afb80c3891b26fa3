package e2e

import (
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestBuildIsReproducible builds the binaries as the Dockerfile does, from here and
// from a copy elsewhere: the same bytes come out.
func TestBuildIsReproducible(t *testing.T) {
	dockerfile, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`go build (-trimpath .*) -o /out/ (\. \./cmd/quotactl) `).FindSubmatch(dockerfile)
	if found == nil {
		t.Fatal("the Dockerfile has no such line")
	}
	flags := strings.Fields(strings.ReplaceAll(string(found[1]), `"`, ""))
	flags = joinLdflags(flags)
	build := func(folder string) (sums [2][sha256.Size]byte) {
		t.Helper()
		out := t.TempDir()
		cmd := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", out + "/"}, strings.Fields(string(found[2])))...)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for i, name := range []string{"kong-quota", "quotactl"} {
			binary, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			sums[i] = sha256.Sum256(binary)
		}
		return sums
	}
	elsewhere := filepath.Join(t.TempDir(), "another", "place")
	for _, part := range []string{"plugin", "quota", "lua", "internal", "cmd"} {
		if err := os.CopyFS(filepath.Join(elsewhere, part), os.DirFS(filepath.Join("..", part))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum", "main.go", "install.go"} {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(elsewhere, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if here, there := build(".."), build(elsewhere); here != there {
		t.Errorf("built here %x, elsewhere %x", here, there)
	}
}

// joinLdflags puts the words of -ldflags back together, which a shell takes as one.
func joinLdflags(words []string) []string {
	for i, word := range words {
		if strings.HasPrefix(word, "-ldflags=") {
			return append(words[:i:i], strings.Join(words[i:], " "))
		}
	}
	return words
}
