package devkong

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process keeps a plugin server running as Kong's worker does: its output goes to
// the log, it is started again when it ends, at most once a second, and it gets
// none of the environment, because nginx has stripped it.
type process struct {
	command []string
	log     *slog.Logger
	cancel  context.CancelFunc
	done    chan struct{}

	mu  sync.Mutex
	cmd *exec.Cmd
}

func startProcess(ctx context.Context, command []string, log *slog.Logger) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{command: command, log: log, cancel: cancel, done: make(chan struct{})}
	go p.supervise(ctx)
	return p
}

func (p *process) supervise(ctx context.Context) {
	defer close(p.done)
	for ctx.Err() == nil {
		next := time.After(time.Second)
		if err := p.run(ctx); err != nil {
			p.log.Error("plugin server", "command", p.command[0], "error", err)
			var missing *exec.Error
			if errors.As(err, &missing) {
				return // Kong does not try again what is not there
			}
		}
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

func (p *process) run(ctx context.Context) error {
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		return err
	}
	p.log.Info("plugin server started", "pid", cmd.Process.Pid)
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()

	go func() {
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			p.log.Info(lines.Text(), "from", "plugin server", "pid", cmd.Process.Pid)
		}
		_, _ = io.Copy(io.Discard, output)
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); _ = writer.Close() }()
	select {
	case err := <-ended:
		p.log.Info("plugin server ended", "pid", cmd.Process.Pid, "status", fmt.Sprint(err))
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	return nil
}

// pid is that of the running server, 0 if there is none.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) stop() {
	p.cancel()
	<-p.done
}

// await waits until the socket takes connections.
func await(ctx context.Context, socket string) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the plugin server does not listen: %w", err)
		case <-ticker.C:
		}
	}
}
