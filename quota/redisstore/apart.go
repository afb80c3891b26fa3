package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"kong-quota/quota"
)

// spendApart decides a request whose identities may be on different nodes of a
// cluster, where no script can see them together: one pipelined round trip with a
// call for each identity, and another that gives back what was charged where
// another refused, or charged less. In between, others may be refused for it; never
// does one too many pass. What cannot be given back stays charged.
func (s *Store) spendApart(ctx context.Context, r quota.Request) (quota.Decision, error) {
	parts := r.Policy.Parts()
	requests := make([]quota.Request, len(parts))
	for i, part := range parts {
		requests[i] = r
		requests[i].Identity, requests[i].Others, requests[i].Policy = r.IdentityOf(part.Identity), nil, part.Policy
		if r.Undo != nil {
			own := *r.Undo
			own.Limits = make([]quota.Standing, len(part.Limits))
			for j, at := range part.Limits {
				own.Limits[j] = r.Undo.Limits[at]
			}
			requests[i].Undo = &own
		}
	}
	decisions, err := s.together(ctx, requests)
	keep := r.Cost
	restarted := 0
	for _, d := range decisions {
		restarted += d.Restarted
		switch d.State {
		case quota.Unknown, quota.OverQuota:
			keep = min(keep, 0)
		default:
			keep = min(keep, d.Charged)
		}
	}

	var surplus []quota.Request // and of which parts they are
	var of []int
	for i, d := range decisions {
		if d.Charged > max(0, keep) {
			back := requests[i]
			back.Cost, back.UpTo, back.Undo = keep-d.Charged, false, &d
			if keep > 0 { // the rest of it stays
				back.Undo = nil
			}
			surplus, of = append(surplus, back), append(of, i)
		}
	}
	if len(surplus) > 0 {
		// The request is decided, also where its time is up.
		given, failed := s.together(context.WithoutCancel(ctx), surplus)
		for j, i := range of {
			if given[j].State != quota.Unknown {
				given[j].Wait = decisions[i].Wait
				decisions[i] = given[j]
			}
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return quota.Decision{}, err
	}
	return merge(r.Policy, decisions, keep, restarted), nil
}

// together sends the requests at the same time; the line makes a pipeline of them.
// A decision is Unknown where there was no answer, which the error tells.
func (s *Store) together(ctx context.Context, requests []quota.Request) ([]quota.Decision, error) {
	decisions := make([]quota.Decision, len(requests))
	problems := make([]error, len(requests))
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() {
			d, err := s.spend(ctx, r)
			if err != nil {
				problems[i] = fmt.Errorf("spend %s: %w", r.Identity, err)
				return
			}
			decisions[i] = d
		})
	}
	wg.Wait()
	return decisions, errors.Join(problems...)
}

// merge makes one decision of those of the parts.
func merge(p *quota.Policy, decisions []quota.Decision, charged int64, restarted int) quota.Decision {
	whole := quota.Decision{State: quota.Allowed, Limits: make([]quota.Standing, len(p.Rules())), Charged: charged, Restarted: restarted}
	refused := false
	for i, part := range p.Parts() {
		d := decisions[i]
		for j, at := range part.Limits {
			whole.Limits[at] = d.Limits[j]
			if d.Limits[j].Remaining == 0 {
				whole.State = quota.HitQuota
			}
		}
		refused = refused || d.State == quota.OverQuota
		whole.Wait = max(whole.Wait, d.Wait)
		if whole.Now.IsZero() || d.Now.Before(whole.Now) {
			whole.Now = d.Now
		}
	}
	for i, part := range p.Parts() { // nodes differ in their clocks: one moment for all
		for _, at := range part.Limits {
			if s := &whole.Limits[at]; s.Reset > 0 {
				s.Reset += decisions[i].Now.Sub(whole.Now)
			}
		}
	}
	if refused {
		whole.State, whole.Wait = quota.OverQuota, 0
	}
	return whole
}
