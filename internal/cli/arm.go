package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
)

func (a *app) armCmd() *cobra.Command {
	return a.setArmedCmd(true, "arm", "Arm every enabled probe again (the global knob)")
}

func (a *app) disarmCmd() *cobra.Command {
	return a.setArmedCmd(false, "disarm", "Disarm all probes at once, forgetting none (the global knob)")
}

func (a *app) setArmedCmd(on bool, use, short string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + `.
It is the kernel's kprobes/enabled. Each probe keeps its own enabled state.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetArmed(cmd.Context(), on); err != nil || a.format != "json" {
				return err
			}
			return a.printJSON(api.Knobs{Enabled: &on})
		},
	}
}

func (a *app) blacklistCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "blacklist",
		Short: "List what may not be probed",
		Long: `List the functions that may not be probed, and why. --format kernel prints the
format of the kernel's kprobes/blacklist.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat("kernel"); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			if a.format == "kernel" {
				text, err := c.KernelList(cmd.Context(), "blacklist")
				if err != nil {
					return err
				}
				_, err = io.WriteString(a.env.Stdout, clean(text))
				return err
			}
			entries, err := c.Blacklist(cmd.Context())
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.printJSON(api.Blacklist{Entries: entries})
			}
			var rows [][]string
			for _, e := range entries {
				rows = append(rows, []string{e.Start.String(), e.End.String(), e.Symbol, e.Reason})
			}
			return a.table([]string{"START", "END", "SYMBOL", "REASON"}, rows)
		},
	}
}
