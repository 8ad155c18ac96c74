package guest

import (
	"errors"
	"fmt"
	"sync"
)

// Errors of Tables.Map.
var (
	// ErrMapped: the address is already mapped.
	ErrMapped = errors.New("the address is in use")
	// ErrTables: the guest has changed the tables that it was booted with.
	ErrTables = errors.New("the guest's page tables are not as they were made")
)

// Mapper adds a page, which is not mapped yet, to the page tables of a guest's
// kernel: executable and not writable, for CPL3 if user is set. It fails as
// Tables.Map does.
type Mapper interface {
	Map(va GVA, pa GPA, user bool) error
}

// Tables are the page tables that a guest was booted with, for adding pages while it
// runs. The guest can write to them: their contents are always checked. Any goroutine
// may call Map.
type Tables struct {
	mu    sync.Mutex
	mem   *Memory
	built *tableBuilder
}

// UsedBytes returns how many of the bytes reserved for tables are in use. Any
// goroutine.
func (t *Tables) UsedBytes() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.built.used
}

// Fits reports whether UsedBytes may return n.
func (t *Tables) Fits(n int) bool {
	return n >= PageSize && n <= len(t.built.mem) && n%PageSize == 0
}

// SetUsed restores the number for tables that are now as they were when UsedBytes
// returned n; it returns false if that is impossible.
func (t *Tables) SetUsed(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.Fits(n) {
		return false
	}
	t.built.used = n
	return true
}

// Map maps the 4 KiB page at pa, which is not mapped yet, at va: executable, not
// writable, for CPL3 if user is set. The guest sees it at once: processors don't
// remember that a page was not present (SDM Vol. 3, 4.10.2.3), and a hypervisor that
// shadows the tables looks again when one faults. An address space that the guest has
// made sees it if it shares the upper tables, as one made by copying the top level
// does.
//
// Errors wrap ErrMapped or ErrTables, or say that there is no room for a table.
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

// mapWindows makes the level 3 tables for all addresses within reach of a rel32 jump
// in text, so that a guest that copies the top level shares later additions by Map.
func (b *tableBuilder) mapWindows(text []span) error {
	const step = GVA(1) << 39 // the range of an entry of level 4
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
