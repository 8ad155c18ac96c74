package snapshot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// A file of WriteELF has a note of its own, before the ones that debuggers know.
// It has the file offsets of the guest's memory, and a file of WriteTo without
// memory and attachments. The memory in the ELF file is addressed physically,
// independent of page tables.
const (
	ownName = "GUESTPROBE"
	ownType = 0x47505342 // a type that readers of cores do not mistake for another, whatever the name (bfd/elf.c, elfcore_grok_note)

	noteHeader = 12 // lengths of name and contents, type
	ownHeader  = noteHeader + (len(ownName)+1+3)&^3

	maxOwn = maxConfig + maxCPUID + (guest.MaxVCPUs+1)*maxCPU
)

// ErrOtherELF: an ELF file that guestprobe has not written.
var ErrOtherELF = errors.New("it is an ELF file, but not a core from 'guestprobe guest save --elf': the machine state is missing")

// writeOwnNote adds that note, where memory is being left open.
func (s *Snapshot) writeOwnNote(b *bytes.Buffer) error {
	var own bytes.Buffer
	own.Write(make([]byte, 8))
	bare := *s
	bare.Memory, bare.Attached = nil, nil
	if _, err := bare.WriteTo(&own); err != nil {
		return err
	}
	writeNote(b, ownName, ownType, own.Bytes())
	return nil
}

// ReadELF reads a file of WriteELF. It does not restore attachments, which are
// not in the file. It uses as much memory as the guest had that is not zero, and
// a MiB; limit bounds the guest's memory, in bytes. Memory has no checksum in
// such a file, so changes in it are not detected. Errors wrap ErrOtherELF,
// ErrVersion, ErrTruncated or ErrDamaged, or come from f.
func ReadELF(f *os.File, limit uint64) (*Snapshot, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := uint64(st.Size())
	own, err := findOwn(f, size)
	if err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(own, head[:]); err != nil {
		return nil, readError(err)
	}
	s, err := Read(own, 0)
	switch {
	case errors.Is(err, ErrNone):
		return nil, fmt.Errorf("%w: its note has something else", ErrDamaged)
	case err != nil:
		return nil, err
	}
	at := binary.LittleEndian.Uint64(head[:])
	for _, r := range s.Config.RAM {
		switch {
		case r.Size > limit:
			return nil, fmt.Errorf("%w: a guest with more than %d bytes of memory", ErrDamaged, limit)
		case at > size || r.Size > size-at:
			return nil, ErrTruncated
		}
		limit -= r.Size
		if err := s.readRange(f, r, int64(at)); err != nil {
			return nil, err
		}
		at += r.Size
	}
	if at != size {
		return nil, fmt.Errorf("%w: the file has data after the guest's memory", ErrDamaged)
	}
	return s, nil
}

// findOwn returns the contents of the note, as far as the file has them.
func findOwn(f io.ReaderAt, size uint64) (*io.SectionReader, error) {
	read := func(off uint64, v any) error {
		b := make([]byte, binary.Size(v))
		if off > size || uint64(len(b)) > size-off {
			return ErrTruncated
		}
		if _, err := f.ReadAt(b, int64(off)); err != nil {
			return readError(err)
		}
		return decode(b, v)
	}
	var h elf.Header64
	if err := read(0, &h); err != nil {
		return nil, err
	}
	if elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(h.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB ||
		elf.Type(h.Type) != elf.ET_CORE || elf.Machine(h.Machine) != elf.EM_X86_64 || h.Phnum == 0 {
		return nil, ErrOtherELF
	}
	var p elf.Prog64
	if err := read(h.Phoff, &p); err != nil {
		return nil, err
	}
	if elf.ProgType(p.Type) != elf.PT_NOTE || p.Filesz < uint64(ownHeader) {
		return nil, ErrOtherELF
	}
	var n struct {
		NameSize, Size, Type uint32
		Name                 [ownHeader - noteHeader]byte
	}
	if err := read(p.Off, &n); err != nil {
		return nil, err
	}
	if n.Type != ownType || int(n.NameSize) != len(ownName)+1 || string(bytes.TrimRight(n.Name[:], "\x00")) != ownName {
		return nil, ErrOtherELF
	}
	if uint64(n.Size) > min(p.Filesz-uint64(ownHeader), maxOwn) {
		return nil, fmt.Errorf("%w: its note has %d bytes", ErrDamaged, n.Size)
	}
	if uint64(n.Size) > size-p.Off-uint64(ownHeader) { // which are there: they were read
		return nil, ErrTruncated
	}
	return io.NewSectionReader(f, int64(p.Off)+int64(ownHeader), int64(n.Size)), nil
}

// readRange adds the memory of a range that begins at an offset of the file, where it is not zero. Holes of the file are not read.
func (s *Snapshot) readRange(f *os.File, r Range, off int64) error {
	page := make([]byte, runSize)
	for at := int64(0); at < int64(r.Size); {
		next, err := unix.Seek(int(f.Fd()), off+at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // no data up to the end
			return nil
		case err == nil: // a file without holes returns the offset that was asked for
			at = max(at, (next-off)&^(guest.PageSize-1))
		}
		if at >= int64(r.Size) {
			return nil
		}
		b := page[:min(int64(len(page)), int64(r.Size)-at)]
		if _, err := f.ReadAt(b, off+at); err != nil {
			return readError(err)
		}
		s.Memory = AppendRuns(s.Memory, r.Base+guest.GPA(at), b)
		at += int64(len(b))
	}
	return nil
}
