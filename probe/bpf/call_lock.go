package bpf

import "github.com/cilium/ebpf/btf"

// A lock (struct bpf_spin_lock) is a word in a value of a map: 0, or 1 while a program
// on some vCPU holds it. A program holds at most one; a run that ends releases it.

// spinLock is spin_lock (lock). A lock that is not released within a bounded number of
// tries ends the run.
func (v *VM) spinLock(r *[16]uint64) FaultCode {
	p := r[R1]
	b := v.lockWord(p)
	switch {
	case b == nil:
		return v.badArg(FaultMemArg, p)
	case v.lock != nil:
		return v.badArg(FaultLock, p)
	}
	for try := range hashTries {
		yieldProcessor(try)
		if cas32(b, 0, 1) {
			v.lock, v.lockAddr = b, p
			r[R0] = 0
			return NoFault
		}
	}
	return v.badArg(FaultLock, p)
}

// spinUnlock is spin_unlock (lock).
func (v *VM) spinUnlock(r *[16]uint64) FaultCode {
	if v.lock == nil || r[R1] != v.lockAddr {
		return v.badArg(FaultLock, r[R1])
	}
	v.releaseLock()
	r[R0] = 0
	return NoFault
}

func (v *VM) releaseLock() {
	store32(v.lock, 0)
	v.lock = nil
}

// lockWord returns the lock at an address, nil if it is not one of a value of a map.
func (v *VM) lockWord(p uint64) []byte {
	m := p>>segShift - segMaps
	if m >= uint64(len(v.prog.maps)) || p&3 != 0 {
		return nil
	}
	if spec := &v.prog.maps[m].spec; spec.LockAt == 0 || uint64(spec.LockAt-1) != p&offMask {
		return nil
	}
	return v.memW(p, 4)
}

// copyAround copies a value with a lock, which stays as it is.
func (s *MapSpec) copyAround(dst, src []byte) {
	at := int(s.LockAt) - 1
	copy(dst[:at], src)
	copy(dst[at+4:], src[at+4:len(dst)])
}

// lockOf returns 1 more than the offset of the lock in a type of values, 0 if it has
// none.
func lockOf(t btf.Type) uint32 {
	s, ok := btf.UnderlyingType(t).(*btf.Struct)
	if !ok {
		return 0
	}
	for _, m := range s.Members {
		if of, ok := btf.UnderlyingType(m.Type).(*btf.Struct); ok && of.Name == "bpf_spin_lock" && of.Size == 4 && m.Offset%32 == 0 && uint32(m.Offset/8)+4 <= s.Size {
			return uint32(m.Offset/8) + 1
		}
	}
	return 0
}
