package guest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// newMemory returns memory for a guest with ram bytes, as the machine makes it.
func newMemory(t testing.TB, ram uint64) *Memory {
	t.Helper()
	l, err := LayoutFor(ram)
	if err != nil {
		t.Fatal(err)
	}
	m := &Memory{}
	for _, r := range l.Ranges() {
		if err := m.Add(r.Base, make([]byte, r.Size), r.Name); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// bootSound boots soundELF.
func bootSound(t testing.TB, opt BootOptions) (*Memory, *Image, *BootState) {
	t.Helper()
	img, err := ParseELF(soundELF().build())
	if err != nil {
		t.Fatal(err)
	}
	mem := newMemory(t, opt.RAM)
	st, err := Boot(mem, img, opt)
	if err != nil {
		t.Fatal(err)
	}
	return mem, img, st
}

func TestBootState(t *testing.T) {
	const ram = 16<<20 + 3*PageSize
	mem, img, st := bootSound(t, BootOptions{VCPUs: 2, RAM: ram, Cmdline: "a=b", TickUsec: 10000})
	as := NewAddressSpace(mem, st.Root)
	if st.GDTLimit != 39 || !st.NX || len(st.VCPUs) != 2 {
		t.Errorf("state %+v", st)
	}
	for cpu, v := range st.VCPUs {
		if v.RIP != img.Entry || v.RSP%16 != 0 {
			t.Errorf("cpu %d: %+v", cpu, v)
		}
		var b [BootInfoSize]byte
		if err := as.Read(v.RDI, b[:]); err != nil {
			t.Fatal(err)
		}
		want := map[int]uint64{
			BootInfoMagic: BootMagic, BootInfoSizeof: 192, BootInfoRAM: ram, BootInfoVCPU: uint64(cpu) | 2<<32,
			BootInfoCmdlineLen: 3, BootInfoKernelLo: uint64(st.KernelExec.GVA), BootInfoKernelHi: uint64(st.KernelExec.GVA) + ExecSize,
			BootInfoUserLo: uint64(st.UserExec.GVA), BootInfoUserHi: uint64(st.UserExec.GVA) + ExecSize, BootInfoStackTop: uint64(v.RSP),
			BootInfoTickUsec: 10000, BootInfoTimerVec: 0x20, BootInfoFlags: 0, 0x70: 0, 0x78: 0,
		}
		for off, w := range want {
			if got := binary.LittleEndian.Uint64(b[off:]); got != w {
				t.Errorf("cpu %d boot info +%#x = %#x, want %#x", cpu, off, got, w)
			}
		}
		line := make([]byte, 4)
		if err := as.Read(GVA(binary.LittleEndian.Uint64(b[BootInfoCmdline:])), line); err != nil || string(line) != "a=b\x00" {
			t.Errorf("command line %q, %v", line, err)
		}
		// The stack is there, down to the guard page.
		if err := as.Write(v.RSP-StackSize, make([]byte, StackSize)); err != nil {
			t.Error(err)
		}
		if _, err := as.Translate(v.RSP - StackSize - 1); err == nil {
			t.Errorf("cpu %d: the page below the stack is mapped", cpu)
		}
	}
	if string(mustRead(t, as, testKernel, 4)) != string(code(1, 4)) {
		t.Error("kernel text not loaded")
	}
}

func mustRead(t testing.TB, as AddressSpace, va GVA, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if err := as.Read(va, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBootMappings(t *testing.T) {
	const ram = 16<<20 + 3*PageSize
	mem, _, st := bootSound(t, BootOptions{VCPUs: 1, RAM: ram})
	as := NewAddressSpace(mem, st.Root)
	const loader = page1G
	tests := []struct {
		name string
		va   GVA
		want Mapping // Size 0: not mapped
	}{
		{"RAM", 0, Mapping{0, page2M, true, false, false}},
		{"RAM, end of the large pages", 16<<20 - 1, Mapping{16<<20 - 1, page2M, true, false, false}},
		{"RAM, last page", ram - 1, Mapping{ram - 1, page4K, true, false, false}},
		{"behind RAM", ram, Mapping{}},
		{"loader", loader, Mapping{loader, page2M, true, false, true}},
		{"before the loader", loader - 1, Mapping{}},
		{"kernel data", st.KernelData.GVA, Mapping{st.KernelData.GPA, page2M, true, false, true}},
		{"kernel data, end", st.KernelData.End() - 1, Mapping{st.KernelData.GPA + DataSize - 1, page2M, true, false, true}},
		{"user data", st.UserData.GVA, Mapping{st.UserData.GPA, page2M, true, true, true}},
		{"user data, end", st.UserData.End() - 1, Mapping{st.UserData.GPA + DataSize - 1, page2M, true, true, true}},
		{"behind the data", max(st.KernelData.End(), st.UserData.End()), Mapping{}},
		{"kernel text", testKernel, Mapping{0x100000, page4K, false, false, false}},
		{"kernel text, last page", testKernel + 0x1fff, Mapping{0x101fff, page4K, false, false, false}},
		{"kernel data", testKernel + 0x2000, Mapping{0x102000, page4K, true, false, true}},
		{"kernel bss", testKernel + 0x30ff, Mapping{0x1030ff, page4K, true, false, true}},
		{"behind the kernel", testKernel + 0x4000, Mapping{}},
		{"user text", testUser, Mapping{0x200000, page4K, false, true, false}},
		{"behind user text", testUser + 0x1000, Mapping{}},
		{"kernel exec", st.KernelExec.GVA, Mapping{st.KernelExec.GPA, page4K, false, false, false}},
		{"kernel exec, end", st.KernelExec.End() - 1, Mapping{st.KernelExec.GPA + ExecSize - 1, page4K, false, false, false}},
		{"user exec", st.UserExec.GVA, Mapping{st.UserExec.GPA, page4K, false, true, false}},
		{"user exec, end", st.UserExec.End() - 1, Mapping{st.UserExec.GPA + ExecSize - 1, page4K, false, true, false}},
	}
	for _, tt := range tests {
		got, err := as.Translate(tt.va)
		if got != tt.want || (err == nil) != (tt.want.Size != 0) {
			t.Errorf("%s: %v = %+v, %v; want %+v", tt.name, tt.va, got, err, tt.want)
		}
	}
	if st.KernelExec.GPA != loader+LoaderSize || st.UserExec.GPA != loader+LoaderSize+ExecSize || st.Root != loader {
		t.Errorf("state %+v", st)
	}
	if !st.KernelExec.Contains(st.KernelExec.GVA) || st.KernelExec.Contains(st.KernelExec.End()) || st.KernelExec.Contains(st.KernelExec.GVA-1) {
		t.Error("Area.Contains")
	}
	wantGDT := []byte{0, 0, 0, 0, 0, 0, 0, 0,
		0xff, 0xff, 0, 0, 0, 0x9b, 0xaf, 0, 0xff, 0xff, 0, 0, 0, 0x93, 0xcf, 0,
		0xff, 0xff, 0, 0, 0, 0xf3, 0xcf, 0, 0xff, 0xff, 0, 0, 0, 0xfb, 0xaf, 0}
	if got := mustRead(t, as, st.GDT, int(st.GDTLimit)+1); !bytes.Equal(got, wantGDT) {
		t.Errorf("GDT % x", got)
	}
}

// A second boot into memory that the guest has used gives the same guest, with
// its zeros; memory that is no one's stays.
func TestBootAgain(t *testing.T) {
	opt := BootOptions{VCPUs: 2, RAM: 4 << 20, Cmdline: "x", NoNX: true}
	img, err := ParseELF(soundELF().build())
	if err != nil {
		t.Fatal(err)
	}
	fresh, used := newMemory(t, opt.RAM), newMemory(t, opt.RAM)
	for _, r := range used.Regions()[:2] {
		for i := range r.Bytes {
			r.Bytes[i] = 0xee
		}
	}
	a, err := Boot(fresh, img, opt)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Boot(used, img, opt)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, b, cmpopts.IgnoreFields(BootState{}, "Tables")); diff != "" {
		t.Errorf("state: %s", diff)
	}
	x, y := NewAddressSpace(fresh, a.Root), NewAddressSpace(used, b.Root)
	for i := range img.Segments {
		s := &img.Segments[i]
		if !bytes.Equal(mustRead(t, x, s.VAddr, int(s.MemSize)), mustRead(t, y, s.VAddr, int(s.MemSize))) {
			t.Errorf("segment at %v differs", s.VAddr)
		}
	}
	for va := GVA(page1G); va < page1G+LoaderSize; va += PageSize {
		m, e1 := x.Translate(va)
		n, e2 := y.Translate(va)
		if m != n || (e1 == nil) != (e2 == nil) || m.NoExec {
			t.Fatalf("%v: %+v, %v and %+v, %v", va, m, e1, n, e2)
		}
	}
	if got := mustRead(t, y, 0x300000, 1); got[0] != 0xee {
		t.Error("memory without a purpose was changed")
	}
}

func TestBootSharedPage(t *testing.T) {
	e := soundELF()
	e.sections, e.syms = nil, nil
	// Data right after the text, and more code right after the data.
	e.segs[1].vaddr, e.segs[1].paddr, e.segs[1].memsz = testKernel+0x1800, 0x101800, 0
	e.segs = append(e.segs, testSeg{testKernel + 0x1900, 0x101900, code(9, 0x1000), 0, elf.PF_R | elf.PF_X})
	img := mustParse(t, e)
	mem := newMemory(t, 4<<20)
	st, err := Boot(mem, img, BootOptions{VCPUs: 1, RAM: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	as := NewAddressSpace(mem, st.Root)
	for va, want := range map[GVA]Mapping{
		testKernel:          {0x100000, page4K, false, false, false},
		testKernel + 0x1000: {0x101000, page4K, true, false, false},
		testKernel + 0x1900: {0x101900, page4K, true, false, false},
		testKernel + 0x2000: {0x102000, page4K, false, false, false},
	} {
		if got, err := as.Translate(va); err != nil || got != want {
			t.Errorf("%v: %+v, %v; want %+v", va, got, err, want)
		}
	}
	if got := mustRead(t, as, testKernel+0x18fe, 4); !bytes.Equal(got, []byte{0, 1, 9, 10}) {
		t.Errorf("bytes % x", got)
	}
}

// A program linked where the RAM is mapped gets its pages, and the RAM around
// them stays mapped.
func TestBootOverIdentityMap(t *testing.T) {
	e := soundELF()
	e.sections, e.syms = nil, nil
	e.segs[2].vaddr = 0x300000
	mem := newMemory(t, 16<<20)
	st, err := Boot(mem, mustParse(t, e), BootOptions{VCPUs: 1, RAM: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	as := NewAddressSpace(mem, st.Root)
	for va, want := range map[GVA]Mapping{
		0x2ff000: {0x2ff000, page4K, true, false, false},
		0x300000: {0x200000, page4K, false, true, false},
		0x301000: {0x301000, page4K, true, false, false},
		0x200000: {0x200000, page4K, true, false, false},
		0x400000: {0x400000, page2M, true, false, false},
	} {
		if got, err := as.Translate(va); err != nil || got != want {
			t.Errorf("%v: %+v, %v; want %+v", va, got, err, want)
		}
	}
}

func TestBootRefuses(t *testing.T) {
	tests := []struct {
		name string
		opt  func(o *BootOptions)
		elf  func(e *testELF)
		want string
	}{
		{"no vCPU", func(o *BootOptions) { o.VCPUs = 0 }, nil, "boot guest: 0 vCPUs: want 1 to 64"},
		{"too many vCPUs", func(o *BootOptions) { o.VCPUs = 65 }, nil, "boot guest: 65 vCPUs: want 1 to 64"},
		{"odd RAM", func(o *BootOptions) { o.RAM++ }, nil, "boot guest: lay out guest memory: 4194305 bytes of RAM: want a multiple of 4096, up to 64 GiB"},
		{"long command line", func(o *BootOptions) { o.Cmdline = strings.Repeat("x", MaxCmdline+1) }, nil, "boot guest: command line of 4096 bytes: want at most 4095"},
		{"NUL in the command line", func(o *BootOptions) { o.Cmdline = "a\x00b" }, nil, `boot guest: command line "a\x00b": contains a NUL byte`},
		{"memory for less RAM", func(o *BootOptions) { o.RAM = 8 << 20 }, nil, "boot guest: ram: guest memory 0x0, 8388608 bytes: no guest memory there"},
		{"segment outside RAM", nil, func(e *testELF) { e.segs[2].paddr = 0x3ff000 + PageSize }, "boot guest: elf segment at 0x0000010000000000: its 64 bytes at physical address 0x400000 are outside the 4194304 bytes of RAM: give the guest at least 5 MiB"},
		{"segment with a virtual load address", nil, func(e *testELF) { e.segs[0].paddr = testKernel }, "boot guest: elf segment at 0xffffffff80100000: its 6144 bytes at physical address 0xffffffff80100000 are outside the 4194304 bytes of RAM: load it at a low physical address (AT in the linker script)"},
		{"segment over the loader", nil, func(e *testELF) { e.segs[2].vaddr = page1G + LoaderSize - PageSize }, "boot guest: elf segment at 0x0000000040fff000: it overlaps the loader's memory at 0x0000000040000000: link it elsewhere"},
		{"text too far apart", nil, func(e *testELF) { e.segs[2].flags = elf.PF_X }, "boot guest: place the exec area of kernel text: no free 8 MiB of addresses within 2 GiB of all of it: link its text closer together, or away from the RAM's identity map"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, opt := soundELF(), BootOptions{VCPUs: 1, RAM: 4 << 20}
			e.sections, e.syms = nil, nil
			if tt.elf != nil {
				tt.elf(&e)
			}
			if tt.opt != nil {
				tt.opt(&opt)
			}
			st, err := Boot(newMemory(t, 4<<20), mustParse(t, e), opt)
			if errText(err) != tt.want || st != nil {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestBootLimits(t *testing.T) {
	// The longest of everything fits; a stack's end is the loader's end.
	mem, _, st := bootSound(t, BootOptions{VCPUs: MaxVCPUs, RAM: 4 << 20, Cmdline: strings.Repeat("c", MaxCmdline)})
	as := NewAddressSpace(mem, st.Root)
	if st.VCPUs[0].RSP != page1G+LoaderSize {
		t.Errorf("first stack ends at %v", st.VCPUs[0].RSP)
	}
	last := st.VCPUs[MaxVCPUs-1]
	line, err := as.Uint64(last.RDI + BootInfoCmdline)
	if err != nil {
		t.Fatal(err)
	}
	b := mustRead(t, as, GVA(line), MaxCmdline+1)
	if string(b) != strings.Repeat("c", MaxCmdline)+"\x00" {
		t.Error("command line damaged")
	}
}
