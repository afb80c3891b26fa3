package redisstore

import (
	"context"
	"strings"

	"kong-quota/quota"
)

// channel is where resets and refunds are announced, for nodes that remember what
// an identity has or has not.
func (s *Store) channel() string { return s.namespace + ":given-back" }

// announcement names an identity, which has no spaces, and its scope.
func announcement(scope string, id quota.Identity) string { return string(id) + " " + scope }

// Listen calls forget for what any node has reset or given back, until the context
// ends. What is announced while the connection is lost is not heard.
func (s *Store) Listen(ctx context.Context, forget func(scope string, id quota.Identity)) {
	subscription := s.client.Subscribe(ctx, s.channel())
	defer func() { _ = subscription.Close() }()
	messages := subscription.Channel()
	for {
		select {
		case m, open := <-messages:
			if !open {
				return
			}
			if id, scope, found := strings.Cut(m.Payload, " "); found {
				forget(scope, quota.Identity(id))
			}
		case <-ctx.Done():
			return
		}
	}
}
