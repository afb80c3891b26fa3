package devkong

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"kong-quota/internal/kongconfig"
)

// The entities have the names and defaults that Kong's have. Ids that a
// configuration leaves out follow from the names, so that they survive a reload.

type service struct {
	ID             string   `json:"id"`
	Name           string   `json:"name"`
	URL            string   `json:"url,omitempty"`
	Protocol       string   `json:"protocol"`
	Host           string   `json:"host"`
	Port           int      `json:"port"`
	Path           string   `json:"path"`
	Retries        int      `json:"retries"`
	ConnectTimeout int      `json:"connect_timeout"` // milliseconds, as the next two
	ReadTimeout    int      `json:"read_timeout"`
	WriteTimeout   int      `json:"write_timeout"`
	Tags           []string `json:"tags"`
	CreatedAt      int64    `json:"created_at"`
	UpdatedAt      int64    `json:"updated_at"`
}

type route struct {
	ID                string    `json:"id"`
	Name              string    `json:"name"`
	Service           reference `json:"service"`
	Paths             []string  `json:"paths"`
	Hosts             []string  `json:"hosts"`
	Methods           []string  `json:"methods"`
	Protocols         []string  `json:"protocols"`
	StripPath         *bool     `json:"strip_path"`
	PreserveHost      bool      `json:"preserve_host"`
	RegexPriority     int       `json:"regex_priority"`
	HTTPSRedirectCode int       `json:"https_redirect_status_code"`
	Tags              []string  `json:"tags"`
	CreatedAt         int64     `json:"created_at"`
	UpdatedAt         int64     `json:"updated_at"`
}

type consumer struct {
	ID        string   `json:"id"`
	Username  string   `json:"username"`
	CustomID  string   `json:"custom_id,omitempty"`
	Tags      []string `json:"tags"`
	CreatedAt int64    `json:"created_at"`
	UpdatedAt int64    `json:"updated_at"`
}

type credential struct {
	ID       string    `json:"id"`
	Key      string    `json:"key"`
	Consumer reference `json:"consumer"`
	Tags     []string  `json:"tags"`
}

type plugin struct {
	ID           string         `json:"id"`
	Name         string         `json:"name"`
	InstanceName *string        `json:"instance_name"`
	Config       map[string]any `json:"config"`
	Service      reference      `json:"service"`
	Route        reference      `json:"route"`
	Consumer     reference      `json:"consumer"`
	Protocols    []string       `json:"protocols"`
	Enabled      *bool          `json:"enabled"`
	Tags         []string       `json:"tags"`
	CreatedAt    int64          `json:"created_at"`
	UpdatedAt    int64          `json:"updated_at"`

	seq int // counts the versions of all plugins, as Kong's __seq__
}

func (p *plugin) enabled() bool { return p.Enabled == nil || *p.Enabled }

// reference is another entity's id, "" for none. In JSON it is null or
// {"id": …}; a declarative file may also give the id or the name alone.
type reference string

// MarshalJSON writes Kong's form.
func (r reference) MarshalJSON() ([]byte, error) {
	if r == "" {
		return []byte("null"), nil
	}
	return fmt.Appendf(nil, `{"id":%q}`, string(r)), nil
}

// UnmarshalJSON reads an id, a name, {"id": …}, {"name": …} or {"username": …}.
func (r *reference) UnmarshalJSON(data []byte) error {
	var text *string
	if decodeStrict(data, &text) == nil {
		*r = ""
		if text != nil {
			*r = reference(*text)
		}
		return nil
	}
	var named struct{ ID, Name, Username string }
	if err := decodeStrict(data, &named); err != nil {
		return fmt.Errorf("a reference is a name, an id, or a table with one of these: %w", err)
	}
	*r = reference(named.ID + named.Name + named.Username)
	return nil
}

var namespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("devkong"))

func idOf(kind, name string) string { return uuid.NewSHA1(namespace, []byte(kind+":"+name)).String() }

// idOfNamed is the id that Kong gives to what has a name. What has none has a random
// one there; here it follows from what it says.
func idOfNamed(kind, name, says string) string {
	if name == "" {
		return idOf(kind, says)
	}
	return kongconfig.ID(kind, name)
}

// complete fills a service's defaults, from its url where it has one.
func (s *service) complete(now int64) error {
	if s.URL != "" {
		u, err := url.Parse(s.URL)
		if err != nil {
			return fmt.Errorf("url: %w", err)
		}
		s.Protocol, s.Host, s.Path = u.Scheme, u.Hostname(), u.Path
		if u.Port() != "" {
			if s.Port, err = strconv.Atoi(u.Port()); err != nil {
				return fmt.Errorf("url: %w", err)
			}
		} else if s.Protocol == "https" || s.Protocol == "grpcs" {
			s.Port = 443
		}
		s.URL = ""
	}
	setDefault(&s.Protocol, "http")
	setDefault(&s.Port, 80)
	setDefault(&s.Retries, 5)
	setDefault(&s.ConnectTimeout, 60000)
	setDefault(&s.ReadTimeout, 60000)
	setDefault(&s.WriteTimeout, 60000)
	setDefault(&s.CreatedAt, now)
	setDefault(&s.UpdatedAt, now)
	setDefault(&s.ID, idOfNamed("services", s.Name, s.Host))
	switch {
	case !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, s.Protocol):
		return fmt.Errorf("protocol: %q must be http, https, grpc or grpcs", s.Protocol)
	case s.Host == "":
		return fmt.Errorf("host: %q must not be empty", s.Host)
	}
	return nil
}

func (r *route) complete(now int64) error {
	if r.StripPath == nil {
		strip := true
		r.StripPath = &strip
	}
	if r.Protocols == nil {
		r.Protocols = []string{"http", "https"}
	}
	setDefault(&r.HTTPSRedirectCode, 426)
	setDefault(&r.CreatedAt, now)
	setDefault(&r.UpdatedAt, now)
	setDefault(&r.ID, idOfNamed("routes", r.Name, fmt.Sprint(r.Paths, r.Hosts, r.Methods)))
	if len(r.Paths)+len(r.Hosts)+len(r.Methods) == 0 {
		return errors.New("must set one of 'methods', 'hosts', 'paths'")
	}
	for _, path := range r.Paths {
		if path == "" || path[0] != '/' && path[0] != '~' {
			return fmt.Errorf("paths: %q must begin with / or ~", path)
		}
	}
	return nil
}

func setDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}
