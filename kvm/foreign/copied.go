package foreign

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// copied is memory of another process, copied as it is used. Each page is
// copied at most once between two calls of drop.
type copied struct {
	pid int

	mu   sync.Mutex
	bits []*copiedRegion
}

// copiedRegion is the copy of one region.
type copiedRegion struct {
	of    *copied
	hva   uint64
	bytes []byte
	has   map[uint64]struct{} // numbers of the chunks that are copied
}

const (
	// chunk is how many bytes are copied at once.
	chunk = 16 << 10

	// maxCopied is how many bytes of copies are kept until the next drop.
	maxCopied = 256 << 20
)

// add adds a region of the guest's memory.
func (c *copied) add(s slot, name string) (guest.Region, error) {
	b, err := unix.Mmap(-1, 0, int(s.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return guest.Region{}, err
	}
	r := &copiedRegion{of: c, hva: s.hva, bytes: b, has: map[uint64]struct{}{}}
	c.bits = append(c.bits, r)
	return guest.Region{Base: guest.GPA(s.gpa), Bytes: b, Name: name, Fetch: r.fetch}, nil
}

// fetch implements guest.Region.
func (r *copiedRegion) fetch(off, n uint64) bool {
	if n == 0 {
		return true
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for at := off / chunk; at <= (off+n-1)/chunk; at++ {
		if _, ok := r.has[at]; ok {
			continue
		}
		if len(r.has)*chunk >= maxCopied {
			r.drop()
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

// copy copies the bytes from lo to hi. Pages that the process has not mapped
// are zeros, as a guest sees pages that its VMM has not touched; a process that
// is gone has none.
func (r *copiedRegion) copy(lo, hi uint64) bool {
	for lo < hi {
		b := r.bytes[lo:hi]
		n, err := unix.ProcessVMReadv(r.of.pid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}, []unix.RemoteIovec{{Base: uintptr(r.hva + lo), Len: len(b)}}, 0)
		if err != nil || n <= 0 {
			return false
		}
		lo += uint64(n)
	}
	return true
}

// drop forgets the copies of a region. Precondition: copied.mu held.
func (r *copiedRegion) drop() {
	if len(r.has) == 0 {
		return
	}
	clear(r.has)
}

// drop forgets all copies, so that memory is read as it is from now on.
func (c *copied) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.bits {
		if len(r.has)*chunk > maxCopied/8 {
			_ = unix.Madvise(r.bytes, unix.MADV_DONTNEED) // only memory that is not needed
		}
		r.drop()
	}
}

// close frees the copies.
func (c *copied) close() (first error) {
	for _, r := range c.bits {
		if err := unix.Munmap(r.bytes); err != nil && first == nil {
			first = err
		}
	}
	c.bits = nil
	return first
}
