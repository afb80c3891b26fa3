package storetest

import (
	"time"

	"kong-quota/quota"
)

// tables has the acceptance cases of the peers (../shared/VECTORS.md) and of
// the rules of this project, as moments.
var tables = []table{
	{
		name:   "go-zero: quota 5 in a second",
		limits: []quota.Limit{{Name: "p", Limit: 5, Window: quota.Per(sec)}},
		steps: append([]step{
			{at: 0, cost: 1, state: allowed, want: []standing{{4, sec, 0}}},
			{at: 100 * ms, cost: 1, state: allowed, want: []standing{{3, 900 * ms, 0}}},
			{at: 200 * ms, cost: 1, state: allowed, want: []standing{{2, 800 * ms, 0}}},
			{at: 300 * ms, cost: 1, state: allowed, want: []standing{{1, 700 * ms, 0}}},
			{at: 400 * ms, cost: 1, state: hit, want: []standing{{0, 600 * ms, 0}}},
		}, append(repeat(95, step{at: 500 * ms, cost: 1, state: over, want: []standing{{0, 500 * ms, 500 * ms}}}),
			step{at: sec - µs, cost: 1, state: over, want: []standing{{0, µs, µs}}},
			step{at: sec, cost: 1, state: allowed, want: []standing{{4, sec, 0}}},
		)...),
	},
	{
		name:   "go-zero: quota 1 hits at once",
		limits: []quota.Limit{{Name: "p", Limit: 1, Window: quota.Per(sec)}},
		steps: []step{
			{cost: 1, state: hit, want: []standing{{0, sec, 0}}},
			{cost: 1, state: over, want: []standing{{0, sec, sec}}},
		},
	},
	{
		name: "Kong: six a minute, and an hour that is far away",
		limits: []quota.Limit{
			{Name: "minute", Limit: 6, Window: quota.PerUnit(quota.Minute), Align: quota.Calendar},
			{Name: "hour", Limit: 99999, Window: quota.PerUnit(quota.Hour), Align: quota.Calendar},
		},
		steps: []step{
			{cost: 1, state: allowed, want: []standing{{5, toMinute, 0}, {99998, toHour, 0}}},
			{cost: 1, state: allowed, want: []standing{{4, toMinute, 0}, {99997, toHour, 0}}},
			{cost: 1, state: allowed, want: []standing{{3, toMinute, 0}, {99996, toHour, 0}}},
			{cost: 1, state: allowed, want: []standing{{2, toMinute, 0}, {99995, toHour, 0}}},
			{cost: 1, state: allowed, want: []standing{{1, toMinute, 0}, {99994, toHour, 0}}},
			{cost: 1, state: hit, want: []standing{{0, toMinute, 0}, {99993, toHour, 0}}},
			// Refused by the minute: the hour is not charged.
			{cost: 1, state: over, want: []standing{{0, toMinute, toMinute}, {99993, toHour, 0}}},
			{at: toMinute, cost: 1, state: allowed, want: []standing{{5, time.Minute, 0}, {99992, toHour - toMinute, 0}}},
		},
	},
	{
		name:   "ulule: a peek never consumes",
		limits: []quota.Limit{{Name: "p", Limit: 3, Window: quota.Per(sec)}},
		steps: append(repeat(6, step{cost: 0, state: allowed, want: []standing{{3, 0, 0}}}),
			step{cost: 1, state: allowed, want: []standing{{2, sec, 0}}},
			step{cost: 0, state: allowed, want: []standing{{2, sec, 0}}},
			step{at: 10 * ms, cost: 2, state: hit, want: []standing{{0, sec - 10*ms, 0}}},
			step{at: 10 * ms, cost: 0, state: hit, want: []standing{{0, sec - 10*ms, 0}}},
		),
	},
	{
		name:   "gubernator: costs against 2000",
		limits: []quota.Limit{{Name: "p", Limit: 2000, Window: quota.Per(sec)}},
		steps: []step{
			{cost: 1000, state: allowed, want: []standing{{1000, sec, 0}}},
			{cost: 1500, state: over, want: []standing{{1000, sec, sec}}},
			{cost: 500, state: allowed, want: []standing{{500, sec, 0}}},
			{cost: 400, state: allowed, want: []standing{{100, sec, 0}}},
			{cost: 100, state: hit, want: []standing{{0, sec, 0}}},
			{cost: 1, state: over, want: []standing{{0, sec, sec}}},
		},
	},
	{
		name:   "gubernator: a changed limit keeps the usage",
		limits: []quota.Limit{{Name: "p", Limit: 100, Window: quota.Per(sec)}},
		steps: []step{
			{cost: 5, state: allowed, want: []standing{{95, sec, 0}}},
			{cost: 1, state: allowed, limits: []quota.Limit{{Name: "p", Limit: 10, Window: quota.Per(sec)}}, want: []standing{{4, sec, 0}}},
			{cost: 1, state: allowed, limits: []quota.Limit{{Name: "p", Limit: 200, Window: quota.Per(sec)}}, want: []standing{{193, sec, 0}}},
			{cost: 1, state: over, limits: []quota.Limit{{Name: "p", Limit: 3, Window: quota.Per(sec)}}, want: []standing{{0, sec, sec}}},
		},
	},
	{
		name:   "a changed window restarts that one limit",
		limits: []quota.Limit{{Name: "a", Limit: 9, Window: quota.Per(sec)}, {Name: "b", Limit: 9, Window: quota.Per(sec)}},
		steps: []step{
			{cost: 4, state: allowed, want: []standing{{5, sec, 0}, {5, sec, 0}}},
			{cost: 1, state: allowed, limits: []quota.Limit{{Name: "a", Limit: 9, Window: quota.Per(2 * sec)}, {Name: "b", Limit: 9, Window: quota.Per(sec)}},
				want: []standing{{8, 2 * sec, 0}, {4, sec, 0}}},
		},
	},
	{
		name:   "a changed alignment restarts",
		limits: []quota.Limit{{Name: "a", Limit: 9, Window: quota.PerUnit(quota.Minute)}},
		steps: []step{
			{cost: 4, state: allowed, want: []standing{{5, time.Minute, 0}}},
			{cost: 1, state: allowed, limits: []quota.Limit{{Name: "a", Limit: 9, Window: quota.PerUnit(quota.Minute), Align: quota.Calendar}},
				want: []standing{{8, toMinute, 0}}},
			{cost: 1, state: allowed, limits: []quota.Limit{{Name: "a", Limit: 9, Window: quota.PerUnit(quota.Minute), Align: quota.Calendar, Timezone: "Asia/Shanghai"}},
				want: []standing{{8, toMinute, 0}}},
		},
	},
	{
		name:   "a cost that can never pass",
		limits: []quota.Limit{{Name: "a", Limit: 5, Window: quota.Per(sec)}, {Name: "b", Limit: 50, Window: quota.Per(sec)}},
		steps: []step{
			{cost: 6, state: over, want: []standing{{5, 0, never}, {50, 0, 0}}},
			{cost: 5, state: hit, want: []standing{{0, sec, 0}, {45, sec, 0}}},
			{cost: quota.MaxCost, state: over, want: []standing{{0, sec, never}, {45, sec, never}}},
		},
	},
	{
		name:   "a quota of a trillion is counted to the unit",
		limits: []quota.Limit{{Name: "a", Limit: quota.MaxLimit, Window: quota.PerUnit(quota.Year)}},
		steps: append(repeatTo(465, func(i int64) step {
			return step{cost: quota.MaxCost, state: allowed, want: []standing{{quota.MaxLimit - (i+1)*quota.MaxCost, 366 * 24 * time.Hour, 0}}}
		}), step{cost: quota.MaxLimit - 465*quota.MaxCost, state: hit, want: []standing{{0, 366 * 24 * time.Hour, 0}}}),
	},
	{
		name:   "the clock steps back: the window goes on",
		limits: []quota.Limit{{Name: "f", Limit: 2, Window: quota.Per(sec)}, {Name: "c", Limit: 2, Window: quota.PerUnit(quota.Second), Align: quota.Calendar}},
		steps: []step{
			// 950 ms after the start a calendar second begins.
			{at: 960 * ms, cost: 2, state: hit, want: []standing{{0, sec, 0}, {0, 990 * ms, 0}}},
			{at: 940 * ms, cost: 1, state: over, want: []standing{{0, sec + 20*ms, sec + 20*ms}, {0, sec + 10*ms, sec + 10*ms}}},
			{at: 1950 * ms, cost: 1, state: over, want: []standing{{0, 10 * ms, 10 * ms}, {2, 0, 0}}},
			{at: 1960 * ms, cost: 1, state: allowed, want: []standing{{1, sec, 0}, {1, 990 * ms, 0}}},
		},
	},
	{
		name:   "five codes a day per phone, from midnight in Shanghai",
		limits: []quota.Limit{{Name: "daily", Limit: 5, Window: quota.PerUnit(quota.Day), Align: quota.Calendar, Timezone: "Asia/Shanghai"}},
		steps: []step{
			// 10:20:30.05 in UTC is 18:20:30.05 in Shanghai.
			{cost: 4, state: allowed, want: []standing{{1, toShanghaiMidnight, 0}}},
			{at: toShanghaiMidnight - µs, cost: 1, state: hit, want: []standing{{0, µs, 0}}},
			{at: toShanghaiMidnight - µs, cost: 1, state: over, want: []standing{{0, µs, µs}}},
			{at: toShanghaiMidnight, cost: 1, state: allowed, want: []standing{{4, 24 * time.Hour, 0}}},
		},
	},
	{
		name:   "a month from the first charge keeps to the calendar",
		limits: []quota.Limit{{Name: "m", Limit: 5, Window: quota.PerUnit(quota.Month)}},
		steps: []step{
			{cost: 1, state: allowed, want: []standing{{4, 30 * 24 * time.Hour, 0}}}, // 21 November to 21 December
			{at: 30 * 24 * time.Hour, cost: 1, state: allowed, want: []standing{{4, 31 * 24 * time.Hour, 0}}},
		},
	},
}

const (
	toMinute           = 30*sec - 50*ms
	toHour             = 39*time.Minute + toMinute
	toShanghaiMidnight = 5*time.Hour + toHour
)

func repeat(n int, s step) []step {
	return repeatTo(n, func(int64) step { return s })
}

func repeatTo(n int, s func(i int64) step) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = s(int64(i))
	}
	return steps
}
