package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kong-quota/internal/devkong/schema"
	"kong-quota/internal/kongconfig"
	"kong-quota/internal/settings"
	"kong-quota/plugin"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
)

func lintCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check quotas in kong.yml and in manifests (KongPlugin, KongClusterPlugin)",
		Long: `Check quotas before Kong sees them: what Kong's Admin API would refuse, what would
not start, and what would start and count wrong. Files are declarative configurations
or Kubernetes manifests, with what belongs together in one call.

What cannot be looked at, such as a Secret of the cluster, is noted. Exit status 1 if
something is wrong.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, files []string) error {
			configuration, err := kongconfig.Read(files...)
			if err != nil {
				return err
			}
			problems, err := lint(configuration)
			if err != nil {
				return err
			}
			wrong := 0
			for _, p := range problems {
				fmt.Fprintln(c.OutOrStdout(), p)
				if !p.Note {
					wrong++
				}
			}
			fmt.Fprintf(c.ErrOrStderr(), "%d configurations of quota, %d problems\n", len(configuration.Plugins), wrong)
			if wrong > 0 {
				return errFound
			}
			return nil
		},
	}
}

// lint finds what is wrong with a configuration, in the order of the files.
func lint(c *kongconfig.Configuration) ([]kongconfig.Problem, error) {
	text, err := json.Marshal(plugin.Schema())
	if err != nil {
		return nil, err
	}
	rules, err := schema.ReadPlugin(text)
	if err != nil {
		return nil, err
	}
	problems := slices.Clone(c.Problems)
	var good []counted
	for _, p := range c.Plugins {
		one, found := check(p, rules)
		if len(found) == 0 && !p.Disabled {
			good = append(good, one)
		}
		problems = append(problems, found...)
	}
	problems = append(problems, disagreements(good)...)
	slices.SortStableFunc(problems, func(a, b kongconfig.Problem) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		return a.Line - b.Line
	})
	return problems, nil
}

// check finds what Kong's schema refuses, and what the plugin refuses when it starts.
// What is neither counts.
func check(p kongconfig.Plugin, rules *schema.Plugin) (one counted, problems []kongconfig.Problem) {
	filled, violations := rules.Config.Validate(map[string]any(p.Config))
	each(violations, "", func(field, message string) {
		problems = append(problems, kongconfig.Problem{Place: p.At(field), Message: message})
	})
	if len(problems) > 0 {
		return counted{}, problems
	}
	p.Config, _ = filled.(map[string]any)
	one, err := countersOf(p, settings.Settings{Store: "redis"})
	for _, err := range all(err) {
		var field *quota.FieldError
		if errors.As(err, &field) {
			message, _ := strings.CutPrefix(err.Error(), field.Field+": ")
			problems = append(problems, kongconfig.Problem{Place: p.At(field.Field), Message: message})
		} else {
			problems = append(problems, kongconfig.Problem{Place: p.At(""), Message: err.Error()})
		}
	}
	return one, problems
}

// each walks a tree of errors as Kong's schema makes them. What is wrong with a
// record as a whole is under @entity.
func each(errs any, field string, found func(field, message string)) {
	switch v := errs.(type) {
	case nil:
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			inner := strings.TrimPrefix(field+"."+name, ".")
			if strings.HasPrefix(name, "@") {
				inner = field
			}
			if list, ok := v[name].([]any); ok && inner == field {
				for _, message := range list {
					found(field, fmt.Sprint(message))
				}
				continue
			}
			each(v[name], inner, found)
		}
	case []any:
		for i, item := range v {
			each(item, fmt.Sprintf("%s[%d]", field, i+1), found)
		}
	default:
		found(field, fmt.Sprint(v))
	}
}

// all takes joined errors apart.
func all(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var apart []error
		for _, e := range joined.Unwrap() {
			apart = append(apart, all(e)...)
		}
		return apart
	}
	return []error{err}
}

// disagreements finds configurations that restart each other's counters: they count
// the same limit of the same callers in the same scope, in different ways.
func disagreements(all []counted) (problems []kongconfig.Problem) {
	type counter struct {
		redis          redisstore.Connection
		scope          string
		consumer       string
		identify, name string
	}
	type seen struct {
		shape string
		at    kongconfig.Place
	}
	first := map[counter]seen{}
	for _, c := range all {
		if c.Elsewhere {
			continue
		}
		for _, part := range c.Parts {
			for i, rule := range part.Policy.Rules() {
				counter := counter{c.Redis, c.Scope, c.Consumer.String(), part.Identify(), rule.Limit.Name}
				at := c.At(fmt.Sprintf("limits[%d]", part.Limits[i]+1))
				other, there := first[counter]
				if !there {
					first[counter] = seen{rule.Shape, at}
				} else if other.shape != rule.Shape {
					problems = append(problems, kongconfig.Problem{Place: at, Message: fmt.Sprintf(
						"limit %q counts in the same place as that of %s, but differs in algorithm, window or alignment: each request to one restarts the counter of the other", rule.Limit.Name, other.at)})
				}
			}
		}
	}
	return problems
}
