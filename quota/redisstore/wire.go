package redisstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kong-quota/quota"
)

// key is where the counters of an identity in a scope are kept. The identity is
// the hash tag, so that all keys of one identity are in one slot.
func key(namespace, scope string, id quota.Identity) string {
	return namespace + ":" + scope + ":{" + string(id) + "}"
}

// call is one run of spend.lua.
type call struct {
	keys []string
	args []any
}

// newCall lays out KEYS and ARGV of spend.lua; around is a moment near now, for
// the boundaries of windows.
func newCall(namespace string, r quota.Request, around time.Time) call {
	rules := r.Policy.Rules()
	c := call{keys: make([]string, 0, 2), args: make([]any, 0, 4+6*len(rules))}
	if r.Now.IsZero() {
		c.args = append(c.args, "")
	} else {
		c.args = append(c.args, r.Now.UnixMicro())
	}
	c.args = append(c.args, r.Cost, mode(r), len(rules))
	// Two names for the same identity are one hash.
	hashes := make([]int, 1+len(r.Others)) // numbers in KEYS by that of the identity
	for _, rule := range rules {
		if hashes[rule.Identity] != 0 {
			continue
		}
		k := key(namespace, r.Scope, r.IdentityOf(rule.Identity))
		if at := slices.Index(c.keys, k); at >= 0 {
			hashes[rule.Identity] = at + 1
			continue
		}
		c.keys = append(c.keys, k)
		hashes[rule.Identity] = len(c.keys)
	}
	for _, rule := range rules {
		own := rule.Arguments(around.UnixMicro())
		hash := hashes[rule.Identity]
		count := len(own)
		log := rule.Limit.Algorithm == quota.SlidingLog
		if log {
			count++
		}
		c.args = append(c.args, hash, rule.Limit.Name, rule.Shape, rule.Capacity(), count)
		if log {
			c.keys = append(c.keys, c.keys[hash-1]+":"+rule.Limit.Name)
			c.args = append(c.args, len(c.keys))
		}
		for _, n := range own {
			c.args = append(c.args, n)
		}
	}
	return c
}

func mode(r quota.Request) string {
	if r.UpTo {
		return "up to"
	}
	var b strings.Builder
	for i, until := range r.Untouched() {
		if i > 0 {
			b.WriteByte(' ')
		}
		if until < 0 {
			b.WriteByte('-')
		} else {
			b.WriteString(strconv.FormatInt(until, 10))
		}
	}
	return b.String()
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
	perLimit = 4 // retry or wait, remaining, next, reset
)

// decode checks the numbers against the contract in spend.lua.
func decode(numbers []int64, limits int) (reply, error) {
	if len(numbers) == 2 && numbers[0] == -1 {
		return reply{outOfBounds: true, now: numbers[1]}, nil
	}
	if len(numbers) != header+perLimit*limits || numbers[0] != 0 && numbers[0] != 1 {
		return reply{}, fmt.Errorf("reply %v is not one of spend.lua for %d limits", numbers, limits)
	}
	r := reply{passed: numbers[0] == 1, charged: numbers[1], restarted: numbers[2], now: numbers[3], standings: numbers[header:]}
	for i := 0; i < len(r.standings); i += perLimit {
		if s := r.standings[i : i+perLimit]; s[0] < -1 || r.passed && s[0] < 0 || min(s[1], s[2], s[3]) < 0 {
			return reply{}, fmt.Errorf("reply %v: limit %d: retry must not be below -1, remaining, next and reset not below 0", numbers, i/perLimit+1)
		}
	}
	return r, nil
}

func (r reply) decision(rules []quota.Rule) quota.Decision {
	d := quota.Decision{
		State: quota.OverQuota, Limits: make([]quota.Standing, len(rules)),
		Charged: r.charged, Restarted: int(r.restarted), Now: time.UnixMicro(r.now),
	}
	if r.passed {
		d.State = quota.Allowed
	}
	for i, rule := range rules {
		own := r.standings[perLimit*i : perLimit*(i+1)]
		s := quota.Standing{
			Name:      rule.Limit.Name,
			Limit:     rule.Capacity(),
			Remaining: own[1],
			Next:      time.Duration(own[2]) * time.Microsecond,
			Reset:     time.Duration(own[3]) * time.Microsecond,
		}
		switch first := time.Duration(own[0]) * time.Microsecond; {
		case r.passed:
			d.Wait = max(d.Wait, first)
		case own[0] == -1:
			s.RetryAfter = quota.Never
		default:
			s.RetryAfter = first
		}
		if r.passed && s.Remaining == 0 {
			d.State = quota.HitQuota
		}
		d.Limits[i] = s
	}
	return d
}
