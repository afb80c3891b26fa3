// Command quota is the plugin server of kong-quota. Kong starts it; the name of
// the executable is the name of the plugin.
package main

//go:generate go run ./docs/generate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
	_ "time/tzdata" // images need not have the timezones

	"github.com/Kong/go-pdk/server"
	"github.com/redis/go-redis/v9"

	"kong-quota/internal/settings"
	"kong-quota/plugin"
)

func main() { os.Exit(run(os.Stdout, os.Stderr)) }

// run reads the command line (go-pdk registers -dump, -kong-prefix and -help,
// which Kong uses) and gives the exit status.
func run(stdout, stderr io.Writer) int {
	envFile := flag.String("env-file", "", "file with QUOTA_ variables; Kong does not pass its environment on to plugin servers")
	version := flag.Bool("version", false, "print the version")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(stderr, "quota: argument %q is not expected; see -help\n", flag.Arg(0))
		return 2
	}
	if *version {
		fmt.Fprintln(stdout, plugin.Version)
		return 0
	}
	if isSet("help") {
		flag.CommandLine.SetOutput(stdout)
		fmt.Fprintf(stdout, "quota %s, the plugin server of kong-quota. Kong starts it.\n", plugin.Version)
		flag.Usage()
		return 0
	}
	if isSet("dump") {
		if err := dump(stdout); err != nil {
			fmt.Fprintf(stderr, "quota: %v\n", err)
			return 1
		}
		return 0
	}
	if err := serve(*envFile, stderr); err != nil {
		fmt.Fprintf(stderr, "quota: %v\n", err)
		return 1
	}
	return 0
}

func isSet(name string) bool { return flag.Lookup(name).Value.String() == "true" }

// dump tells Kong what the plugin is. It needs no settings: Kong runs it where
// there may be none.
func dump(stdout io.Writer) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the plugin's name: %w", err)
	}
	text, err := plugin.Dump(filepath.Base(executable), flag.Lookup("kong-prefix").Value.String())
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	_, err = stdout.Write(append(text, '\n'))
	return err
}

// drainTime is how long a stop waits for the requests in their access phase. It
// is above what one takes (the plugin's timeout) and below what Kubernetes
// waits before it kills.
const drainTime = 5 * time.Second

// lastWrite is time for go-pdk to send what the last handlers have answered.
const lastWrite = 50 * time.Millisecond

func serve(envFile string, stderr io.Writer) error {
	s, strange, err := settings.Load(envFile)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: s.Level()}))
	for _, name := range strange {
		logger.Warn("environment variable is no setting", "name", name)
	}
	// go-pdk's server logs each closed connection, of which every refused
	// request makes one.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(logger.Handler(), slog.LevelDebug).Writer())

	redis.SetLogger(redisLog{logger})

	p, err := plugin.New(s, logger)
	if err != nil {
		return err
	}
	if s.ListenAddress != "" {
		go listen(s.ListenAddress, p.Handler(), logger)
	}
	logger.Info("starting", "plugin", plugin.Name, "version", plugin.Version, "prefix", flag.Lookup("kong-prefix").Value.String())
	served := make(chan error, 1)
	go func() { served <- server.StartServer(p.NewInstance, plugin.Version, plugin.Priority) }()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-served:
		return err
	case caught := <-stop:
		logger.Info("stopping", "signal", caught.String())
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		p.Drain(ctx)
		time.Sleep(lastWrite)
		// The socket's path stays: after a reload of Kong it is the next
		// server's, and every server removes a stale one before it listens.
		return nil
	}
}

// redisLog takes what go-redis says of its connections; that a server is lost or
// back the plugin says itself, once.
type redisLog struct{ *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...))
}

// listen serves metrics and health. Their port may be taken for a while: a
// reload of Kong starts the next server before it stops this one.
func listen(address string, handler http.Handler, logger *slog.Logger) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	for warned := false; ; time.Sleep(time.Second) {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			logger.Info("metrics and health", "address", listener.Addr().String())
			err = server.Serve(listener)
			if errors.Is(err, http.ErrServerClosed) {
				return
			}
		}
		if !warned {
			logger.Warn("metrics and health are not served yet", "address", address, "error", err)
			warned = true
		}
	}
}
