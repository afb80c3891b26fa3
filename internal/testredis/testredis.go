// Package testredis runs real redis-servers for tests, each on its own free
// port, and lets them fail in the ways that servers fail.
package testredis

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server with nothing in it and no persistence.
type Server struct {
	Port int
	t    testing.TB
	file string // configuration to start with; "" for none
	args []string
	cmd  *exec.Cmd
	log  *os.File
}

// Start runs a server until the test ends. Further arguments are redis-server's
// own, e.g. "--requirepass", "secret". A machine without redis-server fails the
// test: `make test` installs it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{Port: FreePort(t), t: t, args: args}
	s.Restart()
	t.Cleanup(s.Stop)
	return s
}

// Address is the server's host and port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// Client is a client of the server's database 0, closed when the test ends.
func (s *Server) Client() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.Address(), ContextTimeoutEnabled: true})
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Restart starts the server again on its port, empty.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	dir := s.t.TempDir()
	log, err := os.Create(dir + "/redis.log")
	if err != nil {
		s.t.Fatal(err)
	}
	s.log = log
	args := []string{"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", dir}
	if s.file != "" {
		args = append([]string{s.file}, args...)
	} else {
		args = append(args, "--save", "", "--appendonly", "no")
	}
	s.cmd = exec.Command("redis-server", append(args, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("redis-server (Debian's package redis-server; `make test` installs it): %v", err)
	}
	s.await()
}

// Stop kills the server; connections to it are refused from then on.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = s.log.Close()
	s.cmd = nil
}

// Freeze makes the server hang: it takes connections and answers nothing.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) await() {
	s.t.Helper()
	until(s.t, fmt.Sprintf("redis-server on port %d answers", s.Port), func() error {
		if s.answers() {
			return nil
		}
		text, err := os.ReadFile(s.log.Name())
		return errors.Join(fmt.Errorf("it does not; its log: %s", text), err)
	})
}

// answers reports whether the server speaks: PONG, or an error where it wants a
// password first.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("tcp", s.Address(), time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	var first [1]byte
	_, err = conn.Read(first[:])
	return err == nil && (first[0] == '+' || first[0] == '-')
}

// FreePort is a TCP port of this machine that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(fmt.Errorf("free port: %w", err))
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}
