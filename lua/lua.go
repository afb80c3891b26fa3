// Package lua holds the shared limiter as Redis scripts. They read without Go;
// README.md has the layout of keys, arguments and replies.
package lua

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.lua
var files embed.FS

// fileOf has the algorithms that are not in a file of their own name: the two
// buckets are the same thing seen from two sides.
var fileOf = map[string]string{"leaky_bucket": "bucket", "token_bucket": "bucket"}

// Spend gives the text of the script that decides policies of the named
// algorithms. Equal lists give equal texts, so that Redis caches one script for
// each.
func Spend(algorithms ...string) (string, error) {
	var names []string
	for _, name := range algorithms {
		if file := fileOf[name]; file != "" {
			name = file
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var script strings.Builder
	script.WriteString("local algorithms = {}\n")
	for _, name := range append(names, "spend") {
		text, err := files.ReadFile(name + ".lua")
		if err != nil {
			return "", fmt.Errorf("script of %q: %w", name, err)
		}
		script.Write(text)
	}
	return script.String(), nil
}
