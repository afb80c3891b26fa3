package plugin

import (
	"flag"
	"path/filepath"
	"testing"

	"kong-quota/internal/refused"
)

var update = flag.Bool("update", false, "write the errors of plugin/testdata/invalid-* anew; read the diff")

func TestInvalidConfigs(t *testing.T) {
	for _, c := range refused.Configs(t) {
		t.Run(filepath.Base(c.File), func(t *testing.T) {
			_, err := newPlugin(t).Start(c.Config)
			if err == nil {
				t.Fatal("the instance started")
			}
			if *update {
				c.Start = err.Error()
				c.Write(t)
				return
			}
			if err.Error() != c.Start {
				t.Errorf("got  %q\nwant %q", err, c.Start)
			}
		})
	}
}
