package kvm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// TestMain fails the run when a test leaves a goroutine, a descriptor or a
// vCPU's shared memory behind.
func TestMain(m *testing.M) {
	// The runtime's poller opens descriptors of its own at the first use of a
	// file that it can poll; have that happen before counting.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	fds, maps := openFiles(), vcpuMappings()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := openFiles(); code == 0 && n != fds {
			fmt.Fprintf(os.Stderr, "LEAK: %d open files before the tests, %d after\n", fds, n)
			code = 1
		}
		if n := vcpuMappings(); code == 0 && n != maps {
			fmt.Fprintf(os.Stderr, "LEAK: %d vcpu mappings before the tests, %d after\n", maps, n)
			code = 1
		}
		os.Exit(code)
	}))
}

// openFiles returns how many descriptors this process has.
func openFiles() int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(e)
}

// kvmFiles returns how many descriptors of KVM this process has.
func kvmFiles() int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	n := 0
	for _, f := range e {
		if s, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(s, "kvm") {
			n++
		}
	}
	return n
}

// vcpuMappings returns how many vCPUs' shared memories are mapped.
func vcpuMappings() int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		panic(err)
	}
	return bytes.Count(b, []byte("kvm-vcpu"))
}

// The physical memory of the test guest: 2 MiB, identity mapped for CPL 0 and
// 3 by one page. The 2 MiB behind it are mapped as well, but there is nothing.
const (
	boxSize = 2 << 20
	boxPML4 = 0x1000
	boxPDPT = 0x2000
	boxPD   = 0x3000
	boxGDT  = 0x4000
	boxIDT  = 0x5000
	boxTSS  = 0x6000
	boxTop  = 0x9000 // of the stack of CPL 0
	boxUser = 0xa000 // top of the stack of CPL 3
	boxCode = 0x10000
	boxHole = boxSize

	// Handlers of all vectors: `out %al, $vector; iretq`, with two bytes more
	// room, 8 bytes apart.
	boxHandlers = 0x20000

	selCode = 0x08
	selData = 0x10
	selUser = 0x23 // code, RPL 3
	selUDat = 0x1b // data, RPL 3
	selTSS  = 0x28
)

// box is a VM with one vCPU in long mode at CPL 0, at the start of its code.
type box struct {
	tb  testing.TB
	sys *System
	vm  *VM
	v   *VCPU
	mem []byte
	e   Exit
}

// newBox makes a guest that runs code. The calling goroutine is locked to its
// thread for the rest of the test.
func newBox(tb testing.TB, code []byte, opts ...vcpuOption) *box {
	tb.Helper()
	return newBoxWith(tb, code, func(*VM) {}, opts...)
}

// newBoxWith is newBox with a VM that prepare may change before the vCPU.
func newBoxWith(tb testing.TB, code []byte, prepare func(*VM), opts ...vcpuOption) *box {
	tb.Helper()
	kvmtest.Require(tb)
	runtime.LockOSThread()
	tb.Cleanup(runtime.UnlockOSThread)

	b := &box{tb: tb}
	var err error
	check := func() {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	closing := func(f func() error) {
		tb.Cleanup(func() {
			if err := f(); err != nil {
				tb.Error(err)
			}
		})
	}
	b.sys, err = Open("")
	check()
	closing(b.sys.Close)
	b.mem, err = AllocMemory(boxSize)
	check()
	closing(func() error { return FreeMemory(b.mem) })
	b.vm, err = b.sys.CreateVM()
	check()
	closing(b.vm.Close)
	prepare(b.vm)
	err = b.vm.MapMemory(0, 0, b.mem, 0)
	check()
	b.v, err = b.vm.createVCPU(0, opts...)
	check()
	closing(b.v.Close)

	b.fill(code)
	s := *b.v.Sregs()
	longMode(&s)
	err = b.v.SetSregs(&s)
	check()
	err = b.v.SetRegs(&Regs{RIP: boxCode, RSP: boxTop, RFLAGS: 2})
	check()
	b.v.Bind()
	return b
}

// newBoxAt is newBox at a privilege level. User code has access to the ports
// (IOPL 3), as it has where user code is probed.
func newBoxAt(tb testing.TB, cpl int, code []byte, opts ...vcpuOption) *box {
	tb.Helper()
	b := newBox(tb, code, opts...)
	if cpl == 3 {
		userMode(b.v.Sregs())
		b.v.SetSregsDirty()
		*b.v.Regs() = Regs{RIP: boxCode, RSP: boxUser, RFLAGS: 2 | 3<<12}
		b.v.SetRegsDirty()
	}
	return b
}

// fill writes page tables, descriptor tables, handlers and code.
func (b *box) fill(code []byte) {
	const present, write, user, large = 1, 2, 4, 0x80
	b.put64(boxPML4, boxPDPT|present|write|user)
	b.put64(boxPDPT, boxPD|present|write|user)
	b.put64(boxPD, 0|present|write|user|large)
	b.put64(boxPD+8, boxHole|present|write|user|large)

	for i, d := range []uint64{0,
		0x00af9b000000ffff,                 // 0x08 code64, DPL 0
		0x00cf93000000ffff,                 // 0x10 data, DPL 0
		0x00cff3000000ffff,                 // 0x1b data, DPL 3
		0x00affb000000ffff,                 // 0x23 code64, DPL 3
		0x0000890000000067 | boxTSS<<16, 0, // 0x28 TSS
	} {
		b.put64(boxGDT+8*i, d)
	}
	b.put64(boxTSS+4, boxTop) // RSP0
	for v := range 256 {
		h := boxHandlers + 8*v
		copy(b.mem[h:], []byte{0xe6, byte(v), 0x48, 0xcf}) // out %al,$v; iretq
		// Interrupt gate, DPL 3 (SDM Vol. 3, 7.14.1).
		b.put64(boxIDT+16*v, uint64(h&0xffff)|selCode<<16|0xee00<<32|uint64(h>>16)<<48)
		b.put64(boxIDT+16*v+8, 0)
	}
	copy(b.mem[boxCode:], code)
}

func (b *box) put64(at int, x uint64) { binary.LittleEndian.PutUint64(b.mem[at:], x) }
func (b *box) get64(at int) uint64    { return binary.LittleEndian.Uint64(b.mem[at:]) }

// longMode sets s to 64-bit mode at CPL 0 with the box's tables.
func longMode(s *Sregs) {
	code := Segment{Limit: 0xffffffff, Selector: selCode, Typ: 11, Present: 1, S: 1, L: 1, G: 1}
	data := Segment{Limit: 0xffffffff, Selector: selData, Typ: 3, Present: 1, S: 1, DB: 1, G: 1}
	s.CS, s.DS, s.ES, s.FS, s.GS, s.SS = code, data, data, data, data, data
	s.TR = Segment{Base: boxTSS, Limit: 0x67, Selector: selTSS, Typ: 11, Present: 1}
	s.GDT = Descriptor{Base: boxGDT, Limit: 7*8 - 1}
	s.IDT = Descriptor{Base: boxIDT, Limit: 256*16 - 1}
	s.CR3 = boxPML4
	s.CR4 = 1<<5 | 1<<9 | 1<<10 // PAE, OSFXSR, OSXMMEXCPT
	s.CR0 = 1<<31 | 1<<16 | 1<<5 | 1<<4 | 1<<1 | 1
	s.EFER = 1<<10 | 1<<8 // LMA, LME
}

// userMode sets s to 64-bit mode at CPL 3.
func userMode(s *Sregs) {
	longMode(s)
	s.CS.Selector, s.CS.DPL = selUser, 3
	for _, d := range []*Segment{&s.DS, &s.ES, &s.FS, &s.GS, &s.SS} {
		d.Selector, d.DPL = selUDat, 3
	}
}

// run runs the guest to its next exit, over interruptions by the scheduler.
func (b *box) run() *Exit {
	b.tb.Helper()
	for {
		if err := b.v.Run(&b.e); err != nil {
			b.tb.Fatalf("run: %v (regs %+v)", err, *b.v.Regs())
		}
		if b.e.Reason != ReasonInterrupted {
			return &b.e
		}
	}
}

// want runs the guest and fails unless it ends for this reason.
func (b *box) want(r Reason) *Exit {
	b.tb.Helper()
	if e := b.run(); e.Reason != r {
		b.tb.Fatalf("exit %v, want %v\nregs %+v\nraw % x", e.Reason, r, *b.v.Regs(), e.Raw[:64])
	}
	return &b.e
}

// wantOut runs the guest and fails unless it ends with an 8-bit out to port.
func (b *box) wantOut(port uint16) *Exit {
	b.tb.Helper()
	e := b.want(ReasonIO)
	if e.IO.In || e.IO.Port != port || e.IO.Size != 1 || e.IO.Count != 1 || len(e.IO.Data) != 1 {
		b.tb.Fatalf("exit %+v, want an 8-bit out to port %#x\nregs %+v", e.IO, port, *b.v.Regs())
	}
	return e
}
