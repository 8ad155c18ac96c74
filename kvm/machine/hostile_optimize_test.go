package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// Places of attackGuest: the attack's bytes and fn, and what an attack leaves
// free to write to.
const (
	attackFn    = 0x180
	attackSpare = 0x6000 // physical
)

// attackGuest is a guest that calls fn, does something hostile at CPL0, calls
// fn again, and ends with exit code 7. All that have as much user code have the
// same layout.
func attackGuest(t testing.TB, attack, user []byte, syms ...tinySym) *guest.Image {
	t.Helper()
	code := []byte{0x31, 0xc0} // xor %eax, %eax
	call := func() {
		code = append(code, 0xe8)
		code = binary.LittleEndian.AppendUint32(code, uint32(attackFn-(len(code)+4)))
	}
	call()
	code = append(code, attack...)
	call()
	code = append(code, exitCode(7)...)
	code = append(code, hltForever...)
	if len(code) > attackFn {
		t.Fatalf("%d bytes of attack", len(attack))
	}
	code = append(code, slices.Repeat([]byte{0xf4}, attackFn-len(code))...)
	// imul $3, %rax, %rax; inc %rax; ret: the jump there needs a board
	body := []byte{0x48, 0x6b, 0xc0, 0x03, 0x48, 0xff, 0xc0, 0xc3}
	return tinyGuest(t, asm(code, body, stub3), slices.Concat(user, slices.Repeat([]byte{0xf4}, 64-len(user))), append(syms, tinySym{"fn", tinyText + attackFn, uint64(len(body))})...)
}

// attacked is a machine with an optimized probe on fn.
type attacked struct {
	*Machine
	p            *probe.Kprobe
	board, entry guest.GVA // of its detour
}

func newAttacked(t *testing.T) *attacked {
	t.Helper()
	a := &attacked{Machine: newMachine(t, Config{Image: attackGuest(t, nil, nil), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})}
	a.p = &probe.Kprobe{Symbol: "fn", Pre: func(*probe.Context) int { return 0 }}
	if err := a.Engine().Register(a.p); err != nil {
		t.Fatal(err)
	}
	a.optimize(t)
	return a
}

// optimize wants the probe to get its jump, at the same place as ever.
func (a *attacked) optimize(t *testing.T) {
	t.Helper()
	if err := a.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := a.Engine().Info(a.p); !i.Optimized {
		t.Fatalf("%+v", i.Unoptimized)
	}
	to := func(at guest.GVA) guest.GVA {
		var b [5]byte
		if err := a.Peek(at, b[:]); err != nil || b[0] != 0xe9 {
			t.Fatalf("no jump at %v: % x, %v", at, b, err)
		}
		return at + 5 + guest.GVA(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
	}
	board := to(a.p.Addr)
	entry := to(board)
	if a.board != 0 && (a.board != board || a.entry != entry) {
		t.Fatalf("board at %v, detour at %v; they were at %v, %v", board, entry, a.board, a.entry)
	}
	a.board, a.entry = board, entry
}

// pte returns where the page-table entry of va is.
func (a *attacked) pte(t *testing.T, va guest.GVA) guest.GPA {
	t.Helper()
	table := guest.GPA(a.booted.Load().space.Root())
	for level := 4; ; level-- {
		at := table + guest.GPA(uint64(va)>>(12+9*(level-1))&511)*8
		if level == 1 {
			return at
		}
		b, err := a.mem.Slice(at, 8)
		if err != nil {
			t.Fatal(err)
		}
		table = guest.GPA(binary.LittleEndian.Uint64(b) &^ (1<<63 | 0xfff))
	}
}

// boot runs another attack, with the probe optimized, to its end or until it
// has had its time and hits.
func (a *attacked) boot(t *testing.T, attack, user []byte) State {
	t.Helper()
	if err := a.Reset(t.Context(), attackGuest(t, attack, user)); err != nil {
		t.Fatal(err)
	}
	a.optimize(t)
	if err := a.Resume(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	s, err := a.Wait(ctx)
	if err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	for st, _, _ := a.Engine().Stats(a.p); s.Phase == PhaseRunning && st.Hits == 0; st, _, _ = a.Engine().Stats(a.p) {
		s = a.State()
		breathe()
	}
	if err := a.Engine().Optimize(); err != nil {
		t.Error(err)
	}
	if st, _, _ := a.Engine().Stats(a.p); st.Hits != st.Handled+st.Filtered+st.Missed || st.Hits == 0 {
		t.Errorf("counts do not close: %+v", st)
	}
	return s
}

// awaitEnd waits for a guest that ends, however slow this machine is.
func (a *attacked) awaitEnd(t *testing.T) State {
	t.Helper()
	s, err := a.Wait(patience.Context(t))
	if err != nil {
		t.Error(err)
	}
	return s
}

// store64 is movabs $at, %rcx; movabs $v, %rdx; mov %rdx, (%rcx).
func store64(at, v uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{0x48, 0xb9}, at)
	b = append(b, 0x48, 0xba)
	return append(binary.LittleEndian.AppendUint64(b, v), 0x48, 0x89, 0x11)
}

// store8 is movabs $at, %rcx; movb $v, (%rcx).
func store8(at uint64, v byte) []byte {
	return append(binary.LittleEndian.AppendUint64([]byte{0x48, 0xb9}, at), 0xc6, 0x01, v)
}

// callTo is movabs $at+2^28, %rax; sub $2^28, %rax; call *%rax: what refers to a
// region's bytes by their address has no jump there.
func callTo(at guest.GVA) []byte {
	return append(movRAX(uint64(at)+1<<28), 0x48, 0x2d, 0, 0, 0, 0x10, 0xff, 0xd0)
}

// TestHostileDetours runs guests that attack what an optimized site consists
// of: they may harm themselves, in whatever way. The machine answers, the counts
// close, the probe goes on in the next boot, and comes off.
func TestHostileDetours(t *testing.T) {
	a := newAttacked(t)
	boardPTE, detourPTE, textPTE := a.pte(t, a.board), a.pte(t, a.entry), a.pte(t, a.p.Addr)
	const ram = attackSpare | 3
	attacks := map[string][]byte{
		"board unmapped":                 asm(store64(uint64(boardPTE), 0), setCR3WithRCX),
		"board is RAM":                   asm(store64(uint64(boardPTE), ram), setCR3WithRCX),
		"board outside memory":           asm(store64(uint64(boardPTE), 0x7ffffffff003), setCR3WithRCX),
		"board is the page tables":       asm(store64(uint64(boardPTE), uint64(boardPTE)&^0xfff|3), setCR3WithRCX),
		"detour unmapped":                asm(store64(uint64(detourPTE), 0), setCR3WithRCX),
		"detour is RAM":                  asm(store64(uint64(detourPTE), ram), setCR3WithRCX),
		"detour cannot be executed":      asm(store64(uint64(detourPTE), 1<<63|ram), setCR3WithRCX),
		"text is RAM":                    asm(store64(uint64(textPTE), ram), setCR3WithRCX),
		"out from text":                  {0xe6, guest.PortDetour},
		"out from text, a word":          {0x66, 0xe7, guest.PortDetour},
		"in from text":                   {0xe4, guest.PortDetour},
		"int3 in text":                   {0xcc},
		"call to the board's page":       callTo(a.board &^ 0xfff),
		"stack in the detour":            append(movRAX(uint64(a.entry)+16), 0x48, 0x89, 0xc4), // mov %rax, %rsp
		"stack in nowhere":               append(movRAX(1<<63|0x10), 0x48, 0x89, 0xc4),
		"write to the detour":            store8(uint64(a.entry), 0x90),
		"write to the board through RAM": store8(uint64(a.board), 0x90),
	}
	// The middle of everything.
	for off := guest.GVA(0); off < 24; off++ {
		attacks[fmt.Sprintf("call to the detour+%d", off)] = callTo(a.entry + off)
	}
	for off := guest.GVA(0); off < 6; off++ {
		attacks[fmt.Sprintf("call to the board+%d", off)] = callTo(a.board + off)
		attacks[fmt.Sprintf("call to the jump+%d", off)] = callTo(a.p.Addr + off)
	}
	names := make([]string, 0, len(attacks))
	for name := range attacks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		a.boot(t, attacks[name], nil)
		switch name {
		case "out from text", "in from text", "out from text, a word", "call to the detour+0", "call to the board+0", "call to the jump+0", "call to the jump+4":
			// A port that nobody has; a hit; the second instruction, which the jump displaced.
			if s := a.awaitEnd(t); s.Phase != PhaseExited || s.ExitCode != 7 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
	// Not harmed for good.
	start, _, _ := a.Engine().Stats(a.p)
	a.boot(t, nil, nil)
	if s := a.awaitEnd(t); s.Phase != PhaseExited || s.ExitCode != 7 {
		t.Errorf("a guest without an attack: %+v", s)
	}
	if st, _, _ := a.Engine().Stats(a.p); st.Hits-start.Hits != 2 {
		t.Errorf("%d hits of 2", st.Hits-start.Hits)
	}
	if err := a.Engine().Unregister(a.p); err != nil {
		t.Error(err)
	}
	checkText(t, a.Machine)
}

// TestRewritesItsText: a guest that changes one byte under a jump finds its byte
// left alone when the probe comes off, and that is reported where the byte was
// the jump's.
func TestRewritesItsText(t *testing.T) {
	for off := range 8 {
		a := newAttacked(t)
		const phys = tinyPhys + attackFn // the RAM's own mapping is writable
		a.boot(t, store8(uint64(phys+off), 0xc3), nil)
		err := a.Engine().Unregister(a.p)
		var mismatch *guest.TextMismatchError
		if off < 5 != errors.As(err, &mismatch) || off >= 5 && err != nil {
			t.Errorf("byte %d: %v", off, err)
		}
		var b [8]byte
		if err := a.Peek(a.fn(t), b[:]); err != nil || b[off] != 0xc3 {
			t.Errorf("byte %d: text is % x, %v", off, b, err)
		}
		if orig := a.Image().Code(a.fn(t), 5); off >= 5 && string(b[:5]) != string(orig) {
			t.Errorf("byte %d: text is % x, want % x", off, b, orig)
		}
	}
}

func (a *attacked) fn(t *testing.T) guest.GVA { return address(t, a.Machine, "fn") }

// TestDataPrivileges: user code reaches the shared memory of user code, and not
// that of the kernel's.
func TestDataPrivileges(t *testing.T) {
	a := newAttacked(t)
	for _, user := range []bool{false, true} {
		for _, tt := range []struct {
			name string
			code func(at guest.GVA) []byte
		}{
			{"write", func(at guest.GVA) []byte { return store8(uint64(at), 1) }},
			{"read", func(at guest.GVA) []byte { return append(movRAX(uint64(at)), 0x8a, 0x00) }},                         // mov (%rax), %al
			{"locked", func(at guest.GVA) []byte { return append(movRAX(uint64(at)), 0xf0, 0xfe, 0x00) }},                 // lock incb (%rax)
			{"execute", func(at guest.GVA) []byte { return append(movRAX(uint64(at)), 0x50, 0xc3) }},                      // push %rax; ret
			{"its own out", func(guest.GVA) []byte { return []byte{0xe6, guest.PortDetour, 0xe6, guest.PortBreakpoint} }}, // with IOPL 3
		} {
			// Behind what it tries it writes to the second line of the user's.
			if err := a.Reset(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			at, _, err := a.AllocShared(64, user)
			if err != nil {
				t.Fatal(err)
			}
			done := a.shared.areas[1].GVA + 0x1000
			enter := userEntry()
			if tt.name == "its own out" {
				enter = slices.Clone(enter)
				i := slices.Index(enter, 0x02) // of the flags
				enter[i+1] |= 0x30
			}
			code := asm(tt.code(at), store8(uint64(done), 1), spin)
			if err := a.Reset(t.Context(), attackGuest(t, enter, code)); err != nil {
				t.Fatal(err)
			}
			if err := a.Resume(); err != nil {
				t.Fatal(err)
			}
			want := tt.name == "its own out" || user && tt.name != "execute"
			var reached [1]byte
			for a.State().Phase == PhaseRunning && reached[0] == 0 {
				if err := a.Peek(done, reached[:]); err != nil {
					t.Fatal(err)
				}
				breathe()
			}
			if got := reached[0] != 0; got != want || got != (a.State().Phase == PhaseRunning) {
				t.Errorf("%s, memory of user code %v: it goes on: %v, %+v", tt.name, user, got, a.State())
			}
		}
	}
}
