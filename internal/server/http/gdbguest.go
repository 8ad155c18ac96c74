package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/symfile"
	"github.com/guestprobe/guestprobe/internal/server/gdb"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// debugged is the guest as a debugger sees it. The debugger's breakpoints are
// probes of the engine's (gdbbreak.go). The code for stops is in gdbrun.go.
type debugged struct {
	rc      *runControl
	monitor func(ctx context.Context, line string, w io.Writer) error // nil: the daemon has no commands
	g       stoppable
	cpus    int
	ran     bool // the guest should run when the debugger is gone
	cpu     int  // the vCPU of the debugger's last stop
	breaks  []*breaking
	hits    gdbHits
	held    map[int]bool      // vCPUs that the debugger has left where they are; the others have run since
	next    gdb.Stop          // Wait returns this at once, unless it is zero
	shown   map[int]guest.GVA // where a vCPU is shown to be, by its number: see breaking
	boot    int64             // of shown
	told    int64             // the boot that the debugger knows of
	symbols []byte            // of a Linux kernel; nil: not requested yet
	holds   bool              // the guest is paused for the debugger; guarded by runControl.resetMu
}

// stoppable is a Guest whose vCPUs can be stopped and stepped.
type stoppable interface {
	Guest
	Ended() <-chan struct{}
	StopAll(*probe.Context)
	Stops() []machine.Stop
	Step(ctx context.Context, cpu, n int) (int, error)
	ResumeUnheld() error
	ResumeOnly(which func(cpu int) bool) error
}

// newDebugged returns the guest for one debugger. A nil monitor has no commands.
func newDebugged(rc *runControl, g stoppable, monitor func(ctx context.Context, line string, w io.Writer) error) *debugged {
	return &debugged{rc: rc, monitor: monitor, g: g, cpus: len(g.State().VCPUs), hits: gdbHits{boots: &rc.boots, of: map[int][]gdbHit{}}, shown: map[int]guest.GVA{}, held: map[int]bool{}}
}

var _ gdb.Target = &debugged{}

// Attach implements gdb.Target.
func (d *debugged) Attach() error {
	d.ran = d.g.Phase() == machine.PhaseRunning
	for {
		if err := d.stopSteppable(); err != nil || d.hold() {
			return err
		}
	}
}

// Detach implements gdb.Target.
func (d *debugged) Detach(pause bool) error {
	err := d.clear()
	if pause || !d.ran || d.ended() {
		return err
	}
	// Only the client that has stopped a vCPU may resume it.
	return errors.Join(err, d.resumeBy(d.g.ResumeUnheld))
}

// CPUs implements gdb.Target.
func (d *debugged) CPUs() int { return d.cpus }

// Describe implements gdb.Target.
func (d *debugged) Describe(cpu int) string {
	st := d.g.State()
	if st.Phase == machine.PhaseCrashed && st.Crash.CPU == cpu {
		return fmt.Sprintf("crashed: %s", st.Crash.Text)
	}
	if cpu >= len(st.VCPUs) {
		return ""
	}
	return fmt.Sprintf("%s, CPL %d", st.VCPUs[cpu].Activity, st.VCPUs[cpu].CPL)
}

// vcpu reads a vCPU, and runs f, which may change it.
func (d *debugged) vcpu(cpu int, f func(*machine.Look, *machine.Registers, *machine.Vectors) error) error {
	return d.rc.look(func(l *machine.Look) error {
		r, err := l.Registers(cpu)
		if err != nil {
			return err
		}
		v, err := l.Vectors(cpu)
		if err != nil {
			return err
		}
		return f(l, &r, &v)
	})
}

// Registers implements gdb.Target.
func (d *debugged) Registers(cpu int, g *gdb.Registers, all bool) error {
	show := func(r *probe.Regs) {
		if at, ok := d.shownAddr(cpu); ok {
			r.RIP = uint64(at)
		}
	}
	if all {
		return d.vcpu(cpu, func(_ *machine.Look, r *machine.Registers, v *machine.Vectors) error {
			show(&r.Regs)
			*g = toGDB(r, v)
			return nil
		})
	}
	return d.rc.look(func(l *machine.Look) error {
		r, y, err := l.GeneralRegisters(cpu)
		if err == nil {
			show(&r)
			quickToGDB(g, &r, y)
		}
		return err
	})
}

// SetRegisters implements gdb.Target.
func (d *debugged) SetRegisters(cpu int, g *gdb.Registers) error {
	return d.vcpu(cpu, func(l *machine.Look, r *machine.Registers, v *machine.Vectors) error {
		at, rsp := r.Regs.RIP, r.Regs.RSP
		if err := fromGDB(g, r, v); err != nil {
			return err
		}
		if shown, ok := d.shownAddr(cpu); ok && r.Regs.RIP == uint64(shown) {
			r.Regs.RIP = at
		}
		if r.Regs.RIP != at {
			d.forgetPosition(cpu)
			d.hits.forgetPassed(rsp, d.breaks)
		}
		return l.Change(cpu, *r, v)
	})
}

// Read implements gdb.Target.
func (d *debugged) Read(cpu int, addr uint64, p []byte) error {
	return d.rc.look(func(l *machine.Look) error {
		root, err := l.Root(cpu)
		if err == nil {
			_, err = l.Read(root, guest.GVA(addr), p, false)
		}
		return err
	})
}

// Write implements gdb.Target.
func (d *debugged) Write(cpu int, addr uint64, p []byte) error {
	return d.rc.look(func(l *machine.Look) error {
		root, err := l.Root(cpu)
		if err == nil {
			err = l.Write(root, guest.GVA(addr), p)
		}
		return err
	})
}

// monitorTime is how long a "monitor" command may take.
const monitorTime = 10 * time.Second

// Monitor implements gdb.Target.
func (d *debugged) Monitor(ctx context.Context, line string, w io.Writer) error {
	if d.monitor == nil {
		return errors.New("this daemon has no commands")
	}
	ctx, cancel := context.WithTimeout(ctx, monitorTime)
	defer cancel()
	return d.monitor(ctx, line, w)
}

// Program implements gdb.Target.
func (d *debugged) Program() gdb.Program {
	img := d.rc.guest.Image()
	if elf, ok := img.(*guest.Image); ok {
		return gdb.Program{File: elf.File}
	}
	sym, err := img.Lookup("_text")
	if err != nil {
		return gdb.Program{} // its address is not known yet
	}
	p := gdb.Program{Base: uint64(sym.Addr), Landmark: sym.Name, At: uint64(sym.Addr)}
	if code, ok := img.(symfile.Code); ok {
		p.File = func() []byte {
			if d.symbols == nil { // kept for a moment only: debuggers read the file once, in pieces
				d.symbols = symfile.Bytes(code, sym.Addr)
			}
			return d.symbols
		}
	}
	return p
}
