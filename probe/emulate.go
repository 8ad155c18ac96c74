package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// operand is guest memory as an emulated instruction sees it: with the rights
// of the interrupted code. It remembers the access that failed. There is
// one per vCPU.
type operand struct {
	target Target
	user   PageTables
	root   guest.GPA
	cpl    uint8
	byte   [1]byte // scratch, so that reading a byte allocates nothing

	err   error // of the last access
	addr  uint64
	write bool
}

// Read implements x86.Memory.
func (m *operand) Read(addr uint64, p []byte) error {
	var err error
	if m.cpl == 0 {
		err = m.target.ReadMemory(m.root, guest.GVA(addr), p)
	} else {
		err = m.user.ReadUser(m.root, guest.GVA(addr), p)
	}
	m.err, m.addr, m.write = err, addr, false
	return err
}

// Write implements x86.Memory.
func (m *operand) Write(addr uint64, p []byte) error {
	var err error
	if m.cpl == 0 {
		err = m.target.WriteMemory(m.root, guest.GVA(addr), p)
	} else {
		err = m.user.WriteUser(m.root, guest.GVA(addr), p)
	}
	m.err, m.addr, m.write = err, addr, true
	return err
}

// emulate computes the effect of st's instruction at RIP, and ends the hit. It
// returns false, with nothing changed, if the instruction must be run natively
// instead.
func (c *cpu) emulate(s State, st *site, chain chain, missed bool) (Verdict, bool) {
	flags, sp := s.Regs.RFLAGS, s.Regs.RSP
	c.mem.root, c.mem.cpl, c.mem.err = s.Root, s.CPL, nil
	if err := st.plan().Inst.Emulate(s.Regs.RIP, s.Regs, &c.mem); err != nil {
		t, ok := c.mem.exception(sp)
		if !ok {
			return Verdict{}, false
		}
		return c.raise(s, st, chain, missed, t), true
	}
	count(&c.counts.emulated)
	v := c.runPostHandlers(s, st, chain, missed, c.seq, flags)
	v.Shadow = st.plan().Shadow && flags&x86.FlagIF == 0 && s.Regs.RFLAGS&x86.FlagIF != 0
	return v, true
}

// raise delivers an exception of st's instruction that the engine has found by
// emulating it. The fault handlers are called first; if none handles it, the guest's
// own handler gets the frame that the processor would have pushed.
func (c *cpu) raise(s State, st *site, chain chain, missed bool, t Trap) Verdict {
	count(&c.counts.faults)
	if c.askFault(s, st, chain, missed, c.seq, t) {
		return Verdict{Action: Resume}
	}
	return Verdict{Action: Inject, Fault: t}
}

// Bits of the page-fault error code (SDM Vol. 3, 4.7).
const (
	pfPresent  = 1 << 0
	pfWrite    = 1 << 1
	pfUser     = 1 << 2
	pfReserved = 1 << 3
)

// exception returns the exception that the processor would have raised for the access
// that failed. It returns false if the error does not tell which, or if no access
// failed.
func (m *operand) exception(sp uint64) (Trap, bool) {
	var pf *guest.PageFaultError
	if m.err == nil || !errors.As(m.err, &pf) {
		return Trap{}, false
	}
	t := Trap{Kind: TrapFault, Vector: x86.VectorPF, CR2: pf.VA}
	switch pf.Reason {
	case guest.FaultNonCanonical:
		// #SS for an address formed with RSP or RBP, else #GP (SDM Vol. 1, 3.3.7.1).
		// Emulated instructions that reach such an address are stack operations,
		// and branches through memory.
		t = Trap{Kind: TrapFault, Vector: x86.VectorGP}
		if near(m.addr, sp) {
			t.Vector = x86.VectorSS
		}
		return t, true
	case guest.FaultNotPresent:
	case guest.FaultReserved:
		t.Code = pfPresent | pfReserved
	case guest.FaultNotWritable, guest.FaultNotUser:
		t.Code = pfPresent
	default:
		return Trap{}, false // no memory at the page: not ours to judge
	}
	if m.write {
		t.Code |= pfWrite
	}
	if m.cpl == 3 {
		t.Code |= pfUser
	}
	return t, true
}

// near reports whether addr is within a push or a pop of sp.
func near(addr, sp uint64) bool { return addr-sp+8 <= 16 }
