package kvm

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// Base is a state to which memory of a guest can be restored. The memory is a
// private mapping of an unnamed file with the contents of that state. Whatever
// writes to a page, a vCPU, a device or the host's own code, gets a copy of the
// page from the host. Restoring drops the copies, so it costs only as much as
// was written. KVM's own log of written pages (KVM_GET_DIRTY_LOG) does not
// include the host's writes.
type Base struct {
	mem []byte
	has []uint64 // a bit for each page that the file contains
}

// A gap between two pieces of a base is mapped from the file together with them
// if it is shorter than baseGap or a baseParts'th of all memory. Otherwise each
// piece is a mapping of its own, and a process may have 65,530 of them
// (vm.max_map_count).
const (
	baseGap   = 64 // pages
	baseParts = 1 << 13
)

// NewBase sets mem, memory of AllocMemory, to pieces at their offsets, and to
// zeros elsewhere. The offsets ascend, and offsets and lengths are multiples of
// the page size. The pages of the pieces belong to the host from then on; a
// written page takes memory a second time. No vCPU may run during the call.
// After an error, parts of mem may be zeros.
func NewBase(mem []byte, pieces iter.Seq2[int, []byte]) (*Base, error) {
	fail := func(err error) (*Base, error) { return nil, fmt.Errorf("guest memory from a file: %w", err) }
	if err := ZeroMemory(mem); err != nil {
		return fail(err)
	}
	file, err := memoryFile("guest")
	if err != nil {
		return fail(err)
	}
	defer file.Close() // the mappings keep it
	if err := file.Truncate(int64(len(mem))); err != nil {
		return fail(err)
	}
	page := os.Getpagesize()
	b := &Base{mem: mem, has: make([]uint64, (len(mem)/page+63)/64)}
	gap := max(baseGap*page, len(mem)/baseParts)
	from, to := 0, 0 // the range to be mapped next
	for at, bytes := range pieces {
		if at < to || at%page != 0 || len(bytes)%page != 0 || len(bytes) > len(mem)-at {
			return fail(fmt.Errorf("%d bytes at %#x: %w", len(bytes), at, unix.EINVAL))
		}
		if _, err := file.WriteAt(bytes, int64(at)); err != nil {
			return fail(err)
		}
		for i := at / page; i < (at+len(bytes))/page; i++ {
			b.has[i/64] |= 1 << (i % 64)
		}
		if at-to >= gap {
			if err := b.mapFile(file, from, to); err != nil {
				return fail(err)
			}
			from = at
		}
		to = at + len(bytes)
	}
	if err := b.mapFile(file, from, to); err != nil {
		return fail(err)
	}
	return b, nil
}

// mapFile maps a part of the file where it belongs.
func (b *Base) mapFile(file *os.File, from, to int) error {
	if from == to {
		return nil
	}
	return mapOver(b.mem[from:to], int(file.Fd()), int64(from))
}

// memoryFile creates an unnamed file in memory.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// dropGap is how many unwritten pages are dropped together with their neighbors,
// which costs less than another call.
const dropGap = 8

// Restore sets the memory to its state after NewBase. It returns how many pages
// were written since, or the number of all pages if the host does not know. No
// vCPU may run during the call.
func (b *Base) Restore() (pages int, err error) {
	page := os.Getpagesize()
	from, to := 0, 0
	drop := func() {
		if from < to && err == nil {
			err = unix.Madvise(b.mem[from:to], unix.MADV_DONTNEED)
		}
	}
	pagesWith(b.mem, func(_ int, entry uint64) bool { return entry&(pagePresent|pageSwapped) != 0 && entry&pageOfFile == 0 }, func(at, end int) {
		pages += (end - at) / page
		if at-to > dropGap*page {
			drop()
			from = at
		}
		to = end
	})
	if drop(); err != nil {
		return pages, fmt.Errorf("drop the changes of guest memory: %w", err)
	}
	return pages, nil
}

// ForEachTouched is TouchedMemory, and also includes all pages of the base, even
// if they were not accessed.
func (b *Base) ForEachTouched(f func([]byte)) {
	pagesWith(b.mem, func(page int, entry uint64) bool {
		return b.has[page/64]>>(page%64)&1 != 0 || entry&(pagePresent|pageSwapped) != 0
	}, func(from, to int) { f(b.mem[from:to]) })
}
