package x86

import (
	"slices"
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

// TestX86asm holds Decode against golang.org/x/arch/x86/x86asm on the
// committed corpus, where that has no known gap: it reports instructions that
// it does not know as errors, or as a lone prefix with no Op.
func TestX86asm(t *testing.T) {
	compared, unknown, gaps := 0, 0, 0
	readCorpus(t, func(l *line) {
		b := append(slices.Clone(l.bytes), 0, 0, 0, 0, 0, 0, 0, 0)
		i, err := Decode(b)
		if err != nil {
			t.Errorf("% x: %v", l.bytes, err)
			return
		}
		x, err := x86asm.Decode(b, 64)
		switch {
		case err != nil, x.Op == 0:
			unknown++
		case x86asmGap(&i):
			gaps++
		default:
			compared++
			if x.Len != int(i.Len) {
				t.Errorf("% x (%s): got length %d, x86asm says %d (%v)", l.bytes, l.text, i.Len, x.Len, x)
			}
		}
	})
	t.Logf("%d compared, %d that x86asm does not know, %d in its known gaps", compared, unknown, gaps)
	if compared < 5000 {
		t.Errorf("only %d compared", compared)
	}
}

// x86asmGap names the cases in which x86asm v0.32.0 gives other lengths without an
// error: it reads a ModRM byte after vzeroupper and vzeroall, uses mod in moves to
// and from control and debug registers, and reads 16-bit near branches as Intel does.
func x86asmGap(i *Inst) bool {
	return i.Enc == VEX && i.Map == Map0F && i.Opcode == 0x77 || i.regOnly() && i.Mod() != 3 || i.VendorDependent()
}
