package sdt

import (
	"bytes"
	"cmp"
	debugelf "debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// Names in a file's notes about its probes (https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation).
const (
	notesSection = ".note.stapsdt"
	baseSection  = ".stapsdt.base"
	noteOwner    = "stapsdt\x00"
	noteType     = 3
)

// Limits of a file's notes.
const (
	MaxProbes = 1 << 16 // places
	maxNotes  = 8 << 20 // bytes
	maxName   = 255     // of a provider and of a probe
	maxArgs   = 1 << 12 // bytes of a probe's arguments as text
)

// ErrNoProbes is returned for a file without statically defined probes.
var ErrNoProbes = errors.New("it has no statically defined probes (.note.stapsdt)")

// Probe is a place of a statically defined probe. Several places can have the same name.
type Probe struct {
	Provider, Name string

	// Addr is the address of the place according to the file's headers, and Offset its offset in the file.
	Addr, Offset uint64

	// Semaphore is the file offset of the probe's semaphore, a 2-byte number that counts the probe's tracers; 0: no semaphore.
	Semaphore uint64

	Args []Arg

	// Why says why the place cannot be probed, or is "" if it can: the file does not contain an address in the note.
	Why string
}

// Read returns the probes of a file, sorted by name and address. has reports whether n bytes of the file at off are known; if has is nil,
// all bytes are known. Read returns ErrNoProbes, ErrUnknown, or an error that names the damaged part.
func Read(f *elf.File, has func(off, n uint64) bool) ([]Probe, error) {
	i := f.Index(notesSection)
	if i < 0 {
		return nil, ErrNoProbes
	}
	s := &f.Sections[i]
	if has != nil && !has(s.Off, s.Size) {
		return nil, ErrUnknown
	}
	data, err := f.Data(i, maxNotes)
	if err != nil {
		return nil, err
	}
	var base uint64
	if i := f.Index(baseSection); i >= 0 {
		base = f.Sections[i].Addr
	}
	var out []Probe
	for len(data) > 0 {
		desc, rest, err := cutNote(data)
		if err != nil {
			return nil, err
		}
		data = rest
		if desc == nil {
			continue
		}
		p, err := probe(f, desc, base)
		if err != nil {
			return nil, err
		}
		if out = append(out, p); len(out) > MaxProbes {
			return nil, fmt.Errorf("%s: more than %d probes", notesSection, MaxProbes)
		}
	}
	if len(out) == 0 {
		return nil, ErrNoProbes
	}
	slices.SortStableFunc(out, func(a, b Probe) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Addr, b.Addr))
	})
	return out, nil
}

// ErrUnknown is returned if the part of the file with its probes is not known.
var ErrUnknown = errors.New("the part of the file with its statically defined probes is not known")

// cutNote cuts off the first note. desc is nil if the note is not about a probe.
func cutNote(b []byte) (desc, rest []byte, err error) {
	const header = 12
	if len(b) < header {
		return nil, nil, fmt.Errorf("%s: a note is cut off", notesSection)
	}
	nameLen, descLen := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
	kind := binary.LittleEndian.Uint32(b[8:])
	from := header + (nameLen+3)&^3
	end := from + descLen
	if end > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%s: a note of %d bytes is cut off", notesSection, end)
	}
	rest = b[min((end+3)&^3, uint64(len(b))):]
	if kind != noteType || string(b[header:header+nameLen]) != noteOwner {
		return nil, rest, nil
	}
	return b[from:end:end], rest, nil
}

// probe parses the description of a probe: its address, the base address at link time, the semaphore's address, and three texts.
func probe(f *elf.File, desc []byte, base uint64) (p Probe, err error) {
	const words = 3
	if len(desc) < 8*words {
		return p, fmt.Errorf("%s: a probe of %d bytes is cut off", notesSection, len(desc))
	}
	var word [words]uint64
	for i := range word {
		word[i] = binary.LittleEndian.Uint64(desc[8*i:])
	}
	var text [3]string
	rest := desc[8*words:]
	for i, most := range []int{maxName, maxName, maxArgs} {
		n := bytes.IndexByte(rest[:min(len(rest), most+1)], 0)
		if n < 0 {
			return p, fmt.Errorf("%s: a text of a probe does not end, or has more than %d bytes", notesSection, most)
		}
		text[i], rest = string(rest[:n]), rest[n+1:]
	}
	p = Probe{Provider: text[0], Name: text[1], Addr: word[0]}
	if !validName(p.Provider) || !validName(p.Name) {
		return p, fmt.Errorf("%s: %q:%q is no name of a probe", notesSection, p.Provider, p.Name)
	}
	// prelink moves the file's addresses, but not those in its notes.
	moved := uint64(0)
	if base != 0 && word[1] != 0 {
		moved = base - word[1]
	}
	p.Addr += moved
	var ok bool
	if p.Offset, ok = offsetOf(f, p.Addr, 1, debugelf.PF_X); !ok {
		p.Why = fmt.Sprintf("it is at %#x, where the file has no code", p.Addr)
	} else if word[2] != 0 {
		if p.Semaphore, ok = offsetOf(f, word[2]+moved, SemaphoreSize, debugelf.PF_W); !ok || p.Semaphore == 0 {
			p.Semaphore, p.Why = 0, fmt.Sprintf("its semaphore is at %#x, where the file has nothing that can be written to", word[2]+moved)
		}
	}
	p.Args = ParseArgs(text[2])
	return p, nil
}

// SemaphoreSize is the size of a semaphore in bytes.
const SemaphoreSize = 2

// validName reports whether a name can be part of a place: it must not contain separators of a place's parts.
func validName(s string) bool {
	if s == "" || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r <= ' ' || r == ':' || r == '"' || r == 0x7f {
			return false
		}
	}
	return true
}

// offsetOf returns the file offset of an address, if n bytes at that address are in the file, in a segment with that flag.
func offsetOf(f *elf.File, addr, n uint64, flag debugelf.ProgFlag) (uint64, bool) {
	for _, p := range f.Progs {
		if debugelf.ProgType(p.Type) != debugelf.PT_LOAD || debugelf.ProgFlag(p.Flags)&flag == 0 {
			continue
		}
		if in := addr - p.Vaddr; in < p.Filesz && n <= p.Filesz-in && p.Off <= uint64(f.Size()) && in+n <= uint64(f.Size())-p.Off {
			return p.Off + in, true
		}
	}
	return 0, false
}
