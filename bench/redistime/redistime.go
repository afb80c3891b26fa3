// Package redistime measures what a decision costs Redis: the server's own time
// for each call (INFO commandstats) and the memory of each key (MEMORY USAGE), for
// our algorithms and for peers, on one server in one run. Every case asserts how
// many keys it made and how many requests passed.
package redistime

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/limit"
	zero "github.com/zeromicro/go-zero/core/stores/redis"

	"kong-quota/bench/report"
	"kong-quota/bench/server"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

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

const calls = 20_000 // of a case in a round

// Run measures every case in every round.
func Run(rounds int, progress func(string)) ([]report.Section, error) {
	client, stop, err := server.Start()
	if err != nil {
		return nil, err
	}
	defer stop()
	all := subjects(client)
	for round := range rounds {
		for i := range all {
			s := &all[i]
			progress(fmt.Sprintf("round %d of %d, %s", round+1, rounds, s.name))
			if err := s.measure(context.Background(), client); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return []report.Section{section(all, rounds)}, nil
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

func (s *subject) measure(ctx context.Context, client *redis.Client) error {
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
	var total float64
	for _, command := range s.commands {
		micros, err := server.Info(client, "commandstats", `cmdstat_`+command+`:calls=\d+,usec=(\d+)`)
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

func section(all []subject, rounds int) report.Section {
	by := map[string]float64{}
	for _, s := range all {
		by[s.name] = report.Median(s.micros)
	}
	found := report.Section{
		Title: "What a decision costs Redis",
		Text: fmt.Sprintf("One decision a call, %d calls over %d keys: the server's own time for each call (INFO\ncommandstats), and the memory of a key with all that belongs to it after %d calls on it.\nUnder load ours shares a call among many requests (see above). What a call must cost:\n[decision 009](../docs/decisions/009-what-a-call-costs-redis.md).",
			calls, keys, rounds*calls/keys),
		Table: report.Table{Head: []string{"case", "µs a call", "of go-zero's", "of redis_rate's", "bytes a key"}},
		Plot:  &report.Plot{File: "redistime", Unit: "µs of Redis a call"},
		Targets: []report.Target{
			{What: "one fixed_window, of go-zero's script", Aim: 2, AtMost: true, Measured: by["kong-quota fixed_window"] / by["go-zero PeriodLimit"]},
			{What: "three fixed windows in one call, of three go-zero calls", Aim: 1, AtMost: true, Measured: by["kong-quota three fixed_window"] / (3 * by["go-zero PeriodLimit"])},
			{What: "sliding_window of 10 buckets, of redis_rate", Aim: 1.5, AtMost: true, Measured: by["kong-quota sliding_window"] / by["go-redis/redis_rate"]},
		},
	}
	for _, s := range all {
		found.Table.Add(s.name, by[s.name], by[s.name]/by["go-zero PeriodLimit"], by[s.name]/by["go-redis/redis_rate"], s.bytes)
		found.Plot.Names, found.Plot.Bars = append(found.Plot.Names, s.name), append(found.Plot.Bars, by[s.name])
	}
	return found
}
