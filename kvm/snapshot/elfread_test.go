package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// memoryFile is a file that is on no disk, for it is written thousands of times.
func memoryFile(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("core", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "core")
}

// coreBytes is a core of s.
func coreBytes(t testing.TB, s *Snapshot) []byte {
	t.Helper()
	f := memoryFile(t)
	defer f.Close()
	if _, err := s.WriteELF(f); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readELF reads a file of these bytes.
func readELF(t testing.TB, b []byte) (*Snapshot, error) {
	t.Helper()
	f := memoryFile(t)
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	return ReadELF(f, 2<<20)
}

// smallSnapshot is a snapshot whose core is small.
func smallSnapshot() *Snapshot {
	s := sample()
	s.Config.Memory, s.Config.RAM = 16<<12, []Range{{0, 12 << 12}, {1 << 30, 4 << 12}}
	for i := range s.CPUs {
		s.CPUs[i].XSave = s.CPUs[i].XSave[:576]
	}
	s.Config.VCPUs, s.CPUs = 1, s.CPUs[:1]
	return s
}

func TestReadELF(t *testing.T) {
	blank := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == "._" }, cmp.Ignore())
	check := func(what string, s *Snapshot, b []byte) {
		t.Helper()
		want := *s
		want.Attached = nil
		got, err := readELF(t, b)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if diff := cmp.Diff(&want, got, blank); diff != "" {
			t.Errorf("%s: (-written +read):\n%s", what, diff)
		}
	}
	s := sample()
	check("runs", s, coreBytes(t, s)) // a file without holes
	s.Memory = append(s.Memory, Run{At: 1<<30 + 0xf000, Bytes: bytes.Repeat([]byte{3}, guest.PageSize)})
	check("its last page", s, coreBytes(t, s))
	s.Memory = nil
	check("no memory", s, coreBytes(t, s))

	// With holes, as it was written.
	s = sample()
	f := memoryFile(t)
	defer f.Close()
	if _, err := s.WriteELF(f); err != nil {
		t.Fatal(err)
	}
	s.Attached = nil
	got, err := ReadELF(f, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, got, blank); diff != "" {
		t.Errorf("with holes (-written +read):\n%s", diff)
	}
	if _, err := ReadELF(f, 1<<20); !errors.Is(err, ErrDamaged) {
		t.Errorf("more memory than there may be: %v", err)
	}
}

// TestNoCore: a core that is cut off anywhere, or changed, is refused, or what was changed is memory, or what only debuggers read.
func TestNoCore(t *testing.T) {
	b := coreBytes(t, smallSnapshot())
	at := bytes.Index(b, []byte(ownName)) + len(ownName) + 2
	data := binary.LittleEndian.Uint64(b[at:])
	for n := 0; n < len(b); n += 1 + n%97 {
		if _, err := readELF(t, b[:n]); !errors.Is(err, ErrTruncated) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	if _, err := readELF(t, append(bytes.Clone(b), 0)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte behind the end: %v", err)
	}
	for i := at; i < int(data); i += 37 {
		c := bytes.Clone(b)
		c[i] ^= 0x40
		if s, err := readELF(t, c); err == nil {
			if diff := cmp.Diff(smallSnapshot().CPUs[0].Regs, s.CPUs[0].Regs); diff != "" {
				t.Errorf("byte %d changed: %s", i, diff)
			}
		} else if !errors.Is(err, ErrVersion) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for what, change := range map[string]func(b []byte){
		"32 bits":         func(b []byte) { b[4] = 1 },
		"big endian":      func(b []byte) { b[5] = 2 },
		"a program":       func(b []byte) { b[16] = 2 },
		"another machine": func(b []byte) { b[18] = 3 },
		"no headers":      func(b []byte) { b[56], b[57] = 0, 0 },
		"no note":         func(b []byte) { b[64] = 1 },
		"another note":    func(b []byte) { b[at-3] ^= 1 },
	} {
		c := bytes.Clone(b)
		change(c)
		if _, err := readELF(t, c); !errors.Is(err, ErrOtherELF) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Read(bytes.NewReader(b), 1<<20); !errors.Is(err, ErrCore) || !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "--core") {
		t.Errorf("a core to go on from: %v", err)
	}
}

// FuzzReadELF: what is read of any file is no more than it has, and is written again as it was. The checksum of the note is made right, or
// nothing behind it would be tried.
func FuzzReadELF(f *testing.F) {
	f.Add(coreBytes(f, smallSnapshot()))
	none := smallSnapshot()
	none.Memory, none.Config.Linux = nil, nil
	f.Add(coreBytes(f, none))
	blank := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == "._" }, cmp.Ignore())
	f.Fuzz(func(t *testing.T, b []byte) {
		rightSum(b)
		s, err := readELF(t, b)
		if err != nil {
			return
		}
		if len(s.CPUs) != s.Config.VCPUs || s.Len() > len(b) {
			t.Errorf("%d vCPUs of %d, %d bytes of memory from %d", len(s.CPUs), s.Config.VCPUs, s.Len(), len(b))
		}
		if s.Config.VCPUs == 0 || s.CPUs[0].Sregs.CR0>>31 != 0 {
			return // tables that lead anywhere: TestWriteELF
		}
		s.Attached = nil
		again, err := readELF(t, coreBytes(t, s))
		if diff := cmp.Diff(s, again, blank); diff != "" || err != nil {
			t.Errorf("read again: %v\n%s", err, diff)
		}
	})
}

// rightSum makes the checksum of a core's note right, where there is one.
func rightSum(b []byte) {
	at := bytes.Index(b, []byte(ownName))
	if at < noteHeader {
		return
	}
	size := uint64(binary.LittleEndian.Uint32(b[at-noteHeader+4:]))
	from := uint64(at-noteHeader+ownHeader) + 8
	if end := from + size - 8; size >= 12 && end <= uint64(len(b)) && from < end-4 {
		binary.LittleEndian.PutUint32(b[end-4:], crc32.Checksum(b[from:end-4], castagnoli))
	}
}
