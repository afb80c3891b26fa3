// Command server is a plugin server that does nothing but PDK calls, on go-pdk's
// server or on ours. The number of calls is in the instance's configuration.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/Kong/go-pdk"
	"github.com/Kong/go-pdk/server"

	"kong-quota/internal/pluginserver"
)

type config struct {
	Calls int `json:"calls"`
}

var headers = map[string][]string{"X-RateLimit-Limit-Hour": {"1000"}, "X-RateLimit-Remaining-Hour": {"999"}}

// Access makes the calls with go-pdk.
func (c *config) Access(kong *pdk.PDK) {
	if c.Calls == 3 {
		_, _ = kong.Client.GetConsumer()
		_, _ = kong.Client.GetForwardedIp()
	}
	if c.Calls > 0 {
		_ = kong.Response.SetHeaders(headers)
	}
}

// instance makes the same calls with ours.
type instance struct{ config }

func (i instance) Access(e *pluginserver.Event) {
	if i.Calls == 3 {
		_ = e.Ask([]pluginserver.Question{{Method: "kong.client.get_consumer"}, {Method: "kong.client.get_forwarded_ip"}})
	}
	if i.Calls > 0 {
		e.SetHeaders("kong.response.set_headers", []pluginserver.Header{
			{Name: "X-RateLimit-Limit-Hour", Value: "1000"}, {Name: "X-RateLimit-Remaining-Hour", Value: "999"},
		})
	}
}

func (instance) Close() {}

func main() {
	socket := flag.String("socket", "", "path to serve on, with our server; go-pdk's makes it of -kong-prefix")
	flag.Parse()
	log.SetOutput(os.Stderr)
	if *socket == "" {
		if err := server.StartServer(func() any { return &config{} }, "1", 1); err != nil {
			log.Fatal(err)
		}
		return
	}
	listener, err := pluginserver.Listen(*socket)
	if err != nil {
		log.Fatal(err)
	}
	s := pluginserver.New(func(text []byte) (pluginserver.Instance, error) {
		var i instance
		err := json.Unmarshal(text, &i.config)
		return i, err
	}, slog.New(slog.DiscardHandler))
	go func() { log.Print(s.Serve(listener)) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	_ = s.Stop(context.Background())
}
