package plugin

import (
	"slices"
	"strings"

	"kong-quota/quota"
)

// identity finds out who is charged for a request.
type identity struct {
	// fixed is the answer where the placement of the instance says it all.
	fixed    quota.Identity
	parts    []part
	fallback string
}

// part is one component of an identity.
type part struct {
	kind string
	// value is known where the instance is placed on what is charged.
	value  string
	header string
}

func newIdentity(c Config, kinds []string, where placement) identity {
	id := identity{fallback: c.Fallback}
	known := true
	for _, kind := range kinds {
		p := part{kind: kind}
		switch kind {
		case identifyConsumer:
			p.value = where.ConsumerID
		case identifyService:
			p.value = where.ServiceID
		case identifyRoute:
			p.value = where.RouteID
		case identifyGlobal:
			p.value = "all"
		case identifyHeader:
			p.header = c.HeaderName
		}
		known = known && p.value != ""
		id.parts = append(id.parts, p)
	}
	if known {
		id.fixed = compound(id.parts)
	}
	return id
}

// identities are those that an instance's limits count.
type identities struct {
	own    *identity  // nil if no limit counts it
	others []identity // in the order of quota.Policy.Others
}

// role is the name by which a policy knows an identity other than the instance's
// own, and "" for that.
func role(c Config, kinds []string) string {
	if len(kinds) == 0 || slices.Equal(kinds, c.Identify) {
		return ""
	}
	return strings.Join(kinds, "+")
}

func newIdentities(c Config, policy *quota.Policy, where placement) identities {
	var ids identities
	if policy.CountsOwn() {
		own := newIdentity(c, c.Identify, where)
		ids.own = &own
	}
	for _, name := range policy.Others() {
		ids.others = append(ids.others, newIdentity(c, strings.Split(name, "+"), where))
	}
	return ids
}

// outcome says what to do with a request as far as its identity goes.
type outcome int

const (
	charged   outcome = iota
	unlimited         // it has no identity, and the fallback is skip
	denied            // it has no identity, and the fallback is deny
	noAnswer          // Kong did not tell
)

// of asks Kong for what the instance does not know, nothing twice.
func (ids identities) of(gw gateway) (own quota.Identity, others []quota.Identity, who outcome) {
	asked := answered{gateway: gw}
	if ids.own != nil {
		if own, who = ids.own.of(&asked); who != charged {
			return "", nil, who
		}
	}
	for _, other := range ids.others {
		id, who := other.of(&asked)
		if who != charged {
			return "", nil, who
		}
		others = append(others, id)
	}
	return own, others, charged
}

// of asks Kong for what the instance does not know. A part that the request does
// not have falls to the fallback, and so does one that Kong fails to tell: a
// header that is no text, for example, must not be a way around the limits.
func (id identity) of(gw *answered) (quota.Identity, outcome) {
	if id.fixed != "" {
		return id.fixed, charged
	}
	values := make([]part, 0, len(id.parts))
	for _, p := range id.parts {
		if p.value == "" {
			p.value, _ = gw.ask(p)
		}
		if p.value == "" {
			switch id.fallback {
			case fallbackDeny:
				return "", denied
			case fallbackSkip:
				return "", unlimited
			}
			ip, err := gw.ask(part{kind: identifyIP})
			if err != nil || ip == "" {
				return "", noAnswer
			}
			p = part{kind: identifyIP, value: ip}
		}
		values = append(values, p)
	}
	return compound(values), charged
}

// answered is a gateway that remembers what it was asked for this request.
type answered struct {
	gateway
	answers []answer
}

type answer struct {
	kind, value string
	err         error
}

func (a *answered) ask(p part) (string, error) {
	for _, known := range a.answers {
		if known.kind == p.kind {
			return known.value, known.err
		}
	}
	value, err := p.ask(a.gateway)
	a.answers = append(a.answers, answer{p.kind, value, err})
	return value, err
}

func (p part) ask(gw gateway) (string, error) {
	switch p.kind {
	case identifyConsumer:
		return gw.ConsumerID()
	case identifyCredential:
		return gw.CredentialID()
	case identifyHeader:
		return gw.Header(p.header)
	case identifyService:
		return gw.ServiceID()
	case identifyRoute:
		return gw.RouteID()
	default:
		return gw.ForwardedIP()
	}
}

func compound(parts []part) quota.Identity {
	identities := make([]quota.Identity, len(parts))
	for i, p := range parts {
		identities[i] = quota.NewIdentity(p.kind, p.value)
	}
	return quota.Compound(identities...)
}
