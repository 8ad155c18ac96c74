package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// maxRead bounds the sizes that memory helpers accept, so that one call cannot take
// long.
const maxRead = 1 << 16

// dest returns the memory of the program that a helper may write n bytes to.
func (v *VM) dest(p, n uint64) ([]byte, FaultCode) {
	switch {
	case n > maxRead:
		return nil, v.badArg(FaultSize, n)
	case n == 0:
		return v.spare[:0], NoFault
	}
	if b := v.memW(p, n); b != nil {
		return b, NoFault
	}
	return nil, v.badArg(FaultMemArg, p)
}

// isOwn reports whether p is an address in the program's own memory, which is
// never a guest address (see segShift).
func isOwn(p uint64) bool { return p>>segShift-1 < maxSegs-1 }

// read reads guest memory, or the program's own, for helper h.
func (v *VM) read(h Helper, addr uint64, p []byte) bool {
	if isOwn(addr) {
		b := v.mem(addr, uint64(len(p)))
		copy(p, b)
		return b != nil
	}
	switch h {
	case HelperReadUser, HelperReadUserStr, HelperCopyFromUser:
		return v.env.ReadUser(addr, p) == nil
	case HelperReadKernel, HelperReadKernelStr:
		return v.env.ReadKernel(addr, p) == nil
	}
	if int64(addr) >= 0 && v.env.ReadUser(addr, p) == nil {
		return true
	}
	return v.env.ReadKernel(addr, p) == nil
}

// poke is poke and probe_write_user (address, source, size): it writes the program's
// bytes to the guest's memory, or to the current process's.
func (v *VM) poke(r *[16]uint64, user bool) FaultCode {
	n := r[R3]
	if n > maxRead {
		return v.badArg(FaultSize, n)
	}
	if !v.charge(readCost(n)) {
		return v.badArg(FaultBudget, 0)
	}
	src := v.mem(r[R2], n)
	if src == nil && n > 0 {
		return v.badArg(FaultMemArg, r[R2])
	}
	write := v.env.Poke
	if user {
		write = v.env.PokeUser
	}
	switch err := write(r[R1], src); {
	case errors.Is(err, ErrProbed):
		r[R0] = errno(errPerm)
	case err != nil:
		r[R0] = errno(errFault)
	default:
		r[R0] = 0
	}
	return NoFault
}

// probeRead is probe_read and its variants (destination, size, address). If the read
// fails the destination is zeroed.
func (v *VM) probeRead(h Helper, r *[16]uint64) FaultCode {
	if !v.charge(readCost(r[R2])) {
		return v.badArg(FaultBudget, 0)
	}
	dst, code := v.dest(r[R1], r[R2])
	if code != NoFault {
		return code
	}
	r[R0] = 0
	addr, n := r[R3], uint64(len(dst))
	switch {
	case n == 0:
	case !isOwn(addr) && addr>>pageShift == v.badPage:
		clear(dst)
		r[R0] = errno(errFault)
	case !v.read(h, addr, dst):
		clear(dst)
		r[R0] = errno(errFault)
		return v.chargeUnreadable(addr, addr+n-1)
	}
	return NoFault
}

// chargeUnreadable charges a failed read of guest memory at address addr; the
// unreadable range ends at last.
func (v *VM) chargeUnreadable(addr, last uint64) FaultCode {
	if isOwn(addr) {
		return NoFault
	}
	if addr>>pageShift == last>>pageShift {
		v.badPage = addr >> pageShift
	}
	if !v.charge(costFault) {
		return v.badArg(FaultBudget, 0)
	}
	return NoFault
}

// strChunk is how much of a string is read at a time. A chunk never crosses a
// multiple of it, so a string that ends before an unmapped page can be read.
const strChunk = 64

// probeReadStr is probe_read_str and its variants (destination, size, address). It
// returns the length with the final zero byte, which is always written. The rest of
// the destination is unchanged, but if the string cannot be read, all of it is
// zeroed.
func (v *VM) probeReadStr(h Helper, r *[16]uint64) FaultCode {
	if !v.charge(readCost(r[R2])) {
		return v.badArg(FaultBudget, 0)
	}
	dst, code := v.dest(r[R1], r[R2])
	if code != NoFault {
		return code
	}
	n, bad := v.readStr(h, r[R3], dst)
	if r[R0] = uint64(n); n >= 0 || !isOwn(r[R3]) && r[R3]>>pageShift == v.badPage {
		return NoFault
	}
	return v.chargeUnreadable(r[R3], bad)
}

// readStr returns the length with the final zero, or a negative errno and the address
// from which on nothing could be read.
func (v *VM) readStr(h Helper, addr uint64, dst []byte) (length int64, bad uint64) {
	if !isOwn(addr) && addr>>pageShift == v.badPage && len(dst) > 0 {
		clear(dst)
		return -errFault, addr
	}
	for n := 0; n < len(dst); {
		chunk := v.spare[:min(len(dst)-n, strChunk-int(addr%strChunk))]
		if !v.read(h, addr, chunk) && !v.readBytes(h, addr, chunk) {
			clear(dst)
			return -errFault, addr
		}
		if i := bytes.IndexByte(chunk, 0); i >= 0 {
			copy(dst[n:], chunk[:i+1])
			return int64(n + i + 1), 0
		}
		n += copy(dst[n:], chunk)
		addr += uint64(len(chunk))
	}
	if len(dst) > 0 {
		dst[len(dst)-1] = 0
	}
	return int64(len(dst)), 0
}

// readBytes reads byte by byte up to a zero byte: the program's own memory may end
// anywhere.
func (v *VM) readBytes(h Helper, addr uint64, p []byte) bool {
	if !isOwn(addr) {
		return false
	}
	for i := range p {
		if !v.read(h, addr+uint64(i), p[i:i+1]) {
			return false
		}
		if p[i] == 0 {
			return true
		}
	}
	return true
}

// getComm is get_current_comm (destination, size).
func (v *VM) getComm(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R1], r[R2])
	if code != NoFault {
		return code
	}
	if len(dst) == 0 {
		r[R0] = errno(errInval)
		return NoFault
	}
	comm := (*[16]byte)(v.spare[:])
	clear(comm[:])
	v.env.Comm(comm)
	n := bytes.IndexByte(comm[:15], 0)
	if n < 0 {
		n = 15
	}
	n = min(n, len(dst)-1)
	copy(dst, comm[:n])
	clear(dst[n:])
	r[R0] = 0
	return NoFault
}

// word returns a word of the context.
func (v *VM) word(off int) uint64 {
	if c := v.segs[segContext].bytes; off+8 <= len(c) {
		return le64(c[off:])
	}
	return 0
}

// getFuncArg is get_func_arg (context, n, destination): the argument words that the
// ABI passes in registers.
func (v *VM) getFuncArg(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R3], 8)
	if code != NoFault {
		return code
	}
	n := r[R2]
	if n >= uint64(v.prog.argWords()) {
		r[R0] = errno(errInval)
		return NoFault
	}
	off := int(8 * n)
	if !v.prog.kind.typed() {
		off = int(x86.CallArgs[n])
	}
	binary.LittleEndian.PutUint64(dst, v.word(off))
	r[R0] = 0
	return NoFault
}

// entryArg is entry_arg (n, destination).
func (v *VM) entryArg(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R2], 8)
	if code != NoFault {
		return code
	}
	r[R0] = 0
	if v.env.EntryArg(r[R1], dst) != nil {
		clear(dst)
		r[R0] = errno(errFault)
	}
	return NoFault
}

// getFuncRet is get_func_ret (context, destination).
func (v *VM) getFuncRet(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R2], 8)
	if code != NoFault {
		return code
	}
	if !v.prog.kind.AtReturn() || v.prog.kind.isCall() {
		r[R0] = errno(errNotSup)
		return NoFault
	}
	off := x86.PtAX
	if v.prog.kind.typed() {
		off = 8 * v.prog.args
	}
	binary.LittleEndian.PutUint64(dst, v.word(off))
	r[R0] = 0
	return NoFault
}

// nsPIDTGID is get_ns_current_pid_tgid (device, inode, destination, size): the current
// task's numbers, if that is the PID namespace that it is in.
func (v *VM) nsPIDTGID(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R3], r[R4])
	if code != NoFault {
		return code
	}
	clear(dst)
	r[R0] = errno(errInval)
	if len(dst) != 8 || r[R1]>>32 != 0 {
		return NoFault
	}
	in, ok := v.env.PIDNamespace()
	if ok && in.Device == r[R1] && in.Inode == r[R2] {
		binary.LittleEndian.PutUint32(dst, in.PID)
		binary.LittleEndian.PutUint32(dst[4:], in.TGID)
		r[R0] = 0
	}
	return NoFault
}
