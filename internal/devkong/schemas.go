package devkong

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"kong-quota/internal/devkong/schema"
	"kong-quota/internal/kongconfig"
)

// sequence counts the versions of all plugins, as Kong's __seq__ does.
var sequence atomic.Int64

// schemas are the plugins that devkong knows, by name.
type schemas map[string]*schema.Plugin

// keyAuthSchema describes the options of key-auth that devkong honours.
const keyAuthSchema = `{"name":"key-auth","fields":[{"config":{"type":"record","required":true,"fields":[
	{"key_names":{"type":"array","required":true,"default":["apikey"],"elements":{"type":"string"}}},
	{"key_in_header":{"type":"boolean","required":true,"default":true}},
	{"key_in_query":{"type":"boolean","required":true,"default":true}},
	{"key_in_body":{"type":"boolean","required":true,"default":false,"eq":false}},
	{"hide_credentials":{"type":"boolean","required":true,"default":false}},
	{"run_on_preflight":{"type":"boolean","required":true,"default":true}},
	{"anonymous":{"type":"string"}},
	{"realm":{"type":"string"}}]}}]}`

// newSchemas reads the schemas of key-auth and of the plugin that was dumped.
func newSchemas(d *dump) (schemas, error) {
	all := schemas{}
	for _, text := range [][]byte{[]byte(keyAuthSchema), d.schema} {
		p, err := schema.ReadPlugin(text)
		if err != nil {
			return nil, err
		}
		all[p.Name] = p
	}
	return all, nil
}

// validate checks a plugin entity and gives its configuration with defaults. The
// error is a *schema.Violation.
func (s schemas) validate(p *plugin) (map[string]any, error) {
	if p.Name == "" {
		return nil, schema.NewViolation(map[string]any{"name": "required field missing"})
	}
	known := s[p.Name]
	if known == nil {
		return nil, schema.NewViolation(map[string]any{
			"name": fmt.Sprintf("plugin '%s' not enabled; add it to the 'plugins' configuration property", p.Name),
		})
	}
	var config any
	if p.Config != nil {
		config = map[string]any(p.Config)
	}
	filled, errs := known.Config.Validate(config)
	if errs != nil {
		return nil, schema.NewViolation(map[string]any{"config": errs})
	}
	return filled.(map[string]any), nil
}

// instanceConfig is the JSON that an instance is started with: the configuration
// without its nulls, references resolved, and what Kong adds of its own.
func (s schemas) instanceConfig(p *plugin) ([]byte, error) {
	config, _ := kongconfig.WithoutNulls(s[p.Name].Config.References(p.Config, resolveReference)).(map[string]any)
	config["__key__"] = strings.Join([]string{"plugins:" + p.Name, string(p.Route), string(p.Service), string(p.Consumer), "", workspace}, ":")
	config["__ws_id"] = workspace
	config["__plugin_id"] = p.ID
	config["__seq__"] = p.seq
	for name, id := range map[string]reference{"consumer_id": p.Consumer, "service_id": p.Service, "route_id": p.Route} {
		if id != "" {
			config[name] = string(id)
		}
	}
	return json.Marshal(config)
}

var workspace = idOf("workspace", "default")

// resolveReference reads {vault://env/NAME} from the environment; Kong leaves a
// reference that it cannot resolve empty.
func resolveReference(text string) string {
	if !schema.IsReference(text) {
		return text
	}
	name, found := strings.CutPrefix(strings.TrimSuffix(text, "}"), "{vault://env/")
	if !found {
		return ""
	}
	return os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}
