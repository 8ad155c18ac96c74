package bpf

// What calls of helpers take from the budget, beside what loops take. One unit is the
// time of an instruction, a few nanoseconds on the host and less in the guest, so
// that DefaultBudget is less than 10 ms in the guest and 50 ms on the host.
const (
	costRead  = 16      // a read of guest memory: on the host a walk through page tables
	costFault = 1 << 14 // one that fails: in the guest an exit, of up to 65 us on the hosts that were measured
	costHash  = 64      // a search in a hash
	costLine  = 1 << 12 // a line in the log
	costTask  = 1 << 8  // what is found out of the current task: a few reads
	costStack = 1 << 13 // a walk through a stack, of up to 127 frames behind 255
)

// The bytes that a unit stands for.
const (
	readShift = 2 // that are read from the guest, byte by byte where it is text
	copyShift = 3 // that are copied
)

// readCost is what the bytes of a read cost, if that is to be done.
func readCost(n uint64) int64 {
	if n > maxRead {
		return 0 // which ends the run
	}
	return int64(n >> readShift)
}

// opCost is what an operation of a map costs.
func (m *Map) opCost(h Helper) (n int64) {
	if m.hashed() {
		n = costHash + int64(m.spec.KeySize)
	}
	if h == HelperMapUpdate {
		n += int64(m.spec.ValueSize >> copyShift)
	}
	return n
}

// CallCost returns the most that a call of a helper can take from the budget, with n
// bytes of memory, on a map or nil.
func CallCost(h Helper, n int, m *Map) int64 {
	c := int64(helperByID[h].cost)
	switch {
	case isRead(h):
		c += readCost(uint64(n)) + costFault
	case h == HelperRingOutput || h == HelperPerfEventOutput:
		c += int64(n >> copyShift)
	case m != nil && (h == HelperMapLookup || h == HelperMapUpdate || h == HelperMapDelete || h == HelperLookupPerCPU):
		c += m.opCost(h)
	}
	return c
}

func isRead(h Helper) bool { return helperByID[h].cost == costRead }

// charge takes from the budget of the run, and reports whether there was as much left.
func (v *VM) charge(n int64) bool {
	v.left -= n
	return v.left >= 0
}

// Pages of guest memory: what could not be read of one is not tried again in the same
// run, where it was wholly in it.
const (
	pageShift = 12
	noPage    = ^uint64(0)
)
