package probetest

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// faultCases: a fault of a displaced instruction is a fault of the original
// (H.4 item 6).
var faultCases = []testCase{
	{name: "fault_equivalence", needs: []Capability{CanFault}, run: testFaultEquivalence},
	{name: "fault_fixed_up_by_guest", needs: []Capability{CanFault}, run: testFaultFixup},
	{name: "fault_repaired_by_guest", needs: []Capability{CanFault}, run: testFaultRepair},
	{name: "fault_missed", needs: []Capability{CanFault, CanNest}, run: testFaultMissed},
	{name: "fault_handler", needs: []Capability{CanFault}, run: testFaultHandler},
}

// Addresses that fault: unmapped, and not canonical.
const (
	unmapped     = 0x6000_0000_0000
	nonCanonical = 0x8000_0000_0000
)

// Results of the functions when their fault was fixed up.
const (
	minus14 = 1<<64 - 14
	minus8  = 1<<64 - 8
)

// seen is the exception as the guest's own handler saw it.
type seen struct {
	result, vector, code, rip, flags, cr2, count uint64
}

// checkSameFault compares the guest's view of a probed fault with its view of an
// unprobed one. An emulated processor may push no RF for faults, against the
// manual (SDM Vol. 3, 19.3.1.1): there RF is not compared.
func (v *env) checkSameFault(what string, got, unprobed seen) {
	v.Helper()
	const rf = 1 << 16
	if unprobed.flags&rf == 0 {
		got.flags &^= rf
	}
	equal(v, what, got, unprobed)
}

// probeFault calls f and returns its result and the exception that the guest's
// handler saw.
func (v *env) probeFault(f string, args ...uint64) seen {
	v.Helper()
	v.clearFault()
	return v.seenFault(v.call(f, args...))
}

// clearFault clears the exception that the guest's handler saw.
func (v *env) clearFault() {
	v.Helper()
	for _, n := range []string{"fault_vector", "fault_code", "fault_rip", "fault_flags", "fault_cr2", "fault_count"} {
		v.store(n, 0)
	}
}

// seenFault returns the exception that the guest's handler saw.
func (v *env) seenFault(result uint64) seen {
	v.Helper()
	s := seen{result: result, vector: v.load("fault_vector"), code: v.load("fault_code"), rip: v.load("fault_rip"),
		flags: v.load("fault_flags"), count: v.load("fault_count")}
	if s.vector == vecPF {
		s.cr2 = v.load("fault_cr2")
	}
	return s
}

// testFaultEquivalence: however the faulting instruction is run, the guest sees
// the same exception as without a probe: vector, error code, RIP, RFLAGS, CR2,
// and its fixup works. The kernel loses #GP here.
func testFaultEquivalence(v *env) {
	good := uint64(v.addr("const_seven"))
	table := uint64(v.addr("fnptr"))
	for _, q := range []struct {
		f    string
		args []uint64
		want uint64
	}{
		{"x_load", []uint64{good}, 7},
		{"x_load", []uint64{unmapped}, minus14},
		{"x_load", []uint64{nonCanonical}, minus14},
		{"x_load_if", []uint64{good}, 7},
		{"x_load_if", []uint64{unmapped}, 0x200},
		{"x_push", []uint64{unmapped}, minus14},
		{"x_push", []uint64{good + 8}, minus14}, // read-only
		{"x_jmp", []uint64{unmapped}, minus14},
		{"x_jmp", []uint64{nonCanonical}, minus14},
		{"x_jmp", []uint64{table}, uint64(uint32(table)) / 3}, // kprobe_target
		{"x_div", []uint64{20, 6}, 3},
		{"x_div", []uint64{20, 0}, minus8},
	} {
		want := v.probeFault(q.f, q.args...)
		name := fmt.Sprintf("%s%#x", q.f, q.args)
		equal(v, name+" unprobed", want.result, q.want)
		for _, off := range v.offsets(q.f) {
			for _, post := range []func(*probe.Context){nil, func(*probe.Context) {}} {
				p := &probe.Kprobe{Symbol: q.f, Offset: off, Pre: nop, Post: post}
				v.register(p)
				v.checkSameFault(fmt.Sprintf("%s probed at +%#x, post %v", name, off, post != nil), v.probeFault(q.f, q.args...), want)
				v.unregister(p)
			}
		}
	}
}

// testFaultFixup: a fault with a fixup runs pre once and post never.
func testFaultFixup(v *env) {
	for _, bad := range []uint64{unmapped, nonCanonical} {
		pre, post := 0, 0
		p := &probe.Kprobe{Symbol: "x_load", Pre: func(*probe.Context) int { pre++; return 0 }, Post: func(*probe.Context) { post++ }}
		v.register(p)
		s := v.probeFault("x_load", bad)
		equal(v, "x_load", s.result, minus14)
		equal(v, "RIP of the fault", guest.GVA(s.rip), p.Addr)
		equal(v, "pre", pre, 1)
		equal(v, "post", post, 0)
		equal(v, "faults counted", v.stats(p).Faults, 1)
		equal(v, "hits", v.stats(p).Hits, 1)

		// The step is over: the next hit is an ordinary one.
		equal(v, "x_load afterwards", v.call("x_load", uint64(v.addr("const_seven"))), 7)
		equal(v, "pre", pre, 2)
		equal(v, "post", post, 1)
		v.unregister(p)
	}
}

// testFaultRepair: a fault that the guest puts right retries the instruction,
// so the probe fires again: pre twice and post once for one execution.
func testFaultRepair(v *env) {
	pre, post := 0, 0
	p := &probe.Kprobe{Symbol: "x_load", Pre: func(*probe.Context) int { pre++; return 0 }, Post: func(*probe.Context) { post++ }}
	v.register(p)
	v.store("fault_repair", uint64(v.addr("const_seven")))
	equal(v, "x_load", v.call("x_load", unmapped), 7)
	equal(v, "pre", pre, 2)
	equal(v, "post", post, 1)
	v.unregister(p)
}

// testFaultHandler: the host's fault handlers are called before the guest's,
// newest first, until one of them has fixed the fault.
func testFaultHandler(v *env) {
	good := uint64(v.addr("const_seven"))
	for _, f := range []string{"x_load", "x_jmp"} {
		var at guest.GVA
		var trap probe.Trap
		asked, older, pre := 0, 0, 0
		fix := false
		p := &probe.Kprobe{Name: "older", Symbol: f, Fault: func(*probe.Context, probe.Trap) bool { older++; return false }}
		q := &probe.Kprobe{Name: "newer", Symbol: f,
			Pre: func(*probe.Context) int { pre++; return 0 },
			Fault: func(c *probe.Context, t probe.Trap) bool {
				asked++
				at, trap = guest.GVA(c.Regs.RIP), t
				if fix {
					c.Regs.RDI = good
					if f == "x_jmp" {
						c.Regs.RDI = uint64(v.addr("fnptr"))
					}
				}
				return fix
			}}
		v.register(p, q)
		s := v.probeFault(f, unmapped)
		equal(v, f+": not fixed", s.result, minus14)
		equal(v, f+": guest's handler", s.count, 1)
		equal(v, f+": asked", asked, 1)
		equal(v, f+": older asked", older, 1)
		equal(v, f+": RIP in the fault handler", at, p.Addr)
		equal(v, f+": vector", trap.Vector, vecPF)
		equal(v, f+": CR2", trap.CR2, unmapped)

		fix = true
		s = v.probeFault(f, unmapped)
		want := map[string]uint64{"x_load": 7, "x_jmp": uint64(uint32(v.addr("fnptr"))) / 3}[f] // x_jmp goes to kprobe_target
		equal(v, f+": fixed", s.result, want)
		equal(v, f+": guest's handler for a fixed fault", s.count, 0)
		equal(v, f+": asked", asked, 2)
		equal(v, f+": older asked", older, 1)
		equal(v, f+": pre", pre, 3) // the instruction is tried again
		v.unregister(p, q)
	}
}

// testFaultMissed: for a fault of an instruction whose hit was missed, no fault
// handler on the host is called; the guest's handler gets it as usual.
func testFaultMissed(v *env) {
	for _, q := range []struct {
		f    string
		good string
		want uint64
	}{{"x_load", "const_seven", 7}, {"x_jmp", "fnptr", uint64(uint32(v.addr("fnptr"))) / 3}} {
		asked := 0
		var inner uint64
		first := true
		p := &probe.Kprobe{Symbol: q.f,
			Pre: func(c *probe.Context) int {
				if !first {
					return 0
				}
				first = false
				r, err := c.Call(c.Addr, unmapped)
				if err != nil {
					v.Errorf("call: %v", err)
				}
				inner = r
				return 0
			},
			Fault: func(*probe.Context, probe.Trap) bool { asked++; return false },
		}
		v.register(p)
		equal(v, q.f, v.call(q.f, uint64(v.addr(q.good))), q.want)
		equal(v, q.f+" called by the handler", inner, minus14)
		equal(v, q.f+": asked", asked, 0)
		s := v.stats(p)
		equal(v, q.f+": handled", s.Handled, 1)
		equal(v, q.f+": missed", s.Missed, 1)
		v.unregister(p)
	}
}
