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

func btCommand(a *app) command.Spec {
	var task string
	var all, raw bool
	return command.Spec{
		Use:   "bt [VCPU]",
		Short: "Show backtraces of vCPUs and tasks",
		Long: `Show the location and the callers of vCPU 0, or of VCPU; with --all of each vCPU at one
instant, and with --task of a task of a Linux guest, which may be asleep. The guest is stopped
for this, and resumes if it was running.

Frames are found by the kernel's ORC tables, by call frame information, and by frame pointers.
Arguments are shown where debug information, or at a function's first instruction its
prototype, says where they are: '?' is an argument whose value is not available, and JSON says
why.`,
		Example: `  guestprobe bt
  guestprobe bt --all --format json`,
		Args: command.ArgsBetween(0, 1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&task, "task", "", "of the task `PID`")
			f.BoolVar(&all, "all", false, "of each vCPU")
			rawNames(f, &raw)
		},
		Run: show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.BacktraceList, error) {
			of := remote.Where{VCPU: "0", Task: task}
			switch {
			case len(r.Args) > 0 && (all || task != "") || all && task != "":
				return api.BacktraceList{}, command.Usagef("VCPU, --task and --all say whose backtrace: give one of them")
			case len(r.Args) > 0:
				of.VCPU = r.Args[0]
			case all || task != "":
				of.VCPU = ""
			}
			return c.Backtraces(ctx, of)
		}, func(r *command.Run, l api.BacktraceList) error { return printBacktraces(r, raw, l) }),
	}
}

// rawNames declares the flag that prints symbols as the linker has them, not demangled.
func rawNames(f *pflag.FlagSet, raw *bool) {
	f.BoolVar(raw, "raw-names", false, "names of C++ and Rust as the linker has them")
}

func printBacktraces(r *command.Run, raw bool, l api.BacktraceList) error {
	for i, b := range l.Backtraces {
		var head []string
		if b.CPU != nil {
			head = append(head, fmt.Sprintf("vcpu %d", *b.CPU))
		}
		if t := b.Task; t != nil {
			head = append(head, fmt.Sprintf("task %d %q", t.PID, t.Comm))
		}
		if i > 0 {
			if err := r.Print("\n"); err != nil {
				return err
			}
		}
		if err := r.Print("%s\n", strings.Join(head, ", ")); err != nil {
			return err
		}
		for k, f := range b.Frames {
			if raw {
				f.Name = ""
			}
			if err := r.Print("%s\n", command.Line(backtraceLine(k, &f))); err != nil {
				return err
			}
		}
		if b.More {
			r.Note("There are more frames.")
		}
		if b.Note != "" {
			r.Note("%s.", b.Note)
		}
	}
	return nil
}

// backtraceLine formats a frame as debuggers do.
func backtraceLine(k int, f *api.StackFrame) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%-3d %016x  ", k, uint64(f.Addr))
	name := f.Text()
	if i := strings.LastIndex(name, "/0x"); i > 0 && !f.Inlined {
		name = name[:i]
	}
	if name == "" {
		name = "?"
	}
	b.WriteString(name)
	if len(f.Args) > 0 {
		var args []string
		for _, a := range f.Args {
			value := a.Value
			if a.Why != "" {
				value = "?"
			}
			args = append(args, a.Name+"="+value)
		}
		b.WriteString(" (" + strings.Join(args, ", ") + ")")
	}
	if f.Inlined {
		b.WriteString(" [inlined]")
	}
	if f.Source != "" {
		b.WriteString(" at " + f.Source)
	}
	return b.String()
}
