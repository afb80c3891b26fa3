package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"kong-quota/quota"
)

// row is a limit of somebody, as it stands.
type row struct {
	Identity  string `json:"identity"`
	Who       string `json:"who"` // the same for people, see ledger.name
	Where     string `json:"where"`
	Limit     string `json:"limit"`
	Used      int64  `json:"used"`
	Of        int64  `json:"of"`
	Remaining int64  `json:"remaining"`
	// FullAt is when all of it is back if nothing more is charged; null if it is.
	FullAt *time.Time `json:"full_at"`
}

// share is how much of it is used, from 0 to 1.
func (r row) share() float64 { return float64(r.Used) / float64(r.Of) }

func usageCommand() *cobra.Command {
	var from source
	var output string
	var top int
	c := &cobra.Command{
		Use:   "usage [IDENTITY...]",
		Short: "Show what identities have used of their limits",
		Long: `Show what identities have used of their limits; without any, who has used the most.

An identity is a consumer by username, custom_id or id, or kind:value, such as
ip:10.0.0.7 or header:+8613800000000; a compound is joined by pluses: alice+ip:10.0.0.7.
It charges nothing.`,
		RunE: func(c *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output: %q must be table or json", output)
			}
			if top < 1 {
				return fmt.Errorf("--top: %d must be at least 1", top)
			}
			l, err := from.open(c.Context())
			if err != nil {
				return err
			}
			var rows []row
			if len(args) > 0 {
				var ids []quota.Identity
				if ids, err = l.identities(c.Context(), args); err == nil {
					rows, err = l.usage(c.Context(), ids)
				}
			} else {
				rows, err = l.most(c.Context(), top, c.ErrOrStderr())
			}
			if err != nil {
				return err
			}
			l.name(c.Context(), rows)
			return show(c.OutOrStdout(), output, rows)
		},
	}
	from.flags(c)
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.Flags().IntVar(&top, "top", 20, "how many limits to show, without an identity")
	return c
}

func (l *ledger) usage(ctx context.Context, ids []quota.Identity) (rows []row, err error) {
	for _, id := range ids {
		counters := l.of(id)
		if len(counters) == 0 {
			return nil, fmt.Errorf("no limit counts %s", id)
		}
		for _, c := range counters {
			own, err := l.peek(ctx, c, c.part.Policy)
			if err != nil {
				return nil, err
			}
			rows = append(rows, own...)
		}
	}
	return rows, nil
}

// peek tells how limits of a counter stand.
func (l *ledger) peek(ctx context.Context, c counter, policy *quota.Policy) ([]row, error) {
	store, err := l.store(c.counted)
	if err != nil {
		return nil, err
	}
	d, err := quota.NewLimiter(store, c.Scope, policy).Peek(ctx, c.id)
	if err != nil {
		return nil, err
	}
	rows := make([]row, len(d.Limits))
	for i, s := range d.Limits {
		rows[i] = row{Identity: string(c.id), Where: c.where(), Limit: s.Name, Used: s.Limit - s.Remaining, Of: s.Limit, Remaining: s.Remaining}
		if s.Reset > 0 {
			at := d.Now.Add(s.Reset).Round(time.Second)
			rows[i].FullAt = &at
		}
	}
	return rows, nil
}

// peekers ask at the same time; their calls travel together.
const peekers = 64

// most walks all identities that have counters, and keeps the limits of which the
// most is used.
func (l *ledger) most(ctx context.Context, top int, progress io.Writer) ([]row, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu      sync.Mutex
		rows    []row
		seen    int
		told    = time.Now()
		wg      sync.WaitGroup
		work    = make(chan counter)
		started = map[string]bool{}
	)
	for range peekers {
		wg.Go(func() {
			for c := range work {
				own, err := l.peek(ctx, c, c.part.Policy)
				if err != nil {
					cancel(err)
					continue
				}
				mu.Lock()
				seen++
				for _, r := range own {
					if r.Used > 0 {
						rows = append(rows, r)
					}
				}
				if len(rows) > 1000+2*top {
					rows = mostUsed(rows, top)
				}
				if time.Since(told) > 2*time.Second {
					told = time.Now()
					fmt.Fprintf(progress, "looked at %d counters …\n", seen)
				}
				mu.Unlock()
			}
		})
	}
	err := l.walk(ctx, func(c counter) {
		key := c.Redis.String() + " " + c.Scope + " " + string(c.id) + " " + strconv.Itoa(c.part.Identity)
		if started[key] { // SCAN may give a key twice
			return
		}
		started[key] = true
		select {
		case work <- c:
		case <-ctx.Done():
		}
	})
	close(work)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	return mostUsed(rows, top), nil
}

// walk finds the counters in all scopes of the configurations.
func (l *ledger) walk(ctx context.Context, found func(counter)) error {
	type place struct{ redis, scope string }
	walked := map[place]bool{}
	for _, c := range l.all {
		at := place{c.Redis.String(), c.Scope}
		if walked[at] {
			continue
		}
		walked[at] = true
		store, err := l.store(c)
		if err != nil {
			return err
		}
		for id, err := range store.Identities(ctx, c.Scope) {
			if err != nil {
				return err
			}
			for _, own := range l.of(id) {
				if own.Scope == c.Scope && own.Redis == c.Redis {
					found(own)
				}
			}
		}
	}
	return nil
}

func mostUsed(rows []row, top int) []row {
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.share(), a.share()), cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Where, b.Where), cmp.Compare(a.Limit, b.Limit))
	})
	return rows[:min(top, len(rows))]
}

func show(out io.Writer, output string, rows []row) error {
	if output == "json" {
		if rows == nil {
			rows = []row{}
		}
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(rows)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "Nobody has used anything.")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var problems []error
	line := func(format string, args ...any) {
		_, err := fmt.Fprintf(table, format, args...)
		problems = append(problems, err)
	}
	line("WHO\tWHERE\tLIMIT\tUSED\tOF\tREMAINING\tFULL AGAIN\n")
	for _, r := range rows {
		full := "now"
		if r.FullAt != nil {
			full = r.FullAt.Local().Format("2006-01-02 15:04:05 MST")
		}
		line("%s\t%s\t%s\t%d\t%d\t%d\t%s\n", r.Who, r.Where, r.Limit, r.Used, r.Of, r.Remaining, full)
	}
	return errors.Join(append(problems, table.Flush())...)
}
