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

const steppingHelp = `The vCPU is the one that is stopped, or --vcpu: by a probe with --stop, or of a guest that is
paused. It then stands at an instruction of the guest's own, probes on its way are hit as ever,
and what stands there next is shown.`

// goOn is a command that lets a vCPU go on for a while. ask completes the request.
func (a *app) goOn(spec command.Spec, how string, ask func(r *command.Run, s *api.Step) error) command.Spec {
	vcpu, timeout := -1, 5*time.Second
	spec.Long += "\n\n" + steppingHelp
	spec.Flags = func(f *pflag.FlagSet) {
		f.IntVar(&vcpu, "vcpu", -1, "the `VCPU`, where several are stopped")
		f.DurationVar(&timeout, "timeout", timeout, "give up after this `TIME`, 1ms to 1m")
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
			err = fmt.Errorf("given up (%w): the vCPU is stopped where a step or next ended; behind finish and until it runs on", context.Cause(ctx))
		}
		return out, err
	}, printStepped)
	return spec
}

// counted asks for as many instructions as the argument says.
func counted(r *command.Run, s *api.Step) error {
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
	return a.goOn(command.Spec{
		Use: "step [N]", Short: "Have a stopped vCPU execute N instructions",
		Long: `Execute one instruction, or N, at most 1000000, also those of functions that are called. No interrupt
comes in between; an exception leads to the guest's handler, and a hlt does not wait.`,
		Example: "  guestprobe step\n  guestprobe step 10 --vcpu 0", Args: command.Between(0, 1, ""),
	}, api.StepInto, counted)
}

func (a *app) next() command.Spec {
	return a.goOn(command.Spec{
		Use: "next [N]", Short: "Have a stopped vCPU execute N instructions, calls as one",
		Long:    "Execute one instruction, or N, at most 1000000; a call is over when it has returned, or a probe has stopped the vCPU.",
		Example: "  guestprobe next", Args: command.Between(0, 1, ""),
	}, api.StepNext, counted)
}

func (a *app) finish() command.Spec {
	return a.goOn(command.Spec{
		Use: "finish", Short: "Let a stopped vCPU go on until its function returns",
		Long:    "Let the vCPU run until the function that it is in has returned, and show what it returned.",
		Example: "  guestprobe finish --timeout 20s", Args: command.Between(0, 0, ""),
	}, api.StepFinish, func(*command.Run, *api.Step) error { return nil })
}

func (a *app) until() command.Spec {
	s := a.goOn(command.Spec{
		Use: "until ADDRESS|SYMBOL[+OFFSET]", Short: "Let a stopped vCPU go on until it comes to an address",
		Long:    "Let the vCPU run until it comes to an instruction, which must be one that can be probed.",
		Example: "  guestprobe until vfs_read+0x13", Args: command.Between(1, 1, "say where it is to stop"),
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
