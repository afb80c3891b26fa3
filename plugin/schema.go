package plugin

import (
	"encoding/json"
	"path"

	"kong-quota/quota"
)

// attributes are those of a field in Kong's schema language. Kong refuses to
// start on an attribute that it does not know, on a description of less than 10
// characters, and on a default that the field itself would refuse.
type attributes map[string]any

// field is a named field, the way records list them.
func field(name string, a attributes) attributes { return attributes{name: a} }

func oneOf[T ~string](values ...T) []T { return values }

// check is one of Kong's entity checks: when the first field matches, the second
// must match too, or the rule is told.
func check(ifField string, ifMatch attributes, thenField string, thenMatch attributes, rule string) attributes {
	return attributes{"conditional": attributes{
		"if_field": ifField, "if_match": ifMatch, "then_field": thenField, "then_match": thenMatch, "then_err": rule,
	}}
}

// isSet matches a field that has a value. Anything but required and eq would
// match a null too.
var isSet = attributes{"required": true}

// Patterns are Lua's. What they let through is checked again in full when the
// instance starts.
const (
	limitNamePattern = "^[a-z0-9_-]+$"
	scopePattern     = "^[A-Za-z0-9._:@-]+$"
	headerPattern    = "^[A-Za-z0-9_-]+$"
	windowPattern    = "^[0-9a-z]+$"
)

// Schema describes the configuration in Kong's schema language, which Kong
// enforces wherever a configuration enters: Admin API, declarative files, and
// its Ingress Controller. Bounds and defaults are those of package quota and of
// Defaults.
func Schema() attributes {
	return attributes{
		"name": Name,
		"fields": []attributes{
			field("config", configRecord()),
		},
	}
}

func configRecord() attributes {
	return attributes{
		"type": "record", "required": true,
		"fields": []attributes{
			field("identify", attributes{
				"type": "array", "required": true, "default": Defaults.Identify, "len_min": 1, "len_max": 4,
				"elements":    attributes{"type": "string", "one_of": identifyWords},
				"description": "Who is charged. Several together make a compound: each combination has a quota of its own.",
			}),
			field("header_name", attributes{
				"type": "string", "len_max": 128, "match": headerPattern, "err": "must be the name of a header, up to 128 letters, digits, - and _",
				"description": "The request header whose value is charged. Required where identify has header.",
			}),
			field("fallback", attributes{
				"type": "string", "required": true, "default": Defaults.Fallback, "one_of": oneOf(fallbackIP, fallbackDeny, fallbackSkip),
				"description": "What stands in for an identity that the request does not have: the client's forwarded IP address, a refusal with status 403, or no limits at all.",
			}),
			field("scope", attributes{
				"type": "string", "len_max": 128, "match": scopePattern, "err": "must be up to 128 letters, digits and . _ : @ -",
				"description": "Where the quota is counted. Equal scopes share their counters. Without it the route, the service or the whole gateway, whichever the plugin is configured on.",
			}),
			field("limits", attributes{
				"type": "array", "len_min": 1, "len_max": quota.MaxLimits,
				"elements":    limitRecord(),
				"description": "The limits that hold together: a request passes if all have room for it, and is then charged to all.",
			}),
			field("mode", attributes{
				"type": "string", "required": true, "default": Defaults.Mode, "one_of": oneOf(modeEnforce, modeAnnotate),
				"description": "enforce refuses what is over quota; annotate lets it through with X-Quota-State: over_quota for the upstream.",
			}),
			field("headers", attributes{
				"type": "string", "required": true, "default": Defaults.Headers, "one_of": oneOf(headersKong, headersIETF, headersBoth, headersOff),
				"description": "The response headers for the client: Kong's (X-RateLimit-*, RateLimit-*), those of the IETF draft (RateLimit-Policy, RateLimit), both, or none, not even Retry-After.",
			}),
			field("upstream_headers", attributes{
				"type": "boolean", "required": true, "default": Defaults.UpstreamHeaders,
				"description": "Tell the upstream the decision in X-Quota-State, X-Quota-Limit, X-Quota-Remaining and X-Quota-Reset, and remove what the client sent under these names.",
			}),
			field("error_code", attributes{
				"type": "integer", "required": true, "default": Defaults.ErrorCode, "between": []int{400, 599},
				"description": "The HTTP status of a refusal.",
			}),
			field("error_message", attributes{
				"type": "string", "len_max": 1024,
				"description": "The message of a refusal, sent as Kong's own plugins do, {\"message\": ...}. Without it the body is RFC 9457 problem details.",
			}),
			field("grpc", attributes{
				"type": "boolean", "required": true, "default": Defaults.GRPC,
				"description": "Refuse gRPC requests in gRPC's way, with grpc-status RESOURCE_EXHAUSTED. Where the plugin is not configured on a service or a route, that costs a refusal one question to Kong; switch it off where no gRPC is served.",
			}),
			field("on_error", attributes{
				"type": "string", "required": true, "default": Defaults.OnError, "one_of": oneOf(onErrorAllow, onErrorDeny),
				"description": "What happens when Redis gives no answer: allow lets the request pass with X-Quota-State: unknown for the upstream; deny answers 503.",
			}),
			field("timeout", attributes{
				"type": "integer", "required": true, "default": Defaults.Timeout, "between": []int{1, 60000},
				"description": "How long to wait for Redis in milliseconds, all retries included.",
			}),
			field("redis", redisRecord()),
		},
		"entity_checks": []attributes{
			{"at_least_one_of": []string{"limits"}},
			check("identify", attributes{"contains": identifyHeader}, "header_name", attributes{"required": true}, "header_name must be set where identify has header"),
		},
	}
}

func limitRecord() attributes {
	return attributes{
		"type": "record",
		"fields": []attributes{
			field("name", attributes{
				"type": "string", "required": true, "len_max": 32, "match": limitNamePattern, "err": quota.NameRule,
				"description": "The limit's name in headers, keys and metrics. What was used is kept under it.",
			}),
			field("algorithm", attributes{
				"type": "string", "required": true, "default": quota.FixedWindow, "one_of": quota.Algorithms,
				"description": "How the limit counts: fixed_window gives the quota back when the window ends; sliding_window and sliding_log bit by bit, approximately in constant memory or exactly; leaky_bucket, token_bucket and gcra at an even rate, with bursts.",
			}),
			field("limit", attributes{
				"type": "integer", "required": true, "between": []int64{1, quota.MaxLimit},
				"description": "How much is allowed per window.",
			}),
			field("window", attributes{
				"type": "string", "required": true, "len_max": 32, "match": windowPattern, "err": quota.WindowRule,
				"description": "How long the limit counts: second, minute, hour, day, week, month, year, or a duration such as 90s, 15m, 1h30m or 30d.",
			}),
			field("burst", attributes{
				"type": "integer", "between": []int64{1, quota.MaxLimit},
				"description": "How much passes at once after a rest, with leaky_bucket, token_bucket and gcra. The limit without it.",
			}),
			field("buckets", attributes{
				"type": "integer", "between": []int{1, quota.MaxBuckets},
				"description": "Into how many buckets a sliding_window is divided; more are more exact. 10 without it.",
			}),
			field("lease", attributes{
				"type": "record", "required": false,
				"description": "Let each node take a part of the quota from Redis in advance and spend it without asking. Never admits more than the limit, but a quota may look used up while another node holds some. Only with fixed_window, and where every limit has one.",
				"fields": []attributes{
					field("share", attributes{"type": "number", "required": true, "gt": 0, "between": []int{0, 1}, "description": "The share of what remains that a node takes at a time, above 0 up to 1."}),
					field("max_age", attributes{
						"type": "string", "required": true, "len_max": 32, "match": windowPattern, "err": "must be a duration such as 500ms or 10s",
						"description": "When what is not spent goes back, such as 500ms or 10s: 10ms to 1h.",
					}),
				},
			}),
			field("on_limit", attributes{
				"type": "string", "required": true, "default": onLimitRefuse, "one_of": oneOf(onLimitRefuse, onLimitDelay),
				"description": "What happens to a request that is over the limit: refuse; or, with leaky_bucket, token_bucket and gcra, delay: it waits for its turn, up to max_delay.",
			}),
			field("max_delay", attributes{
				"type": "string", "len_max": 32, "match": windowPattern, "err": "must be a duration such as 500ms or 2s",
				"description": "The longest that a request waits, such as 500ms or 2s, at most 30s. What would have to wait longer is refused.",
			}),
			field("identify", attributes{
				"type": "array", "len_min": 1, "len_max": 4, "elements": attributes{"type": "string", "one_of": identifyWords},
				"description": "Who this limit counts, where that is another than the plugin's identify: a service's second, say, beside each consumer's day.",
			}),
			field("align", attributes{
				"type": "string", "required": true, "default": quota.FirstRequest, "one_of": quota.Aligns,
				"description": "Where a window begins: first_request, with the first charge after the last one ended; or calendar, at the boundary of the unit in the timezone.",
			}),
			field("timezone", attributes{
				"type": "string", "len_max": 64,
				"description": "The IANA name of the timezone whose calendar counts, such as Asia/Shanghai. UTC without it.",
			}),
			field("week_start", attributes{
				"type": "string", "one_of": quota.Weekdays,
				"description": "The day on which a calendar week begins. Monday without it.",
			}),
			field("day_of_month", attributes{
				"type": "integer", "between": []int{1, 31},
				"description": "The day on which a calendar month begins, for billing cycles; in a shorter month its last day. The 1st without it.",
			}),
		},
		"entity_checks": []attributes{
			check("burst", isSet, "algorithm", attributes{"one_of": oneOf(quota.LeakyBucket, quota.TokenBucket, quota.GCRA)}, "burst needs algorithm leaky_bucket, token_bucket or gcra"),
			check("buckets", isSet, "algorithm", attributes{"eq": quota.SlidingWindow}, "buckets needs algorithm sliding_window"),
			check("on_limit", attributes{"eq": onLimitDelay}, "max_delay", attributes{"required": true}, "max_delay must be set where on_limit is delay"),
			check("on_limit", attributes{"eq": onLimitDelay}, "algorithm", attributes{"one_of": oneOf(quota.LeakyBucket, quota.TokenBucket, quota.GCRA)}, "on_limit delay needs algorithm leaky_bucket, token_bucket or gcra"),
			check("max_delay", isSet, "on_limit", attributes{"eq": onLimitDelay}, "max_delay needs on_limit delay"),
			check("align", attributes{"eq": quota.Calendar}, "algorithm", attributes{"eq": quota.FixedWindow}, "align calendar needs algorithm fixed_window"),
			check("timezone", isSet, "algorithm", attributes{"eq": quota.FixedWindow}, "timezone needs algorithm fixed_window"),
			check("timezone", isSet, "window", attributes{"one_of": quota.Units}, "timezone needs a calendar unit as window: a duration is the same everywhere"),
			check("week_start", isSet, "window", attributes{"eq": quota.Week}, "week_start needs window week"),
			check("week_start", isSet, "align", attributes{"eq": quota.Calendar}, "week_start needs align calendar"),
			check("day_of_month", isSet, "window", attributes{"eq": quota.Month}, "day_of_month needs window month"),
			check("day_of_month", isSet, "align", attributes{"eq": quota.Calendar}, "day_of_month needs align calendar"),
		},
	}
}

func redisRecord() attributes {
	return attributes{
		"type": "record", "required": true,
		"description": "Another Redis than the process' own. With a host it stands for itself: address, user, password, database and TLS are these and no others. Without a host, what is set replaces the process' setting.",
		"fields": []attributes{
			field("host", attributes{"type": "string", "description": "The host name or address of the Redis server."}),
			field("port", attributes{"type": "integer", "between": []int{1, 65535}, "description": "The TCP port of the Redis server."}),
			field("username", attributes{"type": "string", "referenceable": true, "description": "The ACL user; without it Redis' default user."}),
			field("password", attributes{"type": "string", "referenceable": true, "encrypted": true, "description": "The password of the user, or a vault reference to it."}),
			field("database", attributes{"type": "integer", "between": []int{0, 1 << 20}, "description": "The number of the database."}),
			field("ssl", attributes{"type": "boolean", "required": true, "default": Defaults.Redis.SSL, "description": "Connect to this host with TLS."}),
			field("ssl_verify", attributes{"type": "boolean", "required": true, "default": Defaults.Redis.SSLVerify, "description": "Verify the server's certificate, against the authorities of the process."}),
			field("server_name", attributes{"type": "string", "description": "The name to verify in the server's certificate; without it the host."}),
		},
		"entity_checks": []attributes{
			{"mutually_required": []string{"host", "port"}},
			check("username", isSet, "password", attributes{"required": true}, "redis.username needs a password"),
			check("server_name", isSet, "ssl", attributes{"eq": true}, "redis.server_name needs ssl"),
			check("ssl", attributes{"eq": true}, "host", attributes{"required": true}, "redis.ssl needs a host"),
		},
	}
}

// Socket is where Kong looks for the plugin server.
func Socket(name, prefix string) string { return path.Join(prefix, name+".socket") }

// Dump is what Kong's query command prints. prefix is Kong's, where the socket
// is; name is the base name of the executable, by which Kong knows the plugin.
func Dump(name, prefix string) ([]byte, error) {
	type plugin struct {
		Name     string
		Phases   []string
		Version  string
		Priority int
		Schema   attributes
	}
	schema := Schema()
	schema["name"] = name
	return json.Marshal(struct {
		Protocol   string
		SocketPath string
		Plugins    []plugin
	}{
		"ProtoBuf:1",
		Socket(name, prefix),
		[]plugin{{name, []string{"access"}, Version, Priority, schema}},
	})
}
