package probe

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
)

// core is the part of the engine that hits need: any thread, including a vCPU's, may
// read it at any time without a lock. The holder of Engine.mu changes it; anything
// but an Index or an atomic changes only while the world is stopped.
type core struct {
	target   Target
	pages    PageTables
	oneSpace bool    // the target has no PageTables of its own
	files    Files   // nil: none
	keys     Keys    // nil: no page has a protection key
	watcher  Watcher // nil: nothing can be watched
	spaces   Spaces  // nil: each address space has one top-level table
	runner   Runner  // nil: handlers cannot call the guest, and only Stop can identify the caller
	perCPU   PerCPU  // nil: the target cannot tell
	log      *slog.Logger
	can      [2]Capabilities // by CPL&1

	sites   code.Index[site]  // by address
	phys    code.Index[site]  // by physical address
	shown   code.Index[shown] // by address: bytes of the engine's that the guest may have read
	code    *code.Memory[resident]
	cpus    []cpu
	watched atomic.Pointer[watchTable]
	tasks   atomic.Pointer[guest.Profile] // of the image; nil: it has none
	walks   atomic.Pointer[walks]         // nil: no stage needs any

	alarm   atomic.Bool // some text was found changed
	onAlarm func()      // schedules a look at the text, soon and on another goroutine

	moves [2]atomic.Bool // by guest.Level: the guest has returned to a trampoline from elsewhere than it was put

	mirrors   atomic.Pointer[[]mirror] // nil until there is a jprobe with a mirror
	stackMask atomic.Uint64            // of the stacks that mirrors run on (guest.Profile); 0: not known
}

// addSite makes st known to hits.
func (k *core) addSite(st *site) {
	k.sites.Set(st.addr, st)
	if pa := st.pa.Load(); pa != 0 {
		k.phys.Set(guest.GVA(pa), st)
	}
}

// place records where the int3 of st was put, which may be other memory than before.
// The world is stopped.
func (k *core) place(st *site) {
	pa, _ := k.pages.Translate(0, st.addr)
	was := st.pa.Swap(uint64(pa))
	if was == uint64(pa) {
		return
	}
	if k.phys.Find(guest.GVA(was)) == st {
		k.phys.Delete(guest.GVA(was))
	}
	if pa != 0 {
		k.phys.Set(guest.GVA(pa), st)
	}
}

// dropSite makes st unknown to hits.
func (k *core) dropSite(st *site) {
	k.sites.Delete(st.addr)
	if pa := guest.GVA(st.pa.Load()); k.phys.Find(pa) == st {
		k.phys.Delete(pa)
	}
}

// InSlot reports whether addr lies in the engine's executable memory. It may be
// called from any thread.
func (k *core) InSlot(addr guest.GVA) bool {
	_, ok := k.code.Owns(addr)
	return ok
}

// Home returns the address in the guest's own text that corresponds to a RIP in the
// engine's code: for stack traces and for the saved RIP of a task that was preempted
// there. For a trampoline it is the address that its last activation returns to.
// Other addresses are returned as they are. It may be called from any thread.
func (k *core) Home(addr guest.GVA) guest.GVA {
	if r := k.code.ResidentAt(addr); r != nil {
		return r.home(addr)
	}
	return addr
}

// OriginalByte returns the byte that belongs at addr instead of the engine's int3,
// and whether there is a site at all. It may be called from any thread.
func (k *core) OriginalByte(addr guest.GVA) (byte, bool) {
	st := k.sites.Find(addr)
	if st == nil {
		return 0, false
	}
	return st.bytes()[0], true
}

// Unpatch puts into p, which was read from guest memory at addr, the bytes that
// belong there instead of the engine's int3s and jumps; what the guest has put over
// those stays. It may be called from any
// thread.
func (k *core) Unpatch(addr guest.GVA, p []byte) {
	for a, st := range k.sites.Range(addr-(x86.JmpLen-1), addr+guest.GVA(len(p))) {
		st.unpatch(a, addr, p)
	}
}

// SiteAt returns the address and the first byte of the probed instruction whose
// int3 the page tables at root map at addr, and whether there is one. It may be
// called from any thread.
func (k *core) SiteAt(root guest.GPA, addr guest.GVA) (home guest.GVA, orig byte, ok bool) {
	s := State{Root: root}
	st := k.sites.Find(addr)
	if st == nil || !k.sameCode(s, st, addr) {
		st = k.siteOfAlias(s, addr)
	}
	if st == nil {
		return 0, 0, false
	}
	return st.addr, st.bytes()[0], true
}

// sameCode reports whether the int3 at rip, the address of st, is the one of st:
// another address space can have other code there. The kernel's text is the same in
// all of them.
func (k *core) sameCode(s State, st *site, rip guest.GVA) bool {
	was := guest.GPA(st.pa.Load())
	if !st.user || was == 0 {
		return true
	}
	pa, ok := k.pages.Translate(s.Root, rip)
	return !ok || pa == was
}

// siteOfAlias returns the site whose int3 is at rip because its page is mapped there,
// too, or the byte of its file, or nil.
func (k *core) siteOfAlias(s State, rip guest.GVA) *site {
	if k.InSlot(rip) {
		return nil
	}
	if k.files != nil {
		if at, ok := k.files.FilePlace(s.Root, rip); ok {
			return k.sites.Find(at)
		}
	}
	pa, ok := k.pages.Translate(s.Root, rip)
	if !ok {
		return nil
	}
	return k.phys.Find(guest.GVA(pa))
}

// touched reports whether a write of n bytes at addr would change the text of a
// probe, including the current or possible extent of its jump.
func (k *core) touched(root guest.GPA, addr guest.GVA, n int) bool {
	if k.Probed(addr, n) {
		return true
	}
	for done := 0; done < n; {
		at := addr + guest.GVA(done)
		part := min(n-done, int(guest.PageSize-at%guest.PageSize))
		pa, ok := k.pages.Translate(root, at)
		if !ok {
			return false // nothing is written
		}
		first := guest.GVA(pa)
		for a := first - (maxRegion - 1); a != first+guest.GVA(part); a++ {
			if k.phys.Find(a) != nil {
				return true
			}
		}
		if k.files != nil {
			if home, ok := k.files.FilePlace(root, at); ok && k.Probed(home, part) {
				return true
			}
		}
		done += part
	}
	return false
}

// readProfile reads the profile of the guest's image. Hits use the former one until
// then.
func (k *core) readProfile() {
	var tasks *guest.Profile
	if p, ok := k.target.Symbols().(Image); ok {
		if prof, err := p.Profile(); err == nil {
			tasks = &prof
		} else if !errors.Is(err, guest.ErrSymbolNotFound) {
			k.log.Warn("the image's profile is not usable", "err", err)
		}
	}
	k.tasks.Store(tasks)
}

// readTask fills in t with the task that runs in the state s, and reports whether it is
// known.
func (c *cpu) readTask(p *guest.Profile, t *guest.Task, s State) bool {
	gs := guest.GVA(0)
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	if p.GS && c.perCPU != nil {
		gs = c.perCPU.KernelGS(c.id, s)
		c.mem.root, c.mem.cpl = 0, 0 // under page-table isolation the tables of CPL3 lack it
	}
	return p.ReadTask(t, s.Regs.RSP, gs, func(addr guest.GVA, b []byte) error { return c.mem.Read(uint64(addr), b) })
}

var le = binary.LittleEndian
