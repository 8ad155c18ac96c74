package script

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Target is what a script may know of the guest before it runs.
type Target interface {
	Names

	// Match returns the functions, or with user those of user code alone, that a pattern with
	// * ? and [] matches, in any order, and no more than one more than MaxPoints.
	// With returns they are those whose returns can be probed. Left are those that cannot be, by the reason, and how many.
	Match(pattern string, user, returns bool) (names []string, left map[string]int)
	// Lookup returns the address of a symbol. Of a module's that is not loaded, as
	// MODULE:SYMBOL, it is 0 where the guest may load it yet. Where there is none, why may say
	// what to do about it.
	Lookup(name string) (addr uint64, ok bool, why string)
	// Source returns the places of FILE:LINE, or of inline:FUNCTION, as SYMBOL+OFFSET, but for
	// those that cannot be probed.
	Source(place string) ([]string, error)
	// Func returns the prototype of a function, or nil where it is not known. Where its parameters are known, but not where it
	// has them, why says so.
	Func(name string) (proto *btf.FuncProto, why string)
	// Types returns the types of the guest, or nil where none are known.
	Types() Types
	// Exits returns the reasons for which vCPUs leave the guest.
	Exits() []string
	// Lacks returns why a part of tasks is not known in this guest, and what would provide it; "" where it is.
	Lacks(what TaskPart) (why, cure string)
	// User reports whether a symbol, or an address, is user code.
	User(name string) bool
}

// TaskPart is what a guest may not tell of its tasks.
type TaskPart uint8

// Parts of tasks.
const (
	TaskItself TaskPart = iota // which one runs, its numbers and name
	TaskUser
	TaskCgroup
)

// ofTask are the builtins that are about the guest's task.
var ofTask = map[string]TaskPart{
	"pid": TaskItself, "tid": TaskItself, "comm": TaskItself, "curtask": TaskItself, "uid": TaskUser, "gid": TaskUser, "cgroup": TaskCgroup,
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

// expand makes the places of a probe's attach points. What is not there is left out where
// the script says so, and told in warnings.
func (s *script) expand(d *probeDef, t Target) (ps []*point, warnings []*Error, err error) {
	for _, a := range d.points {
		if reason, ok := a.exit(); ok {
			found := s.exits(a, reason, t)
			if len(found) == 0 {
				return nil, nil, s.at(a.Span, "no vCPU leaves the guest for %s", reason).hint("there are %s", strings.Join(t.Exits(), ", "))
			}
			ps = append(ps, found...)
			continue
		}
		if a.class() != atPlace {
			p := &point{attachPoint: a, probe: a.text, fn: a.provider}
			p.period, _ = interval(a.target)
			ps = append(ps, p)
			continue
		}
		find := s.functions
		if a.source {
			find = s.lines
		}
		found, err := find(a, t)
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

// exits are the places of vm:exit:REASON, with a pattern.
func (s *script) exits(a attachPoint, reason string, t Target) (ps []*point) {
	for _, r := range t.Exits() {
		if ok, err := path.Match(reason, r); err == nil && ok {
			ps = append(ps, &point{attachPoint: a, probe: "vm:" + EventExit + ":" + r, fn: a.provider, place: r})
		}
	}
	return ps
}

// lines are the places of an attach point in the source.
func (s *script) lines(a attachPoint, t Target) (ps []*point, err error) {
	places, err := t.Source(a.target)
	if err != nil {
		return nil, s.at(a.Span, "%s", err)
	}
	for _, place := range places {
		fn, _, _ := strings.Cut(place, "+")
		ps = append(ps, &point{attachPoint: a, probe: a.text, fn: functionName(fn, t), place: place})
	}
	return ps, nil
}

// functionName is the name of the function that a probe names, by its address too, of which
// several may have one name.
func functionName(fn string, t Target) string {
	if addr, ok := parseNumber(fn); ok {
		if name, _, ok := t.Name(addr); ok {
			return name
		}
	}
	return fn[strings.LastIndexByte(fn, ':')+1:]
}

// functions are the places of one attach point.
func (s *script) functions(a attachPoint, t Target) (ps []*point, err error) {
	whole, place := a.target, func(symbol string) string { return symbol }
	if a.provider == "watchpoint" {
		whole, _, _ = strings.Cut(a.target, ":")
		place, _ = watched(a.target)
	}
	fn, off, hasOffset := strings.Cut(whole, "+")
	if hasOffset {
		by, ok := parseNumber(off)
		if !ok || fn == "" {
			return nil, s.at(a.Span, "%s: want FUNCTION+OFFSET", a.text)
		}
		if addr, ok := parseNumber(fn); ok { // whose offset is only another way to write it
			if addr+by < addr {
				return nil, s.at(a.Span, "%s: there is no such address", a.text)
			}
			fn = fmt.Sprintf("%#x", addr+by)
			place = func(string) string { return fn }
		}
		if a.atReturn() {
			return nil, s.at(a.Span, "a %s has no offset", a.provider)
		}
	}
	one := func(fn, whole string) {
		probe := a.provider + ":" + whole
		if a.provider == "watchpoint" {
			probe = a.text
		}
		ps = append(ps, &point{attachPoint: a, probe: probe, fn: functionName(fn, t), place: place(whole)})
	}
	elsewhere := func(name string) *Error {
		return s.at(a.Span, "%s is not in user code", name).hint("write %s:%s", strings.Replace(a.provider, "u", "k", 1), a.target)
	}
	switch {
	case fn[0] >= '0' && fn[0] <= '9':
		if _, ok := parseNumber(fn); !ok {
			return nil, s.at(a.Span, "%s: invalid address", a.text)
		}
		if a.inUser() && !t.User(fn) {
			return nil, elsewhere(fn)
		}
		one(fn, whole)
	case strings.ContainsAny(fn, "*?["):
		if _, err := path.Match(fn, ""); err != nil || hasOffset || !a.atFunction() {
			return nil, s.at(a.Span, "%s: want a pattern for functions", a.text)
		}
		names, left := t.Match(fn, a.inUser(), a.atReturn())
		for _, m := range names {
			one(m, m)
		}
		s.leftOut(a, left)
	default:
		if _, ok, _ := t.Lookup(fn); !ok {
			break
		}
		if a.inUser() && !t.User(fn) {
			return nil, elsewhere(fn)
		}
		one(fn, whole)
	}
	return ps, nil
}

// leftOut notes the functions that a pattern matches and that cannot be probed.
func (s *script) leftOut(a attachPoint, left map[string]int) {
	var reasons []string
	all := 0
	for why, n := range left {
		all += n
		reasons = append(reasons, fmt.Sprintf("%s (%d)", why, n))
	}
	if all == 0 {
		return
	}
	slices.Sort(reasons)
	verb := "functions that match cannot be probed and are"
	if all == 1 {
		verb = "function that matches cannot be probed and is"
	}
	w := s.at(a.Span, "%s: %d %s left out: %s", a.text, all, verb, strings.Join(reasons, ", "))
	w.AtRunTime = true
	s.left = append(s.left, w)
}

// noMatch is the error for an attach point at no function.
func (s *script) noMatch(a attachPoint, t Target) *Error {
	err := s.at(a.Span, "No matches for %s %s", a.provider, a.target)
	fn, _, _ := strings.Cut(a.target, "+")
	if strings.ContainsAny(fn, "*?[") || len(fn) < 2 {
		return err
	}
	if _, _, why := t.Lookup(fn); why != "" {
		return err.hint("%s", why)
	}
	if parts, _ := t.Match(fn+".*", a.inUser(), a.atReturn()); len(parts) > 0 && a.class() == atPlace && a.provider != "watchpoint" {
		slices.Sort(parts)
		return err.hint("the compiler has made %s of it: write %s:%s", strings.Join(parts[:min(len(parts), 5)], ", "), a.provider, parts[0])
	}
	before, _ := t.Match(fn[:2]+"*", a.inUser(), a.atReturn())
	behind, _ := t.Match("*"+fn[1:], a.inUser(), a.atReturn())
	if m := meant(fn, append(before, behind...)); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err
}
