package guest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Limits of names that the linker mangles: a short one can stand for a very long one.
const (
	maxMangled   = 4096 // bytes of a symbol's name
	maxDemangled = 12   // 2^12 bytes of what it stands for
	maxMeant     = 3    // symbols that an error names
)

// SourceName returns the name that C++ or Rust source has for a function or a variable, of whose symbol name is the mangled name; params
// has the types of a function's parameters added. It is "" for a name that is not mangled.
func SourceName(name string, params bool) string {
	if !mangled(name) || len(name) > maxMangled {
		return ""
	}
	options := []demangle.Option{demangle.MaxLength(maxDemangled)}
	if !params {
		options = append(options, demangle.NoParams, demangle.NoClones)
	}
	text, err := demangle.ToString(name, options...)
	if err != nil || text == name {
		return ""
	}
	return text
}

// mangled reports whether a name may be one of C++ (_Z) or Rust (_R).
func mangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R")
}

// meant returns advice about a name that no symbol has: which symbols have it in their source.
func (t *SymbolTable) meant(name string) string {
	if len(name) < 2 {
		return ""
	}
	last := name[strings.LastIndexByte(name, ':')+1:]
	var found []string
	for i := range t.all {
		s := t.all[i].Name
		if !mangled(s) || !strings.Contains(s, last) {
			continue
		}
		source := SourceName(s, false)
		if source == name || strings.HasSuffix(source, "::"+name) || SourceName(s, true) == name {
			if found = append(found, s); len(found) == maxMeant {
				break
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	found = slices.Compact(found)
	for i, s := range found {
		found[i] = fmt.Sprintf("%s for %s", s, SourceName(s, true))
	}
	return "the linker has other names for it: write " + strings.Join(found, ", or ")
}
