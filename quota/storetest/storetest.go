// Package storetest is the suite that every quota.Store passes: the same tables
// of moments, and random traces against the pure functions of package quota.
package storetest

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kong-quota/quota"
)

// Run runs the suite on stores that open makes; each is used by one test and
// may share its server with others, since every test has a scope of its own.
func Run(t *testing.T, open func(t *testing.T) quota.Store) {
	t.Run("moments", func(t *testing.T) {
		for _, c := range tables {
			t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
		}
	})
	t.Run("random traces", func(t *testing.T) { traces(t, open(t)) })
	t.Run("never one more than the limit", func(t *testing.T) { concurrent(t, open(t)) })
	t.Run("identities and scopes are apart", func(t *testing.T) { apart(t, open(t)) })
	t.Run("reset", func(t *testing.T) { reset(t, open(t)) })
	t.Run("bad requests", func(t *testing.T) { badRequests(t, open(t)) })
}

// table is a story of one identity: requests at moments, and what each gives.
type table struct {
	name   string
	limits []quota.Limit
	steps  []step
}

type step struct {
	at     time.Duration // since the table's start
	cost   int64
	state  quota.State
	limits []quota.Limit // from this step on, instead of the table's
	want   []standing    // in the order of the limits
}

type standing struct {
	remaining    int64
	reset, retry time.Duration
}

// start is a Thursday, 50 ms after a full second of no particular minute.
var start = time.Date(2019, 11, 21, 10, 20, 30, 50e6, time.UTC)

const (
	allowed = quota.Allowed
	hit     = quota.HitQuota
	over    = quota.OverQuota
	never   = quota.Never
	sec     = time.Second
	ms      = time.Millisecond
	µs      = time.Microsecond
)

func (c table) run(t *testing.T, store quota.Store) {
	limits := c.limits
	for i, s := range c.steps {
		if s.limits != nil {
			limits = s.limits
		}
		p := policy(t, limits...)
		d := spend(t, store, p, s.at, s.cost)
		got := make([]standing, len(d.Limits))
		for j, l := range d.Limits {
			got[j] = standing{l.Remaining, l.Reset, l.RetryAfter}
			if want := p.Rules()[j]; l.Name != want.Limit.Name || l.Limit != want.Capacity() {
				t.Errorf("step %d: limit %d is %s of %d, want %s of %d", i, j, l.Name, l.Limit, want.Limit.Name, want.Capacity())
			}
		}
		if d.State != s.state || fmt.Sprint(got) != fmt.Sprint(s.want) {
			t.Errorf("step %d, at %v, cost %d:\n got %v %v\nwant %v %v", i, s.at, s.cost, d.State, got, s.state, s.want)
		}
	}
}

func spend(t *testing.T, store quota.Store, p *quota.Policy, at time.Duration, cost int64) quota.Decision {
	t.Helper()
	return ask(t, store, quota.Request{Policy: p, Cost: cost, Now: start.Add(at)})
}

func ask(t *testing.T, store quota.Store, r quota.Request) quota.Decision {
	t.Helper()
	r.Scope, r.Identity = scope(t), quota.NewIdentity("consumer", "alice")
	d, err := store.Spend(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// scope keeps apart the tests that share a server.
func scope(t *testing.T) string { return t.Name() }

func policy(t testing.TB, limits ...quota.Limit) *quota.Policy {
	t.Helper()
	p, err := quota.NewPolicy(limits...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var steps = flag.Int("steps", 4000, "steps of the random traces that are compared")

// traces walks random requests through random policies, and asks the store and
// the pure functions the same questions.
func traces(t *testing.T, store quota.Store) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	held := map[string]quota.Counter{}
	now := start
	var p *quota.Policy
	for i := range *steps {
		if p == nil || random.IntN(40) == 0 {
			p = policy(t, randomLimits(random)...)
		}
		now = now.Add(randomStep(random))
		if now.Year() > 2200 { // microseconds are exact until 2255
			now = start
			if err := store.Reset(context.Background(), scope(t), quota.NewIdentity("consumer", "alice")); err != nil {
				t.Fatal(err)
			}
			clear(held)
		}
		cost, upTo := int64(random.IntN(7)-2), random.IntN(8) == 0
		decide := p.Decide
		if upTo {
			cost, decide = int64(1+random.IntN(12)), p.DecideUpTo
		}
		want, charged := decide(held, now.UnixMicro(), cost)
		if charged != nil { // with what is written, what has ended goes
			maps.Copy(held, charged)
			maps.DeleteFunc(held, func(_ string, c quota.Counter) bool { return c.Until <= now.UnixMicro() })
		}
		got := ask(t, store, quota.Request{Policy: p, Cost: cost, UpTo: upTo, Now: now})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d, step %d, at %v, cost %d:\nstore gives %v\n     want %v\nheld %v", seed, i, now, cost, got, want, held)
		}
	}
	t.Logf("%d steps compared, no difference", *steps)
}

func randomLimits(random *rand.Rand) []quota.Limit {
	names := []string{"a", "b", "c"}[:1+random.IntN(3)]
	windows := []quota.Window{quota.Per(sec), quota.Per(90 * ms), quota.Per(7 * sec), quota.Per(time.Minute),
		quota.PerUnit(quota.Second), quota.PerUnit(quota.Minute), quota.PerUnit(quota.Hour), quota.PerUnit(quota.Day), quota.PerUnit(quota.Month)}
	var limits []quota.Limit
	for _, name := range names {
		l := quota.Limit{Name: name, Limit: 1 + random.Int64N(12), Algorithm: quota.Algorithms[random.IntN(len(quota.Algorithms))]}
		switch l.Algorithm {
		case quota.FixedWindow:
			l.Window, l.Align = windows[random.IntN(len(windows))], quota.Aligns[random.IntN(2)]
			if l.Window.Unit != "" {
				l.Timezone = []string{"UTC", "Asia/Kathmandu", "America/New_York"}[random.IntN(3)]
			}
		default:
			l.Window = windows[random.IntN(len(windows)-1)]
		}
		switch l.Algorithm {
		case quota.LeakyBucket, quota.TokenBucket, quota.GCRA:
			l.Burst = 1 + random.Int64N(12)
		case quota.SlidingWindow:
			l.Buckets = []int{1, 2, 5, 10}[random.IntN(4)]
		}
		limits = append(limits, l)
	}
	return limits
}

// randomStep mostly creeps, sometimes leaps over windows, and sometimes goes back.
func randomStep(random *rand.Rand) time.Duration {
	switch random.IntN(12) {
	case 0:
		return time.Duration(random.Int64N(int64(40 * 24 * time.Hour))).Truncate(µs)
	case 1:
		return -time.Duration(random.Int64N(int64(2 * sec))).Truncate(µs)
	case 2:
		return 0
	default:
		return time.Duration(random.Int64N(int64(300 * ms))).Truncate(µs)
	}
}

// concurrent lets many goroutines spend at the same moment: exactly the limit
// passes, one of them hits it, and the limit that never refuses is charged for
// just these.
func concurrent(t *testing.T, store quota.Store) {
	const clients, each, limit = 32, 50, 777
	p := policy(t,
		quota.Limit{Name: "tight", Limit: limit, Window: quota.Per(time.Hour)},
		quota.Limit{Name: "wide", Limit: clients * each * 2, Window: quota.Per(time.Hour)})
	var passed, hits atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range each {
				d := spend(t, store, p, 0, 1)
				if d.State != over {
					passed.Add(1)
				}
				if d.State == hit {
					hits.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != limit || hits.Load() != 1 {
		t.Errorf("%d passed and %d hit the quota, want %d and 1", passed.Load(), hits.Load(), limit)
	}
	if d := spend(t, store, p, 0, 0); d.Limits[1].Remaining != clients*each*2-limit {
		t.Errorf("refused requests were charged to the other limit: %v", d)
	}
}

func apart(t *testing.T, store quota.Store) {
	p := policy(t, quota.Limit{Name: "a", Limit: 1, Window: quota.Per(time.Hour)})
	seen := 0
	for _, s := range []string{scope(t) + "/x", scope(t) + "/y"} {
		for _, id := range []quota.Identity{
			quota.NewIdentity("consumer", "a"), quota.NewIdentity("ip", "a"), quota.NewIdentity("consumer", "b"),
			quota.NewIdentity("consumer", "a}"), quota.NewIdentity("consumer", "{a}"), quota.NewIdentity("consumer", ""),
			quota.Compound(quota.NewIdentity("consumer", "a"), quota.NewIdentity("ip", "a")),
			quota.NewIdentity("consumer", "a+ip:a"),
		} {
			seen++
			d, err := store.Spend(context.Background(), quota.Request{Scope: s, Identity: id, Policy: p, Cost: 1, Now: start})
			if err != nil || d.State != hit {
				t.Errorf("%s of %s shares its counter with another: %v, %v", id, s, d, err)
			}
		}
	}
	if seen != 16 {
		t.Errorf("%d identities seen", seen)
	}
}

func reset(t *testing.T, store quota.Store) {
	p := policy(t, quota.Limit{Name: "a", Limit: 3, Window: quota.Per(time.Hour)})
	for range 3 {
		spend(t, store, p, 0, 1)
	}
	other := quota.NewIdentity("consumer", "bob")
	if err := store.Reset(context.Background(), scope(t), other); err != nil {
		t.Fatal(err)
	}
	if d := spend(t, store, p, 0, 0); d.Limits[0].Remaining != 0 {
		t.Errorf("a reset of another identity gave %v", d)
	}
	if err := store.Reset(context.Background(), scope(t), quota.NewIdentity("consumer", "alice")); err != nil {
		t.Fatal(err)
	}
	if d := spend(t, store, p, 0, 0); d.Limits[0].Remaining != 3 {
		t.Errorf("after the reset: %v", d)
	}
}

func badRequests(t *testing.T, store quota.Store) {
	p := policy(t, quota.Limit{Name: "a", Limit: 3, Window: quota.Per(time.Hour)})
	id := quota.NewIdentity("consumer", "alice")
	for want, r := range map[string]quota.Request{
		`spend: cost: -2147483649 must be between -2147483648 and 2147483648`: {Scope: "s", Identity: id, Policy: p, Cost: -quota.MaxCost - 1, Now: start},
		`spend: cost: 2147483649 must be between -2147483648 and 2147483648`:  {Scope: "s", Identity: id, Policy: p, Cost: quota.MaxCost + 1, Now: start},
		`spend: cost: 0 must be at least 1 to be charged in part`:             {Scope: "s", Identity: id, Policy: p, UpTo: true, Now: start},
		`spend: identity: "" must not be empty`:                               {Scope: "s", Policy: p, Cost: 1, Now: start},
	} {
		d, err := store.Spend(context.Background(), r)
		if err == nil || err.Error() != want || d.State != quota.Unknown {
			t.Errorf("got %v, %v; want the error %s", d, err, want)
		}
	}
}
