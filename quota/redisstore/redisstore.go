// Package redisstore keeps counters in Redis and decides there, with the
// scripts of package lua: one call, one round trip, per decision.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/lua"
	"kong-quota/quota"
)

// DefaultNamespace begins every key unless told otherwise.
const DefaultNamespace = "quota"

// Store is a quota.Store on a Redis server. It does not own its client.
type Store struct {
	client    Client
	slots     bool // a script sees the keys of one slot only
	namespace string
	clock     func() time.Time
	// ahead is how far the server's clock was seen to be ahead of this one, in
	// microseconds. It is 0 until a call fails for it: what a script needs to
	// know of the calendar covers the windows before and after the present one.
	ahead   atomic.Int64
	scripts sync.Map // the algorithms in it, joined → *redis.Script
}

// Client is what a store needs of go-redis: any of its clients.
type Client interface {
	redis.Scripter
	Del(ctx context.Context, keys ...string) *redis.IntCmd
	Pipeline() redis.Pipeliner
}

// Option changes a store from its defaults.
type Option func(*Store)

// WithNamespace begins every key with another word, to keep apart installations
// that share a server.
func WithNamespace(namespace string) Option { return func(s *Store) { s.namespace = namespace } }

// WithClock gives the node's clock, by which the windows of the calendar are
// looked up before the server's clock picks one. For tests of a wrong one.
func WithClock(clock func() time.Time) Option { return func(s *Store) { s.clock = clock } }

// New makes a store on a client. Deadlines and retries are the client's and the
// context's; set redis.Options.ContextTimeoutEnabled.
func New(client Client, options ...Option) *Store {
	s := &Store{client: client, namespace: DefaultNamespace, clock: time.Now}
	switch client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		s.slots = true
	}
	for _, option := range options {
		option(s)
	}
	return s
}

// Spend runs the policy's script. Redis is asked by the script's hash; a server
// that does not have it is sent the text. On a cluster a policy that counts several
// identities takes a call for each, see spendApart.
func (s *Store) Spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	if err := r.Check(); err != nil {
		return quota.Decision{}, fmt.Errorf("spend: %w", err)
	}
	if s.slots && len(r.Policy.Parts()) > 1 {
		return s.spendApart(ctx, r)
	}
	d, err := s.spend(ctx, r)
	if err != nil {
		return quota.Decision{}, fmt.Errorf("spend %s: %w", r.Identity, err)
	}
	return d, nil
}

// errOutOfBounds: the server's clock is outside the windows around the moment that
// the caller took it for.
var errOutOfBounds = fmt.Errorf("%w: the server's clock is outside the windows around its own time", quota.ErrUnavailable)

func (s *Store) spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	script, err := s.script(r.Policy)
	if err != nil {
		return quota.Decision{}, err
	}
	call := newCall(s.namespace, r, s.moment(r))
	d, err := s.answer(script.Run(ctx, s.client, call.keys, call.args...), r)
	if errors.Is(err, errOutOfBounds) { // the node's clock is more than a window wrong
		call = newCall(s.namespace, r, s.moment(r))
		d, err = s.answer(script.Run(ctx, s.client, call.keys, call.args...), r)
	}
	return d, err
}

// moment is the request's, or what the server's clock is taken for.
func (s *Store) moment(r quota.Request) time.Time {
	if r.Now.IsZero() {
		return s.clock().Add(time.Duration(s.ahead.Load()) * time.Microsecond)
	}
	return r.Now
}

// answer reads the reply to a call.
func (s *Store) answer(command *redis.Cmd, r quota.Request) (quota.Decision, error) {
	numbers, err := command.Int64Slice()
	if err != nil {
		return quota.Decision{}, unavailable(err)
	}
	reply, err := decode(numbers, len(r.Policy.Rules()))
	if err != nil {
		return quota.Decision{}, err
	}
	if reply.outOfBounds {
		s.ahead.Store(time.UnixMicro(reply.now).Sub(s.clock()).Microseconds())
		return quota.Decision{}, errOutOfBounds
	}
	return reply.decision(r.Policy.Rules()), nil
}

// Reset deletes the identity's key in the scope.
func (s *Store) Reset(ctx context.Context, scope string, id quota.Identity) error {
	k := key(s.namespace, scope, id)
	if err := s.client.Del(ctx, k).Err(); err != nil {
		return fmt.Errorf("reset %s: %w", k, unavailable(err))
	}
	return nil
}

// unavailable marks an error of the client as "no answer", and keeps it.
func unavailable(err error) error { return errors.Join(quota.ErrUnavailable, err) }

// script gives the script with the policy's algorithms.
func (s *Store) script(p *quota.Policy) (*redis.Script, error) {
	names := p.Algorithms()
	id := strings.Join(names, "+")
	if made, ok := s.scripts.Load(id); ok {
		return made.(*redis.Script), nil
	}
	text, err := lua.Spend(names...)
	if err != nil {
		return nil, err
	}
	made, _ := s.scripts.LoadOrStore(id, redis.NewScript(text))
	return made.(*redis.Script), nil
}
