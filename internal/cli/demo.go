package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

// What the demo shows.
const (
	demoVCPUs = 2
	demoTime  = 25 * time.Second // for everything but stopping the daemon
)

// demoProbe is one probe of the demo, and how many of its hits are shown.
type demoProbe struct {
	def   string
	post  bool
	shown int
}

// demoProbes are on functions of the built-in guest: one of its kernel, with
// the registers after the instruction too, and one of its user program.
var demoProbes = []demoProbe{
	{"p:read vfs_read fd=%di:s32 buf=%si count=%dx:u64", true, 7},
	{"p:checksum user_checksum data=%di len=%si:u64", false, 7},
}

func (a *app) demoCmd() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Boot a guest, probe it, show what happens, and put everything back",
		Long: `Start a guestprobed of its own on a temporary socket, boot the built-in guest with
2 vCPUs, attach a probe with a pre and a post handler to a kernel function and one
to a user function, show some 20 of their hits, detach, prove that the guest's text
is byte for byte what it was, and stop. It needs /dev/kvm and takes a few seconds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), demoTime, errDemoTime)
			defer cancel()
			return a.demo(ctx, verbose)
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the daemon's log")
	return cmd
}

var errDemoTime = fmt.Errorf("the demo did not finish in %v", demoTime)

func (a *app) demo(ctx context.Context, verbose bool) (err error) {
	start := time.Now()
	d, err := a.startDaemon(ctx, verbose, "--vcpus", fmt.Sprint(demoVCPUs))
	if err != nil {
		return err
	}
	defer func() {
		if serr := d.stop(); serr != nil {
			err = errors.Join(err, serr)
			return
		}
		if err == nil {
			a.step("stopped %s; all of it took %v", d.what, time.Since(start).Round(10*time.Millisecond))
		}
	}()
	c := client.New(d.socket)
	defer c.Close()
	g, err := c.Guest(ctx)
	if err != nil {
		return err
	}
	a.step("%s serves %s", d.what, d.socket)
	a.step("the %s guest is %s: %s, %d MiB, sha256 %.12s", g.Image, g.State, plural(g.VCPUs, "vCPU"), g.Memory>>20, g.SHA256)
	before, err := c.Text(ctx)
	if err != nil {
		return err
	}
	if err := a.demoTrace(ctx, c); err != nil {
		return err
	}
	return a.demoRestored(ctx, c, before)
}

// step tells what has been done. A demo's story is its data.
func (a *app) step(format string, args ...any) {
	fmt.Fprintln(a.env.Stdout, paint(a.colors(a.env.Stdout), sgrBold, "==> ")+clean(fmt.Sprintf(format, args...)))
}

// demoTrace attaches the probes for the time of a stream and shows hits.
func (a *app) demoTrace(ctx context.Context, c *client.Client) error {
	var specs []api.ProbeSpec
	shows := map[string]*demoShow{} // by the probe's name, until all of it was shown
	for _, p := range demoProbes {
		specs = append(specs, api.ProbeSpec{Def: p.def, Post: p.post, Stay: true})
	}
	s, err := c.Events(ctx, api.StreamEvents{Probes: specs})
	if err != nil {
		return err
	}
	defer s.Close()
	color, started := a.colors(a.env.Stdout), false
	for !started || len(shows) > 0 {
		r, err := s.Next()
		if err != nil {
			return err
		}
		switch r.Type {
		case api.RecordStart:
			var st api.Start
			if err := json.Unmarshal(r.Data, &st); err != nil {
				return err
			}
			for i, p := range st.Probes {
				what := "kernel"
				if p.User {
					what = "user"
				}
				stages := "a pre handler"
				if p.Post {
					stages = "a pre and a post handler"
				}
				a.step("attached %s with %s to %s code, %s: %s", p.Name, stages, what, place(p), p.Def)
				shows[p.Name] = &demoShow{left: demoProbes[i].shown, post: p.Post, open: map[int]bool{}}
			}
			started = true
		case api.RecordHit:
			var h api.Hit
			if err := json.Unmarshal(r.Data, &h); err != nil {
				return err
			}
			show := shows[h.Probe]
			if show == nil || !show.wants(h) {
				continue
			}
			h.Regs = someRegs(h)
			if _, err := fmt.Fprint(a.env.Stdout, hitLine(h, color)); err != nil {
				return err
			}
			if show.left == 0 && len(show.open) == 0 {
				delete(shows, h.Probe)
			}
		case api.RecordEnd:
			a.noteEnd(r, "")
			return errors.New("the stream ended before the demo did")
		}
	}
	return nil
}

// demoShow is what is still to be shown of one probe. A hit with a post handler
// is shown whole or not at all, also when two vCPUs are in one at a time.
type demoShow struct {
	left int // hits to begin with
	post bool
	open map[int]bool // by vCPU: the first record was shown, the second is due
}

// wants reports whether a record is to be shown.
func (d *demoShow) wants(h api.Hit) bool {
	if h.Stage == "post" {
		due := d.open[h.CPU]
		delete(d.open, h.CPU)
		return due
	}
	if d.left == 0 {
		return false
	}
	d.left--
	if d.post {
		d.open[h.CPU] = true
	}
	return true
}

// someRegs keeps the line readable: a post stage shows where the guest stands
// and its stack.
func someRegs(h api.Hit) map[string]api.Hex {
	if h.Stage != "post" {
		return nil
	}
	return map[string]api.Hex{"rip": h.Regs["rip"], "rsp": h.Regs["rsp"], "rax": h.Regs["rax"]}
}

// demoRestored detaches and proves that nothing is left.
func (a *app) demoRestored(ctx context.Context, c *client.Client, before api.Text) error {
	during, err := c.Text(ctx)
	if err != nil {
		return err
	}
	ps, err := c.DetachAll(ctx)
	if err != nil {
		return err
	}
	for _, p := range ps {
		a.step("detached %s: %s, %d missed", p.Name, plural(int(p.Stats.Hits), "hit"), p.Stats.Missed)
	}
	after, err := c.Text(ctx)
	if err != nil {
		return err
	}
	g, err := c.Guest(ctx)
	if err != nil {
		return err
	}
	switch {
	case during.Identical:
		return errors.New("the probes were never in the guest's text")
	case !after.Identical || after.Live != before.Live:
		return fmt.Errorf("the guest's text is not what it was: %s differ", plural(len(after.Ranges), "range"))
	case g.Checks != 0:
		return fmt.Errorf("the guest's self-check found %s", plural(int(g.Checks), "wrong result"))
	case g.State != "running":
		return fmt.Errorf("the guest is %s", g.State)
	}
	a.step("with the probes %s of the guest's text differed from its image; now all %d are what they were (sha256 %.12s)",
		plural(diffBytes(during), "byte"), after.Bytes, after.Live)
	a.step("the guest is running, and its self-check has found no wrong result")
	return nil
}

func diffBytes(t api.Text) int {
	n := 0
	for _, r := range t.Ranges {
		n += len(r.Live) / 2
	}
	return n
}
