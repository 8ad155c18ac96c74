package script

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// outputKind is the kind of a program's record.
type outputKind uint8

const (
	outPrintf outputKind = iota
	outJoin              // a line
	outValue             // print of a value
	outMap               // print of a map
	outClear
	outZero
	outExit
	outTime
	outWarn
	outError
	outDebug
)

// output is an output statement of the script.
type output struct {
	Span
	kind   outputKind
	format *format
	time   string // of outTime
	types  []Type
	of     *mapDef
	top    int
	div    int64
}

// bytes is the size of its records: the number of the statement, and the values.
func (o *output) bytes() int { return 8 + Type{Kind: Tuple, Elems: o.types}.bytes() }

// numberedName is the name of one of several maps.
func numberedName(name string, n int) string { return name + strconv.Itoa(n) }

// Names knows the guest's symbols.
type Names interface {
	// Name returns the symbol that contains an address, and the offset in it.
	Name(addr uint64) (name string, offset uint64, ok bool)
	// File returns the path of the file with the code at an address, or "".
	File(addr uint64) string
	// Frames returns the functions around the code of a file at an address, the
	// innermost first; none if its debug information is not known.
	Frames(addr uint64) []Frame
	// ShownAddr returns the printed form of an address: for a file's code the place
	// in the file.
	ShownAddr(addr uint64) uint64
	// BuildID returns the build ID of the file with the code at an address, in
	// hexadecimal digits, or "".
	BuildID(addr uint64) string
}

// Frame is a function around an address.
type Frame struct {
	Function string // "" if not known
	File     string // of the source, "" if not known
	Line     int    // that runs there, or the line of the call of the preceding function
	Inlined  bool   // into the next function
}

// Printer prints the output of a script's programs. It belongs to one goroutine.
type Printer struct {
	s      *Script
	maps   func(name string) *bpf.Map
	names  Names
	write  func(text string)
	warn   func(text string)
	asJSON bool
	told   map[int]uint64
	zeroed map[*mapDef]bool // maps that were zeroed, and therefore have values
	hold   func(func(idle bool))
	kept   map[*mapDef]map[string]bool // elements that were emptied but still exist, by key
	taken  *mapDef                     // the map that was emptied when it was printed: the record after that, which empties it, is already done
}

// NewPrinter makes a printer that passes text to write, a record at a time: as
// bpftrace prints it, or with json as lines of JSON; it passes the text of errorf and
// warnf to warn. Maps finds the maps of the loaded script, and hold runs a function
// while no program accesses them: all are idle, or in the middle of a run, but
// between instructions.
func (s *Script) NewPrinter(maps func(name string) *bpf.Map, names Names, json bool, hold func(func(idle bool)), write, warn func(text string)) *Printer {
	return &Printer{
		s: s, maps: maps, names: names, write: write, warn: warn, asJSON: json, hold: hold,
		told: map[int]uint64{}, zeroed: map[*mapDef]bool{}, kept: map[*mapDef]map[string]bool{},
	}
}

// Derive returns a printer with the state of p, for printing maps.
func (p *Printer) Derive(json bool, write func(text string)) *Printer {
	q := *p
	q.asJSON, q.write = json, write
	return &q
}

// PrintAttached prints the number of probes, which only the JSON output has.
func (p *Printer) PrintAttached(n int) {
	if p.asJSON {
		p.write(fmt.Sprintf("{\"type\": \"attached_probes\", \"count\": %d, \"data\": {\"probes\": %d}}\n", n, n))
	}
}

// PrintLost prints the number of lost records, which only the JSON output has.
func (p *Printer) PrintLost(n uint64) {
	if p.asJSON {
		p.write(fmt.Sprintf("{\"type\": \"lost_events\", \"count\": %d, \"data\": {\"events\": %d}}\n", n, n))
	}
}

// Exit reports whether a record of the ring requests the script's end, and with which
// status.
func (s *Script) Exit(data []byte) (status int64, ok bool) {
	o, values, err := s.output(data)
	if err != nil || o.kind != outExit {
		return 0, false
	}
	return int64(word(values)), true
}

// ExitInMaps is Exit for the state in the script's maps, by name, which also covers a
// record that the ring had no room for.
func (s *Script) ExitInMaps(maps func(name string) *bpf.Map) (status int64, ok bool) {
	m := maps(mapSites)
	if m == nil {
		return 0, false
	}
	values, err := m.Lookup(make([]byte, 4))
	if err != nil {
		return 0, false
	}
	said := values[0][s.c.exitOffset():]
	return int64(word(said[8:])), word(said) != 0
}

// output returns the output statement of a record, and its values.
func (s *Script) output(data []byte) (*output, []byte, error) {
	if len(data) < 8 || word(data) >= uint64(len(s.c.outputs)) {
		return nil, nil, fmt.Errorf("record of %d bytes: of no statement", len(data))
	}
	o := s.c.outputs[word(data)]
	if len(data) < o.bytes() {
		return nil, nil, fmt.Errorf("record of %d bytes: want %d", len(data), o.bytes())
	}
	return o, data[8:], nil
}

// Record prints one record of the ring; next is the following one, if it is already
// there. A record that no program can have written, because the guest has changed it,
// is an error.
func (p *Printer) Record(data, next []byte) error {
	o, data, err := p.s.output(data)
	if err != nil {
		return err
	}
	empties := false // the next one empties the same map
	if n, _, err := p.s.output(next); err == nil {
		empties = (n.kind == outClear || n.kind == outZero) && n.of == o.of
	}
	switch o.kind {
	case outPrintf:
		p.line("printf", o.format.render(o.types, data, p.text))
	case outJoin:
		text := o.format.render(o.types, data, p.text)
		if p.asJSON {
			text = strings.TrimSuffix(text, "\n")
		}
		p.line("join", text)
	case outValue:
		if p.asJSON {
			p.write(`{"type": "value", "data": ` + p.json(o.types[0], data) + "}\n")
		} else {
			p.write(p.text(o.types[0], data) + "\n")
		}
	case outMap:
		es := p.entries(o.of)
		if empties { // nothing is lost between the two
			n, _, _ := p.s.output(next)
			p.hold(func(idle bool) {
				es = p.entries(o.of)
				err = p.empty(o.of, n.kind == outClear, idle)
			})
			p.taken = o.of
		}
		p.printMap(o.of, es, o.top, o.div, true)
		return err
	case outClear, outZero:
		p.zeroed[o.of] = o.kind == outZero
		if p.taken != o.of && !empties {
			p.hold(func(idle bool) { err = p.empty(o.of, o.kind == outClear, idle) })
		}
		p.taken = nil
		return err
	case outTime:
		p.line("time", strftime(o.time, time.Now()))
	case outDebug:
		p.warn(strings.TrimSuffix(o.format.render(o.types, data, p.text), "\n"))
	case outWarn, outError:
		p.tell(o, o.format.render(o.types, data, p.text))
	}
	return nil
}

// tell prints the text of warnf and errorf, with its place.
func (p *Printer) tell(o *output, text string) {
	e := p.s.c.errorAt(o.Span, "%s", text)
	kind, what := "errorf", "ERROR"
	if o.kind == outWarn {
		kind, what = "warnf", "WARNING"
	}
	if p.asJSON {
		p.write(fmt.Sprintf("{\"type\": %q, \"msg\": %s, \"filename\": %s, \"line\": %d, \"col\": %d}\n", kind, jsonText(text), jsonText(e.Name), e.Line, e.Col))
		return
	}
	e.AtRunTime = o.kind == outWarn
	p.warn(fmt.Sprintf("%s:%d:%d-%d: %s: %s%s", e.Name, e.Line, e.Col, e.End, what, text, e.callsText()))
}

func (p *Printer) line(kind, text string) {
	if p.asJSON {
		text = fmt.Sprintf("{\"type\": %q, \"data\": %s}\n", kind, jsonText(text))
	}
	p.write(text)
}

// empty deletes all elements of a map, or sets their values to 0, while no program
// accesses it. An element that a run may have found, but not added to yet, stays with
// 0.
func (p *Printer) empty(m *mapDef, out, idle bool) error {
	b := p.maps(m.name)
	if b == nil {
		return nil
	}
	var keys [][]byte
	b.Walk(func(key []byte, _ [][]byte) bool {
		keys = append(keys, append([]byte(nil), key...))
		return true
	})
	zero := make([][]byte, 1)
	if b.PerCPU() {
		zero = make([][]byte, b.CPUs())
	}
	for i := range zero {
		zero[i] = make([]byte, b.Spec().ValueSize)
	}
	out = out && m.keyed == 2
	stay := out && !idle && m.value.isAggregate()
	p.kept[m] = map[string]bool{}
	for _, k := range keys {
		var err error
		if out && !stay {
			err = b.Delete(k)
		} else {
			err = b.Update(k, zero, bpf.UpdateAny)
		}
		if err != nil {
			return err
		}
		if stay {
			p.kept[m][string(k[:m.keyBytes()])] = true
		}
	}
	return nil
}

// failures calls f for each place of the script that has failed, with the number of
// failures and the last errno.
func (p *Printer) failures(f func(i int, s site, n uint64, errno int64)) {
	m := p.maps(mapSites)
	if m == nil {
		return
	}
	values, err := m.Lookup(make([]byte, 4))
	if err != nil {
		return
	}
	for i, s := range p.s.c.sites {
		if n := word(values[0][16*i:]); n > 0 {
			f(i, s, n, -int64(word(values[0][16*i+8:])))
		}
	}
}

// FullCount is the number of elements that found no room in their map.
func (p *Printer) FullCount() (total uint64) {
	p.failures(func(_ int, s site, n uint64, _ int64) {
		if s.what == siteFull {
			total += n
		}
	})
	return total
}

// Problems returns warnings about failures since the last call: each place once, and
// with all set a second time at the end with its count. JSON has them in the output.
func (p *Printer) Problems(all bool) (ws []string) {
	p.failures(func(i int, s site, n uint64, errno int64) {
		told, known := p.told[i]
		if known && (!all || n == told) {
			return
		}
		p.told[i] = n
		if p.asJSON {
			p.write(s.json(p.s.c.source, n, errno))
			return
		}
		e := p.s.c.errorAt(s.Span, "%s", problem(s.what, errno))
		e.AtRunTime = true
		if n > 1 || known {
			e.Message += fmt.Sprintf(" (%d times)", n)
		}
		ws = append(ws, e.Error())
	})
	return ws
}

// problem is the warning about a place, with the reason of its last failure.
func problem(what string, errno int64) string {
	switch e := unix.Errno(errno); {
	case what == siteFull && e == unix.EBUSY:
		return "Element could not be updated: another run is about to, and has not ended"
	case what == siteStack && e == unix.EFAULT:
		return what + ": the interrupted code has none of this kind, or it cannot be read"
	case what == siteStack && e == unix.EEXIST:
		return what + ": there is no room for others"
	case what == "", what == sitePoke:
		return errorText(errno)
	}
	return what
}
