package quota

// gcra is the generic cell rate algorithm (ITU-T I.371, as in throttled and
// redis-cell): a unit has an emission interval, window divided by limit, and the
// counter is the theoretical arrival time, the moment at which all that was
// charged will have been emitted. A request passes if that moment is then at most
// burst intervals ahead.
//
// The counter's Until is the theoretical arrival time, rounded up to a
// microsecond; its only value is what it was rounded up by, in parts. The script
// is lua/gcra.lua.
type gcra struct {
	shape string
	rate
}

func newGCRA(l Limit, shape string) (algorithm, *FieldError) {
	r, err := newRate(l)
	return gcra{shape, r}, err
}

func (g gcra) decide(held Counter, now, cost int64) verdict {
	var debt int64
	restart := false
	if held.Shape == g.shape {
		switch {
		case len(held.Values) != 1 || held.Values[0] < 0:
			restart = true
		case held.Until > now:
			// More than two bursts ahead is a clock that stepped back: it locks
			// nobody out. After a change of the limit the parts are others; less
			// than a microsecond is at stake.
			ahead := min(held.Until-now, 2*g.payOff(g.full())+g.patience)
			debt = max(0, ahead*g.units-min(held.Values[0], g.units-1))
		}
	}
	v, owed := g.verdict(debt, 0, cost)
	ahead := g.payOff(owed)
	v.charged = Counter{Shape: g.shape, Until: now + ahead, Values: []int64{ahead*g.units - owed}}
	v.restart = restart
	return v
}
