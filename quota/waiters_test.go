package quota_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kong-quota/quota"
	"kong-quota/quota/memstore"
)

func shaper(t *testing.T, waiters *quota.Waiters, l quota.Limit) *quota.Limiter {
	t.Helper()
	store, err := memstore.New(100)
	if err != nil {
		t.Fatal(err)
	}
	p, err := quota.NewPolicy(l)
	if err != nil {
		t.Fatal(err)
	}
	return quota.NewLimiter(waiters.Shape(store), "s", p)
}

var shaping = []quota.Algorithm{quota.LeakyBucket, quota.TokenBucket, quota.GCRA}

// A burst of requests leaves at the limit's rate, as behind a funnel.
func TestRequestsWaitForTheirTurn(t *testing.T) {
	for _, a := range shaping {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				waiters := quota.NewWaiters(100)
				l := shaper(t, waiters, quota.Limit{Name: "a", Algorithm: a, Limit: 10, Burst: 2, Window: quota.Per(time.Second), MaxDelay: time.Second})
				start := time.Now()
				left := make(chan time.Duration, 20)
				refused := make(chan quota.Decision, 20)
				for range 15 {
					go func() {
						d, err := l.Spend(context.Background(), quota.NewIdentity("consumer", "alice"), 1)
						switch {
						case err != nil:
							t.Error(err)
						case d.State == quota.OverQuota:
							refused <- d
						default:
							left <- time.Since(start)
						}
					}()
				}
				synctest.Wait()
				if n := waiters.Waiting(); n != 10 {
					t.Errorf("%d wait, want 10", n)
				}
				// Two at once, then one every 100 ms up to the longest delay.
				for i := range 12 {
					if at, want := <-left, time.Duration(max(0, i-1))*100*time.Millisecond; at != want {
						t.Errorf("request %d left after %v, want %v", i+1, at, want)
					}
				}
				for range 3 {
					if d := <-refused; d.RetryAfter() != 100*time.Millisecond {
						t.Errorf("refused with %+v", d)
					}
				}
				synctest.Wait()
				if waiters.Waiting() != 0 {
					t.Errorf("%d still wait", waiters.Waiting())
				}
			})
		})
	}
}

func TestWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiters := quota.NewWaiters(3)
		l := shaper(t, waiters, quota.Limit{Name: "a", Algorithm: quota.GCRA, Limit: 1, Window: quota.Per(time.Second), MaxDelay: 30 * time.Second})
		states := make(chan quota.State, 20)
		for range 10 {
			go func() {
				d, err := l.Spend(context.Background(), quota.NewIdentity("consumer", "alice"), 1)
				if err != nil {
					t.Error(err)
				}
				states <- d.State
			}()
			synctest.Wait()
		}
		count := map[quota.State]int{}
		for range 10 {
			count[<-states]++
		}
		// The first passes at once; three wait; the others find no place.
		if count[quota.HitQuota] != 4 || count[quota.OverQuota] != 6 {
			t.Errorf("%v", count)
		}
	})
}

// Who goes away gives back the last turn, and no turn that others count on.
func TestWhoGoesAwayGivesTheTurnBack(t *testing.T) {
	for _, a := range shaping {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := shaper(t, quota.NewWaiters(10), quota.Limit{Name: "a", Algorithm: a, Limit: 1, Window: quota.Per(time.Second), MaxDelay: 30 * time.Second})
				alice := quota.NewIdentity("consumer", "alice")
				spend := func(ctx context.Context) (quota.Decision, error) { return l.Spend(ctx, alice, 1) }
				wait := func(within time.Duration) (leave func()) {
					ctx, cancel := context.WithCancel(context.Background())
					done := make(chan struct{})
					go func() {
						defer close(done)
						if d, err := spend(ctx); err == nil {
							t.Errorf("passed: %+v", d)
						} else if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					}()
					synctest.Wait()
					if d, err := l.Peek(context.Background(), alice); err != nil || d.Limits[0].Reset != within {
						t.Errorf("full again in %v, %v; want %v", d.Limits[0].Reset, err, within)
					}
					return func() { cancel(); <-done }
				}
				if d, err := spend(context.Background()); err != nil || d.Wait != 0 {
					t.Fatalf("%+v, %v", d, err)
				}
				wait(2 * time.Second)() // comes and goes
				first, second := wait(2*time.Second), wait(3*time.Second)
				first() // the second counts on it
				second()
				if d, err := l.Peek(context.Background(), alice); err != nil || d.Limits[0].Reset != 2*time.Second {
					t.Errorf("%+v, %v: the last turn is given back, the one before is not", d, err)
				}
			})
		})
	}
}
