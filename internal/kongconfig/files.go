package kongconfig

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Read reads declarative files (kong.yml) and manifests (KongPlugin and
// KongClusterPlugin), which it tells by what is in them. The error is about a file
// that cannot be read; what is wrong in one is a problem.
func Read(files ...string) (*Configuration, error) {
	c := &Configuration{}
	r := &reader{Configuration: c, secrets: map[string]map[string]string{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r.file = file
		r.read(text)
	}
	r.finish()
	return c, nil
}

// reader collects what the files have.
type reader struct {
	*Configuration
	file        string
	declarative bool // one of the files was
	services    []Entity
	routes      []Entity
	consumers   []Consumer
	references  []reference
	secrets     map[string]map[string]string // by namespace/name
	pending     []pending
}

// reference is a name that must be that of something declared.
type reference struct {
	place Place
	kind  string
	name  string
	of    int // the plugin that has it
}

// pending is a manifest whose config is in a Secret, perhaps of another file.
type pending struct {
	place       Place
	secret, key string
	plugin      Plugin
}

func (r *reader) problem(line int, path, format string, args ...any) {
	r.Problems = append(r.Problems, Problem{Place: Place{r.file, line, path}, Message: fmt.Sprintf(format, args...)})
}

func (r *reader) note(at Place, format string, args ...any) {
	r.Problems = append(r.Problems, Problem{Place: at, Message: fmt.Sprintf(format, args...), Note: true})
}

func (r *reader) read(text []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	found := false
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.problem(0, "YAML", "%v", err)
			return
		}
		if len(document.Content) == 0 || document.Content[0].Kind != yaml.MappingNode {
			continue
		}
		root := document.Content[0]
		if _, version := entry(root, "_format_version"); version != nil {
			found = true
			r.declaration(root)
		} else if _, kind := entry(root, "kind"); kind != nil {
			found = true
			r.manifest(root, kind.Value)
		}
	}
	if !found {
		r.problem(1, "file", "is neither a declarative configuration (_format_version) nor a manifest (kind)")
	}
}

// plugins of a declarative file, with their lines.
type declaredPlugin struct {
	Name     string    `yaml:"name"`
	ID       string    `yaml:"id"`
	Enabled  *bool     `yaml:"enabled"`
	Service  yaml.Node `yaml:"service"`
	Route    yaml.Node `yaml:"route"`
	Consumer yaml.Node `yaml:"consumer"`
	Config   yaml.Node `yaml:"config"`
	line     int
}

// UnmarshalYAML keeps the line.
func (p *declaredPlugin) UnmarshalYAML(node *yaml.Node) error {
	type plain declaredPlugin
	p.line = node.Line
	return node.Decode((*plain)(p))
}

type declaredRoute struct {
	ID      string           `yaml:"id"`
	Name    string           `yaml:"name"`
	Plugins []declaredPlugin `yaml:"plugins"`
}

func (r *reader) declaration(root *yaml.Node) {
	r.declarative = true
	var d struct {
		Services []struct {
			declaredRoute `yaml:",inline"`
			Routes        []declaredRoute `yaml:"routes"`
		} `yaml:"services"`
		Routes    []declaredRoute `yaml:"routes"`
		Consumers []struct {
			ID       string           `yaml:"id"`
			Username string           `yaml:"username"`
			CustomID string           `yaml:"custom_id"`
			Plugins  []declaredPlugin `yaml:"plugins"`
		} `yaml:"consumers"`
		Plugins []declaredPlugin `yaml:"plugins"`
	}
	if err := root.Decode(&d); err != nil {
		r.problem(root.Line, "declarative configuration", "%v", err)
		return
	}
	entity := func(kind, id, name string) Entity {
		if id == "" && name != "" {
			id = ID(kind, name)
		}
		return Entity{id, name}
	}
	add := func(path string, plugins []declaredPlugin, of Plugin) {
		for i, p := range plugins {
			r.plugin(fmt.Sprintf("%splugins[%d]", path, i+1), p, of)
		}
	}
	route := func(path string, d declaredRoute) {
		e := entity("routes", d.ID, d.Name)
		r.routes = append(r.routes, e)
		add(path, d.Plugins, Plugin{Route: e, Elsewhere: e.ID == ""})
	}
	for i, s := range d.Services {
		path := fmt.Sprintf("services[%d].", i+1)
		e := entity("services", s.ID, s.Name)
		r.services = append(r.services, e)
		add(path, s.Plugins, Plugin{Service: e, Elsewhere: e.ID == ""})
		for j, d := range s.Routes {
			route(fmt.Sprintf("%sroutes[%d].", path, j+1), d)
		}
	}
	for i, d := range d.Routes {
		route(fmt.Sprintf("routes[%d].", i+1), d)
	}
	for i, c := range d.Consumers {
		e := entity("consumers", c.ID, c.Username)
		r.consumers = append(r.consumers, Consumer{e, c.CustomID})
		add(fmt.Sprintf("consumers[%d].", i+1), c.Plugins, Plugin{Consumer: e, Elsewhere: e.ID == ""})
	}
	add("", d.Plugins, Plugin{})
}

// plugin adds one that is declared on, or inside of, what `of` says.
func (r *reader) plugin(path string, d declaredPlugin, of Plugin) {
	if d.Name != pluginName {
		return
	}
	of.Place = Place{r.file, d.line, path}
	of.ID, of.Disabled = d.ID, d.Enabled != nil && !*d.Enabled
	if !r.config(&of, &d.Config) {
		return
	}
	r.Plugins = append(r.Plugins, of)
	at := len(r.Plugins) - 1
	for kind, node := range map[string]*yaml.Node{"service": &d.Service, "route": &d.Route, "consumer": &d.Consumer} {
		if node.IsZero() || node.Tag == "!!null" {
			continue
		}
		name := node.Value
		if node.Kind == yaml.MappingNode {
			var named struct{ ID, Name, Username string }
			if err := node.Decode(&named); err != nil {
				r.problem(node.Line, path+"."+kind, "%v", err)
				continue
			}
			name = named.ID + named.Name + named.Username
		}
		r.references = append(r.references, reference{Place{r.file, node.Line, path + "." + kind}, kind, name, at})
	}
}

// config reads the record config of a plugin.
func (r *reader) config(p *Plugin, node *yaml.Node) bool {
	if node.IsZero() {
		p.Config = map[string]any{}
		return true
	}
	config, err := Config(node)
	if err != nil {
		r.problem(node.Line, p.Path+".config", "%v", err)
		return false
	}
	p.Config, p.node = config, node
	return true
}

// Config reads a record config, or a part of one, as JSON would have it.
func Config(node *yaml.Node) (map[string]any, error) {
	var tree any
	if err := node.Decode(&tree); err != nil {
		return nil, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, errors.New("must be a table")
	}
	return WithoutNulls(config).(map[string]any), nil
}

// manifest adds a KongPlugin or a KongClusterPlugin, and keeps Secrets for them.
func (r *reader) manifest(root *yaml.Node, kind string) {
	var head struct {
		APIVersion string `yaml:"apiVersion"`
		Metadata   struct{ Namespace, Name string }
		Plugin     string
		Disabled   bool
		ConfigFrom *struct {
			SecretKeyRef struct{ Namespace, Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"configFrom"`
		ConfigPatches yaml.Node         `yaml:"configPatches"`
		Config        yaml.Node         `yaml:"config"`
		StringData    map[string]string `yaml:"stringData"`
		Data          map[string]string `yaml:"data"`
	}
	path := kind
	if _, metadata := entry(root, "metadata"); metadata != nil {
		if _, name := entry(metadata, "name"); name != nil {
			path += "/" + name.Value
		}
	}
	if kind != "KongPlugin" && kind != "KongClusterPlugin" && kind != "Secret" {
		return
	}
	if err := root.Decode(&head); err != nil {
		r.problem(root.Line, path, "%v", err)
		return
	}
	if kind == "Secret" {
		values := map[string]string{}
		for key, encoded := range head.Data {
			text, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				r.problem(root.Line, path+".data."+key, "%v", err)
			}
			values[key] = string(text)
		}
		maps.Copy(values, head.StringData) // which Kubernetes prefers, too
		r.secrets[head.Metadata.Namespace+"/"+head.Metadata.Name] = values
		return
	}
	if head.Plugin != pluginName {
		return
	}
	p := Plugin{Place: Place{r.file, root.Line, path}, Disabled: head.Disabled, Elsewhere: true}
	switch {
	case !strings.HasPrefix(head.APIVersion, "configuration.konghq.com/"):
		r.problem(root.Line, path, "apiVersion: %q must be configuration.konghq.com/v1", head.APIVersion)
	case head.ConfigFrom != nil && !head.Config.IsZero():
		r.problem(root.Line, path, "config and configFrom exclude each other")
	case head.ConfigFrom != nil:
		ref := head.ConfigFrom.SecretKeyRef
		if ref.Namespace == "" {
			ref.Namespace = head.Metadata.Namespace
		}
		r.pending = append(r.pending, pending{p.Place, ref.Namespace + "/" + ref.Name, ref.Key, p})
	case r.config(&p, &head.Config):
		r.Plugins = append(r.Plugins, p)
		if !head.ConfigPatches.IsZero() {
			r.note(Place{r.file, head.ConfigPatches.Line, path + ".configPatches"}, "what they put in is in Secrets of the cluster, and not looked at")
		}
	}
}

// finish resolves what may stand in any of the files.
func (r *reader) finish() {
	for _, w := range r.pending {
		text, there := r.secrets[w.secret][w.key]
		if !there {
			r.note(w.place, "configFrom: Secret %s with key %s is in none of the files, so the config is not looked at", w.secret, w.key)
			continue
		}
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(text), &document); err != nil || len(document.Content) == 0 {
			r.Problems = append(r.Problems, Problem{Place: w.place, Message: fmt.Sprintf("configFrom: Secret %s, key %s: %v", w.secret, w.key, err)})
			continue
		}
		r.file = w.place.File
		if r.config(&w.plugin, document.Content[0]) {
			w.plugin.node = nil // its lines are those of another text
			r.Plugins = append(r.Plugins, w.plugin)
		}
	}
	known := map[string]map[string]Entity{"service": byName(r.services), "route": byName(r.routes)}
	var consumers []Entity
	for _, c := range r.consumers {
		consumers = append(consumers, c.Entity)
	}
	known["consumer"] = byName(consumers)
	for _, ref := range r.references {
		found, there := known[ref.kind][ref.name]
		if !there {
			r.Problems = append(r.Problems, Problem{Place: ref.place, Message: fmt.Sprintf("%q is no %s of these files", ref.name, ref.kind)})
			found = Entity{Name: ref.name}
		}
		p := &r.Plugins[ref.of]
		switch ref.kind {
		case "service":
			p.Service = found
		case "route":
			p.Route = found
		case "consumer":
			p.Consumer = found
		}
	}
	if !r.declarative {
		return
	}
	r.Consumer = func(_ context.Context, name string) (Consumer, error) {
		for _, c := range r.consumers {
			if name == c.Name || name == c.ID || name == c.CustomID {
				return c, nil
			}
		}
		return Consumer{}, fmt.Errorf("consumer %q is in none of the files: %w", name, ErrUnknown)
	}
}

// byName finds entities by what a declarative file may name them: name or id.
func byName(all []Entity) map[string]Entity {
	found := map[string]Entity{}
	for _, e := range all {
		found[e.Name], found[e.ID] = e, e
	}
	delete(found, "")
	return found
}

// ErrUnknown: there is no such consumer.
var ErrUnknown = errors.New("unknown")
