package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kong-quota/internal/testredis"
)

// An init container installs the plugin, and Kong, which may be another user, starts it
// and makes its socket, as in the pods of Kong's own charts.
func TestInstalledByAnotherUser(t *testing.T) {
	folder, err := os.MkdirTemp("", "installed") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o777); err != nil { // as an emptyDir is
		t.Fatal(err)
	}
	image := filepath.Join(folder, "image", "quota") // users may not look into the tests' folders
	if err := os.Mkdir(filepath.Dir(image), 0o755); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(pluginBinary)
	if err == nil {
		err = os.WriteFile(image, binary, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(folder, "volume")
	if err := os.Mkdir(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	// as runs a command as a user, where the test may do that.
	as := func(user uint32, command ...string) *exec.Cmd {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = []string{"QUOTA_REDIS_ADDRESS=" + testredis.Start(t).Address()}
		cmd.Dir = folder
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}
		}
		return cmd
	}
	prefix := filepath.Join(volume, "run")
	defer syscall.Umask(syscall.Umask(0o077)) // the strictest that a container may have
	if out, err := as(65532, image, "-install", volume, "-kong-prefix", prefix).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if at, err := os.Stat(prefix); err != nil || at.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("the socket's folder: %v, %v", at.Mode(), err)
	}
	dump, err := as(1000, filepath.Join(volume, "quota"), "-kong-prefix", prefix, "-dump").Output()
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := as(1000, "/bin/cat", filepath.Join(volume, "dump.json")).Output(); err != nil || !bytes.Equal(kept, dump) {
		t.Errorf("the dump's file has %s, %v", kept, err)
	}
	server := as(1000, filepath.Join(volume, "quota"), "-kong-prefix", prefix)
	log := &buffer{}
	server.Stderr = log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	eventually(t, "the server takes connections", func() bool {
		if strings.Contains(log.String(), "permission denied") {
			t.Fatal(log)
		}
		c, err := net.Dial("unix", filepath.Join(prefix, "quota.socket"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}
