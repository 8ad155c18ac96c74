package analyze

import (
	"slices"
	"sort"
	"strings"

	"github.com/guestprobe/guestprobe/probe/flow"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// function is one function of the image: code from a name to the next one.
type function struct {
	name  string
	addr  uint64
	code  []byte
	label bool // its name has no type
}

// span is a range of addresses, and what it is.
type span struct {
	lo, hi uint64
	what   string
}

// spans are ranges, ascending by their beginning, none longer than max.
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

// find returns what a range that overlaps [lo, hi) is, or "".
func (s *spans) find(lo, hi uint64) string {
	from := lo - min(lo, s.max)
	for i := sort.Search(len(s.all), func(i int) bool { return s.all[i].lo >= from }); i < len(s.all) && s.all[i].lo < hi; i++ {
		if s.all[i].hi > lo {
			return s.all[i].what
		}
	}
	return ""
}

// functions returns the functions, ascending, and what is between them where
// not all are known by name.
func (img *image) functions() (fns []function, gaps []function) {
	for i := range img.sections {
		s := &img.sections[i]
		if !s.x {
			continue
		}
		end := s.addr + uint64(len(s.data))
		at := s.addr // of what is behind the last function
		lo := sort.Search(len(img.symbols), func(i int) bool { return img.symbols[i].addr >= s.addr })
		for k := lo; k < len(img.symbols) && img.symbols[k].addr < end; {
			sym := img.symbols[k]
			var size uint64
			isFn, label := false, true
			name := ""
			for ; k < len(img.symbols) && img.symbols[k].addr == sym.addr; k++ {
				if a := img.symbols[k]; a.fn {
					if !isFn {
						name = a.name
					}
					isFn, size, label = true, max(size, a.size), label && a.label
				}
			}
			if !isFn {
				continue
			}
			next := end
			if k < len(img.symbols) {
				next = min(next, img.symbols[k].addr)
			}
			code := s.data[sym.addr-s.addr : next-s.addr]
			if !img.full && size > 0 && size < uint64(len(code)) {
				code = code[:size+padding(code[size:], sym.addr+size)]
			}
			if at < sym.addr {
				gaps = append(gaps, function{addr: at, code: s.data[at-s.addr : sym.addr-s.addr]})
			}
			fns = append(fns, function{name, sym.addr, code, label})
			at = max(at, sym.addr+uint64(len(code)))
		}
		if at < end {
			gaps = append(gaps, function{addr: at, code: s.data[at-s.addr:]})
		}
	}
	return fns, gaps
}

// padding returns how many of the bytes b at addr are nops and int3 up to the
// next multiple of 16.
func padding(b []byte, addr uint64) uint64 {
	var n uint64
	for (addr+n)&15 != 0 && n < uint64(len(b)) {
		i, err := insn.Decode(b[n:])
		if err != nil || !isPadding(&i) || (addr+n)&15+uint64(i.Len) > 16 {
			break
		}
		n += uint64(i.Len)
	}
	return n
}

// isPadding reports whether the instruction is one that linkers and compilers
// fill gaps with.
func isPadding(i *insn.Inst) bool {
	return i.Class() == insn.ClassNop && !i.IsEndbr() || i.Class() == insn.ClassInterrupt && i.Opcode == 0xcc
}

// index collects what the code of the whole image says of its text.
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

// input is what the analysis of a function begins with.
func (img *image) input(f *function) flow.Input {
	return flow.Input{Addr: f.addr, Code: f.code, Label: f.label, AllCode: img.kernel(), Movable: img.movable, Read: img.constant, Text: img.isText}
}

// isText reports whether an address is in an executable section.
func (img *image) isText(a uint64) bool {
	s := img.at(a)
	return s != nil && s.x
}

// constant returns n bytes that the program does not write, or nil.
func (img *image) constant(a uint64, n int) []byte {
	if s := img.at(a); s == nil || s.w {
		return nil
	}
	return img.bytes(a, n)
}

// Kernel symbols around what no probe may be on; sections have the same use
// where they were not merged into .text (Documentation/trace/kprobes.rst,
// "Blacklist").
var forbidden = []struct{ section, start, end string }{
	{".kprobes.text", "__kprobes_text_start", "__kprobes_text_end"},
	{".noinstr.text", "__noinstr_text_start", "__noinstr_text_end"},
	{".entry.text", "__entry_text_start", "__entry_text_end"},
}

// Reasons why a function is left out.
const (
	leftBlacklist = "blacklisted"
	leftPadding   = "padding"   // __pfx_, __cfi_
	leftInit      = "init_text" // a kernel's code that is gone after the boot
)

// left says which functions may not be probed at all.
type left struct {
	img    *image
	ranges spans
	kernel bool
}

func (img *image) left(fns []function) *left {
	l := &left{img: img, kernel: img.kernel()}
	for _, f := range forbidden {
		for i := range img.sections {
			if s := &img.sections[i]; s.name == f.section {
				l.ranges.add(s.addr, s.addr+uint64(len(s.data)), leftBlacklist)
			}
		}
		if lo, hi, ok := img.between(f.start, f.end); ok {
			l.ranges.add(lo, hi, leftBlacklist)
		}
	}
	table := img.table("_kprobe_blacklist", "__start_kprobe_blacklist", "__stop_kprobe_blacklist")
	for b := table.data; len(b) >= 8; b = b[8:] {
		a := le64(b)
		if i := sort.Search(len(fns), func(i int) bool { return fns[i].addr > a }) - 1; i >= 0 && a-fns[i].addr < uint64(len(fns[i].code)) {
			l.ranges.add(fns[i].addr, fns[i].addr+uint64(len(fns[i].code)), leftBlacklist)
		}
	}
	l.ranges.sort()
	return l
}

// out returns why f is left out, or "".
func (l *left) out(f *function) string {
	if strings.HasPrefix(f.name, "__pfx_") || strings.HasPrefix(f.name, "__cfi_") {
		return leftPadding
	}
	if l.kernel {
		if s := l.img.at(f.addr); s != nil && s.name != ".text" {
			return leftInit
		}
	}
	if why := l.ranges.find(f.addr, f.addr+1); why != "" {
		return why
	}
	// A part that the compiler split off is the function itself.
	if base, _, ok := strings.Cut(f.name, "."); ok && base != "" {
		if a, ok := l.img.byName[base]; ok {
			return l.ranges.find(a, a+1)
		}
	}
	return ""
}

// between returns the addresses of two names.
func (img *image) between(start, end string) (lo, hi uint64, ok bool) {
	lo, a := img.byName[start]
	hi, b := img.byName[end]
	return lo, hi, a && b && lo <= hi
}

// table returns the bytes between two names, or of a section.
func (img *image) table(name, start, end string) section {
	if lo, hi, ok := img.between(start, end); ok && hi-lo <= MaxFile {
		return section{name: name, addr: lo, data: img.bytes(lo, int(hi-lo))}
	}
	for _, s := range img.sections {
		if s.name == name {
			return s
		}
	}
	return section{}
}

// exceptions returns the addresses of instructions with an exception-table
// entry. Linux (arch/x86/include/asm/extable.h) has 12 bytes for each: offsets
// from their own place to the instruction and to where it goes on, and a type.
func (img *image) exceptions() map[uint64]bool {
	if !img.kernel() {
		return nil
	}
	t := img.table("__ex_table", "__start___ex_table", "__stop___ex_table")
	out := map[uint64]bool{}
	for n := 0; n+12 <= len(t.data); n += 12 {
		out[relative(t, n)] = true
	}
	return out
}

// ftraceSite is what spans say of the call that a traceable function begins with.
const ftraceSite = "ftrace"

// relative is the address that the 32-bit offset at n leads to.
func relative(t section, n int) uint64 {
	return t.addr + uint64(n) + uint64(int64(int32(le32(t.data[n:]))))
}

// patched returns what a kernel rewrites while it runs: ftrace's calls
// (__mcount_loc), static branches (struct jump_entry, 16 bytes), static calls
// (struct static_call_site, 8 bytes) and their trampolines. Lock prefixes are not
// among them: only a kernel that has booted with one CPU rewrites those.
func (img *image) patched(fns []function) *spans {
	s := &spans{}
	if !img.kernel() {
		return s
	}
	t := img.table("__mcount_loc", "__start_mcount_loc", "__stop_mcount_loc")
	for b := t.data; len(b) >= 8; b = b[8:] {
		s.add(le64(b), le64(b)+5, ftraceSite)
	}
	t = img.table("__jump_table", "__start___jump_table", "__stop___jump_table")
	for n := 0; n+16 <= len(t.data); n += 16 {
		at := relative(t, n)
		size := uint64(5)
		if b := img.bytes(at, 2); b != nil && (b[0] == 0xeb || b[0] == 0x66 && b[1] == 0x90) {
			size = 2
		}
		s.add(at, at+size, "jump_label")
	}
	t = img.table(".static_call_sites", "__start_static_call_sites", "__stop_static_call_sites")
	for n := 0; n+8 <= len(t.data); n += 8 {
		at := relative(t, n)
		s.add(at, at+5, "static_call")
	}
	for _, f := range fns {
		if strings.HasPrefix(f.name, "__SCT__") {
			s.add(f.addr, f.addr+uint64(len(f.code)), "static_call")
		}
	}
	s.sort()
	return s
}
