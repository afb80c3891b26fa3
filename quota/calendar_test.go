package quota

import (
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata"
)

func newCalendar(t testing.TB, l Limit) calendar {
	t.Helper()
	l.Align = Calendar
	l.Name, l.Limit = "a", 1
	if problems := l.check(); len(problems) > 0 {
		t.Fatal(problems[0])
	}
	c, err := l.withDefaults().calendar()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func moment(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// The table of ../../shared/VECTORS.md: the last millisecond of the period.
func TestLastMillisecond(t *testing.T) {
	for _, c := range []struct {
		at   string
		unit Unit
		last int64
	}{
		{"2019-11-11T00:00:30Z", Minute, 1573430459999},
		{"2019-11-11T00:20:01Z", Hour, 1573433999999},
		{"2019-11-11T00:00:00Z", Day, 1573516799999},
		{"2019-11-11T13:14:15Z", Day, 1573516799999},
		{"2019-11-11T23:59:59.999999Z", Day, 1573516799999},
		{"2019-11-01T00:00:00Z", Month, 1575158399999},
		{"2019-11-30T23:59:59Z", Month, 1575158399999},
		{"2019-01-01T00:00:00Z", Month, 1548979199999},
		{"2019-01-31T23:59:59Z", Month, 1548979199999},
		{"2024-01-31T00:00:00Z", Month, 1706745599999},
		{"2019-01-01T00:00:00Z", Year, 1577836799999},
		{"2019-12-31T23:59:59Z", Year, 1577836799999},
	} {
		_, end := newCalendar(t, Limit{Window: PerUnit(c.unit)}).around(moment(t, c.at))
		if got := end.UnixMilli() - 1; got != c.last {
			t.Errorf("%s %s: %d, want %d", c.at, c.unit, got, c.last)
		}
	}
}

func TestWindowsOfTheCalendar(t *testing.T) {
	in := func(zone string, l Limit) Limit { l.Timezone = zone; return l }
	day, hour, week, month, year := Limit{Window: PerUnit(Day)}, Limit{Window: PerUnit(Hour)}, Limit{Window: PerUnit(Week)}, Limit{Window: PerUnit(Month)}, Limit{Window: PerUnit(Year)}
	billing := func(n int) Limit { return Limit{Window: PerUnit(Month), DayOfMonth: n} }
	for name, c := range map[string]struct {
		limit          Limit
		at, start, end string
	}{
		"a day":                                {in("Asia/Shanghai", day), "2026-11-21T15:59:59Z", "2026-11-21T00:00:00+08:00", "2026-11-22T00:00:00+08:00"},
		"a day begins":                         {in("Asia/Shanghai", day), "2026-11-21T16:00:00Z", "2026-11-22T00:00:00+08:00", "2026-11-23T00:00:00+08:00"},
		"23 hours in New York":                 {in("America/New_York", day), "2026-03-08T12:00:00-04:00", "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00"},
		"25 hours in New York":                 {in("America/New_York", day), "2026-11-01T12:00:00-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		"23 hours in Berlin":                   {in("Europe/Berlin", day), "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		"25 hours in Berlin":                   {in("Europe/Berlin", day), "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		"the hour before the clocks go back":   {in("Europe/Berlin", hour), "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+02:00"},
		"the same hour once more":              {in("Europe/Berlin", hour), "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		"midnight is skipped":                  {in("America/Sao_Paulo", day), "2017-10-15T12:00:00-02:00", "2017-10-15T01:00:00-02:00", "2017-10-16T00:00:00-02:00"},
		"the day before midnight is skipped":   {in("America/Sao_Paulo", day), "2017-10-14T23:59:59-03:00", "2017-10-14T00:00:00-03:00", "2017-10-15T01:00:00-02:00"},
		"midnight is skipped in Beirut":        {in("Asia/Beirut", day), "2022-03-27T12:00:00+03:00", "2022-03-27T01:00:00+03:00", "2022-03-28T00:00:00+03:00"},
		"midnight comes twice":                 {in("America/Havana", day), "2026-11-01T00:30:00-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		"the clocks go back to the day before": {in("America/Sao_Paulo", day), "2018-02-17T23:30:00-03:00", "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00"},
		"a day that was not":                   {in("Pacific/Apia", day), "2011-12-29T23:59:59-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		"the day after it":                     {in("Pacific/Apia", day), "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		"half an hour of Lord Howe":            {in("Australia/Lord_Howe", hour), "2026-04-05T01:45:00+10:30", "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"},
		"an hour at +05:45":                    {in("Asia/Kathmandu", hour), "2026-11-21T10:20:00Z", "2026-11-21T10:15:00Z", "2026-11-21T11:15:00Z"},
		"a day at +05:45":                      {in("Asia/Kathmandu", day), "2026-11-21T18:15:00Z", "2026-11-22T00:00:00+05:45", "2026-11-23T00:00:00+05:45"},
		"a day at +14:00":                      {in("Pacific/Kiritimati", day), "2026-11-21T10:00:00Z", "2026-11-22T00:00:00+14:00", "2026-11-23T00:00:00+14:00"},
		"a year begins first at +14:00":        {in("Pacific/Kiritimati", year), "2026-12-31T10:00:00Z", "2027-01-01T00:00:00+14:00", "2028-01-01T00:00:00+14:00"},
		"leap day":                             {day, "2024-02-29T12:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"},
		"February of a leap year":              {month, "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		"an ISO week":                          {week, "2026-11-22T23:59:59Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		"an ISO week over the new year":        {week, "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		"a week from Sunday":                   {Limit{Window: PerUnit(Week), WeekStart: "sunday"}, "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
		"a week from Sunday, on Saturday":      {Limit{Window: PerUnit(Week), WeekStart: "sunday"}, "2026-11-21T23:59:59Z", "2026-11-15T00:00:00Z", "2026-11-22T00:00:00Z"},
		"a week with a change of the clocks":   {in("Europe/Berlin", week), "2026-03-25T12:00:00Z", "2026-03-23T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		"billing on the 15th":                  {billing(15), "2026-11-14T23:59:59Z", "2026-10-15T00:00:00Z", "2026-11-15T00:00:00Z"},
		"billing on the 15th begins":           {billing(15), "2026-11-15T00:00:00Z", "2026-11-15T00:00:00Z", "2026-12-15T00:00:00Z"},
		"billing on the 31st in a short month": {billing(31), "2026-04-30T00:00:00Z", "2026-04-30T00:00:00Z", "2026-05-31T00:00:00Z"},
		"billing on the 31st before it":        {billing(31), "2026-04-29T23:59:59Z", "2026-03-31T00:00:00Z", "2026-04-30T00:00:00Z"},
		"billing on the 30th in February":      {billing(30), "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-30T00:00:00Z"},
		"billing on the 29th, common year":     {billing(29), "2026-02-28T12:00:00Z", "2026-02-28T00:00:00Z", "2026-03-29T00:00:00Z"},
		"billing on the 29th, leap year":       {billing(29), "2024-02-28T12:00:00Z", "2024-01-29T00:00:00Z", "2024-02-29T00:00:00Z"},
		"billing on the 31st, end of the year": {billing(31), "2026-12-31T00:00:00Z", "2026-12-31T00:00:00Z", "2027-01-31T00:00:00Z"},
		"billing on the 31st, after January":   {billing(31), "2027-02-01T00:00:00Z", "2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z"},
		"billing in Shanghai":                  {in("Asia/Shanghai", billing(1)), "2026-10-31T16:00:00Z", "2026-11-01T00:00:00+08:00", "2026-12-01T00:00:00+08:00"},
		// time.ZoneBounds errs on these days.
		"the end of a leap year":           {in("America/New_York", day), "2048-12-30T11:10:06Z", "2048-12-30T00:00:00-05:00", "2048-12-31T00:00:00-05:00"},
		"its last day":                     {in("Europe/Berlin", day), "2040-12-31T12:00:00Z", "2040-12-31T00:00:00+01:00", "2041-01-01T00:00:00+01:00"},
		"an hour of its last day":          {in("Australia/Adelaide", hour), "2040-12-31T00:10:00Z", "2040-12-30T23:30:00Z", "2040-12-31T00:30:00Z"},
		"before 1970":                      {day, "1969-12-31T23:59:59Z", "1969-12-31T00:00:00Z", "1970-01-01T00:00:00Z"},
		"a duration counts from the epoch": {Limit{Window: Per(15 * time.Minute)}, "2026-11-21T10:14:59.999999Z", "2026-11-21T10:00:00Z", "2026-11-21T10:15:00Z"},
		"a duration before the epoch":      {Limit{Window: Per(36 * time.Hour)}, "1969-12-31T00:00:00Z", "1969-12-30T12:00:00Z", "1970-01-01T00:00:00Z"},
		"a second":                         {Limit{Window: PerUnit(Second)}, "2026-11-21T10:14:59.999999Z", "2026-11-21T10:14:59Z", "2026-11-21T10:15:00Z"},
		"a minute":                         {Limit{Window: PerUnit(Minute)}, "2026-11-21T10:14:59.999999Z", "2026-11-21T10:14:00Z", "2026-11-21T10:15:00Z"},
	} {
		start, end := newCalendar(t, c.limit).around(moment(t, c.at))
		if !start.Equal(moment(t, c.start)) || !end.Equal(moment(t, c.end)) {
			t.Errorf("%s: %s is in %s to %s, want %s to %s", name, c.at, start.Format(time.RFC3339), end.Format(time.RFC3339), c.start, c.end)
		}
	}
}

// No instant is without a window or in two.
func TestWindowsTile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	zones := []string{"UTC", "Asia/Shanghai", "America/New_York", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "Pacific/Kiritimati", "Africa/Cairo", "Asia/Beirut", "Africa/Casablanca", "America/St_Johns", "Australia/Adelaide"}
	for _, unit := range Units {
		for _, zone := range zones {
			l := Limit{Window: PerUnit(unit), Timezone: zone}
			for range 150 {
				if unit == Month {
					l.DayOfMonth = 1 + random.IntN(31)
				}
				if unit == Week {
					l.WeekStart = Weekdays[random.IntN(7)]
				}
				c := newCalendar(t, l)
				at := time.UnixMicro(random.Int64N(135*365*86400e6) - 5*365*86400e6)
				if random.IntN(2) == 0 { // near a change of the clocks
					if _, change := at.In(c.location).ZoneBounds(); !change.IsZero() {
						at = change.Add(time.Duration(random.Int64N(int64(4*time.Hour))) - 2*time.Hour)
					}
				}
				start, end := c.around(at)
				if start.After(at) || !at.Before(end) {
					t.Fatalf("%+v: %s is not in %s to %s", l, at, start, end)
				}
				if again, _ := c.around(start); !again.Equal(start) {
					t.Fatalf("%+v: the window of %s begins at %s", l, start, again)
				}
				if next, _ := c.around(end); !next.Equal(end) {
					t.Fatalf("%+v: after %s comes %s", l, end, next)
				}
				if before, last := c.around(start.Add(-time.Microsecond)); !last.Equal(start) || !before.Before(start) {
					t.Fatalf("%+v: before %s was %s to %s", l, start, before, last)
				}
			}
		}
	}
}

// A calendar unit that begins with the first charge.
func TestAfter(t *testing.T) {
	for name, c := range map[string]struct {
		unit          Unit
		zone, at, end string
	}{
		"a month after the 31st of January": {Month, "UTC", "2026-01-31T10:00:00Z", "2026-02-28T10:00:00Z"},
		"in a leap year":                    {Month, "UTC", "2024-01-31T10:00:00Z", "2024-02-29T10:00:00Z"},
		"a month after the 15th":            {Month, "UTC", "2026-01-15T10:00:00Z", "2026-02-15T10:00:00Z"},
		"a year after leap day":             {Year, "UTC", "2024-02-29T10:00:00Z", "2025-02-28T10:00:00Z"},
		"a day of 23 hours":                 {Day, "Europe/Berlin", "2026-03-28T12:00:00+01:00", "2026-03-29T12:00:00+02:00"},
		"a week of 169 hours":               {Week, "Europe/Berlin", "2026-10-20T12:00:00+02:00", "2026-10-27T12:00:00+01:00"},
		"an hour":                           {Hour, "Europe/Berlin", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"},
		"a minute":                          {Minute, "UTC", "2026-10-25T02:30:01Z", "2026-10-25T02:31:01Z"},
		"a second":                          {Second, "UTC", "2026-10-25T02:30:01.5Z", "2026-10-25T02:30:02.5Z"},
	} {
		got := newCalendar(t, Limit{Window: PerUnit(c.unit), Timezone: c.zone}).after(moment(t, c.at))
		if !got.Equal(moment(t, c.end)) {
			t.Errorf("%s: %s, want %s", name, got, c.end)
		}
	}
}
