package bpf

// maxSmallCopy is the most that a small program copies into a ring in one call.
const maxSmallCopy = 256

// call is the effect of a helper. It returns false where the helper's work
// depends on more than what is known.
func (s *small) call(pc int, st *smallState) bool {
	o := &s.p.ops[pc]
	h := Helper(o.imm)
	if i := helperByID[h]; i.Place == OnHost {
		return false
	}
	args := st.regs
	result := smallValue{}
	switch h {
	case HelperKtimeGetNS, HelperGetCPU, HelperGetFuncIP, HelperGetFuncArgCnt:
	case HelperGetPIDTGID:
		if !s.knowsTask() {
			return false
		}
	case HelperGetComm:
		if !s.knowsTask() || args[R2] != (smallValue{kind: sConst, off: commSize}) || !s.canAccess(st, args[R1], 0, commSize, true) {
			return false
		}
		if args[R1].kind == sFrame {
			st.store(args[R1].off, commSize, smallValue{})
		}
		result = smallValue{kind: sConst}
	case HelperMapLookup:
		m, ok := s.mapArg(args[R1], keyedMaps)
		if !ok || m.hashed() || args[R2].kind != sFrame || !s.canAccess(st, args[R2], 0, 4, false) {
			return false
		}
		result = smallValue{kind: sMaybeValue, m: args[R1].m, elem: -1, id: int32(pc)}
		if key, ok := st.constant(args[R2].off, 4); ok {
			result.kind, result.elem, result.id = sValue, int32(key), 0
			if key >= uint64(m.spec.MaxEntries) {
				result = smallValue{kind: sConst}
			}
		}
	case HelperRingOutput, HelperPerfEventOutput:
		ring, data, size := outputArgs(h, &args)
		m, ok := s.mapArg(ring, ringMaps)
		if !ok || size.kind != sConst || size.off < 1 || size.off > min(maxSmallCopy, int64(m.maxRecord())) ||
			!s.canAccess(st, data, 0, int(size.off), false) || data.kind == sRecord {
			return false
		}
		if h == HelperRingOutput && (args[R4].kind != sConst || args[R4].off&^3 != 0) {
			return false
		}
		s.sizes[pc] = size.off
	case HelperRingReserve:
		m, ok := s.mapArg(args[R1], ringMaps)
		if !ok || st.open != 0 || args[R2].kind != sConst || args[R2].off < 1 || args[R2].off > int64(m.maxRecord()) || args[R3] != (smallValue{kind: sConst}) {
			return false
		}
		s.sizes[pc] = args[R2].off
		st.open = int32(pc) + 1
		result = smallValue{kind: sMaybeRecord, id: int32(pc)}
	case HelperRingSubmit, HelperRingDiscard:
		if args[R1].kind != sRecord || args[R1].off != 0 || st.open != args[R1].id+1 {
			return false
		}
		s.sizes[pc] = s.sizes[args[R1].id]
		st.replace(sRecord, args[R1].id, func(smallValue) smallValue { return smallValue{} })
		st.open = 0
		result = smallValue{kind: sConst}
	default:
		return false
	}
	for r := R1; r <= R5; r++ {
		st.regs[r] = smallValue{kind: sConst}
	}
	st.regs[R0] = result
	return true
}

// outputArgs are the arguments of ringbuf_output or perf_event_output.
func outputArgs(h Helper, args *[numRegs]smallValue) (ring, data, size smallValue) {
	if h == HelperRingOutput {
		return args[R1], args[R2], args[R3]
	}
	return args[R2], args[R4], args[R5]
}

// knowsTask reports whether the stack pointer tells the current task.
func (s *small) knowsTask() bool {
	return s.layout.Task != nil && s.layout.Task.Stack != nil && s.layout.Fixups
}

func (s *small) mapArg(v smallValue, kinds MapKinds) (*Map, bool) {
	if v.kind != sMap || v.off != 0 {
		return nil, false
	}
	m := s.p.maps[v.m]
	return m, kinds.has(m.spec.Kind)
}
