package schema

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Validate fills the value and checks it. The errors are a tree like Kong's: a
// text, a table by field name, or a list by position; nil if there is none.
func (f *Field) Validate(value any) (filled any, errs any) {
	if value == nil {
		if missing, known := f.missing(); known {
			value = missing
		}
	}
	filled = f.Fill(value)
	return filled, f.validate(filled)
}

// entity is the name under which a record's entity checks report.
const entity = "@entity"

func (f *Field) validate(value any) any {
	if value == nil {
		switch {
		case f.Ne.given && f.Ne.value == nil:
			return or(f.Err, "value must not be null")
		case f.Eq.given && f.Eq.value != nil:
			return "value must be " + lua(f.Eq.value)
		case f.required():
			return missingField
		}
		return nil
	}
	if f.Eq.given && f.Eq.value == nil {
		return or(f.Err, "value must be null")
	}

	switch f.Type {
	case "array", "set":
		list, ok := value.([]any)
		if !ok {
			return map[string]string{"array": "expected an array", "set": "expected a set"}[f.Type]
		}
		if errs := f.validateElements(list); errs != nil {
			return errs
		}
	case "map":
		table, ok := value.(map[string]any)
		if !ok {
			return "expected a map"
		}
		for _, k := range sortedKeys(table) {
			if err := f.Keys.needed(k); err != nil {
				return err
			}
			if err := f.Values.needed(table[k]); err != nil {
				return err
			}
		}
	case "record":
		table, ok := value.(map[string]any)
		if !ok {
			return "expected a record"
		}
		if errs := f.validateRecord(table); errs != nil {
			return errs
		}
	case "integer":
		if n, ok := value.(float64); !ok || n != math.Floor(n) || math.IsInf(n, 0) {
			return "expected an integer"
		}
	case "number":
		if _, ok := value.(float64); !ok {
			return "expected a number"
		}
	case "boolean":
		if _, ok := value.(bool); !ok {
			return "expected a boolean"
		}
	case "string":
		text, ok := value.(string)
		switch {
		case !ok:
			return "expected a string"
		case f.Referenceable && IsReference(text):
			return nil
		}
	}
	validators := f.Validators
	if f.Type == "string" && validators.LenMin == nil {
		one := 1 // empty texts are not taken by default
		validators.LenMin = &one
	}
	if err := validators.run(value); err != "" {
		return or(f.Err, err)
	}
	return nil
}

const missingField = "required field missing"

// needed validates a key, value or element, which Kong never lets be null.
func (f *Field) needed(value any) any {
	required, yes := *f, true
	required.Required = &yes
	return required.validate(value)
}

func (f *Field) validateElements(list []any) any {
	errs := make([]any, 0)
	for i, item := range list {
		if err := f.Elements.needed(item); err != nil {
			for len(errs) < i {
				errs = append(errs, nil)
			}
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errs
}

func (f *Field) validateRecord(table map[string]any) any {
	errs := map[string]any{}
	for name, value := range table {
		child := f.field(name)
		if child == nil {
			errs[name] = "unknown field"
			continue
		}
		if err := child.validate(value); err != nil {
			errs[name] = err
		}
	}
	for i := range f.Fields {
		if _, there := table[f.Fields[i].Name]; !there && f.Fields[i].required() {
			errs[f.Fields[i].Name] = missingField
		}
	}
	for _, c := range f.EntityChecks {
		c.run(f, table, errs)
	}
	if len(errs) == 0 {
		return nil
	}
	return errs
}

var uuidPattern = regexp.MustCompile(`(?i)^[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}$`)

// run applies the validators in Kong's order and gives the first error, "" if
// there is none.
func (v *Validators) run(value any) string {
	text, _ := value.(string)
	number, isNumber := value.(float64)
	switch {
	case v.Eq.given && !reflect.DeepEqual(value, v.Eq.value):
		return "value must be " + lua(v.Eq.value)
	case v.Ne.given && reflect.DeepEqual(value, v.Ne.value):
		return "value must not be " + lua(value)
	case v.NotOneOf != nil && in(value, v.NotOneOf):
		return "must not be one of: " + list(v.NotOneOf)
	case v.OneOf != nil && !in(value, v.OneOf):
		return "expected one of: " + list(v.OneOf)
	case v.Gt != nil && (!isNumber || number <= *v.Gt):
		return "value must be greater than " + lua(*v.Gt)
	case v.Timestamp && (!isNumber || number <= 0):
		return "expected a valid timestamp"
	case v.UUID && !uuidPattern.MatchString(text):
		return "expected a valid UUID"
	case v.Between != nil && (!isNumber || number < v.Between[0] || number > v.Between[1]):
		return fmt.Sprintf("value should be between %d and %d", int64(v.Between[0]), int64(v.Between[1]))
	}
	if v.IsRegex {
		// Kong's are PCRE; those with look-around are refused here and taken there.
		if _, err := regexp.Compile(text); err != nil {
			return "not a valid regex: " + text
		}
	}
	switch n := length(value); {
	case v.LenEq != nil && n != *v.LenEq:
		return fmt.Sprintf("length must be %d", *v.LenEq)
	case v.LenMin != nil && n < *v.LenMin:
		return fmt.Sprintf("length must be at least %d", *v.LenMin)
	case v.LenMax != nil && n > *v.LenMax:
		return fmt.Sprintf("length must be at most %d", *v.LenMax)
	case v.StartsWith != "" && !strings.HasPrefix(text, v.StartsWith):
		return "should start with: " + v.StartsWith
	case v.NotMatch != "" && matches(text, v.NotMatch):
		return "invalid value: " + text
	}
	for _, p := range v.MatchNone {
		if matches(text, p.Pattern) {
			return or(p.Err, "invalid value: "+text)
		}
	}
	if v.Match != "" && !matches(text, v.Match) {
		return "invalid value: " + text
	}
	for _, p := range v.MatchAll {
		if !matches(text, p.Pattern) {
			return or(p.Err, "invalid value: "+text)
		}
	}
	if v.MatchAny != nil {
		found := false
		for _, p := range v.MatchAny.Patterns {
			found = found || matches(text, p)
		}
		if !found {
			return or(v.MatchAny.Err, "invalid value: "+text)
		}
	}
	if items, _ := value.([]any); v.Contains.given && !in(v.Contains.value, items) {
		return "expected to contain: " + lua(v.Contains.value)
	}
	return v.exclusive(value)
}

// exclusive is mutually_exclusive_subsets: the items are of one subset at most.
func (v *Validators) exclusive(value any) string {
	items, _ := value.([]any)
	var found []string
	for _, item := range items {
		for _, subset := range v.Subsets {
			text, _ := item.(string)
			if names := "(" + quoted(subset) + ")"; slices.Contains(subset, text) && !slices.Contains(found, names) {
				found = append(found, names)
			}
		}
	}
	if len(found) > 1 {
		return "these sets are mutually exclusive: " + strings.Join(found, ", ")
	}
	return ""
}

// patterns are all Lua patterns of a field.
func (v *Validators) patterns() []string {
	all := []string{v.Match, v.NotMatch}
	for _, list := range [][]pattern{v.MatchNone, v.MatchAll} {
		for _, p := range list {
			all = append(all, p.Pattern)
		}
	}
	if v.MatchAny != nil {
		all = append(all, v.MatchAny.Patterns...)
	}
	return all
}

// length is that of Lua's # operator: bytes of a text, items of a list. A table
// that is none has no length that an attribute could ask for.
func length(value any) int {
	switch v := value.(type) {
	case string:
		return len(v)
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

func in(value any, values []any) bool {
	for _, v := range values {
		if reflect.DeepEqual(value, v) {
			return true
		}
	}
	return false
}

func list(values []any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = lua(v)
	}
	return strings.Join(texts, ", ")
}

// lua writes a value as Lua's tostring does.
func lua(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case float64:
		return strconv.FormatFloat(v, 'g', 14, 64)
	case string:
		return v
	}
	return fmt.Sprint(value)
}

func or(text, otherwise string) string {
	if text != "" {
		return text
	}
	return otherwise
}

// IsReference reports whether a text is a vault reference, {vault://…}.
func IsReference(text string) bool {
	return strings.HasPrefix(text, "{vault://") && strings.HasSuffix(text, "}")
}
