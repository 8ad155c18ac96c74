package probetest

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/probe"
)

// equivalenceCases run functions whose result shows any difference between an
// instruction that the processor executes and one that the engine has had
// executed (H.4 item 2; the kernel fails five of these).
var equivalenceCases = []testCase{
	{name: "emulation_equivalence_each", run: func(v *env) { testEquivalence(v, false) }},
	{name: "emulation_equivalence_all", run: func(v *env) { testEquivalence(v, true) }},
}

// equivalences are functions, arguments, and the result according to the
// processor manuals. A want of 0 with any set means the result of the unprobed
// function.
var equivalences = []struct {
	f    string
	args []uint64
	want uint64
	any  bool
}{
	{f: "e_loop", args: []uint64{1}, want: 2},
	{f: "e_loop", args: []uint64{2}, want: 1 + 8},
	{f: "e_loop", args: []uint64{0}, want: 1<<64 - 7},
	{f: "e_loop32", args: []uint64{1 << 32}, want: 1 + 8*0xffffffff},
	{f: "e_loop32", args: []uint64{7<<32 | 1}, want: 2},
	{f: "e_loop32", args: []uint64{2}, want: 1 + 8},
	{f: "e_loopne", args: []uint64{2, 0}, want: 2 + 8},
	{f: "e_loopne", args: []uint64{2, 1}, want: 1 + 8},
	{f: "e_loopne", args: []uint64{1, 1}, want: 2},
	{f: "e_jrcxz", args: []uint64{0}, want: 1},
	{f: "e_jrcxz", args: []uint64{1 << 32}, want: 2},
	{f: "e_jecxz", args: []uint64{1 << 32}, want: 1},
	{f: "e_jecxz", args: []uint64{1}, want: 2},
	{f: "e_retimm", args: []uint64{1, 2}, want: 0},
	{f: "e_callreg", args: []uint64{33}, want: 11},
	{f: "e_callmem", args: []uint64{33}, want: 11},
	{f: "e_callprefix", args: []uint64{33}, want: 11},
	{f: "e_callstack", want: 5},
	{f: "e_jumptable", args: []uint64{0}, want: 10},
	{f: "e_jumptable", args: []uint64{1}, want: 11},
	{f: "e_jumptable", args: []uint64{2}, want: 12},
	{f: "e_jumptable", args: []uint64{3}, want: 1<<64 - 1},
	{f: "e_jmpreg", want: 21},
	{f: "e_cond", args: []uint64{0}, any: true},
	{f: "e_cond", args: []uint64{0x8d5}, any: true},
	{f: "e_cond", args: []uint64{cf}, any: true},
	{f: "e_cond", args: []uint64{zf | pf}, any: true},
	{f: "e_cond", args: []uint64{sf}, any: true},
	{f: "e_cond", args: []uint64{of}, any: true},
	{f: "e_cond", args: []uint64{sf | of | zf}, any: true},
	{f: "e_flags", args: []uint64{0x0123456789abcdef, 0xfedcba9876543210}, any: true},
	{f: "e_flags", args: []uint64{0, 1<<64 - 1}, any: true},
	{f: "e_flags", args: []uint64{1 << 63, 1 << 63}, any: true},
	{f: "e_stack", args: []uint64{0x1234}, any: true},
	{f: "e_stack", args: []uint64{0xffffffffffff8001}, any: true},
	{f: "e_riprel", args: []uint64{77}, any: true},
	{f: "e_riprel", args: []uint64{1<<64 - 2}, any: true},
	{f: "e_string", args: []uint64{0xab}, want: 0xabababababababab + 40},
	{f: "e_arith", args: []uint64{12345, 678910}, any: true},
	{f: "e_arith", args: []uint64{3, 5}, any: true},
	{f: "f_endbr", args: []uint64{8}, want: 9},
	{f: "f_emulate", args: []uint64{0xff00, 0x0ff0}, want: 0xf0f0},
	{f: "f_step", args: []uint64{0x12345678}, want: 0x5678},
	{f: "r_long", want: 15},
}

// testEquivalence runs every function unprobed, then with a probe on each
// instruction in turn or on all at once: with a pre handler, with a post
// handler, and with three probes.
func testEquivalence(v *env, all bool) {
	post := func(*probe.Context) {}
	mk := func(f string, off uint64, kind int) []*probe.Kprobe {
		p := func() *probe.Kprobe { return &probe.Kprobe{Name: f, Symbol: f, Offset: off, Pre: nop} }
		switch kind {
		case 0:
			return []*probe.Kprobe{p()}
		case 1:
			q := p()
			q.Post = post
			return []*probe.Kprobe{q}
		default:
			q := p()
			q.Post = post
			return []*probe.Kprobe{p(), q, p()}
		}
	}
	for _, q := range equivalences {
		want := v.call(q.f, q.args...)
		name := fmt.Sprintf("%s%v", q.f, q.args)
		if !q.any {
			equal(v, name+" unprobed", want, q.want)
		}
		for kind := range 3 {
			var ps []*probe.Kprobe
			for _, off := range v.offsets(q.f) {
				these := mk(q.f, off, kind)
				err := v.e.Register(probe.Probes(these)...)
				if e := (*probe.Error)(nil); errors.As(err, &e) && e.Code == probe.CodeTrapInsn {
					continue // a ud2 that is never reached
				}
				if err != nil {
					v.Errorf("%s+%#x: %v", q.f, off, err)
					continue
				}
				ps = append(ps, these...)
				if !all {
					equal(v, fmt.Sprintf("%s with kind %d at +%#x", name, kind, off), v.call(q.f, q.args...), want)
					v.unregister(ps...)
					ps = nil
				}
			}
			if all {
				equal(v, fmt.Sprintf("%s with kind %d everywhere", name, kind), v.call(q.f, q.args...), want)
				for _, p := range ps {
					v.stats(p)
				}
				v.unregister(ps...)
			}
		}
	}
}
