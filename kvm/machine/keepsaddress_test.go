package machine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// Instructions that show where the last x87 instruction was: in the arena, at RDI.
var (
	fninit  = []byte{0xdb, 0xe3}
	fnstenv = []byte{0xd9, 0x37}             // 28 bytes
	fnsave  = []byte{0xdd, 0x37}             // 108 bytes
	fxsave  = []byte{0x48, 0x0f, 0xae, 0x07} // 512 bytes
)

// shownForms have instructions that leave their address, or one near, where the guest can read it, and what reads it.
var shownForms = []struct {
	name  string
	code  []byte
	level int // only at this CPL; -1: any
}{
	{"fldl", asm(fninit, []byte{0xdd, 0x06}, fnstenv), -1},
	{"fld1", asm(fninit, []byte{0xd9, 0xe8}, fxsave), -1},
	{"fldpi, fstpl", asm(fninit, []byte{0xd9, 0xeb}, []byte{0xdd, 0x1e}, fnsave), -1},
	{"fld1, fadd", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xd8, 0xc0}, []byte{0xd8, 0x06}, fxsave), -1},
	{"fld1, fldz, faddp", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xd9, 0xee}, []byte{0xde, 0xc1}, fnstenv), -1},
	{"fildl, fistpll", asm(fninit, []byte{0xdb, 0x06}, []byte{0xdf, 0x7e, 0x10}, fnstenv), -1},
	{"fldt, fstpt", asm(fninit, []byte{0xdb, 0x2e}, []byte{0xdb, 0x7e, 0x20}, fxsave), -1},
	{"fld1, fucomi", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xdb, 0xe8}, fnstenv), -1},
	{"fld1, fcmove", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xda, 0xc8}, fnstenv), -1},
	{"fnop", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xd9, 0xd0}, fnstenv), -1},
	{"ffree", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xdd, 0xc0}, fnstenv), -1},
	// What follows is between the x87 instruction and the one that shows its address, and keeps it.
	{"fwait", asm(fninit, []byte{0xd9, 0xe8}, 0x9b, fnstenv), -1},
	{"fnclex", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xdb, 0xe2}, fnstenv), -1},
	{"fnstcw, fldcw", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xd9, 0x3e}, []byte{0xd9, 0x2e}, fnstenv), -1},
	{"fnstsw", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xdf, 0xe0}, []byte{0xdd, 0x3e}, fnstenv), -1},
	{"fnstenv, fldenv", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xd9, 0x36}, []byte{0xd9, 0x26}, fnstenv), -1},
	{"fxsave, fxrstor", asm(fninit, []byte{0xd9, 0xe8}, []byte{0x48, 0x0f, 0xae, 0x07}, []byte{0x48, 0x0f, 0xae, 0x0f}, fnstenv), -1},
	{"fnsave, frstor", asm(fninit, []byte{0xd9, 0xe8}, []byte{0xdd, 0x36}, []byte{0xdd, 0x26}, fnstenv), -1},
	// RIP itself: lea, call, and what pushes it.
	{"lea", asm([]byte{0x48, 0x8d, 0x05, 0, 0, 0, 0}, []byte{0x8d, 0x0d, 0, 0, 0, 0}, []byte{0x67, 0x48, 0x8d, 0x15, 0, 0, 0, 0}), -1},
	{"call, pop", asm([]byte{0xe8, 0, 0, 0, 0}, 0x58, []byte{0xe8, 2, 0, 0, 0}, []byte{0xeb, 3}, 0x59, []byte{0xff, 0xe1}), -1},
	{"call *", asm([]byte{0x48, 0x8d, 0x05, 2, 0, 0, 0}, []byte{0xff, 0xd0}, 0x59), -1}, // to the next
	// Far: push %cs; push of the next address; lretq. The built-in guest's selectors are the loader's.
	{"lretq", asm([]byte{0x8c, 0xc8, 0x50}, []byte{0x48, 0x8d, 0x0d, 3, 0, 0, 0}, 0x51, []byte{0x48, 0xcb}, 0x90), -1},
	// lea to the next but one, mov to (%rsi), mov %cs to 8(%rsi), lcall *(%rsi): it pushes where it came from.
	{"lcallq", asm([]byte{0x48, 0x8d, 0x05, 9, 0, 0, 0}, []byte{0x48, 0x89, 0x06}, []byte{0x8c, 0x4e, 0x08}, []byte{0x48, 0xff, 0x1e}, 0x58, 0x59), -1},
	{"ljmpq", asm([]byte{0x48, 0x8d, 0x05, 9, 0, 0, 0}, []byte{0x48, 0x89, 0x06}, []byte{0x8c, 0x4e, 0x08}, []byte{0x48, 0xff, 0x2e}, 0x90, 0x90), -1},
	// Hypercalls: KVM may write the processor's own over the other vendor's.
	{"vmcall", []byte{0x0f, 0x01, 0xc1}, -1},
	{"vmmcall", []byte{0x0f, 0x01, 0xd9}, -1},
	{"syscall", []byte{0x0f, 0x05}, 3},
	{"syscall twice", []byte{0x0f, 0x05, 0x49, 0x89, 0xc8, 0x0f, 0x05}, 3},
	{"xbegin", asm([]byte{0xc7, 0xf8, 3, 0, 0, 0}, []byte{0x0f, 0x01, 0xd5}, 0x90), -1},
	{"sgdt, sidt, sldt, str", asm([]byte{0x0f, 0x01, 0x06}, []byte{0x0f, 0x01, 0x4e, 0x10}, []byte{0x0f, 0x00, 0xc1}, []byte{0x0f, 0x00, 0xca}), 0},
	{"pushf, lahf", asm(0x9c, 0x58, 0x9f), -1},
	{"enter, leave", asm([]byte{0xc8, 0x10, 0, 0}, 0xc9), -1},
}

// buildShownForms are shownForms as forms.
func buildShownForms(cpl int) (forms []*form) {
	base := uint64(formsKernelCode)
	if cpl == 3 {
		base = formsUserCode
	}
	arena := base + formsDataOff + formsArena
	for _, w := range shownForms {
		if w.level >= 0 && w.level != cpl {
			continue
		}
		f := &form{name: fmt.Sprintf("form_%04d", len(forms)), text: w.name, code: w.code, fl: 2, mem: map[int]uint64{}}
		if cpl == 3 {
			f.fl |= x86.FlagIF
		}
		f.regs[x86.RAX] = 0x4242 // no hypercall
		f.regs[x86.RSP] = arena + 2*formsArenaSize + formsArenaSize/2
		f.regs[x86.RDI], f.regs[x86.RSI] = arena, arena+formsArenaSize
		f.mem[formsArena+formsArenaSize] = 0x3ff8_0000_3fc0_0040
		f.mem[formsArena+formsArenaSize+8] = 0x4000
		forms = append(forms, f)
	}
	return forms
}

// enableSyscall has syscall lead to code in the engine's memory that goes back, where the guest uses another way. It does so
// by an iretq: KVM's emulator has no sysret.
func (r *formRun) enableSyscall() {
	r.t.Helper()
	const room = 4096
	stack, _, err := r.m.AllocShared(room, false)
	if err != nil {
		r.t.Fatal(err)
	}
	back := asm([]byte{0x49, 0x89, 0xe2}, // mov %rsp,%r10
		binary.LittleEndian.AppendUint64([]byte{0x48, 0xbc}, uint64(stack+room)),               // mov $stack,%rsp
		[]byte{0x6a, guest.SelUserData, 0x41, 0x52, 0x41, 0x53, 0x6a, guest.SelUserCode, 0x51}, // push $SS, %r10, %r11, $CS, %rcx
		[]byte{0x48, 0xcf})
	at, err := r.m.target().AllocExec(r.m.Image().ID().Entry, len(back))
	if err == nil {
		err = r.m.target().WriteExec(at, back)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	err = r.m.Stop(func(probe.World) error {
		v := r.m.vcpus[0]
		v.sregs.EFER |= 1
		v.kvm.SetSregsDirty()
		return v.kvm.SetMSRs([]kvm.MSR{
			{Index: 0xc0000081, Data: (guest.SelKernelData|3)<<48 | guest.SelKernelCode<<32}, // STAR
			{Index: msrLSTAR, Data: uint64(at)},
			{Index: 0xc0000084, Data: x86.FlagIF | x86.FlagTF | x86.FlagDF}, // SFMASK
		})
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// forgetPointers clears the pointers of x87 images that the forms store. Processors by AMD save and restore them only with
// an exception pending (APM Vol. 2, 11.4.4), so that a kernel's own x87 instructions show in a guest after an exit.
func forgetPointers(r *formResult) {
	for _, at := range []int{0, 0x1000} {
		clear(r.arena[at+8 : at+0x1c])
	}
}

// TestKeepsAddress runs code that finds out where its instructions ran: unprobed, and with a probe on each instruction,
// with a post handler and without. No register and no byte of memory differs, FPU state included, and the text is
// what it is without.
func TestKeepsAddress(t *testing.T) {
	kvmtest.Require(t)
	for _, cpl := range []int{0, 3} {
		forms := buildShownForms(cpl)
		boot := func() *formRun {
			v := vectorNone
			if cpl == 3 {
				v = vectorSSE
			}
			r := bootForms(t, cpl, v, forms)
			if cpl == 3 {
				r.enableSyscall()
			}
			return r
		}
		r := boot()
		var dead []string
		compared := 0
		for i, f := range forms {
			if (strings.HasPrefix(f.text, "vm") || f.text == "xbegin") && cpl == 0 && r.m.Host().Traps.CPL0.Int3 == host.DeliveryEmulation {
				dead = append(dead, f.text) // that emulator goes around in it
				continue
			}
			all := r.ctx
			ctx, cancel := context.WithTimeout(all, 20*time.Second) // a host that cannot execute it may go around in it
			r.ctx = ctx
			want, err := r.run(f, i, 1)
			cancel()
			if r.ctx = all; errors.Is(err, errFormDied) || errors.Is(err, ErrCallRunning) || errors.Is(err, context.DeadlineExceeded) {
				dead = append(dead, f.text)
				if last := texts(r.m.Console().tail(1)); r.m.State().Phase == PhaseExited {
					r.close()
					r = boot()
					r.dies(f, i, last)
				}
				r.close()
				r = boot()
				continue
			}
			if err != nil {
				t.Fatalf("CPL%d %s: %v", cpl, f.text, err)
			}
			native := r.text(i)
			for off := 0; off < len(f.code); {
				inst, err := x86.Decode(f.code[off:])
				if err != nil {
					break
				}
				for _, post := range []func(*probe.Context){nil, func(*probe.Context) {}} {
					what := fmt.Sprintf("CPL%d %s, probe at +%d (% x), post %v", cpl, f.text, off, inst.Bytes(), post != nil)
					hits := 0
					k := &probe.Kprobe{Symbol: f.name, Offset: uint64(off), Pre: func(*probe.Context) int { hits++; return 0 }, Post: post}
					if err := r.m.Engine().Register(k); err != nil {
						if e := (*probe.Error)(nil); errors.As(err, &e) && (e.Code == probe.CodeNoPost || e.Code == probe.CodeHostCannot) {
							continue
						}
						t.Fatalf("%s: %v", what, err)
					}
					info, _ := r.m.Engine().Info(k)
					got, err := r.run(f, i, 1)
					if err == nil && snapshot.Vendor(r.m.cpuid) == "AuthenticAMD" {
						forgetPointers(want)
						forgetPointers(got)
					}
					switch {
					case err != nil:
						t.Fatalf("%s, %s: %v", what, info.Plan, err)
					case want.differ(got) != "":
						t.Errorf("%s, %s: %s", what, info.Plan, want.differ(got))
					case hits == 0:
						t.Errorf("%s: no hit", what)
					}
					compared++
					if err := r.m.Engine().Unregister(k); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					if text := r.text(i); !bytes.Equal(text, native) {
						t.Errorf("%s: the text is % x, want % x", what, text, native)
					}
				}
				if off += int(inst.Len); inst.Class() == x86.ClassTransaction {
					break // an int3 inside of a transaction ends it
				}
			}
		}
		r.close()
		t.Logf("CPL%d: %d runs compared; this host cannot execute %v", cpl, compared, dead)
	}
}

// dies runs a form that ends the guest, with a probe on its first instruction: the guest's last words, which have its
// registers, are those without.
func (r *formRun) dies(f *form, i int, want []string) {
	r.t.Helper()
	k := &probe.Kprobe{Symbol: f.name, Pre: func(*probe.Context) int { return 0 }}
	if err := r.m.Engine().Register(k); err != nil {
		if e := (*probe.Error)(nil); !errors.As(err, &e) || e.Code != probe.CodeHostCannot {
			r.t.Errorf("%s: %v", f.text, err)
		}
		return
	}
	_, err := r.run(f, i, 1)
	if got := texts(r.m.Console().tail(1)); !errors.Is(err, errFormDied) || !slices.Equal(got, want) {
		r.t.Errorf("CPL%d %s: %v, the guest's last words are %q, want %q", r.cpl, f.text, err, got, want)
	}
}

// text returns the bytes of a form.
func (r *formRun) text(i int) []byte {
	r.t.Helper()
	b := make([]byte, formSlot)
	if err := r.m.Peek(guest.GVA(r.base+formsFirst+uint64(i)*formSlot), b); err != nil {
		r.t.Fatal(err)
	}
	return b
}
