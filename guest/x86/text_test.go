package x86

import "testing"

// TestJmpReach has the edges of a jump's reach, which wraps modulo 2^64.
func TestJmpReach(t *testing.T) {
	for _, tt := range []struct {
		from, to uint64
		want     bool
	}{
		{0x1000, 0x1005, true},
		{0, 5 + 1<<31 - 1, true},
		{0, 5 + 1<<31, false},
		{1 << 31, 5, true},
		{1<<31 + 1, 5, false},
		{^uint64(0), 4, true},
		{4, ^uint64(0), true},
		{^uint64(0), 4 + 1<<31 - 1, true},
		{^uint64(0), 4 + 1<<31, false},
		{0xffffffff81000000, 0xffffffffc0000000, true},
		{0x401000, 0xffffffff81000000, true}, // through the top
		{0x7f0000001000, 0xffffffff81000000, false},
	} {
		if got := jmpReaches(tt.from, tt.to); got != tt.want {
			t.Errorf("%#x to %#x: got %v, want %v", tt.from, tt.to, got, tt.want)
		}
		b, ok := Jmp32(tt.from, tt.to)
		if ok != tt.want {
			t.Errorf("Jmp32 %#x to %#x: got %v, want %v", tt.from, tt.to, ok, tt.want)
			continue
		}
		before := []byte{1, 2}
		if out, ok := AppendJmp(before, tt.from, tt.to); !ok && len(out) != 2 {
			t.Errorf("AppendJmp %#x to %#x: changed its input", tt.from, tt.to)
		}
		if !ok {
			continue
		}
		i, err := Decode(b[:])
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := i.Target(tt.from); got != tt.to {
			t.Errorf("jump from %#x goes to %#x, want %#x", tt.from, got, tt.to)
		}
	}
}
