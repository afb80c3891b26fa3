// Package leases lets a node hold a part of a quota: it takes a block of units from
// the store in advance and spends it itself, without asking for each request.
//
// What a node spends was charged before, in the window in which it is spent, so
// that all nodes together never admit more than the limit, whatever becomes of
// them: a block is void when the first of its windows ends, and one whose node dies
// is lost until then.
//
// The price: while nodes hold what they do not spend, a quota may look used up to
// others. Each takes its share of what the others have left, so that n idle nodes
// leave limit × (1 - share)^n, which is the least that is then admitted. What is
// not spent goes back after MaxAge. A node's first request of a quota takes no
// block, so that identities with a request now and then strand nothing.
package leases

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"kong-quota/quota"
)

// Store is a quota.Store that spends from blocks where the policy has a Lease.
type Store struct {
	quota.Store
	bound int
	local atomic.Int64

	mu      sync.Mutex
	blocks  map[holder]*block
	stopped bool
}

type holder struct {
	policy   *quota.Policy
	scope    string
	identity quota.Identity
}

// block is what a node holds of one quota.
type block struct {
	sync.Mutex
	left     int64
	grant    quota.Decision // the last of the store's
	taken    time.Time      // before the store was asked for it
	expires  time.Time      // it is not spent any more
	void     time.Time      // it has not gone back by then: its window ends
	fetching chan struct{}  // closed when the store has been asked; nil if nobody asks
	timer    *time.Timer
}

// New holds blocks of up to the given number of quotas; requests of others ask the
// store.
func New(store quota.Store, entries int) *Store {
	return &Store{Store: store, bound: entries, blocks: map[holder]*block{}}
}

// Local is how many requests were decided without asking the store.
func (s *Store) Local() int64 { return s.local.Load() }

// Spend decides from the node's block, and takes another where that is too small.
// What is no plain charge, or names its moment, asks the store.
func (s *Store) Spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	if r.Policy == nil || r.Cost < 1 || r.UpTo || !r.Now.IsZero() || r.Policy.Lease() == (quota.Lease{}) || r.Check() != nil {
		return s.Store.Spend(ctx, r)
	}
	b := s.block(holder{r.Policy, r.Scope, r.Identity})
	if b == nil {
		return s.Store.Spend(ctx, r)
	}
	for {
		b.Lock()
		if now := time.Now(); b.left >= r.Cost && now.Before(b.expires) {
			b.left -= r.Cost
			d := b.decision(r.Cost, now)
			b.Unlock()
			s.local.Add(1)
			return d, nil
		}
		if b.fetching == nil {
			return s.fetch(ctx, b, r)
		}
		others := b.fetching
		b.Unlock()
		select {
		case <-others:
		case <-ctx.Done():
			return quota.Decision{}, errors.Join(quota.ErrUnavailable, ctx.Err())
		}
	}
}

// block finds the quota's block; nil if no more are held.
func (s *Store) block(h holder) *block {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.blocks[h]
	if b == nil && !s.stopped && len(s.blocks) < s.bound {
		b = &block{}
		b.timer = time.AfterFunc(time.Hour, func() { s.expire(h, b) })
		b.timer.Reset(h.policy.Lease().MaxAge)
		s.blocks[h] = b
	}
	return b
}

// fetch asks the store, for the request and for a block with it. The block is
// locked when it is called, and not while the store is asked.
func (s *Store) fetch(ctx context.Context, b *block, r quota.Request) (quota.Decision, error) {
	done := make(chan struct{})
	b.fetching = done
	size := b.size(r.Policy.Lease())
	back := b.empty()
	b.Unlock()
	defer func() {
		b.Lock()
		b.fetching = nil
		b.Unlock()
		close(done)
	}()

	s.giveBack(ctx, r, back)
	asked := time.Now()
	if size <= r.Cost {
		return s.plain(ctx, b, r, asked)
	}
	more := r
	more.Cost, more.UpTo = size, true
	d, err := s.Store.Spend(ctx, more)
	if err != nil {
		return d, err
	}
	if d.Charged < r.Cost { // the store says what its refusal is
		s.giveBack(ctx, r, remainder{d.Charged, d})
		return s.plain(ctx, b, r, asked)
	}
	b.Lock()
	defer b.Unlock()
	b.take(r, d, d.Charged-r.Cost, asked)
	return b.decision(r.Cost, time.Now()), nil
}

// plain asks the store for the request alone, and notes what it says, for the size
// of the next block.
func (s *Store) plain(ctx context.Context, b *block, r quota.Request, asked time.Time) (quota.Decision, error) {
	d, err := s.Store.Spend(ctx, r)
	if d.State != quota.Unknown {
		b.Lock()
		defer b.Unlock()
		b.take(r, d, 0, asked)
	}
	return d, err
}

// margin is for clocks that run at different speeds: a block is void so much
// before its window ends, and a thousandth of what was left of it.
const margin = time.Millisecond

func (b *block) take(r quota.Request, d quota.Decision, left int64, asked time.Time) {
	b.left, b.grant, b.taken = left, d, asked
	b.void = asked.Add(time.Hour * 24 * 366 * 100)
	for _, l := range d.Limits {
		if ends := asked.Add(l.Reset - l.Reset/1000 - margin); ends.Before(b.void) {
			b.void = ends
		}
	}
	b.expires = asked.Add(r.Policy.Lease().MaxAge)
	b.timer.Reset(r.Policy.Lease().MaxAge)
	if b.void.Before(b.expires) {
		b.expires = b.void
	}
}

// size is the share of what remains, by what the store said last.
func (b *block) size(lease quota.Lease) int64 {
	if b.grant.State == quota.Unknown {
		return 0
	}
	remaining := b.grant.Limits[0].Remaining
	for _, l := range b.grant.Limits[1:] {
		remaining = min(remaining, l.Remaining)
	}
	return min(quota.MaxCost, int64(lease.Share*float64(remaining)))
}

// decision is that of a request whose cost has been taken off the block.
func (b *block) decision(cost int64, now time.Time) quota.Decision {
	d := b.grant.After(max(0, now.Sub(b.taken).Truncate(time.Microsecond)))
	d.State, d.Charged = quota.Allowed, cost
	for i := range d.Limits {
		if d.Limits[i].Remaining += b.left; d.Limits[i].Remaining == 0 {
			d.State = quota.HitQuota
		}
	}
	return d
}

// remainder is what is to go back, and of which decision.
type remainder struct {
	units int64
	grant quota.Decision
}

// empty takes what is left off the block; nothing, if it is void.
func (b *block) empty() remainder {
	left := b.left
	b.left = 0
	if !time.Now().Before(b.void) {
		left = 0
	}
	return remainder{left, b.grant}
}

// giveBack returns units to the window that they were charged in. Units that do
// not arrive there stay charged.
func (s *Store) giveBack(ctx context.Context, r quota.Request, back remainder) {
	if back.units == 0 {
		return
	}
	r.Cost, r.UpTo, r.Undo = -back.units, false, &back.grant
	_, _ = s.Store.Spend(ctx, r)
}

// giveBackTimeout is for the units of nobody's request.
const giveBackTimeout = time.Second

// expire returns a block that has reached its age.
func (s *Store) expire(h holder, b *block) {
	s.mu.Lock()
	b.Lock()
	idle := b.fetching == nil
	var back remainder
	if idle {
		back = b.empty()
		if s.blocks[h] == b {
			delete(s.blocks, h)
		}
	}
	b.Unlock()
	s.mu.Unlock()
	if idle {
		s.returned(context.Background(), h, back)
	}
}

func (s *Store) returned(ctx context.Context, h holder, back remainder) {
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	s.giveBack(ctx, quota.Request{Scope: h.scope, Identity: h.identity, Policy: h.policy}, back)
}

// Reset forgets the node's block too. Other nodes spend theirs.
func (s *Store) Reset(ctx context.Context, scope string, id quota.Identity) error {
	s.Forget(scope, id)
	return s.Store.Reset(ctx, scope, id)
}

// Forget drops the blocks of an identity whose counters were reset: they are of
// nothing.
func (s *Store) Forget(scope string, id quota.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, b := range s.blocks {
		if h.scope == scope && h.identity == id {
			b.Lock()
			b.left, b.grant = 0, quota.Decision{}
			b.Unlock()
		}
	}
}

// Stop gives back all that the node holds, and takes no more.
func (s *Store) Stop(ctx context.Context) {
	s.mu.Lock()
	s.stopped = true
	all := s.blocks
	s.blocks = map[holder]*block{}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for h, b := range all {
		b.Lock()
		b.timer.Stop()
		back := b.empty()
		b.Unlock()
		if back.units > 0 {
			wg.Go(func() { s.returned(ctx, h, back) })
		}
	}
	wg.Wait()
}
