// Matches paths against patterns, as tar and fnmatch(3) do.

package files

import "strings"

// Excluded returns whether a pattern matches the path, or a suffix of it that starts after a slash, as tar's --exclude does.
func Excluded(name string, patterns []string) bool {
	for _, pattern := range patterns {
		wanted := []rune(pattern)
		if match(wanted, []rune("./"+name)) {
			return true
		}
		for suffix, more := name, true; more; _, suffix, more = strings.Cut(suffix, "/") {
			if match(wanted, []rune(suffix)) {
				return true
			}
		}
	}
	return false
}

// Matches returns whether the pattern matches the whole text, as fnmatch(3) without flags does.
func Matches(pattern, text string) bool { return match([]rune(pattern), []rune(text)) }

// match works like fnmatch(3), with * and ? that also match slashes. It backtracks only to the last star, which is sufficient and
// fast.
func match(pattern, name []rune) bool {
	star, retry := -1, 0
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			star, retry = p, n
			p++
			continue
		}
		if p < len(pattern) {
			if width, ok := matchOne(pattern[p:], name[n]); ok {
				p += width
				n++
				continue
			}
		}
		if star < 0 {
			return false
		}
		retry++
		p, n = star+1, retry
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchOne matches the pattern's first element against one character, and returns the element's length.
func matchOne(pattern []rune, char rune) (width int, ok bool) {
	switch pattern[0] {
	case '?':
		return 1, true
	case '\\':
		if len(pattern) > 1 {
			return 2, pattern[1] == char
		}
	case '[':
		if width, ok, closed := matchSet(pattern, char); closed {
			return width, ok
		}
	}
	return 1, pattern[0] == char
}

// matchSet matches [abc], [a-z] and [!a-z]. closed is false if the closing bracket is missing, so that [ is a literal.
func matchSet(pattern []rune, char rune) (width int, ok, closed bool) {
	i, negated := 1, false
	if i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^') {
		negated = true
		i++
	}
	for first := i; i < len(pattern); {
		if pattern[i] == ']' && i > first {
			return i + 1, ok != negated, true
		}
		low, high := pattern[i], pattern[i]
		i++
		if i+1 < len(pattern) && pattern[i] == '-' && pattern[i+1] != ']' {
			high = pattern[i+1]
			i += 2
		}
		ok = ok || (low <= char && char <= high)
	}
	return 0, false, false
}
