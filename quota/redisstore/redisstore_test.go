package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"kong-quota/internal/testredis"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
	"kong-quota/quota/storetest"
)

func TestStore(t *testing.T) {
	client := testredis.Start(t).Client()
	storetest.Run(t, func(*testing.T) quota.Store { return redisstore.New(client) })
}

func TestStoreOnCluster(t *testing.T) {
	client := testredis.StartCluster(t)
	storetest.Run(t, func(*testing.T) quota.Store { return redisstore.New(client) }, storetest.Apart)
}

// Identities are those of the scope alone, each as it was charged, on a server and on a
// Cluster.
func TestIdentities(t *testing.T) {
	for name, client := range map[string]redisstore.Client{"server": testredis.Start(t).Client(), "Cluster": testredis.StartCluster(t)} {
		store := redisstore.New(client, redisstore.WithNamespace("a[b]*"))
		policy := storetest.Policy(t, hourly, quota.Limit{Name: "log", Algorithm: quota.SlidingLog, Limit: 5, Window: quota.Per(time.Hour)})
		want := map[quota.Identity]bool{}
		for i := range 3000 {
			id := quota.NewIdentity("header", fmt.Sprint("{", i, "}"))
			scope := "service:1"
			switch i % 3 {
			case 0:
				want[id] = true
			case 1:
				scope = "service:12"
			case 2:
				scope = "service"
			}
			if _, err := store.Spend(ctx, quota.Request{Scope: scope, Identity: id, Policy: policy, Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		other := redisstore.New(client, redisstore.WithNamespace("ab"))
		if _, err := other.Spend(ctx, quota.Request{Scope: "service:1", Identity: alice, Policy: policy, Cost: 1}); err != nil {
			t.Fatal(err)
		}
		got := map[quota.Identity]bool{}
		for id, err := range store.Identities(ctx, "service:1") {
			if err != nil {
				t.Fatal(err)
			}
			got[id] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %d identities, want %d", name, len(got), len(want))
		}
		for range store.Identities(ctx, "service:1") {
			break // and that is all
		}
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		var last error
		for _, err := range store.Identities(canceled, "service:1") {
			last = err
		}
		if !errors.Is(last, quota.ErrUnavailable) || !errors.Is(last, context.Canceled) {
			t.Errorf("%s: %v", name, last)
		}
	}
}
