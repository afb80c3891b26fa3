package quota

import "time"

// State is the outcome of a decision in one word.
type State uint8

const (
	// Unknown: the store gave no answer. It is the zero value, so that a
	// decision that was never made cannot be mistaken for one that was.
	Unknown State = iota
	// Allowed: the request passes and was charged.
	Allowed
	// HitQuota: the request passes, was charged, and left nothing of a limit.
	HitQuota
	// OverQuota: at least one limit refuses; nothing was charged.
	OverQuota
)

// String gives the name that headers, logs and metrics use.
func (s State) String() string {
	switch s {
	case Allowed:
		return "allowed"
	case HitQuota:
		return "hit_quota"
	case OverQuota:
		return "over_quota"
	default:
		return "unknown"
	}
}

// Never is the RetryAfter of a request that no waiting lets pass, because its
// cost is above what the limit can ever hold.
const Never time.Duration = -1

// Decision is the answer to one request.
type Decision struct {
	State State
	// Limits has the standing of each limit, in the policy's order. It is empty
	// when State is Unknown.
	Limits []Standing
	// Charged is how much was charged: the cost, what was left of it with UpTo,
	// or 0.
	Charged int64
	// Wait is how long the request must wait before it goes on, where a limit
	// with a MaxDelay says so. What it was charged for is then.
	Wait time.Duration
	// Now is the moment of the decision by the store's clock.
	Now time.Time
	// Restarted counts the counters that could not be read and began anew.
	Restarted int
}

// Standing is one limit after the decision: charged if all limits passed, as it
// was if any refused.
type Standing struct {
	Name string
	// Limit is how much the limit holds when nothing is used.
	Limit int64
	// Remaining is what can be spent at once now; never negative.
	Remaining int64
	// Next is the time until more than Remaining can be spent, and Reset until
	// the limit is full again, if nothing more is charged; 0 when it is full.
	Next, Reset time.Duration
	// RetryAfter is the time until the refused cost would pass, if nothing more
	// is charged: 0 when this limit did not refuse, Never when it never will.
	RetryAfter time.Duration
}

// Refused reports whether this limit refuses the request.
func (s Standing) Refused() bool { return s.RetryAfter != 0 }

// Strictest is the limit that a client needs to know about: of those that
// refuse, the one that refuses longest; if none does, the one with the least
// remaining, and of equals the one that resets last. It is the zero Standing
// when the state is Unknown.
func (d Decision) Strictest() Standing {
	if len(d.Limits) == 0 {
		return Standing{}
	}
	strictest := d.Limits[0]
	for _, s := range d.Limits[1:] {
		if stricter(s, strictest) {
			strictest = s
		}
	}
	return strictest
}

func stricter(a, b Standing) bool {
	switch {
	case a.RetryAfter != b.RetryAfter:
		return a.RetryAfter == Never || b.RetryAfter != Never && a.RetryAfter > b.RetryAfter
	case a.Remaining != b.Remaining:
		return a.Remaining < b.Remaining
	default:
		return a.Reset > b.Reset
	}
}

// After is the decision as it reads so much later, if nothing was charged since: for
// whoever answers from memory. It shares nothing with the one that it is of.
func (d Decision) After(passed time.Duration) Decision {
	d.Now, d.Restarted = d.Now.Add(passed), 0
	limits := make([]Standing, len(d.Limits))
	for i, s := range d.Limits {
		s.Next, s.Reset = max(0, s.Next-passed), max(0, s.Reset-passed)
		if s.RetryAfter > 0 {
			s.RetryAfter = max(time.Microsecond, s.RetryAfter-passed)
		}
		limits[i] = s
	}
	d.Limits = limits
	return d
}

// RetryAfter is the time until every limit that refused would pass: 0 when none
// did, Never when one of them never will.
func (d Decision) RetryAfter() time.Duration { return d.Strictest().RetryAfter }
