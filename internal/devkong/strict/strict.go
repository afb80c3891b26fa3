// Package strict decodes JSON into Go values and says everything that does not
// fit: every unknown name, compared exactly, where encoding/json stops at the
// first and takes names in any case.
package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Decode decodes data into what into points to. The error joins all problems;
// what fits has been decoded even then.
func Decode(data []byte, into any) error {
	problems := unknown(data, reflect.TypeOf(into).Elem(), "")
	err := json.Unmarshal(data, into)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) && mismatch.Field != "" {
		err = fmt.Errorf("%s: a JSON %s is no %s", mismatch.Field, mismatch.Value, mismatch.Type)
	}
	return errors.Join(append(problems, err)...)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// unknown finds the names that the type does not have. Types that decode
// themselves answer for themselves.
func unknown(data []byte, of reflect.Type, path string) (problems []error) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if reflect.PointerTo(of).Implements(unmarshaler) {
		return nil
	}
	switch of.Kind() {
	case reflect.Slice:
		var items []json.RawMessage
		if json.Unmarshal(data, &items) == nil {
			for i, item := range items {
				problems = append(problems, unknown(item, of.Elem(), fmt.Sprintf("%s[%d]", path, i+1))...)
			}
		}
	case reflect.Struct:
		var table map[string]json.RawMessage
		if json.Unmarshal(data, &table) != nil {
			return nil // the decoder says so
		}
		known := fields(of)
		names := make([]string, 0, len(table))
		for name := range table {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			where := strings.TrimPrefix(path+"."+name, ".")
			if inner, found := known[name]; found {
				problems = append(problems, unknown(table[name], inner, where)...)
				continue
			}
			problems = append(problems, fmt.Errorf("unknown field %q", where))
		}
	}
	return problems
}

// fields are a struct's types by JSON name, those of embedded structs among them.
func fields(of reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			for inner, t := range fields(field.Type) {
				known[inner] = t
			}
		case field.IsExported() && name != "-" && name != "":
			known[name] = field.Type
		}
	}
	return known
}
