package event

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// A watch is written
//
//	w:[GRP/]EVENT [r|w|rw|x]@PLACE[:LEN] [ARGS]
//
// where PLACE is an address or a symbol with an offset, and LEN 1, 2, 4 or 8. Its
// events have the values old and new before the arguments, and with r or rw also wr:
// whether it was a write. Their place is the instruction.

// isKind reports whether c begins a definition.
func isKind(c byte) bool {
	switch Kind(c) {
	case KindProbe, KindReturn, KindWatch, KindTracepoint:
		return true
	}
	return false
}

// watch reads the place of a watch.
func (p *parser) watch(text string) error {
	d := p.def
	access, place, ok := strings.Cut(text, "@")
	if !ok {
		e := p.fail(1, 0, CodeBadWatch)
		e.Detail = "it is [r|w|rw|x]@PLACE[:LEN]"
		return e
	}
	switch access {
	case "", "w":
		d.Access = probe.AccessWrite
	case "r":
		d.Access = probe.AccessRead
	case "rw":
		d.Access = probe.AccessReadWrite
	case "x":
		d.Access = probe.AccessExec
	default:
		e := p.fail(1, 0, CodeBadWatch)
		e.Detail = "accesses are r, w, rw and x"
		return e
	}
	at := len(access) + 1
	if i := strings.LastIndexByte(place, ':'); i >= 0 {
		n, number := parseUint(place[i+1:])
		if !number || n != 1 && n != 2 && n != 4 && n != 8 {
			e := p.fail(1, at+i+1, CodeBadWatch)
			e.Detail = "lengths are 1, 2, 4 and 8"
			return e
		}
		d.Len, place = int(n), place[:i]
	}
	symbol, offset, ok := splitOffset(place)
	addr, number := parseUint(symbol)
	switch {
	case !ok || symbol == "" || offset < 0 || offset > maxWatchOffset || number && offset != 0 || strings.ContainsAny(symbol, ":/%@"):
		return p.fail(1, at, CodeBadProbeAddr)
	case number:
		d.Place = Place{Addr: guest.GVA(addr)}
	default:
		d.Place = Place{Symbol: symbol, Offset: uint64(offset)}
	}
	err := p.locate()
	p.entry = false // registers are the instruction's
	return err
}

// maxWatchOffset is the largest offset from a symbol.
const maxWatchOffset = 1<<32 - 1

// placeText returns the place as in the definition.
func (d *Def) placeText() string {
	switch d.Kind {
	case KindWatch:
	case KindTracepoint:
		return d.Tracepoint()
	default:
		return d.Place.String()
	}
	s := fmt.Sprintf("%v@%v", d.Access, d.Place)
	if d.Len != 0 {
		s += fmt.Sprintf(":%d", d.Len)
	}
	return s
}

// WatchLen returns the number of bytes of a w definition: Len or, if that is 0, the
// size of the symbol if it is 1, 2 or 4, and 8 otherwise; 1 for x.
func (d *Def) WatchLen(symbols probe.Symbols) int {
	switch {
	case d.Len != 0:
		return d.Len
	case d.Access == probe.AccessExec:
		return 1
	case d.Place.Symbol != "" && d.Place.Offset == 0:
		if s, err := symbols.Lookup(d.Place.FullName()); err == nil && (s.Size == 1 || s.Size == 2 || s.Size == 4) {
			return int(s.Size)
		}
	}
	return 8
}

// WatchedNumber selects a number of a watch's access.
type WatchedNumber uint8

// The numbers of an access.
const (
	WatchedOld   WatchedNumber = iota // the value before it
	WatchedNew                        // the value after it
	WatchedWrite                      // 1 for a write, else 0
)

// watchFields are the built-in fields of events of d.
func watchFields(d *Def, symbols probe.Symbols) (fields []Field) {
	if d.Access == probe.AccessExec {
		return nil
	}
	n := d.WatchLen(symbols)
	for i, name := range watchNames {
		number := WatchedNumber(i)
		size := n
		if number == WatchedWrite {
			if d.Access == probe.AccessWrite {
				break
			}
			size = 1
		}
		fields = append(fields, Field{Arg: Arg{Name: name, Fetch: Access{number}, Type: Type{Format: Hex, Size: size}}, Size: size})
	}
	return fields
}

// watchNames are the built-in values of a watch's event, by WatchedNumber.
var watchNames = []string{"old", "new", "wr"}
