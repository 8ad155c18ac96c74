package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// numDebugRegisters is the number of breakpoint address registers.
const numDebugRegisters = 4

// Access says which accesses a Watch reports. The zero value is invalid.
type Access uint8

// The accesses.
const (
	AccessWrite     Access = 1 << iota
	AccessRead             // only with Watch.Emulate: the debug registers have no watch for reads alone
	AccessExec             // of the instruction that begins at the address
	AccessReadWrite = AccessRead | AccessWrite
)

// String returns "w", "r", "rw" or "x", as definitions have it.
func (a Access) String() string {
	switch a {
	case AccessWrite:
		return "w"
	case AccessRead:
		return "r"
	case AccessReadWrite:
		return "rw"
	case AccessExec:
		return "x"
	}
	return fmt.Sprintf("access %d", uint8(a))
}

// DebugRegisters are breakpoint addresses with their control register (SDM
// Vol. 3, 18.2.1 and 18.2.4).
type DebugRegisters struct {
	Addr [numDebugRegisters]guest.GVA // DR0 to DR3
	DR7  uint64
}

// Fields of DR7 (SDM Vol. 3, figure 18-1).
const (
	dr7Enable = 0xff    // L0, G0, L1 ... G3
	dr7Global = 0b10    // G0
	dr7Exact  = 1 << 9  // GE: harmless where it is ignored
	dr7Fixed  = 1 << 10 // reads as 1
	dr7RW     = 16      // R/W0, 2 bits; LEN0 above it
	dr6Points = 0xf     // B0 to B3 of DR6 (SDM Vol. 3, 18.2.3)
)

// Bits of R/Wn and LENn.
const (
	rwExec      = 0b00
	rwWrite     = 0b01
	rwReadWrite = 0b11

	len1 = 0b00
	len2 = 0b01
	len8 = 0b10
	len4 = 0b11
)

// Set makes register i watch n bytes at addr. n is 1, 2, 4 or 8, and 1 for
// AccessExec; addr is a multiple of n (SDM Vol. 3, 18.2.5). False means that the
// registers cannot do that; they are as they were.
func (d *DebugRegisters) Set(i int, addr guest.GVA, n int, a Access) bool {
	if i < 0 || i >= numDebugRegisters || checkWatch(addr, n, a) != nil || a == AccessRead {
		return false
	}
	rw := map[Access]uint64{AccessExec: rwExec, AccessWrite: rwWrite, AccessReadWrite: rwReadWrite}[a]
	size := map[int]uint64{1: len1, 2: len2, 4: len4, 8: len8}[n]
	field := dr7RW + 4*uint(i)
	d.Addr[i] = addr
	d.DR7 = d.DR7&^(0xf<<field|0b11<<(2*uint(i))) | dr7Fixed | dr7Exact
	d.DR7 |= (rw|size<<2)<<field | dr7Global<<(2*uint(i))
	return true
}

// Enabled reports whether any breakpoint is on.
func (d *DebugRegisters) Enabled() bool { return d.DR7&dr7Enable != 0 }

// checkWatch makes the checks of SDM Vol. 3, 18.2.5.
func checkWatch(addr guest.GVA, n int, a Access) *Error {
	switch a {
	case AccessWrite, AccessRead, AccessReadWrite, AccessExec:
	default:
		return newError(CodeWatchAccess, fmt.Sprintf("%v is nothing to watch for", a), "r, w, rw or x")
	}
	switch {
	case n != 1 && n != 2 && n != 4 && n != 8:
		return newError(CodeWatchLength, fmt.Sprintf("%d bytes cannot be watched", n), "1, 2, 4 or 8")
	case a == AccessExec && n != 1:
		return newError(CodeWatchLength, fmt.Sprintf("%d bytes cannot be watched for execution", n), "the length is 1, whatever the instruction's")
	case uint64(addr)%uint64(n) != 0:
		return newError(CodeWatchAlignment, fmt.Sprintf("%v is not a multiple of %d", addr, n), "watched addresses are aligned to the length")
	case !addr.Canonical() && (int64(addr) >= 0 || !addr.CanonicalWide()): // a kernel may have 5 levels
		return newError(CodeUnreadable, fmt.Sprintf("%v is not a canonical address", addr), "")
	}
	return nil
}
