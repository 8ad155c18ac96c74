package bpf

import "math/rand/v2"

// call runs helper h. Arguments are in R1 to R5; the result goes to R0. A misuse that
// Linux's verifier would have rejected is a fault, everything else an errno in R0.
func (v *VM) call(h Helper, r *[16]uint64) FaultCode {
	switch h {
	case HelperMapLookup, HelperMapUpdate, HelperMapDelete, HelperLookupPerCPU:
		return v.callMap(h, r)
	case HelperMapPush, HelperMapPop, HelperMapPeek:
		return v.callQueue(h, r)
	case HelperKtimeGetNS, HelperKtimeBootNS, HelperKtimeCoarseNS:
		r[R0] = v.env.Now()
	case HelperGetCPU:
		r[R0] = uint64(v.cpu)
	case HelperGetPIDTGID:
		r[R0] = v.env.PIDTGID()
	case HelperGetUIDGID:
		r[R0] = v.env.UIDGID()
	case HelperGetTask, HelperGetTaskBTF:
		r[R0] = v.env.Task()
	case HelperGetCgroupID:
		r[R0] = v.env.CgroupID()
	case HelperGetSpace:
		r[R0] = v.env.Space()
	case HelperFileCode:
		r[R0] = v.env.FileCode(r[R1])
	case HelperUnderCgroup:
		return v.taskUnderCgroup(r)
	case HelperNSPIDTGID:
		return v.nsPIDTGID(r)
	case HelperTaskStorageGet:
		return v.taskStorageGet(r)
	case HelperTaskStorageDel:
		return v.taskStorageDelete(r)
	case HelperGetRandom:
		r[R0] = uint64(rand.Uint32())
	case HelperGetAttachCookie:
		r[R0] = v.env.Cookie()
	case HelperStrncmp:
		return v.strncmp(r)
	case HelperSnprintf:
		return v.snprintf(r)
	case HelperSnprintfBTF:
		return snprintfBTF(v, r)
	case HelperTraceVprintk:
		return v.traceVprintk(r)
	case HelperLoop:
		return v.loop(r)
	case HelperForEachElem:
		return v.forEachElem(r)
	case HelperTailCall:
		return v.tailCall(r)
	case HelperGetStackID:
		return v.getStackID(r)
	case HelperGetComm:
		return v.getComm(r)
	case HelperProbeRead, HelperReadKernel, HelperReadUser, HelperCopyFromUser:
		return v.probeRead(h, r)
	case HelperProbeReadStr, HelperReadKernelStr, HelperReadUserStr:
		return v.probeReadStr(h, r)
	case HelperRingOutput:
		return v.ringOutput(r, R1, R2, R3, r[R4]&^3 != 0)
	case HelperPerfEventOutput:
		return v.ringOutput(r, R2, R4, R5, false)
	case HelperRingReserve:
		return v.ringReserve(r)
	case HelperRingSubmit:
		return v.ringEnd(r, recData)
	case HelperRingDiscard:
		return v.ringEnd(r, recDiscarded)
	case HelperRingQuery:
		return v.ringQuery(r)
	case HelperTracePrintk:
		return v.tracePrintk(r)
	case HelperGetStack:
		return v.getStack(r)
	case HelperGetFuncIP:
		r[R0] = v.env.FuncIP()
	case HelperGetFuncArg:
		return v.getFuncArg(r)
	case HelperGetFuncRet:
		return v.getFuncRet(r)
	case HelperGetFuncArgCnt:
		r[R0] = uint64(v.prog.argWords())
	case HelperWatched:
		r[R0] = v.env.WatchNumber(r[R1])
	case HelperEntryArg:
		return v.entryArg(r)
	case HelperOverrideReturn:
		r[R0] = 0
		if v.env.OverrideReturn(r[R2]) != nil {
			r[R0] = errno(errInval)
		}
	case HelperSetReg:
		r[R0] = 0
		if v.env.SetReg(r[R2], r[R3]) != nil {
			r[R0] = errno(errInval)
		}
	case HelperStop:
		r[R0] = 0
		if v.env.Stop(r[R2] != 0) != nil {
			r[R0] = errno(errInval)
		}
	case HelperPoke:
		return v.poke(r, false)
	case HelperWriteUser:
		return v.poke(r, true)
	case HelperSpinLock:
		return v.spinLock(r)
	case HelperSpinUnlock:
		return v.spinUnlock(r)
	case HelperStrtol, HelperStrtoul:
		return v.strtol(r, h == HelperStrtol)
	default:
		if dynptrArgs[h] != 0 {
			return v.callDynptr(h, r)
		}
		panic("BUG: unknown helper in a checked program")
	}
	return NoFault
}

// errno returns the value that a program gets for an error.
func errno(e int) uint64 { return uint64(-int64(e)) }

// badArg records the argument that a helper cannot work with.
func (v *VM) badArg(code FaultCode, arg uint64) FaultCode {
	v.fault.Addr = arg
	return code
}

// mapArg returns the map of handle h if it has one of the given kinds, or nil.
func (v *VM) mapArg(h uint64, kinds mapKinds) (*Map, int) {
	i := h &^ handleBit
	if h&handleBit == 0 || i >= uint64(len(v.prog.maps)) {
		return nil, 0
	}
	if m := v.prog.maps[i]; kinds.has(m.spec.Kind) {
		return m, int(i)
	}
	return nil, 0
}

// ringOutput is ringbuf_output (map, data, size, flags) and perf_event_output
// (context, map, flags, data, size).
func (v *VM) ringOutput(r *[16]uint64, ring, data, size Reg, badFlags bool) FaultCode {
	m, _ := v.mapArg(r[ring], ringMaps)
	if m == nil {
		return v.badArg(FaultMapArg, r[ring])
	}
	n := r[size]
	var src []byte
	if n > 0 {
		if src = v.mem(r[data], min(n, 1<<32)); src == nil {
			return v.badArg(FaultMemArg, r[data])
		}
		if !v.charge(int64(n >> copyShift)) {
			return v.badArg(FaultBudget, 0)
		}
	}
	if badFlags {
		r[R0] = errno(errInval)
		return NoFault
	}
	rec, ok := m.take(v.cpu, n)
	if !ok {
		r[R0] = errno(errAgain)
		return NoFault
	}
	copy(rec.data, src)
	rec.end(recData, v.cpu)
	r[R0] = 0
	return NoFault
}

// ringReserve is ringbuf_reserve (map, size, flags).
func (v *VM) ringReserve(r *[16]uint64) FaultCode {
	m, _ := v.mapArg(r[R1], ringMaps)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	if v.open == MaxReservations {
		return v.badArg(FaultRecords, r[R1])
	}
	n := r[R2]
	if r[R3] != 0 {
		r[R0] = 0
		return NoFault
	}
	rec, ok := m.take(v.cpu, n)
	if !ok {
		r[R0] = 0
		return NoFault
	}
	for i := range v.records {
		if v.records[i].ring == nil {
			v.records[i] = rec
			v.segs[segRecords+i] = segment{bytes: rec.data, count: 1, limit: n}
			v.open++
			r[R0] = segPointer(segRecords+i, 0, 0)
			break
		}
	}
	return NoFault
}

// ringEnd is ringbuf_submit and ringbuf_discard (record, flags).
func (v *VM) ringEnd(r *[16]uint64, kind uint64) FaultCode {
	i := r[R1]>>segShift - segRecords
	if i >= MaxReservations || r[R1]<<(64-segShift) != 0 || v.records[i].ring == nil {
		return v.badArg(FaultRecordArg, r[R1])
	}
	v.endRecord(int(i), kind)
	r[R0] = 0
	return NoFault
}

// ringQuery is ringbuf_query (map, what).
func (v *VM) ringQuery(r *[16]uint64) FaultCode {
	m, _ := v.mapArg(r[R1], ringMaps)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	head, tail := load64(m.area.Bytes, hdrHead), load64(m.area.Bytes, hdrTail)
	switch r[R2] {
	case 0:
		r[R0] = head - tail
	case 1:
		r[R0] = uint64(m.ring.size)
	case 2:
		r[R0] = tail
	case 3:
		r[R0] = head
	default:
		r[R0] = 0
	}
	return NoFault
}
