package kongconfig

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Admin is the Admin API of a running Kong.
type Admin struct {
	URL    string
	Header http.Header // of every request: Kong-Admin-Token, say
	Client *http.Client
}

// Read asks Kong where it has the plugin. The error names the request that failed.
func (a Admin) Read(ctx context.Context) (*Configuration, error) {
	type ref struct{ ID string }
	var plugins []struct {
		ID       string
		Name     string
		Enabled  bool
		Config   map[string]any
		Service  *ref
		Route    *ref
		Consumer *ref
	}
	if err := list(ctx, a, "/plugins", &plugins); err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, kind := range []string{"/services", "/routes"} {
		var all []struct{ ID, Name string }
		if err := list(ctx, a, kind, &all); err != nil {
			return nil, err
		}
		for _, e := range all {
			names[e.ID] = e.Name
		}
	}
	c := &Configuration{Consumer: a.consumer}
	entity := func(r *ref) Entity {
		if r == nil {
			return Entity{}
		}
		return Entity{r.ID, names[r.ID]}
	}
	for _, p := range plugins {
		if p.Name != pluginName {
			continue
		}
		config, _ := WithoutNulls(p.Config).(map[string]any)
		c.Plugins = append(c.Plugins, Plugin{
			Place: Place{File: a.URL, Path: "/plugins/" + p.ID}, ID: p.ID, Config: config, Disabled: !p.Enabled,
			// There may be as many consumers as plugins: their names are asked for when
			// they are needed.
			Service: entity(p.Service), Route: entity(p.Route), Consumer: entity(p.Consumer),
		})
	}
	return c, nil
}

func (a Admin) consumer(ctx context.Context, name string) (Consumer, error) {
	var found struct {
		ID, Username string
		CustomID     string `json:"custom_id"`
	}
	there, err := a.get(ctx, "/consumers/"+url.PathEscape(name), &found)
	if err != nil {
		return Consumer{}, err
	}
	if !there {
		var all struct {
			Data []struct {
				ID, Username string
				CustomID     string `json:"custom_id"`
			}
		}
		if _, err := a.get(ctx, "/consumers?custom_id="+url.QueryEscape(name), &all); err != nil {
			return Consumer{}, err
		}
		if len(all.Data) != 1 || all.Data[0].CustomID != name {
			return Consumer{}, fmt.Errorf("%s has no consumer %q: %w", a.URL, name, ErrUnknown)
		}
		found = all.Data[0]
	}
	return Consumer{Entity{found.ID, found.Username}, found.CustomID}, nil
}

// list reads all pages of a collection.
func list[T any](ctx context.Context, a Admin, path string, all *[]T) error {
	for next := path + "?size=1000"; next != ""; {
		var page struct {
			Data []T
			Next string
		}
		there, err := a.get(ctx, next, &page)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("admin API: %s has no %s: is that Kong's Admin API?", a.URL, next)
		}
		*all = append(*all, page.Data...)
		next = page.Next
	}
	return nil
}

// get asks for one object. That there is none is no error.
func (a Admin) get(ctx context.Context, path string, into any) (there bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(a.URL, "/")+path, nil)
	if err != nil {
		return false, fmt.Errorf("admin API: %w", err)
	}
	if a.Header != nil {
		request.Header = a.Header.Clone()
	}
	answer, err := a.Client.Do(request)
	if err != nil {
		return false, fmt.Errorf("admin API: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return false, nil
	default:
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return false, fmt.Errorf("admin API: GET %s: %s: %s", path, answer.Status, said)
	}
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return false, fmt.Errorf("admin API: GET %s: %w", path, err)
	}
	return true, nil
}
