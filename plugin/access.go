package plugin

import (
	"context"
	"errors"
	"strings"
	"time"

	"kong-quota/internal/pluginserver"
	"kong-quota/quota"
)

// access walks one request: identity, decision, answer. Kong waits for it, and
// every question to the gateway is a round trip.
func (i *Instance) access(ctx context.Context, gw gateway) {
	answered := false
	defer func() {
		// A panic that got out would take the process down, and with it every
		// other request. This one follows the failure policy.
		if caught := recover(); caught != nil {
			i.plugin.metrics.panics.Inc()
			i.log("access phase panicked", "panic", caught)
			if !answered {
				i.failed(gw)
			}
		}
	}()

	id, others, who := i.ids.of(gw)
	switch who {
	case unlimited:
		answered = true
		if i.upstreamHeaders {
			i.pass(gw, nil, noUpstreamHeaders)
		}
		return
	case denied:
		answered = true
		i.refuse(gw, i.answers.unidentified)
		return
	case noAnswer:
		answered = true
		i.failed(gw)
		return
	}

	decision, err := i.spend(ctx, id, others)
	answered = true
	switch {
	case err != nil:
		i.failed(gw)
	case decision.State == quota.OverQuota && !i.annotate:
		i.refuse(gw, i.answers.overQuota(decision))
	default:
		upstream := i.upstreamHeaders || i.annotate && decision.State == quota.OverQuota
		i.pass(gw, i.answers.forClient(decision), i.answers.forUpstream(decision, upstream))
	}
}

// spend comes back with a decision when it is the request's turn.
func (i *Instance) spend(ctx context.Context, id quota.Identity, others []quota.Identity) (quota.Decision, error) {
	decision, err := i.store.Spend(ctx, quota.Request{
		Scope: i.scope, Identity: id, Others: others, Policy: i.policy, Cost: 1,
	})
	if err != nil && !errors.Is(err, quota.ErrUnavailable) {
		i.log("no decision", "error", err)
	}
	return decision, err
}

// pass lets the request on to the upstream.
func (i *Instance) pass(gw gateway, client, upstream headers) {
	if len(client) > 0 {
		gw.SetHeaders(setResponseHeaders, client)
	}
	if len(upstream) > 0 {
		gw.SetHeaders(setUpstreamHeaders, upstream)
	}
}

// failed applies on_error.
func (i *Instance) failed(gw gateway) {
	if i.denyOnError {
		i.refuse(gw, i.answers.unavailable)
		return
	}
	i.pass(gw, nil, i.answers.forUpstream(quota.Decision{}, true))
}

func (i *Instance) refuse(gw gateway, r refusal) {
	if i.answers.grpc && i.isGRPC(gw) {
		r = r.forGRPC()
	}
	gw.Exit(r.status, r.body, r.headers)
}

// protocol is a service's, as it was a while ago.
type protocol struct {
	grpc  bool
	known time.Time
}

// protocolAge is how long a service's protocol is taken for what it was.
const protocolAge = time.Minute

// isGRPC asks for the request's content type, but not where the service is known
// to speak HTTP: Kong takes gRPC to gRPC services only. So a refusal is one call,
// but for one in a minute.
func (i *Instance) isGRPC(gw gateway) bool {
	questions := []pluginserver.Question{{Method: getHeader, Argument: "content-type"}, {Method: getService, Field: serviceProtocol}}
	known := i.protocol.Load()
	switch {
	case !i.oneService:
		questions = questions[:1]
	case known != nil && time.Since(known.known) < protocolAge:
		if !known.grpc {
			return false
		}
		questions = questions[:1]
	}
	if err := gw.Ask(questions); err != nil {
		return false // Kong is gone
	}
	if len(questions) > 1 && questions[1].Answer != "" {
		i.protocol.Store(&protocol{strings.HasPrefix(questions[1].Answer, "grpc"), time.Now()})
	}
	return isGRPC(questions[0].Answer)
}
