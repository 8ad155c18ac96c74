package bpf

// argKind is the kind of a helper's argument.
type argKind uint8

const (
	anyArg      argKind = iota
	mapArg              // a map with keys
	ringArg             // a ring
	keyArg              // memory with a key of the map
	valueArg            // memory with a value of the map
	inArg               // memory to read; its size is the next argument
	outArg              // memory to write, likewise
	wordArg             // memory to write 8 bytes to
	recordArg           // a reserved record
	valueOutArg         // memory for a value of the map
	funcArg             // a function of the program
	elemsArg            // a map with keys and values
	queueArg            // a map with values and no keys
	stacksArg           // a map of stacks
	progsArg            // a map of programs
	cgroupsArg          // a map of cgroups
	lockArg             // the lock in a value of a map
	dynptrArg           // memory of a dynptr
	storageArg          // a map of values of tasks
	orNullArg           // memory with a value of the map, or 0
)

// kinds are the possible kinds of map of an argument, empty if it is not a map.
func (k argKind) kinds() mapKinds {
	switch k {
	case mapArg:
		return keyedMaps | mapsOfMaps
	case ringArg:
		return ringMaps
	case elemsArg:
		return elemMaps
	case queueArg:
		return queueMaps
	case stacksArg:
		return 1 << StackTrace
	case progsArg:
		return 1 << ProgArray
	case storageArg:
		return 1 << TaskStorage
	case cgroupsArg:
		return 1 << CgroupArray
	}
	return 0
}

// callFact is the knowledge about a call of a helper.
type callFact struct {
	m      int              // number of the map that it works on; -1 if not known or it has no map
	args   [R5 + 1]access   // memory that it uses, by register; size 0 = not known in advance
	known  [R5 + 1]constArg // arguments that are numbers
	key    int64            // the element of a lookup in an array; -1 = not known
	record int32            // id of the record that it ends; 0 = not known
	cost   int64            // the most that it takes from the budget
}

type constArg struct {
	v  uint64
	ok bool
}

// call is the effect of a call of a helper.
func (a *verifier) call(pc int, st *state) {
	o := &a.p.ops[pc]
	h := helperByID[Helper(o.imm)]
	f := &callFact{m: -1, key: -1}
	var m *Map
	bytes := uint64(0)
	for i, kind := range h.args {
		r := uint8(R1) + uint8(i)
		v := st.regs[r]
		f.known[r].v, f.known[r].ok = v.knownNumber()
		if kinds := kind.kinds(); kinds != 0 {
			if c, ok := v.num.singleValue(); v.kind == aMap && ok && c == 0 && kinds.has(a.p.maps[v.m].spec.Kind) {
				f.m, m = int(v.m), a.p.maps[v.m]
			} else if v.kind != noBase || ok {
				a.warn(pc, "argument %d of %s is not a map of the right kind", i+1, h.Name)
			}
			continue
		}
		switch kind {
		case keyArg, valueArg, valueOutArg:
			if m != nil {
				size := m.spec.KeySize
				if kind != keyArg {
					size = m.spec.ValueSize
				}
				f.args[r] = a.region(pc, st, r, constant(uint64(size)), kind == valueOutArg)
			}
		case orNullArg:
			if m != nil && v.kind != noBase && !v.null {
				f.args[r] = a.region(pc, st, r, constant(uint64(m.spec.ValueSize)), false)
			}
		case funcArg: // the function may write into this frame
			st.words = nil
			st.written.setAll()
			st.touched.setAll()
		case inArg, outArg:
			n := st.regs[r+1].number()
			if n.ulo > maxRead {
				a.warn(pc, "argument %d of %s, a size, is more than the %d bytes that can be", i+2, h.Name, maxRead)
			}
			bytes = min(n.uhi, offMask) // a place of the program's cannot have more
			if kind == outArg {
				bytes = min(n.uhi, maxRead)
			}
			f.args[r] = a.region(pc, st, r, n, kind == outArg)
		case wordArg:
			f.args[r] = a.region(pc, st, r, constant(8), true)
		case lockArg:
			c, ok := v.num.singleValue()
			if v.kind != noBase && !(v.kind == inValue && ok && c+1 == uint64(a.p.maps[v.m].spec.LockAt)) || v.kind == noBase && ok {
				a.warn(pc, "argument %d of %s is not the lock in a value of a map", i+1, h.Name)
			} else if v.null && !v.told {
				a.warn(pc, "the %s is used without a check for 0", a.name(v.base))
			}
		case dynptrArg:
			f.args[r] = a.region(pc, st, r, constant(dynptrSize), true)
		case recordArg:
			if c, ok := v.num.singleValue(); v.kind == inRecord && !v.null && ok && c == 0 {
				f.record = v.id
			} else if v.kind == inRecord && v.null {
				a.warn(pc, "argument %d of %s may be 0: the record was not checked", i+1, h.Name)
				st.end(v.id) // if it was 0 the run has ended
			} else if v.kind != noBase || v.num.uhi < 1<<segShift {
				a.warn(pc, "argument %d of %s is not a record that was reserved", i+1, h.Name)
			}
		}
	}
	f.cost = CallCost(h.ID, int(bytes), m)
	if m == nil { // it may be any of them
		for _, of := range a.p.maps {
			f.cost = max(f.cost, CallCost(h.ID, int(bytes), of))
		}
	}
	result := a.result(pc, st, h.ID, f, m)
	if a.final {
		a.facts[pc].call = f
	}
	for r := R1; r <= R5; r++ {
		st.regs[r] = constValue(0)
		st.regs[r].unset = true
	}
	a.set(pc, st, uint8(R0), result)
}

// number is the knowledge about the number of a value.
func (v *value) number() number {
	if v.kind != noBase {
		return anyNumber
	}
	return v.num
}

// region determines the memory of n bytes at register r that a helper reads or
// writes.
func (a *verifier) region(pc int, st *state, r uint8, n number, write bool) access {
	v := st.regs[r]
	most := n.uhi
	if most > maxRead || most == 0 {
		if write {
			st.words = nil
			st.touched.setAll()
		}
		return access{base: v.base, ptr: r}
	}
	size, exact := n.singleValue()
	look := a.classify // if there are no bytes to access, do not require that they exist
	if exact {
		look = a.access
	}
	acc := look(pc, st, r, 0, int(most), write)
	if acc.class == bounded || acc.class == guessed {
		acc.class = generic // helpers have one check for all
	}
	if acc.size = int(size); !exact {
		acc.size = 0
	}
	exactly := v.kind == inFrame && acc.class == direct && acc.by == byOffset && exact
	switch {
	case write && acc.class == generic:
		st.words = nil
		st.touched.setAll()
	case write && exactly:
		st.written.set(acc.off, acc.size, true)
		st.touched.set(acc.off, acc.size, true)
		st.forget(acc.off, acc.off+int64(acc.size))
	case write && v.kind == inFrame:
		st.words = nil
		st.touched.setAll()
	case !write && exact:
		a.checkWritten(pc, st, &v, acc)
	}
	return acc
}

// result is the result of a helper, and its other effects.
func (a *verifier) result(pc int, st *state, h Helper, f *callFact, m *Map) value {
	number := scalarValue(anyNumber)
	switch h {
	case HelperLookupPerCPU, HelperDynptrData, HelperDynptrSlice, HelperDynptrSliceW:
		return unknownValue()
	case HelperDynptrRead, HelperDynptrWrite, HelperRingSubmitDyn, HelperRingDiscardDyn: // they change memory that addresses in a dynptr lead to
		st.words = nil
		st.touched.setAll()
	case HelperMapLookup:
		if m == nil || !keyedMaps.has(m.spec.Kind) {
			return unknownValue()
		}
		v := value{base: base{kind: inValue, m: int16(f.m), elem: -1}, num: constant(0)}
		if key := f.args[R2]; arrayMaps.has(m.spec.Kind) && key.class == direct && key.by == byOffset && key.base.kind == inFrame {
			if k, ok := st.word(key.off, 4); ok {
				if c, ok := k.num.singleValue(); ok {
					f.key = int64(c)
				}
			}
		}
		switch {
		case f.key >= int64(m.spec.MaxEntries):
			return constValue(0)
		case f.key >= 0:
			v.elem = int32(f.key)
		default:
			st.define(def(pc))
			v.null, v.id = true, def(pc)
		}
		return v
	case HelperTaskStorageGet:
		if m == nil {
			return unknownValue()
		}
		st.define(def(pc))
		return value{base: base{kind: inValue, m: int16(f.m), elem: -1, null: true, id: def(pc)}, num: constant(0)}
	case HelperRingReserve:
		size := st.regs[R2].number()
		if f.m < 0 {
			return unknownValue()
		}
		id := def(pc)
		a.sizes[id] = [2]int64{int64(min(size.ulo, offMask)), int64(min(size.uhi, offMask))}
		st.define(id)
		st.close(id)
		st.open = append(st.open[:len(st.open):len(st.open)], id)
		return value{base: base{kind: inRecord, m: int16(f.m), null: true, id: id}, num: constant(0)}
	case HelperRingSubmit, HelperRingDiscard:
		if f.record != 0 {
			st.end(f.record)
		}
		a.ends = a.ends || f.record == 0 && st.regs[R1].kind == noBase
		return constValue(0)
	case HelperGetFuncArgCnt:
		return constValue(uint64(a.p.argWords()))
	case HelperGetCPU:
		return scalarValue(numberOfSize(4))
	}
	return number
}
