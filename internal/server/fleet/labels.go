package fleet

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Labels describe a daemon, by name.
type Labels map[string]string

// Own are the labels that each daemon sets itself. Users cannot set them.
var Own = []string{"name", "host", "image", "version"}

// Limits of labels.
const (
	maxLabels = 64
	maxLabel  = 128 // bytes of a value
)

var labelName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)

// Add adds a label from its text: NAME=VALUE.
func (l Labels) Add(text string) error {
	name, value, ok := strings.Cut(text, "=")
	switch {
	case !ok || !labelName.MatchString(name):
		return errors.New("want NAME=VALUE, with a NAME of letters, digits and _ . -, at most 63")
	case slices.Contains(Own, name):
		return fmt.Errorf("%s is what the daemon says itself", name)
	case !plain(value):
		return fmt.Errorf("a value has 1 to %d printable characters, and none of , = ! * ? [ ] \\", maxLabel)
	case len(l) >= maxLabels:
		return fmt.Errorf("more than %d labels", maxLabels)
	}
	if _, twice := l[name]; twice {
		return fmt.Errorf("label %s is given twice", name)
	}
	l[name] = value
	return nil
}

// String returns the labels as text, by name, with commas between.
func (l Labels) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		out = append(out, name+"="+l[name])
	}
	return strings.Join(out, ",")
}

// plain reports whether s may be the value of a label.
func plain(s string) bool {
	return s != "" && len(s) <= maxLabel && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(",=!*?[]\\", r)
	})
}

// cleanLabel returns a text as a label's value: characters that a label must not
// have are replaced.
func cleanLabel(s string) string {
	s = strings.Map(func(r rune) rune {
		if !plain(string(r)) {
			return '_'
		}
		return r
	}, s)
	return s[:min(len(s), maxLabel)]
}

// Where chooses daemons by their labels. The zero value chooses all.
type Where struct {
	text  string
	terms []term
}

// term is one condition.
type term struct {
	name    string
	pattern string
	is      bool // or is not
}

// ParseWhere parses conditions with commas between them, all of which must hold:
// NAME=PATTERN, with * ? [a-z] in the pattern, and NAME!=PATTERN, which also
// holds for a daemon without the label.
func ParseWhere(text string) (w Where, err error) {
	if w.text = text; text == "" {
		return w, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, pattern, ok := strings.Cut(part, "=")
		t := term{pattern: pattern, is: true}
		if t.name = name; strings.HasSuffix(name, "!") {
			t.name, t.is = name[:len(name)-1], false
		}
		if !ok || !labelName.MatchString(t.name) || pattern == "" {
			return Where{}, fmt.Errorf("%q: want NAME=PATTERN or NAME!=PATTERN", part)
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return Where{}, fmt.Errorf("%q: %w", part, err)
		}
		w.terms = append(w.terms, t)
	}
	return w, nil
}

// String returns the text that ParseWhere has parsed.
func (w Where) String() string { return w.text }

// Match reports whether a daemon with these labels is chosen.
func (w Where) Match(l Labels) bool {
	for _, t := range w.terms {
		value, ok := l[t.name]
		// A pattern's * also matches slashes.
		fits, _ := path.Match(strings.ReplaceAll(t.pattern, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00"))
		if (ok && fits) != t.is {
			return false
		}
	}
	return true
}

// maxText bounds a peer's text, in bytes.
const maxText = 1 << 10

// plainText returns a peer's text as a part of one line: without newlines and
// control characters, and no longer than the text of an error.
func plainText(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !unicode.IsPrint(r) || r == utf8.RuneError:
			return '?'
		}
		return r
	}, s[:min(len(s), 2*maxText)])
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}
