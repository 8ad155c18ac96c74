package guest

import (
	"slices"
	"sort"
	"strings"
)

// Blacklist is text that must not be probed. It does not change.
type Blacklist struct {
	syms   *SymbolTable
	ranges []blackRange // ascending, disjoint
}

// blackRange is one part of it.
type blackRange struct {
	start, end GVA // end not included
	reason     string
}

// Marked is a part of a program with its own section or, if a linker has merged that
// section into another one, as in a linked kernel, with two symbols around it.
type Marked struct{ Section, Start, End string }

// NoProbe returns the parts that must not be probed: code that handles a probe, or
// runs where a trap cannot be taken. Linux has the same ones
// (Documentation/trace/kprobes.rst, "Blacklist").
func NoProbe() []Marked {
	return []Marked{
		{".kprobes.text", "__kprobes_text_start", "__kprobes_text_end"},
		{".noinstr.text", "__noinstr_text_start", "__noinstr_text_end"},
		{".entry.text", "__entry_text_start", "__entry_text_end"},
	}
}

// NoProbeTable is the list of the addresses of functions that must not be probed, 8
// bytes each.
func NoProbeTable() Marked {
	return Marked{"_kprobe_blacklist", "__start_kprobe_blacklist", "__stop_kprobe_blacklist"}
}

// NewBlacklist collects the blacklist of a program with these symbols: section
// returns the ranges of the sections of a name, initial the n bytes at an address
// before the program runs, or nil, isText whether there is code. The error says that
// the program's own list is implausibly long.
func NewBlacklist(syms *SymbolTable, section func(name string) []Range, initial func(addr GVA, n uint64) []byte, isText func(addr GVA) bool) (*Blacklist, error) {
	l := &Blacklist{syms: syms}
	for _, m := range NoProbe() {
		for _, r := range append(section(m.Section), l.bounds(m)...) {
			l.add(r.Start, r.End, "in section "+m.Section)
		}
	}
	table := NoProbeTable()
	for _, r := range append(section(table.Section), l.bounds(table)...) {
		n := uint64(r.End - r.Start)
		if n/8 > MaxImageSymbols {
			return nil, damagedError(table.Section, "%d entries, more than %d", n/8, MaxImageSymbols)
		}
		for b := initial(r.Start, n&^7); len(b) >= 8; b = b[8:] {
			// Entries that do not point to code have nothing to protect.
			if a := GVA(le64(b)); isText(a) {
				l.addFunction(a, "listed in "+table.Section)
			}
		}
	}
	slices.SortFunc(l.ranges, func(a, b blackRange) int { return cmpAddr(a.start, b.start) })
	// Merge overlapping ranges, so that one binary search finds the answer.
	out := l.ranges[:0]
	for _, b := range l.ranges {
		if n := len(out); n > 0 && b.start < out[n-1].end {
			b.start = out[n-1].end
		}
		if b.start < b.end {
			out = append(out, b)
		}
	}
	l.ranges = out
	return l, nil
}

// bounds returns the range between the symbols around a part, if they exist.
func (l *Blacklist) bounds(m Marked) []Range {
	start, err := l.syms.Lookup(m.Start)
	end, err2 := l.syms.Lookup(m.End)
	if err != nil || err2 != nil || end.Addr < start.Addr {
		return nil
	}
	return []Range{{start.Addr, end.Addr}}
}

// add adds the range, and to their ends the functions that start in it.
func (l *Blacklist) add(start, end GVA, reason string) {
	l.ranges = append(l.ranges, blackRange{start, end, reason})
	all := l.syms.all
	for i := sort.Search(len(all), func(i int) bool { return all[i].Addr >= start }); i < len(all) && all[i].Addr < end; i++ {
		if last := all[i].Addr + GVA(all[i].Size); last > end && all[i].Kind == SymFunc {
			l.ranges = append(l.ranges, blackRange{end, last, reason})
		}
	}
}

// addFunction adds the function at a, or, if there is no function, the address.
func (l *Blacklist) addFunction(a GVA, reason string) {
	start, end := a, a+1
	if s, ok := l.syms.Find(a); ok {
		start, end = s.Addr, s.Addr+GVA(s.Size)
	}
	l.ranges = append(l.ranges, blackRange{start, end, reason})
}

// BlacklistReason returns why the symbol at addr must not be probed, or "": it starts
// in a section of forbidden code, it is in the program's own list, or it is a part
// that the compiler split off (foo.cold, foo.isra.0) from a forbidden function.
func (l *Blacklist) BlacklistReason(addr GVA) string {
	if r := l.reasonAt(addr); r != "" {
		return r
	}
	s, ok := l.syms.Find(addr)
	if !ok {
		return ""
	}
	base, _, split := strings.Cut(s.Name, ".")
	if !split || base == "" {
		return ""
	}
	for _, i := range l.syms.byName[base] {
		if r := l.reasonAt(l.syms.all[i].Addr); r != "" {
			return "part of " + base + ", " + r
		}
	}
	return ""
}

// reasonAt returns the reason of the range that contains addr, or "".
func (l *Blacklist) reasonAt(addr GVA) string {
	b := l.ranges
	i := sort.Search(len(b), func(i int) bool { return b[i].end > addr })
	if i == len(b) || b[i].start > addr {
		return ""
	}
	return b[i].reason
}
