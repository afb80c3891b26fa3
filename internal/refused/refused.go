// Package refused reads the configurations of the plugin that must be refused, with
// the words of those who refuse them: plugin/testdata/invalid-*.json. Tests of several
// packages hold what they test to them.
package refused

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Config is one of them.
type Config struct {
	File   string          `json:"-"` // its path
	Config json.RawMessage `json:"config"`
	// Schema is the message of Kong's Admin API; "" where the schema cannot tell.
	Schema string `json:"schema"`
	// Start is the error of an instance that is started with it all the same.
	Start string `json:"start"`
}

// Configs reads them all.
func Configs(t testing.TB) []Config {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(here), "../../plugin/testdata/invalid-*.json"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	all := make([]Config, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &all[i]); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[i].File = file
	}
	return all
}

// Write puts the words back into the file.
func (c Config) Write(t testing.TB) {
	t.Helper()
	text, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		err = os.WriteFile(c.File, append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
