// Package schema is the part of Kong's schema language that a plugin's dump can
// use: it reads a schema as strictly as Kong does, fills defaults and validates,
// with Kong's own error texts.
//
// Values are those of encoding/json: map[string]any, []any, string, float64,
// bool, and nil for Kong's null. Facts are from Kong 3.9.3
// (kong/db/schema/init.lua and metaschema.lua).
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Field is a field's definition.
type Field struct {
	Type          string       `json:"type"`
	Required      bool         `json:"required"`
	Default       any          `json:"default"`
	Description   string       `json:"description"`
	Referenceable bool         `json:"referenceable"`
	Encrypted     bool         `json:"encrypted"`
	Unique        bool         `json:"unique"`
	Auto          bool         `json:"auto"`
	Immutable     bool         `json:"immutable"`
	Err           string       `json:"err"`
	Examples      []any        `json:"examples"`
	Elements      *Field       `json:"elements"`
	Keys          *Field       `json:"keys"`
	Values        *Field       `json:"values"`
	Fields        []NamedField `json:"fields"`
	EntityChecks  []Check      `json:"entity_checks"`
	Validators

	definition json.RawMessage // what it was read from
}

// Validators are the attributes that check a value.
type Validators struct {
	Eq         *any      `json:"eq"`
	Ne         *any      `json:"ne"`
	NotOneOf   []any     `json:"not_one_of"`
	OneOf      []any     `json:"one_of"`
	Gt         *float64  `json:"gt"`
	Timestamp  bool      `json:"timestamp"`
	UUID       bool      `json:"uuid"`
	IsRegex    bool      `json:"is_regex"`
	Between    []float64 `json:"between"`
	LenEq      *int      `json:"len_eq"`
	LenMin     *int      `json:"len_min"`
	LenMax     *int      `json:"len_max"`
	StartsWith string    `json:"starts_with"`
	NotMatch   string    `json:"not_match"`
	MatchNone  []pattern `json:"match_none"`
	Match      string    `json:"match"`
	MatchAll   []pattern `json:"match_all"`
	MatchAny   *patterns `json:"match_any"`
	Contains   *any      `json:"contains"`
}

type pattern struct {
	Pattern string `json:"pattern"`
	Err     string `json:"err"`
}

type patterns struct {
	Patterns []string `json:"patterns"`
	Err      string   `json:"err"`
}

// NamedField is a field of a record: a table with the name as its only key.
type NamedField struct {
	Name string
	Field
}

// UnmarshalJSON reads {"name": {…}}.
func (n *NamedField) UnmarshalJSON(data []byte) error {
	var table map[string]json.RawMessage
	if err := json.Unmarshal(data, &table); err != nil {
		return err
	}
	if len(table) != 1 {
		return fmt.Errorf("a record's field has one name, not %d", len(table))
	}
	for name, definition := range table {
		n.Name, n.definition = name, definition
		if err := strict(definition, &n.Field); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// strict decodes and refuses attributes that the type does not have.
func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// Plugin is the schema of a plugin: its configuration's record.
type Plugin struct {
	Name   string
	Config Field
}

// ReadPlugin reads the Schema of a plugin's dump, and refuses what Kong refuses
// to start with.
func ReadPlugin(data []byte) (*Plugin, error) {
	var dumped struct {
		Name   string       `json:"name"`
		Fields []NamedField `json:"fields"`
	}
	if err := strict(data, &dumped); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	p := &Plugin{Name: dumped.Name}
	found := false
	for _, f := range dumped.Fields {
		if f.Name == "config" {
			p.Config, found = f.Field, true
		}
	}
	if !found || p.Config.Type != "record" {
		return nil, errors.New("schema: there must be a field config of type record")
	}
	if problems := p.Config.check("config"); len(problems) > 0 {
		return nil, fmt.Errorf("schema: %w", errors.Join(problems...))
	}
	return p, nil
}

var types = []string{"array", "boolean", "foreign", "function", "integer", "json", "map", "number", "record", "set", "string", "any"}

// check finds what Kong's schema of schemas refuses, and a default that the field
// itself would refuse.
func (f *Field) check(path string) []error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
	if !slices.Contains(types, f.Type) {
		refuse("invalid type: %s", f.Type)
	}
	if n := len(f.Description); n > 0 && n < 10 || n > 500 {
		refuse("description has %d characters; Kong wants 10 to 500", n)
	}
	switch {
	case (f.Type == "array" || f.Type == "set") && f.Elements == nil:
		refuse("an %s needs elements", f.Type)
	case f.Type == "map" && (f.Keys == nil || f.Values == nil):
		refuse("a map needs keys and values")
	case f.Type == "record" && len(f.Fields) == 0:
		refuse("a record needs fields")
	}
	if f.Between != nil && len(f.Between) != 2 {
		refuse("between needs two numbers")
	}
	for _, child := range []*Field{f.Elements, f.Keys, f.Values} {
		if child != nil {
			problems = append(problems, child.check(path+"[]")...)
		}
	}
	for i := range f.Fields {
		problems = append(problems, f.Fields[i].check(path+"."+f.Fields[i].Name)...)
	}
	for _, c := range f.EntityChecks {
		for _, name := range c.names() {
			if f.lookup(name) == nil {
				refuse("entity check %s names the field %q, which is none", c.name, name)
			}
		}
	}
	if f.Default != nil && len(problems) == 0 {
		if err := f.validate(f.Fill(f.Default)); err != nil {
			refuse("its default %v is refused: %v", f.Default, err)
		}
	}
	return problems
}

// field finds a record's own field.
func (f *Field) field(name string) *Field {
	for i := range f.Fields {
		if f.Fields[i].Name == name {
			return &f.Fields[i].Field
		}
	}
	return nil
}

// Fill returns the value with what was left out: defaults, null where there is
// none, and records as tables of these, as Kong stores and shows them.
func (f *Field) Fill(value any) any {
	if value == nil {
		value = clone(f.Default)
	}
	switch f.Type {
	case "record":
		given, ok := value.(map[string]any)
		if value != nil && !ok {
			return value
		}
		filled := make(map[string]any, len(f.Fields))
		for name, v := range given {
			filled[name] = v
		}
		for i := range f.Fields {
			filled[f.Fields[i].Name] = f.Fields[i].Fill(filled[f.Fields[i].Name])
		}
		return filled
	case "array", "set":
		list, ok := value.([]any)
		if !ok {
			return value
		}
		filled := make([]any, len(list))
		for i, v := range list {
			filled[i] = v
			if v != nil {
				filled[i] = f.Elements.Fill(v)
			}
		}
		return filled
	}
	return value
}

func clone(value any) any {
	switch v := value.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for name, item := range v {
			c[name] = clone(item)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, item := range v {
			c[i] = clone(item)
		}
		return c
	}
	return value
}

// References calls replace for every text of a referenceable field and puts in
// what it returns. The value is not changed; the copy is returned.
func (f *Field) References(value any, replace func(string) string) any {
	switch v := value.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for name, item := range v {
			c[name] = item
			if child := f.field(name); child != nil {
				c[name] = child.References(item, replace)
			}
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, item := range v {
			c[i] = item
			if f.Elements != nil {
				c[i] = f.Elements.References(item, replace)
			}
		}
		return c
	case string:
		if f.Referenceable {
			return replace(v)
		}
	}
	return value
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
