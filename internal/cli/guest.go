package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) guest() command.Spec {
	action := func(use, short string, do func(context.Context, *remote.Client) (api.Guest, error)) command.Spec {
		return command.Spec{Use: use, Short: short, Run: show(a, func(ctx context.Context, _ *command.Run, c *remote.Client) (api.Guest, error) {
			return do(ctx, c)
		}, printGuest)}
	}
	var paused bool
	var to string
	reset := action("reset", "Boot the guest again, with its probes in place", func(ctx context.Context, c *remote.Client) (api.Guest, error) {
		if to != "" {
			return resetTo(ctx, c, to, paused)
		}
		return c.Reset(ctx, api.ResetGuest{Paused: paused})
	})
	reset.Files = []string{"to"}
	reset.Flags = func(f *pflag.FlagSet) {
		f.BoolVar(&paused, "paused", false, "stop before the first instruction, or where the snapshot was taken")
		f.StringVar(&to, "to", "", "restore the guest from this `file` of 'guest save', with the current probes")
	}
	vcpu := -1
	resume := action("resume", "Let the guest and its stopped vCPUs run", nil)
	resume.Run = show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Guest, error) {
		if r.Given("vcpu") {
			return c.ResumeVCPU(ctx, vcpu)
		}
		return c.Resume(ctx)
	}, printGuest)
	resume.Flags = func(f *pflag.FlagSet) {
		f.IntVar(&vcpu, "vcpu", -1, "resume only this stopped `VCPU`")
		command.HideDefault(f, "vcpu")
	}
	status := action("status", "Show the guest's state", nil)
	status.Run = show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Guest, error) {
		g, err := c.Guest(ctx)
		if err == nil {
			noteWaiting(ctx, r, c)
		}
		return g, err
	}, printGuest)
	return command.Spec{
		Use:   "guest",
		Short: "Show and control the guest",
		Cures: map[string]string{
			"stop": "'guestprobe guest pause' stops the vCPUs; a signal to guestprobed ends the guest", "start": "'guestprobe guest resume' lets the vCPUs run; 'guestprobed' starts a guest",
			"kill": "'guestprobe guest pause' stops the vCPUs; a signal to guestprobed ends the guest", "reboot": "'guestprobe guest reset' boots the guest again",
			"restart": "'guestprobe guest reset' boots the guest again", "restore": "'guestprobe guest reset --to FILE' goes back to what 'guest save' wrote",
		},
		Sub: []command.Spec{
			status,
			action("pause", "Take every vCPU out of guest mode", func(ctx context.Context, c *remote.Client) (api.Guest, error) { return c.Pause(ctx) }),
			resume,
			reset, a.save(), a.console(), a.text(),
		},
	}
}

// noteWaiting lists the saved attachments of an earlier daemon that could not be restored in this guest.
func noteWaiting(ctx context.Context, r *command.Run, c *remote.Client) {
	d, err := c.Daemon(ctx)
	if err != nil || len(d.NotRestored) == 0 {
		return
	}
	const shown = 10
	r.Note("Not attached to this guest, but tried again at each reset and start (--state):")
	for i, what := range d.NotRestored {
		if i == shown {
			r.Note("  and %d more (GET /v1/daemon names them)", len(d.NotRestored)-shown)
			return
		}
		r.Note("  %s", command.Clean(what))
	}
}

// confirmText describes which sources confirm the kernel's location.
func confirmText(by []string) string {
	if len(by) == 0 {
		return ""
	}
	return " (confirmed by " + strings.Join(by, " and ") + ")"
}

func printGuest(r *command.Run, g api.Guest) error {
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
	if g.VM != "" { // the rest is not known
		rows = append([][]string{{"vmm", g.VM}}, rows[:4]...)
		if g.SHA256 == "" || strings.Trim(g.SHA256, "0") == "" {
			rows[2][1] = "not known"
		}
	}
	if k := g.Kernel; k != nil {
		rows = append(rows, []string{"kernel", "Linux " + k.Version}, []string{"system", k.System},
			[]string{"slide", fmt.Sprintf("%#x%s", uint64(k.Slide), confirmText(k.Checked))})
		if k.System == "panicked" {
			rows[slices.IndexFunc(rows, func(row []string) bool { return row[0] == "state" })][1] += ", but its kernel has panicked"
			rows = append(rows, []string{"panic", command.Clean(k.Panic)})
		}
		for _, lack := range k.Missing {
			rows = append(rows, []string{"missing", lack})
		}
	}
	if g.Jail != nil {
		rows = append(rows, []string{"jail", jailText(*g.Jail)})
		for _, lack := range g.Jail.Missing {
			rows = append(rows, []string{"missing", lack})
		}
	}
	if g.ExitCode != nil {
		rows = append(rows, []string{"exit code", strconv.FormatInt(*g.ExitCode, 10)})
	}
	if g.LogLinesLost > 0 {
		rows = append(rows, []string{"log lines lost", u64(g.LogLinesLost)})
	}
	if err := r.Table([]string{"GUEST", ""}, rows); err != nil {
		return err
	}
	tables := []statTable{exitsTable(g.CPUs), stoppedTable(g.CPUs)}
	if g.VM != "" {
		tables = nil
	}
	for _, t := range tables {
		if err := t.printBelow(r); err != nil {
			return err
		}
	}
	for _, c := range g.CPUs {
		if c.Stop != nil {
			if err := r.Print("%s\n", command.Clean(timeline.StopText(*c.Stop))); err != nil {
				return err
			}
		}
	}
	if g.Crash == nil {
		return nil
	}
	return r.Print("\n%s\n", command.Clean(g.Crash.Report))
}

// jailText describes how the daemon is confined.
func jailText(j api.Jail) string {
	if !j.Confined {
		return "none: the daemon is not confined"
	}
	parts := []string{fmt.Sprintf("user %d, group %d", j.User, j.Group)}
	if len(j.Capabilities) == 0 {
		parts = append(parts, "no capabilities")
	} else {
		parts = append(parts, strings.Join(j.Capabilities, ", "))
	}
	if j.Landlock > 0 {
		parts = append(parts, fmt.Sprintf("Landlock ABI %d", j.Landlock))
	}
	if j.Seccomp {
		parts = append(parts, "seccomp")
	}
	return strings.Join(parts, "; ")
}

// stoppedTable shows where stopped vCPUs are, and in which
// address space, as a value for attach --space.
func stoppedTable(cpus []api.CPUInfo) statTable {
	t := statTable{heading: []string{"VCPU", "RIP", "SYMBOL+OFFSET", "SPACE"}}
	for _, c := range cpus {
		if c.RIP == 0 {
			continue
		}
		symbol := "-"
		if c.Symbol != "" {
			symbol = c.Symbol
		}
		t.rows = append(t.rows, []string{strconv.Itoa(c.CPU), fmt.Sprintf("%016x", uint64(c.RIP)), symbol, fmt.Sprintf("%#x", uint64(c.Space))})
	}
	return t
}

// noteLost prints a note that records are missing.
func noteLost(r *command.Run, rec api.Record, what string) {
	var l api.Lost
	if json.Unmarshal(rec.Data, &l) == nil {
		r.Note("%s lost here", command.Plural(l.Lost, what))
	}
}

// noteEnd prints a note with the reason of a stream's end, unless it is the usual one.
func noteEnd(r *command.Run, e api.End, usual string) {
	switch e.Reason {
	case usual, endInterrupted, endCount, endTimeout, endCutOff: // known to the user, or reported by the caller
	case api.EndGuestExit:
		if e.Code == nil { // of the guest of another VMM
			r.Note("The guest's VMM has ended.")
			return
		}
		r.Note("The guest has exited with code %d.", *e.Code)
	case api.EndGuestCrash:
		r.Note("The guest has crashed; 'guestprobe guest status' says how.")
	case api.EndShutdown:
		r.Note("The daemon is stopping.")
	case api.EndDetached:
		r.Note("The probes were detached.")
	case api.EndSlow:
		r.Note("The daemon has ended the stream: it was not read for guestprobed's --stall-timeout.")
	default:
		r.Note("The stream has ended: %s.", command.Clean(e.Reason))
	}
}

func (a *app) text() command.Spec {
	return command.Spec{
		Use:   "text",
		Short: "Compare the guest's text with its image",
		Long: `Compare every executable byte of the guest's memory with its image, and list the
differences: the sites that are armed (probe), and bytes with no known owner (other). The exit status is 1 if there are any.

A Linux kernel patches itself: these patches are part of the image. Its own kprobes are listed (guest), but are not differences.`,
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			t, err := c.Text(ctx)
			if err != nil {
				return err
			}
			if err := r.Show(t, func() error { return printText(r, t) }); err != nil || t.Identical {
				return err
			}
			return fmt.Errorf("the guest's text differs from its image in %s", command.Plural(countDiffering(t), "place"))
		}),
	}
}

func printText(r *command.Run, t api.Text) error {
	if err := r.Print("live   %s\nimage  %s\n", t.Live, t.Image); err != nil {
		return err
	}
	if t.Identical {
		if err := r.Print("%d bytes, identical\n", t.Bytes); err != nil || len(t.Ranges) == 0 {
			return err
		}
	}
	var rows [][]string
	for _, d := range t.Ranges {
		rows = append(rows, []string{d.Addr.String(), d.Symbol, d.Image, d.Live, d.By})
	}
	return r.Table([]string{"ADDRESS", "SYMBOL", "IMAGE", "LIVE", "BY"}, rows)
}

// countDiffering returns the number of differences from the image, except the guest's own kprobes.
func countDiffering(t api.Text) (n int) {
	for _, d := range t.Ranges {
		if d.By != api.TextGuest {
			n++
		}
	}
	return n
}
