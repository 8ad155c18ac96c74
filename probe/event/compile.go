package event

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// CommSize is the size of a task's name in a record, with its NUL
// (TASK_COMM_LEN).
const CommSize = 16

// Profile knows how a guest's kernel keeps its tasks.
type Profile interface {
	// Task returns the id of the task that c interrupted and writes its name,
	// padded with NULs, into comm, which has CommSize bytes. ok is false when
	// it cannot tell. It runs on the vCPU's thread at a hit: no lock, no
	// allocation.
	Task(c *probe.Context, comm []byte) (pid int32, ok bool)
}

// Options are what Compile can do beyond the definition.
type Options struct {
	// Profile, when set, gives records the running task and makes $comm
	// possible.
	Profile Profile
	// Regs adds the general registers to every record.
	Regs bool
}

// Fetcher captures what a definition asks for at a hit, and reads back what it
// captured. It is immutable: every vCPU uses the same one at the same time.
type Fetcher struct {
	def     *Def
	addr    guest.GVA
	symbols probe.Symbols
	profile Profile
	ops     []op
	types   []Arg     // name and type of each op
	entry   []operand // r: what CaptureEntry keeps, in order

	// Offsets in a record; see record.go for its layout.
	args     int // first argument
	status   int // one byte per argument
	comm     int // CommSize bytes; 0 = none
	regs     int // 0 = none
	duration int // r only: 8 bytes
	dynamic  int // text, up to max
	max      int // bytes of the longest record
	texts    int // number of texts in a record
}

// Compile resolves d against an image and returns its Fetcher. The error is a
// *SyntaxError with a caret in the command that d was parsed from: every check
// that Parse leaves out is made here.
func Compile(d *Def, symbols probe.Symbols, opt Options) (*Fetcher, error) {
	// d may have been made by hand or parsed without symbols: its text decides.
	full, err := ParseIn(d.line().command, symbols)
	if err != nil {
		return nil, err
	}
	addr, _, err := full.locate(symbols)
	if err != nil {
		return nil, err
	}
	f := &Fetcher{def: d, addr: addr, symbols: symbols, profile: opt.Profile}
	f.args = entryArgs
	if d.Kind == KindReturn {
		f.args = returnArgs
	}
	at := f.args
	if d.Kind == KindWatch {
		at = f.compileWatch(full, at)
	}
	for i, a := range full.Args {
		o, err := f.compileArg(full, i, a)
		if err != nil {
			return nil, err
		}
		o.off = at
		at += o.size * max(1, o.count)
		f.ops, f.types = append(f.ops, o), append(f.types, a)
	}
	f.status = at
	at += len(f.ops)
	if opt.Profile != nil {
		f.comm = at
		at += CommSize
	}
	if opt.Regs {
		f.regs = at
		at += regsSize
	}
	if f.args == returnArgs {
		f.duration = at
		at += 8
	}
	f.dynamic = at
	f.max = min(at+f.texts*maxString, maxRecord)
	return f, nil
}

// operand is how a value is computed: a source, then loads of 8 bytes, each at
// an offset from what the one before gave.
type operand struct {
	from  origin
	reg   Reg
	value uint64 // immediate, symbol's address, or index of entry data
	loads []int64
}

// origin says where an 8-byte value comes from.
type origin uint8

const (
	fromReg origin = iota
	fromValue
	fromEntry
	fromWatch // value: 0 is what was there before, 1 after, 2 whether it was written
)

// storage says how a value gets into the record.
type storage uint8

const (
	storeValue   storage = iota // the operand's low bytes
	storeMemory                 // memory at the operand plus last
	storeText                   // text in memory at the operand plus last
	storeTexts                  // text at each of the pointers there
	storeLiteral                // literal
	storeComm                   // the task's name
)

// op is one compiled argument.
type op struct {
	operand
	store   storage
	last    int64
	literal string
	size    int // bytes of one element in the record
	count   int // elements; 0 = a single value
	bits    bool
	shift   uint
	mask    uint64
	off     int
}

func (f *Fetcher) compileArg(d *Def, i int, a Arg) (op, error) {
	o := op{size: a.Type.Size, count: a.Type.Count}
	if a.Type.Format == SymStr {
		o.size = 8 // kept as the address: looking up a name has no place in a hit
	}
	if a.Type.Format == Bits {
		o.bits, o.shift, o.mask = true, uint(a.Type.Offset), ^uint64(0)>>(64-a.Type.Width)
	}
	switch x := a.Fetch.(type) {
	case Literal:
		o.store, o.literal = storeLiteral, x.Text
		f.texts++
		return o, nil
	case Comm:
		if f.profile == nil {
			e := d.line().fail(i+2, len(d.line().tokens[i+2])-len(a.Text), CodeNoProfile)
			e.Detail = "$comm needs to know how the guest keeps its tasks"
			return o, e
		}
		o.store = storeComm
		f.texts++
		return o, nil
	}
	var err error
	if o.operand, err = f.operand(d, a.Fetch); err != nil {
		return o, err
	}
	// The outermost dereference is not a load of 8 bytes but what the type
	// says, unless its value is a pointer to something else.
	_, memory := a.Fetch.(Deref)
	switch {
	case a.Type.hasText() && o.count > 0:
		o.store = storeTexts
		f.texts += o.count
	case a.Type.hasText():
		o.store = storeText
		f.texts++
	case memory && a.Type.Format != SymStr:
		o.store = storeMemory
	}
	if memory && o.store != storeValue {
		n := len(o.loads) - 1
		o.last, o.loads = o.loads[n], o.loads[:n]
	}
	return o, nil
}

// operand flattens f.
func (f *Fetcher) operand(d *Def, x Fetch) (operand, error) {
	switch x := x.(type) {
	case Register:
		return operand{from: fromReg, reg: x.Reg}, nil
	case StackPointer:
		return operand{from: fromReg, reg: RegSP}, nil
	case StackSlot:
		return operand{from: fromReg, reg: RegSP, loads: []int64{int64(x.N) * 8}}, nil
	case RetVal:
		return operand{from: fromReg, reg: RegAX}, nil
	case Immediate:
		return operand{from: fromValue, value: x.Value}, nil
	case FuncArg:
		o := operand{from: fromReg, reg: RegSP, loads: []int64{int64(x.N-len(argRegs)) * 8}}
		if x.N <= len(argRegs) {
			o = operand{from: fromReg, reg: argRegs[x.N-1]}
		}
		if d.Kind == KindReturn {
			return f.keep(o), nil
		}
		return o, nil
	case SymbolAddr:
		s, err := f.symbols.Lookup(x.Name)
		if err != nil {
			e := d.line().fail(1, 0, CodeBadProbeAddr)
			e.Errno = CodeBadProbeAddr.Errno()
			var ambiguous *guest.AmbiguousSymbolError
			if !errors.As(err, &ambiguous) {
				e.Errno = enoent
			}
			e.Detail = fmt.Sprintf("@%s: %v", x.Name, err)
			return operand{}, e
		}
		return operand{from: fromValue, value: uint64(s.Addr) + uint64(x.Offset)}, nil
	case Deref:
		o, err := f.operand(d, x.Of)
		// A fresh slice: two arguments may share a prefix in f.entry.
		o.loads = append(append([]int64(nil), o.loads...), x.Offset)
		return o, err
	}
	panic(fmt.Sprintf("BUG: event: no operand for %T", x))
}

// keep has CaptureEntry evaluate o and returns the operand that reads it back
// at the return.
func (f *Fetcher) keep(o operand) operand {
	for i, have := range f.entry {
		if have.reg == o.reg && len(have.loads) == len(o.loads) && (len(o.loads) == 0 || have.loads[0] == o.loads[0]) {
			return operand{from: fromEntry, value: uint64(i)}
		}
	}
	f.entry = append(f.entry, o)
	return operand{from: fromEntry, value: uint64(len(f.entry) - 1)}
}

// Def returns the definition that was compiled.
func (f *Fetcher) Def() *Def { return f.def }

// Addr returns the place, resolved. For a return probe it is the function's
// entry.
func (f *Fetcher) Addr() guest.GVA { return f.addr }

// BufSize returns the number of bytes that Capture and its siblings need to
// work in; no record is longer.
func (f *Fetcher) BufSize() int { return f.max + 8 }

// EntrySize returns the number of bytes that CaptureEntry fills: 0 when a
// return needs nothing from its entry.
func (f *Fetcher) EntrySize() int { return len(f.entry) * entrySlot }
