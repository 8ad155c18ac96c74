package event

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// maxParts bounds the names of one piece of advice.
const maxParts = 5

// partsAdvice names the functions that a compiler has made of one that is missing, "" where there are none: it splits
// a function (NAME.part.0, NAME.cold), changes what it takes (NAME.isra.0), or makes one for an argument that is
// always the same (NAME.constprop.0), and may leave none of the plain name.
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
