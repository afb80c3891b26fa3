package leases_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kong-quota/internal/testredis"
	"kong-quota/quota"
	"kong-quota/quota/leases"
	"kong-quota/quota/memstore"
	"kong-quota/quota/redisstore"
	"kong-quota/quota/storetest"
)

// asked counts what reaches the store, which may be lost.
type asked struct {
	quota.Store
	n    atomic.Int64
	lost atomic.Bool
	late time.Duration // for what is given back to arrive
}

func (a *asked) Spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	a.n.Add(1)
	if r.Cost < 0 {
		time.Sleep(a.late)
	}
	if a.lost.Load() {
		return quota.Decision{}, quota.ErrUnavailable
	}
	return a.Store.Spend(ctx, r)
}

func memory(t testing.TB) *asked {
	t.Helper()
	m, err := memstore.New(1000)
	if err != nil {
		t.Fatal(err)
	}
	return &asked{Store: m}
}

var alice = quota.NewIdentity("consumer", "alice")

func leased(limit int64, window quota.Window, lease quota.Lease) quota.Limit {
	return quota.Limit{Name: "a", Limit: limit, Window: window, Align: quota.Calendar, Lease: lease}
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) quota.Store { return leases.New(memory(t), 100) })
}

func spend(t testing.TB, s quota.Store, p *quota.Policy, cost int64) quota.Decision {
	t.Helper()
	d, err := s.Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: cost})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestABlockIsSpentHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory(t)
		s := leases.New(store, 100)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Hour), quota.Lease{Share: 0.1, MaxAge: time.Minute}), quota.Limit{
			Name: "b", Limit: 1000, Window: quota.Per(24 * time.Hour), Lease: quota.Lease{Share: 0.5, MaxAge: time.Hour}})
		// The first request takes no block; then each takes a tenth of what is left.
		for i := range 100 {
			d := spend(t, s, p, 1)
			want := quota.Allowed
			if i == 99 {
				want = quota.HitQuota
			}
			if d.State != want || d.Charged != 1 || d.Limits[0].Remaining != int64(99-i) || d.Limits[1].Remaining != int64(999-i) {
				t.Fatalf("request %d: %+v", i+1, d)
			}
		}
		if d := spend(t, s, p, 1); d.State != quota.OverQuota || d.RetryAfter() != d.Limits[0].Reset || d.Limits[0].RetryAfter == 0 || d.Limits[1].RetryAfter != 0 {
			t.Errorf("the next: %+v", d)
		}
		if n := store.n.Load(); n > 45 || s.Local() < 60 {
			t.Errorf("the store was asked %d times, %d were decided here", n, s.Local())
		}
	})
}

func TestWhatIsNotSpentGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory(t)
		one, two := leases.New(store, 100), leases.New(store, 100)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Hour), quota.Lease{Share: 0.5, MaxAge: time.Minute}))
		remaining := func() int64 {
			t.Helper()
			return spend(t, store, p, 0).Limits[0].Remaining
		}
		spend(t, one, p, 1)
		spend(t, one, p, 1) // and 48 more
		if got := remaining(); got != 50 {
			t.Errorf("%d remain beside the block", got)
		}
		spend(t, two, p, 1)
		spend(t, two, p, 1)
		if got := remaining(); got != 25 {
			t.Errorf("%d remain beside two blocks", got)
		}
		// The formula: what is admitted at least while two others hold theirs.
		passed := 0
		for spend(t, store, p, 1).State != quota.OverQuota {
			passed++
		}
		if passed != 25 {
			t.Errorf("%d passed beside two blocks", passed)
		}
		time.Sleep(time.Minute + time.Second)
		if got := remaining(); got != 48+23 {
			t.Errorf("%d remain when the blocks have gone back, want %d", got, 48+23)
		}
		spend(t, one, p, 1)
		spend(t, one, p, 1)
		one.Stop(t.Context())
		if got := remaining(); got != 48+23-2 {
			t.Errorf("%d remain after a stop, want %d", got, 48+23-2)
		}
		spend(t, one, p, 1)
		spend(t, one, p, 1)
		if got := remaining(); got != 48+23-4 {
			t.Errorf("%d remain; a node that stops takes no more", got)
		}
	})
}

// A block is void when its window ends: it is neither spent nor given back to the
// next one.
func TestABlockEndsWithItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory(t)
		s := leases.New(store, 100)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Minute), quota.Lease{Share: 0.5, MaxAge: time.Hour}))
		time.Sleep(59 * time.Second)
		spend(t, s, p, 1)
		spend(t, s, p, 1)
		time.Sleep(time.Second)
		for i := range 100 {
			if d := spend(t, store, p, 1); d.State == quota.OverQuota {
				t.Fatalf("request %d of the next window: %+v", i+1, d)
			}
		}
		if d := spend(t, s, p, 1); d.State != quota.OverQuota {
			t.Errorf("spent from a block of the window before: %+v", d)
		}
		time.Sleep(2 * time.Hour)
	})
}

// What is given back too late does not count in the next window.
func TestWhatArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory(t)
		store.late = 5 * time.Second
		s := leases.New(store, 100)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Minute), quota.Lease{Share: 0.5, MaxAge: time.Second}))
		time.Sleep(57 * time.Second)
		spend(t, s, p, 1)
		spend(t, s, p, 1) // and 48 more, which go back at :58, and arrive at :03
		time.Sleep(4 * time.Second)
		if d := spend(t, store, p, 60); d.Limits[0].Remaining != 40 {
			t.Errorf("the next window: %+v", d)
		}
		time.Sleep(10 * time.Second)
		if d := spend(t, store, p, 0); d.Limits[0].Remaining != 40 {
			t.Errorf("%d remain of the next window, want 40", d.Limits[0].Remaining)
		}
	})
}

// Five nodes, killed and started at random, never admit more than the limit in any
// window; without kills nothing is lost.
func TestNeverMoreThanTheLimit(t *testing.T) {
	for seed := range uint64(20) {
		for _, kills := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 3))
				store := memory(t)
				limit := 1 + random.Int64N(300)
				p := storetest.Policy(t, leased(limit, quota.PerUnit(quota.Minute), quota.Lease{Share: 0.01 + 0.49*random.Float64(), MaxAge: time.Duration(1+random.IntN(90)) * time.Second}))
				nodes := make([]*leases.Store, 5)
				for i := range nodes {
					nodes[i] = leases.New(store, 100)
				}
				admitted := map[int64]int64{} // by window
				var mu sync.Mutex
				for range 400 {
					time.Sleep(time.Duration(random.IntN(900)) * time.Millisecond)
					if i := random.IntN(60); i < 5 {
						if !kills {
							nodes[i].Stop(t.Context())
						}
						nodes[i] = leases.New(store, 100)
					}
					window := time.Now().UnixMilli() / 60_000
					var wg sync.WaitGroup
					for range 1 + random.IntN(12) {
						node, cost := nodes[random.IntN(5)], 1+random.Int64N(3)
						wg.Go(func() {
							d, err := node.Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: cost})
							if err != nil {
								t.Error(err)
							}
							if d.State != quota.OverQuota {
								mu.Lock()
								admitted[window] += cost
								mu.Unlock()
							}
						})
					}
					wg.Wait()
				}
				for window, n := range admitted {
					if n > limit {
						t.Errorf("seed %d, kills %v: %d admitted in window %d, limit %d", seed, kills, n, window, limit)
					}
				}
				for _, node := range nodes {
					node.Stop(t.Context())
				}
				window := time.Now().UnixMilli() / 60_000
				if d := spend(t, store, p, 0); d.Limits[0].Remaining > limit-admitted[window] || !kills && d.Limits[0].Remaining != limit-admitted[window] {
					t.Errorf("seed %d, kills %v: %d remain of %d, %d were admitted", seed, kills, d.Limits[0].Remaining, limit, admitted[window])
				}
				time.Sleep(time.Hour)
			})
		}
	}
}

// The same on Redis, in real time: nodes die while requests are under way.
func TestNeverMoreThanTheLimitOnRedis(t *testing.T) {
	client := testredis.Start(t).Client()
	const limit = 2000
	p := storetest.Policy(t, quota.Limit{Name: "a", Limit: limit, Window: quota.Per(time.Hour), Lease: quota.Lease{Share: 0.1, MaxAge: 50 * time.Millisecond}})
	store := redisstore.New(client)
	var nodes [5]atomic.Pointer[leases.Store]
	for i := range nodes {
		nodes[i].Store(leases.New(store, 100))
	}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for client := range 20 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 5))
			for range 300 {
				i := random.IntN(5)
				if random.IntN(200) == 0 {
					nodes[i].Store(leases.New(store, 100)) // the one before is dead, with its block
				}
				d, err := nodes[i].Load().Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1})
				if err != nil {
					t.Error(err)
				}
				if d.State != quota.OverQuota {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range nodes {
		nodes[i].Load().Stop(t.Context())
	}
	d := spend(t, store, p, 0)
	t.Logf("%d admitted, %d remain, %d of %d were lost with their nodes", admitted.Load(), d.Limits[0].Remaining, limit-admitted.Load()-d.Limits[0].Remaining, limit)
	if admitted.Load()+d.Limits[0].Remaining > limit || admitted.Load() == 0 {
		t.Errorf("%d admitted and %d remain of %d", admitted.Load(), d.Limits[0].Remaining, limit)
	}
}

func TestAStoreThatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory(t)
		s := leases.New(store, 100)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Hour), quota.Lease{Share: 0.1, MaxAge: time.Minute}))
		spend(t, s, p, 1)
		spend(t, s, p, 1) // and 8 more
		store.lost.Store(true)
		for range 8 {
			spend(t, s, p, 1)
		}
		if d, err := s.Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}); !errors.Is(err, quota.ErrUnavailable) || d.State != quota.Unknown {
			t.Errorf("%v, %v", d, err)
		}
		store.lost.Store(false)
		if d := spend(t, s, p, 1); d.State != quota.Allowed {
			t.Errorf("%v", d)
		}
	})
}

// What was reset is not spent from a block of before.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leases.New(memory(t), 100)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Hour), quota.Lease{Share: 0.5, MaxAge: time.Minute}))
		for range 10 {
			spend(t, s, p, 1)
		}
		if err := s.Reset(t.Context(), "s", alice); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if d := spend(t, s, p, 1); d.State == quota.OverQuota {
				t.Fatalf("request %d after the reset: %+v", i+1, d)
			}
		}
		if d := spend(t, s, p, 1); d.State != quota.OverQuota {
			t.Errorf("one more than the limit: %+v", d)
		}
	})
}

func TestBlocksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory(t)
		s := leases.New(store, 2)
		p := storetest.Policy(t, leased(100, quota.PerUnit(quota.Hour), quota.Lease{Share: 0.5, MaxAge: time.Minute}))
		for i := range 40 {
			if _, err := s.Spend(t.Context(), quota.Request{Scope: "s", Identity: quota.NewIdentity("c", fmt.Sprint(i%4)), Policy: p, Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if n := store.n.Load(); n != 20+2*2 {
			t.Errorf("the store was asked %d times", n)
		}
	})
}

func BenchmarkLeased(b *testing.B) {
	s := leases.New(memory(b), 100)
	p := storetest.Policy(b, quota.Limit{Name: "a", Limit: quota.MaxLimit, Window: quota.Per(time.Hour), Lease: quota.Lease{Share: 0.1, MaxAge: time.Hour}})
	r := quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if d, err := s.Spend(b.Context(), r); err != nil || d.State == quota.OverQuota {
				b.Fatal(d, err)
			}
		}
	})
}
