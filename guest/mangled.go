package guest

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ianlancetaylor/demangle"
)

// Limits of mangled names: a short one can expand to a very long one.
const (
	maxMangled   = 4096 // bytes of a symbol's name
	maxDemangled = 12   // 2^12 bytes of its expansion
	maxMeant     = 3    // symbols that an error names
)

// SourceName returns the name in the C++ or Rust source of a function or a variable
// whose symbol name is mangled; if params is set it includes the types of a
// function's parameters. It is "" for a name that is not mangled.
func SourceName(name string, params bool) string {
	if !isMangled(name) || len(name) > maxMangled {
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

// ShownName returns the name of a symbol for output: the name in the source, without
// parameters, if it has one. The most recent names are cached: it is called for each
// record that is printed.
func ShownName(name string) string {
	if !isMangled(name) {
		return name
	}
	if text, ok := shown.names.Load(name); ok {
		return text.(string)
	}
	text := cmp.Or(SourceName(name, false), name)
	if shown.n.Add(1) > maxShown { // concurrent calls may add a few too many
		shown.names.Clear()
		shown.n.Store(1)
	}
	shown.names.Store(name, text)
	return text
}

// maxShown bounds the cache of ShownName.
const maxShown = 4096

var shown struct {
	names sync.Map
	n     atomic.Int64
}

// lookupSource returns the only function or variable with that name in its source:
// with its namespaces and classes, and with or without the types of its parameters.
// Parts that the compiler has split off do not count.
func (t *SymbolTable) lookupSource(name string) (found Symbol, ok bool) {
	plain, _, _ := strings.Cut(name, "(")
	if len(name) < 2 || len(name) > 1<<maxDemangled || strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R") {
		return Symbol{}, false
	}
	last := plain[strings.LastIndexByte(plain, ':')+1:]
	last, _, _ = strings.Cut(last, "<")
	for s := range t.mangledSymbols() {
		if strings.Contains(s.Name, ".") || !strings.Contains(s.Name, last) || ok && s.Addr == found.Addr {
			continue
		}
		if whole := SourceName(s.Name, true); SourceName(s.Name, false) != name && whole != name && strings.TrimSuffix(whole, " const") != name {
			continue
		}
		if ok {
			return Symbol{}, false
		}
		found, ok = *s, true
	}
	return found, ok
}

// Parts returns the functions that a compiler has made from the one with that name,
// which also exists: it splits a function (NAME.part.0, NAME.cold), changes its
// parameters (NAME.isra.0), or specializes it for a constant argument
// (NAME.constprop.0).
func (t *SymbolTable) Parts(name string) []string {
	t.findParts.Do(func() {
		t.parts = map[string][]string{}
		for i := range t.all {
			s := &t.all[i]
			of, suffix, ok := strings.Cut(s.Name, ".")
			if kind, _, _ := strings.Cut(suffix, "."); !ok || s.Kind != SymFunc || !slices.Contains(partKinds, kind) || len(t.parts[of]) == maxParts {
				continue
			}
			if !slices.Contains(t.parts[of], s.Name) {
				t.parts[of] = append(t.parts[of], s.Name)
			}
		}
	})
	return t.parts[name]
}

// maxParts bounds the parts of one function.
const maxParts = 32

// partKinds are the suffixes of parts: of gcc (part, cold, isra, constprop) and of
// LLVM (its hot-cold splitting; its other clones have numbers or hashes).
var partKinds = []string{"part", "cold", "isra", "constprop", "specialized"}

// isMangled reports whether a name may be a mangled name of C++ (_Z) or Rust (_R).
func isMangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R")
}

// mangledSymbols yields the symbols with mangled names, ascending by address. They are
// searched for once: a kernel has 100,000 symbols and no mangled name, and a request
// may look up thousands of names that no symbol has.
func (t *SymbolTable) mangledSymbols() iter.Seq[*Symbol] {
	t.findMangled.Do(func() {
		for i := range t.all {
			if isMangled(t.all[i].Name) {
				t.mangled = append(t.mangled, int32(i))
			}
		}
	})
	return func(yield func(*Symbol) bool) {
		for _, i := range t.mangled {
			if !yield(&t.all[i]) {
				return
			}
		}
	}
}

// advice suggests symbols whose name in the source is the name that no symbol has.
func (t *SymbolTable) advice(name string) string {
	if len(name) < 2 {
		return ""
	}
	last := name[strings.LastIndexByte(name, ':')+1:]
	var found []string
	for sym := range t.mangledSymbols() {
		s := sym.Name
		if !strings.Contains(s, last) {
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
