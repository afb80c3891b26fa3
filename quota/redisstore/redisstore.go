// Package redisstore keeps counters in Redis and decides there, with the
// scripts of package lua: one call, one round trip, per decision.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/quota"
)

// DefaultNamespace begins every key unless told otherwise.
const DefaultNamespace = "quota"

// Store is a quota.Store on a Redis server. It does not own its client.
type Store struct {
	client    Client
	line      line
	slots     bool // a script sees the keys of one slot only
	namespace string
	clock     func() time.Time
	// ahead is how far the server's clock was seen to be ahead of this one, in
	// microseconds. It is 0 until a call fails for it: what a script needs to
	// know of the calendar covers the windows before and after the present one.
	ahead atomic.Int64
}

// Client is what a store needs of go-redis: any of its clients.
type Client interface {
	redis.Scripter
	Del(ctx context.Context, keys ...string) *redis.IntCmd
	Publish(ctx context.Context, channel string, message any) *redis.IntCmd
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Pipeline() redis.Pipeliner
	Scan(ctx context.Context, cursor uint64, match string, count int64) *redis.ScanCmd
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
	s.line.store = s
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
	if d.Charged < 0 && r.Undo == nil {
		// Without it others notice a little later.
		_ = s.client.Publish(ctx, s.channel(), announcement(r.Scope, r.Identity)).Err()
	}
	return d, nil
}

// spend decides a request whose keys are in one slot.
func (s *Store) spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	p, err := prepare(r.Policy)
	if err != nil {
		return quota.Decision{}, err
	}
	return s.line.take(ctx, r, p)
}

// moment is the request's, or what the server's clock is taken for.
func (s *Store) moment(now time.Time) time.Time {
	if now.IsZero() {
		return s.clock().Add(time.Duration(s.ahead.Load()) * time.Microsecond)
	}
	return now
}

// Reset deletes the identity's key in the scope, and announces it.
func (s *Store) Reset(ctx context.Context, scope string, id quota.Identity) error {
	k := key(s.namespace, scope, id)
	if err := s.client.Del(ctx, k).Err(); err != nil {
		return fmt.Errorf("reset %s: %w", k, unavailable(err))
	}
	if err := s.client.Publish(ctx, s.channel(), announcement(scope, id)).Err(); err != nil {
		return fmt.Errorf("reset %s: done, but not announced: %w", k, unavailable(err))
	}
	return nil
}

// unavailable marks an error of the client as "no answer", and keeps it.
func unavailable(err error) error { return errors.Join(quota.ErrUnavailable, err) }
