package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) call() command.Spec {
	var timeout time.Duration
	return command.Spec{
		Use:   "call [--timeout DURATION] SYMBOL|ADDRESS [ARG...]",
		Short: "Run a function of the guest and print what it returns",
		Long: `Run a function of the guest's kernel with up to 6 integer arguments and print
what it returns, as a signed number and in hexadecimal. It runs at a safe point
of an idle vCPU, or through the guest's own call service; a guest that offers
neither in time refuses.`,
		Example: `  guestprobe call vfs_read 3 0x1000 64
  guestprobe call sys_open -1`,
		Args: func(args []string) error {
			switch {
			case len(args) == 0:
				return command.Usagef("say which function")
			case len(args) > 7:
				return command.Usagef("%d arguments: at most 6 travel in registers", len(args)-1)
			}
			return nil
		},
		Negative: true,
		Flags: func(f *pflag.FlagSet) {
			f.DurationVar(&timeout, "timeout", 5*time.Second, "how long the guest may take, a `duration` up to 1m")
		},
		Complete: a.completeSymbols(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			ms, err := timeoutMS(timeout)
			if err != nil {
				return err
			}
			req := api.Call{TimeoutMS: &ms}
			if addr, err := strconv.ParseUint(r.Args[0], 0, 64); err == nil {
				req.Addr = api.Hex(addr)
			} else {
				req.Symbol = r.Args[0]
			}
			for _, s := range r.Args[1:] {
				v, err := parseArg(s)
				if err != nil {
					return err
				}
				req.Args = append(req.Args, v)
			}
			res, err := c.Call(ctx, req)
			if err != nil {
				return err
			}
			return r.Show(res, func() error { return r.Print("%d (0x%x)\n", res.Value, uint64(res.Ret)) })
		}),
	}
}

// timeoutMS converts a --timeout to milliseconds, the daemon's unit.
func timeoutMS(timeout time.Duration) (int, error) {
	if timeout < time.Millisecond || timeout > time.Minute {
		return 0, command.Usagef("--timeout %v: not from 1ms to 1m", timeout)
	}
	return int(timeout.Milliseconds()), nil
}

// parseArg parses an argument of a call: any 64-bit number, including negative ones.
func parseArg(s string) (v api.Hex, err error) {
	if strings.HasPrefix(s, "-") {
		n, perr := strconv.ParseInt(s, 0, 64)
		v, err = api.Hex(n), perr
	} else {
		n, perr := strconv.ParseUint(s, 0, 64)
		v, err = api.Hex(n), perr
	}
	if err != nil {
		return 0, command.Usagef("argument %q: not a 64-bit number", s)
	}
	return v, nil
}
