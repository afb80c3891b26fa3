package quota

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseWindow(t *testing.T) {
	for text, want := range map[string]Window{
		"second": PerUnit(Second), "year": PerUnit(Year), "90s": Per(90 * time.Second), "15m": Per(15 * time.Minute),
		"36h": Per(36 * time.Hour), "30d": Per(720 * time.Hour), "1h30m": Per(90 * time.Minute), "1ms": Per(time.Millisecond), "3660d": Per(MaxWindow),
	} {
		if got, err := ParseWindow(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	length := "must be between 1ms and 3660d"
	for text, rule := range map[string]string{
		"": WindowRule, "fortnight": WindowRule, "1 day": WindowRule, "1.5h": WindowRule, "-5s": WindowRule, "5": WindowRule, "5us": WindowRule, "Day": WindowRule, "5m day": WindowRule,
		"1234567890123s": WindowRule, "1234567890s": length, "0s": length, "3661d": length, "3660d1ms": length, "999999999d": length, "3660d3660d": length,
	} {
		w, err := ParseWindow(text)
		want := fmt.Sprintf("window: %q %s", text, rule)
		if err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
		if _, err := NewPolicy(Limit{Name: "a", Limit: 1, Window: w}); err == nil || err.Error() != "limits[1]."+want {
			t.Errorf("%q in a policy: got %v", text, err)
		}
	}
}

func FuzzParseWindow(f *testing.F) {
	for _, text := range []string{"day", "90s", "1h30m", "0ms", "fortnight", "9999999999d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWindow(text)
		if err != nil {
			return
		}
		if w.Unit == "" && (w.Length < MinWindow || w.Length > MaxWindow) {
			t.Errorf("%q is %v long", text, w.Length)
		}
		if again, err := ParseWindow(w.String()); err != nil || again != w {
			t.Errorf("%q: %v reads as %v, %v", text, w, again, err)
		}
	})
}

func TestNewPolicyRefuses(t *testing.T) {
	good := Limit{Name: "a", Limit: 1, Window: PerUnit(Day)}
	with := func(change func(*Limit)) []Limit { l := good; change(&l); return []Limit{l} }
	many := make([]Limit, MaxLimits+1)
	for i := range many {
		many[i] = good
		many[i].Name = fmt.Sprint("l", i)
	}
	for want, limits := range map[string][]Limit{
		"limits: 0 entries: a policy has 1 to 16":                                                                                nil,
		"limits: 17 entries: a policy has 1 to 16":                                                                               many,
		`limits[1].name: "" must be 1 to 32 characters of a-z, 0-9, _ and -`:                                                     with(func(l *Limit) { l.Name = "" }),
		`limits[1].name: "a b" must be 1 to 32 characters of a-z, 0-9, _ and -`:                                                  with(func(l *Limit) { l.Name = "a b" }),
		`limits[1].limit: 0 must be between 1 and 1000000000000`:                                                                 with(func(l *Limit) { l.Limit = 0 }),
		`limits[1].limit: 1000000000001 must be between 1 and 1000000000000`:                                                     with(func(l *Limit) { l.Limit = MaxLimit + 1 }),
		`limits[1].algorithm: "magic" must be one of ` + names(Algorithms):                                                       with(func(l *Limit) { l.Algorithm = "magic" }),
		`limits[1].align: "midnight" must be one of first_request, calendar`:                                                     with(func(l *Limit) { l.Align = "midnight" }),
		`limits[1].window: "0s" must be between 1ms and 3660d`:                                                                   with(func(l *Limit) { l.Window = Window{} }),
		`limits[1].window: "1s and day" must be either a duration or a calendar unit`:                                            with(func(l *Limit) { l.Window = Window{Length: time.Second, Unit: Day} }),
		`limits[1].window: "1.0000005s" must be a whole number of microseconds`:                                                  with(func(l *Limit) { l.Window = Per(time.Second + 500) }),
		`limits[1].timezone: "Mars" must be an IANA timezone such as Asia/Shanghai`:                                              with(func(l *Limit) { l.Timezone = "Mars" }),
		`limits[1].timezone: "Local" must be an IANA timezone such as Asia/Shanghai`:                                             with(func(l *Limit) { l.Timezone = "Local" }),
		`limits[1].timezone: "UTC" needs a calendar unit as window: a duration is the same everywhere`:                           with(func(l *Limit) { l.Timezone = "UTC"; l.Window = Per(time.Hour) }),
		`limits[1].week_start: "caturday" must be one of ` + names(Weekdays):                                                     with(func(l *Limit) { l.WeekStart = "caturday" }),
		`limits[1].week_start: "sunday" needs window week and align calendar`:                                                    with(func(l *Limit) { l.WeekStart = "sunday"; l.Window = PerUnit(Week) }),
		`limits[1].day_of_month: 32 must be between 1 and 31`:                                                                    with(func(l *Limit) { l.DayOfMonth = 32 }),
		`limits[1].day_of_month: 15 needs window month and align calendar`:                                                       with(func(l *Limit) { l.DayOfMonth = 15; l.Align = Calendar }),
		`limits[2].name: "a" is the name of limits[1] already; names must differ`:                                                {good, good},
		"limits[1].limit: -1 must be between 1 and 1000000000000\nlimits[1].align: \"x\" must be one of first_request, calendar": with(func(l *Limit) { l.Limit = -1; l.Align = "x" }),
	} {
		if p, err := NewPolicy(limits...); err == nil || err.Error() != want || p != nil {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func names[T ~string](values []T) string {
	return strings.TrimPrefix(oneOf(values), "must be one of ")
}

// The shape changes exactly with what the numbers depend on.
func TestShape(t *testing.T) {
	shape := func(change func(*Limit)) string {
		l := Limit{Name: "a", Limit: 1, Window: PerUnit(Month), Align: Calendar}
		change(&l)
		p, err := NewPolicy(l)
		if err != nil {
			t.Fatal(err)
		}
		return p.Rules()[0].Shape
	}
	base := shape(func(*Limit) {})
	for name, change := range map[string]func(*Limit){
		"limit": func(l *Limit) { l.Limit = 7 }, "name": func(l *Limit) { l.Name = "b" },
		"defaults spelled out": func(l *Limit) { l.Algorithm, l.Timezone, l.DayOfMonth = FixedWindow, "UTC", 1 },
	} {
		if shape(change) != base {
			t.Errorf("%s changes the shape", name)
		}
	}
	for name, change := range map[string]func(*Limit){
		"window": func(l *Limit) { l.Window = PerUnit(Year) }, "align": func(l *Limit) { l.Align = FirstRequest },
		"timezone": func(l *Limit) { l.Timezone = "Asia/Shanghai" }, "day of month": func(l *Limit) { l.DayOfMonth = 2 },
	} {
		if shape(change) == base {
			t.Errorf("%s does not change the shape", name)
		}
	}
	if !strings.HasPrefix(base, "fixed_window.") || len(base) != len("fixed_window.")+6 {
		t.Errorf("shape %q", base)
	}
}

// What holds for every algorithm, along random traces: a peek changes nothing,
// what is refused is not charged, retry and next are exact to the microsecond,
// and remaining can be spent.
func TestDecideProperties(t *testing.T) {
	for _, a := range Algorithms {
		t.Run(string(a), func(t *testing.T) {
			for seed := range uint64(40) {
				properties(t, a, rand.New(rand.NewPCG(seed, 7)))
			}
		})
	}
}

func properties(t *testing.T, a Algorithm, random *rand.Rand) {
	t.Helper()
	l := Limit{Name: "a", Algorithm: a, Limit: 1 + random.Int64N(9), Window: Per(time.Duration(1+random.IntN(200)) * 10 * time.Millisecond)}
	if slices.Contains(bursting, a) {
		l.Burst = 1 + random.Int64N(9)
	}
	other := Limit{Name: "b", Limit: 1 + random.Int64N(20), Window: PerUnit(Minute), Align: Calendar}
	policy, err := NewPolicy(l, other)
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]Counter{}
	now := int64(1_600_000_000_000_000)
	var charges [][2]int64 // moments and costs
	for range 200 {
		now += random.Int64N(400_000)
		cost := random.Int64N(4)
		d, after := policy.Decide(held, now, cost)
		peek, wrote := policy.Decide(held, now, 0)
		if wrote != nil || peek.State == OverQuota {
			t.Fatalf("a peek gave %v and wrote %v", peek, wrote)
		}
		for i, s := range peek.Limits {
			if s.Remaining < 0 || s.Remaining > s.Limit || s.Reset < s.Next || (s.Next == 0) != (s.Remaining == s.Limit && s.Reset == 0) {
				t.Fatalf("%+v", s)
			}
			if s.Next > 0 {
				if early, _ := policy.Decide(held, now+s.Next.Microseconds()-1, 0); early.Limits[i].Remaining > s.Remaining {
					t.Fatalf("%+v, and more before: %+v", s, early.Limits[i])
				}
				if late, _ := policy.Decide(held, now+s.Next.Microseconds(), 0); late.Limits[i].Remaining <= s.Remaining {
					t.Fatalf("%+v, and no more then: %+v", s, late.Limits[i])
				}
			}
			if full, _ := policy.Decide(held, now+s.Reset.Microseconds(), 0); full.Limits[i].Remaining != s.Limit {
				t.Fatalf("%+v, and not full then: %+v", s, full.Limits[i])
			}
		}
		for _, later := range []int64{1, 777, 31_337, 2_000_000} { // what remains does not shrink by itself
			next, _ := policy.Decide(held, now+later, 0)
			for i, s := range next.Limits {
				if s.Remaining < peek.Limits[i].Remaining {
					t.Fatalf("%+v, and less %d µs later: %+v", peek.Limits[i], later, s)
				}
			}
		}
		if room := min(peek.Limits[0].Remaining, peek.Limits[1].Remaining); room > 0 {
			if all, _ := policy.Decide(held, now, room); all.State != HitQuota {
				t.Fatalf("%d remain, and cannot be spent: %+v", room, all)
			}
			if more, _ := policy.Decide(held, now, room+1); more.State != OverQuota {
				t.Fatalf("%d remain, and one more can be spent: %+v", room, more)
			}
		}
		if d.State == OverQuota {
			if after != nil {
				t.Fatalf("refused and charged %v", after)
			}
			if retry := d.RetryAfter(); retry == Never {
				if cost <= policy.rules[0].Capacity() && cost <= policy.rules[1].Capacity() {
					t.Fatalf("cost %d never passes: %v", cost, d)
				}
			} else {
				if early, _ := policy.Decide(held, now+retry.Microseconds()-1, cost); early.State != OverQuota {
					t.Fatalf("passes before %v: %v", retry, early)
				}
				if late, _ := policy.Decide(held, now+retry.Microseconds(), cost); late.State == OverQuota {
					t.Fatalf("refused after %v: %v", retry, late)
				}
			}
			continue
		}
		refundInvertsSpend(t, policy, held, after, now, cost)
		maps.Copy(held, after)
		if cost > 0 {
			charges = append(charges, [2]int64{now, cost})
		}
	}
	neverTooMuch(t, policy.rules[0], charges)
}

// refundInvertsSpend compares what holds without a charge to what holds when it
// was given back, now and later.
func refundInvertsSpend(t *testing.T, policy *Policy, held, charged map[string]Counter, now, cost int64) {
	t.Helper()
	if cost == 0 {
		return
	}
	back := maps.Clone(held)
	maps.Copy(back, charged)
	d, given := policy.Decide(back, now, -cost)
	maps.Copy(back, given)
	if d.Charged != -cost {
		t.Fatalf("%d were to be given back: %+v", cost, d)
	}
	for _, later := range []int64{0, 1, 5_000, 333_333, 60_000_000} {
		for _, asked := range []int64{0, 3} {
			want, _ := policy.Decide(held, now+later, asked)
			got, _ := policy.Decide(back, now+later, asked)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("cost %d given back, %d µs later, asked for %d: %+v, want %+v", cost, later, asked, got, want)
			}
		}
	}
}

// neverTooMuch adds up the charges of every stretch of time that the algorithm
// promises to keep.
func neverTooMuch(t *testing.T, r Rule, charges [][2]int64) {
	t.Helper()
	window := r.Limit.Window.micros()
	for i := range charges {
		var sum int64
		for j := i; j < len(charges); j++ {
			sum += charges[j][1]
			from, to := charges[i][0], charges[j][0]
			most := r.Limit.Limit
			switch r.Limit.Algorithm {
			case FixedWindow: // a window begins at some charge, so two can meet
				most *= 2 + (to-from)/window
			case SlidingWindow:
				bucket := window / int64(r.Limit.Buckets)
				if to/bucket-from/bucket >= int64(r.Limit.Buckets) {
					continue // not within one window that ends with a bucket
				}
			case SlidingLog:
				if to-from >= window {
					continue
				}
			default: // the burst, and what came back meanwhile
				most = r.Capacity() + (to-from)*r.Limit.Limit/window
			}
			if sum > most {
				t.Fatalf("%s: %d passed in %d µs, where %d may", r.Limit.Algorithm, sum, to-from, most)
			}
		}
	}
}

func TestStrictest(t *testing.T) {
	a := Standing{Name: "a", Remaining: 5, Reset: time.Second}
	for want, limits := range map[string][]Standing{
		"b": {a, {Name: "b", Remaining: 4}},
		"a": {a, {Name: "b", Remaining: 5, Reset: time.Millisecond}},
		"c": {a, {Name: "c", Remaining: 9, RetryAfter: time.Second}},
		"d": {{Name: "c", Remaining: 0, RetryAfter: time.Second}, {Name: "d", Remaining: 3, RetryAfter: time.Minute}},
		"e": {{Name: "e", Remaining: 8, RetryAfter: Never}, {Name: "d", Remaining: 3, RetryAfter: time.Minute}},
		"":  nil,
	} {
		if got := (Decision{Limits: limits}).Strictest().Name; got != want {
			t.Errorf("%v: %q, want %q", limits, got, want)
		}
	}
}

func TestIdentities(t *testing.T) {
	long := strings.Repeat("x", maxIdentityValue+1)
	for want, got := range map[Identity]Identity{
		"consumer:alice":            NewIdentity("consumer", "alice"),
		"header:a%7Db":              NewIdentity("header", "a}b"),
		"header:%00%FF":             NewIdentity("header", "\x00\xff"),
		"header:":                   NewIdentity("header", ""),
		"ip:2001:db8::1":            NewIdentity("ip", "2001:db8::1"),
		"a:1+b:2":                   Compound(NewIdentity("a", "1"), NewIdentity("b", "2")),
		"a:1%2Bb:2":                 NewIdentity("a", "1+b:2"),
		"header:sha256%3Dabc":       NewIdentity("header", "sha256=abc"),
		NewIdentity("header", long): NewIdentity("header", long),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if id := NewIdentity("header", long); !strings.HasPrefix(string(id), "header:sha256=") || len(id) != len("header:sha256=")+64 {
		t.Errorf("a long value became %s", id)
	}
}

func FuzzNewIdentity(f *testing.F) {
	f.Add("alice", "bob")
	f.Add("a+b", "a%2Bb")
	f.Add("{", "%7B")
	f.Fuzz(func(t *testing.T, one, other string) {
		a, b := NewIdentity("k", one), NewIdentity("k", other)
		if (a == b) != (one == other) {
			t.Errorf("%q is %s, %q is %s", one, a, other, b)
		}
		if strings.ContainsAny(string(a), "{}+ \r\n\x00") {
			t.Errorf("%q is %s", one, a)
		}
	})
}

// Some of a policy's limits are those limits: they read and write the same counters.
func TestOnly(t *testing.T) {
	p, err := NewPolicy(
		Limit{Name: "a", Limit: 5, Window: Per(time.Hour)},
		Limit{Name: "b", Algorithm: GCRA, Limit: 5, Window: Per(time.Hour), MaxDelay: time.Second, Identity: "service"},
		Limit{Name: "c", Limit: 5, Window: Window{Unit: Week}, Align: Calendar},
	)
	if err != nil {
		t.Fatal(err)
	}
	only := p.Only("b", "c", "none")
	rules := only.Rules()
	if len(rules) != 2 || rules[0].Shape != p.Rules()[1].Shape || rules[1].Shape != p.Rules()[2].Shape || len(only.Others()) != 0 || !only.CountsOwn() {
		t.Errorf("got %+v", rules)
	}
	if !only.Delays() || only.Impatient().Delays() || len(only.Impatient().Rules()) != 2 || p.Only("a").Delays() {
		t.Error("the delay is not b's")
	}
	if p.Only("none") != nil {
		t.Error("there is no such limit")
	}
	_, charged := p.Decide(map[string]Counter{}, 1e15, 2)
	d, _ := p.Only("a").Decide(charged, 1e15, 0)
	if len(d.Limits) != 1 || d.Limits[0].Remaining != 3 {
		t.Errorf("got %+v", d)
	}
}
