package x86

import (
	"maps"
	"testing"
)

// TestSweep holds Decode against objdump on generated instructions: every
// opcode of every map, with the prefixes and ModRM forms that matter. Real
// binaries do not have them all. A full run only: it is some three million
// instructions. The first example of each form without rare prefixes joins the
// committed corpus.
func TestSweep(t *testing.T) {
	if !full() {
		return
	}
	forms := make(map[form]line)
	for _, s := range []struct {
		name string
		gen  func(func(...byte))
	}{{"legacy", sweepLegacy}, {"vex", sweepVEX}, {"xop", sweepXOP}, {"evex", sweepEVEX}} {
		t.Run(s.name, func(t *testing.T) {
			var codes [][]byte
			s.gen(func(b ...byte) { codes = append(codes, append(b, 0x24, 1, 2, 3, 4, 5, 6, 7, 8)) })
			c := tally{forms: forms, except: make(map[string]int)}
			ours := 0
			disassembleSlots(t, codes, func(k int, l *line) {
				b := append(codes[k], 0x90, 0x90, 0x90, 0x90)
				c.add(t, s.name, b, l)
				if _, err := Decode(b); err == nil && l.bad() {
					ours++
				}
			})
			t.Logf("%d compared, %d differ, exceptions %v; of the (bad) we give a length to %d", c.compared, c.wrong, c.except, ours)
		})
	}
	if update() {
		maps.DeleteFunc(forms, func(f form, _ line) bool {
			const common = PrefixOpSize | PrefixRep | PrefixRepNE | PrefixREXW
			return f.prefix&^common != 0 || f.prefix&(f.prefix-1) != 0 || f.m == Map0 && f.prefix&(PrefixRep|PrefixRepNE) != 0
		})
		writeCorpus(t, forms)
	}
}

// sweepModRM are a ModRM byte of each kind for each value of reg.
func sweepModRM(f func(byte)) {
	for reg := range byte(8) {
		for _, m := range []byte{0x00, 0x04, 0x05, 0x40, 0x44, 0x80, 0x84, 0xc0, 0xc1, 0xc6} {
			f(m | reg<<3)
		}
	}
}

func sweepLegacy(emit func(...byte)) {
	for _, esc := range []string{"", "\x0f", "\x0f\x38", "\x0f\x3a"} {
		for _, p := range []string{"", "\x66", "\xf3", "\xf2", "\x48", "\x66\x48", "\xf3\x48", "\xf2\x48", "\x41", "\x66\xf2",
			"\x66\xf3", "\x67", "\xf0", "\x2e", "\x3e", "\x65", "\x66\x67\x4f"} {
			for op := range 256 {
				sweepModRM(func(m byte) { emit(append([]byte(p+esc), byte(op), m)...) })
				if p == "" && esc == "\x0f" && (op == 0x01 || op == 0xae || op == 0x1e || op == 0xc7) {
					for m := 0xc0; m < 0x100; m++ {
						emit(0x0f, byte(op), byte(m))
						emit(0xf3, 0x0f, byte(op), byte(m))
						emit(0xf2, 0x0f, byte(op), byte(m))
						emit(0x66, 0x0f, byte(op), byte(m))
					}
				}
			}
		}
	}
}

func sweepVEX(emit func(...byte)) {
	for op := range 256 {
		for lpp := range byte(8) {
			sweepModRM(func(m byte) {
				emit(0xc5, 0xf8|lpp, byte(op), m)
				for mm := byte(1); mm <= 3; mm++ {
					emit(0xc4, 0xe0|mm, 0x78|lpp, byte(op), m)
					emit(0xc4, 0xe0|mm, 0xf8|lpp, byte(op), m)
					emit(0xc4, 0x40|mm, 0x10|lpp, byte(op), m)
				}
			})
		}
	}
}

func sweepXOP(emit func(...byte)) {
	for op := range 256 {
		for _, p1 := range []byte{0x78, 0xf8, 0x7c, 0x10} {
			sweepModRM(func(m byte) {
				for mm := byte(8); mm <= 10; mm++ {
					emit(0x8f, 0xe0|mm, p1, byte(op), m)
				}
			})
		}
	}
}

func sweepEVEX(emit func(...byte)) {
	for op := range 256 {
		for _, mm := range []byte{1, 2, 3, 5, 6} {
			for pp := range byte(4) {
				for _, w := range []byte{0, 0x80} {
					for _, p2 := range []byte{0x08, 0x28, 0x48, 0x18, 0x4f, 0x59} {
						for _, m := range []byte{0x54, 0x07, 0x8d, 0x3d, 0xc1, 0xf8} {
							emit(0x62, 0xf0|mm, 0x7c|pp|w, p2, byte(op), m)
						}
					}
				}
			}
		}
	}
}
