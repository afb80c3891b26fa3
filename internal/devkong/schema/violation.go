package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Violation is the body of Kong's Admin API for a value that a schema refuses.
type Violation struct {
	Code    int            `json:"code"`
	Name    string         `json:"name"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields"`
}

// NewViolation writes Kong's message for a tree of errors.
func NewViolation(errs map[string]any) *Violation {
	var parts []string
	if list, ok := errs[entity].([]any); ok {
		for _, problem := range list {
			parts = append(parts, fmt.Sprint(problem))
		}
	}
	for _, name := range sortedKeys(errs) {
		if name == entity {
			continue
		}
		table, ok := errs[name].(map[string]any)
		if !ok {
			parts = append(parts, name+": "+pretty(errs[name], ""))
			continue
		}
		for _, sub := range sortedKeys(table) {
			parts = append(parts, name+"."+sub+": "+pretty(table[sub], ""))
		}
	}
	message := fmt.Sprintf("%d schema violations (%s)", len(parts), strings.Join(parts, "; "))
	if len(parts) == 1 {
		message = "schema violation (" + parts[0] + ")"
	}
	return &Violation{Code: 2, Name: "schema violation", Message: message, Fields: errs}
}

func (v *Violation) Error() string { return v.Message }

// keywords are Lua's, which Penlight does not write as bare names.
var keywords = strings.Fields("and break do else elseif end false for function if in local nil not or repeat return then true until while")

// pretty writes a tree of errors as Penlight's pretty.write, which Kong uses.
func pretty(value any, indent string) string {
	inner := indent + "  "
	var lines []string
	switch v := value.(type) {
	case []any:
		gap := false
		for i, item := range v {
			switch {
			case item == nil:
				gap = true
			case gap:
				lines = append(lines, inner+"["+strconv.Itoa(i+1)+"] = "+nested(item, inner))
			default:
				lines = append(lines, inner+nested(item, inner))
			}
		}
	case map[string]any:
		for _, name := range sortedKeys(v) {
			key := name
			if !matches(name, "^[%a_][%w_]*$") || slices.Contains(keywords, name) {
				key = `["` + name + `"]`
			}
			lines = append(lines, inner+key+" = "+nested(v[name], inner))
		}
	default:
		return fmt.Sprint(v)
	}
	return "{\n" + strings.Join(lines, ",\n") + "\n" + indent + "}"
}

// nested is pretty for what stands inside a table: texts are quoted there.
func nested(value any, indent string) string {
	if text, ok := value.(string); ok {
		return strconv.Quote(text)
	}
	return pretty(value, indent)
}
