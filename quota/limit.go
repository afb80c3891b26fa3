package quota

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Algorithm names how a limit counts.
type Algorithm string

const (
	// FixedWindow allows limit units in each window and gives the whole quota
	// back when the window ends.
	FixedWindow Algorithm = "fixed_window"
	// SlidingWindow allows limit units in any window that ends with one of its
	// buckets; constant memory.
	SlidingWindow Algorithm = "sliding_window"
	// SlidingLog allows limit units in any window; memory for each charge.
	SlidingLog Algorithm = "sliding_log"
	// LeakyBucket is a funnel that holds burst units and drains limit units per
	// window.
	LeakyBucket Algorithm = "leaky_bucket"
	// TokenBucket holds burst tokens and gets limit tokens per window.
	TokenBucket Algorithm = "token_bucket"
	// GCRA emits limit units per window, evenly, and up to burst at once.
	GCRA Algorithm = "gcra"
)

// Algorithms are the algorithms that a limit may name.
var Algorithms = []Algorithm{FixedWindow, SlidingWindow, SlidingLog, LeakyBucket, TokenBucket, GCRA}

// bursting are the algorithms with a burst.
var bursting = []Algorithm{LeakyBucket, TokenBucket, GCRA}

// DefaultBuckets is how many buckets a sliding_window has unless told otherwise,
// MaxBuckets how many it has at most.
const (
	DefaultBuckets = 10
	MaxBuckets     = 100
)

// Align says where the windows of a limit begin.
type Align string

const (
	// FirstRequest begins a window with the first charge after the last one ended.
	FirstRequest Align = "first_request"
	// Calendar begins windows at the boundaries of the calendar unit in the
	// limit's timezone; those of a duration at its multiples since the Unix epoch.
	Calendar Align = "calendar"
)

// Aligns are the alignments that a limit may name.
var Aligns = []Align{FirstRequest, Calendar}

// Weekdays are the names of the days on which a week may begin, Monday first.
var Weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// Bounds of the numbers. A limit stays below 10^14, from where Kong's JSON
// encoder writes numbers with an exponent, and far below 2^53, from where Lua's
// numbers are no longer exact.
const (
	MaxLimit int64 = 1_000_000_000_000
	MaxCost  int64 = 1 << 31
	// MaxLimits is how many limits a policy holds at most.
	MaxLimits = 16
	// LongestDelay is the longest that a request may be made to wait. Whoever
	// waits holds a connection; Kong gives up on a plugin after a minute.
	LongestDelay = 30 * time.Second
)

// Limit is a named rule. The zero value of every field but Name, Limit and
// Window is its default.
type Limit struct {
	// Name is the limit's name in keys, headers and metrics: 1 to 32 of a-z,
	// 0-9, "_" and "-". What was used is kept under it: a limit with the same
	// name, algorithm, window and alignment goes on where another left off.
	Name      string
	Algorithm Algorithm // default FixedWindow
	// Limit is how many units are allowed per window, 1 to MaxLimit.
	Limit  int64
	Window Window
	// Burst is how much passes at once after a rest, 1 to MaxLimit; default
	// Limit. Only for the algorithms with a rate: LeakyBucket, TokenBucket, GCRA.
	Burst int64
	// MaxDelay lets a request pass that is over the Burst if it waits for its turn,
	// up to this long, at most LongestDelay; see Decision.Wait. Without it such a
	// request is refused. Only for the algorithms with a rate.
	MaxDelay time.Duration
	// Lease lets nodes take a part of the quota in advance and spend it themselves;
	// the zero value asks the store for every request. Only for a FixedWindow, and
	// where every limit of the policy has one: see package leases.
	Lease Lease
	// Buckets is into how many a SlidingWindow is divided, 1 to MaxBuckets;
	// default DefaultBuckets.
	Buckets int
	// Align says where a FixedWindow begins; default FirstRequest.
	Align Align
	// Timezone is the IANA name of the place whose calendar counts; default
	// UTC. Only for a calendar unit.
	Timezone string
	// WeekStart is the day on which a week begins; default monday. Only for
	// calendar weeks.
	WeekStart string
	// DayOfMonth is the day on which a billing month begins, 1 to 31, in a
	// shorter month its last day; default 1. Only for calendar months.
	DayOfMonth int
	// Identity is the name of the identity that the limit counts, where that is
	// another than the request's own: see Policy.Others.
	Identity string
}

// Lease says how much of a quota a node may hold, and for how long.
type Lease struct {
	// Share of what remains is taken at a time, above 0 up to 1.
	Share float64
	// MaxAge is when what is not spent goes back, 10 ms to an hour.
	MaxAge time.Duration
}

func (l Lease) check() (field string, value any, rule string) {
	switch {
	case l == Lease{}:
	case !(l.Share > 0 && l.Share <= 1):
		return "lease.share", l.Share, "must be above 0 and at most 1"
	case l.MaxAge < 10*time.Millisecond || l.MaxAge > time.Hour:
		return "lease.max_age", l.MaxAge.String(), "must be between 10ms and 1h"
	}
	return "", nil, ""
}

// NameRule is what a limit's name must be, for messages.
const NameRule = "must be 1 to 32 characters of a-z, 0-9, _ and -"

var limitName = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)

// check returns every problem of the limit. A field that could have no effect
// is a problem too: who set it expects one.
func (l Limit) check() []*FieldError {
	var problems []*FieldError
	add := func(field string, value any, rule string) {
		problems = append(problems, &FieldError{field, value, rule})
	}
	if !limitName.MatchString(l.Name) {
		add("name", l.Name, NameRule)
	}
	if l.Algorithm != "" && !slices.Contains(Algorithms, l.Algorithm) {
		add("algorithm", string(l.Algorithm), oneOf(Algorithms))
	}
	if l.Limit < 1 || l.Limit > MaxLimit {
		add("limit", l.Limit, fmt.Sprintf("must be between 1 and %d", MaxLimit))
	}
	window := l.Window.check()
	if window != nil {
		problems = append(problems, window)
	}
	if l.Align != "" && !slices.Contains(Aligns, l.Align) {
		add("align", string(l.Align), oneOf(Aligns))
	}
	if l.Algorithm != "" && l.Algorithm != FixedWindow {
		if window == nil && l.Window.Nominal() == 0 {
			add("window", l.Window.String(), "has no fixed length, which "+string(l.Algorithm)+" needs")
		}
		if l.Align == Calendar {
			add("align", string(l.Align), "needs algorithm fixed_window")
		}
		if l.Timezone != "" {
			add("timezone", l.Timezone, "needs algorithm fixed_window")
		}
	}
	if l.Burst != 0 {
		if l.Burst < 1 || l.Burst > MaxLimit {
			add("burst", l.Burst, fmt.Sprintf("must be between 1 and %d", MaxLimit))
		} else if !slices.Contains(bursting, l.Algorithm) {
			add("burst", l.Burst, "needs one of the algorithms leaky_bucket, token_bucket, gcra")
		}
	}
	if l.MaxDelay != 0 {
		switch {
		case l.MaxDelay < 0 || l.MaxDelay > LongestDelay:
			add("max_delay", l.MaxDelay.String(), "must be between 0s and "+LongestDelay.String())
		case l.MaxDelay%time.Microsecond != 0:
			add("max_delay", l.MaxDelay.String(), "must be a whole number of microseconds")
		case !slices.Contains(bursting, l.Algorithm):
			add("max_delay", l.MaxDelay.String(), "needs one of the algorithms leaky_bucket, token_bucket, gcra")
		}
	}
	if field, value, rule := l.Lease.check(); field != "" {
		add(field, value, rule)
	} else if l.Lease != (Lease{}) && l.Algorithm != "" && l.Algorithm != FixedWindow {
		add("lease.share", l.Lease.Share, "needs algorithm fixed_window: what the others charge in advance would count too early")
	}
	if l.Buckets != 0 {
		if l.Buckets < 1 || l.Buckets > MaxBuckets {
			add("buckets", l.Buckets, fmt.Sprintf("must be between 1 and %d", MaxBuckets))
		} else if l.Algorithm != SlidingWindow {
			add("buckets", l.Buckets, "needs algorithm sliding_window")
		}
	}
	if l.Timezone != "" {
		if _, err := loadLocation(l.Timezone); err != nil {
			add("timezone", l.Timezone, "must be an IANA timezone such as Asia/Shanghai")
		} else if window == nil && l.Window.Unit == "" {
			add("timezone", l.Timezone, "needs a calendar unit as window: a duration is the same everywhere")
		}
	}
	if l.WeekStart != "" {
		if !slices.Contains(Weekdays, l.WeekStart) {
			add("week_start", l.WeekStart, oneOf(Weekdays))
		} else if window == nil && (l.Window.Unit != Week || l.Align != Calendar) {
			add("week_start", l.WeekStart, "needs window week and align calendar")
		}
	}
	if l.DayOfMonth != 0 {
		if l.DayOfMonth < 1 || l.DayOfMonth > 31 {
			add("day_of_month", l.DayOfMonth, "must be between 1 and 31")
		} else if window == nil && (l.Window.Unit != Month || l.Align != Calendar) {
			add("day_of_month", l.DayOfMonth, "needs window month and align calendar")
		}
	}
	return problems
}

// loadLocation refuses what time.LoadLocation takes but is no place: "" and
// "Local" differ from machine to machine.
func loadLocation(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, fmt.Errorf("%q is another place on every machine", name)
	}
	return time.LoadLocation(name)
}

func oneOf[T ~string](values []T) string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	return "must be one of " + strings.Join(names, ", ")
}

// withDefaults fills the fields that were left out.
func (l Limit) withDefaults() Limit {
	if l.Algorithm == "" {
		l.Algorithm = FixedWindow
	}
	if l.Align == "" {
		l.Align = FirstRequest
	}
	if l.Burst == 0 && slices.Contains(bursting, l.Algorithm) {
		l.Burst = l.Limit
	}
	if l.Buckets == 0 && l.Algorithm == SlidingWindow {
		l.Buckets = DefaultBuckets
	}
	if l.Timezone == "" {
		l.Timezone = "UTC"
	}
	if l.WeekStart == "" {
		l.WeekStart = Weekdays[0]
	}
	if l.DayOfMonth == 0 {
		l.DayOfMonth = 1
	}
	return l
}

func (l Limit) calendar() (calendar, error) {
	location, err := loadLocation(l.Timezone)
	if err != nil {
		return calendar{}, err
	}
	return calendar{
		window:     l.Window,
		location:   location,
		weekStart:  time.Weekday((slices.Index(Weekdays, l.WeekStart) + 1) % 7),
		dayOfMonth: l.DayOfMonth,
	}, nil
}
