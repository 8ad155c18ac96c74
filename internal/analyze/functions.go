package analyze

import (
	"encoding/binary"
	"slices"
	"sort"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// function is one function of the image: code from a name to the next one.
type function struct {
	name  string
	addr  uint64
	code  []byte
	label bool // its name has no type
}

// span is a range of addresses, and its description.
type span struct {
	lo, hi uint64
	what   string
}

// spans are ranges, sorted by their beginning, none longer than max.
type spans struct {
	all []span
	max uint64
}

// add adds a range.
func (s *spans) add(lo, hi uint64, what string) {
	if lo < hi {
		s.all = append(s.all, span{lo, hi, what})
		s.max = max(s.max, hi-lo)
	}
}

func (s *spans) sort() {
	slices.SortFunc(s.all, func(a, b span) int {
		switch {
		case a.lo < b.lo:
			return -1
		case a.lo > b.lo:
			return 1
		}
		return 0
	})
}

// find returns the description of a range that overlaps [lo, hi), or "".
func (s *spans) find(lo, hi uint64) string {
	from := lo - min(lo, s.max)
	for i := sort.Search(len(s.all), func(i int) bool { return s.all[i].lo >= from }); i < len(s.all) && s.all[i].lo < hi; i++ {
		if s.all[i].hi > lo {
			return s.all[i].what
		}
	}
	return ""
}

// functions returns the functions, ascending, and the gaps between them if not
// all are known by name.
func (img *image) functions() (fns []function, gaps []function) {
	for i := range img.Sections {
		s := &img.Sections[i]
		if !s.X {
			continue
		}
		end := s.Addr + uint64(len(s.Data))
		at := s.Addr // the end of the last function
		for k := img.NamesFrom(s.Addr); k < len(img.Names) && img.Names[k].Addr < end; {
			sym := img.Names[k]
			var size uint64
			isFn, label := false, true
			name := ""
			for ; k < len(img.Names) && img.Names[k].Addr == sym.Addr; k++ {
				if a := img.Names[k]; a.Func {
					if !isFn {
						name = a.Name
					}
					isFn, size, label = true, max(size, a.Size), label && a.Label
				}
			}
			if !isFn {
				continue
			}
			next := end
			if k < len(img.Names) {
				next = min(next, img.Names[k].Addr)
			}
			code := s.Data[sym.Addr-s.Addr : next-s.Addr]
			if !img.full && size > 0 && size < uint64(len(code)) {
				code = code[:size+padding(code[size:], sym.Addr+size)]
			}
			if at < sym.Addr {
				gaps = append(gaps, function{addr: at, code: s.Data[at-s.Addr : sym.Addr-s.Addr]})
			}
			fns = append(fns, function{name, sym.Addr, code, label})
			at = max(at, sym.Addr+uint64(len(code)))
		}
		if at < end {
			gaps = append(gaps, function{addr: at, code: s.Data[at-s.Addr:]})
		}
	}
	return fns, gaps
}

// padding returns how many of the bytes b at addr are nops and int3 up to the
// next multiple of 16.
func padding(b []byte, addr uint64) uint64 {
	var n uint64
	for (addr+n)&15 != 0 && n < uint64(len(b)) {
		i, err := x86.Decode(b[n:])
		if err != nil || !isPadding(&i) || (addr+n)&15+uint64(i.Len) > 16 {
			break
		}
		n += uint64(i.Len)
	}
	return n
}

// isPadding reports whether the instruction is one that linkers and compilers
// fill gaps with.
func isPadding(i *x86.Inst) bool {
	return i.Class() == x86.ClassNop && !i.IsEndbr() || i.Class() == x86.ClassInterrupt && i.Opcode == 0xcc
}

// index collects facts about the text from the code of the whole image.
func (img *image) index(fns, gaps []function) *flow.Index {
	b := flow.NewBuilder(img.isText)
	for _, f := range fns {
		b.Function(img.input(&f))
	}
	for _, g := range gaps {
		b.Gap(g.addr, g.code)
	}
	return b.Index()
}

// input returns the initial input for the analysis of a function.
func (img *image) input(f *function) flow.Input {
	return flow.Input{Addr: f.addr, Code: f.code, Label: f.label, AllCode: img.kernel != nil, Movable: img.movable, Read: img.constant, Text: img.isText}
}

// isText reports whether an address is in an executable section.
func (img *image) isText(a uint64) bool {
	s := img.PartAt(a)
	return s != nil && s.X
}

// constant returns n bytes that the program does not write, or nil.
func (img *image) constant(a uint64, n int) []byte {
	if s := img.PartAt(a); s == nil || s.W || n < 0 {
		return nil
	}
	return img.Bytes(a, uint64(n))
}

// Reasons why a function is left out.
const (
	leftBlacklist = "blacklisted"
	leftPadding   = "padding"
	leftInit      = "init_text" // a kernel's code that is gone after the boot
)

// left says which functions may not be probed at all.
type left struct {
	img    *image
	ranges spans
}

func (img *image) findLeft(fns []function) *left {
	l := &left{img: img}
	for _, m := range guest.NoProbe() {
		for i := range img.Sections {
			if s := &img.Sections[i]; s.Name == m.Section {
				l.ranges.add(s.Addr, s.Addr+uint64(len(s.Data)), leftBlacklist)
			}
		}
		if lo, hi, ok := img.RangeBetween(m.Start, m.End); ok {
			l.ranges.add(lo, hi, leftBlacklist)
		}
	}
	m := guest.NoProbeTable()
	for b := img.Table(m.Section, m.Start, m.End).Data; len(b) >= 8; b = b[8:] {
		a := binary.LittleEndian.Uint64(b)
		if i := sort.Search(len(fns), func(i int) bool { return fns[i].addr > a }) - 1; i >= 0 && a-fns[i].addr < uint64(len(fns[i].code)) {
			l.ranges.add(fns[i].addr, fns[i].addr+uint64(len(fns[i].code)), leftBlacklist)
		}
	}
	l.ranges.sort()
	return l
}

// reason returns why f is left out, or "".
func (l *left) reason(f *function) string {
	switch {
	case linux.IsPadding(f.name):
		return leftPadding
	case l.img.kernel != nil && l.img.kernel.Init(f.addr):
		return leftInit
	}
	if why := l.ranges.find(f.addr, f.addr+1); why != "" {
		return why
	}
	// A part that the compiler split off is the function itself.
	if base, _, ok := strings.Cut(f.name, "."); ok && base != "" {
		if a, ok := l.img.Lookup(base); ok {
			return l.ranges.find(a, a+1)
		}
	}
	return ""
}
