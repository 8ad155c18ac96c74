package linux

import (
	debugelf "debug/elf"

	"github.com/guestprobe/guestprobe/guest"
)

// Limits of the call frame information of files.
const (
	maxFileRows = 1 << 19 // of one file
	allFileRows = 1 << 21 // of all
)

// fileFrames is the call frame information of a file, as far as the guest has it in memory.
type fileFrames struct {
	*guest.FrameTable
	bytes uint64 // that were read
	whole bool
}

// readFrames reads the call frame information of f again, if more of it is in memory. Callers hold mu.
func (u *userFiles) readFrames(f *userFile, v *View) {
	old := f.frames.Load()
	if old != nil && old.whole {
		return
	}
	left := allFileRows
	for _, other := range u.all {
		if t := other.frames.Load(); t != nil && other != f {
			left -= t.Rows()
		}
	}
	f.mu.Lock()
	at, section, whole := f.ehFrame(v)
	f.mu.Unlock() // hits wait for it, and these bytes do not change
	if len(section) == 0 || old != nil && old.bytes == uint64(len(section)) {
		return
	}
	// Information before an error is valid.
	table, _ := guest.NewFrameTable(section, at, min(left, maxFileRows))
	f.frames.Store(&fileFrames{table, uint64(len(section)), whole})
}

// ehFrame returns the address of the section .eh_frame in terms of the program headers, and its bytes from there to the end of the program
// header; whole is not set if some are not in the guest's memory, and it returns only those in front of them. Callers hold f.mu.
func (f *userFile) ehFrame(v *View) (at guest.GVA, section []byte, whole bool) {
	whole = true
	for _, h := range f.headers {
		if debugelf.ProgType(h.Type) != debugelf.PT_GNU_EH_FRAME {
			continue
		}
		const most = 12 // bytes of the header up to the address
		b, _ := f.presentBytes(v, h.Off, min(h.Filesz, most))
		at, err := guest.EHFrame(b, guest.GVA(h.Vaddr))
		if err != nil {
			return 0, nil, false
		}
		for _, load := range f.headers {
			if off := uint64(at) - load.Vaddr; debugelf.ProgType(load.Type) == debugelf.PT_LOAD && off < load.Filesz {
				section, whole = f.presentBytes(v, load.Off+off, load.Filesz-off)
				return at, section, whole
			}
		}
	}
	return 0, nil, true
}

// presentBytes returns up to n bytes from off on, fewer if the guest does not have all of them in memory. Callers hold f.mu.
func (f *userFile) presentBytes(v *View, off, n uint64) (b []byte, whole bool) {
	if off >= uint64(len(f.data)) {
		return nil, true
	}
	end := off + min(n, uint64(len(f.data))-off)
	for at := off; at < end; at = (at/guest.PageSize + 1) * guest.PageSize {
		if !f.fill(v, at/guest.PageSize) {
			return f.data[off:max(off, at)], false
		}
	}
	return f.data[off:end], true
}

// frameRule returns the rule for the instruction at an address of the file. It allocates nothing.
func (f *userFile) frameRule(pc guest.GVA) (guest.FrameRule, bool) {
	t := f.frames.Load()
	at, ok := f.addressOf(uint64(pc - f.base))
	if t == nil || !ok {
		return guest.FrameRule{}, false
	}
	return t.Rule(guest.GVA(at))
}
