package cli

import (
	"context"
	"encoding/json"
	"fmt"
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
	reset := action("reset", "Boot the guest anew, with its probes in place", func(ctx context.Context, c *remote.Client) (api.Guest, error) {
		if to != "" {
			return resetTo(ctx, c, to, paused)
		}
		return c.Reset(ctx, api.ResetGuest{Paused: paused})
	})
	reset.Files = []string{"to"}
	reset.Flags = func(f *pflag.FlagSet) {
		f.BoolVar(&paused, "paused", false, "stop before the first instruction, or where the snapshot was taken")
		f.StringVar(&to, "to", "", "make the guest what it was when 'guest save' wrote this `file`, with the probes of now")
	}
	vcpu := -1
	resume := action("resume", "Let the guest run, and vCPUs that are stopped", nil)
	resume.Run = show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Guest, error) {
		if r.Given("vcpu") {
			return c.ResumeVCPU(ctx, vcpu)
		}
		return c.Resume(ctx)
	}, printGuest)
	resume.Flags = func(f *pflag.FlagSet) { f.IntVar(&vcpu, "vcpu", -1, "let this `VCPU` go on only, which is stopped") }
	return command.Spec{
		Use:   "guest",
		Short: "Show and control the guest",
		Sub: []command.Spec{
			action("status", "Show the guest's state", func(ctx context.Context, c *remote.Client) (api.Guest, error) { return c.Guest(ctx) }),
			action("pause", "Take every vCPU out of guest mode", func(ctx context.Context, c *remote.Client) (api.Guest, error) { return c.Pause(ctx) }),
			resume,
			reset, a.save(), a.console(), a.text(),
		},
	}
}

// confirmed says how the guest confirms where its kernel is.
func confirmed(by []string) string {
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
	if k := g.Kernel; k != nil {
		rows = append(rows, []string{"kernel", "Linux " + k.Version}, []string{"system", k.System},
			[]string{"slide", fmt.Sprintf("%#x%s", uint64(k.Slide), confirmed(k.Checked))})
		if k.System == "panicked" {
			rows[0][1] += ", but its kernel has panicked"
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
	for _, t := range []statTable{exitsTable(g.CPUs), standingTable(g.CPUs)} {
		if err := t.below(r); err != nil {
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

// jailText says how the daemon is confined.
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

// standingTable has where the vCPUs stand that are not running, and in which
// address space: what --space of attach takes.
func standingTable(cpus []api.CPUInfo) statTable {
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

// noteLost remarks that records are missing.
func noteLost(r *command.Run, rec api.Record, what string) {
	var l api.Lost
	if json.Unmarshal(rec.Data, &l) == nil {
		r.Note("%s lost here", command.Plural(l.Lost, what))
	}
}

// noteEnd remarks why a stream has ended, unless that is the usual reason.
func noteEnd(r *command.Run, e api.End, usual string) {
	switch e.Reason {
	case usual, endInterrupted, endCount, endTimeout, endCutOff: // the user knows, or is told
	case api.EndGuestExit:
		code := int64(0)
		if e.Code != nil {
			code = *e.Code
		}
		r.Note("The guest has exited with code %d.", code)
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
		Long: `Compare every executable byte of the guest's memory with its image, and list what
differs: the sites that are armed (probe), and what has no known owner (other). The exit status is 1 when anything does.

A Linux kernel patches itself; the image is what it has patched, and its own kprobes are listed (guest), but are no difference.`,
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			t, err := c.Text(ctx)
			if err != nil {
				return err
			}
			if err := r.Show(t, func() error { return printText(r, t) }); err != nil || t.Identical {
				return err
			}
			return fmt.Errorf("the guest's text differs from its image in %s", command.Plural(differing(t), "place"))
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

// differing returns how many of the places are not the guest's own.
func differing(t api.Text) (n int) {
	for _, d := range t.Ranges {
		if d.By != api.TextGuest {
			n++
		}
	}
	return n
}
