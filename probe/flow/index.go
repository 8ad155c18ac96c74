package flow

import (
	"slices"
	"sort"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// MaxTargets is the most targets, and the most references, that an index holds:
// more than any image has whose symbols are bounded as guest's are, so that
// reaching it means that the image is not code.
const MaxTargets = 8 << 20

// Index is what the code of an image says of its text: where direct branches
// lead, and what is referred to as data. A region learns from it of jumps and
// reads from other functions. It does not change and can be used from any
// thread.
type Index struct {
	targets []uint64 // ascending, each once
	paths   []uint64 // of these, those of reached instructions
	refs    []Ref    // ascending
	tables  []Ref    // of jumps, ascending
	full    bool
}

// Builder makes an Index. The zero value is not ready: see NewBuilder. It
// belongs to one goroutine.
type Builder struct {
	text func(uint64) bool
	x    Index
}

// NewBuilder returns a builder for an image whose text is where text says.
func NewBuilder(text func(addr uint64) bool) *Builder { return &Builder{text: text} }

// Function adds what a function says of the text around it. Of in only Addr,
// Code, Label, AllCode and Read count.
func (b *Builder) Function(in Input) {
	if in.AllCode {
		b.addStraight(in)
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
		if b.text(t.Addr) && len(b.x.tables) < MaxTargets {
			b.x.tables = append(b.x.tables, t)
		}
	}
}

// addStraight adds where the branches of a function lead that is code from its first byte to
// its last, in which nothing is referred to as data.
func (b *Builder) addStraight(in Input) {
	for at := 0; at < len(in.Code); {
		i, err := x86.Decode(in.Code[at:])
		if err != nil {
			at++
			continue
		}
		if t, ok := i.Target(in.Addr + uint64(at)); ok && t-in.Addr >= uint64(len(in.Code)) && b.text(t) {
			b.target(t, true)
		}
		at += int(i.Len)
	}
}

// Gap adds text that no symbol names, at addr. What decodes there may be data:
// its branches are no known paths.
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
	if len(b.x.targets) == MaxTargets {
		b.x.full = true
		return
	}
	b.x.targets = append(b.x.targets, to)
	if reached {
		b.x.paths = append(b.x.paths, to)
	}
}

func (b *Builder) addRef(r Ref) {
	if len(b.x.refs) == MaxTargets {
		b.x.full = true
		return
	}
	b.x.refs = append(b.x.refs, r)
}

// Index returns what was added. The builder must not be used afterwards.
func (b *Builder) Index() *Index {
	x := &b.x
	x.targets, x.paths = sortedUnique(x.targets), sortedUnique(x.paths)
	slices.SortFunc(x.refs, byRef)
	slices.SortFunc(x.tables, byRef)
	return x
}

func sortedUnique(s []uint64) []uint64 {
	slices.Sort(s)
	return slices.Clip(slices.Compact(s))
}

// Join returns what indexes of several parts of an image, of which there is one at least, say
// together.
func Join(parts []*Index) *Index {
	if len(parts) == 1 {
		return parts[0]
	}
	x := &Index{}
	var targets, paths [][]uint64
	for _, p := range parts {
		targets, paths = append(targets, p.targets), append(paths, p.paths)
		x.refs, x.tables = append(x.refs, p.refs...), append(x.tables, p.tables...)
		x.full = x.full || p.full
	}
	slices.SortFunc(x.refs, byRef)
	slices.SortFunc(x.tables, byRef)
	x.targets, x.paths = join(targets), join(paths)
	return x
}

// join merges lists that are ascending and have each number once: the first, which is by far
// the longest of a kernel's, with what all others are together.
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
func (x *Index) Targets(lo, hi uint64) []uint64 { return sliceWithin(x.targets, lo, hi) }

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
	_, ok := slices.BinarySearch(x.paths, t)
	return ok
}

// table says that [lo, hi) overlaps a jump table.
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

// Len returns the number of targets.
func (x *Index) Len() int { return len(x.targets) }

// Complete reports whether all targets and references found room. Where they
// did not, no jump is safe.
func (x *Index) Complete() bool { return !x.full }
