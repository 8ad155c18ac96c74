package script

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Options are the parameters of a compilation.
type Options struct {
	Name   string   // of the script, in errors; "" = stdin
	Params []string // positional parameters
	Unsafe bool     // it may change the guest
	Files  bool     // user code is in files: addresses are resolved at the hit
	Import []File   // the files that the script imports; see Gather
	CPUs   int      // of the guest; its maps are for one more, used by programs that run on no vCPU
	Now    int64    // the start time, on the clock of ktime_get_ns; elapsed counts from here
	Epoch  int64    // the time when that clock was 0, in nanoseconds since 1970

	// Stop, if not nil, is called regularly; an error ends the compilation, which
	// returns it.
	Stop func() error
}

// Script is a compiled script.
type Script struct {
	Object    *bpf.Object         // all programs and maps
	Probes    int                 // the number of programs, the first ones, at a place in the guest
	Begin     []string            // programs that run at the beginning, on the host
	End       []string            // likewise at the end
	Intervals []Interval          // programs that run at intervals
	Events    map[string][]string // programs that run at events of the guest: EventStart and so on
	Samples   []Interval          // programs that sample each vCPU at intervals
	Exits     []Exit              // programs that run when a vCPU leaves the guest
	Warnings  []string            // as errors have them
	Notes     []string            // about parts of the script that have no effect, each with its place
	c         *checker
	epoch     int64 // Options.Epoch
	programs  map[string]*generator
	count     int            // see CountProbes
	names     map[string]int // of programs, before the number: how many have the name
}

// Interval is a program that runs periodically.
type Interval struct {
	Program string
	Period  time.Duration
}

// Exit is a program that runs when a vCPU leaves the guest.
type Exit struct {
	Program string
	Reason  string
}

// CountProbes returns the number of probes of the script, as bpftrace counts them.
func (s *Script) CountProbes() int { return s.count }

// Places returns the probes of the script except BEGIN and END, each once, in the order of the script. Patterns are expanded.
func (s *Script) Places() (names []string) {
	seen := map[string]bool{}
	for _, ps := range s.c.places {
		for _, p := range ps {
			if !seen[p.probe] && p.provider != "begin" && p.provider != "end" {
				seen[p.probe] = true
				names = append(names, p.probe)
			}
		}
	}
	return names
}

// Strict reports whether the script requests to fail if anything was missed or lost.
func (s *Script) Strict() bool { return s.c.config.strict }

// ringSize is the size of the output ring, in bytes.
const ringSize = 1 << 20

// stacks is the number of different stacks that a script can store.
const stacks = 8192

// maxPrograms bounds the places of a script, if max_probes is not larger.
const maxPrograms = 4096

// maxHosts bounds the programs that run on the host, one after the other.
const maxHosts = 64

// Check parses a script with its positional parameters. It uses the guest's types,
// but does not look up the names in the script. After an unknown type in a probe of a
// file, which may have it, nothing is checked. Errors about the script are an
// *Error.
func Check(name, text string, files []File, params []string, known Types) error {
	tree, err := parse(name, text, files, params, known, nil, nil)
	var e *Error
	if errors.As(err, &e) && e.Unknown && tree.unsure {
		return nil // the type may be the file's
	}
	return err
}

// Compile compiles a script. Errors about the script are an *Error.
func Compile(text string, t Target, o Options) (*Script, error) {
	if o.Name == "" {
		o.Name = "stdin"
	}
	tree, err := parse(o.Name, text, o.Import, o.Params, t.Types(), fileTypes(t), o.Stop)
	if err != nil {
		return nil, err
	}
	tree.unsafe, tree.files = o.Unsafe, o.Files
	c, err := tree.check(t)
	if err != nil {
		return nil, err
	}
	s := &Script{c: c, epoch: o.Epoch, Notes: tree.notes, Object: &bpf.Object{}, programs: map[string]*generator{}, names: map[string]int{}, Events: map[string][]string{}}
	for _, w := range c.warnings {
		s.Warnings = append(s.Warnings, w.Error())
	}
	maps := map[string]bpf.MapSpec{}
	var hosts []bpf.ObjectProgram
	all, most := 0, max(maxPrograms, tree.config.maxProbes+maxHosts)
	for i, d := range tree.probes {
		s.count += countProbes(c.places[i])
		made := map[attached]*generator{} // programs that are the same at each place
		for _, p := range c.places[i] {
			if len(s.programs) >= most {
				return nil, tree.errorAt(d.Span, "more than %d probes", most)
			}
			like := attached{p.Span, p.provider}
			g, isNew := copyGenerator(made[like], len(s.programs)), false
			if g == nil {
				g, isNew = c.generate(d, p, len(s.programs), &o), true
			}
			if !g.placed {
				made[like] = g
			}
			if g.roomTop > maxRoom {
				return nil, tree.errorAt(d.Span, "the variables and values of this probe take more than %d bytes", maxRoom).hint("use shorter strings (max_strlen, str(POINTER, LENGTH)) or fewer of them at a time")
			}
			if err := tree.effort.stopped; err != nil {
				return nil, err
			}
			if g.tooLong() {
				return nil, tree.errorAt(d.Span, "the program of this probe has more than %d instructions", maxInsns)
			}
			if len(g.maps) > bpf.MaxMaps {
				return nil, tree.errorAt(d.Span, "the program of this probe has %d maps, with those that it works with: at most %d", len(g.maps), bpf.MaxMaps)
			}
			if isNew || g.hasRoom() { // the others are loaded once
				all += len(g.Insns)
			}
			if all > maxAll {
				return nil, tree.errorAt(d.Span, "the programs have more than %d instructions in all", maxAll).hint("make patterns narrower")
			}
			p.name = s.programName(p)
			s.programs[p.name] = g
			for _, name := range g.maps {
				maps[name] = g.mapSpec(name)
			}
			if op := g.program(p); p.class() == atPlace {
				s.Object.Programs = append(s.Object.Programs, op)
				s.Probes++
			} else {
				hosts = append(hosts, op)
				if len(hosts) > maxHosts {
					return nil, tree.errorAt(d.Span, "more than %d of BEGIN, END and intervals", maxHosts)
				}
			}
			s.noteHostPoint(p)
		}
	}
	s.Object.Programs = append(s.Object.Programs, hosts...)
	for _, m := range tree.maps { // including maps that are only printed
		if maps[m.name].Name == "" {
			maps[m.name] = m.spec(&tree.config)
		}
	}
	for _, m := range maps {
		s.Object.Maps = append(s.Object.Maps, m)
	}
	if err := checkMemory(tree, maps, o.CPUs+1); err != nil {
		return nil, err
	}
	slices.SortFunc(s.Object.Maps, func(a, b bpf.MapSpec) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// noteHostPoint records when a program runs that has no place in the guest.
func (s *Script) noteHostPoint(p *point) {
	if p.class() == atExit && p.provider == "vm" {
		s.Exits = append(s.Exits, Exit{p.name, p.place})
		return
	}
	switch p.provider {
	case "profile", "software":
		s.Samples = append(s.Samples, Interval{p.name, time.Duration(p.period)})
	case "begin":
		s.Begin = append(s.Begin, p.name)
	case "end":
		s.End = append(s.End, p.name)
	case "vm":
		s.Events[p.target] = append(s.Events[p.target], p.name)
	case "interval":
		s.Intervals = append(s.Intervals, Interval{p.name, time.Duration(p.period)})
	}
}

// programName is the name of a program: its place, with a number if the place has
// several.
func (s *Script) programName(p *point) string {
	name := p.provider
	if p.class() == atPlace {
		name += "_" + strings.Map(func(r rune) rune {
			if r < 0x80 && (isLetter(byte(r)) || isDigit(byte(r))) {
				return r
			}
			return '_'
		}, p.place[:min(len(p.place), 40)])
	}
	for {
		s.names[name]++
		full := name
		if n := s.names[name]; n > 1 {
			full = fmt.Sprintf("%s_%d", name, n)
		}
		if s.programs[full] == nil {
			return full
		}
	}
}

// attached is an attach point of a probe, and a provider that it selects.
type attached struct {
	Span
	provider string
}

// hasRoom reports whether the program has a map of its own for its values.
func (g *emitter) hasRoom() bool { return slices.Contains(g.maps, g.roomName()) }

// copyGenerator returns the program for another place, whose program has this number: only
// the room for values, if there is one, is not shared.
func copyGenerator(g *generator, number int) *generator {
	if g == nil || !g.hasRoom() {
		return g
	}
	e := *g.emitter
	e.number, e.maps = number, slices.Clone(g.maps)
	e.maps[slices.Index(e.maps, g.roomName())] = e.roomName()
	n := *g
	n.emitter = &e
	return &n
}

// program is the form that package bpf uses.
func (g *generator) program(p *point) bpf.ObjectProgram {
	kind := bpf.Kprobe
	switch {
	case p.atReturn():
		kind = bpf.Kretprobe
	case p.provider == "watchpoint":
		kind = bpf.Watch
	}
	return bpf.NewObjectProgram(bpf.ObjectProgram{Name: p.name, Section: p.probe, Kind: kind, AttachTo: p.place}, g.Insns, g.maps)
}

// mapSpec describes a map that the program uses.
func (g *generator) mapSpec(name string) bpf.MapSpec {
	array := bpf.MapSpec{Name: name, Kind: bpf.Array, KeySize: 4, MaxEntries: 1}
	var depth int
	switch {
	case name == mapOutput:
		return bpf.MapSpec{Name: name, Kind: bpf.RingBuf, MaxEntries: ringSize}
	case name == mapSites:
		array.ValueSize = g.c.exitOffset() + 16
		return array
	case strings.HasPrefix(name, mapRoom):
		array.Kind, array.ValueSize = bpf.PerCPUArray, uint32(g.roomTop)
		return array
	case strings.HasPrefix(strings.TrimPrefix(name, "u"), mapStacks):
		fmt.Sscanf(strings.TrimPrefix(name, "u"), mapStacks+"%d", &depth) // in the form made by stacks
		return bpf.MapSpec{Name: name, Kind: bpf.StackTrace, KeySize: 4, ValueSize: uint32(8 * depth), MaxEntries: stacks}
	}
	return g.c.byName[name].spec(&g.c.config)
}

// spec describes a map of the script.
func (m *mapDef) spec(c *config) bpf.MapSpec {
	s := bpf.MapSpec{Name: m.name, Kind: bpf.Hash, KeySize: uint32(m.keyBytes()), ValueSize: uint32(m.valueBytes()), MaxEntries: uint32(c.maxKeys)}
	if m.limit > 0 {
		s.MaxEntries = uint32(m.limit)
	}
	switch {
	case m.keyed == 1:
		s.Kind, s.KeySize, s.MaxEntries = bpf.Array, 4, 1
		if m.isHist() {
			s.MaxEntries = uint32(buckets(m.value))
		}
		if m.value.isAggregate() {
			s.Kind = bpf.PerCPUArray
		}
	case m.value.isAggregate():
		s.Kind = bpf.PerCPUHash
		if m.isHist() {
			s.KeySize += 8
		}
	}
	switch {
	case m.lru && s.Kind == bpf.Hash:
		s.Kind = bpf.LRUHash
	case m.lru && s.Kind == bpf.PerCPUHash:
		s.Kind = bpf.PerCPULRU
	}
	return s
}

// RefusalError is the error for a program that cannot be at its place.
func (s *Script) RefusalError(program string, format string, args ...any) error {
	for i := range s.c.places {
		for _, p := range s.c.places[i] {
			if p.name == program {
				return s.c.errorAt(p.Span, "%s: %s", p.probe, fmt.Sprintf(format, args...))
			}
		}
	}
	return fmt.Errorf(format, args...)
}

// Source returns a warning with text what about the statement of an instruction,
// which is given by its program and slot, as in a fault.
func (s *Script) Source(program string, slot int, what string) string {
	g := s.programs[program]
	if g == nil {
		return what
	}
	at := 0
	for i, in := range g.Insns {
		if at += int(in.Size() / 8); slot < at {
			e := s.c.errorAt(g.spans[i], "%s", what)
			e.AtRunTime = true
			return e.Error()
		}
	}
	return what
}
