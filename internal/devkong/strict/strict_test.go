package strict

import (
	"encoding/json"
	"testing"
)

type base struct {
	Name string `json:"name"`
}

type entity struct {
	base
	Port  int               `json:"port"`
	Items []base            `json:"items"`
	Free  json.RawMessage   `json:"free"`
	Map   map[string]string `json:"map"`
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		`{"name":"a","port":1,"items":[{"name":"b"}],"free":{"x":1},"map":{"x":"y"}}`: "",
		`{"Name":"a"}`:           `unknown field "Name"`,
		`{"prot":1,"nam":"a"}`:   "unknown field \"nam\"\nunknown field \"prot\"",
		`{"items":[{},{"x":1}]}`: `unknown field "items[2].x"`,
		`{"port":"1"}`:           `port: a JSON string is no int`,
		`{"port":"1","x":0}`:     "unknown field \"x\"\nport: a JSON string is no int",
		`[]`:                     `json: cannot unmarshal array into Go value of type strict.entity`,
		`{`:                      `unexpected end of JSON input`,
	} {
		var e entity
		err := Decode([]byte(text), &e)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	var e entity
	if err := Decode([]byte(`{"name":"kept","x":1}`), &e); err == nil || e.Name != "kept" {
		t.Errorf("what fits is decoded: %+v, %v", e, err)
	}
}
