package quota

import "slices"

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
}

func newSlidingLog(l Limit, shape string) (algorithm, *FieldError) {
	return slidingLog{shape, l.Limit, l.Window.micros()}, nil
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
	var used, latest int64
	for i := 0; i < len(entries); i += 2 {
		used += entries[i+1]
		latest = max(latest, entries[i])
	}

	v := verdict{before: w.standing(used, latest, now), after: w.standing(used+cost, max(latest, now), now), restart: restart}
	switch over := used + cost - w.limit; {
	case cost > w.limit:
		v.before.RetryAfter = Never
	case cost > 0 && over > 0:
		for i := 0; i < len(entries); i += 2 {
			if over -= entries[i+1]; over <= 0 {
				v.before.RetryAfter = micros(entries[i] + w.window - now)
				break
			}
		}
	}
	if cost > 0 {
		v.charged = Counter{Shape: w.shape, Until: max(latest, now) + w.window, Values: insert(entries, now, cost)}
	} else {
		v.after = v.before
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

func (w slidingLog) standing(used, latest, now int64) Standing {
	s := Standing{Limit: w.limit, Remaining: max(0, w.limit-used)}
	if used > 0 {
		s.Reset = micros(latest + w.window - now)
	}
	return s
}

func (w slidingLog) arguments(int64) []int64 { return []int64{w.window} }

func (w slidingLog) capacity() int64 { return w.limit }
