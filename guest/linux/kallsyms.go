package linux

import (
	"bytes"
	"strings"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// kallsyms returns the names in a kernel's own tables, or nil if the image has no
// such tables. Linux writes them one after the other into its read-only data
// (scripts/kallsyms.c); they have no names of their own in a stripped kernel, so they
// are found by their shape:
//
//	until 6.3   offsets, relative_base, num_syms, names, markers, token_table, token_index
//	since 6.4   num_syms, names, markers, token_table, token_index, offsets, relative_base
//	7.2         num_syms, names, markers, token_table, token_index, offsets
//
// (with seqs_of_names after markers or at the end, since 6.2 and in some earlier
// stable versions). Each begins at a multiple of 8, in 7.2 of 4, where offsets are
// relative to their own places. A kernel has more than 256 symbols.
func kallsyms(mem *elf.Memory) []elf.Name {
	for i := range mem.Sections {
		s := &mem.Sections[i]
		if s.X || len(s.Data) < 1<<10 {
			continue
		}
		for _, unit := range []int{8, 4} {
			k := kallsymsTables{data: s.Data, unit: unit, at: s.Addr}
			if k.find() {
				return k.symbols()
			}
		}
	}
	return nil
}

// kallsymsTables are the tables' offsets in data.
type kallsymsTables struct {
	data []byte
	at   uint64 // address of data
	unit int    // alignment of the tables

	tokens   [256]string
	tokenAt  int    // offset of token_table
	indexEnd int    // offset after token_index
	markers  int    // offset
	names    int    // offset
	blocks   int    // of 256 symbols; the last one may have fewer
	num      int    // symbols
	offsets  int    // offset
	base     uint64 // 0: offsets are relative to their own places
}

// Bounds of the search.
const (
	maxTokenTable = 1 << 14 // bytes; token_index has 16 bits
	maxName       = 512     // bytes of a symbol's name, KSYM_NAME_LEN
	maxNames      = 32 << 20
)

// find looks for all tables.
func (k *kallsymsTables) find() bool {
	// Names contain digits, so the digits' tokens are the digits themselves.
	digits := []byte("0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00")
	for from := 0; ; {
		i := bytes.Index(k.data[from:], digits)
		if i < 0 {
			return false
		}
		from += i + 1
		if k.findTokens(from-1) && k.findMarkers() && k.findOffsets() {
			return true
		}
	}
}

// findTokens finds the table whose token '0' is at zero.
func (k *kallsymsTables) findTokens(zero int) bool {
	ends := 0
	for at := zero - 1; at >= max(0, zero-maxTokenTable); at-- {
		if k.data[at] == 0 {
			ends++
		}
		if ends > '0' {
			return false
		}
		if ends == '0' && at%k.unit == 0 && k.readTokens(at) {
			return true
		}
	}
	return false
}

// readTokens reads the table at offset at and compares it with token_index, which
// follows it.
func (k *kallsymsTables) readTokens(at int) bool {
	var index [256]int
	end := at
	for t := range k.tokens {
		n := bytes.IndexByte(k.data[end:min(len(k.data), end+maxName)], 0)
		if n < 0 {
			return false
		}
		k.tokens[t], index[t] = string(k.data[end:end+n]), end-at
		end += n + 1
	}
	end = k.align(end)
	if end+512 > len(k.data) {
		return false
	}
	for t, want := range index {
		if got := int(k.data[end+2*t]) | int(k.data[end+2*t+1])<<8; got != want {
			return false
		}
	}
	k.tokenAt, k.indexEnd = at, k.align(end+512)
	return true
}

// findMarkers searches backwards from token_table, over seqs_of_names (3 bytes for
// each symbol) if it is there, for markers, the offset in names of every 256th
// symbol. It takes the nearest run of numbers from 0 that ascend as markers can, and
// for which names can be found.
func (k *kallsymsTables) findMarkers() bool {
	for at := k.tokenAt - k.unit; at >= max(k.unit, k.tokenAt-4*MaxNames); at -= k.unit {
		if le32(k.data[at:]) != 0 {
			continue
		}
		n := 1
		for p := at + 4; p+4 <= k.tokenAt; p, n = p+4, n+1 {
			// From one letter to the longest name, with the length.
			if d := int64(le32(k.data[p:])) - int64(le32(k.data[p-4:])); d < 256*2 || d > 256*(maxName+2) {
				break
			}
		}
		if k.markers, k.blocks = at, n; n > 1 && k.findNames() {
			return true
		}
	}
	return false
}

// findNames finds names, whose first symbols are as long as the markers say, and
// num_syms before it.
func (k *kallsymsTables) findNames() bool {
	blocks := k.blocks
	last := le32(k.data[k.markers+4*(blocks-1):])
	second := le32(k.data[k.markers+4:])
	if last > maxNames {
		return false
	}
	latest := k.markers - int(last)
	for at := latest &^ (k.unit - 1); at >= max(k.unit, latest-256*(maxName+2)); at -= k.unit {
		num := int(le32(k.data[at-k.unit:]))
		if num <= (blocks-1)*256 || num > blocks*256 || num > MaxNames || k.unit == 8 && le32(k.data[at-4:]) != 0 {
			continue
		}
		end, ok := at, true
		for n := 0; n < 256 && ok; n++ {
			end, ok = k.skip(end)
		}
		if ok && uint32(end-at) == second {
			k.names, k.num = at, num
			return true
		}
	}
	return false
}

// skip returns the offset after the symbol at at: a length of one or two bytes
// (ULEB128, since 6.1), then that many tokens.
func (k *kallsymsTables) skip(at int) (int, bool) {
	from, n := k.nameLen(at)
	end := from + n
	return end, n > 0 && end <= k.markers
}

// nameLen returns the beginning and the number of the tokens of the symbol at at.
func (k *kallsymsTables) nameLen(at int) (from, n int) {
	if at+2 > k.markers {
		return at, 0
	}
	n = int(k.data[at])
	if n&0x80 == 0 {
		return at + 1, n
	}
	return at + 2, n&0x7f | int(k.data[at+1])<<7
}

// findOffsets finds the addresses, after token_index or before num_syms.
func (k *kallsymsTables) findOffsets() bool {
	size, at := k.align(4*k.num), k.indexEnd
	if k.unit == 4 {
		return at+size <= len(k.data) && k.setOffsets(at, 0)
	}
	if at+size+8 <= len(k.data) && k.setOffsets(at, le64(k.data[at+size:])) {
		return true
	}
	// relative_base is 8 bytes, and num_syms 4, padded.
	at = k.names - 16
	return at-size >= 0 && k.setOffsets(at-size, le64(k.data[at:]))
}

// setOffsets accepts the offsets at at if they and base look right: base is an
// address of the kernel's half, and the symbols ascend as far as they are relative to
// it.
func (k *kallsymsTables) setOffsets(at int, base uint64) bool {
	k.offsets, k.base = at, base
	if base == 0 {
		base = k.addr(0)
	}
	if base>>47 != 1<<17-1 {
		return false
	}
	up, down := 0, 0
	for n := 1; n < k.num; n++ {
		if k.addr(n) >= k.addr(n-1) {
			up++
		} else {
			down++
		}
	}
	return down <= up/100
}

// addr returns the address of symbol n. With KALLSYMS_ABSOLUTE_PERCPU, as in all SMP
// kernels before 6.15, offsets that are not negative are absolute addresses, and the
// others count from base-1 downwards to lower numbers; without it all are unsigned
// and count from base.
func (k *kallsymsTables) addr(n int) uint64 {
	off := int32(le32(k.data[k.offsets+4*n:]))
	if k.base == 0 {
		return k.at + uint64(k.offsets+4*n) + uint64(int64(off))
	}
	if !k.isPerCPU() {
		return k.base + uint64(uint32(off))
	}
	if off >= 0 {
		return uint64(off)
	}
	return k.base - 1 - uint64(int64(off))
}

// isPerCPU reports whether KALLSYMS_ABSOLUTE_PERCPU is set: the last symbol is
// relative, and near its base.
func (k *kallsymsTables) isPerCPU() bool {
	return int32(le32(k.data[k.offsets+4*(k.num-1):])) < 0
}

// symbols expands the names.
func (k *kallsymsTables) symbols() []elf.Name {
	out := make([]elf.Name, 0, k.num)
	var b strings.Builder
	at := k.names
	for n := range k.num {
		from, length := k.nameLen(at)
		if length == 0 || from+length > k.markers {
			break
		}
		b.Reset()
		for _, t := range k.data[from : from+length] {
			if b.Len() > maxName+1 {
				break
			}
			b.WriteString(k.tokens[t])
		}
		at = from + length
		if name := b.String(); len(name) > 1 {
			out = append(out, letterName(name[0], name[1:], k.addr(n)))
		}
	}
	return out
}

// letterName is the name that nm would print with this letter: T and W are functions,
// other letters data; capitals are global.
func letterName(letter byte, name string, addr uint64) elf.Name {
	return elf.Name{Name: name, Addr: addr, Func: strings.IndexByte("tTwW", letter) >= 0, Global: letter < 'a'}
}

func (k *kallsymsTables) align(n int) int { return (n + k.unit - 1) &^ (k.unit - 1) }
