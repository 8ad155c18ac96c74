package script

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// stackModes are the print formats of stacks.
var stackModes = []string{"bpftrace", "perf", "raw", byBuildID}

// byBuildID is the mode that prints the file of the code, by its build ID, and the
// offset in the file.
const byBuildID = "build_id"

// byUnwinding is the word that requests unwind data instead of frame pointers.
const byUnwinding = "unwind"

// siteStack is the warning for a stack that is missing, or for which there is no
// room.
const siteStack = "Stack could not be kept"

// stack checks kstack and ustack: a mode, a depth and byUnwinding, each optional.
func (c callChecker) stack(e *expr) (Type, error) {
	t := Type{Kind: KStack, Size: 8, Depth: maxStack, Format: c.config.stackMode}
	if e.name != "kstack" {
		t.Kind = UStack
	}
	if e.num = 0; e.name == "dw_ustack" {
		e.num = bpf.StackUnwind
	}
	modes, depths := 0, 0
	for _, a := range e.args {
		if a.kind != exBuiltin {
			depths++
		} else if a.name != byUnwinding {
			modes++
		}
		if modes > 1 || depths > 1 {
			return t, c.errorAt(a.Span, "%s() takes one mode and one depth", e.name)
		}
		if a.kind == exBuiltin && a.name == byUnwinding {
			e.num = bpf.StackUnwind
			continue
		}
		if a.kind == exBuiltin {
			if !slices.Contains(stackModes, a.name) {
				return t, c.errorAt(a.Span, "Invalid stack mode: '%s'", a.name).hint("there are %s, and %s", strings.Join(stackModes, ", "), byUnwinding)
			}
			if t.Format = a.name; a.name == byBuildID && t.Kind == KStack {
				return t, c.errorAt(a.Span, "'build_id' stack mode can only be used for ustack").hint("write kstack(raw)")
			}
			continue
		}
		n, ok := c.constant(a)
		if !ok || n < 1 || n > maxStack {
			return t, c.errorAt(a.Span, "%s() depth: want 1 to %d", e.name, maxStack)
		}
		t.Depth = int(n)
	}
	if t.Kind == KStack && t.Format == byBuildID { // by the configuration
		c.warnOnce(e.Span, "'build_id' stack mode can only be used for ustack. Falling back to 'raw' mode.")
		t.Format = "raw"
	}
	e.site = c.addSite(failureAt(e.Span, siteStack))
	return t, nil
}

// stacks is the map that a stack of the type is in.
func (t Type) stacks() string {
	if t.Kind == UStack {
		return numberedName("u"+mapStacks, t.Depth)
	}
	return numberedName(mapStacks, t.Depth)
}

// length checks len: of a map with keys, or of a stack.
func (c callChecker) length(e *expr) (Type, error) {
	a := e.args[0]
	if a.kind == exMap && len(a.args) == 0 {
		if m := c.byName[a.name]; m.keyed != 1 || !m.value.is(KStack, UStack) {
			_, err := c.keyedMap(a, "len()")
			return typeInt, err
		}
	}
	t, err := c.value(a)
	if err == nil && !t.is(KStack, UStack, None) {
		err = c.errorAt(a.Span, "len() expects a map or stack to be provided (%s provided)", t)
	}
	if err == nil && !c.countStacks {
		c.countStacks, c.changed = true, true
	}
	return typeInt, err
}

// stack leaves a stack in R0: its number in the map of stacks of that depth, and
// above that the number of its addresses, if the script uses it. A negative number
// means that there is no stack.
func (g *generator) stack(e *expr) {
	t, flags := e.typ, int32(e.num)
	if t.Kind == UStack {
		if flags |= 0x100; t.Format != "raw" { // BPF_F_USER_STACK
			flags |= bpf.StackFiles
		}
		if t.Format == byBuildID { // other code keeps the process's addresses
			flags |= bpf.StackBuilt
		}
	}
	none, done := g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		var n mem
		if g.c.countStacks {
			to := g.alloc(8 * t.Depth)
			n = g.alloc(8)
			g.Emit(asm.Mov.Reg(asm.R1, rCtx))
			g.address(asm.R2, to)
			g.Emit(asm.Mov.Imm(asm.R3, int32(8*t.Depth)), asm.Mov.Imm(asm.R4, flags), bpfgen.Call(bpf.HelperGetStack))
			g.Require(asm.JSGT, asm.R0, 0, none)
			g.Emit(asm.LSh.Imm(asm.R0, 32-3))
			g.store(n, asm.R0)
		}
		g.Emit(asm.Mov.Reg(asm.R1, rCtx))
		g.loadMap(asm.R2, t.stacks())
		g.Emit(asm.Mov.Imm(asm.R3, flags|bpf.StackNear), bpfgen.Call(bpf.HelperGetStackID))
		g.Require(asm.JSGE, asm.R0, 0, none)
		if g.c.countStacks {
			g.load(asm.R1, n)
			g.Emit(asm.Or.Reg(asm.R0, asm.R1))
		}
	})
	g.GoTo(done)
	g.Place(none)
	if g.p.hasGuest() {
		g.countFailure(e.site)
	}
	g.Emit(asm.Mov.Imm(asm.R0, -1))
	g.Place(done)
}

// stackLength leaves in R0 the number of addresses of a stack.
func (g *generator) stackLength(e *expr) {
	done := g.NewLabel()
	g.number64(e)
	some := g.NewLabel()
	g.If(asm.JSGE, asm.R0, 0, some)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(some)
	g.Emit(asm.RSh.Imm(asm.R0, 32))
	g.Place(done)
}

// stack prints a stack, a line for each address.
func (p *Printer) stack(t Type, id uint64) string {
	var b strings.Builder
	b.WriteByte('\n')
	m := p.maps(t.stacks())
	if m == nil || int64(id) < 0 {
		return b.String()
	}
	values, err := m.Lookup(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	if err != nil {
		return b.String()
	}
	for pcs := values[0]; len(pcs) >= 8 && word(pcs) != 0; pcs = pcs[8:] {
		pc := word(pcs)
		switch t.Format {
		case byBuildID:
			if id := p.names.BuildID(pc); id != "" {
				fmt.Fprintf(&b, "%s 0x%02x\n", id, p.names.ShownAddr(pc))
			} else {
				fmt.Fprintf(&b, "%x\n", pc)
			}
		case "raw":
			fmt.Fprintf(&b, "%x\n", pc)
		default:
			p.frames(&b, t, pc)
		}
	}
	return b.String()
}
