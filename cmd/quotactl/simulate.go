package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"kong-quota/internal/kongconfig"
	"kong-quota/internal/settings"
	"kong-quota/quota"
	"kong-quota/quota/memstore"
)

func simulateCommand() *cobra.Command {
	var from source
	var limits []string
	var format string
	var rate, length string
	var callers int
	var each bool
	c := &cobra.Command{
		Use:   "simulate [TRACE]",
		Short: "Try limits on recorded or made-up traffic, in memory",
		Long: `Try limits on traffic, in memory and in the traffic's own time: neither Kong nor Redis
is asked for a decision.

The limits are those of --limit, or of one configuration (--file or --admin, narrowed by
--service, --route). The traffic is a TRACE, - for standard input, or made up by --rate.

A trace has a request in each line: a moment, who is charged, and a cost if it is not 1.
The moment is RFC 3339 or seconds since 1970.

    2026-11-21T09:30:00Z alice
    1795253400.250 bob 5

With --format access-log it is Kong's access log (nginx' combined format), and who is
charged is the client's address.`,
		Example: `  quotactl simulate --limit '{name: minute, limit: 60, window: minute}' --format access-log access.log
  quotactl simulate --limit '{name: second, algorithm: gcra, limit: 10, window: second, burst: 20}' --rate 15/s --for 1m
  quotactl simulate --file kong.yml --service sms trace.txt`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			one, err := from.simulated(c.Context(), limits)
			if err != nil {
				return err
			}
			var traffic iter.Seq2[request, error]
			switch {
			case len(args) == 1 && rate != "":
				return errors.New("--rate and a trace exclude each other")
			case rate != "":
				if traffic, err = madeUp(rate, length, callers); err != nil {
					return err
				}
			case len(args) == 0:
				return errors.New("say what to try: a trace (- for standard input), or --rate")
			default:
				read := readLine
				switch format {
				case "trace":
				case "access-log":
					read = readAccessLog
				default:
					return fmt.Errorf("--format: %q must be trace or access-log", format)
				}
				in := c.InOrStdin()
				if args[0] != "-" {
					file, err := os.Open(args[0])
					if err != nil {
						return err
					}
					defer func() { _ = file.Close() }()
					in = file
				}
				traffic = lines(in, read)
			}
			var decisions io.Writer
			if each {
				decisions = c.OutOrStdout()
			}
			s := &simulation{counted: one, decisions: decisions, progress: c.ErrOrStderr()}
			if err := s.run(c.Context(), traffic); err != nil {
				return err
			}
			return s.write(c.OutOrStdout())
		},
	}
	from.flags(c)
	f := c.Flags()
	f.StringArrayVar(&limits, "limit", nil, "a limit as in kong.yml, such as '{name: day, limit: 5, window: day}'; may be given several times")
	f.StringVar(&format, "format", "trace", "what the trace is: trace or access-log")
	f.StringVar(&rate, "rate", "", "make traffic up: evenly so many requests per s, m or h of each caller, such as 15/s")
	f.StringVar(&length, "for", "1m", "how long the made-up traffic lasts")
	f.IntVar(&callers, "callers", 1, "of how many the made-up traffic is")
	f.BoolVar(&each, "each", false, "print each decision")
	c.MarkFlagsMutuallyExclusive("limit", "file")
	c.MarkFlagsMutuallyExclusive("limit", "admin")
	return c
}

// simulated is the configuration to try.
func (s *source) simulated(ctx context.Context, limits []string) (counted, error) {
	if len(limits) > 0 {
		config := map[string]any{"scope": "simulation"}
		var list []any
		for _, text := range limits {
			var node yaml.Node
			err := yaml.Unmarshal([]byte(text), &node)
			if err == nil && node.IsZero() {
				err = errors.New("must not be empty")
			}
			var limit map[string]any
			if err == nil {
				limit, err = kongconfig.Config(&node)
			}
			if err != nil {
				return counted{}, fmt.Errorf("--limit %q: %w", text, err)
			}
			list = append(list, limit)
		}
		config["limits"] = list
		p := kongconfig.Plugin{Place: kongconfig.Place{File: "command line", Path: "--limit"}, Config: config}
		problems, err := lint(&kongconfig.Configuration{Plugins: []kongconfig.Plugin{p}})
		if err != nil {
			return counted{}, err
		}
		if len(problems) > 0 {
			return counted{}, errors.New(problems[0].String())
		}
		return countersOf(p, settings.Settings{Store: "redis"})
	}
	l, err := s.open(ctx)
	if err != nil {
		return counted{}, err
	}
	if len(l.all) > 1 {
		var which []string
		for _, c := range l.all {
			which = append(which, c.Place.String())
		}
		return counted{}, fmt.Errorf("there are several configurations, choose one with --service or --route:\n  %s", strings.Join(which, "\n  "))
	}
	return l.all[0], nil
}

// outcome is what became of somebody's requests.
type outcome struct{ passed, waited, refused int }

func (o outcome) all() int { return o.passed + o.refused }

// simulation decides traffic.
type simulation struct {
	counted
	decisions io.Writer // nil for none
	progress  io.Writer

	first, last time.Time
	total       outcome
	of          map[string]*outcome // by who
	refusedBy   map[string]int      // by limit
	wait        time.Duration       // the longest
	seconds     map[int64]*outcome  // by second since 1970
}

// identities that the memory holds; above it old ones would start anew.
const identities = 1 << 22

func (s *simulation) run(ctx context.Context, traffic iter.Seq2[request, error]) error {
	store, err := memstore.New(identities)
	if err != nil {
		return err
	}
	s.of, s.refusedBy, s.seconds = map[string]*outcome{}, map[string]int{}, map[int64]*outcome{}
	var own []int // parts of which the trace says who it is
	others := make([]quota.Identity, len(s.Policy.Others()))
	for i, part := range s.Parts {
		if part.Fixed == "" {
			own = append(own, i)
		}
		if part.Identity > 0 {
			others[part.Identity-1] = part.Fixed
		}
	}
	if len(own) > 1 {
		return fmt.Errorf("%s: its limits count %s and %s: a trace has one identity, so try one limit with --limit", s.Place, s.Parts[own[0]].Identify(), s.Parts[own[1]].Identify())
	}
	told := time.Now()
	for r, err := range traffic {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.at.Before(s.last) {
			return fmt.Errorf("a request of %s comes after one of %s: sort the trace by time", r.at.Format(time.RFC3339Nano), s.last.Format(time.RFC3339Nano))
		}
		id := quota.NewIdentity("caller", r.who)
		q := quota.Request{Scope: s.Scope, Identity: id, Others: slices.Clone(others), Policy: s.Policy, Cost: r.cost, Now: r.at}
		for _, part := range s.Parts {
			switch {
			case part.Identity == 0 && part.Fixed != "":
				q.Identity = part.Fixed
			case part.Identity > 0 && part.Fixed == "":
				q.Others[part.Identity-1] = id
			}
		}
		d, err := store.Spend(ctx, q)
		if err != nil {
			return err
		}
		s.count(r, d)
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			fmt.Fprintf(s.progress, "%d requests, up to %s …\n", s.total.all(), r.at.Format(time.RFC3339))
		}
	}
	return nil
}

func (s *simulation) count(r request, d quota.Decision) {
	if s.first.IsZero() {
		s.first = r.at
	}
	s.last = r.at
	second := r.at.Unix()
	if s.of[r.who] == nil {
		s.of[r.who] = &outcome{}
	}
	if s.seconds[second] == nil {
		s.seconds[second] = &outcome{}
	}
	for _, o := range []*outcome{&s.total, s.of[r.who], s.seconds[second]} {
		switch {
		case d.State == quota.OverQuota:
			o.refused++
		default:
			o.passed++
			if d.Wait > 0 {
				o.waited++
			}
		}
	}
	s.wait = max(s.wait, d.Wait)
	for _, l := range d.Limits {
		if l.Refused() {
			s.refusedBy[l.Name]++
		}
	}
	if s.decisions != nil {
		fmt.Fprintf(s.decisions, "%s %s %d %s", r.at.UTC().Format("2006-01-02T15:04:05.000000Z"), r.who, r.cost, d.State)
		for _, l := range d.Limits {
			fmt.Fprintf(s.decisions, " %s=%d/%d", l.Name, l.Remaining, l.Limit)
		}
		switch retry := d.RetryAfter(); {
		case retry == quota.Never:
			fmt.Fprint(s.decisions, " retry=never")
		case retry > 0:
			fmt.Fprintf(s.decisions, " retry=%s", retry)
		case d.Wait > 0:
			fmt.Fprintf(s.decisions, " wait=%s", d.Wait)
		}
		fmt.Fprintln(s.decisions)
	}
}

// columns of the drawing, and who is listed at most.
const (
	columns = 60
	listed  = 10
)

func (s *simulation) write(out io.Writer) error {
	if s.total.all() == 0 {
		_, err := fmt.Fprintln(out, "There was no request.")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format, args...) } // Flush tells
	share := func(n int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(s.total.all())) }
	callers := "callers"
	if len(s.of) == 1 {
		callers = "caller"
	}
	line("%d requests of %d %s, %s to %s\n", s.total.all(), len(s.of), callers, s.first.UTC().Format(time.RFC3339), s.last.UTC().Format(time.RFC3339))
	line("passed\t%d\t%s\n", s.total.passed, share(s.total.passed))
	if s.total.waited > 0 {
		line("  after a wait\t%d\t%s, of up to %s\n", s.total.waited, share(s.total.waited), s.wait)
	}
	line("refused\t%d\t%s\n", s.total.refused, share(s.total.refused))
	for _, name := range slices.Sorted(maps.Keys(s.refusedBy)) {
		line("  by %s\t%d\t%s\n", name, s.refusedBy[name], share(s.refusedBy[name]))
	}
	if err := table.Flush(); err != nil {
		return err
	}

	each := max(1, (s.last.Unix()-s.first.Unix())/columns+1)
	passed, refused := make([]int, columns), make([]int, columns)
	most := 0
	for second, o := range s.seconds {
		at := (second - s.first.Unix()) / each
		passed[at] += o.passed
		refused[at] += o.refused
		most = max(most, passed[at], refused[at])
	}
	line("\n")
	line("passed\t%s\tup to %d in %s\n", draw(passed, most), slices.Max(passed), time.Duration(each)*time.Second)
	line("refused\t%s\tup to %d\n", draw(refused, most), slices.Max(refused))
	if s.total.refused > 0 {
		line("\nMOST REFUSED\tREQUESTS\tPASSED\tREFUSED\n")
		worst := slices.SortedFunc(maps.Keys(s.of), func(a, b string) int {
			return cmp.Or(cmp.Compare(s.of[b].refused, s.of[a].refused), cmp.Compare(a, b))
		})
		for _, who := range worst[:min(listed, len(worst))] {
			if o := s.of[who]; o.refused > 0 {
				line("%s\t%d\t%d\t%d\n", who, o.all(), o.passed, o.refused)
			}
		}
	}
	return table.Flush()
}

// draw makes a bar of each number.
func draw(numbers []int, most int) string {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, n := range numbers {
		at := 0
		if n > 0 {
			at = 1 + (n*(len(bars)-2))/max(1, most)
		}
		b.WriteRune(bars[at])
	}
	return strings.TrimRight(b.String(), " ")
}
