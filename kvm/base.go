package kvm

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// Base is what memory of a guest comes back to. The memory is a private mapping of a file without a name that has the contents, so
// that the host gives whoever writes to a page, a vCPU, a device or the host's own code, a copy of it, and the way back is to drop the
// copies: it costs what was written. KVM's own log of written pages (KVM_GET_DIRTY_LOG) would not know what the host has written.
type Base struct {
	mem []byte
	has []uint64 // a bit for each page of which the file has bytes
}

// What is between two pieces of a base is mapped from the file with them where it is less than this, or a part of all of it: each
// piece on its own is a mapping, of which a process may have 65,530 (vm.max_map_count).
const (
	baseGap   = 64 // pages
	baseParts = 1 << 13
)

// NewBase makes mem, memory of AllocMemory, what pieces have at their offsets, which ascend, and zeros elsewhere; all of that
// in whole pages. Pages of the pieces are the host's from then on, and those of mem that somebody writes to are so once more. No vCPU
// runs meanwhile. After an error mem has zeros in the place of some of it.
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
	from, to := 0, 0 // what is to be mapped
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

// memoryFile makes a file that has no name, and whose bytes are memory.
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

// dropGap is how many pages that nobody has written are dropped with their neighbours, which costs less than another call.
const dropGap = 8

// Restore makes the memory what it was when NewBase had made it, and returns how many pages somebody had written since, or
// all where the host does not say. No vCPU runs meanwhile.
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
		return pages, fmt.Errorf("drop what was written to guest memory: %w", err)
	}
	return pages, nil
}

// Touched is TouchedMemory: pages that the base has are in it, whether somebody has looked at them or not.
func (b *Base) Touched(f func([]byte)) {
	pagesWith(b.mem, func(page int, entry uint64) bool {
		return b.has[page/64]>>(page%64)&1 != 0 || entry&(pagePresent|pageSwapped) != 0
	}, func(from, to int) { f(b.mem[from:to]) })
}
