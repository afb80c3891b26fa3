package quota

// bucket is the leaky bucket as a meter, and the token bucket, which is the same
// seen from the other side: a funnel filled with n units is a bucket that lacks n
// tokens. It holds burst units; limit units drain, or come back, per window.
//
// The counter's values are the level in parts, the parts of a unit (they change
// with the limit, and the level is converted then), and the moment that the level
// is of. The script is lua/bucket.lua.
type bucket struct {
	shape string
	rate
}

func newBucket(l Limit, shape string) (algorithm, *FieldError) {
	r, err := newRate(l)
	return bucket{shape, r}, err
}

func (b bucket) decide(held Counter, now, cost int64) verdict {
	var level int64
	at, restart := now, false
	if held.Shape == b.shape {
		level, at, restart = b.level(held, now)
	}
	v, owed := b.verdict(level, at-now, cost)
	v.charged = Counter{Shape: b.shape, Until: at + b.payOff(owed), Values: []int64{owed, b.micros, at}}
	v.restart = restart
	return v
}

// level reads a counter at a moment: what is left in the bucket. A clock that
// stepped back drains nothing until it is where it was.
func (b bucket) level(held Counter, now int64) (level, at int64, restart bool) {
	if len(held.Values) != 3 {
		return 0, now, true
	}
	level, micros, at := held.Values[0], held.Values[1], held.Values[2]
	if level < 0 || level > maxParts || micros < 1 || micros > maxParts || at < 0 || at > now+b.payOff(b.full()) {
		return 0, now, true
	}
	if micros != b.micros { // whole units go over, a begun one as a whole
		units := (level + micros - 1) / micros
		if units > maxParts/b.micros {
			return 0, now, true
		}
		level = units * b.micros
	}
	passed := max(0, now-at)
	if passed >= b.payOff(level) {
		return 0, max(at, now), false
	}
	return level - passed*b.units, max(at, now), false
}
