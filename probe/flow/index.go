package flow

import (
	"slices"
	"sort"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// maxTargets is the most targets, and the most references, that an index holds: more
// than any image has whose symbols are bounded as in package guest, so reaching it
// means that the image is not code.
const maxTargets = 8 << 20

// Index is what the code of an image implies about its text: the targets of direct
// branches, and the places that are referred to as data. It tells a region about
// jumps and reads in other functions. It does not change and can be used from any
// thread, except that queries read the texts of AddText again.
type Index struct {
	targets  []uint64 // ascending, each once
	paths    []uint64 // of these, the targets of reached instructions
	refs     []ref    // ascending
	tables   []ref    // of jumps, ascending
	straight []*straight
	full     bool
}

// Builder makes an Index. The zero value is not ready: see NewBuilder. It
// belongs to one goroutine.
type Builder struct {
	text    func(uint64) bool
	x       Index
	reached []uint64 // targets of reached instructions
}

// NewBuilder returns a builder for an image; text reports whether an address is in
// its text.
func NewBuilder(text func(addr uint64) bool) *Builder { return &Builder{text: text} }

// Function adds what a function implies about the text around it. Of in it uses only
// Addr, Code, Label, AllCode and Read.
func (b *Builder) Function(in Input) {
	if in.AllCode {
		b.AddStraight(in.Addr, in.Code)
		return
	}
	if len(in.Code) > MaxCode {
		b.Gap(in.Addr, in.Code)
		return
	}
	in.Known, in.Text = nil, b.text
	f := Analyze(in)
	for _, t := range f.leaves {
		if b.text(t.to) {
			b.target(t.to, t.reached)
		}
	}
	for _, r := range f.refs {
		b.addRef(r)
	}
	for _, t := range f.tables {
		if b.text(t.Addr) && len(b.x.tables) < maxTargets {
			b.x.tables = append(b.x.tables, t)
		}
	}
}

// AddStraight adds the targets of the branches of code at addr that consists only of
// instructions: a function, or text without a name.
func (b *Builder) AddStraight(addr uint64, code []byte) {
	for at := 0; at < len(code); {
		n, t, branch, err := x86.Scan(code[at:], addr+uint64(at))
		if err != nil {
			at++
			continue
		}
		if branch && t-addr >= uint64(len(code)) && b.text(t) {
			b.target(t, true)
		}
		at += n
	}
}

// Gap adds text that no symbol names, at addr. Bytes decoded there may be data: its
// branches are not known paths.
func (b *Builder) Gap(addr uint64, code []byte) {
	for len(code) > 0 {
		n := min(len(code), MaxCode)
		f := Analyze(Input{Addr: addr, Code: code[:n], Label: true, Text: b.text})
		for _, br := range f.branches {
			b.target(br.to, false)
		}
		for _, t := range f.leaves {
			if b.text(t.to) {
				b.target(t.to, false)
			}
		}
		for _, r := range f.refs {
			b.addRef(r)
		}
		if n < len(code) {
			n -= x86.MaxLen // the last instruction may have been cut off
		}
		addr, code = addr+uint64(n), code[n:]
	}
}

func (b *Builder) target(to uint64, reached bool) {
	if len(b.x.targets)+len(b.reached) == maxTargets {
		b.x.full = true
		return
	}
	if reached {
		b.reached = append(b.reached, to)
	} else {
		b.x.targets = append(b.x.targets, to)
	}
}

func (b *Builder) addRef(r ref) {
	if len(b.x.refs) == maxTargets {
		b.x.full = true
		return
	}
	b.x.refs = append(b.x.refs, r)
}

// Index returns the index of everything added. The builder must not be used
// afterwards.
func (b *Builder) Index() *Index {
	x := &b.x
	x.paths = sortedUnique(b.reached)
	if len(x.targets) == 0 {
		x.targets = x.paths
	} else {
		x.targets = join([][]uint64{x.paths, x.targets})
	}
	slices.SortFunc(x.refs, compareRefs)
	slices.SortFunc(x.tables, compareRefs)
	return x
}

func sortedUnique(s []uint64) []uint64 {
	slices.Sort(s)
	return slices.Clip(slices.Compact(s))
}

// Join merges the indexes of several parts of an image, at least one.
func Join(parts []*Index) *Index {
	if len(parts) == 1 {
		return parts[0]
	}
	x := &Index{}
	var targets, paths [][]uint64
	for _, p := range parts {
		targets, paths = append(targets, p.targets), append(paths, p.paths)
		x.refs, x.tables = append(x.refs, p.refs...), append(x.tables, p.tables...)
		x.straight = append(x.straight, p.straight...)
		x.full = x.full || p.full
	}
	slices.SortFunc(x.refs, compareRefs)
	slices.SortFunc(x.tables, compareRefs)
	x.targets, x.paths = join(targets), join(paths)
	return x
}

// join merges ascending lists without duplicates: first it merges all others, and
// then the result with the first, which is by far the longest of a kernel's.
func join(lists [][]uint64) []uint64 {
	a, b := lists[0], sortedUnique(slices.Concat(lists[1:]...))
	out := make([]uint64, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		least := min(a[0], b[0])
		out = append(out, least)
		if a[0] == least {
			a = a[1:]
		}
		if b[0] == least {
			b = b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// Targets returns the direct branch targets in [lo, hi), ascending. The slice is
// the index's own and must not be changed.
func (x *Index) Targets(lo, hi uint64) []uint64 {
	known := sliceWithin(x.targets, lo, hi)
	var more []uint64
	for _, s := range x.straight {
		more = s.targets(more, lo, hi)
	}
	if len(more) == 0 {
		return known
	}
	return sortedUnique(append(more, known...))
}

func sliceWithin(s []uint64, lo, hi uint64) []uint64 {
	i, _ := slices.BinarySearch(s, lo)
	j := i
	for j < len(s) && s[j] < hi {
		j++
	}
	return s[i:j:j]
}

// reached reports whether a known path leads to the target t.
func (x *Index) reached(t uint64) bool {
	if _, ok := slices.BinarySearch(x.paths, t); ok {
		return true
	}
	return slices.ContainsFunc(x.straight, func(s *straight) bool { return len(s.targets(nil, t, t+1)) != 0 })
}

// table reports that [lo, hi) overlaps a jump table.
func (x *Index) table(lo, hi uint64) string {
	const longest = maxTable * 8
	from := lo - min(lo, longest)
	for i := sort.Search(len(x.tables), func(i int) bool { return x.tables[i].Addr >= from }); i < len(x.tables) && x.tables[i].Addr < hi; i++ {
		if x.tables[i].Addr+uint64(x.tables[i].Size) > lo {
			return "a jump table"
		}
	}
	return ""
}

// Len returns the number of targets, without those in texts that were added as such.
func (x *Index) Len() int { return len(x.targets) }

// Complete reports whether there was room for all targets and references. If not, no
// jump is safe.
func (x *Index) Complete() bool { return !x.full }
