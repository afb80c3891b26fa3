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

// Spend gives the text of the script that decides policies of the named
// algorithms, which are the base names of files in this folder. Equal lists give
// equal texts, so that Redis caches one script for each.
func Spend(algorithms ...string) (string, error) {
	var script strings.Builder
	script.WriteString("local algorithms = {}\n")
	for _, name := range slices.Concat(algorithms, []string{"spend"}) {
		text, err := files.ReadFile(name + ".lua")
		if err != nil {
			return "", fmt.Errorf("script of %q: %w", name, err)
		}
		script.Write(text)
	}
	return script.String(), nil
}
