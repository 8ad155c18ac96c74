package machine

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// How programs of a Linux guest are probed
//
// The code of a program is in a page of the kernel's page cache that holds that
// part of its file. All processes map the page, including future ones. A process
// that has written to its mapping has a copy of its own. The engine puts an int3
// into the page of the cache, and into each copy.
//
// Pages come, go, and are reused. So each time before anything is written, with
// the world stopped, the pages are looked up again in the kernel's own
// structures: the file's xarray, and the page tables of the processes in its
// tree of mappings. Ten times a second the engine checks whether these have
// changed.
//
// A page that is about to be written to a disk gets its original byte back until
// the write is done. When a process copies a page, the copy contains the int3.
// It is found at its first hit, even if the probe is gone by then (claim).

// fileText manages the bytes that probes have changed in files of a Linux guest.
type fileText struct {
	m    *Machine
	view *linux.View

	// Addresses of the kernel: data that user code's tables do not map under
	// page-table isolation, and code that they map. 0: not known.
	data, entry guest.GVA

	mu    sync.Mutex // held to change sites, which also needs the world stopped, and to read them while it is not
	sites map[guest.GVA]*fileSite
	// counted maps an instruction to the semaphore that it counts in (SetSemaphores).
	counted    map[guest.GVA]guest.GVA
	semaphores map[guest.GVA]*semaphore

	other map[guest.GVA]time.Time // since when pages differ from the file
	told  map[string]bool         // files for which that is logged

	pages atomic.Pointer[map[guest.GPA]filePage] // where an int3 is
}

// fileSite is an instruction with an int3, or one that had an int3 which may
// still be in a page that was out of reach.
type fileSite struct {
	at    guest.GVA // its address in the view
	orig  []byte    // the instruction
	armed bool
	gone  time.Time // when it was disarmed

	// others are the pages that had an int3 before there was a probe, such as one
	// of the guest's own debugger.
	others map[guest.GPA]linux.Page
}

// filePage is an int3 in a page.
type filePage struct {
	at   guest.GVA // of its site
	page linux.Page
}

func newFileText(m *Machine, view *linux.View) *fileText {
	t := &fileText{m: m, view: view, sites: map[guest.GVA]*fileSite{}, semaphores: map[guest.GVA]*semaphore{}, other: map[guest.GVA]time.Time{}, told: map[string]bool{}}
	t.pages.Store(&map[guest.GPA]filePage{})
	for name, at := range map[string]*guest.GVA{"init_top_pgt": &t.data, "entry_SYSCALL_64": &t.entry} {
		if s, err := view.Lookup(name); err == nil {
			*at = s.Addr
		}
	}
	return t
}

// pageMoves is how long the kernel may take to move a page with its contents to
// another place (its migration of pages takes microseconds).
const pageMoves = 10 * time.Second

// readLive reads the guest's memory with the engine's changes.
func (g *guestMemory) readLive(addr guest.GVA, p []byte) error { return g.space(0).Read(addr, p) }

// readFile reads bytes of a file. Only a Linux guest has files.
func (g *guestMemory) readFile(addr guest.GVA, p []byte) error {
	if g, ok := g.payload().(*linuxGuest); ok {
		return g.files.Load().readFile(addr, p)
	}
	return &guest.PageFaultError{VA: addr, Reason: guest.FaultNonCanonical}
}

// readFile reads the bytes of the file at addr, with the int3s that it should
// have.
func (t *fileText) readFile(addr guest.GVA, p []byte) error {
	b := t.view.Code(addr, len(p))
	if len(b) < len(p) {
		return &guest.PageFaultError{VA: addr + guest.GVA(len(b)), Reason: guest.FaultNotPresent}
	}
	copy(p, b)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range p {
		if s := t.sites[addr+guest.GVA(i)]; s != nil && s.armed {
			p[i] = x86.Int3
		}
	}
	return nil
}

// patch is World.PatchText for a file: it writes or removes an int3. The world
// is stopped.
func (t *fileText) patch(addr guest.GVA, old, now []byte) error {
	got := make([]byte, len(old))
	if err := t.readFile(addr, got); err != nil {
		return err
	}
	if !bytes.Equal(got, old) || len(now) != len(old) {
		return &guest.TextMismatchError{Addr: addr, Want: old, Got: got}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s, armed := t.sites[addr], now[0] == x86.Int3
	if armed {
		index := addr &^ (guest.PageSize - 1)
		all, err := t.view.FilePages(index, t.m.readLive)
		if errors.Is(err, linux.ErrOtherFile) {
			return err
		}
		if all.Cached.PA != 0 && !t.sameBytes(index, all.Cached.PA) {
			return fmt.Errorf("%s: %w", t.view.FilePath(addr), errOtherPage)
		}
	}
	if s == nil {
		s = &fileSite{at: addr, orig: bytes.Clone(old), others: map[guest.GPA]linux.Page{}}
		t.sites[addr] = s
		pages, _ := t.places(s, map[guest.GVA]linux.FilePages{})
		for pa, p := range pages {
			if b := t.byteAt(s, pa); b != nil && b[0] == x86.Int3 {
				s.others[pa] = p
			}
		}
	}
	if s.armed = armed; !armed {
		s.gone = time.Now()
	}
	t.updatePages(func(x *fileSite) bool { return x == s })
	t.recountAt(addr)
	return nil
}

// places returns the pages that contain s, by the physical address of its first
// byte. It leaves out pages that had an int3 of the guest's own. hidden means
// that there may be more, because a process has a copy that is not in memory.
// hidden is reliable while the world is stopped, and a hint otherwise.
func (t *fileText) places(s *fileSite, of map[guest.GVA]linux.FilePages) (out map[guest.GPA]linux.Page, hidden bool) {
	const offset = guest.PageSize - 1
	index := s.at &^ offset
	all, ok := of[index]
	if !ok {
		var err error
		if all, err = t.view.FilePages(index, t.m.readLive); err != nil {
			t.m.log.Debug("pages of a file", "addr", s.at, "err", err)
		} else if all.Cached.PA != 0 && !t.sameBytes(index, all.Cached.PA) {
			all.Cached.Other, err = true, errOtherPage
		}
		t.noteResult(index, err)
		of[index] = all
	}
	out, hidden = map[guest.GPA]linux.Page{}, all.Swapped
	if p := all.Cached; p.PA != 0 {
		out[p.PA+guest.GPA(s.at&offset)] = p
	}
	for _, m := range all.Mappings {
		as, addr := t.m.space(m.Root), m.Addr+s.at&offset
		at, err := as.Translate(addr)
		if err != nil {
			hidden = hidden || t.swapped(as, addr)
			continue
		}
		if out[at.PA].PA != 0 {
			continue
		}
		if p, err := t.view.FileReader().Copy(at.PA, t.m.readLive); err == nil {
			p.Other = all.Cached.Other // it may belong to a newer version of the file
			out[at.PA] = p
		}
	}
	for pa, p := range s.others {
		if out[pa] == p {
			delete(out, pa)
		}
	}
	return out, hidden
}

// errOtherPage is the value of Other in linux.Page.
var errOtherPage = errors.New("a page of it has other bytes than when it was read: it was written to, or is another version")

// otherTime is how long a page may differ from its file before that is reported:
// a file that is being written is incomplete.
const otherTime = time.Second

// noteResult evaluates the result err for the page at index. A file that has
// changed is logged once. Callers hold mu.
func (t *fileText) noteResult(index guest.GVA, err error) {
	if err != errOtherPage && !errors.Is(err, linux.ErrOtherFile) {
		delete(t.other, index)
		return
	}
	since, path := t.other[index], t.view.FilePath(index)
	if since.IsZero() {
		t.other[index] = time.Now()
	} else if time.Since(since) > otherTime && !t.told[path] {
		t.told[path] = true
		t.m.log.Warn("a file of the guest's is not the one that its probes are for: nothing is written to it", "file", path, "offset", uint64(index)&(1<<40-1), "err", err)
	}
}

// sameBytes reports whether the page at pa has the bytes of the file at index,
// apart from int3s at sites and from semaphores. Callers hold mu.
func (t *fileText) sameBytes(index guest.GVA, pa guest.GPA) bool {
	known := t.view.FileBytes(index)
	b, err := t.m.mem.Slice(pa, len(known))
	if err != nil {
		return false
	}
	for i := range known {
		at := index + guest.GVA(i)
		if b[i] != known[i] && (b[i] != x86.Int3 || t.sites[at] == nil) && !t.inSemaphore(index, at, b, known) {
			return false
		}
	}
	return true
}

// swapped reports whether the page at addr has been moved elsewhere: its entry
// is neither present nor empty.
func (t *fileText) swapped(as guest.AddressSpace, addr guest.GVA) bool {
	table, err := as.Table(addr, 1)
	if err != nil {
		return false
	}
	b, err := t.m.mem.Slice(table+guest.GPA(addr>>12&511)*8, 8)
	return err == nil && littleEndian(b) != 0
}

// byteAt returns the byte at pa if the page has s's instruction there, with or
// without an int3, as far as it is in the page. Otherwise it returns nil.
func (t *fileText) byteAt(s *fileSite, pa guest.GPA) []byte {
	n := min(len(s.orig), int(guest.PageSize-pa%guest.PageSize))
	b, err := t.m.mem.Slice(pa, n)
	if err != nil || b[0] != s.orig[0] && b[0] != x86.Int3 || !bytes.Equal(b[1:], s.orig[1:n]) {
		return nil
	}
	return b[:1]
}

// updatePages brings the pages of all sites that wanted accepts up to date. The
// world is stopped. Callers hold mu.
func (t *fileText) updatePages(wanted func(*fileSite) bool) {
	pages := map[guest.GPA]filePage{}
	for pa, p := range *t.pages.Load() {
		if s := t.sites[p.at]; s != nil && !wanted(s) {
			pages[pa] = p
		}
	}
	of, known := map[guest.GVA]linux.FilePages{}, *t.pages.Load()
	for at, s := range t.sites {
		if !wanted(s) {
			continue
		}
		found, hidden := t.places(s, of)
		for pa, p := range found {
			b := t.byteAt(s, pa)
			switch {
			case b == nil || p.Other && known[pa].at != at:
			case s.armed && !p.Busy && !p.Other:
				b[0] = x86.Int3
				pages[pa] = filePage{at, p}
			default:
				b[0] = s.orig[0]
			}
		}
		if !s.armed && !hidden && time.Since(s.gone) > pageMoves {
			delete(t.sites, at)
		}
	}
	t.pages.Store(&pages)
}

// stale reports whether pages were added or removed, or differ from their
// expected contents, since they were settled.
func (t *fileText) stale() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := map[guest.GVA]linux.FilePages{}
	known := *t.pages.Load()
	n := 0
	for _, s := range t.sites {
		found, hidden := t.places(s, of)
		for pa, p := range found {
			was, ours := known[pa]
			if ours {
				n++
			}
			if p.Other && !ours {
				continue
			}
			if b := t.byteAt(s, pa); b != nil && (b[0] == x86.Int3) != (s.armed && !p.Busy && !p.Other) || ours && was.page != p {
				return true
			}
		}
		if !s.armed && !hidden && time.Since(s.gone) > pageMoves {
			return true
		}
	}
	return t.settleSemaphores(false) || n != len(known)
}

// refresh settles everything, if that is due.
func (t *fileText) refresh() error {
	if !t.stale() {
		return nil
	}
	return t.m.target().Stop(func(probe.World) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.updatePages(func(*fileSite) bool { return true })
		t.settleSemaphores(true)
		return nil
	})
}

// FilePlace implements probe.Files.
func (m target) FilePlace(root guest.GPA, addr guest.GVA) (guest.GVA, bool) {
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		return 0, false
	}
	return g.files.Load().place(root, addr)
}

// SameSpace implements probe.Spaces. Under page-table isolation, Linux has the
// table of user code in the page after the kernel's (PTI_USER_PGTABLE_BIT,
// arch/x86/include/asm/pgtable.h). Without isolation that page may be the table
// of another process, which maps the kernel's data, or not a table, in which
// case it does not map the kernel's code.
func (m target) SameSpace(root, space guest.GPA) bool {
	const users = guest.PageSize
	g, ok := m.payload().(*linuxGuest)
	if !ok || root^space != users {
		return false
	}
	t, as := g.files.Load(), m.space(root|users)
	return t.data != 0 && t.entry != 0 && as.Maps(t.entry) && !as.Maps(t.data)
}

// FileCode implements probe.Files.
func (m target) FileCode(root guest.GPA, addr guest.GVA) (guest.GVA, bool) {
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		return 0, false
	}
	at, err := m.space(root).Translate(addr)
	if err != nil {
		return 0, false
	}
	return g.files.Load().view.FileCode(at.PA, m.readLive)
}

// place is FilePlace. The pages were settled some time ago, so each is checked
// again.
func (t *fileText) place(root guest.GPA, addr guest.GVA) (guest.GVA, bool) {
	pages := *t.pages.Load()
	if len(pages) == 0 {
		return 0, false
	}
	at, err := t.m.space(root).Translate(addr)
	if err != nil {
		return 0, false
	}
	p, ok := pages[at.PA]
	if !ok || !t.holds(&p.page) {
		return 0, false
	}
	return p.at, true
}

// holds reports whether a page still holds that part of the file.
func (t *fileText) holds(p *linux.Page) bool {
	for _, m := range t.view.FileReader().Marks(p) {
		if w, err := readWord(t.m.space(0), m.At); err != nil || w != m.Word {
			return false
		}
	}
	return true
}

// claim looks up an int3 that user code has hit and that the engine does not
// know. It may be in a copy of a page, perhaps from a probe that is gone. It
// reports whether the vCPU should execute the same instruction again.
func (v *vcpu) claim() bool {
	g, ok := v.m.payload().(*linuxGuest)
	if !ok || v.trap.state.CPL != 3 {
		return false
	}
	t, rip, root := g.files.Load(), guest.GVA(v.trap.state.Regs.RIP), v.trap.state.Root
	const offset = guest.PageSize - 1
	t.mu.Lock()
	any := false
	for at := range t.sites {
		any = any || at&offset == rip&offset
	}
	t.mu.Unlock()
	if !any {
		return false
	}
	ours := false
	look := func() error {
		if g.left.Load() || g.runsOtherKernel(v.m, v) {
			return nil
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.updatePages(func(s *fileSite) bool { return s.at&offset == rip&offset })
		var b [1]byte
		_, ours = t.place(root, rip)
		ours = ours || v.m.space(root).Read(rip, b[:]) == nil && b[0] != x86.Int3
		return nil
	}
	var err error
	if v.where.stops() {
		err = look()
	} else {
		err = v.m.stopWorld(v, look)
	}
	return err == nil && ours
}
