package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// DWARF numbers of the registers used here (System V ABI for AMD64, figure 3.36).
const (
	dwarfRBP = 6
	dwarfRSP = 7
)

// frameState is the set of rules at one address: of RBP, RSP and the return address
// as specified, of all general registers in the form of SavedRegisters.
type frameState struct {
	general SavedRegisters

	cfaReg           uint64
	cfaOff           int64
	bad              bool // the CFA is an expression
	rbp, rsp, ret    saved
	rbpO, rspO, retO int64
}

// saved is the place of a register of the caller.
type saved uint8

const (
	savedNowhere saved = iota // unchanged, or for the return address: unspecified
	savedAt                   // at an offset from the CFA
	savedLost                 // undefined
	savedElse                 // another register, or an expression
)

// frameMachine runs call frame instructions (DWARF 5, 6.4.2 and 7.24).
type frameMachine struct {
	cie     *cie
	at      GVA
	state   frameState
	initial frameState
	stack   []frameState
	emit    func(at GVA) // the rules change at this address
}

// maxFrameStack bounds remembered states.
const maxFrameStack = 64

var errFrameCode = errors.New("damaged call frame instruction")

// rule returns the current rules.
func (m *frameMachine) rule() (FrameRule, bool) {
	s := &m.state
	r := FrameRule{CFA: int32(s.cfaOff), Return: int32(s.retO), RBP: int32(s.rbpO)}
	if s.cfaReg == dwarfRBP {
		r.Base = FrameRBP
	}
	if s.ret == savedLost {
		return FrameRule{Outer: true}, true
	}
	if s.rbp != savedAt {
		r.RBP = 0
	}
	// An interrupt's frame was pushed by the processor, with the stack pointer 3
	// words above RIP.
	r.Trap = m.cie.signal
	pushed := s.rsp == savedAt && s.rspO == s.retO+24
	ok := (pushed || !r.Trap) && !s.bad && (s.cfaReg == dwarfRBP || s.cfaReg == dwarfRSP) && s.ret == savedAt && s.rbp != savedElse &&
		int64(r.CFA) == s.cfaOff && int64(r.Return) == s.retO && (s.rbp != savedAt || int64(r.RBP) == s.rbpO && r.RBP != 0)
	return r, ok
}

// set records where a register is saved.
func (m *frameMachine) set(reg uint64, how saved, off int64) {
	if reg < uint64(len(m.state.general)) {
		m.state.general[reg] = savedPlace(how, off)
	}
	switch reg {
	case dwarfRBP:
		m.state.rbp, m.state.rbpO = how, off
	case dwarfRSP:
		m.state.rsp, m.state.rspO = how, off
	case m.cie.retReg:
		m.state.ret, m.state.retO = how, off
	}
}

// restore restores the rule from the CIE.
func (m *frameMachine) restore(reg uint64) {
	if reg < uint64(len(m.state.general)) {
		m.state.general[reg] = m.initial.general[reg]
	}
	switch reg {
	case dwarfRBP:
		m.state.rbp, m.state.rbpO = m.initial.rbp, m.initial.rbpO
	case dwarfRSP:
		m.state.rsp, m.state.rspO = m.initial.rsp, m.initial.rspO
	case m.cie.retReg:
		m.state.ret, m.state.retO = m.initial.ret, m.initial.retO
	}
}

func (m *frameMachine) advance(n uint64) {
	m.at += GVA(n * m.cie.codeAlign)
	if m.emit != nil {
		m.emit(m.at)
	}
}

// run executes b.
func (m *frameMachine) run(b []byte) error {
	r := reader{b: b}
	s := &m.state
	da := m.cie.dataAlign
	for r.pos < len(b) && r.err == nil {
		op := r.u8()
		low := uint64(op & 0x3f)
		switch op >> 6 {
		case 1:
			m.advance(low)
			continue
		case 2:
			m.set(low, savedAt, int64(r.uleb())*da)
			continue
		case 3:
			m.restore(low)
			continue
		}
		switch op {
		case 0x00: // nop
		case 0x01: // set_loc
			m.at = GVA(r.u64())
			if m.emit != nil {
				m.emit(m.at)
			}
		case 0x02:
			m.advance(uint64(r.u8()))
		case 0x03:
			m.advance(uint64(r.u16()))
		case 0x04:
			m.advance(uint64(r.u32()))
		case 0x05: // offset_extended
			m.set(r.uleb(), savedAt, int64(r.uleb())*da)
		case 0x06: // restore_extended
			m.restore(r.uleb())
		case 0x07: // undefined
			m.set(r.uleb(), savedLost, 0)
		case 0x08: // same_value
			m.set(r.uleb(), savedNowhere, 0)
		case 0x09: // register
			m.set(r.uleb(), savedElse, 0)
			r.uleb()
		case 0x0a: // remember_state
			if len(m.stack) == maxFrameStack {
				return errFrameCode
			}
			m.stack = append(m.stack, *s)
		case 0x0b: // restore_state
			n := len(m.stack)
			if n == 0 {
				return errFrameCode
			}
			*s, m.stack = m.stack[n-1], m.stack[:n-1]
		case 0x0c: // def_cfa
			s.cfaReg, s.cfaOff, s.bad = r.uleb(), int64(r.uleb()), false
		case 0x0d: // def_cfa_register
			s.cfaReg = r.uleb()
		case 0x0e: // def_cfa_offset
			s.cfaOff = int64(r.uleb())
		case 0x0f: // def_cfa_expression
			s.bad = true
			r.skip(r.uleb())
		case 0x10, 0x16: // expression, val_expression
			m.set(r.uleb(), savedElse, 0)
			r.skip(r.uleb())
		case 0x11: // offset_extended_sf
			m.set(r.uleb(), savedAt, r.sleb()*da)
		case 0x12: // def_cfa_sf
			s.cfaReg, s.cfaOff, s.bad = r.uleb(), r.sleb()*da, false
		case 0x13: // def_cfa_offset_sf
			s.cfaOff = r.sleb() * da
		case 0x14: // val_offset
			m.set(r.uleb(), savedElse, 0)
			r.uleb()
		case 0x15: // val_offset_sf
			m.set(r.uleb(), savedElse, 0)
			r.sleb()
		case 0x2e: // GNU_args_size
			r.uleb()
		default:
			return fmt.Errorf("%w: %#02x", errFrameCode, op)
		}
	}
	return r.err
}

// reader reads numbers; past the end it reads zeros and sets err.
type reader struct {
	b   []byte
	pos int
	err error
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.b)-r.pos {
		r.err = errFrameCode
		r.pos = len(r.b)
		return make([]byte, n)
	}
	r.pos += n
	return r.b[r.pos-n : r.pos]
}

func (r *reader) u8() uint8   { return r.bytes(1)[0] }
func (r *reader) u16() uint16 { return binary.LittleEndian.Uint16(r.bytes(2)) }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.bytes(8)) }

func (r *reader) skip(n uint64) {
	if n > uint64(len(r.b)-r.pos) {
		r.err, n = errFrameCode, uint64(len(r.b)-r.pos)
	}
	r.pos += int(n)
}

func (r *reader) str() string {
	from := r.pos
	for r.err == nil && r.u8() != 0 {
	}
	if r.err != nil {
		return ""
	}
	return string(r.b[from : r.pos-1])
}

// uleb reads an unsigned LEB128 number (DWARF 5, 7.6). Bits beyond 64 are an
// error.
func (r *reader) uleb() uint64 {
	var x uint64
	for shift := 0; ; shift += 7 {
		c := r.u8()
		if shift > 63 || shift == 63 && c > 1 {
			r.err = errFrameCode
			return 0
		}
		x |= uint64(c&0x7f) << shift
		if c&0x80 == 0 || r.err != nil {
			return x
		}
	}
}

// sleb reads a signed LEB128 number.
func (r *reader) sleb() int64 {
	var x int64
	for shift := 0; ; shift += 7 {
		c := r.u8()
		if shift > 63 {
			r.err = errFrameCode
			return 0
		}
		x |= int64(c&0x7f) << shift
		if c&0x80 == 0 || r.err != nil {
			if c&0x40 != 0 && shift+7 < 64 {
				x |= -1 << (shift + 7)
			}
			return x
		}
	}
}

// readEncoded reads an address in an .eh_frame encoding (Linux Standard Base, Core,
// 10.5): absolute, or relative to the field's own address.
func (r *reader) readEncoded(enc uint8, base GVA) uint64 {
	at := uint64(base) + uint64(r.pos)
	var x uint64
	switch enc & 0x0f {
	case 0x00, 0x04, 0x0c:
		x = r.u64()
	case 0x01:
		x = r.uleb()
	case 0x02:
		x = uint64(r.u16())
	case 0x03:
		x = uint64(r.u32())
	case 0x09:
		x = uint64(r.sleb())
	case 0x0a:
		x = uint64(int64(int16(r.u16())))
	case 0x0b:
		x = uint64(int64(int32(r.u32())))
	default:
		r.err = errFrameCode
	}
	switch enc & 0xf0 {
	case 0x00:
	case 0x10:
		x += at
	default:
		r.err = errFrameCode
	}
	return x
}
