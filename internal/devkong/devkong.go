// Package devkong is Kong's side of the protocol between Kong and Go plugins,
// for development, tests and the demo. It is no gateway: it reads a declarative
// kong.yml, runs one plugin server as Kong does, calls it in the access phase
// and proxies over HTTP; what Kong does beyond that it does not do. What it says
// to a plugin, and what it makes of the answers, is held to recordings of Kong
// 3.9.3.
package devkong

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what to serve and with which plugin.
type Options struct {
	// Config is the declarative configuration, YAML or JSON.
	Config []byte
	// Plugin is the path of the plugin's executable, from which the two commands
	// follow unless they are given.
	Plugin string
	// QueryCommand prints the dump; default: Plugin -dump -kong-prefix Prefix.
	QueryCommand []string
	// StartCommand runs the plugin server; default: Plugin -kong-prefix Prefix.
	StartCommand []string
	// External says that somebody else runs the plugin server.
	External bool
	// Socket is the plugin server's; default: what the dump says.
	Socket string
	// Prefix is Kong's prefix, an existing folder where the socket is.
	Prefix string
	// ProxyAddress and AdminAddress are host:port; default: free ports of
	// 127.0.0.1.
	ProxyAddress, AdminAddress string
	// Resolve maps host:port of upstreams to the addresses to connect to.
	Resolve map[string]string
	// TrustedIPs may say in RealIPHeader (default X-Real-IP) who the client is.
	TrustedIPs   []netip.Prefix
	RealIPHeader string
	Log          *slog.Logger
	// OnEvent, if not nil, is told about every event before its request goes on.
	OnEvent func(Event)
}

// Event is one access phase of the plugin.
type Event struct {
	Plugin string   // id of the plugin entity
	Calls  []string // the PDK calls, in order
	Err    error    // nil, or why there was no return; an exit is one
}

// Gateway is a running devkong.
type Gateway struct {
	options Options
	log     *slog.Logger
	schemas schemas
	server  *pluginServer
	process *process // nil if External
	proxy   *httputil.ReverseProxy

	state   atomic.Pointer[state]
	changes sync.Mutex

	proxyListener, adminListener net.Listener
	proxyServer, adminServer     *http.Server
}

// Start loads the configuration, starts the plugin server and listens. The
// context bounds the start alone.
func Start(ctx context.Context, o Options) (*Gateway, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{options: o, log: o.Log}
	d, err := g.query(ctx)
	if err != nil {
		return nil, err
	}
	if g.schemas, err = newSchemas(d); err != nil {
		return nil, fmt.Errorf("plugin %s: %w", d.name, err)
	}
	first, err := load(o.Config, g.schemas)
	if err != nil {
		return nil, err
	}
	g.state.Store(first)
	if o.Socket != "" {
		d.socket = o.Socket
	}
	g.server = &pluginServer{name: d.name, socket: d.socket, schemas: g.schemas, log: g.log, instances: map[string]*instance{}}
	g.proxy = g.newProxy()
	if err := g.listen(); err != nil {
		return nil, err
	}
	if !o.External {
		g.process = startProcess(context.Background(), g.startCommand(), g.log)
	}
	if err := await(ctx, d.socket); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Gateway) query(ctx context.Context) (*dump, error) {
	command := g.options.QueryCommand
	if command == nil {
		command = []string{g.options.Plugin, "-dump", "-kong-prefix", g.options.Prefix}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("query command %q: %w", command, err)
	}
	d, err := readDump(bytes.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("query command %q: %w", command, err)
	}
	return d, nil
}

func (g *Gateway) startCommand() []string {
	if g.options.StartCommand != nil {
		return g.options.StartCommand
	}
	path, err := filepath.Abs(g.options.Plugin)
	if err != nil {
		path = g.options.Plugin
	}
	return []string{path, "-kong-prefix", g.options.Prefix}
}

func (g *Gateway) listen() (err error) {
	address := func(a string) string {
		if a == "" {
			return "127.0.0.1:0"
		}
		return a
	}
	if g.proxyListener, err = net.Listen("tcp", address(g.options.ProxyAddress)); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	if g.adminListener, err = net.Listen("tcp", address(g.options.AdminAddress)); err != nil {
		_ = g.proxyListener.Close()
		return fmt.Errorf("admin API: %w", err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // for gRPC
	g.proxyServer = &http.Server{Handler: g, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second}
	g.adminServer = &http.Server{Handler: g.admin(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = g.proxyServer.Serve(g.proxyListener) }()
	go func() { _ = g.adminServer.Serve(g.adminListener) }()
	return nil
}

// ProxyURL is where clients go, e.g. http://127.0.0.1:8000.
func (g *Gateway) ProxyURL() string { return "http://" + g.proxyListener.Addr().String() }

// AdminURL is where the Admin API is.
func (g *Gateway) AdminURL() string { return "http://" + g.adminListener.Addr().String() }

// PluginPID is the process id of the plugin server, 0 if devkong does not run it.
func (g *Gateway) PluginPID() int {
	if g.process == nil {
		return 0
	}
	return g.process.pid()
}

// Close stops listening, lets requests finish, and ends the plugin server with SIGTERM.
func (g *Gateway) Close() error {
	// A connection that nothing was sent on counts as busy for five seconds.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := errors.Join(g.proxyServer.Shutdown(ctx), g.adminServer.Shutdown(ctx))
	if g.process != nil {
		g.process.stop()
	}
	g.server.reset()
	return err
}

// keepVersions leaves a plugin that a reload did not change at its version, so
// that its instance goes on.
func (s *state) keepVersions(before *state) {
	for id, p := range s.plugins {
		if old := before.plugins[id]; old != nil && reflect.DeepEqual(old.Config, p.Config) {
			p.seq = old.seq
		}
	}
}
