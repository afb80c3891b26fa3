package schema

import (
	"encoding/json"
	"fmt"
	"slices"
)

// types are those of Kong's fields. A function cannot come from a dump, and a
// json field needs a schema of JSON, which devkong does not have.
var types = []string{"array", "boolean", "foreign", "integer", "map", "number", "record", "set", "string"}

// only are the attributes that Kong has for some types alone.
var only = []struct {
	attribute string
	given     func(*Field) bool
	types     []string
}{
	{"between", func(f *Field) bool { return f.Between != nil }, []string{"integer", "number"}},
	{"len_eq", func(f *Field) bool { return f.LenEq != nil }, []string{"array", "set", "string", "map"}},
	{"match", func(f *Field) bool { return f.Match != "" }, []string{"string"}},
	{"one_of", func(f *Field) bool { return f.OneOf != nil }, []string{"string", "number", "integer"}},
	{"contains", func(f *Field) bool { return f.Contains.given }, []string{"array", "set"}},
	{"is_regex", func(f *Field) bool { return f.IsRegex }, []string{"string"}},
	{"timestamp", func(f *Field) bool { return f.Timestamp }, []string{"number", "integer"}},
	{"uuid", func(f *Field) bool { return f.UUID }, []string{"string"}},
	{"unique", func(f *Field) bool { return f.Unique }, []string{"string", "number", "integer", "foreign"}},
	{"unique_across_ws", func(f *Field) bool { return f.UniqueAcrossWs }, []string{"string", "number", "integer", "foreign"}},
	{"transient", func(f *Field) bool { return f.Transient }, []string{"string", "number", "integer", "array", "set", "boolean"}},
}

// check finds what Kong's schema of schemas refuses, and a default that the field
// itself would refuse. It also refuses what Kong would only trip over with a
// value: patterns that are malformed, and checks of fields that are not there.
func (f *Field) check(path string) []error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
	if !slices.Contains(types, f.Type) {
		refuse("invalid type: %s", f.Type)
	}
	var said struct {
		Description *string `json:"description"`
	}
	if json.Unmarshal(f.definition, &said) == nil && said.Description != nil {
		if n := len(*said.Description); n < 10 || n > 500 {
			refuse("description has %d characters; Kong wants 10 to 500", n)
		}
	}
	for _, a := range only {
		if a.given(f) && !slices.Contains(a.types, f.Type) {
			refuse("field of type '%s' cannot have attribute '%s'", f.Type, a.attribute)
		}
	}
	for attribute, missing := range map[string]bool{
		"elements": (f.Type == "array" || f.Type == "set") && f.Elements == nil,
		"keys":     f.Type == "map" && f.Keys == nil,
		"values":   f.Type == "map" && f.Values == nil,
		"fields":   f.Type == "record" && f.Fields == nil,
	} {
		if missing {
			refuse("field of type '%s' must declare '%s'", f.Type, attribute)
		}
	}
	if f.Between != nil && len(f.Between) != 2 {
		refuse("between: length must be 2")
	}
	if f.UniqueAcrossWs && !f.Unique {
		refuse("unique_across_ws needs unique")
	}
	for _, p := range f.patterns() {
		if err := checkPattern(p); err != nil {
			refuse("pattern %q: %v", p, err)
		}
	}
	for _, child := range []*Field{f.Elements, f.Keys, f.Values} {
		if child != nil {
			problems = append(problems, child.check(path+"[]")...)
		}
	}
	for i := range f.Fields {
		problems = append(problems, f.Fields[i].check(path+"."+f.Fields[i].Name)...)
	}
	problems = append(problems, f.checkEntityChecks(path)...)
	if f.Default != nil && len(problems) == 0 {
		if err := f.validate(f.Fill(f.Default)); err != nil {
			refuse("its default %v is refused: %v", f.Default, err)
		}
	}
	return problems
}

func (f *Field) checkEntityChecks(path string) (problems []error) {
	for i := range f.EntityChecks {
		if err := f.EntityChecks[i].resolve(f); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", path, err))
		}
	}
	return problems
}
