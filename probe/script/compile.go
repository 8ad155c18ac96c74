package script

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Options are what a script is compiled with.
type Options struct {
	Name   string   // of the script, in errors; "" = stdin
	Params []string // positional parameters
	Unsafe bool     // it may change what the guest does
	Files  bool     // user code is of files: what is at an address is asked at the hit
	CPUs   int      // of the guest; its maps are for one more, which is where programs run that are on no vCPU
	Now    int64    // when it begins, on the clock of ktime_get_ns; elapsed counts from here
	Epoch  int64    // when that clock was 0, in nanoseconds since 1970

	// Stop, if not nil, is called now and then; an error ends the compilation, which returns it.
	Stop func() error
}

// Script is a compiled script.
type Script struct {
	Object    *bpf.Object         // all programs and maps
	Probes    int                 // of its programs, those from the first on that are at a place in the guest
	Begin     []string            // names of programs that run at the beginning, on the host
	End       []string            // likewise at the end
	Intervals []Interval          // and at times
	Events    map[string][]string // and when something happens to the guest, by EventStart and so on
	Samples   []Interval          // that run on what each vCPU does, again and again
	Exits     []Exit              // that run when a vCPU leaves the guest
	Warnings  []string            // as errors have them
	c         *checker
	epoch     int64 // Options.Epoch
	programs  map[string]*generator
}

// Interval is a program that runs again and again.
type Interval struct {
	Program string
	Period  time.Duration
}

// Exit is a program that runs when a vCPU leaves the guest.
type Exit struct {
	Program string
	Reason  string
}

// Attached is how many probes the script has, as bpftrace counts them.
func (s *Script) Attached() int { return len(s.programs) }

// Strict reports whether the script asks to fail where something was missed or lost.
func (s *Script) Strict() bool { return s.c.config.strict }

// ringSize is that of what programs write, in bytes.
const ringSize = 1 << 20

// stacks is how many different stacks a script can tell apart.
const stacks = 8192

// maxPrograms bounds the places of a script.
const maxPrograms = 4096

// maxHosts bounds the programs that run on the host, one after the other.
const maxHosts = 64

// Check parses a script, with no guest but its types, and looks up nothing that the script names there.
// Errors about it are an *Error.
func Check(name, text string, known Types) error {
	_, err := parse(name, text, nil, known, nil)
	return err
}

// Compile compiles a script. Errors about it are an *Error.
func Compile(text string, t Target, o Options) (*Script, error) {
	if o.Name == "" {
		o.Name = "stdin"
	}
	tree, err := parse(o.Name, text, o.Params, t.Types(), o.Stop)
	if err != nil {
		return nil, err
	}
	tree.unsafe, tree.files = o.Unsafe, o.Files
	c, err := tree.check(t)
	if err != nil {
		return nil, err
	}
	s := &Script{c: c, epoch: o.Epoch, Object: &bpf.Object{}, programs: map[string]*generator{}, Events: map[string][]string{}}
	for _, w := range c.warnings {
		s.Warnings = append(s.Warnings, w.Error())
	}
	maps := map[string]bpf.MapSpec{}
	var hosts []bpf.ObjectProgram
	all := 0
	for i, d := range tree.probes {
		for _, p := range c.places[i] {
			if len(s.programs) >= maxPrograms {
				return nil, tree.at(d.Span, "more than %d probes", maxPrograms)
			}
			g := c.generate(d, p, len(s.programs), &o)
			if g.roomTop > maxRoom {
				return nil, tree.at(d.Span, "the variables and values of this probe take more than %d bytes", maxRoom).hint("use shorter strings (max_strlen, str(POINTER, LENGTH)) or fewer of them at a time")
			}
			if err := tree.effort.stopped; err != nil {
				return nil, err
			}
			if g.tooLong() {
				return nil, tree.at(d.Span, "the program of this probe has more than %d instructions", maxInsns)
			}
			if len(g.maps) > bpf.MaxMaps {
				return nil, tree.at(d.Span, "the program of this probe has %d maps, with those that it works with: at most %d", len(g.maps), bpf.MaxMaps)
			}
			if all += len(g.Insns); all > maxAll {
				return nil, tree.at(d.Span, "the programs have more than %d instructions in all", maxAll).hint("make patterns narrower")
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
					return nil, tree.at(d.Span, "more than %d of BEGIN, END and intervals", maxHosts)
				}
			}
			s.onHost(p)
		}
	}
	s.Object.Programs = append(s.Object.Programs, hosts...)
	for _, m := range tree.maps { // also those that are only printed
		if maps[m.name].Name == "" {
			maps[m.name] = m.spec(&tree.config)
		}
	}
	for _, m := range maps {
		s.Object.Maps = append(s.Object.Maps, m)
	}
	slices.SortFunc(s.Object.Maps, func(a, b bpf.MapSpec) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// onHost notes when a program runs that is at no place in the guest.
func (s *Script) onHost(p *point) {
	if p.class() == atExit && p.provider == "vm" {
		s.Exits = append(s.Exits, Exit{p.name, p.place})
		return
	}
	switch p.provider {
	case "profile":
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

// programName is the name of a program: its place, with a number where there are several
// there.
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
	for n := 2; ; n++ {
		full := name
		if n > 2 {
			full = fmt.Sprintf("%s_%d", name, n-1)
		}
		if s.programs[full] == nil {
			return full
		}
	}
}

// program is the form in which others take it.
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
		array.ValueSize = g.c.exiting() + 16
		return array
	case strings.HasPrefix(name, mapRoom):
		array.Kind, array.ValueSize = bpf.PerCPUArray, uint32(g.roomTop)
		return array
	case strings.HasPrefix(strings.TrimPrefix(name, "u"), mapStacks):
		fmt.Sscanf(strings.TrimPrefix(name, "u"), mapStacks+"%d", &depth) // as stacks has made it
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

// Refused is the error for a program that cannot be at its place.
func (s *Script) Refused(program string, format string, args ...any) error {
	for i := range s.c.places {
		for _, p := range s.c.places[i] {
			if p.name == program {
				return s.c.at(p.Span, "%s: %s", p.probe, fmt.Sprintf(format, args...))
			}
		}
	}
	return fmt.Errorf(format, args...)
}

// Source returns the statement that an instruction of a program is of, by the slot that
// a fault names, as a warning with that text.
func (s *Script) Source(program string, slot int, what string) string {
	g := s.programs[program]
	if g == nil {
		return what
	}
	at := 0
	for i, in := range g.Insns {
		if at += int(in.Size() / 8); slot < at {
			e := s.c.at(g.spans[i], "%s", what)
			e.AtRunTime = true
			return e.Error()
		}
	}
	return what
}
