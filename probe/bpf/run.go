package bpf

import (
	"encoding/binary"
	"math/bits"
)

// run executes a function of the program on r, in frame depth, until it returns. The
// budget is v.left before and after it. The switch covers every lowered operation;
// register numbers are masked so that the compiler needs no bounds checks, and jump
// targets were checked when the program was made.
//
// Programs on several vCPUs race for the contents of maps, as they do in the kernel:
// an aligned access is one access of the processor, and its result is not trusted.
// The race detector does not see these accesses.
//
//go:norace
func (v *VM) run(r *[16]uint64, pc, depth int) FaultCode {
	ops, budget, base := v.prog.ops, v.left, depth
	for ; ; pc++ {
		o := &ops[pc]
		switch o.code {
		case opAdd + form64K:
			r[o.dst&15] += uint64(o.imm)
		case opAdd + form64X:
			r[o.dst&15] += r[o.src&15]
		case opAdd + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) + uint32(o.imm))
		case opAdd + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) + uint32(r[o.src&15]))
		case opSub + form64K:
			r[o.dst&15] -= uint64(o.imm)
		case opSub + form64X:
			r[o.dst&15] -= r[o.src&15]
		case opSub + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) - uint32(o.imm))
		case opSub + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) - uint32(r[o.src&15]))
		case opMul + form64K:
			r[o.dst&15] *= uint64(o.imm)
		case opMul + form64X:
			r[o.dst&15] *= r[o.src&15]
		case opMul + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) * uint32(o.imm))
		case opMul + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) * uint32(r[o.src&15]))
		case opOr + form64K:
			r[o.dst&15] |= uint64(o.imm)
		case opOr + form64X:
			r[o.dst&15] |= r[o.src&15]
		case opOr + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) | uint32(o.imm))
		case opOr + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) | uint32(r[o.src&15]))
		case opAnd + form64K:
			r[o.dst&15] &= uint64(o.imm)
		case opAnd + form64X:
			r[o.dst&15] &= r[o.src&15]
		case opAnd + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) & uint32(o.imm))
		case opAnd + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) & uint32(r[o.src&15]))
		case opXor + form64K:
			r[o.dst&15] ^= uint64(o.imm)
		case opXor + form64X:
			r[o.dst&15] ^= r[o.src&15]
		case opXor + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) ^ uint32(o.imm))
		case opXor + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) ^ uint32(r[o.src&15]))
		case opMov + form64K:
			r[o.dst&15] = uint64(o.imm)
		case opMov + form64X:
			r[o.dst&15] = r[o.src&15]
		case opMov + form32K:
			r[o.dst&15] = uint64(uint32(o.imm))
		case opMov + form32X:
			r[o.dst&15] = uint64(uint32(r[o.src&15]))
		case opLsh + form64K:
			r[o.dst&15] <<= uint64(o.imm) & 63
		case opLsh + form64X:
			r[o.dst&15] <<= r[o.src&15] & 63
		case opLsh + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) << (uint32(o.imm) & 31))
		case opLsh + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) << (uint32(r[o.src&15]) & 31))
		case opRsh + form64K:
			r[o.dst&15] >>= uint64(o.imm) & 63
		case opRsh + form64X:
			r[o.dst&15] >>= r[o.src&15] & 63
		case opRsh + form32K:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) >> (uint32(o.imm) & 31))
		case opRsh + form32X:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]) >> (uint32(r[o.src&15]) & 31))
		case opArsh + form64K:
			r[o.dst&15] = uint64(int64(r[o.dst&15]) >> (uint64(o.imm) & 63))
		case opArsh + form64X:
			r[o.dst&15] = uint64(int64(r[o.dst&15]) >> (r[o.src&15] & 63))
		case opArsh + form32K:
			r[o.dst&15] = uint64(uint32(int32(r[o.dst&15]) >> (uint32(o.imm) & 31)))
		case opArsh + form32X:
			r[o.dst&15] = uint64(uint32(int32(r[o.dst&15]) >> (uint32(r[o.src&15]) & 31)))
		case opDiv + form64K:
			r[o.dst&15] = div64(r[o.dst&15], uint64(o.imm))
		case opDiv + form64X:
			r[o.dst&15] = div64(r[o.dst&15], r[o.src&15])
		case opDiv + form32K:
			r[o.dst&15] = uint64(div32(uint32(r[o.dst&15]), uint32(o.imm)))
		case opDiv + form32X:
			r[o.dst&15] = uint64(div32(uint32(r[o.dst&15]), uint32(r[o.src&15])))
		case opMod + form64K:
			r[o.dst&15] = mod64(r[o.dst&15], uint64(o.imm))
		case opMod + form64X:
			r[o.dst&15] = mod64(r[o.dst&15], r[o.src&15])
		case opMod + form32K:
			r[o.dst&15] = uint64(mod32(uint32(r[o.dst&15]), uint32(o.imm)))
		case opMod + form32X:
			r[o.dst&15] = uint64(mod32(uint32(r[o.dst&15]), uint32(r[o.src&15])))
		case opSdiv + form64K:
			r[o.dst&15] = sdiv64(r[o.dst&15], uint64(o.imm))
		case opSdiv + form64X:
			r[o.dst&15] = sdiv64(r[o.dst&15], r[o.src&15])
		case opSdiv + form32K:
			r[o.dst&15] = uint64(sdiv32(uint32(r[o.dst&15]), uint32(o.imm)))
		case opSdiv + form32X:
			r[o.dst&15] = uint64(sdiv32(uint32(r[o.dst&15]), uint32(r[o.src&15])))
		case opSmod + form64K:
			r[o.dst&15] = smod64(r[o.dst&15], uint64(o.imm))
		case opSmod + form64X:
			r[o.dst&15] = smod64(r[o.dst&15], r[o.src&15])
		case opSmod + form32K:
			r[o.dst&15] = uint64(smod32(uint32(r[o.dst&15]), uint32(o.imm)))
		case opSmod + form32X:
			r[o.dst&15] = uint64(smod32(uint32(r[o.dst&15]), uint32(r[o.src&15])))
		case opNeg64:
			r[o.dst&15] = -r[o.dst&15]
		case opNeg32:
			r[o.dst&15] = uint64(-uint32(r[o.dst&15]))
		case opMovs8:
			r[o.dst&15] = uint64(int64(int8(r[o.src&15])))
		case opMovs16:
			r[o.dst&15] = uint64(int64(int16(r[o.src&15])))
		case opMovs32:
			r[o.dst&15] = uint64(int64(int32(r[o.src&15])))
		case opMovs8w:
			r[o.dst&15] = uint64(uint32(int32(int8(r[o.src&15]))))
		case opMovs16w:
			r[o.dst&15] = uint64(uint32(int32(int16(r[o.src&15]))))
		case opLe16:
			r[o.dst&15] = uint64(uint16(r[o.dst&15]))
		case opLe32:
			r[o.dst&15] = uint64(uint32(r[o.dst&15]))
		case opNop:
		case opSwap16:
			r[o.dst&15] = uint64(bits.ReverseBytes16(uint16(r[o.dst&15])))
		case opSwap32:
			r[o.dst&15] = uint64(bits.ReverseBytes32(uint32(r[o.dst&15])))
		case opSwap64:
			r[o.dst&15] = bits.ReverseBytes64(r[o.dst&15])
		case opJeq + form64K:
			if r[o.dst&15] == uint64(o.imm) {
				goto jump
			}
		case opJeq + form64X:
			if r[o.dst&15] == r[o.src&15] {
				goto jump
			}
		case opJeq + form32K:
			if uint32(r[o.dst&15]) == uint32(o.imm) {
				goto jump
			}
		case opJeq + form32X:
			if uint32(r[o.dst&15]) == uint32(r[o.src&15]) {
				goto jump
			}
		case opJne + form64K:
			if r[o.dst&15] != uint64(o.imm) {
				goto jump
			}
		case opJne + form64X:
			if r[o.dst&15] != r[o.src&15] {
				goto jump
			}
		case opJne + form32K:
			if uint32(r[o.dst&15]) != uint32(o.imm) {
				goto jump
			}
		case opJne + form32X:
			if uint32(r[o.dst&15]) != uint32(r[o.src&15]) {
				goto jump
			}
		case opJgt + form64K:
			if r[o.dst&15] > uint64(o.imm) {
				goto jump
			}
		case opJgt + form64X:
			if r[o.dst&15] > r[o.src&15] {
				goto jump
			}
		case opJgt + form32K:
			if uint32(r[o.dst&15]) > uint32(o.imm) {
				goto jump
			}
		case opJgt + form32X:
			if uint32(r[o.dst&15]) > uint32(r[o.src&15]) {
				goto jump
			}
		case opJge + form64K:
			if r[o.dst&15] >= uint64(o.imm) {
				goto jump
			}
		case opJge + form64X:
			if r[o.dst&15] >= r[o.src&15] {
				goto jump
			}
		case opJge + form32K:
			if uint32(r[o.dst&15]) >= uint32(o.imm) {
				goto jump
			}
		case opJge + form32X:
			if uint32(r[o.dst&15]) >= uint32(r[o.src&15]) {
				goto jump
			}
		case opJlt + form64K:
			if r[o.dst&15] < uint64(o.imm) {
				goto jump
			}
		case opJlt + form64X:
			if r[o.dst&15] < r[o.src&15] {
				goto jump
			}
		case opJlt + form32K:
			if uint32(r[o.dst&15]) < uint32(o.imm) {
				goto jump
			}
		case opJlt + form32X:
			if uint32(r[o.dst&15]) < uint32(r[o.src&15]) {
				goto jump
			}
		case opJle + form64K:
			if r[o.dst&15] <= uint64(o.imm) {
				goto jump
			}
		case opJle + form64X:
			if r[o.dst&15] <= r[o.src&15] {
				goto jump
			}
		case opJle + form32K:
			if uint32(r[o.dst&15]) <= uint32(o.imm) {
				goto jump
			}
		case opJle + form32X:
			if uint32(r[o.dst&15]) <= uint32(r[o.src&15]) {
				goto jump
			}
		case opJsgt + form64K:
			if int64(r[o.dst&15]) > o.imm {
				goto jump
			}
		case opJsgt + form64X:
			if int64(r[o.dst&15]) > int64(r[o.src&15]) {
				goto jump
			}
		case opJsgt + form32K:
			if int32(r[o.dst&15]) > int32(o.imm) {
				goto jump
			}
		case opJsgt + form32X:
			if int32(r[o.dst&15]) > int32(r[o.src&15]) {
				goto jump
			}
		case opJsge + form64K:
			if int64(r[o.dst&15]) >= o.imm {
				goto jump
			}
		case opJsge + form64X:
			if int64(r[o.dst&15]) >= int64(r[o.src&15]) {
				goto jump
			}
		case opJsge + form32K:
			if int32(r[o.dst&15]) >= int32(o.imm) {
				goto jump
			}
		case opJsge + form32X:
			if int32(r[o.dst&15]) >= int32(r[o.src&15]) {
				goto jump
			}
		case opJslt + form64K:
			if int64(r[o.dst&15]) < o.imm {
				goto jump
			}
		case opJslt + form64X:
			if int64(r[o.dst&15]) < int64(r[o.src&15]) {
				goto jump
			}
		case opJslt + form32K:
			if int32(r[o.dst&15]) < int32(o.imm) {
				goto jump
			}
		case opJslt + form32X:
			if int32(r[o.dst&15]) < int32(r[o.src&15]) {
				goto jump
			}
		case opJsle + form64K:
			if int64(r[o.dst&15]) <= o.imm {
				goto jump
			}
		case opJsle + form64X:
			if int64(r[o.dst&15]) <= int64(r[o.src&15]) {
				goto jump
			}
		case opJsle + form32K:
			if int32(r[o.dst&15]) <= int32(o.imm) {
				goto jump
			}
		case opJsle + form32X:
			if int32(r[o.dst&15]) <= int32(r[o.src&15]) {
				goto jump
			}
		case opJset + form64K:
			if r[o.dst&15]&uint64(o.imm) != 0 {
				goto jump
			}
		case opJset + form64X:
			if r[o.dst&15]&r[o.src&15] != 0 {
				goto jump
			}
		case opJset + form32K:
			if uint32(r[o.dst&15])&uint32(o.imm) != 0 {
				goto jump
			}
		case opJset + form32X:
			if uint32(r[o.dst&15])&uint32(r[o.src&15]) != 0 {
				goto jump
			}
		case opJa:
			goto jump
		case opMayGoto:
			if budget < v.prog.budget/mayGotoLeft {
				goto jump
			}
		case opLoadImm:
			r[o.dst&15] = uint64(o.imm)
			pc++
		case opLoad8:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 1)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = uint64(b[0])
		case opLoad16:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 2)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = uint64(binary.LittleEndian.Uint16(b))
		case opLoad32:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 4)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = uint64(binary.LittleEndian.Uint32(b))
		case opLoad64:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 8)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = binary.LittleEndian.Uint64(b)
		case opLoads8:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 1)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = uint64(int64(int8(b[0])))
		case opLoads16:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 2)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = uint64(int64(int16(binary.LittleEndian.Uint16(b))))
		case opLoads32:
			b := v.mem(r[o.src&15]+uint64(int64(o.off)), 4)
			if b == nil {
				goto follow
			}
			r[o.dst&15] = uint64(int64(int32(binary.LittleEndian.Uint32(b))))
		case opStoreK, opStoreX:
			p, x := r[o.dst&15]+uint64(int64(o.off)), uint64(o.imm)
			if o.code == opStoreX {
				x = r[o.src&15]
			}
			b := v.memW(p, uint64(o.size))
			if b == nil {
				return v.stop(FaultStore, pc, p)
			}
			switch o.size {
			case 1:
				b[0] = byte(x)
			case 2:
				binary.LittleEndian.PutUint16(b, uint16(x))
			case 4:
				binary.LittleEndian.PutUint32(b, uint32(x))
			default:
				binary.LittleEndian.PutUint64(b, x)
			}
		case opAtomic:
			if code := v.runAtomic(o, r); code != NoFault {
				return v.stop(code, pc, r[o.dst&15]+uint64(int64(o.off)))
			}
		case opCall:
			if v.left = budget - int64(o.cost); v.left < 0 {
				return v.stop(FaultBudget, pc, 0)
			}
			v.depth, v.fault.PC = depth, -1
			switch code := v.call(Helper(o.imm), r); code {
			case NoFault:
			case tailCalled:
				clear(r[:R10])
				r[R1] = segPointer(segContext, 0, 0)
				ops, budget, pc = v.prog.ops, v.left, -1
				continue
			default:
				if v.fault.PC < 0 { // else the fault is in a function that the helper has called
					v.fault.PC = pc
				}
				return code
			}
			budget = v.left
			clear(r[R1:R6])
		case opCallLocal:
			if depth == MaxFrames-1 {
				return v.stop(FaultDepth, pc, 0)
			}
			f := &v.frames[depth]
			f.ret = pc
			copy(f.saved[:], r[R6:R10])
			depth++
			r[R10] -= FrameSize
			goto jump
		case opExit:
			if depth == base {
				v.left = budget
				return NoFault
			}
			depth--
			f := &v.frames[depth]
			copy(r[R6:R10], f.saved[:])
			r[R10] += FrameSize
			pc = f.ret
		case opMissing:
			return v.stop(FaultMissing, pc, 0)
		default:
			panic("BUG: invalid operation in a checked program")
		}
		continue
	follow:
		{
			v.left = budget
			x, code := v.follow(o, r[o.src&15]+uint64(int64(o.off)))
			if code != NoFault {
				v.fault.PC = pc
				return code
			}
			budget, r[o.dst&15] = v.left, x
			continue
		}
	jump:
		// In addition to helpers, only operations that can make a loop have a cost:
		// every jump back pays for the slots it goes back over, so the rest is
		// bounded by the length.
		if o.cost != 0 {
			if budget -= int64(o.cost); budget < 0 {
				return v.stop(FaultBudget, pc, 0)
			}
		}
		pc = int(o.off) - 1
	}
}

// follow loads from an address that is not the program's: from the guest's memory, if
// the program follows, and 0 if it cannot be read.
func (v *VM) follow(o *op, addr uint64) (uint64, FaultCode) {
	if !v.prog.follows || isOwn(addr) {
		return 0, v.badArg(FaultLoad, addr)
	}
	if !v.charge(costRead) {
		return 0, v.badArg(FaultBudget, 0)
	}
	b := v.spare[:o.size]
	if addr>>pageShift == v.badPage {
		return 0, NoFault
	}
	if !v.read(HelperReadKernel, addr, b) {
		return 0, v.chargeUnreadable(addr, addr+uint64(o.size)-1)
	}
	switch o.code {
	case opLoads8:
		return uint64(int64(int8(b[0]))), NoFault
	case opLoads16:
		return uint64(int64(int16(binary.LittleEndian.Uint16(b)))), NoFault
	case opLoads32:
		return uint64(int64(int32(binary.LittleEndian.Uint32(b)))), NoFault
	}
	return partWord(b), NoFault
}

// stop records the place and address of a fault.
func (v *VM) stop(code FaultCode, pc int, addr uint64) FaultCode {
	v.fault.PC, v.fault.Addr = pc, addr
	return code
}
