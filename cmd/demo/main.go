// Command demo shows kong-quota at work on one machine: Redis, an upstream that
// echoes, devkong with the repository's kong.yml and the plugin. It sends
// requests until quotas are hit and prints the answers, or serves until it is
// stopped.
package main

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
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/internal/devkong"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	serve := flags.Bool("serve", false, "serve until Ctrl-C instead of sending requests")
	config := flags.String("config", "kong.yml", "declarative configuration")
	proxy := flags.String("proxy", "127.0.0.1:0", "address of the proxy; port 0 takes a free one")
	admin := flags.String("admin", "127.0.0.1:0", "address of the Admin API")
	address := flags.String("redis", "", "address of a Redis that runs (default: start a redis-server)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	d := &demo{out: stdout, stderr: stderr, config: *config, proxy: *proxy, admin: *admin, redis: *address}
	defer d.stop()
	if err := d.start(); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 1
	}
	if *serve {
		d.invite()
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
		<-stop
		return 0
	}
	if err := d.tour(); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 1
	}
	return 0
}

type demo struct {
	out, stderr                 io.Writer
	config, proxy, admin, redis string

	gateway *devkong.Gateway
	stops   []func()
}

func (d *demo) stop() {
	for i := len(d.stops) - 1; i >= 0; i-- {
		d.stops[i]()
	}
}

func (d *demo) start() error {
	folder, err := os.MkdirTemp("", "kong-quota-demo-")
	if err != nil {
		return err
	}
	d.stops = append(d.stops, func() { _ = os.RemoveAll(folder) })
	settings, err := d.store(folder)
	if err != nil {
		return err
	}
	// Kong gives a plugin server none of its environment, so settings come in a file.
	envFile := filepath.Join(folder, "quota.env")
	if err := os.WriteFile(envFile, []byte(settings), 0o600); err != nil {
		return err
	}
	upstream, err := d.echo()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(d.config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	plugin := filepath.Join(filepath.Dir(self), "quota")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d.gateway, err = devkong.Start(ctx, devkong.Options{
		Config: text, Plugin: plugin, Prefix: folder,
		StartCommand: []string{plugin, "-kong-prefix", folder, "-env-file", envFile},
		ProxyAddress: d.proxy, AdminAddress: d.admin, Resolve: map[string]string{"echo:8080": upstream},
		Log: slog.New(slog.NewTextHandler(d.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	d.stops = append(d.stops, func() { _ = d.gateway.Close() })
	fmt.Fprintf(d.out, "upstream  an echo on %s\nproxy     %s (devkong, standing in for Kong)\nadmin     %s\n\n", upstream, d.gateway.ProxyURL(), d.gateway.AdminURL())
	return nil
}

// store starts a redis-server if there is one, and gives the plugin's settings.
func (d *demo) store(folder string) (string, error) {
	if d.redis == "" {
		program, err := exec.LookPath("redis-server")
		if err != nil {
			fmt.Fprintln(d.out, "store     in memory: there is no redis-server on PATH")
			return "QUOTA_STORE=memory\n", nil
		}
		if d.redis, err = d.startRedis(program, folder); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(d.out, "store     Redis on %s\n", d.redis)
	return "QUOTA_REDIS_ADDRESS=" + d.redis + "\n", nil
}

func (d *demo) startRedis(program, folder string) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()
	cmd := exec.Command(program, "--port", strconv.Itoa(address.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("redis-server: %w", err)
	}
	d.stops = append(d.stops, func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	client := redis.NewClient(&redis.Options{Addr: address.String()})
	defer func() { _ = client.Close() }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = client.Ping(context.Background()).Err(); err == nil {
			return address.String(), nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("redis-server: %w", err)
		}
	}
}

// echo serves an upstream that answers what it was asked.
func (d *demo) echo() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s\n", r.Method, r.URL.Path)
		for _, name := range []string{"X-Consumer-Username", "X-Quota-State", "X-Quota-Limit", "X-Quota-Remaining", "X-Quota-Reset"} {
			if value := r.Header.Get(name); value != "" {
				fmt.Fprintf(w, "%s: %s\n", name, value)
			}
		}
	})}
	go func() { _ = server.Serve(listener) }()
	d.stops = append(d.stops, func() { _ = server.Close() })
	return listener.Addr().String(), nil
}

func (d *demo) invite() {
	url := d.gateway.ProxyURL()
	fmt.Fprintf(d.out, `Try:
  curl -i %s/api -H 'apikey: alice-key'    # her own quota: 8 a minute
  curl -i %s/api -H 'apikey: bob-key'      # everybody's: 5 a minute
  curl -i %s/open                          # nobody: 5 a minute by IP address
`, url, url, url)
	if d.redis != "" {
		fmt.Fprintf(d.out, "and see who has used what:\n  QUOTA_REDIS_ADDRESS=%s bin/quotactl usage --admin %s\n", d.redis, d.gateway.AdminURL())
	}
	fmt.Fprintln(d.out, "Stop with Ctrl-C.")
}

// visit is one caller of the tour.
type visit struct{ who, path, key string }

// tour sends every caller's requests until one is refused, and prints what came.
func (d *demo) tour() error {
	table := tabwriter.NewWriter(d.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "caller\trequest\tstatus\tlimit\tremaining\treset s\tRateLimit\tRetry-After")
	for _, v := range []visit{
		{"alice", "/api", "alice-key"}, {"bob", "/api", "bob-key"}, {"anonymous", "/open", ""}, {"bob, SMS", "/sms", "bob-key"},
	} {
		if err := d.visit(table, v); err != nil {
			return err
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return d.counters()
}

func (d *demo) visit(table io.Writer, v visit) error {
	const most = 100
	for n := 1; n <= most; n++ {
		request, err := http.NewRequest(http.MethodGet, d.gateway.ProxyURL()+v.path, nil)
		if err != nil {
			return err
		}
		if v.key != "" {
			request.Header.Set("apikey", v.key)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return err
		}
		h := response.Header
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", v.who, n, response.StatusCode,
			h.Get("RateLimit-Limit"), h.Get("RateLimit-Remaining"), h.Get("RateLimit-Reset"), h.Get("RateLimit"), h.Get("Retry-After"))
		switch response.StatusCode {
		case http.StatusOK:
		case http.StatusTooManyRequests:
			return nil
		default:
			return fmt.Errorf("%s: status %d: %s", v.who, response.StatusCode, body)
		}
	}
	return fmt.Errorf("%s: no quota was hit in %d requests", v.who, most)
}

// counters shows what Redis holds now.
func (d *demo) counters() error {
	if d.redis == "" {
		fmt.Fprintln(d.out, "\nThe counters are in the plugin server's memory.")
		return nil
	}
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: d.redis})
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(ctx, "quota:*").Result()
	if err != nil {
		return err
	}
	fmt.Fprintln(d.out, "\nThe counters in Redis (lua/README.md says how to read them):")
	for _, key := range keys {
		fields, err := client.HGetAll(ctx, key).Result()
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  %s\n", key)
		for name, counter := range fields {
			fmt.Fprintf(d.out, "    %-8s %s\n", name, counter)
		}
	}
	return nil
}
