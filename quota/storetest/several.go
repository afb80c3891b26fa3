package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kong-quota/quota"
)

// several is a consumer's day beside the service's second: every request is
// charged to both, or to neither.
func several(t *testing.T, store quota.Store) {
	p := Policy(t,
		quota.Limit{Name: "day", Limit: 3, Window: quota.Per(24 * time.Hour)},
		quota.Limit{Name: "second", Limit: 4, Window: quota.Per(time.Second), Identity: "service"})
	service := quota.NewIdentity("service", "sms")
	for i, c := range []struct {
		who             quota.Identity
		cost            int64
		state           quota.State
		day, second     int64
		dayRe, secondRe time.Duration
	}{
		{alice, 1, allowed, 2, 3, 0, 0},
		{alice, 3, over, 2, 3, 24 * time.Hour, 0}, // nothing is taken from the service
		{alice, 2, hit, 0, 1, 0, 0},
		{alice, 1, over, 0, 1, 24 * time.Hour, 0},
		{bob, 2, over, 3, 1, 0, sec}, // nothing is taken from bob
		{bob, 1, hit, 2, 0, 0, 0},
		{bob, 1, over, 2, 0, 0, sec},
		{bob, 0, hit, 2, 0, 0, 0},
		{bob, -1, allowed, 3, 1, 0, 0},
	} {
		d, err := store.Spend(context.Background(), quota.Request{
			Scope: scope(t), Identity: c.who, Others: []quota.Identity{service}, Policy: p, Cost: c.cost, Now: start,
		})
		if err != nil {
			t.Fatal(err)
		}
		if d.State != c.state || d.Limits[0].Remaining != c.day || d.Limits[1].Remaining != c.second || d.Limits[0].RetryAfter != c.dayRe || d.Limits[1].RetryAfter != c.secondRe {
			t.Errorf("step %d: %+v, want %+v", i, d, c)
		}
	}
	// Either identity has its counters to itself: a reset of one leaves the other.
	if err := store.Reset(context.Background(), scope(t), alice); err != nil {
		t.Fatal(err)
	}
	d, err := store.Spend(context.Background(), quota.Request{Scope: scope(t), Identity: alice, Others: []quota.Identity{service}, Policy: p, Now: start})
	if err != nil || d.Limits[0].Remaining != 3 || d.Limits[1].Remaining != 1 {
		t.Errorf("after a reset: %+v, %v", d, err)
	}
}

// severalAtOnce lets the consumers of a service compete: never one admission more
// than any limit, and what refused requests were charged for a moment is back.
func severalAtOnce(t *testing.T, store quota.Store) {
	const consumers, each, own, all = 8, 100, 40, 100
	p := Policy(t,
		quota.Limit{Name: "own", Limit: own, Window: quota.Per(time.Hour)},
		quota.Limit{Name: "all", Algorithm: quota.SlidingWindow, Limit: all, Window: quota.Per(time.Hour), Identity: "service"})
	service := quota.NewIdentity("service", "sms")
	passed := make([]atomic.Int64, consumers)
	var wg sync.WaitGroup
	ask := func(i int, cost int64) quota.Decision {
		d, err := store.Spend(context.Background(), quota.Request{
			Scope: scope(t), Identity: quota.NewIdentity("consumer", string(rune('a'+i))), Others: []quota.Identity{service}, Policy: p, Cost: cost, Now: start,
		})
		if err != nil {
			t.Error(err)
		}
		return d
	}
	for i := range consumers {
		for range 4 {
			wg.Go(func() {
				for range each / 4 {
					if ask(i, 1).State != over {
						passed[i].Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	var total int64
	for i := range passed {
		n := passed[i].Load()
		total += n
		if d := ask(i, 0); n > own || d.Limits[0].Remaining != own-n {
			t.Errorf("consumer %d: %d passed, want at most %d; %+v", i, n, own, d)
		}
	}
	if d := ask(0, 0); total > all || d.Limits[1].Remaining != all-total {
		t.Errorf("%d passed, want at most %d; %+v", total, all, d)
	}
	if total < own {
		t.Errorf("only %d passed", total)
	}
}

// delays is a queue of one unit per 100 ms behind a bucket of two.
func delays(t *testing.T, store quota.Store) {
	for _, a := range []quota.Algorithm{quota.LeakyBucket, quota.TokenBucket, quota.GCRA} {
		t.Run(string(a), func(t *testing.T) {
			p := Policy(t, quota.Limit{Name: "a", Algorithm: a, Limit: 10, Burst: 2, Window: quota.Per(sec), MaxDelay: 200 * ms})
			var last quota.Decision
			for i, c := range []struct {
				at          time.Duration
				cost        int64
				impatient   bool
				undo        bool
				state       quota.State
				wait, retry time.Duration
				reset       time.Duration
			}{
				{at: 0, cost: 2, state: hit, reset: 200 * ms},
				{at: 0, cost: 1, state: hit, wait: 100 * ms, reset: 300 * ms},
				{at: 0, cost: 2, state: over, retry: 100 * ms, reset: 300 * ms}, // it would wait 300 ms
				{at: 0, cost: 3, state: over, retry: never, reset: 300 * ms},    // more than the bucket holds
				{at: 0, cost: 1, impatient: true, state: over, retry: 200 * ms, reset: 300 * ms},
				{at: 100*ms - µs, cost: 2, state: over, retry: µs, reset: 200*ms + µs},
				{at: 100 * ms, cost: 2, state: hit, wait: 200 * ms, reset: 400 * ms},
				{at: 100 * ms, cost: -2, undo: true, state: hit, reset: 200 * ms},
				{at: 100 * ms, cost: 1, state: hit, wait: 100 * ms, reset: 300 * ms},
				{at: 100 * ms, cost: -2, undo: true, state: hit, reset: 300 * ms}, // that one is given back already
				{at: 300 * ms, cost: 1, state: hit, reset: 200 * ms},
			} {
				r := quota.Request{Policy: p, Cost: c.cost, Now: start.Add(c.at)}
				if c.impatient {
					r.Policy = p.Impatient()
				}
				if c.undo {
					r.Undo = &last
				}
				d := ask(t, store, r)
				if d.State != c.state || d.Wait != c.wait || d.RetryAfter() != c.retry || d.Limits[0].Reset != c.reset {
					t.Errorf("step %d: %+v, want %+v", i, d, c)
				}
				if c.cost == 2 && d.Charged > 0 {
					last = d
				}
			}
		})
	}
	t.Run("beside a limit that refuses", func(t *testing.T) {
		p := Policy(t,
			quota.Limit{Name: "a", Algorithm: quota.GCRA, Limit: 10, Burst: 1, Window: quota.Per(sec), MaxDelay: sec},
			quota.Limit{Name: "b", Limit: 2, Window: quota.Per(time.Hour)})
		for i, want := range []quota.Decision{{State: hit}, {State: hit, Wait: 100 * ms}, {State: over}} {
			if d := ask(t, store, quota.Request{Policy: p, Cost: 1, Now: start}); d.State != want.State || d.Wait != want.Wait || d.Limits[0].RetryAfter != 0 {
				t.Errorf("request %d: %+v, want %+v", i+1, d, want)
			}
		}
	})
}
