package bpf

// callMap is lookup (map, key), lookup for another vCPU (map, key, vCPU), update
// (map, key, value, flags) and delete (map, key).
func (v *VM) callMap(h Helper, r *[16]uint64) FaultCode {
	m, i := v.mapArg(r[R1], keyedMaps|mapsOfMaps)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	if !v.charge(m.opCost(h)) {
		return v.badArg(FaultBudget, 0)
	}
	key := v.mem(r[R2], uint64(m.spec.KeySize))
	if key == nil {
		return v.badArg(FaultMemArg, r[R2])
	}
	if mapsOfMaps.has(m.spec.Kind) {
		r[R0] = errno(errInval)
		if h == HelperMapLookup {
			r[R0] = v.innerMap(m, key)
		}
		return NoFault
	}
	switch h {
	case HelperMapLookup, HelperLookupPerCPU:
		cpu := v.cpu
		if h == HelperLookupPerCPU {
			cpu = int(min(r[R3]&(1<<32-1), 1<<30))
			if !m.perCPU {
				return v.badArg(FaultMapArg, r[R1])
			}
		}
		r[R0] = 0
		if slot, ok := m.find(key); ok && cpu < m.cpus {
			m.noteUse(slot)
			if m.perCPU {
				slot += cpu * m.entries
			}
			r[R0] = segPointer(segMaps+i, slot, 0)
		}
	case HelperMapUpdate:
		val := v.mem(r[R3], uint64(m.spec.ValueSize))
		if val == nil {
			return v.badArg(FaultMemArg, r[R3])
		}
		if m.spec.ReadOnly {
			r[R0] = errno(errPerm)
			return NoFault
		}
		r[R0] = errno(m.update(key, val, r[R4], v.cpu))
	default:
		r[R0] = errno(errPerm)
		if !m.spec.ReadOnly {
			r[R0] = errno(m.remove(key))
		}
	}
	return NoFault
}

// innerMap returns the handle of the inner map under a key, or 0.
func (v *VM) innerMap(m *Map, key []byte) uint64 {
	inner := m.inner[string(key)]
	for i, have := range v.prog.maps {
		if have == inner {
			return mapHandle(i)
		}
	}
	return 0
}

// callQueue is map_push_elem (map, value, flags), map_pop_elem and map_peek_elem (map,
// value).
func (v *VM) callQueue(h Helper, r *[16]uint64) FaultCode {
	m, _ := v.mapArg(r[R1], queueMaps)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	if !v.charge(int64(m.spec.ValueSize >> copyShift)) {
		return v.badArg(FaultBudget, 0)
	}
	if h == HelperMapPush {
		val := v.mem(r[R2], uint64(m.spec.ValueSize))
		if val == nil {
			return v.badArg(FaultMemArg, r[R2])
		}
		r[R0] = errno(m.push(val, r[R3]))
		return NoFault
	}
	if m.spec.Kind == BloomFilter {
		val := v.mem(r[R2], uint64(m.spec.ValueSize)) // needed, but not written
		if val == nil {
			return v.badArg(FaultMemArg, r[R2])
		}
		r[R0] = errno(errNotSup)
		if h == HelperMapPeek {
			r[R0] = errno(m.bloomTest(val))
		}
		return NoFault
	}
	val := v.memW(r[R2], uint64(m.spec.ValueSize))
	if val == nil {
		return v.badArg(FaultMemArg, r[R2])
	}
	r[R0] = errno(m.takeValue(val, h == HelperMapPop))
	return NoFault
}

// taskUnderCgroup is current_task_under_cgroup (map, index). Such a map never
// contains a cgroup here.
func (v *VM) taskUnderCgroup(r *[16]uint64) FaultCode {
	m, _ := v.mapArg(r[R1], 1<<CgroupArray)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	r[R0] = errno(errAgain)
	if uint32(r[R2]) >= m.spec.MaxEntries {
		r[R0] = errno(errTooBig)
	}
	return NoFault
}
