package x86

import (
	"math/rand/v2"
	"testing"
)

// checkSameScan fails the test if Scan's result for b differs from Decode's and Target's.
func checkSameScan(t *testing.T, b []byte) {
	t.Helper()
	const addr = 0xffffffff81000000
	n, target, branch, err := Scan(b, addr)
	i, want := Decode(b)
	wantTarget, wantBranch := i.Target(addr)
	if want != nil {
		wantTarget, wantBranch = 0, false
	}
	if err != want || n != int(i.Len) || branch != wantBranch || branch && target != wantTarget {
		t.Errorf("% x: length %d, target %#x (%v), %v; want %d, %#x (%v), %v", b, n, target, branch, err, i.Len, wantTarget, wantBranch, want)
	}
}

// TestScan: Scan agrees with Decode on each opcode of the legacy maps after each
// prefix and REX, with each ModRM, and for truncated instructions.
func TestScan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var prefixes [][]byte
	for p, kind := range prefixOf {
		if kind != 0 {
			prefixes = append(prefixes, []byte{byte(p)}, []byte{byte(p), 0x48}, []byte{0x41, byte(p)})
		}
	}
	prefixes = append(prefixes, nil)
	for _, p := range prefixes {
		for _, escape := range []string{"", "\x0f"} {
			for op := range 256 {
				for modrm := range 256 {
					if len(p) > 1 && modrm%32 != op%32 {
						continue
					}
					b := append(append([]byte{}, p...), escape...)
					b = append(b, byte(op), byte(modrm))
					for len(b) < 2*MaxLen {
						b = append(b, byte(r.Uint32()))
					}
					checkSameScan(t, b)
					if modrm == 0x84 || modrm == 0xc0 {
						for n := range MaxLen + 1 {
							checkSameScan(t, b[:n])
						}
					}
					if t.Failed() {
						return
					}
				}
			}
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte{0xe8, 1, 2, 3, 4})
	f.Add([]byte{0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
	f.Add([]byte{0x66, 0xe9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
	f.Fuzz(func(t *testing.T, b []byte) { checkSameScan(t, b) })
}

func BenchmarkScan(b *testing.B) {
	code := []byte{0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xe8, 1, 2, 3, 4, 0x0f, 0x84, 1, 0, 0, 0, 0x8b, 0x45, 0xfc, 0xff, 0xc0, 0xc9, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for b.Loop() {
		for at := 0; at < 26; {
			n, _, _, _ := Scan(code[at:], 0)
			at += n
		}
	}
}
