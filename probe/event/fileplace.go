package event

import (
	"math"
	"strings"
)

// file reads a place in the code of a file of the guest's, PATH:OFFSET or
// PATH:OFFSET(SEMAPHORE) as in uprobe_events, or PATH:SYMBOL and PATH:SYMBOL+OFFSET, followed by %return for the
// return of a function. PATH begins with a slash, so it cannot be a module's name.
// The place is kept as the name of a symbol: the guest's View knows files.
func (p *parser) file(text string) error {
	at := strings.LastIndexByte(text, ':')
	path, place := text[:at], text[at+1:]
	place, err := p.semaphore(place, at+1)
	if err != nil {
		return err
	}
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

// semaphore cuts (SEMAPHORE) off an offset in a file, which begins at the column at of the place.
func (p *parser) semaphore(place string, at int) (offset string, err error) {
	offset, rest, ok := strings.Cut(place, "(")
	if _, number := parseUint(strings.TrimSuffix(offset, "%return")); !ok || !number { // no parenthesis, or the types of a function's parameters
		return place, nil
	}
	at += len(offset)
	number, suffix, closed := strings.Cut(rest, ")")
	switch n, ok := parseUint(number); {
	case !closed:
		return "", p.fail(1, at, CodeRefcntOpenBrace)
	case suffix != "":
		return "", p.fail(1, at+len(number)+2, CodeRefcntBadSuffix)
	case !ok || n == 0 || n%2 != 0 || n > math.MaxUint32:
		e := p.fail(1, at+1, CodeBadRefcnt)
		e.Detail = "want the offset in the file of a number of 2 bytes, which is even"
		return "", e
	default:
		p.def.Place.Semaphore = n
	}
	return offset, nil
}

// inFile reports whether a place is in a file of the guest's.
func inFile(place string) bool { return strings.HasPrefix(place, "/") && strings.Contains(place, ":") }
