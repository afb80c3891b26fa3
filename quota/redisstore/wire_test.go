package redisstore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/quota"
	"kong-quota/quota/memstore"
)

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, 1)
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00"), 0)
	f.Fuzz(func(t *testing.T, data []byte, limits int) {
		limits &= 15
		numbers := make([]int64, len(data)/8)
		for i := range numbers {
			numbers[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
		r, err := decode(numbers, limits)
		if err != nil {
			return
		}
		d := r.decision(make([]quota.Rule, limits))
		if len(d.Limits) != limits || d.State == quota.Unknown {
			t.Errorf("%v: %+v", numbers, d)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	for _, numbers := range [][]int64{nil, {1}, {1, 5, 0, 1}, {-1, 5}, {2, 5, 0, 1, 0, 1, 1, 1}, {-1, 5, 0}, {1, 5, 0, 1, -1, 1, 1, 1}, {0, 5, 0, 1, -2, 1, 1, 1}, {1, 5, 0, 1, 0, -1, 1, 1}, {1, 5, 0, 1, 0, 1, -1, 1}, {1, 5, 0, 1, 0, 1, 1, -1}, {1, 5, 0, 1, 0, 1, 1, 1, 0}} {
		if r, err := decode(numbers, 1); err == nil {
			t.Errorf("%v: %+v", numbers, r)
		}
	}
	if r, err := decode([]int64{1, 1, 0, 5, 0, 3, 7, 7}, 1); err != nil || !r.passed || r.now != 5 || r.charged != 1 {
		t.Errorf("a good reply: %+v, %v", r, err)
	}
}

func FuzzIntegers(f *testing.F) {
	f.Add([]byte("*2\r\n:1\r\n:-5\r\n"))
	f.Add([]byte("-ERR no\r\n"))
	f.Add([]byte("*4294967295\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		numbers, err := integers(raw, nil)
		if err != nil {
			return
		}
		again := fmt.Appendf(nil, "*%d\r\n", len(numbers))
		for _, n := range numbers {
			again = fmt.Appendf(again, ":%d\r\n", n)
		}
		if got, err := integers(again, nil); err != nil || !slices.Equal(got, numbers) {
			t.Errorf("%q: %v, %v", raw, got, err)
		}
	})
}

// What passengers of a shared seat get is what they would have got one by one.
func TestShare(t *testing.T) {
	store, err := memstore.New(100_000)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	now := time.UnixMicro(1_700_000_000_000_000)
	for i := range 3000 {
		var limits []quota.Limit
		for _, name := range []string{"a", "b"} {
			a := quota.Algorithms[random.IntN(len(quota.Algorithms))]
			limits = append(limits, quota.Limit{Name: name, Algorithm: a, Limit: 1 + random.Int64N(9), Window: quota.Per(time.Second)})
		}
		p, err := quota.NewPolicy(limits...)
		if err != nil {
			t.Fatal(err)
		}
		n := 1 + random.IntN(8)
		ask := func(scope string, cost int64, upTo bool) quota.Decision {
			d, err := store.Spend(t.Context(), quota.Request{Scope: fmt.Sprint(scope, i), Identity: "x", Policy: p, Cost: cost, UpTo: upTo, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		used := random.Int64N(5)
		ask("one by one", used, false)
		ask("shared", used, false)
		shared := ask("shared", int64(n), true)
		for nth := range n {
			want := ask("one by one", 1, false)
			got := shared
			got.Limits = slices.Clone(shared.Limits)
			share(&got, nth)
			for j := range got.Limits { // these are of the end of the seat
				if got.State != quota.OverQuota {
					got.Limits[j].Next, got.Limits[j].Reset = want.Limits[j].Next, want.Limits[j].Reset
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%v, %d used, request %d of %d:\n got %v\nwant %v", limits, used, nth+1, n, got, want)
			}
		}
	}
}

// Who travels with whom.
func TestBoarding(t *testing.T) {
	newPolicy := func(limits ...quota.Limit) *quota.Policy {
		p, err := quota.NewPolicy(limits...)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	day := quota.Limit{Name: "day", Limit: 5, Window: quota.Per(24 * time.Hour)}
	p, q := newPolicy(day), newPolicy(day)
	delayed := newPolicy(quota.Limit{Name: "a", Algorithm: quota.GCRA, Limit: 5, Window: quota.Per(time.Second), MaxDelay: time.Second})
	both := newPolicy(day, quota.Limit{Name: "b", Limit: 5, Window: quota.Per(time.Second), Identity: "other"})
	logged := newPolicy(quota.Limit{Name: "log", Algorithm: quota.SlidingLog, Limit: 5, Window: quota.Per(time.Second)})
	request := func(p *quota.Policy, id quota.Identity, cost int64, others ...quota.Identity) quota.Request {
		return quota.Request{Scope: "s", Identity: id, Others: others, Policy: p, Cost: cost}
	}
	for name, c := range map[string]struct {
		requests []quota.Request
		slots    bool
		want     string // the calls: number of KEYS and costs of each
	}{
		"one":                 {[]quota.Request{request(p, "a", 1)}, false, "1: 1"},
		"equals share":        {[]quota.Request{request(p, "a", 1), request(p, "b", 1), request(p, "a", 1)}, false, "2: 2 1"},
		"on slots too":        {[]quota.Request{request(p, "a", 1), request(p, "b", 1), request(p, "a", 1)}, true, "1: 2, 1: 1"},
		"costs do not":        {[]quota.Request{request(p, "a", 2), request(p, "a", 2)}, false, "2: 2 2"},
		"policies apart":      {[]quota.Request{request(p, "a", 1), request(q, "a", 1)}, false, "1: 1, 1: 1"},
		"delays do not":       {[]quota.Request{request(delayed, "a", 1), request(delayed, "a", 1)}, false, "2: 1 1"},
		"several identities":  {[]quota.Request{request(both, "a", 1, "x"), request(both, "b", 1, "x")}, false, "4: 1 1"},
		"the same identity":   {[]quota.Request{request(both, "a", 1, "x"), request(both, "b", 1, "b")}, false, "2: 1, 1: 1"},
		"with their logs":     {[]quota.Request{request(logged, "a", 1), request(logged, "b", 1), request(logged, "a", 1)}, false, "4: 2 1"},
		"another moment":      {[]quota.Request{request(p, "a", 1), {Scope: "s", Identity: "a", Policy: p, Cost: 1, Now: time.Unix(1, 0)}}, false, "1: 1, 1: 1"},
		"in part, and a unit": {[]quota.Request{{Scope: "s", Identity: "a", Policy: p, Cost: 3, UpTo: true}, request(p, "a", 1)}, false, "2: 3 1"},
		"a refund":            {[]quota.Request{request(p, "a", 1), request(p, "a", -1)}, false, "1: 1, 1: -1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(redis.NewClient(&redis.Options{}))
			s.slots = c.slots
			var d departures
			for range 2 { // they are used again
				d.reset()
				for _, r := range c.requests {
					prepared, err := prepare(r.Policy)
					if err != nil {
						t.Fatal(err)
					}
					d.board(&passenger{request: r, prepared: prepared}, s)
				}
				var got []string
				for _, call := range d.all {
					got = append(got, fmt.Sprintf("%d: %s", len(call.names), call.costs()))
					if args := call.arguments(s); args[2] != len(call.names) || call.width*len(call.seats) != len(call.names) {
						t.Errorf("%v: %d KEYS of %d each", args, args[2], call.width)
					}
				}
				if strings.Join(got, ", ") != c.want {
					t.Errorf("calls %q, want %q", got, c.want)
				}
			}
		})
	}
	var d departures
	s := New(redis.NewClient(&redis.Options{}))
	d.reset()
	for i := range 3*maxRequests - 1 {
		prepared, _ := prepare(p)
		d.board(&passenger{request: request(p, quota.NewIdentity("c", fmt.Sprint(i)), 1), prepared: prepared}, s)
	}
	if len(d.all) != 3 || len(d.all[0].seats) != maxRequests || len(d.all[2].seats) != maxRequests-1 {
		t.Errorf("%d calls", len(d.all))
	}
}
