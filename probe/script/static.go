package script

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// atStatic reports whether the attach point is a statically defined probe of a program (USDT).
func (a *attachPoint) atStatic() bool { return a.provider == "usdt" }

// splitStatic splits the target of usdt:PATH:NAME or usdt:PATH:PROVIDER:NAME. provider is "" if it is missing or empty.
func splitStatic(target string) (file, provider, name string, ok bool) {
	file, rest, ok := strings.Cut(target, ":")
	if name = rest; strings.Contains(rest, ":") {
		provider, name, _ = strings.Cut(rest, ":")
	}
	return file, provider, name, ok && strings.HasPrefix(file, "/") && name != "" && !strings.Contains(name, ":")
}

// StaticPlace returns the place of a statically defined probe in the form of definitions: PATH:OFFSET, or PATH:OFFSET(SEMAPHORE).
func StaticPlace(file string, p sdt.Probe) string {
	place := fmt.Sprintf("%s:%#x", file, p.Offset)
	if p.Semaphore != 0 {
		place += fmt.Sprintf("(%#x)", p.Semaphore)
	}
	return place
}

// MatchStatic returns the statically defined probes with names that match the patterns. An empty provider matches all.
func MatchStatic(all []sdt.Probe, provider, name string) (found []sdt.Probe) {
	for _, p := range all {
		ok, _ := path.Match(name, p.Name)
		if ok && provider != "" {
			ok, _ = path.Match(provider, p.Provider)
		}
		if ok {
			found = append(found, p)
		}
	}
	return found
}

// static returns the places of an attach point for statically defined probes.
func (s *script) static(a attachPoint, t Target) (ps []*point, err error) {
	file, provider, name, _ := splitStatic(a.target)
	for _, pattern := range []string{provider, name} {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, s.errorAt(a.Span, "%s: want a pattern for statically defined probes", a.text)
		}
	}
	all, at, err := t.StaticProbes(file)
	if err != nil && isPattern(file) {
		return nil, s.errorAt(a.Span, "%s: patterns for files are not supported", a.text).hint("%s", noFilePatterns)
	}
	if err != nil {
		return nil, s.errorAt(a.Span, "%s: %s", a.text, err).hint("the guest has to have the file in its memory, or a copy of it is given: --file %s=COPY", file)
	}
	left := map[string]int{}
	pattern := strings.ContainsAny(provider+name, "*?[")
	for _, p := range MatchStatic(all, provider, name) {
		switch {
		case !pattern && len(ps) > 0 && ps[0].static.Provider != p.Provider:
			return nil, s.errorAt(a.Span, "%s: there are probes %s of %s and of %s", a.text, name, ps[0].static.Provider, p.Provider).hint("write usdt:%s:PROVIDER:%s", file, name)
		case p.Why != "" && !pattern:
			return nil, s.errorAt(a.Span, "%s cannot be probed: %s", a.text, p.Why)
		case p.Why != "":
			left[p.Why]++
			continue
		}
		ps = append(ps, &point{attachPoint: a, probe: fmt.Sprintf("usdt:%s:%s:%s", file, p.Provider, p.Name), fn: p.Name, place: StaticPlace(at, p), static: &p})
	}
	s.noteLeftOut(a, left)
	return ps, nil
}

// noStaticError returns the error for an attach point that matches no statically defined probe.
func (s *script) noStaticError(a attachPoint, t Target) *Error {
	err := s.errorAt(a.Span, "No matches for %s %s", a.provider, a.target)
	file, _, name, _ := splitStatic(a.target)
	all, _, _ := t.StaticProbes(file)
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	if m := nearestName(name, names); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err.hint("-l 'usdt:%s:*' lists them", file)
}

// argNumber returns N of argN.
func argNumber(name string) (n int, ok bool) {
	digits, ok := strings.CutPrefix(name, "arg")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && strconv.Itoa(n) == digits
}

// maxStaticArgs is the maximum number of arguments of a statically defined probe (<sys/sdt.h>).
const maxStaticArgs = 12

// checkStaticArg checks argN: every statically defined probe that the program attaches to must have this argument.
func (c *checker) checkStaticArg(e *expr) error {
	n, ok := argNumber(e.name)
	if !ok {
		return nil
	}
	for _, p := range c.points {
		switch {
		case p.static == nil && n >= 10:
			return c.errorAt(e.Span, "The %s builtin can only be used with 'usdt' probes", e.name)
		case p.static == nil:
			continue
		case n >= len(p.static.Args):
			return c.errorAt(e.Span, "%s has %d arguments at %s", p.probe, len(p.static.Args), p.place).hint("-lv %s shows them", p.probe)
		}
		if a := p.static.Args[n]; a.Why != "" {
			return c.errorAt(e.Span, "%s of %s cannot be read at %s: %s (%s)", e.name, p.probe, p.place, a.Why, a.Text)
		}
		e.site = c.addSite(readAt(c.points, e))
	}
	return nil
}

// staticRegister returns the offset in the context of an argument that is a whole register.
func staticRegister(a *sdt.Arg) (off int, ok bool) {
	return x86.PtReg(a.Reg & 15), a.Kind == sdt.Register && a.Size == 8
}

// staticArg loads an argument of a statically defined probe into R0, sign- or zero-extended.
func (g *generator) staticArg(a *sdt.Arg, site int) {
	switch a.Kind {
	case sdt.Constant:
		g.Emit(bpfgen.Const(asm.R0, uint64(a.Value)))
	case sdt.Register:
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.PtReg(a.Reg)))
		if a.High {
			g.Emit(asm.RSh.Imm(asm.R0, 8))
		}
	case sdt.Memory:
		g.Emit(bpfgen.Const(asm.R0, uint64(a.Value)))
		if a.Base != sdt.None {
			g.Emit(bpfgen.Load(8, asm.R1, rCtx, x86.PtReg(a.Base)), asm.Add.Reg(asm.R0, asm.R1))
		}
		if a.Index != sdt.None {
			g.Emit(bpfgen.Load(8, asm.R1, rCtx, x86.PtReg(a.Index)), asm.LSh.Imm(asm.R1, int32(a.Scale)), asm.Add.Reg(asm.R0, asm.R1))
		}
		g.readNumber(a.Size, site)
	}
	if by := int32(64 - 8*a.Size); by > 0 {
		g.Emit(asm.LSh.Imm(asm.R0, by))
		if a.Signed {
			g.Emit(asm.ArSh.Imm(asm.R0, by))
		} else {
			g.Emit(asm.RSh.Imm(asm.R0, by))
		}
	}
}

// listStatic returns the statically defined probes that match a pattern PATH:NAME or PATH:PROVIDER:NAME, without duplicates. They have the form that follows
// "usdt:" in an attach point. Other patterns match nothing.
func listStatic(pattern string, t Target) ([]string, error) {
	file, provider, name, ok := splitStatic(pattern)
	if !ok {
		return nil, nil
	}
	all, _, err := t.StaticProbes(file)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range MatchStatic(all, provider, name) {
		if p.Why == "" {
			out = append(out, file+":"+p.Provider+":"+p.Name)
		}
	}
	return slices.Compact(out), nil
}

// countProbes returns the number of probes at some places, as bpftrace counts them: all places of a statically defined probe that an attach
// point means are one.
func countProbes(ps []*point) (n int) {
	type static struct {
		at    Span
		probe string
	}
	seen := map[static]bool{}
	for _, p := range ps {
		if at := (static{p.Span, p.probe}); p.static == nil || !seen[at] {
			seen[at] = true
			n++
		}
	}
	return n
}
