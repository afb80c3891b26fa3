package devkong

import "net/http"

// authenticate is key-auth: it finds the key, its credential and consumer, and
// tells the upstream. It reports false when it has answered 401 itself.
func (x *exchange) authenticate(s *state, p *plugin) bool {
	names, _ := p.Config["key_names"].([]any)
	for _, header := range []string{"X-Consumer-Id", "X-Consumer-Custom-Id", "X-Consumer-Username", "X-Credential-Identifier", "X-Anonymous-Consumer"} {
		x.upstream.Del(header) // nobody but us says who the consumer is
	}
	key := ""
	for _, n := range names {
		name, _ := n.(string)
		if p.Config["key_in_header"] == true {
			key = x.request.Header.Get(name)
		}
		if key == "" && p.Config["key_in_query"] == true {
			key = x.request.URL.Query().Get(name)
		}
		if key != "" {
			if p.Config["hide_credentials"] == true {
				x.upstream.Del(name)
			}
			break
		}
	}
	if c := s.credentials[key]; c != nil && key != "" {
		x.credential, x.consumer = c, s.consumers[string(c.Consumer)]
		x.upstream.Set("X-Credential-Identifier", c.ID)
	} else if anonymous, _ := p.Config["anonymous"].(string); anonymous != "" {
		x.consumer = s.findConsumer(anonymous)
		x.upstream.Set("X-Anonymous-Consumer", "true")
	}
	if x.consumer == nil {
		message := "No API key found in request"
		if key != "" {
			message = "Unauthorized"
		}
		x.response.Set("WWW-Authenticate", "Key")
		x.fail(http.StatusUnauthorized, message)
		return false
	}
	x.upstream.Set("X-Consumer-Id", x.consumer.ID)
	if x.consumer.Username != "" {
		x.upstream.Set("X-Consumer-Username", x.consumer.Username)
	}
	if x.consumer.CustomID != "" {
		x.upstream.Set("X-Consumer-Custom-Id", x.consumer.CustomID)
	}
	return true
}
