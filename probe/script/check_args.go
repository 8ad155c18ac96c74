package script

import (
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// prototype is what is known of the function at whose entry or return a probe is.
type prototype struct {
	*btf.FuncProto        // nil: nothing
	words          []int  // of each parameter: see types.Arguments
	why            string // why words do not hold; "" where they do
}

// prototype finds the types of a place's function.
func (c *checker) prototype(p *point) *prototype {
	if p.proto == nil {
		p.proto = &prototype{}
		if p.place == p.fn {
			if f, why := c.target.Func(p.fn); f != nil {
				p.proto = &prototype{f, types.Arguments(f), why}
			}
		}
	}
	return p.proto
}

// param returns the number of a parameter, or -1.
func (f *prototype) param(name string) int {
	if f.FuncProto != nil {
		for i, x := range f.Params {
			if x.Name == name && name != "" {
				return i
			}
		}
	}
	return -1
}

// registerWords is how many words of arguments are in registers.
const registerWords = 6

// argument checks args.NAME: it has the same type at all places of the probe.
func (c *checker) argument(e *expr) (t Type, err error) {
	for i, p := range c.points {
		if !p.atFunction() {
			return t, c.at(e.args[0].Span, "The args builtin can not be used with '%s' probes", p.provider)
		}
		f := c.prototype(p)
		if f.FuncProto == nil {
			what := "parameters of %s are not known"
			if p.place != p.fn {
				what = "parameters are known at a function's entry and return only, not at %s"
			}
			return t, c.at(e.Span, what, p.place).hint("write arg0 to arg9, and casts: ((struct file *)arg0)->f_pos")
		}
		n := f.param(e.name)
		if n < 0 {
			err := c.at(e.Span, "Can't find function parameter %s", e.name)
			var names []string
			for _, x := range f.Params {
				names = append(names, x.Name)
			}
			if m := meant(e.name, names); m != "" {
				return t, err.hint("did you mean %s?", m)
			}
			return t, err.hint("%s", types.Prototype(p.fn, f.FuncProto))
		}
		if f.why != "" {
			return t, c.at(e.Span, "the parameter %s of %s cannot be read by its name here: %s", e.name, p.fn, f.why).
				hint("guestprobe vars %s shows where debug information has it, which definitions read by name: 'p %[1]s %[2]s'", p.fn, e.name)
		}
		param := f.Params[n].Type
		pt := fromC(param)
		switch {
		case f.words[n] == 0 || !pt.isNumber():
			return t, c.at(e.Span, "the parameter %s of type '%s' is not passed as a number", e.name, types.Text(param)).hint("reg(\"di\") and so on have the registers")
		case f.words[n] > registerWords && p.atReturn():
			return t, c.at(e.Span, "the parameter %s is passed on the stack, which is not there at the return", e.name).hint("keep it in a map at the kprobe")
		case i > 0 && !pt.equal(t):
			return t, c.at(e.Span, "args.%s has type '%s' at %s, and type '%s' at %s", e.name, t, c.points[0].fn, pt, p.fn).hint("write a probe for each")
		}
		t, e.c = pt, param
	}
	e.site = c.addSite(e.Span, "")
	return t, nil
}

// returned is the type of retval: the function's where it is known, and the same at all places.
func (c *checker) returned() Type {
	t := typeUint
	for i, p := range c.points {
		f := c.prototype(p)
		if f.FuncProto == nil {
			return typeUint
		}
		r := fromC(f.Return)
		if !r.isInt() || i > 0 && !r.equal(t) {
			return typeUint
		}
		t = r
	}
	return t
}
