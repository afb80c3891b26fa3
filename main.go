// Command quota is the plugin server of kong-quota. Kong starts it; the name of
// the executable is the name of the plugin.
package main

//go:generate go run ./docs/generate
//go:generate go run ./charts/generate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
	_ "time/tzdata" // images need not have the timezones

	"github.com/redis/go-redis/v9"

	"kong-quota/internal/pluginserver"
	"kong-quota/internal/settings"
	"kong-quota/plugin"
)

func main() { os.Exit(run(os.Stdout, os.Stderr)) }

// The flags that Kong uses are -dump and -kong-prefix.
var (
	dumpFlag = flag.Bool("dump", false, "print what Kong asks of a plugin: name, phases, version, priority and schema")
	helpFlag = flag.Bool("help", false, "print this text")
	prefix   = flag.String("kong-prefix", "/usr/local/kong", "Kong's prefix, the folder for the socket")
)

// run reads the command line and gives the exit status.
func run(stdout, stderr io.Writer) int {
	envFile := flag.String("env-file", "", "file with QUOTA_ variables; Kong does not pass its environment on to plugin servers")
	version := flag.Bool("version", false, "print the version")
	installTo := flag.String("install", "", "copy the executable as quota, and its dump as dump.json, into this folder, and make the folder of -kong-prefix; for init containers")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(stderr, "quota: argument %q is not expected; see -help\n", flag.Arg(0))
		return 2
	}
	if *version {
		fmt.Fprintln(stdout, plugin.Version)
		return 0
	}
	if *helpFlag {
		flag.CommandLine.SetOutput(stdout)
		fmt.Fprintf(stdout, "quota %s, the plugin server of kong-quota. Kong starts it.\n", plugin.Version)
		flag.Usage()
		return 0
	}
	if *installTo != "" {
		if err := install(*installTo, *prefix); err != nil {
			fmt.Fprintf(stderr, "quota: %v\n", err)
			return 1
		}
		return 0
	}
	if *dumpFlag {
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

// dump tells Kong what the plugin is. It needs no settings: Kong runs it where
// there may be none.
func dump(stdout io.Writer) error {
	name, err := ownName()
	if err != nil {
		return err
	}
	text, err := plugin.Dump(name, *prefix)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	_, err = stdout.Write(append(text, '\n'))
	return err
}

// slack is how much longer than its requests may take a stop waits for them, for what
// Kong takes to answer; and how long it may take to give back what was leased.
const slack = 2 * time.Second

func serve(envFile string, stderr io.Writer) error {
	s, strange, err := settings.Load(envFile)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: s.Level()}))
	for _, name := range strange {
		logger.Warn("environment variable is no setting", "name", name)
	}
	redis.SetLogger(redisLog{logger})

	p, err := plugin.New(s, logger)
	if err != nil {
		return err
	}
	if s.ListenAddress != "" {
		go listen(s.ListenAddress, p.Handler(), logger)
	}
	logger.Info("starting", "plugin", plugin.Name, "version", plugin.Version, "prefix", *prefix)
	name, err := ownName()
	if err != nil {
		return err
	}
	listener, err := pluginserver.Listen(plugin.Socket(name, *prefix))
	if err != nil {
		return err
	}
	server := pluginserver.New(func(config []byte) (pluginserver.Instance, error) { return p.Start(config) }, logger)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-served:
		return err
	case caught := <-stop:
		logger.Info("stopping", "signal", caught.String())
		_ = listener.Close()
		patience := p.Patience() + slack
		if err := within(patience, server.Stop); err != nil {
			logger.Warn("stopped before all requests were answered", "after", patience.String())
		}
		return within(slack, func(ctx context.Context) error { p.Stop(ctx); return nil })
	}
}

// within gives a function so much time.
func within(limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return do(ctx)
}

// ownName is the name by which Kong knows the plugin: that of the executable.
func ownName() (string, error) {
	executable, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the plugin's name: %w", err)
	}
	return filepath.Base(executable), nil
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
