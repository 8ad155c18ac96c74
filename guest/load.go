package guest

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Boot loads img into mem and prepares everything a vCPU needs to start: segments,
// page tables, GDT, boot-info blocks and stacks. mem has the ranges of
// LayoutFor(opt.RAM). Boot writes the segments, including the zeros after them, and
// the part of the loader's range that it uses; it does not change the rest of the
// memory. No vCPU may run. It can be called again to reset the guest.
//
// All RAM is mapped at its physical address, writable and executable, for CPL 0 only;
// the loader's range likewise, not executable. A segment's pages have the segment's
// permissions (the union if two segments share a page), and take precedence over the
// identity map.
func Boot(mem *Memory, img *Image, opt BootOptions) (*BootState, error) {
	layout, err := LayoutFor(opt.RAM)
	if err != nil {
		return nil, fmt.Errorf("boot guest: %w", err)
	}
	switch {
	case opt.VCPUs < 1 || opt.VCPUs > MaxVCPUs:
		return nil, fmt.Errorf("boot guest: %d vCPUs: want 1 to %d", opt.VCPUs, MaxVCPUs)
	case len(opt.Cmdline) > MaxCmdline:
		return nil, fmt.Errorf("boot guest: command line of %d bytes: want at most %d", len(opt.Cmdline), MaxCmdline)
	case strings.IndexByte(opt.Cmdline, 0) >= 0:
		return nil, fmt.Errorf("boot guest: command line %q: contains a NUL byte", opt.Cmdline)
	}
	for _, r := range layout.Ranges() {
		if _, err := mem.Slice(r.Base, int(r.Size)); err != nil {
			return nil, fmt.Errorf("boot guest: %s: %w", r.Name, err)
		}
	}
	if err := checkSegments(img, layout); err != nil {
		return nil, fmt.Errorf("boot guest: %w", err)
	}
	l := &loader{mem: mem, img: img, opt: opt, layout: layout}
	st, err := l.boot()
	if err != nil {
		return nil, fmt.Errorf("boot guest: %w", err)
	}
	return st, nil
}

// checkSegments checks the segments against the guest's memory.
func checkSegments(img *Image, layout Layout) error {
	ours := span{GVA(layout.Loader.Base), GVA(layout.Loader.Base) + LoaderSize - 1}
	for i := range img.Segments {
		s := &img.Segments[i]
		part := fmt.Sprintf("segment at %v", s.VAddr)
		if end := uint64(s.PAddr) + s.MemSize; end > layout.RAM.Size {
			fix := fmt.Sprintf("give the guest at least %d MiB", alignUp(end, 1<<20)>>20)
			if end > MaxRAM {
				fix = "load it at a low physical address (AT in the linker script)"
			}
			return &ImageError{part, fmt.Sprintf("its %d bytes at physical address %v are outside the %d bytes of RAM", s.MemSize, s.PAddr, layout.RAM.Size), fix}
		}
		if ours.overlaps(span{s.VAddr, s.lastAddr()}) {
			return &ImageError{part, fmt.Sprintf("it overlaps the loader's memory at %v", ours.first), "link it elsewhere"}
		}
	}
	return nil
}

// loader is the shared state of the steps of Boot.
type loader struct {
	mem    *Memory
	img    *Image
	opt    BootOptions
	layout Layout
	tables *tableBuilder
}

// The end of the loader's range has, from the top down: a stack for each vCPU
// with an unmapped page below it, the boot-info pages, the command line and
// the GDT. The page tables grow up from its start.
const stackStride = StackSize + PageSize

func (l *loader) stackBottom(cpu int) GPA {
	return l.layout.Loader.Base + LoaderSize - GPA(cpu+1)*stackStride + PageSize
}

func (l *loader) bootInfo(cpu int) GPA {
	return l.layout.Loader.Base + LoaderSize - GPA(l.opt.VCPUs)*stackStride - GPA(cpu+1)*PageSize
}
func (l *loader) cmdline() GPA { return l.bootInfo(l.opt.VCPUs) }
func (l *loader) gdt() GPA     { return l.cmdline() - PageSize }

// bytes returns n bytes of memory that is known to exist.
func (l *loader) bytes(pa GPA, n uint64) []byte {
	b := hostBytes(l.mem.Regions(), pa, n)
	if b == nil {
		panic(fmt.Sprintf("BUG: boot guest: no memory at %v", pa))
	}
	return b
}

func (l *loader) boot() (*BootState, error) {
	if err := l.mapMemory(); err != nil {
		return nil, err
	}
	st := &BootState{
		Root:     l.layout.Loader.Base,
		GDT:      GVA(l.gdt()),
		GDTLimit: uint16(len(gdt)*8 - 1),
		NX:       !l.opt.NoNX,
	}
	if err := l.execAreas(st); err != nil {
		return nil, err
	}
	st.KernelFar, st.UserFar = l.layout.KernelFar, l.layout.UserFar
	st.Tables = &Tables{mem: l.mem, built: l.tables}
	for i := range l.img.Segments {
		s := &l.img.Segments[i]
		b := l.bytes(s.PAddr, s.MemSize)
		clear(b[copy(b, s.Data):])
	}
	table := l.bytes(l.gdt(), PageSize)
	clear(table)
	for i, d := range gdt {
		binary.LittleEndian.PutUint64(table[8*i:], d)
	}
	line := l.bytes(l.cmdline(), PageSize)
	clear(line[copy(line, l.opt.Cmdline):])
	for cpu := range l.opt.VCPUs {
		clear(l.bytes(l.stackBottom(cpu), StackSize))
		st.VCPUs = append(st.VCPUs, VCPUStart{
			RIP: l.img.Entry,
			RSP: GVA(l.stackBottom(cpu) + StackSize),
			RDI: GVA(l.bootInfo(cpu)),
		})
		l.writeBootInfo(st, cpu)
	}
	return st, nil
}

// nxBit returns the bit that makes a page non-executable, if there is one.
func (l *loader) nxBit() uint64 {
	if l.opt.NoNX {
		return 0
	}
	return pteNX
}

// mapMemory makes the page tables, except for the exec areas.
func (l *loader) mapMemory() error {
	base := l.layout.Loader.Base
	room := uint64(l.gdt() - base)
	b, err := newTableBuilder(base, l.bytes(base, room))
	if err != nil {
		return err
	}
	l.tables = b
	if err := b.mapRange(0, 0, l.opt.RAM, pteWrite, true); err != nil {
		return err
	}
	if err := b.mapRange(GVA(base), base, LoaderSize, pteWrite|l.nxBit(), true); err != nil {
		return err
	}
	for cpu := range l.opt.VCPUs {
		if err := b.unmapPage(GVA(l.stackBottom(cpu) - PageSize)); err != nil {
			return err
		}
	}
	return l.mapSegments()
}

// mapSegments maps the segments in pages of 4 KiB.
func (l *loader) mapSegments() error {
	var prev *Segment
	var prevFlags uint64
	for i := range l.img.Segments {
		s := &l.img.Segments[i]
		flags := l.nxBit()
		if s.X {
			flags = 0
		}
		if s.W {
			flags |= pteWrite
		}
		if s.User {
			flags |= pteUser
		}
		va := GVA(alignDown(uint64(s.VAddr), PageSize))
		pa := GPA(alignDown(uint64(s.PAddr), PageSize))
		size := alignUp(uint64(s.lastAddr()-va)+1, PageSize)
		firstFlags := flags
		if prev != nil && prev.lastAddr()/PageSize == s.VAddr/PageSize {
			firstFlags = (flags|prevFlags)&^pteNX | flags&prevFlags&pteNX
		}
		if err := l.tables.mapRange(va, pa, PageSize, firstFlags, false); err != nil {
			return err
		}
		if err := l.tables.mapRange(va+PageSize, pa+PageSize, size-PageSize, flags, false); err != nil {
			return err
		}
		prev, prevFlags = s, flags
		if size == PageSize {
			prevFlags = firstFlags // a third one may share the page
		}
	}
	return nil
}

// execAreas places and maps the engine's areas.
func (l *loader) execAreas(st *BootState) error {
	used := []span{
		{0, GVA(l.opt.RAM - 1)},
		{GVA(l.layout.Loader.Base), GVA(l.layout.Loader.Base + LoaderSize - 1)},
	}
	for i := range l.img.Segments {
		s := &l.img.Segments[i]
		used = append(used, span{s.VAddr, s.lastAddr()})
	}
	for _, user := range []bool{false, true} {
		var must, want []span
		for _, r := range l.img.Text(user) {
			must = append(must, span{r.Start, r.End - 1})
		}
		if len(must) == 0 {
			continue // no user text
		}
		for i := range l.img.Segments {
			if s := &l.img.Segments[i]; s.User == user {
				want = append(want, span{s.VAddr, s.lastAddr()})
			}
		}
		name, r, area, flags := "kernel", l.layout.KernelExec, &st.KernelExec, uint64(0)
		if user {
			name, r, area, flags = "user", l.layout.UserExec, &st.UserExec, pteUser
		}
		va, err := place(r.Size, used, must, want)
		if err != nil {
			return fmt.Errorf("place the exec area of %s text: %w", name, err)
		}
		if err := l.tables.mapRange(va, r.Base, r.Size, flags, false); err != nil {
			return err
		}
		*area = Area{GVA: va, GPA: r.Base, Size: r.Size}
		used = append(used, span{va, va + GVA(r.Size-1)})
		if err := l.tables.mapWindows(must); err != nil {
			return err
		}
	}
	used, err := l.dataAreas(st, used)
	if err != nil {
		return err
	}
	l.boardWindows(st, used)
	return nil
}

// dataAreas places and maps the memory that host and guest share, outside of used:
// CPL3 must not reach data that compiled programs of CPL0 trust (pointers, return
// addresses), and CPL0 must not need to touch a page of CPL3, which SMAP would forbid
// (SDM Vol. 3, 4.6).
func (l *loader) dataAreas(st *BootState, used []span) ([]span, error) {
	for _, x := range []struct {
		r     MemoryRange
		area  *Area
		flags uint64
	}{{l.layout.KernelData, &st.KernelData, 0}, {l.layout.UserData, &st.UserData, pteUser}} {
		near := span{GVA(x.r.Base), GVA(x.r.Base)}
		va, err := place(x.r.Size, used, []span{near}, nil)
		if err != nil {
			return nil, fmt.Errorf("place the %s area: %w", x.r.Name, err)
		}
		if err := l.tables.mapRange(va, x.r.Base, x.r.Size, x.flags|pteWrite|l.nxBit(), true); err != nil {
			return nil, err
		}
		*x.area = Area{GVA: va, GPA: x.r.Base, Size: x.r.Size}
		used = append(used, span{va, va + GVA(x.r.Size-1)})
	}
	return used, nil
}

// boardWindows chooses the addresses of boards, outside of used.
func (l *loader) boardWindows(st *BootState, used []span) {
	for _, user := range []bool{false, true} {
		var text, segments []span
		for _, r := range l.img.Text(user) {
			text = append(text, span{r.Start, r.End - 1})
		}
		for i := range l.img.Segments {
			if s := &l.img.Segments[i]; s.User == user {
				segments = append(segments, span{s.VAddr, s.lastAddr()})
			}
		}
		windows := &st.KernelBoards
		if user {
			windows = &st.UserBoards
		}
		if len(text) != 0 {
			*windows = placeBoards(used, text, segments)
		}
	}
}

// writeBootInfo fills in the boot-info block of one vCPU.
func (l *loader) writeBootInfo(st *BootState, cpu int) {
	b := l.bytes(l.bootInfo(cpu), PageSize)
	clear(b)
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(b[off:], v) }
	put(BootInfoMagic, BootMagic)
	put(BootInfoSizeof, BootInfoSize)
	put(BootInfoRAM, l.opt.RAM)
	binary.LittleEndian.PutUint32(b[BootInfoVCPU:], uint32(cpu))
	binary.LittleEndian.PutUint32(b[BootInfoNVCPUs:], uint32(l.opt.VCPUs))
	put(BootInfoCmdline, uint64(l.cmdline()))
	put(BootInfoCmdlineLen, uint64(len(l.opt.Cmdline)))
	put(BootInfoKernelLo, uint64(st.KernelExec.GVA))
	put(BootInfoKernelHi, uint64(st.KernelExec.End()))
	put(BootInfoUserLo, uint64(st.UserExec.GVA))
	put(BootInfoUserHi, uint64(st.UserExec.End()))
	put(BootInfoStackTop, uint64(st.VCPUs[cpu].RSP))
	put(BootInfoTickUsec, l.opt.TickUsec)
	put(BootInfoTimerVec, TimerVector)
	for i, w := range st.KernelBoards {
		put(BootInfoBoards+16*i, uint64(w.Start))
		put(BootInfoBoards+16*i+8, uint64(w.End))
	}
	for i, w := range st.UserBoards {
		put(BootInfoUserBoards+16*i, uint64(w.Start))
		put(BootInfoUserBoards+16*i+8, uint64(w.End))
	}
}
