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
)

// MaxObjectSize bounds the size of an object file in bytes.
const MaxObjectSize = 16 << 20

// Errors of LoadObject.
var (
	ErrObjectTooLarge = fmt.Errorf("larger than %d bytes", MaxObjectSize)
	ErrNoPrograms     = errors.New("no programs for probes")

	errLeftOut = errors.New("left out")
)

// Object is an object file as clang makes them for the bpf target, parsed and
// not yet in memory.
type Object struct {
	Maps     []MapSpec // in the order of their names; global variables are arrays named .data, .bss, .rodata
	Programs []ObjectProgram
	LeftOut  []string // functions that programs are at which were left out

	without map[string]bool // the programs that were left out
}

// ObjectProgram is one program of an object.
type ObjectProgram struct {
	Name     string // of the C function
	Section  string // such as kprobe/NAME or fexit/NAME
	Kind     Kind
	AttachTo string           // function, which may be empty; for a kprobe it may end in +OFFSET
	args     int              // of Fentry and Fexit: words of arguments of the function
	returns  bool             // likewise: it returns something
	follows  bool             // it reads memory of the kernel by its addresses, as Linux's typed pointers
	insns    asm.Instructions // with maps numbered as in maps
	maps     []string
}

// NewObjectProgram makes a program of an object that is in no file: of p, with these
// instructions, in which maps are numbered as in maps.
func NewObjectProgram(p ObjectProgram, insns asm.Instructions, maps []string) ObjectProgram {
	p.insns, p.maps = insns, maps
	return p
}

// Selection says what of a file is loaded, and how.
type Selection struct {
	// Section selects the programs in it, and the maps that they use; nothing else in
	// the file matters. It may be several sections with commas between, and patterns
	// (path.Match). "" = all.
	Section string
	Set     map[string]string // values of constants: numbers, true and false, names of enumerations, texts
	At      map[string]string // where programs attach to, by what their section says, or where it says nothing by their names; "" is for the only program
	// Has reports whether the guest has a function. Programs at others are left out, as
	// tools do that are made for several kernels; nil: none are.
	Has    func(function string) bool
	Kernel *Kernel // nil: the guest is no kernel that programs are made for
}

// LoadObject parses an object file. Programs stand in sections such as kprobe/NAME
// and fexit/NAME; functions that they call are linked in, maps come from .maps and from
// global variables, and what the file says of a kernel (CO-RE, options, symbols) is
// taken from that of the selection. A program of the host that carries one such file, as those
// with a skeleton of libbpf's do, is as good as that. Errors say what in the file is not supported or
// damaged, ErrSection for programs that cannot be served, ErrNoSection where there is no
// section of the selection's name; the file may be hostile.
func LoadObject(b []byte, sel Selection) (o *Object, err error) {
	if len(b) > MaxObjectSize {
		return nil, fmt.Errorf("load object of %d bytes: %w", len(b), ErrObjectTooLarge)
	}
	defer func() {
		// The parser is not ours and the file may be anything: should it
		// stumble, that is an error of this file and not the end of the daemon.
		if r := recover(); r != nil {
			o, err = nil, fmt.Errorf("load object: damaged file: %v", r)
		}
	}()
	b, err = carriedObject(b)
	if err != nil {
		return nil, fmt.Errorf("load object: %w", err)
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
	o = &Object{without: map[string]bool{}}
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
		o.Programs = append(o.Programs, p)
	}
	if len(o.Programs) == 0 && len(o.LeftOut) > 0 {
		return nil, fmt.Errorf("load object: %w: the guest has no function of %q", ErrNoPrograms, o.LeftOut)
	}
	if len(o.Programs) == 0 {
		return nil, fmt.Errorf("load object: %w", ErrNoPrograms)
	}
	if n := len(o.Programs); n != 1 && sel.At[""] != "" {
		return nil, fmt.Errorf("load object: %d programs cannot all be at %s: choose one by its section, or name what is to be replaced, as NAME=PLACE", n, sel.At[""])
	}
	if err := o.addMaps(spec, x, sel.Section != "" || len(o.LeftOut) > 0); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	if err := o.setConstants(spec.Variables, sel.Set); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	return o, nil
}

// notSelected is what the parser says of a map whose values are in a section that is hidden from it.
var notSelected = regexp.MustCompile(`section "\.maps": reference to ("[^"]*") in section SHN_UNDEF`)

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// objectProgram makes a program of the object; only says that it has no others.
func objectProgram(s *ebpf.ProgramSpec, sel *Selection, x *externs, only bool) (p ObjectProgram, err error) {
	p = ObjectProgram{Name: s.Name, Section: s.SectionName}
	if p.Kind, p.AttachTo, err = sectionOf(s.SectionName); err != nil {
		return p, err
	}
	// Where the section names no function, the program's own name stands for it.
	if at, ok := sel.At[""]; ok && only {
		p.AttachTo = at
	} else if at, ok := sel.At[cmp.Or(p.AttachTo, p.Name)]; ok {
		p.AttachTo = at
	}
	if name, _, _ := strings.Cut(p.AttachTo, "+"); sel.Has != nil && name != "" && !inUserCode(p.Section) && !sel.Has(name) {
		return p, errLeftOut
	}
	if p.Kind.typed() {
		f, err := sel.Kernel.function(p.AttachTo)
		if err != nil {
			return p, err
		}
		var returns bool
		if p.args, returns, err = typedArgs(f); err != nil {
			return p, fmt.Errorf("function %q: %w", p.AttachTo, err)
		}
		p.returns = returns
		p.follows = true
	}
	return p, p.link(s.Instructions, x)
}
