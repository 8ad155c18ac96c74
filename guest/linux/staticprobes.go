package linux

import (
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/sdt"
)

// Programs is the knowledge that a View has of files with statically defined probes. Its methods may be called from any goroutine.
type Programs struct{ *View }

// StaticProbes returns the statically defined probes of a file (USDT), and its path without symbolic links. Errors are opening the file,
// sdt.ErrNoProbes, sdt.ErrUnknown if the guest does not have the notes in memory, and other errors of sdt.Read.
func (v Programs) StaticProbes(path string) ([]sdt.Probe, string, error) {
	f, err := v.open(path)
	if err != nil {
		return nil, path, err
	}
	fail := func(err error) ([]sdt.Probe, string, error) { return nil, f.path, fmt.Errorf("%s: %w", f.path, err) }
	f.mu.Lock()
	defer f.mu.Unlock()
	missing := false
	for i := range f.have {
		missing = !f.fill(v.View, uint64(i)) || missing
	}
	file, err := elf.Parse(f.data)
	if err != nil && missing { // section headers are at the file's end
		err = sdt.ErrUnknown
	}
	if err != nil {
		return fail(err)
	}
	all, err := sdt.Read(file, f.has)
	if errors.Is(err, sdt.ErrNoProbes) && missing && len(file.Sections) == 0 {
		err = sdt.ErrUnknown
	}
	if err != nil {
		return fail(err)
	}
	return all, f.path, nil
}

// buildIDDigits is the length of a build ID as the kernel has it in its stacks: 20 bytes (BPF_BUILD_ID_SIZE).
const buildIDDigits = 40

// BuildID returns the build ID of the file with the byte at an address of the view, in hexadecimal digits, as the kernel has it: followed
// by zeros up to 20 bytes. It is "" if the address is in no known file, and if the file has no build ID, or a longer one.
func (v Programs) BuildID(addr guest.GVA) string {
	f := v.file(addr)
	if f == nil || f.buildID == "" || len(f.buildID) > buildIDDigits {
		return ""
	}
	return f.buildID + strings.Repeat("0", buildIDDigits-len(f.buildID))
}

// SemaphoreAddr returns the address in the view of a semaphore. off is its offset in the file that contains the probe at addr. It returns an error if
// processes have no writable data there.
func (v Programs) SemaphoreAddr(addr guest.GVA, off uint64) (guest.GVA, error) {
	f := v.file(addr)
	if f == nil {
		return 0, errNoFile
	}
	at := f.base + guest.GVA(off)
	for _, r := range f.writable {
		if off < maxFile && at >= r.Start && at+sdt.SemaphoreSize <= r.End && off%sdt.SemaphoreSize == 0 {
			return at, nil
		}
	}
	return 0, fmt.Errorf("%s: there is no semaphore at offset %#x of the file: want an even offset in data that the program writes to", f.path, off)
}

// FillPage reads the page at addr of a file from the guest's memory, unless the page is already known, and reports whether it
// is known afterwards.
func (v Programs) FillPage(addr guest.GVA) bool {
	f := v.file(addr)
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	index := uint64(addr-f.base) / guest.PageSize
	return index < uint64(len(f.have)) && f.inode.Addr != 0 && f.fill(v.View, index) || index < uint64(len(f.have)) && f.have[index]
}
