package devkong

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
)

// serverName is in the headers Server and Via.
const serverName = "devkong"

// ServeHTTP is the proxy: route, key-auth, the plugin, the upstream.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := g.state.Load()
	x := g.newExchange(r)
	if x.route, x.prefix = s.match(r); x.route == nil {
		x.fail(http.StatusNotFound, "no Route matched with those values")
		x.finish(w)
		return
	}
	x.service = s.services[string(x.route.Service)]

	if auth := s.pick("key-auth", x.route, nil); auth != nil && !x.authenticate(s, auth) {
		x.finish(w)
		return
	}
	if p := s.pick(g.server.name, x.route, x.consumer); p != nil {
		err := g.server.event(r.Context(), p, x.call)
		if g.options.OnEvent != nil {
			g.options.OnEvent(Event{Plugin: p.ID, Calls: x.calls, Err: err})
		}
		if err != nil && !errors.Is(err, errExited) {
			g.log.Error("plugin server", "plugin", p.Name, "error", err)
			x.fail(http.StatusInternalServerError, "An unexpected error occurred")
		}
	}
	if x.exit != nil {
		x.finish(w)
		return
	}
	g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

func (g *Gateway) newExchange(r *http.Request) *exchange {
	var id [16]byte
	_, _ = rand.Read(id[:])
	x := &exchange{
		id: hex.EncodeToString(id[:]), request: r, arrived: time.Now(), ip: hostname(r.RemoteAddr),
		response: http.Header{}, upstream: r.Header.Clone(), shared: map[string]*structpb.Value{},
		log: g.log.Info,
	}
	x.forwarded = g.forwardedIP(x.ip, r.Header)
	return x
}

// forwardedIP is the client's address: what the real_ip_header says where the
// connection comes from a trusted address, as nginx without recursion.
func (g *Gateway) forwardedIP(ip string, h http.Header) string {
	address, err := netip.ParseAddr(ip)
	if err != nil || !slices.ContainsFunc(g.options.TrustedIPs, func(p netip.Prefix) bool { return p.Contains(address.Unmap()) }) {
		return ip
	}
	name := g.options.RealIPHeader
	if name == "" {
		name = "X-Real-IP" // Kong's default
	}
	values := strings.Split(strings.Join(h.Values(name), ","), ",")
	last := strings.TrimSpace(values[len(values)-1])
	if _, err := netip.ParseAddr(last); err != nil {
		return ip
	}
	return last
}

// fail answers with an error of Kong's own.
func (x *exchange) fail(status int, message string) {
	x.response.Set("Content-Type", "application/json; charset=utf-8")
	x.exit = &exit{status, fmt.Appendf(nil, "{\n  \"message\":%q,\n  \"request_id\":%q\n}", message, x.id)}
}

// finish writes the answer that a plugin or devkong gave.
func (x *exchange) finish(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range x.response {
		h[name] = values
	}
	h.Set("Content-Length", strconv.Itoa(len(x.exit.body)))
	h.Set("Server", serverName)
	h.Set("X-Kong-Response-Latency", strconv.FormatInt(time.Since(x.arrived).Milliseconds(), 10))
	h.Set("X-Kong-Request-Id", x.id)
	w.WriteHeader(x.exit.status)
	_, _ = w.Write(x.exit.body)
}

// newProxy makes the reverse proxy; every request carries its exchange.
func (g *Gateway) newProxy() *httputil.ReverseProxy {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if to, ok := g.options.Resolve[address]; ok {
			address = to
		}
		return dialer.DialContext(ctx, network, address)
	}
	transport := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 512, IdleConnTimeout: 60 * time.Second, DisableCompression: true}
	h2c := &http.Transport{DialContext: dial, Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { exchangeOf(p.In).rewrite(p) },
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if exchangeOf(r).service.Protocol == "grpc" {
				return h2c.RoundTrip(r)
			}
			return transport.RoundTrip(r)
		}),
		ModifyResponse: func(r *http.Response) error {
			x := exchangeOf(r.Request)
			for name, values := range x.response {
				r.Header[name] = append(slices.Clone(values), r.Header[name]...) // the plugin's first
			}
			r.Header.Set("Via", "1.1 "+serverName)
			r.Header.Set("X-Kong-Request-Id", x.id)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			x := exchangeOf(r)
			g.log.Warn("upstream", "service", x.service.Name, "error", err)
			x.fail(http.StatusBadGateway, "An invalid response was received from the upstream server")
			x.finish(w)
		},
		ErrorLog: nil,
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rewrite makes the upstream's request of the client's.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	scheme := "http"
	if x.service.Protocol == "https" || x.service.Protocol == "grpcs" {
		scheme = "https"
	}
	path := p.In.URL.Path
	if *x.route.StripPath {
		path = strings.TrimPrefix(path, x.prefix)
	}
	path = strings.TrimSuffix(x.service.Path, "/") + "/" + strings.TrimPrefix(path, "/")
	p.Out.URL = &url.URL{Scheme: scheme, Host: net.JoinHostPort(x.service.Host, strconv.Itoa(x.service.Port)), Path: path, RawQuery: p.In.URL.RawQuery}
	p.Out.Host = p.Out.URL.Host
	if x.route.PreserveHost {
		p.Out.Host = p.In.Host
	}
	hopByHop := p.Out.Header // without those that end at a proxy
	p.Out.Header = http.Header{}
	for name, values := range x.upstream {
		if _, kept := hopByHop[name]; kept || p.In.Header[name] == nil {
			p.Out.Header[name] = values
		}
	}
	p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
	p.SetXForwarded()
	p.Out.Header.Set("X-Real-Ip", x.forwarded)
	p.Out.Header.Set("X-Kong-Request-Id", x.id)
}
