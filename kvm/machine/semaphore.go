package machine

import (
	"encoding/binary"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
)

// Semaphores
//
// A program can have a 2-byte number in its data that counts the probes at one of its places, and prepare the probe's arguments only if the number is not 0
// (USDT). Like the kernel for its own uprobes (ref_ctr_offset, kernel/events/uprobes.c), we add 1 to this number for each of its instructions that has an int3,
// in each process that maps the number, and subtract 1 when the int3 is removed.
//
// A process that has not written to this page of its data uses the page cache's page. We change the number there too, so that later processes,
// and copies made on a write, start with the right value. Each existing copy is changed separately. For each copy we
// remember our share of the number, because the guest's own tracers change the same number.

// semaphore is such a number in a file.
type semaphore struct {
	at guest.GVA // address in the view

	want uint16 // number of armed instructions that count in it
	was  uint16 // value of want when it was last settled
	most uint16 // maximum of was

	// copies has our share of the number in each process's private copy of the page.
	copies map[place]uint16
	traced bool      // a copy had a larger value: the guest's own tracers count too
	gone   time.Time // when want became 0
}

// place is where a process maps a page.
type place struct {
	root guest.GPA
	addr guest.GVA
}

// SetSemaphores sets which semaphore each instruction counts in while it has a breakpoint. Both are addresses in the image
// (linux.Programs.SemaphoreAddr). It replaces the previous map, and a new boot starts without one. It returns ErrNoFiles, or an error if the world
// could not be stopped. It may be called from any thread except a probe handler's.
func (m *Machine) SetSemaphores(of map[guest.GVA]guest.GVA) error {
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		if len(of) == 0 {
			return nil
		}
		return ErrNoFiles
	}
	t := g.files.Load()
	return m.target().Stop(func(probe.World) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.counted = of
		for _, at := range of {
			t.semaphoreAt(at)
		}
		for _, s := range t.semaphores {
			t.recount(s)
		}
		return nil
	})
}

// semaphoreAt returns the semaphore at an address, and creates it if necessary. Callers hold mu.
func (t *fileText) semaphoreAt(at guest.GVA) *semaphore {
	s := t.semaphores[at]
	if s == nil {
		s = &semaphore{at: at, copies: map[place]uint16{}}
		t.semaphores[at] = s
	}
	return s
}

// recountAt updates the semaphore of an instruction, if it has one, after a change of the instruction's site. The world is stopped. Callers hold mu.
func (t *fileText) recountAt(site guest.GVA) {
	if at, ok := t.counted[site]; ok {
		t.recount(t.semaphoreAt(at))
	}
}

// recount updates a semaphore after a change of sites. The world is stopped. Callers hold mu.
func (t *fileText) recount(s *semaphore) {
	n := uint16(0)
	for site, at := range t.counted {
		if x := t.sites[site]; at == s.at && x != nil && x.armed {
			n++
		}
	}
	if s.want = n; n == 0 {
		s.gone = time.Now()
	}
	t.settle(s, true)
}

// settle writes the right value to all places of a semaphore in memory, and reports whether one was wrong. With write the world must be stopped. Without write it
// changes nothing, and its result is only a hint. Callers hold mu.
func (t *fileText) settle(s *semaphore, write bool) (changed bool) {
	const offset = guest.PageSize - 1
	index := s.at &^ offset
	all, err := t.view.FilePages(index, t.m.readLive)
	if err != nil {
		return false
	}
	first, known := uint16(0), linux.Programs{View: t.view}.FillPage(index) // the value in the file
	if b := t.view.FileBytes(index); known && len(b) >= int(s.at&offset)+2 {
		first = binary.LittleEndian.Uint16(b[s.at&offset:])
	}
	put := func(pa guest.GPA, n uint16) {
		b, err := t.m.mem.Slice(pa+guest.GPA(s.at&offset), 2)
		if err != nil || binary.LittleEndian.Uint16(b) == n {
			return
		}
		if changed = true; write {
			binary.LittleEndian.PutUint16(b, n)
		}
	}
	get := func(pa guest.GPA) (uint16, bool) {
		b, err := t.m.mem.Slice(pa+guest.GPA(s.at&offset), 2)
		if err != nil {
			return 0, false
		}
		return binary.LittleEndian.Uint16(b), true
	}
	cached := all.Cached
	if n, ok := get(cached.PA); cached.PA != 0 && ok && known && n-first <= s.most {
		if cached.Other = !t.sameBytes(index, cached.PA); cached.Other || cached.Busy {
			put(cached.PA, first)
		} else {
			put(cached.PA, first+s.want)
		}
	}
	done, copies, traced := map[guest.GPA]bool{}, map[place]uint16{}, false
	for _, m := range all.Mappings {
		if !m.Own {
			continue
		}
		at := place{m.Root, m.Addr}
		had, seen := s.copies[at]
		as := t.m.space(m.Root)
		found, err := as.Translate(m.Addr)
		if err != nil {
			if t.swapped(as, m.Addr) { // swapped out: it will come back with the same value
				if !seen {
					had = s.was
				}
				copies[at] = had
			}
			continue
		}
		pa := found.PA &^ offset
		if pa == cached.PA {
			continue
		}
		if copies[at] = s.want; done[pa] {
			continue
		}
		done[pa] = true
		n, ok := get(pa)
		if _, err := t.view.FileReader().Copy(pa, t.m.readLive); err != nil || !ok {
			delete(copies, at)
			continue
		}
		had = s.share(at, n, first)
		traced = traced || seen && n-first > had
		put(pa, n-had+s.want)
	}
	if write || !changed {
		s.copies, s.traced = copies, traced
	}
	if write {
		s.was, s.most = s.want, max(s.most, s.want)
	}
	return changed
}

// share returns our share of n, the number in a process's copy at a place. first is the value in the file.
func (s *semaphore) share(at place, n, first uint16) uint16 {
	more := n - first
	had, seen := s.copies[at]
	switch {
	case !seen && !s.traced && more <= s.most: // copied from the page cache, before or after a change, or from another process
		had = more
	case !seen:
		had = s.was
	}
	if n < first || more < had { // the page was read from disk again, or the program has written to it
		return 0
	}
	return had
}

// settleSemaphores settles all semaphores, and deletes the unused ones. Callers hold mu.
func (t *fileText) settleSemaphores(write bool) (changed bool) {
	for at, s := range t.semaphores {
		changed = t.settle(s, write) || changed
		if write || s.want != 0 || time.Since(s.gone) <= pageMoves {
			continue
		}
		left := uint16(0)
		for _, n := range s.copies {
			left |= n
		}
		if left == 0 {
			delete(t.semaphores, at)
		}
	}
	return changed
}

// inSemaphore reports whether the byte at addr belongs to a semaphore whose value can be the result of our counting. b is the page that begins at
// index, and known its original content. Callers hold mu.
func (t *fileText) inSemaphore(index, addr guest.GVA, b, known []byte) bool {
	s := t.semaphores[addr&^1]
	if s == nil {
		return false
	}
	i := int(s.at - index)
	return i+2 <= len(known) && binary.LittleEndian.Uint16(b[i:])-binary.LittleEndian.Uint16(known[i:]) <= s.most
}
