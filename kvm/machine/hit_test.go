package machine

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// countingGuest is a guest that calls fn n times and exits with what fn left in
// RAX. fn: imul $3, %rax, %rax (stepped or boosted); inc %rax; ret. The stub at
// its end says that vector 3 is forwarded; the guest has no IDT of its own, so
// where the stub is needed the one that it starts with does that.
func countingGuest(n uint32) ([]byte, tinySym) {
	code := asm(
		[]byte{0x31, 0xc0}, // xor %eax, %eax
		binary.LittleEndian.AppendUint32([]byte{0xbb}, n), // mov $n, %ebx
		[]byte{0xf3, 0x90},           // 1: pause (see spin)
		[]byte{0xe8, 0, 0, 0, 0},     // call fn (patched below)
		[]byte{0xff, 0xcb},           // dec %ebx
		[]byte{0x75, 0xf5},           // jnz 1b
		[]byte{0xe7, guest.PortExit}, // out %eax, $0xf4
		hltForever,
	)
	fn := uint64(len(code))
	binary.LittleEndian.PutUint32(code[10:], uint32(fn-14))
	body := []byte{0x48, 0x6b, 0xc0, 0x03, 0x48, 0xff, 0xc0, 0xc3}
	return asm(code, body, stub3), tinySym{"fn", tinyText + fn, uint64(len(body))}
}

// wantCount is what the guest computes.
func wantCount(n uint32) uint32 {
	x := uint64(0)
	for range n {
		x = x*3 + 1
	}
	return uint32(x)
}

func TestKprobeOnTinyGuest(t *testing.T) {
	const n = 100
	code, fn := countingGuest(n)
	for _, tc := range []struct {
		name   string
		offset uint64
		post   bool
	}{
		{"imul, pre", 0, false},
		{"imul, post", 0, true},
		{"inc, pre", 4, false},
		{"inc, post", 4, true},
		{"ret, pre", 7, false},
		{"ret, post", 7, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1})
			pre, post := 0, 0
			k := &probe.Kprobe{Symbol: "fn", Offset: tc.offset, Pre: func(c *probe.Context) int {
				pre++
				if c.Regs.RIP != fn.addr+tc.offset+1 || c.CPL != 0 || c.CPU != 0 {
					t.Errorf("pre: rip %#x, cpl %d, cpu %d", c.Regs.RIP, c.CPL, c.CPU)
				}
				return 0
			}}
			if tc.post {
				k.Post = func(*probe.Context) { post++ }
			}
			if err := m.Engine().Register(k); err != nil {
				t.Fatal(err)
			}
			if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != wantCount(n) {
				t.Errorf("state %+v, want exit with %#x", s, wantCount(n))
			}
			if pre != n || tc.post && post != n {
				t.Errorf("%d pre and %d post handlers, want %d", pre, post, n)
			}
			s := m.Stats()
			t.Logf("exits per hit %.2f, %+v", s.ExitsPerHit(), s.VCPUs[0].Exits)
			if err := m.Engine().Unregister(k); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(code))
			if err := m.Peek(tinyText, got); err != nil || string(got) != string(code) {
				t.Errorf("text was not restored: %v", err)
			}
		})
	}
}
