package devkong

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kong-quota/internal/devkong/schema"
)

// maxBody bounds a body of the Admin API.
const maxBody = 16 << 20

// admin is the part of Kong's Admin API that a quota user needs. It takes writes
// as Kong with a database does; a change is in effect when the answer is out.
func (g *Gateway) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{"tagline": "devkong: Kong's side of the plugin protocol, for development; no gateway", "version": "3.9.3"})
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{"server": map[string]any{}})
	})
	mux.HandleFunc("GET /services", func(w http.ResponseWriter, _ *http.Request) { replyList(w, g.state.Load().services) })
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) { replyList(w, g.state.Load().routes) })
	mux.HandleFunc("GET /consumers", func(w http.ResponseWriter, r *http.Request) {
		consumers := g.state.Load().consumers
		if id := r.URL.Query().Get("custom_id"); id != "" {
			consumers = maps.Clone(consumers)
			maps.DeleteFunc(consumers, func(_ string, c *consumer) bool { return c.CustomID != id })
		}
		replyList(w, consumers)
	})
	mux.HandleFunc("GET /consumers/{consumer}", g.getConsumer)
	mux.HandleFunc("POST /consumers", g.postConsumer)
	for _, scope := range []string{"service", "route", "consumer"} {
		path := "/" + scope + "s/{" + scope + "}/plugins"
		mux.HandleFunc("GET "+path, g.listPlugins)
		mux.HandleFunc("POST "+path, g.postPlugin)
	}
	mux.HandleFunc("GET /plugins", g.listPlugins)
	mux.HandleFunc("POST /plugins", g.postPlugin)
	mux.HandleFunc("GET /plugins/{id}", g.getPlugin)
	mux.HandleFunc("PATCH /plugins/{id}", g.patchPlugin)
	mux.HandleFunc("PUT /plugins/{id}", g.putPlugin)
	mux.HandleFunc("DELETE /plugins/{id}", g.deletePlugin)
	mux.HandleFunc("POST /schemas/plugins/validate", g.validatePlugin)
	mux.HandleFunc("POST /config", g.postConfig)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if _, pattern := mux.Handler(r); pattern == "" {
			reply(w, 404, map[string]any{"message": "Not found"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Server", serverName)
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body)
	}
}

func replyList[E named](w http.ResponseWriter, all map[string]E) {
	list := slices.SortedFunc(maps.Values(all), func(a, b E) int {
		_, left := a.names()
		_, right := b.names()
		return strings.Compare(left, right)
	})
	if list == nil {
		list = []E{}
	}
	reply(w, 200, map[string]any{"data": list, "next": nil})
}

func (c *consumer) names() (id, name string) { return c.ID, c.Username }

// replyError writes an error in Kong's shape.
func replyError(w http.ResponseWriter, err error) {
	var violation *schema.Violation
	switch {
	case errors.As(err, &violation):
		reply(w, 400, violation)
	case errors.Is(err, errTaken):
		reply(w, 409, map[string]any{"code": 5, "name": "unique constraint violation", "message": err.Error()})
	case errors.Is(err, errNotFound):
		reply(w, 404, map[string]any{"message": "Not found"})
	default:
		reply(w, 400, map[string]any{"message": err.Error()})
	}
}

var errNotFound = errors.New("not found")

// change makes a new state of the present one; nobody sees it half done.
func (g *Gateway) change(f func(s *state) error) error {
	g.changes.Lock()
	defer g.changes.Unlock()
	next := g.state.Load().clone()
	if err := f(next); err != nil {
		return err
	}
	g.state.Store(next)
	return nil
}

func (g *Gateway) getConsumer(w http.ResponseWriter, r *http.Request) {
	c := g.state.Load().findConsumer(r.PathValue("consumer"))
	if c == nil {
		replyError(w, errNotFound)
		return
	}
	reply(w, 200, c)
}

func (g *Gateway) postConsumer(w http.ResponseWriter, r *http.Request) {
	var c consumer
	err := readBody(r, &c)
	if err == nil {
		err = g.change(func(s *state) error { return s.addConsumer(&c, time.Now().Unix()) })
	}
	if err != nil {
		replyError(w, err)
		return
	}
	reply(w, 201, c)
}

// owner is the scope that a path names, e.g. /consumers/alice/plugins.
func (s *state) owner(r *http.Request) (plugin, error) {
	p := plugin{Service: reference(r.PathValue("service")), Route: reference(r.PathValue("route")), Consumer: reference(r.PathValue("consumer"))}
	if err := s.resolve(&p); err != nil {
		return p, errNotFound
	}
	return p, nil
}

func (g *Gateway) listPlugins(w http.ResponseWriter, r *http.Request) {
	s := g.state.Load()
	owner, err := s.owner(r)
	if err != nil {
		replyError(w, err)
		return
	}
	list := []*plugin{}
	for _, id := range s.order {
		p := s.plugins[id]
		if (owner.Service == "" || p.Service == owner.Service) && (owner.Route == "" || p.Route == owner.Route) && (owner.Consumer == "" || p.Consumer == owner.Consumer) {
			list = append(list, p)
		}
	}
	reply(w, 200, map[string]any{"data": list, "next": nil})
}

func (g *Gateway) postPlugin(w http.ResponseWriter, r *http.Request) {
	var p plugin
	err := g.change(func(s *state) error {
		owner, err := s.owner(r)
		if err != nil {
			return err
		}
		if err := readBody(r, &p); err != nil {
			return err
		}
		if owner.Service != "" {
			p.Service = owner.Service
		}
		if owner.Route != "" {
			p.Route = owner.Route
		}
		if owner.Consumer != "" {
			p.Consumer = owner.Consumer
		}
		if err := s.resolve(&p); err != nil {
			return err
		}
		return s.addPlugin(&p, g.schemas, time.Now().Unix())
	})
	if err != nil {
		replyError(w, err)
		return
	}
	reply(w, 201, p)
}

func (g *Gateway) getPlugin(w http.ResponseWriter, r *http.Request) {
	p := g.state.Load().plugins[r.PathValue("id")]
	if p == nil {
		replyError(w, errNotFound)
		return
	}
	reply(w, 200, p)
}

// patchPlugin lays the body over the plugin: tables are merged, everything else,
// lists among it, is replaced.
func (g *Gateway) patchPlugin(w http.ResponseWriter, r *http.Request) {
	g.replacePlugin(w, r, func(old *plugin) (plugin, error) {
		if old == nil {
			return plugin{}, errNotFound
		}
		p := *old
		p.Config = nil
		if err := readBody(r, &p); err != nil {
			return plugin{}, err
		}
		merged, _ := merge(old.Config, p.Config).(map[string]any)
		p.ID, p.Config = old.ID, merged
		return p, nil
	})
}

func (g *Gateway) putPlugin(w http.ResponseWriter, r *http.Request) {
	g.replacePlugin(w, r, func(old *plugin) (plugin, error) {
		var p plugin
		if err := readBody(r, &p); err != nil {
			return plugin{}, err
		}
		p.ID = r.PathValue("id")
		if old != nil {
			p.CreatedAt = old.CreatedAt
		}
		return p, nil
	})
}

func (g *Gateway) replacePlugin(w http.ResponseWriter, r *http.Request, replace func(old *plugin) (plugin, error)) {
	var p plugin
	err := g.change(func(s *state) error {
		var err error
		if p, err = replace(s.plugins[r.PathValue("id")]); err != nil {
			return err
		}
		if err := s.resolve(&p); err != nil {
			return err
		}
		return s.addPlugin(&p, g.schemas, time.Now().Unix())
	})
	if err != nil {
		replyError(w, err)
		return
	}
	reply(w, 200, p)
}

func (g *Gateway) deletePlugin(w http.ResponseWriter, r *http.Request) {
	// As Kong: what is not there is gone.
	_ = g.change(func(s *state) error { s.removePlugin(r.PathValue("id")); return nil })
	w.WriteHeader(http.StatusNoContent)
}

func (g *Gateway) validatePlugin(w http.ResponseWriter, r *http.Request) {
	var p plugin
	err := readBody(r, &p)
	if err == nil {
		_, err = g.schemas.validate(&p)
	}
	if err != nil {
		replyError(w, err)
		return
	}
	reply(w, 201, map[string]any{"message": "schema validation successful"})
}

// postConfig replaces everything by a declarative configuration: the body, or
// the field config of it.
func (g *Gateway) postConfig(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err == nil {
		var wrapped struct{ Config string }
		if json.Unmarshal(text, &wrapped) == nil && wrapped.Config != "" {
			text = []byte(wrapped.Config)
		}
		err = g.change(func(s *state) error {
			next, err := load(text, g.schemas)
			if err == nil {
				next.keepVersions(s)
				*s = *next
			}
			return err
		})
	}
	if err != nil {
		reply(w, 400, map[string]any{"code": 14, "name": "invalid declarative configuration", "message": err.Error(), "fields": map[string]any{}})
		return
	}
	reply(w, 201, map[string]any{"message": "configuration loaded"})
}

// readBody decodes JSON, or a form with Kong's dotted names.
func readBody(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(text))
		if err != nil {
			return err
		}
		if text, err = json.Marshal(formTree(form)); err != nil {
			return err
		}
	}
	if len(text) == 0 {
		text = []byte("{}")
	}
	if err := decodeStrict(text, into); err != nil {
		return fmt.Errorf("cannot parse the body: %w", err)
	}
	return nil
}

// formKey is one step of a form's name: a word, and [1] or [] where it is a list.
var formKey = regexp.MustCompile(`^([^\[\]]+)(?:\[(\d*)\])?$`)

// formTree makes a tree of names such as config.limits[1].name.
func formTree(form url.Values) map[string]any {
	root := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(form)) {
		table := root
		steps := strings.Split(name, ".")
		for i, step := range steps {
			parts := formKey.FindStringSubmatch(step)
			if parts == nil {
				parts = []string{step, step, ""}
			}
			isList := strings.Contains(step, "[")
			last := i == len(steps)-1
			switch {
			case last && isList:
				list, _ := table[parts[1]].([]any)
				for _, v := range form[name] {
					list = append(list, formValue(v))
				}
				table[parts[1]] = list
			case last:
				table[parts[1]] = formValue(form[name][0])
			case isList:
				list, _ := table[parts[1]].([]any)
				at, _ := strconv.Atoi(parts[2])
				at = min(max(at, 1), len(list)+1)
				if at > len(list) {
					list = append(list, map[string]any{})
				}
				table[parts[1]] = list
				next, ok := list[at-1].(map[string]any)
				if !ok {
					next = map[string]any{}
					list[at-1] = next
				}
				table = next
			default:
				next, ok := table[step].(map[string]any)
				if !ok {
					next = map[string]any{}
					table[step] = next
				}
				table = next
			}
		}
	}
	return root
}

// formValue guesses the type, as Kong does from the schema.
func formValue(text string) any {
	switch text {
	case "true":
		return true
	case "false":
		return false
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return n
	}
	return text
}

func merge(old, change any) any {
	base, isTable := old.(map[string]any)
	over, both := change.(map[string]any)
	if !isTable || !both {
		return change
	}
	merged := maps.Clone(base)
	for name, value := range over {
		merged[name] = merge(base[name], value)
	}
	return merged
}
