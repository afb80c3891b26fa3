// Command devkong serves a declarative kong.yml with one Go plugin, as Kong would
// as far as the plugin can tell. It is for development and tests; it is no
// gateway.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"kong-quota/internal/devkong"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("devkong", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "devkong: Kong's side of the Go plugin protocol, for development and tests. It is no gateway.")
		flags.PrintDefaults()
	}
	var o devkong.Options
	var level slog.Level
	config := flags.String("config", "kong.yml", "declarative configuration")
	flags.StringVar(&o.Plugin, "plugin", "bin/quota", "the plugin's executable")
	query := flags.String("query-cmd", "", "command that prints the dump (default: the plugin with -dump)")
	start := flags.String("start-cmd", "", "command that runs the plugin server (default: the plugin)")
	flags.StringVar(&o.Socket, "socket", "", "connect to a plugin server that somebody else runs on this socket")
	flags.StringVar(&o.Prefix, "prefix", "", "folder for the plugin's socket (default: a new one)")
	flags.StringVar(&o.ProxyAddress, "proxy", "127.0.0.1:8000", "address of the proxy")
	flags.StringVar(&o.AdminAddress, "admin", "127.0.0.1:8001", "address of the Admin API")
	flags.StringVar(&o.RealIPHeader, "real-ip-header", "X-Real-IP", "header with the client's address from trusted proxies")
	flags.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flags.Func("resolve", "host:port=address: where to find an upstream (repeatable)", func(text string) error {
		from, to, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("must be host:port=address")
		}
		if o.Resolve == nil {
			o.Resolve = map[string]string{}
		}
		o.Resolve[from] = to
		return nil
	})
	flags.Func("trusted-ip", "network of proxies to trust, e.g. 10.0.0.0/8 (repeatable)", func(text string) error {
		network, err := netip.ParsePrefix(text)
		o.TrustedIPs = append(o.TrustedIPs, network)
		return err
	})
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	o.QueryCommand, o.StartCommand = words(*query), words(*start)
	o.External = o.Socket != ""
	o.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if err := serve(o, *config, stdout); err != nil {
		fmt.Fprintf(stderr, "devkong: %v\n", err)
		return 1
	}
	return 0
}

// words splits a command; nil for none.
func words(command string) []string {
	if command == "" {
		return nil
	}
	return strings.Fields(command)
}

func serve(o devkong.Options, config string, stdout io.Writer) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	o.Config = text
	if o.Prefix == "" {
		if o.Prefix, err = os.MkdirTemp("", "devkong-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(o.Prefix) }()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := devkong.Start(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "proxy      %s\nadmin API  %s\n", g.ProxyURL(), g.AdminURL())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	return g.Close()
}
