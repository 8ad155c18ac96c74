package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Parameters of the demo.
const (
	demoVCPUs = 2
	demoTime  = 2 * time.Minute // for everything except stopping the daemon; two seconds on an idle machine
)

// demoProbe is one probe of the demo, and how many of its hits to show.
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

func demoCommand() command.Spec {
	var verbose bool
	return command.Spec{
		Local: true,
		Use:   "demo",
		Short: "Boot a guest, probe it, show what happens, and put everything back",
		Long: `Start a guestprobed of its own on a temporary socket, boot the built-in guest with
2 vCPUs, attach a probe with a pre and a post handler to a kernel function and one
to a user function, show some 20 of their hits, detach, prove that the guest's text
is byte for byte what it was, and stop. It needs /dev/kvm and takes a few seconds.`,
		Plain: true,
		Flags: func(f *pflag.FlagSet) { f.BoolVarP(&verbose, "verbose", "v", false, "show the daemon's log") },
		Run: func(ctx context.Context, r *command.Run) error {
			ctx, cancel := context.WithTimeout(ctx, demoTime)
			defer cancel()
			d := &demo{Run: r, doing: "starting a daemon"}
			err := d.run(ctx, verbose)
			if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("the demo did not finish in %v: it was %s (%w)", demoTime, d.doing, err)
			}
			return err
		},
	}
}

// demo is one run of the demo.
type demo struct {
	*command.Run
	doing string // the current step
}

func (d *demo) run(ctx context.Context, verbose bool) (err error) {
	start := time.Now()
	own, err := startDaemon(ctx, d.Run, verbose, "--vcpus", fmt.Sprint(demoVCPUs))
	if err != nil {
		return err
	}
	defer func() {
		if serr := own.stop(); serr != nil {
			err = errors.Join(err, serr)
			return
		}
		if err == nil {
			d.step("stopped %s; all of it took %v", own.what, time.Since(start).Round(10*time.Millisecond))
		}
	}()
	c := remote.New(own.socket)
	defer c.Close()
	g, err := c.Guest(ctx)
	if err != nil {
		return err
	}
	d.step("%s serves %s", own.what, own.socket)
	d.step("the %s guest is %s: %s, %d MiB, sha256 %.12s", g.Image, g.State, command.Plural(g.VCPUs, "vCPU"), g.Memory>>20, g.SHA256)
	d.doing = "reading the guest's text"
	before, err := c.Text(ctx)
	if err != nil {
		return err
	}
	d.doing = "waiting for hits"
	during, err := d.trace(ctx, c)
	if err != nil {
		return err
	}
	return d.checkRestored(ctx, c, before, during)
}

// step prints a step of the demo to standard output: the steps are its result.
func (d *demo) step(format string, args ...any) {
	fmt.Fprintln(d.Stdout, command.Paint(d.Colors(d.Stdout), command.Bold, "==> ")+command.Clean(fmt.Sprintf(format, args...)))
}

// trace attaches the probes, shows hits, and detaches the probes when the stream ends. It returns the guest's code
// with the probes in place.
func (d *demo) trace(ctx context.Context, c *remote.Client) (during api.Text, err error) {
	var specs []api.ProbeSpec
	shows := map[string]*demoShow{} // by the probe's name, removed when all its hits were shown
	for _, p := range demoProbes {
		specs = append(specs, api.ProbeSpec{Def: p.def, Post: p.post})
	}
	s, err := c.Events(ctx, api.StreamEvents{Probes: specs})
	if err != nil {
		return during, err
	}
	defer s.Close()
	lines, err := timeline.NewLines("", d.Colors(d.Stdout))
	if err != nil {
		return during, err
	}
	stream := uint64(0)
	shown, done := uint64(0), false
	for {
		r, err := s.Next()
		if err != nil {
			return during, err
		}
		switch r.Type {
		case api.RecordStart:
			st, err := data[api.Start](r)
			if err != nil {
				return during, err
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
				d.step("attached %s with %s to %s code, %s: %s", p.Name, stages, what, place(p), p.Def)
				shows[p.Name] = &demoShow{left: demoProbes[i].shown, post: p.Post, open: map[int]bool{}}
			}
			stream = st.Stream
			lines.Start(st)
			if err := d.Print("%s", timeline.Header); err != nil {
				return during, err
			}
		case api.RecordHit:
			h, err := data[api.Hit](r)
			if err != nil {
				return during, err
			}
			show := shows[h.Probe]
			if show == nil || !show.wants(h) {
				continue
			}
			h.Regs = selectRegs(h)
			if err := d.Print("%s", lines.Line(h)); err != nil {
				return during, err
			}
			shown++
			if show.left == 0 && len(show.open) == 0 {
				delete(shows, h.Probe)
			}
			if len(shows) > 0 || done {
				continue
			}
			done = true
			d.doing = "reading the guest's text with the probes in it"
			if during, err = c.Text(ctx); err != nil {
				return during, err
			}
			d.doing = "detaching the probes"
			if err := c.EndStream(ctx, stream); err != nil {
				return during, err
			}
		case api.RecordEnd:
			end, err := data[api.End](r)
			if err != nil {
				return during, err
			}
			noteEnd(d.Run, end, api.EndAsked)
			if end.Reason != api.EndAsked {
				return during, errors.New("the stream ended before the demo did")
			}
			end.Unshown = end.Delivered - shown
			_, err = io.WriteString(d.Stdout, timeline.Totals(end))
			return during, err
		}
	}
}

// demoShow counts the hits still to show of one probe. Both records of a hit with a post handler are
// shown, or neither, even when two vCPUs handle hits at the same time.
type demoShow struct {
	left int // hits whose first record is still to be shown
	post bool
	open map[int]bool // by vCPU: the first record was shown, the second must follow
}

// wants reports whether to show a record.
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

// selectRegs keeps the line readable: for the post stage it selects the instruction pointer,
// the stack pointer and the result.
func selectRegs(h api.Hit) map[string]api.Hex {
	if h.Stage != "post" {
		return nil
	}
	return map[string]api.Hex{"rip": h.Regs["rip"], "rsp": h.Regs["rsp"], "rax": h.Regs["rax"]}
}

// checkRestored verifies that the guest's code is as it was before the probes.
func (d *demo) checkRestored(ctx context.Context, c *remote.Client, before, during api.Text) error {
	d.doing = "comparing the guest's text"
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
		return fmt.Errorf("the guest's text is not what it was: %s differ", command.Plural(len(after.Ranges), "range"))
	case g.Checks != 0:
		return fmt.Errorf("the guest's self-check found %s", command.Plural(g.Checks, "wrong result"))
	case g.State != "running":
		return fmt.Errorf("the guest is %s", g.State)
	}
	d.step("%s of the guest's text differed from its image while the probes were attached; now all %d match again (sha256 %.12s)",
		command.Plural(diffBytes(during), "byte"), after.Bytes, after.Live)
	d.step("the guest is running, and its self-check has found no wrong result")
	return nil
}

func diffBytes(t api.Text) int {
	n := 0
	for _, r := range t.Ranges {
		n += len(r.Live) / 2
	}
	return n
}
