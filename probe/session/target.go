package session

import (
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/source"
)

// ScriptTarget returns the guest's description for scripts.
func (st *Session) ScriptTarget() script.Target { return scriptTarget{st} }

// scriptTarget is the guest's description for scripts.
type scriptTarget struct{ st *Session }

// Match implements script.Target: it leaves out functions that cannot be probed.
func (t scriptTarget) Match(pattern string, user, returns bool, most int) (names []string, left map[string]int) {
	if guest.CheckGlob(pattern) != nil {
		return nil, nil
	}
	left = map[string]int{}
	why := func(err error) {
		var refused *probe.Error
		if errors.As(err, &refused) {
			left[strings.ReplaceAll(strings.ToLower(string(refused.Code)), "_", " ")]++
			return
		}
		left[err.Error()]++
	}
	for _, name := range t.st.Functions(pattern, user, returns, why) {
		if names = append(names, name); len(names) == most {
			break
		}
	}
	return names, left
}

// kernelItself is the module that is the kernel itself, in patterns and names.
const kernelItself = "vmlinux"

// HasModule implements script.Target.
func (t scriptTarget) HasModule(name string) (loaded bool, why string) {
	switch img := t.st.guest.Image().(type) {
	case *linux.View:
		return linux.HasModule(img, name)
	case interface {
		HasModule(string) (bool, string)
	}:
		return img.HasModule(name)
	}
	return false, "the guest's kernel has no modules"
}

// matchSymbols returns the symbols that a pattern matches, with the kernel's own if it
// is one for modules that vmlinux matches.
func matchSymbols(img guest.View, pattern string) []guest.Symbol {
	all := img.Match(pattern)
	mod, own, ok := strings.Cut(pattern, ":")
	if !ok || strings.HasPrefix(pattern, "/") || !guest.Glob(mod, kernelItself) {
		return all
	}
	kernel := slices.DeleteFunc(img.Match(own), func(s guest.Symbol) bool { return event.ModuleOf(img, s.Addr) != "" })
	return append(kernel, all...)
}

// Lookup implements script.Target. If several symbols have the name it returns one of
// them: registering a probe there is rejected.
func (t scriptTarget) Lookup(name string) (addr uint64, ok bool, why string) {
	img := t.st.guest.Image()
	own, kernel := strings.CutPrefix(name, kernelItself+":")
	sym, err := img.Lookup(own)
	var ambiguous *guest.AmbiguousSymbolError
	if errors.As(err, &ambiguous) {
		sym.Addr = ambiguous.Addrs[0]
	}
	if kernel && sym.Addr != 0 && event.ModuleOf(img, sym.Addr) != "" { // the kernel's own precede modules' functions
		return 0, false, own + " is a function of the module " + event.ModuleOf(img, sym.Addr)
	}
	if why = guest.Advice(err); err != nil && strings.HasPrefix(name, "/") && !errors.Is(err, guest.ErrSymbolNotFound) {
		why = err.Error()
	}
	return uint64(sym.Addr), err == nil || errors.As(err, &ambiguous) || errors.Is(err, guest.ErrModuleNotFound), why
}

// Tracepoints implements script.Target.
func (t scriptTarget) Tracepoints() []string {
	if img, ok := tracingOf(t.st.guest); ok {
		return img.Tracepoints()
	}
	return nil
}

// Events implements script.Target.
func (t scriptTarget) Events() (names []string) {
	img, ok := tracingOf(t.st.guest)
	if !ok {
		return nil
	}
	all, err := img.Events()
	if err != nil {
		t.st.log.Warn("the events of the guest's kernel", "err", err)
	}
	for i := range all {
		names = append(names, all[i].String())
	}
	return names
}

// Event implements script.Target.
func (t scriptTarget) Event(name string) ([]script.EventField, error) {
	return t.st.recorders.fields(name)
}

// FindFile implements script.Target.
func (t scriptTarget) FindFile(name string) string {
	if view, ok := t.st.guest.Image().(*linux.View); ok {
		return linux.Programs{View: view}.FindFile(name)
	}
	return ""
}

// FileVariable implements script.Target.
func (t scriptTarget) FileVariable(path, name string) (move, size uint64, err error) {
	view, ok := t.st.guest.Image().(*linux.View)
	if !ok {
		return 0, 0, errors.New("only Linux guests have programs in files")
	}
	x, err := linux.Programs{View: view}.Variable(path, name)
	return uint64(x.Move), x.Size, err
}

// StaticProbes implements script.Target.
func (t scriptTarget) StaticProbes(path string) ([]sdt.Probe, string, error) {
	return t.st.staticProbes(path)
}

// staticProbes returns the statically defined probes of a file of the guest's, and the path that their places have.
func (at *attacher) staticProbes(path string) ([]sdt.Probe, string, error) {
	if view, ok := at.guest.Image().(*linux.View); ok {
		return linux.Programs{View: view}.StaticProbes(path)
	}
	return nil, path, errors.New("only programs of a Linux guest have statically defined probes")
}

// Exits implements script.Target.
func (t scriptTarget) Exits() []string { return t.st.opt.Exits }

// User implements script.Target.
func (t scriptTarget) User(name string) bool { return t.st.atUserCode(name) }

// Name implements script.Names.
func (t scriptTarget) Name(addr uint64) (string, uint64, bool) {
	img := t.st.guest.Image()
	sym, ok := img.Find(guest.GVA(addr))
	name := sym.Name
	if view, linuxs := img.(*linux.View); ok && linuxs && linux.IsFile(guest.GVA(addr)) {
		_, name = linux.Programs{View: view}.FileName(guest.GVA(addr), name)
		ok = name != ""
	}
	return guest.ShownName(name), addr - uint64(sym.Addr), ok
}

// File implements script.Names.
func (t scriptTarget) File(addr uint64) (path string) {
	if view, ok := t.st.guest.Image().(*linux.View); ok {
		path, _ = linux.Programs{View: view}.FileName(guest.GVA(addr), "")
	}
	return path
}

// Frames implements script.Names.
func (t scriptTarget) Frames(addr uint64) (out []script.Frame) {
	for _, f := range t.st.files.Frames(t.st.debugFiles(), guest.GVA(addr)) {
		out = append(out, script.Frame{Function: f.Function, File: f.File, Line: f.Line, Inlined: f.Inlined})
	}
	return out
}

// ShownAddr implements script.Names.
func (scriptTarget) ShownAddr(addr uint64) uint64 { return linux.FileByte(guest.GVA(addr)) }

// BuildID implements script.Names.
func (t scriptTarget) BuildID(addr uint64) string {
	return buildID(t.st.guest.Image(), guest.GVA(addr))
}

// buildID returns the build ID of the file of a Linux guest with the code at an address of its image, or "".
func buildID(img guest.View, addr guest.GVA) string {
	if view, ok := img.(*linux.View); ok {
		return linux.Programs{View: view}.BuildID(addr)
	}
	return ""
}

// Functions returns the functions that a pattern matches (guest.Glob), or with user
// only functions of user code, by address, and each one's name for definitions: its
// address if several have the name. Functions that cannot be probed (with returns,
// whose returns cannot be probed) are left out; left, if not nil, is called with the
// reason.
func (st *Session) Functions(pattern string, user, returns bool, left func(error)) iter.Seq2[guest.Symbol, string] {
	return func(yield func(guest.Symbol, string) bool) {
		img := st.guest.Image()
		seen := map[guest.GVA]bool{} // a function may have several names
		for _, sym := range matchSymbols(img, pattern) {
			if sym.Kind != guest.SymFunc || seen[sym.Addr] || user && !sym.User {
				continue
			}
			seen[sym.Addr] = true
			var p probe.Probe = &probe.Kprobe{Addr: sym.Addr}
			if returns {
				p = &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: sym.Addr}}
			}
			if err := probe.CheckListed(st.engine, p); err != nil {
				if left != nil {
					left(err)
				}
			} else if !yield(sym, source.FunctionPlace(img, sym).String()) {
				return
			}
		}
	}
}

// Func implements script.Target: by the image's types, or by debug information.
func (t scriptTarget) Func(name string) (proto *types.FuncProto, why string) {
	if tracepoint, ok := strings.CutPrefix(name, bpf.AtTracepoint); ok {
		name = bpf.TracepointFunction(tracepoint)
	}
	img, known := t.st.guest.Image(), t.st.types()
	if strings.HasPrefix(name, "/") {
		sym, err := img.Lookup(name)
		if err != nil {
			return nil, ""
		}
		return t.st.files.Func(t.st.debugFiles(), name, linux.FileByte(sym.Addr))
	}
	if known == nil {
		if source, err := t.st.source(); err == nil {
			return source.Func(name), source.Convention(name)
		}
		return nil, ""
	}
	sym, err := img.Lookup(name)
	if err != nil {
		return nil, ""
	}
	return known.Func(event.ModuleOf(img, sym.Addr), name), ""
}

// FileTypes implements script.Target.
func (t scriptTarget) FileTypes(path string) script.Types {
	if info, err := t.st.files.Info(t.st.debugFiles(), path); err == nil {
		return info
	}
	return nil
}

// debugFiles returns the guest's files with debug information, or nil.
func (at *attacher) debugFiles() source.DebugFiles {
	if view, ok := at.guest.Image().(*linux.View); ok {
		return linux.Programs{View: view}
	}
	return nil
}

// Types implements script.Target, likewise.
func (t scriptTarget) Types() script.Types {
	if known, ok := t.st.types().(script.Types); ok {
		return known
	}
	if source, err := t.st.source(); err == nil {
		return source
	}
	return nil
}
