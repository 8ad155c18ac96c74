package probe

import "github.com/guestprobe/guestprobe/guest"

// Args is a view of the arguments of a function at its entry, by the System V ABI
// (AMD64 supplement, 3.2.3): the first six integers and pointers are in RDI, RSI,
// RDX, RCX, R8 and R9, the others on the stack after the return address. It is
// meaningful only in the entry and pre handlers of a probe on a function's entry.
// Arguments are numbered from 0 and count integers and pointers only: floating-point
// arguments are in registers that the engine does not have, and a structure that is
// passed by value in parts counts as those parts.
type Args struct{ c *Context }

// Args returns the arguments of the function whose entry was hit.
func (c *Context) Args() Args { return Args{c} }

// reg returns where the argument i is, nil for one on the stack.
func (a Args) reg(i int) *uint64 {
	r := a.c.Regs
	switch i {
	case 0:
		return &r.RDI
	case 1:
		return &r.RSI
	case 2:
		return &r.RDX
	case 3:
		return &r.RCX
	case 4:
		return &r.R8
	case 5:
		return &r.R9
	}
	return nil
}

// slot returns the address of an argument on the stack.
func (a Args) slot(i int) guest.GVA { return guest.GVA(a.c.Regs.RSP) + 8 + 8*guest.GVA(i-6) }

// Uint64 returns argument i, all 64 bits of it: those above the argument's own size
// are undefined. If it is on a stack that cannot be read, the result is 0, and
// Stats.BadAccesses counts it. i must not be negative.
func (a Args) Uint64(i int) uint64 {
	if p := a.reg(i); p != nil {
		return *p
	}
	if i < 0 {
		panic("argument number below 0")
	}
	c := a.c
	w := c.cpu.word[:]
	if c.Read(a.slot(i), w) != nil {
		return 0
	}
	return le.Uint64(w)
}

// Pointer returns argument i as an address.
func (a Args) Pointer(i int) guest.GVA { return guest.GVA(a.Uint64(i)) }

// Set changes argument i for the function. It fails as Context.Write does.
func (a Args) Set(i int, v uint64) error {
	if p := a.reg(i); p != nil {
		*p = v
		return nil
	}
	if i < 0 {
		panic("argument number below 0")
	}
	c := a.c
	w := c.cpu.word[:]
	le.PutUint64(w, v)
	return c.Write(a.slot(i), w)
}

// Integer is the set of types that Arg can return.
type Integer interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Arg returns argument i as a T: Arg[int32](c.Args(), 0) is the int that a C
// function has as its first argument.
func Arg[T Integer](a Args, i int) T { return T(a.Uint64(i)) }
