package bpf

import (
	"encoding/binary"

	"github.com/cilium/ebpf/btf"
)

// A task storage has one value for each task. Linux keeps it in the task itself, and
// frees both together. Here it is a hash: a key is the address of the task's structure,
// and the identity of the task's life, so that a new task at the same address has no
// value. They are followed by the task's numbers when the value was made, for people.
//
// A value stays when its task ends. When the map is full, values of tasks that no longer
// exist make room; values of other tasks never do.
const (
	storageKeySize = 24
	storageKeyPart = 16 // the address and the life

	storageSample = 2048 // slots that one call looks at to make room
	hdrLook       = 64   // slots looked at so far
	hdrNoRoom     = 192  // calls that found no room
)

// storageKey is the type of keys.
var storageKey = newType(&btf.Struct{Name: "task", Size: storageKeySize, Members: []btf.Member{
	{Name: "pid", Type: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, Offset: 8 * 16},
	{Name: "tgid", Type: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, Offset: 8 * 20},
	{Name: "task", Type: &btf.Pointer{Target: (*btf.Void)(nil)}},
}})

// storageCreate is the flag of task_storage_get that makes a value
// (BPF_LOCAL_STORAGE_GET_F_CREATE).
const storageCreate = 1

// LostValues returns the number of calls of task_storage_get that found no room for a
// value, 0 for other maps.
func LostValues(m *Map) uint64 {
	if m.spec.Kind != TaskStorage || m.area.Bytes == nil {
		return 0
	}
	return load64(m.area.Bytes, hdrNoRoom)
}

// storageOf returns the map, the task's key and its life.
func storageOf(v *VM, r *[16]uint64) (m *Map, number int, key [storageKeySize]byte, life TaskLife, ok bool) {
	if m, number = v.mapArg(r[R1], 1<<TaskStorage); m == nil || r[R2] == 0 {
		return m, number, key, life, false
	}
	life, ok = v.env.TaskLife(r[R2])
	le := binary.LittleEndian
	le.PutUint64(key[:], r[R2])
	le.PutUint64(key[8:], life.ID)
	le.PutUint32(key[16:], life.PID)
	le.PutUint32(key[20:], life.TGID)
	return m, number, key, life, ok
}

// taskStorageGet is task_storage_get (map, task, value or 0, flags).
func (v *VM) taskStorageGet(r *[16]uint64) FaultCode {
	m, i, key, life, ok := storageOf(v, r)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	if !v.charge(m.opCost(HelperMapUpdate)) {
		return v.badArg(FaultBudget, 0)
	}
	val := m.zero[:m.spec.ValueSize]
	if r[R3] != 0 {
		if val = v.mem(r[R3], uint64(m.spec.ValueSize)); val == nil {
			return v.badArg(FaultMemArg, r[R3])
		}
	}
	r[R0] = 0
	if !ok || r[R4]&^storageCreate != 0 {
		return NoFault
	}
	slot, found := m.find(key[:])
	if !found && r[R4] == storageCreate && !life.Gone {
		errno := m.update(key[:], val, UpdateNoExist, v.cpu)
		if errno == errTooBig {
			if code := makeRoom(v, m, key[:storageKeyPart]); code != NoFault {
				return code
			}
			errno = m.update(key[:], val, UpdateNoExist, v.cpu)
		}
		if slot, found = m.find(key[:]); !found && errno != errExist {
			add64(m.area.Bytes, hdrNoRoom, 1)
		}
	}
	if found {
		r[R0] = segPointer(segMaps+i, slot, 0)
	}
	return NoFault
}

// taskStorageDelete is task_storage_delete (map, task).
func (v *VM) taskStorageDelete(r *[16]uint64) FaultCode {
	m, _, key, _, ok := storageOf(v, r)
	if m == nil {
		return v.badArg(FaultMapArg, r[R1])
	}
	if !v.charge(m.opCost(HelperTaskStorageDel)) {
		return v.badArg(FaultBudget, 0)
	}
	switch {
	case r[R2] == 0:
		r[R0] = errno(errInval)
	case !ok:
		r[R0] = errno(errFault)
	default:
		r[R0] = errno(m.remove(key[:]))
	}
	return NoFault
}

// makeRoom drops values of tasks that no longer exist: where a key can be, and in some
// slots of the map after those that the last call has looked at.
func makeRoom(v *VM, m *Map, part []byte) FaultCode {
	if code := dropGone(v, m, int(hashOf(part)), hashWindow); code != NoFault {
		return code
	}
	n := min(m.entries, storageSample)
	return dropGone(v, m, int(add64(m.area.Bytes, hdrLook, uint64(n))), n)
}

// dropGone drops the values of tasks that no longer exist from n slots.
func dropGone(v *VM, m *Map, from, n int) FaultCode {
	mem := m.area.Bytes
	for i := range n {
		slot := (from + i) & int(m.hash.mask)
		word := load64(mem, slotWord(slot))
		if word&slotState != slotLive {
			continue
		}
		if !v.charge(costLook) {
			return v.badArg(FaultBudget, 0)
		}
		at := m.hash.keys + slot*m.hash.stride
		task, id := load64(mem, at), load64(mem, at+8)
		life, ok := v.env.TaskLife(task)
		if ok && (life.ID != id || life.Gone) && cas64(mem, slotWord(slot), word, word^slotLive^slotGone) {
			add64(mem, hdrCount, ^uint64(0))
		}
	}
	return NoFault
}
