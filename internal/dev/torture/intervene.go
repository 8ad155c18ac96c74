package torture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// runSaved runs the guest with probes that stay, and saves it at random moments.
// Then this machine, and one without probes, continue from the snapshot, and
// must reach the same end.
func (w *work) runSaved(ctx context.Context) error {
	if w.p.Classes&Moves != 0 && (w.p.Bytes || w.p.Uneven) {
		return w.runProbed(ctx) // of a return address that is being copied, part may be in one place, and part in another
	}
	if err := w.plant(); err != nil {
		return err
	}
	if err := w.tellTracer(); err != nil {
		return err
	}
	if err := w.t.m.Resume(); err != nil {
		return err
	}
	var snaps []*snapshot.Snapshot
	for range 1 + w.IntN(3) {
		w.pause()
		s, err := w.save()
		if err != nil {
			return err
		}
		if s != nil {
			snaps = append(snaps, s)
		}
	}
	if err := w.t.awaitEnd(ctx); err != nil {
		return err
	}
	for _, s := range snaps {
		if err := w.t.findOwnAddrs(s); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	if err := errors.Join(w.checkExact(), w.t.compare(w.p, w.want)); err != nil || len(snaps) == 0 {
		return errors.Join(err, w.detach(w.probes...), w.text())
	}
	s := snaps[w.IntN(len(snaps))]
	with := func(err error, how string) error {
		if err != nil {
			return fmt.Errorf("%s a snapshot: %w", how, err)
		}
		return nil
	}
	if w.IntN(2) == 0 {
		w.t.sum.Continued++
		err := w.resumeFrom(ctx, s)
		if err := with(errors.Join(err, w.detach(w.probes...), w.text()), "reset to"); err != nil {
			return err
		}
	} else if err := errors.Join(w.detach(w.probes...), w.text()); err != nil {
		return err
	}
	// Without a probe: a saved guest must run without the engine.
	w.t.sum.Continued++
	return with(w.resumeFrom(ctx, s), "unprobed from")
}

// tellTracer stops the guest's tracer from writing bytes back, or below a
// breakpoint of its own. It cannot write bytes back that it has read during a
// run to an address, where they include our int3, or before a snapshot that
// continues without probes. See runChanging.
func (w *work) tellTracer() error {
	if w.p.Classes&Tracers == 0 {
		return nil
	}
	return w.p.tracer(w.t.m, byte(w.IntN(2))*tracerTells|tracerYields)
}

// pause lets the guest run for a little.
func (w *work) pause() {
	if n := w.IntN(3) * w.IntN(500); n > 0 {
		time.Sleep(time.Duration(n) * time.Microsecond)
	}
}

// resumeFrom has the machine continue from s, to the end.
func (w *work) resumeFrom(ctx context.Context, s *snapshot.Snapshot) error {
	w.t.defs.rt.Save()
	if err := w.t.m.ResetTo(ctx, s); err != nil {
		return err
	}
	if err := w.t.defs.rt.Reset(); err != nil {
		return err
	}
	if err := w.t.wait(ctx); err != nil {
		return err
	}
	return w.t.compare(w.p, w.want)
}

// save takes a snapshot through a file. It returns nil if the guest has ended,
// or cannot be saved just now.
func (w *work) save() (*snapshot.Snapshot, error) {
	s, err := w.t.m.Save(nil)
	switch {
	case errors.Is(err, probe.ErrInside):
		w.t.sum.Refused["save: inside"]++
		return nil, nil
	case err != nil:
		return nil, err
	case s.Config.Ended != "":
		return nil, nil
	}
	w.t.sum.Saves++
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		return nil, err
	}
	return snapshot.Read(&b, guest.MaxRAM+guest.LoaderSize)
}

// findOwnAddrs looks for addresses of the engine's code in the snapshot of a
// guest that has ended, and still has its probes. The guest's own such addresses
// are the bounds of its areas, and values that programs compute and that happen
// to be in these.
func (t *Torture) findOwnAddrs(s *snapshot.Snapshot) error {
	var areas []guest.MemoryRange // of virtual addresses
	info := make([]byte, guest.BootInfoSize)
	// The first vCPU's information: its kernel has the bounds of the areas.
	for _, name := range []string{"kexec_lo", "exec_lo"} {
		at, err := t.m.Image().Lookup(name)
		if err != nil {
			return err
		}
		if err := t.m.Target().ReadMemory(0, at.Addr, info[:16]); err != nil {
			return err
		}
		areas = append(areas, guest.MemoryRange{Base: guest.GPA(binary.LittleEndian.Uint64(info)), Size: binary.LittleEndian.Uint64(info[8:])})
	}
	in := func(v uint64) bool {
		for _, a := range areas {
			if off := v - uint64(a.Base); off > 0 && off < a.Size {
				return t.m.Engine().InCode(guest.GVA(v))
			}
		}
		return false
	}
	for i := range s.CPUs {
		r := x86.Regs(s.CPUs[i].Regs)
		for k, v := range r.Values() {
			if in(v) {
				return fmt.Errorf("%s of vCPU %d is %#x, of the engine's", x86.RegNames[k], i, v)
			}
		}
	}
	for _, run := range s.Memory {
		for off := 0; off+8 <= len(run.Bytes); off += 8 {
			if v := binary.LittleEndian.Uint64(run.Bytes[off:]); v > textVA>>1 && in(v) {
				return fmt.Errorf("the word at %#x is %#x, of the engine's", uint64(run.At)+uint64(off), v)
			}
		}
	}
	return nil
}

// runStepped runs the guest with probes that stay, and pauses it at random moments, to step vCPUs or to
// run them to an address.
func (w *work) runStepped(ctx context.Context) error {
	if w.p.Steps {
		return w.runProbed(ctx) // of two steps of one instruction, the guest's is lost
	}
	if err := w.plant(); err != nil {
		return err
	}
	if err := w.tellTracer(); err != nil {
		return err
	}
	for range 2 + w.IntN(4) {
		if err := w.t.m.Resume(); err != nil {
			if err := w.ignoreEnded(err); err != nil {
				return err
			}
			break
		}
		w.pause()
		if err := w.t.m.Pause(); err != nil {
			if err := w.ignoreEnded(err); err != nil {
				return err
			}
			break
		}
		if err := w.step(ctx); err != nil {
			return err
		}
	}
	if err := w.ignoreEnded(w.t.m.Resume()); err != nil {
		return err
	}
	if err := w.t.awaitEnd(ctx); err != nil {
		return err
	}
	return errors.Join(w.checkExact(), w.detach(w.probes...), w.text())
}

// ignoreEnded returns err unless the guest has ended, in which case it cannot be
// stepped.
func (w *work) ignoreEnded(err error) error {
	switch w.t.m.Phase() {
	case machine.PhaseExited, machine.PhaseCrashed:
		return nil
	}
	return err
}

// step steps a vCPU, or runs it to an instruction, once or a few times.
func (w *work) step(ctx context.Context) error {
	for range 1 + w.IntN(3) {
		cpu := w.IntN(w.t.o.VCPUs)
		if w.IntN(3) > 0 {
			n, err := w.t.m.Step(ctx, cpu, 1+w.IntN(40))
			w.t.sum.Steps += n
			w.noteAction("step %d on vCPU %d: %v, now at %v; phase %v %+v", n, cpu, err, w.t.m.State().VCPUs[cpu].RIP, w.t.m.Phase(), w.t.m.State().Exit)
			if err := w.checkStepError(err); err != nil {
				return err
			}
			continue
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		in := w.p.Insts[w.IntN(len(w.p.Insts))]
		reached, err := w.t.m.RunTo(short, cpu, textVA+guest.GVA(in.Off), 0)
		cancel()
		w.t.sum.Runs++
		w.noteAction("run vCPU %d to +%#x: %v, %v", cpu, in.Off, reached, err)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = w.ignoreEnded(w.t.m.Pause())
		}
		if err := w.checkStepError(err); err != nil {
			return err
		}
	}
	return nil
}

// noteAction records an operation on the guest, for errors.
func (w *work) noteAction(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// checkStepError returns an error that no step may have.
func (w *work) checkStepError(err error) error {
	var refused *probe.Error
	switch {
	case err == nil, w.ignoreEnded(err) == nil:
		return nil
	case errors.Is(err, machine.ErrInEngine), errors.Is(err, machine.ErrNotRunnable), errors.Is(err, machine.ErrHalted),
		errors.Is(err, machine.ErrNotStopped), // it waits for the host, which looks at text
		errors.Is(err, machine.ErrCannotStep):
		w.t.sum.Refused["step"]++
		return nil
	case errors.As(err, &refused) && (refusals[refused.Code] || refused.Code == probe.CodeForeignInt3 && w.p.Classes&Tracers != 0):
		w.t.sum.Refused[string(refused.Code)]++
		return nil
	}
	return err
}

// watched are the names of memory that processors read by themselves, and of
// work of the guest's own kernel.
var watched = []string{"gdt", "idt", "tss", "stacks", "alias_tables", "tasks", "breakpoints"}

// watchRefusals are the errors with which a watch of such a place may be
// rejected.
var watchRefusals = map[probe.Code]bool{probe.CodeWatchRegisters: true, probe.CodeDebugRegsInUse: true, probe.CodeHostCannot: true, probe.CodeWatchAccess: true, "implicit_access": true}

// watch registers watches on memory that processors read by themselves:
// descriptor tables, page tables, stacks.
func (w *work) watch() ([]*probe.Watch, error) {
	if w.t.o.Classes&Watches == 0 || w.IntN(4) != 0 {
		return nil, nil
	}
	var out []*probe.Watch
	for range 1 + w.IntN(2) {
		x, err := w.watchAt()
		if err != nil {
			return out, err
		}
		err = w.t.m.Engine().Watch(x)
		w.noteAction("watch %v of %d bytes at %v, by pages %v: %v", x.Access, x.Len, x.Addr, x.Emulate, err)
		var refused *probe.Error
		if errors.As(err, &refused) && watchRefusals[refused.Code] {
			w.t.sum.Refused["watch: "+string(refused.Code)]++
			continue
		}
		if err != nil {
			return out, fmt.Errorf("watch %v of %v: %w", x.Access, x.Addr, err)
		}
		out = append(out, x)
	}
	return out, nil
}

// watchAt makes a watch at a random place.
func (w *work) watchAt() (*probe.Watch, error) {
	x := &probe.Watch{Len: 1 << w.IntN(4), Access: []probe.Access{probe.AccessWrite, probe.AccessReadWrite}[w.IntN(2)], Emulate: w.IntN(3) > 0}
	if x.Emulate && w.IntN(3) == 0 {
		x.Access = probe.AccessRead
	}
	switch k := w.IntN(len(watched) + 3); {
	case k < len(watched) && watched[k] == "alias_tables" && w.p.Alias != nil && !w.p.Alias.Boot:
		return w.watchAt() // a page that becomes a page table between two looks (docs/definitions.md)
	case k < len(watched):
		s, err := w.t.m.Image().Lookup(watched[k])
		if err != nil {
			return nil, err
		}
		x.Addr = s.Addr + guest.GVA(8*w.IntN(int(s.Size/8)))
		if watched[k] == "stacks" {
			x.Emulate = false // the TSS names them later (docs/definitions.md)
			x.Access |= probe.AccessWrite
		}
	case k == len(watched): // the loader's page tables
		var root guest.GPA
		if err := w.t.m.Look(func(l *machine.Look) (err error) { root, err = l.Root(0); return err }); err != nil {
			return nil, err
		}
		x.Addr = guest.GVA(root) + guest.GVA(8*w.IntN(8*512))
	default: // a stack of a task
		x.Addr = guest.GVA(stackOf(w.IntN(w.p.Tasks), false) + stackSize - 8 - 8*uint64(w.IntN(200)))
	}
	return x, nil
}

// unwatch ends watches.
func (w *work) unwatch(xs []*probe.Watch) error {
	if len(xs) == 0 {
		return nil
	}
	w.t.sum.Watches += len(xs)
	return w.t.m.Engine().Unwatch(xs...)
}
