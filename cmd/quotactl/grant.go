package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"kong-quota/quota"
)

func grantCommand() *cobra.Command {
	var from source
	var limits []string
	var units int64
	c := &cobra.Command{
		Use:   "grant IDENTITY --units N",
		Short: "Give back a part of what an identity has used",
		Long: `Give back units of what an identity has used, so that it can spend them again. No limit
gets above full by it: who shall have more than that needs a higher limit, which keeps
what was used.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if units < 1 || units > quota.MaxCost {
				return fmt.Errorf("--units: %d must be between 1 and %d", units, int64(quota.MaxCost))
			}
			l, err := from.open(c.Context())
			if err != nil {
				return err
			}
			id, err := l.identity(c.Context(), args[0])
			if err != nil {
				return err
			}
			granted := 0
			for _, own := range l.of(id) {
				policy := own.limits(limits)
				if policy == nil {
					continue
				}
				before, err := l.peek(c.Context(), own, policy)
				if err != nil {
					return err
				}
				l.name(c.Context(), before)
				store, err := l.store(own.counted)
				if err != nil {
					return err
				}
				// One limit at a time: each gets back what it can, whatever the others.
				for i, rule := range policy.Rules() {
					d, err := quota.NewLimiter(store, own.Scope, policy.Only(rule.Limit.Name)).Refund(c.Context(), id, units)
					if err != nil {
						return err
					}
					granted++
					s := d.Limits[0]
					fmt.Fprintf(c.OutOrStdout(), "%s, %s, %s: %d of %d remain, before it were %d\n",
						before[i].Who, before[i].Where, s.Name, s.Remaining, s.Limit, before[i].Remaining)
				}
			}
			if granted == 0 {
				return fmt.Errorf("no such limit counts %s", id)
			}
			return nil
		},
	}
	from.flags(c)
	c.Flags().StringArrayVar(&limits, "limit", nil, "name of a limit to give back to; may be given several times; all without it")
	c.Flags().Int64Var(&units, "units", 0, "how much to give back to each")
	if err := c.MarkFlagRequired("units"); err != nil {
		panic(err) // the flag is defined above
	}
	return c
}
