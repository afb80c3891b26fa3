package quota

import (
	"context"
	"fmt"
	"time"
)

// Request asks a store for one decision.
type Request struct {
	// Scope is where the quota is counted, e.g. "service:sms". The same identity
	// has separate counters in each scope.
	Scope    string
	Identity Identity
	Policy   *Policy
	// Cost is how much to charge, 0 (a peek) to MaxCost, or down to -MaxCost to
	// give back what was charged; no limit gets above full by that.
	Cost int64
	// UpTo charges as much of the cost as every limit has room for.
	UpTo bool
	// Now is the moment of the request; the zero time means the store's own
	// clock, which every caller of a shared store shares.
	Now time.Time
}

// Check returns a *FieldError if the request cannot be decided.
func (r Request) Check() error {
	switch {
	case r.Identity == "":
		return &FieldError{"identity", "", "must not be empty"}
	case r.Cost < -MaxCost || r.Cost > MaxCost:
		return &FieldError{"cost", r.Cost, fmt.Sprintf("must be between %d and %d", -MaxCost, MaxCost)}
	case r.UpTo && r.Cost < 1:
		return &FieldError{"cost", r.Cost, "must be at least 1 to be charged in part"}
	}
	return nil
}

// Store keeps counters and decides on them atomically: concurrent requests for
// the same identity are decided one after the other. Stores are safe for
// concurrent use, and pass the suite in quota/storetest.
type Store interface {
	// Spend decides the request and charges it if all limits pass. A store that
	// gives no answer returns an Unknown decision and an error that wraps
	// ErrUnavailable; whether the cost was charged is then not known.
	Spend(ctx context.Context, r Request) (Decision, error)
	// Reset forgets all that the identity has used in the scope.
	Reset(ctx context.Context, scope string, id Identity) error
}

// Limiter applies one policy in one scope of a store.
type Limiter struct {
	store  Store
	scope  string
	policy *Policy
}

// NewLimiter binds a store, a scope and a policy.
func NewLimiter(store Store, scope string, policy *Policy) *Limiter {
	return &Limiter{store, scope, policy}
}

// Spend charges cost (0 to MaxCost) to the identity if every limit has room for
// it, and nothing otherwise.
func (l *Limiter) Spend(ctx context.Context, id Identity, cost int64) (Decision, error) {
	if cost < 0 {
		return Decision{}, &FieldError{"cost", cost, "must not be negative; Refund gives back"}
	}
	return l.spend(ctx, Request{Identity: id, Cost: cost})
}

// SpendUpTo charges as much of cost (1 to MaxCost) as every limit has room for,
// for batches of which a part is welcome. Decision.Charged says how much; if
// that is nothing the decision is OverQuota.
func (l *Limiter) SpendUpTo(ctx context.Context, id Identity, cost int64) (Decision, error) {
	return l.spend(ctx, Request{Identity: id, Cost: cost, UpTo: true})
}

// Refund gives back units (1 to MaxCost) that were charged for something that did
// not happen. No limit gets above full by it; what a window that has ended took
// is back already.
func (l *Limiter) Refund(ctx context.Context, id Identity, units int64) (Decision, error) {
	if units < 1 {
		return Decision{}, &FieldError{"units", units, "must be at least 1"}
	}
	return l.spend(ctx, Request{Identity: id, Cost: -units})
}

func (l *Limiter) spend(ctx context.Context, r Request) (Decision, error) {
	r.Scope, r.Policy = l.scope, l.policy
	return l.store.Spend(ctx, r)
}

// Peek tells the identity's standing and charges nothing.
func (l *Limiter) Peek(ctx context.Context, id Identity) (Decision, error) {
	return l.Spend(ctx, id, 0)
}

// Reset forgets all that the identity has used in the limiter's scope.
func (l *Limiter) Reset(ctx context.Context, id Identity) error {
	return l.store.Reset(ctx, l.scope, id)
}
