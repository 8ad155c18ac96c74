package snapshot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
)

// core writes a core and opens it.
func core(t *testing.T, s *Snapshot) (*elf.File, bool) {
	t.Helper()
	w, err := os.Create(filepath.Join(t.TempDir(), "core"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	partial, err := s.WriteELF(w)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(w)
	if err != nil {
		t.Fatal(err)
	}
	return f, partial
}

// pagedSnapshot is a snapshot whose vCPU has page tables at 0x1000, of these entries: address of the entry, and the entry.
func pagedSnapshot(entries map[uint64]uint64) *Snapshot {
	s := sample()
	b := make([]byte, 16*guest.PageSize)
	for at, e := range entries {
		binary.LittleEndian.PutUint64(b[at:], e)
	}
	copy(b[0x8000:], "hello")
	s.Memory = []Run{{At: 0, Bytes: b}}
	s.CPUs[0].Sregs.CR0, s.CPUs[0].Sregs.CR3 = 1<<31, 0x1000
	s.CPUs[0].Regs.RIP, s.CPUs[1].Regs.RIP = 0x1234, 0x5678
	return s
}

func TestWriteELF(t *testing.T) {
	f, partial := core(t, pagedSnapshot(map[uint64]uint64{
		0x1000 + 511*8: 0x2003, 0x2000 + 510*8: 0x3003, 0x3000: 0x4003, // to 0xffffffff80000000
		0x4000: 0x8001, 0x4008: 0x9001, 0x4010: 0xa003 | pteNX, 0x4018: 0x7000_0000_0001, // the last leads out of memory
		0x3008: 0x0083, // 2 MiB from 0 on, of which there is 1
	}))
	if partial || f.Type != elf.ET_CORE || f.Machine != elf.EM_X86_64 {
		t.Errorf("partial %v, %+v", partial, f.FileHeader)
	}
	type load struct {
		VA, PA, Size uint64
		Flags        elf.ProgFlag
	}
	var got []load
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			got = append(got, load{p.Vaddr, p.Paddr, p.Filesz, p.Flags})
		}
	}
	const base = 0xffffffff80000000
	want := []load{
		{base, 0x8000, 0x2000, elf.PF_R | elf.PF_X}, {base + 0x2000, 0xa000, 0x1000, elf.PF_R | elf.PF_W},
		{base + 0x200000, 0, 1 << 20, elf.PF_R | elf.PF_W | elf.PF_X},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	b := make([]byte, 5)
	if _, err := f.Progs[1].ReadAt(b, 0); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	last := f.Progs[len(f.Progs)-1]
	if _, err := last.ReadAt(b, int64(last.Filesz)-5); err != nil {
		t.Errorf("the end of memory: %v", err)
	}
	notes, err := io.ReadAll(f.Progs[0].Open())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(notes, []byte("VMCOREINFO\x00\x00OSRELEASE=6\n")) {
		t.Error("no VMCOREINFO")
	}
	var rips []uint64
	le := binary.LittleEndian
	for len(notes) > 0 {
		name, size := (le.Uint32(notes)+3)&^3, (le.Uint32(notes[4:])+3)&^3
		if le.Uint32(notes[8:]) == uint32(elf.NT_PRSTATUS) {
			rips = append(rips, le.Uint64(notes[12+name+112+16*8:]))
		}
		notes = notes[12+name+size:]
	}
	if diff := cmp.Diff([]uint64{0x1234, 0x5678}, rips); diff != "" {
		t.Errorf("RIP (-want +got):\n%s", diff)
	}
}

// TestWriteELFOfALoop: page tables that lead back into themselves cost no more than a bound.
func TestWriteELFOfALoop(t *testing.T) {
	entries := map[uint64]uint64{}
	for i := range uint64(512) {
		entries[0x1000+8*i] = 0x1003
	}
	f, partial := core(t, pagedSnapshot(entries))
	if !partial || len(f.Progs) > 1<<16 {
		t.Errorf("partial %v, %d headers", partial, len(f.Progs))
	}
	s := pagedSnapshot(nil)
	s.CPUs[0].Sregs.CR0 = 0 // without page tables
	if f, partial := core(t, s); partial || len(f.Progs) != 2 || !bytes.Equal([]byte{byte(f.Progs[1].Flags)}, []byte{7}) {
		t.Errorf("partial %v, %+v", partial, f.Progs)
	}
}

// TestWriteELFOfAKernel: a Linux kernel's memory is where its own page tables have it, not those of a process, once they are in use.
func TestWriteELFOfAKernel(t *testing.T) {
	entries := map[uint64]uint64{
		0x1000: 0x2003, 0x2000: 0x3003, 0x3000: 0x4003, 0x4000: 0x8003, // the process's, without the kernel
		0x5000 + 256*8: 0x6003, 0x6000: 0x7003, 0x7000: 0x9083, 0x5000: 0x2003, // the kernel's
	}
	const direct = 0xffff_8000_0000_0000
	for _, past := range []bool{false, true} {
		s := pagedSnapshot(entries)
		s.Config.Linux.Past, s.Config.Linux.Root = past, 0x5000
		var want, got []uint64
		if want = []uint64{0}; past {
			want = append(want, direct)
		}
		f, _ := core(t, s)
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD {
				got = append(got, p.Vaddr)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("past its boot %v (-want +got):\n%s", past, diff)
		}
	}
}
