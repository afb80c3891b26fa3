package quota

import (
	"sync/atomic"
	"time"
)

// fixedWindow allows limit units per window. Its counter's only value is the
// units used; the window ends at the counter's Until.
//
// The window that a counter is in lasts until its end, whatever the limit is by
// then, and also when the clock steps back, or until all that was charged in it is
// given back: only an end that lies beyond the
// window after this one is taken for unreadable. The script is
// lua/fixed_window.lua.
type fixedWindow struct {
	shape string
	limit int64
	align Align
	calendar
	constant []int64 // the length of a window that begins with a charge, if it is always the same
	// latest is the last answer of boundaries: most calls ask for the same one.
	latest *atomic.Pointer[boundaries]
}

// boundaries are those of the windows around a moment, in microseconds: the
// window before, the one that contains the moment, and two more. A script picks
// by its own clock, which may differ from the caller's by a window.
type boundaries [5]int64

const current = 1 // the window that contains the moment that was asked for

func newFixedWindow(l Limit, shape string) (algorithm, *FieldError) {
	c, err := l.calendar()
	if err != nil {
		return nil, &FieldError{"timezone", l.Timezone, err.Error()}
	}
	w := fixedWindow{shape: shape, limit: l.Limit, align: l.Align, calendar: c, latest: new(atomic.Pointer[boundaries])}
	if l.Window.Length != 0 {
		w.constant = []int64{l.Window.micros()}
	}
	return w, nil
}

func (w fixedWindow) decide(held Counter, now, cost int64) verdict {
	end, horizon := w.ends(now)
	var used int64
	restart := false
	if held.Shape == w.shape {
		switch {
		case len(held.Values) != 1 || held.Values[0] < 0 || held.Until > horizon:
			restart = true
		case held.Until > now:
			used, end = held.Values[0], held.Until
		}
	}

	total := max(0, used+cost)
	until := end
	if total == 0 { // all is given back: the window has not begun
		until = now
	}
	v := verdict{
		before:  w.standing(used, end-now),
		after:   w.standing(total, end-now),
		charged: Counter{Shape: w.shape, Until: until, Values: []int64{total}},
		restart: restart,
	}
	switch {
	case cost > w.limit:
		v.before.RetryAfter = Never
	case cost > 0 && used+cost > w.limit:
		v.before.RetryAfter = micros(end - now)
	}
	return v
}

func (w fixedWindow) standing(used, left int64) Standing {
	s := Standing{Limit: w.limit, Remaining: max(0, w.limit-used)}
	if used > 0 {
		s.Next, s.Reset = micros(left), micros(left)
	}
	return s
}

// ends gives the end of a window that begins with a charge now, and the
// latest end that a readable counter can have.
func (w fixedWindow) ends(now int64) (end, horizon int64) {
	if w.align == Calendar {
		b := w.boundaries(now)
		return b[current+1], b[current+2]
	}
	length := w.length(now)
	return now + length, now + 2*length
}

func (w fixedWindow) length(now int64) int64 {
	if w.constant != nil {
		return w.constant[0]
	}
	return w.after(time.UnixMicro(now)).UnixMicro() - now
}

func (w fixedWindow) boundaries(now int64) *boundaries {
	if b := w.latest.Load(); b != nil && b[current] <= now && now < b[current+1] {
		return b
	}
	var b boundaries
	start, end := w.around(time.UnixMicro(now))
	before, _ := w.around(start.Add(-time.Microsecond))
	b[0], b[1], b[2] = before.UnixMicro(), start.UnixMicro(), end.UnixMicro()
	for i := 3; i < len(b); i++ {
		_, end = w.around(end)
		b[i] = end.UnixMicro()
	}
	w.latest.Store(&b)
	return &b
}

func (w fixedWindow) arguments(now int64) []int64 {
	if w.align == Calendar {
		return w.boundaries(now)[:]
	}
	if w.constant != nil {
		return w.constant
	}
	return []int64{w.length(now)}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func (w fixedWindow) capacity() int64 { return w.limit }
