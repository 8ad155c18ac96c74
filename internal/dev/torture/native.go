package torture

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/dev/oracle"
)

// Services of the kernel: ud2 and one of these bytes.
const (
	serviceEnd = iota
	serviceReturn
	servicePatch
	serviceUnmap
	serviceYield
	serviceAlias // maps the alias that is mapped late
	serviceBreak
	serviceUnbreak
	servicePoke
	serviceKeep
	serviceBack
)

// flagRF is the resume flag, which syscall does not save.
const flagRF = 1 << 16

// maxSteps is how many instructions a task may have.
const maxSteps = 20_000

// runNative runs one task of p without a guest. It returns the expected outcome,
// how often the task reaches each offset of the text, and the text afterwards.
func runNative(o *oracle.Oracle, p *Program, task int) (out outcome, counts map[uint64]uint64, text []byte, err error) {
	lo, hi := p.pages(task)
	stack := stackOf(task, false)
	rw := unix.PROT_READ | unix.PROT_WRITE
	prog := &oracle.Program{
		Segments: []oracle.Segment{
			{Addr: textVA, Data: p.Text, Prot: unix.PROT_READ | unix.PROT_EXEC},
			{Addr: dataOf(task), Data: p.Data, Size: dataSize, Prot: rw},
			{Addr: stack, Size: stackSize, Prot: rw},
			{Addr: stack + otherStack, Size: stackSize, Prot: rw},
		},
		Regs:     oracle.Regs{Rip: textVA + uint64(p.Entry), Rsp: stack + stackSize - 64, Rdi: dataOf(task), Eflags: 0x202},
		MaxSteps: maxSteps,
	}
	if p.Lazy > 0 {
		prog.Segments[2].Size = 4096
		prog.Segments = append(prog.Segments, oracle.Segment{Addr: lo, Size: hi - lo, Prot: unix.PROT_NONE},
			oracle.Segment{Addr: hi, Size: stack + stackSize - hi, Prot: rw})
	}
	if p.Classes&Rewrites != 0 {
		prog.Segments[0].Prot |= unix.PROT_WRITE
	}
	if p.Alias != nil {
		prog.Segments = append(prog.Segments, oracle.Segment{Addr: p.Alias.va(), Data: p.Text, Prot: unix.PROT_READ | unix.PROT_EXEC})
	}
	gone := map[uint64]bool{}
	for a := lo; a < hi; a += 4096 {
		gone[a] = true
	}
	prog.Exception = func(m *oracle.Machine, x oracle.Exception) error {
		if x.Vector == oracle.VectorSyscall {
			r := &m.Regs
			r.Rip += 2
			r.Rcx, r.R11 = r.Rip, r.Eflags&^flagRF
			return nil
		}
		if x.Vector == oracle.VectorUD {
			var b [3]byte
			if m.Read(m.Regs.Rip, b[:]) == nil && b[0] == 0x0f && b[1] == 0x0b && b[2] <= serviceBack {
				m.Regs.Rip += 3
				return serve(m, p, b[2], &out, gone)
			}
		}
		addr := uint64(0)
		if x.Vector == oracle.VectorPF {
			addr = x.Addr
		}
		out.note(&m.Regs, x.Vector, addr)
		page := addr &^ 4095
		switch {
		case x.Vector == oracle.VectorDB:
			return nil
		case x.Vector == oracle.VectorPF && addr >= lo && addr < hi && gone[page]:
			delete(gone, page)
			return m.Protect(page, 4096, rw)
		}
		var word [8]byte
		if err := m.Read(dataOf(task), word[:]); err != nil {
			return err
		}
		if to := binary.LittleEndian.Uint64(word[:]); to != 0 {
			m.Regs.Rip = to
			return nil
		}
		out.State = stateKilled
		return errEnd
	}
	r, err := o.Run(prog)
	if !errors.Is(err, errEnd) {
		return out, nil, nil, fmt.Errorf("native run of task %d: %w", task, err)
	}
	out.Regs = words(&r.Regs)
	out.normalize()
	counts = map[uint64]uint64{}
	for a, n := range r.Counts {
		if p.Alias != nil && a-textVA >= maxText {
			a ^= p.Alias.Bits
		}
		counts[a-textVA] += n
	}
	text = make([]byte, len(p.Text))
	if err := o.Read(textVA, text); err != nil {
		return out, nil, nil, err
	}
	err = out.memory(task, func(a uint64, b []byte) error {
		if gone[a] {
			return errGone
		}
		return o.Read(a, b)
	})
	return out, counts, text, err
}

// errEnd ends a native run: the task has.
var errEnd = errors.New("the task has ended")

// errGone says that a page is not there.
var errGone = errors.New("the page is not mapped")

// serve does the kernel's work for a task.
func serve(m *oracle.Machine, p *Program, service byte, out *outcome, gone map[uint64]bool) error {
	r := &m.Regs
	switch service {
	case serviceEnd:
		out.State = stateDone
		return errEnd
	case servicePatch, servicePoke:
		b := binary.LittleEndian.AppendUint64(nil, r.Rsi)[:r.Rdx&7]
		if p.Alias != nil {
			if err := m.Write(r.Rdi^p.Alias.Bits, b); err != nil {
				return err
			}
		}
		return m.Write(r.Rdi, b)
	case serviceUnmap:
		gone[r.Rdi] = true
		return m.Protect(r.Rdi, 4096, unix.PROT_NONE)
	}
	return nil
}

// signalData is where the part of a task's data begins that belongs to its
// signals: its contents are unknown.
const signalData = dataSize - 4096

// memory reads the task's final memory: its data, and its stack from RSP up,
// page by page. Missing pages are zeros.
func (o *outcome) memory(task int, read func(uint64, []byte) error) error {
	o.Data = make([]byte, signalData)
	if err := read(dataOf(task), o.Data); err != nil {
		return err
	}
	lo := stackOf(task, false)
	if o.Regs[20] > lo+otherStack {
		lo += otherStack
	}
	stack := make([]byte, stackSize)
	for off := 0; off < stackSize; off += 4096 {
		if read(lo+uint64(off), stack[off:off+4096]) != nil {
			clear(stack[off : off+4096])
		}
	}
	if rsp := o.Regs[20]; rsp >= lo && rsp <= lo+stackSize {
		o.Stack = stack[rsp-lo:]
	}
	return nil
}

// keepsFIP reports whether this processor keeps the address of the last x87
// instruction through all changes of context. AMD's processors do not as long as
// no instruction has raised an exception (APM Vol. 2, 11.4.4). One run alone
// does not show it: the context may not change in it.
func keepsFIP(o *oracle.Oracle) (bool, error) {
	const at, size = textVA, 0x1000
	v, err := o.Run(&oracle.Program{
		Segments: []oracle.Segment{{Addr: at, Data: []byte{0x31, 0xc0, 0x0f, 0xa2, 0x90}, Prot: unix.PROT_READ | unix.PROT_EXEC}}, // xor %eax,%eax; cpuid
		Regs:     oracle.Regs{Rip: at, Rsp: dataVA + size, Eflags: 0x202},
		End:      at + 4,
	})
	if err != nil {
		return false, fmt.Errorf("cpuid: %w", err)
	}
	if ebx := binary.LittleEndian.AppendUint32(nil, uint32(v.Regs.Rbx)); string(ebx) == "Auth" { // enticAMD
		return false, nil
	}
	r, err := o.Run(&oracle.Program{
		Segments: []oracle.Segment{
			{Addr: at, Data: []byte{0xdb, 0xe3, 0xd9, 0xe8, 0x90, 0x90, 0xd9, 0x37, 0x8b, 0x47, 0x0c, 0x90}, Prot: unix.PROT_READ | unix.PROT_EXEC},
			{Addr: dataVA, Size: size, Prot: unix.PROT_READ | unix.PROT_WRITE},
		},
		Regs: oracle.Regs{Rip: at, Rsp: dataVA + size, Rdi: dataVA, Eflags: 0x202},
		End:  at + 11, // fninit; fld1; nop; nop; fnstenv (%rdi); mov 12(%rdi), %eax
	})
	if err != nil {
		return false, fmt.Errorf("x87 instructions: %w", err)
	}
	return r.Regs.Rax == (at+2)&(1<<32-1), nil
}
