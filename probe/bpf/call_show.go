package bpf

import (
	"encoding/binary"
	"math/bits"
	"strconv"
)

// Flags of snprintf_btf (BTF_F_COMPACT and so on).
const (
	showCompact = 1
	showNoNames = 2
	showRaw     = 4 // addresses as they are, which they always are here
	showZero    = 8
)

const (
	showPtrSize = 16 // struct btf_ptr: address, number of the type, flags
	showDepth   = 32 // the deepest indentation, and twice that the deepest nesting
	showNode    = 4  // the cost of a value, besides reading and printing it
)

// shower prints one value. It has the state of Linux's btf_show (kernel/bpf/btf.c), and
// leaves out the same: a structure or an array in another one is first walked
// without output, to see whether there is something in it that is not 0.
type shower struct {
	v     *VM
	flags uint64
	dst   []byte
	n     int // bytes of text, also those for which there is no room

	depth, check, shown int // check: 1 + the depth of the walk without output, 0: none; shown: the deepest value in it

	self    *showPlace // that is printed
	inArray bool       // values have no names
	text    bool       // the array is one of characters
	ended   bool       // and its end was reached

	left   int64 // of costShow
	status int   // errno
	code   FaultCode

	end   uint64 // of the value
	at    uint64 // of buf
	have  int
	buf   [maxSpare]byte
	digit [48]byte
}

// snprintfBTF is snprintf_btf (destination, size, struct btf_ptr, its size, flags). It
// returns the length that the text would have if the destination were large enough.
func snprintfBTF(v *VM, r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R1], r[R2])
	if code != NoFault {
		return code
	}
	ptr := v.mem(r[R3], r[R4])
	if ptr == nil {
		return v.badArg(FaultMemArg, r[R3])
	}
	if len(ptr) != showPtrSize || r[R5]&^(showCompact|showNoNames|showRaw|showZero) != 0 {
		r[R0] = errno(errInval)
		return NoFault
	}
	id := binary.LittleEndian.Uint32(ptr[8:])
	of := v.prog.shows[id]
	switch {
	case int32(id) <= 0:
		r[R0] = errno(errInval)
		return NoFault
	case of == nil:
		r[R0] = errno(errNoEnt)
		return NoFault
	}
	s := &v.shower
	*s = shower{v: v, flags: r[R5], dst: dst, self: of, left: costShow}
	addr := le64(ptr)
	s.end = addr + uint64(of.t.size)
	s.show(of, addr)
	if len(dst) > 0 {
		dst[min(s.n, len(dst)-1)] = 0
	}
	s.dst = nil
	if r[R0] = uint64(s.n); s.status != 0 {
		r[R0] = errno(s.status)
	}
	return s.code
}

// spend takes the cost of a step, and reports whether the text continues.
func (s *shower) spend(n int64) bool {
	switch {
	case s.status != 0 || s.code != NoFault:
		return false
	case s.left < n:
		s.status = errTooBig
	case !s.v.charge(n):
		s.code = s.v.badArg(FaultBudget, 0)
	default:
		s.left -= n
		return true
	}
	return false
}

func printTo[T string | []byte](s *shower, text T) {
	if s.check != 0 || !s.spend(int64(len(text)>>copyShift)) {
		return
	}
	if s.n < len(s.dst) {
		copy(s.dst[s.n:], text)
	}
	s.n += len(text)
}

// indents are the most spaces before a value.
const indents = "                                "

func (s *shower) indent() {
	if s.flags&showCompact == 0 {
		printTo(s, indents[:min(s.depth, showDepth)])
	}
}

func (s *shower) newline() {
	if s.flags&showCompact == 0 {
		printTo(s, "\n")
	}
}

func (s *shower) comma() {
	if s.depth > 0 {
		printTo(s, ",")
	}
}

// name prints what precedes a value.
func (s *shower) name() {
	switch p := s.self; {
	case s.inArray:
	case s.flags&showNoNames != 0:
		printTo(s, p.open)
	default:
		printTo(s, p.name)
	}
}

// scalar prints a value without parts, except if it is 0 and is left out.
func scalar[T string | []byte](s *shower, text T, isZero bool) {
	if isZero && s.flags&showZero == 0 && s.depth > 0 {
		return
	}
	s.indent()
	s.name()
	printTo(s, text)
	s.comma()
	s.newline()
	s.shown = max(s.shown, s.depth)
}

// load reads up to 8 bytes of the value, from the guest a piece at a time.
func (s *shower) load(addr uint64, n int) (uint64, bool) {
	if addr-s.at >= uint64(s.have) || addr-s.at+uint64(n) > uint64(s.have) {
		if !s.fill(addr, n) {
			return 0, false
		}
	}
	return partWord(s.buf[addr-s.at:][:n]), true
}

// fill reads the bytes from addr on into buf, at least n of them.
func (s *shower) fill(addr uint64, n int) bool {
	v, page := s.v, addr>>pageShift
	most := max(n, int(min(s.end-addr, uint64(len(s.buf)))))
	if !s.spend(costRead + readCost(uint64(most))) {
		return false
	}
	s.at, s.have = addr, 0
	ok := isOwn(addr) || page != v.badPage
	if ok = ok && v.read(HelperReadKernel, addr, s.buf[:most]); !ok && n < most && page != v.badPage {
		most = n // the rest may be in another page
		ok = v.read(HelperReadKernel, addr, s.buf[:most])
	}
	if ok {
		s.have = most
		return true
	}
	s.status = errFault
	if page != v.badPage {
		s.code = v.chargeUnreadable(addr, addr+uint64(n)-1)
	}
	return false
}

// show prints the value at an address.
func (s *shower) show(p *showPlace, addr uint64) {
	if !s.spend(showNode) {
		return
	}
	if s.depth > 2*showDepth { // no type of Linux's nests so deep
		s.status = errInval
		return
	}
	t := p.t
	s.self = p
	switch {
	case p.bits != 0:
		s.bitField(p, addr)
	case t.kind == showStruct || t.kind == showArray:
		s.parts(p, addr)
	case t.kind == showInt:
		s.integer(t, addr)
	case t.kind == showEnum:
		s.enum(t, addr)
	case t.kind == showPointer:
		if x, ok := s.load(addr, 8); ok {
			scalar(s, s.hex(x, 16), x == 0)
		}
	default:
		printTo(s, "<unsupported kind:")
		printTo(s, strconv.AppendUint(s.digit[:0], uint64(t.number), 10))
		printTo(s, ">")
	}
}

// parts prints a structure or an array, if there is something in it to print.
func (s *shower) parts(p *showPlace, addr uint64) {
	body := s.structure
	if p.t.kind == showArray {
		body = s.array
	}
	if s.depth > 0 && s.flags&showZero == 0 {
		if s.check == 0 {
			s.check, s.shown = s.depth+1, 0
		}
		body(p, addr)
		if s.check != s.depth+1 {
			return
		}
		if s.check = 0; s.shown <= s.depth {
			return
		}
	}
	body(p, addr)
}

// begin prints the beginning of a value with parts.
func (s *shower) begin(p *showPlace, addr uint64) bool {
	if p.t.size > 0 {
		if _, ok := s.load(addr, 1); !ok {
			return false
		}
	}
	s.self = p
	s.indent()
	s.name()
	s.newline()
	s.depth++
	return true
}

func (s *shower) finish(bracket string) {
	s.depth--
	s.indent()
	printTo(s, bracket)
	s.comma()
	s.newline()
}

func (s *shower) structure(p *showPlace, addr uint64) {
	if !s.begin(p, addr) {
		return
	}
	for i := range p.t.members {
		m := &p.t.members[i]
		s.show(m, addr+uint64(m.off))
	}
	s.finish("}")
}

func (s *shower) array(p *showPlace, addr uint64) {
	elem := p.t.elem
	s.text, s.ended = elem.t.kind == showInt && elem.t.size == 1, false
	if !s.begin(p, addr) {
		return
	}
	for range p.t.elements {
		s.inArray = true
		s.show(elem, addr)
		s.inArray = false
		if addr += uint64(elem.t.size); s.ended || s.status != 0 || s.code != NoFault {
			break
		}
	}
	s.text, s.ended = false, false
	s.finish("]")
}

// hex formats a number in hexadecimal, with that many digits at least.
func (s *shower) hex(x uint64, digits int) []byte {
	out := append(s.digit[:0], "0x"...)
	for n := max(1, (bits.Len64(x)+3)/4); n < digits; n++ {
		out = append(out, '0')
	}
	return strconv.AppendUint(out, x, 16)
}

func (s *shower) bitField(p *showPlace, addr uint64) {
	n := (int(p.shift) + int(p.bits) + 7) / 8
	x, ok := s.load(addr, min(n, 8))
	if !ok {
		return
	}
	if x >>= p.shift; n > 8 {
		high, ok := s.load(addr+8, 1)
		if !ok {
			return
		}
		x |= high << (64 - p.shift)
	}
	x &= 1<<p.bits - 1
	scalar(s, s.hex(x, 0), x == 0)
}

func (s *shower) integer(t *showType, addr uint64) {
	n := min(int(t.size), 8)
	x, ok := s.load(addr, n)
	if !ok {
		return
	}
	switch t.size {
	case 1, 2, 4, 8:
	case 16:
		high, ok := s.load(addr+8, 8)
		if !ok {
			return
		}
		if high != 0 {
			out := s.hex(high, 0)
			for i := 60; i >= 0; i -= 4 {
				out = append(out, "0123456789abcdef"[x>>i&15])
			}
			scalar(s, out, false)
			return
		}
		fallthrough
	default:
		scalar(s, s.hex(x, 0), x == 0)
		return
	}
	if s.text && n == 1 {
		switch {
		case s.ended:
			return
		case x == 0:
			s.ended = true
			return
		case x >= ' ' && x < 0x7f || x >= 0xa0:
			scalar(s, append(s.digit[:0], '\'', byte(x), '\''), false)
			return
		}
	}
	out := s.digit[:0]
	if unused := 64 - 8*n; t.signed {
		out = strconv.AppendInt(out, int64(x<<unused)>>unused, 10)
	} else {
		out = strconv.AppendUint(out, x, 10)
	}
	scalar(s, out, x == 0)
}

func (s *shower) enum(t *showType, addr uint64) {
	n := min(int(t.size), 8)
	x, ok := s.load(addr, n)
	if !ok {
		return
	}
	unused := 64 - 8*n
	for i := range t.names {
		if t.names[i].Value<<unused>>unused == x {
			scalar(s, t.names[i].Name, false) // also if it is 0
			return
		}
	}
	s.integer(t, addr)
}
