package script

import (
	"path"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Target is what a script may know of the guest before it runs.
type Target interface {
	// Match returns the functions that a pattern with * ? and [] matches, in any order, and
	// no more than one more than MaxPoints.
	Match(pattern string) []string
	// Lookup returns the address of a symbol.
	Lookup(name string) (addr uint64, ok bool)
	// Func returns the prototype of a function, or nil where it is not known.
	Func(name string) *btf.FuncProto
	// Types returns the types of the guest, or nil where none are known.
	Types() Types
}

// MaxPoints bounds how many functions the patterns of a probe may match, as bpftrace does.
const MaxPoints = 1024

// point is one place of a probe.
type point struct {
	attachPoint
	probe  string // as the builtin of that name says
	fn     string
	place  string // SYMBOL+OFFSET, or an address
	name   string // of the program
	period uint64 // of an interval, in nanoseconds

	proto *prototype // by the checker
}

// atReturn reports whether the probe is at a function's return.
func (p *point) atReturn() bool { return p.provider == "kretprobe" }

// hasGuest reports whether there is a hit when it runs.
func (p *point) hasGuest() bool { return p.provider == "kprobe" || p.provider == "kretprobe" }

// expand makes the places of a probe's attach points. What is not there is left out where
// the script says so, and told in warnings.
func (s *script) expand(d *probeDef, t Target) (ps []*point, warnings []*Error, err error) {
	for _, a := range d.points {
		if !(&point{attachPoint: a}).hasGuest() {
			p := &point{attachPoint: a, probe: a.text, fn: a.provider}
			p.period, _ = interval(a.target)
			ps = append(ps, p)
			continue
		}
		found, err := s.functions(a, t)
		if err != nil {
			return nil, nil, err
		}
		if len(found) == 0 {
			missing := s.noMatch(a, t)
			switch s.config.missing {
			case "error":
				return nil, nil, missing
			case "warn":
				missing.AtRunTime = true
				warnings = append(warnings, missing)
			}
		}
		ps = append(ps, found...)
		if len(ps) > MaxPoints {
			return nil, nil, s.at(a.Span, "%s matches more than %d functions", a.text, MaxPoints).hint("make the pattern narrower")
		}
	}
	return ps, warnings, nil
}

// functions are the places of one attach point.
func (s *script) functions(a attachPoint, t Target) (ps []*point, err error) {
	fn, off, hasOffset := strings.Cut(a.target, "+")
	if hasOffset {
		if _, ok := parseNumber(off); !ok || fn == "" {
			return nil, s.at(a.Span, "%s: want FUNCTION+OFFSET", a.text)
		}
		if a.provider == "kretprobe" {
			return nil, s.at(a.Span, "a kretprobe has no offset")
		}
	}
	one := func(fn, place string) {
		ps = append(ps, &point{attachPoint: a, probe: a.provider + ":" + place, fn: fn, place: place})
	}
	switch {
	case fn[0] >= '0' && fn[0] <= '9':
		if _, ok := parseNumber(fn); !ok {
			return nil, s.at(a.Span, "%s: invalid address", a.text)
		}
		one(fn, a.target)
	case strings.ContainsAny(fn, "*?["):
		if _, err := path.Match(fn, ""); err != nil || hasOffset {
			return nil, s.at(a.Span, "%s: want a pattern for functions", a.text)
		}
		for _, m := range t.Match(fn) {
			one(m, m)
		}
	default:
		if _, ok := t.Lookup(fn); ok {
			one(fn, a.target)
		}
	}
	return ps, nil
}

// noMatch is the error for an attach point at no function.
func (s *script) noMatch(a attachPoint, t Target) *Error {
	err := s.at(a.Span, "No matches for %s %s", a.provider, a.target)
	fn, _, _ := strings.Cut(a.target, "+")
	if strings.ContainsAny(fn, "*?[") || len(fn) < 2 {
		return err
	}
	if m := meant(fn, append(t.Match(fn[:2]+"*"), t.Match("*"+fn[1:])...)); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err
}
