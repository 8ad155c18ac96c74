package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// noPromise has a tinyGuest promise nothing about its kernel text: its flags are 0.
var noPromise = tinySym{guest.SymFlags, tinyFlags, 8}

// aliasBase is where the guests below map physical memory a second time, by the
// top-level entry aliasEntry.
const (
	aliasEntry = 300
	aliasBase  = guest.GVA(0xffff_0000_0000_0000 | aliasEntry<<39)
)

// TestKernelTextElsewhere: kernel code that also runs at a second address, by the loader's
// identity map or by a mapping that the guest makes later. A guest that does not promise
// otherwise has no jump in its kernel text, every hit counts, and it computes what it
// computes unprobed.
func TestKernelTextElsewhere(t *testing.T) {
	m := newMachine(t, Config{Image: attackGuest(t, nil, nil, noPromise), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
	root := uint64(m.booted.Load().space.Root())
	const fnPhys, calls = tinyPhys + attackFn, 5
	entry := func(table uint64, n int) uint64 { return table + uint64(n)*8 }
	// movq (%rsi), (%rdi) 512 times: the top-level table, copied.
	copyTop := asm(store64(entry(root, aliasEntry), 0), []byte{0xbf, 0, 0x90, 0, 0, 0xb9, 0, 2, 0, 0, 0x48, 0xbe}, le64(root), []byte{0xf3, 0x48, 0xa5})
	for _, tt := range []struct {
		name  string
		setUp []byte
		at    guest.GVA
	}{
		{"the loader's identity map", nil, fnPhys},
		{"2 MiB page", asm(store64(entry(root, aliasEntry), 0x6003), store64(0x6000, 0x7003), store64(0x7000, 0x83)), aliasBase + fnPhys},
		{"4 KiB page, a multiple of 4 GiB away", asm(store64(entry(root, aliasEntry), 0x6003), store64(entry(0x6000, 510), 0x7003),
			store64(entry(0x7000, tinyText>>21&511), 0x8003), store64(entry(0x8000, tinyText>>12&511), tinyPhys|3)), aliasBase | tinyText&(1<<39-1) + attackFn},
		{"new top-level table", asm(copyTop, store64(entry(0x9000, aliasEntry), 0x6003), store64(0x6000, 0x7003), store64(0x7000, 0x83),
			[]byte{0xb8, 0, 0x90, 0, 0, 0x0f, 0x22, 0xd8}), aliasBase + fnPhys}, // mov $0x9000, %eax; mov %rax, %cr3
		{"the kernel's top-level entry again", asm([]byte{0x48, 0xb9}, le64(entry(root, 511)), []byte{0x48, 0x8b, 0x11}, // mov (%rcx), %rdx
			[]byte{0x48, 0xb9}, le64(entry(root, aliasEntry)), []byte{0x48, 0x89, 0x11}), aliasBase | (tinyText+attackFn)&(1<<39-1)},
	} {
		for _, kind := range []string{"kprobe", "kretprobe"} {
			attack := asm(tt.setUp, slices.Repeat(callTo(tt.at), calls))
			if err := m.Reset(t.Context(), attackGuest(t, attack, nil, noPromise)); err != nil {
				t.Fatal(err)
			}
			k := &probe.Kprobe{Symbol: "fn"}
			returns := 0
			var p probe.Probe = k
			if kind == "kretprobe" {
				r := &probe.Kretprobe{Kprobe: *k, Return: func(*probe.Context) { returns++ }}
				p, k = r, &r.Kprobe
			} else {
				k.Pre = func(*probe.Context) int { returns++; return 0 }
			}
			if err := m.Engine().Register(p); err != nil {
				t.Fatal(err)
			}
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			if i, _ := m.Engine().Info(k); i.Optimized || i.Unoptimized.Reason != "shared_text" {
				t.Errorf("%s, %s: optimized %v, %+v", tt.name, kind, i.Optimized, i.Unoptimized)
			}
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			if s := waitEnd(t, m); s.Phase != PhaseExited || s.ExitCode != 7 {
				t.Errorf("%s, %s: %+v", tt.name, kind, s)
			}
			if s, _, _ := m.Engine().Stats(k); s.Hits != 2+calls || s.Handled != s.Hits || returns != 2+calls {
				t.Errorf("%s, %s: %d handlers of %d calls, %+v", tt.name, kind, returns, 2+calls, s)
			}
			if err := m.Engine().Unregister(k); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestPromisesLater: a guest that promises while it runs that its kernel text runs at one
// address gets its jumps then, without another change.
func TestPromisesLater(t *testing.T) {
	attack := asm(store8(tinyFlags, uint8(guest.ProfileKernelOnce)), spin)
	m := newMachine(t, Config{Image: attackGuest(t, attack, nil, noPromise), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: time.Millisecond}})
	p := &probe.Kprobe{Symbol: "fn", Pre: func(*probe.Context) int { return 0 }}
	if err := m.Engine().Register(p); err != nil {
		t.Fatal(err)
	}
	if err := m.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := m.Engine().Info(p); i.Optimized || i.Unoptimized.Reason != "shared_text" {
		t.Errorf("before the promise: optimized %v, %+v", i.Optimized, i.Unoptimized)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	wait := patience.Context(t)
	for i, _ := m.Engine().Info(p); !i.Optimized; i, _ = m.Engine().Info(p) {
		if wait.Err() != nil {
			t.Fatalf("%+v", i.Unoptimized)
		}
		breathe()
	}
	if err := m.Engine().Unregister(p); err != nil {
		t.Error(err)
	}
	checkText(t, m)
}

// TestKernelTextAtCPL3: a function of the kernel that user code runs through a mapping of its
// own. A kprobe counts each hit; a return probe follows the kernel's calls, and misses those
// of user code, which cannot execute the kernel's trampolines. The image promises that its text runs
// at one address, which this mapping breaks: no jump may be written into it.
func TestKernelTextAtCPL3(t *testing.T) {
	h := bootHarness(t, probetest.Options{CPUs: 1, Probe: probe.Options{OptimizeDelay: -1}}).(harness)
	defer func() { _ = h.Close() }()
	fn, enter := address(t, h.m, "kprobe_target"), address(t, h.m, "enter_user")
	home, err := h.m.space(0).Translate(fn)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.m.Stop(func(probe.World) error {
		// The 2 MiB with the function for everybody, at 512 GiB.
		put := func(table guest.GPA, n int, v uint64) {
			b, err := h.m.mem.Slice(table+guest.GPA(8*n), 8)
			if err != nil {
				t.Fatal(err)
			}
			copy(b, le64(v))
		}
		put(h.m.booted.Load().space.Root(), 1, 0x6007)
		put(0x6000, 0, 0x7007)
		put(0x7000, 0, uint64(home.PA)&^(page2M-1)|0x87)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	const at = 1 << 39
	alias := uint64(at + home.PA&(page2M-1))
	for _, kind := range []string{"kprobe", "kretprobe"} {
		k := &probe.Kprobe{Symbol: "kprobe_target"}
		handled, cpl3 := 0, 0
		count := func(c *probe.Context) {
			if handled++; c.CPL == 3 {
				cpl3++
			}
		}
		var p probe.Probe = k
		if kind == "kretprobe" {
			r := &probe.Kretprobe{Kprobe: *k, Return: count}
			p, k = r, &r.Kprobe
		} else {
			k.Pre = func(c *probe.Context) int { count(c); return 0 }
		}
		if err := h.m.Engine().Register(p); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			if got, err := h.Call(0, enter, alias, 30+3*i, 0, 0); err != nil || got != 10+i {
				t.Fatalf("%s at CPL3: %d, %v", kind, got, err)
			}
		}
		if got, err := h.Call(0, fn, 30); err != nil || got != 10 {
			t.Fatalf("%s at CPL0: %d, %v", kind, got, err)
		}
		s, _, _ := h.m.Engine().Stats(k)
		if want := map[string][4]uint64{"kprobe": {4, 0, 4, 3}, "kretprobe": {1, 3, 1, 0}}[kind]; [4]uint64{s.Handled, s.Missed, uint64(handled), uint64(cpl3)} != want {
			t.Errorf("%s: handled %d, missed %d, %d handlers, %d of them at CPL3; want %v", kind, s.Handled, s.Missed, handled, cpl3, want)
		}
		if err := h.m.Engine().Unregister(k); err != nil {
			t.Error(err)
		}
	}
}

// le64 returns the bytes of v.
func le64(v uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	return b
}
