package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

const steppingHelp = `The vCPU must be stopped, by a probe with --stop or because the guest is paused; --vcpu selects
it if several are. Probes on its way are hit as usual. Afterwards the vCPU is at an instruction
of the guest's own, and this next instruction is shown.`

// steppingCommand returns a command that runs a stopped vCPU for a while. ask completes the request.
func steppingCommand(a *app, spec command.Spec, how string, ask func(r *command.Run, s *api.Step) error) command.Spec {
	vcpu, timeout := -1, 5*time.Second
	spec.Long += "\n\n" + steppingHelp
	spec.Flags = func(f *pflag.FlagSet) {
		f.IntVar(&vcpu, "vcpu", -1, "the `VCPU`, where several are stopped")
		command.HideDefault(f, "vcpu")
		f.DurationVar(&timeout, "timeout", timeout, "fail after this `TIME`, 1ms to 1m")
	}
	spec.Run = show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Stepped, error) {
		ms, err := timeoutMS(timeout)
		if err != nil {
			return api.Stepped{}, err
		}
		req := api.Step{How: how, TimeoutMS: &ms}
		if r.Given("vcpu") {
			req.VCPU = &vcpu
		}
		if err := ask(r, &req); err != nil {
			return api.Stepped{}, err
		}
		out, err := c.Step(ctx, req)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("interrupted (%w): after step and next the vCPU is stopped; after finish and until it keeps running", context.Cause(ctx))
		}
		return out, err
	}, printStepped)
	return spec
}

// countSteps sets the number of instructions from the argument.
func countSteps(r *command.Run, s *api.Step) error {
	if len(r.Args) == 0 {
		return nil
	}
	n, err := strconv.Atoi(r.Args[0])
	if s.Count = n; err != nil || n < 1 || n > api.MaxSteps {
		return command.Usagef("N %q: not a number of instructions, 1 to %d", r.Args[0], api.MaxSteps)
	}
	return nil
}

func (a *app) step() command.Spec {
	return steppingCommand(a, command.Spec{
		Use: "step [N]", Short: "Have a stopped vCPU execute N instructions",
		Long: `Execute one instruction, or N, at most 1000000; instructions of called functions count too. No
interrupt comes in between; an exception leads to the guest's handler, and a hlt does not wait.`,
		Example: "  guestprobe step\n  guestprobe step 10 --vcpu 0", Args: command.ArgsBetween(0, 1, ""),
	}, api.StepInto, countSteps)
}

func (a *app) next() command.Spec {
	return steppingCommand(a, command.Spec{
		Use: "next [N]", Short: "Have a stopped vCPU execute N instructions, calls as one",
		Long:    "Execute one instruction, or N, at most 1000000; a call is over when it has returned, or a probe has stopped the vCPU.",
		Example: "  guestprobe next", Args: command.ArgsBetween(0, 1, ""),
	}, api.StepNext, countSteps)
}

func (a *app) finish() command.Spec {
	return steppingCommand(a, command.Spec{
		Use: "finish", Short: "Run a stopped vCPU until its function returns",
		Long:    "Let the vCPU run until the function that it is in has returned, and show what it returned.",
		Example: "  guestprobe finish --timeout 20s", Args: command.ArgsBetween(0, 0, ""),
	}, api.StepFinish, func(*command.Run, *api.Step) error { return nil })
}

func (a *app) stepUntil() command.Spec {
	s := steppingCommand(a, command.Spec{
		Use: "until ADDRESS|SYMBOL[+OFFSET]", Short: "Run a stopped vCPU until it reaches an address",
		Long:    "Let the vCPU run until it reaches an instruction, which must be one that can be probed.",
		Example: "  guestprobe until vfs_read+0x13", Args: command.ArgsBetween(1, 1, "say where it is to stop"),
	}, api.StepUntil, func(r *command.Run, s *api.Step) error { s.At = r.Args[0]; return nil })
	s.Complete = a.completeSymbols()
	return s
}

func printStepped(r *command.Run, s api.Stepped) error {
	if !s.Reached {
		r.Note("It has stopped before it came there.")
	}
	line := fmt.Sprintf("vcpu %d at %016x  %s", s.CPU, uint64(s.RIP), s.Symbol)
	if s.Text != "" {
		line += ": " + s.Text
	}
	if s.Source != "" {
		line += " at " + s.Source
	}
	if s.Ret != nil {
		line += fmt.Sprintf("; returned %#x", uint64(*s.Ret))
	}
	return r.Print("%s\n", command.Clean(line))
}
