package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The files in the repository are those that values.yaml makes.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	const chart = "../kong-quota"
	schema, readme, err := generate(chart)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"values.schema.json": schema, "README.md": readme} {
		got, err := os.ReadFile(filepath.Join(chart, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s differs from what values.yaml makes: run `go generate .` in the root", name)
		}
	}
}
