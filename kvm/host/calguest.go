package host

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
)

// The calibration guest: one page each, at the same virtual and physical
// address, all of it open to CPL3.
//
//	0x1000 PML4   0x2000 PDPT   0x3000 PD (one 2 MiB page)
//	0x4000 GDT    0x5000 IDT    0x6000 TSS
//	0x7000 code   0x8000 data   stacks grow down from 0xb000, 0xd000, 0xf000
const (
	calMemory = 2 << 20
	calPML4   = 0x1000
	calPDPT   = 0x2000
	calPD     = 0x3000
	calGDT    = 0x4000
	calIDT    = 0x5000
	calTSS    = 0x6000
	calCode   = 0x7000
	calData   = 0x8000
	calStack0 = 0xb000 // CPL0, for tests there
	calStack3 = 0xd000 // CPL3
	calStackX = 0xf000 // exceptions: IST1 of every vector

	calSelTSS = 0x28
	calGDTLen = 0x38
)

// Code of the calibration guest.
const (
	calStub3 = calCode + 0x00 // vector 3
	calStub1 = calCode + 0x10 // vector 1
	calStubX = calCode + 0x20 // all others
	calTests = calCode + 0x40 // one test each 0x10
	calDone  = 0xf5           // port that reports the end of a test
)

// calTest is one experiment: code that runs at a privilege level, and the host's
// setup for it.
type calTest struct {
	name  string
	code  []byte
	trap  uint64 // offset of the address at which the trap is expected
	debug kvm.GuestDebug
}

// outAndStay is code that does an out of AL to a port, and then nothing more.
func outAndStay(port uint8) []byte {
	return x86.Assemble(func(a *x86.Asm) {
		a.Out(port)
		a.Jmp(a.LabelHere())
	})
}

// done ends each test. A fault at it is as good: there are hosts that do not let
// user code reach a port.
var done = outAndStay(calDone)

// testCode returns the code that f assembles, followed by the end of the test.
func testCode(f func(a *x86.Asm)) []byte { return append(x86.Assemble(f), done...) }

// dr7 enables breakpoint 0: L0, G0 and R/W0 and LEN0 (SDM Vol. 3, 18.2.4).
func dr7(rw, length uint64) uint64 { return 0x703 | rw<<16 | length<<18 }

// debugInt3 makes int3 an exit if the host can do that.
const debugInt3 = kvm.DebugEnable | kvm.DebugUseSWBP

var (
	testInt3 = calTest{
		name: "int3", code: testCode((*x86.Asm).Int3), trap: 0,
		debug: kvm.GuestDebug{Control: debugInt3},
	}
	testStep = calTest{
		name: "step", code: testCode(func(a *x86.Asm) { a.Nop(); a.Nop(); a.Nop() }), trap: 1,
		debug: kvm.GuestDebug{Control: debugInt3 | kvm.DebugSingleStep},
	}
	testHWBreak = calTest{
		name: "hwbreak", code: testCode(func(a *x86.Asm) { a.Nop(); a.Nop() }), trap: 1,
		debug: kvm.GuestDebug{Control: debugInt3 | kvm.DebugUseHWBP,
			Reg: [8]uint64{0: calTests + 1, 7: dr7(0, 0)}},
	}
	testWatch = calTest{
		name: "watch", code: testCode(func(a *x86.Asm) { a.Mov(1, x86.At(x86.NoReg, calData), x86.RAX); a.Nop() }), trap: 7,
		debug: kvm.GuestDebug{Control: debugInt3 | kvm.DebugUseHWBP,
			Reg: [8]uint64{0: calData, 7: dr7(1, 0)}},
	}
)

// calibrationMemory writes the guest's tables and stubs into mem, which has
// calMemory bytes.
func calibrationMemory(mem []byte) {
	put := func(a int, w uint64) { binary.LittleEndian.PutUint64(mem[a:], w) }
	const present, write, user, large = 1, 2, 4, 0x80
	put(calPML4, calPDPT|present|write|user)
	put(calPDPT, calPD|present|write|user)
	put(calPD, 0|present|write|user|large)

	// The same descriptors as in guests of guest.Boot: accessed, so that no
	// processor has to write to the table.
	put(calGDT+guest.SelKernelCode, 0x00af9b000000ffff)
	put(calGDT+guest.SelKernelData, 0x00cf93000000ffff)
	put(calGDT+guest.SelUserData&^3, 0x00cff3000000ffff)
	put(calGDT+guest.SelUserCode&^3, 0x00affb000000ffff)
	put(calGDT+calSelTSS, calTSS<<16|0x00008b0000000067) // busy 64-bit TSS, limit 0x67
	put(calGDT+calSelTSS+8, 0)

	binary.LittleEndian.PutUint64(mem[calTSS+4:], calStackX)    // RSP0
	binary.LittleEndian.PutUint64(mem[calTSS+0x24:], calStackX) // IST1 (SDM Vol. 3, 8.7)
	binary.LittleEndian.PutUint16(mem[calTSS+0x66:], 0x68)      // no I/O permission map

	for vector := range 256 {
		stub := uint64(calStubX)
		switch vector {
		case 1:
			stub = calStub1
		case 3:
			stub = calStub3
		}
		guest.PutGate(mem[calIDT+16*vector:], guest.GVA(stub), 1)
	}

	copy(mem[calStub3:], guest.TrapStub(guest.PortBreakpoint))
	copy(mem[calStub1:], guest.TrapStub(guest.PortDebug))
	copy(mem[calStubX:], outAndStay(guest.PortFault))
}

// calibrationSregs sets the special registers of a new vCPU for a test at a
// privilege level.
func calibrationSregs(s *kvm.Sregs, cpl uint8) {
	code, data := uint16(guest.SelKernelCode), uint16(guest.SelKernelData)
	if cpl != 0 {
		code, data = guest.SelUserCode, guest.SelUserData
	}
	kvm.LongMode(s, code, data, calPML4)
	s.GDT.Base, s.GDT.Limit = calGDT, calGDTLen-1
	s.IDT.Base, s.IDT.Limit = calIDT, 0xfff
	s.TR = kvm.Segment{Base: calTSS, Limit: 0x67, Selector: calSelTSS, Typ: 11, Present: 1}
}

// prepare puts the test's code in place and returns the registers that start
// it. IOPL is 3, so that user code may reach the port that ends a test.
func (t *calTest) prepare(mem []byte, cpl uint8) kvm.Regs {
	copy(mem[calTests:], t.code)
	r := kvm.Regs{RIP: calTests, RSP: calStack0, RFLAGS: x86.Flag1 | x86.FlagIOPL}
	if cpl != 0 {
		r.RSP = calStack3
	}
	return r
}

// end returns the address of the test's last part: done.
func (t *calTest) end() uint64 { return calTests + uint64(len(t.code)-len(done)) }
