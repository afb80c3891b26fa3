package plugin

import "kong-quota/internal/pluginserver"

// gateway is what the plugin needs of Kong for one request; *pluginserver.Event is
// one. Each question, each set of headers and the exit is a PDK call, which costs
// Kong some work; all but the questions and the exit go without waiting.
type gateway interface {
	// Ask asks all questions in one turn. An error means that Kong is gone.
	Ask([]pluginserver.Question) error
	SetHeaders(method string, headers []header)
	// Exit answers the client and ends the request.
	Exit(status int, body []byte, headers []header)
}

// The PDK's methods.
const (
	getConsumer    = "kong.client.get_consumer"
	getCredential  = "kong.client.get_credential"
	getForwardedIP = "kong.client.get_forwarded_ip"
	getHeader      = "kong.request.get_header"
	getService     = "kong.router.get_service"
	getRoute       = "kong.router.get_route"

	serviceProtocol = 6 // the field of get_service's message

	setResponseHeaders = "kong.response.set_headers"
	setUpstreamHeaders = "kong.service.request.set_headers"
)

type (
	header  = pluginserver.Header
	headers []header
)

// set puts a header in the place of the one with its name.
func (h *headers) set(name, value string) {
	for i := range *h {
		if (*h)[i].Name == name {
			(*h)[i].Value = value
			return
		}
	}
	*h = append(*h, header{Name: name, Value: value})
}
