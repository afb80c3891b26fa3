// Command quotactl is for those who operate kong-quota: it checks configurations,
// shows what has been used, gives quota back, and tries limits on recorded traffic.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // images need not have the timezones

	"github.com/spf13/cobra"

	"kong-quota/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// errFound ends a command that has printed what is wrong.
var errFound = errors.New("problems were found")

// run is the whole command. The status is 0, 1 for what failed or was found, and 2
// for a command line that is none.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "quotactl",
		Short:         "Check quotas, see what is used, give it back, and try limits on recorded traffic",
		Version:       plugin.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(lintCommand(), usageCommand(), resetCommand(), grantCommand(), simulateCommand())
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	started := false
	for _, c := range root.Commands() {
		work := c.RunE
		c.RunE = func(c *cobra.Command, args []string) error {
			started = true
			return work(c, args)
		}
	}
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return 1
	}
	fmt.Fprintf(stderr, "quotactl: %v\n", err)
	if started {
		return 1
	}
	return 2
}
