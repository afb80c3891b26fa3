// Command bench measures kong-quota beside its peers, and writes RESULTS.md with a
// plot of each part.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeromicro/go-zero/core/logx"

	"kong-quota/bench/gateway"
	"kong-quota/bench/growth"
	"kong-quota/bench/limiter"
	"kong-quota/bench/redistime"
	"kong-quota/bench/report"
	"kong-quota/bench/scale"
	"kong-quota/bench/transport"
)

// suites in the order of the results.
var suites = []struct {
	name string
	run  func(rounds int, progress func(string)) ([]report.Section, error)
}{
	{"limiter", limiter.Run},
	{"transport", transport.Run},
	{"gateway", gateway.Run},
	{"redistime", redistime.Run},
	{"growth", growth.Run},
	{"scale", scale.Run},
}

func main() {
	out := flag.String("out", ".", "folder to write RESULTS.md and plots/ to")
	rounds := flag.Int("rounds", 3, "interleaved rounds, of which the median counts")
	only := flag.String("only", "", "suites to run, with commas between: limiter, transport, gateway, redistime, growth, scale; all without it")
	flag.Parse()
	logx.Disable() // go-zero logs what it uses
	if err := run(*out, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(out string, rounds int, only string) error {
	var sections []report.Section
	for _, suite := range suites {
		if only != "" && !slices.Contains(strings.Split(only, ","), suite.name) {
			continue
		}
		start := time.Now()
		found, err := suite.run(rounds, func(what string) {
			fmt.Fprintf(os.Stderr, "%6s  %s: %s\n", time.Since(start).Round(time.Second), suite.name, what)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", suite.name, err)
		}
		sections = append(sections, found...)
	}
	return report.Write(out, sections)
}
