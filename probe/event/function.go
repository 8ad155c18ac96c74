package event

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// function is the type information of the function of a probe.
type function struct {
	proto *btf.FuncProto // nil: not known
	words []int          // by parameter: its number for $argN, 0 if it has none
}

// function looks up the types of the function; see Scope.
func (p *parser) function() function {
	if p.scope.Types == nil || p.fn == "" {
		return function{}
	}
	proto := p.scope.Types.Func(p.module, p.fn)
	if proto == nil {
		return function{}
	}
	f := function{proto, types.Arguments(proto)}
	if p.def.Kind == KindTracepoint && len(proto.Params) > 0 { // the tracepoint's follow the first
		f = function{&btf.FuncProto{Return: proto.Return, Params: proto.Params[1:]}, f.words[1:]}
	}
	return f
}

// params returns the known parameters.
func (f function) params() []btf.FuncParam {
	if f.proto == nil {
		return nil
	}
	return f.proto.Params
}

// expand replaces $arg* and, if the parameters are known, unnamed $argN by the names
// of parameters, as the kernel does before it reads any argument
// (traceprobe_expand_meta_args).
func (p *parser) expand(args []string) ([]string, error) {
	all, numbers, err := p.checkVarArgs(args)
	if err != nil || all < 0 && !numbers {
		return args, err
	}
	params := p.function().params()
	if len(params) == 0 {
		if all >= 0 {
			return nil, p.typesError(all+2, 0)
		}
		return args, nil
	}
	var out []string
	size := 0
	take := func(i int, kind string) error {
		switch {
		case i >= len(params):
			e := p.fail(p.token, 0, CodeNoBTFArg)
			e.Detail = "parameters are " + parameterNames(params)
			return e
		case !isIdentifier(params[i].Name):
			return p.fail(p.token, 0, CodeNoBTFEntry)
		}
		text := params[i].Name + kind
		if size += len(text) + 1; size > maxExpanded {
			return p.fail(p.token, 0, CodeArgs2Long)
		}
		out = append(out, text)
		return nil
	}
	for i, text := range args {
		p.token = i + 2
		rest, number := strings.CutPrefix(text, "$arg")
		switch {
		case i == all:
			for n := range params {
				if err := take(n, ""); err != nil {
					return nil, err
				}
			}
		case number:
			n, kind, ok := leadingDigits(rest, 10)
			switch {
			case !ok || kind != "" && kind[0] != ':':
				e := p.fail(p.token, 0, CodeBadVar)
				e.Errno = enoent // the kernel uses it only here
				return nil, e
			case n == 0:
				return nil, p.fail(p.token, 0, CodeBadArgNum)
			}
			if err := take(int(min(n-1, maxStackSlot)), kind); err != nil {
				return nil, err
			}
		default:
			out = append(out, text)
		}
	}
	return out, nil
}

// WithParameters returns d with the first n arguments of the probed function, as
// $arg1 and so on, after its own; arguments that it already has are omitted. The
// error is a *SyntaxError.
func (d *Def) WithParameters(n int, scope Scope) (*Def, error) {
	names := make([]string, 0, len(d.Args)+n)
	for _, a := range d.Args {
		names = append(names, a.Name)
	}
	var more []string
	for i := 1; i <= n; i++ {
		if slices.ContainsFunc(d.Args, func(a Arg) bool { return a.Fetch == FuncArg{N: i} }) {
			continue
		}
		name := fmt.Sprintf("arg%d", i)
		for slices.Contains(names, name) {
			name = "_" + name
		}
		names = append(names, name)
		more = append(more, fmt.Sprintf("%s=$arg%d", name, i))
	}
	if len(more) == 0 {
		return d, nil
	}
	full := *d
	full.Args = slices.Clone(d.Args)
	tokens := append(d.tokens(), more...)
	full.src = &line{command: strings.Join(tokens, " "), tokens: tokens}
	p := &parser{line: full.src, scope: scope, def: &full}
	for _, step := range []func() error{full.src.check, p.locate, func() error { return p.readArgs(more) }} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &full, nil
}

// maxExpanded bounds the length of the names that expand inserts, each with a NUL
// (MAX_BTF_ARGS_LEN).
const maxExpanded = 128

// parameterNames lists the valid names.
func parameterNames(params []btf.FuncParam) string {
	names := make([]string, len(params))
	for i, x := range params {
		names[i] = x.Name
	}
	return strings.Join(names, ", ")
}

// typesError rejects an argument that needs types that are not known.
func (p *parser) typesError(token, offset int) *SyntaxError {
	e := p.fail(token, offset, CodeNosupBTFArg)
	if p.scope.Types == nil {
		e.Detail = "the guest's image has no types (BTF)"
	}
	return e
}

// checkVarArgs rejects, before any argument is read, unnamed arguments that begin
// with $arg and are neither $argN nor, once, $arg*. It returns the index of $arg*, or
// -1, and whether there are $argN.
func (p *parser) checkVarArgs(args []string) (all int, numbers bool, err error) {
	all = -1
	for i, text := range args {
		rest, ok := strings.CutPrefix(text, "$arg")
		if !ok {
			continue
		}
		switch {
		case !p.entry:
			return 0, false, p.fail(i+2, 0, CodeNofentryArgs)
		case rest != "" && isDigit(rest[0]):
			numbers = true
		case rest == "" || rest[0] != '*':
			return 0, false, p.fail(i+2, 0, CodeBadVar)
		case all >= 0:
			return 0, false, p.fail(i+2, 0, CodeDoubleArgs)
		default:
			all = i
		}
	}
	return all, numbers, nil
}

// expandPaths replaces the types %pd of a dentry and %pD of a file by the path to a
// file's name, as the kernel does (traceprobe_expand_dentry_args). Without the
// guest's types they stay, and are rejected.
func (p *parser) expandPaths(args []string) []string {
	args = slices.Clone(args)
	for i, text := range args {
		body, dentry := strings.CutSuffix(text, ":%pd")
		body, file := strings.CutSuffix(body, ":%pD")
		if !dentry && !file || p.scope.Types == nil {
			continue
		}
		name, ok := p.member("dentry", "d_name", "name")
		way := fmt.Sprintf("+0x0(+0x%x(", name)
		if file {
			var inFile uint64
			var found bool
			inFile, found = p.member("file", "f_path", "dentry")
			ok = ok && found
			way += fmt.Sprintf("+0x%x(", inFile)
		}
		if !ok {
			continue
		}
		head, of, named := strings.Cut(body, "=")
		if !named {
			head, of = "", body
		} else {
			head += "="
		}
		args[i] = head + way + of + strings.Repeat(")", strings.Count(way, "(")) + ":string"
	}
	return args
}

// member returns the offset in bytes of a member of a member of a structure.
func (p *parser) member(tag string, path ...string) (offset uint64, ok bool) {
	t := p.scope.Types.Struct(tag)
	if t == nil {
		return 0, false
	}
	for _, name := range path {
		m, found, _ := types.Member(t, name)
		if !found {
			return 0, false
		}
		offset, t = offset+m.Offset/8, m.Type
	}
	return offset, true
}
