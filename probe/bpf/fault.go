package bpf

import "fmt"

// FaultCode says why a run ended early.
type FaultCode uint32

// The faults.
const (
	NoFault        FaultCode = iota
	FaultLoad                // load outside everything that may be read
	FaultStore               // store outside everything that may be written
	FaultAlign               // atomic operation on an address that is not aligned
	FaultBudget              // the run took too long
	FaultDepth               // local calls nest too deep
	FaultMapArg              // a helper was given something other than a map of the right kind
	FaultMemArg              // a helper was given memory that the program may not access
	FaultRecordArg           // submit or discard of something that is not a reserved record
	FaultRecords             // more records reserved at a time than MaxReservations
	FaultSize                // a helper was given an impossible size
	FaultFuncArg             // a helper was given something other than a function
	FaultLock                // a lock that is held too long, or not by this run, or a second one
	FaultMissing             // an instruction that needs something the guest's kernel lacks

	numFaults

	tailCalled FaultCode = 1 << 16 // no fault: the run continues as another program
)

var faultText = [numFaults]string{
	NoFault:        "no fault",
	FaultLoad:      "load out of bounds",
	FaultStore:     "store out of bounds",
	FaultAlign:     "atomic operation not aligned",
	FaultBudget:    "instruction budget used up",
	FaultDepth:     "calls nest too deep",
	FaultMapArg:    "argument is not a map of the right kind",
	FaultMemArg:    "argument points to memory out of bounds",
	FaultRecordArg: "argument is not a reserved record",
	FaultRecords:   "too many reserved records",
	FaultSize:      "impossible size",
	FaultFuncArg:   "argument is not a function",
	FaultLock:      "the lock cannot be taken or released",
	FaultMissing:   "the guest's kernel does not have what this is about",
}

// String returns a short description.
func (c FaultCode) String() string {
	if c < numFaults {
		return faultText[c]
	}
	return fmt.Sprintf("fault %d", uint32(c))
}

// Fault is a violation that ended a run. The program has damaged nothing, but its
// earlier changes to maps stay; records that it had reserved are discarded.
type Fault struct {
	Code FaultCode
	PC   int    // slot of the instruction
	Addr uint64 // the offending address, as the program sees it; 0 for FaultBudget and FaultDepth
}

// Error names the instruction, the fault and the address.
func (f *Fault) Error() string {
	if f.Addr == 0 && (f.Code == FaultBudget || f.Code == FaultDepth || f.Code == FaultMissing) {
		return fmt.Sprintf("run program: instruction %d: %v", f.PC, f.Code)
	}
	return fmt.Sprintf("run program: instruction %d: %v: %#x", f.PC, f.Code, f.Addr)
}

// RunStats counts the runs of a program on one vCPU.
type RunStats struct {
	Runs   uint64            // begun
	Faults [numFaults]uint64 // ended early, by code
	Last   Fault             // the latest fault
}

// Failures returns the number of runs that ended early.
func (s *RunStats) Failures() uint64 {
	var n uint64
	for _, f := range s.Faults {
		n += f
	}
	return n
}
