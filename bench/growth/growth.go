// Package growth measures what becomes of cost and memory when there is more:
// identities in Redis, instances of the plugin, limits in a policy.
package growth

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/bench/report"
	"kong-quota/bench/server"
	"kong-quota/internal/settings"
	"kong-quota/plugin"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

// Run measures the three.
func Run(rounds int, progress func(string)) ([]report.Section, error) {
	keys, err := identities(rounds, progress)
	if err != nil {
		return nil, err
	}
	started, err := instances(progress)
	if err != nil {
		return nil, err
	}
	limits, err := policies(rounds, progress)
	return []report.Section{keys, started, limits}, err
}

func identities(rounds int, progress func(string)) (report.Section, error) {
	client, stop, err := server.Start()
	if err != nil {
		return report.Section{}, err
	}
	defer stop()
	policy, err := quota.NewPolicy(
		quota.Limit{Name: "minute", Limit: 1000, Window: quota.Per(time.Hour)}, quota.Limit{Name: "day", Limit: 100_000, Window: quota.Per(24 * time.Hour)})
	if err != nil {
		return report.Section{}, err
	}
	l := quota.NewLimiter(redisstore.New(client), "growth", policy)
	s := report.Section{
		Title: "Growth: identities in Redis",
		Text:  "Two limits each. Decisions are one a call, on random identities; memory is all of Redis'\n(used_memory), over its identities.",
		Table: report.Table{Head: []string{"identities", "µs of Redis a decision", "bytes an identity"}},
	}
	cost, memory := report.Line{Name: "µs of Redis a decision"}, report.Line{Name: "hundreds of bytes an identity"}
	base, err := used(client)
	if err != nil {
		return s, err
	}
	made := 0
	for _, size := range []int{1_000, 10_000, 100_000, 1_000_000, 10_000_000} {
		progress(fmt.Sprintf("%d identities", size))
		if err := fill(l, made, size); err != nil {
			return s, err
		}
		made = size
		n, err := client.DBSize(context.Background()).Result()
		if err != nil || n != int64(size) {
			return s, fmt.Errorf("%d keys, want %d: %w", n, size, err)
		}
		var micros []float64
		for range rounds {
			one, err := decide(client, l, func() string { return strconv.Itoa(rand.IntN(size)) })
			if err != nil {
				return s, err
			}
			micros = append(micros, one)
		}
		now, err := used(client)
		if err != nil {
			return s, err
		}
		each := float64(now-base) / float64(size)
		s.Table.Add(size, report.Median(micros), each)
		cost.X, cost.Y = append(cost.X, float64(size)), append(cost.Y, report.Median(micros))
		memory.X, memory.Y = append(memory.X, float64(size)), append(memory.Y, each/100)
	}
	s.Plot = &report.Plot{File: "growth-identities", XTitle: "identities", Unit: "", Lines: []report.Line{cost, memory}}
	return s, nil
}

func fill(l *quota.Limiter, from, to int) error {
	var wg sync.WaitGroup
	const workers = 256
	failed := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := from + w; i < to && failed[w] == nil; i += workers {
				_, failed[w] = l.Spend(context.Background(), quota.NewIdentity("consumer", strconv.Itoa(i)), 1)
			}
		})
	}
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// decide gives the server's time for a call.
func decide(client *redis.Client, l *quota.Limiter, key func() string) (micros float64, err error) {
	ctx := context.Background()
	if err := client.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	for range 10_000 {
		if _, err := l.Spend(ctx, quota.NewIdentity("consumer", key()), 1); err != nil {
			return 0, err
		}
	}
	return server.Info(client, "commandstats", `cmdstat_evalsha:calls=\d+,usec=\d+,usec_per_call=([\d.]+)`)
}

func used(client *redis.Client) (int64, error) {
	bytes, err := server.Info(client, "memory", `used_memory:(\d+)`)
	return int64(bytes), err
}

func instances(progress func(string)) (report.Section, error) {
	s := report.Section{
		Title: "Growth: instances of the plugin",
		Text:  "One for each consumer, say, with three limits each; counters in memory. Kong starts them\nwith every change of its configuration.",
		Table: report.Table{Head: []string{"instances", "µs to start one", "bytes an instance"}},
	}
	start, memory := report.Line{Name: "µs to start an instance"}, report.Line{Name: "KB an instance"}
	for _, size := range []int{1, 10, 100, 1_000, 10_000} {
		progress(fmt.Sprintf("%d instances", size))
		p, err := plugin.New(settings.Settings{Store: "memory", MemoryEntries: 1000, Namespace: "quota"}, slog.New(slog.DiscardHandler))
		if err != nil {
			return s, err
		}
		if _, err := p.Start([]byte(`{"limits":[{"name":"day","limit":1,"window":"day","align":"calendar","timezone":"Asia/Shanghai"}]}`)); err != nil {
			return s, err // the first reads the timezone
		}
		all := make([]*plugin.Instance, size)
		before := heap()
		begun := time.Now()
		for i := range all {
			config := fmt.Appendf(nil, `{"__seq__":%d,"consumer_id":"c-%d","limits":[{"name":"minute","limit":100,"window":"minute"},{"name":"hour","limit":1000,"window":"hour"},{"name":"day","limit":10000,"window":"day","align":"calendar","timezone":"Asia/Shanghai"}]}`, i+1, i)
			if all[i], err = p.Start(config); err != nil {
				return s, err
			}
		}
		took := float64(time.Since(begun).Microseconds()) / float64(size)
		each := float64(heap()-before) / float64(size)
		runtime.KeepAlive(all)
		start.X, start.Y = append(start.X, float64(size)), append(start.Y, took)
		if size < 100 { // of so few the heap tells nothing
			s.Table.Add(size, took, "")
			continue
		}
		s.Table.Add(size, took, each)
		memory.X, memory.Y = append(memory.X, float64(size)), append(memory.Y, each/1000)
	}
	s.Plot = &report.Plot{File: "growth-instances", XTitle: "instances", Lines: []report.Line{start, memory}}
	return s, nil
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func policies(rounds int, progress func(string)) (report.Section, error) {
	client, stop, err := server.Start()
	if err != nil {
		return report.Section{}, err
	}
	defer stop()
	s := report.Section{
		Title: "Growth: limits in a policy",
		Text:  "Fixed windows, one decision a call.",
		Table: report.Table{Head: []string{"limits", "µs of Redis a decision", "µs a limit", "bytes a key"}},
	}
	line := report.Line{Name: "µs of Redis a decision"}
	for _, size := range []int{1, 2, 4, 8, 16} {
		progress(fmt.Sprintf("%d limits", size))
		var limits []quota.Limit
		for i := range size {
			limits = append(limits, quota.Limit{Name: "limit-" + strconv.Itoa(i), Limit: 1_000_000, Window: quota.Per(time.Duration(i+1) * time.Hour)})
		}
		policy, err := quota.NewPolicy(limits...)
		if err != nil {
			return s, err
		}
		l := quota.NewLimiter(redisstore.New(client), "limits"+strconv.Itoa(size), policy)
		var micros []float64
		for range rounds {
			one, err := decide(client, l, func() string { return strconv.Itoa(rand.IntN(100)) })
			if err != nil {
				return s, err
			}
			micros = append(micros, one)
		}
		bytes, err := client.MemoryUsage(context.Background(), fmt.Sprintf("quota:limits%d:{consumer:0}", size)).Result()
		if err != nil {
			return s, err
		}
		median := report.Median(micros)
		s.Table.Add(size, median, median/float64(size), bytes)
		line.X, line.Y = append(line.X, float64(size)), append(line.Y, median)
	}
	s.Plot = &report.Plot{File: "growth-limits", XTitle: "limits", Unit: "µs", Lines: []report.Line{line}}
	return s, nil
}
