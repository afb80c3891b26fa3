package redisstore_test

import (
	"testing"

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
