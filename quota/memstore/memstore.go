// Package memstore keeps counters in this process's memory. It is the Go twin
// of the scripts in lua/: the oracle of their tests, and a store for trials and
// single nodes. Its counters are gone when the process ends.
package memstore

import (
	"container/heap"
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"kong-quota/quota"
)

// DefaultEntries is how many identities a store holds unless told otherwise:
// about 100 MB when all are in use.
const DefaultEntries = 200_000

const shards = 64

// Store is a bounded quota.Store. When it is full, the entry that ends first
// makes room: expired ones before any that still count. So a store that is too
// small for its traffic forgets, and then allows too much, rather than grow.
type Store struct {
	seed   maphash.Seed
	shards [shards]shard
	clock  func() time.Time
}

// Option changes a store from its defaults.
type Option func(*Store)

// WithClock gives the clock by which requests without a moment are decided, for
// tests and simulations.
func WithClock(clock func() time.Time) Option { return func(s *Store) { s.clock = clock } }

// New makes a store for up to the given number of identities in their scopes
// (rounded up to a multiple of 64), at least 1.
func New(entries int, options ...Option) (*Store, error) {
	if entries < 1 {
		return nil, &quota.FieldError{Field: "entries", Value: entries, Rule: "must be at least 1"}
	}
	s := &Store{seed: maphash.MakeSeed(), clock: time.Now}
	for i := range s.shards {
		s.shards[i] = shard{entries: map[key]*entry{}, bound: (entries + shards - 1) / shards}
	}
	for _, option := range options {
		option(s)
	}
	return s, nil
}

// Spend decides with quota.Policy.Decide, one request at a time per identity.
// It returns an error for a bad request only.
func (s *Store) Spend(_ context.Context, r quota.Request) (quota.Decision, error) {
	if err := r.Check(); err != nil {
		return quota.Decision{}, fmt.Errorf("spend: %w", err)
	}
	now := r.Now
	if now.IsZero() {
		now = s.clock()
	}
	held := s.lock(r)
	defer held.unlock()
	return held.spend(r, now.UnixMicro()), nil
}

// lock locks the shards of the request's identities, always in the same order, and
// finds their entries.
func (s *Store) lock(r quota.Request) entries {
	var held entries
	for _, part := range r.Policy.Parts() {
		k := key{r.Scope, r.IdentityOf(part.Identity)}
		held = append(held, holding{key: k, part: part, shard: s.number(k)})
	}
	slices.SortStableFunc(held, func(a, b holding) int { return a.shard - b.shard })
	for i := range held {
		h := &held[i]
		h.store = s
		if i == 0 || held[i-1].shard != h.shard {
			s.shards[h.shard].Lock()
		}
	}
	return held
}

// entries are what a request holds while it is decided: an entry for each
// identity that its policy counts. Two names may be of the same identity.
type entries []holding

type holding struct {
	store *Store
	key   key
	part  quota.Part
	shard int // number of the shard, which is locked
}

func (h holding) entry() *entry { return h.store.shards[h.shard].entries[h.key] }

// copy copies the counters of the limits that count this identity.
func (h holding) copy(to, from map[string]quota.Counter) {
	for _, rule := range h.part.Policy.Rules() {
		if c, found := from[rule.Limit.Name]; found {
			to[rule.Limit.Name] = c
		}
	}
}

func (e entries) unlock() {
	for i, h := range e {
		if i == 0 || e[i-1].shard != h.shard {
			h.store.shards[h.shard].Unlock()
		}
	}
}

func (e entries) spend(r quota.Request, now int64) quota.Decision {
	decision, charged := r.Decide(e.counters(), now)
	if charged == nil {
		return decision
	}
	for _, h := range e {
		own := charged
		if len(e) > 1 {
			own = make(map[string]quota.Counter, len(h.part.Limits))
			h.copy(own, charged)
		}
		if len(own) > 0 {
			h.store.shards[h.shard].keep(h.key, own, now)
		}
	}
	return decision
}

// counters are those of all limits, by name.
func (e entries) counters() map[string]quota.Counter {
	if len(e) == 1 {
		if own := e[0].entry(); own != nil {
			return own.counters
		}
		return nil
	}
	all := map[string]quota.Counter{}
	for _, h := range e {
		if own := h.entry(); own != nil {
			h.copy(all, own.counters)
		}
	}
	return all
}

// Reset forgets the identity's counters in the scope.
func (s *Store) Reset(_ context.Context, scope string, id quota.Identity) error {
	shard := s.shard(key{scope, id})
	shard.Lock()
	defer shard.Unlock()
	if e := shard.entries[key{scope, id}]; e != nil {
		shard.drop(e)
	}
	return nil
}

// Len is the number of identities held, each once for every scope.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		s.shards[i].Lock()
		n += len(s.shards[i].entries)
		s.shards[i].Unlock()
	}
	return n
}

func (s *Store) number(k key) int { return int(maphash.Comparable(s.seed, k) % shards) }

func (s *Store) shard(k key) *shard { return &s.shards[s.number(k)] }

type key struct {
	scope    string
	identity quota.Identity
}

// entry is what Redis keeps as one hash.
type entry struct {
	key      key
	counters map[string]quota.Counter // by the limit's name
	until    int64                    // the latest of the counters' ends, µs
	position int                      // in the shard's heap
}

type shard struct {
	sync.Mutex
	entries map[key]*entry
	byEnd   endHeap
	bound   int
}

// keep puts counters in the place of those with the same names.
func (s *shard) keep(k key, charged map[string]quota.Counter, now int64) {
	e := s.entries[k]
	if e == nil {
		if len(s.entries) >= s.bound {
			s.drop(s.byEnd[0])
		}
		e = &entry{key: k, counters: make(map[string]quota.Counter, len(charged))}
		s.entries[k] = e
		heap.Push(&s.byEnd, e)
	}
	e.keep(charged, now)
	heap.Fix(&s.byEnd, e.position)
}

func (s *shard) drop(e *entry) {
	heap.Remove(&s.byEnd, e.position)
	delete(s.entries, e.key)
}

func (e *entry) keep(charged map[string]quota.Counter, now int64) {
	moved := false
	for name, counter := range charged {
		moved = moved || e.counters[name].Until != counter.Until
		e.counters[name] = counter
	}
	if !moved {
		return
	}
	e.until = 0
	for name, counter := range e.counters {
		if counter.Until <= now {
			delete(e.counters, name)
		}
		e.until = max(e.until, counter.Until)
	}
}

// endHeap has the entry that ends first on top.
type endHeap []*entry

func (h endHeap) Len() int           { return len(h) }
func (h endHeap) Less(i, j int) bool { return h[i].until < h[j].until }
func (h endHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].position, h[j].position = i, j
}

func (h *endHeap) Push(x any) {
	e := x.(*entry)
	e.position = len(*h)
	*h = append(*h, e)
}

func (h *endHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
