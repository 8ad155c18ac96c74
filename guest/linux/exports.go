package linux

import (
	"bytes"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// addExports reads the names that a kernel exports to modules: sections __ksymtab and
// __ksymtab_gpl, struct kernel_symbol of include/linux/export-internal.h, three
// 32-bit offsets, relative to their own place, to the symbol, its name and its
// namespace. It adds names that the kernel's other tables lack (data without
// CONFIG_KALLSYMS_ALL), and compares the others and returns their number: the two
// tables are independent, so a misread kallsyms layout is noticed.
func (k *Kernel) addExports() (checked int, err error) {
	var more []elf.Name
	for i := range k.mem.Sections {
		t := &k.mem.Sections[i]
		if t.Name != "__ksymtab" && t.Name != "__ksymtab_gpl" {
			continue
		}
		for at := 0; at+12 <= len(t.Data); at += 12 {
			addr, name := relativeAddr(t, at), k.text(relativeAddr(t, at+4))
			if name == "" {
				return checked, fmt.Errorf("%s: entry %d has no name", t.Name, at/12)
			}
			switch _, other := k.mem.Lookup(name); {
			case k.mem.Named(addr, name):
				checked++
			case other:
				return checked, fmt.Errorf("%s says that %s is at %#x", t.Name, name, addr)
			default:
				more = append(more, elf.Name{Name: name, Addr: addr, Func: k.isText(addr), Global: true})
			}
		}
	}
	if len(k.mem.Names) != 0 && len(more) > checked {
		return checked, fmt.Errorf("%d exported symbols are missing, as %s", len(more), more[0].Name)
	}
	if len(more) != 0 {
		k.mem.SetNames(append(k.mem.Names, more...))
	}
	return checked, nil
}

// text returns the string at addr, or "".
func (k *Kernel) text(addr uint64) string {
	s := k.mem.PartAt(addr)
	if s == nil {
		return ""
	}
	b := s.Data[addr-s.Addr:]
	b = b[:min(len(b), maxName)]
	return string(b[:max(0, bytes.IndexByte(b, 0))])
}
