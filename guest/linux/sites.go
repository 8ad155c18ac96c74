package linux

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// The tables of the code that a kernel, or a module, patches itself, by their
// sections.
const (
	mCount          = "__mcount_loc"
	jumpTable       = "__jump_table"
	staticCallSites = ".static_call_sites"
	bugs            = "__bug_table"
	Exceptions      = "__ex_table"
	alternatives    = ".altinstructions"
	lockPrefixes    = ".smp_locks"
	Returns         = ".return_sites"
	retpolines      = ".retpoline_sites"
	Calls           = ".call_sites"
	paravirt        = ".parainstructions"
	endbrSeals      = ".ibt_endbr_seal"
	blacklist       = "_kprobe_blacklist" // functions that must not be probed
)

// Patch is the reason why bytes of text must stay as the kernel left them.
type Patch uint8

// The reasons. Those up to Bug are permanent: the kernel rewrites or compares these
// bytes at any time. The others are rewritten once: a constant until the initcalls
// have run, the following ones before the kernel starts its first thread
// (alternative_instructions), or when it loads a module.
const (
	Ftrace     Patch = iota + 1 // the call at the beginning of a traceable function
	JumpLabel                   // a static branch
	StaticCall                  // a static call, or its trampoline
	Bug                         // a BUG or WARN, which the kernel recognizes by its address and its bytes
	Constant                    // a number that the kernel chooses at boot (include/asm-generic/runtime-const.h)
	Alternative
	LockPrefix // removed while there is only one CPU
	Return
	Retpoline
	Call // call depth tracking
	ParavirtCall
	EndbrSeal
	numPatches
)

// Patches is a set of reasons.
type Patches uint16

// The sets: code that the kernel may patch at any time, and code that it patches only
// at boot.
const (
	Always  Patches = 1<<Ftrace | 1<<JumpLabel | 1<<StaticCall | 1<<Bug
	AtStart Patches = 1<<numPatches - 1
)

var patchNames = [numPatches]string{"", "ftrace", "jump_label", "static_call", "bug", "runtime_const", "alternative", "smp_lock", "return", "retpoline", "call", "paravirt", "endbr"}

// String is the word used in reports and rejections.
func (p Patch) String() string { return patchNames[p] }

// trampolineSize is the size of a static call's trampoline: the jump, and its mark
// (arch/x86/include/asm/static_call.h).
const trampolineSize = 8

// Sites are the places that a kernel, or a module, patches itself. They do not change
// once they are sorted, and may be used from any thread.
type Sites struct {
	sites      []site   // ascending by address
	exceptions []uint64 // ascending
	warnings   []uint64 // likewise, of the bugs
	edges      []edge   // ascending by target
	counts     [numPatches]int
}

// site is size bytes of text.
type site struct {
	addr uint64
	size uint8
	what Patch
}

// edge says that control may pass from from to to, which the text does not show.
type edge struct{ to, from uint64 }

// Sites reads the tables of the places that the kernel, or the module, patches
// itself, at link-time addresses. The error says which table is damaged, or has an
// unknown layout.
func (k *Kernel) Sites() (*Sites, error) {
	r := &siteReader{Sites: &Sites{}, k: k}
	for _, t := range []struct {
		name string
		read func(t *elf.Part)
	}{
		{mCount, r.readMCount}, {jumpTable, r.readJumps}, {staticCallSites, r.readStaticCalls}, {bugs, r.readBugs}, {Exceptions, r.readExceptionTable},
		{alternatives, r.readAlternatives}, {lockPrefixes, r.readLocks}, {paravirt, r.readParavirt},
		{Returns, r.readBranches(Return)}, {retpolines, r.readBranches(Retpoline)}, {Calls, r.readBranches(Call)}, {endbrSeals, r.readSeals},
	} {
		part := k.table(t.name)
		if t.read(&part); r.err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, r.err)
		}
	}
	for i := range k.mem.Sections {
		t := &k.mem.Sections[i]
		for kind, size := range map[string]uint64{"runtime_ptr_": 8, "runtime_mask_": 4, "runtime_shift_": 1} {
			if !strings.HasPrefix(t.Name, kind) {
				continue
			}
			if r.readConstants(t, size); r.err != nil {
				return nil, fmt.Errorf("%s: %w", t.Name, r.err)
			}
		}
	}
	for i := range k.mem.Names {
		if n := &k.mem.Names[i]; n.Func && isTrampoline(n.Name) {
			r.add(n.Addr, trampolineSize, StaticCall)
		}
	}
	r.sort()
	return r.Sites, nil
}

// siteReader reads tables.
type siteReader struct {
	*Sites
	k   *Kernel
	err error
}

// code returns the n bytes of text at addr before they were patched, or nil.
func (r *siteReader) code(addr, n uint64) []byte { return r.k.mem.Bytes(addr, n) }

func (s *Sites) add(addr, size uint64, what Patch) {
	s.sites = append(s.sites, site{addr, uint8(size), what})
	s.counts[what]++
}

func (s *Sites) sort() {
	slices.SortFunc(s.sites, func(a, b site) int { return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.what, b.what)) })
	slices.Sort(s.exceptions)
	slices.Sort(s.warnings)
	slices.SortFunc(s.edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.from, b.from)) })
}

// Count returns the number of sites of a kind.
func (s *Sites) Count(p Patch) int { return s.counts[p] }

// maxSite is the length of the longest site, an alternative.
const maxSite = 255

// firstAt returns the index of the first site at addr or above.
func (s *Sites) firstAt(addr uint64) int {
	return sort.Search(len(s.sites), func(i int) bool { return s.sites[i].addr >= addr })
}

// PatchAt returns the first reason in set for which the kernel patches [lo, hi), and
// whether there is one.
func (s *Sites) PatchAt(lo, hi uint64, set Patches) (Patch, bool) {
	for i := s.firstAt(lo - min(lo, maxSite)); i < len(s.sites) && s.sites[i].addr < hi; i++ {
		if x := &s.sites[i]; set>>x.what&1 != 0 && x.addr+uint64(x.size) > lo {
			return x.what, true
		}
	}
	return 0, false
}

// covers returns the end of a site that contains addr, if any.
func (s *Sites) covers(addr uint64) (end uint64, ok bool) {
	for i := s.firstAt(addr + 1 - min(addr+1, maxSite)); i < len(s.sites) && s.sites[i].addr <= addr; i++ {
		if x := &s.sites[i]; x.addr+uint64(x.size) > addr {
			end, ok = max(end, x.addr+uint64(x.size)), true
		}
	}
	return end, ok
}

// Begins reports whether a site of that kind begins at addr, and its length.
func (s *Sites) Begins(addr uint64, what Patch) (size int, ok bool) {
	for i := s.firstAt(addr); i < len(s.sites) && s.sites[i].addr == addr; i++ {
		if s.sites[i].what == what {
			return int(s.sites[i].size), true
		}
	}
	return 0, false
}

// Exception reports whether the instruction at addr has an entry in the exception table.
func (s *Sites) Exception(addr uint64) bool {
	_, ok := slices.BinarySearch(s.exceptions, addr)
	return ok
}

// warns reports whether the instruction at addr is a WARN, after which the kernel continues.
func (s *Sites) warns(addr uint64) bool {
	_, ok := slices.BinarySearch(s.warnings, addr)
	return ok
}

// Edges returns the places in [lo, hi), ascending, that a branch or an exception may
// lead to although the text does not show it.
func (s *Sites) Edges(lo, hi uint64) (at []uint64) {
	e := s.edges
	for i := sort.Search(len(e), func(i int) bool { return e[i].to >= lo }); i < len(e) && e[i].to < hi; i++ {
		if i == 0 || e[i].to != e[i-1].to {
			at = append(at, e[i].to)
		}
	}
	return at
}

// fail keeps the first error.
func (r *siteReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// forEachEntry calls f with each of the entries of size bytes of a table.
func (r *siteReader) forEachEntry(t *elf.Part, size int, f func(at int)) {
	if len(t.Data)%size != 0 {
		r.fail("%d bytes are no whole number of entries of %d", len(t.Data), size)
	}
	for at := 0; at+size <= len(t.Data) && r.err == nil; at += size {
		f(at)
	}
}

// place is the code that the 32-bit offset at n refers to, 0 if it is not code: then
// the entry is for text that was left out of the image.
func (r *siteReader) place(t *elf.Part, n int) uint64 {
	a := relativeAddr(t, n)
	if !r.k.isText(a) {
		return 0
	}
	return a
}

// readMCount reads the addresses of the tracer calls. An entry that was left out has
// address 0.
func (r *siteReader) readMCount(t *elf.Part) {
	r.forEachEntry(t, 8, func(at int) {
		if a := le64(t.Data[at:]); r.k.isText(a) {
			r.add(a, x86.JmpLen, Ftrace)
		}
	})
}

// readJumps reads struct jump_entry: offsets to the code and to its target, and a key
// of 8 bytes.
func (r *siteReader) readJumps(t *elf.Part) {
	r.forEachEntry(t, 16, func(at int) {
		a, to := r.place(t, at), relativeAddr(t, at+4)
		if a == 0 {
			return
		}
		size := uint64(x86.JmpLen)
		// A short jump, or the nop in place of one (since Linux 5.14).
		if b := r.code(a, 2); b != nil && (b[0] == 0xeb || b[0] == 0x66 && b[1] == 0x90) {
			size = 2
		}
		r.add(a, size, JumpLabel)
		r.edges = append(r.edges, edge{to, a})
	})
}

// readStaticCalls reads struct static_call_site: offsets to the code and to a key.
func (r *siteReader) readStaticCalls(t *elf.Part) {
	r.forEachEntry(t, 8, func(at int) {
		if a := r.place(t, at); a != 0 {
			r.add(a, r.length(a), StaticCall)
		}
	})
}

// readConstants reads offsets to numbers of size bytes in instructions.
func (r *siteReader) readConstants(t *elf.Part, size uint64) {
	r.forEachEntry(t, 4, func(at int) {
		if a := r.place(t, at); a != 0 {
			r.add(a, size, Constant)
		}
	})
}

// readBranches reads offsets to branches.
func (r *siteReader) readBranches(what Patch) func(t *elf.Part) {
	return func(t *elf.Part) {
		r.forEachEntry(t, 4, func(at int) {
			if a := r.place(t, at); a != 0 {
				r.add(a, r.length(a), what)
			}
		})
	}
}

// length is the length of the instruction at a, 5 bytes if it cannot be decoded.
func (r *siteReader) length(a uint64) uint64 {
	for n := uint64(x86.MaxLen); n > 0; n-- {
		if b := r.code(a, n); b != nil {
			if i, err := x86.Decode(b); err == nil {
				return uint64(i.Len)
			}
			break
		}
	}
	return x86.JmpLen
}

// readLocks reads offsets to lock prefixes. The table is padded with zeros to a page.
func (r *siteReader) readLocks(t *elf.Part) {
	r.forEachEntry(t, 4, func(at int) {
		if a := r.place(t, at); a != 0 && le32(t.Data[at:]) != 0 {
			r.add(a, 1, LockPrefix)
		}
	})
}

// readSeals reads offsets to endbr64 instructions.
func (r *siteReader) readSeals(t *elf.Part) {
	r.forEachEntry(t, 4, func(at int) {
		if a := r.place(t, at); a != 0 {
			r.add(a, uint64(len(x86.Endbr64)), EndbrSeal)
		}
	})
}

// readParavirt reads struct paravirt_patch_site (until Linux 6.8): an address, a type and a
// length.
func (r *siteReader) readParavirt(t *elf.Part) {
	// The last entry may lack its padding.
	data := *t
	data.Data = append(slices.Clip(t.Data), make([]byte, -len(t.Data)&15)...)
	r.forEachEntry(&data, 16, func(at int) {
		if a, n := le64(data.Data[at:]), uint64(data.Data[at+9]); r.k.isText(a) {
			r.add(a, n, ParavirtCall)
		}
	})
}

// readExceptionTable reads struct exception_table_entry: offsets to the instruction
// and to its fixup, and a type.
func (r *siteReader) readExceptionTable(t *elf.Part) {
	r.forEachEntry(t, 12, func(at int) {
		if a := r.place(t, at); a != 0 {
			r.exceptions = append(r.exceptions, a)
			r.edges = append(r.edges, edge{relativeAddr(t, at+4), a})
		}
	})
}

// readBugs reads struct bug_entry, whose size depends on the version and on
// CONFIG_DEBUG_BUGVERBOSE: it begins with the offset to the instruction, a ud2, a ud1,
// or a call.
func (r *siteReader) readBugs(t *elf.Part) {
	size := r.k.bugEntry
	if size == 0 {
		size = r.stride(t, []int{12, 8, 16}, func(at int) bool { return r.place(t, at) != 0 })
	}
	if size == 0 {
		return
	}
	const warning = 1 // BUGFLAG_WARNING (include/linux/bug.h)
	flags := size - 2
	if size == 8 { // no file and line: two bytes of padding follow
		flags = 4
	}
	r.forEachEntry(t, size, func(at int) {
		a := r.place(t, at)
		if a == 0 {
			return
		}
		r.add(a, r.length(a), Bug)
		if binary.LittleEndian.Uint16(t.Data[at+flags:])&warning != 0 {
			r.warnings = append(r.warnings, a)
		}
	})
}

// readAlternatives reads struct alt_instr: offsets to the code and to its possible
// replacement, a CPU feature, and the lengths of both. The feature has 2 bytes until
// Linux 6.2, and 4 since; until 5.12 a third length follows.
func (r *siteReader) readAlternatives(t *elf.Part) {
	ok := func(lengths int) func(at int) bool {
		return func(at int) bool {
			n, m := uint64(t.Data[at+lengths]), uint64(t.Data[at+lengths+1])
			return n != 0 && r.code(relativeAddr(t, at), n) != nil && (m == 0 || r.code(relativeAddr(t, at+4), m) != nil)
		}
	}
	lengths := 12
	size := r.stride(t, []int{14}, ok(12))
	if size == 0 {
		r.err, lengths = nil, 10
		size = r.stride(t, []int{12, 13}, ok(10))
	}
	if size == 0 {
		return
	}
	r.forEachEntry(t, size, func(at int) {
		a, n := r.place(t, at), uint64(t.Data[at+lengths])
		if a == 0 {
			return // in code that is data, for another kernel (relocate_kernel)
		}
		r.add(a, n, Alternative)
		r.replacement(relativeAddr(t, at+4), uint64(t.Data[at+lengths+1]), a, n)
	})
}

// replacement records the jump targets of the m bytes at from, which may replace the
// n bytes at a: when the kernel copies them it keeps the targets.
func (r *siteReader) replacement(from, m, a, n uint64) {
	for code, at := r.code(from, m), uint64(0); at < uint64(len(code)); {
		i, err := x86.Decode(code[at:])
		if err != nil {
			return
		}
		if to, ok := i.Target(from + at); ok && to-from >= m {
			r.edges = append(r.edges, edge{to, a})
		}
		at += uint64(i.Len)
	}
}

// stride returns the size of a table's entries for which all are good. If no size
// fits it returns 0 with an error, and if the table is empty 0 without one.
func (r *siteReader) stride(t *elf.Part, sizes []int, good func(at int) bool) int {
	if len(t.Data) == 0 {
		return 0
	}
next:
	for _, size := range sizes {
		if len(t.Data)%size != 0 {
			continue
		}
		for at := 0; at < len(t.Data); at += size {
			if !good(at) {
				continue next
			}
		}
		return size
	}
	r.fail("entries of a layout that is not known (%d bytes)", len(t.Data))
	return 0
}
