// Package denials remembers refusals: who was refused until a moment is refused
// until then without asking the store. That is as exact as the store, but for what
// is given back meanwhile, which counts after a bounded time at the latest, and at
// once where it is announced.
package denials

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"kong-quota/quota"
)

const shards = 64

// Store is a quota.Store that remembers what another refused.
type Store struct {
	quota.Store
	longest time.Duration
	bound   int // of a shard
	seed    maphash.Seed
	shards  [shards]shard
	local   atomic.Int64
}

type shard struct {
	sync.Mutex
	refused map[who][]refusal // one for each policy and cost
	entries int
}

type who struct {
	scope    string
	identity quota.Identity
}

type refusal struct {
	policy   *quota.Policy
	cost     int64
	at       time.Time // before the store was asked
	until    time.Time
	decision quota.Decision
}

// New remembers up to about the given number of refusals, each for longest at most:
// so long a reset or a refund on another node may go unnoticed.
func New(store quota.Store, longest time.Duration, entries int) *Store {
	s := &Store{Store: store, longest: longest, bound: max(1, entries/shards), seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].refused = map[who][]refusal{}
	}
	return s
}

// Local is how many requests were refused without asking the store.
func (s *Store) Local() int64 { return s.local.Load() }

// Spend refuses what was refused just now, and asks the store for the rest.
// Requests that name their moment, and those of several identities, are all asked.
func (s *Store) Spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	if r.Policy == nil || r.UpTo || r.Cost == 0 || len(r.Others) > 0 || !r.Now.IsZero() {
		return s.Store.Spend(ctx, r)
	}
	if r.Cost < 0 {
		defer s.Forget(r.Scope, r.Identity) // also where the answer is lost
		return s.Store.Spend(ctx, r)
	}
	asked := time.Now()
	shard := s.shard(who{r.Scope, r.Identity})
	if d, refused := shard.recall(r, asked); refused {
		s.local.Add(1)
		return d, nil
	}
	d, err := s.Store.Spend(ctx, r)
	if err == nil && d.State == quota.OverQuota {
		retry := d.RetryAfter()
		if retry == quota.Never {
			retry = s.longest
		}
		shard.remember(r, refusal{r.Policy, r.Cost, asked, asked.Add(min(retry, s.longest)), d}, s.bound)
	}
	return d, err
}

// Reset forgets the identity's refusals too.
func (s *Store) Reset(ctx context.Context, scope string, id quota.Identity) error {
	defer s.Forget(scope, id)
	return s.Store.Reset(ctx, scope, id)
}

// Forget lets the next request of the identity be asked.
func (s *Store) Forget(scope string, id quota.Identity) {
	w := who{scope, id}
	shard := s.shard(w)
	shard.Lock()
	defer shard.Unlock()
	shard.drop(w)
}

func (s *Store) shard(w who) *shard { return &s.shards[maphash.Comparable(s.seed, w)%shards] }

// recall gives the refusal as it reads now.
func (s *shard) recall(r quota.Request, now time.Time) (quota.Decision, bool) {
	s.Lock()
	defer s.Unlock()
	for _, known := range s.refused[who{r.Scope, r.Identity}] {
		if known.policy != r.Policy || known.cost != r.Cost || !now.Before(known.until) {
			continue
		}
		return known.decision.After(now.Sub(known.at).Truncate(time.Microsecond)), true
	}
	return quota.Decision{}, false
}

func (s *shard) remember(r quota.Request, new refusal, bound int) {
	w := who{r.Scope, r.Identity}
	s.Lock()
	defer s.Unlock()
	for i, old := range s.refused[w] {
		if old.policy == new.policy && old.cost == new.cost {
			s.refused[w][i] = new
			return
		}
	}
	if s.entries >= bound {
		s.makeRoom(new.at, bound)
	}
	s.refused[w] = append(s.refused[w], new)
	s.entries++
}

// makeRoom drops who may pass again, or anybody: the store knows better.
func (s *shard) makeRoom(now time.Time, bound int) {
	for w, all := range s.refused {
		over := true
		for _, known := range all {
			over = over && !now.Before(known.until)
		}
		if over {
			s.drop(w)
		}
	}
	for w := range s.refused {
		if s.entries < bound {
			return
		}
		s.drop(w)
	}
}

func (s *shard) drop(w who) {
	s.entries -= len(s.refused[w])
	delete(s.refused, w)
}
