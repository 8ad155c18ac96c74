package foreign

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// copied is a guest's memory, copied as it is used. Each page is copied at most
// once between two calls of drop. It is never mapped, because its owner can cut
// off a file at any time, which would end this process (SIGBUS).
type copied struct {
	mu     sync.Mutex
	bits   []*copiedRegion
	closed bool
}

// copiedRegion is the copy of one region.
type copiedRegion struct {
	of    *copied
	read  func(p []byte, off uint64) (n int, err error)
	bytes []byte
	has   map[uint64]struct{} // numbers of the chunks that are copied
}

const (
	// chunk is how many bytes are copied at once.
	chunk = 16 << 10

	// maxCopied is how many bytes of copies are kept until the next drop.
	maxCopied = 256 << 20
)

// add adds a region of the guest's memory, which read reads: from off on, at
// least one byte or an error.
func (c *copied) add(base guest.GPA, size uint64, name string, read func(p []byte, off uint64) (int, error)) (guest.Region, error) {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return guest.Region{}, err
	}
	r := &copiedRegion{of: c, read: read, bytes: b, has: map[uint64]struct{}{}}
	c.bits = append(c.bits, r)
	return guest.Region{Base: base, Bytes: b, Name: name, Fetch: r.fetch}, nil
}

// fetch implements guest.Region.
func (r *copiedRegion) fetch(off, n uint64) bool {
	if n == 0 {
		return true
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.closed {
		return false
	}
	for at := off / chunk; at <= (off+n-1)/chunk; at++ {
		if _, ok := r.has[at]; ok {
			continue
		}
		if len(r.has)*chunk >= maxCopied {
			clear(r.has)
		}
		lo := at * chunk
		hi := min(lo+chunk, uint64(len(r.bytes)))
		if !r.copy(lo, hi) {
			return false
		}
		r.has[at] = struct{}{}
	}
	return true
}

// copy copies the bytes from lo to hi.
func (r *copiedRegion) copy(lo, hi uint64) bool {
	for lo < hi {
		n, err := r.read(r.bytes[lo:hi], lo)
		if err != nil || n <= 0 {
			return false
		}
		lo += uint64(n)
	}
	return true
}

// processReader reads memory of a process from address hva on.
func processReader(pid int, hva uint64) func(p []byte, off uint64) (int, error) {
	return func(p []byte, off uint64) (int, error) {
		return unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &p[0], Len: uint64(len(p))}}, []unix.RemoteIovec{{Base: uintptr(hva + off), Len: len(p)}}, 0)
	}
}

// drop forgets all copies, so that memory is read as it is from now on.
func (c *copied) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.bits {
		if len(r.has)*chunk > maxCopied/8 {
			_ = unix.Madvise(r.bytes, unix.MADV_DONTNEED) // only memory that is not needed
		}
		clear(r.has)
	}
}

// close frees the copies.
func (c *copied) close() (first error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.bits {
		if err := unix.Munmap(r.bytes); err != nil && first == nil {
			first = err
		}
	}
	c.bits = nil
	c.closed = true
	return first
}
