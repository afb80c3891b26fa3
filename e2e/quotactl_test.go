package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Operators look at what the gateway has counted, and give it back: by the Admin API,
// and by kong.yml alone.
func TestQuotactl(t *testing.T) {
	const plugins = `
- { name: quota, service: s, config: { limits: [ { name: hour, limit: 5, window: hour } ] } }
- { name: quota, service: s, consumer: alice, config: { limits: [ { name: hour, limit: 7, window: hour } ] } }
`
	k, redis := startWithRedis(t, plugins)
	folder := t.TempDir()
	binary, file := filepath.Join(folder, "quotactl"), filepath.Join(folder, "kong.yml")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "../cmd/quotactl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(entities+plugins), 0o600); err != nil {
		t.Fatal(err)
	}
	ctl := func(args ...string) string {
		t.Helper()
		command := exec.Command(binary, args...)
		command.Env = append(os.Environ(), "QUOTA_REDIS_ADDRESS="+redis.Address())
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("quotactl %v: %v\n%s", args, err, out)
		}
		return strings.Join(strings.Fields(string(out)), " ")
	}
	k.expect("/key", "alice", "200 6, 200 5")
	k.expect("/key", "bob", "200 4, 200 3, 200 2, 200 1, 200 0, 429 0")
	for _, from := range [][]string{{"--admin", k.AdminURL()}, {"--file", file}} {
		if out := ctl(append([]string{"usage", "alice"}, from...)...); !strings.Contains(out, "alice service s hour 2 7 5 ") {
			t.Errorf("%v: %s", from, out)
		}
		if out := ctl(append([]string{"usage"}, from...)...); !strings.Contains(out, "FULL AGAIN bob service s hour 5 5 0 ") || !strings.Contains(out, " alice service s hour 2 7 5 ") {
			t.Errorf("%v: %s", from, out)
		}
	}
	if out := ctl("grant", "bob", "--units", "2", "--admin", k.AdminURL()); out != "bob, service s, hour: 2 of 5 remain, before it were 0" {
		t.Error(out)
	}
	// The node remembers that bob was refused; it hears that he has some again.
	eventually(t, "bob passes again", func() bool { return k.get("/key", "bob").status == 200 })
	k.expect("/key", "bob", "200 0, 429 0")
	ctl("reset", "bob", "--file", file)
	eventually(t, "bob has all of it", func() bool { return k.get("/key", "bob").status == 200 })
	k.expect("/key", "bob", "200 3")
}
