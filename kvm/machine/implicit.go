package machine

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Pages that the processor accesses by itself
//
// An access to a protected page is emulated as part of the instruction that
// makes it. Descriptor tables, stacks of exceptions and page tables are accessed
// without such an instruction. KVM then neither does the access nor reports it,
// and the guest repeats one instruction forever, or gets a triple fault. So
// these pages are not protected.
//
// They are looked up when a watch is attached (target.ImplicitAccesses), and
// before a vCPU enters the guest again, from its registers at that time
// (guard.check). vCPUs are kicked for that from time to time
// (Machine.startGuard). If a page was accessed that way before it was looked up,
// the guest's end shows it (guard.endBlamed).

// guardPeriod is how long a vCPU runs at most before its registers are checked
// while pages are protected, and deepPeriod how often the page tables are
// checked.
const (
	guardPeriod = 10 * time.Millisecond
	deepPeriod  = 200 * time.Millisecond
	maxTables   = 1 << 16
)

// implicit is memory that is accessed without an instruction for it.
type implicit struct {
	at      guest.GPA // all of it in one page
	written bool      // too
	what    string
	cpu     int // of which vCPU
}

// String returns its description, such as "the GDT of vCPU 0".
func (i implicit) String() string { return fmt.Sprintf("%s of vCPU %d", i.what, i.cpu) }

// uses reports whether an access to i would fail while p is protected.
func (i *implicit) uses(p probe.WatchedPage) bool {
	return i.at&^(guest.PageSize-1) == p.PA && (p.Read || i.written)
}

// ImplicitAccesses implements probe.Watcher.
func (m target) ImplicitAccesses(pages []probe.WatchedPage) []string {
	whys := make([]string, len(pages))
	note := func(i implicit) {
		for k, p := range pages {
			if whys[k] == "" && i.uses(p) {
				whys[k] = i.String()
			}
		}
	}
	for _, v := range m.vcpus {
		if v.kvm == nil {
			continue
		}
		f := finder{v: v, found: note}
		f.registers(true)
		f.kvmAreas()
		f.tables(v.space())
		f.tables(0)
	}
	return whys
}

// Fields of descriptors and the TSS (SDM Vol. 3, 3.4.5, 3.5, 8.7).
const (
	typLDT     = 2
	typTSS     = 9 // 11 when busy
	tssRSP     = 4
	tssIST     = 36
	tssSize    = 104
	frameBytes = 64            // of an exception's frame with its error code, at a multiple of 16
	maxLimit   = 1<<16 + 1<<12 // more than a limit of 16 bits; a segment's limit can be anything
	entries    = guest.PageSize / 8
)

// finder finds the physical memory that the processor accesses by itself for a
// vCPU. The vCPU rests, or its thread calls.
type finder struct {
	v     *vcpu
	found func(implicit)     // is called with each
	as    guest.AddressSpace // of the vCPU's registers
}

// registers finds the memory that the vCPU's registers point to. With deep it
// also follows all tasks and tables in the GDT.
func (f *finder) registers(deep bool) {
	v, s := f.v, f.v.sregs
	f.as = v.m.space(v.space())
	// Loading a descriptor sets its accessed bit, or the busy bit of a TSS.
	f.findLinear(guest.GVA(s.GDT.Base), uint64(s.GDT.Limit)+1, true, "the GDT")
	f.findLinear(guest.GVA(s.IDT.Base), uint64(s.IDT.Limit)+1, false, "the IDT")
	if s.LDT.Present != 0 && s.LDT.Selector&^3 != 0 {
		f.findLinear(guest.GVA(s.LDT.Base), uint64(s.LDT.Limit)+1, true, "the LDT")
	}
	if v.cpl() == 0 {
		f.frame(v.regs.RSP, "the stack on which exceptions push")
	}
	if s.TR.Selector&^3 != 0 {
		f.task(guest.GVA(s.TR.Base), uint64(s.TR.Limit)+1)
	}
	if !deep {
		return
	}
	for off := uint64(8); off+15 <= uint64(s.GDT.Limit); off += 8 {
		lo, err1 := readWord(f.as, guest.GVA(s.GDT.Base+off))
		hi, err2 := readWord(f.as, guest.GVA(s.GDT.Base+off+8))
		if err1 != nil || err2 != nil || lo>>47&1 == 0 || lo>>44&1 != 0 {
			continue // not present, or no system descriptor
		}
		base, limit := guest.GVA(lo>>16&0xff_ffff|lo>>56<<24|hi<<32), lo&0xffff|lo>>32&0xf_0000
		switch lo >> 40 & 0xf {
		case typLDT:
			f.findLinear(base, limit+1, true, "an LDT of the GDT")
		case typTSS, typTSS | 2:
			f.task(base, limit+1)
		}
		off += 8
	}
}

// findLinear calls found with each page of the n bytes at a linear address.
func (f *finder) findLinear(at guest.GVA, n uint64, written bool, what string) {
	for n = min(n, maxLimit); n > 0; {
		part := min(n, guest.PageSize-uint64(at)%guest.PageSize)
		pa, ok := guest.GPA(at), true
		if f.v.sregs.CR0&cr0PG != 0 {
			t, err := f.as.Translate(at)
			pa, ok = t.PA, err == nil
		}
		if ok {
			f.found(implicit{pa, written, what, f.v.id})
		}
		at, n = at+guest.GVA(part), n-part
	}
}

// frame calls found with the memory of an exception's frame on a stack.
func (f *finder) frame(top uint64, what string) {
	if top != 0 {
		f.findLinear(guest.GVA(top-frameBytes), frameBytes, true, what)
	}
}

// task calls found with a TSS, including its I/O permissions, and the stacks in
// it.
func (f *finder) task(at guest.GVA, n uint64) {
	f.findLinear(at, n, false, "the TSS")
	var tss [tssSize]byte
	if f.as.Read(at, tss[:]) != nil {
		return
	}
	for i := range 3 {
		f.frame(binary.LittleEndian.Uint64(tss[tssRSP+8*i:]), "a stack that RSP0 to RSP2 of the TSS name")
	}
	for i := range 7 {
		f.frame(binary.LittleEndian.Uint64(tss[tssIST+8*i:]), "a stack that the IST of the TSS names")
	}
}

// kvmAreas finds the memory that KVM, or the processor, writes because its
// address is in an MSR.
func (f *finder) kvmAreas() {
	v := f.v
	areas := []struct {
		msr  uint32
		mask uint64 // of the address
		on   uint64 // the value that enables it; 0: any
		what string
	}{
		{0x4b564d00, ^uint64(3), 0, "KVM's wall clock"},
		{0x4b564d01, ^uint64(1), 1, "KVM's clock"},
		{0x11, ^uint64(3), 0, "KVM's wall clock"},
		{0x12, ^uint64(1), 1, "KVM's clock"},
		{0x4b564d02, ^uint64(63), 1, "KVM's area of asynchronous page faults"},
		{0x4b564d03, ^uint64(63), 1, "KVM's area of stolen time"},
		{0x4b564d04, ^uint64(3), 1, "KVM's area of ends of interrupts"},
	}
	index := make([]uint32, len(areas))
	for i, a := range areas {
		index[i] = a.msr
	}
	msrs, err := v.kvm.ReadMSRs(index)
	if err != nil {
		return
	}
	for _, msr := range msrs {
		for _, a := range areas {
			if a.msr == msr.Index && msr.Data != 0 && msr.Data&a.on == a.on {
				f.found(implicit{guest.GPA(msr.Data & a.mask), true, a.what, v.id})
			}
		}
	}
	// The processor's own buffers, for branches and samples, have linear addresses
	// (IA32_DS_AREA).
	const dsArea = 0x600
	if ds, err := v.kvm.ReadMSRs([]uint32{dsArea}); err == nil && len(ds) == 1 && ds[0].Data != 0 {
		if t, err := v.m.space(v.space()).Translate(guest.GVA(ds[0].Data)); err == nil {
			f.found(implicit{t.PA, true, "the debug store", v.id})
		}
	}
}

// tables finds all page tables that can be reached from root: the processor
// reads them, and sets accessed and dirty bits there. Each is visited once. A
// hostile guest's tables are not all visited.
func (f *finder) tables(root guest.GPA) {
	v := f.v
	as := v.m.space(root)
	seen := map[guest.GPA]bool{}
	var walk func(at guest.GPA, level int)
	walk = func(at guest.GPA, level int) {
		if seen[at] || len(seen) == maxTables {
			return
		}
		seen[at] = true
		b, err := v.m.mem.Slice(at, guest.PageSize)
		if err != nil {
			return // not the guest's RAM
		}
		f.found(implicit{at, true, "a page table", v.id})
		if level == 1 {
			return
		}
		for i := range int(entries) {
			const present, large, addr = 1, 1 << 7, 0x000f_ffff_ffff_f000
			if e := binary.LittleEndian.Uint64(b[8*i:]); e&present != 0 && (level > 3 || e&large == 0) {
				walk(guest.GPA(e&addr), level-1)
			}
		}
	}
	walk(as.Root(), as.Levels())
}

// guard unprotects pages that the processor accesses by itself for a vCPU. The
// vCPU's thread owns it.
type guard struct {
	v      *vcpu
	space  guest.GPA // whose page tables were checked
	deep   time.Time // when that was
	lately bool      // an interrupt was injected at the last entry
}

// check unprotects pages that the processor now accesses by itself. It is called
// on the vCPU's thread before it enters the guest, outside of any hit.
func (g *guard) check() {
	v := g.v
	if len(v.m.watch.pages) == 0 {
		return
	}
	space := v.space()
	var ended []probe.WatchedPage
	var whys []string
	note := func(i implicit) {
		for _, p := range v.m.watch.pages {
			if i.uses(p) && !slices.Contains(ended, p) {
				ended, whys = append(ended, p), append(whys, i.String())
			}
		}
	}
	f := finder{v: v, found: note}
	f.registers(false)
	if since := time.Since(g.deep); space != g.space && since > guardPeriod || since > deepPeriod {
		f.kvmAreas()
		f.tables(space)
		g.deep, g.space = time.Now(), space
	}
	if len(ended) != 0 {
		g.end(func() ([]probe.WatchedPage, []string) { return ended, whys })
	}
}

// end unprotects the pages that which returns in a stopped world, and reports
// the reasons to the engine.
func (g *guard) end(which func() (ended []probe.WatchedPage, whys []string)) {
	v, m := g.v, g.v.m
	end := func() error {
		ended, whys := which()
		left := slices.Clone(m.watch.pages)
		left = slices.DeleteFunc(left, func(p probe.WatchedPage) bool { return slices.Contains(ended, p) })
		if len(left) == len(m.watch.pages) {
			return nil
		}
		next := m.watch
		next.pages = left
		if err := m.applyWatches(&next); err != nil {
			return err
		}
		for i, p := range ended {
			m.engine.WatchEnded(p.PA, whys[i])
		}
		return nil
	}
	v.m.turns.unlock(v)
	var err error
	if v.where.stops() {
		err = end() // this vCPU has the world stopped already
	} else {
		err = m.stopWorld(v, end)
	}
	if err != nil {
		m.log.Error("the protection of a page could not be ended", "vcpu", v.id, "err", err)
	}
}

// endBlamed unprotects pages when the guest is about to end because of an access
// that could not be done. It reports whether the guest may continue, in which
// case the instruction is executed again. If something else was the reason, the
// guest ends again.
func (g *guard) endBlamed() bool {
	v, m := g.v, g.v.m
	pages := slices.Clone(m.watch.pages)
	if len(pages) == 0 || v.sregs.CR0&cr0PE == 0 { // the host has reset the vCPU
		return false
	}
	g.end(func() (ended []probe.WatchedPage, why []string) {
		pages = slices.Clone(m.watch.pages)
		whys := m.target().ImplicitAccesses(pages)
		none := !slices.ContainsFunc(whys, func(s string) bool { return s != "" })
		for i, p := range pages {
			if none {
				whys[i] = "the processor has accessed it by itself, or by an instruction that KVM does not emulate"
			}
			if whys[i] != "" {
				ended, why = append(ended, p), append(why, whys[i])
			}
		}
		return ended, why
	})
	if g.lately { // it was being delivered
		v.tick.Store(true)
	}
	return len(m.watch.pages) < len(pages)
}

// startGuard has vCPUs checked while pages are protected. Precondition: the
// world is stopped, or m.mu is held.
func (m *Machine) startGuard() {
	if m.guarding.Swap(true) {
		return
	}
	var look func()
	look = func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.phase == PhaseClosed || !m.watching.Load() {
			m.guarding.Store(false)
			if m.phase == PhaseClosed || !m.watching.Load() || m.guarding.Swap(true) {
				return
			}
		}
		for _, v := range m.vcpus {
			if !v.where.rests() {
				v.kick()
			}
		}
		time.AfterFunc(guardPeriod, look)
	}
	time.AfterFunc(guardPeriod, look)
}

// implicitHint is added to the reason for a guest's end while pages are protected.
func (g *guestMemory) implicitHint(text string) string {
	if g.watching.Load() {
		text += "; a watch with emulate protects a page, which the processor may have accessed by itself (implicit_access)"
	}
	return text
}
