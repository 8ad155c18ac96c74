package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// A typed program has its function's arguments and result as words of its context.
// The guest has struct pt_regs instead, followed at a return by the data that the
// entry has stored: a load of a word becomes a load from the corresponding place.

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
		case a.p.kind == Tracepoint && load && f.mem.base.kind == inContext && f.mem.off >= 8*int64(tracepointRegs):
			return "it reads an argument that is on the stack, which the host does"
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

// placeWords redirects a typed program's loads of its context to the places of the
// words in the guest.
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

// wordAt returns the place of word i of a typed program's context in the context of a
// Kprobe or Kretprobe.
func (p *Program) wordAt(i int) int {
	switch {
	case p.kind == Fentry:
		return x86.CallArgs[i]
	case p.kind == Tracepoint:
		return x86.CallArgs[i+1]
	case i < p.args:
		return RegsSize + entryArgs + 8*i
	}
	return x86.PtAX
}
