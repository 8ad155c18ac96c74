package script

import (
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// inFileSource reads FILE@SOURCE:LINE and FILE@SOURCE:LINE:COLUMN, a place in the source of a file of the guest, and reports whether
// the target is one. Paths of files may contain the sign, too.
func (s *script) inFileSource(a *attachPoint) (bool, error) {
	i := strings.LastIndexByte(a.target, '@')
	file, place := a.target[:i], a.target[i+1:]
	isPath := strings.HasPrefix(file, "/")
	wrong := func(format string, args ...any) (bool, error) {
		return false, s.errorAt(a.Span, format, args...).hint("write uprobe:/usr/bin/app@app.c:12")
	}
	switch source, _, _, ok := SplitSource(place); {
	case !ok && isPath && strings.Trim(place[strings.LastIndexByte(place, ':')+1:], "0123456789") != "" && strings.Contains(place, ":"):
		return false, nil // a function of a file with the sign in its path
	case !ok || source == "" || file == "":
		return wrong("%s: want FILE@SOURCE:LINE", a.text)
	case a.provider == "uretprobe":
		return wrong("a place in the source has no return")
	case a.provider != "uprobe":
		return wrong("%s is not in a file: it is of the guest's kernel", a.provider)
	case strings.ContainsAny(file, "*?["):
		return wrong("%s: a place in the source is in one file", a.text)
	case strings.Contains(file, "/") && !isPath:
		return wrong("%s: want the file's path in the guest", a.text)
	}
	if a.source = true; !isPath {
		a.file, a.target = file, place
	}
	return true, nil
}

// SplitSource splits SOURCE:LINE or SOURCE:LINE:COLUMN; without a column that is 0.
func SplitSource(place string) (source string, line, column int, ok bool) {
	cut := func(text string) (before string, n int, ok bool) {
		i := strings.LastIndexByte(text, ':')
		if i < 0 || strings.Trim(text[i+1:], "0123456789") != "" { // a number has no sign
			return "", 0, false
		}
		number, err := strconv.ParseInt(text[i+1:], 10, 32)
		return text[:i], int(number), err == nil && number > 0
	}
	if source, line, ok = cut(place); !ok {
		return "", 0, 0, false
	}
	if before, n, two := cut(source); two {
		source, line, column = before, n, line
	}
	return source, line, column, !strings.Contains(source, ":")
}

// separator is the sign between the file of an attach point and the place in it.
func (a *attachPoint) separator() string {
	if a.source {
		return "@"
	}
	return ":"
}

// inFile reports whether the attach point is in a file of the guest with functions.
func (a *attachPoint) inFile() bool {
	return a.inUser() && !a.atStatic() && (a.file != "" || strings.HasPrefix(a.target, "/"))
}

// path returns the path of the guest's file that the attach point is in, or "".
func (a *attachPoint) path(t Target) string {
	switch {
	case !a.inFile():
		return ""
	case a.file != "":
		return t.FindFile(a.file)
	}
	return a.target[:max(0, strings.LastIndexByte(a.target, a.separator()[0]))]
}

// atFileFunction reports whether the probe is at a function of a file, by its name.
func (p *point) atFileFunction() bool {
	if !p.inUser() || p.atStatic() || !strings.HasPrefix(p.place, "/") {
		return false
	}
	_, _, hasOffset := cutOffset(p.place)
	_, byOffset := parseNumber(p.fn)
	return !hasOffset && !byOffset
}

// fileTypes returns a function that returns the types of the file that an attach point is in, or nil.
func fileTypes(t Target) func(*attachPoint) Types {
	return func(a *attachPoint) Types {
		if path := a.path(t); path != "" {
			return t.FileTypes(path)
		}
		return nil
	}
}

// typesFor returns the types for the names in a probe: the types of its files, and then the guest's types; nil if no types are known.
func (s *script) typesFor(d *probeDef) Types {
	if s.filesTypes == nil {
		return s.guest
	}
	var all layers
	for i := range d.points {
		if known := s.filesTypes(&d.points[i]); known != nil {
			all = append(all, known)
		}
	}
	switch {
	case len(all) == 0:
		return s.guest
	case s.guest != nil:
		all = append(all, s.guest)
	}
	return all
}

// layers are types of several programs: of a name, the first has it.
type layers []Types

// TypeByName implements Types.
func (l layers) TypeByName(tag types.Tag, name string) btf.Type {
	for _, known := range l {
		if t := known.TypeByName(tag, name); t != nil {
			return t
		}
	}
	return nil
}

// Names implements Types.
func (l layers) Names(tag types.Tag) (out []string) {
	for _, known := range l {
		out = append(out, known.Names(tag)...)
	}
	return out
}

// Enumerator implements Types.
func (l layers) Enumerator(name string) (value uint64, of *btf.Enum, ok bool) {
	for _, known := range l {
		if value, of, ok = known.Enumerator(name); ok {
			break
		}
	}
	return value, of, ok
}

// fileVariable checks uaddr() of a variable of the file that the probe is in; done is false if it is in none. The type is a pointer to a
// number of the variable's size.
func (c callChecker) fileVariable(e, name *expr) (t Type, done bool, err error) {
	path := ""
	for i, p := range c.points {
		switch at := p.path(c.target); {
		case i == 0:
			path = at
		case at != path:
			return typeUint, true, c.errorAt(e.Span, "uaddr(): this probe is in several files").hint("write a probe for each")
		}
	}
	if path == "" {
		return typeUint, false, nil
	}
	for _, p := range c.points {
		if p.atReturn() {
			return typeUint, true, c.errorAt(e.Span, "uaddr() can not be used with '%s' probes of a file", p.provider).hint("keep the address in a map at the entry")
		}
	}
	move, size, err := c.target.FileVariable(path, name.text)
	if err != nil {
		return typeUint, true, c.errorAt(name.Span, "Failed to resolve user symbol: %s", name.text).hint("%v", err)
	}
	e.num, e.inFile = move, true
	switch size {
	case 1, 2, 4:
		return pointerTo(typeUintOf(int(size))), true, nil
	}
	return pointerTo(typeUint), true, nil
}

// fileVariable leaves in R0 the address of a variable of a file in the current process: its code is there, moved like the variable. See
// Target.FileVariable.
func (g *emitter) fileVariable(move uint64) {
	g.runInScope(func() {
		at := g.alloc(8)
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.PtIP))
		g.store(at, asm.R0)
		g.Emit(asm.Mov.Reg(asm.R1, asm.R0), bpfgen.Call(bpf.HelperFileCode))
		g.load(asm.R1, at)
		g.Emit(asm.Sub.Reg(asm.R1, asm.R0), bpfgen.Const(asm.R0, move), asm.Add.Reg(asm.R0, asm.R1))
	})
}
