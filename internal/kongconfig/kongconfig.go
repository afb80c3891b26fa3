// Package kongconfig finds where Kong's configuration has the plugin quota: in
// declarative files, in manifests of the Ingress Controller, and in the Admin API of
// a running Kong. What is about other plugins it passes over.
package kongconfig

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"
)

// pluginName is the name by which Kong's configuration knows the plugin.
const pluginName = "quota"

// Configuration is what was read.
type Configuration struct {
	Plugins []Plugin
	// Problems are what was read and cannot be right, and what could not be read.
	Problems []Problem
	// Consumer finds a consumer by username, custom_id or id. It is nil where the
	// source has none: manifests.
	Consumer func(ctx context.Context, name string) (Consumer, error)
}

// Plugin is one configuration of the plugin, and what it is for.
type Plugin struct {
	Place
	// ID is Kong's, "" where the file does not give one.
	ID string
	// Config is the record config as JSON has it, without its nulls.
	Config map[string]any
	// Service, Route and Consumer are what the plugin is configured on; zero for all.
	Service, Route, Consumer Entity
	Disabled                 bool
	// Elsewhere: what it is configured on, or its id, is not in the file. It is on
	// something without a name, or a manifest, which others refer to.
	Elsewhere bool
	node      *yaml.Node // of Config, to tell lines
}

// Entity is a service, a route or a consumer.
type Entity struct {
	ID   string // "" where only a running Kong knows it
	Name string
}

// String is the name, or the id where there is none.
func (e Entity) String() string {
	if e.Name != "" {
		return e.Name
	}
	return e.ID
}

// Is reports whether that is the entity's name or id.
func (e Entity) Is(name string) bool { return name != "" && (e.Name == name || e.ID == name) }

// Consumer is who Kong's consumer is.
type Consumer struct {
	Entity
	CustomID string
}

// Place is where something stands.
type Place struct {
	File string // or the URL of the Admin API
	Line int    // 0 where there are none
	Path string // such as services[1].plugins[2]; positions count from 1
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Path
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ": " + p.Path
}

// Problem is something wrong at a place.
type Problem struct {
	Place
	Message string
	// Note: nothing is wrong, but something is not looked at.
	Note bool
}

func (p Problem) String() string {
	if p.Note {
		return p.Place.String() + ": note: " + p.Message
	}
	return p.Place.String() + ": " + p.Message
}

// At is the place of a field of the plugin's config, such as limits[2].window. Where
// the file does not have the field, it is that of the nearest one around it.
func (p Plugin) At(field string) Place {
	place := Place{p.File, p.Line, p.Path + ".config"}
	if field != "" {
		place.Path += "." + field
	}
	if p.node != nil {
		place.Line = p.node.Line
	}
	for node := p.node; node != nil; field = strings.TrimPrefix(field, ".") {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		name := field
		if end := strings.IndexAny(field, ".["); end > 0 {
			name = field[:end]
		}
		field = field[len(name):]
		switch {
		case name == "":
			return place
		case name[0] == '[':
			number, _, _ := strings.Cut(name[1:], "]")
			n, _ := strconv.Atoi(number)
			if node.Kind != yaml.SequenceNode || n < 1 || n > len(node.Content) {
				return place
			}
			node, field = node.Content[n-1], name[len(number)+2:]
			place.Line = node.Line
		default:
			key, value := entry(node, name)
			if value == nil {
				return place
			}
			place.Line, node = key.Line, value
		}
	}
	return place
}

// entry finds a field of a mapping.
func entry(node *yaml.Node, name string) (key, value *yaml.Node) {
	if node.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return node.Content[i], node.Content[i+1]
		}
	}
	return nil, nil
}

// Instance is the JSON that Kong starts an instance with, as far as the plugin looks
// at it.
func (p Plugin) Instance() ([]byte, error) {
	config := maps.Clone(p.Config)
	if config == nil {
		config = map[string]any{}
	}
	config["__plugin_id"] = p.ID
	for name, entity := range map[string]Entity{"service_id": p.Service, "route_id": p.Route, "consumer_id": p.Consumer} {
		if entity.ID != "" {
			config[name] = entity.ID
		}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("%s: config: %w", p.Place, err)
	}
	return text, nil
}

// WithoutNulls drops what Kong does not send to a plugin: fields that are not set.
func WithoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		kept := make(map[string]any, len(v))
		for name, item := range v {
			if item != nil {
				kept[name] = WithoutNulls(item)
			}
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i, item := range v {
			kept[i] = WithoutNulls(item)
		}
		return kept
	}
	return value
}

// entities is the namespace of the ids below.
var entities = uuid.MustParse("fd02801f-0957-4a15-a55a-c8d9606f30b5")

// ID is the id that Kong gives to what a declarative file declares without one. kind
// is the plural: services, routes, consumers. It follows from the name, so that it
// survives a reload. (Kong 3.9: kong/db/schema/others/declarative_config.lua.)
func ID(kind, name string) string {
	return uuid.NewSHA1(uuid.NewSHA1(entities, []byte(kind)), []byte(name)).String()
}
