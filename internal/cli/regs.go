package cli

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func regsCommand(a *app) command.Spec {
	var vectors, yes bool
	var set []string
	return command.Spec{
		Use:   "regs [VCPU]",
		Short: "Show the registers of the vCPUs",
		Long: `Show the registers of one vCPU, or of all at one instant: general, segment, control and
debug registers, with bits by their names. The guest is stopped for this, and resumes if it was
running.

rip is an address of the guest's own text. If the vCPU is in a probe's code, that is
shown as well. ftag has a bit for each x87 register that is not empty, as FXSAVE stores it; GDB's
$ftag is the tag word of two bits each.

--set changes general registers, rip, rflags, fs_base, gs_base, kernel_gs_base, cr0, cr2, cr3, cr4, cr8, efer, dr0
to dr3, dr6 and dr7; of floating point and vectors st0 to st7, fctrl, fstat, ftag, fop, fip, fdp, mxcsr, pkru, and
xmm0, ymm0, zmm0 and so on and k0 to k7, if the vCPU has them. xmm0 leaves the rest of ymm0 unchanged. Either all
the registers named are changed, or none. It needs --yes, because the old values are not kept.`,
		Example: `  guestprobe regs 0
  guestprobe regs --fp --format json
  guestprobe regs 0 --set rax=1 --set xmm0=0x3ff00000000000004000000000000000 --yes`,
		Args: command.ArgsBetween(0, 1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&vectors, "fp", false, "floating point and vector registers, too")
			f.StringArrayVar(&set, "set", nil, "change a register of the vCPU, 0 where none is named: `NAME=VALUE`; may be repeated")
			f.BoolVarP(&yes, "yes", "y", false, "confirm the change")
		},
		Run: show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.RegisterList, error) {
			vcpu := ""
			if len(r.Args) > 0 {
				vcpu = r.Args[0]
			}
			if len(set) > 0 {
				return setRegisters(ctx, c, vcpu, set, vectors, yes)
			}
			if yes {
				return api.RegisterList{}, command.Usagef("--yes: nothing is changed without --set")
			}
			if _, err := strconv.Atoi(vcpu); vcpu != "" && err != nil {
				return api.RegisterList{}, command.Usagef("VCPU %q: not a number", vcpu)
			}
			return c.Registers(ctx, vcpu, vectors)
		}, printRegisters),
	}
}

// setRegisters changes registers, each given as NAME=VALUE, and returns the new values.
func setRegisters(ctx context.Context, c *remote.Client, vcpu string, set []string, vectors, yes bool) (l api.RegisterList, err error) {
	req := api.WriteRegisters{Set: map[string]string{}}
	if vcpu != "" {
		if req.VCPU, err = strconv.Atoi(vcpu); err != nil {
			return l, command.Usagef("VCPU %q: not a number", vcpu)
		}
	}
	for _, x := range set {
		name, value, ok := strings.Cut(x, "=")
		n, isNumber := new(big.Int).SetString(value, 0)
		if !ok || !isNumber {
			return l, command.Usagef("--set %q: want NAME=VALUE, a number", x)
		}
		if n.Sign() < 0 && n.IsInt64() { // as 64 bits, as in C
			value = api.Hex(n.Int64()).String()
		}
		if _, twice := req.Set[name]; twice {
			return l, command.Usagef("--set %q: each name once", x)
		}
		req.Set[name] = value
	}
	switch {
	case vectors:
		return l, command.Usagef("--fp goes without --set")
	case !yes:
		return l, command.Usagef("--set changes the guest, which cannot be undone: add --yes")
	}
	r, err := c.WriteRegisters(ctx, req)
	return api.RegisterList{VCPUs: []api.Registers{r}}, err
}

// The registers in the order of debuggers.
var (
	segmentRegs = []string{"cs", "ss", "ds", "es", "fs", "gs", "tr", "ldt"}
	controlRegs = []string{"cr0", "cr2", "cr3", "cr4", "cr8", "efer", "xcr0", "apic_base", "kernel_gs_base"}
	debugRegs   = []string{"dr0", "dr1", "dr2", "dr3", "dr6", "dr7"}
)

func printRegisters(r *command.Run, l api.RegisterList) error {
	for i := range l.VCPUs {
		var b strings.Builder
		if i > 0 {
			b.WriteByte('\n')
		}
		writeRegisters(&b, &l.VCPUs[i])
		if err := r.Print("%s", b.String()); err != nil {
			return err
		}
	}
	return nil
}

func writeRegisters(b *strings.Builder, c *api.Registers) {
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	line("vcpu %d  %s, CPL %d", c.CPU, c.State, c.CPL)
	line("%-6s %016x  %s", "rip", uint64(c.Regs["rip"]), command.Clean(c.Symbol))
	if c.Live != 0 {
		what := "the copy of an instruction, for a probe"
		if c.Inside {
			what = "a probe's handlers, which use the registers below and put them back"
		}
		line("%-6s %016x  %s", "in", uint64(c.Live), what)
	}
	for row := range slices.Chunk(x86.DebuggerRegs[:], 4) {
		for i, n := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			fmt.Fprintf(b, "%-6s %016x", n, uint64(c.Regs[n.String()]))
		}
		b.WriteByte('\n')
	}
	line("%-6s %016x  %s", "rflags", uint64(c.Regs["rflags"]), strings.Join(c.Flags, " "))
	for _, name := range segmentRegs {
		s := c.Segments[name]
		line("%-6s %04x  base %016x  limit %08x  type %x  dpl %d  %s", name, s.Selector, uint64(s.Base), s.Limit, s.Type, s.DPL, s.Attr)
	}
	for _, name := range []string{"gdt", "idt"} {
		t := c.Tables[name]
		line("%-6s       base %016x  limit %04x", name, uint64(t.Base), t.Limit)
	}
	for _, name := range controlRegs {
		if slices.Contains(c.Unknown, name) {
			continue
		}
		bits := ""
		if set := c.Set[name]; len(set) > 0 {
			bits = "  " + strings.Join(set, " ")
		}
		line("%-14s %016x%s", name, uint64(c.Control[name]), bits)
	}
	for _, name := range debugRegs {
		if slices.Contains(c.Unknown, name) {
			continue
		}
		line("%-14s %016x", name, uint64(c.Debug[name]))
	}
	if len(c.Unknown) > 0 {
		line("not known: %s", strings.Join(c.Unknown, ", "))
	}
	v := c.Vectors
	if v == nil {
		return
	}
	line("fctrl %04x  fstat %04x  ftag %02x  fop %03x  fip %x  fdp %x  mxcsr %08x", v.Control, v.Status, v.Tag, v.Opcode, uint64(v.IP), uint64(v.DP), v.MXCSR)
	if v.PKRU != nil {
		line("pkru %08x", *v.PKRU)
	}
	for i, s := range v.ST {
		line("%-6s %s", fmt.Sprintf("st%d", i), s)
	}
	for i, s := range v.Regs {
		line("%-6s %s", fmt.Sprintf("%s%d", v.Name, i), s)
	}
	for i, k := range v.Mask {
		line("%-6s %016x", fmt.Sprintf("k%d", i), uint64(k))
	}
}
