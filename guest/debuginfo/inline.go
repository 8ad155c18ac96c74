package debuginfo

import (
	"bytes"
	"debug/dwarf"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// instance is a function's code: its own, or a copy in another function.
type instance struct {
	name    string
	inlined bool
	entry   uint64
	ranges  [][2]uint64
	depth   int
	at      dwarf.Offset

	calledFile, calledLine int64 // of a copy: file and line of its call in the enclosing function; the file is an index in contents.files
}

// maxDepth is the nesting depth up to which blocks are read, and maxInstances is the
// number of instances and their ranges that are read of one unit.
const (
	maxDepth     = 1024
	maxInstances = 1 << 20
)

// readInstances returns the functions of a unit and their inlined copies.
func (i *Info) readInstances(n int) ([]instance, error) {
	u := i.units[n]
	r := i.data.Reader()
	r.Seek(u.Entry.Offset)
	names := map[dwarf.Offset]string{}
	var out []instance
	depth, total := 0, 0
	for {
		e, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("read functions: %w", err)
		}
		if e == nil || len(out) == maxInstances {
			return out, nil
		}
		if e.Tag == 0 {
			if depth--; depth <= 0 {
				return out, nil
			}
			continue
		}
		inlined := e.Tag == dwarf.TagInlinedSubroutine
		if inlined || e.Tag == dwarf.TagSubprogram {
			ranges, err := i.data.Ranges(e)
			if total += len(ranges); total > maxInstances {
				return nil, fmt.Errorf("read functions: more than %d ranges of code", maxInstances)
			}
			if err == nil && len(ranges) > 0 && ranges[0][0] != 0 {
				x := instance{name: i.name(e, names), inlined: inlined, entry: entry(e, ranges), ranges: ranges, depth: depth, at: e.Offset}
				x.calledFile, _ = e.Val(dwarf.AttrCallFile).(int64)
				x.calledLine, _ = e.Val(dwarf.AttrCallLine).(int64)
				out = append(out, x)
			}
		}
		if hasNone(u, e.Tag) {
			if err := skip(r, e); err != nil {
				return nil, err
			}
			continue
		}
		if e.Children {
			if depth++; depth > maxDepth {
				return nil, fmt.Errorf("read functions: more than %d blocks in one another", maxDepth)
			}
		}
	}
}

// hasNone reports whether entries with this tag, which most entries of a unit have,
// contain no functions.
func hasNone(u *dies.Unit, t dwarf.Tag) bool {
	switch t {
	case dwarf.TagEnumerationType, dwarf.TagArrayType, dwarf.TagSubroutineType, dwarf.TagCallSite:
		return true
	case dwarf.TagStructType, dwarf.TagUnionType:
		language, _ := u.Entry.Val(dwarf.AttrLanguage).(int64)
		return slices.Contains(languagesC, language)
	}
	return false
}

// languagesC are the numbers of C (DWARF 5, 7.12; C17 of DWARF 6).
var languagesC = []int64{0x01, 0x02, 0x0c, 0x1d, 0x2c}

// entry returns the beginning of an instance: DW_AT_entry_pc, an address or from
// DWARF 5 on an offset from the lowest one, or the beginning of its first range.
func entry(e *dwarf.Entry, ranges [][2]uint64) uint64 {
	base := ranges[0][0]
	if low, ok := e.Val(dwarf.AttrLowpc).(uint64); ok {
		base = low
	}
	switch pc := e.Val(dwarf.AttrEntrypc).(type) {
	case uint64:
		return pc
	case int64:
		return base + uint64(pc)
	}
	return base
}

// name returns the name of a function or a variable, which may be in its declaration;
// names has known names by offset, and may be nil.
func (i *Info) name(e *dwarf.Entry, names map[dwarf.Offset]string) string {
	if name, ok := e.Val(dwarf.AttrName).(string); ok {
		return name
	}
	at, ok := origin(e)
	if name, known := names[at]; known || !ok {
		return name
	}
	name := ""
	if f := i.attribute(e, dwarf.AttrName); f != nil {
		name, _ = f.Val.(string)
	}
	if names != nil {
		names[at] = name
	}
	return name
}

// origin returns the entry that e is a copy of, or completes.
func origin(e *dwarf.Entry) (at dwarf.Offset, ok bool) {
	if at, ok = e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset); ok {
		return at, true
	}
	at, ok = e.Val(dwarf.AttrSpecification).(dwarf.Offset)
	return at, ok
}

// maxLinks bounds the chain from an entry to the one that it is a copy of.
const maxLinks = 8

// attribute returns an attribute of e, or of the entry that e is a copy of.
func (i *Info) attribute(e *dwarf.Entry, attr dwarf.Attr) *dwarf.Field {
	f, _ := i.attributeOwner(e, attr)
	return f
}

// attributeOwner also returns the entry with the attribute, which may be in another
// unit.
func (i *Info) attributeOwner(e *dwarf.Entry, attr dwarf.Attr) (*dwarf.Field, *dwarf.Entry) {
	for range maxLinks {
		if f := e.AttrField(attr); f != nil {
			return f, e
		}
		at, ok := origin(e)
		if !ok {
			return nil, nil
		}
		if e = i.entryAt(at); e == nil {
			return nil, nil
		}
	}
	return nil, nil
}

// entryAt returns the entry at an offset, or nil.
func (i *Info) entryAt(at dwarf.Offset) *dwarf.Entry {
	r := i.data.Reader()
	r.Seek(at)
	e, err := r.Next()
	if err != nil {
		return nil
	}
	return e
}

func within(ranges [][2]uint64, addr uint64) bool {
	return slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= addr && addr < r[1] })
}

// InlinedCopies returns the start addresses of the inlined copies of a function,
// ascending; none if it has no copies, or is not known.
func (i *Info) InlinedCopies(function string) (out []uint64, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	mentioned := i.mentions(function)
	for n, u := range i.units {
		if u.Kind != dies.Compile || !mentioned(u) {
			continue
		}
		instances, err := i.readInstances(n)
		if err != nil {
			return nil, err
		}
		for _, x := range instances {
			if x.inlined && x.name == function {
				out = append(out, x.entry)
			}
		}
		if len(out) > maxPlaces {
			return nil, fmt.Errorf("%s is inlined at more than %d places", function, maxPlaces)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// mentions returns a function that reports whether a unit may contain that name: only
// those units, of hundreds of megabytes, are walked. A name is either in the unit
// itself, or in .debug_str, possibly as the end of a longer one, with its offset in
// the unit. For units whose names may be elsewhere it returns true.
func (i *Info) mentions(name string) func(*dies.Unit) bool {
	own := append([]byte(name), 0)
	known := map[*byte][][]byte{} // by the strings of a file
	find := func(str []byte) (offsets [][]byte) {
		if len(str) == 0 {
			return nil
		}
		if offsets, ok := known[&str[0]]; ok {
			return offsets
		}
		for at := 0; len(offsets) <= maxOffsets; at++ {
			n := bytes.Index(str[at:], own)
			if n < 0 {
				break
			}
			at += n
			offsets = append(offsets, binary.LittleEndian.AppendUint32(nil, uint32(at)))
		}
		known[&str[0]] = offsets
		return offsets
	}
	return func(u *dies.Unit) bool {
		if u.Far || u.Opaque {
			return true
		}
		b, str := u.Bytes()
		offsets := find(str)
		return len(offsets) > maxOffsets || bytes.Contains(b, own) ||
			slices.ContainsFunc(offsets, func(o []byte) bool { return bytes.Contains(b, o) })
	}
}

// maxOffsets bounds the offsets of a name that are looked for.
const maxOffsets = 64
