package builtin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"
)

// pfUser is the program header flag of segments that CPL3 may use.
const pfUser = 0x00100000

// funcs returns the functions of the image by name.
func funcs(t *testing.T, f *elf.File) map[string][]elf.Symbol {
	t.Helper()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string][]elf.Symbol)
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			m[s.Name] = append(m[s.Name], s)
		}
	}
	return m
}

// code returns the bytes of a symbol.
func code(t *testing.T, f *elf.File, s elf.Symbol) []byte {
	t.Helper()
	sec := f.Sections[s.Section]
	b, err := sec.Data()
	if err != nil {
		t.Fatal(err)
	}
	return b[s.Value-sec.Addr:][:s.Size]
}

func TestSegments(t *testing.T) {
	var user, kernel int
	for _, p := range open(t).Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		if p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
			t.Errorf("segment %#x is writable and executable", p.Vaddr)
		}
		if p.Paddr < 1<<20 || p.Paddr+p.Memsz > MinRAM {
			t.Errorf("segment %#x needs memory %#x-%#x, outside 1 MiB to MinRAM", p.Vaddr, p.Paddr, p.Paddr+p.Memsz)
		}
		switch isUser := p.Flags&pfUser != 0; {
		case isUser && p.Vaddr>>47 == 0:
			user++
		case !isUser && p.Vaddr-0xffffffff80000000 == p.Paddr:
			kernel++
		default:
			t.Errorf("segment at %#x has flags %#x and physical address %#x", p.Vaddr, uint32(p.Flags), p.Paddr)
		}
	}
	if user != 2 || kernel != 3 {
		t.Errorf("%d user and %d kernel segments, want 2 and 3", user, kernel)
	}
}

// TestFunctions checks the functions that probes are tried on: they exist once,
// where they should, and their first bytes are what their name promises.
func TestFunctions(t *testing.T) {
	const text, user, entry = ".text", ".user.text", ".entry.text"
	tests := []struct {
		name, section string
		size          uint64 // 0: any
		starts        []byte
	}{
		{"do_fork", text, 0, nil},
		{"sys_open", text, 0, []byte{0xf3, 0x0f, 0x1e, 0xfa}},
		{"vfs_read", text, 0, []byte{0xf3, 0x0f, 0x1e, 0xfa}},
		{"tcp_v4_rcv", text, 0, []byte{0xf3, 0x0f, 0x1e, 0xfa}},
		{"schedule", text, 0, nil},
		{"__switch_to", text, 0, nil},
		{"do_exit", text, 0, nil},
		{"fib_recursive", text, 0, nil},
		{"tail_caller", text, 0, nil},
		{"dispatch_op", text, 0, nil},
		{"tiny_ret", text, 1, []byte{0xc3}},
		{"tiny_zero", text, 3, []byte{0x31, 0xc0, 0xc3}},
		{"tiny_arg", text, 4, nil},
		{"cet_entry", text, 0, []byte{0xf3, 0x0f, 0x1e, 0xfa}},
		{"nop5_entry", text, 0, []byte{0x0f, 0x1f, 0x44, 0, 0}},
		{"jump_entry", text, 0, nil},
		{"fault_load", text, 0, nil},
		{"fault_gp", text, 0, nil},
		{"fault_divide", text, 0, nil},
		{"fault_store", text, 0, nil},
		{"timer_interrupt", text, 0, nil},
		{"gp_breakpoint", entry, 4, []byte{0xe6, 0xf3, 0x48, 0xcf}},
		{"gp_debug", entry, 4, []byte{0xe6, 0xf1, 0x48, 0xcf}},
		{"gp_foreign_bp", entry, 0, nil},
		{"exc_stubs", entry, 4096, nil},
		{"kprobes_text_fn", ".kprobes.text", 0, nil},
		{"noinstr_text_fn", ".noinstr.text", 0, nil},
		{"entry_text_fn", entry, 0, nil},
		{"user_main", user, 0, nil},
		{"user_hot", user, 0, nil},
		{"user_checksum", user, 0, nil},
		{"user_sse", user, 0, nil},
		{"user_fib_recursive", user, 0, nil},
		{"user_floor_count", user, 0, []byte{0xe9}},
	}
	f := open(t)
	all := funcs(t, f)
	for _, tt := range tests {
		got := all[tt.name]
		if len(got) != 1 {
			t.Errorf("%d functions are called %s, want 1", len(got), tt.name)
			continue
		}
		s := got[0]
		if sec := f.Sections[s.Section].Name; sec != tt.section {
			t.Errorf("%s is in section %s, want %s", tt.name, sec, tt.section)
		}
		if s.Size == 0 || tt.size != 0 && s.Size != tt.size {
			t.Errorf("%s has %d bytes, want %d", tt.name, s.Size, tt.size)
		}
		if b := code(t, f, s); !bytes.HasPrefix(b, tt.starts) {
			t.Errorf("%s starts with % x, want % x", tt.name, b[:min(len(b), 8)], tt.starts)
		}
	}
	// Two files, each built for the kernel and for the user program.
	if n := len(all["mix_step"]); n != 4 {
		t.Errorf("%d functions are called mix_step, want 4", n)
	}
}

// TestJumpTargets looks for the short backward jump into the first five bytes.
func TestJumpTargets(t *testing.T) {
	f := open(t)
	all := funcs(t, f)
	for _, tt := range []struct {
		name   string
		target int
	}{
		{"third_byte_target", 2}, {"fourth_byte_target", 3}, {"fifth_byte_target", 4},
		{"user_third_byte_target", 2}, {"user_fourth_byte_target", 3}, {"user_fifth_byte_target", 4},
	} {
		found := false
		b := code(t, f, all[tt.name][0])
		for i := 0; i+1 < len(b); i++ {
			isJump := b[i]&0xf0 == 0x70 || b[i] == 0xeb
			found = found || isJump && i+2+int(int8(b[i+1])) == tt.target
		}
		if !found {
			t.Errorf("%s: nothing jumps to offset %d: % x", tt.name, tt.target, b)
		}
	}
}

// words returns a section of little-endian u64.
func words(t *testing.T, f *elf.File, section string) []uint64 {
	t.Helper()
	s := f.Section(section)
	if s == nil {
		t.Fatalf("no section %s", section)
	}
	b, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	w := make([]uint64, len(b)/8)
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return w
}

func TestBlacklistSection(t *testing.T) {
	f := open(t)
	all := funcs(t, f)
	list := words(t, f, "_kprobe_blacklist")
	for _, name := range []string{"blacklisted_fn", "exc_dispatch"} {
		if !slices.Contains(list, all[name][0].Value) {
			t.Errorf("_kprobe_blacklist does not list %s", name)
		}
	}
}

// TestExceptionTable checks that each entry stays within one function.
func TestExceptionTable(t *testing.T) {
	f := open(t)
	holds := func(a uint64) string {
		for name, ss := range funcs(t, f) {
			for _, s := range ss {
				if a >= s.Value && a < s.Value+s.Size {
					return name
				}
			}
		}
		return ""
	}
	table := words(t, f, "__ex_table")
	if len(table) < 20 || len(table)%2 != 0 {
		t.Fatalf("__ex_table has %d words", len(table))
	}
	for i := 0; i < len(table); i += 2 {
		from, to := holds(table[i]), holds(table[i+1])
		if from == "" || from != to {
			t.Errorf("entry %d leads from %#x (%s) to %#x (%s)", i/2, table[i], from, table[i+1], to)
		}
	}
}
