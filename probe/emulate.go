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
	keys   Keys // nil: no page has a protection key
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
	switch {
	case m.cpl == 0:
		err = m.target.ReadMemory(m.root, guest.GVA(addr), p)
	case m.keyed(addr, len(p)):
		err = errKeyed
	default:
		err = m.user.ReadUser(m.root, guest.GVA(addr), p)
	}
	m.err, m.addr, m.write = err, addr, false
	return err
}

// Write implements x86.Memory.
func (m *operand) Write(addr uint64, p []byte) error {
	var err error
	switch {
	case m.cpl == 0:
		err = m.target.WriteMemory(m.root, guest.GVA(addr), p)
	case m.keyed(addr, len(p)):
		err = errKeyed
	default:
		err = m.user.WriteUser(m.root, guest.GVA(addr), p)
	}
	m.err, m.addr, m.write = err, addr, true
	return err
}

// errKeyed makes the engine run a user instruction natively if its operand has a protection key.
var errKeyed = errors.New("the page has a protection key")

// keyed reports whether one of n bytes at addr is in a page with a protection key.
func (m *operand) keyed(addr uint64, n int) bool {
	if m.keys == nil {
		return false
	}
	last := addr + uint64(n) - 1
	return m.keys.Keyed(m.root, guest.GVA(addr)) ||
		(addr^last)&^(guest.PageSize-1) != 0 && m.keys.Keyed(m.root, guest.GVA(last))
}

// emulate computes the effect of st's instruction at RIP, and ends the hit. It
// returns false, with nothing changed, if the instruction must be run natively
// instead.
func (c *cpu) emulate(s State, st *site, chain chain, missed bool) (Verdict, bool) {
	return emulateBy(c, (*x86.Inst).Emulate, s, st, chain, missed)
}

// emulateData is emulate for an instruction of user code that loads or stores data, in place of a step for which
// the whole guest would have to stop.
func emulateData(c *cpu, s State, st *site, chain chain, missed bool) (Verdict, bool) {
	p := st.plan()
	if s.CPL != 3 || p.Data == x86.NoData || dataTraps(c, p.Data == x86.StoresData) {
		return Verdict{}, false
	}
	// The base register decides whether an address that is not canonical is #SS or #GP.
	if at, _ := p.Inst.Addr(s.Regs.RIP, s.Regs); !guest.GVA(at+x86.MaxData-1).Canonical() || !guest.GVA(at).Canonical() {
		return Verdict{}, false
	}
	return emulateBy(c, (*x86.Inst).EmulateData, s, st, chain, missed)
}

// emulateBy is emulate by one of the methods of the instruction.
func emulateBy(c *cpu, by func(*x86.Inst, uint64, *Regs, x86.Memory) error, s State, st *site, chain chain, missed bool) (Verdict, bool) {
	flags, sp := s.Regs.RFLAGS, s.Regs.RSP
	c.mem.root, c.mem.cpl, c.mem.err = s.Root, s.CPL, nil
	if err := by(&st.plan().Inst, s.Regs.RIP, s.Regs, &c.mem); err != nil {
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

// dataTraps reports whether loads of data, or stores, may be watched, by a watch or by the guest's own debug registers: they do not trap if they
// are emulated.
func dataTraps(c *cpu, store bool) bool {
	table := c.watched.Load()
	for _, wp := range table.dr {
		if wp != nil && (wp.watch.Access&AccessRead != 0 || store && wp.watch.Access&AccessWrite != 0) {
			return true
		}
	}
	if len(table.pages) != 0 {
		return true
	}
	if c.watcher == nil {
		return false
	}
	debugs, err := c.watcher.GuestDebugs(c.id)
	return err != nil || debugs
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
