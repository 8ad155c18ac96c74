package script

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// pton turns pton("ADDRESS") into an array of the address's 4 or 16 bytes in network
// order.
func (c callChecker) pton(e *expr) (Type, error) {
	a := e.args[0]
	if _, err := c.value(a); err != nil {
		return Type{}, err
	}
	if a.kind != exString {
		return Type{}, c.errorAt(a.Span, "pton() expects a string literal")
	}
	addr, err := netip.ParseAddr(a.text)
	if err != nil || addr.Zone() != "" {
		return Type{}, c.errorAt(a.Span, "pton() expects an address of IPv4 or IPv6, as \"127.0.0.1\" or \"::1\" (%q provided)", a.text)
	}
	octets := addr.AsSlice()
	of := &expr{kind: exString, Span: e.Span, text: string(octets)}
	if len(octets) == 4 {
		of = &expr{kind: exInt, Span: e.Span, num: uint64(binary.LittleEndian.Uint32(octets))}
	}
	array := &btf.Array{Index: cNumbers["uint32"], Type: cNumbers["uint8"], Nelems: uint32(len(octets))}
	*e = expr{kind: exCast, Span: e.Span, own: true, cast: &typeName{Span: e.Span, c: array}, args: []*expr{of}}
	return c.typeOf(e)
}

// find checks find(@map, KEY, $variable): the variable gets the element's value if
// the element exists. It becomes the tree of @map[KEY] and the variable.
func (c callChecker) find(e *expr) (Type, error) {
	a, to := e.args[0], e.args[len(e.args)-1]
	switch {
	case to.kind != exVar || len(e.args) == 1:
		return typeBool, c.errorAt(to.Span, "find() expects a variable for the value")
	case a.kind == exMap && c.byName[a.name].value.isAggregate():
		return typeBool, c.errorAt(a.Span, "find() does not support a map of %s()", c.byName[a.name].value).hint("has_key(%s, KEY) says whether there is an element", a.name)
	}
	v := c.checker.find(to.name)
	if v == nil {
		return typeBool, c.unknownNameError(to)
	}
	e.args = e.args[:len(e.args)-1]
	_, err := c.element(e)
	e.args = append(e.args[:1:1], to)
	if err != nil {
		return typeBool, err
	}
	if len(a.args) == 0 {
		return typeBool, c.errorAt(a.Span, "find() expects a map with explicit keys (non-scalar map)")
	}
	return typeBool, c.widen(e.Span, to, v, c.byName[a.name].value)
}

// findElement leaves 1 in R0 and the value of an element in a variable, or 0 if the
// element does not exist.
func (g *generator) findElement(e *expr) {
	m, to := g.c.byName[e.args[0].name], e.args[1]
	none, done := g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		g.elems.mapCall(bpf.HelperMapLookup, m, g.key(e.args[0]))
		g.Require(asm.JNE, asm.R0, 0, none)
		g.Emit(asm.Mov.Reg(rValue, asm.R0))
		g.copyAs(to.decl.typ, g.vars[to.decl], m.value, mem{rValue, 0})
	})
	g.Emit(asm.Mov.Imm(asm.R0, 1))
	g.GoTo(done)
	g.Place(none)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(done)
}

// isKeyScalar evaluates is_scalar: whether a map has no keys.
func (c callChecker) isKeyScalar(e *expr) (Type, error) {
	m, err := c.wholeMap(e)
	if err == nil {
		e.num = uint64(signIndex(m.keyed != 2))
	}
	return typeBool, err
}

// statsFields are the fields of an element made by stats().
var statsFields = []string{"count", "average", "total"}

// statsField is the type of @map.count and so on.
func (c *checker) statsField(e *expr) (Type, error) {
	m, err := c.mapKey(e.args[0])
	if err != nil {
		return Type{}, err
	}
	e.args[0].typ = m.value
	switch slices.Index(statsFields, e.name) {
	case -1:
		return Type{}, c.errorAt(e.Span, "stats() has no field '%s'", cmp.Or(e.name, strconv.FormatUint(e.num, 10))).hint("it has %s", strings.Join(statsFields, ", "))
	case 0:
		return typeUint, nil
	}
	return Type{Kind: Int, Size: 8, Signed: m.value.Signed}, nil
}

// recordOfArgs turns a lone args into a record of the function's parameters, which
// are the same at all places of the probe.
func (c *checker) recordOfArgs(e *expr) (Type, error) {
	var names []string
	for i, p := range c.points {
		if p.atEvent() {
			return Type{}, c.errorAt(e.Span, "args of a tracepoint has no value of its own").hint("write a field's name, as args.pid")
		}
		f := c.prototype(p)
		if f.FuncProto == nil {
			return Type{}, c.errorAt(e.Span, "parameters of %s are not known"+f.because(), p.place).hint("write arg0 to arg9")
		}
		var own []string
		for _, x := range f.Params {
			own = append(own, x.Name)
		}
		switch {
		case len(own) == 0 || slices.Contains(own, ""):
			return Type{}, c.errorAt(e.Span, "%s has no parameters with names", p.fn)
		case i > 0 && !slices.Equal(own, names):
			return Type{}, c.errorAt(e.Span, "%s and %s have different parameters", c.points[0].fn, p.fn).hint("write a probe for each")
		}
		names = own
	}
	record := expr{kind: exTuple, Span: e.Span, names: names}
	for _, name := range names {
		record.args = append(record.args, &expr{kind: exField, Span: e.Span, name: name, args: []*expr{{kind: exBuiltin, Span: e.Span, name: "args"}}})
	}
	*e = record
	return c.typeOf(e)
}
