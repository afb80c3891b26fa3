package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/internal/testredis"
	"kong-quota/lua"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
	"kong-quota/quota/storetest"
)

// The rules of the Redis state (../shared/DESIGN.md), one test each, in the
// server's own time unless a test is about another.

var ctx = context.Background()

var alice = quota.NewIdentity("consumer", "alice")

const key = "quota:s:{consumer:alice}"

type fixture struct {
	t      *testing.T
	server *testredis.Server
	client *redis.Client
	store  *redisstore.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	server := testredis.Start(t)
	client := server.Client()
	return &fixture{t, server, client, redisstore.New(client)}
}

func (f *fixture) spend(p *quota.Policy, cost int64) quota.Decision {
	f.t.Helper()
	d, err := f.store.Spend(ctx, quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: cost})
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f *fixture) hash() map[string]string {
	f.t.Helper()
	fields, err := f.client.HGetAll(ctx, key).Result()
	if err != nil {
		f.t.Fatal(err)
	}
	return fields
}

// now is the server's clock.
func (f *fixture) now() time.Time {
	f.t.Helper()
	now, err := f.client.Time(ctx).Result()
	if err != nil {
		f.t.Fatal(err)
	}
	return now
}

var (
	hourly = quota.Limit{Name: "hourly", Limit: 10, Window: quota.PerUnit(quota.Hour)}
	daily  = quota.Limit{Name: "daily", Limit: 100, Window: quota.PerUnit(quota.Day), Align: quota.Calendar, Timezone: "Asia/Shanghai"}
)

func TestRule1OneHashPerIdentityWithAFieldPerLimit(t *testing.T) {
	f := newFixture(t)
	f.spend(storetest.Policy(t, hourly, daily), 1)
	keys, err := f.client.Keys(ctx, "*").Result()
	if err != nil || !slices.Equal(keys, []string{key}) {
		t.Errorf("keys %q, %v", keys, err)
	}
	if names := slices.Sorted(maps.Keys(f.hash())); !slices.Equal(names, []string{"daily", "hourly"}) {
		t.Errorf("fields %q", names)
	}
	// The script says which keys it uses, and no name that is not KEYS[n].
	text, err := lua.Spend(storetest.Policy(t, hourly).Algorithms()...)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, line := range strings.Split(text, "\n") {
		for _, call := range strings.SplitAfter(line, "redis.")[1:] {
			calls++
			if !strings.HasPrefix(call, "call('TIME')") && !strings.Contains(call, "', KEYS[") {
				t.Errorf("a command without KEYS[n]: %s", line)
			}
		}
	}
	if calls < 6 {
		t.Errorf("%d commands found in the script", calls)
	}
}

func TestRule2TheServersClockDecides(t *testing.T) {
	f := newFixture(t)
	for _, skew := range []time.Duration{0, 100 * 24 * time.Hour, -100 * 24 * time.Hour, time.Hour} {
		// A node whose clock is wrong sees the counters of the others.
		f.store = redisstore.New(f.client, redisstore.WithClock(func() time.Time { return time.Now().Add(skew) }))
		for range 2 {
			f.spend(storetest.Policy(t, daily, hourly), 1)
		}
	}
	counter := strings.Fields(f.hash()["daily"])
	if len(counter) != 3 || counter[2] != "8" {
		t.Errorf("counter %q, want 8 used", counter)
	}
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	year, month, day := f.now().In(shanghai).Date()
	if midnight := time.Date(year, month, day+1, 0, 0, 0, 0, shanghai); counter[1] != fmt.Sprint(midnight.UnixMicro()) {
		t.Errorf("the window ends at %s, want %d", counter[1], midnight.UnixMicro())
	}
}

// A node with a wrong clock asks twice once, not every time.
func TestRule2AWrongClockIsLearned(t *testing.T) {
	f := newFixture(t)
	f.store = redisstore.New(f.client, redisstore.WithClock(func() time.Time { return time.Now().Add(100 * 24 * time.Hour) }))
	p := storetest.Policy(t, daily)
	f.spend(p, 1)
	before := f.calls("evalsha")
	f.spend(p, 1)
	if n := f.calls("evalsha") - before; n != 1 {
		t.Errorf("%d calls for the second request", n)
	}
}

// calls is how often the server ran a command.
func (f *fixture) calls(command string) (n int) {
	f.t.Helper()
	info, err := f.client.Info(ctx, "commandstats").Result()
	if err != nil {
		f.t.Fatal(err)
	}
	if _, rest, found := strings.Cut(info, "cmdstat_"+command+":calls="); found {
		_, _ = fmt.Sscan(rest[:strings.IndexByte(rest, ',')], &n)
	}
	return n
}

// expiry is when the key expires.
func (f *fixture) expiry() time.Time {
	f.t.Helper()
	at, err := f.client.PExpireTime(ctx, key).Result()
	if err != nil {
		f.t.Fatal(err)
	}
	return time.UnixMilli(at.Milliseconds())
}

// end is when a field's counter ends, up to the millisecond that a key's expiry
// is counted in.
func (f *fixture) end(name string) time.Time {
	f.t.Helper()
	var shape string
	var until int64
	if _, err := fmt.Sscan(f.hash()[name], &shape, &until); err != nil {
		f.t.Fatalf("%q: %v", f.hash()[name], err)
	}
	return time.UnixMilli((until + 999) / 1000)
}

func TestRule3EveryKeyExpiresWithItsLastCounter(t *testing.T) {
	f := newFixture(t)
	f.spend(storetest.Policy(t, hourly), 1)
	if got, want := f.expiry(), f.end("hourly"); !got.Equal(want) {
		t.Errorf("one limit: expires %v, want %v", got, want)
	}
	long := hourly
	long.Name, long.Window = "long", quota.Per(48*time.Hour)
	f.spend(storetest.Policy(t, hourly, long), 1)
	if got, want := f.expiry(), f.end("long"); !got.Equal(want) {
		t.Errorf("two limits: expires %v, want %v", got, want)
	}
	// Another policy of the same scope must not cut short what it does not know.
	f.spend(storetest.Policy(t, hourly), 1)
	if got, want := f.expiry(), f.end("long"); !got.Equal(want) {
		t.Errorf("the other policy: expires %v, want %v", got, want)
	}
	// A limit that restarts shorter takes the expiry with it.
	long.Window = quota.Per(2 * time.Hour)
	f.spend(storetest.Policy(t, long), 1)
	if got, want := f.expiry(), f.end("long"); !got.Equal(want) || got.After(f.now().Add(2*time.Hour+time.Millisecond)) {
		t.Errorf("restarted: expires %v, want %v", got, want)
	}
	// Counters that have ended go when another begins a window.
	if err := f.client.HSet(ctx, key, "old", "fixed_window.000000 1000000 5").Err(); err != nil {
		t.Fatal(err)
	}
	long.Window = quota.Per(3 * time.Hour)
	f.spend(storetest.Policy(t, long), 1)
	if _, there := f.hash()["old"]; there {
		t.Error("a counter that has ended was kept")
	}
}

func TestRule3AnExpiredKeyMeansTheSameAsAnEndedCounter(t *testing.T) {
	f := newFixture(t)
	short := quota.Limit{Name: "short", Limit: 1, Window: quota.Per(50 * time.Millisecond)}
	f.spend(storetest.Policy(t, short), 1)
	for f.client.Exists(ctx, key).Val() == 1 {
		time.Sleep(time.Millisecond)
	}
	if d := f.spend(storetest.Policy(t, short), 1); d.State != quota.HitQuota {
		t.Errorf("after the expiry: %v", d)
	}
}

func TestRule4NothingIsWrittenUnlessAllPass(t *testing.T) {
	f := newFixture(t)
	tight := quota.Limit{Name: "tight", Limit: 2, Window: quota.PerUnit(quota.Hour)}
	p := storetest.Policy(t, hourly, tight)
	for _, cost := range []int64{0, 3} { // a peek, and a refusal, on nothing
		f.spend(p, cost)
		if n := f.client.Exists(ctx, key).Val(); n != 0 {
			t.Errorf("cost %d wrote a key", cost)
		}
	}
	f.spend(p, 2)
	before, expiry, writes := f.hash(), f.expiry(), f.calls("hset")+f.calls("pexpireat")+f.calls("hdel")+f.calls("del")
	for range 3 {
		if d := f.spend(p, 1); d.State != quota.OverQuota || d.Limits[0].Remaining != 8 {
			t.Errorf("refused: %v", d)
		}
		f.spend(p, 0)
	}
	if after := f.hash(); !maps.Equal(before, after) || !f.expiry().Equal(expiry) {
		t.Errorf("before %v, after %v", before, after)
	}
	if n := f.calls("hset") + f.calls("pexpireat") + f.calls("hdel") + f.calls("del") - writes; n != 0 {
		t.Errorf("%d commands wrote", n)
	}
}

func TestRule5WhatChangesAndWhatCannotBeRead(t *testing.T) {
	f := newFixture(t)
	p := storetest.Policy(t, hourly, daily)
	f.spend(p, 4)
	raised, changed := hourly, daily
	raised.Limit = 20
	changed.Timezone = "UTC"
	if d := f.spend(storetest.Policy(t, raised, changed), 1); d.Limits[0].Remaining != 15 || d.Limits[1].Remaining != 99 || d.Restarted != 0 {
		t.Errorf("a raised limit and a changed timezone: %v", d)
	}

	shape := p.Rules()[0].Shape
	now := f.now().UnixMicro()
	for _, garbage := range []string{
		"", " ", "x", "nonsense here", shape, shape + " ", shape + " 5x 1", shape + fmt.Sprintf(" %d", now+1e9), shape + fmt.Sprintf(" %d x", now+1e9),
		shape + fmt.Sprintf(" %d -5", now+1e9), shape + fmt.Sprintf(" %d 1 2", now+1e9), shape + fmt.Sprintf(" %d 1", now+3*3600e6), shape + " 99999999999999999999 1",
		shape + fmt.Sprintf(" %d 99999999999999999999", now+1e9), shape + fmt.Sprintf(" %d 1.5", now+1e9), shape + fmt.Sprintf(" %d 1e3", now+1e9), "\x00\xff\xfe",
	} {
		f.client.Del(ctx, key)
		f.client.HSet(ctx, key, "hourly", garbage)
		if d := f.spend(p, 3); d.Restarted != 1 || d.Limits[0].Remaining != 7 || d.Limits[1].Remaining != 97 {
			t.Errorf("%q: %+v", garbage, d)
		}
		if d := f.spend(p, 1); d.Restarted != 0 || d.Limits[0].Remaining != 6 {
			t.Errorf("%q, the request after it: %+v", garbage, d)
		}
		if ttl := f.client.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 25*time.Hour {
			t.Errorf("%q: the key expires in %v", garbage, ttl)
		}
	}
	f.client.Del(ctx, key)
	f.client.Set(ctx, key, "a text where a hash should be", 0)
	if d := f.spend(p, 0); d.Restarted != 2 || d.Limits[0].Remaining != 10 {
		t.Errorf("a key of another type, peek: %+v", d)
	}
	if d := f.spend(p, 3); d.Restarted != 2 || d.Limits[0].Remaining != 7 {
		t.Errorf("a key of another type: %+v", d)
	}
	if d := f.spend(p, 3); d.Restarted != 0 || d.Limits[0].Remaining != 4 {
		t.Errorf("a key of another type, the request after it: %+v", d)
	}
}

// Whatever stands in a counter's place, and in its log's, a request gets a decision
// within the limits.
func FuzzCounter(f *testing.F) {
	server := testredis.Start(f)
	client := server.Client()
	store := redisstore.New(client)
	var policies []*quota.Policy
	for i, a := range quota.Algorithms {
		p := storetest.Policy(f, quota.Limit{Name: "hourly", Algorithm: a, Limit: 10, Window: quota.Per(time.Hour)})
		policies = append(policies, p)
		until := fmt.Sprint(time.Now().Add(time.Hour).Truncate(6 * time.Minute).UnixMicro())
		for _, values := range []string{"", " 3", " 3 4 5", " 1 2 3 4 5 6 7 8 9 10", " 2 5 2", " 360000000000000 1 " + until, " -1", " 1e300", " 99999999999999999999"} {
			f.Add(uint8(i), []byte(p.Rules()[0].Shape+" "+until+values), "1:2", int64(1))
		}
		f.Add(uint8(i), []byte("\x00"), "no cost", int64(-3))
	}
	f.Fuzz(func(t *testing.T, algorithm uint8, counter []byte, member string, cost int64) {
		p := policies[int(algorithm)%len(policies)]
		cost %= 20
		client.Del(ctx, key, key+":hourly")
		client.ZAdd(ctx, key+":hourly", redis.Z{Score: float64(time.Now().UnixMicro()), Member: member}, redis.Z{Score: 1, Member: "1:1"})
		if err := client.HSet(ctx, key, "hourly", counter).Err(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			d, err := store.Spend(ctx, quota.Request{Scope: "s", Identity: alice, Policy: p, Cost: cost})
			if err != nil {
				t.Fatal(err)
			}
			if s := d.Limits[0]; s.Remaining < 0 || s.Remaining > 10 || s.Reset < 0 || s.Reset > 4*time.Hour || cost > 10 && d.State != quota.OverQuota {
				t.Errorf("%s %q %q, cost %d: %+v", p.Rules()[0].Shape, counter, member, cost, d)
			}
		}
	})
}

// What the header of spend.lua promises, by arguments that are built from it.
func TestRule6RepliesAreFlatIntegers(t *testing.T) {
	f := newFixture(t)
	script, err := lua.Spend("fixed_window")
	if err != nil {
		t.Fatal(err)
	}
	const now, hour = int64(1_795_233_687_000_000), int64(3_600_000_000)
	args := func(cost, start int64) []any {
		return []any{now, cost, "", 1, 2,
			1, "first", "fixed_window.aaaaaa", 1_000_000_000_000, 1, hour,
			1, "calendar", "fixed_window.bbbbbb", 5, 5, start - hour, start, start + hour, start + 2*hour, start + 3*hour}
	}
	for _, c := range []struct {
		cost, start int64
		want        []int64
	}{
		{2, now, []int64{1, 2, 0, now, 0, 999_999_999_998, hour, hour, 0, 3, hour, hour}},
		{0, now, []int64{1, 0, 0, now, 0, 999_999_999_998, hour, hour, 0, 3, hour, hour}},
		{4, now, []int64{0, 0, 0, now, 0, 999_999_999_998, hour, hour, hour, 3, hour, hour}},
		{6, now, []int64{0, 0, 0, now, 0, 999_999_999_998, hour, hour, -1, 3, hour, hour}},
		{1, now + 9*hour, []int64{-1, now}},
		{1, now - 9*hour, []int64{-1, now}},
	} {
		reply, err := f.client.Eval(ctx, script, []string{key}, args(c.cost, c.start)...).Slice()
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, item := range reply {
			n, isInteger := item.(int64)
			if !isInteger {
				t.Fatalf("%v has a %T", reply, item)
			}
			got = append(got, n)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("cost %d: %v, want %v", c.cost, got, c.want)
		}
	}
}

func TestRule7CountersAreReadable(t *testing.T) {
	f := newFixture(t)
	f.spend(storetest.Policy(t, hourly), 3)
	var shape string
	var until, used int64
	if n, err := fmt.Sscanf(f.hash()["hourly"], "%s %d %d", &shape, &until, &used); n != 3 || err != nil {
		t.Fatalf("%q: %v", f.hash()["hourly"], err)
	}
	left := time.UnixMicro(until).Sub(f.now())
	if !strings.HasPrefix(shape, "fixed_window.") || used != 3 || left <= 0 || left > time.Hour {
		t.Errorf("%s, %d used, %v left", shape, used, left)
	}
}

func TestWhatRedisForgets(t *testing.T) {
	f := newFixture(t)
	p := storetest.Policy(t, hourly)
	f.spend(p, 1)
	if err := f.client.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if d := f.spend(p, 1); d.Limits[0].Remaining != 8 {
		t.Errorf("after SCRIPT FLUSH: %v", d)
	}
	if err := f.client.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if d := f.spend(p, 1); d.Limits[0].Remaining != 9 {
		t.Errorf("after FLUSHALL: %v", d)
	}
	f.server.Restart()
	if d := f.spend(p, 1); d.Limits[0].Remaining != 9 {
		t.Errorf("after a restart: %v", d)
	}
}

// What one node gives back, the others hear of.
func TestAnnouncements(t *testing.T) {
	f := newFixture(t)
	heard := make(chan string, 10)
	listening, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.store.Listen(listening, func(scope string, id quota.Identity) { heard <- scope + "/" + string(id) })
	}()
	for f.client.PubSubNumSub(ctx, "quota:given-back").Val()["quota:given-back"] == 0 {
		time.Sleep(time.Millisecond)
	}
	other := redisstore.New(f.server.Client())
	if err := other.Reset(ctx, "a scope", alice); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "a scope/consumer:alice" {
		t.Errorf("heard %q", got)
	}
	f.spend(storetest.Policy(t, hourly), 2)
	if f.spend(storetest.Policy(t, hourly), -1); <-heard != "s/consumer:alice" {
		t.Error("the refund was not heard")
	}
	stop()
	<-done
}

// A replica gets what the script did, not the script, and the same expiry.
func TestReplication(t *testing.T) {
	f := newFixture(t)
	replica := testredis.Start(t).Client()
	host, port, err := net.SplitHostPort(f.server.Address())
	if err != nil {
		t.Fatal(err)
	}
	if err := replica.ReplicaOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	var limits []quota.Limit
	for i, a := range quota.Algorithms {
		limits = append(limits, quota.Limit{Name: fmt.Sprint("limit-", i), Algorithm: a, Limit: 100, Window: quota.Per(time.Hour)})
	}
	p := storetest.Policy(t, limits...)
	for _, cost := range []int64{3, 1, -2, 5} {
		f.spend(p, cost)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if n, err := f.client.Wait(ctx, 1, time.Second).Result(); err == nil && n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the replica does not follow")
		}
	}
	got, err := replica.HGetAll(ctx, key).Result()
	if want := f.hash(); err != nil || !maps.Equal(got, want) || len(got) != len(limits) {
		t.Errorf("replica %v, %v; want %v", got, err, want)
	}
	for _, k := range []string{key, key + ":limit-2"} {
		if got, want := replica.Do(ctx, "pexpiretime", k).Val(), f.client.Do(ctx, "pexpiretime", k).Val(); got != want || want == int64(-1) {
			t.Errorf("%s expires at %v on the replica, at %v here", k, got, want)
		}
	}
	if n := f.client.Do(ctx, "dbsize").Val(); n != int64(2) {
		t.Errorf("%v keys", n)
	}
}

func TestNamespace(t *testing.T) {
	f := newFixture(t)
	f.store = redisstore.New(f.client, redisstore.WithNamespace("staging"))
	f.spend(storetest.Policy(t, hourly), 1)
	if n := f.client.Exists(ctx, "staging:s:{consumer:alice}").Val(); n != 1 {
		t.Error("the namespace is not in the key")
	}
}
