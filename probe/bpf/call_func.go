package bpf

import "encoding/binary"

// Functions that helpers call by their address, and tail calls.

const (
	// maxLoops bounds the calls of one loop (BPF_MAX_LOOPS, include/linux/bpf.h).
	maxLoops = 8 << 20
	// maxTailCalls bounds the tail calls of a run (MAX_TAIL_CALL_CNT,
	// include/linux/bpf.h).
	maxTailCalls = 33
)

// function returns the slot of the function whose address is the argument.
func (v *VM) function(arg uint64) (slot int, ok bool) {
	slot = int(arg &^ funcBit)
	fns := v.prog.fns
	if arg&funcBit == 0 || arg>>32 != funcBit>>32 || slot >= fns.end {
		return 0, false
	}
	return slot, fns.starts[fns.indexOf(slot)] == slot
}

// invoke calls a function of the program from within a helper, with a frame of its own.
func (v *VM) invoke(slot int, frame uint64, args ...uint64) (uint64, FaultCode) {
	depth := v.depth
	if depth+1 >= MaxFrames {
		return 0, v.badArg(FaultDepth, 0)
	}
	if !v.charge(int64(v.prog.fns.size(slot))) {
		return 0, v.badArg(FaultBudget, 0)
	}
	var regs [16]uint64
	copy(regs[R1:], args)
	regs[R10] = frame - FrameSize
	code := v.run(&regs, slot, depth+1)
	v.depth = depth
	return regs[R0], code
}

// loop is loop (calls, function, its context, flags).
func (v *VM) loop(r *[16]uint64) FaultCode {
	fn, ok := v.function(r[R2])
	switch n := uint32(r[R1]); {
	case !ok:
		return v.badArg(FaultFuncArg, r[R2])
	case r[R4] != 0:
		r[R0] = errno(errInval)
		return NoFault
	case n > maxLoops:
		r[R0] = errno(errTooBig)
		return NoFault
	}
	n, ctx := uint64(uint32(r[R1])), r[R3]
	for i := range n {
		stop, code := v.invoke(fn, r[R10], i, ctx)
		if code != NoFault {
			return code
		}
		if stop != 0 {
			n = i + 1
			break
		}
	}
	r[R0] = n
	return NoFault
}

// roomForKey returns room for a key that the current frame may use.
func roomForKey(v *VM, m *Map) []byte {
	n := int(m.spec.KeySize)
	if n > v.keyRoom { // only in a VM that was made for one program
		v.keyRoom = n
		v.keys = make([]byte, MaxFrames*n)
	}
	return v.keys[v.depth*v.keyRoom:][:n:n]
}

// forEachElem is for_each_map_elem (map, function, its context, flags).
func (v *VM) forEachElem(r *[16]uint64) FaultCode {
	m, number := v.mapArg(r[R1], elemMaps)
	fn, ok := v.function(r[R2])
	switch {
	case m == nil:
		return v.badArg(FaultMapArg, r[R1])
	case !ok:
		return v.badArg(FaultFuncArg, r[R2])
	case r[R4] != 0:
		r[R0] = errno(errInval)
		return NoFault
	}
	key := roomForKey(v, m)
	at := len(v.segs)
	v.segs = append(v.segs, segment{bytes: key, count: 1, limit: uint64(len(key)), readOnly: true})
	defer func() { v.segs = v.segs[:at] }()
	n := uint64(0)
	for slot := range m.slots() {
		if !v.charge(1) {
			return v.badArg(FaultBudget, 0)
		}
		if !m.keyIn(slot, key) {
			continue
		}
		elem := slot
		if m.perCPU {
			elem += v.cpu * m.entries
		}
		n++
		stop, code := v.invoke(fn, r[R10], r[R1], segPointer(at, 0, 0), segPointer(segMaps+number, elem, 0), r[R3])
		if code != NoFault {
			return code
		}
		if stop != 0 {
			break
		}
	}
	r[R0] = n
	return NoFault
}

// keyIn reads the key of the element in a slot into key; it returns false if the slot
// has none.
func (m *Map) keyIn(slot int, key []byte) bool {
	if m.hashed() {
		return m.hashRead(slot, key, nil)
	}
	binary.LittleEndian.PutUint32(key, uint32(slot))
	return true
}

// tailCall is tail_call (context, map, index). If it succeeds the run continues with
// the first instruction of the other program.
func (v *VM) tailCall(r *[16]uint64) FaultCode {
	m, _ := v.mapArg(r[R2], 1<<ProgArray)
	if m == nil {
		return v.badArg(FaultMapArg, r[R2])
	}
	next := m.progs[uint32(r[R3])]
	if next == nil || next.kind != v.prog.kind || next.args != v.prog.args || v.tails == maxTailCalls || v.depth != 0 {
		r[R0] = errno(errNoEnt)
		return NoFault
	}
	v.tails++
	v.Use(next)
	return tailCalled
}
