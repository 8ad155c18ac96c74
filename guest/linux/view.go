package linux

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// View describes the code of a guest that runs Linux: a guest.View with the methods
// of probe.Kernel. Its structure is the image's, slid; its bytes are the guest's
// memory, because the kernel patches itself; its modules are those passed to
// setModules.
type View struct {
	id     guest.ID
	read   Read
	core   *piece
	locks  Patches // LockPrefix if CPUs may be added later
	state  guest.GVA
	mu     sync.Mutex // serializes changes
	now    atomic.Pointer[snapshot]
	noName error // why names are unknown once the kernel has started

	padding func() []guest.GVA
	running *running
	files   userFiles
}

// snapshot is the changing part of a View.
type snapshot struct {
	system  SystemState
	gone    string   // why the memory no longer belongs to this kernel; "" if it does
	pieces  []*piece // the kernel's, then the modules', by name
	parts   []guest.Piece
	owners  []owner // ascending
	symbols []guest.Symbol
	text    []guest.Range // ascending
	patches Patches       // of the core
}

// owner is the code that a range belongs to.
type owner struct {
	guest.Range
	piece *piece
}

// SystemState is the kernel's progress in starting (enum system_states).
type SystemState uint32

// The states. Later ones are treated like StateRunning, or are the end.
const (
	StateBooting    SystemState = iota
	StateScheduling             // it has patched itself: alternatives, returns and the like
	StateFreeing                // the memory of code that only ran at boot is freed
	StateRunning
)

var _ guest.View = (*View)(nil)

// NewView returns the view of a kernel with that boot state. read reads the guest's
// memory without probes' patches; for it, text that no table maps yet is at its load
// address. It is called from any goroutine. The error says that a table of the kernel
// cannot be read.
func NewView(k *Kernel, st *BootState, read Read) (*View, error) {
	core, err := newPiece("", k, guest.GVA(st.Slide))
	if err != nil {
		return nil, fmt.Errorf("view of Linux: %w", err)
	}
	v := &View{id: k.ID, read: read, core: core, padding: sync.OnceValue(core.padding)}
	if st.LocksChange {
		v.locks = 1 << LockPrefix
	}
	s, err := core.Lookup("system_state")
	if err != nil {
		v.noName = fmt.Errorf("when the kernel has patched itself is not known, so that what it patches while it starts is never probed: %w", err)
	}
	v.state = s.Addr
	v.running = newRunning(k, v.Address)
	v.publish(StateBooting, nil)
	return v, nil
}

// MissingFeatures says which parts of this kernel's code are not known, and which
// features are lost.
func (v *View) MissingFeatures() []string {
	var out []string
	if v.noName != nil {
		out = append(out, v.noName.Error())
	}
	if v.core.k.nameless {
		out = append(out, "names: "+noNames)
	}
	return slices.Concat(out, v.core.missing, v.running.missingReasons())
}

// Slide is the distance of the kernel's addresses from those that it was linked at.
func (v *View) Slide() guest.GVA { return v.core.slide }

// Refresh reads the kernel's system state, and reports whether it has changed: then
// the places that may be probed have changed too. Reading its memory costs 4 bytes.
func (v *View) Refresh() (changed bool) {
	if v.state == 0 {
		return false
	}
	var b [4]byte
	if v.read(v.state, b[:]) != nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	// It never decreases: a kernel that claims so lies.
	s, now := SystemState(le32(b[:])), v.now.Load()
	if s = min(s, StateRunning); s <= now.system {
		return false
	}
	v.publish(s, now.pieces[1:])
	return true
}

// Panicked reports whether the kernel is in panic(), from which it does not return: a
// CPU is in panic_cpu (kernel/panic.c). Reading its memory costs 4 bytes.
func (v *View) Panicked() bool {
	at, ok := v.Address("panic_cpu")
	var b [4]byte
	return ok && v.read(at, b[:]) == nil && le32(b[:]) != 1<<32-1
}

// Leaving reports whether the kernel is about to start another one (kernel/kexec_core.c).
func (v *View) Leaving() bool {
	at, ok := v.Address("kexec_in_progress")
	var b [1]byte
	return ok && v.read(at, b[:]) == nil && b[0] != 0
}

// Reasons for MarkGone.
const (
	ReplacedText   = "another kernel runs in the guest (kexec): names are not its, and probes are gone until a reset"
	HibernatedText = "the guest hibernates, or is what another boot has put aside: probes are out of its memory, and gone until a reset"
)

// MarkGone says that the memory no longer belongs to this kernel, or soon will not,
// and why: from then on there is no text.
func (v *View) MarkGone(why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := *v.now.Load()
	now.gone, now.text = why, nil
	v.now.Store(&now)
}

// GoneReason returns the reason passed to MarkGone, or "".
func (v *View) GoneReason() string { return v.now.Load().gone }

// System returns the kernel's state at the last Refresh, and false if it is not
// known.
func (v *View) System() (SystemState, bool) { return v.now.Load().system, v.state != 0 }

// setModules sets the loaded modules, by name. Errors say which one has unreadable
// tables; the others are registered.
func (v *View) setModules(modules map[string]*Kernel) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := map[*Kernel]*piece{}
	now := v.now.Load()
	for _, p := range now.pieces {
		old[p.k] = p
	}
	var pieces []*piece
	var errs []error
	for name, k := range modules {
		p := old[k]
		if p == nil {
			var err error
			if p, err = newPiece(name, k, 0); err != nil {
				errs = append(errs, fmt.Errorf("module %s: %w", name, err))
				continue
			}
		}
		pieces = append(pieces, p)
	}
	v.publish(now.system, pieces)
	return errors.Join(errs...)
}

// publish makes a new snapshot. The core comes first.
func (v *View) publish(system SystemState, modules []*piece) {
	s := &snapshot{system: system, patches: AtStart}
	if system >= StateScheduling {
		s.patches = Always | v.locks | 1<<Constant
	}
	if system >= StateFreeing {
		s.patches &^= 1 << Constant
	}
	modules = slices.Clone(modules)
	slices.SortFunc(modules, func(a, b *piece) int { return cmp.Compare(a.name, b.name) })
	s.pieces = append([]*piece{v.core}, modules...)
	s.symbols = v.core.Symbols()
	for i, p := range s.pieces {
		for _, r := range p.where {
			s.owners = append(s.owners, owner{r, p})
		}
		part := guest.Piece{ID: p, Text: p.text}
		if i == 0 {
			part.Link = p.link
			part.ID = coreAt{p, min(system, StateFreeing)} // it patches itself, and frees its boot code
		}
		if i > 0 || system < StateFreeing { // a module is read again when it has started
			part.Text = sortedRanges(p.text, p.init)
		}
		s.parts = append(s.parts, part)
		s.text = append(s.text, part.Text...)
	}
	if old := v.now.Load(); old != nil && old.gone != "" {
		s.gone, s.text = old.gone, nil
	}
	slices.SortFunc(s.owners, func(a, b owner) int { return cmp.Compare(a.Start, b.Start) })
	s.text = sortedRanges(s.text)
	if len(modules) != 0 {
		s.symbols = mergeSymbols(s.symbols, modules)
	}
	v.now.Store(s)
}

// mergeSymbols returns the kernel's symbols merged with the modules', ascending: the
// kernel has many, so they are not sorted again.
func mergeSymbols(core []guest.Symbol, modules []*piece) []guest.Symbol {
	var more []guest.Symbol
	for _, p := range modules {
		more = append(more, p.Symbols()...)
	}
	slices.SortStableFunc(more, func(a, b guest.Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
	all := make([]guest.Symbol, 0, len(core)+len(more))
	for len(more) > 0 {
		n, _ := slices.BinarySearchFunc(core, more[0].Addr+1, func(s guest.Symbol, a guest.GVA) int { return cmp.Compare(s.Addr, a) })
		all = append(append(all, core[:n]...), more[0])
		core, more = core[n:], more[1:]
	}
	return append(all, core...)
}

// sortedRanges returns ranges ascending.
func sortedRanges(ranges ...[]guest.Range) []guest.Range {
	all := slices.Concat(ranges...)
	slices.SortFunc(all, func(a, b guest.Range) int { return cmp.Compare(a.Start, b.Start) })
	return all
}

// piece returns the code that contains addr, or nil. For modules only text and tables
// are known.
func (s *snapshot) piece(addr guest.GVA) *piece {
	i := sort.Search(len(s.owners), func(i int) bool { return s.owners[i].Start > addr }) - 1
	if i < 0 || addr >= s.owners[i].End {
		return nil
	}
	return s.owners[i].piece
}

// ID implements guest.View.
func (v *View) ID() guest.ID { return v.id }

// Lookup implements guest.View: symbols of the kernel take precedence over modules'.
// MODULE:NAME is a symbol of that module, guest.ErrModuleNotFound while it is not
// loaded; PATH:SYMBOL or PATH:OFFSET is a place in the code of a file.
func (v *View) Lookup(name string) (guest.Symbol, error) {
	if path, symbol, ok := fileName(name); ok {
		return v.lookupFile(path, symbol)
	}
	now := v.now.Load()
	if module, symbol, ok := strings.Cut(name, ":"); ok {
		for _, p := range now.pieces[1:] {
			if p.name == module {
				return p.Lookup(symbol)
			}
		}
		if advice := v.noModuleReason(module); advice != "" {
			return guest.Symbol{}, &guest.MissingSymbolError{Name: name, Advice: advice}
		}
		if v.running.modules.head == 0 {
			return guest.Symbol{}, fmt.Errorf("look up %q: the modules of this kernel are not known: %w", name, guest.ErrSymbolNotFound)
		}
		return guest.Symbol{}, fmt.Errorf("look up %q: %w", name, guest.ErrModuleNotFound)
	}
	var found []guest.Symbol
	for i, p := range now.pieces {
		s, err := p.Lookup(name)
		switch {
		case err == nil && i == 0:
			return s, nil
		case err == nil:
			found = append(found, s)
		case !errors.Is(err, guest.ErrSymbolNotFound):
			return s, err
		}
	}
	switch len(found) {
	case 0:
		if v.core.k.nameless {
			return guest.Symbol{}, &guest.MissingSymbolError{Name: name, Advice: noNames}
		}
		return guest.Symbol{}, fmt.Errorf("look up %q: %w", name, guest.ErrSymbolNotFound)
	case 1:
		return found[0], nil
	}
	e := &guest.AmbiguousSymbolError{Name: name}
	for _, s := range found {
		e.Addrs = append(e.Addrs, s.Addr)
	}
	return guest.Symbol{}, e
}

// noNames is the error for a kernel without names.
const noNames = "this kernel carries no names of its own (CONFIG_KALLSYMS): give guestprobed --symbols System.map, or its vmlinux"

// noModuleReason returns why that cannot be the name of a module that is not loaded,
// or "": then the name means something else.
func (v *View) noModuleReason(name string) string {
	if strings.ContainsAny(name, ".*?[") {
		return name + " is no module's name: that has no dots, and no patterns; FILE:LINE, with a number, is a line of the source"
	}
	if s, err := v.core.Lookup(name); err == nil && s.Kind == guest.SymFunc {
		return name + " is a function of the kernel, and no module: write " + name + "+OFFSET, or FILE:LINE for a line of its source (for a module of that name, attach when it is loaded)"
	}
	return ""
}

// Address is a Lookup: the address of a symbol of the kernel itself.
func (v *View) Address(name string) (guest.GVA, bool) {
	s, err := v.core.Lookup(name)
	return s.Addr, err == nil
}

// Find implements guest.View.
func (v *View) Find(addr guest.GVA) (guest.Symbol, bool) {
	if f := v.file(addr); f != nil {
		return f.find(v, addr)
	}
	if p := v.now.Load().piece(addr); p != nil {
		return p.Find(addr)
	}
	return guest.Symbol{}, false
}

// Match implements guest.View. A pattern MODULE:PATTERN matches only in that module,
// and PATH:PATTERN in a file.
func (v *View) Match(pattern string) (all []guest.Symbol) {
	if path, symbols, ok := fileName(pattern); ok {
		return v.matchFile(path, symbols)
	}
	module, symbol, one := strings.Cut(pattern, ":")
	for i, p := range v.now.Load().pieces {
		switch {
		case !one:
			all = append(all, p.Match(pattern)...)
		case i > 0 && guest.Glob(module, p.name):
			all = append(all, p.Match(symbol)...)
		}
	}
	return all
}

// Module returns the name of the module that contains addr, "" for the kernel itself.
func (v *View) Module(addr guest.GVA) string {
	if p := v.now.Load().piece(addr); p != nil {
		return p.name
	}
	return ""
}

// Symbols implements guest.View.
func (v *View) Symbols() []guest.Symbol { return v.now.Load().symbols }

// IsText implements guest.View. For text that the kernel frees at the end of its boot
// it reads whether that has happened: the memory will soon be reused.
func (v *View) IsText(addr guest.GVA) bool {
	if f := v.file(addr); f != nil {
		return f.textAt(addr) != nil
	}
	now := v.now.Load()
	if now.system < StateFreeing && v.core.inInit(addr) && v.Refresh() {
		now = v.now.Load()
	}
	return now.textAt(addr) != nil
}

// Pieces implements probe.Kernel.
func (v *View) Pieces() []guest.Piece { return v.now.Load().parts }

// FreedText implements probe.Kernel.
func (v *View) FreedText(addr guest.GVA) bool {
	if !v.IsText(addr) {
		return true
	}
	now := v.now.Load()
	return !IsFile(addr) && now.piece(addr) != v.core && !v.running.holds(addr, v.read)
}

// ModuleReady returns the function that the kernel calls for each complete module
// before any of its code runs: the earliest one in its load_module. It returns nil if
// the kernel has no such function.
func (v *View) ModuleReady() []string {
	if v.running.modules.head != 0 {
		for _, name := range []string{"ftrace_module_enable", "klp_module_coming", "do_init_module"} {
			if _, ok := v.Address(name); ok {
				return []string{name}
			}
		}
	}
	return nil
}

// MemoryLeaves returns the functions that the kernel calls, on the only CPU that runs
// then, before it copies its memory to hibernate (kernel/power/snapshot.c), and
// before it restores such a copy over its own memory (arch/x86/power/hibernate_64.c).
// It returns none if the kernel cannot hibernate.
func (v *View) MemoryLeaves() (names []string) {
	for _, name := range []string{"swsusp_save", "swsusp_arch_resume"} {
		if _, ok := v.Address(name); ok {
			names = append(names, name)
		}
	}
	return names
}

// IsUserText implements guest.View: of files.
func (v *View) IsUserText(addr guest.GVA) bool { return IsFile(addr) && v.IsText(addr) }

// Text implements guest.View. The code of files has addresses that the guest does not
// have.
func (v *View) Text(user bool) []guest.Range {
	if user {
		return nil
	}
	return v.now.Load().text
}

// textAt returns the range of text that contains addr, or nil.
func (s *snapshot) textAt(addr guest.GVA) *guest.Range {
	i, found := slices.BinarySearchFunc(s.text, addr, func(r guest.Range, a guest.GVA) int { return cmp.Compare(r.Start, a) })
	if !found {
		i--
	}
	if i < 0 || addr >= s.text[i].End {
		return nil
	}
	return &s.text[i]
}

// Constant implements guest.View: the image's bytes, relocated, where the kernel
// never writes.
func (v *View) Constant(addr guest.GVA, n int) []byte {
	if f := v.file(addr); f != nil {
		return f.constantAt(v, addr, n)
	}
	if n < 0 || !v.core.constant(addr, uint64(n)) {
		return nil
	}
	return v.core.initialBytes(addr, uint64(n))
}

// Data implements guest.View: the text of Linux has no data (tools/objtool).
func (v *View) Data(lo, hi guest.GVA) string { return "" }

// BlacklistReason implements guest.View.
func (v *View) BlacklistReason(addr guest.GVA) string {
	now := v.now.Load()
	p := now.piece(addr)
	switch {
	case p == nil:
		return ""
	case now.gone != "":
		return now.gone
	case p == v.core && now.system >= StateFreeing && p.inInit(addr):
		return "its memory was given back when the kernel had started"
	}
	return p.blacklistReason(addr)
}

// FrameRule implements guest.View, by ORC or, for files, .eh_frame.
func (v *View) FrameRule(pc guest.GVA) (guest.FrameRule, bool) {
	if f := v.file(pc); f != nil {
		return f.frameRule(pc)
	}
	p := v.now.Load().piece(pc)
	if p == nil || p.orc == nil {
		return guest.FrameRule{}, false
	}
	return p.orc.frameRule(uint64(pc - p.slide))
}

// FixedReason returns why no byte of [lo, hi) may be changed now: the kernel rewrites
// or compares it; "" if it may be.
func (v *View) FixedReason(lo, hi guest.GVA) string {
	now := v.now.Load()
	p, set := now.piece(lo), Always
	if p == v.core {
		set = now.patches
	}
	if p == nil {
		return ""
	}
	what, found := p.sites.PatchAt(uint64(lo-p.slide), uint64(hi-p.slide), set)
	if !found && v.suspectLen(p, lo, hi) != 0 {
		return "perhaps patched: the kernel's tables were not found"
	}
	return what.String()
}

// suspectLen returns the length of the first instruction in [lo, hi), which begins
// with one, that looks like a place that the kernel patches by a table that was not
// found, or 0.
func (v *View) suspectLen(p *piece, lo, hi guest.GVA) int {
	if p.lacks[mCount]+p.lacks[jumpTable]+p.lacks[staticCallSites] == "" {
		return 0
	}
	for code := v.Code(lo, int(hi-lo)+x86.MaxLen); lo < hi; {
		i, err := x86.Decode(code)
		if err != nil {
			return 0
		}
		switch b := code[:i.Len]; {
		case b[0] == 0xe8, b[0] == 0xe9, b[0] == 0xeb, b[0] == 0x0f && b[1]&0xf0 == 0x80 && i.Len == 6, string(b) == "\x66\x90", string(b) == "\x0f\x1f\x44\x00\x00":
			return int(i.Len)
		}
		lo, code = lo+guest.GVA(i.Len), code[i.Len:]
	}
	return 0
}

// Entry returns the address for a probe on the entry of a function whose first
// instruction after endbr64 is at addr: after the place where the function calls its
// tracer, or addr.
func (v *View) Entry(addr guest.GVA) guest.GVA {
	p := v.now.Load().piece(addr)
	if p == nil {
		return addr
	}
	n, _ := p.sites.Begins(uint64(addr-p.slide), Ftrace)
	if p.lacks[mCount] != "" {
		if n = v.suspectLen(p, addr, addr+1); n != x86.JmpLen {
			n = 0
		}
	}
	return addr + guest.GVA(n)
}

// Exception reports whether the kernel looks up faults of the instruction at addr.
func (v *View) Exception(addr guest.GVA) bool {
	p := v.now.Load().piece(addr)
	return p != nil && p.sites.Exception(uint64(addr-p.slide))
}

// Padding returns int3s of the kernel's own text that are never executed, and never
// change.
func (v *View) Padding() []guest.GVA { return v.padding() }

// Edges returns the places in [lo, hi) that a branch or an exception may lead to
// although the text does not show it.
func (v *View) Edges(lo, hi guest.GVA) (at []guest.GVA) {
	p := v.now.Load().piece(lo)
	if p == nil {
		return nil
	}
	for _, a := range p.sites.Edges(uint64(lo-p.slide), uint64(hi-p.slide)) {
		at = append(at, guest.GVA(a)+p.slide)
	}
	return at
}

// String names the state as the kernel does, in lower case.
func (s SystemState) String() string {
	switch s {
	case StateBooting:
		return "booting"
	case StateScheduling:
		return "scheduling"
	case StateFreeing:
		return "freeing"
	}
	return "running"
}
