package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

func (a *app) guestCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "guest",
		Short: "Show and control the guest",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var paused, follow bool
	reset := a.guestAction("reset", "Boot the guest anew, with its probes in place", func(ctx context.Context, c *client.Client) (api.Guest, error) {
		return c.Reset(ctx, api.ResetGuest{Paused: paused})
	})
	reset.Flags().BoolVar(&paused, "paused", false, "stop before the first instruction")
	console := &cobra.Command{
		Use:   "console",
		Short: "Print what the guest has written to its console",
		Long: `Print what is kept of the guest's console output; with --follow go on until the
guest ends. On a terminal, control characters of the guest are shown as \xNN.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.console(cmd.Context(), follow) },
	}
	console.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new output")
	cmd.AddCommand(
		a.guestAction("status", "Show the guest's state", func(ctx context.Context, c *client.Client) (api.Guest, error) { return c.Guest(ctx) }),
		a.guestAction("pause", "Take every vCPU out of guest mode", func(ctx context.Context, c *client.Client) (api.Guest, error) { return c.Pause(ctx) }),
		a.guestAction("resume", "Let the guest run", func(ctx context.Context, c *client.Client) (api.Guest, error) { return c.Resume(ctx) }),
		reset, console, a.guestTextCmd(),
	)
	return cmd
}

// guestAction is a command that does one thing and shows the guest's state.
func (a *app) guestAction(use, short string, do func(context.Context, *client.Client) (api.Guest, error)) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			g, err := do(cmd.Context(), c)
			if err != nil {
				return err
			}
			return a.printGuest(g)
		},
	}
}

func (a *app) printGuest(g api.Guest) error {
	if a.format == "json" {
		return a.printJSON(g)
	}
	knob := "enabled"
	if !g.Enabled {
		knob = "all disarmed"
	}
	rows := [][]string{
		{"state", g.State},
		{"image", fmt.Sprintf("%s (sha256 %.16s…)", g.Image, g.SHA256)},
		{"vcpus", strconv.Itoa(g.VCPUs)},
		{"memory", fmt.Sprintf("%d MiB", g.Memory>>20)},
		{"tick", (time.Duration(g.TickUS) * time.Microsecond).String()},
		{"cmdline", strconv.Quote(g.Cmdline)},
		{"boots", strconv.Itoa(g.Boots)},
		{"probes", fmt.Sprintf("%d, %s", g.Probes, knob)},
		{"wrong results", u64(g.Checks)},
	}
	if g.ExitCode != nil {
		rows = append(rows, []string{"exit code", strconv.FormatInt(*g.ExitCode, 10)})
	}
	if g.LogLinesLost > 0 {
		rows = append(rows, []string{"log lines lost", u64(g.LogLinesLost)})
	}
	if err := a.table([]string{"GUEST", ""}, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.env.Stdout)
	if err := a.printExits(g.CPUs); err != nil {
		return err
	}
	if err := a.printStanding(g.CPUs); err != nil {
		return err
	}
	if g.Crash != nil {
		fmt.Fprintf(a.env.Stdout, "\n%s\n", clean(g.Crash.Report))
	}
	return nil
}

// printStanding prints where the vCPUs stand that are not running, and in which
// address space: what --space of attach takes.
func (a *app) printStanding(cpus []api.CPUInfo) error {
	var rows [][]string
	for _, c := range cpus {
		if c.RIP == 0 {
			continue
		}
		symbol := "-"
		if c.Symbol != "" {
			symbol = c.Symbol
		}
		rows = append(rows, []string{strconv.Itoa(c.CPU), fmt.Sprintf("%016x", uint64(c.RIP)), symbol, fmt.Sprintf("%#x", uint64(c.Space))})
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.env.Stdout)
	return a.table([]string{"VCPU", "RIP", "SYMBOL+OFFSET", "SPACE"}, rows)
}

func (a *app) console(ctx context.Context, follow bool) error {
	if err := a.wantFormat(); err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Console(ctx, follow)
	if err != nil {
		return err
	}
	defer s.Close()
	raw := !terminal(a.env.Stdout)
	for {
		r, err := s.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		}
		if a.format == "json" {
			if err := json.NewEncoder(a.env.Stdout).Encode(r); err != nil {
				return err
			}
			continue
		}
		switch r.Type {
		case api.RecordConsole:
			var l api.Console
			if err := json.Unmarshal(r.Data, &l); err != nil {
				return fmt.Errorf("%w: %w", client.ErrProtocol, err)
			}
			text := l.Text + string(l.Bytes)
			if !raw {
				text = clean(text)
			}
			if !l.Partial {
				text += "\n"
			}
			if _, err := io.WriteString(a.env.Stdout, text); err != nil {
				return err
			}
		case api.RecordLost:
			a.noteLost(r, "console line")
		case api.RecordEnd:
			a.noteEnd(r, api.EndHistory)
		}
	}
}

// noteLost remarks that records are missing.
func (a *app) noteLost(r api.Record, what string) {
	var l api.Lost
	if json.Unmarshal(r.Data, &l) == nil {
		a.note("%s lost here", plural(int(l.Lost), what))
	}
}

// noteEnd remarks why a stream has ended, unless that is the usual reason.
func (a *app) noteEnd(r api.Record, usual string) {
	var e api.End
	if json.Unmarshal(r.Data, &e) != nil || e.Reason == usual {
		return
	}
	switch e.Reason {
	case api.EndGuestExit:
		code := int64(0)
		if e.Code != nil {
			code = *e.Code
		}
		a.note("The guest has exited with code %d.", code)
	case api.EndGuestCrash:
		a.note("The guest has crashed; 'guestprobe guest status' says how.")
	case api.EndShutdown:
		a.note("The daemon is stopping.")
	case api.EndDetached:
		a.note("The probes were detached.")
	default:
		a.note("The stream has ended: %s.", clean(e.Reason))
	}
}

func (a *app) guestTextCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "text",
		Short: "Compare the guest's text with its image",
		Long: `Compare every executable byte of the guest's memory with its image, and list what
differs: the sites that are armed. The exit status is 1 when anything does.`,
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
			t, err := c.Text(cmd.Context())
			if err != nil {
				return err
			}
			if a.format == "json" {
				err = a.printJSON(t)
			} else {
				err = a.printText(t)
			}
			if err == nil && !t.Identical {
				err = fmt.Errorf("the guest's text differs from its image in %s", plural(len(t.Ranges), "place"))
			}
			return err
		},
	}
}

func (a *app) printText(t api.Text) error {
	fmt.Fprintf(a.env.Stdout, "live   %s\nimage  %s\n", t.Live, t.Image)
	if t.Identical {
		fmt.Fprintf(a.env.Stdout, "%d bytes, identical\n", t.Bytes)
		return nil
	}
	var rows [][]string
	for _, r := range t.Ranges {
		rows = append(rows, []string{r.Addr.String(), r.Symbol, r.Image, r.Live})
	}
	return a.table([]string{"ADDRESS", "SYMBOL", "IMAGE", "LIVE"}, rows)
}
