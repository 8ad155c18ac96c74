package bpf

import "encoding/binary"

// Flags of get_stack and get_stackid.
const (
	stackSkip  = 0xff
	stackUser  = 0x100
	stackFast  = 0x200 // stacks with the same hash count as equal
	stackReuse = 0x400 // a stack replaces another one with its number

	// StackFiles replaces user addresses by the results of HelperFileCode. Linux does
	// not have it.
	StackFiles = 1 << 16
	// StackNear makes get_stackid look for a nearby place for a stack whose number is
	// taken by another one, in a map from which nothing is deleted. Linux does not
	// have it.
	StackNear = 1 << 17
	// StackUnwind has the host walk the stack, by unwind data if available. Linux
	// does not have it.
	StackUnwind = 1 << 18
	// StackBuilt limits StackFiles to files with a build ID. Linux does not have it.
	StackBuilt = 1 << 19
)

// getStack is get_stack (context, buffer, size, flags): the buffer is filled
// with 64-bit return addresses and then zeros; it returns the bytes of the
// addresses.
func (v *VM) getStack(r *[16]uint64) FaultCode {
	dst, code := v.dest(r[R2], r[R3])
	if code != NoFault {
		return code
	}
	if len(dst)%8 != 0 || r[R4]&^(stackSkip|stackUser|StackFiles|StackUnwind|StackBuilt) != 0 {
		r[R0] = errno(errInval)
		return NoFault
	}
	pcs := v.pcs[:min(len(dst)/8, len(v.pcs))]
	n, err := v.walk(pcs, r[R4])
	clear(dst)
	if err != nil {
		r[R0] = errno(errFault)
		return NoFault
	}
	n = min(max(n, 0), len(pcs))
	for i, pc := range pcs[:n] {
		binary.LittleEndian.PutUint64(dst[8*i:], pc)
	}
	r[R0] = uint64(8 * n)
	return NoFault
}

// walk fills pcs with the stack that the flags select.
func (v *VM) walk(pcs []uint64, flags uint64) (int, error) {
	n, err := v.env.Stack(pcs, int(flags&stackSkip), flags&stackUser != 0)
	if flags&(stackUser|StackFiles) == stackUser|StackFiles {
		for i := range pcs[:max(n, 0)] {
			if at := v.env.FileCode(pcs[i]); flags&StackBuilt == 0 || v.env.HasBuildID(at) {
				pcs[i] = at
			}
		}
	}
	return n, err
}

// getStackID is get_stackid (context, map, flags): it returns the stack's number in
// the map.
func (v *VM) getStackID(r *[16]uint64) FaultCode {
	m, _ := v.mapArg(r[R2], 1<<StackTrace)
	if m == nil {
		return v.badArg(FaultMapArg, r[R2])
	}
	flags := r[R3]
	if flags&^(stackSkip|stackUser|stackFast|stackReuse|StackFiles|StackNear|StackUnwind|StackBuilt) != 0 {
		r[R0] = errno(errInval)
		return NoFault
	}
	pcs := v.pcs[:min(int(m.spec.ValueSize)/8, len(v.pcs))]
	n, err := v.walk(pcs, flags)
	if err != nil || n <= 0 {
		r[R0] = errno(errFault)
		return NoFault
	}
	id, e := m.keepStack(pcs[:min(n, len(pcs))], flags)
	if r[R0] = uint64(id); e != 0 {
		r[R0] = errno(e)
	}
	return NoFault
}
