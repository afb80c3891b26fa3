// Package gateway measures requests a second through a gateway: through devkong
// and, where a Kong is given, through that: one that runs at KONG_PROXY with kong.yml,
// or the command kong (or KONG_BIN), which is then started.
package gateway

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"kong-quota/bench/load"
	"kong-quota/bench/report"
	"kong-quota/bench/server"
	"kong-quota/internal/devkong"
	"kong-quota/internal/realkong"
)

//go:embed kong.yml
var config string

// ours is the part of it that devkong can run: not Kong's own plugin.
func ours() string { return config[:strings.Index(config, "# Kong's own plugin")] }

// baseline is a plugin that does nothing but calls, on our plugin server.
const baseline = `
_format_version: "3.0"
services:
- name: upstream
  url: http://upstream:8080
  routes:
  - { name: no-call, paths: [/no-call], plugins: [ { name: key-auth }, { name: plugin, config: { calls: 0 } } ] }
  - { name: one-call, paths: [/one-call], plugins: [ { name: key-auth }, { name: plugin, config: { calls: 1 } } ] }
consumers:
- { username: bench, keyauth_credentials: [ { key: bench } ] }
`

const (
	connections = 32
	duration    = 3 * time.Second
)

type subject struct {
	name, url string
	limited   bool // it must say how much remains
}

type outcome struct{ rate, p99 []float64 }

// Run measures every case in every round.
func Run(rounds int, progress func(string)) ([]report.Section, error) {
	var sections []report.Section
	if proxy := os.Getenv("KONG_PROXY"); proxy != "" {
		s, err := throughKong(rounds, progress, proxy)
		if err != nil {
			return nil, err
		}
		sections = append(sections, s)
	}
	client, stop, err := server.Start()
	if err != nil {
		return nil, err
	}
	defer stop()
	folder, err := os.MkdirTemp("", "gateway")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	for name, place := range map[string][2]string{"quota": {"..", "."}, "plugin": {".", "./transport/server"}} {
		if out, err := exec.Command("go", "build", "-C", place[0], "-o", filepath.Join(folder, name), place[1]).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w\n%s", name, err, out)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	upstream := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), ReadHeaderTimeout: time.Minute}
	go func() { _ = upstream.Serve(listener) }()
	defer func() { _ = upstream.Close() }()

	env := filepath.Join(folder, "quota.env")
	if err := os.WriteFile(env, []byte("QUOTA_REDIS_ADDRESS="+client.Options().Addr+"\n"), 0o600); err != nil {
		return nil, err
	}
	start := func(name, config string, command ...string) (*devkong.Gateway, error) {
		return devkong.Start(context.Background(), devkong.Options{
			Config: []byte(config), Plugin: filepath.Join(folder, name), Prefix: folder, StartCommand: command,
			Resolve: map[string]string{"upstream:8080": listener.Addr().String()}, Log: slog.New(slog.DiscardHandler),
		})
	}
	quota, err := start("quota", ours(), filepath.Join(folder, "quota"), "-kong-prefix", folder, "-env-file", env)
	if err != nil {
		return nil, err
	}
	defer func() { _ = quota.Close() }()
	base, err := start("plugin", baseline, filepath.Join(folder, "plugin"), "-socket", filepath.Join(folder, "plugin.socket"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	if command := kongCommand(); command != "" && len(sections) == 0 {
		progress("starting " + command)
		proxy, stop, err := startKong(command, folder, listener.Addr().String(), client.Options().Addr, env)
		if err != nil {
			return nil, err
		}
		s, err := throughKong(rounds, progress, proxy)
		stop()
		if err != nil {
			return nil, err
		}
		sections = append(sections, s)
	}
	s, err := run(rounds, progress, "devkong", []subject{
		{"no plugin", quota.ProxyURL() + "/none", false},
		{"a plugin of no call", base.ProxyURL() + "/no-call", false}, {"a plugin of one call", base.ProxyURL() + "/one-call", false},
		{"kong-quota, three limits", quota.ProxyURL() + "/headers", true}, {"kong-quota, three limits, no headers", quota.ProxyURL() + "/silent", false},
	})
	return append(sections, s), err
}

func throughKong(rounds int, progress func(string), proxy string) (report.Section, error) {
	return run(rounds, progress, "Kong", []subject{
		{"no plugin", proxy + "/none", false}, {"kong-quota, three limits", proxy + "/headers", true}, {"kong-quota, three limits, no headers", proxy + "/silent", false},
		{"bundled rate-limiting, exact", proxy + "/exact", true}, {"bundled rate-limiting, approximate", proxy + "/approximate", true},
	})
}

// kongCommand is the Kong to start, "" if there is none.
func kongCommand() string {
	if command := os.Getenv("KONG_BIN"); command != "" {
		return command
	}
	command, err := exec.LookPath("kong")
	if err != nil {
		return ""
	}
	return command
}

// startKong starts a Kong with kong.yml, whose addresses are replaced by those of
// this machine.
func startKong(command, folder, upstream, redis, env string) (proxy string, stop func(), err error) {
	host, port, err := net.SplitHostPort(redis)
	if err != nil {
		return "", nil, err
	}
	text := strings.NewReplacer("upstream:8080", upstream, "redis: { host: redis }", fmt.Sprintf("redis: { host: %s, port: %s }", host, port)).Replace(config)
	return realkong.Start(realkong.Options{Command: command, Config: text, Plugin: filepath.Join(folder, "quota"), EnvFile: env, Log: os.Stderr})
}

func run(rounds int, progress func(string), through string, subjects []subject) (report.Section, error) {
	results := map[string]*outcome{}
	for round := range rounds {
		for _, s := range subjects {
			progress(fmt.Sprintf("round %d of %d, %s", round+1, rounds, s.name))
			if results[s.name] == nil {
				results[s.name] = &outcome{}
			}
			if err := measure(s, results[s.name]); err != nil {
				return report.Section{}, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	s := report.Section{
		Title: "Requests a second through " + through,
		Text:  fmt.Sprintf("%d connections; every answer must be 200, and say how much remains where it should.\nThe consumer is known by key-auth, and the plugin is configured on consumer and route, with\nthree exact limits in Redis. devkong is no Kong: only ratios between its own cases mean something.\nWhere a real Kong is given (KONG_PROXY, KONG_BIN or a command kong), it is measured too.", connections),
		Table: report.Table{Head: []string{"case", "requests/s", "of no plugin", "p99 ms"}},
		Plot:  &report.Plot{File: "gateway-" + strings.ToLower(through), Unit: "requests a second"},
	}
	rate := func(name string) float64 {
		if o := results[name]; o != nil {
			return report.Median(o.rate)
		}
		return 0
	}
	for _, c := range subjects {
		s.Table.Add(c.name, rate(c.name), rate(c.name)/rate("no plugin"), report.Median(results[c.name].p99))
		s.Plot.Names, s.Plot.Bars = append(s.Plot.Names, c.name), append(s.Plot.Bars, rate(c.name))
	}
	with, without := rate("kong-quota, three limits"), rate("kong-quota, three limits, no headers")
	if exact := rate("bundled rate-limiting, exact"); exact > 0 {
		s.Targets = append(s.Targets, report.Target{What: "with headers, of bundled exact", Aim: 2, Measured: with / exact},
			report.Target{What: "without headers, of bundled approximate", Aim: 1, Measured: without / rate("bundled rate-limiting, approximate")})
	} else {
		s.Targets = append(s.Targets, report.Target{What: "with headers, of a plugin of one call", Aim: 0.8, Measured: with / rate("a plugin of one call")},
			report.Target{What: "without headers, of a plugin of no call", Aim: 0.8, Measured: without / rate("a plugin of no call")})
	}
	return s, nil
}

func measure(s subject, out *outcome) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	get := func() error {
		request, err := http.NewRequest(http.MethodGet, s.url, nil)
		if err != nil {
			return err
		}
		request.Header.Set("apikey", "bench")
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if remaining := answer.Header.Get("RateLimit-Remaining"); err == nil && (answer.StatusCode != http.StatusOK || (remaining != "") != s.limited) {
			err = fmt.Errorf("status %d, RateLimit-Remaining %q", answer.StatusCode, remaining)
		}
		return err
	}
	if err := get(); err != nil {
		return err
	}
	result, err := load.Run(connections, duration, func(int) error { return get() })
	if err != nil {
		return err
	}
	out.rate, out.p99 = append(out.rate, result.Rate), append(out.p99, result.P99)
	return nil
}
