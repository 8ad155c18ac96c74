package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSavedCopies: a function under a return probe copies its return address, as setjmp and stacks that are moved do, to memory at even and odd
// addresses, far from any other word of a context, and to a general register; what code of programs puts into MMX and vector registers is put there, at odd bytes, too, and what the kernel puts into bases, debug registers and MSRs. In a snapshot all of them are the guest's own, and as long as
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
	ctx := patience.Context(t)
	k := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "f"}, Return: func(*probe.Context) {}}
	// copies returns what the copies are in a guest.
	copies := func(m *Machine, live bool) (out []uint64) {
		t.Helper()
		err := m.Look(func(l *Look) error {
			r, _, err := l.GeneralRegisters(0)
			if err != nil {
				return err
			}
			x, err := l.Vectors(0)
			if err != nil {
				return err
			}
			out = append([]uint64{r.RCX}, swapHeld(t, m.vcpus[0], &x, nil)...)
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
	fill := func(m *Machine, word func(what string) uint64) {
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
			swapHeld(t, m.vcpus[0], &x, word)
			err = l.Change(0, r, &x)
			swapHeld(t, m.vcpus[0], &x, word) // it gives back the others
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := heldNames(unpackVectors(make([]byte, 1<<16), newMachine(t, config).cpuid).Width)
	own := slices.Repeat([]uint64{tinyText + back}, 3+len(names))
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
		fill(m, func(string) uint64 { return tramp })
		if got := copies(m, true); tramp == own[0] || !slices.Equal(got, slices.Repeat([]uint64{tramp}, len(own))) {
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
		t.Errorf("the restored guest has %#x in RCX, %q and memory, want %#x", got, names, own)
	}
	// Its memory is put aside, as by a kernel that hibernates: nothing of the engine's is there any more.
	aside, _ := probed(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "f"}, Return: func(*probe.Context) {}})
	if err := aside.withdraw(func() {}); err != nil {
		t.Fatal(err)
	}
	if got := copies(aside, true); !slices.Equal(got, own) {
		t.Errorf("the guest whose memory is put aside has %#x in RCX, %q and memory, want %#x", got, names, own)
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
		fill(m, word)
		if err := m.Engine().Collect(); err != nil {
			t.Fatal(err)
		}
		return m.Engine().CollectorStats().Used
	}
	for _, left := range append([]string{"rcx", "even", "odd"}, names...) {
		if used(left) == 0 {
			t.Errorf("the code was taken back with its address in %s", left)
		}
	}
	if n := used(); n != 0 {
		t.Errorf("%d bytes of code are left, with no address of them in the guest", n)
	}
}

// heldNames are the places in registers of a vCPU with vectors of that width that held is about.
func heldNames(width int) []string {
	names := []string{"mm", "xmm low", "xmm high", "xmm at 3", "fs", "gs", "kernel gs", "lstar", "dr0", "dr3", "cr2"}
	if width >= 32 {
		names = append(names, "ymm at 12")
	}
	if width >= 64 {
		names = append(names, "zmm at 27", "zmm16 at 40")
	}
	return names
}

// swapHeld returns the words that a vCPU, which rests, has in the places of heldNames, and gives it those of word, if that is not nil: in x those of
// vectors.
func swapHeld(t *testing.T, v *vcpu, x *Vectors, word func(what string) uint64) (out []uint64) {
	t.Helper()
	var debug kvm.DebugRegs
	if err := v.kvm.GetDebugRegs(&debug); err != nil {
		t.Fatal(err)
	}
	msrs := []kvm.MSR{{Index: 0xc0000102}, {Index: 0xc0000082}}
	for i := range msrs {
		got, err := v.kvm.ReadMSRs([]uint32{msrs[i].Index})
		if err != nil || len(got) != 1 {
			t.Fatalf("MSR %#x: %v, %v", msrs[i].Index, got, err)
		}
		msrs[i] = got[0]
	}
	place := map[string][]byte{
		"mm": x.ST[3][:], "xmm low": x.Regs[5][:], "xmm high": x.Regs[5][8:], "xmm at 3": x.Regs[6][3:],
		"ymm at 12": x.Regs[7][12:], "zmm at 27": x.Regs[8][27:],
	}
	if x.Width >= 64 {
		place["zmm16 at 40"] = x.Regs[16][40:]
	}
	number := map[string]*uint64{
		"fs": &v.sregs.FS.Base, "gs": &v.sregs.GS.Base, "kernel gs": &msrs[0].Data, "lstar": &msrs[1].Data,
		"dr0": &debug.DB[0], "dr3": &debug.DB[3], "cr2": &v.sregs.CR2,
	}
	for _, what := range heldNames(x.Width) {
		b, n := place[what], number[what]
		switch {
		case word == nil:
		case n != nil:
			*n = word(what)
		default:
			binary.LittleEndian.PutUint64(b, word(what))
		}
		if n != nil {
			out = append(out, *n)
		} else {
			out = append(out, littleEndian(b[:8]))
		}
	}
	if word == nil {
		return out
	}
	v.kvm.SetSregsDirty()
	if err := errors.Join(v.kvm.SetDebugRegs(&debug), v.kvm.SetMSRs(msrs)); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHeldMSRs: of a snapshot's MSRs those are looked at that are for addresses. A clock or a counter may be any number, that of a trampoline too.
func TestHeldMSRs(t *testing.T) {
	const number = 0xffffffff80800410
	c := &snapshot.CPU{XSave: make([]byte, 4096)}
	for _, index := range []uint32{0x10, 0x6e0, 0xc0000082, 0x309, 0xc0000102, 0x4b564d01} {
		c.MSRs = append(c.MSRs, kvm.MSR{Index: index, Data: number})
	}
	forEachHeld(c, nil, func(reg []byte, _ bool) {
		if littleEndian(reg[:8]) == number {
			binary.LittleEndian.PutUint64(reg, 1)
		}
	})
	for _, x := range c.MSRs {
		want := uint64(number)
		if x.Index == 0xc0000082 || x.Index == 0xc0000102 {
			want = 1
		}
		if x.Data != want {
			t.Errorf("MSR %#x has %#x, want %#x", x.Index, x.Data, want)
		}
	}
}
