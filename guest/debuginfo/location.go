package debuginfo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Location describes a value, or its address, in terms of the registers at an address
// of the code.
type Location struct {
	Base Base
	Reg  int // of BaseRegister and BaseEntry: its number (System V ABI for AMD64, figure 3.36), 0 to 15

	// Offsets are applied from the base on: the base plus the first offset is a
	// number, the word in memory at it plus the second offset is the next one, and so
	// on. There is at least one.
	Offsets []int64

	Memory bool // the value is in memory at the last number; otherwise it is that number
}

// Piece is a part of a value.
type Piece struct {
	Size  uint64 // bytes
	Where Location
	Why   error // why it is not known; nil: see Where
}

// Limits of the pieces of one value.
const (
	maxPieces    = 16
	maxPieceSize = 256 // bytes
)

// Base is the beginning of a Location.
type Base uint8

// The bases.
const (
	BaseNone     Base = iota // 0
	BaseRegister             // the contents of a register
	BaseCFA                  // the canonical frame address
	BaseProgram              // the difference between the program's addresses and the file's
	BaseEntry                // the contents of a register when the function was entered (Info.Call)
)

// Limits of an expression.
const (
	maxExpression = 1 << 12
	maxOperands   = 64
	maxSteps      = 8 // words in memory on the way to a value
)

// Why a value is not available.
var (
	errOptimizedOut = errors.New("optimized out at this place")
	// ErrEntryValue is Variable.Why of a value that only callers can know: with a
	// Location from BaseEntry, Info.Call may know it.
	ErrEntryValue = errors.New("known at this place only by the value passed at the function's entry (DW_OP_entry_value)")
	errPieces     = errors.New("in pieces at this place (DW_OP_piece)")
	errImplicit   = errors.New("a pointer to something that is optimized out at this place (DW_OP_implicit_pointer)")
	errThread     = errors.New("of a thread (DW_OP_form_tls_address)")
	errDamaged    = errors.New("damaged debug information")
)

// arithmetic are the names of operations from DW_OP_abs on, which a Location cannot
// represent.
var arithmetic = [...]string{
	"abs", "and", "div", "minus", "mod", "mul", "neg", "not", "or", "plus", "plus_uconst", "shl", "shr", "shra", "xor", "bra", "eq", "ge", "gt", "le", "lt", "ne", "skip",
}

func computedError(op byte) error {
	if n := int(op) - opAbs; n >= 0 && n < len(arithmetic) {
		return fmt.Errorf("computed at this place (DW_OP_%s)", arithmetic[n])
	}
	return fmt.Errorf("computed at this place (DW_OP %#02x)", op)
}

// Operations of expressions (DWARF 5, 7.7.1), and GNU's earlier versions.
const (
	opAddr, opDeref, opConst1u, opConsts                   = 0x03, 0x06, 0x08, 0x11
	opAbs, opMinus, opPlus, opPlusUconst                   = 0x19, 0x1c, 0x22, 0x23
	opLit0, opReg0, opBreg0, opRegx, opFbreg, opBregx      = 0x30, 0x50, 0x70, 0x90, 0x91, 0x92
	opPiece, opDerefSize, opNop, opTLS, opCFA, opBitPiece  = 0x93, 0x94, 0x96, 0x9b, 0x9c, 0x9d
	opImplicitValue, opStackValue, opImplicitPointer       = 0x9e, 0x9f, 0xa0
	opAddrx, opConstx, opEntryValue                        = 0xa1, 0xa2, 0xa3
	opGNUTLS, opGNUImplicitPointer, opGNUEntryValue, regIP = 0xe0, 0xf2, 0xf3, 16
	opGNUAddrIndex, opGNUConstIndex                        = 0xfb, 0xfc
)

// number is an element of the stack of an expression: a Location that is not in
// memory.
type number struct {
	base Base
	reg  int
	off  []int64
}

func constant(v int64) number { return number{off: []int64{v}} }

// plus adds a constant.
func (n number) plus(v int64) number {
	n.off = slices.Clone(n.off)
	n.off[len(n.off)-1] += v
	return n
}

// isConstant reports whether n is a number without registers and memory.
func (n number) isConstant() bool { return n.base == BaseNone && len(n.off) == 1 }

// expression is the state of evaluating an expression.
type expression struct {
	code    []byte
	frame   func() (number, error)       // base of DW_OP_fbreg
	address func(uint64) (uint64, error) // entry of .debug_addr
	err     error

	pieces []Piece
	stack  []number
	value  bool // the top of the stack is the value itself
	entry  bool // it uses values at the function's entry
}

// location evaluates a location description (DWARF 5, 2.6).
func (x *expression) location() (Location, error) {
	if len(x.code) == 0 {
		return Location{}, errOptimizedOut
	}
	if len(x.code) > maxExpression {
		return Location{}, errDamaged
	}
	for len(x.code) > 0 && x.err == nil {
		op := x.code[0]
		x.code = x.code[1:]
		if x.value && op != opPiece && op != opBitPiece && op != opNop {
			x.err = errDamaged // nothing may follow
			break
		}
		if op == opPiece {
			x.endPiece()
			continue
		}
		x.step(op)
		if len(x.stack) > maxOperands {
			x.err = errDamaged
		}
	}
	switch {
	case x.err != nil && x.entry:
		return Location{}, ErrEntryValue
	case x.err != nil:
		return Location{}, x.err
	case len(x.pieces) > 0 && len(x.stack) > 0:
		return Location{}, errDamaged
	case len(x.pieces) > 0:
		return Location{}, errPieces
	case len(x.stack) == 0:
		return Location{}, errDamaged
	}
	n := x.stack[len(x.stack)-1]
	return Location{Base: n.base, Reg: n.reg, Offsets: n.off, Memory: !x.value}, nil
}

// endPiece ends one part of a value, and begins the next (DWARF 5, 2.6.1.2). An empty
// part is optimized out.
func (x *expression) endPiece() {
	p := Piece{Size: x.uleb(), Why: errOptimizedOut}
	if x.err != nil {
		return
	}
	if len(x.stack) > 0 {
		n := x.pop()
		p.Where, p.Why = Location{Base: n.base, Reg: n.reg, Offsets: n.off, Memory: !x.value}, nil
		if x.entry || n.base == BaseEntry {
			p.Why = ErrEntryValue
		}
	}
	if p.Size > maxPieceSize || len(x.pieces) == maxPieces {
		x.err = errPieces
		return
	}
	x.pieces = append(x.pieces, p)
	x.stack, x.value, x.entry = nil, false, false
}

func (x *expression) push(n number) { x.stack = append(x.stack, n) }

// pop removes a number from the stack.
func (x *expression) pop() number {
	if len(x.stack) == 0 {
		x.err = errDamaged
		return constant(0)
	}
	n := x.stack[len(x.stack)-1]
	x.stack = x.stack[:len(x.stack)-1]
	return n
}

// register pushes the contents of a register plus an offset.
func (x *expression) register(reg uint64, off int64) {
	if reg >= regIP {
		x.err = fmt.Errorf("in register %d at this place, which is not a general register", reg)
		reg = 0
	}
	x.push(number{BaseRegister, int(reg), []int64{off}})
}

// step executes one operation.
func (x *expression) step(op byte) {
	switch {
	case op >= opLit0 && op < opReg0:
		x.push(constant(int64(op - opLit0)))
		return
	case op >= opReg0 && op < opBreg0:
		x.register(uint64(op-opReg0), 0)
		x.value = true
		return
	case op >= opBreg0 && op < opRegx:
		x.register(uint64(op-opBreg0), x.sleb())
		return
	case op >= opConst1u && op < opConsts-1: // 1, 2, 4 and 8 bytes, unsigned and signed
		x.push(constant(x.readFixed(1<<((op-opConst1u)/2), (op-opConst1u)%2 == 1)))
		return
	}
	switch op {
	case opAddr:
		x.push(number{base: BaseProgram, off: []int64{x.readFixed(8, false)}})
	case opAddrx, opConstx, opGNUAddrIndex, opGNUConstIndex:
		v, err := x.address(x.uleb())
		if err != nil && x.err == nil {
			x.err = err
		}
		n := constant(int64(v))
		if op == opAddrx || op == opGNUAddrIndex {
			n.base = BaseProgram
		}
		x.push(n)
	case opConsts - 1:
		x.push(constant(int64(x.uleb())))
	case opConsts:
		x.push(constant(x.sleb()))
	case opRegx:
		x.register(x.uleb(), 0)
		x.value = true
	case opBregx:
		reg := x.uleb()
		x.register(reg, x.sleb())
	case opFbreg:
		off := x.sleb()
		n, err := x.frame()
		if err != nil {
			x.err = err
			return
		}
		x.push(n.plus(off))
	case opCFA:
		x.push(number{base: BaseCFA, off: []int64{0}})
	case opDeref, opDerefSize:
		if op == opDerefSize && x.readFixed(1, false) != 8 {
			x.err = computedError(op)
			return
		}
		n := x.pop()
		if len(n.off) > maxSteps {
			x.err = computedError(op)
			return
		}
		n.off = append(slices.Clone(n.off), 0)
		x.push(n)
	case opPlusUconst:
		x.push(x.pop().plus(int64(x.uleb())))
	case opPlus, opMinus:
		b, a := x.pop(), x.pop()
		switch {
		case b.isConstant() && op == opMinus:
			x.push(a.plus(-b.off[0]))
		case b.isConstant():
			x.push(a.plus(b.off[0]))
		case a.isConstant() && op == opPlus:
			x.push(b.plus(a.off[0]))
		default:
			x.err = computedError(op)
		}
	case opImplicitValue:
		b := x.block()
		if len(b) > 8 {
			x.err = errPieces
			return
		}
		x.push(constant(int64(binary.LittleEndian.Uint64(append(slices.Clone(b), make([]byte, 8)...)))))
		x.value = true
	case opStackValue:
		x.value = true
	case opNop:
	case opBitPiece:
		x.err = errPieces
	case opTLS, opGNUTLS:
		x.err = errThread
	case opImplicitPointer, opGNUImplicitPointer:
		x.err = errImplicit
	case opEntryValue, opGNUEntryValue:
		x.entry = true
		reg, ok := registerOf(x.block())
		if !ok && x.err == nil {
			x.err = ErrEntryValue
		}
		x.push(number{BaseEntry, reg, []int64{0}})
	default:
		x.err = computedError(op)
	}
}

// take returns the next n bytes.
func (x *expression) take(n uint64) []byte {
	if n > uint64(len(x.code)) {
		x.err, n = errDamaged, uint64(len(x.code))
	}
	b := x.code[:n]
	x.code = x.code[n:]
	return b
}

// readFixed reads a number of n bytes.
func (x *expression) readFixed(n int, signed bool) int64 {
	b := append(slices.Clone(x.take(uint64(n))), make([]byte, 8)...)
	v, shift := int64(binary.LittleEndian.Uint64(b)), 64-8*n
	if signed {
		return v << shift >> shift
	}
	return int64(uint64(v) << shift >> shift)
}

// uleb reads an unsigned LEB128 number, sleb a signed one (DWARF 5, 7.6).
func (x *expression) uleb() uint64 {
	v, n := binary.Uvarint(x.code)
	if n <= 0 {
		x.err = errDamaged
		return 0
	}
	x.code = x.code[n:]
	return v
}

func (x *expression) sleb() int64 {
	from := x.code
	v := x.uleb()
	bits := 7 * (len(from) - len(x.code))
	if bits > 0 && bits < 64 {
		return int64(v<<(64-bits)) >> (64 - bits)
	}
	return int64(v)
}

// block reads a length and that many bytes.
func (x *expression) block() []byte { return x.take(x.uleb()) }
