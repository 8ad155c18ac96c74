package machine

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// release frees what New allocated. No vCPU thread runs.
func (m *Machine) release() error {
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	keep(m.demolish())
	if m.sys != nil {
		keep(m.sys.Close())
	}
	keep(m.mem.free())
	return first
}

// space returns the guest's memory through the page tables at root; 0 means the
// tables that the kernel was booted with.
func (g *guestMemory) space(root guest.GPA) guest.AddressSpace {
	b := g.booted.Load()
	if root == 0 {
		return b.space.WithHome(b.home)
	}
	as := guest.NewAddressSpace(g.mem.Memory, root)
	if b.deep {
		as = as.Levels5()
	}
	return as
}

// ReadMemory implements probe.Target. It takes no lock, and so must not be
// called after Close, nor while Close runs. That suits the engine, which Close
// closes first. Other callers use Peek.
func (m target) ReadMemory(root guest.GPA, addr guest.GVA, p []byte) error {
	if root == 0 && linux.IsFile(addr) {
		return m.readFile(addr, p)
	}
	return m.space(root).Read(addr, p)
}

// ReadText reads the guest's text with all of the probes' changes, and without
// the stubs that breakpoints use on some hosts, which stay as long as the guest.
// The rules of Target.ReadMemory apply.
func (m *Machine) ReadText(at guest.GVA, p []byte) error {
	if linux.IsFile(at) {
		return m.readFile(at, p)
	}
	if err := m.space(0).Read(at, p); err != nil {
		return err
	}
	if g, ok := m.payload().(*linuxGuest); ok {
		g.hideStubs(at, p)
	}
	return nil
}

// WriteMemory implements probe.Target, under the rules of ReadMemory.
func (m target) WriteMemory(root guest.GPA, addr guest.GVA, p []byte) error {
	return m.space(root).Write(addr, p)
}

// ReadUser implements probe.PageTables, under the rules of ReadMemory.
func (m target) ReadUser(root guest.GPA, addr guest.GVA, p []byte) error {
	return m.space(root).AsUser().Read(addr, p)
}

// WriteUser implements probe.PageTables, under the rules of ReadMemory.
func (m target) WriteUser(root guest.GPA, addr guest.GVA, p []byte) error {
	return m.space(root).AsUser().Write(addr, p)
}

// Keyed implements probe.Keys, under the rules of ReadMemory.
func (m target) Keyed(root guest.GPA, addr guest.GVA) bool { return m.space(root).Key(addr) != 0 }

// Translate implements probe.PageTables, under the rules of ReadMemory.
func (m target) Translate(root guest.GPA, addr guest.GVA) (guest.GPA, bool) {
	as := m.space(root)
	if pa, ok := as.TextAt(addr); ok {
		return pa, true
	}
	t, err := as.Translate(addr)
	return t.PA, err == nil
}

// Peek reads guest memory through the booted kernel's page tables. Any goroutine
// may call it at any time; it returns ErrClosed after Close. A running guest may
// change the memory during the read.
func (m *Machine) Peek(addr guest.GVA, p []byte) error {
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return ErrClosed
	}
	return m.space(0).Read(addr, p)
}

// text returns the guest's kernel and user text, for patching.
func (g *guestMemory) text() guest.Text { return guest.NewText(g.space(0)) }

// readWord reads one 64-bit word.
func readWord(as guest.AddressSpace, a guest.GVA) (uint64, error) {
	var b [8]byte
	if err := as.Read(a, b[:]); err != nil {
		return 0, err
	}
	return littleEndian(b[:]), nil
}
