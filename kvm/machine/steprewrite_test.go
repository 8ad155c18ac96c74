package machine

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// rewriteForm is code that changes, or reads, code that follows it.
type rewriteForm struct {
	name  string
	code  []byte
	steps []guest.GVA // where the vCPU is after each step from the first instruction, which is a nop
	regs  map[x86.Reg64]uint64
	self  map[x86.Reg64]uint64 // registers that are offsets in the form
	level int                  // only at this CPL; -1: any
	// refused is the offset of the instruction that a debugger cannot step where the host cannot single-step.
	refused guest.GVA
}

// nop2 are two nops as a number.
const nop2 = 0x9090

var rewriteForms = []rewriteForm{
	// 01 movw $0x9090, 0a(%rip); 0a inc %eax
	{name: "store", code: asm(0x90, []byte{0x66, 0xc7, 0x05, 0, 0, 0, 0, 0x90, 0x90}, []byte{0xff, 0xc0, 0x90}), steps: offsetList(1, 0xa, 0xb, 0xc, 0xd), level: -1},
	// The guest's own int3 over the next instruction, and inc %eax over that again, by a probe's step.
	{name: "int3 and back", code: asm(0x90, []byte{0xc6, 0x07, 0xcc}, []byte{0xc6, 0x07, 0x90}, []byte{0x90, 0x90}),
		steps: offsetList(1, 4, 7, 8, 9), self: map[x86.Reg64]uint64{x86.RDI: 7}, level: -1},
	// 01 rep stosb; 03 inc %edx
	{name: "rep stosb", code: asm(0x90, []byte{0xf3, 0xaa}, []byte{0xff, 0xc2, 0x90}), steps: offsetList(1, 3, 4, 5, 6),
		regs: map[x86.Reg64]uint64{x86.RAX: 0x90, x86.RCX: 2}, self: map[x86.Reg64]uint64{x86.RDI: 3}, level: -1},
	// 01 rep movsw from 05 to 03; 03 inc %edx
	{name: "rep movsw", code: asm(0x90, []byte{0xf3, 0x66, 0xa5}, []byte{0xff, 0xc2, 0x90, 0x90}), steps: offsetList(1, 4, 5, 6, 7, 8),
		regs: map[x86.Reg64]uint64{x86.RCX: 1}, self: map[x86.Reg64]uint64{x86.RSI: 6, x86.RDI: 4}, level: -1},
	// Backwards: std; rep stosb; cld
	{name: "rep stosb down", code: asm(0x90, 0xfd, []byte{0xf3, 0xaa}, []byte{0xff, 0xc2, 0x90, 0xfc}), steps: offsetList(1, 2, 4, 5, 6, 7, 8),
		regs: map[x86.Reg64]uint64{x86.RAX: 0x90, x86.RCX: 3}, self: map[x86.Reg64]uint64{x86.RDI: 6}, level: -1},
	// 01 mov 08(%rip),%ax; 08 inc %ecx: reads what a step has an int3 in.
	{name: "load", code: asm(0x90, []byte{0x66, 0x8b, 0x05, 0, 0, 0, 0}, []byte{0xff, 0xc1}), steps: offsetList(1, 8, 0xa), level: -1},
	// 01 mov (%rdi),%al reads its own first byte, 03 cmpb $0xcc,(%rdi) that of the next
	{name: "load of itself", code: asm(0x90, []byte{0x8a, 0x07}, []byte{0x80, 0x7f, 0x05, 0xcc}, 0x90), steps: offsetList(1, 3, 7, 8),
		self: map[x86.Reg64]uint64{x86.RDI: 1}, level: -1},
	// xchg, xadd, lock add, cmpxchg
	{name: "xchg", code: asm(0x90, []byte{0x66, 0x87, 0x07}, []byte{0xff, 0xc2, 0x90}), steps: offsetList(1, 4, 5, 6, 7),
		regs: map[x86.Reg64]uint64{x86.RAX: nop2}, self: map[x86.Reg64]uint64{x86.RDI: 4}, level: -1},
	{name: "lock add", code: asm(0x90, []byte{0xf0, 0x00, 0x07}, []byte{0x8f, 0x90}), steps: offsetList(1, 4, 5, 6),
		regs: map[x86.Reg64]uint64{x86.RAX: 1}, self: map[x86.Reg64]uint64{x86.RDI: 4}, level: -1},
	{name: "cmpxchg", code: asm(0x90, []byte{0x66, 0x0f, 0xb1, 0x0f}, []byte{0xff, 0xc2, 0x90}), steps: offsetList(1, 5, 6, 7, 8),
		regs: map[x86.Reg64]uint64{x86.RAX: 0xc2ff, x86.RCX: nop2}, self: map[x86.Reg64]uint64{x86.RDI: 5}, level: -1},
	{name: "setcc", code: asm(0x90, []byte{0x0f, 0x94, 0x47, 0x01}, []byte{0x3c, 0x05}), steps: offsetList(1, 5, 7), self: map[x86.Reg64]uint64{x86.RDI: 5}, level: -1},
	// A stack in the text: pop to it, push there.
	{name: "pop", code: asm(0x90, []byte{0x66, 0x8f, 0x07}, []byte{0xff, 0xc2, 0x90}), steps: offsetList(1, 4, 5, 6, 7),
		self: map[x86.Reg64]uint64{x86.RDI: 4, x86.RSP: 0x20}, level: -1},
	// Moves around the caches, and of vectors.
	{name: "movnti", code: asm(0x90, []byte{0x0f, 0xc3, 0x07}, []byte{0xff, 0xc2, 0xff, 0xc2}), steps: offsetList(1, 4, 5, 6, 7, 8),
		regs: map[x86.Reg64]uint64{x86.RAX: 0x90909090}, self: map[x86.Reg64]uint64{x86.RDI: 4}, level: -1},
	{name: "movups", code: asm(0x90, []byte{0x0f, 0x10, 0x06}, []byte{0x0f, 0x11, 0x07}, bytes.Repeat([]byte{0xff, 0xc2}, 8)),
		steps: offsetList(1, 4, 7, 8, 9), self: map[x86.Reg64]uint64{x86.RSI: formPad + 5, x86.RDI: 7}, level: 3},
	// An x87 instruction leaves its address in the FPU: fistps over a nop, fnstenv (%rsi), pop of the address.
	{name: "fistps", code: asm(0x90, []byte{0xd9, 0xee}, []byte{0xdf, 0x1f}, []byte{0x90, 0x90, 0x90}, []byte{0xd9, 0x36}, []byte{0x48, 0x8b, 0x56, 0x08}, 0x90),
		steps: offsetList(1, 3, 5, 7, 8, 0xa, 0xe), self: map[x86.Reg64]uint64{x86.RDI: 5}, level: 3},
	// A far jump to the selector in its own operand, 23 00 or 08 00, which is an instruction that uses (%rax): it reads
	// the byte that it leads to, and runs only in its place. AMD's processors have none to 64 bits.
	{name: "ljmpq", code: asm(0x90, []byte{0x48, 0x8d, 0x05, 0x18, 0, 0, 0}, []byte{0x48, 0x89, 0x07}, []byte{0x8c, 0x4f, 0x08}, []byte{0x48, 0x89, 0xf0}, []byte{0x48, 0xff, 0x2f}),
		steps: offsetList(1, 8, 0xb, 0xe, 0x11, 0x20, 0x22), self: map[x86.Reg64]uint64{x86.RDI: 0x18}, level: -1, refused: 0x11},
}

// offsetList makes a list of offsets.
func offsetList(to ...guest.GVA) []guest.GVA { return to }

// buildRewriteForms are rewriteForms as forms.
func buildRewriteForms(cpl int) (forms []*form, of []rewriteForm) {
	base := uint64(formsKernelCode)
	if cpl == 3 {
		base = formsUserCode
	}
	for _, w := range rewriteForms {
		if w.level >= 0 && w.level != cpl {
			continue
		}
		f := &form{name: fmt.Sprintf("form_%04d", len(forms)), text: w.name, code: w.code, fl: 2, mem: map[int]uint64{}}
		if cpl == 3 {
			f.fl |= x86.FlagIF
		}
		f.regs[x86.RSP] = base + formsDataOff + formsArena + formsArenaSize
		// Pointers to the arena, where nothing else is said.
		f.regs[x86.RAX], f.regs[x86.RDI], f.regs[x86.RSI] = base+formsDataOff+formsArena, base+formsDataOff+formsArena, base+formsDataOff+formsArena
		for r, v := range w.regs {
			f.regs[r] = v
		}
		for r, v := range w.self {
			f.regs[r] = base + formsFirst + uint64(len(forms))*formSlot + v
		}
		forms, of = append(forms, f), append(of, w)
	}
	return forms, of
}

// TestStepRewrites steps over instructions that overwrite, or read, the one that follows: a step is one instruction, what
// the guest computes and has in its text is what it computes and has without, and that it cannot be had is an
// error that changes nothing. Then with probes on each instruction, with post handlers and without.
func TestStepRewrites(t *testing.T) {
	kvmtest.Require(t)
	rep, err := host.Calibrate(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, cpl := range []int{0, 3} {
		forms, of := buildRewriteForms(cpl)
		v := vectorNone
		if cpl == 3 {
			v = vectorSSE
		}
		r := bootFormsOf(t, cpl, v, forms, elf.PF_R|elf.PF_W|elf.PF_X)
		defer r.close()
		if r.m.Host().NoBreakReason(cpl == 3, true) != "" {
			continue
		}
		steps := rep.Traps.CPL(uint8(cpl)).Step == host.DeliveryWorks
		for i, f := range forms {
			if amd := snapshot.Vendor(r.m.cpuid) == "AuthenticAMD"; amd && f.text == "fistps" {
				continue // it shows a pointer that these processors do not keep: see forgetPointers
			} else if amd && f.text == "ljmpq" {
				continue // it is a far jump to 32 bits there, and the user code that has asked for it is gone
			}
			t.Run(fmt.Sprintf("CPL%d %s", cpl, f.text), func(t *testing.T) { stepRewrite(t, r, i, f, of[i], steps) })
		}
	}
}

func stepRewrite(t *testing.T, r *formRun, i int, f *form, w rewriteForm, singleSteps bool) {
	start := guest.GVA(r.base + formsFirst + uint64(i)*formSlot)
	text := func() []byte {
		b := make([]byte, formSlot)
		if err := r.m.Peek(start, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	original := text()
	again := func() {
		if err := r.m.WriteMemory(0, start, original); err != nil {
			t.Fatal(err)
		}
	}
	want, err := r.run(f, i, 1)
	if errors.Is(err, errFormDied) && w.refused != 0 {
		t.Log("this host cannot execute it")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	changed := text()
	again()
	check := func(what string, got *formResult, err error, probed ...guest.GVA) {
		t.Helper()
		now, native := text(), slices.Clone(changed)
		for _, at := range probed { // a probe that is still there has its int3
			if now[at] == x86.Int3 && native[at] != x86.Int3 && native[at] == original[at] {
				now[at] = native[at]
			}
		}
		switch {
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		case want.differ(got) != "":
			t.Errorf("%s: %s", what, want.differ(got))
		case !bytes.Equal(now, native):
			t.Errorf("%s: the text is % x, want % x", what, now, native)
		}
	}
	// Stepped.
	stop := &probe.Kprobe{Symbol: f.name, Pre: func(c *probe.Context) int { c.Stop(); return 0 }}
	if err := r.m.Engine().Register(stop); err != nil {
		t.Fatal(err)
	}
	var got *formResult
	done := make(chan error, 1)
	go func() {
		var err error
		got, err = r.run(f, i, 1)
		done <- err
	}()
	cpu := awaitStops(t, r.m, 1)[0].CPU
	for _, to := range w.steps {
		before := registers(t, r.m, cpu)
		did, err := r.m.Step(r.ctx, cpu, 1)
		now := registers(t, r.m, cpu)
		if w.refused != 0 && !singleSteps && before.Live == start+w.refused {
			if did != 0 || !errors.Is(err, ErrStepOverwrites) || now.Regs != before.Regs {
				t.Errorf("at +%#x: %d, %v, %+v; want it refused, and nothing changed", uint64(w.refused), did, err, now.Regs)
			}
			break
		}
		if did != 1 || err != nil || now.Live != start+to {
			t.Fatalf("%d steps, %v, at %v; want %v", did, err, now.Live, start+to)
		}
	}
	if err := r.m.Continue(cpu); err != nil {
		t.Fatal(err)
	}
	err = <-done
	check("stepped", got, err, 0)
	if err := r.m.Engine().Unregister(stop); err != nil {
		t.Fatal(err)
	}
	check("stepped, and the probe is gone", got, nil)
	for _, v := range r.m.State().VCPUs {
		if v.Activity == VCPUHalted {
			t.Errorf("vCPU %d is halted at %v", v.ID, v.RIP)
		}
	}
	again()
	// Probed: the instruction that rewrites, alone and with post handlers.
	for at := w.steps[0]; int(at) < len(w.code); {
		inst, err := x86.Decode(original[at:])
		if err != nil {
			break
		}
		if w.touches(at) || changed[at] != original[at] {
			at += guest.GVA(inst.Len)
			continue // the probe's own int3 is read or overwritten: docs/compatibility.md
		}
		for _, post := range []func(*probe.Context){nil, func(*probe.Context) {}} {
			k := &probe.Kprobe{Symbol: f.name, Offset: uint64(at), Pre: func(*probe.Context) int { return 0 }, Post: post}
			if err := r.m.Engine().Register(k); err != nil {
				var e *probe.Error
				if !errors.As(err, &e) {
					t.Fatal(err)
				}
				continue
			}
			got, err := r.run(f, i, 1)
			check(fmt.Sprintf("probed at +%#x, post %v", uint64(at), post != nil), got, err, at)
			if err := r.m.Engine().Unregister(k); err != nil {
				t.Errorf("unregister: %v", err)
			}
			again()
		}
		at += guest.GVA(inst.Len)
	}
}

// touches reports whether an instruction of the form reads or writes the byte at an offset without changing it.
func (w rewriteForm) touches(at guest.GVA) bool {
	switch w.name {
	case "load":
		return at == 8
	case "load of itself":
		return at == 1
	case "int3 and back":
		return at == 7
	case "rep movsw":
		return at >= 6
	case "rep stosb down":
		return at >= 4
	case "setcc", "cmpxchg", "fistps":
		return at == 5
	case "movups":
		return at >= 7
	}
	return false
}
