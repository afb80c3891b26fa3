package quota

import "time"

// calendar finds the boundaries of windows that follow the calendar of a place.
//
// A boundary of day, week, month or year is the first instant whose local wall
// clock reads midnight or later of its first day: where a change of the clocks
// skips midnight that is the instant of the change, where midnight comes twice
// it is the first. So a day has 23, 24 or 25 hours, and no instant is without a
// window or in two.
type calendar struct {
	window     Window
	location   *time.Location
	weekStart  time.Weekday
	dayOfMonth int // first day of a month's window; the last day where a month is shorter
}

// around gives the start and the end of the window that contains t.
func (c calendar) around(t time.Time) (start, end time.Time) {
	switch c.window.Unit {
	case "":
		// A fixed length counts from the Unix epoch, in UTC.
		length := c.window.Length.Microseconds()
		at := t.UnixMicro()
		from := at - ((at%length)+length)%length
		return time.UnixMicro(from), time.UnixMicro(from + length)
	case Second:
		return c.withinDay(t, time.Second)
	case Minute:
		return c.withinDay(t, time.Minute)
	case Hour:
		return c.withinDay(t, time.Hour)
	}
	// The local date names the window to look at first; where the clocks went
	// back over midnight t may belong to the next one already.
	year, month, day := t.In(c.location).Date()
	for n := 0; ; n++ {
		start, end = c.boundary(year, month, day, n), c.boundary(year, month, day, n+1)
		if t.Before(end) {
			return start, end
		}
	}
}

// withinDay cuts the running time into units by the minutes and seconds of the
// local clock (so an hour in Kathmandu begins at :15 UTC). A change of the
// clocks that is not a multiple of the unit cuts the window it falls in.
func (c calendar) withinDay(t time.Time, unit time.Duration) (start, end time.Time) {
	local := t.In(c.location)
	zoneStart, zoneEnd := changes(local)
	_, offset := local.Zone()
	wall := local.UnixMicro() + int64(offset)*1e6
	size := unit.Microseconds()
	into := time.Duration(((wall%size)+size)%size) * time.Microsecond
	start = t.Truncate(time.Microsecond).Add(-into)
	end = start.Add(unit)
	if !zoneStart.IsZero() && zoneStart.After(start) {
		start = zoneStart
	}
	if !zoneEnd.IsZero() && zoneEnd.Before(end) {
		end = zoneEnd
	}
	return start, end
}

// boundary is the start of the n-th window after the one that begins on or
// before the given local date.
func (c calendar) boundary(year int, month time.Month, day, n int) time.Time {
	switch c.window.Unit {
	case Day:
		return c.midnight(year, month, day+n)
	case Week:
		weekday := time.Date(year, month, day, 12, 0, 0, 0, time.UTC).Weekday()
		since := (int(weekday) - int(c.weekStart) + 7) % 7
		return c.midnight(year, month, day-since+7*n)
	case Month:
		if day < c.anchor(year, month) {
			n--
		}
		first := time.Date(year, month+time.Month(n), 1, 12, 0, 0, 0, time.UTC)
		year, month = first.Year(), first.Month()
		return c.midnight(year, month, c.anchor(year, month))
	default: // Year
		return c.midnight(year+n, time.January, 1)
	}
}

// anchor is the day on which the window of a month begins: the configured day,
// or the month's last where it has no such day.
func (c calendar) anchor(year int, month time.Month) int {
	return min(c.dayOfMonth, time.Date(year, month+1, 0, 12, 0, 0, 0, time.UTC).Day())
}

// midnight is the first instant whose local wall clock reads 00:00 of the date
// or later. It walks the zone's offsets from a moment that is before it at every
// offset in use (-12 to +14 hours).
func (c calendar) midnight(year int, month time.Month, day int) time.Time {
	wall := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	from := wall.Add(-15 * time.Hour)
	for {
		local := from.In(c.location)
		_, offset := local.Zone()
		_, zoneEnd := changes(local)
		at := wall.Add(-time.Duration(offset) * time.Second)
		if at.Before(from) {
			return from.In(c.location)
		}
		if zoneEnd.IsZero() || at.Before(zoneEnd) {
			return at.In(c.location)
		}
		from = zoneEnd
	}
}

// changes are when the offset of the local clock changed last and changes next,
// zero times where it did not or does not. Not every bound that time.ZoneBounds
// gives is a change: there is one in January 2038, where 32 bits end, and in the
// last days of later leap years Go 1.26 gives the 31st of December, even for
// moments after it.
func changes(local time.Time) (last, next time.Time) {
	_, offset := local.Zone()
	last, next = local.ZoneBounds()
	if _, before := last.Add(-time.Second).In(local.Location()).Zone(); last.After(local) || before == offset {
		last = time.Time{}
	}
	if _, after := next.Zone(); !next.After(local) || after == offset {
		next = time.Time{}
	}
	return last, next
}

// after is the moment one window later on the local wall clock, for a window
// that begins with its first charge: a month after the 31st of January is the
// last of February, a day is 23 hours where the clocks go forward in between.
func (c calendar) after(t time.Time) time.Time {
	local := t.In(c.location)
	switch c.window.Unit {
	case "":
		return t.Add(c.window.Length)
	case Second:
		return t.Add(time.Second)
	case Minute:
		return t.Add(time.Minute)
	case Hour:
		return t.Add(time.Hour)
	case Day:
		return local.AddDate(0, 0, 1)
	case Week:
		return local.AddDate(0, 0, 7)
	case Month:
		return c.later(local, 1)
	default: // Year
		return c.later(local, 12)
	}
}

// later adds months and keeps to the last day where the month is too short,
// where AddDate would run over into the next.
func (c calendar) later(local time.Time, months int) time.Time {
	year, month, day := local.Date()
	last := time.Date(year, month+time.Month(months)+1, 0, 12, 0, 0, 0, time.UTC).Day()
	return time.Date(year, month+time.Month(months), min(day, last),
		local.Hour(), local.Minute(), local.Second(), local.Nanosecond(), c.location)
}
