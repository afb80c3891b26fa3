package devkong

import (
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// candidate is a route with one of its paths, or with none: Kong sorts the paths
// of all routes, not the routes.
type candidate struct {
	*route
	path  string
	regex *regexp.Regexp // of a path that begins with ~
}

// order sorts the routes as Kong tries them: those that ask for more kinds of
// attributes first, then regular expressions by priority, then longer paths.
func order(routes map[string]*route) []candidate {
	var sorted []candidate
	for _, r := range routes {
		if len(r.Paths) == 0 {
			sorted = append(sorted, candidate{route: r})
		}
		for _, path := range r.Paths {
			c := candidate{route: r, path: path}
			if expression, isRegex := strings.CutPrefix(path, "~"); isRegex {
				compiled, err := regexp.Compile("^(?:" + expression + ")")
				if err != nil {
					continue // Kong's are PCRE; this one is none of Go's
				}
				c.regex = compiled
			}
			sorted = append(sorted, c)
		}
	}
	kinds := func(c candidate) int { return min(1, len(c.Paths)) + min(1, len(c.Hosts)) + min(1, len(c.Methods)) }
	slices.SortFunc(sorted, func(a, b candidate) int {
		switch {
		case kinds(a) != kinds(b):
			return kinds(b) - kinds(a)
		case (a.regex != nil) != (b.regex != nil):
			if a.regex != nil {
				return -1
			}
			return 1
		case a.RegexPriority != b.RegexPriority:
			return b.RegexPriority - a.RegexPriority
		case len(a.path) != len(b.path):
			return len(b.path) - len(a.path)
		}
		return strings.Compare(a.ID, b.ID)
	})
	return sorted
}

// match finds the route of a request and the part of its path that the route
// matched; nil if there is none.
func (s *state) match(r *http.Request) (*route, string) {
	for _, c := range s.router {
		if len(c.Methods) > 0 && !slices.Contains(c.Methods, r.Method) {
			continue
		}
		if len(c.Hosts) > 0 && !slices.ContainsFunc(c.Hosts, func(h string) bool { return hostMatches(h, r.Host) }) {
			continue
		}
		if prefix, ok := c.matches(r.URL.Path); ok {
			return c.route, prefix
		}
	}
	return nil, ""
}

func (c candidate) matches(path string) (prefix string, ok bool) {
	if c.regex != nil {
		prefix = c.regex.FindString(path)
		return prefix, prefix != ""
	}
	return c.path, strings.HasPrefix(path, c.path)
}

func hostMatches(want, got string) bool {
	if !strings.Contains(want, ":") {
		if host, _, err := net.SplitHostPort(got); err == nil {
			got = host
		}
	}
	if suffix, wild := strings.CutPrefix(want, "*"); wild {
		return strings.HasSuffix(got, suffix)
	}
	if prefix, wild := strings.CutSuffix(want, "*"); wild {
		return strings.HasPrefix(got, prefix)
	}
	return strings.EqualFold(want, got)
}
