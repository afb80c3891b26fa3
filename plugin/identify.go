package plugin

import (
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
	// value is known for the consumer of a consumer's own instance.
	value  string
	header string
}

func newIdentity(c Config, where placement) identity {
	id := identity{fallback: c.Fallback}
	known := true
	for _, kind := range c.Identify {
		p := part{kind: kind}
		switch kind {
		case identifyConsumer:
			p.value = where.ConsumerID
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

// outcome says what to do with a request as far as its identity goes.
type outcome int

const (
	charged   outcome = iota
	unlimited         // it has no identity, and the fallback is skip
	denied            // it has no identity, and the fallback is deny
	noAnswer          // Kong did not tell
)

// of asks Kong for what the instance does not know. A part that the request does
// not have falls to the fallback, and so does one that Kong fails to tell: a
// header that is no text, for example, must not be a way around the limits.
func (id identity) of(gw gateway) (quota.Identity, outcome) {
	if id.fixed != "" {
		return id.fixed, charged
	}
	values := make([]part, 0, len(id.parts))
	for _, p := range id.parts {
		if p.value == "" {
			p.value, _ = p.ask(gw)
		}
		if p.value == "" {
			switch id.fallback {
			case fallbackDeny:
				return "", denied
			case fallbackSkip:
				return "", unlimited
			}
			ip, err := gw.ForwardedIP()
			if err != nil || ip == "" {
				return "", noAnswer
			}
			p = part{kind: identifyIP, value: ip}
		}
		values = append(values, p)
	}
	return compound(values), charged
}

func (p part) ask(gw gateway) (string, error) {
	switch p.kind {
	case identifyConsumer:
		return gw.ConsumerID()
	case identifyCredential:
		return gw.CredentialID()
	case identifyHeader:
		return gw.Header(p.header)
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
