package quota

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Unit is a calendar unit. Its length is that of the calendar: a month has 28
// to 31 days and a day 23 to 25 hours.
type Unit string

// The calendar units.
const (
	Second Unit = "second"
	Minute Unit = "minute"
	Hour   Unit = "hour"
	Day    Unit = "day"
	Week   Unit = "week"
	Month  Unit = "month"
	Year   Unit = "year"
)

// Units are the calendar units from short to long.
var Units = []Unit{Second, Minute, Hour, Day, Week, Month, Year}

// Window is how long a limit counts: a Length, or a calendar Unit. Exactly one
// of the two is set.
type Window struct {
	Length time.Duration
	Unit   Unit
	// problem is why the text that the window was made of is none.
	problem *FieldError
}

// Per is the window of a fixed length.
func Per(length time.Duration) Window { return Window{Length: length} }

// PerUnit is the window of a calendar unit.
func PerUnit(unit Unit) Window { return Window{Unit: unit} }

// The bounds of a window's length. Ten years is far above any quota and far
// below where microseconds would stop to be exact in Lua (2^53).
const (
	MinWindow = time.Millisecond
	MaxWindow = 3660 * 24 * time.Hour
)

var (
	durationPart = regexp.MustCompile(`(\d{1,12})(ms|[smhd])`)
	duration     = regexp.MustCompile(`^(?:\d{1,12}(?:ms|[smhd]))+$`)
	durationUnit = map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}
)

// WindowRule is what ParseWindow wants, for messages.
const WindowRule = `must be a calendar unit (second, minute, hour, day, week, month, year) or a duration such as 90s, 15m, 1h30m or 30d`

// ParseWindow reads a calendar unit ("day") or a duration in ms, s, m, h and d
// ("90s", "1h30m", "30d"; a d is 24 hours). The error is a *FieldError on the
// field "window"; the window that comes with it makes NewPolicy report the same,
// beside the other problems of its limit.
func ParseWindow(text string) (Window, error) {
	if slices.Contains(Units, Unit(text)) {
		return PerUnit(Unit(text)), nil
	}
	if !duration.MatchString(text) {
		return unreadable(text, WindowRule)
	}
	var length time.Duration
	for _, part := range durationPart.FindAllStringSubmatch(text, -1) {
		count, err := strconv.ParseInt(part[1], 10, 64)
		unit := durationUnit[part[2]]
		if err != nil || time.Duration(count) > (MaxWindow-length)/unit {
			return unreadable(text, lengthRule)
		}
		length += time.Duration(count) * unit
	}
	if length < MinWindow {
		return unreadable(text, lengthRule)
	}
	return Per(length), nil
}

func unreadable(text, rule string) (Window, error) {
	problem := &FieldError{"window", text, rule}
	return Window{problem: problem}, problem
}

var lengthRule = fmt.Sprintf("must be between 1ms and %dd", MaxWindow/(24*time.Hour))

func (w Window) check() *FieldError {
	switch {
	case w.problem != nil:
		problem := *w.problem
		return &problem
	case w.Unit != "" && w.Length != 0:
		return &FieldError{"window", w.Length.String() + " and " + string(w.Unit), "must be either a duration or a calendar unit"}
	case w.Unit != "":
		if !slices.Contains(Units, w.Unit) {
			return &FieldError{"window", string(w.Unit), WindowRule}
		}
	case w.Length < MinWindow || w.Length > MaxWindow:
		return &FieldError{"window", w.Length.String(), lengthRule}
	case w.Length%time.Microsecond != 0:
		return &FieldError{"window", w.Length.String(), "must be a whole number of microseconds"}
	}
	return nil
}

// unitLengths are those of the units that have one for most purposes: a calendar
// day can have 23 or 25 hours.
var unitLengths = map[Unit]time.Duration{
	Second: time.Second, Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour, Week: 7 * 24 * time.Hour,
}

// Nominal is the window's length, 0 for a month or a year, which have none. A
// calendar day counts as 24 hours.
func (w Window) Nominal() time.Duration {
	if w.Unit != "" {
		return unitLengths[w.Unit]
	}
	return w.Length
}

func (w Window) micros() int64 { return w.Nominal().Microseconds() }

// String gives the window as ParseWindow reads it.
func (w Window) String() string {
	switch {
	case w.Unit != "":
		return string(w.Unit)
	case w.Length%(24*time.Hour) == 0:
		return strconv.FormatInt(int64(w.Length/(24*time.Hour)), 10) + "d"
	case w.Length%time.Second == 0:
		return strconv.FormatInt(int64(w.Length/time.Second), 10) + "s"
	case w.Length%time.Millisecond == 0:
		return strconv.FormatInt(w.Length.Milliseconds(), 10) + "ms"
	default:
		return w.Length.String()
	}
}
