package cli

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/inguest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// maxProgramText is the maximum input of bpf exec: a program of maximum length at
// three characters a byte.
const maxProgramText = 3 * 8 * bpf.MaxSlots

func bpfCommand() command.Spec {
	return command.Spec{Use: "bpf", Short: "Check eBPF programs, and run them by themselves", Sub: []command.Spec{bpfCheck(), bpfExec()}}
}

func bpfExec() command.Spec {
	var backend string
	var cpl int
	return command.Spec{
		Local: true,
		Use:   "exec [MEMORY] [--backend interp|guest]",
		Short: "Run one program on a piece of memory and print what it returns",
		Long: `Run the program whose bytes stand in hexadecimal on standard input, on the memory
whose bytes are the argument, and print R0 in hexadecimal: R1 points to the memory,
R2 is its length. That is what runners of conformance suites call a plug-in.

The interpreter runs it on the host; --backend guest compiles it, boots a small
guest that does nothing else, and runs it there. Exit status 1 and a message say
that the program was refused, or ended by a violation.`,
		Example: `  echo b7 00 00 00 2a 00 00 00 95 00 00 00 00 00 00 00 | guestprobe bpf exec
  guestprobe bpf exec 'aa bb cc' --backend guest <program.hex`,
		Args:  command.ArgsBetween(0, 1, ""),
		Plain: true,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&backend, "backend", "interp", "`where` it runs: interp or guest")
			f.IntVar(&cpl, "cpl", 3, "`privilege` in the guest, 0 or 3")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			memory := ""
			if len(r.Args) > 0 {
				memory = r.Args[0]
			}
			switch {
			case backend != "interp" && backend != "guest":
				return command.Usagef("--backend %q: not interp or guest", backend)
			case cpl != 0 && cpl != 3:
				return command.Usagef("--cpl %d: not 0 or 3", cpl)
			case backend == "interp" && r.Given("cpl"):
				return command.Usagef("--cpl is for --backend guest")
			}
			text, err := files.Input(ctx, r.Stdin, "program", maxProgramText)
			if err != nil {
				return err
			}
			run := bpf.Interpret
			if backend == "guest" {
				run = guestRun(cpl)
			}
			r0, err := bpf.Exec(string(text), memory, run)
			if err != nil {
				return err
			}
			return r.Print("%s\n", r0)
		},
	}
}

// guestRun returns a function that boots a guest to run one program that has passed the checker.
func guestRun(cpl int) bpf.RunFunc {
	return func(p *bpf.Program, memory []byte) (r0 uint64, err error) {
		g, err := inguest.New(inguest.Options{CPL: cpl})
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		return bpf.RunOn(g)(p, memory)
	}
}
