package probe

import "github.com/guestprobe/guestprobe/guest"

// Context is what a handler sees of one hit. It is valid only until the
// handler returns; there is one per vCPU, reused for every hit.
type Context struct {
	CPU    int       // vCPU number
	Probe  *Kprobe   // whose handler runs
	Addr   guest.GVA // the probed address
	Regs   *Regs     // saved registers; changes take effect
	Root   guest.GPA // page tables of the interrupted code
	CPL    uint8     // 0 or 3
	target Target
}

// Read reads guest memory as the interrupted code sees it.
func (c *Context) Read(addr guest.GVA, p []byte) error {
	return c.target.ReadMemory(c.Root, addr, p)
}

// Write writes guest memory as the interrupted code sees it.
func (c *Context) Write(addr guest.GVA, p []byte) error {
	return c.target.WriteMemory(c.Root, addr, p)
}
