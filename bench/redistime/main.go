// Command redistime measures what a decision costs Redis: the server's own time
// for each call (INFO commandstats) and the memory of each key (MEMORY USAGE), for
// our algorithms and for peers, on one server in one run. Every case asserts how
// many keys it made and how many requests passed.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/logx"
	zero "github.com/zeromicro/go-zero/core/stores/redis"

	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

func main() {
	out := flag.String("out", "RESULTS.md", "file to write")
	rounds := flag.Int("rounds", 5, "interleaved rounds, of which the median counts")
	calls := flag.Int("calls", 20000, "calls of a case in a round")
	flag.Parse()
	if err := run(*out, *rounds, *calls); err != nil {
		fmt.Fprintln(os.Stderr, "redistime:", err)
		os.Exit(1)
	}
}

const keys = 1000

// subject is one way to decide; spend reports whether the i-th request passes.
type subject struct {
	name     string
	commands []string // whose time is the decision's
	spend    func(ctx context.Context, key int) (bool, error)
	pattern  string // of its keys
	keys     int    // how many it must have made

	micros []float64 // per call, a round each
	bytes  int64     // per key
}

func run(out string, rounds, calls int) error {
	client, stop, err := server()
	if err != nil {
		return err
	}
	defer stop()
	ctx := context.Background()
	all := subjects(client)
	for round := range rounds {
		for i := range all {
			s := &all[i]
			fmt.Fprintf(os.Stderr, "\rround %d of %d: %-40s", round+1, rounds, s.name)
			if err := s.measure(ctx, client, calls); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	return os.WriteFile(out, []byte(report(ctx, client, all, rounds, calls)), 0o644)
}

// quotaPerKey is high: what is measured is the decision that passes.
const (
	quotaPerKey = 1_000_000
	ratePerHour = 100
)

func subjects(client *redis.Client) []subject {
	script := []string{"evalsha"}
	var all []subject
	ours := func(name string, limits ...quota.Limit) {
		policy, err := quota.NewPolicy(limits...)
		if err != nil {
			panic(err) // the limits are constants
		}
		limiter := quota.NewLimiter(redisstore.New(client, redisstore.WithNamespace("ours")), strings.ReplaceAll(name, " ", "-"), policy)
		all = append(all, subject{
			name: "kong-quota " + name, commands: script, pattern: "ours:" + strings.ReplaceAll(name, " ", "-") + ":{*}", keys: keys,
			spend: func(ctx context.Context, key int) (bool, error) {
				d, err := limiter.Spend(ctx, quota.NewIdentity("consumer", strconv.Itoa(key)), 1)
				return d.State != quota.OverQuota, err
			},
		})
	}
	for _, a := range quota.Algorithms {
		l := quota.Limit{Name: "limit", Algorithm: a, Limit: quotaPerKey, Window: quota.Per(time.Hour)}
		switch a { // slow enough that no key is full, and gone, before it is counted
		case quota.LeakyBucket, quota.TokenBucket, quota.GCRA:
			l.Limit, l.Burst = ratePerHour, quotaPerKey
		}
		ours(string(a), l)
	}
	ours("sliding_window of 100", quota.Limit{Name: "limit", Algorithm: quota.SlidingWindow, Limit: 100_000, Window: quota.Per(time.Hour)})
	ours("three fixed_window",
		quota.Limit{Name: "minute", Limit: quotaPerKey, Window: quota.Per(time.Minute)},
		quota.Limit{Name: "hour", Limit: quotaPerKey, Window: quota.Per(time.Hour)},
		quota.Limit{Name: "day", Limit: quotaPerKey, Window: quota.Per(24 * time.Hour)})

	logx.Disable()
	period := limit.NewPeriodLimit(3600, quotaPerKey, zero.New(client.Options().Addr), "zero:")
	all = append(all, subject{name: "go-zero PeriodLimit", commands: script, pattern: "zero:*", keys: keys,
		spend: func(ctx context.Context, key int) (bool, error) {
			code, err := period.TakeCtx(ctx, strconv.Itoa(key))
			return code == limit.Allowed || code == limit.HitQuota, err
		}})
	gcra := redis_rate.NewLimiter(client)
	all = append(all, subject{name: "go-redis/redis_rate", commands: script, pattern: "rate:*", keys: keys,
		spend: func(ctx context.Context, key int) (bool, error) {
			r, err := gcra.Allow(ctx, strconv.Itoa(key), redis_rate.Limit{Rate: ratePerHour, Burst: quotaPerKey, Period: time.Hour})
			return err == nil && r.Allowed > 0, err
		}})
	number := 0
	all = append(all, subject{name: "a plain ZSET log", commands: []string{"multi", "exec", "zremrangebyscore", "zadd", "zcard", "pexpire"}, pattern: "zset:*", keys: keys,
		spend: func(ctx context.Context, key int) (bool, error) {
			k, now := "zset:"+strconv.Itoa(key), time.Now().UnixMicro()
			number++
			pipe := client.TxPipeline()
			pipe.ZRemRangeByScore(ctx, k, "-inf", strconv.FormatInt(now-3600e6, 10))
			pipe.ZAdd(ctx, k, redis.Z{Score: float64(now), Member: number})
			count := pipe.ZCard(ctx, k)
			pipe.PExpire(ctx, k, time.Hour)
			_, err := pipe.Exec(ctx)
			return count.Val() <= quotaPerKey, err
		}})
	return all
}

func (s *subject) measure(ctx context.Context, client *redis.Client, calls int) error {
	if err := client.ConfigResetStat(ctx).Err(); err != nil {
		return err
	}
	for i := range calls {
		passed, err := s.spend(ctx, i%keys)
		if err != nil {
			return err
		}
		if !passed {
			return fmt.Errorf("request %d was refused", i)
		}
	}
	info, err := client.Info(ctx, "commandstats").Result()
	if err != nil {
		return err
	}
	var total float64
	for _, command := range s.commands {
		found := regexp.MustCompile(`cmdstat_` + command + `:calls=\d+,usec=(\d+)`).FindStringSubmatch(info)
		if found == nil {
			return fmt.Errorf("no %s was called", command)
		}
		micros, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return err
		}
		total += micros
	}
	s.micros = append(s.micros, total/float64(calls))
	made, err := client.Keys(ctx, s.pattern).Result()
	if err != nil {
		return err
	}
	if len(made) != s.keys {
		return fmt.Errorf("%d keys, want %d", len(made), s.keys)
	}
	// With what stands beside it, as the log of a sliding_log.
	s.bytes = 0
	beside, err := client.Keys(ctx, strings.TrimSuffix(strings.TrimSuffix(made[0], "}"), "*")+"*").Result()
	if err != nil {
		return err
	}
	for _, key := range beside {
		if key == made[0] || strings.HasPrefix(key, made[0]+":") {
			n, err := client.MemoryUsage(ctx, key).Result()
			if err != nil {
				return err
			}
			s.bytes += n
		}
	}
	return nil
}

func report(ctx context.Context, client *redis.Client, all []subject, rounds, calls int) string {
	median := func(s subject) float64 {
		sorted := slices.Sorted(slices.Values(s.micros))
		return sorted[len(sorted)/2]
	}
	by := map[string]float64{}
	for _, s := range all {
		by[s.name] = median(s)
	}
	info, _ := client.Info(ctx, "server").Result()
	version := regexp.MustCompile(`redis_version:(\S+)`).FindStringSubmatch(info)
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	var b strings.Builder
	fmt.Fprintf(&b, `# What a decision costs Redis

Written by `+"`make bench`"+`: %d interleaved rounds of %d calls over %d keys, medians of
the server's own time for each call (INFO commandstats), and the memory of a key
with all that belongs to it after %d calls on it. Redis %s, %d CPUs, commit %s.

`, rounds, calls, keys, rounds*calls/keys, version[1], runtime.NumCPU(), strings.TrimSpace(string(commit)))
	table := tabwriter.NewWriter(&b, 0, 8, 1, ' ', 0)
	fmt.Fprintln(table, "| case\t| µs a call\t| of go-zero's\t| of redis_rate's\t| bytes a key\t|")
	fmt.Fprintln(table, "|---\t|---:\t|---:\t|---:\t|---:\t|")
	for _, s := range all {
		fmt.Fprintf(table, "| %s\t| %.2f\t| %.2f\t| %.2f\t| %d\t|\n", s.name, by[s.name], by[s.name]/by["go-zero PeriodLimit"], by[s.name]/by["go-redis/redis_rate"], s.bytes)
	}
	_ = table.Flush()
	fmt.Fprintf(&b, `
| target | measured |
|---|---|
| one fixed_window at most 2 × go-zero's script | %.2f × |
| three fixed windows in one call at most three go-zero calls | %.2f × |
| sliding_window at 10 buckets at most 1.5 × redis_rate | %.2f × |
`, by["kong-quota fixed_window"]/by["go-zero PeriodLimit"], by["kong-quota three fixed_window"]/(3*by["go-zero PeriodLimit"]), by["kong-quota sliding_window"]/by["go-redis/redis_rate"])
	return b.String()
}

// server starts a redis-server on a free port.
func server() (*redis.Client, func(), error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	address := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()
	cmd := exec.Command("redis-server", "--port", strconv.Itoa(address.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: address.String()})
	stop := func() { _ = client.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = client.Ping(context.Background()).Err(); err == nil {
			return client, stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return nil, nil, err
		}
	}
}
