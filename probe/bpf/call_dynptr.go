package bpf

import "encoding/binary"

// A dynptr (struct bpf_dynptr) is 16 bytes of the program's memory: the address of its
// data, as the program has addresses, or 0; its size and flags; and the offset of its
// first byte. A program may write anything there: each access is checked like an access
// by address.
const (
	dynptrSize     = 16
	dynptrMost     = 1<<24 - 1 // the greatest size
	dynptrReadOnly = 1 << 31
)

type dynptr struct {
	data uint64
	word uint32 // size and flags
	off  uint32
}

func (d *dynptr) size() uint64   { return uint64(d.word & dynptrMost) }
func (d *dynptr) readOnly() bool { return d.word&dynptrReadOnly != 0 }

// has reports whether n bytes from off on are in it.
func (d *dynptr) has(off, n uint64) bool { return n <= d.size() && off <= d.size()-n }

// address returns the address of a byte.
func (d *dynptr) address(off uint64) uint64 { return d.data + uint64(d.off) + off }

// dynptr reads the dynptr at an address; b is its memory, nil if it is not the
// program's.
func (v *VM) dynptr(p uint64) (d dynptr, b []byte) {
	if b = v.memW(p, dynptrSize); b != nil {
		le := binary.LittleEndian
		d = dynptr{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
	}
	return d, b
}

func (d *dynptr) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, d.data)
	le.PutUint32(b[8:], d.word)
	le.PutUint32(b[12:], d.off)
}

// dynptrArgs are the registers that have the dynptr of each helper.
var dynptrArgs = map[Helper]Reg{
	HelperDynptrFromMem: R4, HelperRingReserveDyn: R4, HelperRingSubmitDyn: R1, HelperRingDiscardDyn: R1,
	HelperDynptrRead: R3, HelperDynptrWrite: R1, HelperDynptrData: R1,
	HelperDynptrSlice: R1, HelperDynptrSliceW: R1, HelperDynptrAdjust: R1, HelperDynptrIsNull: R1, HelperDynptrIsRO: R1, HelperDynptrSize: R1, HelperDynptrClone: R1,
}

// callDynptr runs the helpers of dynptrs.
func (v *VM) callDynptr(h Helper, r *[16]uint64) FaultCode {
	arg := r[dynptrArgs[h]]
	d, b := v.dynptr(arg)
	if b == nil {
		return v.badArg(FaultMemArg, arg)
	}
	switch h {
	case HelperDynptrFromMem:
		return v.dynptrFromMem(r, b)
	case HelperRingReserveDyn:
		return v.dynptrReserve(r, b)
	case HelperRingSubmitDyn, HelperRingDiscardDyn:
		return v.dynptrEnd(h, r, d, b)
	case HelperDynptrRead:
		return v.dynptrCopy(r, d, r[R4], r[R1], r[R2], r[R5] != 0, false)
	case HelperDynptrWrite:
		return v.dynptrCopy(r, d, r[R2], r[R3], r[R4], r[R5] != 0 || d.readOnly(), true)
	case HelperDynptrData:
		v.dynptrSlice(r, d, r[R2], r[R3], d.readOnly())
	case HelperDynptrSlice:
		v.dynptrSlice(r, d, r[R2], r[R4], false)
	case HelperDynptrSliceW:
		v.dynptrSlice(r, d, r[R2], r[R4], d.readOnly())
	case HelperDynptrAdjust:
		from, to := uint64(uint32(r[R2])), uint64(uint32(r[R3]))
		switch r[R0] = 0; {
		case d.data == 0 || from > to:
			r[R0] = errno(errInval)
		case to > d.size():
			r[R0] = errno(errRange)
		default:
			d.off += uint32(from)
			d.word = d.word&^dynptrMost | uint32(to-from)
			d.put(b)
		}
	case HelperDynptrIsNull:
		r[R0] = oneIf(d.data == 0)
	case HelperDynptrIsRO:
		r[R0] = oneIf(d.data != 0 && d.readOnly())
	case HelperDynptrSize:
		r[R0] = d.size()
		if d.data == 0 {
			r[R0] = uint64(uint32(errno(errInval)))
		}
	case HelperDynptrClone:
		_, to := v.dynptr(r[R2])
		if to == nil {
			return v.badArg(FaultMemArg, r[R2])
		}
		r[R0] = 0
		if d.data == 0 {
			d, r[R0] = dynptr{}, errno(errInval)
		}
		d.put(to)
	}
	return NoFault
}

func oneIf(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// dynptrFromMem is dynptr_from_mem (data, size, flags, dynptr).
func (v *VM) dynptrFromMem(r *[16]uint64, b []byte) FaultCode {
	n := uint64(uint32(r[R2]))
	clear(b)
	switch {
	case n > dynptrMost:
		r[R0] = errno(errTooBig)
	case r[R3] != 0:
		r[R0] = errno(errInval)
	case v.memW(r[R1], n) == nil:
		return v.badArg(FaultMemArg, r[R1])
	default:
		d := dynptr{data: r[R1], word: uint32(n)}
		d.put(b)
		r[R0] = 0
	}
	return NoFault
}

// dynptrReserve is ringbuf_reserve_dynptr (map, size, flags, dynptr).
func (v *VM) dynptrReserve(r *[16]uint64, b []byte) FaultCode {
	n := uint64(uint32(r[R2]))
	clear(b)
	if n > dynptrMost {
		r[R0] = errno(errTooBig)
		return NoFault
	}
	r[R2] = n
	if code := v.ringReserve(r); code != NoFault {
		return code
	}
	if r[R0] == 0 {
		r[R0] = errno(errInval)
		return NoFault
	}
	d := dynptr{data: r[R0], word: uint32(n)}
	d.put(b)
	r[R0] = 0
	return NoFault
}

// dynptrEnd is ringbuf_submit_dynptr and ringbuf_discard_dynptr (dynptr, flags).
func (v *VM) dynptrEnd(h Helper, r *[16]uint64, d dynptr, b []byte) FaultCode {
	clear(b)
	r[R0] = 0
	if d.data == 0 {
		return NoFault
	}
	kind := uint64(recData)
	if h == HelperRingDiscardDyn {
		kind = recDiscarded
	}
	r[R1] = d.data
	return v.ringEnd(r, kind)
}

// dynptrCopy is dynptr_read (destination, size, dynptr, offset, flags) and dynptr_write
// (dynptr, offset, source, size, flags).
func (v *VM) dynptrCopy(r *[16]uint64, d dynptr, off, other, n uint64, refuse, write bool) FaultCode {
	off, n = uint64(uint32(off)), uint64(uint32(n))
	if n > maxRead {
		return v.badArg(FaultSize, n)
	}
	switch {
	case d.data == 0 || refuse:
		r[R0] = errno(errInval)
		return NoFault
	case !d.has(off, n):
		r[R0] = errno(errTooBig)
		return NoFault
	case !v.charge(int64(n >> copyShift)):
		return v.badArg(FaultBudget, 0)
	}
	r[R0] = 0
	if n == 0 {
		return NoFault
	}
	to, from := other, d.address(off)
	if write {
		to, from = from, to
	}
	dst, src := v.memW(to, n), v.mem(from, n)
	switch {
	case dst == nil:
		return v.badArg(FaultMemArg, to)
	case src == nil:
		return v.badArg(FaultMemArg, from)
	}
	copy(dst, src)
	return NoFault
}

// dynptrSlice is dynptr_data (dynptr, offset, size) and dynptr_slice (dynptr, offset,
// buffer, size): the address of bytes in it, or 0.
func (v *VM) dynptrSlice(r *[16]uint64, d dynptr, off, n uint64, refuse bool) {
	off, n = uint64(uint32(off)), uint64(uint32(n))
	r[R0] = 0
	if p := d.address(off); d.data != 0 && !refuse && d.has(off, n) && v.mem(p, n) != nil {
		r[R0] = p
	}
}
