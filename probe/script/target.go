package script

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Target is the information that a script needs about the guest before it runs.
type Target interface {
	Names

	// Match returns the functions (with user only functions of user code) that a pattern
	// with * ? and [] matches, in any order, and at most most. With returns they are
	// those whose returns can be probed. left counts those that cannot be probed, by
	// reason. MODULE in MODULE:PATTERN may be a pattern, too; the kernel itself is
	// vmlinux.
	Match(pattern string, user, returns bool, most int) (names []string, left map[string]int)
	// Lookup returns the address of a symbol. For MODULE:SYMBOL of a module that is
	// not loaded, but may be, it returns 0; MODULE is vmlinux for the kernel itself.
	// If there is no such symbol, why may say what to do about it.
	Lookup(name string) (addr uint64, ok bool, why string)
	// HasModule reports whether a module of the guest's kernel is loaded. If it is not,
	// why may say more.
	HasModule(name string) (loaded bool, why string)
	// Source returns the places of FILE:LINE, or of inline:FUNCTION, as
	// SYMBOL+OFFSET, except places that cannot be probed. After PATH@ the place is FILE:LINE or FILE:LINE:COLUMN in the source of a
	// file of the guest.
	Source(place string) ([]string, error)
	// Func returns the prototype of a function, or nil if it is not known. If its
	// parameters are known, but not their places, why says so. Of PATH:FUNCTION, of a file of the guest, it may also say why they are not
	// known.
	Func(name string) (proto *btf.FuncProto, why string)
	// Tracepoints returns the names of the tracepoints of the guest's kernel, sorted. Func takes a name with the prefix bpf.AtTracepoint; in
	// its result the tracepoint's parameters follow the first.
	Tracepoints() []string
	// Events returns the names of the events of the guest's kernel, CATEGORY:NAME,
	// sorted. Event returns the fields of one's record; an error says why they are
	// not known.
	Events() []string
	Event(name string) ([]EventField, error)
	// FindFile returns the path of the guest's file with a name that has no path, such as libc, or "".
	FindFile(name string) string
	// FileVariable returns where a process has a variable of a file of the guest, and the variable's size, 0 if that is not known: its
	// address minus that of any code of the file in the process, plus the target's address of that code.
	FileVariable(path, name string) (move, size uint64, err error)
	// StaticProbes returns the statically defined probes of a file of the guest (USDT), and the path in their places. It fails if they are not
	// known, or if the file has none.
	StaticProbes(path string) (all []sdt.Probe, at string, err error)
	// Types returns the types of the guest, or nil if they are not known.
	Types() Types
	// FileTypes returns the types of a file of the guest, by the file's path, or nil if they are not known.
	FileTypes(path string) Types
	// Exits returns the reasons for which vCPUs leave the guest.
	Exits() []string
	// MissingReason returns why a part of tasks is not known in this guest, and a way
	// to provide it; "" if it is known.
	MissingReason(what TaskPart) (why, cure string)
	// User reports whether a symbol, or an address, is user code.
	User(name string) bool
}

// EventField is a field of an event's record.
type EventField struct {
	Name   string
	Type   btf.Type
	Offset uint64 // bytes
	// Located: the record has the place of the field's data there (__data_loc), and
	// Type is a pointer to that.
	Located bool
}

// TaskPart is information about tasks that a guest may lack.
type TaskPart uint8

// Parts of tasks.
const (
	TaskItself TaskPart = iota // the task that runs, its numbers and name
	TaskUser
	TaskCgroup
)

// ofTask are the builtins about the guest's task.
var ofTask = map[string]TaskPart{
	"pid": TaskItself, "tid": TaskItself, "comm": TaskItself, "curtask": TaskItself, "uid": TaskUser, "gid": TaskUser, "cgroup": TaskCgroup,
}

// MaxPoints is the largest max_probes: the number of functions that the patterns of a
// probe may match.
const MaxPoints = 20_000

// defaultPoints is max_probes if it is not set, as in bpftrace.
const defaultPoints = 1024

// point is one place of a probe.
type point struct {
	attachPoint
	probe  string // the value of the builtin probe
	fn     string
	place  string // SYMBOL+OFFSET, or an address
	name   string // of the program
	period uint64 // of an interval, in nanoseconds

	// Set by the checker.
	proto  *prototype
	static *sdt.Probe        // nil: it is not at one
	fields map[string]uint64 // offsets of the fields of an event's record that the script reads
}

// expand makes the places of a probe's attach points. Missing places are left out if
// the script allows it, with warnings.
func (s *script) expand(d *probeDef, t Target) (ps []*point, warnings []*Error, err error) {
	var unmatched []*Error // patterns without a match
	for i, a := range d.points {
		if reason, ok := a.exit(); ok {
			found := s.exits(a, reason, t)
			if len(found) == 0 {
				return nil, nil, s.errorAt(a.Span, "no vCPU leaves the guest for %s", reason).hint("there are %s", strings.Join(t.Exits(), ", "))
			}
			ps = append(ps, found...)
			continue
		}
		if a.class() != atPlace {
			p := &point{attachPoint: a, probe: a.text, fn: a.provider}
			if p.period, _ = interval(a.target); a.provider == "software" {
				p.period, _, _ = software(a.target)
			}
			if p.period > 0 && p.period < minPeriod {
				w := s.errorAt(a.Span, "%s runs every 100 us", a.text).hint("no interval is shorter")
				w.AtRunTime = true
				p.period, warnings = minPeriod, append(warnings, w)
			}
			ps = append(ps, p)
			continue
		}
		if isPattern(a.file) {
			return nil, nil, s.errorAt(a.Span, "%s: patterns for files are not supported", a.text).hint("%s", noFilePatterns)
		}
		if a.file != "" { // its path is known from here on
			at := t.FindFile(a.file)
			if at == "" {
				return nil, nil, s.errorAt(a.Span, "%s is no file of the guest", a.file).hint("write where it is there, as %s:/usr/lib/x86_64-linux-gnu/%s.so:%s, and --file PATH=COPY with a copy, if the guest does not have it in memory", a.provider, strings.TrimSuffix(a.file, ".so"), a.target)
			}
			a.target = at + a.separator() + a.target
		}
		find := s.functions
		switch {
		case a.source:
			find = s.lines
		case a.atTracepoint(), a.atEvent():
			find = s.tracepoints
		case a.atStatic():
			find = s.static
		}
		found, err := find(a, t)
		if a.among && (err != nil || len(found) == 0) && !isLastOfNone(d.points, i, ps) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if len(found) == 0 {
			missing := s.noMatchError(a, t)
			if s.config.missing == "error" && !isPattern(a.target) {
				return nil, nil, missing
			}
			unmatched = append(unmatched, missing)
		}
		ps = append(ps, found...)
		if len(ps) > s.config.maxProbes {
			err := s.errorAt(a.Span, "%s matches more than %d functions", a.text, s.config.maxProbes)
			if s.config.maxProbes == MaxPoints {
				return nil, nil, err.hint("make the pattern narrower")
			}
			return nil, nil, err.hint("make the pattern narrower, or raise max_probes: config = { max_probes = %d }", MaxPoints)
		}
	}
	more, err := s.skipMissing(d, ps, unmatched)
	return ps, append(warnings, more...), err
}

// noFilePatterns is the advice for patterns for files.
const noFilePatterns = "write the path of one file of the guest, or a probe for each, separated by commas"

// isLastOfNone reports whether points[i] is the last one of its pattern for probe types, and none of them has a place.
func isLastOfNone(points []attachPoint, i int, ps []*point) bool {
	at := points[i].Span
	return (i+1 == len(points) || points[i+1].Span != at) && !slices.ContainsFunc(ps, func(p *point) bool { return p.Span == at })
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
		return nil, s.errorAt(a.Span, "%s", err)
	}
	for _, place := range places {
		fn, _, _ := cutOffset(place)
		ps = append(ps, &point{attachPoint: a, probe: a.text, fn: functionName(fn, t), place: place})
	}
	return ps, nil
}

// cutOffset splits SYMBOL+OFFSET. The path of PATH:SYMBOL may contain a plus, as that of libstdc++ does.
func cutOffset(place string) (symbol, offset string, ok bool) {
	path := ""
	if strings.HasPrefix(place, "/") {
		path = place[:strings.LastIndexByte(place, ':')+1]
	}
	symbol, offset, ok = strings.Cut(place[len(path):], "+")
	return path + symbol, offset, ok
}

// functionName is the name of the function in a probe, which may also be an address;
// several functions may have one name.
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
		place, _ = parseWatch(a.target)
	}
	fn, off, hasOffset := cutOffset(whole)
	if hasOffset {
		by, ok := parseNumber(off)
		if !ok || fn == "" {
			return nil, s.errorAt(a.Span, "%s: want FUNCTION+OFFSET", a.text)
		}
		if addr, ok := parseNumber(fn); ok { // the offset is only another way to write it
			if addr+by < addr {
				return nil, s.errorAt(a.Span, "%s: there is no such address", a.text)
			}
			fn = fmt.Sprintf("%#x", addr+by)
			place = func(string) string { return fn }
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
		return s.errorAt(a.Span, "%s is not in user code", name).hint("write %s:%s", strings.Replace(a.provider, "u", "k", 1), a.target)
	}
	switch {
	case fn[0] >= '0' && fn[0] <= '9' && !strings.Contains(fn, ":"):
		if _, ok := parseNumber(fn); !ok {
			return nil, s.errorAt(a.Span, "%s: invalid address", a.text)
		}
		if a.inUser() && !t.User(fn) {
			return nil, elsewhere(fn)
		}
		one(fn, whole)
	case strings.ContainsAny(fn, "*?["):
		if _, err := path.Match(fn, ""); err != nil || hasOffset || !a.atFunction() {
			return nil, s.errorAt(a.Span, "%s: want a pattern for functions", a.text)
		}
		names, left := t.Match(a.inModule(fn), a.inUser(), a.atReturn(), s.config.maxProbes+1)
		for _, m := range names {
			one(m, m)
		}
		s.noteLeftOut(a, left)
	default:
		_, ok, _ := t.Lookup(a.inModule(fn))
		if missing := s.missingModule(a, fn, ok, t); missing != nil {
			return nil, missing
		}
		if !ok {
			break
		}
		if a.inUser() && !t.User(fn) {
			return nil, elsewhere(fn)
		}
		one(fn, whole)
	}
	return ps, nil
}

// tracepoints are the tracepoints of one attach point.
func (s *script) tracepoints(a attachPoint, t Target) (ps []*point, err error) {
	if _, err := path.Match(a.target, ""); err != nil {
		return nil, s.errorAt(a.Span, "%s: want a pattern for tracepoints", a.text)
	}
	all := t.Tracepoints
	if a.atEvent() {
		all = t.Events
	}
	for _, name := range all() {
		if ok, _ := path.Match(a.target, name); ok {
			ps = append(ps, &point{attachPoint: a, probe: a.provider + ":" + name, fn: name, place: bpf.AtTracepoint + name})
		}
	}
	return ps, nil
}

// noteLeftOut records the functions that a pattern matches and that cannot be probed.
func (s *script) noteLeftOut(a attachPoint, left map[string]int) {
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
	w := s.errorAt(a.Span, "%s: %d %s left out: %s", a.text, all, verb, strings.Join(reasons, ", "))
	w.AtRunTime = true
	s.left = append(s.left, w)
}

// noMatchError is the error for an attach point without a function.
func (s *script) noMatchError(a attachPoint, t Target) *Error {
	if a.atStatic() {
		return s.noStaticError(a, t)
	}
	err := s.errorAt(a.Span, "No matches for %s %s", a.providerName(), a.inModule(a.target))
	if a.atTracepoint() || a.atEvent() {
		all := t.Tracepoints()
		if a.atEvent() {
			all = t.Events()
		}
		switch {
		case len(all) == 0 && len(t.Tracepoints()) > 0:
			return err.hint("no events of the guest's kernel are known: it lists them while it boots, and they need its types (CONFIG_DEBUG_INFO_BTF)")
		case len(all) == 0:
			return err.hint("only the kernel of a Linux guest has tracepoints")
		case a.atTracepoint() && strings.Contains(a.target, ":"):
			return err.hint("tracepoints of modules cannot be probed")
		}
		if m := nearestName(a.target, all); m != "" {
			return err.hint("did you mean %s?", m)
		}
		return err
	}
	fn, _, _ := cutOffset(a.target)
	if a.inFile() && isPattern(a.path(t)) {
		return err.hint("patterns for files are not supported: %s", noFilePatterns)
	}
	if strings.ContainsAny(fn, "*?[") || len(fn) < 2 {
		return err
	}
	if _, _, why := t.Lookup(a.inModule(fn)); why != "" {
		return err.hint("%s", why)
	}
	if parts, _ := t.Match(fn+".*", a.inUser(), a.atReturn(), defaultPoints); len(parts) > 0 && a.class() == atPlace && a.provider != "watchpoint" {
		slices.Sort(parts)
		return err.hint("the compiler has made %s of it: write %s:%s", strings.Join(parts[:min(len(parts), 5)], ", "), a.provider, parts[0])
	}
	before, _ := t.Match(fn[:2]+"*", a.inUser(), a.atReturn(), defaultPoints)
	after, _ := t.Match("*"+fn[1:], a.inUser(), a.atReturn(), defaultPoints)
	if m := nearestName(fn, append(before, after...)); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err
}
