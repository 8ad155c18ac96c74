package probe

import (
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// TestException: what the processor would have raised for a failed access
// (SDM Vol. 3, 4.7 and 6.15), and where only the processor knows.
func TestException(t *testing.T) {
	const sp = 0x8000_0000_1000
	pf := func(va guest.GVA, r guest.FaultReason) error {
		return fmt.Errorf("wrapped: %w", &guest.PageFaultError{VA: va, Level: 1, Reason: r})
	}
	for _, c := range []struct {
		name string
		m    operand
		want Trap
		ok   bool
	}{
		{"no access failed", operand{}, Trap{}, false},
		{"not a page fault", operand{err: errors.New("device")}, Trap{}, false},
		{"no memory behind the page", operand{err: pf(1, guest.FaultNoMemory)}, Trap{}, false},
		{"read of a missing page", operand{err: pf(0x1000, guest.FaultNotPresent)}, Trap{Vector: 14, CR2: 0x1000}, true},
		{"write to a missing page", operand{err: pf(0x1000, guest.FaultNotPresent), write: true}, Trap{Vector: 14, Code: 2, CR2: 0x1000}, true},
		{"user read of a missing page", operand{err: pf(0x1000, guest.FaultNotPresent), cpl: 3}, Trap{Vector: 14, Code: 4, CR2: 0x1000}, true},
		{"write to a read-only page", operand{err: pf(0x1ff8, guest.FaultNotWritable), write: true}, Trap{Vector: 14, Code: 3, CR2: 0x1ff8}, true},
		{"user read of a supervisor page", operand{err: pf(0x2000, guest.FaultNotUser), cpl: 3}, Trap{Vector: 14, Code: 5, CR2: 0x2000}, true},
		{"user write to a supervisor page", operand{err: pf(0x2000, guest.FaultNotUser), cpl: 3, write: true}, Trap{Vector: 14, Code: 7, CR2: 0x2000}, true},
		{"reserved bit", operand{err: pf(0x2000, guest.FaultReserved)}, Trap{Vector: 14, Code: 9, CR2: 0x2000}, true},
		{"not canonical, by pointer", operand{err: pf(1<<63, guest.FaultNonCanonical), addr: 1 << 63}, Trap{Vector: 13}, true},
		{"not canonical, push", operand{err: pf(sp-8, guest.FaultNonCanonical), addr: sp - 8, write: true}, Trap{Vector: 12}, true},
		{"not canonical, pop", operand{err: pf(sp, guest.FaultNonCanonical), addr: sp}, Trap{Vector: 12}, true},
	} {
		got, ok := c.m.exception(sp)
		if c.ok {
			c.want.Kind = TrapFault
		}
		if got != c.want || ok != c.ok {
			t.Errorf("%s: got %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}
