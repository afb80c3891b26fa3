package memstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"kong-quota/quota"
	"kong-quota/quota/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) quota.Store {
		s, err := New(DefaultEntries)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestNewRefusesNoRoom(t *testing.T) {
	if _, err := New(0); err == nil || err.Error() != "entries: 0 must be at least 1" {
		t.Errorf("got %v", err)
	}
}

// A full store makes room by the entry that ends first.
func TestFullStoreDropsWhatEndsFirst(t *testing.T) {
	s, err := New(shards * 3)
	if err != nil {
		t.Fatal(err)
	}
	spend := func(name string, window time.Duration, at time.Duration) quota.Decision {
		p, err := quota.NewPolicy(quota.Limit{Name: "a", Limit: 10, Window: quota.Per(window)})
		if err != nil {
			t.Fatal(err)
		}
		r := quota.Request{Scope: "s", Identity: quota.NewIdentity("n", name), Policy: p, Cost: 1, Now: time.Unix(1e9, 0).Add(at)}
		d, err := s.Spend(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for i := range 1000 { // long, many: the shards are full
		spend(fmt.Sprint("long", i), time.Hour, time.Duration(i)*time.Millisecond)
	}
	if n := s.Len(); n != 3*shards {
		t.Fatalf("%d entries, want the bound of %d", n, 3*shards)
	}
	// Of one shard, the short entry goes first although it is the newest.
	spend("long999", time.Hour, time.Second)
	shard := s.shard(key{"s", quota.NewIdentity("n", "long999")})
	names := []string{}
	for i := 0; len(names) < 2; i++ {
		if name := fmt.Sprint("other", i); s.shard(key{"s", quota.NewIdentity("n", name)}) == shard {
			names = append(names, name)
		}
	}
	spend(names[0], time.Second, 2*time.Second)
	spend(names[1], time.Hour, 2*time.Second)
	if shard.entries[key{"s", quota.NewIdentity("n", names[0])}] != nil {
		t.Error("the entry that ends first was kept")
	}
	if d := spend("long999", time.Hour, 3*time.Second); d.Limits[0].Remaining >= 9 {
		t.Errorf("an entry that ends late was dropped: %v", d)
	}
}
