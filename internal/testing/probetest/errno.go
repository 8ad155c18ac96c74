package probetest

import (
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// errnoCases are about rejected requests: with which errno and code.
var errnoCases = []testCase{
	{name: "errno_matrix", run: testErrnoMatrix},
	{name: "accepted_beyond_kernel", run: testAccepted},
	{name: "probepoint", run: testProbepoint},
	{name: "registered_twice", run: testRegisteredTwice},
	{name: "not_registered", run: testNotRegistered},
	{name: "batch_rollback", run: testBatchRollback},
	{name: "endbr_entry", run: testEndbr},
}

// refusals is the matrix of kprobes A.1. If the kernel rejects a probe with
// another errno than we do, the entry says so.
var refusals = []struct {
	name   string
	symbol string
	offset uint64
	post   bool
	code   probe.Code
	errno  syscall.Errno
}{
	{name: "unknown symbol", symbol: "no_such_function", code: probe.CodeSymbolNotFound, errno: syscall.ENOENT},
	{name: "two of that name", symbol: "name_show", code: probe.CodeAmbiguous, errno: syscall.EADDRNOTAVAIL},
	{name: "data", symbol: "scratch", code: probe.CodeNotText, errno: syscall.EINVAL},
	{name: "constant", symbol: "const_seven", code: probe.CodeNotText, errno: syscall.EINVAL},
	{name: "second byte of an instruction", symbol: "kprobe_target", offset: 1, code: probe.CodeNotBoundary, errno: syscall.EILSEQ},
	{name: "last byte of an instruction", symbol: "kprobe_target", offset: 6, code: probe.CodeNotBoundary, errno: syscall.EILSEQ},
	{name: "first byte after the end", symbol: "kprobe_target", offset: 16, code: probe.CodeOffsetOutside, errno: syscall.EINVAL},
	{name: "offset that wraps", symbol: "kprobe_target", offset: ^uint64(0), code: probe.CodeOffsetOutside, errno: syscall.EINVAL},
	{name: "ud2", symbol: "r_ud2", code: probe.CodeTrapInsn, errno: syscall.EILSEQ},
	{name: "int3", symbol: "r_int3", code: probe.CodeTrapInsn, errno: syscall.EILSEQ},
	{name: "int n", symbol: "r_int", code: probe.CodeTrapInsn, errno: syscall.EILSEQ},
	{name: "int1", symbol: "r_int1", code: probe.CodeTrapInsn, errno: syscall.EILSEQ},
	{name: "mov ss", symbol: "r_movss", code: probe.CodeMasksExceptions, errno: syscall.EINVAL},
	{name: "kvm prefix", symbol: "r_kvm", code: probe.CodeEmulationPrefix, errno: syscall.EINVAL},
	{name: "iret", symbol: "r_iret", code: probe.CodeUnsupported, errno: syscall.EOPNOTSUPP},
	{name: "no instruction", symbol: "r_bad", offset: 1, code: probe.CodeUndecodable, errno: syscall.EILSEQ},
	{name: "inside no instruction", symbol: "r_bad", offset: 2, code: probe.CodeUndecodable, errno: syscall.EILSEQ},
	{name: "hlt with a post handler", symbol: "r_hlt", post: true, code: probe.CodeNoPost, errno: syscall.EOPNOTSUPP},
	{name: ".noinstr.text", symbol: "in_noinstr", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: ".noinstr.text, not at the entry", symbol: "in_noinstr", offset: 5, code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: ".entry.text", symbol: "_start", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: "listed in the image", symbol: "on_blacklist", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: "part of one listed in the image", symbol: "on_blacklist.isra.0", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: "vectors", symbol: "gp_vectors", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: "trap stub", symbol: "gp_foreign_bp", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: "__pfx_", symbol: "__pfx_target", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
	{name: "__cfi_", symbol: "__cfi_target", code: probe.CodeBlacklisted, errno: syscall.EINVAL},
}

func testErrnoMatrix(v *env) {
	for _, r := range refusals {
		p := &probe.Kprobe{Symbol: r.symbol, Offset: r.offset}
		if r.post {
			p.Post = func(*probe.Context) {}
		}
		v.checkRefused(r.name, v.e.Register(p), r.code, r.errno)
		equal(v, r.name+": address", p.Addr, 0)
		_, err := v.e.Check(p)
		v.checkRefused(r.name+" (check)", err, r.code, r.errno)
	}
	both := &probe.Kprobe{Symbol: "hot", Addr: v.addr("hot")}
	v.checkRefused("both", v.e.Register(both), probe.CodeBothOrNeither, syscall.EINVAL)
	equal(v, "address of both", both.Addr, v.addr("hot"))
	v.checkRefused("neither", v.e.Register(&probe.Kprobe{}), probe.CodeBothOrNeither, syscall.EINVAL)
	v.checkRefused("nil", v.e.Register(nil), probe.CodeBothOrNeither, syscall.EINVAL)
	v.checkRefused("none", v.e.Register(), probe.CodeEmptyBatch, syscall.EINVAL)
	v.checkRefused("address in no function", v.e.Register(&probe.Kprobe{Addr: 0x10}), probe.CodeNoSymbolAt, syscall.ENOENT)
	v.checkRefused("address that is not canonical", v.e.Register(&probe.Kprobe{Addr: 1 << 63}), probe.CodeNoSymbolAt, syscall.ENOENT)
	v.checkRefused("address and offset inside an instruction",
		v.e.Register(&probe.Kprobe{Addr: v.addr("kprobe_target"), Offset: 3}), probe.CodeNotBoundary, syscall.EILSEQ)
	v.checkRefused("blacklisted address", v.e.Register(&probe.Kprobe{Addr: v.addr("in_noinstr") + 5}), probe.CodeBlacklisted, syscall.EINVAL)
	if err := v.e.Forbid("hot"); err != nil {
		v.Errorf("forbid: %v", err)
	}
	v.checkRefused("forbidden by name", v.e.Register(&probe.Kprobe{Symbol: "hot"}), probe.CodeBlacklisted, syscall.EINVAL)
	if err := v.e.Allow("hot"); err != nil {
		v.Errorf("allow: %v", err)
	}
	v.checkRefused("forbid of an unknown name", v.e.Forbid("hot", "no_such_function"), probe.CodeSymbolNotFound, syscall.ENOENT)
	equal(v, "probes", len(v.e.List()), 0)
	v.checkText()

	// The engine's own code: the slot of a probe that runs there.
	p := &probe.Kprobe{Symbol: "hot_load", Post: func(c *probe.Context) {}}
	v.register(p)
	in := guest.GVA(0)
	q := &probe.Kprobe{Symbol: "hot_load", Pre: nop}
	v.register(q)
	slot, ok := v.e.SlotOf(p)
	if !ok || !v.e.InSlot(slot) {
		v.Errorf("slot of %s: got %v, %v", p.Symbol, slot, ok)
	}
	in = slot
	v.checkRefused("a slot", v.e.Register(&probe.Kprobe{Addr: in}), probe.CodeBlacklisted, syscall.EINVAL)
	v.unregister(p, q)
}

// testAccepted registers probes that the kernel rejects and a host can serve.
func testAccepted(v *env) {
	for _, a := range []struct {
		symbol string
		offset uint64
		want   uint64 // of the function called with 2
	}{
		{"r_long", 0, 15},       // 15 bytes: ENOSPC in the kernel
		{"e_callmem", 1, 0},     // call through memory: EOPNOTSUPP
		{"e_jumptable", 13, 12}, // jmp through memory: EOPNOTSUPP
	} {
		hits := 0
		p := &probe.Kprobe{Symbol: a.symbol, Offset: a.offset, Pre: func(*probe.Context) int { hits++; return 0 }}
		if err := v.e.Register(p); err != nil {
			v.Errorf("register %s+%d: %v", a.symbol, a.offset, err)
			continue
		}
		equal(v, a.symbol, v.call(a.symbol, 2), a.want)
		equal(v, a.symbol+" hits", hits, 1)
		v.unregister(p)
	}
	// A probe before bytes that are not an instruction is on a boundary.
	p := &probe.Kprobe{Symbol: "r_bad"}
	v.register(p)
	v.unregister(p)
}

// testProbepoint is test.d/kprobe/probepoint: the forms of a place. The kernel
// lets symbol+offset run into the next function; here that is an error, since
// it is one.
func testProbepoint(v *env) {
	hot, load := v.addr("hot"), v.addr("hot_load")
	forms := []*probe.Kprobe{{Symbol: "hot"}, {Addr: hot}, {Addr: hot, Offset: uint64(load - hot)}, {Symbol: "hot_load"}}
	v.register(forms...)
	for i, want := range []guest.GVA{hot, hot, load, load} {
		equal(v, "address", forms[i].Addr, want)
	}
	equal(v, "offset of a resolved address", forms[2].Offset, 0)
	v.unregister(forms...)
	v.checkRefused("symbol and distance to the next", v.e.Register(&probe.Kprobe{Symbol: "hot", Offset: uint64(load - hot)}),
		probe.CodeOffsetOutside, syscall.EINVAL)
	v.checkRefused("negative offset", v.e.Register(&probe.Kprobe{Symbol: "hot", Offset: 1<<64 - 1}), probe.CodeOffsetOutside, syscall.EINVAL)
}

func testRegisteredTwice(v *env) {
	p := &probe.Kprobe{Symbol: "hot"}
	v.register(p)
	v.checkRefused("again", v.e.Register(p), probe.CodeRegistered, syscall.EINVAL)
	p.Symbol = ""
	v.checkRefused("again, by address", v.e.Register(p), probe.CodeRegistered, syscall.EINVAL)
	p.Symbol = "hot"
	v.unregister(p)
	equal(v, "address after unregister", p.Addr, v.addr("hot"))
	v.checkRefused("again after unregister, address left", v.e.Register(p), probe.CodeBothOrNeither, syscall.EINVAL)
	p.Addr = 0
	v.register(p)
	v.unregister(p)

	q := &probe.Kprobe{Symbol: "hot_load"}
	err := v.e.Register(&probe.Kprobe{Symbol: "hot"}, q, q)
	v.checkRefused("twice in a batch", err, probe.CodeRegistered, syscall.EINVAL)
	v.index("twice in a batch", err, 2)
	v.checkText()
}

func testNotRegistered(v *env) {
	p, q := &probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot_load"}
	v.checkRefused("enable", v.e.Enable(p), probe.CodeNotRegistered, syscall.EINVAL)
	v.checkRefused("disable", v.e.Disable(p), probe.CodeNotRegistered, syscall.EINVAL)
	v.register(p, q)
	v.unregister(p)
	equal(v, "address of a probe once registered", p.Addr, v.addr("hot"))

	// Unregistering twice clears the address, and does the rest of the batch.
	err := v.e.Unregister(p, q)
	v.checkRefused("unregister twice", err, probe.CodeNotRegistered, syscall.EINVAL)
	v.index("unregister twice", err, 0)
	equal(v, "address of an unknown probe", p.Addr, 0)
	equal(v, "address of the known one", q.Addr, v.addr("hot_load"))
	equal(v, "probes left", len(v.e.List()), 0)
	v.checkArmed("hot_load", q.Addr, false)
	if err := v.e.Unregister(); err != nil {
		v.Errorf("unregister nothing: %v", err)
	}

	r := &probe.Kprobe{Symbol: "hot"}
	v.register(r)
	v.checkRefused("the same probe twice", v.e.Unregister(r, r), probe.CodeNotRegistered, syscall.EINVAL)
	equal(v, "probes left", len(v.e.List()), 0)
}

func testBatchRollback(v *env) {
	there := &probe.Kprobe{Symbol: "hot", Pre: nop}
	v.register(there)
	batch := []*probe.Kprobe{{Symbol: "kprobe_target"}, {Symbol: "hot"}, {Symbol: "hot_load"}, {Symbol: "kprobe_target", Offset: 1}, {Symbol: "kprobe_target2"}}
	err := v.e.Register(probe.Probes(batch)...)
	v.checkRefused("fourth of five", err, probe.CodeNotBoundary, syscall.EILSEQ)
	v.index("fourth of five", err, 3)
	for i, p := range batch {
		equal(v, "address", p.Addr, 0)
		if i != 3 && i != 1 {
			v.checkArmed(p.Symbol, v.addr(p.Symbol), false)
		}
	}
	v.checkArmed("hot", there.Addr, true)
	equal(v, "probes", len(v.e.List()), 1)
	equal(v, "hot", v.call("hot", 1), 2)
	equal(v, "hits", v.stats(there).Hits, 1)
	batch[3].Offset = 0
	v.register(batch...)
	v.unregister(append(batch, there)...)
}

// testEndbr: a function that begins with endbr64 is probed after it, from either
// offset, and that is its entry.
func testEndbr(v *env) {
	start := v.addr("f_endbr")
	for _, off := range []uint64{0, 4} {
		p := &probe.Kprobe{Symbol: "f_endbr", Offset: off, Pre: nop}
		v.register(p)
		equal(v, "address", p.Addr, start+4)
		i, _ := v.e.Info(p)
		equal(v, "entry", i.Entry, true)
		v.checkArmed("endbr64", start, false)
		v.checkArmed("after endbr64", start+4, true)
		equal(v, "f_endbr", v.call("f_endbr", 4), 5)
		equal(v, "hits", v.stats(p).Hits, 1)
		v.unregister(p)
	}
	v.checkRefused("inside endbr64", v.e.Register(&probe.Kprobe{Symbol: "f_endbr", Offset: 2}), probe.CodeNotBoundary, syscall.EILSEQ)
}
