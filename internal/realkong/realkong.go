// Package realkong starts a real Kong with the plugin, for the tests and benchmarks
// that are given one: DB-less, one worker, the plugin server as its child.
package realkong

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Options say what to start.
type Options struct {
	Command string // of Kong
	Config  string // declarative configuration, as text
	Plugin  string // path of the plugin's executable
	EnvFile string // of the plugin server
	Log     io.Writer
}

// patience is for Kong to answer.
const patience = time.Minute

// Start gives the URL of the proxy when Kong answers there.
func Start(o Options) (proxy string, stop func(), err error) {
	prefix, err := os.MkdirTemp("", "kong") // short: the path of a socket has 107 bytes
	if err != nil {
		return "", nil, err
	}
	remove := func() { _ = os.RemoveAll(prefix) }
	config := filepath.Join(prefix, "config.yml")
	if err := os.WriteFile(config, []byte(o.Config), 0o644); err != nil {
		remove()
		return "", nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		remove()
		return "", nil, err
	}
	address := free.Addr().String()
	_ = free.Close()
	cmd := exec.Command(o.Command, "start", "-p", prefix)
	cmd.Env = append(os.Environ(),
		"KONG_DATABASE=off", "KONG_DECLARATIVE_CONFIG="+config, "KONG_PROXY_LISTEN="+address, "KONG_ADMIN_LISTEN=off",
		"KONG_NGINX_DAEMON=off", "KONG_NGINX_WORKER_PROCESSES=1", "KONG_PROXY_ACCESS_LOG=off",
		"KONG_PLUGINS=bundled,quota", "KONG_PLUGINSERVER_NAMES=quota", "KONG_PLUGINSERVER_QUOTA_SOCKET="+filepath.Join(prefix, "quota.socket"),
		fmt.Sprintf("KONG_PLUGINSERVER_QUOTA_QUERY_CMD=%s -kong-prefix %s -dump", o.Plugin, prefix),
		fmt.Sprintf("KONG_PLUGINSERVER_QUOTA_START_CMD=%s -kong-prefix %s -env-file %s", o.Plugin, prefix, o.EnvFile))
	cmd.Stdout, cmd.Stderr = o.Log, o.Log
	if err := cmd.Start(); err != nil {
		remove()
		return "", nil, err
	}
	stop = func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait(); remove() }
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		// A route that does not exist is answered by Kong alone.
		if answer, err := http.Get("http://" + address + "/nowhere"); err == nil {
			_ = answer.Body.Close()
			return "http://" + address, stop, nil
		}
	}
	stop()
	return "", nil, fmt.Errorf("%s does not answer at %s", o.Command, address)
}
