package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"kong-quota/internal/pluginserver"
	"kong-quota/quota"
)

// Instance is one configuration, compiled once when Kong starts it. All that
// does not depend on the request is decided here.
type Instance struct {
	plugin  *Plugin
	log     func(msg string, args ...any)
	ids     identities
	scope   string
	policy  *quota.Policy
	store   quota.Store
	answers answers

	annotate        bool // let through what is over quota
	upstreamHeaders bool
	denyOnError     bool

	// oneService says that all requests go to the same service; its protocol is
	// looked up when it is needed.
	oneService bool
	protocol   atomic.Pointer[protocol]
}

// Start compiles the configuration that Kong starts an instance with. The error
// joins every problem.
func (p *Plugin) Start(config []byte) (*Instance, error) {
	i := &Instance{plugin: p}
	c, where, policy, err := readConfig(config)
	if err == nil {
		err = i.compile(c, where, policy)
	}
	if err != nil {
		p.log.Error("instance refused", "plugin", Name, "error", err)
		return nil, err
	}
	return i, nil
}

// readConfig decodes a configuration and checks it. The error joins every problem.
func readConfig(data []byte) (Config, placement, *quota.Policy, error) {
	c, where, problems, err := decodeConfig(data)
	if err != nil {
		return Config{}, placement{}, nil, err
	}
	policy, err := c.policy()
	return c, where, policy, errors.Join(slices.Concat(problems, c.check(), []error{err})...)
}

func (i *Instance) compile(c Config, where placement, policy *quota.Policy) error {
	store, err := i.plugin.stores.forInstance(c.Redis)
	if err != nil {
		return err
	}
	i.policy = policy
	i.store = i.plugin.waiters.Shape(measured{store, time.Duration(c.Timeout) * time.Millisecond, i.plugin.metrics})
	i.ids = newIdentities(c, policy, where)
	i.scope = c.scope(where)
	i.answers = newAnswers(c, policy)
	i.annotate = c.Mode == modeAnnotate
	i.upstreamHeaders = c.UpstreamHeaders
	i.denyOnError = c.OnError == onErrorDeny
	i.oneService = where.ServiceID != "" || where.RouteID != ""
	i.plugin.await(time.Duration(c.Timeout)*time.Millisecond, policy)
	log := i.plugin.log.With("plugin_id", where.PluginID)
	i.log = log.Error
	return nil
}

// await notes how long requests of a policy may take.
func (p *Plugin) await(timeout time.Duration, policy *quota.Policy) {
	longest := timeout
	for _, rule := range policy.Rules() {
		longest = max(longest, timeout+rule.Limit.MaxDelay)
	}
	for {
		known := p.patience.Load()
		if int64(longest) <= known || p.patience.CompareAndSwap(known, int64(longest)) {
			return
		}
	}
}

// Access is the access phase of one request.
func (i *Instance) Access(e *pluginserver.Event) { i.access(e.Context(), e) }

// Close has nothing to close: connections to Redis outlive the instances.
func (i *Instance) Close() {}

// scope is where the quotas are counted.
func (c Config) scope(where placement) string {
	if c.Scope != "" {
		return c.Scope
	}
	return where.scope()
}

func (c Config) policy() (*quota.Policy, error) {
	limits := make([]quota.Limit, len(c.Limits))
	for n, l := range c.Limits {
		window, _ := quota.ParseWindow(l.Window) // NewPolicy reports a bad one among the other problems
		limits[n] = quota.Limit{
			Name: l.Name, Algorithm: quota.Algorithm(l.Algorithm), Limit: l.Limit, Window: window, Burst: l.Burst, Buckets: l.Buckets,
			Lease: l.Lease.lease(), MaxDelay: l.maxDelay(), Identity: role(c, l.Identify),
			Align: quota.Align(l.Align), Timezone: l.Timezone, WeekStart: l.WeekStart, DayOfMonth: l.DayOfMonth,
		}
	}
	return quota.NewPolicy(limits...)
}

// check finds what the schema lets through, and what it would have caught where
// somebody else than Kong starts the instance.
func (c Config) check() []error {
	var problems []error
	refuse := func(name string, value any, rule string) {
		problems = append(problems, &quota.FieldError{Field: name, Value: value, Rule: rule})
	}
	word := func(name, value string, words ...string) {
		if !slices.Contains(words, value) {
			refuse(name, value, "must be one of "+strings.Join(words, ", "))
		}
	}
	identify := func(path string, kinds []string) {
		for n, kind := range kinds {
			name := fmt.Sprintf("%s[%d]", path, n+1)
			word(name, kind, identifyWords...)
			if slices.Index(kinds, kind) < n {
				refuse(name, kind, "is there already; each part counts once")
			}
		}
	}
	identify("identify", c.Identify)
	named := slices.Contains(c.Identify, identifyHeader)
	for n, l := range c.Limits {
		path := fmt.Sprintf("limits[%d].", n+1)
		identify(path+"identify", l.Identify)
		named = named || slices.Contains(l.Identify, identifyHeader)
		word(path+"on_limit", l.OnLimit, "", onLimitRefuse, onLimitDelay)
		if l.Lease != (LeaseConfig{}) {
			if duration(l.Lease.MaxAge) == 0 {
				refuse(path+"lease.max_age", l.Lease.MaxAge, "must be a duration such as 500ms or 10s")
			}
		}
		switch {
		case l.OnLimit == onLimitDelay && l.MaxDelay == "":
			refuse(path+"max_delay", "", "must be set where on_limit is delay")
		case l.OnLimit != onLimitDelay && l.MaxDelay != "":
			refuse(path+"max_delay", l.MaxDelay, "has no effect: on_limit is not delay")
		case l.MaxDelay != "" && duration(l.MaxDelay) == 0:
			refuse(path+"max_delay", l.MaxDelay, "must be a duration such as 500ms or 2s")
		}
	}
	switch {
	case len(c.Identify) == 0:
		refuse("identify", "[]", "must name who is charged")
	case named && c.HeaderName == "":
		refuse("header_name", "", "must be set where identify has header")
	case !named && c.HeaderName != "":
		refuse("header_name", c.HeaderName, "has no effect: identify does not have header")
	}
	word("fallback", c.Fallback, fallbackIP, fallbackDeny, fallbackSkip)
	word("mode", c.Mode, modeEnforce, modeAnnotate)
	word("headers", c.Headers, headersKong, headersIETF, headersBoth, headersOff)
	word("on_error", c.OnError, onErrorAllow, onErrorDeny)
	if c.ErrorCode < 400 || c.ErrorCode > 599 {
		refuse("error_code", c.ErrorCode, "must be between 400 and 599")
	}
	if c.Timeout < 1 || c.Timeout > 60000 {
		refuse("timeout", c.Timeout, "must be between 1 and 60000 milliseconds")
	}
	problems = append(problems, c.Redis.check()...)
	return problems
}

func (l LeaseConfig) lease() quota.Lease {
	return quota.Lease{Share: l.Share, MaxAge: duration(l.MaxAge)}
}

// maxDelay is 0 for a limit that refuses; check reports a bad one.
func (l LimitConfig) maxDelay() time.Duration {
	if l.OnLimit != onLimitDelay {
		return 0
	}
	return duration(l.MaxDelay)
}

// duration is that of a text such as 500ms, 0 of any that is none; check reports it.
func duration(text string) time.Duration {
	window, _ := quota.ParseWindow(text)
	return window.Length
}

func (c RedisConfig) check() []error {
	var problems []error
	refuse := func(name string, value any, rule string) {
		problems = append(problems, &quota.FieldError{Field: "redis." + name, Value: value, Rule: rule})
	}
	switch {
	case c.Host != "" && (c.Port < 1 || c.Port > 65535):
		refuse("port", c.Port, "must be between 1 and 65535 where a host is set")
	case c.Host == "" && c.Port != 0:
		refuse("port", c.Port, "has no effect without a host")
	}
	if c.Username != "" && c.Password == "" {
		refuse("username", c.Username, "needs a password")
	}
	if c.Host == "" && c.SSL {
		refuse("ssl", c.SSL, "has no effect without a host")
	}
	if c.ServerName != "" && !c.SSL {
		refuse("server_name", c.ServerName, "has no effect without ssl")
	}
	if c.Database != nil && *c.Database < 0 {
		refuse("database", *c.Database, "must not be negative")
	}
	return problems
}
