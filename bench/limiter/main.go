package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/logx"
	zero "github.com/zeromicro/go-zero/core/stores/redis"

	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

func run(name string, n int, f func(ctx context.Context, key string) (bool, error), keys int) float64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	names := make([]string, keys)
	for i := range names {
		names[i] = "k" + strconv.Itoa(i)
	}
	for i := range 100 {
		if _, err := f(ctx, names[i%keys]); err != nil && i > 5 {
			fmt.Println(name, err)
		}
	}
	var wg sync.WaitGroup
	var next, passed atomic.Int64
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	start := time.Now()
	for range 64 {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				ok, err := f(ctx, names[int(i*7919)%keys])
				if err != nil {
					fmt.Println(name, err)
					os.Exit(1)
				}
				if ok {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&m1)
	rate := float64(n) / took.Seconds()
	fmt.Printf("%-24s keys %6d: %9.0f/s passed %d allocs %.1f\n", name, keys, rate, passed.Load(), float64(m1.Mallocs-m0.Mallocs)/float64(n))
	return rate
}

func main() {
	if len(os.Args) > 2 {
		f, _ := os.Create(os.Args[2])
		_ = pprof.StartCPUProfile(f)
		defer pprof.StopCPUProfile()
		client := redis.NewClient(&redis.Options{Addr: os.Args[1], ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 64})
		p, _ := quota.NewPolicy(quota.Limit{Name: "hour", Limit: 100000000, Window: quota.Per(time.Hour)})
		l := quota.NewLimiter(redisstore.New(client), "b", p)
		keys, _ := strconv.Atoi(os.Args[3])
		run("ours", 2000000, func(ctx context.Context, k string) (bool, error) {
			d, err := l.Spend(ctx, quota.NewIdentity("c", k), 1)
			return d.State == quota.Allowed, err
		}, keys)
		return
	}
	addr := os.Args[1]
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 64})
	logx.Disable()
	period := limit.NewPeriodLimit(3600, 100000000, zero.New(addr), "zero:")
	gcra := redis_rate.NewLimiter(client)
	ours := func(n int) *quota.Limiter {
		ls := []quota.Limit{{Name: "hour", Limit: 100000000, Window: quota.Per(time.Hour)}, {Name: "day", Limit: 100000000, Window: quota.Per(24 * time.Hour)}, {Name: "minute", Limit: 100000000, Window: quota.Per(time.Minute)}}
		p, err := quota.NewPolicy(ls[:n]...)
		if err != nil {
			panic(err)
		}
		return quota.NewLimiter(redisstore.New(client), "b"+strconv.Itoa(n), p)
	}
	one, three := ours(1), ours(3)
	for range 2 {
		for _, keys := range []int{10000, 1} {
			run("zero", 200000, func(ctx context.Context, k string) (bool, error) {
				c, err := period.TakeCtx(ctx, k)
				return c == limit.Allowed, err
			}, keys)
			run("redis_rate", 200000, func(ctx context.Context, k string) (bool, error) {
				r, err := gcra.Allow(ctx, k, redis_rate.Limit{Rate: 100000000, Burst: 100000000, Period: time.Hour})
				return err == nil && r.Allowed > 0, err
			}, keys)
			for name, l := range map[string]*quota.Limiter{"one": one, "three": three} {
				run("ours "+name, 400000, func(ctx context.Context, k string) (bool, error) {
					d, err := l.Spend(ctx, quota.NewIdentity("c", k), 1)
					return d.State == quota.Allowed, err
				}, keys)
			}
		}
	}
}
