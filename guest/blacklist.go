package guest

import (
	"slices"
	"sort"
	"strings"
)

// blackRange is text in which nothing may be probed.
type blackRange struct {
	start, end GVA // end not included
	reason     string
}

// Marked is a part of a program that has a section of its own, or, where a linker
// has merged that into another one, as in a linked kernel, two symbols around it.
type Marked struct{ Section, Start, End string }

// NoProbe are the parts that may not be probed: the code that handles a probe, or
// runs where a trap cannot be taken. Linux has the same ones
// (Documentation/trace/kprobes.rst, "Blacklist").
func NoProbe() []Marked {
	return []Marked{
		{".kprobes.text", "__kprobes_text_start", "__kprobes_text_end"},
		{".noinstr.text", "__noinstr_text_start", "__noinstr_text_end"},
		{".entry.text", "__entry_text_start", "__entry_text_end"},
	}
}

// NoProbeTable is the list of the addresses of functions that may not be probed, 8
// bytes each.
func NoProbeTable() Marked {
	return Marked{"_kprobe_blacklist", "__start_kprobe_blacklist", "__stop_kprobe_blacklist"}
}

// buildBlacklist collects the ranges. Symbols are known.
func (img *Image) buildBlacklist() error {
	for _, b := range NoProbe() {
		reason := "in section " + b.Section
		for i := range img.Sections {
			if s := &img.Sections[i]; s.Name == b.Section {
				img.addBlack(s.Addr, s.Addr+GVA(s.Size), reason)
			}
		}
		if start, end, ok := img.bounds(b); ok {
			img.addBlack(start, end, reason)
		}
	}
	table := NoProbeTable()
	for i := range img.Sections {
		if s := &img.Sections[i]; s.Name == table.Section {
			if err := img.addBlackTable(s.Addr, s.Size); err != nil {
				return err
			}
		}
	}
	if start, end, ok := img.bounds(table); ok {
		if err := img.addBlackTable(start, uint64(end-start)); err != nil {
			return err
		}
	}
	slices.SortFunc(img.blacklist, func(a, b blackRange) int { return cmpAddr(a.start, b.start) })
	// Merge what overlaps, so that one binary search finds the answer.
	out := img.blacklist[:0]
	for _, b := range img.blacklist {
		if n := len(out); n > 0 && b.start < out[n-1].end {
			b.start = out[n-1].end
		}
		if b.start < b.end {
			out = append(out, b)
		}
	}
	img.blacklist = out
	return nil
}

// bounds returns the addresses of two symbols around a range.
func (img *Image) bounds(m Marked) (GVA, GVA, bool) {
	a, err := img.Lookup(m.Start)
	if err != nil {
		return 0, 0, false
	}
	b, err := img.Lookup(m.End)
	if err != nil || b.Addr < a.Addr {
		return 0, 0, false
	}
	return a.Addr, b.Addr, true
}

// addBlack adds the range, and to their ends the symbols that start in it.
func (img *Image) addBlack(start, end GVA, reason string) {
	img.blacklist = append(img.blacklist, blackRange{start, end, reason})
	all := img.syms.all
	for i := sort.Search(len(all), func(i int) bool { return all[i].Addr >= start }); i < len(all) && all[i].Addr < end; i++ {
		if last := all[i].Addr + GVA(all[i].Size); last > end && all[i].Kind == SymFunc {
			img.blacklist = append(img.blacklist, blackRange{end, last, reason})
		}
	}
}

// addBlackTable adds the functions that a table of addresses names. Entries
// that point at no code have nothing to protect.
func (img *Image) addBlackTable(addr GVA, size uint64) error {
	if size/8 > MaxImageSymbols {
		return damaged(NoProbeTable().Section, "%d entries, more than %d", size/8, MaxImageSymbols)
	}
	table := img.bytesAt(addr, size&^7)
	for ; len(table) >= 8; table = table[8:] {
		a := GVA(le64(table))
		if !img.IsText(a) {
			continue
		}
		start, end := a, a+1
		if s, ok := img.Find(a); ok {
			start, end = s.Addr, s.Addr+GVA(s.Size)
		}
		img.blacklist = append(img.blacklist, blackRange{start, end, "listed in " + NoProbeTable().Section})
	}
	return nil
}

// Blacklisted returns why nothing in the symbol at addr may be probed, or "":
// it starts in a section of code that may not be, the image's own list has it,
// or it is a part that the compiler split off (foo.cold, foo.isra.0) from a
// function that may not be.
func (img *Image) Blacklisted(addr GVA) string {
	if r := img.blackAt(addr); r != "" {
		return r
	}
	s, ok := img.Find(addr)
	if !ok {
		return ""
	}
	base, _, split := strings.Cut(s.Name, ".")
	if !split || base == "" {
		return ""
	}
	for _, i := range img.syms.byName[base] {
		if r := img.blackAt(img.syms.all[i].Addr); r != "" {
			return "part of " + base + ", " + r
		}
	}
	return ""
}

// blackAt returns the reason of the range that holds addr, or "".
func (img *Image) blackAt(addr GVA) string {
	b := img.blacklist
	i := sort.Search(len(b), func(i int) bool { return b[i].end > addr })
	if i == len(b) || b[i].start > addr {
		return ""
	}
	return b[i].reason
}
