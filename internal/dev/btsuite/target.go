package btsuite

import (
	"errors"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/script"
)

// target is a guest without memory. It has names, and possibly types.
type target struct {
	symbols  map[string]bool
	raw      []string
	events   []string
	known    script.Types
	proto    func(name string) *btf.FuncProto
	anyEvent bool        // accept all events that the script uses, with unknown fields
	programs *programs   // nil: none
	guest    *LinuxGuest // nil: none
	rules    []Rule      // tests that they exclude are not run in the guest
}

// errNeedsGuest is returned for information that only a guest has.
var errNeedsGuest = errors.New("only a guest knows them")

// ownEvents matches the names of events in a script.
var ownEvents = regexp.MustCompile(`\b(?:tracepoint|t):(\w+:\w+)`)

// mockSet matches a set of names in upstream's mock of a kernel.
var mockSet = regexp.MustCompile(`emplace\(\s*"(\w+)",\s*std::make_shared<symbols::FunctionSet>\(\s*std::set<std::string>\(\{([^}]*)\}`)

var quoted = regexp.MustCompile(`"([^"]*)"`)

// mockSymbols are further symbols that upstream's unit tests name: of their kernel, and of the program that their mock of symbols has.
var mockSymbols = []string{
	"jiffies_64", "sym", "glob_asciirange", "avenrun",
	"12345_1", "12345_2", "12345_4", "12345_8", "12345_5", "12345_33", "github.com/golang/glog.severityName",
}

// tracepointStub is before the name of a tracepoint in that of another function whose
// parameters a kernel's types have for it: upstream's mock kernel has no other.
const tracepointStub = "__probestub_"

// mockTarget returns the target of upstream's unit tests, with the names of their mock kernel.
func mockTarget(text string, known script.Types, proto func(string) *btf.FuncProto) *target {
	t := &target{symbols: map[string]bool{}, known: known, proto: proto}
	for _, part := range strings.Split(text, "static symbols::ModulesFuncsMap ")[1:] {
		for _, m := range mockSet.FindAllStringSubmatch(part, -1) {
			for _, q := range quoted.FindAllStringSubmatch(m[2], -1) {
				switch {
				case strings.HasPrefix(part, "make_mock_functions"):
					t.symbols[q[1]] = true
				case strings.HasPrefix(part, "make_mock_raw"):
					t.raw = append(t.raw, q[1])
				default:
					t.events = append(t.events, m[1]+":"+q[1])
				}
			}
		}
	}
	for _, name := range mockSymbols {
		t.symbols[name] = true
	}
	slices.Sort(t.raw)
	slices.Sort(t.events)
	return t
}

// kernelTarget returns a target with the types of a Linux kernel.
func kernelTarget(info *types.Info, spec *btf.Spec) *target {
	t := &target{symbols: map[string]bool{"jiffies_64": true}, known: info, proto: func(name string) *btf.FuncProto { return info.Func("", name) }, anyEvent: true}
	if spec == nil {
		return t
	}
	for typ, err := range spec.All() {
		if err != nil {
			break
		}
		switch typ := typ.(type) {
		case *btf.Func:
			t.symbols[typ.Name] = true
		case *btf.Typedef:
			if name, ok := strings.CutPrefix(typ.Name, "btf_trace_"); ok {
				t.raw = append(t.raw, name)
			}
		}
	}
	slices.Sort(t.raw)
	return t
}

// withEventsOf returns the target for one script.
func (t *target) withEventsOf(text string) *target {
	if !t.anyEvent {
		return t
	}
	u := *t
	for _, m := range ownEvents.FindAllStringSubmatch(text, -1) {
		u.events = append(u.events, m[1])
	}
	slices.Sort(u.events)
	u.events = slices.Compact(u.events)
	return &u
}

// inFile reports whether a name belongs to a file, whose functions are not
// checked.
func inFile(name string) bool { return strings.HasPrefix(name, "/") }

func (t *target) Match(pattern string, user, _ bool, most int) (names []string, _ map[string]int) {
	if inFile(pattern) {
		return []string{strings.NewReplacer("*", "x", "?", "x").Replace(pattern)}, nil
	}
	if mod, own, ok := strings.Cut(pattern, ":"); ok { // all of the names are the kernel's
		if kernel, _ := path.Match(mod, "vmlinux"); kernel {
			pattern = own
		}
	}
	for n := range t.symbols {
		if ok, _ := path.Match(pattern, n); ok && !user {
			if names = append(names, n); len(names) == most {
				break
			}
		}
	}
	return names, nil
}

// HasModule is true of all: upstream's guests have the modules that the tests name.
func (t *target) HasModule(string) (bool, string) { return true, "" }

func (t *target) Lookup(name string) (uint64, bool, string) {
	return 0xffffffff81000000, t.symbols[name] || t.symbols[name[strings.IndexByte(name, ':')+1:]] || inFile(name), ""
}

func (t *target) Source(place string) ([]string, error) {
	if !inFile(place) {
		return nil, errNeedsGuest
	}
	return t.programs.Source(place)
}

func (t *target) FileTypes(path string) script.Types {
	if info, err := t.programs.info(path); err == nil {
		return info
	}
	return nil
}

func (t *target) Func(name string) (*btf.FuncProto, string) {
	if inFile(name) {
		return t.programs.Func(name)
	}
	if t.proto == nil {
		return nil, ""
	}
	if tracepoint, ok := strings.CutPrefix(name, bpf.AtTracepoint); ok {
		if f := t.proto(bpf.TracepointFunction(tracepoint)); f != nil {
			return f, ""
		}
		name = tracepointStub + tracepoint
	}
	return t.proto(name), ""
}

func (t *target) Tracepoints() []string { return t.raw }
func (t *target) Events() []string      { return t.events }

func (t *target) Event(string) ([]script.EventField, error) {
	if t.anyEvent {
		return nil, errNeedsGuest
	}
	return []script.EventField{{Name: "common_field", Type: &btf.Int{Name: "unsigned long", Size: 8}, Offset: 8}}, nil
}

// FindFile takes any name for that of a program, as bpftrace's tests have programs.
func (t *target) FindFile(name string) string { return "/bin/" + name }

// FileVariable knows the variables of the program that upstream's mock of symbols has, whose names end with their sizes.
func (t *target) FileVariable(_, name string) (move, size uint64, err error) {
	if t.anyEvent || !t.symbols[name] {
		return 0, 0, errNeedsGuest
	}
	size, _ = strconv.ParseUint(name[strings.LastIndexByte(name, '_')+1:], 10, 64) // 0: not known
	return 0x1000, size, nil
}

func (t *target) StaticProbes(path string) ([]sdt.Probe, string, error) {
	return nil, path, errNeedsGuest
}

func (t *target) Types() script.Types { return t.known }
func (t *target) Exits() []string     { return []string{"hlt", "io"} }

func (t *target) MissingReason(script.TaskPart) (why, cure string) { return "", "" }

func (t *target) User(name string) bool { return inFile(name) }

func (t *target) Name(uint64) (string, uint64, bool) { return "", 0, false }
func (t *target) ShownAddr(addr uint64) uint64       { return addr }
func (t *target) BuildID(uint64) string              { return "" }
func (t *target) File(uint64) string                 { return "" }
func (t *target) Frames(uint64) []script.Frame       { return nil }
