package plugin

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"kong-quota/quota"
)

// answers builds what clients and upstreams see. What a decision does not change
// is written once, when the instance starts.
type answers struct {
	kong, ietf bool
	grpc       bool
	// names are those of Kong's headers for each limit, in the policy's order.
	names  []limitNames
	policy string // RateLimit-Policy

	errorCode    int
	message      []byte // the configured body of a refusal, nil for problem details
	unidentified refusal
	unavailable  refusal
}

type limitNames struct{ limit, remaining string }

// refusal is an answer that ends the request.
type refusal struct {
	status     int
	grpcStatus int
	title      string
	body       []byte
	headers    headers
}

// The names of the headers for the upstream.
const (
	upstreamState     = "X-Quota-State"
	upstreamLimit     = "X-Quota-Limit"
	upstreamRemaining = "X-Quota-Remaining"
	upstreamReset     = "X-Quota-Reset"
)

// noUpstreamHeaders removes what a client sent under the names for the upstream.
var noUpstreamHeaders = headers{
	{Name: upstreamState, Remove: true}, {Name: upstreamLimit, Remove: true},
	{Name: upstreamRemaining, Remove: true}, {Name: upstreamReset, Remove: true},
}

// The problem types of draft-ietf-httpapi-ratelimit-headers, for RFC 9457.
const (
	problemQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	problemReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// The status codes of gRPC that refusals use.
const (
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
)

func newAnswers(c Config, p *quota.Policy) answers {
	a := answers{
		kong:      c.Headers == headersKong || c.Headers == headersBoth,
		ietf:      c.Headers == headersIETF || c.Headers == headersBoth,
		grpc:      c.GRPC,
		policy:    policyField(p.Rules()),
		errorCode: c.ErrorCode,
		unidentified: newRefusal(http.StatusForbidden, grpcPermissionDenied, problem{
			Title: "The request has no identity to charge a quota to", Status: http.StatusForbidden,
		}),
		unavailable: newRefusal(http.StatusServiceUnavailable, grpcUnavailable, problem{
			Type: problemReducedCapacity, Title: "The quota cannot be checked at the moment", Status: http.StatusServiceUnavailable,
		}),
	}
	for _, period := range periods(p.Rules()) {
		a.names = append(a.names, limitNames{"X-RateLimit-Limit-" + period, "X-RateLimit-Remaining-" + period})
	}
	if c.ErrorMessage != "" {
		a.message = marshal(map[string]string{"message": c.ErrorMessage})
	}
	return a
}

// forClient gives the response headers of a request that passes.
func (a answers) forClient(d quota.Decision) headers {
	if !a.kong && !a.ietf {
		return nil
	}
	h := make(headers, 0, 6+2*len(d.Limits))
	strictest := d.Strictest()
	if a.kong {
		for i, s := range d.Limits {
			h = append(h, header{Name: a.names[i].limit, Value: number(s.Limit)}, header{Name: a.names[i].remaining, Value: number(s.Remaining)})
		}
		h = append(h, header{Name: "RateLimit-Limit", Value: number(strictest.Limit)},
			header{Name: "RateLimit-Remaining", Value: number(strictest.Remaining)},
			header{Name: "RateLimit-Reset", Value: number(seconds(strictest.Reset))})
	}
	if a.ietf {
		h = append(h, header{Name: "RateLimit-Policy", Value: a.policy},
			header{Name: "RateLimit", Value: `"` + strictest.Name + `";r=` + number(strictest.Remaining) + ";t=" + number(seconds(strictest.Next))})
	}
	return h
}

// forUpstream gives the request headers for the upstream, if there are to be
// any. What the decision does not say is removed, so that the upstream can trust
// what it gets.
func (a answers) forUpstream(d quota.Decision, wanted bool) headers {
	if !wanted {
		return nil
	}
	if d.State == quota.Unknown {
		h := slices.Clone(noUpstreamHeaders)
		h[0] = header{Name: upstreamState, Value: d.State.String()}
		return h
	}
	s := d.Strictest()
	return headers{
		{Name: upstreamState, Value: d.State.String()}, {Name: upstreamLimit, Value: number(s.Limit)},
		{Name: upstreamRemaining, Value: number(s.Remaining)}, {Name: upstreamReset, Value: number(seconds(s.Reset))},
	}
}

// overQuota gives the refusal of a request that is over a quota.
func (a answers) overQuota(d quota.Decision) refusal {
	var violated []string
	for _, s := range d.Limits {
		if s.Refused() {
			violated = append(violated, s.Name)
		}
	}
	r := newRefusal(a.errorCode, grpcResourceExhausted, problem{
		Type: problemQuotaExceeded, Title: "Request cannot be satisfied as assigned quota has been exceeded",
		Status: a.errorCode, Violated: violated,
	})
	if a.message != nil {
		r.body = a.message
		r.headers.set("Content-Type", "application/json; charset=utf-8")
	}
	r.headers = append(r.headers, a.forClient(d)...)
	if retry := d.RetryAfter(); (a.kong || a.ietf) && retry > 0 {
		r.headers.set("Retry-After", number(seconds(retry)))
	}
	return r
}

// problem is the body of a refusal by RFC 9457.
type problem struct {
	Type     string   `json:"type,omitempty"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
}

// newRefusal writes a refusal; no cache may keep it.
func newRefusal(status, grpcStatus int, p problem) refusal {
	return refusal{
		status: status, grpcStatus: grpcStatus, title: p.Title, body: marshal(p),
		headers: headers{{Name: "Content-Type", Value: "application/problem+json"}, {Name: "Cache-Control", Value: "no-store"}},
	}
}

// forGRPC turns the refusal into a trailers-only response of gRPC: HTTP status
// 200, no body, and the outcome in grpc-status and grpc-message.
func (r refusal) forGRPC() refusal {
	h := slices.Clone(r.headers)
	h.set("Content-Type", "application/grpc")
	h.set("grpc-status", number(int64(r.grpcStatus)))
	h.set("grpc-message", r.title)
	return refusal{status: http.StatusOK, headers: h}
}

func isGRPC(contentType string) bool {
	rest, found := strings.CutPrefix(strings.ToLower(contentType), "application/grpc")
	// application/grpc-web is spoken over plain HTTP.
	return found && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types above always have a JSON form
	}
	return text
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// seconds rounds up: who comes back after that long must not be too early.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// periods are what follows X-RateLimit-Limit- in Kong's headers: the window's
// unit as with Kong's own plugin or, where two limits would have the same, the
// limits' names.
func periods(rules []quota.Rule) []string {
	units, names := make([]string, len(rules)), make([]string, len(rules))
	for i, r := range rules {
		names[i] = capital(r.Limit.Name)
		units[i] = names[i]
		if unit := unitOf(r.Limit.Window); unit != "" {
			units[i] = capital(string(unit))
		}
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(units))); len(distinct) < len(units) {
		return names
	}
	return units
}

func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// unitOf is the unit that a window is one of, "" if it is none.
func unitOf(w quota.Window) quota.Unit {
	for _, unit := range quota.Units {
		if w.Unit == "" && w.Length == quota.PerUnit(unit).Nominal() {
			return unit
		}
	}
	return w.Unit
}

// policyField is RateLimit-Policy, which says the same in every response: how
// much each limit holds and, where that is a constant number of whole seconds, the
// time in which it comes back. A day of 23 or 25 hours is announced as one of 24,
// months and years without a time. Names have no character that a Structured
// Field would escape.
func policyField(rules []quota.Rule) string {
	items := make([]string, len(rules))
	for i, r := range rules {
		items[i] = fmt.Sprintf("%q;q=%d", r.Limit.Name, r.Capacity())
		// A burst comes back at the rate of limit per window.
		if w := float64(r.Capacity()) / float64(r.Limit.Limit) * r.Limit.Window.Nominal().Seconds(); w >= 1 && w == math.Trunc(w) {
			items[i] += fmt.Sprintf(";w=%.0f", w)
		}
	}
	return strings.Join(items, ", ")
}
