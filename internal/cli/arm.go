package cli

import (
	"context"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) arm() command.Spec {
	return armCommand(a, true, "arm", "Arm every enabled probe again (the global switch)")
}

func (a *app) disarm() command.Spec {
	return armCommand(a, false, "disarm", "Disarm all probes (the global switch)")
}

func armCommand(a *app, on bool, use, short string) command.Spec {
	return command.Spec{
		Use:   use,
		Short: short,
		Long: short + `.
It is the kernel's kprobes/enabled. Each probe keeps its own enabled state.`,
		Run: show(a, func(ctx context.Context, _ *command.Run, c *remote.Client) (api.Knobs, error) {
			return api.Knobs{Enabled: &on}, c.SetArmed(ctx, on)
		}, func(*command.Run, api.Knobs) error { return nil }),
	}
}

// formatKernel prints in the format of the kernel's own files.
const formatKernel = "kernel"

// kernelFile prints the guest's probes as one of the kernel's files on kprobes would list them.
func kernelFile(ctx context.Context, r *command.Run, c *remote.Client, file string) error {
	text, err := c.KernelList(ctx, file)
	if err != nil {
		return err
	}
	return r.Print("%s", command.Clean(text))
}

func (a *app) blacklist() command.Spec {
	return command.Spec{
		Use:   "blacklist",
		Short: "List the functions that cannot be probed",
		Long: `List the functions that cannot be probed, with the reasons. --format kernel prints the
format of the kernel's kprobes/blacklist.`,
		Formats: []string{formatKernel},
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			if r.Format == formatKernel {
				return kernelFile(ctx, r, c, "blacklist")
			}
			entries, err := c.Blacklist(ctx)
			if err != nil {
				return err
			}
			return r.Show(api.Blacklist{Entries: entries}, func() error {
				var rows [][]string
				for _, e := range entries {
					rows = append(rows, []string{e.Start.String(), e.End.String(), e.Symbol, e.Reason})
				}
				return r.Table([]string{"START", "END", "SYMBOL", "REASON"}, rows)
			})
		}),
	}
}
