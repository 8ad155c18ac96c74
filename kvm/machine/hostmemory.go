package machine

import (
	"errors"
	"fmt"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// memory is the guest's memory, by physical address, and where that is on the host. Its ranges stay from New to Close.
type memory struct {
	*guest.Memory
	regions [][]byte            // memory to free, in the order of Memory.Regions
	ranges  []guest.MemoryRange // the same
	bases   []*kvm.Base         // the base of each region, or nil: see restore
	based   weak.Pointer[snapshot.Snapshot]
}

// allocate allocates host memory for these ranges.
func (m *memory) allocate(ranges []guest.MemoryRange) error {
	for _, r := range ranges {
		b, err := kvm.AllocMemory(int(r.Size))
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		m.regions, m.ranges, m.bases = append(m.regions, b), append(m.ranges, r), append(m.bases, nil)
		if err := m.Add(r.Base, b, r.Name); err != nil {
			return err
		}
	}
	return nil
}

// mapInto maps the memory into a VM. The engine's memory for code is mapped
// read-only if the host can do that (readonly), so that the guest cannot write
// there even through page tables of its own.
func (m *memory) mapInto(vm *kvm.VM, readonly bool) error {
	for i, r := range m.ranges {
		var flags kvm.MemoryFlags
		if r.Kind == guest.RangeExec && readonly {
			flags = kvm.MemReadOnly
		}
		if err := vm.MapMemory(i, uint64(r.Base), m.regions[i], flags); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return nil
}

// zero zeroes all guest memory by returning its pages to the host. No vCPU runs.
func (m *memory) zero() error {
	m.based = weak.Pointer[snapshot.Snapshot]{}
	for i, b := range m.regions {
		m.bases[i] = nil
		if err := kvm.ZeroMemory(b); err != nil {
			return fmt.Errorf("%s: %w", m.Regions()[i].Name, err)
		}
	}
	return nil
}

// forEachTouched calls f with each run of pages of a region that may not be zeros. No vCPU runs.
func (m *memory) forEachTouched(region int, f func([]byte)) {
	if b := m.bases[region]; b != nil {
		b.ForEachTouched(f)
	} else {
		kvm.TouchedMemory(m.regions[region], f)
	}
}

// free returns the memory to the host.
func (m *memory) free() error {
	var errs []error
	for _, b := range m.regions {
		errs = append(errs, kvm.FreeMemory(b))
	}
	m.regions, m.ranges, m.bases = nil, nil, nil
	return errors.Join(errs...)
}

// zeroEngine zeroes all memory that is not the guest's own.
func (m *memory) zeroEngine() error {
	for i, r := range m.ranges {
		if r.Kind == guest.RangeRAM {
			continue
		}
		if err := unix.Madvise(m.regions[i], unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("zero %s: %w", r.Name, err)
		}
	}
	return nil
}

// checkFit returns an error that wraps ErrOtherGuest if s has memory at
// addresses where this machine has none.
func (m *memory) checkFit(s *snapshot.Snapshot) error {
	at := 0
	for _, r := range m.ranges {
		for r.Kind == guest.RangeRAM && at < len(s.Memory) && s.Memory[at].At-r.Base < guest.GPA(r.Size) && uint64(s.Memory[at].At-r.Base)+uint64(len(s.Memory[at].Bytes)) <= r.Size {
			at++
		}
	}
	if at < len(s.Memory) {
		return fmt.Errorf("%w: it has memory at %v", ErrOtherGuest, s.Memory[at].At)
	}
	return nil
}

// restore writes the contents of s to the guest's own memory. If the guest was
// restored from s before, only pages that anything has written to since then are
// restored. again reports that case, and written the number of pages.
// Precondition: no vCPU has a thread, and no device works.
func (m *memory) restore(s *snapshot.Snapshot) (again bool, written int, err error) {
	again = m.based == weak.Make(s)
	next := 0
	m.based = weak.Pointer[snapshot.Snapshot]{}
	for i, r := range m.ranges {
		if r.Kind != guest.RangeRAM {
			continue
		}
		if again {
			n, err := m.bases[i].Restore()
			if err != nil {
				return again, written, err
			}
			written += n
			continue
		}
		m.bases[i], err = kvm.NewBase(m.regions[i], func(yield func(int, []byte) bool) {
			for ; next < len(s.Memory) && s.Memory[next].At-r.Base < guest.GPA(r.Size); next++ {
				if run := &s.Memory[next]; !yield(int(run.At-r.Base), run.Bytes) {
					return
				}
			}
		})
		if err != nil {
			return again, written, err
		}
	}
	m.based = weak.Make(s)
	return again, written, nil
}

// kindOf returns the purpose of memory.
func (m *memory) kindOf(pa guest.GPA) guest.RangeKind {
	for _, r := range m.ranges {
		if uint64(pa-r.Base) < r.Size {
			return r.Kind
		}
	}
	return guest.RangeRAM
}

// free4G reports whether the addresses below 4 GiB where KVM may keep its pages
// for real mode have no memory.
func (m *memory) free4G() bool {
	for _, r := range m.Regions() {
		if end := uint64(r.Base) + uint64(len(r.Bytes)); end > kvm.TSSAddr && uint64(r.Base) < 4<<30 {
			return false
		}
	}
	return true
}

// end returns the address after all memory.
func (m *memory) end() uint64 {
	last := m.ranges[len(m.ranges)-1]
	return uint64(last.Base) + last.Size
}
