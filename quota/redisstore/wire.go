package redisstore

import (
	"errors"
	"fmt"
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

// Errors of a server that has not run the script, and of what to do then.
var (
	// errNoScript: it does not have the script of that hash.
	errNoScript = errors.New("the server does not have the script")
	// errElsewhere: another server decides. go-redis knows how to get there, but does
	// not see it in a raw reply.
	errElsewhere = errors.New("another server decides this")
)

// notRun are the codes of Redis' errors for both. READONLY comes from a master that
// became a replica, at the script's first write. A server that is LOADING, say, does
// not decide either, but nobody else does: that is no answer, and said at once.
var notRun = map[string]error{
	"NOSCRIPT": errNoScript,
	"MOVED":    errElsewhere, "ASK": errElsewhere, "TRYAGAIN": errElsewhere, "READONLY": errElsewhere,
}

// integers reads a flat array of integers in RESP, and appends them to numbers.
func integers(raw []byte, numbers []int64) ([]int64, error) {
	line, rest, ok := cut(raw)
	if !ok {
		return nil, fmt.Errorf("reply %.100q is cut off", raw)
	}
	switch line[0] {
	case '*':
	case '-':
		code, _, _ := strings.Cut(string(line[1:]), " ")
		if reason := notRun[code]; reason != nil {
			return nil, reason
		}
		return nil, unavailable(errors.New(string(line[1:])))
	default:
		return nil, fmt.Errorf("reply %.100q is no array", raw)
	}
	count, err := strconv.ParseUint(string(line[1:]), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("reply %.100q is no array: %w", raw, err)
	}
	for range count {
		if line, rest, ok = cut(rest); !ok || line[0] != ':' {
			return nil, fmt.Errorf("reply %.100q is no array of integers", raw)
		}
		n, err := strconv.ParseInt(string(line[1:]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reply %.100q: %w", raw, err)
		}
		numbers = append(numbers, n)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("reply %.100q has more than its %d integers", raw, count)
	}
	return numbers, nil
}

// cut splits off a line that is not empty.
func cut(raw []byte) (line, rest []byte, ok bool) {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] == '\r' && raw[i+1] == '\n' {
			return raw[:i], raw[i+2:], i > 0
		}
	}
	return nil, nil, false
}

// reply is the part of spend.lua's reply that is about one request.
type reply struct {
	passed    bool
	charged   int64
	restarted int64
	now       int64
	standings []int64 // perLimit integers for each limit
}

const (
	header   = 4
	perLimit = 4 // retry or wait, remaining, next, reset
)

// decode checks the numbers against the contract in spend.lua.
func decode(numbers []int64, limits int) (reply, error) {
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
	for i := range rules {
		own := r.standings[perLimit*i : perLimit*(i+1)]
		s := quota.Standing{
			Name:      rules[i].Limit.Name,
			Limit:     rules[i].Capacity(),
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
