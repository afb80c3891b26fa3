package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/lua"
	"kong-quota/quota"
)

// prepared is what all calls of a policy have in common.
type prepared struct {
	script *redis.Script
	rules  []preparedRule
}

// preparedRule has the arguments of a limit as the client takes them. Putting a
// number or a text into an interface allocates, so it is done once.
type preparedRule struct {
	head   []any // name, shape, limit
	latest atomic.Pointer[boxed]
}

// boxed are the number of the algorithm's arguments, and these.
type boxed struct {
	of   *int64 // the first of the numbers, by which the others are known
	args []any
}

type preparedKey struct{}

func prepare(p *quota.Policy) (*prepared, error) {
	made := p.Derived(preparedKey{}, func() any {
		text, err := lua.Spend(p.Algorithms()...)
		if err != nil {
			return err
		}
		rules := p.Rules()
		made := &prepared{script: redis.NewScript(text), rules: make([]preparedRule, len(rules))}
		for i, rule := range rules {
			made.rules[i].head = []any{rule.Limit.Name, rule.Shape, rule.Capacity()}
		}
		return made
	})
	if err, failed := made.(error); failed {
		return nil, err
	}
	return made.(*prepared), nil
}

// arguments gives the boxed arguments of the algorithm for moments near now.
func (p *preparedRule) arguments(rule *quota.Rule, now int64) []any {
	numbers := rule.Arguments(now)
	if b := p.latest.Load(); b != nil && b.of == &numbers[0] {
		return b.args
	}
	b := &boxed{of: &numbers[0]}
	count := len(numbers)
	if rule.Limit.Algorithm == quota.SlidingLog {
		count++
	}
	b.args = append(b.args, count)
	for _, n := range numbers {
		b.args = append(b.args, n)
	}
	p.latest.Store(b)
	return b.args
}

// likeness is what requests have in common that one call can decide.
type likeness struct {
	policy *quota.Policy
	now    time.Time
	mode   string
	hashes hashes
}

// hashes are the numbers, in a request's KEYS, of its identities' hashes; 0 for one
// that no limit counts. Two names for the same identity are one hash.
type hashes [1 + quota.MaxLimits]uint8

// call is one run of spend.lua.
type call struct {
	likeness
	prepared *prepared
	width    int    // KEYS of a request
	seats    []seat // its requests
	names    []any  // KEYS
	args     []any  // of EVALSHA, with its name
}

// seat is a request of a call. Several passengers share one if all of them ask for
// one unit of the same: it is asked for as many as there are, and deals out what it
// gets in their order. That is how a hot identity costs Redis one decision a call.
type seat struct {
	cost  int64
	first *passenger
	more  []*passenger
}

// all walks the passengers in their order.
func (s *seat) all(yield func(int, *passenger) bool) {
	if !yield(0, s.first) {
		return
	}
	for i, p := range s.more {
		if !yield(i+1, p) {
			return
		}
	}
}

// departures are the calls of a pipeline.
type departures struct {
	all  []*call
	open map[likeness]*call
	at   map[quantity]place // where a request that can be shared sits
}

// quantity is what requests that share a seat ask for a unit of.
type quantity struct {
	policy *quota.Policy
	now    time.Time
	key    string
}

type place struct {
	call *call
	seat int
}

func (d *departures) reset() {
	d.all = d.all[:0]
	if d.open == nil {
		d.open, d.at = map[likeness]*call{}, map[quantity]place{}
	}
	clear(d.open)
	clear(d.at)
}

// board puts a passenger into a call of its likeness.
func (d *departures) board(p *passenger, s *Store) {
	r := p.request
	var room [4]string
	like := likeness{policy: r.Policy, now: r.Now, mode: mode(r)}
	keys := layOut(s.namespace, r, &like.hashes, room[:0])
	// A policy with delays may let more pass than remains.
	shared := r.Cost == 1 && like.mode == "" && len(r.Others) == 0 && !r.Policy.Delays()
	if shared {
		like.mode = upTo // of one unit there is no part
	}
	what := quantity{r.Policy, r.Now, keys[0]}
	if shared {
		if at, taken := d.at[what]; taken && at.call.seats[at.seat].cost < quota.MaxCost {
			s := &at.call.seats[at.seat]
			s.cost++
			s.more = append(s.more, p)
			return
		}
	}
	c := d.open[like]
	if c == nil || len(c.seats) == maxRequests || s.slots {
		c = &call{likeness: like, prepared: p.prepared, width: len(keys)}
		d.all, d.open[like] = append(d.all, c), c
	}
	if shared {
		d.at[what] = place{c, len(c.seats)}
	}
	c.seats = append(c.seats, seat{cost: r.Cost, first: p})
	for _, k := range keys {
		c.names = append(c.names, k)
	}
}

// layOut appends a request's KEYS.
func layOut(namespace string, r quota.Request, hashes *hashes, keys []string) []string {
	rules := r.Policy.Rules()
	for i := range rules {
		identity := rules[i].Identity
		if hashes[identity] != 0 {
			continue
		}
		k := key(namespace, r.Scope, r.IdentityOf(identity))
		for at, other := range keys {
			if other == k {
				hashes[identity] = uint8(at + 1)
			}
		}
		if hashes[identity] == 0 {
			keys = append(keys, k)
			hashes[identity] = uint8(len(keys))
		}
	}
	for i := range rules {
		if rules[i].Limit.Algorithm == quota.SlidingLog {
			keys = append(keys, keys[hashes[rules[i].Identity]-1]+":"+rules[i].Limit.Name)
		}
	}
	return keys
}

// arguments lays out EVALSHA.
func (c *call) arguments(s *Store) []any {
	rules := c.policy.Rules()
	moment := s.moment(c.now)
	args := append(c.args[:0], "evalsha", c.prepared.script.Hash(), len(c.names))
	args = append(args, c.names...)
	if c.now.IsZero() {
		args = append(args, "")
	} else {
		args = append(args, moment.UnixMicro())
	}
	args = append(args, c.costs(), c.mode, c.width, len(rules))
	logs := c.width // the number of the last KEY before the logs
	for i := range rules {
		if rules[i].Limit.Algorithm == quota.SlidingLog {
			logs--
		}
	}
	for i := range rules {
		own := c.prepared.rules[i].arguments(&rules[i], moment.UnixMicro())
		args = append(append(args, int(c.hashes[rules[i].Identity])), c.prepared.rules[i].head...)
		if rules[i].Limit.Algorithm == quota.SlidingLog {
			logs++
			args = append(append(append(args, own[0]), logs), own[1:]...)
		} else {
			args = append(args, own...)
		}
	}
	c.args = args
	return args
}

func (c *call) costs() string {
	if len(c.seats) == 1 {
		return strconv.FormatInt(c.seats[0].cost, 10)
	}
	var b strings.Builder
	for i := range c.seats {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.FormatInt(c.seats[i].cost, 10))
	}
	return b.String()
}

const upTo = "up to"

func mode(r quota.Request) string {
	if r.UpTo {
		return upTo
	}
	if r.Undo == nil {
		return ""
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

// read decides the seats by a reply in RESP.
func (c *call) read(raw []byte, s *Store) error {
	var room [4 * (header + 3*perLimit)]int64
	numbers, err := integers(raw, room[:0])
	if err != nil {
		return err
	}
	return c.deal(numbers, s)
}

// runText sends the script's text with the call, and decides the seats by its reply.
func (c *call) runText(ctx context.Context, s *Store) error {
	keys := make([]string, len(c.names))
	for i, name := range c.names {
		keys[i] = name.(string)
	}
	argv := c.args[3+len(c.names):]
	numbers, err := c.prepared.script.Eval(ctx, s.client, keys, argv...).Int64Slice()
	if err != nil {
		return unavailable(err)
	}
	return c.deal(numbers, s)
}

// errOutOfBounds: the server's clock is outside the windows around the moment that
// the caller took it for.
var errOutOfBounds = fmt.Errorf("%w: the server's clock is outside the windows around its own time", quota.ErrUnavailable)

// deal checks the whole reply before anybody arrives.
func (c *call) deal(numbers []int64, s *Store) error {
	rules := c.policy.Rules()
	size := header + perLimit*len(rules)
	if len(numbers) == 2 && numbers[0] == -1 {
		s.ahead.Store(time.UnixMicro(numbers[1]).Sub(s.clock()).Microseconds())
		return errOutOfBounds
	}
	if len(numbers) != size*len(c.seats) {
		return fmt.Errorf("a reply of %d integers is not one of spend.lua for %d requests of %d limits", len(numbers), len(c.seats), len(rules))
	}
	for i := range c.seats {
		r, err := decode(numbers[i*size:(i+1)*size], len(rules))
		if err != nil {
			return err
		}
		for nth, p := range c.seats[i].all {
			p.decision = r.decision(rules)
			if c.seats[i].more != nil {
				share(&p.decision, nth)
			}
		}
	}
	return nil
}

// share makes of the decision on a shared seat that of its nth passenger, from 0:
// they are served in their order, so that those behind have not been charged yet
// when this one is, and the last of what there was is gone when it is refused.
func share(d *quota.Decision, nth int) {
	if nth > 0 {
		d.Restarted = 0
	}
	if d.State == quota.OverQuota {
		return
	}
	behind := d.Charged - 1 - int64(nth)
	d.State, d.Charged = quota.Allowed, 1
	if behind < 0 {
		d.State, d.Charged = quota.OverQuota, 0
	}
	for i := range d.Limits {
		s := &d.Limits[i]
		switch {
		case behind >= 0:
			if s.Remaining += behind; s.Remaining == 0 {
				d.State = quota.HitQuota
			}
		case s.Remaining == 0:
			s.RetryAfter = s.Next
		}
	}
}

// arrive ends the call.
func (c *call) arrive(err error) {
	for i := range c.seats {
		for _, p := range c.seats[i].all {
			if err != nil {
				p.arrive(quota.Decision{}, err)
			} else {
				p.arrive(p.decision, nil)
			}
		}
	}
}
