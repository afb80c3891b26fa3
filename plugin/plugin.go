// Package plugin is everything Kong-shaped: the configuration and its schema,
// how an instance is compiled from it, and the walk of a request through the
// access phase.
package plugin

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"kong-quota/internal/settings"
	"kong-quota/quota"
)

const (
	// Name is the plugin's name in Kong's configuration. Kong takes it from the
	// base name of the executable, which must be the same.
	Name = "quota"
	// Version is the plugin's version as Kong shows it.
	Version = "0.1.0"
	// Priority is where the plugin runs among others: behind authentication
	// (key-auth has 1250), where Kong's own rate-limiting runs (910).
	Priority = 905
)

// Plugin is what all instances of the process share.
type Plugin struct {
	stores  *stores
	metrics *metrics
	waiters *quota.Waiters
	log     *slog.Logger
	// patience is the longest that a request of any instance so far may take, in
	// nanoseconds: its timeout, and its delay.
	patience atomic.Int64
}

// New makes the plugin of a process. It does not wait for Redis.
func New(s settings.Settings, log *slog.Logger) (*Plugin, error) {
	stores, err := newStores(s, log)
	if err != nil {
		return nil, err
	}
	waiters := quota.NewWaiters(s.MaxWaiters)
	return &Plugin{stores: stores, metrics: newMetrics(waiters, stores), waiters: waiters, log: log}, nil
}

// Patience is the longest that the configurations so far let a request take for the
// store's answer and for its turn; what Kong takes to answer comes on top.
func (p *Plugin) Patience() time.Duration { return time.Duration(p.patience.Load()) }

// Stop gives back what this node holds of leased quotas. It is called when no
// request is under way any more.
func (p *Plugin) Stop(ctx context.Context) { p.stores.stop(ctx) }

// Ready reports whether the process' own store answers.
func (p *Plugin) Ready(ctx context.Context) error {
	_, err := p.stores.own.Spend(ctx, readiness)
	return err
}

// readiness is a peek, which writes nothing.
var readiness = func() quota.Request {
	policy, err := quota.NewPolicy(quota.Limit{Name: "ready", Limit: 1, Window: quota.Per(time.Second)})
	if err != nil {
		panic(err) // the limit above is a constant
	}
	return quota.Request{Scope: "ready", Identity: quota.NewIdentity("probe", "ready"), Policy: policy}
}()
