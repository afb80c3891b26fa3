package main

import (
	"os"
	"testing"
)

func TestReferenceIsUpToDate(t *testing.T) {
	want, err := reference()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../CONFIGURATION.md")
	if err != nil || string(got) != want {
		t.Errorf("docs/CONFIGURATION.md is not what `make generate` writes (%v)", err)
	}
}
