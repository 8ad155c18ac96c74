package bpf

import "fmt"

// Area is memory that holds a map, or the run block of a vCPU.
type Area struct {
	Bytes []byte // as the host sees it, aligned to 64
	Addr  uint64 // as compiled code sees it; 0 if only the host uses it
}

// Memory provides the memory of maps. The machine provides guest memory within reach
// of its exec areas; Heap is for programs that only the host runs. Alloc returns size
// zeroed bytes that start at a multiple of 64 and stay where they are until Free.
type Memory interface {
	Alloc(size int) (Area, error)
	Free(Area)
}

// Heap is a Memory of ordinary Go memory, which no guest sees.
type Heap struct{}

// Alloc returns size zeroed bytes; it never fails.
func (Heap) Alloc(size int) (Area, error) {
	return Area{Bytes: alignedBytes(size)}, nil
}

// Free does nothing: the garbage collector does.
func (Heap) Free(Area) {}

// Addresses in a program are not addresses of the machine. They are
//
//	63      48 47            24 23             0
//	+---------+----------------+---------------+
//	| segment | element        | offset        |
//	+---------+----------------+---------------+
//
// where a segment is the context, the stack, a ring record or the values of a map,
// and an element is one value. Every load and store looks its segment up in a table
// and bounds element and offset by the entry there, so arithmetic on a pointer cannot
// reach the neighboring value, let alone anything else. Both back ends use the same
// numbers, and no program can learn or forge an address of the guest or the host.
// With 4-level paging all these addresses are non-canonical; with 5 levels they are
// user addresses that Linux assigns only on request for addresses beyond 47 bits
// (Documentation/arch/x86/x86_64/5level-paging.rst).
const (
	segShift  = 48
	elemShift = 24
	elemMask  = 1<<24 - 1
	offMask   = 1<<24 - 1

	segContext = 1
	segStack   = 2
	segRecords = 3 // one for each reservation that a program can hold at a time
	segMaps    = segRecords + MaxReservations
	maxSegs    = segMaps + MaxMaps + MaxFrames // the segments of for_each_map_elem follow the maps'

	// handleBit distinguishes the handle of a map from an address.
	handleBit = 1 << 62
	// funcBit distinguishes the handle of a function.
	funcBit = 1 << 61
)

// MaxReservations is the most ring records that a program can hold at a time between
// reserve and submit or discard.
const MaxReservations = 4

func segPointer(seg, elem, off int) uint64 {
	return uint64(seg)<<segShift | uint64(elem)<<elemShift | uint64(off)
}

func funcHandle(slot int) uint64 { return funcBit | uint64(slot) }

func mapHandle(i int) uint64 { return handleBit | uint64(i) }

// segment is the memory that addresses of one segment may reach, on the host.
type segment struct {
	bytes    []byte
	stride   uint64 // bytes from element to element
	count    uint64 // elements
	limit    uint64 // bytes of an element
	readOnly bool
}

// bytesAt returns the n bytes at address p, or nil if they are not wholly inside one
// element. It bounds the element by the segment and the slice by the bytes, so that a
// segment with wrong bounds cannot do harm.
func (s *segment) bytesAt(p, n uint64) []byte {
	elem, off := p>>elemShift&elemMask, p&offMask
	if elem >= s.count || off+n > s.limit {
		return nil
	}
	a := elem*s.stride + off
	if a+n > uint64(len(s.bytes)) {
		return nil
	}
	return s.bytes[a : a+n : a+n]
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// nextPow2 returns the smallest power of two that is at least n.
func nextPow2(n int) int {
	p := 1
	for p < n {
		p <<= 1
	}
	return p
}

func quoteKind(k MapKind, name string) string { return fmt.Sprintf("%v %q", k, name) }
