package quota

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Request asks a store for one decision.
type Request struct {
	// Scope is where the quota is counted, e.g. "service:sms". The same identity
	// has separate counters in each scope.
	Scope string
	// Identity is who is charged: the identity of the limits that name no other.
	Identity Identity
	// Others are the identities that Policy.Others names, in that order.
	Others []Identity
	Policy *Policy
	// Cost is how much to charge, 0 (a peek) to MaxCost, or down to -MaxCost to
	// give back what was charged; no limit gets above full by that.
	Cost int64
	// UpTo charges as much of the cost as every limit has room for.
	UpTo bool
	// Undo is the decision whose charge, or a part of it, a negative cost gives
	// back. A FixedWindow then gives it back to the window that was charged, and to
	// no later one; a limit with a MaxDelay only if nobody has been charged since:
	// later requests wait for moments that count on it.
	Undo *Decision
	// Now is the moment of the request; the zero time means the store's own
	// clock, which every caller of a shared store shares.
	Now time.Time
}

// Check returns a *FieldError if the request cannot be decided.
func (r Request) Check() error {
	switch {
	case r.Policy == nil:
		return &FieldError{"policy", r.Policy, "must be set"}
	case r.Identity == "" && r.Policy.CountsOwn():
		return &FieldError{"identity", "", "must not be empty"}
	case len(r.Others) != len(r.Policy.others):
		return &FieldError{"others", len(r.Others), fmt.Sprintf("identities: the policy counts %d: %s", len(r.Policy.others), strings.Join(r.Policy.others, ", "))}
	case slices.Contains(r.Others, ""):
		return &FieldError{"others", fmt.Sprint(r.Others), "must not have an empty identity"}
	case r.Undo != nil && (r.Cost >= 0 || len(r.Undo.Limits) != len(r.Policy.rules)):
		return &FieldError{"undo", r.Undo.State, "needs a negative cost and a decision of the same policy"}
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

// IdentityOf gives the identity that a limit of the policy counts, by its number
// (see Rule.Identity).
func (r Request) IdentityOf(number int) Identity {
	if number == 0 {
		return r.Identity
	}
	return r.Others[number-1]
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
// it, and nothing otherwise. others are the identities that Policy.Others names.
// A policy with delays may say in Decision.Wait that the caller must wait.
func (l *Limiter) Spend(ctx context.Context, id Identity, cost int64, others ...Identity) (Decision, error) {
	if cost < 0 {
		return Decision{}, &FieldError{"cost", cost, "must not be negative; Refund gives back"}
	}
	return l.spend(ctx, Request{Identity: id, Others: others, Cost: cost})
}

// SpendUpTo charges as much of cost (1 to MaxCost) as every limit has room for,
// for batches of which a part is welcome. Decision.Charged says how much; if
// that is nothing the decision is OverQuota.
func (l *Limiter) SpendUpTo(ctx context.Context, id Identity, cost int64, others ...Identity) (Decision, error) {
	return l.spend(ctx, Request{Identity: id, Others: others, Cost: cost, UpTo: true})
}

// Refund gives back units (1 to MaxCost) that were charged for something that did
// not happen. No limit gets above full by it; what a window that has ended took
// is back already.
func (l *Limiter) Refund(ctx context.Context, id Identity, units int64, others ...Identity) (Decision, error) {
	if units < 1 {
		return Decision{}, &FieldError{"units", units, "must be at least 1"}
	}
	return l.spend(ctx, Request{Identity: id, Others: others, Cost: -units})
}

// Undo gives back what a decision of this policy charged, as far as it still
// counts: see Request.Undo.
func (l *Limiter) Undo(ctx context.Context, d Decision, id Identity, others ...Identity) (Decision, error) {
	if d.Charged < 1 {
		return Decision{}, &FieldError{"charged", d.Charged, "must be at least 1 to be given back"}
	}
	return l.spend(ctx, Request{Identity: id, Others: others, Cost: -d.Charged, Undo: &d})
}

func (l *Limiter) spend(ctx context.Context, r Request) (Decision, error) {
	r.Scope, r.Policy = l.scope, l.policy
	return l.store.Spend(ctx, r)
}

// Peek tells the identity's standing and charges nothing.
func (l *Limiter) Peek(ctx context.Context, id Identity, others ...Identity) (Decision, error) {
	return l.Spend(ctx, id, 0, others...)
}

// Reset forgets all that the identity has used in the limiter's scope.
func (l *Limiter) Reset(ctx context.Context, id Identity) error {
	return l.store.Reset(ctx, l.scope, id)
}
