package linux

import (
	"bytes"
	"fmt"
)

// checkExports compares the names that were read from kallsyms with those that
// a kernel exports to modules: sections __ksymtab and __ksymtab_gpl, struct
// kernel_symbol of include/linux/export-internal.h, three offsets of 32 bits
// from their own place to the symbol, its name and its namespace. The two tables
// know nothing of each other, so that a kallsyms layout that was misread is
// noticed. It returns how many names were compared.
func (k *Kernel) checkExports() (n int, err error) {
	for i := range k.mem.Sections {
		t := &k.mem.Sections[i]
		if t.Name != "__ksymtab" && t.Name != "__ksymtab_gpl" {
			continue
		}
		for at := 0; at+12 <= len(t.Data); at += 12 {
			addr, name := relative(t, at), k.text(relative(t, at+4))
			if name == "" {
				return n, fmt.Errorf("%s: entry %d has no name", t.Name, at/12)
			}
			if !k.mem.Named(addr, name) {
				return n, fmt.Errorf("kallsyms tables were misread: %s says that %s is at %#x", t.Name, name, addr)
			}
			n++
		}
	}
	return n, nil
}

// text returns the string at addr, or "".
func (k *Kernel) text(addr uint64) string {
	s := k.mem.At(addr)
	if s == nil {
		return ""
	}
	b := s.Data[addr-s.Addr:]
	b = b[:min(len(b), maxName)]
	return string(b[:max(0, bytes.IndexByte(b, 0))])
}
