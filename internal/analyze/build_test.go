package analyze

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"sort"
	"strings"
	"testing"
)

// part is one section of a test image.
type part struct {
	name string
	addr uint64
	data []byte
	x    bool
	link uint32
	typ  elf.SectionType
}

// buildELF makes an executable of sections.
func buildELF(t testing.TB, parts ...part) []byte {
	t.Helper()
	names := []byte{0}
	parts = append(parts, part{name: ".shstrtab", typ: elf.SHT_STRTAB})
	for _, p := range parts {
		names = append(append(names, p.name...), 0)
	}
	parts[len(parts)-1].data = names
	out := make([]byte, 64)
	heads := make([]elf.Section64, 1)
	name := uint32(1)
	for _, p := range parts {
		h := elf.Section64{Name: name, Type: uint32(p.typ), Addr: p.addr, Off: uint64(len(out)), Size: uint64(len(p.data)), Link: p.link, Addralign: 1}
		name += uint32(len(p.name)) + 1
		if h.Type == 0 {
			h.Type = uint32(elf.SHT_PROGBITS)
		}
		if p.addr != 0 {
			h.Flags = uint64(elf.SHF_ALLOC)
		}
		if p.x {
			h.Flags |= uint64(elf.SHF_EXECINSTR)
		}
		if p.typ == elf.SHT_SYMTAB {
			h.Entsize = 24
		}
		heads, out = append(heads, h), append(out, p.data...)
	}
	var b bytes.Buffer
	at := uint64(len(out))
	for _, h := range heads {
		binary.Write(&b, binary.LittleEndian, h)
	}
	out = append(out, b.Bytes()...)
	b.Reset()
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: at, Ehsize: 64, Shentsize: 64,
		Shnum: uint16(len(heads)), Shstrndx: uint16(len(heads) - 1)}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	binary.Write(&b, binary.LittleEndian, head)
	copy(out, b.Bytes())
	return out
}

// layout is where a kernel version has its tables.
type layout struct {
	name   string
	old    bool // offsets before num_syms
	seqs   bool // seqs_of_names between markers and token_table
	percpu bool // KALLSYMS_ABSOLUTE_PERCPU
}

var layouts = []layout{
	{"5.10", true, false, true}, {"6.1 stable", true, true, true}, {"6.12", false, false, true}, {"6.15", false, false, false},
}

// buildKallsyms makes the tables as scripts/kallsyms.c does: with tokens for
// some pairs of letters, and every letter that is used standing for itself.
func buildKallsyms(l layout, base uint64, syms []symbol, types string) []byte {
	tokens := [256]string{}
	var all strings.Builder
	for _, s := range syms {
		all.WriteString(s.name)
	}
	for _, c := range []byte(all.String() + types + "0123456789") {
		tokens[c] = string(c)
	}
	pairs := []string{"_f", "unc", "tion", "_long", "_name"}
	for i, p := range pairs {
		tokens[1+i] = p
	}
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }
	var names, markers, seqs, offsets []byte
	for n, s := range syms {
		if n%256 == 0 {
			markers = binary.LittleEndian.AppendUint32(markers, uint32(len(names)))
		}
		var enc []byte
		for rest := string(types[n%len(types)]) + s.name; rest != ""; {
			best, by := 1, rest[0]
			for i, p := range pairs {
				if strings.HasPrefix(rest, p) {
					best, by = len(p), byte(1+i)
				}
			}
			enc, rest = append(enc, by), rest[best:]
		}
		if len(enc) > 127 {
			names = append(names, byte(len(enc)|0x80), byte(len(enc)>>7))
		} else {
			names = append(names, byte(len(enc)))
		}
		names = append(names, enc...)
		seqs = append(seqs, byte(n>>16), byte(n>>8), byte(n))
		off := uint32(s.addr - base)
		if l.percpu {
			if off = uint32(s.addr); s.addr >= base {
				off = uint32(base - 1 - s.addr)
			}
		}
		offsets = binary.LittleEndian.AppendUint32(offsets, off)
	}
	var table, index []byte
	for _, tok := range tokens {
		index = binary.LittleEndian.AppendUint16(index, uint16(len(table)))
		table = append(append(table, tok...), 0)
	}
	where := append(pad(offsets), binary.LittleEndian.AppendUint64(nil, base)...)
	out := bytes.Repeat([]byte("read-only data. "), 64)
	if l.old {
		out = append(out, where...)
	}
	out = append(out, pad(binary.LittleEndian.AppendUint32(nil, uint32(len(syms))))...)
	out = append(append(out, pad(names)...), pad(markers)...)
	if l.seqs {
		out = append(out, pad(seqs)...)
	}
	out = append(append(out, pad(table)...), pad(index)...)
	if !l.old {
		out = append(append(out, where...), pad(seqs)...)
	}
	return append(out, bytes.Repeat([]byte{0xff}, 64)...)
}

// testSymbols are n names from base upwards, and two per-CPU ones if those are
// absolute.
func testSymbols(l layout, base uint64, n int) []symbol {
	var out []symbol
	if l.percpu {
		out = append(out, symbol{name: "fixed_percpu_data"}, symbol{name: "cpu_info", addr: 0x80})
	}
	for i := len(out); i < n; i++ {
		name := fmt.Sprintf("some_function_%d", i)
		if i == 300 {
			name += strings.Repeat("_with_a_long_name", 20)
		}
		out = append(out, symbol{name: name, addr: base + uint64(i/2)*32})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].addr < out[j].addr })
	return out
}
