package devkong

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// state is one configuration: what Kong's database or declarative file says. It
// is not changed once it is in use; every change makes another.
type state struct {
	services    map[string]*service
	routes      map[string]*route
	consumers   map[string]*consumer
	credentials map[string]*credential // by key
	plugins     map[string]*plugin
	order       []string // ids of the plugins as they came
	router      []candidate
}

func newState() *state {
	return &state{map[string]*service{}, map[string]*route{}, map[string]*consumer{}, map[string]*credential{}, map[string]*plugin{}, nil, nil}
}

// clone copies the tables; the entities stay, since nobody changes them.
func (s *state) clone() *state {
	return &state{maps.Clone(s.services), maps.Clone(s.routes), maps.Clone(s.consumers), maps.Clone(s.credentials),
		maps.Clone(s.plugins), slices.Clone(s.order), slices.Clone(s.router)}
}

func decodeStrict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// The entities of a declarative file, with those that stand inside of them.
type (
	declaredService struct {
		service
		Routes  []json.RawMessage `json:"routes"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	declaredRoute struct {
		route
		Plugins []json.RawMessage `json:"plugins"`
	}
	declaredConsumer struct {
		consumer
		Plugins     []json.RawMessage `json:"plugins"`
		Credentials []json.RawMessage `json:"keyauth_credentials"`
	}
	declaration struct {
		Version     string            `json:"_format_version"`
		Transform   *bool             `json:"_transform"`
		Services    []json.RawMessage `json:"services"`
		Routes      []json.RawMessage `json:"routes"`
		Consumers   []json.RawMessage `json:"consumers"`
		Credentials []json.RawMessage `json:"keyauth_credentials"`
		Plugins     []json.RawMessage `json:"plugins"`
	}
)

// loader turns a declarative file into a state and collects what is wrong.
type loader struct {
	*state
	schemas  schemas
	now      int64
	problems []error
	pending  []declaredPlugin
}

type declaredPlugin struct {
	path  string
	text  json.RawMessage
	owner plugin // the scope that it stands in
}

// load reads a declarative configuration, YAML or JSON. The error joins every
// problem, each with its place in the file.
func load(text []byte, plugins schemas) (*state, error) {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("declarative configuration: %w", err)
	}
	encoded, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("declarative configuration: %w", err)
	}
	var d declaration
	if err := decodeStrict(encoded, &d); err != nil {
		return nil, fmt.Errorf("declarative configuration: %w", err)
	}
	l := &loader{state: newState(), schemas: plugins, now: time.Now().Unix()}
	if d.Version != "3.0" {
		l.refuse("_format_version", fmt.Errorf("%q must be \"3.0\"", d.Version))
	}
	for i, s := range d.Services {
		l.service(fmt.Sprintf("services[%d]", i+1), s)
	}
	for i, r := range d.Routes {
		l.route(fmt.Sprintf("routes[%d]", i+1), r, "")
	}
	for i, c := range d.Consumers {
		l.consumer(fmt.Sprintf("consumers[%d]", i+1), c)
	}
	for i, c := range d.Credentials {
		l.credential(fmt.Sprintf("keyauth_credentials[%d]", i+1), c, "")
	}
	for i, p := range d.Plugins {
		l.pending = append(l.pending, declaredPlugin{path: fmt.Sprintf("plugins[%d]", i+1), text: p})
	}
	// Plugins come last: they name entities from anywhere in the file.
	for _, p := range l.pending {
		l.plugin(p)
	}
	if len(l.problems) > 0 {
		return nil, fmt.Errorf("declarative configuration: %w", errors.Join(l.problems...))
	}
	l.router = order(l.routes)
	return l.state, nil
}

func (l *loader) refuse(path string, err error) bool {
	if err != nil {
		l.problems = append(l.problems, fmt.Errorf("%s: %w", path, err))
	}
	return err != nil
}

func (l *loader) pend(path string, texts []json.RawMessage, owner plugin) {
	for i, text := range texts {
		l.pending = append(l.pending, declaredPlugin{fmt.Sprintf("%s.plugins[%d]", path, i+1), text, owner})
	}
}

func (l *loader) service(path string, text json.RawMessage) {
	var d declaredService
	if l.refuse(path, decodeStrict(text, &d)) || l.refuse(path, d.complete(l.now)) {
		return
	}
	if l.services[d.ID] != nil || d.Name != "" && findNamed(l.services, d.Name) != nil {
		l.refuse(path, fmt.Errorf("name: %q is taken already", d.Name))
		return
	}
	l.services[d.ID] = &d.service
	for i, r := range d.Routes {
		l.route(fmt.Sprintf("%s.routes[%d]", path, i+1), r, d.ID)
	}
	l.pend(path, d.Plugins, plugin{Service: reference(d.ID)})
}

func (l *loader) route(path string, text json.RawMessage, service string) {
	var d declaredRoute
	if l.refuse(path, decodeStrict(text, &d)) || l.refuse(path, d.complete(l.now)) {
		return
	}
	if service != "" {
		d.Service = reference(service)
	} else if found := findNamed(l.services, string(d.Service)); found != nil {
		d.Service = reference(found.ID)
	} else {
		l.refuse(path, fmt.Errorf("service: %q is no service", string(d.Service)))
		return
	}
	if l.routes[d.ID] != nil {
		l.refuse(path, fmt.Errorf("name: %q is taken already", d.Name))
		return
	}
	l.routes[d.ID] = &d.route
	l.pend(path, d.Plugins, plugin{Route: reference(d.ID)})
}

func (l *loader) consumer(path string, text json.RawMessage) {
	var d declaredConsumer
	if l.refuse(path, decodeStrict(text, &d)) {
		return
	}
	if l.refuse(path, l.addConsumer(&d.consumer, l.now)) {
		return
	}
	for i, c := range d.Credentials {
		l.credential(fmt.Sprintf("%s.keyauth_credentials[%d]", path, i+1), c, d.ID)
	}
	l.pend(path, d.Plugins, plugin{Consumer: reference(d.ID)})
}

// addConsumer completes a consumer and adds it, if its names are free.
func (s *state) addConsumer(c *consumer, now int64) error {
	if c.Username == "" && c.CustomID == "" {
		return errors.New("at least one of these fields must be non-empty: 'custom_id', 'username'")
	}
	setDefault(&c.ID, idOfNamed("consumers", c.Username, c.CustomID))
	setDefault(&c.CreatedAt, now)
	setDefault(&c.UpdatedAt, now)
	for _, other := range s.consumers {
		switch {
		case c.Username != "" && other.Username == c.Username:
			return fmt.Errorf("username: %q is taken already", c.Username)
		case c.CustomID != "" && other.CustomID == c.CustomID:
			return fmt.Errorf("custom_id: %q is taken already", c.CustomID)
		case other.ID == c.ID:
			return fmt.Errorf("id: %q is taken already", c.ID)
		}
	}
	s.consumers[c.ID] = c
	return nil
}

func (l *loader) credential(path string, text json.RawMessage, owner string) {
	var c credential
	if l.refuse(path, decodeStrict(text, &c)) {
		return
	}
	if owner != "" {
		c.Consumer = reference(owner)
	} else if found := l.findConsumer(string(c.Consumer)); found != nil {
		c.Consumer = reference(found.ID)
	} else {
		l.refuse(path, fmt.Errorf("consumer: %q is no consumer", string(c.Consumer)))
		return
	}
	setDefault(&c.ID, idOf("keyauth_credential", c.Key))
	switch {
	case c.Key == "":
		l.refuse(path, errors.New("key: must not be empty"))
	case l.credentials[c.Key] != nil:
		l.refuse(path, errors.New("key: another credential has the same"))
	default:
		l.credentials[c.Key] = &c
	}
}

func (l *loader) plugin(d declaredPlugin) {
	p := d.owner
	if l.refuse(d.path, decodeStrict(d.text, &p)) {
		return
	}
	if l.refuse(d.path, l.resolve(&p)) {
		return
	}
	l.refuse(d.path, l.addPlugin(&p, l.schemas, l.now))
}

// resolve turns the names that a plugin refers to into ids.
func (s *state) resolve(p *plugin) error {
	var problems []error
	if p.Service != "" {
		if found := findNamed(s.services, string(p.Service)); found != nil {
			p.Service = reference(found.ID)
		} else {
			problems = append(problems, fmt.Errorf("service: %q is no service", string(p.Service)))
		}
	}
	if p.Route != "" {
		if found := findNamed(s.routes, string(p.Route)); found != nil {
			p.Route = reference(found.ID)
		} else {
			problems = append(problems, fmt.Errorf("route: %q is no route", string(p.Route)))
		}
	}
	if p.Consumer != "" {
		if found := s.findConsumer(string(p.Consumer)); found != nil {
			p.Consumer = reference(found.ID)
		} else {
			problems = append(problems, fmt.Errorf("consumer: %q is no consumer", string(p.Consumer)))
		}
	}
	return errors.Join(problems...)
}

// errTaken is the error of a second plugin of one name in one scope.
var errTaken = errors.New("UNIQUE violation: a plugin of this name is configured for this scope already")

// addPlugin validates a plugin by its schema, fills its defaults and adds it, or
// puts it in the place of the one with its id.
func (s *state) addPlugin(p *plugin, known schemas, now int64) error {
	filled, err := known.validate(p)
	if err != nil {
		return err
	}
	p.Config = filled
	for _, other := range s.plugins {
		if other.ID != p.ID && other.Name == p.Name && other.Service == p.Service && other.Route == p.Route && other.Consumer == p.Consumer {
			return errTaken
		}
	}
	setDefault(&p.ID, idOf("plugin", strings.Join([]string{p.Name, string(p.Route), string(p.Service), string(p.Consumer)}, ":")))
	setDefault(&p.CreatedAt, now)
	p.UpdatedAt = now
	if p.Enabled == nil {
		yes := true
		p.Enabled = &yes
	}
	if p.Protocols == nil {
		p.Protocols = []string{"grpc", "grpcs", "http", "https"}
	}
	p.seq = int(sequence.Add(1))
	if s.plugins[p.ID] == nil {
		s.order = append(s.order, p.ID)
	}
	s.plugins[p.ID] = p
	return nil
}

func (s *state) removePlugin(id string) {
	delete(s.plugins, id)
	s.order = slices.DeleteFunc(s.order, func(other string) bool { return other == id })
}

type named interface{ names() (id, name string) }

func (s *service) names() (id, name string) { return s.ID, s.Name }
func (r *route) names() (id, name string)   { return r.ID, r.Name }

// findNamed gives the entity with the id or the name, or the zero value.
func findNamed[E named](all map[string]E, key string) (found E) {
	if key == "" {
		return found
	}
	for _, e := range all {
		if id, name := e.names(); id == key || name == key {
			return e
		}
	}
	return found
}

func (s *state) findConsumer(key string) *consumer {
	if key == "" {
		return nil
	}
	for _, c := range s.consumers {
		if c.ID == key || c.Username == key {
			return c
		}
	}
	return nil
}

// pick is Kong's precedence: of the plugins with the name, the one that is
// configured most specifically for the request; nil if there is none.
func (s *state) pick(name string, r *route, c *consumer) *plugin {
	var consumer reference
	if c != nil {
		consumer = reference(c.ID)
	}
	route, service := reference(r.ID), r.Service
	for _, scope := range []plugin{
		{Route: route, Service: service, Consumer: consumer},
		{Route: route, Consumer: consumer},
		{Service: service, Consumer: consumer},
		{Route: route, Service: service},
		{Consumer: consumer},
		{Route: route},
		{Service: service},
		{},
	} {
		for _, p := range s.plugins {
			if p.Name == name && p.enabled() && p.Route == scope.Route && p.Service == scope.Service && p.Consumer == scope.Consumer {
				return p
			}
		}
	}
	return nil
}
