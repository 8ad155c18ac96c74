package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
)

func (a *app) callCmd() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "call [--timeout DURATION] SYMBOL|ADDRESS [ARG...]",
		Short: "Run a function of the guest and print what it returns",
		Long: `Run a function of the guest's kernel with up to 6 integer arguments and print
what it returns, as a signed number and in hexadecimal. It runs at a safe point
of an idle vCPU, or through the guest's own call service; a guest that offers
neither in time refuses. Put -- before a negative argument.`,
		Example: `  guestprobe call vfs_read 3 0x1000 64
  guestprobe call sys_open -- -1`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("say which function")
			case len(args) > 7:
				return fmt.Errorf("%d arguments: at most 6 travel in registers", len(args)-1)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			req := api.Call{TimeoutMS: int(timeout.Milliseconds())}
			if addr, err := strconv.ParseUint(args[0], 0, 64); err == nil {
				req.Addr = api.Hex(addr)
			} else {
				req.Symbol = args[0]
			}
			for _, s := range args[1:] {
				v, err := parseArg(s)
				if err != nil {
					return &usageError{err}
				}
				req.Args = append(req.Args, v)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			res, err := c.Call(cmd.Context(), req)
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.printJSON(res)
			}
			fmt.Fprintf(a.env.Stdout, "%d (0x%x)\n", res.Value, uint64(res.Ret))
			return nil
		},
		ValidArgsFunction: a.completeSymbols,
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long the guest may take, up to 1m")
	return cmd
}

// parseArg reads an argument of a call: any 64-bit number, negative ones too.
func parseArg(s string) (api.Hex, error) {
	if strings.HasPrefix(s, "-") {
		v, err := strconv.ParseInt(s, 0, 64)
		if err != nil {
			return 0, fmt.Errorf("argument %q: not a 64-bit number", s)
		}
		return api.Hex(v), nil
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("argument %q: not a 64-bit number", s)
	}
	return api.Hex(v), nil
}
