// Package limiter measures decisions a second in Go, on one Redis: ours beside
// go-zero, redis_rate, throttled and ulule's.
package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"
	"github.com/zeromicro/go-zero/core/limit"
	zero "github.com/zeromicro/go-zero/core/stores/redis"

	"kong-quota/bench/report"
	"kong-quota/bench/server"
	"kong-quota/quota"
	"kong-quota/quota/denials"
	"kong-quota/quota/leases"
	"kong-quota/quota/redisstore"
)

const (
	goroutines = 64
	decisions  = 60_000 // of a case in a round
	keys       = 10_000
	plenty     = 100_000_000 // no request is over it
)

// subject decides for a key; open makes it with a fresh Redis before every case.
type subject struct {
	name    string
	times   int    // how many cases longer than the others, for the fast
	pattern string // of its keys in Redis, "" where they are not counted
	limits  int    // keys in Redis for each identity
	open    func(*redis.Client) (take func(ctx context.Context, key string) (bool, error), stop func(), err error)
}

// workload is a sequence of keys.
type workload struct {
	name  string
	order []int32
	keys  int // different ones among them
}

func workloads() []workload {
	random := rand.New(rand.NewPCG(1, 1))
	uniform, zipf, hot := make([]int32, decisions), make([]int32, decisions), make([]int32, decisions)
	z := rand.NewZipf(random, 1.1, 1, keys-1)
	for i := range uniform {
		uniform[i] = int32(i*7919) % keys
		zipf[i] = int32(z.Uint64())
	}
	all := []workload{{"10k keys", uniform, 0}, {"zipf", zipf, 0}, {"one hot key", hot, 0}}
	for i := range all {
		seen := map[int32]bool{}
		for _, k := range all[i].order {
			seen[k] = true
		}
		all[i].keys = len(seen)
	}
	return all
}

type outcome struct {
	rate, allocs []float64
	redis        []float64 // µs of Redis' CPU a decision
	failed       int64
}

// Run measures every subject under every workload.
func Run(rounds int, progress func(string)) ([]report.Section, error) {
	client, stop, err := server.Start()
	if err != nil {
		return nil, err
	}
	defer stop()
	names := make([]string, keys)
	for i := range names {
		names[i] = "key" + strconv.Itoa(i)
	}
	results := map[string]map[string]*outcome{}
	all := workloads()
	for round := range rounds {
		for _, w := range all {
			for _, s := range subjects() {
				progress(fmt.Sprintf("round %d of %d, %s, %s", round+1, rounds, w.name, s.name))
				if results[s.name] == nil {
					results[s.name] = map[string]*outcome{}
				}
				if results[s.name][w.name] == nil {
					results[s.name][w.name] = &outcome{}
				}
				if err := measure(client, s, w, names, results[s.name][w.name]); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", s.name, w.name, err)
				}
			}
		}
	}
	callers, err := callers(client, rounds, progress)
	if err != nil {
		return nil, err
	}
	return append(sections(all, results), callers), nil
}

// callers measures one hot key with more and more callers: how many decisions a
// round trip carries.
func callers(client *redis.Client, rounds int, progress func(string)) (report.Section, error) {
	s := report.Section{
		Title: "One hot key: callers",
		Text:  "The same limit asked by more and more goroutines. A lone decision is a round trip; those that\ncome together share a call of the script.",
		Table: report.Table{Head: []string{"callers", "decisions/s", "decisions a call", "go-zero's decisions/s", "ratio"}},
	}
	exact, peer := report.Line{Name: "kong-quota"}, report.Line{Name: "go-zero PeriodLimit"}
	mine, theirs := subjects()[0], goZero("go-zero PeriodLimit", 1, plenty)
	for _, n := range []int{1, 8, 64, 256, 1024} {
		progress(fmt.Sprintf("one hot key, %d callers", n))
		var rates, together, peers []float64
		for range rounds {
			rate, calls, err := hot(client, mine, n)
			if err != nil {
				return s, err
			}
			rates, together = append(rates, rate), append(together, calls)
			if rate, _, err = hot(client, theirs, n); err != nil {
				return s, err
			}
			peers = append(peers, rate)
		}
		a, b := report.Median(rates), report.Median(peers)
		s.Table.Add(n, a, report.Median(together), b, a/b)
		exact.X, exact.Y = append(exact.X, float64(n)), append(exact.Y, a)
		peer.X, peer.Y = append(peer.X, float64(n)), append(peer.Y, b)
	}
	s.Plot = &report.Plot{File: "limiter-callers", XTitle: "callers", Unit: "decisions a second", Lines: []report.Line{exact, peer}}
	return s, nil
}

// hot gives the decisions a second, and for each call of a script.
func hot(client *redis.Client, s subject, n int) (rate, together float64, err error) {
	ctx := context.Background()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return 0, 0, err
	}
	take, stop, err := s.open(client)
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	for range 20 {
		_, _ = take(ctx, "hot")
	}
	if err := client.ConfigResetStat(ctx).Err(); err != nil {
		return 0, 0, err
	}
	var passed atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range n {
		wg.Go(func() {
			for time.Since(start) < time.Second {
				if ok, err := take(ctx, "hot"); ok && err == nil {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	calls, err := server.Info(client, "commandstats", `cmdstat_evalsha:calls=(\d+)`)
	return float64(passed.Load()) / elapsed.Seconds(), float64(passed.Load()) / calls, err
}

func measure(client *redis.Client, s subject, w workload, names []string, out *outcome) error {
	ctx := context.Background()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	take, stop, err := s.open(client)
	if err != nil {
		return err
	}
	defer stop()
	// One after the other until the script is known: go-zero's breaker opens on
	// 64 answers of NOSCRIPT at once.
	for range 20 {
		_, _ = take(ctx, "warm up")
	}
	denied := strings.Contains(s.name, "denied")
	if denied { // used up before the clock starts
		for _, name := range names {
			if _, err := take(ctx, name); err != nil {
				return err
			}
		}
	}
	total := int64(decisions * max(1, s.times))
	var next, passed, failed atomic.Int64
	var wg sync.WaitGroup
	busy, err := processor(client)
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < total; i = next.Add(1) - 1 {
				ok, err := take(ctx, names[w.order[i%decisions]])
				if err != nil {
					failed.Add(1)
				}
				if ok {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)

	want := total
	if denied {
		want = 0
	}
	// Peers give up at times: throttled on a key that others write to at the same
	// moment, go-zero behind its breaker. That is in the table.
	if own := strings.HasPrefix(s.name, "kong-quota"); passed.Load()+failed.Load() < want || passed.Load() > want || own && failed.Load() > 0 {
		return fmt.Errorf("%d of %d passed, %d failed; want %d", passed.Load(), total, failed.Load(), want)
	}
	out.failed += failed.Load()
	if s.pattern != "" && !denied {
		made, err := client.Keys(ctx, s.pattern).Result()
		if err != nil {
			return err
		}
		if len(made) != (w.keys+1)*s.limits {
			return fmt.Errorf("%d keys in Redis, want %d of %d identities", len(made), (w.keys+1)*s.limits, w.keys+1)
		}
	}
	now, err := processor(client)
	if err != nil {
		return err
	}
	out.redis = append(out.redis, (now-busy)/float64(total)*1e6)
	out.rate = append(out.rate, float64(total)/took.Seconds())
	out.allocs = append(out.allocs, float64(after.Mallocs-before.Mallocs)/float64(total))
	return nil
}

// processor is Redis' CPU time so far, in seconds.
func processor(client *redis.Client) (seconds float64, err error) {
	return server.Info(client, "cpu", `used_cpu_(?:sys|user):([\d.]+)`)
}

func ours(name string, times int, wrap func(quota.Store) quota.Store, limits ...quota.Limit) subject {
	return subject{name: name, times: times, pattern: "quota:bench:*", limits: 1, open: func(client *redis.Client) (func(context.Context, string) (bool, error), func(), error) {
		policy, err := quota.NewPolicy(limits...)
		if err != nil {
			return nil, nil, err
		}
		var store quota.Store = redisstore.New(client)
		if wrap != nil {
			store = wrap(store)
		}
		l := quota.NewLimiter(store, "bench", policy)
		stop := func() {
			if leased, ok := store.(*leases.Store); ok {
				leased.Stop(context.Background())
			}
		}
		return func(ctx context.Context, key string) (bool, error) {
			d, err := l.Spend(ctx, quota.NewIdentity("consumer", key), 1)
			return err == nil && d.State != quota.OverQuota, err
		}, stop, nil
	}}
}

func goZero(name string, times, limit int) subject {
	return subject{name: name, pattern: "zero*", limits: times, open: func(client *redis.Client) (func(context.Context, string) (bool, error), func(), error) {
		return period(client, times, limit), func() {}, nil
	}}
}

func period(client *redis.Client, times, most int) func(context.Context, string) (bool, error) {
	store := zero.New(client.Options().Addr)
	var all []*limit.PeriodLimit
	for i, seconds := range []int{3600, 60, 86400}[:times] {
		all = append(all, limit.NewPeriodLimit(seconds, most, store, "zero"+strconv.Itoa(i)+":"))
	}
	return func(ctx context.Context, key string) (bool, error) {
		for _, l := range all {
			code, err := l.TakeCtx(ctx, key)
			if err != nil || code == limit.OverQuota {
				return false, err
			}
		}
		return true, nil
	}
}

// A rate that no key gets back to full in, or it would be gone from Redis.
func redisRate(name string, times int) subject {
	return subject{name: name, pattern: "rate:*", limits: times, open: func(client *redis.Client) (func(context.Context, string) (bool, error), func(), error) {
		l := redis_rate.NewLimiter(client)
		periods := []time.Duration{time.Hour, time.Minute, 24 * time.Hour}[:times]
		return func(ctx context.Context, key string) (bool, error) {
			for i, period := range periods {
				r, err := l.Allow(ctx, key+strings.Repeat("'", i), redis_rate.Limit{Rate: 1, Burst: plenty, Period: period})
				if err != nil || r.Allowed == 0 {
					return false, err
				}
			}
			return true, nil
		}, func() {}, nil
	}}
}

func subjects() []subject {
	hour := quota.Limit{Name: "hour", Limit: plenty, Window: quota.Per(time.Hour)}
	minute := quota.Limit{Name: "minute", Limit: plenty, Window: quota.Per(time.Minute)}
	day := quota.Limit{Name: "day", Limit: plenty, Window: quota.Per(24 * time.Hour)}
	leased := hour
	leased.Lease = quota.Lease{Share: 0.001, MaxAge: time.Minute}
	one := quota.Limit{Name: "day", Limit: 1, Window: quota.Per(24 * time.Hour)}
	remember := func(s quota.Store) quota.Store { return denials.New(s, time.Minute, 4*keys) }
	return []subject{
		ours("kong-quota", 2, nil, hour),
		ours("kong-quota, three limits", 2, nil, minute, hour, day),
		ours("kong-quota, leased", 20, func(s quota.Store) quota.Store { return leases.New(s, 2*keys) }, leased),
		ours("kong-quota, denied", 40, remember, one),
		goZero("go-zero PeriodLimit", 1, plenty),
		goZero("go-zero PeriodLimit, three limits", 3, plenty),
		goZero("go-zero PeriodLimit, denied", 1, 1),
		redisRate("redis_rate", 1),
		redisRate("redis_rate, three limits", 3),
		{name: "go-zero TokenLimit", open: func(client *redis.Client) (func(context.Context, string) (bool, error), func(), error) {
			store := zero.New(client.Options().Addr)
			all := map[string]*limit.TokenLimiter{"warm up": limit.NewTokenLimiter(plenty, plenty, store, "token:warm up")}
			for i := range keys {
				name := "key" + strconv.Itoa(i)
				all[name] = limit.NewTokenLimiter(plenty, plenty, store, "token:"+name)
			}
			return func(ctx context.Context, key string) (bool, error) { return all[key].AllowCtx(ctx), nil }, func() {}, nil
		}},
		{name: "throttled", pattern: "throttled:*", limits: 1, open: func(client *redis.Client) (func(context.Context, string) (bool, error), func(), error) {
			store, err := goredisstore.NewCtx(client, "throttled:")
			if err != nil {
				return nil, nil, err
			}
			l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerHour(100), MaxBurst: 10_000_000})
			if err != nil {
				return nil, nil, err
			}
			return func(ctx context.Context, key string) (bool, error) {
				limited, _, err := l.RateLimitCtx(ctx, key, 1)
				return err == nil && !limited, err
			}, func() {}, nil
		}},
		{name: "ulule/limiter", pattern: "ulule:*", limits: 1, open: func(client *redis.Client) (func(context.Context, string) (bool, error), func(), error) {
			store, err := ululestore.NewStoreWithOptions(client, ulule.StoreOptions{Prefix: "ulule"})
			if err != nil {
				return nil, nil, err
			}
			l := ulule.New(store, ulule.Rate{Period: time.Hour, Limit: plenty})
			return func(ctx context.Context, key string) (bool, error) {
				c, err := l.Get(ctx, key)
				return err == nil && !c.Reached, err
			}, func() {}, nil
		}},
	}
}

func sections(all []workload, results map[string]map[string]*outcome) []report.Section {
	rate := func(name, workload string) float64 { return report.Median(results[name][workload].rate) }
	var found []report.Section
	for n, w := range all {
		s := report.Section{
			Title: "Decisions a second: " + w.name,
			Text: fmt.Sprintf("%d goroutines, %d different keys, one redis-server. Each case asserts how many requests\npass and how many keys are in Redis. Allocations are of the whole process.",
				goroutines, w.keys),
			Table: report.Table{Head: []string{"case", "decisions/s", "of go-zero's", "of redis_rate's", "µs of Redis' CPU", "allocations", "errors"}},
			Plot:  &report.Plot{File: "limiter-" + []string{"uniform", "zipf", "hot"}[n], Unit: "decisions a second, without those that are decided locally"},
		}
		for _, c := range subjects() {
			r := rate(c.name, w.name)
			s.Table.Add(c.name, r, r/rate("go-zero PeriodLimit", w.name), r/rate("redis_rate", w.name), report.Median(results[c.name][w.name].redis), report.Median(results[c.name][w.name].allocs), results[c.name][w.name].failed)
			if c.name != "kong-quota, leased" && c.name != "kong-quota, denied" {
				s.Plot.Names, s.Plot.Bars = append(s.Plot.Names, c.name), append(s.Plot.Bars, r)
			}
		}
		best := func(zero, rateOf string) float64 { return max(rate(zero, w.name), rate(rateOf, w.name)) }
		exact, three := rate("kong-quota", w.name), rate("kong-quota, three limits", w.name)
		switch n {
		case 0:
			s.Targets = []report.Target{
				{What: "one limit, of the faster of go-zero and redis_rate", Aim: 2, Measured: exact / best("go-zero PeriodLimit", "redis_rate")},
				{What: "three limits, of the faster of them with three", Aim: 2, Measured: three / best("go-zero PeriodLimit, three limits", "redis_rate, three limits")},
				{What: "leased, of go-zero", Aim: 20, Measured: rate("kong-quota, leased", w.name) / rate("go-zero PeriodLimit", w.name)},
				{What: "denied, of go-zero denied", Aim: 50, Measured: rate("kong-quota, denied", w.name) / rate("go-zero PeriodLimit, denied", w.name)},
				{What: "allocations of an exact decision", Aim: 10, AtMost: true, Measured: report.Median(results["kong-quota"][w.name].allocs)},
			}
		case 2:
			s.Targets = []report.Target{
				{What: "hot key, of the faster of go-zero and redis_rate", Aim: 10, Measured: exact / best("go-zero PeriodLimit", "redis_rate")},
				{What: "hot key leased, of go-zero", Aim: 20, Measured: rate("kong-quota, leased", w.name) / rate("go-zero PeriodLimit", w.name)},
			}
		}
		found = append(found, s)
	}
	return found
}
