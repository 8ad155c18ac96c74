package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/inguest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// maxProgramText bounds what bpf exec reads: a program of the greatest length,
// three characters a byte.
const maxProgramText = 3 * 8 * bpf.MaxSlots

func (a *app) bpfCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bpf",
		Short: "Run eBPF programs by themselves",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.bpfExecCmd())
	return cmd
}

func (a *app) bpfExecCmd() *cobra.Command {
	var backend string
	var cpl int
	cmd := &cobra.Command{
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
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			memory := ""
			if len(args) > 0 {
				memory = args[0]
			}
			switch {
			case backend != "interp" && backend != "guest":
				return &usageError{fmt.Errorf("--backend %q: not interp or guest", backend)}
			case cpl != 0 && cpl != 3:
				return &usageError{fmt.Errorf("--cpl %d: not 0 or 3", cpl)}
			case backend == "interp" && cmd.Flags().Changed("cpl"):
				return &usageError{errors.New("--cpl is for --backend guest")}
			}
			text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxProgramText+1))
			if err != nil {
				return fmt.Errorf("read program: %w", err)
			}
			if len(text) > maxProgramText {
				return fmt.Errorf("read program: more than %d characters", maxProgramText)
			}
			run := bpf.Interpret
			if backend == "guest" {
				run = guestRun(cpl)
			}
			r0, err := bpf.Exec(string(text), memory, run)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.env.Stdout, r0)
			return nil
		},
	}
	cmd.Flags().StringVar(&backend, "backend", "interp", "interp or guest")
	cmd.Flags().IntVar(&cpl, "cpl", 3, "privilege in the guest, 0 or 3")
	return cmd
}

// guestRun boots a guest for one program, once that has passed the checker.
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
