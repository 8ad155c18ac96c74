package bpf

import (
	"fmt"
	"strings"
)

// maxMulti bounds the functions that a pattern in a section's name may match.
const maxMulti = 1024

// isMulti reports whether a program may be at several functions, by a pattern in its
// section's name.
func isMulti(section string) bool {
	prefix, _, _ := strings.Cut(strings.TrimPrefix(section, "?"), "/")
	return prefix == "kprobe.multi" || prefix == "kretprobe.multi"
}

// isPattern reports whether a place is a pattern.
func isPattern(place string) bool { return strings.ContainsAny(place, "*?") }

// multi returns the copies of p for the functions that its pattern matches. They share
// their instructions and their maps.
func (o *Object) multi(p ObjectProgram, sel *Selection) ([]ObjectProgram, error) {
	if sel.Match == nil { // for a guest that is not known
		return []ObjectProgram{p}, nil
	}
	functions, left := sel.Match(p.AttachTo, p.Kind.AtReturn(), maxMulti+1)
	switch {
	case len(functions) > maxMulti:
		return nil, fmt.Errorf("%q matches more than %d functions: write a pattern that matches fewer, or choose one with --at", p.AttachTo, maxMulti)
	case len(functions) == 0 && left > 0:
		return nil, fmt.Errorf("no function that matches %q can be probed", p.AttachTo)
	case len(functions) == 0 && sel.Has != nil:
		return nil, errLeftOut
	case len(functions) == 0:
		return nil, fmt.Errorf("the guest has no function that matches %q", p.AttachTo)
	}
	if left > 0 {
		o.note("section %q: functions that match and cannot be probed are left out: %d of %d", p.Section, left, left+len(functions))
	}
	out := make([]ObjectProgram, len(functions))
	for i, f := range functions {
		out[i] = p
		out[i].AttachTo = f
		if i > 0 {
			out[i].Name, out[i].copyOf = fmt.Sprintf("%s_%d", p.Name, i+1), p.Name
		}
	}
	return out, nil
}
