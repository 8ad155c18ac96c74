package event

import (
	"math"
	"strings"
)

// file reads a place in the code of a file of the guest's, PATH:OFFSET as in uprobe_events,
// or PATH:SYMBOL and PATH:SYMBOL+OFFSET, with %return behind it for the return of a
// function. PATH begins with a slash, so that it is no module's name. What is meant
// stays the name of a symbol: the guest's View knows files.
func (p *parser) file(text string) error {
	at := strings.LastIndexByte(text, ':')
	path, place := text[:at], text[at+1:]
	if i := strings.IndexByte(place, '%'); i >= 0 {
		if place[i:] != "%return" {
			return p.fail(1, at+1+i, CodeBadAddrSuffix)
		}
		p.def.Kind, place = KindReturn, place[:i]
	}
	symbol, offset, ok := splitOffset(place)
	if !ok || offset < 0 || offset > math.MaxUint32 || symbol == "" || strings.HasSuffix(path, "/") || strings.HasSuffix(symbol, ")") {
		return p.fail(1, 0, CodeBadProbeAddr)
	}
	p.def.Place.Symbol, p.def.Place.Offset = path+":"+symbol, uint64(offset)
	return p.locate()
}

// inFile reports whether a place is in a file of the guest's.
func inFile(place string) bool { return strings.HasPrefix(place, "/") && strings.Contains(place, ":") }
