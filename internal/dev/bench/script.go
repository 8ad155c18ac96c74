package bench

import (
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/script"
)

// scripts are measured together with a baseline.
var scripts = []struct{ name, beside, text string }{
	{"script_count", rowFloorCount, "kprobe:user_hot { @ = count(); }"},
	{"script_by_arg", rowByArg, "kprobe:user_hot { @[arg0] = count(); }"},
	{"script_histogram", rowHistogram, "kprobe:user_hot { @ = hist(arg1); }"},
	{"script_stack", "script_by_arg", "kprobe:user_hot { @[ustack(8)] = count(); }"},
	{"script_latency", rowLatency, "kprobe:user_hot { @start[tid] = nsecs; } kretprobe:user_hot /has_key(@start, tid)/ { @ = hist(nsecs - @start[tid]); delete(@start, tid); }"},
}

// scriptTarget is the guest whose user code the scripts probe. It implements
// only what these scripts need.
type scriptTarget struct {
	script.Target
	img guest.View
}

func (t scriptTarget) Lookup(name string) (uint64, bool, string) {
	sym, err := t.img.Lookup(name)
	return uint64(sym.Addr), err == nil, ""
}

func (t scriptTarget) Name(addr uint64) (string, uint64, bool) {
	sym, ok := t.img.Find(guest.GVA(addr))
	return sym.Name, addr - uint64(sym.Addr), ok
}

func (scriptTarget) Func(string) (*btf.FuncProto, string) { return nil, "" }
func (scriptTarget) FindFile(string) string               { return "" }

func (scriptTarget) StaticProbes(path string) ([]sdt.Probe, string, error) {
	return nil, path, sdt.ErrNoProbes
}
func (scriptTarget) Types() script.Types           { return nil }
func (scriptTarget) FileTypes(string) script.Types { return nil }
func (scriptTarget) User(string) bool              { return true }

// MissingReason reports nothing: the built-in guest has all task information.
func (scriptTarget) MissingReason(script.TaskPart) (why, cure string) { return "", "" }

// compile compiles and loads the scripts.
func (s *subjects) compile() error {
	s.scripts = map[string]*program.Object{}
	for _, sc := range scripts {
		c, err := script.Compile(sc.text, scriptTarget{img: s.g.m.Image()}, script.Options{CPUs: s.g.m.Target().NumCPU()})
		if err != nil {
			return err
		}
		o, err := s.rt.LoadScript(c.Object, c.Probes, program.LoadOptions{User: func(string) bool { return true }})
		if err != nil {
			return err
		}
		s.scripts[sc.name] = o
	}
	return nil
}
