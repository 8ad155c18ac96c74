package guest

import (
	"encoding/binary"
	"testing"
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
			BootInfoMagic: BootMagic, BootInfoSizeof: 128, BootInfoRAM: ram, BootInfoVCPU: uint64(cpu) | 2<<32,
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
