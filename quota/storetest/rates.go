package storetest

import (
	"time"

	"kong-quota/quota"
)

// perSecond is 1 per second with a burst of 5, by the three algorithms with a
// rate; they admit the same.
func perSecond(a quota.Algorithm, limit, burst int64) []quota.Limit {
	return []quota.Limit{{Name: "p", Algorithm: a, Limit: limit, Window: quota.Per(sec), Burst: burst}}
}

func init() {
	for _, a := range []quota.Algorithm{quota.GCRA, quota.TokenBucket, quota.LeakyBucket} {
		tables = append(tables,
			table{
				name:   "throttled and redis-cell: 1 per second, burst 5, by " + string(a),
				limits: perSecond(a, 1, 5),
				steps: []step{
					{at: 0, cost: 6, state: over, want: []standing{{5, 0, never}}},
					{at: 0, cost: 1, state: allowed, want: []standing{{4, 1 * sec, 0}}},
					{at: 0, cost: 1, state: allowed, want: []standing{{3, 2 * sec, 0}}},
					{at: 0, cost: 1, state: allowed, want: []standing{{2, 3 * sec, 0}}},
					{at: 0, cost: 1, state: allowed, want: []standing{{1, 4 * sec, 0}}},
					{at: 0, cost: 1, state: hit, want: []standing{{0, 5 * sec, 0}}},
					{at: 0, cost: 1, state: over, want: []standing{{0, 5 * sec, 1 * sec}}},
					{at: 3000 * ms, cost: 1, state: allowed, want: []standing{{2, 3 * sec, 0}}},
					{at: 3100 * ms, cost: 1, state: allowed, want: []standing{{1, 3900 * ms, 0}}},
					{at: 4000 * ms, cost: 1, state: allowed, want: []standing{{1, 4 * sec, 0}}},
					{at: 8000 * ms, cost: 1, state: allowed, want: []standing{{4, 1 * sec, 0}}},
					{at: 9500 * ms, cost: 1, state: allowed, want: []standing{{4, 1 * sec, 0}}},
					{at: 9500 * ms, cost: 0, state: allowed, want: []standing{{4, 1 * sec, 0}}},
					{at: 9500 * ms, cost: 2, state: allowed, want: []standing{{2, 3 * sec, 0}}},
					{at: 9500 * ms, cost: 5, state: over, want: []standing{{2, 3 * sec, 3 * sec}}},
					{at: 15 * sec, cost: 6, state: over, want: []standing{{5, 0, never}}},
				},
			},
			table{
				name:   "redis_rate: 10 per second, burst 10, by " + string(a),
				limits: perSecond(a, 10, 10),
				steps: []step{
					{cost: 1, state: allowed, want: []standing{{9, 100 * ms, 0}}},
					{cost: 2, state: allowed, want: []standing{{7, 300 * ms, 0}}},
					{cost: 7, state: hit, want: []standing{{0, sec, 0}}},
				},
			},
			table{
				name:   "boulder: burst 10, by " + string(a),
				limits: perSecond(a, 1, 10),
				steps: []step{
					{cost: 5, state: allowed, want: []standing{{5, 5 * sec, 0}}},
					{cost: 7, state: over, want: []standing{{5, 5 * sec, 2 * sec}}},
					{at: 20 * time.Hour, cost: 0, state: allowed, want: []standing{{10, 0, 0}}},
				},
			},
			table{
				name:   "go-zero's token limiter: 5 per second, burst 10, by " + string(a),
				limits: perSecond(a, 5, 10),
				steps: append(repeatTo(10, func(i int64) step {
					s := step{cost: 1, state: allowed, want: []standing{{9 - i, time.Duration(i+1) * 200 * ms, 0}}}
					if i == 9 {
						s.state = hit
					}
					return s
				}), repeat(90, step{cost: 1, state: over, want: []standing{{0, 2 * sec, 200 * ms}}})...),
			},
			table{
				name:   "a funnel of 15 that leaks one in two seconds, by " + string(a),
				limits: []quota.Limit{{Name: "p", Algorithm: a, Limit: 1, Window: quota.Per(2 * sec), Burst: 15}},
				steps: append(append(repeatTo(15, func(i int64) step {
					s := step{cost: 1, state: allowed, want: []standing{{14 - i, time.Duration(i+1) * 2 * sec, 0}}}
					if i == 14 {
						s.state = hit
					}
					return s
				}), repeat(5, step{cost: 1, state: over, want: []standing{{0, 30 * sec, 2 * sec}}})...),
					step{at: 2*sec - µs, cost: 1, state: over, want: []standing{{0, 28*sec + µs, µs}}},
					step{at: 2 * sec, cost: 1, state: hit, want: []standing{{0, 30 * sec, 0}}},
					step{at: 2 * sec, cost: 1, state: over, want: []standing{{0, 30 * sec, 2 * sec}}},
				),
			},
			table{
				name:   "three per second do not drift, by " + string(a),
				limits: perSecond(a, 3, 1),
				steps: []step{
					{at: 0, cost: 1, state: hit, want: []standing{{0, 333334 * µs, 0}}},
					{at: 333333 * µs, cost: 1, state: over, want: []standing{{0, µs, µs}}},
					{at: 333334 * µs, cost: 1, state: hit, want: []standing{{0, 333334 * µs, 0}}},
					{at: 30 * sec, cost: 1, state: hit, want: []standing{{0, 333334 * µs, 0}}},
				},
			},
		)
	}
	tables = append(tables,
		table{
			name:   "log: 10 in 5 s; the eleventh passes when the first is 5 s old",
			limits: []quota.Limit{{Name: "p", Algorithm: quota.SlidingLog, Limit: 10, Window: quota.Per(5 * sec)}},
			steps: append(repeatTo(10, func(i int64) step {
				s := step{at: time.Duration(i) * 100 * ms, cost: 1, state: allowed, want: []standing{{9 - i, 5 * sec, 0}}}
				if i == 9 {
					s.state = hit
				}
				return s
			}),
				step{at: sec, cost: 1, state: over, want: []standing{{0, 4900 * ms, 4 * sec}}},
				step{at: 5*sec - µs, cost: 1, state: over, want: []standing{{0, 900*ms + µs, µs}}},
				step{at: 5 * sec, cost: 1, state: hit, want: []standing{{0, 5 * sec, 0}}},
				step{at: 5 * sec, cost: 3, state: over, want: []standing{{0, 5 * sec, 300 * ms}}},
				step{at: 20 * sec, cost: 4, state: allowed, want: []standing{{6, 5 * sec, 0}}},
				step{at: 20 * sec, cost: 4, state: allowed, want: []standing{{2, 5 * sec, 0}}},
				step{at: 20 * sec, cost: 11, state: over, want: []standing{{2, 5 * sec, never}}},
			),
		},
		table{
			name:   "mennanov: 2 per 100 ms, 15 requests a third of that apart, 5 refused",
			limits: []quota.Limit{{Name: "p", Algorithm: quota.SlidingLog, Limit: 2, Window: quota.Per(100 * ms)}},
			steps: repeatTo(15, func(i int64) step {
				s := step{at: time.Duration(i) * 33334 * µs, cost: 1, state: hit, want: []standing{{0, 100 * ms, 0}}}
				switch {
				case i == 0:
					s.state, s.want = allowed, []standing{{1, 100 * ms, 0}}
				case i%3 == 2:
					s.state, s.want = over, []standing{{0, 66666 * µs, 33332 * µs}}
				}
				return s
			}),
		},
		table{
			// The start is 50 ms after a full second, in the bucket of 0 to 200 ms.
			name:   "a window of a second in five buckets of 200 ms",
			limits: []quota.Limit{{Name: "p", Algorithm: quota.SlidingWindow, Limit: 4, Window: quota.Per(sec), Buckets: 5}},
			steps: []step{
				{at: 0, cost: 2, state: allowed, want: []standing{{2, 950 * ms, 0}}},
				{at: 300 * ms, cost: 1, state: allowed, want: []standing{{1, 850 * ms, 0}}},
				{at: 600 * ms, cost: 1, state: hit, want: []standing{{0, sec - 50*ms, 0}}},
				{at: 949 * ms, cost: 1, state: over, want: []standing{{0, 601 * ms, ms}}},
				{at: 949 * ms, cost: 3, state: over, want: []standing{{0, 601 * ms, 201 * ms}}},
				{at: 950 * ms, cost: 1, state: allowed, want: []standing{{1, sec, 0}}},
				// 1455 ms: the present bucket begins at 1400.
				{at: 1405 * ms, cost: 0, state: allowed, want: []standing{{2, 545 * ms, 0}}},
				{at: 1405 * ms, cost: 2, state: hit, want: []standing{{0, 945 * ms, 0}}},
				{at: 10 * sec, cost: 0, state: allowed, want: []standing{{4, 0, 0}}},
			},
		},
		table{
			name: "mixed: one refuses, none is charged",
			limits: []quota.Limit{
				{Name: "fixed", Limit: 9, Window: quota.Per(sec)},
				{Name: "log", Algorithm: quota.SlidingLog, Limit: 9, Window: quota.Per(sec)},
				{Name: "sliding", Algorithm: quota.SlidingWindow, Limit: 9, Window: quota.Per(sec)},
				{Name: "gcra", Algorithm: quota.GCRA, Limit: 9, Window: quota.Per(9 * sec)},
				{Name: "tokens", Algorithm: quota.TokenBucket, Limit: 3, Window: quota.Per(3 * sec)},
			},
			steps: []step{
				{at: 50 * ms, cost: 2, state: allowed, want: []standing{{7, sec, 0}, {7, sec, 0}, {7, sec, 0}, {7, 2 * sec, 0}, {1, 2 * sec, 0}}},
				{at: 50 * ms, cost: 2, state: over, want: []standing{{7, sec, 0}, {7, sec, 0}, {7, sec, 0}, {7, 2 * sec, 0}, {1, 2 * sec, sec}}},
				{at: 50 * ms, cost: 1, state: hit, want: []standing{{6, sec, 0}, {6, sec, 0}, {6, sec, 0}, {6, 3 * sec, 0}, {0, 3 * sec, 0}}},
			},
		},
	)
}
