package guest

import (
	"errors"
	"fmt"
	"sync"
)

// Errors of Tables.Map.
var (
	// ErrMapped: something is at that address already.
	ErrMapped = errors.New("the address is in use")
	// ErrTables: the guest has changed the tables that it was booted with.
	ErrTables = errors.New("the guest's page tables are not as they were made")
)

// Mapper adds a page, which no table maps, to the page tables of a guest's kernel:
// executable and not writable, for CPL3 if user is set. Errors are those of Tables.Map.
type Mapper interface {
	Map(va GVA, pa GPA, user bool) error
}

// Tables are the page tables that a guest was booted with, for adding pages
// while it runs. The guest can write to them: nothing that stands there is
// believed without a check. Any goroutine may call Map.
type Tables struct {
	mu    sync.Mutex
	mem   *Memory
	built *tableBuilder
}

// Used returns how many bytes of what was set aside for tables are in use. Any goroutine.
func (t *Tables) Used() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.built.used
}

// Fits reports whether Used may return n.
func (t *Tables) Fits(n int) bool {
	return n >= PageSize && n <= len(t.built.mem) && n%PageSize == 0
}

// SetUsed is for tables that are now as they were when Used returned n; false where that cannot have been.
func (t *Tables) SetUsed(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.Fits(n) {
		return false
	}
	t.built.used = n
	return true
}

// Map maps the 4 KiB page at pa, which no table maps, at va: executable, not
// writable, for CPL3 if user is set. The guest sees it at once: processors don't
// remember that a page was not present (SDM Vol. 3, 4.10.2.3), and a hypervisor
// that shadows the tables looks again when one faults. An address space of the guest's
// own sees it if it shares the upper tables, as those made by copying the top
// level do.
//
// Errors wrap ErrMapped, ErrTables, or say that there is no room for a table.
func (t *Tables) Map(va GVA, pa GPA, user bool) error {
	fail := func(err error) error { return fmt.Errorf("map page %v at %v: %w", pa, va, err) }
	if !va.Canonical() || va%PageSize != 0 || pa%PageSize != 0 {
		return fail(errors.New("not a page"))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	regions := t.mem.Regions()
	b := t.built
	table := b.base
	for level := 4; ; level-- {
		if table < b.base || table >= b.base+GPA(b.used) {
			return fail(ErrTables)
		}
		at := table + GPA(uint64(va)>>(12+9*(level-1))&511)*8
		e, _ := loadWord(regions, at)
		if level == 1 {
			if e&ptePresent != 0 {
				return fail(ErrMapped)
			}
			flags := uint64(ptePresent | pteAccessed | pteDirty)
			if user {
				flags |= pteUser
			}
			storeWord(regions, at, uint64(pa)|flags)
			return nil
		}
		switch {
		case e&ptePresent == 0:
			next, err := b.alloc()
			if err != nil {
				return fail(err)
			}
			e = uint64(b.base) + uint64(next) | ptePresent | pteWrite | pteUser | pteAccessed
			storeWord(regions, at, e)
		case e&ptePS != 0:
			return fail(ErrMapped)
		}
		table = GPA(e & pteAddr)
	}
}

// mapWindows makes the tables of level 3 for all that a rel32 jump in text can
// reach, so that a guest that copies the top level shares what Map adds later.
func (b *tableBuilder) mapWindows(text []span) error {
	const step = GVA(1) << 39 // what an entry of level 4 covers
	for _, s := range text {
		first, last := s.first-reach, s.last+reach
		for va := first &^ (step - 1); ; va += step {
			if va.Canonical() {
				if _, err := b.entry(va, 3); err != nil {
					return fmt.Errorf("map around %v: %w", s.first, err)
				}
			}
			if va == last&^(step-1) {
				break
			}
		}
	}
	return nil
}
