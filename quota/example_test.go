package quota_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"kong-quota/quota"
	"kong-quota/quota/memstore"
)

// clock is a clock that the examples set.
type clock struct{ time.Time }

func (c *clock) now() time.Time           { return c.Time }
func (c *clock) forward(by time.Duration) { c.Time = c.Add(by) }

// limiter makes a limiter in memory. A service that shares its counters with
// others, the gateway among them, takes a store on Redis instead:
//
//	store := redisstore.New(redis.NewClient(&redis.Options{Addr: "redis:6379", ContextTimeoutEnabled: true}))
func limiter(scope string, limits ...quota.Limit) (*quota.Limiter, *clock) {
	c := &clock{time.Date(2026, 11, 21, 15, 0, 0, 0, time.UTC)}
	store, err := memstore.New(1000, memstore.WithClock(c.now))
	if err != nil {
		log.Fatal(err)
	}
	policy, err := quota.NewPolicy(limits...)
	if err != nil {
		log.Fatal(err)
	}
	return quota.NewLimiter(store, scope, policy), c
}

func spend(l *quota.Limiter, id quota.Identity, cost int64) quota.Decision {
	d, err := l.Spend(context.Background(), id, cost)
	if err != nil {
		log.Fatal(err) // a service would follow its failure policy here
	}
	return d
}

// go-zero's PeriodLimit: Take gives Allowed, HitQuota with the last of the quota,
// then OverQuota.
func Example_periodLimit() {
	l, clock := limiter("login", quota.Limit{Name: "period", Limit: 3, Window: quota.Per(time.Second)})
	for range 5 {
		fmt.Println(spend(l, quota.NewIdentity("user", "first"), 1).State)
	}
	clock.forward(time.Second)
	fmt.Println(spend(l, quota.NewIdentity("user", "first"), 1).State)
	// Output:
	// allowed
	// allowed
	// hit_quota
	// over_quota
	// over_quota
	// allowed
}

// Five codes a day per phone, from midnight in GMT+8.
func Example_smsCodes() {
	l, clock := limiter("sms", quota.Limit{
		Name: "daily", Limit: 5, Window: quota.PerUnit(quota.Day), Align: quota.Calendar, Timezone: "Asia/Shanghai",
	})
	phone := quota.NewIdentity("phone", "+86 138 0000 0000")
	for range 6 { // it is 23:00 there
		d := spend(l, phone, 1)
		fmt.Println(d.State, d.Strictest().Remaining, d.RetryAfter())
	}
	clock.forward(time.Hour)
	fmt.Println(spend(l, phone, 1).State)
	// Output:
	// allowed 4 0s
	// allowed 3 0s
	// allowed 2 0s
	// allowed 1 0s
	// hit_quota 0 0s
	// over_quota 0 1h0m0s
	// allowed
}

// Three password attempts an hour, from the first on.
func Example_passwordAttempts() {
	l, clock := limiter("password", quota.Limit{Name: "attempts", Limit: 3, Window: quota.PerUnit(quota.Hour)})
	account := quota.NewIdentity("account", "alice")
	for range 3 {
		spend(l, account, 1)
		clock.forward(10 * time.Minute)
	}
	fmt.Println(spend(l, account, 1).RetryAfter())
	if err := l.Reset(context.Background(), account); err != nil { // the right password came by mail
		log.Fatal(err)
	}
	fmt.Println(spend(l, account, 1).State)
	// Output:
	// 30m0s
	// allowed
}

// Three gifts a day per member; one that could not be delivered is given back.
func Example_gifts() {
	l, _ := limiter("gifts", quota.Limit{Name: "daily", Limit: 3, Window: quota.PerUnit(quota.Day), Align: quota.Calendar})
	member := quota.NewIdentity("member", "7")
	fmt.Println(spend(l, member, 3).State)
	d, err := l.Refund(context.Background(), member, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Strictest().Remaining)
	fmt.Println(spend(l, member, 1).State)
	// Output:
	// hit_quota
	// 1
	// hit_quota
}

// The sorted-set limiter: 10 actions in any 5 seconds, per user and action.
func Example_slidingLog() {
	l, clock := limiter("actions", quota.Limit{Name: "log", Algorithm: quota.SlidingLog, Limit: 10, Window: quota.Per(5 * time.Second)})
	reply := quota.Compound(quota.NewIdentity("uid", "110"), quota.NewIdentity("action", "reply"))
	passed := 0
	for range 20 {
		if spend(l, reply, 1).State != quota.OverQuota {
			passed++
		}
		clock.forward(100 * time.Millisecond)
	}
	fmt.Println(passed, spend(l, reply, 1).RetryAfter())
	// Output: 10 3s
}

// The funnel: it holds 15, and one leaks out every two seconds.
func Example_funnel() {
	l, clock := limiter("replies", quota.Limit{Name: "funnel", Algorithm: quota.LeakyBucket, Limit: 1, Window: quota.Per(2 * time.Second), Burst: 15})
	user := quota.NewIdentity("uid", "110")
	passed := 0
	for range 20 {
		if spend(l, user, 1).State != quota.OverQuota {
			passed++
		}
	}
	clock.forward(2 * time.Second)
	fmt.Println(passed, spend(l, user, 1).State, spend(l, user, 1).State)
	// Output: 15 hit_quota over_quota
}

// The token bucket: 100 a second, bursts of 200.
func Example_tokenBucket() {
	l, clock := limiter("api", quota.Limit{Name: "rate", Algorithm: quota.TokenBucket, Limit: 100, Window: quota.Per(time.Second), Burst: 200})
	client := quota.NewIdentity("client", "a")
	fmt.Println(spend(l, client, 200).State)
	clock.forward(500 * time.Millisecond)
	fmt.Println(spend(l, client, 51).RetryAfter(), spend(l, client, 50).State)
	// Output:
	// hit_quota
	// 10ms hit_quota
}

// redis-cell: CL.THROTTLE user 15 30 60, bursts of 15 and 30 a minute.
func Example_gcra() {
	l, _ := limiter("cell", quota.Limit{Name: "cell", Algorithm: quota.GCRA, Limit: 30, Window: quota.Per(time.Minute), Burst: 15})
	d := spend(l, quota.NewIdentity("user", "laoqian"), 1).Strictest()
	fmt.Println(d.Limit, d.Remaining, d.RetryAfter, d.Reset)
	// Output: 15 14 0s 2s
}

// A batch takes what is left.
func ExampleLimiter_SpendUpTo() {
	l, _ := limiter("mail", quota.Limit{Name: "hourly", Limit: 100, Window: quota.PerUnit(quota.Hour)})
	sender := quota.NewIdentity("sender", "news")
	for range 3 {
		d, err := l.SpendUpTo(context.Background(), sender, 60)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.State, d.Charged)
	}
	// Output:
	// allowed 60
	// hit_quota 40
	// over_quota 0
}

// Shaping, as uber-go/ratelimit and nginx's limit_req: calls leave one every 20 ms,
// and wait for it. The store of real programs is shaped the same way.
func ExampleWaiters() {
	store, err := memstore.New(1000)
	if err != nil {
		log.Fatal(err)
	}
	policy, err := quota.NewPolicy(quota.Limit{
		Name: "calls", Algorithm: quota.LeakyBucket, Limit: 50, Burst: 1, Window: quota.Per(time.Second), MaxDelay: time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	l := quota.NewLimiter(quota.NewWaiters(1000).Shape(store), "partner", policy)
	start := time.Now()
	for range 4 {
		spend(l, quota.NewIdentity("service", "billing"), 1)
	}
	fmt.Println(time.Since(start) >= 60*time.Millisecond)
	// Output: true
}

// A consumer's day beside the service's second: a request is charged to both, or
// to neither.
func ExampleLimit_identity() {
	l, _ := limiter("sms",
		quota.Limit{Name: "daily", Limit: 5, Window: quota.PerUnit(quota.Day)},
		quota.Limit{Name: "together", Limit: 2, Window: quota.Per(time.Second), Identity: "service"})
	sms := quota.NewIdentity("service", "sms")
	for _, phone := range []string{"+8613800000001", "+8613800000002", "+8613800000003"} {
		d, err := l.Spend(context.Background(), quota.NewIdentity("phone", phone), 1, sms)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.State, d.Limits[0].Remaining, d.Limits[1].Remaining)
	}
	// Output:
	// allowed 4 1
	// hit_quota 4 0
	// over_quota 5 0
}
