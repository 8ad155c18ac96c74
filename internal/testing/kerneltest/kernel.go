package kerneltest

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// Where a Kernel has its parts. Its functions have 16 bytes each, from Base on.
const (
	ExTable  = Base + 0x10_0000
	Rodata   = Base + 0x20_0000
	Black    = Base + 0x30_0000 // the table of symbols that must not be probed
	Patched  = Base + 0x40_0000 // tables of the places that the kernel rewrites
	InitText = Base + 0x50_0000
	State    = Base + 0x60_0000 // system_state
	First    = 500              // number of the function where it begins
)

// words encodes values of 32 bits.
func words(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// Kernel makes a vmlinux with relocations and 600 functions of 16 bytes. The
// code of the first ones shows their kind:
//
//	0 traced: an ftrace call, 5 nops     1 loads, with an exception entry
//	2 branches: a static branch          3 calls: a static call
//	4 hidden: blacklisted                5 jumper: a jump into 6
//	6 jumped: nops, exported             7 hidden.cold: a part of 4
//	8 __pfx_padded: padding              9 replaced by an alternative that jumps to 10
//	11 locked: a lock prefix             12 returns: a return at +9
//	13 warns: a BUG                      14 chosen: a constant of 8 bytes at +2
//	15 ftrace_caller_end, 16 ftrace_call, 17 swap_pages: by name
//	the others: 9 nops, ret, int3
//
// From function First on it boots: 0 startup_64 calls 1, and continues through a
// pointer to 9; 1 verify_cpu jumps into 2; 3 x86_64_start_kernel calls 4 and 5
// idt_setup_early_handler; 4 calls 7 panic, which calls 8; 10 start_secondary
// calls 11, which calls 12 and 13 load_current_idt, and then calls 14. 20
// machine_kexec calls 21, loads an IDT, and calls 22, which calls 23.
//
// In the text that is freed: init_traced, a sealed endbr64 and an ftrace call,
// and init_plain. Additional sections follow the others.
func Kernel(l Layout, more ...Section) []byte {
	text := bytes.Repeat(append(bytes.Repeat([]byte{0x90}, 9), 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc), 600)
	put := func(fn int, code ...byte) { copy(text[fn*16:], code) }
	put(0, 0xe8, 0, 0, 0, 0)
	put(1, 0x48, 0x8b, 0x07)
	put(2, 0x0f, 0x1f, 0x44, 0, 0)
	put(3, 0xe8, 0, 0, 0, 0)
	put(5, 0xeb, 16+2-2) // to function 6, +2
	boot := func(fn int, calls ...int) (code []byte) {
		for _, to := range calls {
			code = append(append(code, 0xe8), words(uint32((to-fn)*16-len(code)-5))...)
		}
		put(First+fn, append(code, 0xc3)...)
		return code
	}
	put(First, append(boot(0, 1), append([]byte{0xff, 0x25}, words(uint32(State+16-(Base+First*16+11)))...)...)...)
	put(First+1, 0x74, 16+2-2)
	boot(3, 4, 5)
	boot(4, 7)
	boot(7, 8)
	boot(10, 11, 14)
	boot(11, 12, 13)
	boot(22, 23)
	boot(20, 21)
	kexec := append([]byte{0x0f, 0x01, 0x1f, 0xe8}, words(uint32(2*16-5-3-5))...) // lidt (%rdi)
	put(First+20, append(append(text[(First+20)*16:][:5:5], kexec...), 0xc3)...)
	init := append([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0xe8, 0, 0, 0, 0, 0x90, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc}, bytes.Repeat([]byte{0x90}, 15)...)
	init = append(init, 0xc3)

	var syms []elf.Name
	add := func(name string, addr uint64) { syms = append(syms, elf.Name{Name: name, Addr: addr}) }
	names := []string{"traced", "loads", "branches", "calls", "hidden", "jumper", "jumped", "hidden.cold", "__pfx_padded", "replaced", "replacement", "locked", "returns", "warns", "chosen", "ftrace_caller_end", "ftrace_call", "swap_pages"}
	firsts := map[int]string{0: "startup_64", 1: "verify_cpu", 3: "x86_64_start_kernel", 5: "idt_setup_early_handler", 7: "panic", 10: "start_secondary", 13: "load_current_idt", 20: "machine_kexec"}
	for n := range 600 {
		name := "fn_" + strings.Repeat("x", n%7) + string(rune('a'+n%26))
		if n < len(names) {
			name = names[n]
		}
		if first := firsts[n-First]; first != "" {
			name = first
		}
		add(name, Base+uint64(n)*16)
	}
	add("__start___ex_table", ExTable)
	add("__stop___ex_table", ExTable+12)
	add("linux_banner", Rodata)
	add("__start_kprobe_blacklist", Black)
	add("__stop_kprobe_blacklist", Black+8)
	add("__start_mcount_loc", Patched)
	add("__stop_mcount_loc", Patched+16)
	add("__start___jump_table", Patched+16)
	add("__stop___jump_table", Patched+32)
	add("__start_static_call_sites", Patched+32)
	add("__stop_static_call_sites", Patched+40)
	add("init_traced", InitText)
	add("init_plain", InitText+16)
	add("system_state", State)
	add("panic_cpu", State+4)
	add("kexec_in_progress", State+8)

	from := func(at, addr uint64) uint32 { return uint32(addr - at) }
	tables := binary.LittleEndian.AppendUint64(nil, Base)
	tables = binary.LittleEndian.AppendUint64(tables, InitText+4)
	tables = append(tables, words(from(Patched+16, Base+32), from(Patched+20, Base+2*16+12), 0, 0)...)
	tables = append(tables, words(from(Patched+32, Base+48), 0)...)
	exports := words(from(Patched+0x1000, Base+96), 0x100-4, 0)
	const alt, repl = Patched + 0x3000, Patched + 0x3100
	alternatives := append(words(from(alt, Base+9*16), from(alt+4, repl), 0), 3, 5)
	jump := append([]byte{0xe9}, words(from(repl+5, Base+10*16))...)
	ro := append([]byte("Linux version 6.1.0-test (gcc)\n\x00"), make([]byte, 32)...)
	ro = append(ro[:64:64], Kallsyms(l, Rodata+64, Base, syms, "T")...)
	image := ELF(append([]Section{
		{Name: ".text", Addr: Base, Data: text, X: true},
		{Name: "__ex_table", Addr: ExTable, Data: words(from(ExTable, Base+16), from(ExTable+4, Base+16+9), 0)},
		{Name: ".rodata", Addr: Rodata, Data: ro},
		{Name: ".init.data", Addr: Black, Data: binary.LittleEndian.AppendUint64(nil, Base+64)},
		{Name: ".tables", Addr: Patched, Data: tables},
		{Name: "__ksymtab", Addr: Patched + 0x1000, Data: exports},
		{Name: "__ksymtab_strings", Addr: Patched + 0x1100, Data: []byte("jumped\x00")},
		{Name: ".retpoline_sites", Addr: Patched + 0x2000, Data: words(0)},
		{Name: ".altinstructions", Addr: alt, Data: alternatives},
		{Name: ".altinstr_replacement", Addr: repl, Data: jump, X: true},
		{Name: ".smp_locks", Addr: Patched + 0x4000, Data: words(from(Patched+0x4000, Base+11*16), 0)},
		{Name: ".return_sites", Addr: Patched + 0x5000, Data: words(from(Patched+0x5000, Base+12*16+9))},
		{Name: "__bug_table", Addr: Patched + 0x6000, Data: words(from(Patched+0x6000, Base+13*16), 0, 0)},
		{Name: ".ibt_endbr_seal", Addr: Patched + 0x7000, Data: words(from(Patched+0x7000, InitText))},
		{Name: "runtime_ptr_chosen", Addr: Patched + 0x8000, Data: words(from(Patched+0x8000, Base+14*16+2))},
		{Name: ".init.text", Addr: InitText, Data: init, X: true},
		{Name: ".data", Addr: State, Data: binary.LittleEndian.AppendUint64(words(0, 1<<32-1, 0, 0), Base+(First+9)*16), Zero: 0x1000},
	}, more...)...)
	return append(image, Relocs([]uint64{Black, Patched, Patched + 8}, []uint64{Base + 599*16 + 10})...)
}
