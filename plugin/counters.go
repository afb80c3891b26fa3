package plugin

import (
	"slices"
	"strings"

	"kong-quota/internal/settings"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

// Counters are what a configuration counts and where: for tools that check
// configurations, or that look at counters and change them.
type Counters struct {
	Scope  string
	Redis  redisstore.Connection
	Policy *quota.Policy
	// Parts are the limits by the identity that they count, in the order of
	// Policy.Parts.
	Parts []Part
}

// Part is what a configuration counts of one identity.
type Part struct {
	quota.Part
	// Fixed is the identity where the configuration says it all: that of a service,
	// say. Otherwise it is "", and each request has its own.
	Fixed quota.Identity
	kinds []string
	// orIP: the address stands in for what a request does not have.
	orIP bool
}

// ReadCounters reads the JSON that Kong starts an instance with, for a process with
// these settings. The error joins every problem; each is a *quota.FieldError, or
// tells of a field that there is none.
func ReadCounters(config []byte, process settings.Settings) (Counters, error) {
	c, where, policy, err := readConfig(config)
	if err != nil {
		return Counters{}, err
	}
	all := Counters{Scope: c.scope(where), Policy: policy}
	if all.Redis, err = connection(process, c.Redis); err != nil {
		return Counters{}, err
	}
	ids := newIdentities(c, policy, where)
	for _, part := range policy.Parts() {
		id := ids.own
		if part.Identity > 0 {
			id = &ids.others[part.Identity-1]
		}
		own := Part{Part: part, Fixed: id.fixed, orIP: id.fallback == fallbackIP}
		for _, p := range id.parts {
			own.kinds = append(own.kinds, p.kind)
		}
		all.Parts = append(all.Parts, own)
	}
	return all, nil
}

// Identify are the kinds that make the identity.
func (p Part) Identify() string { return strings.Join(p.kinds, "+") }

// Counts reports whether the limits count such an identity.
func (p Part) Counts(id quota.Identity) bool {
	if p.Fixed != "" {
		return id == p.Fixed
	}
	parts := strings.Split(string(id), "+")
	return len(parts) == len(p.kinds) && !slices.ContainsFunc(p.kinds, func(kind string) bool {
		has, _, _ := strings.Cut(parts[slices.Index(p.kinds, kind)], ":")
		return has != kind && (has != identifyIP || !p.orIP)
	})
}

// IdentityKinds are what identify may name.
func IdentityKinds() []string { return slices.Clone(identifyWords) }
