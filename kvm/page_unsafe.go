package kvm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageOf returns the kvm_run structure at the start of a vCPU's mapping.
func pageOf(mapping []byte) *runPage {
	if len(mapping) < sizeofRunPage {
		panic("BUG: kvm: vCPU mapping is smaller than struct kvm_run")
	}
	// SAFETY: the mapping is page aligned, at least as large as runPage, and
	// stays mapped until VCPU.Close, which drops the pointer. The memory is not
	// the Go heap's, and runPage holds no Go pointers.
	return (*runPage)(unsafe.Pointer(unsafe.SliceData(mapping)))
}

// addressOf returns the host virtual address of a guest memory block for
// KVM_SET_USER_MEMORY_REGION. The VM keeps the slice, so that the address
// stays good as long as the slot exists.
func addressOf(mem []byte) uint64 {
	// SAFETY: only the number is used; the Go heap does not move, and the
	// caller keeps mem alive.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// mapOver puts private memory in the place of mem: that of the file fd from offset on, or zeros where that is -1.
func mapOver(mem []byte, fd int, offset int64) error {
	flags := unix.MAP_PRIVATE | unix.MAP_NORESERVE | unix.MAP_FIXED
	if fd < 0 {
		flags |= unix.MAP_ANONYMOUS
	}
	// SAFETY: the addresses belong to a mapping of ours outside the Go heap, and
	// stay mapped: only the memory at these addresses is replaced.
	_, err := unix.MmapPtr(fd, offset, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, flags)
	return err
}
