package denials_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kong-quota/quota"
	"kong-quota/quota/denials"
	"kong-quota/quota/memstore"
	"kong-quota/quota/storetest"
)

// asked counts what reaches the store.
type asked struct {
	quota.Store
	n atomic.Int64
}

func (a *asked) Spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	a.n.Add(1)
	return a.Store.Spend(ctx, r)
}

func newStore(t testing.TB, longest time.Duration, entries int) (*denials.Store, *asked) {
	t.Helper()
	memory, err := memstore.New(1000)
	if err != nil {
		t.Fatal(err)
	}
	a := &asked{Store: memory}
	return denials.New(a, longest, entries), a
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) quota.Store { s, _ := newStore(t, time.Hour, 1000); return s })
}

var alice = quota.NewIdentity("consumer", "alice")

// Every refusal reads as the store's would, and lasts as long.
func TestRefusalsAreThoseOfTheStore(t *testing.T) {
	for _, a := range quota.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, store := newStore(t, time.Hour, 100)
				p := storetest.Policy(t, quota.Limit{Name: "a", Algorithm: a, Limit: 3, Window: quota.Per(9 * time.Second)}, quota.Limit{Name: "b", Limit: 100, Window: quota.Per(time.Minute)})
				passed := 0
				for range 300 {
					time.Sleep(100 * time.Millisecond)
					r := quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}
					peek := r
					peek.Now = time.Now()
					want, err := store.Store.Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 0})
					if err != nil {
						t.Fatal(err)
					}
					d, err := s.Spend(t.Context(), r)
					if err != nil {
						t.Fatal(err)
					}
					if d.State != quota.OverQuota {
						passed++
						continue
					}
					for i := range want.Limits {
						want.Limits[i].RetryAfter = d.Limits[i].RetryAfter
					}
					if fmt.Sprint(d.Limits) != fmt.Sprint(want.Limits) || d.RetryAfter() != d.Limits[0].Next || !d.Now.Equal(time.Now()) {
						t.Fatalf("got %+v, want %+v", d, want)
					}
				}
				// 30 s of three in 9 s: which of them are full depends on the algorithm.
				if passed < 10 || passed > 13 {
					t.Errorf("%d passed", passed)
				}
				if n := store.n.Load(); n > int64(2*passed) || s.Local() != 300-n {
					t.Errorf("%d passed, %d asked, %d refused here", passed, n, s.Local())
				}
			})
		})
	}
}

func TestWhatIsGivenBackCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := newStore(t, time.Second, 100)
		p := storetest.Policy(t, quota.Limit{Name: "a", Limit: 1, Window: quota.Per(time.Hour)})
		spend := func() quota.State {
			t.Helper()
			d, err := s.Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			return d.State
		}
		expect := func(want ...quota.State) {
			t.Helper()
			for i, w := range want {
				if got := spend(); got != w {
					t.Errorf("request %d: %v, want %v", i+1, got, w)
				}
			}
		}
		expect(quota.HitQuota, quota.OverQuota, quota.OverQuota)
		if err := s.Reset(t.Context(), "s", alice); err != nil {
			t.Fatal(err)
		}
		expect(quota.HitQuota, quota.OverQuota)
		if _, err := s.Spend(t.Context(), quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: -1}); err != nil {
			t.Fatal(err)
		}
		expect(quota.HitQuota, quota.OverQuota)
		// Another node resets: not noticed for a second, unless it is announced.
		if err := store.Reset(t.Context(), "s", alice); err != nil {
			t.Fatal(err)
		}
		expect(quota.OverQuota)
		time.Sleep(time.Second)
		expect(quota.HitQuota, quota.OverQuota)
		if err := store.Reset(t.Context(), "s", alice); err != nil {
			t.Fatal(err)
		}
		s.Forget("s", alice)
		expect(quota.HitQuota, quota.OverQuota)
	})
}

// What is remembered is of one policy, cost, scope and identity.
func TestOthersAreAsked(t *testing.T) {
	s, store := newStore(t, time.Hour, 100)
	p, q := storetest.Policy(t, quota.Limit{Name: "a", Limit: 2, Window: quota.Per(time.Hour)}), storetest.Policy(t, quota.Limit{Name: "b", Limit: 2, Window: quota.Per(time.Hour)})
	for i, c := range []struct {
		request quota.Request
		state   quota.State
		asked   bool
	}{
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 3}, quota.OverQuota, true}, // never
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 3}, quota.OverQuota, false},
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 2}, quota.HitQuota, true},
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}, quota.OverQuota, true},
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}, quota.OverQuota, false},
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 0}, quota.HitQuota, true},
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1, UpTo: true}, quota.OverQuota, true},
		{quota.Request{Scope: "s", Identity: alice, Policy: q, Cost: 1}, quota.Allowed, true},
		{quota.Request{Scope: "t", Identity: alice, Policy: p, Cost: 1}, quota.Allowed, true},
		{quota.Request{Scope: "s", Identity: "bob", Policy: p, Cost: 1}, quota.Allowed, true},
		{quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}, quota.OverQuota, false},
	} {
		before := store.n.Load()
		d, err := s.Spend(t.Context(), c.request)
		if err != nil || d.State != c.state || store.n.Load() != before+map[bool]int64{true: 1}[c.asked] {
			t.Errorf("request %d: %v, %v, asked %d times; want %v", i+1, d, err, store.n.Load()-before, c.state)
		}
	}
}

func TestTableIsBounded(t *testing.T) {
	s, store := newStore(t, time.Hour, 64)
	p := storetest.Policy(t, quota.Limit{Name: "a", Limit: 1, Window: quota.Per(time.Hour)})
	spend := func(i int) {
		if _, err := s.Spend(t.Context(), quota.Request{Scope: "s", Identity: quota.NewIdentity("c", fmt.Sprint(i)), Policy: p, Cost: 2}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 {
		spend(i)
	}
	before := store.n.Load()
	for i := range 2000 {
		spend(i)
	}
	if known := 2000 - (store.n.Load() - before); known > 64 {
		t.Errorf("%d are remembered", known)
	}
}

func BenchmarkDenied(b *testing.B) {
	s, _ := newStore(b, time.Hour, 100)
	p := storetest.Policy(b, quota.Limit{Name: "a", Limit: 1, Window: quota.Per(time.Hour)})
	r := quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: 1}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Spend(b.Context(), r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
