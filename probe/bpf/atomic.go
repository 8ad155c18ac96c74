package bpf

import "sync/atomic"

// runAtomic executes an atomic operation (RFC 9669, section 5.3) on memory that
// other vCPUs may use at the same time.
func (v *VM) runAtomic(o *op, r *[16]uint64) FaultCode {
	p := r[o.dst&15] + uint64(int64(o.off))
	b := v.memW(p, uint64(o.size))
	switch {
	case b == nil:
		return FaultStore
	case p&uint64(o.size-1) != 0 || !aligned(b, uintptr(o.size)):
		return FaultAlign
	}
	src := &r[o.src&15]
	if o.size == 8 {
		old := atomic64(word64(b, 0), o.imm, *src, r[R0])
		switch {
		case o.imm == atomicCmpXchg:
			r[R0] = old
		case o.imm&atomicFetch != 0:
			*src = old
		}
		return NoFault
	}
	old := uint64(atomic32(word32(b, 0), o.imm, uint32(*src), uint32(r[R0])))
	switch {
	case o.imm == atomicCmpXchg:
		r[R0] = old
	case o.imm&atomicFetch != 0:
		*src = old
	}
	return NoFault
}

func atomic64(w *uint64, what int64, src, expect uint64) (old uint64) {
	switch what &^ atomicFetch {
	case atomicAdd:
		return atomic.AddUint64(w, src) - src
	case atomicOr:
		return atomic.OrUint64(w, src)
	case atomicAnd:
		return atomic.AndUint64(w, src)
	case atomicXchg &^ atomicFetch:
		return atomic.SwapUint64(w, src)
	case atomicXor:
		for {
			old = atomic.LoadUint64(w)
			if atomic.CompareAndSwapUint64(w, old, old^src) {
				return old
			}
		}
	}
	for { // compare and exchange
		old = atomic.LoadUint64(w)
		if old != expect || atomic.CompareAndSwapUint64(w, old, src) {
			return old
		}
	}
}

func atomic32(w *uint32, what int64, src, expect uint32) (old uint32) {
	switch what &^ atomicFetch {
	case atomicAdd:
		return atomic.AddUint32(w, src) - src
	case atomicOr:
		return atomic.OrUint32(w, src)
	case atomicAnd:
		return atomic.AndUint32(w, src)
	case atomicXchg &^ atomicFetch:
		return atomic.SwapUint32(w, src)
	case atomicXor:
		for {
			old = atomic.LoadUint32(w)
			if atomic.CompareAndSwapUint32(w, old, old^src) {
				return old
			}
		}
	}
	for {
		old = atomic.LoadUint32(w)
		if old != expect || atomic.CompareAndSwapUint32(w, old, src) {
			return old
		}
	}
}
