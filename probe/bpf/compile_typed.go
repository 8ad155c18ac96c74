package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// A typed program has its function's arguments, and what that returns, as words of its
// context. In the guest there is struct pt_regs instead, and at a return what the entry
// has left behind it: a load of a word becomes one of the place where that stands.

// hostOnly returns why a typed program, or one that follows addresses of the kernel,
// cannot be compiled, or "".
func (a *verifier) hostOnly() string {
	if a.gaveUp {
		return "it has more paths than the verifier follows, so that the host makes its context"
	}
	for pc := range a.facts {
		f, o := &a.facts[pc], &a.p.ops[pc]
		load := o.code >= opLoad8 && o.code <= opLoads32
		switch {
		case !f.reached:
		case a.p.follows && load && f.mem.size == 0:
			return "it follows addresses of the kernel, which the host does"
		case !a.p.kind.typed():
		case a.escapes:
			return "it gives its context away, which then must be as its function's type says, and that is made by the host"
		case f.mem.base.kind == inContext && !(load && f.mem.class == direct && f.mem.by == byOffset && f.mem.size == 8 && f.mem.off%8 == 0):
			return "it uses its context other than by words, which the host makes of it"
		case o.code == opCall:
			if h := Helper(o.imm); h == HelperGetFuncArg || h == HelperGetFuncRet {
				return "it asks for arguments by their number, which the host knows by the function's type"
			}
			for r := range f.call.args {
				if f.call.args[r].base.kind == inContext {
					return "it gives its context to a helper to read, which the host makes"
				}
			}
		}
	}
	return ""
}

// placeWords has a typed program's loads of its context go where the words are in the
// guest.
func (pl *plan) placeWords() {
	if !pl.p.kind.typed() {
		return
	}
	for pc := range pl.facts {
		if f := &pl.facts[pc]; f.reached && f.mem.base.kind == inContext {
			f.mem.off = int64(pl.p.wordAt(int(f.mem.off / 8)))
		}
	}
}

// wordAt returns where word i of a typed program's context is in that of a Kprobe or
// Kretprobe.
func (p *Program) wordAt(i int) int {
	switch {
	case p.kind == Fentry:
		return x86.CallArgs[i]
	case i < p.args:
		return RegsSize + entryArgs + 8*i
	}
	return x86.PtAX
}
