package testredis

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// StartCluster runs a Redis Cluster of three masters until the test ends, and
// gives a client of it.
func StartCluster(t testing.TB) *redis.ClusterClient {
	t.Helper()
	var addresses []string
	for range 3 {
		bus := strconv.Itoa(FreePort(t))
		addresses = append(addresses, Start(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-config-file", "nodes.conf").Address())
	}
	create := append([]string{"--cluster", "create"}, addresses...)
	if out, err := exec.Command("redis-cli", append(create, "--cluster-replicas", "0", "--cluster-yes")...).CombinedOutput(); err != nil {
		t.Fatalf("redis-cli --cluster create: %v\n%s", err, out)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	until(t, "the cluster is up", func() error {
		return client.ForEachMaster(context.Background(), func(ctx context.Context, node *redis.Client) error {
			info, err := node.ClusterInfo(ctx).Result()
			if err == nil && !strings.Contains(info, "cluster_state:ok") {
				err = errors.New("a node does not see the cluster yet")
			}
			return err
		})
	})
	return client
}
