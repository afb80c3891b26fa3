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
func Run(t *testing.T, open func(t *testing.T) quota.Store, is ...Option) {
	var o options
	for _, apply := range is {
		apply(&o)
	}
	t.Run("moments", func(t *testing.T) {
		for _, c := range tables {
			t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
		}
	})
	t.Run("random traces", func(t *testing.T) { traces(t, open(t), o.apart) })
	t.Run("never one more than the limit", func(t *testing.T) { concurrent(t, open(t)) })
	t.Run("several identities", func(t *testing.T) { several(t, open(t)) })
	t.Run("several identities at once", func(t *testing.T) { severalAtOnce(t, open(t)) })
	t.Run("delays", func(t *testing.T) { delays(t, open(t)) })
	t.Run("identities and scopes are apart", func(t *testing.T) { apart(t, open(t)) })
	t.Run("reset", func(t *testing.T) { reset(t, open(t)) })
	t.Run("bad requests", func(t *testing.T) { badRequests(t, open(t)) })
}

// Option says how a store differs from the strictest.
type Option func(*options)

type options struct{ apart bool }

// Apart is for a store that decides for each identity by itself, and gives back
// where they disagree.
func Apart(o *options) { o.apart = true }

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
		p := Policy(t, limits...)
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
	r.Scope, r.Identity = scope(t), alice
	d, err := store.Spend(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	alice = quota.NewIdentity("consumer", "alice")
	bob   = quota.NewIdentity("consumer", "bob")
)

// scope keeps apart the tests that share a server.
func scope(t *testing.T) string { return t.Name() }

// Policy is a policy of good limits.
func Policy(t testing.TB, limits ...quota.Limit) *quota.Policy {
	t.Helper()
	p, err := quota.NewPolicy(limits...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var (
	steps = flag.Int("steps", 4000, "steps of the random traces that are compared")
	seed  = flag.Uint64("seed", 0, "seed of the random traces, to see one again")
)

// traces walks random requests through random policies, and asks the store and
// the pure functions the same questions. On a store that decides for each identity
// by itself the clock does not step back and limits do not change: of these, what
// was charged and given back leaves a trace, of less than a unit.
func traces(t *testing.T, store quota.Store, apart bool) {
	seed := *seed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	held := holdings{}
	now := start
	var p *quota.Policy
	var last quota.Request
	var charged quota.Decision // by last
	for i := range *steps {
		anew := false
		if p == nil || random.IntN(40) == 0 {
			p = Policy(t, randomLimits(random)...)
			charged.Charged = 0
			anew = apart
		}
		if step := randomStep(random); step > 0 || !apart {
			now = now.Add(step)
		}
		if now.Year() > 2200 { // microseconds are exact until 2255
			now, anew = start, true
		}
		if anew {
			for _, id := range []quota.Identity{alice, bob} {
				if err := store.Reset(context.Background(), scope(t), id); err != nil {
					t.Fatal(err)
				}
			}
			clear(held)
			charged.Charged = 0
		}
		r := quota.Request{Scope: scope(t), Identity: alice, Policy: p, Cost: int64(random.IntN(7) - 2), Now: now}
		for _, name := range p.Others() {
			r.Others = append(r.Others, map[string]quota.Identity{"same": alice, "other": bob}[name])
		}
		switch {
		case random.IntN(8) == 0:
			r.Cost, r.UpTo = int64(1+random.IntN(12)), true
		case random.IntN(6) == 0:
			r.Policy = p.Impatient()
		case random.IntN(4) == 0 && charged.Charged > 0:
			r = last
			r.Cost, r.UpTo, r.Undo, r.Now = -charged.Charged, false, &charged, now
		}
		before := fmt.Sprint(held)
		want := held.decide(r)
		got, err := store.Spend(context.Background(), r)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("-seed %d, step %d, at %v, request %+v:\nstore gives %v, %v\n     want %v\nheld %v", seed, i, now, r, got, err, want, before)
		}
		if got.Charged > 0 {
			last, charged = r, got
		}
	}
	t.Logf("%d steps compared, no difference", *steps)
}

// holdings are what a store holds, in its plainest form.
type holdings map[quota.Identity]map[string]quota.Counter

func (h holdings) decide(r quota.Request) quota.Decision {
	held := map[string]quota.Counter{}
	of := map[string]quota.Identity{}
	for _, rule := range r.Policy.Rules() {
		of[rule.Limit.Name] = r.IdentityOf(rule.Identity)
		if c, found := h[of[rule.Limit.Name]][rule.Limit.Name]; found {
			held[rule.Limit.Name] = c
		}
	}
	d, charged := r.Decide(held, r.Now.UnixMicro())
	moved := map[quota.Identity]bool{}
	for name, c := range charged {
		id := of[name]
		if h[id] == nil {
			h[id] = map[string]quota.Counter{}
		}
		moved[id] = moved[id] || h[id][name].Until != c.Until
		h[id][name] = c
	}
	for id := range moved { // where a counter's end moves, what has ended goes
		if moved[id] {
			maps.DeleteFunc(h[id], func(_ string, c quota.Counter) bool { return c.Until <= r.Now.UnixMicro() })
		}
	}
	return d
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
			if random.IntN(3) == 0 {
				l.MaxDelay = time.Duration(random.Int64N(int64(3 * sec))).Truncate(µs)
			}
		case quota.SlidingWindow:
			l.Buckets = []int{1, 2, 5, 10}[random.IntN(4)]
		}
		l.Identity = []string{"", "", "same", "other"}[random.IntN(4)]
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
	p := Policy(t,
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
	p := Policy(t, quota.Limit{Name: "a", Limit: 1, Window: quota.Per(time.Hour)})
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
	p := Policy(t, quota.Limit{Name: "a", Limit: 3, Window: quota.Per(time.Hour)})
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
	p := Policy(t, quota.Limit{Name: "a", Limit: 3, Window: quota.Per(time.Hour)})
	both := Policy(t, quota.Limit{Name: "a", Limit: 3, Window: quota.Per(time.Hour), Identity: "service"})
	id := quota.NewIdentity("consumer", "alice")
	for want, r := range map[string]quota.Request{
		`spend: cost: -2147483649 must be between -2147483648 and 2147483648`:          {Scope: "s", Identity: id, Policy: p, Cost: -quota.MaxCost - 1, Now: start},
		`spend: cost: 2147483649 must be between -2147483648 and 2147483648`:           {Scope: "s", Identity: id, Policy: p, Cost: quota.MaxCost + 1, Now: start},
		`spend: cost: 0 must be at least 1 to be charged in part`:                      {Scope: "s", Identity: id, Policy: p, UpTo: true, Now: start},
		`spend: policy: <nil> must be set`:                                             {Scope: "s", Identity: id, Cost: 1, Now: start},
		`spend: others: 0 identities: the policy counts 1: service`:                    {Scope: "s", Identity: id, Policy: both, Cost: 1, Now: start},
		`spend: others: "[]" must not have an empty identity`:                          {Scope: "s", Policy: both, Others: []quota.Identity{""}, Cost: 1, Now: start},
		`spend: undo: allowed needs a negative cost and a decision of the same policy`: {Scope: "s", Identity: id, Policy: p, Cost: 1, Now: start, Undo: &quota.Decision{State: quota.Allowed}},
		`spend: identity: "" must not be empty`:                                        {Scope: "s", Policy: p, Cost: 1, Now: start},
	} {
		d, err := store.Spend(context.Background(), r)
		if err == nil || err.Error() != want || d.State != quota.Unknown {
			t.Errorf("got %v, %v; want the error %s", d, err, want)
		}
	}
}
