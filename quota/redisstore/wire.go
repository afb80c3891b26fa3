package redisstore

import (
	"fmt"
	"time"

	"kong-quota/quota"
)

// key is where the counters of an identity in a scope are kept. The identity is
// the hash tag, so that all keys of one identity are in one slot.
func key(namespace, scope string, id quota.Identity) string {
	return namespace + ":" + scope + ":{" + string(id) + "}"
}

// keys are KEYS of spend.lua: the identity's hash, and a log for each sliding_log
// of the policy.
func keys(namespace string, r quota.Request) []string {
	hash := key(namespace, r.Scope, r.Identity)
	all := []string{hash}
	for _, rule := range r.Policy.Rules() {
		if rule.Limit.Algorithm == quota.SlidingLog {
			all = append(all, hash+":"+rule.Limit.Name)
		}
	}
	return all
}

// arguments are ARGV of spend.lua.
func arguments(r quota.Request, around time.Time) []any {
	rules := r.Policy.Rules()
	args := make([]any, 0, 3+10*len(rules))
	if r.Now.IsZero() {
		args = append(args, "")
	} else {
		args = append(args, r.Now.UnixMicro())
	}
	args = append(args, r.Cost, r.UpTo, len(rules))
	logs := 1 // of KEYS that were given out
	for _, rule := range rules {
		own := rule.Arguments(around.UnixMicro())
		count := len(own)
		if rule.Limit.Algorithm == quota.SlidingLog {
			count++
		}
		args = append(args, rule.Limit.Name, rule.Shape, rule.Capacity(), count)
		if rule.Limit.Algorithm == quota.SlidingLog {
			logs++
			args = append(args, logs)
		}
		for _, n := range own {
			args = append(args, n)
		}
	}
	return args
}

// reply is the reply of spend.lua.
type reply struct {
	outOfBounds bool // the calendar's boundaries in ARGV do not contain now
	passed      bool
	now         int64
	restarted   int64
	charged     int64
	standings   []int64 // perLimit integers for each limit
}

const (
	header   = 4
	perLimit = 4 // retry, remaining, next, reset
)

// decode checks the numbers against the contract in spend.lua.
func decode(numbers []int64, limits int) (reply, error) {
	if len(numbers) == 2 && numbers[0] == -1 {
		return reply{outOfBounds: true, now: numbers[1]}, nil
	}
	if len(numbers) != header+perLimit*limits || numbers[0] != 0 && numbers[0] != 1 {
		return reply{}, fmt.Errorf("reply %v is not one of spend.lua for %d limits", numbers, limits)
	}
	r := reply{passed: numbers[0] == 1, now: numbers[1], restarted: numbers[2], charged: numbers[3], standings: numbers[header:]}
	for i := 0; i < len(r.standings); i += perLimit {
		if s := r.standings[i : i+perLimit]; s[0] < -1 || min(s[1], s[2], s[3]) < 0 {
			return reply{}, fmt.Errorf("reply %v: limit %d: retry must not be below -1, remaining, next and reset not below 0", numbers, i/perLimit+1)
		}
	}
	return r, nil
}

func (r reply) decision(rules []quota.Rule) quota.Decision {
	d := quota.Decision{State: quota.OverQuota, Limits: make([]quota.Standing, len(rules)), Charged: r.charged, Restarted: int(r.restarted)}
	if r.passed {
		d.State = quota.Allowed
	}
	for i, rule := range rules {
		own := r.standings[perLimit*i : perLimit*(i+1)]
		s := quota.Standing{
			Name:       rule.Limit.Name,
			Limit:      rule.Capacity(),
			RetryAfter: time.Duration(own[0]) * time.Microsecond,
			Remaining:  own[1],
			Next:       time.Duration(own[2]) * time.Microsecond,
			Reset:      time.Duration(own[3]) * time.Microsecond,
		}
		if own[0] == -1 {
			s.RetryAfter = quota.Never
		}
		if r.passed && s.Remaining == 0 {
			d.State = quota.HitQuota
		}
		d.Limits[i] = s
	}
	return d
}
