package event

import (
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// CommSize is the size of a task's name in a record, with its NUL
// (TASK_COMM_LEN).
const CommSize = 16

// Options are what Compile can do beyond the definition.
type Options struct {
	// Tasks says that the program that makes the records can tell the running task:
	// records have it, and $comm is possible.
	Tasks bool
	// Regs adds the general registers to every record.
	Regs bool
	// Stack adds to every record but those of AtPost where the interrupted code stands
	// and its callers.
	Stack bool
	// Moves says that the probed code may come to be elsewhere, as that of a kernel does
	// at a reset, and a module's when it comes again: records have its address.
	Moves bool
	// Again says that the definition was compiled before, for a guest that was reset since: of
	// what is no symbol any more the address is 0.
	Again bool
}

// Layout is a definition resolved against an image: what its records hold, and
// where. It does not change, and may be used from any thread. Package evbpf makes
// the program that writes such records.
type Layout struct {
	// Fields are the values of a record: of a watch those of the access first, then
	// the definition's arguments.
	Fields []Field
	// Moment is when the records are made.
	Moment Moment

	// Offsets in a record; see record.go for its layout. 0: it has no such part.
	Place    int // the probed address: of a watch, and with Options.Moves
	Ret      int // of AtReturn
	Entered  int // of AtReturn
	Comm     int
	Regs     int
	Stack    int // StackDepth addresses
	Dynamic  int // texts, one behind the other
	MaxBytes int // bytes of the longest record

	// Fixed: its programs have addresses of the image, of symbols or variables (or that the
	// definition gives). When the guest is reset they may be others.
	Fixed bool
	// OfModule: some of them are of symbols that a kernel's module has, or had: they may be others
	// whenever modules come and go.
	OfModule bool

	def   *Def
	addr  guest.GVA
	names Names
	post  *Layout
}

// Field is one value of a record.
type Field struct {
	Arg // Fetch has addresses in place of symbols
	// Offset is where the value stands in the record, or the first element, and
	// Size the bytes of one: of a text those of its data_loc.
	Offset, Size int
}

// Elements returns how many values the field has: 1, or the length of the array.
func (f *Field) Elements() int { return max(1, f.Type.Count) }

// Compile resolves d against an image. The error is a *SyntaxError with a caret
// in the command that d was parsed from: every check that Parse leaves out is made
// here.
func Compile(d *Def, scope Scope, opt Options) (*Layout, error) {
	// d may have been made by hand or parsed without symbols: its text decides.
	full, err := ParseIn(d.line().command, scope)
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
			size = 8 // kept as the address: looking up a name has no place in a hit
		}
		f.Fields = append(f.Fields, Field{Arg: a, Size: size})
	}
	f.post = &Layout{Moment: AtPost, def: d, addr: addr, names: scope.names()}
	f.place(opt)
	opt.Stack = false
	f.post.place(opt)
	return f, nil
}

// place gives every part of a record its place.
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

// Texts returns how many texts a record has.
func (f *Layout) Texts() (n int) {
	for i := range f.Fields {
		if f.Fields[i].Type.HasText() {
			n += f.Fields[i].Elements()
		}
	}
	return n
}

// resolve puts addresses in place of symbols.
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

// ofModule reports whether f reads at a symbol that the kernel itself does not have.
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

// hasAddress reports whether what f reads is in a place that is known from the start.
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

// Def returns the definition that was compiled.
func (f *Layout) Def() *Def { return f.def }

// Addr returns the probed address. For a return probe it is the function's entry.
func (f *Layout) Addr() guest.GVA { return f.addr }

// Post returns the format of the records that are made behind the probed
// instruction: the task and the registers only.
func (f *Layout) Post() *Layout { return f.post }

// StackArgs returns the numbers of the arguments that a return needs from the
// stack of its function's entry, ascending: those behind the registers.
func (f *Layout) StackArgs() []int {
	var out []int
	if f.Moment != AtReturn {
		return nil
	}
	for _, x := range f.Fields {
		if a, ok := innermost(x.Fetch).(FuncArg); ok && a.N > len(ArgRegs) {
			out = append(out, a.N)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// innermost returns what f reads first.
func innermost(f Fetch) Fetch {
	for d, ok := f.(Deref); ok; d, ok = f.(Deref) {
		f = d.Of
	}
	return f
}

// UsesEntry reports whether d is a definition of returns that has an argument from the
// function's entry.
func (d *Def) UsesEntry() bool {
	return d.Kind == KindReturn && slices.ContainsFunc(d.Args, func(a Arg) bool {
		_, ok := innermost(a.Fetch).(FuncArg)
		return ok
	})
}
