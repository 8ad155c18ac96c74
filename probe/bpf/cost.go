package bpf

// The cost of helper calls, in units of the budget, in addition to the cost of loops.
// One unit is the time of an instruction, a few nanoseconds on the host and less in
// the guest, so that DefaultBudget is less than 10 ms in the guest and 50 ms on the
// host.
const (
	costRead  = 16           // a read of guest memory: on the host a page table walk
	costFault = 1 << 14      // a failed one: in the guest an exit, of up to 65 us on the hosts that were measured
	costHash  = 64           // a search in a hash
	costLine  = 1 << 12      // a line in the log
	costTask  = 1 << 8       // the current task: a few reads
	costLook  = 4 * costRead // whether another task exists
	costShow  = 1 << 17      // the most of a value that is printed by its type
	costStack = 1 << 13      // a stack walk, of up to 127 frames after 255
)

// Bytes per unit of cost.
const (
	readShift = 2 // bytes read from the guest, one by one if they are text
	copyShift = 3 // bytes copied
)

// readCost is the cost of the bytes of a read, if the read is done.
func readCost(n uint64) int64 {
	if n > maxRead {
		return 0 // the size ends the run
	}
	return int64(n >> readShift)
}

// opCost is the cost of an operation of a map.
func (m *Map) opCost(h Helper) (n int64) {
	switch {
	case m.hashed():
		n = costHash + int64(m.spec.KeySize)
	case m.trie != nil: // a search for each length
		n = costHash + 8*int64(m.spec.KeySize)
	}
	if h == HelperMapUpdate {
		n += int64(m.spec.ValueSize >> copyShift)
	}
	return n
}

// CallCost returns the most that a helper call can take from the budget, with n bytes
// of memory, on a map or nil.
func CallCost(h Helper, n int, m *Map) int64 {
	c := int64(helperByID[h].cost)
	switch {
	case isRead(h):
		c += readCost(uint64(n)) + costFault
	case h == HelperRingOutput || h == HelperPerfEventOutput || h == HelperStrncmp || h == HelperStrtol || h == HelperStrtoul || h == HelperDynptrRead || h == HelperDynptrWrite:
		c += int64(n >> copyShift)
	case m != nil && (h == HelperMapPush || h == HelperMapPop || h == HelperMapPeek):
		c += int64(m.spec.ValueSize >> copyShift)
	case h == HelperSnprintfBTF:
		c += costShow + costFault
	case m != nil && h == HelperTaskStorageGet:
		c += m.opCost(HelperMapUpdate) + costLook*int64(min(m.entries, storageSample)+hashWindow)
	case m != nil && h == HelperTaskStorageDel:
		c += m.opCost(h)
	case m != nil && (h == HelperMapLookup || h == HelperMapUpdate || h == HelperMapDelete || h == HelperLookupPerCPU):
		c += m.opCost(h)
	}
	return c
}

func isRead(h Helper) bool { return helperByID[h].cost == costRead }

// charge takes n from the budget of the run, and reports whether enough was left.
func (v *VM) charge(n int64) bool {
	v.left -= n
	return v.left >= 0
}

// Pages of guest memory: after a failed read within one page, that page is not read
// again in the same run.
const (
	pageShift = 12
	noPage    = ^uint64(0)
)
