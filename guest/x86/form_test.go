package x86

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// form is what makes two instructions examples of the same thing: encoding,
// opcode, the part of ModRM that selects the operation, prefixes, and whether
// the operand is in memory.
type form struct {
	enc    Encoding
	m      Map
	op     uint8
	sel    uint8
	prefix Prefix
	pp, vl uint8
	b      bool // EVEX.b
	memory bool
}

func formOf(i *Inst) form {
	f := form{enc: i.Enc, m: i.Map, op: i.Opcode, prefix: i.Prefix &^ PrefixREX, pp: i.pp, vl: i.vl, b: i.evexB}
	f.memory = i.HasModRM && i.Mod() != 3
	if isGroup(i) {
		f.sel = i.Reg()
	}
	if i.legacy(Map0F) && (i.Opcode == 0x01 || i.Opcode == 0x1e) && i.Mod() == 3 {
		f.sel = i.ModRM
	}
	return f
}

// isGroup reports whether ModRM.reg selects the operation.
func isGroup(i *Inst) bool {
	if !i.HasModRM {
		return false
	}
	type key struct {
		m  Map
		op uint8
	}
	switch (key{i.Map, i.Opcode}) {
	case key{0, 0x80}, key{0, 0x81}, key{0, 0x83}, key{0, 0x8f}, key{0, 0xc0}, key{0, 0xc1}, key{0, 0xc6}, key{0, 0xc7},
		key{0, 0xd0}, key{0, 0xd1}, key{0, 0xd2}, key{0, 0xd3}, key{0, 0xd8}, key{0, 0xd9}, key{0, 0xda}, key{0, 0xdb},
		key{0, 0xdc}, key{0, 0xdd}, key{0, 0xde}, key{0, 0xdf}, key{0, 0xf6}, key{0, 0xf7}, key{0, 0xfe}, key{0, 0xff},
		key{1, 0x00}, key{1, 0x01}, key{1, 0x0d}, key{1, 0x18}, key{1, 0x1c}, key{1, 0x1e}, key{1, 0x71}, key{1, 0x72},
		key{1, 0x73}, key{1, 0xae}, key{1, 0xba}, key{1, 0xc7}, key{2, 0xf3}, key{2, 0xc6}, key{2, 0xc7}, key{2, 0xd8},
		key{9, 0x01}, key{9, 0x02}, key{9, 0x12}, key{10, 0x12}:
		return true
	}
	return false
}

// targetOf returns the target that objdump prints for a branch.
func targetOf(text string) (uint64, bool) {
	text, _, _ = strings.Cut(text, " <")
	f := strings.Fields(text)
	if len(f) == 0 {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(f[len(f)-1], "0x"), 16, 64)
	return v, err == nil
}

// ripOf returns the address that objdump prints in a comment for an operand
// relative to RIP.
func ripOf(text string) (uint64, bool) {
	_, text, ok := strings.Cut(text, "# ")
	if !ok {
		return 0, false
	}
	return targetOf(text)
}

// compare describes how Decode differs from objdump about the instruction at the
// start of b (which continues after it), or returns "". If objdump departs from the
// CPU manuals the difference has a name, which is returned instead:
//
//   - fwait: objdump takes 9B before an x87 instruction as part of that, to the
//     CPU it is an instruction (SDM Vol. 1, 8.3.11). The two must add up.
//   - eip: objdump does not cut an address relative to EIP to 32 bits (SDM Vol.
//     2, 2.2.1.6).
//   - vendor: the targets of VendorDependent branches; their lengths agree.
//   - far: objdump does not show that with W Intel CPUs read 10 bytes of a far
//     pointer.
func compare(b []byte, l *line) (diff, exception string) {
	i, err := Decode(b)
	if err != nil {
		return err.Error(), ""
	}
	if i.Map == Map0 && i.Opcode == 0x9b && int(i.Len) < len(l.bytes) {
		x87, err := Decode(b[i.Len:])
		if err != nil || int(i.Len+x87.Len) != len(l.bytes) {
			return fmt.Sprintf("fwait and length %d, %v", x87.Len, err), ""
		}
		return "", "fwait"
	}
	if int(i.Len) != len(l.bytes) {
		return fmt.Sprintf("length %d", i.Len), ""
	}
	if got, ok := i.Target(l.addr); ok {
		want, ok := targetOf(l.text)
		switch {
		case ok && got == want:
		case i.VendorDependent():
			exception = "vendor"
		default:
			return fmt.Sprintf("target %#x", got), ""
		}
	}
	want, ok := ripOf(l.text)
	if ok && i.Prefix&PrefixAddrSize != 0 && want>>32 != 0 {
		want, exception = uint64(uint32(want)), "eip"
	}
	if ok != i.RIPRelative() || ok && want != i.RIPTarget(l.addr) {
		return fmt.Sprintf("RIP-relative %v, %#x", i.RIPRelative(), i.RIPTarget(l.addr)), ""
	}
	if i.memSize() == accessKnown|memSize(Read)<<sizeBits|memSize(strings.IndexByte(sizeLetters, 'p')) && i.opSize() == 8 {
		exception = "far"
	}
	return compareMem(&i, l.text), exception
}

// corpusFile has one example of each form: address, bytes, objdump's text.
const corpusFile = "testdata/corpus.tsv"

// readCorpus calls f for each line of the committed corpus.
func readCorpus(t testing.TB, f func(l *line)) {
	t.Helper()
	file, err := os.Open(corpusFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	for n := 1; sc.Scan(); n++ {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		c := strings.SplitN(sc.Text(), "\t", 3)
		if len(c) != 3 {
			t.Fatalf("%s:%d: %d columns, want 3", corpusFile, n, len(c))
		}
		addr, err := strconv.ParseUint(c[0], 16, 64)
		if err != nil {
			t.Fatalf("%s:%d: %v", corpusFile, n, err)
		}
		b, err := hex.DecodeString(c[1])
		if err != nil {
			t.Fatalf("%s:%d: %v", corpusFile, n, err)
		}
		f(&line{addr, b, c[2]})
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
}
