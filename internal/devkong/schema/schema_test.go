package schema

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func parse(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func read(t testing.TB, fields string) *Plugin {
	t.Helper()
	p, err := ReadPlugin([]byte(`{"name":"p","fields":[{"config":{"type":"record","fields":[` + fields + `]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Each attribute with a value that it takes and one that it refuses, with
// Kong's text.
func TestAttributes(t *testing.T) {
	for _, c := range []struct{ field, good, bad, want string }{
		{`"type":"string"`, `"x"`, `1`, "expected a string"},
		{`"type":"string"`, `null`, `""`, "length must be at least 1"},
		{`"type":"string","len_min":0`, `""`, `true`, "expected a string"},
		{`"type":"integer"`, `3`, `3.5`, "expected an integer"},
		{`"type":"number"`, `3.5`, `"3"`, "expected a number"},
		{`"type":"boolean"`, `false`, `"no"`, "expected a boolean"},
		{`"type":"string","required":true`, `"x"`, `null`, "required field missing"},
		{`"type":"string","one_of":["a","b"]`, `"a"`, `"c"`, "expected one of: a, b"},
		{`"type":"string","not_one_of":["a","b"]`, `"c"`, `"b"`, "must not be one of: a, b"},
		{`"type":"integer","between":[1,100]`, `100`, `101`, "value should be between 1 and 100"},
		{`"type":"integer","between":[1,1000000000000]`, `1000000000000`, `0`, "value should be between 1 and 1000000000000"},
		{`"type":"number","gt":0`, `0.5`, `0`, "value must be greater than 0"},
		{`"type":"string","len_min":2`, `"ab"`, `"a"`, "length must be at least 2"},
		{`"type":"string","len_max":2`, `"ab"`, `"abc"`, "length must be at most 2"},
		{`"type":"string","len_eq":2`, `"ab"`, `"abc"`, "length must be 2"},
		{`"type":"string","match":"^[a-z]+$"`, `"ab"`, `"aB"`, "invalid value: aB"},
		{`"type":"string","not_match":"%s"`, `"ab"`, `"a b"`, "invalid value: a b"},
		{`"type":"string","match_none":[{"pattern":"%d","err":"no digits"}]`, `"ab"`, `"a1"`, "no digits"},
		{`"type":"string","match_all":[{"pattern":"%d","err":"a digit"}]`, `"a1"`, `"ab"`, "a digit"},
		{`"type":"string","match_any":{"patterns":["%d","x"],"err":"a digit or x"}`, `"x"`, `"ab"`, "a digit or x"},
		{`"type":"string","starts_with":"/"`, `"/a"`, `"a"`, "should start with: /"},
		{`"type":"string","uuid":true`, `"df962853-6b17-575c-9f5a-384eb04f9213"`, `"df96"`, "expected a valid UUID"},
		{`"type":"string","is_regex":true`, `"a+"`, `"a("`, "not a valid regex: a("},
		{`"type":"string","eq":"a"`, `"a"`, `"b"`, "value must be a"},
		{`"type":"string","eq":null`, `null`, `"b"`, "value must be null"},
		{`"type":"string","ne":null`, `"b"`, `null`, "value must not be null"},
		{`"type":"boolean","eq":true`, `true`, `null`, "value must be true"},
		{`"type":"string","one_of":["a"]`, `"a"`, `""`, "expected one of: a"},
		{`"type":"string","err":"my own words"`, `"a"`, `""`, "my own words"},
		{`"type":"number","timestamp":true`, `1`, `0`, "expected a valid timestamp"},
		{`"type":"number","one_of":[1,2.5]`, `2.5`, `3`, "expected one of: 1, 2.5"},
		{`"type":"array","elements":{"type":"string"},"contains":"x"`, `["x"]`, `["y"]`, "expected to contain: x"},
		{`"type":"set","elements":{"type":"string"},"mutually_exclusive_subsets":[["a","b"],["c"]]`, `["a","b"]`, `["c","a"]`, "these sets are mutually exclusive: ('c'), ('a', 'b')"},
		{`"type":"array","elements":{"type":"string"},"len_min":1`, `["a"]`, `[]`, "length must be at least 1"},
		{`"type":"map","keys":{"type":"string"},"values":{"type":"integer"},"len_max":1`, `{"a":1}`, `{"a":1,"b":2}`, "length must be at most 1"},
		{`"type":"set","elements":{"type":"string"}`, `["a","a"]`, `{}`, "expected a set"},
		{`"type":"string","ne":"a"`, `"b"`, `"a"`, "value must not be a"},
		{`"type":"string","match":"a","err":"my own words"`, `"a"`, `"b"`, "my own words"},
		{`"type":"string","referenceable":true,"match":"^a$"`, `"{vault://env/x}"`, `"{vault"`, "invalid value: {vault"},
	} {
		p := read(t, `{"f":{`+c.field+`}}`)
		if _, errs := p.Config.Validate(parse(t, `{"f":`+c.good+`}`)); errs != nil {
			t.Errorf("%s refuses %s: %v", c.field, c.good, errs)
		}
		_, errs := p.Config.Validate(parse(t, `{"f":`+c.bad+`}`))
		if want := any(map[string]any{"f": c.want}); !reflect.DeepEqual(errs, want) {
			t.Errorf("%s, %s: got %v, want %v", c.field, c.bad, errs, want)
		}
	}
}

func TestErrorsHaveTheShapeOfTheValue(t *testing.T) {
	p := read(t, `{"list":{"type":"array","len_max":3,"elements":{"type":"record","fields":[{"name":{"type":"string","required":true}},{"n":{"type":"integer"}}]}}},
		{"map":{"type":"map","keys":{"type":"string","len_max":3},"values":{"type":"integer"}}},
		{"inner":{"type":"record","fields":[{"a":{"type":"string"}},{"b":{"type":"string"}}],"entity_checks":[{"mutually_required":["a","b"]}]}}`)
	for value, want := range map[string]string{
		`{"list":[{"name":"a"},{"n":1},{"name":"c","n":"x"}]}`: `{"list":[null,{"name":"required field missing"},{"n":"expected an integer"}]}`,
		`{"list":[null]}`:                     `{"list":["required field missing"]}`,
		`{"list":{"a":1}}`:                    `{"list":"expected an array"}`,
		`{"map":{"a":1,"b":"x"}}`:             `{"map":"expected an integer"}`,
		`{"map":{"abcd":1}}`:                  `{"map":"length must be at most 3"}`,
		`{"inner":{"a":"x"}}`:                 `{"inner":{"@entity":["all or none of these fields must be set: 'a', 'b'"]}}`,
		`{"inner":7,"typo":1}`:                `{"inner":"expected a record","typo":"unknown field"}`,
		`{"inner":{"a":"x","b":"y","c":"z"}}`: `{"inner":{"c":"unknown field"}}`,
	} {
		_, errs := p.Config.Validate(parse(t, value))
		if !reflect.DeepEqual(errs, parse(t, want)) {
			t.Errorf("%s: got %v, want %s", value, errs, want)
		}
	}
}

func TestEntityChecks(t *testing.T) {
	for _, c := range []struct{ check, value, want string }{
		{`{"at_least_one_of":["a","b"]}`, `{}`, `{"@entity":["at least one of these fields must be non-empty: 'a', 'b'"]}`},
		{`{"at_least_one_of":["a","b"]}`, `{"b":"x"}`, ``},
		{`{"only_one_of":["a","b"]}`, `{"a":"x","b":"x"}`, `{"@entity":["exactly one of these fields must be non-empty: 'a', 'b'"]}`},
		{`{"only_one_of":["a","r.c"]}`, `{"a":"x","r":null}`, `{"r":{"c":"field required for entity check"}}`},
		{`{"at_least_one_of":["a","r.c"]}`, `{"r":null}`, `{"r":"required field missing","@entity":["at least one of these fields must be non-empty: 'a', 'r.c'"]}`},
		{`{"distinct":["a","b"]}`, `{"a":"x","b":"x"}`, `{"@entity":["values of these fields must be distinct: 'a', 'b'"]}`},
		{`{"distinct":["a","b"]}`, `{"a":"x","b":"y"}`, ``},
		{`{"mutually_required":["a","b"]}`, `{"a":7}`, `{"a":"expected a string"}`},
		{`{"mutually_exclusive_sets":{"set1":["a"],"set2":["b","l"]}}`, `{"a":"x","l":["y"]}`, `{"@entity":["these sets are mutually exclusive: ('a'), ('l')"]}`},
		{`{"conditional_at_least_one_of":{"if_field":"a","if_match":{"eq":"x"},"then_at_least_one_of":["b","l"]}}`, `{"a":"x"}`, `{"@entity":["at least one of these fields must be non-empty: 'b', 'l'"]}`},
		{`{"conditional_at_least_one_of":{"if_field":"a","if_match":{"eq":"x"},"then_at_least_one_of":["b"],"then_err":"need %s","else_match":{"eq":"y"},"else_then_at_least_one_of":["l"],"else_then_err":"must have %s"}}`, `{"a":"y"}`, `{"@entity":["must have 'l'"]}`},
		{`{"conditional_at_least_one_of":{"if_field":"a","if_match":{"eq":"x"},"then_at_least_one_of":["b"]}}`, `{"a":"z"}`, ``},
		// Kong: then_err is not used where the field is missing.
		{`{"conditional":{"if_field":"a","if_match":{"eq":"x"},"then_field":"b","then_match":{"required":true},"then_err":"my own words"}}`, `{"a":"x"}`,
			`{"b":"required field missing","@entity":["failed conditional validation given value of field 'a'"]}`},
		{`{"conditional":{"if_field":"r.c","if_match":{"eq":true},"then_field":"b","then_match":{"required":true}}}`, `{"r":null}`, `{"r":{"c":"field required for entity check"}}`},
		{`{"mutually_exclusive":["a","b"]}`, `{"a":"x","b":"x"}`, `{"@entity":["only one or none of these fields must be set: 'a', 'b'"]}`},
		{`{"conditional":{"if_field":"a","if_match":{"eq":"x"},"then_field":"b","then_match":{"required":true}}}`, `{"a":"x"}`,
			`{"b":"required field missing","@entity":["failed conditional validation given value of field 'a'"]}`},
		{`{"conditional":{"if_field":"a","if_match":{"eq":"x"},"then_field":"b","then_match":{"required":true}}}`, `{"a":"y"}`, ``},
		{`{"conditional":{"if_field":"a","if_match":{"required":true},"then_field":"b","then_match":{"one_of":["q"]},"then_err":"q goes with '%s'"}}`, `{"a":"y","b":"r"}`,
			`{"b":"expected one of: q","@entity":["q goes with 'a'"]}`},
		{`{"conditional":{"if_field":"a","if_match":{"required":true},"then_field":"b","then_match":{"one_of":["q"]}}}`, `{"b":"r"}`, ``},
		// Kong: a null meets what is neither eq nor required.
		{`{"conditional":{"if_field":"a","if_match":{"len_min":1},"then_field":"b","then_match":{"eq":"q"}}}`, `{"b":"r"}`,
			`{"b":"value must be q","@entity":["failed conditional validation given value of field 'a'"]}`},
		{`{"conditional":{"if_field":"l","if_match":{"contains":"x"},"then_field":"b","then_match":{"required":true}}}`, `{"l":["y","x"]}`,
			`{"b":"required field missing","@entity":["failed conditional validation given value of field 'l'"]}`},
		{`{"conditional":{"if_field":"r.c","if_match":{"eq":true},"then_field":"r.d","then_match":{"required":true}}}`, `{"r":{"c":true}}`,
			`{"r":{"d":"required field missing"},"@entity":["failed conditional validation given value of field 'r.c'"]}`},
		{`{"conditional":{"if_field":"a","if_match":{"eq":"x"},"then_field":"kind","then_match":{"one_of":["y","z"]}}}`, `{"kind":"x"}`, ``},
		{`{"conditional":{"if_field":"secret","if_match":{"required":true},"then_field":"b","then_match":{"required":true}}}`, `{"secret":"{vault://env/x}"}`, ``},
	} {
		p, err := ReadPlugin([]byte(`{"name":"p","fields":[{"config":{"type":"record","entity_checks":[` + c.check + `],"fields":[
			{"a":{"type":"string"}},{"b":{"type":"string"}},{"kind":{"type":"string","one_of":["x","y","z"]}},{"secret":{"type":"string","referenceable":true}},
			{"l":{"type":"array","elements":{"type":"string"}}},
			{"r":{"type":"record","fields":[{"c":{"type":"boolean"}},{"d":{"type":"string"}}]}}]}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a check must not change the schema
			_, errs := p.Config.Validate(parse(t, c.value))
			if c.want == "" && errs != nil || c.want != "" && !reflect.DeepEqual(errs, parse(t, c.want)) {
				t.Errorf("%s on %s: got %v, want %s", c.check, c.value, errs, c.want)
			}
		}
	}
}

func TestFill(t *testing.T) {
	p := read(t, `{"a":{"type":"string","default":"x"}},{"b":{"type":"integer"}},
		{"l":{"type":"array","elements":{"type":"record","fields":[{"n":{"type":"integer","default":7}},{"m":{"type":"string"}}]}}},
		{"r":{"type":"record","fields":[{"host":{"type":"string"}},{"ssl":{"type":"boolean","default":false}}]}}`)
	for value, want := range map[string]string{
		`{}`:                        `{"a":"x","b":null,"l":null,"r":{"host":null,"ssl":false}}`,
		`{"l":[{"m":"q"},{"n":1}]}`: `{"a":"x","b":null,"l":[{"m":"q","n":7},{"m":null,"n":1}],"r":{"host":null,"ssl":false}}`,
		`{"r":{"host":"h"}}`:        `{"a":"x","b":null,"l":null,"r":{"host":"h","ssl":false}}`,
	} {
		if got := p.Config.Fill(parse(t, value)); !reflect.DeepEqual(got, parse(t, want)) {
			t.Errorf("%s: got %v, want %s", value, got, want)
		}
	}
}

// What Kong refuses to start with (../shared/KONG.md).
func TestBadSchemas(t *testing.T) {
	for field, want := range map[string]string{
		`"type":"string","lenmin":1`:                              `unknown field "lenmin"`,
		`"type":"string","custom_validator":"f"`:                  `unknown field "custom_validator"`,
		`"type":"any"`:                                            `config.f: invalid type: any`,
		`"type":"string","Required":true`:                         `unknown field "Required"`,
		`"type":"string","description":""`:                        `config.f: description has 0 characters; Kong wants 10 to 500`,
		`"type":"string","between":[1,2]`:                         `config.f: field of type 'string' cannot have attribute 'between'`,
		`"type":"boolean","one_of":["a"]`:                         `config.f: field of type 'boolean' cannot have attribute 'one_of'`,
		`"type":"integer","match":"x"`:                            `config.f: field of type 'integer' cannot have attribute 'match'`,
		`"type":"integer","between":[1]`:                          `config.f: between: length must be 2`,
		`"type":"integer","between":"1"`:                          `between: a JSON string is no []float64`,
		`"type":"string","match":"[a"`:                            `config.f: pattern "[a": malformed pattern (missing ']')`,
		`"type":"string","unique_across_ws":true`:                 `config.f: unique_across_ws needs unique`,
		`"type":"integer","default":"x"`:                          `config.f: its default x is refused: expected an integer`,
		`"type":"string","unknown":1,"other":2`:                   "unknown field \"other\"\nunknown field \"unknown\"",
		`"type":"int64"`:                                          `config.f: invalid type: int64`,
		`"type":"string","description":"short"`:                   `config.f: description has 5 characters; Kong wants 10 to 500`,
		`"type":"array"`:                                          `config.f: field of type 'array' must declare 'elements'`,
		`"type":"string","one_of":["a"],"default":"b"`:            `config.f: its default b is refused: expected one of: a`,
		`"type":"record"`:                                         `config.f: field of type 'record' must declare 'fields'`,
		`"type":"map","keys":{"type":"string"}`:                   `config.f: field of type 'map' must declare 'values'`,
		`"type":"array","elements":{"type":"strin"}`:              `config.f[]: invalid type: strin`,
		`"type":"string","entity_checks":[{"xor":["a"]}]`:         `devkong does not know this entity check`,
		`"type":"string","entity_checks":[{"only_one_of":["z"]}]`: `config.f: entity check only_one_of names the field "z", which is none`,
	} {
		_, err := ReadPlugin([]byte(`{"name":"p","fields":[{"config":{"type":"record","fields":[{"f":{` + field + `}}]}}]}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", field, err, want)
		}
	}
}

func TestViolationMessage(t *testing.T) {
	for errs, want := range map[string]string{
		`{"config":{"limit":"expected an integer"}}`:                                "schema violation (config.limit: expected an integer)",
		`{"name":"required field missing"}`:                                         "schema violation (name: required field missing)",
		`{"config":{"a":"x","b":"y"}}`:                                              "2 schema violations (config.a: x; config.b: y)",
		`{"config":{"limits":[{"name":"required field missing"}]}}`:                 "schema violation (config.limits: {\n  {\n    name = \"required field missing\"\n  }\n})",
		`{"config":{"limits":[null,{"name":"bad"}]}}`:                               "schema violation (config.limits: {\n  [2] = {\n    name = \"bad\"\n  }\n})",
		`{"config":{"@entity":["all or none"]}}`:                                    "schema violation (config.@entity: {\n  \"all or none\"\n})",
		`{"@entity":["one"],"config":{"redis":{"@entity":["x"],"host":"missing"}}}`: "2 schema violations (one; config.redis: {\n  [\"@entity\"] = {\n    \"x\"\n  },\n  host = \"missing\"\n})",
	} {
		if v := NewViolation(parse(t, errs).(map[string]any)); v.Message != want || v.Code != 2 {
			t.Errorf("%s:\n got %q\nwant %q", errs, v.Message, want)
		}
	}
}

func TestReferences(t *testing.T) {
	p := read(t, `{"open":{"type":"string"}},{"r":{"type":"record","fields":[{"password":{"type":"string","referenceable":true}}]}}`)
	value := parse(t, `{"open":"{vault://env/x}","r":{"password":"{vault://env/x}"}}`)
	got := p.Config.References(value, func(string) string { return "secret" })
	if want := parse(t, `{"open":"{vault://env/x}","r":{"password":"secret"}}`); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if reflect.DeepEqual(got, value) {
		t.Error("the value itself was changed")
	}
}

func TestLuaPatterns(t *testing.T) {
	for _, c := range []struct {
		text, pattern string
		want          bool
	}{
		{"hello", "^h.*o$", true}, {"hello", "ell", true}, {"hello", "^ell", false}, {"hello", "l$", false},
		{"daily-1", "^[a-z0-9_-]+$", true}, {"Daily", "^[a-z0-9_-]+$", false}, {"a]b", "^[]a]+b$", true}, {"a-b", "^[a%-]+b$", true},
		{"x1y", "%d", true}, {"xy", "%d", false}, {"x y", "%s", true}, {"ABC", "^%u+$", true}, {"AbC", "^%u+$", false}, {"1f", "^%x+$", true}, {"1g", "^%x+$", false},
		{"a.b", "a%.b", true}, {"axb", "a%.b", false}, {"axb", "a.b", true}, {"abc", "^[^b]+$", false}, {"aac", "^[^b]+$", true},
		{"aaa", "^a-$", true}, {"aab", "^a-$", false}, {"ab", "^ab?$", true}, {"a", "^ab?$", true}, {"abb", "^ab?$", false},
		{"f(a(b)c)d", "%b()", true}, {"f(a(b c", "^f%b()", false}, {"abab", "^(ab)%1$", true}, {"abac", "^(ab)%1$", false},
		{"THE (quick) fox", "%f[%a]%a+%f[%A]", true}, {"", "^$", true}, {"", "", true}, {"x", "", true}, {"a$", "a$", false}, {"a$b", "a$b", true},
		{"a\x01", "^%g%c$", true}, {"a b", "^%g+$", false}, {"a\x00", "%z", true},
		{"x", "[", false}, {"x", "%", false}, {"x", "(x", false}, {"x", "x)", false}, {"é", "^[%w]+$", false},
		{strings.Repeat("a", 40), "^" + strings.Repeat("a*", 20) + "b$", false},
	} {
		if got := matches(c.text, c.pattern); got != c.want {
			t.Errorf("%q matches %q: %v", c.text, c.pattern, got)
		}
	}
}

func FuzzLuaPattern(f *testing.F) {
	f.Add("hello", "^[a-z]+$")
	f.Add("a(b)c", "%b()%f[%a](x)%1-")
	f.Fuzz(func(_ *testing.T, text, pattern string) { matches(text, pattern) })
}

func FuzzReadPlugin(f *testing.F) {
	f.Add([]byte(`{"name":"p","fields":[{"config":{"type":"record","fields":[{"f":{"type":"string","default":"x"}}]}}]}`), []byte(`{"f":1}`))
	f.Fuzz(func(_ *testing.T, schema, value []byte) {
		p, err := ReadPlugin(schema)
		var v any
		if err != nil || json.Unmarshal(value, &v) != nil {
			return
		}
		if _, errs := p.Config.Validate(v); errs != nil {
			NewViolation(map[string]any{"config": errs})
		}
	})
}

func TestBadPatterns(t *testing.T) {
	for pattern, want := range map[string]string{
		"^[a-z]+$": "", "(a)%1": "", "%f[%a]x": "", "%b()": "", "[]]": "", "[^]]": "", "()x": "",
		"[": "malformed pattern (missing ']')", "[%": "malformed pattern (missing ']')", "a%": "malformed pattern (ends with '%')",
		"(": "unfinished capture", ")": "invalid pattern capture", "%1": "invalid capture index", "(%1)": "invalid capture index",
		"%b(": "unbalanced pattern", "%fa": "missing '[' after '%f' in pattern", strings.Repeat("()", 33): "too many captures",
	} {
		got := ""
		if err := checkPattern(pattern); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", pattern, got, want)
		}
	}
}

// A record is there with its structure unless it is declared not required, also
// inside of records, but not inside of lists. An explicit null stays.
func TestMissingAndNull(t *testing.T) {
	p := read(t, `{"r":{"type":"record","fields":[{"in":{"type":"record","fields":[{"a":{"type":"string","default":"x"}}]}}]}},
		{"no":{"type":"record","required":false,"fields":[{"a":{"type":"string","default":"x"}}]}},
		{"l":{"type":"array","elements":{"type":"record","fields":[{"in":{"type":"record","fields":[{"a":{"type":"string","default":"x"}}]}}]}}},
		{"m":{"type":"map","keys":{"type":"string"},"values":{"type":"record","fields":[{"a":{"type":"string","default":"x"}}]}}},
		{"s":{"type":"set","elements":{"type":"string"}}},{"d":{"type":"integer","default":7}},{"q":{"type":"integer","required":true,"default":7}}`)
	for value, want := range map[string]string{
		`{}`:                              `{"r":{"in":{"a":"x"}},"no":null,"l":null,"m":null,"s":null,"d":7,"q":7}`,
		`{"no":{},"l":[{}],"m":{"k":{}}}`: `{"r":{"in":{"a":"x"}},"no":{"a":"x"},"l":[{"in":null}],"m":{"k":{"a":"x"}},"s":null,"d":7,"q":7}`,
		`{"d":null,"s":["b","a","b"]}`:    `{"r":{"in":{"a":"x"}},"no":null,"l":null,"m":null,"s":["b","a"],"d":null,"q":7}`,
	} {
		got, errs := p.Config.Validate(parse(t, value))
		if errs != nil || !reflect.DeepEqual(got, parse(t, want)) {
			t.Errorf("%s: got %v, %v, want %s", value, got, errs, want)
		}
	}
	for value, want := range map[string]string{
		`{"r":null}`: `{"r":"required field missing"}`,
		`{"q":null}`: `{"q":"required field missing"}`,
	} {
		if _, errs := p.Config.Validate(parse(t, value)); !reflect.DeepEqual(errs, parse(t, want)) {
			t.Errorf("%s: %v, want %s", value, errs, want)
		}
	}
}

// Entity checks and fields beside config, with paths into it.
func TestPluginFields(t *testing.T) {
	p, err := ReadPlugin([]byte(`{"name":"p","fields":[{"consumer":{"type":"foreign","reference":"consumers","eq":null}},
		{"config":{"type":"record","fields":[{"x":{"type":"string"}},{"y":{"type":"string"}}]}}],
		"entity_checks":[{"conditional":{"if_field":"config.x","if_match":{"eq":"a"},"then_field":"config.y","then_match":{"required":true}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		`{"name":"p"}`: `null`,
		`{"name":"p","config":{"x":"a","y":"b"}}`:         `null`,
		`{"name":"p","config":{"x":"a"}}`:                 `{"@entity":["failed conditional validation given value of field 'config.x'"],"config":{"y":"required field missing"}}`,
		`{"name":"p","consumer":{"id":"c"},"confg":{}}`:   `{"consumer":"value must be null","confg":"unknown field"}`,
		`{"name":"p","protocols":["smtp"],"enabled":"x"}`: `{"protocols":["expected one of: grpc, grpcs, http, https, tcp, tls, tls_passthrough, udp"],"enabled":"expected a boolean"}`,
		`{"name":"p","config":[]}`:                        `{"config":"expected a record"}`,
	} {
		if _, errs := p.Entity.Validate(parse(t, value)); !reflect.DeepEqual(errs, parse(t, want)) {
			t.Errorf("%s: got %v, want %s", value, errs, want)
		}
	}
	for schema, want := range map[string]string{
		`{"name":"p","fields":[{"config":{"type":"record","fields":[]}},{"other":{"type":"string"}}]}`: "other: cannot create a new field",
		`{"name":"p","fields":[{"config":{"type":"string"}}]}`:                                         "config: cannot change type in a specialized field",
		`{"name":"p","fields":[]}`: "config: there must be a field config of type record",
		`{"name":"p","fields":[{"config":{"type":"record","fields":[]}}],"check":"f"}`:                                    `unknown field "check"`,
		`{"name":"p","fields":[{"config":{"type":"record","fields":[]}}],"entity_checks":[{"only_one_of":["config.z"]}]}`: `entity check only_one_of names the field "config.z", which is none`,
		`{"name":"p","fields":[{"config":{"type":"record","fields":[{"a":{"type":"int64"}},{"b":{"type":"array"}}]}}]}`:   "config.a: invalid type: int64\nconfig.b: field of type 'array' must declare 'elements'",
	} {
		if _, err := ReadPlugin([]byte(schema)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", schema, err, want)
		}
	}
}

func TestInfer(t *testing.T) {
	p := read(t, `{"n":{"type":"integer"}},{"s":{"type":"string"}},{"b":{"type":"boolean"}},{"l":{"type":"array","elements":{"type":"number"}}},
		{"r":{"type":"record","fields":[{"n":{"type":"number"}}]}},{"m":{"type":"map","keys":{"type":"string"},"values":{"type":"boolean"}}}`)
	got := p.Config.Infer(parse(t, `{"n":"15","s":"15","b":"true","l":"2.5","r":{"n":"x"},"m":{"a":"false"},"other":"1"}`))
	if want := parse(t, `{"n":15,"s":"15","b":true,"l":[2.5],"r":{"n":"x"},"m":{"a":false},"other":"1"}`); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if got := p.Config.Infer(parse(t, `{"s":""}`)); !reflect.DeepEqual(got, parse(t, `{"s":null}`)) {
		t.Errorf("an empty text is null: %v", got)
	}
}
