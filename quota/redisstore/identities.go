package redisstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"kong-quota/quota"
)

// scanCount is how many keys Redis looks at before it serves others again.
const scanCount = 1000

// errEnough ends a walk without being an error.
var errEnough = errors.New("the caller has enough")

// Identities walks those that have counters in the scope, in no order, some perhaps
// twice. It asks Redis for a batch at a time, so that others are served meanwhile,
// but looks at every key of the database. It ends with its first error.
func (s *Store) Identities(ctx context.Context, scope string) iter.Seq2[quota.Identity, error] {
	return func(yield func(quota.Identity, error) bool) {
		prefix := key(s.namespace, scope, "")
		prefix = prefix[:len(prefix)-1] // up to the opening brace
		// The masters of a Cluster are walked side by side.
		var turn sync.Mutex
		enough := false
		walk := func(ctx context.Context, node Client) error {
			keys := node.Scan(ctx, 0, literal.Replace(prefix)+"*", scanCount).Iterator()
			for keys.Next(ctx) {
				// A sliding_log has another key beside the identity's, which ends
				// with the limit's name.
				id, own := strings.CutSuffix(strings.TrimPrefix(keys.Val(), prefix), "}")
				if !own {
					continue
				}
				turn.Lock()
				enough = enough || !yield(quota.Identity(id), nil)
				stop := enough
				turn.Unlock()
				if stop {
					return errEnough
				}
			}
			return keys.Err()
		}
		var err error
		if cluster, many := s.client.(*redis.ClusterClient); many {
			err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return walk(ctx, node) })
		} else {
			err = walk(ctx, s.client)
		}
		if err != nil && !enough {
			yield("", fmt.Errorf("identities of %s: %w", scope, unavailable(err)))
		}
	}
}

// literal writes a text as a pattern of Redis that matches nothing else.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
