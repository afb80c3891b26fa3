package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"kong-quota/internal/devkong/strict"
)

// Plugin is a plugin's schema: Kong's own fields of a plugin, with those that the
// dump specializes, config first of all.
type Plugin struct {
	Name   string
	Entity Field // the record of all
	Config Field // the field config of it
}

// entityFields are those of Kong's plugins, as far as devkong knows them.
const entityFields = `[
	{"id":{"type":"string","uuid":true}},
	{"name":{"type":"string","required":true}},
	{"instance_name":{"type":"string"}},
	{"created_at":{"type":"integer","timestamp":true}},
	{"updated_at":{"type":"integer","timestamp":true}},
	{"route":{"type":"foreign","reference":"routes"}},
	{"service":{"type":"foreign","reference":"services"}},
	{"consumer":{"type":"foreign","reference":"consumers"}},
	{"config":{"type":"record"}},
	{"protocols":{"type":"set","required":true,"default":["grpc","grpcs","http","https"],"elements":
		{"type":"string","one_of":["grpc","grpcs","http","https","tcp","tls","tls_passthrough","udp"]}}},
	{"enabled":{"type":"boolean","required":true,"default":true}},
	{"tags":{"type":"set","elements":{"type":"string"}}}]`

// ReadPlugin reads the Schema of a plugin's dump, and refuses what Kong refuses
// to start with. The error joins every problem with its place.
func ReadPlugin(data []byte) (*Plugin, error) {
	var dumped struct {
		Name   string       `json:"name"`
		Fields []NamedField `json:"fields"`
		Checks []Check      `json:"entity_checks"`
	}
	if err := strict.Decode(data, &dumped); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	p := &Plugin{Name: dumped.Name, Entity: Field{Type: "record", EntityChecks: dumped.Checks}}
	if err := json.Unmarshal([]byte(entityFields), &p.Entity.Fields); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	var problems []error
	if dumped.Name == "" {
		problems = append(problems, errors.New("name: required field missing"))
	}
	for _, f := range dumped.Fields {
		own := p.Entity.field(f.Name)
		switch {
		case own == nil:
			problems = append(problems, fmt.Errorf("%s: cannot create a new field", f.Name))
			continue
		case own.Type != f.Type:
			problems = append(problems, fmt.Errorf("%s: cannot change type in a specialized field", f.Name))
			continue
		}
		*own = f.Field
	}
	if !slices.ContainsFunc(dumped.Fields, func(f NamedField) bool { return f.Name == "config" }) {
		problems = append(problems, errors.New("config: there must be a field config of type record"))
	}
	// Kong shows the full structure of an entity: records are there unless they
	// are declared not required. Those inside of lists are left as declared.
	p.Entity.requireRecords()
	for i := range dumped.Fields {
		if own := p.Entity.field(dumped.Fields[i].Name); own != nil {
			problems = append(problems, own.check(dumped.Fields[i].Name)...)
		}
	}
	problems = append(problems, p.Entity.checkEntityChecks("schema")...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("schema: %w", errors.Join(problems...))
	}
	p.Config = *p.Entity.field("config")
	return p, nil
}

func (f *Field) requireRecords() {
	if f.Required == nil {
		yes := true
		f.Required = &yes
	}
	for i := range f.Fields {
		if f.Fields[i].Type == "record" {
			f.Fields[i].requireRecords()
		}
	}
}
