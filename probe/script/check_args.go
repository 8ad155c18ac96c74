package script

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// prototype is the type information of the function of a probe.
type prototype struct {
	*btf.FuncProto        // nil: not known
	words          []int  // of each parameter: see types.Arguments
	why            string // why words is not valid, or why nothing is known; "" if it is, or if there is nothing to say
}

// prototype finds the types of a place's function.
func (c *checker) prototype(p *point) *prototype {
	if p.proto == nil {
		p.proto = &prototype{}
		switch {
		case p.atTracepoint():
			if f, why := c.target.Func(p.place); f != nil && len(f.Params) > 0 {
				p.proto = &prototype{&btf.FuncProto{Return: f.Return, Params: f.Params[1:]}, types.Arguments(f)[1:], why}
			}
		case p.place == p.fn, p.atFileFunction():
			f, why := c.target.Func(p.place)
			if p.proto.why = why; f != nil {
				p.proto = &prototype{f, types.Arguments(f), why}
			}
		}
	}
	return p.proto
}

// because returns the reason why nothing is known, for the end of an error, as a part of its format.
func (f *prototype) because() string {
	if f.why == "" {
		return ""
	}
	return ": " + strings.ReplaceAll(f.why, "%", "%%")
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

// registerWords is the number of argument words in registers.
const registerWords = 6

// argument checks args.NAME: it has the same type at all places of the probe.
func (c *checker) argument(e *expr) (t Type, err error) {
	for i, p := range c.points {
		if !p.atFunction() {
			return t, c.errorAt(e.args[0].Span, "The args builtin can not be used with '%s' probes", p.provider)
		}
		if p.atEvent() || e.inRecord {
			if t, err = e.checkEventField(c, p, i == 0, t); err != nil {
				return t, err
			}
			continue
		}
		f := c.prototype(p)
		if f.FuncProto == nil {
			what := "parameters of %s are not known" + f.because()
			if p.place != p.fn && !p.atTracepoint() && !p.atFileFunction() {
				what = "parameters are known at a function's entry and return only, not at %s"
			}
			return t, c.errorAt(e.Span, what, p.place).hint("write arg0 to arg9, and casts: ((struct file *)arg0)->f_pos")
		}
		n := f.param(e.name)
		if n < 0 {
			err := c.errorAt(e.Span, "Can't find function parameter %s", e.name)
			var names []string
			for _, x := range f.Params {
				names = append(names, x.Name)
			}
			if m := nearestName(e.name, names); m != "" {
				return t, err.hint("did you mean %s?", m)
			}
			return t, err.hint("%s", types.Prototype(p.fn, f.FuncProto))
		}
		if f.why != "" {
			return t, c.errorAt(e.Span, "the parameter %s of %s cannot be read by its name here: %s", e.name, p.fn, f.why).
				hint("guestprobe vars %s shows where debug information has it, which definitions read by name: 'p %[1]s %[2]s'", p.fn, e.name)
		}
		param := f.Params[n].Type
		pt := fromC(param)
		switch {
		case f.words[n] == 0 || !pt.isNumber():
			return t, c.errorAt(e.Span, "the parameter %s of type '%s' is not passed as a number", e.name, types.Text(param)).hint("reg(\"di\") and so on have the registers")
		case f.words[n] > registerWords && p.atReturn():
			return t, c.errorAt(e.Span, "the parameter %s is passed on the stack, which is not there at the return", e.name).hint("keep it in a map at the kprobe")
		case i > 0 && !pt.equal(t):
			return t, c.errorAt(e.Span, "args.%s has type '%s' at %s, and type '%s' at %s", e.name, t, c.points[0].fn, pt, p.fn).hint("write a probe for each")
		}
		t, e.c = pt, param
	}
	e.site = c.addSite(readAt(c.points, e))
	return t, nil
}

// checkEventField checks args.NAME at an event, where it is a field of the event's
// record, of the same type at all places of the probe.
func (e *expr) checkEventField(c *checker, p *point, first bool, before Type) (t Type, err error) {
	if !p.atEvent() || !first && !e.inRecord {
		return t, c.errorAt(e.Span, "args.%s is a field of an event at one place of the probe, and a parameter at another", e.name).hint("write a probe for each")
	}
	fields, err := c.target.Event(p.fn)
	if err != nil {
		return t, c.errorAt(e.Span, "the fields of %s are not known: %s", p.probe, err)
	}
	i := slices.IndexFunc(fields, func(f EventField) bool { return f.Name == e.name })
	if i < 0 {
		err := c.errorAt(e.Span, "Can't find tracepoint field %s", e.name)
		var names []string
		for _, f := range fields {
			names = append(names, f.Name)
		}
		if m := nearestName(e.name, names); m != "" {
			return t, err.hint("did you mean %s?", m)
		}
		return t, err.hint("%s has %s", p.probe, strings.Join(names, ", "))
	}
	f := fields[i]
	t = fromC(f.Type)
	if t.Kind == Void || t.Kind == None {
		return t, c.errorAt(e.Span, "the field %s of type '%s' has no value that a script can have", e.name, types.Text(f.Type))
	}
	if !first && (!t.equal(before) || e.located != f.Located) {
		return t, c.errorAt(e.Span, "args.%s has type '%s' at %s, and type '%s' at %s", e.name, before, c.points[0].probe, t, p.probe).hint("write a probe for each")
	}
	if p.fields == nil {
		p.fields = map[string]uint64{}
	}
	p.fields[e.name] = f.Offset
	e.inRecord, e.located, e.c = true, f.Located, f.Type
	e.site = c.addSite(readAt(c.points, e))
	return t, nil
}

// returnType is the type of retval: the function's if it is known, and the same at
// all places.
func (c *checker) returnType() Type {
	t := typeUint
	for i, p := range c.points {
		f := c.prototype(p)
		if f.FuncProto == nil || p.atFileFunction() { // in files it had no type before their debug information was read
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
