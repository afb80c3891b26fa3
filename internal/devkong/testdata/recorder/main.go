// Command recorder is the plugin of ../shared/kong-transcripts: on go-pdk's own
// server, with the calls that were recorded with a real Kong, in their order.
package main

import (
	"github.com/Kong/go-pdk"
	"github.com/Kong/go-pdk/server"
)

type config struct {
	Limits []struct {
		Name   string `json:"name"`
		Limit  int    `json:"limit"`
		Window string `json:"window"`
	} `json:"limits"`
	Identifier string `json:"identifier"`
	Redis      struct {
		Host string `json:"host"`
		Port int    `json:"port"`
	} `json:"redis"`
}

func main() {
	if err := server.StartServer(func() any { return &config{} }, "0.1", 901); err != nil {
		panic(err)
	}
}

// Access asks what the recordings have; what is answered shows in the frames.
func (*config) Access(kong *pdk.PDK) {
	_, _ = kong.Client.GetConsumer()
	_, _ = kong.Client.GetCredential()
	_, _ = kong.Client.GetForwardedIp()
	_, _ = kong.Client.GetIp()
	_, _ = kong.Request.GetHeader("x-plan")
	_, _ = kong.Request.GetHeader("absent")
	_, _ = kong.Request.GetMethod()
	_, _ = kong.Request.GetPath()
	_, _ = kong.Nginx.GetVar("cookie_sid")
	_, _ = kong.Router.GetRoute()
	_, _ = kong.Router.GetService()
	_ = kong.Response.SetHeaders(map[string][]string{"X-A": {"1"}, "X-B": {"2", "3"}})
	_ = kong.ServiceRequest.SetHeader("X-Up", "u")
	_ = kong.Ctx.SetShared("quota", "hit")
	_ = kong.Log.Notice("noticed")
	if over, _ := kong.Request.GetHeader("x-over"); over == "1" {
		kong.Response.Exit(429, []byte(`{"limits":2}`), map[string][]string{"Content-Type": {"application/problem+json"}, "Retry-After": {"7"}})
	}
}
