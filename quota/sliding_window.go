package quota

import "time"

// slidingWindow counts in buckets, of which the window spans a fixed number: the
// present one and those before it. It trades exactness for constant memory: never
// more than limit units pass in a window that ends with a bucket, and up to one
// bucket's worth more in one that does not. More buckets come closer to the log.
//
// The counter's values are the buckets' units, the latest first; the latest
// bucket ends its time in the window at the counter's Until. Buckets begin at
// multiples of their length since the Unix epoch. The script is
// lua/sliding_window.lua.
type slidingWindow struct {
	shape   string
	limit   int64
	buckets int64
	length  int64 // of a bucket, µs
	numbers []int64
}

func newSlidingWindow(l Limit, shape string) (algorithm, *FieldError) {
	window, buckets := l.Window.micros(), int64(l.Buckets)
	if window%buckets != 0 {
		return nil, &FieldError{"buckets", l.Buckets, "must divide the window into whole microseconds"}
	}
	return slidingWindow{shape, l.Limit, buckets, window / buckets, []int64{buckets, window / buckets}}, nil
}

func (w slidingWindow) decide(held Counter, now, cost int64) verdict {
	// Buckets are numbered from the epoch. A clock that stepped back charges the
	// latest bucket on.
	index := now / w.length
	units := make([]int64, w.buckets) // the latest first
	restart := false
	if held.Shape == w.shape {
		latest := held.Until/w.length - w.buckets
		switch {
		case !w.readable(held, index):
			restart = true
		case latest >= index:
			index = latest
			copy(units, held.Values)
		case index-latest < w.buckets:
			copy(units[index-latest:], held.Values)
		}
	}

	var used int64
	for _, n := range units {
		used += n
	}
	v := verdict{before: w.standing(units, used, index, now), restart: restart}
	switch over := used + cost - w.limit; {
	case cost > w.limit:
		v.before.RetryAfter = Never
	case cost > 0 && over > 0:
		v.before.RetryAfter = w.freed(units, over, index, now)
	}
	units[0] += cost
	for age := range units[1:] { // what is given back comes off the latest first
		if owed := units[age]; owed < 0 {
			units[age], units[age+1] = 0, units[age+1]+owed
		}
	}
	units[w.buckets-1] = max(0, units[w.buckets-1])
	v.after = w.standing(units, max(0, used+cost), index, now)
	v.charged = Counter{Shape: w.shape, Until: w.leaves(index), Values: units}
	if used+cost <= 0 {
		v.charged.Until = now
	}
	return v
}

func (w slidingWindow) readable(held Counter, index int64) bool {
	if int64(len(held.Values)) != w.buckets || held.Until%w.length != 0 || held.Until/w.length-w.buckets > index+w.buckets {
		return false
	}
	for _, n := range held.Values {
		if n < 0 || n > MaxLimit {
			return false
		}
	}
	return true
}

// leaves is when a bucket leaves the window.
func (w slidingWindow) leaves(index int64) int64 { return (index + w.buckets) * w.length }

func (w slidingWindow) standing(units []int64, used, index, now int64) Standing {
	s := Standing{Limit: w.limit, Remaining: max(0, w.limit-used)}
	for age, n := range units {
		if n > 0 {
			s.Reset = micros(w.leaves(index-int64(age)) - now)
			s.Next = w.freed(units, max(1, used-w.limit+1), index, now)
			break
		}
	}
	return s
}

// freed is the time until so many units have left the window, the oldest buckets
// first.
func (w slidingWindow) freed(units []int64, wanted, index, now int64) time.Duration {
	age := w.buckets - 1
	for wanted -= units[age]; wanted > 0; wanted -= units[age] {
		age--
	}
	return micros(w.leaves(index-age) - now)
}

func (w slidingWindow) arguments(int64) []int64 { return w.numbers }

func (w slidingWindow) capacity() int64 { return w.limit }
