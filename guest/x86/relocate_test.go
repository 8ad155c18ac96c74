package x86

import (
	"encoding/hex"
	"errors"
	"testing"
)

// TestRelocate has exact results, and the last distance that works and the
// first that does not.
func TestRelocate(t *testing.T) {
	const near = 1<<31 - 1
	for _, tt := range []struct {
		name, code string
		from, to   uint64
		want       string // "" for an error
		err        error
	}{
		{"plain", "4889e5", 0x1000, 0x9000, "4889e5", nil},
		{"absolute operand", "488b042500100000", 0x1000, 0x9000, "488b042500100000", nil},
		{"rip load, up", "488b0500100000", 0x1000, 0x9000, "488b050090ffff", nil},
		{"rip load, down", "488b0500100000", 0x9000, 0x1000, "488b0500900000", nil},
		{"rip with immediate", "813d00100000efbeadde", 0x1000, 0x0, "813d00200000efbeadde", nil},
		{"rip, sse", "0f100500100000", 0x1000, 0x0, "0f100500200000", nil},
		{"rip, vex", "c5f8280500100000", 0x1000, 0x0, "c5f8280500200000", nil},
		{"rip, evex: not scaled", "62f17c48280500100000", 0x1000, 0x0, "62f17c48280500200000", nil},
		{"rip, last down", "488b0500000000", near, 0, "488b05ffffff7f", nil},
		{"rip, too far down", "488b0500000000", near + 1, 0, "", ErrOutOfReach},
		{"rip, last up", "488b0500000000", 0, near + 1, "488b0500000080", nil},
		{"rip, too far up", "488b0500000000", 0, near + 2, "", ErrOutOfReach},
		{"rip, across 2^64", "488b0500000000", 0x10, ^uint64(0) - 0xf, "488b0520000000", nil},
		{"eip reaches everything", "67488b0500000000", 0x123456789, 0x1000, "67488b0589574523", nil},

		{"jmp rel8", "eb10", 0x1000, 0x2000, "e90df0ffff", nil},
		{"jmp rel32", "e910000000", 0x1000, 0x2000, "e910f0ffff", nil},
		{"je rel8", "7410", 0x1000, 0x2000, "0f840cf0ffff", nil},
		{"jg rel8", "7f80", 0x1000, 0x2000, "0f8f7cefffff", nil},
		{"je rel32", "0f8410000000", 0x1000, 0x2000, "0f8410f0ffff", nil},
		{"je rel32 with a hint", "3e0f8410000000", 0x1000, 0x2000, "3e0f8410f0ffff", nil},
		{"loop", "e210", 0x1000, 0x2000, "e202eb05e909f0ffff", nil},
		{"loope with ecx", "67e110", 0x1000, 0x2000, "67e102eb05e909f0ffff", nil},
		{"jrcxz, twelve prefixes", "2e2e2e2e2e2e2e2e2e2e2e2ee310", 0x1000, 0x2000, "e302eb05e915f0ffff", nil},
		{"xbegin", "c7f810000000", 0x1000, 0x2000, "c7f810f0ffff", nil},
		{"jmp, last down", "e900000000", near, 0, "e9ffffff7f", nil},
		{"jmp, too far down", "e900000000", near + 1, 0, "", ErrOutOfReach},
		{"jmp, last up", "e900000000", 0, near + 1, "e900000080", nil},
		{"jmp, too far up", "e900000000", 0, near + 2, "", ErrOutOfReach},
		{"jmp across 2^64", "e900000000", 0x10, ^uint64(0) - 0xf, "e920000000", nil},
		{"jmpabs", "d500a10807060504030201", 0x1000, 0x2000, "d500a10807060504030201", nil},

		{"jmp *rip", "ff2500000000", 0x1000, 0x0, "ff2500100000", nil},
		{"ret", "c3", 0x1000, 0x2000, "c3", nil},
		{"call", "e800000000", 0x1000, 0x2000, "", ErrNotMovable},
		{"call *rax", "ffd0", 0x1000, 0x2000, "", ErrNotMovable},
		{"call *rip", "ff1500000000", 0x1000, 0x2000, "", ErrNotMovable},
		{"jmp rel16", "66e90000", 0x1000, 0x2000, "", ErrNotMovable},
		{"data16 ret", "66c3", 0x1000, 0x2000, "", ErrNotMovable},
		{"xbegin rel16", "66c7f80000", 0x1000, 0x2000, "", ErrNotMovable},
	} {
		i := mustDecode(t, tt.code)
		var dst [MaxRelocated]byte
		n, err := Relocate(dst[:], &i, tt.from, tt.to)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: got error %v, want %v", tt.name, err, tt.err)
		}
		if got := hex.EncodeToString(dst[:n]); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestRelocateErrorText: the message names the instruction and both addresses.
func TestRelocateErrorText(t *testing.T) {
	i := mustDecode(t, "e800000000")
	_, err := Relocate(make([]byte, MaxRelocated), &i, 0x1000, 0x2000)
	const want = "x86: relocate e800000000 from 0x1000 to 0x2000: instruction cannot be moved"
	if err == nil || err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
