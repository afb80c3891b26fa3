package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// Policy is the limits that hold together for a request: all pass and all are
// charged, or none is. It is immutable and safe for concurrent use.
type Policy struct {
	rules      []Rule
	algorithms []string
}

// Rule is a limit, compiled.
type Rule struct {
	Limit Limit // with its defaults
	// Shape is the mark of the counters that this rule understands.
	Shape     string
	algorithm algorithm
}

// Arguments are the numbers that the algorithm's script takes beside the
// limit's name, shape and size (see lua/), for moments near now, which is in
// microseconds since the Unix epoch. The slice must not be written to.
func (r Rule) Arguments(now int64) []int64 { return r.algorithm.arguments(now) }

// Capacity is how much the limit holds when nothing is used: its burst, where
// the algorithm has one.
func (r Rule) Capacity() int64 { return r.algorithm.capacity() }

var algorithms = map[Algorithm]func(Limit, string) (algorithm, *FieldError){
	FixedWindow:   newFixedWindow,
	SlidingWindow: newSlidingWindow,
	SlidingLog:    newSlidingLog,
	LeakyBucket:   newBucket,
	TokenBucket:   newBucket,
	GCRA:          newGCRA,
}

// NewPolicy compiles 1 to MaxLimits limits with different names. The error
// joins a *FieldError for every problem, with paths such as limits[2].timezone.
func NewPolicy(limits ...Limit) (*Policy, error) {
	var problems []error
	add := func(i int, e *FieldError) {
		e.Field = fmt.Sprintf("limits[%d].%s", i+1, e.Field)
		problems = append(problems, e)
	}
	if n := len(limits); n < 1 || n > MaxLimits {
		problems = append(problems, &FieldError{"limits", n, fmt.Sprintf("entries: a policy has 1 to %d", MaxLimits)})
	}
	first := map[string]int{}
	for i, l := range limits {
		for _, e := range l.check() {
			add(i, e)
		}
		if j, taken := first[l.Name]; taken {
			add(i, &FieldError{"name", l.Name, fmt.Sprintf("is the name of limits[%d] already; names must differ", j+1)})
		} else {
			first[l.Name] = i
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}

	p := &Policy{rules: make([]Rule, len(limits))}
	for i, l := range limits {
		l = l.withDefaults()
		shape := l.shape()
		a, err := algorithms[l.Algorithm](l, shape)
		if err != nil {
			add(i, err)
			continue
		}
		p.rules[i] = Rule{Limit: l, Shape: shape, algorithm: a}
		p.algorithms = append(p.algorithms, string(l.Algorithm))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	slices.Sort(p.algorithms)
	p.algorithms = slices.Compact(p.algorithms)
	return p, nil
}

// shape marks what a counter's numbers depend on. The limit is not part of it:
// who raises a limit does not forget what was used.
func (l Limit) shape() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%s|%s|%d|%d", l.Window, l.Align, l.Timezone, l.WeekStart, l.DayOfMonth, l.Buckets))
	return string(l.Algorithm) + "." + hex.EncodeToString(sum[:3])
}

// Rules are the policy's limits in their order. The slice must not be written to.
func (p *Policy) Rules() []Rule { return p.rules }

// Algorithms are the names of those that the policy uses, each once, in
// alphabetical order. The slice must not be written to.
func (p *Policy) Algorithms() []string { return p.algorithms }

// DecideUpTo is Decide for as much of the cost as every limit has room for, and
// for one unit, which is refused, if that is nothing.
func (p *Policy) DecideUpTo(held map[string]Counter, now, cost int64) (d Decision, charged map[string]Counter) {
	for _, r := range p.rules {
		cost = min(cost, r.algorithm.decide(held[r.Limit.Name], now, 0).before.Remaining)
	}
	return p.Decide(held, now, max(1, cost))
}

// Decide is the whole of a decision as a pure function. held has the identity's
// counters by the name of their limit, now is in microseconds since the Unix
// epoch, cost is 0 (a peek) to MaxCost, or negative to give back. charged has the
// counters to keep instead; it is nil when the request is refused or costs
// nothing. The script lua/spend.lua does the same in Redis.
func (p *Policy) Decide(held map[string]Counter, now, cost int64) (d Decision, charged map[string]Counter) {
	verdicts := make([]verdict, len(p.rules))
	passed := true
	for i, r := range p.rules {
		v := r.algorithm.decide(held[r.Limit.Name], now, cost)
		v.before.Name, v.after.Name = r.Limit.Name, r.Limit.Name
		passed = passed && !v.before.Refused()
		if v.restart {
			d.Restarted++
		}
		verdicts[i] = v
	}

	d.Limits = make([]Standing, len(verdicts))
	if !passed {
		for i, v := range verdicts {
			d.Limits[i] = v.before
		}
		d.State = OverQuota
		return d, nil
	}
	d.State, d.Charged = Allowed, cost
	if cost != 0 {
		charged = make(map[string]Counter, len(verdicts))
	}
	for i, v := range verdicts {
		d.Limits[i] = v.after
		if v.after.Remaining == 0 {
			d.State = HitQuota
		}
		if cost != 0 {
			charged[v.after.Name] = v.charged
		}
	}
	return d, charged
}
