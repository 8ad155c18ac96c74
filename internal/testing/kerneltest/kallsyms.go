package kerneltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
	"strings"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// Base is where the kernels of tests are.
const Base = 0xffff_ffff_8100_0000

// Layout is where a kernel version has its tables.
type Layout struct {
	Name   string
	Old    bool // offsets before num_syms
	Seqs   bool // seqs_of_names between markers and token_table
	PerCPU bool // KALLSYMS_ABSOLUTE_PERCPU
	Own    bool // offsets from their own places, and tables at multiples of 4
}

// Layouts are all layouts so far.
var Layouts = []Layout{
	{Name: "5.10", Old: true, PerCPU: true}, {Name: "6.1 stable", Old: true, Seqs: true, PerCPU: true}, {Name: "6.12", PerCPU: true}, {Name: "6.15"}, {Name: "7.2", Own: true},
}

// Kallsyms makes the tables as scripts/kallsyms.c does: with tokens for some
// pairs of letters, and a token for every single letter in use. They are
// read-only data at address at.
func Kallsyms(l Layout, at, base uint64, syms []elf.Name, types string) []byte {
	tokens := [256]string{}
	var all strings.Builder
	for _, s := range syms {
		all.WriteString(s.Name)
	}
	for _, c := range []byte(all.String() + types + "0123456789") {
		tokens[c] = string(c)
	}
	pairs := []string{"_f", "unc", "tion", "_long", "_name"}
	for i, p := range pairs {
		tokens[1+i] = p
	}
	unit := 8
	if l.Own {
		unit = 4
	}
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&(unit-1))...) }
	var names, markers, seqs, offsets []byte
	for n, s := range syms {
		if n%256 == 0 {
			markers = binary.LittleEndian.AppendUint32(markers, uint32(len(names)))
		}
		var enc []byte
		for rest := string(types[n%len(types)]) + s.Name; rest != ""; {
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
		off := uint32(s.Addr - base)
		if l.PerCPU {
			if off = uint32(s.Addr); s.Addr >= base {
				off = uint32(base - 1 - s.Addr)
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
	if l.Old {
		out = append(out, where...)
	}
	out = append(out, pad(binary.LittleEndian.AppendUint32(nil, uint32(len(syms))))...)
	out = append(append(out, pad(names)...), pad(markers)...)
	if l.Seqs {
		out = append(out, pad(seqs)...)
	}
	out = append(append(out, pad(table)...), pad(index)...)
	if l.Own {
		for _, s := range syms {
			out = binary.LittleEndian.AppendUint32(out, uint32(s.Addr-at-uint64(len(out))))
		}
		out = append(out, seqs...)
	} else if !l.Old {
		out = append(append(out, where...), pad(seqs)...)
	}
	return append(out, bytes.Repeat([]byte{0xff}, 64)...)
}

// Names returns n names from base upwards, and two per-CPU ones if those are
// absolute.
func Names(l Layout, base uint64, n int) []elf.Name {
	var out []elf.Name
	if l.PerCPU {
		out = append(out, elf.Name{Name: "fixed_percpu_data"}, elf.Name{Name: "cpu_info", Addr: 0x80})
	}
	for i := len(out); i < n; i++ {
		name := fmt.Sprintf("some_function_%d", i)
		if i == 300 {
			name += strings.Repeat("_with_a_long_name", 20)
		}
		out = append(out, elf.Name{Name: name, Addr: base + uint64(i/2)*32})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Addr < out[j].Addr })
	return out
}
