package linux

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// piece is code that was loaded as a unit, the kernel or a module, at its place in
// memory. It does not change.
type piece struct {
	name  string // of the module; "" is the kernel
	k     *Kernel
	slide guest.GVA
	*guest.SymbolTable
	black *guest.Blacklist
	sites *Sites // at link-time addresses
	orc   *ORC   // the same; nil: none

	missing []string          // the parts of it that are not known
	lacks   map[string]string // the missing tables

	text, init []guest.Range // ascending; init is freed once it has started
	kept       guest.Range   // data that is constant once the kernel has started, but not before
	where      []guest.Range // contains all of it

	unhandled map[guest.GVA]string // reasons, by function start: functions in which a breakpoint would end the guest (View.BreakpointsByVector)
}

// coreAt identifies the kernel's own code from a system state on.
type coreAt struct {
	core *piece
	from SystemState
}

func newPiece(name string, k *Kernel, slide guest.GVA) (*piece, error) {
	p := &piece{name: name, k: k, slide: slide}
	var err error
	if p.sites, err = k.Sites(); err != nil {
		return nil, err
	}
	if p.orc, err = k.ORC(); err != nil {
		p.missing = append(p.missing, "stacks: "+err.Error())
	}
	p.lacks = k.missingTables()
	for table, off := range p.lacks {
		p.missing = append(p.missing, fmt.Sprintf("%s: the kernel's table %s was not found; give its names (System.map)", off, table))
	}
	slices.Sort(p.missing)
	p.setRanges()
	syms := make([]guest.Symbol, 0, len(k.mem.Names))
	for i := range k.mem.Names {
		syms = append(syms, p.symbol(&k.mem.Names[i]))
	}
	p.SymbolTable = guest.NewSymbolTable(syms, p.room)
	p.black, err = guest.NewBlacklist(p.SymbolTable, p.section, p.initialBytes, p.isText)
	return p, err
}

// setRanges determines the text and the extent of the piece.
func (p *piece) setRanges() {
	k := p.k
	for i := range k.mem.Sections {
		s := &k.mem.Sections[i]
		r := guest.Range{Start: p.slidAddr(s.Addr), End: p.slidAddr(s.Addr + uint64(len(s.Data)))}
		if s.Addr < KernelMap {
			continue // per-CPU variables before 6.15
		}
		p.where = append(p.where, r)
		switch {
		case !k.isText(s.Addr):
		case s.Name == ".init.text" || s.Name == ".exit.text" && p.name == "" || s.Name == ".altinstr_aux":
			p.init = append(p.init, r)
		default:
			p.text = append(p.text, r)
		}
	}
	if lo, hi := k.program.extent(); hi != 0 { // a module's parts are separate, with other modules' between them
		p.where = []guest.Range{{Start: p.slidAddr(lo + KernelMap), End: p.slidAddr(hi + KernelMap)}}
	}
	if lo, hi, ok := k.mem.RangeBetween("__start_ro_after_init", "__end_ro_after_init"); ok {
		p.kept = guest.Range{Start: p.slidAddr(lo), End: p.slidAddr(hi)}
	}
}

// slidAddr is the run-time address for the link-time address addr. A number below the
// kernel's mapping is not an address but an offset of a per-CPU variable, or a
// constant.
func (p *piece) slidAddr(addr uint64) guest.GVA {
	if addr < KernelMap {
		return guest.GVA(addr)
	}
	return guest.GVA(addr) + p.slide
}

// symbol makes a symbol of a name.
func (p *piece) symbol(n *elf.Name) guest.Symbol {
	s := guest.Symbol{Name: n.Name, Addr: p.slidAddr(n.Addr), Size: n.Size, Kind: guest.SymData, Global: n.Global}
	if n.Func {
		s.Kind = guest.SymFunc
	}
	if sec := p.k.mem.PartAt(n.Addr); sec != nil {
		s.Section = sec.Name
	}
	return s
}

// room returns how many bytes there are from a symbol to the end of its section, or of
// the kernel's bss.
func (p *piece) room(s *guest.Symbol) (segment, section uint64) {
	if sec := p.k.mem.PartAt(uint64(s.Addr - p.slide)); sec != nil && sec.Addr >= KernelMap {
		n := sec.Addr + uint64(len(sec.Data)) - uint64(s.Addr-p.slide)
		return n, n
	}
	for _, r := range p.where {
		if s.Addr >= r.Start && s.Addr < r.End {
			return uint64(r.End - s.Addr), uint64(r.End - s.Addr)
		}
	}
	return 0, 0
}

// section returns where the sections of that name are.
func (p *piece) section(name string) (rs []guest.Range) {
	for i := range p.k.mem.Sections {
		if s := &p.k.mem.Sections[i]; s.Name == name {
			rs = append(rs, guest.Range{Start: p.slidAddr(s.Addr), End: p.slidAddr(s.Addr + uint64(len(s.Data)))})
		}
	}
	if t := p.k.table(name); len(rs) == 0 && name == blacklist && len(t.Data) != 0 {
		rs = append(rs, guest.Range{Start: p.slidAddr(t.Addr), End: p.slidAddr(t.Addr + uint64(len(t.Data)))})
	}
	return rs
}

// isText reports whether addr is code, at some time.
func (p *piece) isText(addr guest.GVA) bool { return p.k.isText(uint64(addr - p.slide)) }

// inInit reports whether addr is code that is freed when the kernel has started.
func (p *piece) inInit(addr guest.GVA) bool {
	for _, r := range p.init {
		if addr >= r.Start && addr < r.End {
			return true
		}
	}
	return false
}

// initialBytes returns the n bytes at addr as before the kernel runs, relocated, or
// nil.
func (p *piece) initialBytes(addr guest.GVA, n uint64) []byte {
	link := uint64(addr - p.slide)
	b := p.k.mem.Bytes(link, n)
	if b == nil || p.slide == 0 {
		return b
	}
	return p.k.program.relocs.slidBytes(b, link-KernelMap, uint64(p.slide))
}

// constant reports whether the kernel never writes the n bytes at addr.
func (p *piece) constant(addr guest.GVA, n uint64) bool {
	if addr < p.kept.End && addr+guest.GVA(n) > p.kept.Start {
		return false
	}
	s := p.k.mem.PartAt(uint64(addr - p.slide))
	return s != nil && !s.W && !s.X
}

// tracerCode is why the code that traced functions call is not probed
// (arch/x86/kernel/ftrace_64.S). The kernel patches calls in it that are in no table,
// reads them back (text_poke crashes the kernel if they differ), and copies the whole
// code into trampolines of its own (create_trampoline in arch/x86/kernel/ftrace.c).
const tracerCode = "the function tracer's own code, which the kernel patches and copies"

// blacklistReason returns why the symbol at addr must not be probed, or "".
func (p *piece) blacklistReason(addr guest.GVA) string {
	if s, ok := p.Find(addr); ok && p.name == "" {
		switch s.Name {
		case "early_idt_handler_array", "early_idt_handler_common":
			return "the way of the kernel's first exceptions, which a probe's trap may take"
		case "ftrace_call", "ftrace_epilogue", "ftrace_graph_call", "ftrace_graph_caller":
			return tracerCode
		case "relocate_kernel", "identity_mapped", "virtual_mapped", "swap_pages":
			return "the kernel copies it to where it runs (kexec)"
		}
		if strings.HasPrefix(s.Name, "ftrace_caller") || strings.HasPrefix(s.Name, "ftrace_regs_call") {
			return tracerCode
		}
		if why := p.unhandled[s.Addr]; why != "" {
			return why
		}
	}
	return p.black.BlacklistReason(addr)
}

// link is guest.Piece.Link.
func (p *piece) link(addr guest.GVA, b []byte, back bool) {
	by := -uint64(p.slide)
	if back {
		by = -by
	}
	p.k.program.relocs.slideWords(b, uint64(addr-p.slide)-KernelMap, by)
}
