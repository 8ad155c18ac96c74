package bpf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/sdt"
)

// MaxObjectSize bounds the size of an object file in bytes.
const MaxObjectSize = 16 << 20

// Errors of LoadObject.
var (
	ErrObjectTooLarge = fmt.Errorf("larger than %d bytes", MaxObjectSize)
	ErrNoPrograms     = errors.New("no programs for probes")

	errLeftOut = errors.New("left out")
)

// Object is an object file as clang makes them for the bpf target, parsed but not yet
// loaded.
type Object struct {
	Maps     []MapSpec // in the order of their names; global variables are arrays named .data, .bss, .rodata
	Programs []ObjectProgram
	LeftOut  []string // functions whose programs were left out
	Notes    []string // differences from the file, for the user: sizes of maps, maps that are not pinned

	without map[string]bool // the programs that were left out
}

// ObjectProgram is one program of an object.
type ObjectProgram struct {
	Name     string // of the C function
	Section  string // such as kprobe/NAME or fexit/NAME
	Kind     Kind
	AttachTo string           // function, which may be empty; for a kprobe it may end in +OFFSET; or AtTracepoint and a tracepoint's name
	args     int              // of Fentry, Fexit and Tracepoint: words of arguments
	returns  bool             // likewise: it returns a value
	follows  bool             // it reads kernel memory by address, as through Linux's typed pointers
	insns    asm.Instructions // with maps numbered as in maps
	maps     []string
	shows    map[uint32]*showPlace // types that it may print, by their numbers
	copyOf   string                // name of another program that differs only in its name and place
}

// NewObjectProgram makes a program of an object without a file: p with these
// instructions, in which maps are numbered as in maps.
func NewObjectProgram(p ObjectProgram, insns asm.Instructions, maps []string) ObjectProgram {
	p.insns, p.maps = insns, maps
	return p
}

// Selection says which parts of a file are loaded, and how.
type Selection struct {
	// Section selects the programs in that section, and the maps that they use; the
	// rest of the file is ignored. It may be several sections separated by commas,
	// and patterns (path.Match). "" = all.
	Section string
	Set     map[string]string // values of constants: numbers, true and false, names of enumerations, texts
	// MapEntries are sizes of maps by name, in place of those in the file: entries, or
	// bytes of a ring. A map without a size has a default.
	MapEntries map[string]uint32
	At         map[string]string // where programs attach, by the place in their section's name or, without one, by program name; "" is for the only program
	// Has reports whether the guest has a function. Programs at other functions are
	// left out, for tools made for several kernels; if it is nil all are loaded.
	Has func(function string) bool
	// Match returns the functions that a pattern matches (the returns of which, with
	// returns) that can be probed, at most most, and how many others match. If it is nil,
	// programs in sections with a pattern have it as their place.
	Match  func(pattern string, returns bool, most int) (functions []string, left int)
	Kernel *Kernel // nil: the guest's kernel is not supported or not known
	// Static returns the statically defined probes of a file of the guest (USDT), and the path in their places. If it is nil, files are not read, and programs at such
	// probes have PATH:PROVIDER:NAME as their place.
	Static func(path string) (all []sdt.Probe, at string, err error)
}

// LoadObject parses an object file. Programs are in sections such as kprobe/NAME and
// fexit/NAME; functions that they call are linked in, maps come from .maps and from
// global variables, and references to a kernel (CO-RE, options, symbols) are resolved
// by the selection's kernel. A program of the host that contains one such file, as
// one with a skeleton of libbpf does, is accepted too. Errors say which part of the
// file is not supported or damaged. They wrap ErrSection for unsupported programs,
// and ErrNoSection if there is no section of the selection's name. The file may be
// hostile.
func LoadObject(b []byte, sel Selection) (o *Object, err error) {
	if len(b) > MaxObjectSize {
		return nil, fmt.Errorf("load object of %d bytes: %w", len(b), ErrObjectTooLarge)
	}
	defer func() {
		// The parser is not ours and the file may be anything: a panic of the parser
		// must be an error of this file and not the end of the daemon.
		if r := recover(); r != nil {
			o, err = nil, fmt.Errorf("load object: damaged file: %v", r)
		}
	}()
	b, err = carriedObject(b)
	if err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	if !bytes.HasPrefix(b, objectMagic) {
		return nil, errors.New("load object: it is not an object file: 'clang -g -O2 -target bpf -c FILE.c' makes one")
	}
	b, x, err := prepare(b, sel)
	if err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(b))
	if err != nil {
		if m := notSelected.FindStringSubmatch(err.Error()); m != nil && sel.Section != "" {
			return nil, fmt.Errorf("load object: a map has %s in it, which is not loaded: select its section too", m[1])
		}
		return nil, fmt.Errorf("load object: %w", err)
	}
	if spec.ByteOrder != binary.LittleEndian {
		return nil, fmt.Errorf("load object: it is for big-endian machines")
	}
	widenEnums(b, spec.Types)
	x.types = spec.Types
	if x.own, err = ownTypes(spec, sel.Kernel); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	o = &Object{without: map[string]bool{}}
	static := &statics{find: sel.Static}
	for _, name := range sortedKeys(spec.Programs) {
		p, err := objectProgram(spec.Programs[name], &sel, x, len(spec.Programs) == 1)
		if errors.Is(err, errLeftOut) {
			o.LeftOut = append(o.LeftOut, p.AttachTo)
			o.without[name] = true
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("load object: program %q in section %q: %w", name, spec.Programs[name].SectionName, err)
		}
		copies := []ObjectProgram{p}
		if isMulti(p.Section) && isPattern(p.AttachTo) {
			if copies, err = o.multi(p, &sel); errors.Is(err, errLeftOut) {
				o.LeftOut = append(o.LeftOut, p.AttachTo)
				o.without[name] = true
				continue
			} else if err != nil {
				return nil, fmt.Errorf("load object: program %q in section %q: %w", name, p.Section, err)
			}
		}
		if atStatic(p.Section) {
			if copies, err = static.places(p); err != nil {
				return nil, fmt.Errorf("load object: program %q in section %q: %w", name, p.Section, err)
			}
		}
		o.Programs = append(o.Programs, copies...)
	}
	if len(o.Programs) == 0 && len(o.LeftOut) > 0 {
		return nil, fmt.Errorf("load object: %w: the guest has no function of %q", ErrNoPrograms, o.LeftOut)
	}
	if len(o.Programs) == 0 {
		return nil, fmt.Errorf("load object: %w", ErrNoPrograms)
	}
	if n := len(spec.Programs) - len(o.LeftOut); n != 1 && sel.At[""] != "" {
		return nil, fmt.Errorf("load object: %d programs cannot all be at %s: choose one by its section, or give each its place, as NAME=PLACE", n, sel.At[""])
	}
	if err := o.addMaps(spec, x, sel.Section != "" || len(o.LeftOut) > 0); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	if err := static.fill(o, spec); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	if err := o.setConstants(spec.Variables, sel.Set); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	if err := o.setEntries(sel.MapEntries); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	o.setDefaults()
	return o, nil
}

// notSelected is the parser's error for a map whose values are in a section hidden
// from it.
var notSelected = regexp.MustCompile(`section "\.maps": reference to ("[^"]*") in section SHN_UNDEF`)

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// objectProgram makes a program of the object; only says that it is the only one.
func objectProgram(s *ebpf.ProgramSpec, sel *Selection, x *externs, only bool) (p ObjectProgram, err error) {
	p = ObjectProgram{Name: s.Name, Section: s.SectionName}
	if prefix, event, _ := strings.Cut(strings.TrimPrefix(p.Section, "?"), "/"); prefix == "perf_event" {
		at := sel.At[p.Name]
		if only && at == "" {
			at = sel.At[""]
		}
		return p, perfEventError(cmp.Or(at, event))
	}
	if p.Kind, p.AttachTo, err = sectionOf(s.SectionName); err != nil {
		return p, err
	}
	// If the section names no function, use the program's own name.
	if at, ok := sel.At[""]; ok && only {
		p.AttachTo = at
	} else if at, ok := sel.At[cmp.Or(p.AttachTo, p.Name)]; ok {
		p.AttachTo = at
	}
	tracepoint, atTracepoint := strings.CutPrefix(p.AttachTo, AtTracepoint)
	if (p.Kind == Tracepoint || p.Kind == Event) && !atTracepoint && p.AttachTo != "" { // the syntax of --at
		tracepoint, atTracepoint, p.AttachTo = p.AttachTo, true, AtTracepoint+p.AttachTo
	}
	function := p.AttachTo
	if atTracepoint {
		function = TracepointFunction(tracepoint)
	}
	if p.Kind == Event {
		function = "" // the owner of the kernel's events checks whether it exists
	}
	if name, _, _ := strings.Cut(function, "+"); sel.Has != nil && name != "" && !(isMulti(p.Section) && isPattern(name)) && !inUserCode(p.Section) && !sel.Has(name) {
		return p, errLeftOut
	}
	if p.Kind.typed() {
		f, err := sel.Kernel.function(function)
		if err != nil {
			return p, err
		}
		if p.follows = true; p.Kind == Tracepoint {
			if p.args, err = tracepointArgs(f); err != nil {
				return p, fmt.Errorf("tracepoint %q: %w", tracepoint, err)
			}
			return p, p.link(s.Instructions, x)
		}
		var returns bool
		if p.args, returns, err = typedArgs(f); err != nil {
			return p, fmt.Errorf("function %q: %w", p.AttachTo, err)
		}
		p.returns = returns
	}
	return p, p.link(s.Instructions, x)
}
