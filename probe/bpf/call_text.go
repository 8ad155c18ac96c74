package bpf

import (
	"bytes"
	"encoding/binary"
)

// maxPrintArgs is the maximum number of values of snprintf and trace_vprintk
// (MAX_BPRINTF_VARARGS, include/linux/bpf.h).
const maxPrintArgs = 12

// text returns the zero-terminated text at address p of the program's own memory,
// without the zero. It returns nil if no zero is among the first max bytes.
func (v *VM) text(p, max uint64) []byte {
	if !isOwn(p) {
		return nil
	}
	s := p >> segShift
	if s >= uint64(len(v.segs)) {
		return nil
	}
	n := min(max, v.segs[s].limit-min(p&offMask, v.segs[s].limit))
	b := v.mem(p, n)
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return nil
}

// strncmp is strncmp (text, its size, zero-terminated text).
func (v *VM) strncmp(r *[16]uint64) FaultCode {
	n := r[R2]
	if n > maxRead {
		return v.badArg(FaultSize, n)
	}
	a := v.mem(r[R1], n)
	if a == nil && n != 0 {
		return v.badArg(FaultMemArg, r[R1])
	}
	b := v.text(r[R3], maxRead)
	if b == nil {
		return v.badArg(FaultMemArg, r[R3])
	}
	if !v.charge(int64(n >> copyShift)) {
		return v.badArg(FaultBudget, 0)
	}
	r[R0] = 0
	for i, x := range a {
		y := byte(0)
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			r[R0] = 1
			if x < y {
				r[R0] = errno(1)
			}
			break
		}
		if x == 0 {
			break
		}
	}
	return NoFault
}

// values reads the values of snprintf or trace_vprintk: n bytes at address p. ok is
// false if the number of values is impossible.
func (v *VM) values(p, n uint64, to *[maxPrintArgs]uint64) (args []uint64, ok bool, code FaultCode) {
	if n%8 != 0 || n > 8*maxPrintArgs {
		return nil, false, NoFault
	}
	b := v.mem(p, n)
	if b == nil && n != 0 {
		return nil, false, v.badArg(FaultMemArg, p)
	}
	for i := range int(n / 8) {
		to[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return to[:n/8], true, NoFault
}

// snprintf is snprintf (destination, size, format, values, their size). It returns
// the length with the final zero that the text would have if the destination were
// large enough.
func (v *VM) snprintf(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R1], r[R2])
	if code != NoFault {
		return code
	}
	format := v.text(r[R3], maxRead)
	if format == nil {
		return v.badArg(FaultMemArg, r[R3])
	}
	var buf [maxPrintArgs]uint64
	args, ok, code := v.values(r[R4], r[R5], &buf)
	if code != NoFault {
		return code
	}
	line := v.line[:0]
	if ok {
		line, ok = v.format(line, format, args)
	}
	if !ok {
		r[R0] = errno(errInval)
		return NoFault
	}
	if n := copy(dst, line); len(dst) > 0 {
		dst[min(n, len(dst)-1)] = 0
	}
	r[R0] = uint64(len(line) + 1)
	return NoFault
}

// traceVprintk is trace_vprintk (format, size, values, their size).
func (v *VM) traceVprintk(r *[16]uint64) FaultCode {
	var buf [maxPrintArgs]uint64
	args, ok, code := v.values(r[R3], r[R4], &buf)
	if code != NoFault {
		return code
	}
	if !ok {
		r[R0] = errno(errInval)
		return NoFault
	}
	return v.printLine(r, args)
}
