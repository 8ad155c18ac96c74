package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// spaceFlags declares the flags that select an address space.
func spaceFlags(f *pflag.FlagSet, w *remote.Where) {
	f.StringVar(&w.Task, "task", "", "the memory of task `PID` of a Linux guest")
	f.StringVar(&w.Space, "cr3", "", "the memory that the page tables at physical `ADDRESS` map")
	f.StringVar(&w.VCPU, "vcpu", "", "the memory that vCPU `N` sees, and its registers")
}

// spaceNote names the address space in a note.
func spaceNote(space api.Hex) string {
	if space == 0 {
		return ""
	}
	return fmt.Sprintf(", page tables at %#x", uint64(space))
}

// formatAddr formats an address with its symbol.
func formatAddr(addr api.Hex, symbol string) string {
	if symbol == "" {
		return fmt.Sprintf("%#x", uint64(addr))
	}
	return fmt.Sprintf("%#x %s", uint64(addr), symbol)
}

func (a *app) pt() command.Spec {
	var w remote.Where
	return command.Spec{
		Use:   "pt ADDRESS|SYMBOL[+OFFSET]|%REGISTER[+OFFSET]",
		Short: "Show how an address is found in the page tables",
		Long: `Walk the guest's page tables for an address, as the processor does: show each entry with its
flags, and the physical address after the last one. The tables are the kernel's, or with a
flag a task's, a vCPU's, or the tables at an address.

Flags are P (present), RW (writable), US (for user code), PWT and PCD (caching), A (accessed),
D (dirty), PS (a large page), G (global), PAT, XD (no code).`,
		Example: `  guestprobe pt vfs_read
  guestprobe pt %rsp+8 --vcpu 0`,
		Args:     command.ArgsBetween(1, 1, "say which address"),
		Flags:    func(f *pflag.FlagSet) { spaceFlags(f, &w) },
		Complete: a.completeSymbols(),
		Run: show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.PageWalk, error) {
			w.At = r.Args[0]
			return c.PageWalk(ctx, w)
		}, printWalk),
	}
}

func printWalk(r *command.Run, p api.PageWalk) error {
	r.Note("%s", command.Clean(fmt.Sprintf("%s: %d levels, page tables at %#x", formatAddr(p.Addr, p.Symbol), p.Levels, uint64(p.Space))))
	var rows [][]string
	for _, s := range p.Steps {
		points, flags := "-", "not present"
		if len(s.Flags) > 0 {
			points, flags = fmt.Sprintf("%#x", uint64(s.Points)), strings.Join(s.Flags, " ")
		}
		rows = append(rows, []string{s.Name, fmt.Sprint(s.Index), fmt.Sprintf("%#x", uint64(s.At)), fmt.Sprintf("%016x", uint64(s.Entry)), points, flags})
	}
	if len(rows) > 0 {
		if err := r.Table([]string{"LEVEL", "INDEX", "AT", "ENTRY", "LEADS TO", "FLAGS"}, rows); err != nil {
			return err
		}
	}
	m := p.Mapping
	if m == nil {
		return r.Print("%s\n", command.Clean(p.Fault))
	}
	may := []string{"read"}
	if m.Writable {
		may = append(may, "write")
	}
	if !m.NoExec {
		may = append(may, "execute")
	}
	who, region := "kernel only", "no memory of the guest"
	if m.User {
		who = "user code, too"
	}
	if m.Region != "" {
		region = m.Region
	}
	return r.Print("physical %#x (%s), a page of %s: %s; %s\n", uint64(m.Physical), region, pageSize(m.Size), strings.Join(may, ", "), who)
}

// pageSize formats the size of a page.
func pageSize(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
