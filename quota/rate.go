package quota

import (
	"fmt"
)

// rate is units per microsecond as a fraction in lowest terms, so that one per
// seven seconds is counted without rounding and without drift.
//
// Algorithms with a rate measure what is owed, their debt, in the fraction's
// parts: a unit is `micros` parts, and `units` parts are paid off in every
// microsecond. Parts are whole numbers, and stay below maxParts.
type rate struct {
	units, micros int64
	burst         int64
	patience      int64 // for how long a request that is over the burst may wait, µs
	numbers       []int64
}

// maxParts leaves a bit below 2^53, up to where Lua's numbers are exact.
const maxParts = 1 << 52

// newRate is the limit's units per window.
func newRate(l Limit) (rate, *FieldError) {
	window := l.Window.micros()
	divisor := gcd(l.Limit, window)
	r := rate{units: l.Limit / divisor, micros: window / divisor, burst: l.Burst, patience: l.MaxDelay.Microseconds()}
	r.numbers = []int64{r.units, r.micros, r.patience}
	if l.Burst > maxParts/r.micros {
		return rate{}, &FieldError{"limit", l.Limit, fmt.Sprintf("per window with a burst of %d cannot be counted exactly; choose a limit that divides the window, or a smaller burst", l.Burst)}
	}
	if r.patience > (maxParts-r.full())/r.units {
		return rate{}, &FieldError{"max_delay", l.MaxDelay.String(), fmt.Sprintf("with a limit of %d and a burst of %d cannot be counted exactly; choose a limit that divides the window, or a shorter delay", l.Limit, l.Burst)}
	}
	return r, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// full is the debt, in parts, above which a request waits or is refused.
func (r rate) full() int64 { return r.burst * r.micros }

// payOff is the time in microseconds after which the debt is paid off.
func (r rate) payOff(parts int64) int64 { return (parts + r.units - 1) / r.units }

// standing of a debt. lag is the time in microseconds until a clock that stepped
// back is where it was, before which nothing is paid off.
func (r rate) standing(parts, lag int64) Standing {
	s := Standing{Limit: r.burst}
	if room := r.full() - parts; room > 0 {
		s.Remaining = room / r.micros
	}
	if parts > 0 {
		s.Next = micros(r.payOff(max(0, parts-(r.burst-s.Remaining-1)*r.micros)) + lag)
		s.Reset = micros(r.payOff(parts) + lag)
	}
	return s
}

// verdict gives the standings before and after the cost, and the debt with it.
func (r rate) verdict(parts, lag, cost int64) (v verdict, owed int64) {
	v.before = r.standing(parts, lag)
	if cost > r.burst {
		v.before.RetryAfter = Never
		return v, parts
	}
	owed = max(0, parts+cost*r.micros)
	v.after = r.standing(owed, lag)
	if over := owed - r.full(); over > 0 && cost > 0 {
		if wait := r.payOff(over) + lag; wait > r.patience {
			v.before.RetryAfter = micros(wait - r.patience)
		} else {
			v.wait = micros(wait)
		}
	}
	return v, owed
}

func (r rate) arguments(int64) []int64 { return r.numbers }

func (r rate) capacity() int64 { return r.burst }
