package linux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// MaxImage is the size in bytes of the largest kernel that is read, both packed and
// unpacked.
const MaxImage = 512 << 20

// MaxNames bounds the names of a kernel.
const MaxNames = 4 << 20

// Kernel is a kernel's image before it runs.
type Kernel struct {
	Version string // from the kernel's banner; "" if it has none
	Embeds  bool   // the names are from its own tables (kallsyms), not from .symtab
	Checked int    // names that the table of exports confirms
	Packing string // compression of the bzImage; "" for none
	ID      guest.ID

	nameless bool // it has at most the names of its exports
	mem      *elf.Memory
	program  program // set by Parse
	bugEntry int     // bytes of a struct bug_entry; 0: determined from the table

	typesOnce sync.Once // for the fields below
	types     *Types
	typesErr  error
}

// New reads mem as a kernel. If mem has no names yet, New sets the names in the
// kernel's own tables. The result is nil if it is not Linux; the error says that its
// tables contradict each other.
func New(mem *elf.Memory) (*Kernel, error) {
	k := &Kernel{mem: mem}
	k.Version = k.banner()
	if len(mem.Names) != 0 {
		_, banner := mem.Lookup("linux_banner")
		if _, table := mem.Lookup("__start___ex_table"); !banner && !table {
			return nil, nil
		}
		return k, nil
	}
	if names := kallsyms(mem); len(names) != 0 {
		k.setNames(names)
		k.Embeds = true
	} else if k.Version == "" || mem.Section("__ex_table") == nil {
		return nil, nil
	}
	k.nameless = !k.Embeds
	// Without CONFIG_KALLSYMS these are all the names of a stripped kernel.
	var err error
	if k.Checked, err = k.addExports(); err != nil && k.Embeds {
		err = fmt.Errorf("kallsyms tables were misread: %w", err)
	}
	return k, err
}

// setNames sets names with the letters of nm: names in an executable section count as
// text, as the .data of Linux 7 does.
func (k *Kernel) setNames(names []elf.Name) {
	for i := range names {
		names[i].Func = names[i].Func && k.isText(names[i].Addr)
	}
	k.mem.SetNames(names)
}

// bannerMark is the beginning of a kernel's linux_banner.
const bannerMark = "Linux version "

// Lookup returns the address of a symbol as the kernel was linked.
func (k *Kernel) Lookup(name string) (addr uint64, ok bool) { return k.mem.Lookup(name) }

// banner returns the kernel's version, or "".
func (k *Kernel) banner() string {
	for i := range k.mem.Sections {
		s := &k.mem.Sections[i]
		if at := bytes.Index(s.Data, []byte(bannerMark)); at >= 0 {
			rest := s.Data[at+len(bannerMark):]
			if end := bytes.IndexAny(rest[:min(len(rest), 128)], " \n\x00"); end > 0 {
				return string(rest[:end])
			}
		}
	}
	return ""
}

// Thunks reports whether the kernel was built with RETPOLINE or IBT.
func (k *Kernel) Thunks() bool {
	for i := range k.mem.Sections {
		switch k.mem.Sections[i].Name {
		case ".retpoline_sites", ".ibt_endbr_seal":
			return true
		}
	}
	return false
}

// Init reports whether the code or data at addr is freed after the boot, which is
// true of everything outside of .text.
func (k *Kernel) Init(addr uint64) bool {
	s := k.mem.PartAt(addr)
	return s != nil && s.Name != ".text"
}

// isTrampoline reports whether a function of that name is the trampoline of a
// static call, which the kernel rewrites.
func isTrampoline(name string) bool { return strings.HasPrefix(name, "__SCT__") }

// IsPadding reports whether the name is one of padding before a function instead of
// code (CONFIG_CALL_PADDING, CONFIG_CFI_CLANG).
func IsPadding(name string) bool {
	return strings.HasPrefix(name, "__pfx_") || strings.HasPrefix(name, "__cfi_")
}

// bounds are the symbols around tables that are not sections of their own in a linked
// kernel (include/asm-generic/vmlinux.lds.h).
var bounds = map[string][2]string{
	mCount:          {"__start_mcount_loc", "__stop_mcount_loc"},
	jumpTable:       {"__start___jump_table", "__stop___jump_table"},
	staticCallSites: {"__start_static_call_sites", "__stop_static_call_sites"},
	alternatives:    {"__alt_instructions", "__alt_instructions_end"},
	lockPrefixes:    {"__smp_locks", "__smp_locks_end"},
	Returns:         {"__return_sites", "__return_sites_end"},
	retpolines:      {"__retpoline_sites", "__retpoline_sites_end"},
	Calls:           {"__call_sites", "__call_sites_end"},
	paravirt:        {"__parainstructions", "__parainstructions_end"},
	endbrSeals:      {"__ibt_endbr_seal", "__ibt_endbr_seal_end"},
	Exceptions:      {"__start___ex_table", "__stop___ex_table"},
	bugs:            {"__start___bug_table", "__stop___bug_table"},
	blacklist:       {"__start_kprobe_blacklist", "__stop_kprobe_blacklist"},
}

// table returns the table with that name as a section: by the section, by the symbols
// around it, or by its shape.
func (k *Kernel) table(name string) elf.Part {
	b := bounds[name]
	if _, _, ok := k.mem.RangeBetween(b[0], b[1]); !ok && k.mem.Section(name) == nil {
		return k.findByShape(name)
	}
	return k.mem.Table(name, b[0], b[1])
}

// isText reports whether addr is code as the kernel was linked. Code in writable
// sections does not count; replacements of alternatives never run in their own place.
func (k *Kernel) isText(addr uint64) bool {
	s := k.mem.PartAt(addr)
	return s != nil && s.X && s.Name != ".data" && s.Name != ".altinstr_replacement"
}

// relativeAddr is the address that the 32-bit offset at n refers to.
func relativeAddr(t *elf.Part, n int) uint64 {
	return t.Addr + uint64(n) + uint64(int64(int32(le32(t.Data[n:]))))
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
