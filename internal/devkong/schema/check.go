package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"kong-quota/internal/devkong/strict"
)

// Check is an entity check of a record: what one field requires of others. Fields
// are named by paths, with dots into records.
type Check struct {
	name      string
	fields    []string // of those that are a list of fields
	condition *condition
	sets      *sets
}

// condition is the argument of conditional, and of conditional_at_least_one_of
// with its lists of fields.
type condition struct {
	IfField   string   `json:"if_field"`
	IfMatch   match    `json:"if_match"`
	ThenField string   `json:"then_field"`
	ThenMatch match    `json:"then_match"`
	ThenOneOf []string `json:"then_at_least_one_of"`
	ThenErr   string   `json:"then_err"`
	ElseMatch *match   `json:"else_match"`
	ElseOneOf []string `json:"else_then_at_least_one_of"`
	ElseErr   string   `json:"else_then_err"`
}

type sets struct {
	Set1 []string `json:"set1"`
	Set2 []string `json:"set2"`
}

// match is what a conditional asks of a field, on top of the field's own
// definition, whose attributes it replaces one by one.
type match struct {
	attributes json.RawMessage
	field      *Field // with the attributes in place, once resolved
}

// UnmarshalJSON keeps the attributes, to lay them over a field's.
func (m *match) UnmarshalJSON(data []byte) error {
	var allowed struct {
		Required *bool  `json:"required"`
		Elements *Field `json:"elements"`
		Keys     *Field `json:"keys"`
		Values   *Field `json:"values"`
		Validators
	}
	if err := strict.Decode(data, &allowed); err != nil {
		return err
	}
	m.attributes = slices.Clone(data)
	for _, p := range allowed.patterns() {
		if err := checkPattern(p); err != nil {
			return fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	return nil
}

// over lays the attributes over those of the field, which is read once more:
// decoding into a copy of it would write into the lists that both share.
func (m *match) over(f *Field) error {
	m.field = new(Field)
	if err := m.field.overlay(f.definition); err != nil {
		return err
	}
	m.field.Required = f.Required
	if len(m.attributes) == 0 {
		return nil
	}
	return m.field.overlay(m.attributes)
}

// UnmarshalJSON reads {"check": arguments}.
func (c *Check) UnmarshalJSON(data []byte) error {
	var table map[string]json.RawMessage
	if err := json.Unmarshal(data, &table); err != nil {
		return err
	}
	if len(table) != 1 {
		return errors.New("an entity check has one name")
	}
	for name, arguments := range table {
		c.name = name
		var err error
		switch name {
		case "conditional", "conditional_at_least_one_of":
			c.condition = &condition{}
			err = strict.Decode(arguments, c.condition)
		case "mutually_exclusive_sets":
			c.sets = &sets{}
			err = strict.Decode(arguments, c.sets)
		case "at_least_one_of", "only_one_of", "distinct", "mutually_required", "mutually_exclusive":
			err = json.Unmarshal(arguments, &c.fields)
		default:
			err = errors.New("devkong does not know this entity check")
		}
		if err != nil {
			return fmt.Errorf("entity check %s: %w", name, err)
		}
	}
	return nil
}

// names are the fields that the check looks at.
func (c *Check) names() []string {
	switch {
	case c.name == "conditional":
		return []string{c.condition.IfField, c.condition.ThenField}
	case c.condition != nil:
		return slices.Concat([]string{c.condition.IfField}, c.condition.ThenOneOf, c.condition.ElseOneOf)
	case c.sets != nil:
		return slices.Concat(c.sets.Set1, c.sets.Set2)
	}
	return c.fields
}

// resolve finds the fields that the check names in its record.
func (c *Check) resolve(record *Field) error {
	for _, name := range c.names() {
		if record.lookup(name) == nil {
			return fmt.Errorf("entity check %s names the field %q, which is none", c.name, name)
		}
	}
	if c.condition == nil {
		return nil
	}
	err := c.condition.IfMatch.over(record.lookup(c.condition.IfField))
	if c.condition.ElseMatch != nil {
		err = errors.Join(err, c.condition.ElseMatch.over(record.lookup(c.condition.IfField)))
	}
	if c.name == "conditional" {
		err = errors.Join(err, c.condition.ThenMatch.over(record.lookup(c.condition.ThenField)))
	}
	return err
}

// needed are the fields without which the check does not run: one that is not
// there, be it as null, is reported instead.
func (c *Check) needed() []string {
	switch c.name {
	case "conditional":
		return []string{c.condition.IfField}
	case "only_one_of", "distinct":
		return c.fields
	}
	return nil
}

// run adds the check's errors to those of the record.
func (c *Check) run(record *Field, table, errs map[string]any) {
	anything, invalid := false, false
	for _, name := range c.names() {
		value, there := get(table, name)
		anything = anything || there
		if text, ok := value.(string); ok && record.lookup(name).Referenceable && IsReference(text) {
			return // what it refers to is not known yet
		}
		_, wrong := errs[name]
		invalid = invalid || wrong
	}
	switch c.name {
	case "mutually_required", "mutually_exclusive", "mutually_exclusive_sets":
		if invalid {
			return // Kong's other checks run with fields that are wrong themselves
		}
	case "conditional", "only_one_of", "distinct":
		if !anything {
			return
		}
	}
	missing := false
	for _, name := range c.needed() {
		if _, there := get(table, name); !there {
			put(errs, name, "field required for entity check")
			missing = true
		}
	}
	if missing {
		return
	}
	if problem := c.problem(table, errs); problem != "" {
		list, _ := errs[entity].([]any)
		errs[entity] = append(list, problem)
	}
}

// problem is the text of what is wrong, "" for nothing.
func (c *Check) problem(table, errs map[string]any) string {
	set := given(table, c.fields)
	switch c.name {
	case "at_least_one_of":
		if len(set) == 0 {
			return atLeastOne + quoted(c.fields)
		}
	case "only_one_of":
		if len(set) != 1 {
			return "exactly one of these fields must be non-empty: " + quoted(c.fields)
		}
	case "distinct":
		for i, name := range set {
			for _, other := range set[:i] {
				a, _ := get(table, name)
				b, _ := get(table, other)
				if reflect.DeepEqual(a, b) {
					return "values of these fields must be distinct: " + quoted(c.fields)
				}
			}
		}
	case "mutually_required":
		if len(set) != 0 && len(set) != len(c.fields) {
			return "all or none of these fields must be set: " + quoted(c.fields)
		}
	case "mutually_exclusive":
		if len(set) > 1 {
			return "only one or none of these fields must be set: " + quoted(c.fields)
		}
	case "mutually_exclusive_sets":
		first, second := given(table, c.sets.Set1), given(table, c.sets.Set2)
		if len(first) > 0 && len(second) > 0 {
			return fmt.Sprintf("these sets are mutually exclusive: (%s), (%s)", quoted(first), quoted(second))
		}
	case "conditional":
		return c.condition.conditional(table, errs)
	case "conditional_at_least_one_of":
		return c.condition.atLeastOneOf(table)
	}
	return ""
}

const atLeastOne = "at least one of these fields must be non-empty: "

// conditional is Kong's, with its surprises: a null meets every if_match that has
// neither eq nor required, and then_err is not used where a required field is missing,
// also where only its own definition requires it (there from a worker's second time
// on; see testdata/kong_schema.lua).
func (c *condition) conditional(table, errs map[string]any) string {
	value, _ := get(table, c.IfField)
	if c.IfMatch.field.validate(value) != nil {
		return ""
	}
	own := fmt.Sprintf("failed conditional validation given value of field '%s'", c.IfField)
	value, _ = get(table, c.ThenField)
	if c.ThenMatch.field.required() && value == nil {
		put(errs, c.ThenField, missingField)
		return own
	}
	problem := c.ThenMatch.field.validate(value)
	if problem == nil {
		return ""
	}
	put(errs, c.ThenField, problem)
	return or(strings.Replace(c.ThenErr, "%s", c.IfField, 1), own)
}

func (c *condition) atLeastOneOf(table map[string]any) string {
	value, there := get(table, c.IfField)
	if !there {
		return ""
	}
	names, text := c.ThenOneOf, c.ThenErr
	if c.IfMatch.field.validate(value) != nil {
		if c.ElseMatch == nil || c.ElseMatch.field.validate(value) != nil {
			return ""
		}
		names, text = c.ElseOneOf, c.ElseErr
	}
	if len(given(table, names)) > 0 {
		return ""
	}
	return or(strings.Replace(text, "%s", quoted(names), 1), atLeastOne+quoted(names))
}

// given are the names of the fields that are not empty.
func given(table map[string]any, names []string) (set []string) {
	for _, name := range names {
		if value, _ := get(table, name); !empty(value) {
			set = append(set, name)
		}
	}
	return set
}

// lookup finds a field by its path, with dots into records.
func (f *Field) lookup(path string) *Field {
	for _, name := range strings.Split(path, ".") {
		if f = f.field(name); f == nil {
			return nil
		}
	}
	return f
}

// get finds a value by its path; it is not there inside a record that is null.
func get(table map[string]any, path string) (value any, there bool) {
	name, rest, nested := strings.Cut(path, ".")
	value, there = table[name]
	if !nested {
		return value, there
	}
	inner, _ := value.(map[string]any)
	return get(inner, rest)
}

func put(table map[string]any, path string, value any) {
	name, rest, nested := strings.Cut(path, ".")
	if !nested {
		table[name] = value
		return
	}
	inner, ok := table[name].(map[string]any)
	if !ok {
		inner = map[string]any{}
		table[name] = inner
	}
	put(inner, rest, value)
}

// empty is Kong's: null, and texts and tables without anything in them.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func quoted(names []string) string {
	return "'" + strings.Join(names, "', '") + "'"
}
