package x86

import "fmt"

// Asm assembles code. The zero value makes code for address 0, which is the same at
// any other address as long as it has no Label outside of it (see LabelAt). Every
// encoding is the shortest possible, except that jumps, calls and pushes of an
// immediate always have 32-bit operands: their length does not depend on the address
// of the code or on the value. An operand that no instruction supports is a bug of
// the caller and panics.
type Asm struct {
	encoder
	base   uint64
	labels []place
	refs   []ref
}

// Reset starts over, in the same memory.
func (a *Asm) Reset() { *a = Asm{encoder: encoder{b: a.b[:0]}, labels: a.labels[:0], refs: a.refs[:0]} }

// Label is a place in the code, or outside of it, for jumps and calls.
type Label int

// place is where a label is.
type place struct {
	state placeState
	at    uint64 // offset in the code, or address
}

type placeState uint8

const (
	open placeState = iota // not placed yet
	inside
	outside
)

// ref is a 32-bit displacement whose label is not placed yet. It is relative to its
// own end.
type ref struct {
	at    int
	label Label
}

// RegSet is a set of general registers: register r is bit r.
type RegSet uint16

// Has reports whether r is in the set.
func (s RegSet) Has(r Reg64) bool { return s>>r&1 != 0 }

// add puts r into the set.
func (s *RegSet) add(r Reg64) { *s |= 1 << r }

// NewAsm returns an assembler of code for the address base.
func NewAsm(base uint64) *Asm { return &Asm{base: base} }

// Assemble returns the code assembled by f, which is the same at any address.
func Assemble(f func(a *Asm)) []byte {
	var a Asm
	f(&a)
	return a.Code()
}

// NewLabel returns a label that Place will place.
func (a *Asm) NewLabel() Label {
	a.labels = append(a.labels, place{})
	return Label(len(a.labels) - 1)
}

// Place places l here. A label is placed once.
func (a *Asm) Place(l Label) {
	if a.labels[l].state != open {
		panic("BUG: label is placed twice")
	}
	a.labels[l] = place{inside, uint64(len(a.b))}
}

// LabelHere returns a new label that is placed here.
func (a *Asm) LabelHere() Label {
	l := a.NewLabel()
	a.Place(l)
	return l
}

// LabelAt returns a label of an address that is not in the code.
func (a *Asm) LabelAt(addr uint64) Label {
	l := a.NewLabel()
	a.labels[l] = place{outside, addr}
	return l
}

// Offset returns the offset in the code of a label that has been placed.
func (a *Asm) Offset(l Label) int {
	if a.labels[l].state != inside {
		panic("BUG: label is not in the code")
	}
	return int(a.labels[l].at)
}

// Len returns the number of bytes so far.
func (a *Asm) Len() int { return len(a.b) }

// PC returns the address of the next instruction.
func (a *Asm) PC() uint64 { return a.base + uint64(len(a.b)) }

// Append appends complete code: it was relocated or linked for this address, or is
// the same at any.
func (a *Asm) Append(code []byte) { a.b = append(a.b, code...) }

// Align pads with int3s to a multiple of n.
func (a *Asm) Align(n int) {
	for len(a.b)%n != 0 {
		a.Int3()
	}
}

// Link fills in all displacements and returns the code. A label that was never
// placed is a bug. The error is ErrOutOfReach, for a label outside.
func (a *Asm) Link() ([]byte, error) {
	for _, r := range a.refs {
		p := a.labels[r.label]
		to := p.at
		switch p.state {
		case open:
			panic("BUG: label was never placed")
		case inside:
			to += a.base
		}
		disp := to - (a.base + uint64(r.at) + 4)
		if !fits32(disp) {
			return nil, fmt.Errorf("x86: from %#x to %#x: %w", a.base+uint64(r.at), to, ErrOutOfReach)
		}
		put32(a.b[r.at:], uint32(disp))
	}
	return a.b, nil
}

// Code is Link for code without labels outside, which cannot fail.
func (a *Asm) Code() []byte {
	b, err := a.Link()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// ref appends a displacement to l.
func (a *Asm) ref(l Label) {
	a.refs = append(a.refs, ref{len(a.b), l})
	a.imm32(0)
}
