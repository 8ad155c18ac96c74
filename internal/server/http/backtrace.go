package http

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/source"
)

// maxBacktrace bounds the frames of one backtrace: stacks can lead anywhere.
const maxBacktrace = 256

func (in *inspector) getBacktraces(w http.ResponseWriter, _ *http.Request, q values) error {
	a := lookQuery(q)
	if a.vcpu >= 0 && a.task >= 0 {
		return badValue("vcpu and task: give one of them")
	}
	var found []backtrace
	list := api.BacktraceList{Backtraces: []api.Backtrace{}}
	names := newNamer(in.guest)
	err := in.look(func(l *machine.Look) (err error) {
		if a.task >= 0 {
			b, err := in.taskStack(l, a.task)
			if err != nil {
				return err
			}
			found = append(found, b)
		}
		for cpu := range l.NumVCPU() {
			if a.task >= 0 || a.vcpu >= 0 && cpu != a.vcpu && a.vcpu < l.NumVCPU() {
				continue
			}
			if a.vcpu >= 0 {
				cpu = a.vcpu
			}
			b, err := in.vcpuStack(l, cpu)
			if err != nil {
				return err
			}
			found = append(found, b)
			if a.vcpu >= l.NumVCPU() {
				break
			}
		}
		for _, b := range found {
			list.Backtraces = append(list.Backtraces, b.wire(in, l, names))
		}
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// backtrace is one stack.
type backtrace struct {
	frames []guest.Frame
	more   bool
	cpu    int // -1: no vCPU runs it
	root   guest.GPA
	regs   *probe.Regs // of the innermost frame; nil: not known
	task   *linux.Task
	note   string
}

// vcpuStack returns the stack of the code that a vCPU runs.
func (in *inspector) vcpuStack(l *machine.Look, cpu int) (b backtrace, err error) {
	b.cpu = cpu
	r, err := l.Registers(cpu)
	if err != nil {
		return b, err
	}
	b.regs, b.root = &r.Regs, guest.GPA(r.System.CR3)
	if r.Inside {
		b.regs, b.note = nil, "in a probe's handlers, which use the stack: callers are not known"
	}
	if b.frames, b.more, err = l.Stack(cpu, maxBacktrace); err != nil {
		return b, err
	}
	if v, ok := in.guest.Image().(linuxView); ok {
		if gs, err := l.KernelGS(cpu); err == nil && gs != 0 {
			if at, err := v.TaskReader().CurrentTask(gs, reader(l)); err == nil {
				if t, err := v.TaskReader().Task(at, reader(l)); err == nil {
					b.task = &t
				}
			}
		}
	}
	return b, nil
}

// linuxView is a guest.View of a Linux kernel.
type linuxView interface{ TaskReader() *linux.Tasks }

// reader reads the kernel's memory.
func reader(l *machine.Look) linux.Read {
	return func(addr guest.GVA, p []byte) error {
		_, err := l.Read(0, addr, p, false)
		return err
	}
}

// taskStack returns the stack of a task. If a vCPU runs the task, it is that
// vCPU's stack; otherwise it begins where the scheduler will resume the task.
func (in *inspector) taskStack(l *machine.Look, pid int) (b backtrace, err error) {
	t, err := in.task(pid)
	if err != nil {
		return b, err
	}
	for cpu := range l.NumVCPU() {
		if b, err = in.vcpuStack(l, cpu); err == nil && b.task != nil && b.task.Addr == t.Addr {
			return b, nil
		}
	}
	b = backtrace{cpu: -1, task: &t}
	v, ok := in.guest.Image().(linuxView)
	if !ok {
		return b, errNoTasks
	}
	f, err := v.TaskReader().SavedFrame(t.Addr, reader(l))
	if err != nil {
		return b, &api.Error{Code: api.CodeUnavailable, Errno: "ENODATA", Message: fmt.Sprintf("the stack of task %d: %v", pid, err)}
	}
	b.frames, b.more = l.StackFrom(f, maxBacktrace)
	return b, nil
}

// wire is the wire form, with names, places in the source, and arguments.
func (b *backtrace) wire(in *inspector, l *machine.Look, names namer) api.Backtrace {
	out := api.Backtrace{Frames: []api.StackFrame{}, More: b.more, Note: b.note}
	if b.cpu >= 0 {
		out.CPU = &b.cpu
	}
	if b.task != nil {
		t := wireTask(*b.task)
		out.Task = &t
	}
	if out.Note == "" && !b.more {
		out.Note = names.end(b.frames)
	}
	e := entered{b: b, l: l, names: names, regs: b.knownRegisters(l, names.img), calls: map[int]*call{}}
	for i := range b.frames {
		f := &b.frames[i]
		for _, x := range names.frame(guest.GVA(f.PC), f.Exact) {
			out.Frames = append(out.Frames, api.StackFrame{Frame: x})
		}
		out.Frames[len(out.Frames)-1].Args = e.args(in, i)
	}
	return out
}

// knownRegisters returns the known registers of all frames. All registers of the
// innermost frame are known. For callers, call frame information yields the
// registers that are saved on the stack or still in place.
func (b *backtrace) knownRegisters(l *machine.Look, img guest.View) []guest.KnownRegisters {
	out := make([]guest.KnownRegisters, len(b.frames))
	cfi, _ := img.(interface {
		SavedRegisters(guest.GVA) (guest.SavedRegisters, bool)
	})
	for i := range b.frames {
		f, k := &b.frames[i], &out[i]
		switch {
		case i == 0 && b.regs != nil:
			for n, r := range x86.DwarfRegs {
				k.Set(n, *b.regs.Reg(r))
			}
		case i > 0 && cfi != nil:
			callee := &b.frames[i-1]
			rule, ok := img.FrameRule(callee.RuleAddr())
			saved, has := cfi.SavedRegisters(callee.RuleAddr())
			if ok && has {
				cfa := callee.Regs[rule.Base] + uint64(int64(rule.CFA))
				*k = out[i-1].Caller(cfa, &rule, &saved, func(addr uint64) (uint64, bool) { return readWord(l, b.root, addr) })
			}
		}
		if i > 0 || b.regs == nil {
			k.Set(dwarfRSP, f.Regs[guest.FrameRSP])
			k.Set(dwarfRBP, f.Regs[guest.FrameRBP])
		}
	}
	return out
}

// readWord reads a word of the guest's memory, without our changes.
func readWord(l *machine.Look, root guest.GPA, addr uint64) (uint64, bool) {
	var b [8]byte
	if _, err := l.Read(root, guest.GVA(addr), b[:], false); err != nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// The debug information's numbers of two registers.
const dwarfRBP, dwarfRSP = 6, 7

// args returns the arguments of a frame's function that can be found: through
// debug information, or at a function's first instruction through its prototype.
func (e *entered) args(in *inspector, i int) (out []api.FrameArg) {
	b, names := e.b, e.names
	f := &b.frames[i]
	at := f.RuleAddr()
	sym, ok := names.img.Find(at)
	if !ok || f.User && sym.User != f.User {
		return nil
	}
	look := frameLook{e.l, b.root, e.regs[i]}
	if names.info != nil {
		vars, err := names.info.Parameters(uint64(at) - names.by)
		if err != nil {
			return nil
		}
		for _, v := range vars {
			e.resolve(i, &v)
			arg := api.FrameArg{Name: v.Name, Type: types.Text(v.Declared)}
			if arg.Value, err = look.variable(names, at, v); err != nil {
				arg.Why = err.Error()
			}
			out = append(out, arg)
		}
		return out
	}
	known := in.guest.Types()
	if known == nil || i > 0 || b.regs == nil || guest.GVA(f.PC) != skipEndbr(names.img, sym) {
		return nil
	}
	proto := known.Func(event.ModuleOf(names.img, sym.Addr), sym.Name)
	if proto == nil {
		return nil
	}
	words := types.Words(proto)
	for k, n := range types.Arguments(proto) {
		p := proto.Params[k]
		arg := api.FrameArg{Name: p.Name, Type: types.Text(p.Type)}
		var err error
		switch {
		case len(words[k]) > 1:
			arg.Value, err = look.words(words[k], p.Type)
		case n == 0:
			arg.Why = "in a vector register"
		case n <= len(argumentRegs):
			arg.Value, err = look.value(event.Register{Reg: argumentRegs[n-1]}, p.Type)
		default:
			arg.Value, err = look.value(event.Deref{Offset: int64(8 * (n - len(argumentRegs))), Of: event.Register{Reg: event.RegSP}}, p.Type)
		}
		if err != nil {
			arg.Why = err.Error()
		}
		out = append(out, arg)
	}
	return out
}

// argumentRegs are the registers that pass integer arguments (System V ABI for
// AMD64, 3.2.3).
var argumentRegs = [...]event.Reg{event.RegDI, event.RegSI, event.RegDX, event.RegCX, event.RegR8, event.RegR9}

// skipEndbr returns the address of a function's first instruction after an
// endbr64.
func skipEndbr(img guest.View, sym guest.Symbol) guest.GVA {
	at := sym.Addr
	if code := img.Code(at, 4); len(code) == 4 && binary.LittleEndian.Uint32(code) == 0xfa1e0ff3 { // endbr64
		at += 4
	}
	return at
}

// frameLook finds values in a frame's known registers and in memory.
type frameLook struct {
	l    *machine.Look
	root guest.GPA
	regs guest.KnownRegisters
}

// value returns the value as text.
func (f *frameLook) value(from event.Fetch, t types.Type) (string, error) {
	size, ok := types.Size(t)
	if !ok || size == 0 || size > 8 {
		return "", fmt.Errorf("a value of %d bytes", size)
	}
	v, err := f.fetch(from)
	if err != nil {
		return "", err
	}
	return valueText(t, binary.LittleEndian.AppendUint64(nil, v)[:size]), nil
}

// valueText returns a value in C's syntax, in one line.
func valueText(t types.Type, data []byte) string {
	if text := script.CValue(t, data, false); !strings.Contains(text, "\n") { // else it has a structure
		return text
	}
	return script.CLine(t, data)
}

// maxValue bounds the structures that frames show, in bytes.
const maxValue = 64

// variable returns the value of a variable as text. For a reference, the address
// comes before the referenced value, as in gdb.
func (f *frameLook) variable(names namer, at guest.GVA, v debuginfo.Variable) (string, error) {
	if v.Why != nil && len(v.Pieces) == 0 && !errors.Is(v.Why, debuginfo.ErrElsewhere) {
		return "", v.Why
	}
	t, err := names.info.Values(v)
	if err != nil {
		return "", err
	}
	size, ok := types.Size(t)
	if !ok || size == 0 || size > maxValue {
		return "", fmt.Errorf("a value of %d bytes", size)
	}
	var data []byte
	for _, p := range v.Pieces {
		one := v
		one.Pieces, one.Where, one.Why = nil, p.Where, p.Why
		b, _, err := f.bytes(names, at, one, p.Size)
		if err != nil {
			return "", fmt.Errorf("bytes %d to %d are %w", len(data), len(data)+int(p.Size)-1, err)
		}
		data = append(data, b...)
	}
	addr := uint64(0)
	if len(v.Pieces) == 0 {
		data, addr, err = f.bytes(names, at, v, size)
	}
	switch {
	case err != nil:
		return "", err
	case uint64(len(data)) < size:
		return "", fmt.Errorf("%d of its %d bytes are known", len(data), size)
	}
	text := valueText(t, data[:size])
	if _, reference := types.Reference(v.Declared); reference {
		text = fmt.Sprintf("@%#x: %s", addr, text)
	}
	return text, nil
}

// bytes returns the n bytes of a variable, and their address in memory.
func (f *frameLook) bytes(names namer, at guest.GVA, v debuginfo.Variable, n uint64) (b []byte, addr uint64, err error) {
	from, err := source.Fetch(names.img, at, names.by, v)
	if err != nil {
		return nil, 0, err
	}
	d, memory := from.(event.Deref)
	if !memory {
		x, err := f.fetch(from)
		b := binary.LittleEndian.AppendUint64(nil, x)
		if n > uint64(len(b)) {
			return nil, 0, fmt.Errorf("of %d bytes, of which a register has 8", n)
		}
		return b[:n], 0, err
	}
	if addr, err = f.fetch(d.Of); err != nil {
		return nil, 0, err
	}
	addr += uint64(d.Offset)
	b = make([]byte, n)
	if got, err := f.l.Read(f.root, guest.GVA(addr), b, false); err != nil {
		return nil, 0, fmt.Errorf("at %#x, of which %d bytes can be read: %w", addr, got, err)
	}
	return b, addr, nil
}

// words returns the value of a structure that was passed in registers, given
// their numbers.
func (f *frameLook) words(words []int, t types.Type) (string, error) {
	var data []byte
	for _, w := range words {
		if w == 0 {
			return "", errors.New("in a vector register")
		}
		v, err := f.fetch(event.Register{Reg: argumentRegs[w-1]})
		if err != nil {
			return "", err
		}
		data = binary.LittleEndian.AppendUint64(data, v)
	}
	size, ok := types.Size(t)
	if !ok || size > uint64(len(data)) {
		return "", fmt.Errorf("a value of %d bytes", size)
	}
	return valueText(t, data[:size]), nil
}

// fetch evaluates the location of a variable.
func (f *frameLook) fetch(from event.Fetch) (uint64, error) {
	switch x := from.(type) {
	case event.Immediate:
		return x.Value, nil
	case event.Register:
		return f.register(x.Reg)
	case event.Sum:
		v, err := f.fetch(x.Of)
		return v + uint64(x.Offset), err
	case event.Deref:
		v, err := f.fetch(x.Of)
		if err != nil {
			return 0, err
		}
		var b [8]byte
		if n, err := f.l.Read(f.root, guest.GVA(v+uint64(x.Offset)), b[:], false); err != nil && n == 0 {
			return 0, err
		}
		return binary.LittleEndian.Uint64(b[:]), nil
	}
	return 0, fmt.Errorf("%T is not evaluated", from)
}

// register returns the value of a register in the frame.
func (f *frameLook) register(r event.Reg) (uint64, error) {
	if n := slices.IndexFunc(x86.DwarfRegs[:], func(n x86.Reg64) bool { return event.RegOf(n) == r }); n >= 0 {
		if v, ok := f.regs.Get(n); ok {
			return v, nil
		}
	}
	return 0, fmt.Errorf("was in %%%s, which is not known in this frame", r)
}
