// Package quota decides whether a request may pass the limits of its policy.
//
// A [Limit] says how much is allowed per [Window]. A [Policy] is the limits
// that hold together: all pass and all are charged, or none is. [Policy.Decide]
// is that rule as a pure function, counters + now + cost → decision; it knows
// neither Redis nor a clock. A [Store] keeps the counters and applies the rule
// atomically: quota/redisstore with the Lua scripts in lua/, quota/memstore
// with this package's own functions. A [Limiter] is a store, a scope and a
// policy behind the verbs Spend, Peek and Reset.
//
// Amounts are integers. Time is microseconds since the Unix epoch inside the
// algorithms and time.Time or time.Duration at the surface.
package quota
