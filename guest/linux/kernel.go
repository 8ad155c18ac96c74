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

// MaxImage is the size in bytes of the largest kernel that is read, packed and
// unpacked.
const MaxImage = 512 << 20

// MaxNames bounds the names of a kernel.
const MaxNames = 4 << 20

// Kernel is a kernel's image as it is before it runs.
type Kernel struct {
	Version string // as the kernel's banner says it; "" when it has none
	Embeds  bool   // the names are from tables of its own (kallsyms), not from .symtab
	Checked int    // names that the table of exports confirms
	Packing string // how the bzImage was compressed; "" for not at all
	ID      guest.ID

	nameless bool // it has at most the names of what it exports
	mem      *elf.Memory
	program  program // for what Parse has made
	bugEntry int     // bytes of a struct bug_entry; 0: the table tells

	typesOnce sync.Once // for what follows
	types     *Types
	typesErr  error
}

// New looks at mem as a kernel. Where it has no names yet they are read from the
// kernel's own tables and set. The result is nil for what is no Linux; the error
// says that its tables contradict each other.
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
	// Without CONFIG_KALLSYMS these are all the names that a stripped kernel has.
	var err error
	if k.Checked, err = k.addExports(); err != nil && k.Embeds {
		err = fmt.Errorf("kallsyms tables were misread: %w", err)
	}
	return k, err
}

// setNames sets names that nm gave their letters: it takes what is in an executable
// section for text, as the .data of Linux 7 is.
func (k *Kernel) setNames(names []elf.Name) {
	for i := range names {
		names[i].Func = names[i].Func && k.isText(names[i].Addr)
	}
	k.mem.SetNames(names)
}

// bannerMark begins a kernel's linux_banner.
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

// Init reports whether what is at addr is gone after the boot, as all is that is
// not in .text.
func (k *Kernel) Init(addr uint64) bool {
	s := k.mem.At(addr)
	return s != nil && s.Name != ".text"
}

// IsTrampoline reports whether a function of that name is the trampoline of a
// static call, which the kernel rewrites.
func IsTrampoline(name string) bool { return strings.HasPrefix(name, "__SCT__") }

// IsPadding reports whether what has that name is not code but the padding before
// a function (CONFIG_CALL_PADDING, CONFIG_CFI_CLANG).
func IsPadding(name string) bool {
	return strings.HasPrefix(name, "__pfx_") || strings.HasPrefix(name, "__cfi_")
}

// bounds are the symbols around tables that are not sections of their own in a linked
// kernel (include/asm-generic/vmlinux.lds.h).
var bounds = map[string][2]string{
	MCount:          {"__start_mcount_loc", "__stop_mcount_loc"},
	JumpTable:       {"__start___jump_table", "__stop___jump_table"},
	StaticCallSites: {"__start_static_call_sites", "__stop_static_call_sites"},
	Alternatives:    {"__alt_instructions", "__alt_instructions_end"},
	LockPrefixes:    {"__smp_locks", "__smp_locks_end"},
	Returns:         {"__return_sites", "__return_sites_end"},
	Retpolines:      {"__retpoline_sites", "__retpoline_sites_end"},
	Calls:           {"__call_sites", "__call_sites_end"},
	Paravirt:        {"__parainstructions", "__parainstructions_end"},
	EndbrSeals:      {"__ibt_endbr_seal", "__ibt_endbr_seal_end"},
	Exceptions:      {"__start___ex_table", "__stop___ex_table"},
	Bugs:            {"__start___bug_table", "__stop___bug_table"},
	Blacklist:       {"__start_kprobe_blacklist", "__stop_kprobe_blacklist"},
}

// table returns the table that has that name as a section, by the section, by the symbols
// around it, or by its shape.
func (k *Kernel) table(name string) elf.Part {
	b := bounds[name]
	if _, _, ok := k.mem.Between(b[0], b[1]); !ok && k.mem.Section(name) == nil {
		return k.findByShape(name)
	}
	return k.mem.Table(name, b[0], b[1])
}

// isText reports whether addr is code as the kernel was linked. Code in sections that
// are written is none; replacements of alternatives never run where they are.
func (k *Kernel) isText(addr uint64) bool {
	s := k.mem.At(addr)
	return s != nil && s.X && s.Name != ".data" && s.Name != ".altinstr_replacement"
}

// relative is the address that the 32-bit offset at n leads to.
func relative(t *elf.Part, n int) uint64 {
	return t.Addr + uint64(n) + uint64(int64(int32(le32(t.Data[n:]))))
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
