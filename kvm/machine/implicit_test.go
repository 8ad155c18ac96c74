package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// systemPages are what the processor accesses by itself in the built-in guest: the rows of the table in
// docs/definitions.md. written says that it writes there, too.
var systemPages = []struct {
	name    string
	at      func(t *testing.T, m *Machine) guest.GVA
	written bool
}{
	{"GDT", variable("gdt", 8), true},
	{"IDT", variable("idt", 0), false},
	{"TSS", variable("tss", 8), false},
	{"permissions of I/O", variable("tss", 0x60), false},
	{"RSP0", stackOf(tssRSP), true},
	{"IST", stackOf(tssIST), true},
}

// variable returns the address of a variable of the guest.
func variable(name string, off guest.GVA) func(*testing.T, *Machine) guest.GVA {
	return func(t *testing.T, m *Machine) guest.GVA {
		t.Helper()
		s, err := m.Image().Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		return s.Addr + off
	}
}

// stackOf returns where exceptions push on a stack that the first TSS of a guest names, which has booted.
func stackOf(off guest.GVA) func(*testing.T, *Machine) guest.GVA {
	return func(t *testing.T, m *Machine) guest.GVA {
		t.Helper()
		var b [8]byte
		if err := m.Peek(variable("tss", off)(t, m), b[:]); err != nil {
			t.Fatal(err)
		}
		return guest.GVA(binary.LittleEndian.Uint64(b[:])) - 8
	}
}

// TestWatchImplicit watches each of systemPages with emulate: in a guest that runs it is refused, if the processor accesses the page in a
// way that a protected one does not have; attached before the guest has made it such a page, the watch ends then.
// What the guest computes is what it computes without.
func TestWatchImplicit(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=1"}
	first := newMachine(t, config)
	want := results(t, first)
	for _, page := range systemPages {
		at := page.at(t, first)
		for _, access := range []probe.Access{probe.AccessRead, probe.AccessWrite, probe.AccessReadWrite} {
			refused := page.written || access&probe.AccessRead != 0
			t.Run(fmt.Sprintf("%s %v", page.name, access), func(t *testing.T) {
				// Before it boots.
				m := newMachine(t, config)
				w := &probe.Watch{Addr: at, Len: 8, Access: access, Emulate: true}
				if err := m.Engine().Watch(w); err != nil {
					t.Fatal(err)
				}
				got := results(t, m)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("results (-unwatched +watched):\n%s", diff)
				}
				info, _ := m.Engine().WatchInfo(w)
				if page.name != "IST" && page.name != "RSP0" && info.Armed == refused { // other stacks may do
					t.Errorf("%+v, want it ended: %v", info, refused)
				}
				if !info.Armed && page.name != "RSP0" { // that is another stack by now
					wantRefused(t, m.Engine().EnableWatch(w), probe.CodeImplicit, syscall.EBUSY)
				}
				// While it runs, or has run: what the registers name stays.
				fresh := &probe.Watch{Addr: page.at(t, m), Len: 8, Access: access, Emulate: true}
				err := m.Engine().Watch(fresh)
				if refused {
					wantRefused(t, err, probe.CodeImplicit, syscall.EBUSY)
					if x := (*probe.Error)(nil); !errors.As(err, &x) || !strings.Contains(x.Text, " of vCPU 0") || x.Detail == "" {
						t.Errorf("%v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// pagedGuest goes to page tables of its own, which the host has put to 0x600000 on, and counts in RBX what it reads there.
var pagedGuest = append(append([]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, pagedRoot)...), // 00 mov $,%rax
	0x0f, 0x22, 0xd8, // 0a mov %rax,%cr3
	0xb9, 0x00, 0x10, 0x00, 0x00, // 0d mov $0x1000,%ecx
	0xff, 0xc3, // 12 inc %ebx
	0xff, 0xc9, // 14 dec %ecx
	0x75, 0xfa, // 16 jne 12
	0x89, 0xd8, // 18 mov %ebx,%eax
	0xe7, guest.PortExit, // 1a out %eax,$0xf4
	0xeb, 0xfe) // 1c jmp 1c

const pagedRoot = 0x600000

// TestWatchPageTable watches a page that the guest makes a page table, by another address than the processor uses: it
// is refused once it is one, and ended when it becomes one.
func TestWatchPageTable(t *testing.T) {
	for _, access := range []probe.Access{probe.AccessWrite, probe.AccessReadWrite} {
		m := newMachine(t, Config{Image: tinyGuest(t, pagedGuest, nil, tinySym{"paged", tinyText, uint64(len(pagedGuest))}), Memory: 16 << 20, Tick: -1})
		err := m.Look(func(l *Look) error {
			root := make([]byte, guest.PageSize)
			b, err := m.mem.Slice(m.space(0).Root(), guest.PageSize)
			copy(root, b)
			if err != nil {
				return err
			}
			return l.Write(0, pagedRoot, root)
		})
		if err != nil {
			t.Fatal(err)
		}
		w := &probe.Watch{Addr: pagedRoot + 0x800, Len: 8, Access: access, Emulate: true}
		if err := m.Engine().Watch(w); err != nil {
			t.Fatal(err)
		}
		if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != 0x1000 {
			if m.Host().Traps.CPL0.Int3 == host.DeliveryEmulation {
				t.Errorf("%v: %+v", access, s)
			}
			// A triple fault of SVM has reset the registers, so that nothing can be tried again (docs/definitions.md).
			t.Logf("%v: %s, %v", access, s.Phase, s.Crash)
			if s.Crash == nil || !s.Crash.RegsLost || !strings.Contains(s.Crash.Text, string(probe.CodeImplicit)) {
				t.Errorf("%v: the reason does not name the watch: %+v", access, s.Crash)
			}
			continue
		}
		wantRefused(t, m.Engine().Watch(&probe.Watch{Addr: pagedRoot + 8, Len: 8, Access: access, Emulate: true}), probe.CodeImplicit, syscall.EBUSY)
	}
}

// TestWatchKVMArea: what KVM itself writes, because an MSR names it, is not watched by protecting it.
func TestWatchKVMArea(t *testing.T) {
	const systemTime = 0x4b564d01
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20, Tick: -1})
	err := m.Stop(func(probe.World) error {
		return m.vcpus[0].kvm.SetMSRs([]kvm.MSR{{Index: systemTime, Data: 0x500000 | 1}})
	})
	if err != nil {
		t.Logf("this KVM has no clock for guests: %v", err)
		return
	}
	for _, access := range []probe.Access{probe.AccessWrite, probe.AccessReadWrite} {
		wantRefused(t, m.Engine().Watch(&probe.Watch{Addr: 0x500100, Len: 8, Access: access, Emulate: true}), probe.CodeImplicit, syscall.EBUSY)
	}
	if err := m.Engine().Watch(&probe.Watch{Addr: 0x501000, Len: 8, Access: probe.AccessReadWrite, Emulate: true}); err != nil {
		t.Error(err)
	}
}

// TestTripleFaultWatched: a guest that ends for a reason of its own ends so with a watch, too.
func TestTripleFaultWatched(t *testing.T) {
	kvmtest.Require(t)
	code := asm([]byte{0x48, 0x31, 0xc0, 0x50, 0x50, 0x0f, 0x01, 0x1c, 0x24, 0x0f, 0x0b}) // lidt of a limit of 0; ud2
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil), Memory: 16 << 20, Tick: -1})
	if err := m.Engine().Watch(&probe.Watch{Addr: 0x500000, Len: 8, Access: probe.AccessReadWrite, Emulate: true}); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	s, err := m.Wait(patience.Context(t))
	if err != nil || s.Phase != PhaseCrashed || s.Crash.Kind != CrashTripleFault {
		t.Errorf("%v, %+v", err, s)
	}
}
