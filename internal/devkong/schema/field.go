// Package schema is the part of Kong's schema language that a plugin's dump can
// use: it reads a schema as strictly as Kong does, fills defaults and validates,
// with Kong's own error texts.
//
// Values are those of encoding/json: map[string]any, []any, string, float64,
// bool, and nil for Kong's null. Facts are from Kong 3.9.3
// (kong/db/schema/init.lua and metaschema.lua).
package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"kong-quota/internal/devkong/strict"
)

// Field is a field's definition.
type Field struct {
	Type           string       `json:"type"`
	Required       *bool        `json:"required"`
	Default        any          `json:"default"`
	Description    string       `json:"description"`
	Reference      string       `json:"reference"` // of a foreign field
	OnDelete       string       `json:"on_delete"`
	Referenceable  bool         `json:"referenceable"`
	Encrypted      bool         `json:"encrypted"`
	Unique         bool         `json:"unique"`
	UniqueAcrossWs bool         `json:"unique_across_ws"`
	Auto           bool         `json:"auto"`
	Immutable      bool         `json:"immutable"`
	Transient      bool         `json:"transient"`
	Err            string       `json:"err"`
	Examples       []any        `json:"examples"`
	Deprecation    *deprecation `json:"deprecation"`
	Elements       *Field       `json:"elements"`
	Keys           *Field       `json:"keys"`
	Values         *Field       `json:"values"`
	Fields         []NamedField `json:"fields"`
	EntityChecks   []Check      `json:"entity_checks"`
	Validators

	definition json.RawMessage // what it was read from
}

// Validators are the attributes that check a value.
type Validators struct {
	Eq         constant   `json:"eq"`
	Ne         constant   `json:"ne"`
	NotOneOf   []any      `json:"not_one_of"`
	OneOf      []any      `json:"one_of"`
	Gt         *float64   `json:"gt"`
	Timestamp  bool       `json:"timestamp"`
	UUID       bool       `json:"uuid"`
	IsRegex    bool       `json:"is_regex"`
	Between    []float64  `json:"between"`
	LenEq      *int       `json:"len_eq"`
	LenMin     *int       `json:"len_min"`
	LenMax     *int       `json:"len_max"`
	StartsWith string     `json:"starts_with"`
	NotMatch   string     `json:"not_match"`
	MatchNone  []pattern  `json:"match_none"`
	Match      string     `json:"match"`
	MatchAll   []pattern  `json:"match_all"`
	MatchAny   *patterns  `json:"match_any"`
	Contains   constant   `json:"contains"`
	Subsets    [][]string `json:"mutually_exclusive_subsets"`
}

// constant is a value that an attribute names; it may be null, which is another
// thing than no attribute.
type constant struct {
	given bool
	value any
}

// UnmarshalJSON reads any value.
func (c *constant) UnmarshalJSON(data []byte) error {
	c.given = true
	c.value = nil
	return json.Unmarshal(data, &c.value)
}

type pattern struct {
	Pattern string `json:"pattern"`
	Err     string `json:"err"`
}

type patterns struct {
	Patterns []string `json:"patterns"`
	Err      string   `json:"err"`
}

// deprecation makes Kong warn; devkong only knows that it is there.
type deprecation struct {
	Message  string `json:"message"`
	Removal  string `json:"removal_in_version"`
	Default  any    `json:"old_default"`
	Replaced []any  `json:"replaced_with"`
}

// UnmarshalJSON reads a definition and refuses attributes that Kong does not know.
func (f *Field) UnmarshalJSON(data []byte) error {
	*f = Field{}
	err := f.overlay(data)
	f.definition = slices.Clone(data)
	return err
}

// overlay replaces the attributes that are in data.
func (f *Field) overlay(data []byte) error {
	type plain Field
	return strict.Decode(data, (*plain)(f))
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
		n.Name = name
		if err := n.Field.UnmarshalJSON(definition); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// required reports whether null is refused.
func (f *Field) required() bool { return f.Required != nil && *f.Required }

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
// none, and records that are required as tables of these, as Kong stores and
// shows them. An explicit null stays one. A required field without default stays
// out, for validation to miss it.
func (f *Field) Fill(value any) any {
	switch v := value.(type) {
	case map[string]any:
		switch f.Type {
		case "record":
			filled := maps.Clone(v)
			for i := range f.Fields {
				field := &f.Fields[i]
				if given, there := v[field.Name]; there {
					filled[field.Name] = field.Fill(given)
				} else if missing, known := field.missing(); known {
					filled[field.Name] = missing
				}
			}
			return filled
		case "map":
			filled := make(map[string]any, len(v))
			for key, item := range v {
				filled[key] = f.Values.Fill(item)
			}
			return filled
		}
	case []any:
		switch f.Type {
		case "array", "set":
			filled := make([]any, 0, len(v))
			for _, item := range v {
				if item = f.Elements.Fill(item); f.Type == "array" || !isScalar(item) || !in(item, filled) {
					filled = append(filled, item)
				}
			}
			return filled
		}
	}
	return value
}

// missing is the value of a field that was not given; false if it stays out.
func (f *Field) missing() (value any, known bool) {
	switch {
	case f.Default != nil && f.Type == "record" && f.required():
		return f.Fill(clone(f.Default)), true
	case f.Default != nil:
		return clone(f.Default), true
	case !f.required():
		return nil, true
	case f.Type == "record":
		return f.Fill(map[string]any{}), true
	}
	return nil, false
}

func isScalar(value any) bool {
	return value == nil || reflect.TypeOf(value).Comparable()
}

// Infer turns texts into the types that the field wants, as Kong does with forms;
// what does not fit stays a text, for validation to refuse.
func (f *Field) Infer(value any) any {
	switch v := value.(type) {
	case string:
		switch f.Type {
		case "array", "set":
			return f.Infer([]any{v})
		case "number", "integer":
			if n, err := strconv.ParseFloat(v, 64); err == nil {
				return n
			}
		case "boolean":
			if v == "true" || v == "false" {
				return v == "true"
			}
		}
		if v == "" {
			return nil
		}
	case []any:
		if f.Type == "array" || f.Type == "set" {
			inferred := make([]any, len(v))
			for i, item := range v {
				inferred[i] = f.Elements.Infer(item)
			}
			return inferred
		}
	case map[string]any:
		inferred := maps.Clone(v)
		for name, item := range v {
			switch child := f.field(name); {
			case f.Type == "map":
				inferred[name] = f.Values.Infer(item)
			case child != nil:
				inferred[name] = child.Infer(item)
			}
		}
		return inferred
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
			} else if f.Values != nil {
				c[name] = f.Values.References(item, replace)
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

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
