package linux

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/elffile"
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

	mem     *elffile.Memory
	program program // for what Parse has made
}

// New looks at mem as a kernel. Where it has no names yet they are read from the
// kernel's own tables and set. The result is nil for what is no Linux; the error
// says that its tables contradict each other.
func New(mem *elffile.Memory) (*Kernel, error) {
	k := &Kernel{mem: mem}
	k.Version = k.banner()
	if len(mem.Names) != 0 {
		_, banner := mem.Lookup("linux_banner")
		if _, table := mem.Lookup("__start___ex_table"); !banner && !table {
			return nil, nil
		}
		return k, nil
	}
	names := kallsyms(mem)
	if len(names) == 0 {
		// One that was built without CONFIG_KALLSYMS, and stripped.
		if k.Version == "" || mem.Section("__ex_table") == nil {
			return nil, nil
		}
		return k, nil
	}
	mem.SetNames(names)
	k.Embeds = true
	var err error
	k.Checked, err = k.checkExports()
	return k, err
}

// banner returns the kernel's version, or "".
func (k *Kernel) banner() string {
	const mark = "Linux version "
	for i := range k.mem.Sections {
		s := &k.mem.Sections[i]
		if at := bytes.Index(s.Data, []byte(mark)); at >= 0 {
			rest := s.Data[at+len(mark):]
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

// Site is code that the kernel rewrites while it runs.
type Site struct {
	Addr, Size uint64
	What       Patch
}

// Patch is why the kernel rewrites a site.
type Patch string

// The reasons.
const (
	PatchFtrace Patch = "ftrace"      // the call that a traceable function begins with
	PatchJump   Patch = "jump_label"  // a static branch
	PatchCall   Patch = "static_call" // a static call, or its trampoline
)

// Patched returns what the kernel rewrites while it runs: ftrace's calls
// (__mcount_loc), static branches (struct jump_entry, 16 bytes), and static calls
// (struct static_call_site, 8 bytes); their trampolines are the functions
// TrampolinePrefix. Lock prefixes are not among them: only a kernel that has
// booted with one CPU rewrites those.
func (k *Kernel) Patched() (sites []Site) {
	for b := k.mem.Table("__mcount_loc", "__start_mcount_loc", "__stop_mcount_loc").Data; len(b) >= 8; b = b[8:] {
		sites = append(sites, Site{le64(b), 5, PatchFtrace})
	}
	t := k.mem.Table("__jump_table", "__start___jump_table", "__stop___jump_table")
	for n := 0; n+16 <= len(t.Data); n += 16 {
		at := relative(&t, n)
		size := uint64(5)
		// A short jmp, or the nop that stands for one.
		if b := k.mem.Bytes(at, 2); b != nil && (b[0] == 0xeb || b[0] == 0x66 && b[1] == 0x90) {
			size = 2
		}
		sites = append(sites, Site{at, size, PatchJump})
	}
	t = k.mem.Table(".static_call_sites", "__start_static_call_sites", "__stop_static_call_sites")
	for n := 0; n+8 <= len(t.Data); n += 8 {
		sites = append(sites, Site{relative(&t, n), 5, PatchCall})
	}
	return sites
}

// IsTrampoline reports whether a function of that name is the trampoline of a
// static call, which the kernel rewrites.
func IsTrampoline(name string) bool { return strings.HasPrefix(name, "__SCT__") }

// IsPadding reports whether what has that name is not code but the padding before
// a function (CONFIG_CALL_PADDING, CONFIG_CFI_CLANG).
func IsPadding(name string) bool {
	return strings.HasPrefix(name, "__pfx_") || strings.HasPrefix(name, "__cfi_")
}

// Exceptions returns the addresses of instructions with an exception-table entry.
// Linux (arch/x86/include/asm/extable.h) has 12 bytes for each: offsets from their
// own place to the instruction and to where it goes on, and a type.
func (k *Kernel) Exceptions() map[uint64]bool {
	t := k.mem.Table("__ex_table", "__start___ex_table", "__stop___ex_table")
	out := map[uint64]bool{}
	for n := 0; n+12 <= len(t.Data); n += 12 {
		out[relative(&t, n)] = true
	}
	return out
}

// relative is the address that the 32-bit offset at n leads to.
func relative(t *elffile.Part, n int) uint64 {
	return t.Addr + uint64(n) + uint64(int64(int32(le32(t.Data[n:]))))
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
