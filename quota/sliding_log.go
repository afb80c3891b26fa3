package quota

import (
	"slices"
	"time"
)

// slidingLog remembers every charge for the length of the window, and is exact:
// a unit is back exactly one window after it was charged. Refused requests are
// not remembered. Its memory grows with the number of charges.
//
// In Redis the charges are in a sorted set beside the hash, and the counter's
// values are how many there are, their sum, and a number that makes entries
// differ; here they are the values: moment and cost of each, in order. The script
// is lua/sliding_log.lua.
type slidingLog struct {
	shape  string
	limit  int64
	window int64 // µs
	number []int64
}

func newSlidingLog(l Limit, shape string) (algorithm, *FieldError) {
	return slidingLog{shape, l.Limit, l.Window.micros(), []int64{l.Window.micros()}}, nil
}

func (w slidingLog) decide(held Counter, now, cost int64) verdict {
	var entries []int64
	restart := false
	if held.Shape == w.shape {
		switch {
		case len(held.Values)%2 != 0 || held.Until > now+2*w.window:
			restart = true
		default:
			entries = held.Values
			for len(entries) > 0 && entries[0] <= now-w.window {
				entries = entries[2:]
			}
		}
	}
	charged := insert(entries, now, cost)
	if cost < 0 {
		charged = giveBack(entries, -cost)
	}
	used := sum(entries)
	v := verdict{before: w.standing(entries, now), after: w.standing(charged, now), restart: restart}
	switch over := used + cost - w.limit; {
	case cost > w.limit:
		v.before.RetryAfter = Never
	case cost > 0 && over > 0:
		v.before.RetryAfter = w.freed(entries, over, now)
	}
	if cost == 0 {
		v.after = v.before
		return v
	}
	v.charged = Counter{Shape: w.shape, Until: now, Values: charged}
	if len(charged) > 0 {
		v.charged.Until = charged[len(charged)-2] + w.window
	}
	return v
}

// insert keeps the entries in the order of their moments, also when the clock
// stepped back.
func insert(entries []int64, at, cost int64) []int64 {
	i := len(entries)
	for i > 0 && entries[i-2] > at {
		i -= 2
	}
	return slices.Insert(slices.Clone(entries), i, at, cost)
}

// giveBack takes units off the latest entries.
func giveBack(entries []int64, units int64) []int64 {
	entries = slices.Clone(entries)
	for len(entries) > 0 && units > 0 {
		last := len(entries) - 1
		taken := min(units, entries[last])
		units -= taken
		if entries[last] -= taken; entries[last] == 0 {
			entries = entries[:last-1]
		}
	}
	return entries
}

func sum(entries []int64) (units int64) {
	for i := 1; i < len(entries); i += 2 {
		units += entries[i]
	}
	return units
}

func (w slidingLog) standing(entries []int64, now int64) Standing {
	used := sum(entries)
	s := Standing{Limit: w.limit, Remaining: max(0, w.limit-used)}
	if used > 0 {
		s.Next = w.freed(entries, max(1, used-w.limit+1), now)
		s.Reset = micros(entries[len(entries)-2] + w.window - now)
	}
	return s
}

// freed is the time until so many units have left the window, the oldest first.
func (w slidingLog) freed(entries []int64, wanted, now int64) time.Duration {
	i := 0
	for wanted -= entries[1]; wanted > 0; wanted -= entries[i+1] {
		i += 2
	}
	return micros(entries[i] + w.window - now)
}

func (w slidingLog) arguments(int64) []int64 { return w.number }

func (w slidingLog) capacity() int64 { return w.limit }
