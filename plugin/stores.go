package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/internal/settings"
	"kong-quota/quota"
	"kong-quota/quota/denials"
	"kong-quota/quota/leases"
	"kong-quota/quota/memstore"
	"kong-quota/quota/redisstore"
)

// stores has one store for each connection in use. Instances come and go with
// every change of Kong's configuration; connections to Redis stay.
type stores struct {
	settings settings.Settings
	log      *slog.Logger
	own      quota.Store // of the process' settings

	mu      sync.Mutex
	opened  map[redisstore.Connection]quota.Store
	leased  []*leases.Store
	denials []*denials.Store
}

func newStores(s settings.Settings, log *slog.Logger) (*stores, error) {
	all := &stores{settings: s, log: log, opened: map[redisstore.Connection]quota.Store{}}
	var err error
	if s.Store == "memory" {
		all.own, err = memstore.New(s.MemoryEntries)
		log.Warn("counters are in this process' memory: each process counts for itself, and they are gone when it ends")
	} else {
		all.own, err = all.open(s.Connection())
	}
	return all, err
}

// connection says which Redis an instance's redis record asks for.
func connection(process settings.Settings, c RedisConfig) (redisstore.Connection, error) {
	own := process.Connection()
	wanted := own
	switch {
	case c.Host != "":
		// The process' password is not for another host.
		wanted = redisstore.Connection{
			Address: net.JoinHostPort(c.Host, strconv.Itoa(c.Port)), Username: c.Username, Password: c.Password,
			TLS: c.SSL, TLSSkipVerify: c.SSL && !c.SSLVerify, TLSServerName: c.ServerName,
			DialTimeout: own.DialTimeout, ReadTimeout: own.ReadTimeout, WriteTimeout: own.WriteTimeout, PoolSize: own.PoolSize,
		}
		if c.SSL {
			wanted.TLSCAFile, wanted.TLSCertFile, wanted.TLSKeyFile = own.TLSCAFile, own.TLSCertFile, own.TLSKeyFile
		}
	case c.Password != "":
		wanted.Username, wanted.Password = c.Username, c.Password
	}
	if c.Database != nil {
		wanted.Database = *c.Database
	}
	if wanted.Cluster && wanted.Database != 0 {
		return redisstore.Connection{}, &quota.FieldError{Field: "redis.database", Value: wanted.Database, Rule: "must be 0: this process' Redis is a Cluster (QUOTA_REDIS_CLUSTER), which has no other"}
	}
	if process.Store == "memory" && c.Host == "" && wanted != own {
		return redisstore.Connection{}, &quota.FieldError{Field: "redis.host", Value: c.Host, Rule: "must be set: this process has no Redis of its own (QUOTA_STORE=memory)"}
	}
	return wanted, nil
}

// forInstance gives the store that an instance's redis record asks for.
func (s *stores) forInstance(c RedisConfig) (quota.Store, error) {
	wanted, err := connection(s.settings, c)
	if err != nil {
		return nil, err
	}
	if wanted == s.settings.Connection() {
		return s.own, nil
	}
	return s.open(wanted)
}

func (s *stores) open(c redisstore.Connection) (quota.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if store := s.opened[c]; store != nil {
		return store, nil
	}
	client, err := redisstore.Connect(c)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	server := redisstore.New(client, redisstore.WithNamespace(s.settings.Namespace))
	exact := &reported{Store: server, name: c.String(), log: s.log}
	go exact.greet(client, c.DialTimeout)
	leased := leases.New(exact, s.settings.LeasedQuotas)
	s.leased = append(s.leased, leased)
	s.opened[c] = leased
	forget := leased.Forget
	if s.settings.DenyMemory > 0 {
		refusing := denials.New(leased, s.settings.DenyMemory, s.settings.DenyMemoryEntries)
		s.denials = append(s.denials, refusing)
		s.opened[c] = refusing
		forget = func(scope string, id quota.Identity) { leased.Forget(scope, id); refusing.Forget(scope, id) }
	}
	go server.Listen(context.Background(), forget)
	return s.opened[c], nil
}

// local is how many requests were decided without asking Redis: refused by memory,
// and passed by leases.
func (s *stores) local() (refused, passed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.denials {
		refused += d.Local()
	}
	for _, l := range s.leased {
		passed += l.Local()
	}
	return refused, passed
}

// stop gives back what this node holds.
func (s *stores) stop(ctx context.Context) {
	s.mu.Lock()
	all := s.leased
	s.mu.Unlock()
	for _, l := range all {
		l.Stop(ctx)
	}
}

// measured is a store with a deadline for each answer, and a metric of them.
type measured struct {
	quota.Store
	timeout time.Duration
	metrics *metrics
}

func (m measured) Spend(ctx context.Context, r quota.Request) (quota.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	start := time.Now()
	d, err := m.Store.Spend(ctx, r)
	m.metrics.decided(d, time.Since(start))
	return d, err
}

// reported is a store that says when it is lost and when it is back, once each,
// rather than for every request.
type reported struct {
	quota.Store
	name string
	log  *slog.Logger
	lost atomic.Bool
}

// greet says at once whether the server is there. Requests find it whenever it
// comes.
func (r *reported) greet(client redis.UniversalClient, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		r.report(err)
		return
	}
	r.log.Info("redis answers", "redis", r.name)
}

func (r *reported) Spend(ctx context.Context, request quota.Request) (quota.Decision, error) {
	d, err := r.Store.Spend(ctx, request)
	if err == nil || errors.Is(err, quota.ErrUnavailable) {
		r.report(err)
	}
	return d, err
}

func (r *reported) report(err error) {
	if lost := err != nil; r.lost.Load() != lost && r.lost.CompareAndSwap(!lost, lost) {
		if lost {
			r.log.Error("redis gives no answer; requests follow on_error until it does", "redis", r.name, "error", err)
		} else {
			r.log.Info("redis answers again", "redis", r.name)
		}
	}
}
