package quota

import (
	"fmt"
	"time"
)

// rate is units per microsecond as a fraction in lowest terms, so that one per
// seven seconds is counted without rounding and without drift.
//
// Algorithms with a rate measure what is owed, their debt, in the fraction's
// parts: a unit is `micros` parts, and `units` parts are paid off in every
// microsecond. Parts are whole numbers, and stay below maxParts.
type rate struct{ units, micros int64 }

// maxParts leaves a bit below 2^53, up to where Lua's numbers are exact.
const maxParts = 1 << 52

// newRate is limit units per window, for a debt of up to burst units.
func newRate(limit, window, burst int64) (rate, *FieldError) {
	divisor := gcd(limit, window)
	r := rate{limit / divisor, window / divisor}
	if burst > maxParts/r.micros {
		return rate{}, &FieldError{"limit", limit, fmt.Sprintf("per window with a burst of %d cannot be counted exactly; choose a limit that divides the window, or a smaller burst", burst)}
	}
	return r, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// payOff is the time in microseconds after which the debt is paid off.
func (r rate) payOff(parts int64) int64 { return (parts + r.units - 1) / r.units }

// standing of a limit that holds burst units and has the debt.
func (r rate) standing(burst, parts int64) Standing {
	s := Standing{Limit: burst, Reset: micros(r.payOff(parts))}
	if room := burst*r.micros - parts; room > 0 {
		s.Remaining = room / r.micros
	}
	s.Next = micros(r.payOff(max(0, parts-(burst-s.Remaining-1)*r.micros)))
	if parts == 0 {
		s.Next = 0
	}
	return s
}

// verdict gives the standings before and after the cost, and the debt with it.
func (r rate) verdict(burst, parts, cost int64) (v verdict, owed int64) {
	v.before = r.standing(burst, parts)
	if cost > burst {
		v.before.RetryAfter = Never
		return v, parts
	}
	owed = max(0, parts+cost*r.micros)
	v.after = r.standing(burst, owed)
	if over := owed - burst*r.micros; over > 0 && cost > 0 {
		v.before.RetryAfter = micros(r.payOff(over))
	}
	return v, owed
}

// wait puts off what drains by a time in microseconds: that which a clock that
// stepped back needs to be where it was.
func (v *verdict) wait(lag int64) {
	for _, d := range []*time.Duration{&v.before.Next, &v.before.Reset, &v.before.RetryAfter, &v.after.Next, &v.after.Reset} {
		if *d > 0 {
			*d += micros(lag)
		}
	}
}
