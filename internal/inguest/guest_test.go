package inguest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// instructions in hexadecimal, as bpf_conformance passes them.
const (
	insnExit    = "95 00 0000 00000000 "
	insnR0Is7   = "b7 00 0000 07000000 "
	insnR0IsLen = "bf 20 0000 00000000 "
	insnLoadLow = "71 10 0000 00000000 " // r0 = *(u8 *)(r1 + 0)
	insnStore   = "72 01 0100 2a000000 " // *(u8 *)(r1 + 1) = 42
	insnLoad1   = "71 10 0100 00000000 "
	insnForever = "05 00 ffff 00000000 " // goto -1
)

// TestExec runs raw programs as a conformance runner does, in the interpreter
// and in guests.
func TestExec(t *testing.T) {
	runs := map[string]bpf.RunFunc{"interp": bpf.Interpret, "CPL3": bpf.RunOn(newGuest(t, 3)), "CPL0": bpf.RunOn(newGuest(t, 0))}
	for _, tt := range []struct{ name, program, memory, want, err string }{
		{"constant", insnR0Is7 + insnExit, "", "7", ""},
		{"length", insnR0IsLen + insnExit, "01 02 03", "3", ""},
		{"load", insnLoadLow + insnExit, "ab", "ab", ""},
		{"store", insnStore + insnLoad1 + insnExit, "00 00", "2a", ""},
		{"load behind the end", insnLoad1 + insnExit, "ab", "", "instruction 0: load out of bounds"},
		{"loop", insnForever + insnExit, "", "", "instruction budget used up"},
		{"runs off the end", insnR0Is7, "", "", "instruction 0"},
	} {
		for name, run := range runs {
			if tt.name == "loop" && name == "CPL0" {
				continue // a million jumps take seconds where they are emulated
			}
			got, err := bpf.Exec(tt.program, tt.memory, run)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s, %s: %q, %v, want %q, %q", tt.name, name, got, err, tt.want, tt.err)
			}
		}
	}
}

// TestBadCode: code that breaks the rules is found out.
func TestBadCode(t *testing.T) {
	for _, cpl := range []int{0, 3} {
		g := newGuest(t, cpl)
		load := func(code ...byte) func() (uint64, error) {
			run, err := g.Load(code)
			if err != nil {
				t.Fatal(err)
			}
			return func() (uint64, error) { return run(1, 2, 3) }
		}
		if r0, err := load(0x48, 0x8d, 0x04, 0x37, 0xc3)(); r0 != 3 || err != nil { // lea (%rdi,%rsi), %rax; ret
			t.Errorf("CPL%d: %d, %v, want 3", cpl, r0, err)
		}
		for r := range 16 {
			if r == 0 || r == 4 {
				continue
			}
			code := []byte{0x48 | byte(r>>3), 0xff, 0xc0 | byte(r&7), 0xc3} // inc %reg; ret
			if _, err := load(code...)(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("register %d is", r)) {
				t.Errorf("CPL%d: register %d changed: %v", cpl, r, err)
			}
		}
		if _, err := load(0x0f, 0x0b)(); err == nil { // ud2
			t.Errorf("CPL%d: ud2 returned", cpl)
		} else if !strings.Contains(err.Error(), "crashed") {
			t.Errorf("CPL%d: %v", cpl, err)
		}
		if _, err := load(0xc3)(); err == nil {
			t.Errorf("CPL%d: a crashed guest runs programs", cpl)
		}
	}
}

func TestMemory(t *testing.T) {
	g := newGuest(t, 3)
	a, err := g.Alloc(100)
	if err != nil || len(a.Bytes) != 100 || a.Addr%64 != 0 {
		t.Fatalf("%d bytes at %#x, %v", len(a.Bytes), a.Addr, err)
	}
	b, err := g.Alloc(1)
	if err != nil || b.Addr != a.Addr+128 {
		t.Errorf("second at %#x behind %#x, %v", b.Addr, a.Addr, err)
	}
	for _, n := range []int{-1, arenaSize, 1 << 62} {
		if _, err := g.Alloc(n); err == nil {
			t.Errorf("%d bytes were there", n)
		}
	}
	a.Bytes[5] = 1
	g.Reset()
	if c, err := g.Alloc(arenaSize); err != nil || c.Addr != a.Addr || c.Bytes[5] != 0 {
		t.Errorf("after reset at %#x, %v", c.Addr, err)
	}
	// Code goes on in another piece when one is full.
	for range 3 {
		if _, err := g.Load(make([]byte, codeChunk-16)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Load(make([]byte, 64<<20)); err == nil {
		t.Error("64 MiB of code were loaded")
	}
	if err := errors.Join(g.Close(), g.Close()); err != nil {
		t.Error(err)
	}
}

func TestNoKVM(t *testing.T) {
	if _, err := New(Options{CPL: 3, KVMPath: "/nonexistent"}); err == nil {
		t.Error("a guest without KVM")
	}
}
