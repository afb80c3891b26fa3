package schema

import (
	"errors"
	"strings"
)

// matches reports whether a Lua pattern is found in a text, as string.match
// does: character classes, sets, the anchors ^ and $, the repetitions * + - ?,
// captures with back-references, %b and %f (Lua 5.1 reference manual, 5.4.1).
// A pattern that Lua would refuse matches nothing. The work is bounded: a
// pattern that runs away matches nothing either.
func matches(text, pattern string) bool {
	anchored := strings.HasPrefix(pattern, "^")
	if anchored {
		pattern = pattern[1:]
	}
	m := matcher{text: text, pattern: pattern, steps: 1_000_000 + 10*len(text)}
	for start := 0; start <= len(text); start++ {
		m.captures = m.captures[:0]
		if m.match(start, 0) >= 0 {
			return true
		}
		if anchored || m.steps <= 0 {
			return false
		}
	}
	return false
}

// maxCaptures is Lua's.
const maxCaptures = 32

// checkPattern finds what Lua would raise an error for, in Lua's words.
func checkPattern(pattern string) error {
	m := matcher{pattern: strings.TrimPrefix(pattern, "^")}
	open, opened, closed := []int{}, 0, map[int]bool{}
	for p := 0; p < len(m.pattern); {
		switch c := m.pattern[p]; {
		case c == '(':
			if opened++; opened > maxCaptures {
				return errors.New("too many captures")
			}
			open = append(open, opened)
			p++
			continue
		case c == ')':
			if len(open) == 0 {
				return errors.New("invalid pattern capture")
			}
			closed[open[len(open)-1]] = true
			open = open[:len(open)-1]
			p++
			continue
		case c == '%' && p+1 < len(m.pattern):
			switch next := m.pattern[p+1]; {
			case next == 'b':
				if p+3 >= len(m.pattern) {
					return errors.New("unbalanced pattern")
				}
				p += 4
				continue
			case next == 'f':
				if p+2 >= len(m.pattern) || m.pattern[p+2] != '[' {
					return errors.New("missing '[' after '%f' in pattern")
				}
				p += 2
			case '0' <= next && next <= '9':
				if !closed[int(next-'0')] {
					return errors.New("invalid capture index")
				}
				p += 2
				continue
			}
		}
		end := m.classEnd(p)
		switch {
		case end >= 0:
			p = end
		case m.pattern[p] == '%':
			return errors.New("malformed pattern (ends with '%')")
		default:
			return errors.New("malformed pattern (missing ']')")
		}
	}
	if len(open) > 0 {
		return errors.New("unfinished capture")
	}
	return nil
}

type matcher struct {
	text, pattern string
	captures      []capture
	steps         int // left
}

type capture struct {
	start, end int // end is -1 while it is open
}

const fail = -1

// match gives the end of the match of pattern[p:] at text[s:], or fail.
func (m *matcher) match(s, p int) int {
	if m.steps--; m.steps <= 0 {
		return fail
	}
	if p >= len(m.pattern) {
		for _, c := range m.captures {
			if c.end < 0 {
				return fail // an unfinished capture is an error in Lua
			}
		}
		return s
	}
	switch c := m.pattern[p]; {
	case c == '(':
		m.captures = append(m.captures, capture{s, -1})
		if end := m.match(s, p+1); end >= 0 {
			return end
		}
		m.captures = m.captures[:len(m.captures)-1]
		return fail
	case c == ')':
		for i := len(m.captures) - 1; i >= 0; i-- {
			if m.captures[i].end < 0 {
				m.captures[i].end = s
				if end := m.match(s, p+1); end >= 0 {
					return end
				}
				m.captures[i].end = -1
				return fail
			}
		}
		return fail
	case c == '$' && p+1 == len(m.pattern):
		if s == len(m.text) {
			return s
		}
		return fail
	case c == '%' && p+1 < len(m.pattern) && m.pattern[p+1] == 'b':
		return m.balance(s, p)
	case c == '%' && p+1 < len(m.pattern) && m.pattern[p+1] == 'f':
		return m.frontier(s, p)
	case c == '%' && p+1 < len(m.pattern) && '1' <= m.pattern[p+1] && m.pattern[p+1] <= '9':
		i := int(m.pattern[p+1] - '1')
		if i >= len(m.captures) || m.captures[i].end < 0 {
			return fail
		}
		again := m.text[m.captures[i].start:m.captures[i].end]
		if !strings.HasPrefix(m.text[s:], again) {
			return fail
		}
		return m.match(s+len(again), p+2)
	}
	return m.item(s, p)
}

// item matches one character class and its repetition.
func (m *matcher) item(s, p int) int {
	next := m.classEnd(p)
	if next < 0 {
		return fail
	}
	repetition := byte(0)
	if next < len(m.pattern) {
		repetition = m.pattern[next]
	}
	switch repetition {
	case '?':
		if m.one(s, p, next) {
			if end := m.match(s+1, next+1); end >= 0 {
				return end
			}
		}
		return m.match(s, next+1)
	case '*', '+':
		count := 0
		for m.one(s+count, p, next) {
			count++
			m.steps--
		}
		least := 0
		if repetition == '+' {
			least = 1
		}
		for ; count >= least && m.steps > 0; count-- {
			if end := m.match(s+count, next+1); end >= 0 {
				return end
			}
		}
		return fail
	case '-':
		for {
			if end := m.match(s, next+1); end >= 0 {
				return end
			}
			if m.steps <= 0 || !m.one(s, p, next) {
				return fail
			}
			s++
		}
	}
	if !m.one(s, p, next) {
		return fail
	}
	return m.match(s+1, next)
}

// classEnd is where the single class at p ends, or fail if it is malformed.
func (m *matcher) classEnd(p int) int {
	switch m.pattern[p] {
	case '%':
		if p+1 >= len(m.pattern) {
			return fail
		}
		return p + 2
	case '[':
		p++
		if p < len(m.pattern) && m.pattern[p] == '^' {
			p++
		}
		for first := true; ; first = false {
			if p >= len(m.pattern) {
				return fail
			}
			if m.pattern[p] == ']' && !first {
				return p + 1
			}
			if m.pattern[p] == '%' {
				p++
			}
			p++
		}
	}
	return p + 1
}

func (m *matcher) one(s, p, end int) bool {
	return s < len(m.text) && m.class(m.text[s], p, end)
}

// class reports whether c is in the class pattern[p:end].
func (m *matcher) class(c byte, p, end int) bool {
	switch m.pattern[p] {
	case '.':
		return true
	case '%':
		return single(c, m.pattern[p+1])
	case '[':
		return m.set(c, p+1, end-1)
	}
	return m.pattern[p] == c
}

// set reports whether c is in the set whose inside is pattern[p:end].
func (m *matcher) set(c byte, p, end int) bool {
	found := true
	if p < end && m.pattern[p] == '^' {
		found = false
		p++
	}
	for p < end {
		switch {
		case m.pattern[p] == '%' && p+1 < end:
			if single(c, m.pattern[p+1]) {
				return found
			}
			p += 2
		case p+2 < end && m.pattern[p+1] == '-':
			if m.pattern[p] <= c && c <= m.pattern[p+2] {
				return found
			}
			p += 3
		default:
			if m.pattern[p] == c {
				return found
			}
			p++
		}
	}
	return !found
}

// single is a class that % and a letter name, in the C locale.
func single(c, name byte) bool {
	upper := 'A' <= c && c <= 'Z'
	lower := 'a' <= c && c <= 'z'
	digit := '0' <= c && c <= '9'
	var in bool
	switch name | 0x20 {
	case 'a':
		in = upper || lower
	case 'c':
		in = c < 32 || c == 127
	case 'd':
		in = digit
	case 'g': // LuaJIT's addition to 5.1
		in = c > 32 && c < 127
	case 'l':
		in = lower
	case 'p':
		in = c > 32 && c < 127 && !upper && !lower && !digit
	case 's':
		in = c == ' ' || 9 <= c && c <= 13
	case 'u':
		in = upper
	case 'w':
		in = upper || lower || digit
	case 'x':
		in = digit || 'a' <= c|0x20 && c|0x20 <= 'f' && (upper || lower)
	case 'z':
		in = c == 0
	default:
		return c == name
	}
	if 'A' <= name && name <= 'Z' {
		return !in
	}
	if name < 'a' || name > 'z' {
		return c == name
	}
	return in
}

// balance is %bxy: from an x to the y that closes it.
func (m *matcher) balance(s, p int) int {
	if p+3 >= len(m.pattern) || s >= len(m.text) || m.text[s] != m.pattern[p+2] {
		return fail
	}
	opening, closing, depth := m.pattern[p+2], m.pattern[p+3], 1
	for i := s + 1; i < len(m.text); i++ {
		m.steps--
		switch m.text[i] {
		case closing:
			if depth--; depth == 0 {
				return m.match(i+1, p+4)
			}
		case opening:
			depth++
		}
	}
	return fail
}

// frontier is %f[set]: between a character outside the set and one in it.
func (m *matcher) frontier(s, p int) int {
	if p+2 >= len(m.pattern) || m.pattern[p+2] != '[' {
		return fail
	}
	end := m.classEnd(p + 2)
	if end < 0 {
		return fail
	}
	var before, here byte
	if s > 0 {
		before = m.text[s-1]
	}
	if s < len(m.text) {
		here = m.text[s]
	}
	if m.class(before, p+2, end) || !m.class(here, p+2, end) {
		return fail
	}
	return m.match(s, end)
}
