package types

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// maxDefinition bounds the text of a definition, which ends in "..." if it is longer. The largest of Linux has 20 KiB.
const maxDefinition = 128 << 10

// Definition returns the definition of a structure, union or enumeration as C writes it, with those inside it that have no name. Bits that
// C would not leave out by itself are unnamed fields. It is "" for other types.
func Definition(t btf.Type) string {
	switch t.(type) {
	case *btf.Struct, *btf.Union, *btf.Enum:
		w := writer{left: maxDefinition, whole: true, steps: maxAligned}
		return w.body(t, 0) + ";\n"
	}
	return ""
}

// body writes a structure, union or enumeration with its members.
func (w *writer) body(t btf.Type, depth int) string {
	tag, _ := TagOf(t)
	begin := string(tag) + " "
	if name := t.TypeName(); name != "" {
		begin += name + " "
	}
	if w.left -= len(begin) + w.indent; w.left < 0 || depth > maxDepth {
		return begin + "{ ... }"
	}
	w.indent++
	var lines []string
	packed := false
	switch t := t.(type) {
	case *btf.Struct:
		packed = w.isPacked(t)
		lines = w.members(t.Members, depth, uint64(t.Size)*8, packed)
	case *btf.Union:
		for _, m := range t.Members {
			lines = append(lines, w.member(m, depth))
		}
	case *btf.Enum:
		lines = w.enumerators(t)
	}
	w.indent--
	end := "}"
	if packed {
		end += " __attribute__((packed))"
	}
	tabs := strings.Repeat("\t", w.indent)
	var b strings.Builder
	b.WriteString(begin + "{\n")
	for _, line := range lines {
		w.left -= len(tabs) + 2
		b.WriteString(tabs + "\t" + line + "\n")
	}
	return b.String() + tabs + end
}

// enumerators writes the lines of an enumeration.
func (w *writer) enumerators(t *btf.Enum) (lines []string) {
	for _, v := range t.Values {
		line := fmt.Sprintf("%s = %d,", v.Name, v.Value)
		if t.Signed {
			line = fmt.Sprintf("%s = %d,", v.Name, int64(v.Value))
		}
		if w.left -= len(line); w.left < 0 {
			return append(lines, "...")
		}
		lines = append(lines, line)
	}
	return lines
}

// members writes the lines of a structure of size bits.
func (w *writer) members(all []btf.Member, depth int, size uint64, packed bool) (lines []string) {
	var at, align uint64 = 0, 8 // in bits
	for _, m := range all {
		own := uint64(8)
		if !packed {
			own = 8 * max(1, alignBytes(m.Type, &w.steps))
		}
		align = max(align, own)
		off, width := uint64(m.Offset), uint64(m.BitfieldSize)
		natural := (at + own - 1) / own * own
		if width > 0 {
			if n, ok := Size(m.Type); !ok || n == 0 || at/(n*8) == (at+width-1)/(n*8) || packed {
				natural = at
			}
		}
		if off > natural {
			lines = append(lines, w.pad(at, off)...)
		}
		if lines = append(lines, w.member(m, depth)); w.left < 0 {
			return append(lines, "...")
		}
		if at = off + width; width == 0 {
			n, _ := Size(m.Type)
			at = off + n*8
		}
	}
	if natural := (at + align - 1) / align * align; size > natural {
		lines = append(lines, w.pad(at, size)...)
	}
	return lines
}

// member writes the line of a member.
func (w *writer) member(m btf.Member, depth int) string {
	line := w.declare(m.Type, m.Name, depth+1)
	if m.BitfieldSize > 0 {
		line += fmt.Sprintf(": %d", m.BitfieldSize)
	}
	return line + ";"
}

// pad writes unnamed fields for the bits from one to another. Each ends where its type does at the latest.
func (w *writer) pad(from, to uint64) (lines []string) {
	for from < to {
		name, bits := "char", 8-from%8
		for _, p := range []struct {
			name string
			bits uint64
		}{{"long", 64}, {"int", 32}, {"short", 16}} {
			if from%p.bits == 0 && p.bits <= to-from {
				name, bits = p.name, p.bits
				break
			}
		}
		bits = min(bits, to-from)
		line := fmt.Sprintf("%s: %d;", name, bits)
		if w.left -= len(line); w.left < 0 {
			return append(lines, "...")
		}
		lines, from = append(lines, line), from+bits
	}
	return lines
}

// maxAligned bounds the members that are searched for the alignments in a definition.
const maxAligned = 1 << 20

// alignBytes returns the alignment of a type on x86-64, or 0 or 1 if it has none.
func alignBytes(t btf.Type, left *int) uint64 {
	if *left--; *left < 0 {
		return 1
	}
	switch t := Strip(t).(type) {
	case *btf.Pointer:
		return 8
	case *btf.Int:
		return powerOf2(t.Size)
	case *btf.Enum:
		return powerOf2(t.Size)
	case *btf.Float:
		return powerOf2(t.Size)
	case *btf.Array:
		return alignBytes(t.Type, left)
	case *btf.Struct:
		if to := alignMembers(t.Members, left); uint64(t.Size)%to == 0 {
			return to
		}
	case *btf.Union:
		if to := alignMembers(t.Members, left); uint64(t.Size)%to == 0 {
			return to
		}
	}
	return 1
}

// alignMembers returns the alignment of a structure with these members: 1 if it is packed.
func alignMembers(all []btf.Member, left *int) uint64 {
	to := uint64(1)
	for _, m := range all {
		own := max(1, alignBytes(m.Type, left))
		if m.BitfieldSize == 0 && uint64(m.Offset)%(own*8) != 0 {
			return 1
		}
		to = max(to, own)
	}
	return to
}

// powerOf2 returns the alignment of a number.
func powerOf2(size uint32) uint64 {
	if size == 0 || size > 16 || size&(size-1) != 0 {
		return 1
	}
	return uint64(size)
}

// isPacked reports whether a structure is laid out closer than C would by itself.
func (w *writer) isPacked(t *btf.Struct) bool {
	widest := uint64(1)
	for _, m := range t.Members {
		widest = max(widest, alignBytes(m.Type, &w.steps))
	}
	return widest > 1 && (alignMembers(t.Members, &w.steps) < widest || uint64(t.Size)%widest != 0)
}
