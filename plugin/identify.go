package plugin

import (
	"slices"
	"strings"

	"kong-quota/internal/pluginserver"
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

// of asks Kong for what the instance does not know: in one turn, nothing twice, and
// in another for the address if that has to stand in for something. A part that
// the request does not have falls to the fallback.
func (ids identities) of(gw gateway) (own quota.Identity, others []quota.Identity, who outcome) {
	var known told
	for id := range ids.all {
		for _, p := range id.parts {
			if id.fixed == "" && p.value == "" {
				known.want(p)
			}
		}
	}
	if err := known.ask(gw); err != nil {
		return "", nil, noAnswer
	}
	for id := range ids.all {
		for _, p := range id.parts {
			if id.fixed != "" || p.value != "" || known.of(p) != "" {
				continue
			}
			switch id.fallback {
			case fallbackDeny:
				return "", nil, denied
			case fallbackSkip:
				return "", nil, unlimited
			}
			known.want(part{kind: identifyIP})
		}
	}
	if err := known.ask(gw); err != nil {
		return "", nil, noAnswer
	}
	if ids.own != nil {
		if own = ids.own.with(known); own == "" {
			return "", nil, noAnswer
		}
	}
	for i := range ids.others {
		id := ids.others[i].with(known)
		if id == "" {
			return "", nil, noAnswer
		}
		others = append(others, id)
	}
	return own, others, charged
}

// all walks the identities.
func (ids identities) all(yield func(*identity) bool) {
	if ids.own != nil && !yield(ids.own) {
		return
	}
	for i := range ids.others {
		if !yield(&ids.others[i]) {
			return
		}
	}
}

// with is the identity by what Kong has told, "" if it did not tell the address
// that stands in for a part.
func (id *identity) with(known told) quota.Identity {
	if id.fixed != "" {
		return id.fixed
	}
	values := make([]part, len(id.parts))
	for i, p := range id.parts {
		if p.value == "" {
			p.value = known.of(p)
		}
		if p.value == "" {
			p = part{kind: identifyIP}
			if p.value = known.of(p); p.value == "" {
				return ""
			}
		}
		values[i] = p
	}
	return compound(values)
}

// told are what was asked of Kong for a request.
type told struct {
	kinds     []string
	questions []pluginserver.Question
	asked     int // how many have answers
}

func (a *told) want(p part) {
	if slices.Contains(a.kinds, p.kind) {
		return
	}
	a.kinds = append(a.kinds, p.kind)
	a.questions = append(a.questions, pluginserver.Question{Method: methods[p.kind], Argument: p.header})
}

func (a *told) ask(gw gateway) error {
	if a.asked == len(a.questions) {
		return nil
	}
	err := gw.Ask(a.questions[a.asked:])
	a.asked = len(a.questions)
	return err
}

func (a *told) of(p part) string {
	if i := slices.Index(a.kinds, p.kind); i >= 0 {
		return a.questions[i].Answer
	}
	return ""
}

// methods of the PDK tell the parts.
var methods = map[string]string{
	identifyConsumer: getConsumer, identifyCredential: getCredential, identifyIP: getForwardedIP,
	identifyHeader: getHeader, identifyService: getService, identifyRoute: getRoute,
}

func compound(parts []part) quota.Identity {
	identities := make([]quota.Identity, len(parts))
	for i, p := range parts {
		identities[i] = quota.NewIdentity(p.kind, p.value)
	}
	return quota.Compound(identities...)
}
