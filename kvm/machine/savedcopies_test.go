package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSavedCopies: a function under a return probe copies its return address, as setjmp and stacks that are moved do, to memory at even and odd
// addresses, far from any other word of a context, and to a general register; what code of programs puts into MMX and XMM registers is put there. In a snapshot all of them are the guest's own, and as long as
// one of them is left in the running guest, the code that it leads into is not used for anything else.
func TestSavedCopies(t *testing.T) {
	const (
		f, back  = 0x20, 0x0f
		buf, odd = tinyData + 0x800, tinyData + 0xa03
	)
	code := append([]byte{0x48, 0xbf}, binary.LittleEndian.AppendUint64(nil, buf)...) // 00 mov $buf,%rdi
	code = append(code,
		0xe8, f-back, 0, 0, 0, // 0a call f
		0xf3, 0x90, // 0f pause
		0xeb, 0xfc, // 11 jmp 0f
	)
	code = append(code, make([]byte, f-len(code))...)
	code = append(code,
		0x48, 0x8b, 0x0c, 0x24, // mov (%rsp),%rcx
		0x48, 0x89, 0x0f, // mov %rcx,(%rdi)
		0x48, 0x89, 0x8f, 0x03, 0x02, 0, 0, // mov %rcx,0x203(%rdi)
		0xc3)
	config := Config{Image: tinyGuest(t, asm(code, stub3), nil, tinySym{"main", tinyText, f}, tinySym{"f", tinyText + f, uint64(len(code) - f)}),
		Memory: 16 << 20, VCPUs: 1, Tick: -1}
	ctx := patience.Of(t)
	k := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "f"}, Return: func(*probe.Context) {}}
	// copies returns what the copies are in a guest.
	copies := func(m *Machine, live bool) (out []uint64) {
		t.Helper()
		err := m.Look(func(l *Look) error {
			r, _, err := l.General(0)
			if err != nil {
				return err
			}
			x, err := l.Vectors(0)
			if err != nil {
				return err
			}
			out = []uint64{r.RCX, littleEndian(x.ST[3][:8]), littleEndian(x.Regs[5][:8]), littleEndian(x.Regs[5][8:16])}
			for _, at := range []guest.GVA{buf, odd} {
				var b [8]byte
				if _, err := l.Read(0, at, b[:], live); err != nil {
					return err
				}
				out = append(out, littleEndian(b[:]))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	fill := func(m *Machine, mm, low, high uint64) {
		t.Helper()
		err := m.Look(func(l *Look) error {
			r, err := l.Registers(0)
			if err != nil {
				return err
			}
			x, err := l.Vectors(0)
			if err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(x.ST[3][:], mm)
			binary.LittleEndian.PutUint64(x.Regs[5][:], low)
			binary.LittleEndian.PutUint64(x.Regs[5][8:], high)
			return l.Change(0, r, &x)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	own := slices.Repeat([]uint64{tinyText + back}, 6)
	// probed returns a guest that has returned from f under k, and the address that it found there.
	probed := func(k *probe.Kretprobe) (m *Machine, tramp uint64) {
		t.Helper()
		m = newMachine(t, config)
		if err := m.Engine().Register(k); err != nil {
			t.Fatal(err)
		}
		for step := 0; registers(t, m, 0).Live != tinyText+back; step++ {
			if _, err := m.Step(ctx, 0, 1); err != nil || step > 20 {
				t.Fatal(step, err)
			}
		}
		tramp = copies(m, true)[0]
		fill(m, tramp, tramp, tramp)
		if got := copies(m, true); tramp == own[0] || !slices.Equal(got, slices.Repeat([]uint64{tramp}, 6)) {
			t.Fatalf("the return address is not replaced: %#x", got)
		}
		return m, tramp
	}
	m, tramp := probed(k)
	other := newMachine(t, config)
	if err := other.ResetTo(context.Background(), save(t, m)); err != nil {
		t.Fatal(err)
	}
	if got := copies(other, true); !slices.Equal(got, own) {
		t.Errorf("the restored guest has %#x in RCX, MM3, XMM5 and memory, want %#x", got, own)
	}
	// Its memory is put aside, as by a kernel that hibernates: nothing of the engine's is there any more.
	aside, _ := probed(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "f"}, Return: func(*probe.Context) {}})
	if err := aside.withdraw(func() {}); err != nil {
		t.Fatal(err)
	}
	if got := copies(aside, true); !slices.Equal(got, own) {
		t.Errorf("the guest whose memory is put aside has %#x in RCX, MM3, XMM5 and memory, want %#x", got, own)
	}
	if err := m.Engine().Unregister(&k.Kprobe); err != nil {
		t.Fatal(err)
	}
	// used returns how much memory the engine needs when only the copies that are named are left in the guest.
	used := func(left ...string) int {
		t.Helper()
		word := func(what string) uint64 {
			if slices.Contains(left, what) {
				return tramp
			}
			return 0
		}
		put := func(l *Look, at guest.GVA, v uint64) error {
			return l.Write(0, at, binary.LittleEndian.AppendUint64(nil, v))
		}
		err := m.Look(func(l *Look) error {
			r, err := l.Registers(0)
			if err != nil {
				return err
			}
			r.Regs.RCX = word("rcx")
			if err := l.Change(0, r, nil); err != nil {
				return err
			}
			if err := l.Write(0, guest.GVA(r.Regs.RSP)-64, make([]byte, 64)); err != nil {
				return err
			}
			return errors.Join(put(l, buf, word("even")), put(l, odd, word("odd")))
		})
		if err != nil {
			t.Fatal(err)
		}
		fill(m, word("mm"), word("xmm low"), word("xmm high"))
		if err := m.Engine().Collect(); err != nil {
			t.Fatal(err)
		}
		return m.Engine().CollectorStats().Used
	}
	for _, left := range []string{"rcx", "mm", "xmm low", "xmm high", "even", "odd"} {
		if used(left) == 0 {
			t.Errorf("the code was taken back with its address in %s", left)
		}
	}
	if n := used(); n != 0 {
		t.Errorf("%d bytes of code are left, with no address of them in the guest", n)
	}
}
