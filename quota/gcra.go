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
	burst int64
	rate
}

func newGCRA(l Limit, shape string) (algorithm, *FieldError) {
	r, err := newRate(l.Limit, l.Window.micros(), l.Burst)
	return gcra{shape, l.Burst, r}, err
}

func (g gcra) decide(held Counter, now, cost int64) verdict {
	var debt int64
	restart := false
	if held.Shape == g.shape {
		switch ahead := held.Until - now; {
		case len(held.Values) != 1 || held.Values[0] < 0 || ahead > 2*g.payOff(g.burst*g.micros):
			restart = true
		case ahead > 0:
			// After a change of the limit the parts are others; less than a
			// microsecond is at stake.
			debt = max(0, ahead*g.units-min(held.Values[0], g.units-1))
		}
	}
	v, owed := g.verdict(g.burst, debt, cost)
	ahead := g.payOff(owed)
	v.charged = Counter{Shape: g.shape, Until: now + ahead, Values: []int64{ahead*g.units - owed}}
	v.restart = restart
	return v
}

func (g gcra) arguments(int64) []int64 { return []int64{g.units, g.micros} }

// capacity is how much the limit holds when nothing is used.
func (g gcra) capacity() int64 { return g.burst }
