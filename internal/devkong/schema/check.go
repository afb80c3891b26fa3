package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Check is an entity check of a record: what one field requires of others.
type Check struct {
	name      string
	fields    []string   // of every check but conditional
	condition *condition // of conditional
}

type condition struct {
	IfField   string `json:"if_field"`
	IfMatch   match  `json:"if_match"`
	ThenField string `json:"then_field"`
	ThenMatch match  `json:"then_match"`
	ThenErr   string `json:"then_err"`
}

// match is what a conditional asks of a field, on top of the field's own
// definition, whose attributes it replaces one by one.
type match struct {
	attributes json.RawMessage
	Required   *bool  `json:"required"`
	Elements   *Field `json:"elements"`
	Validators
}

// UnmarshalJSON keeps the attributes, to lay them over a field's.
func (m *match) UnmarshalJSON(data []byte) error {
	type plain match
	if err := strict(data, (*plain)(m)); err != nil {
		return err
	}
	m.attributes = data
	return nil
}

// over gives the field with the match's attributes in place of its own.
func (m *match) over(f *Field) (*Field, error) {
	merged := new(Field)
	for _, attributes := range []json.RawMessage{f.definition, m.attributes} {
		if err := json.Unmarshal(attributes, merged); err != nil {
			return nil, err
		}
	}
	return merged, nil
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
		case "conditional":
			c.condition = &condition{}
			err = strict(arguments, c.condition)
		case "at_least_one_of", "only_one_of", "mutually_required", "mutually_exclusive":
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

func (c Check) names() []string {
	if c.condition != nil {
		return []string{c.condition.IfField, c.condition.ThenField}
	}
	return c.fields
}

// run adds the check's errors to those of the record.
func (c Check) run(record *Field, table, errs map[string]any) {
	for _, name := range c.names() {
		// A reference is not known yet: nothing is asked of it.
		if text, ok := get(table, name).(string); ok && record.lookup(name).Referenceable && IsReference(text) {
			return
		}
	}
	var set []string
	for _, name := range c.fields {
		if !empty(get(table, name)) {
			set = append(set, name)
		}
	}
	problem := ""
	switch c.name {
	case "at_least_one_of":
		if len(set) == 0 {
			problem = "at least one of these fields must be non-empty: " + quoted(c.fields)
		}
	case "only_one_of":
		if len(set) != 1 {
			problem = "exactly one of these fields must be non-empty: " + quoted(c.fields)
		}
	case "mutually_required":
		if len(set) != 0 && len(set) != len(c.fields) {
			problem = "all or none of these fields must be set: " + quoted(c.fields)
		}
	case "mutually_exclusive":
		if len(set) > 1 {
			problem = "only one or none of these fields must be set: " + quoted(c.fields)
		}
	case "conditional":
		problem = c.condition.run(record, table, errs)
	}
	if problem != "" {
		list, _ := errs[entity].([]any)
		errs[entity] = append(list, problem)
	}
}

// run is Kong's conditional, with its surprise: a null meets every if_match that
// has neither eq nor required.
func (c *condition) run(record *Field, table, errs map[string]any) string {
	condition, err := c.IfMatch.over(record.lookup(c.IfField))
	if err != nil {
		return err.Error()
	}
	if condition.validate(get(table, c.IfField)) != nil {
		return ""
	}
	consequence, err := c.ThenMatch.over(record.lookup(c.ThenField))
	if err != nil {
		return err.Error()
	}
	problem := consequence.validate(get(table, c.ThenField))
	if problem == nil {
		return ""
	}
	put(errs, c.ThenField, problem)
	return or(strings.Replace(c.ThenErr, "%s", c.IfField, 1), fmt.Sprintf("failed conditional validation given value of field '%s'", c.IfField))
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

func get(table map[string]any, path string) any {
	name, rest, nested := strings.Cut(path, ".")
	if !nested {
		return table[name]
	}
	inner, _ := table[name].(map[string]any)
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

func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
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
