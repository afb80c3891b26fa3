package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"kong-quota/quota"
)

func resetCommand() *cobra.Command {
	var from source
	c := &cobra.Command{
		Use:   "reset IDENTITY...",
		Short: "Forget all that identities have used",
		Long: `Forget all that identities have used, of every limit, and show how they stood. Nodes
hear of it at once; one that does not may refuse for another QUOTA_DENY_MEMORY, and
spend what it has leased. To give back a part, see quotactl grant.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			l, err := from.open(c.Context())
			if err != nil {
				return err
			}
			ids, err := l.identities(c.Context(), names)
			if err != nil {
				return err
			}
			before, err := l.usage(c.Context(), ids)
			if err != nil {
				return err
			}
			for _, id := range ids {
				for _, own := range l.of(id) {
					store, err := l.store(own.counted)
					if err != nil {
						return err
					}
					if err := quota.NewLimiter(store, own.Scope, own.part.Policy).Reset(c.Context(), id); err != nil {
						return err
					}
				}
			}
			l.name(c.Context(), before)
			fmt.Fprintln(c.OutOrStdout(), "Reset. Before it was:")
			return show(c.OutOrStdout(), "table", before)
		},
	}
	from.flags(c)
	return c
}
