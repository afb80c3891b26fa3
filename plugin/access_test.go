package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kong-quota/internal/pluginserver"
	"kong-quota/internal/settings"
	"kong-quota/quota"
)

// newPlugin is a process that keeps its counters in memory.
func newPlugin(t testing.TB) *Plugin {
	t.Helper()
	p, err := New(settings.Settings{Store: "memory", MemoryEntries: 1000, Namespace: "quota", MaxWaiters: 10}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func start(t testing.TB, p *Plugin, config string) *Instance {
	t.Helper()
	instance, err := p.Start([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return instance
}

// request is a gateway that knows the answers and writes down the calls.
type request struct {
	consumer, credential, ip string
	service, route, protocol string
	header                   map[string]string
	broken                   bool // every call fails

	calls    []string
	response fields
	upstream fields
	exit     *exited
}

// fields are headers by name; a removed one has no values.
type fields map[string][]string

func fieldsOf(list []header) fields {
	all := fields{}
	for _, h := range list {
		if h.Remove {
			all[h.Name] = []string{}
		} else {
			all[h.Name] = append(all[h.Name], h.Value)
		}
	}
	return all
}

type exited struct {
	status  int
	body    []byte
	headers fields
}

var errBroken = errors.New("the connection is closed")

func (r *request) Ask(questions []pluginserver.Question) error {
	for i := range questions {
		q := &questions[i]
		name, answer := "", ""
		switch q.Method {
		case getConsumer:
			name, answer = "consumer", r.consumer
		case getCredential:
			name, answer = "credential", r.credential
		case getForwardedIP:
			name, answer = "ip", r.ip
		case getService:
			if name, answer = "service", r.service; q.Field == serviceProtocol {
				name, answer = "protocol", r.protocol
			}
		case getRoute:
			name, answer = "route", r.route
		case getHeader:
			name, answer = "header "+q.Argument, r.header[q.Argument]
		}
		r.calls = append(r.calls, name)
		q.Answer = answer
	}
	if r.broken {
		return errBroken
	}
	return nil
}

func (r *request) SetHeaders(method string, h []header) {
	switch method {
	case setResponseHeaders:
		r.calls, r.response = append(r.calls, "response"), fieldsOf(h)
	case setUpstreamHeaders:
		r.calls, r.upstream = append(r.calls, "upstream"), fieldsOf(h)
	}
}

func (r *request) Exit(status int, body []byte, h []header) {
	r.calls = append(r.calls, "exit")
	r.exit = &exited{status, body, fieldsOf(h)}
}

const oneADay = `"limits":[{"name":"daily","limit":1,"window":"day"}]`

// Budget: three calls for a request that passes, none of them to learn the
// consumer of a consumer's own instance.
func TestCallsToKong(t *testing.T) {
	for name, c := range map[string]struct {
		config  string
		request request
		pass    string // the calls of the first request
		refuse  string // the calls of the second
	}{
		"consumer's own instance": {`{"consumer_id":"a",` + oneADay + `}`, request{}, "response", "header content-type, exit"},
		"without headers":         {`{"consumer_id":"a","headers":"off",` + oneADay + `}`, request{}, "", "header content-type, exit"},
		"without gRPC":            {`{"consumer_id":"a","grpc":false,` + oneADay + `}`, request{}, "response", "exit"},
		"both kinds of headers":   {`{"consumer_id":"a","upstream_headers":true,` + oneADay + `}`, request{}, "response, upstream", "header content-type, exit"},
		"service":                 {`{"service_id":"s",` + oneADay + `}`, request{consumer: "a"}, "consumer, response", "consumer, header content-type, protocol, exit"},
		"service, both headers":   {`{"upstream_headers":true,` + oneADay + `}`, request{consumer: "a"}, "consumer, response, upstream", "consumer, header content-type, exit"},
		"anonymous":               {`{` + oneADay + `}`, request{ip: "10.0.0.1"}, "consumer, ip, response", "consumer, ip, header content-type, exit"},
		"anonymous, without gRPC": {`{"grpc":false,` + oneADay + `}`, request{ip: "10.0.0.1"}, "consumer, ip, response", "consumer, ip, exit"},
		"ip":                      {`{"identify":["ip"],` + oneADay + `}`, request{ip: "10.0.0.1"}, "ip, response", "ip, header content-type, exit"},
		"credential":              {`{"identify":["credential"],` + oneADay + `}`, request{credential: "k"}, "credential, response", "credential, header content-type, exit"},
		"header":                  {`{"identify":["header"],"header_name":"x-phone",` + oneADay + `}`, request{header: map[string]string{"x-phone": "1"}}, "header x-phone, response", "header x-phone, header content-type, exit"},
		"compound": {`{"identify":["consumer","header"],"header_name":"x-phone",` + oneADay + `}`,
			request{consumer: "a", header: map[string]string{"x-phone": "1"}}, "consumer, header x-phone, response", "consumer, header x-phone, header content-type, exit"},
		"consumer's own compound": {`{"consumer_id":"a","identify":["consumer","ip"],` + oneADay + `}`, request{ip: "10.0.0.1"}, "ip, response", "ip, header content-type, exit"},
		"fallback skip":           {`{"fallback":"skip",` + oneADay + `}`, request{}, "consumer", "consumer"},
		"fallback skip, headers":  {`{"fallback":"skip","upstream_headers":true,` + oneADay + `}`, request{}, "consumer, upstream", "consumer, upstream"},
		"fallback deny":           {`{"fallback":"deny",` + oneADay + `}`, request{}, "consumer, header content-type, exit", "consumer, header content-type, exit"},
		"a limit of the service": {`{"service_id":"s","limits":[{"name":"daily","limit":1,"window":"day"},{"name":"all","limit":9,"window":"second","identify":["service"]}]}`,
			request{consumer: "a"}, "consumer, response", "consumer, header content-type, protocol, exit"},
		"a limit of the service, placed globally": {`{"limits":[{"name":"daily","limit":1,"window":"day"},{"name":"all","limit":9,"window":"second","identify":["service","consumer"]}]}`,
			request{consumer: "a", service: "s"}, "consumer, service, response", "consumer, service, header content-type, exit"},
		"only limits of others": {`{"limits":[{"name":"daily","limit":1,"window":"day","identify":["global"]}]}`,
			request{consumer: "a"}, "response", "header content-type, exit"},
		"two fallbacks": {`{"identify":["consumer","credential"],` + oneADay + `}`, request{ip: "10.0.0.1"}, "consumer, credential, ip, response", "consumer, credential, ip, header content-type, exit"},
		"annotate":      {`{"consumer_id":"a","mode":"annotate",` + oneADay + `}`, request{}, "response", "response, upstream"},
	} {
		t.Run(name, func(t *testing.T) {
			instance := start(t, newPlugin(t), c.config)
			for _, want := range []string{c.pass, c.refuse} {
				r := c.request
				instance.access(context.Background(), &r)
				if got := strings.Join(r.calls, ", "); got != want {
					t.Errorf("calls %q, want %q", got, want)
				}
			}
		})
	}
}

// Of a service whose protocol is known, HTTP is refused with one call.
func TestCallsOfRefusals(t *testing.T) {
	for protocol, want := range map[string][]string{
		"https": {"header content-type, protocol, exit", "exit", "exit"},
		"grpc":  {"header content-type, protocol, exit", "header content-type, exit", "header content-type, exit"},
		"":      {"header content-type, protocol, exit", "header content-type, protocol, exit"},
	} {
		for _, placed := range []string{`"service_id":"s"`, `"route_id":"r"`} {
			synctest.Test(t, func(t *testing.T) {
				instance := start(t, newPlugin(t), `{"consumer_id":"a",`+placed+`,`+oneADay+`}`)
				instance.access(t.Context(), &request{})
				refuse := func(want string) {
					t.Helper()
					r := request{protocol: protocol}
					if instance.access(t.Context(), &r); strings.Join(r.calls, ", ") != want {
						t.Errorf("%s, %s: calls %q, want %q", placed, protocol, r.calls, want)
					}
				}
				for _, calls := range want {
					refuse(calls)
				}
				time.Sleep(protocolAge)
				refuse(want[0])
			})
		}
	}
}

func TestWhoIsCharged(t *testing.T) {
	for name, c := range map[string]struct {
		config  string
		request request
		want    quota.Identity
		who     outcome
	}{
		"consumer":              {`{` + oneADay + `}`, request{consumer: "c-1", ip: "10.0.0.1"}, "consumer:c-1", charged},
		"consumer's own":        {`{"consumer_id":"c-2",` + oneADay + `}`, request{consumer: "c-1"}, "consumer:c-2", charged},
		"anonymous":             {`{` + oneADay + `}`, request{ip: "10.0.0.1"}, "ip:10.0.0.1", charged},
		"IPv6":                  {`{"identify":["ip"],` + oneADay + `}`, request{ip: "2001:db8::1"}, "ip:2001:db8::1", charged},
		"credential":            {`{"identify":["credential"],` + oneADay + `}`, request{credential: "k"}, "credential:k", charged},
		"header":                {`{"identify":["header"],"header_name":"x-phone",` + oneADay + `}`, request{header: map[string]string{"x-phone": "+86 1"}}, "header:%2B86%201", charged},
		"header missing":        {`{"identify":["header"],"header_name":"x-phone",` + oneADay + `}`, request{ip: "10.0.0.1"}, "ip:10.0.0.1", charged},
		"header like a key":     {`{"identify":["header"],"header_name":"x",` + oneADay + `}`, request{header: map[string]string{"x": "a}+consumer:b"}}, "header:a%7D%2Bconsumer:b", charged},
		"compound":              {`{"identify":["consumer","ip"],` + oneADay + `}`, request{consumer: "c", ip: "10.0.0.1"}, "consumer:c+ip:10.0.0.1", charged},
		"compound, anonymous":   {`{"identify":["consumer","header"],"header_name":"x",` + oneADay + `}`, request{ip: "10.0.0.1", header: map[string]string{"x": "1"}}, "ip:10.0.0.1+header:1", charged},
		"skip":                  {`{"fallback":"skip",` + oneADay + `}`, request{ip: "10.0.0.1"}, "", unlimited},
		"deny":                  {`{"fallback":"deny",` + oneADay + `}`, request{ip: "10.0.0.1"}, "", denied},
		"Kong does not tell":    {`{` + oneADay + `}`, request{consumer: "c", ip: "10.0.0.1", broken: true}, "", noAnswer},
		"null falls to default": {`{"identify":null,"fallback":null,` + oneADay + `}`, request{ip: "10.0.0.1"}, "ip:10.0.0.1", charged},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, who := start(t, newPlugin(t), c.config).ids.of(&c.request)
			if got != c.want || who != c.who {
				t.Errorf("got %q %v, want %q %v", got, who, c.want, c.who)
			}
		})
	}
}

func TestWhoElseIsCharged(t *testing.T) {
	for identify, want := range map[string]quota.Identity{
		`["service"]`: "service:s", `["route"]`: "route:r", `["global"]`: "global:all", `["service","consumer"]`: "service:s+consumer:c",
		`["ip"]`: "ip:10.0.0.1",
	} {
		config := `{"limits":[{"name":"daily","limit":1,"window":"day"},{"name":"other","limit":9,"window":"second","identify":` + identify + `}]}`
		for _, placed := range []string{`{`, `{"service_id":"s","route_id":"r","consumer_id":"c",`} {
			r := request{consumer: "c", service: "s", route: "r", ip: "10.0.0.1"}
			own, others, who := start(t, newPlugin(t), placed+config[1:]).ids.of(&r)
			if own != "consumer:c" || !slices.Equal(others, []quota.Identity{want}) || who != charged {
				t.Errorf("%s%s: %q %q %v, want %q", placed, identify, own, others, who, want)
			}
		}
	}
	// The plugin's own identity under another name is its own.
	same := start(t, newPlugin(t), `{"limits":[{"name":"daily","limit":1,"window":"day","identify":["consumer"]}]}`)
	if others := same.policy.Others(); len(others) != 0 {
		t.Errorf("others %q", others)
	}
	denied := start(t, newPlugin(t), `{"service_id":"s","fallback":"deny","limits":[{"name":"a","limit":1,"window":"day","identify":["service"]},{"name":"b","limit":1,"window":"day","identify":["credential"]}]}`)
	if _, _, who := denied.ids.of(&request{}); who != 2 {
		t.Errorf("without a credential: %v", who)
	}
}

func TestScopes(t *testing.T) {
	for config, want := range map[string]string{
		`{` + oneADay + `}`:                                                           "global",
		`{"consumer_id":"c",` + oneADay + `}`:                                         "global",
		`{"service_id":"s","consumer_id":"c",` + oneADay + `}`:                        "service:s",
		`{"service_id":"s","route_id":"r",` + oneADay + `}`:                           "route:r",
		`{"service_id":"s","scope":"shared",` + oneADay + `}`:                         "shared",
		`{"__key__":"k","__ws_id":"w","__seq__":3,"__plugin_id":"p",` + oneADay + `}`: "global",
	} {
		if got := start(t, newPlugin(t), config).scope; got != want {
			t.Errorf("%s: scope %q, want %q", config, got, want)
		}
	}
}

// fixed is a store with one answer.
type fixed struct {
	quota.Store
	decision quota.Decision
	err      error
	panics   bool
}

func (f fixed) Spend(context.Context, quota.Request) (quota.Decision, error) {
	if f.panics {
		panic("broken store")
	}
	return f.decision, f.err
}

const twoLimits = `"consumer_id":"a","limits":[{"name":"burst","limit":10,"window":"500ms"},{"name":"daily","limit":100,"window":"day","align":"calendar"}]`

func passing(remaining int64) quota.Decision {
	return quota.Decision{State: quota.Allowed, Limits: []quota.Standing{
		{Name: "burst", Limit: 10, Remaining: 9, Next: 400 * time.Millisecond, Reset: 400 * time.Millisecond},
		{Name: "daily", Limit: 100, Remaining: remaining, Next: 3600*time.Second - 1, Reset: 3600*time.Second - 1},
	}}
}

func refusing() quota.Decision {
	return quota.Decision{State: quota.OverQuota, Limits: []quota.Standing{
		{Name: "burst", Limit: 10, Remaining: 9, Next: 400 * time.Millisecond, Reset: 400 * time.Millisecond},
		{Name: "daily", Limit: 100, Remaining: 0, Next: 3600*time.Second - 1, Reset: 3600*time.Second - 1, RetryAfter: 3600*time.Second - 1},
	}}
}

var (
	kongFields = fields{
		"X-RateLimit-Limit-Burst": {"10"}, "X-RateLimit-Remaining-Burst": {"9"},
		"X-RateLimit-Limit-Day": {"100"}, "X-RateLimit-Remaining-Day": {"0"},
		"RateLimit-Limit": {"100"}, "RateLimit-Remaining": {"0"}, "RateLimit-Reset": {"3600"},
	}
	ietfFields = fields{
		"RateLimit-Policy": {`"burst";q=10, "daily";q=100;w=86400`},
		"RateLimit":        {`"daily";r=0;t=3600`},
	}
	upstreamOver = fields{"X-Quota-State": {"over_quota"}, "X-Quota-Limit": {"100"}, "X-Quota-Remaining": {"0"}, "X-Quota-Reset": {"3600"}}
	unknown      = fields{"X-Quota-State": {"unknown"}, "X-Quota-Limit": {}, "X-Quota-Remaining": {}, "X-Quota-Reset": {}}
)

const problemJSON = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["daily"]}`

func TestAnswers(t *testing.T) {
	refused := func(more ...fields) fields {
		h := fields{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}}
		for _, m := range more {
			maps.Copy(h, m)
		}
		return h
	}
	retry := fields{"Retry-After": {"3600"}}
	lost := fmt.Errorf("spend: %w", quota.ErrUnavailable)
	for name, c := range map[string]struct {
		config             string
		store              fixed
		contentType        string
		response, upstream fields
		exit               *exited
	}{
		"pass, kong":           {"", fixed{decision: passing(0)}, "", kongFields, nil, nil},
		"pass, ietf":           {`"headers":"ietf",`, fixed{decision: passing(0)}, "", ietfFields, nil, nil},
		"pass, both":           {`"headers":"both",`, fixed{decision: passing(0)}, "", join(kongFields, ietfFields), nil, nil},
		"pass, off":            {`"headers":"off",`, fixed{decision: passing(0)}, "", nil, nil, nil},
		"pass, upstream":       {`"headers":"off","upstream_headers":true,`, fixed{decision: passing(3)}, "", nil, fields{"X-Quota-State": {"allowed"}, "X-Quota-Limit": {"100"}, "X-Quota-Remaining": {"3"}, "X-Quota-Reset": {"3600"}}, nil},
		"the least left first": {`"headers":"ietf",`, fixed{decision: passing(50)}, "", fields{"RateLimit-Policy": ietfFields["RateLimit-Policy"], "RateLimit": {`"burst";r=9;t=1`}}, nil, nil},

		"refuse, kong":    {"", fixed{decision: refusing()}, "", nil, nil, &exited{status: 429, body: []byte(problemJSON), headers: refused(kongFields, retry)}},
		"refuse, ietf":    {`"headers":"ietf",`, fixed{decision: refusing()}, "", nil, nil, &exited{status: 429, body: []byte(problemJSON), headers: refused(ietfFields, retry)}},
		"refuse, off":     {`"headers":"off",`, fixed{decision: refusing()}, "", nil, nil, &exited{status: 429, body: []byte(problemJSON), headers: refused()}},
		"refuse, status":  {`"headers":"off","error_code":503,`, fixed{decision: refusing()}, "", nil, nil, &exited{status: 503, body: []byte(strings.Replace(problemJSON, "429", "503", 1)), headers: refused()}},
		"refuse, message": {`"headers":"off","error_message":"5 a \"day\"",`, fixed{decision: refusing()}, "", nil, nil, &exited{status: 429, body: []byte(`{"message":"5 a \"day\""}`), headers: refused(fields{"Content-Type": {"application/json; charset=utf-8"}})}},
		"refuse, gRPC": {`"headers":"ietf",`, fixed{decision: refusing()}, "application/grpc+proto", nil, nil, &exited{status: 200, headers: refused(ietfFields, retry,
			fields{"Content-Type": {"application/grpc"}, "grpc-status": {"8"}, "grpc-message": {"Request cannot be satisfied as assigned quota has been exceeded"}})}},
		"refuse, gRPC-Web": {`"headers":"off",`, fixed{decision: refusing()}, "application/grpc-web", nil, nil, &exited{status: 429, body: []byte(problemJSON), headers: refused()}},
		"annotate":         {`"mode":"annotate",`, fixed{decision: refusing()}, "", kongFields, upstreamOver, nil},

		"lost, allow":       {"", fixed{err: lost}, "", nil, unknown, nil},
		"lost, deny":        {`"on_error":"deny",`, fixed{err: lost}, "", nil, nil, &exited{status: 503, body: []byte(`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"The quota cannot be checked at the moment","status":503}`), headers: refused()}},
		"lost, deny, gRPC":  {`"on_error":"deny",`, fixed{err: lost}, "application/grpc", nil, nil, &exited{status: 200, headers: refused(fields{"Content-Type": {"application/grpc"}, "grpc-status": {"14"}, "grpc-message": {"The quota cannot be checked at the moment"}})}},
		"panic, allow":      {"", fixed{panics: true}, "", nil, unknown, nil},
		"panic, deny":       {`"on_error":"deny","grpc":false,`, fixed{panics: true}, "application/grpc", nil, nil, &exited{status: 503, body: []byte(`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"The quota cannot be checked at the moment","status":503}`), headers: refused()}},
		"a reply that lies": {"", fixed{err: errors.New("reply is not one of spend.lua")}, "", nil, unknown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			instance := start(t, newPlugin(t), `{`+c.config+twoLimits+`}`)
			instance.store = c.store
			r := &request{header: map[string]string{"content-type": c.contentType}}
			instance.access(context.Background(), r)
			if !reflect.DeepEqual(r.response, c.response) || !reflect.DeepEqual(r.upstream, c.upstream) {
				t.Errorf("response %v\n    want %v\nupstream %v\n    want %v", r.response, c.response, r.upstream, c.upstream)
			}
			switch {
			case (r.exit == nil) != (c.exit == nil):
				t.Errorf("exit %v, want %v", r.exit, c.exit)
			case c.exit != nil && (r.exit.status != c.exit.status || !bytes.Equal(r.exit.body, c.exit.body) || !reflect.DeepEqual(r.exit.headers, c.exit.headers)):
				t.Errorf("exit %d %s %v\nwant %d %s %v", r.exit.status, r.exit.body, r.exit.headers, c.exit.status, c.exit.body, c.exit.headers)
			}
		})
	}
}

func join(all ...fields) fields {
	h := fields{}
	for _, one := range all {
		maps.Copy(h, one)
	}
	return h
}

// A gateway that is gone is not asked for more, and nobody is charged.
func TestGatewayThatIsGone(t *testing.T) {
	instance := start(t, newPlugin(t), `{"identify":["consumer"],`+oneADay+`}`)
	r := &request{broken: true, consumer: "a"}
	instance.access(context.Background(), r)
	if got := strings.Join(r.calls, ", "); got != "consumer, upstream" {
		t.Errorf("calls %q", got)
	}
	r = &request{consumer: "a"}
	if instance.access(context.Background(), r); r.response["RateLimit-Remaining"][0] != "0" || r.exit != nil {
		t.Errorf("the only one of the day was charged before: %+v", r)
	}
}

func TestPolicyField(t *testing.T) {
	for limits, want := range map[string]string{
		`{"name":"a","limit":5,"window":"day"},{"name":"b","limit":9,"window":"month"},{"name":"c","limit":10,"window":"500ms"}`: `"a";q=5;w=86400, "b";q=9, "c";q=10`,
		// 10 a second with bursts of 20: 20 in two seconds.
		`{"name":"a","algorithm":"token_bucket","limit":10,"window":"1s","burst":20}`: `"a";q=20;w=2`,
		`{"name":"a","algorithm":"gcra","limit":10,"window":"1s","burst":15}`:         `"a";q=15`,
		`{"name":"a","algorithm":"leaky_bucket","limit":1,"window":"7s","burst":3}`:   `"a";q=3;w=21`,
	} {
		if got := start(t, newPlugin(t), `{"limits":[`+limits+`]}`).answers.policy; got != want {
			t.Errorf("%s: %s, want %s", limits, got, want)
		}
	}
}

func TestPeriodsOfKongsHeaders(t *testing.T) {
	for limits, want := range map[string][]string{
		`{"name":"a","limit":1,"window":"60s"},{"name":"b","limit":1,"window":"hour"},{"name":"c","limit":1,"window":"month"}`: {"Minute", "Hour", "Month"},
		`{"name":"a","limit":1,"window":"90s"},{"name":"b","limit":1,"window":"7d"}`:                                           {"A", "Week"},
		// Two limits of a day, or a name that is another's period: names for all.
		`{"name":"a","limit":1,"window":"day"},{"name":"b","limit":1,"window":"24h"}`:   {"A", "B"},
		`{"name":"day","limit":1,"window":"90s"},{"name":"b","limit":1,"window":"24h"}`: {"Day", "B"},
	} {
		var got []string
		for _, names := range start(t, newPlugin(t), `{"limits":[`+limits+`]}`).answers.names {
			got = append(got, strings.TrimPrefix(names.limit, "X-RateLimit-Limit-"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", limits, got, want)
		}
	}
}
