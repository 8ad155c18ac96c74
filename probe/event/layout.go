package event

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// CommSize is the size of a task's name in a record, with its NUL
// (TASK_COMM_LEN).
const CommSize = 16

// Options are the features of Compile beyond the definition.
type Options struct {
	// Tasks says that the program that makes the records can determine the running
	// task: records have it, and $comm is possible.
	Tasks bool
	// Regs adds the general registers to every record.
	Regs bool
	// Stack adds the addresses of the interrupted code and its callers to every
	// record except the records of AtPost.
	Stack bool
	// Moves says that the probed code may move, for example a kernel at a reset, or a
	// module that is loaded again: records have its address.
	Moves bool
	// Again says that the definition was compiled before, for a guest that was reset
	// since: a symbol that no longer exists has address 0.
	Again bool
}

// Layout is a definition resolved against an image: the contents and the offsets of
// its records. It does not change, and may be used from any thread. Package evbpf
// makes the program that writes such records.
type Layout struct {
	// Fields are the values of a record: for a watch first the values of the access,
	// then the definition's arguments.
	Fields []Field
	// Moment is when the records are made.
	Moment Moment

	// Offsets in a record; see record.go for its layout. 0: there is no such part.
	Place    int // the probed address: of a watch, and with Options.Moves
	Ret      int // of AtReturn
	Entered  int // of AtReturn
	Comm     int
	Regs     int
	Stack    int // StackDepth addresses
	Dynamic  int // texts, one after the other
	MaxBytes int // bytes of the longest record

	// Fixed: its programs contain addresses of symbols or variables of the image, or
	// from the definition. They may change when the guest is reset.
	Fixed bool
	// OfModule: some of them are of symbols of a kernel module, loaded or not: they
	// may change whenever modules are loaded or unloaded.
	OfModule bool

	def   *Def
	addr  guest.GVA
	names Names
	post  atomic.Pointer[Layout] // see Post
}

// Field is one value of a record.
type Field struct {
	Arg // Fetch has addresses in place of symbols
	// Offset is the offset in the record of the value, or of the first element, and
	// Size is the bytes of one: of a text the bytes of its data_loc.
	Offset, Size int
}

// Elements returns the number of values of the field: 1, or the length of the array.
func (f *Field) Elements() int { return max(1, f.Type.Count) }

// Compile resolves d against an image. The error is a *SyntaxError with a caret in
// the command that d was parsed from: it does every check that Parse leaves out.
func Compile(d *Def, scope Scope, opt Options) (*Layout, error) {
	// d may have been made by hand or parsed without symbols: its tokens decide.
	full, err := (&Command{d.line()}).Define(scope)
	if err != nil {
		return nil, err
	}
	symbols := scope.Symbols
	addr, _, err := d.locate(symbols)
	if err != nil {
		return nil, err
	}
	f := &Layout{def: d, addr: addr, names: scope.names()}
	if d.Kind == KindReturn {
		f.Moment = AtReturn
	}
	if d.Kind == KindWatch {
		f.Fields = watchFields(full, symbols)
	}
	for _, a := range full.Args {
		f.OfModule = f.OfModule || ofModule(a.Fetch, symbols)
		if a.Fetch, err = resolve(full, a.Fetch, symbols, opt.Again); err != nil {
			return nil, err
		}
		f.Fixed = f.Fixed || hasAddress(a.Fetch)
		if _, comm := a.Fetch.(Comm); comm && !opt.Tasks {
			e := d.line().failText(a.Text, CodeNoProfile)
			e.Detail = "$comm needs to know how the guest keeps its tasks"
			return nil, e
		}
		size := a.Type.Size
		if a.Type.Format == SymStr {
			size = 8 // kept as the address: a hit must not look up names
		}
		f.Fields = append(f.Fields, Field{Arg: a, Size: size})
	}
	f.place(opt)
	return f, nil
}

// place assigns the offsets of a record's parts.
func (f *Layout) place(opt Options) {
	at := (RecordStatus + len(f.Fields) + 7) &^ 7
	take := func(n int) int {
		at += n
		return at - n
	}
	if f.Moment == AtReturn {
		f.Ret, f.Entered = take(8), take(8)
	}
	if f.def.Kind == KindWatch || opt.Moves {
		f.Place = take(8)
	}
	if opt.Tasks {
		f.Comm = take(CommSize)
	}
	if opt.Regs {
		f.Regs = take(regsSize)
	}
	if opt.Stack {
		f.Stack = take(8 * StackDepth)
	}
	texts := 0
	for i := range f.Fields {
		x := &f.Fields[i]
		x.Offset = take(x.Size * x.Elements())
		if x.Type.HasText() {
			texts += x.Elements()
		}
	}
	f.Dynamic = at
	f.MaxBytes = min(at+texts*MaxText, maxRecord)
}

// Texts returns the number of texts in a record.
func (f *Layout) Texts() (n int) {
	for i := range f.Fields {
		if f.Fields[i].Type.HasText() {
			n += f.Fields[i].Elements()
		}
	}
	return n
}

// resolve replaces symbols by addresses.
func resolve(d *Def, x Fetch, symbols probe.Symbols, again bool) (Fetch, error) {
	switch x := x.(type) {
	case Deref:
		of, err := resolve(d, x.Of, symbols, again)
		x.Of = of
		return x, err
	case Sum:
		of, err := resolve(d, x.Of, symbols, again)
		x.Of = of
		return x, err
	case SymbolAddr:
		s, err := symbols.Lookup(x.Name)
		if err != nil && again {
			return Immediate{0}, nil
		}
		if err != nil {
			e := d.line().fail(1, 0, CodeBadProbeAddr)
			e.Errno = CodeBadProbeAddr.Errno()
			var ambiguous *guest.AmbiguousSymbolError
			if !errors.As(err, &ambiguous) {
				e.Errno = enoent
			}
			e.Detail = fmt.Sprintf("@%s: %v", x.Name, err)
			return nil, e
		}
		return Immediate{uint64(s.Addr) + uint64(x.Offset)}, nil
	}
	return x, nil
}

// ofModule reports whether f reads at a symbol that is not the kernel's own.
func ofModule(f Fetch, symbols probe.Symbols) bool {
	switch x := f.(type) {
	case Deref:
		return ofModule(x.Of, symbols)
	case Sum:
		return ofModule(x.Of, symbols)
	case SymbolAddr:
		kernel, ok := symbols.(interface {
			Address(name string) (guest.GVA, bool)
		})
		if ok {
			_, own := kernel.Address(x.Name)
			return !own
		}
	}
	return false
}

// hasAddress reports whether f reads from a place that is known from the start.
func hasAddress(f Fetch) bool {
	switch x := f.(type) {
	case Deref:
		return hasAddress(x.Of)
	case Sum:
		return hasAddress(x.Of)
	case Immediate:
		return true
	}
	return false
}

// Def returns the compiled definition.
func (f *Layout) Def() *Def { return f.def }

// Addr returns the probed address. For a return probe it is the function's entry.
func (f *Layout) Addr() guest.GVA { return f.addr }

// Post returns the format of the records made after the probed instruction: only the
// task and the registers.
func (f *Layout) Post() *Layout {
	if p := f.post.Load(); p != nil {
		return p
	}
	p := &Layout{Moment: AtPost, def: f.def, addr: f.addr, names: f.names}
	p.place(Options{Tasks: f.Comm != 0, Regs: f.Regs != 0, Moves: f.Place != 0})
	f.post.Store(p)
	return p
}

// StackArgs returns the numbers of the arguments that a return needs from the stack
// of its function's entry, ascending: those that are not in registers.
func (f *Layout) StackArgs() []int {
	var out []int
	if f.Moment != AtReturn {
		return nil
	}
	for _, x := range f.Fields {
		if a, ok := innermostFetch(x.Fetch).(FuncArg); ok && a.N > len(ArgRegs) {
			out = append(out, a.N)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// innermostFetch returns the part that f reads first.
func innermostFetch(f Fetch) Fetch {
	for d, ok := f.(Deref); ok; d, ok = f.(Deref) {
		f = d.Of
	}
	return f
}

// UsesEntry reports whether d is a definition of returns with an argument from the
// function's entry.
func (d *Def) UsesEntry() bool {
	return d.Kind == KindReturn && slices.ContainsFunc(d.Args, func(a Arg) bool {
		_, ok := innermostFetch(a.Fetch).(FuncArg)
		return ok
	})
}
