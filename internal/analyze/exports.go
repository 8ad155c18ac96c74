package analyze

import (
	"bytes"
	"fmt"
	"sort"
)

// checkExports compares the names that were read from kallsyms with those that
// a kernel exports to modules: sections __ksymtab and __ksymtab_gpl, struct
// kernel_symbol of include/linux/export-internal.h, three offsets of 32 bits
// from their own place to the symbol, its name and its namespace. The two tables
// know nothing of each other, so that a kallsyms layout that was misread is
// noticed. It returns how many names were compared.
func (img *image) checkExports() (n int, err error) {
	for _, t := range img.sections {
		if t.name != "__ksymtab" && t.name != "__ksymtab_gpl" {
			continue
		}
		for at := 0; at+12 <= len(t.data); at += 12 {
			addr, name := relative(t, at), img.text(relative(t, at+4))
			if name == "" {
				return n, fmt.Errorf("%s: entry %d has no name", t.name, at/12)
			}
			if !img.named(addr, name) {
				return n, fmt.Errorf("kallsyms tables were misread: %s says that %s is at %#x", t.name, name, addr)
			}
			n++
		}
	}
	return n, nil
}

// text returns the string at addr, or "".
func (img *image) text(addr uint64) string {
	s := img.at(addr)
	if s == nil {
		return ""
	}
	b := s.data[addr-s.addr:]
	b = b[:min(len(b), maxName)]
	return string(b[:max(0, bytes.IndexByte(b, 0))])
}

// named reports whether name stands for addr.
func (img *image) named(addr uint64, name string) bool {
	i := sort.Search(len(img.symbols), func(i int) bool { return img.symbols[i].addr >= addr })
	for ; i < len(img.symbols) && img.symbols[i].addr == addr; i++ {
		if img.symbols[i].name == name {
			return true
		}
	}
	return false
}
