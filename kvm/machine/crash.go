package machine

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// CrashKind is the way in which a guest ended without asking for it.
type CrashKind string

// The kinds of crash.
const (
	CrashTripleFault CrashKind = "triple_fault" // KVM_EXIT_SHUTDOWN (SDM Vol. 3, 6.15, interrupt 8)
	CrashEmulation   CrashKind = "emulation"    // KVM could not emulate an instruction
	CrashInternal    CrashKind = "internal"     // another KVM_EXIT_INTERNAL_ERROR
	CrashEntry       CrashKind = "entry"        // KVM_EXIT_FAIL_ENTRY: the processor rejected the guest state
	CrashBreakpoint  CrashKind = "breakpoint"   // an int3 that is not the engine's and cannot be passed to the guest
	CrashHost        CrashKind = "host"         // KVM_RUN failed
	CrashExit        CrashKind = "exit"         // an exit reason that our guests never cause
)

// CrashReport describes a crash. It is taken on the vCPU that crashed.
type CrashReport struct {
	CPU    int       `json:"cpu"`
	Kind   CrashKind `json:"kind"`
	Text   string    `json:"text"` // one line
	Symbol string    `json:"symbol,omitempty"`
	// Regs are the general registers at the crash. RegsLost says that the host
	// had reset them before it reported (SVM does so on a triple fault).
	Regs     probe.Regs   `json:"regs"`
	RegsLost bool         `json:"regsLost,omitempty"`
	Control  ControlRegs  `json:"control"`
	Code     []DisasmLine `json:"code,omitempty"`  // around RIP
	Stack    []uint64     `json:"stack,omitempty"` // words at RSP, upwards
	Console  []string     `json:"console,omitempty"`
}

// ControlRegs are the registers that define the vCPU's mode.
type ControlRegs struct {
	CR0  uint64 `json:"cr0"`
	CR2  uint64 `json:"cr2"`
	CR3  uint64 `json:"cr3"`
	CR4  uint64 `json:"cr4"`
	EFER uint64 `json:"efer"`
	CS   uint16 `json:"cs"`
	SS   uint16 `json:"ss"`
	GDT  uint64 `json:"gdt"`
	IDT  uint64 `json:"idt"`
}

// Sizes of the report about a guest's end.
const (
	crashStackWords = 8
	endConsoleLines = 16
)

// String returns the report in several lines, as the daemon logs it.
func (r *CrashReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "guest crashed on vcpu %d: %s\n", r.CPU, r.Text)
	if r.RegsLost {
		b.WriteString("  (the host had reset the registers before it reported)\n")
	}
	g, c := &r.Regs, &r.Control
	fmt.Fprintf(&b, "  rip %016x", g.RIP)
	if r.Symbol != "" {
		fmt.Fprintf(&b, " %s", r.Symbol)
	}
	all := g.Values()
	for i, v := range all[:16] {
		if i%4 == 0 {
			b.WriteString("\n ")
		}
		fmt.Fprintf(&b, " %-3s %016x", x86.RegNames[i], v)
	}
	fmt.Fprintf(&b, "\n  rflags %08x cs %04x ss %04x cr0 %08x cr2 %016x cr3 %x cr4 %x efer %x\n",
		g.RFLAGS, c.CS, c.SS, c.CR0, c.CR2, c.CR3, c.CR4, c.EFER)
	for _, l := range r.Code {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	if len(r.Stack) > 0 {
		b.WriteString("  stack:")
		for _, w := range r.Stack {
			fmt.Fprintf(&b, " %016x", w)
		}
		b.WriteByte('\n')
	}
	for _, l := range r.Console {
		fmt.Fprintf(&b, "  console: %s\n", l)
	}
	return strings.TrimRight(b.String(), "\n")
}

// symbolize returns name+0xoffset, or "" if there is no symbol.
func symbolize(syms probe.Symbols, addr guest.GVA) string {
	if syms == nil {
		return ""
	}
	s, ok := syms.Find(addr)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s+%#x", s.Name, uint64(addr-s.Addr))
}

// newCrash fills a report from the vCPU's registers and memory. It runs on the
// vCPU's own thread.
func (v *trapFrame) newCrash(kind CrashKind, text string) *CrashReport {
	m := v.m
	r := &CrashReport{CPU: v.id, Kind: kind, Text: text, Regs: *v.regs}
	s := v.sregs
	r.Control = ControlRegs{
		CR0: s.CR0, CR2: s.CR2, CR3: s.CR3, CR4: s.CR4, EFER: s.EFER,
		CS: s.CS.Selector, SS: s.SS.Selector, GDT: s.GDT.Base, IDT: s.IDT.Base,
	}
	// After INIT a processor is at f000:fff0 in real mode (SDM Vol. 3, table 9-1).
	// Guests do not go there by themselves: they start in long mode.
	r.RegsLost = r.Regs.RIP == 0xfff0 && s.CR0&cr0PE == 0
	syms := m.Image()
	r.Symbol = symbolize(syms, guest.GVA(r.Regs.RIP))
	as := m.space(guest.GPA(s.CR3))
	if !r.RegsLost {
		r.Code = disassemble(as, syms, guest.GVA(r.Regs.RIP), v.m.engine.Unpatch)
		for i := range uint64(crashStackWords) {
			w, err := readWord(as, guest.GVA(r.Regs.RSP+8*i))
			if err != nil {
				break
			}
			r.Stack = append(r.Stack, w)
		}
	}
	r.Console = m.console.tailText(endConsoleLines)
	return r
}
