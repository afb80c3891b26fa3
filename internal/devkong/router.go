package devkong

import (
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// order sorts the routes as Kong tries them: those that ask for more kinds of
// attributes first, then regular expressions by priority, then longer paths.
func order(routes map[string]*route) []*route {
	sorted := make([]*route, 0, len(routes))
	for _, r := range routes {
		sorted = append(sorted, r)
	}
	kinds := func(r *route) int { return min(1, len(r.Paths)) + min(1, len(r.Hosts)) + min(1, len(r.Methods)) }
	longest := func(r *route) int {
		n := 0
		for _, path := range r.Paths {
			n = max(n, len(path))
		}
		return n
	}
	regex := func(r *route) bool {
		return slices.ContainsFunc(r.Paths, func(p string) bool { return strings.HasPrefix(p, "~") })
	}
	slices.SortFunc(sorted, func(a, b *route) int {
		switch {
		case kinds(a) != kinds(b):
			return kinds(b) - kinds(a)
		case regex(a) != regex(b):
			if regex(a) {
				return -1
			}
			return 1
		case a.RegexPriority != b.RegexPriority:
			return b.RegexPriority - a.RegexPriority
		case longest(a) != longest(b):
			return longest(b) - longest(a)
		}
		return strings.Compare(a.ID, b.ID)
	})
	return sorted
}

// match finds the route of a request and the part of its path that the route
// matched; nil if there is none.
func (s *state) match(r *http.Request) (*route, string) {
	for _, candidate := range s.router {
		if len(candidate.Methods) > 0 && !slices.Contains(candidate.Methods, r.Method) {
			continue
		}
		if len(candidate.Hosts) > 0 && !slices.ContainsFunc(candidate.Hosts, func(h string) bool { return hostMatches(h, r.Host) }) {
			continue
		}
		if len(candidate.Paths) == 0 {
			return candidate, ""
		}
		if prefix, ok := pathMatches(candidate.Paths, r.URL.Path); ok {
			return candidate, prefix
		}
	}
	return nil, ""
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

func pathMatches(paths []string, path string) (prefix string, ok bool) {
	for _, want := range paths {
		if expression, isRegex := strings.CutPrefix(want, "~"); isRegex {
			compiled, err := regexp.Compile("^(?:" + expression + ")")
			if err != nil {
				continue
			}
			if found := compiled.FindString(path); found != "" && len(found) > len(prefix) {
				prefix, ok = found, true
			}
			continue
		}
		if strings.HasPrefix(path, want) && len(want) > len(prefix) {
			prefix, ok = want, true
		}
	}
	return prefix, ok
}
