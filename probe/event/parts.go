package event

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// maxParts bounds the names in one piece of advice.
const maxParts = 5

// nearAdvice suggests an existing symbol for a name that does not exist, or returns
// "".
func nearAdvice(symbols probe.Symbols, name string) string {
	if all, ok := symbols.(interface{ Symbols() []guest.Symbol }); ok {
		return guest.SymbolAdvice(name, all.Symbols())
	}
	return ""
}

// partsAdvice names the functions that a compiler has made from one that is missing,
// or returns "": it splits a function (NAME.part.0, NAME.cold), changes its
// parameters (NAME.isra.0), or specializes it for a constant argument
// (NAME.constprop.0), and may leave no function with the plain name.
func partsAdvice(symbols probe.Symbols, name string) string {
	m, ok := symbols.(interface {
		Match(pattern string) []guest.Symbol
	})
	if !ok || guest.CheckGlob(name+".*") != nil || strings.ContainsAny(name, "*?[") {
		return ""
	}
	var names []string
	for _, s := range m.Match(name + ".*") {
		if s.Kind == guest.SymFunc && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	more := ""
	if n := len(names) - maxParts; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
		names = names[:maxParts]
	}
	return fmt.Sprintf("the compiler has made %s%s of it: probe these", strings.Join(names, ", "), more)
}
