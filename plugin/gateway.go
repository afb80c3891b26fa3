package plugin

import (
	"fmt"

	"github.com/Kong/go-pdk"
)

// gateway is what the plugin needs of Kong for one request. Each method is one
// PDK call: a round trip to Kong, which waits for it.
type gateway interface {
	// ConsumerID is the id of the authenticated consumer, "" if there is none.
	ConsumerID() (string, error)
	// CredentialID is the id of the credential that was used, "" if none was.
	CredentialID() (string, error)
	// ForwardedIP is the client's address, seen through trusted proxies.
	ForwardedIP() (string, error)
	// Header is the first value of a request header, "" if there is none.
	Header(name string) (string, error)
	// ServiceID is the id of the service that the request goes to, "" if none.
	ServiceID() (string, error)
	// RouteID is the id of the route that the request came by.
	RouteID() (string, error)
	// SetResponseHeaders sets headers that the client will get.
	SetResponseHeaders(headers) error
	// SetUpstreamHeaders sets headers that the upstream will get; an empty list
	// of values removes the header.
	SetUpstreamHeaders(headers) error
	// Exit answers the client and ends the request.
	Exit(status int, body []byte, h headers)
}

type headers map[string][]string

// kong is the gateway over go-pdk.
type kong struct{ pdk *pdk.PDK }

func (k kong) ConsumerID() (string, error) {
	consumer, err := k.pdk.Client.GetConsumer()
	return consumer.Id, wrap("get_consumer", err)
}

func (k kong) CredentialID() (string, error) {
	credential, err := k.pdk.Client.GetCredential()
	return credential.Id, wrap("get_credential", err)
}

func (k kong) ForwardedIP() (string, error) {
	ip, err := k.pdk.Client.GetForwardedIp()
	return ip, wrap("get_forwarded_ip", err)
}

func (k kong) Header(name string) (string, error) {
	value, err := k.pdk.Request.GetHeader(name)
	return value, wrap("get_header", err)
}

func (k kong) ServiceID() (string, error) {
	service, err := k.pdk.Router.GetService()
	return service.Id, wrap("get_service", err)
}

func (k kong) RouteID() (string, error) {
	route, err := k.pdk.Router.GetRoute()
	return route.Id, wrap("get_route", err)
}

func (k kong) SetResponseHeaders(h headers) error {
	return wrap("response.set_headers", k.pdk.Response.SetHeaders(h))
}

func (k kong) SetUpstreamHeaders(h headers) error {
	return wrap("service.request.set_headers", k.pdk.ServiceRequest.SetHeaders(h))
}

// Exit does not come back with an answer: Kong closes the connection.
func (k kong) Exit(status int, body []byte, h headers) {
	k.pdk.Response.Exit(status, body, h)
}

func wrap(call string, err error) error {
	if err != nil {
		return fmt.Errorf("asking Kong: %s: %w", call, err)
	}
	return nil
}
