package machine

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"weak"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// LinuxConfig describes a Linux guest.
type LinuxConfig struct {
	Kernel *linux.Kernel
	Initrd []byte
	Disks  []device.Disk
	Slide  *uint64 // of the kernel's addresses; nil for one at random (linux.BootOptions), which a reset keeps where shared memory is held
}

// linuxGuest is the payload of a Linux kernel: KVM's interrupt controllers and
// timers, the devices of kvm/device, and the engine's memory in a hole of the
// kernel's own mapping.
type linuxGuest struct {
	cfg    *LinuxConfig
	seen   atomic.Pointer[linux.View]
	boot   *linux.BootState
	first  *linux.View // the view of the kernel before its first instruction
	came   cameBack
	engine engineMemory
	stubs  []trapStub
	files  atomic.Pointer[fileText]
	given  []givenFile // guarded by Machine.mu, except in a reset

	board   atomic.Pointer[board]
	recheck bool                     // checkSlide has to be repeated
	settled bool                     // the text is protected, and the engine's memory mapped or given up
	checked atomic.Pointer[[]string] // how the running kernel confirms the slide
	refused atomic.Pointer[string]   // why the engine gets no memory in the guest, for good
	since   atomic.Uint64            // the console's first line in this boot
	told    bool                     // the kernel's panic is logged
	intrude atomic.Bool              // something other than the kernel has written to its text
	left    atomic.Bool              // another kernel runs
	said    atomic.Pointer[string]   // the last log message about its modules

	calling  atomic.Bool                // callThread runs
	call     atomic.Pointer[threadCall] // the function that the kernel was asked to run, until the host has its result
	callCode atomic.Pointer[guest.Range]
}

// trapStub is a place in the guest's own handler of vector 3 where the host has put
// out %al,$0xf3 instead of a push of two bytes.
type trapStub struct {
	at    guest.GVA
	push  int8 // the value that it pushes
	bytes [2]byte
}

func (g *linuxGuest) view() guest.View { return g.seen.Load() }

func (g *linuxGuest) memoryMap(ram uint64) ([]guest.MemoryRange, error) {
	layout, err := linux.LayoutFor(ram)
	if err != nil {
		return nil, err
	}
	return g.engine.appendRanges(layout.Ranges()), nil
}

func (g *linuxGuest) load(m *Machine, to *snapshot.Snapshot) (*guest.BootState, error) {
	if err := g.createDevices(m); err != nil {
		return nil, err
	}
	if to == nil || !g.keepsMemory(to) {
		if err := g.place(m, to); err != nil {
			return nil, err
		}
	}
	st, view := g.boot, g.first
	if to != nil && g.came.to == weak.Make(to) {
		view = g.came.view
	}
	view = view.Copy()
	home := homeOf(st)
	b := &guest.BootState{Deep: st.CR4&cr4LA57 != 0, Home: home, NX: true, Tables: nil}
	g.seen.Store(view)
	g.files.Store(newFileText(m, view))
	g.restoreFiles(m)
	if s, err := view.Lookup("init_top_pgt"); err == nil {
		b.Root = home.PA + guest.GPA(s.Addr-home.Start)
	}
	g.engine.reset(m.mem.Memory, home, st.Reserved, b)
	g.settled, g.recheck = false, false
	g.refused.Store(nil)
	g.checked.Store(nil)
	g.told = false
	g.since.Store(m.console.nextLine())
	g.intrude.Store(false)
	g.left.Store(false)
	return b, nil
}

// place loads the kernel into memory that is all zeros, the way to says if it is
// not nil, and analyzes it.
func (g *linuxGuest) place(m *Machine, to *snapshot.Snapshot) (err error) {
	slide, la57 := g.cfg.Slide, cpuidLA57(m.cpuid)
	if to != nil && to.Config.Linux != nil {
		slide, la57 = &to.Config.Linux.Slide, la57Of(to)
	} else if slide == nil && g.boot != nil && m.sharedHeld() {
		slide = &g.boot.Slide // code that is restored contains addresses in that memory
	}
	g.boot, g.stubs, g.came = nil, nil, cameBack{}
	st, err := linux.Boot(m.mem.Memory, g.cfg.Kernel, linux.BootOptions{
		RAM: m.cfg.Memory, Cmdline: m.cfg.Cmdline, Initrd: g.cfg.Initrd, RSDP: device.TablesAddr, LA57: la57, Slide: slide, Reserve: engineTableSize,
	})
	if err != nil {
		return err
	}
	g.first, err = linux.NewView(g.cfg.Kernel, st, func(at guest.GVA, p []byte) error { return g.readText(m, at, p) })
	if err != nil {
		return err
	}
	for _, lack := range g.first.MissingFeatures() {
		m.log.Warn("not known of this kernel", "what", lack)
	}
	if m.host.Traps.CPL0.Int3 == host.DeliveryVector {
		g.first.BreakpointsByVector()
		if g.stubs, err = plantStubs(m.mem.Memory, homeOf(st), g.first); err != nil {
			return err
		}
	}
	g.boot = st
	return nil
}

// homeOf is where a kernel was put.
func homeOf(st *linux.BootState) guest.Home {
	return guest.Home{Start: guest.GVA(linux.KernelMap + st.Slide + uint64(st.Image.Base)), Size: st.Image.Size, PA: st.Image.Base}
}

func (g *linuxGuest) build(m *Machine, vm *kvm.VM) error {
	if err := g.createControllers(vm); err != nil {
		return err
	}
	g.board.Load().vm.Store(vm)
	return nil
}

// createControllers implements kept.
func (g *linuxGuest) createControllers(vm *kvm.VM) error {
	if err := vm.SetIdentityMapAddr(identityMapAddr); err != nil {
		return err
	}
	if err := vm.CreateIRQChip(); err != nil {
		return err
	}
	return vm.CreatePIT()
}

// identityMapAddr is the page below the pages at kvm.TSSAddr.
const identityMapAddr = kvm.TSSAddr - guest.PageSize

// setFeatures implements kept.
func (g *linuxGuest) setFeatures(m *Machine, k *kvm.VCPU, id int) error {
	if err := k.SetCPUID(linuxCPUID(m.cpuid, uint32(id), uint32(m.cfg.VCPUs), m.hasDeadlineTimer())); err != nil {
		return err
	}
	if err := k.WireLAPIC(); err != nil {
		return err
	}
	return enableXSave(k, m.cpuid)
}

func (g *linuxGuest) setUp(m *Machine, k *kvm.VCPU, id int, _ *guest.BootState) error {
	if err := g.setFeatures(m, k, id); err != nil {
		return err
	}
	if id > 0 {
		return nil // it waits for its startup interrupt
	}
	var s kvm.Sregs
	if err := k.GetSregs(&s); err != nil {
		return err
	}
	st := g.boot
	kvm.LongMode(&s, st.CS, st.DS, uint64(st.CR3))
	s.CR4 |= st.CR4
	s.EFER |= eferNXE
	s.GDT.Base, s.GDT.Limit = uint64(st.GDT), st.GDTLimit
	s.IDT = kvm.Descriptor{}
	if err := k.SetSregs(&s); err != nil {
		return err
	}
	return k.SetRegs(&kvm.Regs{RIP: uint64(st.RIP), RSI: uint64(st.RSI), RFLAGS: x86.Flag1})
}

func (g *linuxGuest) forwards() bool { return len(g.stubs) > 0 }

func (g *linuxGuest) isStub(rip guest.GVA) bool { return g.stub(rip) != nil }

// stubReturns is false: after the stub, the kernel's own handler continues.
func (g *linuxGuest) stubReturns() bool { return false }

// stub returns the stub whose out is at rip or just before it.
func (g *linuxGuest) stub(rip guest.GVA) *trapStub {
	for i := range g.stubs {
		if s := &g.stubs[i]; rip == s.at || rip == s.at+guest.GVA(len(s.bytes)) {
			return s
		}
	}
	return nil
}

// passToGuest does the push that the stub replaces, and the guest's handler
// continues after it.
func (g *linuxGuest) passToGuest(v *vcpu, _ uint8) error {
	s := g.stub(guest.GVA(v.regs.RIP))
	if s == nil {
		return errors.New("no handler")
	}
	var word [8]byte
	for i := range word {
		word[i] = byte(s.push >> 7)
	}
	word[0] = byte(s.push)
	if err := v.m.target().WriteMemory(guest.GPA(v.sregs.CR3), guest.GVA(v.regs.RSP-8), word[:]); err != nil {
		return err
	}
	v.regs.RSP -= 8
	v.regs.RIP = uint64(s.at) + uint64(len(s.bytes))
	return nil
}

// plantStubs puts an out to guest.PortBreakpoint into the kernel's handlers of
// vector 3: the early one, and the one that the kernel uses once its IDT is set
// up. The out replaces the push at the beginning of each
// (arch/x86/kernel/head_64.S, early_idt_handler_array;
// arch/x86/entry/entry_64.S, idtentry). The kernel rewrites the ENDBR and clac
// before the push as it boots, but not the push.
func plantStubs(mem *guest.Memory, home guest.Home, view *linux.View) (stubs []trapStub, err error) {
	for _, h := range []struct {
		symbol string
		code   []byte // push $0; push $3 of its entry there; push $-1
	}{
		{"early_idt_handler_array", []byte{0x6a, 0x00, 0x6a, x86.VectorBP}},
		{"asm_exc_int3", []byte{0x6a, 0xff}},
	} {
		s, err := view.Lookup(h.symbol)
		if err != nil {
			return nil, err
		}
		b, err := mem.Slice(home.PA+guest.GPA(s.Addr-home.Start), handlerReach)
		if err != nil {
			return nil, err
		}
		at, ok := findCode(b, h.code)
		if !ok {
			return nil, fmt.Errorf("this host delivers breakpoints to the guest's vector 3, and %s does not begin as a handler that could hand them on", h.symbol)
		}
		stubs = append(stubs, trapStub{at: s.Addr + guest.GVA(at), push: int8(h.code[1]), bytes: [2]byte(b[at:])})
		copy(b[at:], guest.TrapStub(guest.PortBreakpoint)[:2])
	}
	return stubs, nil
}

// handlerReach is how many bytes of a handler are searched.
const handlerReach = 128

// findCode returns the offset of the instructions of code in b.
func findCode(b, code []byte) (at int, ok bool) {
	for at < len(b) {
		if bytes.HasPrefix(b[at:], code) {
			return at, true
		}
		i, err := x86.Decode(b[at:])
		if err != nil {
			return 0, false
		}
		at += int(i.Len)
	}
	return 0, false
}

// cr4LA57 is 5-level paging (SDM Vol. 3, 2.5).
const cr4LA57 = 1 << 12

// cpuidLA57 reports whether the processor supports LA57.
func cpuidLA57(entries []kvm.CPUIDEntry) bool { return extendedFeatures(entries).Ecx>>16&1 != 0 }

// cpuidSMAP reports whether the processor has stac.
func cpuidSMAP(entries []kvm.CPUIDEntry) bool { return extendedFeatures(entries).Ebx>>20&1 != 0 }

// extendedFeatures returns leaf 7 of CPUID, with zeros if it does not exist (SDM Vol. 2,
// CPUID).
func extendedFeatures(entries []kvm.CPUIDEntry) (found kvm.CPUIDEntry) {
	for _, e := range entries {
		if e.Function == 7 && e.Index == 0 {
			return e
		}
	}
	return found
}

// linuxCPUID returns the CPUID leaves of one of n vCPUs, each a core of one
// package (SDM Vol. 2, CPUID): the features that KVM supports, the vCPU's APIC
// ID, and with deadline the timer of KVM's local APIC.
func linuxCPUID(entries []kvm.CPUIDEntry, id, n uint32, deadline bool) []kvm.CPUIDEntry {
	out := make([]kvm.CPUIDEntry, len(entries))
	copy(out, entries)
	for i := range out {
		switch e := &out[i]; e.Function {
		case 1:
			const htt, deadlineBit, hypervisor = 1 << 28, 1 << 24, 1 << 31
			e.Ebx = e.Ebx&0x0000ffff | n<<16 | id<<24
			e.Ecx |= hypervisor
			e.Ecx &^= deadlineBit
			if deadline {
				e.Ecx |= deadlineBit
			}
			if n > 1 {
				e.Edx |= htt
			}
		case 4:
			if e.Eax&0x1f != 0 {
				e.Eax = e.Eax&^(0x3f<<26|0xfff<<14) | (n-1)<<26
			}
		case 0xb, 0x1f:
			e.Edx = id
			switch e.Index {
			case 0: // threads of a core
				e.Eax, e.Ebx, e.Ecx = 0, 1, 1<<8
			case 1: // cores of the package
				e.Eax, e.Ebx, e.Ecx = apicBits, n, 2<<8|1
			default:
				e.Eax, e.Ebx, e.Ecx = 0, 0, e.Index
			}
		case 0x80000008:
			e.Ecx = e.Ecx&^0xf0ff | (n-1)&0xff | apicBits<<12
		}
	}
	return out
}

// apicBits is how many bits of an APIC ID number the cores of a package.
const apicBits = 6

// enableXSave enables all extended state that the processor has, as firmware may
// (SDM Vol. 1, 13.3) and the kernel will. KVM derives CPUID's leaf 0DH and the
// XCR0 that it loads from the value that it knows. A host whose KVM does not see
// a guest's xsetbv (QEMU 7.2's TCG with SVM) would not learn a later value:
// kernels then find the size of their state wrong and run without it, or crash.
func enableXSave(k *kvm.VCPU, cpuid []kvm.CPUIDEntry) error {
	const xsave = 1 << 26
	var all uint64
	for _, e := range cpuid {
		switch {
		case e.Function == 1 && e.Ecx&xsave == 0:
			return nil
		case e.Function == 0xd && e.Index == 0:
			all = uint64(e.Edx)<<32 | uint64(e.Eax)
		}
	}
	if all == 0 {
		return nil
	}
	var x kvm.XCRs
	if err := k.GetXCRs(&x); err != nil {
		return err
	}
	x.Registers[0].Value = all // the first is XCR0
	return k.SetXCRs(&x)
}
