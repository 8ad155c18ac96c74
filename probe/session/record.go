package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/script"
)

// An event of the kernel's tracing has a record, which a function of the kernel fills
// in from the tracepoint's arguments. A probe of such an event calls a copy of that
// function at each hit. In the copy, our own code replaces the ring buffer: it gives
// the function memory that host and guest share. So the record has the same values as
// in the kernel's own tracing, and nothing of the kernel's is changed. The records of
// system calls, which the kernel's function makes by a table, are made here.

// Layout of the memory of a function's copy on each vCPU. It begins with the struct
// trace_event_file that is passed to the function: all zeros mean an event that is on
// and has no triggers.
const (
	recordFile   = 0 // and maxEventFile bytes
	recordLength = maxEventFile
	recordData   = recordLength + 64
	maxEventFile = 512
	maxRecord    = bpf.MaxRecord
	recordBlock  = recordData + maxRecord
)

// Offsets in the record of a system call's event.
const (
	callNumber = 8
	callArgs   = 16
)

// errRecordArgs: the function needs a register for its file, and the ABI has six.
var errRecordArgs = errors.New("the tracepoint has more than five arguments")

// recorder makes the records of one event.
type recorder struct {
	event linux.Event
	at    guest.GVA // of vCPU 0's block
	mem   []byte
	fn    guest.GVA // the copy; 0: the event of a system call
}

// recorders are the recorders of the current boot.
type recorders struct {
	st *Session

	mu     sync.Mutex
	byName map[string]*recorder
}

// forget drops all recorders: the guest's memory becomes another boot's.
func (rs *recorders) forget() {
	for _, a := range rs.st.snapshot() {
		a.recorder.Store(nil)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if shared, ok := rs.st.guest.(program.Shared); ok {
		for _, r := range rs.byName {
			shared.FreeShared(r.at)
		}
	}
	clear(rs.byName)
}

// event finds an event by CATEGORY:NAME.
func (rs *recorders) event(name string) (linux.Event, linux.Tracing, error) {
	img, ok := tracingOf(rs.st.guest)
	if !ok {
		return linux.Event{}, img, errors.New("only the kernel of a Linux guest has events")
	}
	system, event, _ := strings.Cut(name, ":")
	e, err := img.Event(system, event)
	return e, img, err
}

// recorderOf returns the recorder of an event.
func (rs *recorders) recorderOf(name string) (*recorder, error) {
	st := rs.st
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.byName[name]; r != nil {
		return r, nil
	}
	e, img, err := rs.event(name)
	if err != nil {
		return nil, err
	}
	shared, ok := st.guest.(program.Shared)
	if !ok {
		return nil, errors.New("the guest has no memory for it")
	}
	r := &recorder{event: e}
	if e.Record != 0 {
		if known := st.types(); known != nil {
			if proto := known.Func("", bpf.TracepointFunction(e.Tracepoint)); proto != nil && len(proto.Params) > 6 {
				return nil, errRecordArgs
			}
		}
		if r.fn, err = rs.copyCode(img, e); err != nil {
			return nil, err
		}
	}
	if r.at, r.mem, err = shared.AllocShared(recordBlock*st.guest.Target().NumCPU(), false); err != nil {
		return nil, err
	}
	if rs.byName == nil {
		rs.byName = map[string]*recorder{}
	}
	rs.byName[name] = r
	return r, nil
}

// copyCode puts a copy of the function that records e into the engine's memory. The code that replaces the ring buffer precedes it.
func (rs *recorders) copyCode(img linux.Tracing, e linux.Event) (guest.GVA, error) {
	target := rs.st.guest.Target()
	code, err := img.RecordCode(e, e.Record, e.Record, e.Record) // only for the length
	if err != nil {
		return 0, err
	}
	stubs, commit := recordStubs()
	at, err := target.AllocExec(e.Record, len(stubs)+len(code))
	if err != nil {
		return 0, err
	}
	fn := at + guest.GVA(len(stubs))
	if code, err = img.RecordCode(e, fn, at, at+guest.GVA(commit)); err != nil {
		return 0, err
	}
	return fn, target.Stop(func(probe.World) error { return target.WriteExec(at, append(stubs, code...)) })
}

// recordStubs is the code that replaces the ring buffer: at its start the function
// that allocates a record, whose second argument is the file and whose third is the
// length, and at commit the function that commits the record.
func recordStubs() (code []byte, commit int) {
	var a x86.Asm
	none := a.NewLabel()
	a.Cmp(8, x86.RDX, x86.Imm(maxRecord))
	a.Jcc(x86.CondA, none)
	a.Mov(8, x86.At(x86.RSI, recordLength), x86.RDX)
	a.Lea(8, x86.RAX, x86.At(x86.RSI, recordData))
	a.Ret()
	a.Place(none)
	a.Xor(4, x86.RAX, x86.RAX)
	a.Ret()
	commit = a.Len()
	a.Ret()
	a.Align(16)
	return a.Code(), commit
}

// passes reports whether the hit belongs to the event.
func (r *recorder) passes(c *probe.Context) bool {
	switch {
	case r.event.Record != 0:
		return true
	case r.event.IsExit:
		var b [8]byte
		return c.Read(guest.GVA(c.Regs.RSI)+x86.PtOrigAX, b[:]) == nil && binary.LittleEndian.Uint64(b[:]) == r.event.Call
	}
	return c.Regs.RDX == r.event.Call
}

// noRecord is the record of a hit without one.
var noRecord [maxRecord]byte

// record makes the record of a hit, and returns its address, or 0, and its memory.
func (r *recorder) record(c *probe.Context) (addr uint64, data []byte) {
	at := r.at + guest.GVA(c.CPU*recordBlock)
	mem := r.mem[c.CPU*recordBlock:][:recordBlock]
	if r.event.Record == 0 {
		r.recordCall(c, mem[recordData:])
		return uint64(at) + recordData, mem[recordData:]
	}
	clear(mem[:recordLength+8])
	if _, err := c.Call(r.fn, uint64(at), c.Regs.RSI, c.Regs.RDX, c.Regs.RCX, c.Regs.R8, c.Regs.R9); err != nil || binary.LittleEndian.Uint64(mem[recordLength:]) == 0 {
		return 0, noRecord[:]
	}
	return uint64(at) + recordData, mem[recordData:]
}

// recordCall makes the record of a system call (struct syscall_trace_enter, and _exit).
func (r *recorder) recordCall(c *probe.Context, rec []byte) {
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(rec[off:], v) }
	put(callNumber, r.event.Call&0xffffffff)
	if r.event.IsExit {
		put(callArgs, c.Regs.RDX)
		return
	}
	var regs [x86.PtRegsSize]byte
	if c.Read(guest.GVA(c.Regs.RSI), regs[:]) != nil {
		clear(regs[:])
	}
	for i, off := range [...]int{x86.PtDI, x86.PtSI, x86.PtDX, x86.PtR10, x86.PtR8, x86.PtR9} {
		copy(rec[callArgs+8*i:][:8], regs[off:])
	}
}

// fields returns the fields of an event's record, for scripts.
func (rs *recorders) fields(name string) (out []script.EventField, err error) {
	e, _, err := rs.event(name)
	if err != nil {
		return nil, err
	}
	return scriptFields(rs.st, e.Fields), nil
}

// EventFields returns the fields of all events of the guest's kernel, by CATEGORY:NAME, for listings. It has no event whose fields cannot be read.
func (st *Session) EventFields() (map[string][]script.EventField, error) {
	img, ok := tracingOf(st.guest)
	if !ok {
		return nil, nil
	}
	all, err := img.EventsWithFields()
	out := make(map[string][]script.EventField, len(all))
	for i := range all {
		out[all[i].String()] = scriptFields(st, all[i].Fields)
	}
	return out, err
}

// scriptFields returns the fields of an event with their types.
func scriptFields(st *Session, fields []linux.EventField) (out []script.EventField) {
	out = []script.EventField{}
	var find func(tag, name string) types.Type
	if known, ok := st.types().(script.Types); ok {
		find = func(tag, name string) types.Type { return known.TypeByName(types.Tag(tag), name) }
	}
	for i := range fields {
		f := &fields[i]
		x := script.EventField{Name: f.Name, Offset: f.Offset}
		x.Type, x.Located = f.CType(find)
		out = append(out, x)
	}
	return out
}

// attach makes a program of an event the handler of a, whose kprobe on the engine is
// k, with the record of each hit.
func (rs *recorders) attach(a *Probe, p *program.Program, k *probe.Kprobe, name string) error {
	r, err := rs.recorderOf(name)
	if err != nil {
		return &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "the fields of " + name + " cannot be had", Detail: err.Error(), Err: err}
	}
	a.recorder.Store(r)
	p.Record = func(c *probe.Context) (uint64, []byte) {
		if r := a.recorder.Load(); r != nil {
			return r.record(c)
		}
		return 0, noRecord[:]
	}
	p.RecordAt = func(cpu int) uint64 {
		if r := a.recorder.Load(); r != nil {
			return uint64(r.at) + uint64(cpu*recordBlock) + recordData
		}
		return 0
	}
	k.Filter = func(c *probe.Context) bool {
		r := a.recorder.Load()
		return r == nil || r.passes(c)
	}
	return nil
}

// renew restores in the memory of this boot what programs of events need. The guest's
// kernel must have started.
func (rs *recorders) renew() error {
	for _, a := range rs.st.snapshot() {
		if a.object == nil || a.recorder.Load() != nil {
			continue
		}
		name, ok := a.runs.(*objectProgram).prog.Event()
		if !ok {
			continue
		}
		r, err := rs.recorderOf(name)
		if err != nil {
			return fmt.Errorf("the record of %s: %w", name, err)
		}
		a.recorder.Store(r)
	}
	return nil
}
