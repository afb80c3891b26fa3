package plugin

import (
	"context"
	"testing"

	"kong-quota/internal/pluginserver"
)

// silent is a gateway that does nothing.
type silent struct{}

func (silent) Ask([]pluginserver.Question) error { return nil }
func (silent) SetHeaders(string, []header)       {}
func (silent) Exit(int, []byte, []header)        {}

// BenchmarkAccess is what a request costs the plugin, with counters in memory.
func BenchmarkAccess(b *testing.B) {
	for name, config := range map[string]string{
		"headers": `{"consumer_id":"a","limits":[{"name":"minute","limit":1000000000,"window":"minute"},{"name":"hour","limit":1000000000,"window":"hour"},{"name":"day","limit":1000000000,"window":"day"}]}`,
		"silent":  `{"consumer_id":"a","headers":"off","limits":[{"name":"minute","limit":1000000000,"window":"minute"},{"name":"hour","limit":1000000000,"window":"hour"},{"name":"day","limit":1000000000,"window":"day"}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			instance := start(b, newPlugin(b), config)
			b.ReportAllocs()
			for b.Loop() {
				instance.access(context.Background(), silent{})
			}
		})
	}
}
