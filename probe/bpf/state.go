package bpf

import "slices"

// baseKind is the base that the address in a register counts from.
type baseKind uint8

const (
	noBase    baseKind = iota // not an address: a number
	inContext                 // the context
	inFrame                   // the function's frame pointer
	aMap                      // not an address: the handle of map m
	inValue                   // a value of map m
	inRecord                  // a reserved record of ring m
)

// base is the base of an address.
type base struct {
	kind baseKind
	null bool  // or it is 0
	told bool  // a function of the program that was called with it may have compared it with 0
	m    int16 // map
	elem int32 // element, for this vCPU if each has its own; -1 = not known
	id   int32 // 1 + slot of the call that returned it; 0 = not known
}

// value is the knowledge about a register, or about a place in the frame: it is a
// number, or an address, which is a number added to its base.
type value struct {
	base
	num number
	// The number is the value numbered vn plus delta; 0 if no other value is known to
	// be related. A value is numbered by the slot of the operation that makes it, or
	// by the register and the slot where paths meet.
	vn    int32
	delta int64
	from  product // the product that the value numbered vn is
	unset bool    // not written, on some path
	mixed bool    // a value without a base may be an address, on some path; otherwise it certainly is not an address of the program's
}

// product says that a numbered value is factor times a number, and smaller than
// 1<<64; the number is the value numbered vn, plus delta. If factor is 0 it says
// nothing.
type product struct {
	vn     int32
	delta  int64
	factor uint64
}

func scalarValue(n number) value { return value{num: n} }
func unknownValue() value        { return value{num: anyNumber, mixed: true} } // a number or an address
func constValue(v uint64) value  { return value{num: constant(v)} }
func (v *value) isConst(c int64) bool {
	n, ok := v.num.singleValue()
	return ok && v.kind == noBase && int64(n) == c
}

// knownNumber returns the number that a value is, if known.
func (v *value) knownNumber() (uint64, bool) {
	n, ok := v.num.singleValue()
	return n, ok && v.kind == noBase
}

// fits reports whether it is a number that the low n bytes have the whole value of, so
// that a copy of these is the same value.
func (v *value) fits(n int) bool {
	return v.kind == noBase && (n == 8 || v.num.uhi < 1<<(8*n))
}

// near reports whether every possible address is so close to its base that it cannot
// be an address from another base: values are smaller than 1 << 23.
func (v *value) near() bool { return v.num.lo >= -nearest && v.num.hi < 2*nearest }

const nearest = 1 << 23

// word is a place in the frame with known contents.
type word struct {
	off, size int16
	v         value
}

// maxWords is the number of places of a frame that are followed.
const maxWords = 16

// frameBytes is a set of bytes of the frame: byte -FrameSize+i is bit i.
type frameBytes [FrameSize / 64]uint64

func (f *frameBytes) set(off int64, n int, to bool) {
	for i := off + FrameSize; i < off+FrameSize+int64(n); i++ {
		f[i/64] &^= 1 << (i % 64)
		if to {
			f[i/64] |= 1 << (i % 64)
		}
	}
}

// setAll puts every byte of the frame into the set.
func (f *frameBytes) setAll() {
	for i := range f {
		f[i] = ^uint64(0)
	}
}

// count returns how many of the n bytes at off are in the set.
func (f *frameBytes) count(off int64, n int) (k int) {
	for i := off + FrameSize; i < off+FrameSize+int64(n); i++ {
		k += int(f[i/64] >> (i % 64) & 1)
	}
	return k
}

// state is the knowledge at the beginning of an operation.
type state struct {
	regs    [numRegs]value
	words   []word     // not changed in place
	written frameBytes // bytes of the frame that were certainly written
	touched frameBytes // bytes that may have been written on each path, including by accesses that may have gone elsewhere
	open    []int32    // ids of the records that are open, on some path; not changed in place
}

// word returns the value of the n bytes at an offset of the frame, if known.
func (s *state) word(off int64, n int) (value, bool) {
	var bytes uint64
	covered := 0
	for _, w := range s.words {
		at := off - int64(w.off)
		switch {
		case at == 0 && int(w.size) == n:
			return w.v, true
		case w.v.kind != noBase:
		case at == 0 && n < int(w.size) && w.v.fits(n):
			return w.v, true
		case at >= 0 && at+int64(n) <= int64(w.size): // a part
			part := w.v.num.shift(int(-8 * at))
			if n == 4 {
				return scalarValue(part.truncate32()), true
			}
			return scalarValue(part.and(numberOfSize(n))), true
		case at <= 0 && -at+int64(w.size) <= int64(n): // one of several parts of it
			if c, ok := w.v.num.singleValue(); ok {
				bytes |= c << (-8 * at)
				covered += int(w.size)
			}
		}
	}
	return constValue(bytes), covered == n
}

// valueAt returns the value at the exact place of a word.
func (s *state) valueAt(p word) (value, bool) {
	for _, w := range s.words {
		if w.off == p.off && w.size == p.size {
			return w.v, true
		}
	}
	return value{}, false
}

// forget discards the contents of the frame between two offsets.
func (s *state) forget(lo, hi int64) {
	var kept []word
	for _, w := range s.words {
		if int64(w.off) >= hi || int64(w.off+w.size) <= lo {
			kept = append(kept, w)
		}
	}
	s.words = kept
}

// put records that v is written to the n bytes at an offset of the frame.
func (s *state) put(off int64, n int, v value) {
	s.written.set(off, n, true)
	s.touched.set(off, n, true)
	s.forget(off, off+int64(n))
	if n < 8 {
		if v.kind != noBase {
			return
		}
		switch {
		case v.fits(n):
		case n == 4:
			v = scalarValue(v.num.truncate32())
		default:
			v = scalarValue(v.num.and(numberOfSize(n)))
		}
	}
	if len(s.words) < maxWords {
		s.words = append(s.words[:len(s.words):len(s.words)], word{int16(off), int16(n), v})
	}
}

// changeValues lets f change every value.
func (s *state) changeValues(f func(v *value)) {
	for i := range s.regs {
		f(&s.regs[i])
	}
	own, v := false, value{} // v is on the heap: one is enough
	for i := range s.words {
		v = s.words[i].v
		if f(&v); v != s.words[i].v {
			if !own {
				s.words, own = slices.Clone(s.words), true
			}
			s.words[i].v = v
		}
	}
}

// define discards all relations to the value numbered vn, and all bases from the call
// in that slot, because the operation there makes a new value.
func (s *state) define(vn int32) {
	s.changeValues(func(v *value) {
		if v.vn == vn {
			v.vn, v.delta, v.from = 0, 0, product{}
		}
		if v.from.vn == vn {
			v.from = product{}
		}
		if v.id == vn && v.kind != noBase {
			if v.id = 0; v.kind == inRecord {
				*v = unknownValue()
			}
		}
	})
}

// refine records that the number of register r is n, and the consequences for all
// related values. It returns false if that is impossible.
func (s *state) refine(r uint8, n number) bool {
	ok := s.regs[r].num.meet(n)
	v := s.regs[r]
	follow := func(vn int32, delta int64, n number) {
		if vn == 0 {
			return
		}
		s.changeValues(func(x *value) {
			if x.vn == vn {
				ok = x.num.meet(n.plus(constant(uint64(x.delta-delta)))) && ok
			}
		})
	}
	follow(v.vn, v.delta, n)
	if f := v.from; f.factor != 0 {
		p := v.num.minus(constant(uint64(v.delta)))
		follow(f.vn, f.delta, numberBetween(p.ulo/f.factor, p.uhi/f.factor))
	}
	return ok
}

// decideNull records that the address in register r, and all from the same call, are
// 0, or that they are not.
func (s *state) decideNull(r uint8, isNull bool) {
	b := s.regs[r].base
	decide := func(x *value) {
		if x.null = false; isNull {
			x.base = base{} // so it is just the number
		}
	}
	if decide(&s.regs[r]); b.id == 0 {
		return
	}
	s.changeValues(func(x *value) {
		if x.base == b {
			decide(x)
		}
	})
	if isNull && b.kind == inRecord {
		s.close(b.id)
	}
}

// noteCompared records that a function that was called with an address may have
// compared it with 0.
func (s *state) noteCompared(b base) {
	if b.kind == noBase || !b.null {
		return
	}
	s.changeValues(func(x *value) {
		if x.base == b {
			x.told = true
		}
	})
}

// givesFrame reports whether a function that is called here may get an address in the
// frame.
func (s *state) givesFrame() bool {
	isAddress := func(v *value) bool {
		return v.kind == inFrame || v.kind == noBase && !v.unset && v.num.uhi >= 1<<segShift
	}
	for r := R1; r <= R5; r++ {
		if isAddress(&s.regs[r]) {
			return true
		}
	}
	return slices.ContainsFunc(s.words, func(w word) bool { return isAddress(&w.v) })
}

// close removes a record from the open ones.
func (s *state) close(id int32) {
	s.open = slices.DeleteFunc(slices.Clone(s.open), func(o int32) bool { return o == id })
}

// end records that a record was submitted or discarded: no value is an address in it
// any more.
func (s *state) end(id int32) {
	s.close(id)
	s.changeValues(func(v *value) {
		if v.kind == inRecord && v.id == id {
			*v = scalarValue(anyNumber)
		}
	})
}

// meeting is a place where paths meet.
type meeting struct {
	phi   func(r int) int32 // number of the value of register r from there
	widen bool              // a value that keeps growing grows at once to the next of stops
	stops []int64
	tired bool // values that differ become unknown
}

// join adds the knowledge of another path. It reports whether that changed anything,
// and whether the address of the context is no longer tracked.
func (s *state) join(o *state, at meeting) (changed, escapes bool) {
	for i := range s.regs {
		c, e := s.regs[i].join(&o.regs[i], at.phi(i), at)
		changed, escapes = changed || c, escapes || e
	}
	for i := range s.written {
		both := s.written[i] & o.written[i]
		changed = changed || both != s.written[i]
		s.written[i] = both
		both = s.touched[i] & o.touched[i]
		changed = changed || both != s.touched[i]
		s.touched[i] = both
	}
	var words []word
	for _, w := range s.words {
		v, ok := o.valueAt(w)
		if !ok {
			changed, escapes = true, escapes || w.v.kind == inContext
			continue
		}
		c, e := w.v.join(&v, 0, at)
		changed, escapes = changed || c, escapes || e
		words = append(words, w)
	}
	for _, w := range o.words {
		if _, ok := s.valueAt(w); !ok {
			escapes = escapes || w.v.kind == inContext
		}
	}
	s.words = words
	for _, id := range o.open {
		if !slices.Contains(s.open, id) {
			s.open, changed = append(s.open[:len(s.open):len(s.open)], id), true
		}
	}
	return changed, escapes
}

// join makes v the knowledge about a register that is v or o.
func (v *value) join(o *value, phi int32, at meeting) (changed, escapes bool) {
	if *v == *o {
		return false, false
	}
	old := *v
	to := o.base
	switch { // 0 may be an address that is 0, whatever its call has returned
	case v.kind == inValue && o.isConst(0):
		v.id = 0
		to = v.base
		to.null = true
	case o.kind == inValue && v.isConst(0):
		to.id = 0
		v.base = to
		v.null = true
	}
	switch {
	case at.tired, v.kind != to.kind, v.m != to.m, v.kind == inRecord && v.id != to.id:
		escapes = v.kind == inContext || o.kind == inContext
		mixed := v.mixed || o.mixed || v.kind != noBase || to.kind != noBase
		*v = value{num: anyNumber, vn: phi, mixed: mixed}
	default:
		v.mixed = v.mixed || o.mixed
		if v.elem != to.elem || v.id != to.id {
			v.elem, v.id = -1, 0
		}
		v.null, v.told = v.null || to.null, v.told || to.told
		if at.widen {
			v.num = v.num.widen(o.num, at.stops)
		} else {
			v.num = v.num.join(o.num)
		}
		if v.vn != o.vn || v.delta != o.delta {
			v.vn, v.delta, v.from = phi, 0, product{}
		}
		if v.from != o.from {
			v.from = product{}
		}
	}
	v.unset = old.unset || o.unset
	return *v != old, escapes
}
