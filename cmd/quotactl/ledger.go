package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"kong-quota/internal/devkong/schema"
	"kong-quota/internal/kongconfig"
	"kong-quota/internal/settings"
	"kong-quota/plugin"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

// ledger is what the subcommands that look at counters work on.
type ledger struct {
	*kongconfig.Configuration
	settings settings.Settings
	all      []counted
	// byConsumer are numbers in all, by the id of the consumer whom the identities have
	// that are counted, and "" where they need have none. There may be as many
	// configurations as consumers.
	byConsumer map[string][]int

	mu     sync.Mutex
	stores map[redisstore.Connection]*redisstore.Store
}

// counted is a configuration of the plugin, and the counters that it makes.
type counted struct {
	kongconfig.Plugin
	plugin.Counters
}

// countersOf compiles a configuration for a process with the settings.
func countersOf(p kongconfig.Plugin, process settings.Settings) (counted, error) {
	instance, err := p.Instance()
	if err != nil {
		return counted{}, err
	}
	counters, err := plugin.ReadCounters(instance, process)
	return counted{p, counters}, err
}

// resolve puts the process' own user and password where the configuration refers to a
// vault, which only Kong can look into.
func resolve(p kongconfig.Plugin, process settings.Settings) {
	redis, _ := p.Config["redis"].(map[string]any)
	for name, own := range map[string]string{"username": process.RedisUsername, "password": process.RedisPassword} {
		if text, _ := redis[name].(string); schema.IsReference(text) {
			redis[name] = own
		}
	}
}

// where names the place at which the quota is counted.
func (c counted) where() string {
	switch c.Scope {
	case "route:" + c.Route.ID:
		return "route " + c.Route.String()
	case "service:" + c.Service.ID:
		return "service " + c.Service.String()
	case "global":
		return "everywhere"
	}
	return "scope " + c.Scope
}

func (l *ledger) add(c counted) {
	for _, part := range c.Parts {
		consumer := c.Consumer.ID
		if !slices.Contains(strings.Split(part.Identify(), "+"), "consumer") {
			consumer = ""
		}
		l.byConsumer[consumer] = append(l.byConsumer[consumer], len(l.all))
	}
	l.all = append(l.all, c)
}

// store connects to the Redis that a configuration counts in.
func (l *ledger) store(c counted) (*redisstore.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.stores[c.Redis]; s != nil {
		return s, nil
	}
	if l.settings.Store != "redis" {
		return nil, fmt.Errorf("QUOTA_STORE: %q: nobody else sees what the gateway has in its memory", l.settings.Store)
	}
	client, err := redisstore.Connect(c.Redis)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	l.stores[c.Redis] = redisstore.New(client, redisstore.WithNamespace(l.settings.Namespace))
	return l.stores[c.Redis], nil
}

func (l *ledger) identities(ctx context.Context, texts []string) ([]quota.Identity, error) {
	ids := make([]quota.Identity, len(texts))
	for i, text := range texts {
		var err error
		if ids[i], err = l.identity(ctx, text); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// identity reads who is meant: alice is a consumer by name, custom_id or id; anything
// else is kind:value, and a compound has pluses before the kinds that follow.
func (l *ledger) identity(ctx context.Context, text string) (quota.Identity, error) {
	var parts []quota.Identity
	for _, part := range compound(text) {
		kind, value, named := strings.Cut(part, ":")
		if !named {
			kind, value = "consumer", part
		}
		if !slices.Contains(plugin.IdentityKinds(), kind) {
			return "", fmt.Errorf("%q: %q is none of %s", text, kind, strings.Join(plugin.IdentityKinds(), ", "))
		}
		if value == "" {
			return "", fmt.Errorf("%q: say which %s", text, kind)
		}
		switch kind {
		case "consumer":
			found, err := l.Consumer(ctx, value)
			if err != nil {
				return "", err
			}
			if found.ID == "" {
				return "", fmt.Errorf("consumer %q: only the running Kong knows the id of one without a username: use --admin", value)
			}
			value = found.ID
		case "service", "route":
			for _, c := range l.all {
				if e := map[string]kongconfig.Entity{"service": c.Service, "route": c.Route}[kind]; e.Is(value) {
					value = e.ID
				}
			}
		}
		parts = append(parts, quota.NewIdentity(kind, value))
	}
	return quota.Compound(parts...), nil
}

// compound takes an identity apart where a plus comes before a kind; other pluses, as
// of phone numbers, are of the value.
func compound(text string) (parts []string) {
	for piece := range strings.SplitSeq(text, "+") {
		kind, _, named := strings.Cut(piece, ":")
		if len(parts) > 0 && (!named || !slices.Contains(plugin.IdentityKinds(), kind)) {
			parts[len(parts)-1] += "+" + piece
		} else {
			parts = append(parts, piece)
		}
	}
	return parts
}

// name writes identities for people: consumers, services and routes by name.
func (l *ledger) name(ctx context.Context, rows []row) {
	known := map[string]string{}
	for _, c := range l.all {
		known["service:"+c.Service.ID], known["route:"+c.Route.ID] = "service:"+c.Service.String(), "route:"+c.Route.String()
	}
	for i := range rows {
		parts := strings.Split(rows[i].Identity, "+")
		for j, part := range parts {
			consumer, is := strings.CutPrefix(part, "consumer:")
			if _, there := known[part]; is && !there {
				known[part] = part
				if found, err := l.Consumer(ctx, consumer); err == nil && found.Name != "" {
					known[part] = found.Name
				}
			}
			if name := known[part]; name != "" {
				parts[j] = name
			}
		}
		rows[i].Who = strings.Join(parts, "+")
	}
}

// counter is a limit's counter of an identity.
type counter struct {
	counted
	part plugin.Part
	id   quota.Identity
}

// of gives the counters of an identity: those of a consumer's own configuration
// instead of the general ones at the same place, and none twice.
func (l *ledger) of(id quota.Identity) (counters []counter) {
	type place struct{ service, route string }
	shadowed := map[place]bool{}
	candidates := slices.Clone(l.byConsumer[""])
	for part := range strings.SplitSeq(string(id), "+") {
		consumer, is := strings.CutPrefix(part, "consumer:")
		if !is {
			continue
		}
		for _, i := range l.byConsumer[consumer] {
			candidates = append(candidates, i)
			shadowed[place{l.all[i].Service.ID, l.all[i].Route.ID}] = true
		}
	}
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	type key struct {
		redis redisstore.Connection
		scope string
		names string
	}
	seen := map[key]bool{}
	for _, i := range candidates {
		c := l.all[i]
		if c.Consumer.ID == "" && shadowed[place{c.Service.ID, c.Route.ID}] {
			continue
		}
		for _, part := range c.Parts {
			if !part.Counts(id) {
				continue
			}
			k := key{c.Redis, c.Scope, ""}
			for _, rule := range part.Policy.Rules() {
				k.names += " " + rule.Limit.Name
			}
			if !seen[k] {
				seen[k] = true
				counters = append(counters, counter{c, part, id})
			}
		}
	}
	return counters
}

// limits keeps those of the names, all if there are none. It is nil if none is left.
func (c counter) limits(names []string) *quota.Policy {
	if len(names) == 0 {
		return c.part.Policy
	}
	return c.part.Policy.Only(names...)
}
