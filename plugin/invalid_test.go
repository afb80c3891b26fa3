package plugin

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the errors of plugin/testdata/invalid-* anew; read the diff")

// invalid is a configuration that must be refused.
type invalid struct {
	Config json.RawMessage `json:"config"`
	// Schema is the message of Kong's Admin API; empty where the schema cannot
	// tell. e2e holds devkong to it.
	Schema string `json:"schema"`
	// Start is the error of an instance that is started with it all the same.
	Start string `json:"start"`
}

func TestInvalidConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid-*.json")
	if err != nil || len(files) < 23 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c invalid
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
			_, err = newPlugin(t).Start(c.Config)
			if err == nil {
				t.Fatal("the instance started")
			}
			if *update {
				c.Start = err.Error()
				text, err := json.MarshalIndent(c, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err.Error() != c.Start {
				t.Errorf("got  %q\nwant %q", err, c.Start)
			}
		})
	}
}
