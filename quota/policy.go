package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Policy is the limits that hold together for a request: all pass and all are
// charged, or none is. It is immutable and safe for concurrent use.
type Policy struct {
	rules      []Rule
	algorithms []string
	others     []string
	delays     bool
	impatient  *Policy
	parts      []Part
	derived    sync.Map
}

// Part is the limits of a policy that count one identity.
type Part struct {
	// Identity is 0 for the request's own identity, n for the n-th of its others.
	Identity int
	Policy   *Policy
	// Limits has the positions in the whole policy.
	Limits []int
}

// Rule is a limit, compiled.
type Rule struct {
	Limit Limit // with its defaults
	// Shape is the mark of the counters that this rule understands.
	Shape string
	// Identity is 0 for the request's own identity, n for the n-th of its others.
	Identity  int
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
	if leased := leased(limits); leased > 0 && leased < len(limits) {
		problems = append(problems, &FieldError{"limits", leased, fmt.Sprintf("of %d have a lease: all must have one, or none", len(limits))})
	}
	for i, l := range limits {
		if l.Lease != (Lease{}) && l.Identity != "" {
			add(i, &FieldError{"lease.share", l.Lease.Share, "cannot be held for another identity than the policy's own"})
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
		p.rules[i] = Rule{Limit: l, Shape: shape, Identity: p.identity(l.Identity), algorithm: a}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	p.survey()
	p.divide()
	p.impatient = p
	if p.delays {
		impatient := slices.Clone(limits)
		for i := range impatient {
			impatient[i].MaxDelay = 0
		}
		var err error
		if p.impatient, err = NewPolicy(impatient...); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// identity gives the number of a limit's identity.
func (p *Policy) identity(name string) int {
	if name == "" {
		return 0
	}
	if !slices.Contains(p.others, name) {
		p.others = append(p.others, name)
	}
	return 1 + slices.Index(p.others, name)
}

// survey notes what the rules have among them.
func (p *Policy) survey() {
	for _, r := range p.rules {
		p.algorithms = append(p.algorithms, string(r.Limit.Algorithm))
		p.delays = p.delays || r.Limit.MaxDelay > 0
	}
	slices.Sort(p.algorithms)
	p.algorithms = slices.Compact(p.algorithms)
}

// divide makes the parts.
func (p *Policy) divide() {
	at := map[int][]int{}
	var identities []int // in the order of their first limits
	for i, r := range p.rules {
		if at[r.Identity] == nil {
			identities = append(identities, r.Identity)
		}
		at[r.Identity] = append(at[r.Identity], i)
	}
	for _, identity := range identities {
		p.parts = append(p.parts, p.part(identity, at[identity]))
	}
}

// part makes a policy of the limits at these positions, which counts one identity.
func (p *Policy) part(identity int, at []int) Part {
	own := &Policy{}
	for _, i := range at {
		r := p.rules[i]
		r.Identity = 0
		own.rules = append(own.rules, r)
	}
	own.survey()
	part := Part{Identity: identity, Policy: own, Limits: at}
	own.parts, own.impatient = []Part{part}, own
	return part
}

// Only is the policy of those limits that have one of the names, with the counters
// that they have in this one; it counts one identity. It is nil if there are none.
func (p *Policy) Only(names ...string) *Policy {
	var at []int
	for i, r := range p.rules {
		if slices.Contains(names, r.Limit.Name) {
			at = append(at, i)
		}
	}
	if at == nil {
		return nil
	}
	only := p.part(0, at).Policy
	if p.impatient != p {
		only.impatient = p.impatient.Only(names...)
	}
	return only
}

func leased(limits []Limit) (n int) {
	for _, l := range limits {
		if l.Lease != (Lease{}) {
			n++
		}
	}
	return n
}

// Lease is how much of the policy's quota a node may hold, and for how long: the
// least of its limits' leases. It is the zero value where there are none.
func (p *Policy) Lease() Lease {
	lease := p.rules[0].Limit.Lease
	for _, r := range p.rules[1:] {
		lease.Share = min(lease.Share, r.Limit.Lease.Share)
		lease.MaxAge = min(lease.MaxAge, r.Limit.Lease.MaxAge)
	}
	return lease
}

// shape marks what a counter's numbers depend on. The limit is not part of it:
// who raises a limit does not forget what was used.
func (l Limit) shape() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%s|%s|%d|%d", l.Window, l.Align, l.Timezone, l.WeekStart, l.DayOfMonth, l.Buckets))
	return string(l.Algorithm) + "." + hex.EncodeToString(sum[:3])
}

// Rules are the policy's limits in their order. The slice must not be written to.
func (p *Policy) Rules() []Rule { return p.rules }

// Others are the names of the identities that its limits count beside the
// request's own, each once. The slice must not be written to.
func (p *Policy) Others() []string { return p.others }

// CountsOwn reports whether any limit counts the request's own identity.
func (p *Policy) CountsOwn() bool {
	return slices.ContainsFunc(p.rules, func(r Rule) bool { return r.Identity == 0 })
}

// Impatient is the policy without delays: where this one lets a request wait, that
// one refuses it. They have their counters in common.
func (p *Policy) Impatient() *Policy { return p.impatient }

// Delays reports whether requests may have to wait.
func (p *Policy) Delays() bool { return p.delays }

// Parts are the policy's limits by the identities that they count. The slice must
// not be written to.
func (p *Policy) Parts() []Part { return p.parts }

// Derived keeps what a store makes of the policy, for as long as the policy lives:
// it is made once for each key, of which every package has a type of its own.
func (p *Policy) Derived(key any, make func() any) any {
	if made, ok := p.derived.Load(key); ok {
		return made
	}
	made, _ := p.derived.LoadOrStore(key, make())
	return made
}

// Algorithms are the names of those that the policy uses, each once, in
// alphabetical order. The slice must not be written to.
func (p *Policy) Algorithms() []string { return p.algorithms }

// Decide is Request.Decide for a cost alone.
func (p *Policy) Decide(held map[string]Counter, now, cost int64) (d Decision, charged map[string]Counter) {
	return Request{Policy: p, Cost: cost}.Decide(held, now)
}

// Decide is the whole of a decision as a pure function. held has the counters of
// the request's identities by the name of their limit, now is in microseconds since
// the Unix epoch. charged has the counters to keep instead; it is nil when the
// request is refused or costs nothing. The script lua/spend.lua does the same in
// Redis.
func (r Request) Decide(held map[string]Counter, now int64) (d Decision, charged map[string]Counter) {
	rules := r.Policy.rules
	cost := r.Cost
	counters := make([]Counter, len(rules))
	for i, rule := range rules {
		if c := held[rule.Limit.Name]; c.Until > now {
			counters[i] = c
		}
	}
	if r.UpTo {
		for i, rule := range rules {
			cost = min(cost, rule.algorithm.decide(counters[i], now, 0).before.Remaining)
		}
		cost = max(1, cost) // which is refused if nothing is left
	}
	verdicts := make([]verdict, len(rules))
	costs := make([]int64, len(rules))
	passed := true
	for i, rule := range rules {
		costs[i] = cost
		if until, asked := r.untouched(i); asked && counters[i].Until != until {
			costs[i] = 0
		}
		v := rule.algorithm.decide(counters[i], now, costs[i])
		v.before.Name, v.after.Name = rule.Limit.Name, rule.Limit.Name
		passed = passed && !v.before.Refused()
		if v.restart {
			d.Restarted++
		}
		verdicts[i] = v
	}

	d.Now = time.UnixMicro(now)
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
		d.Wait = max(d.Wait, v.wait)
		if v.after.Remaining == 0 {
			d.State = HitQuota
		}
		if costs[i] != 0 {
			charged[v.after.Name] = v.charged
		}
	}
	return d, charged
}

// untouched gives the end that the i-th limit's counter must still have for
// something to be given back, if that is asked for.
func (r Request) untouched(i int) (until int64, asked bool) {
	l := &r.Policy.rules[i].Limit
	if r.Undo == nil || l.MaxDelay == 0 && l.Algorithm != FixedWindow {
		return 0, false
	}
	return r.Undo.Now.Add(r.Undo.Limits[i].Reset).UnixMicro(), true
}

// Untouched is the condition of Request.Undo, for stores: for each limit the end,
// in microseconds since the Unix epoch, that its counter must still have, -1 where
// any will do. It is nil if there is no condition.
func (r Request) Untouched() []int64 {
	if r.Undo == nil {
		return nil
	}
	untils := make([]int64, len(r.Policy.rules))
	for i := range untils {
		untils[i] = -1
		if until, asked := r.untouched(i); asked {
			untils[i] = until
		}
	}
	return untils
}
