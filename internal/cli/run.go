package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
)

// maxScript bounds a script, in bytes, as the daemon does.
const maxScript = 1 << 20

func (a *app) run() command.Spec {
	var req api.RunScript
	var output string
	var verbose, list bool
	var every time.Duration
	return command.Spec{
		Use:   "run [flags] {-e SCRIPT | FILE | -l [PATTERN]} [ARG...]",
		Short: "Run a script in bpftrace's language",
		Long: `Run a script in bpftrace's language at the guest: probes, conditions, variables, maps and
their aggregations, printf. What it prints goes to standard output, as bpftrace prints it;
remarks and warnings go to standard error. docs/scripts.md has the language, and what of
bpftrace's is not there. FILE - is standard input; each ARG is $1 and so on in the script.

Scripts are compiled to eBPF programs, which run in the guest, without an exit, where the
probe's site and the script allow it; otherwise on the host. -v says of each probe where it
runs, and if on the host why.

A script ends with Ctrl-C, when it calls exit(), when the guest ends or somebody detaches
its probes, or, if it has only BEGIN and END, by itself. Then its probes stop, END runs, and
all maps are printed. A second Ctrl-C does not wait for anything.

With --format json each line is an object as bpftrace -f json prints.

--detach NAME leaves the script running in the daemon. 'guestprobe scripts' lists such
scripts, 'guestprobe script NAME' shows one and its maps, and 'guestprobe stop NAME' ends it
and prints what it prints at its end. NAME is a letter or _, then letters, digits and _ . -.

--interval prints all maps and clears them, as print(@m); clear(@m) in an interval do, with
an empty line behind each time.

-l lists where a script may have probes: all functions of the guest that can be probed, or
those that a pattern as 'kprobe:vfs_*' matches, and -lv with each the types and names of its
parameters, and of what it returns, where the guest's image says so (BTF, DWARF).`,
		Example: `  guestprobe run -e 'kprobe:vfs_read { @[arg2] = count(); } interval:s:1 { exit(); }'
  guestprobe run -v -e 'kprobe:vfs_* { @[func] = hist(arg2); } interval:s:1 { exit(); }'
  guestprobe run latency.bt 1
  guestprobe run --interval 1s -e 'kprobe:vfs_* { @[func] = count(); }'
  guestprobe run --detach reads -e 'kprobe:vfs_read { @ = hist(arg2); }'
  guestprobe run -lv 'kprobe:vfs_*'`,
		Args: command.Between(0, -1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.StringVarP(&req.Script, "execute", "e", "", "run this `SCRIPT`")
			f.BoolVarP(&verbose, "verbose", "v", false, "say of each probe where it runs, and why")
			f.BoolVarP(&list, "list", "l", false, "list where probes may be; with -v also the types of arguments")
			f.BoolVar(&req.OnHost, "on-host", false, "run at an exit, although the programs could run in the guest")
			f.BoolVar(&req.Emulate, "emulate", false, "watchpoints protect pages: every access to these costs an exit")
			f.StringVar(&req.Detach, "detach", "", "leave the script running in the daemon, by this `NAME`")
			f.DurationVar(&every, "interval", 0, "print all maps and clear them, so often")
			f.StringVarP(&output, "output", "o", "", "write to this `file` instead of standard output")
		},
		Complete: a.completePlaces(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) (err error) {
			if list {
				if r.Given("execute") || r.Given("output") || r.Given("detach") || len(r.Args) > 1 {
					return command.Usagef("-l takes a pattern, and nothing to run")
				}
				return listPlaces(ctx, r, c, strings.Join(r.Args, ""), verbose)
			}
			if req.Args = r.Args; !r.Given("execute") {
				if len(r.Args) == 0 {
					return command.Usagef("say what to run: -e SCRIPT, or FILE")
				}
				if req.Script, err = readScript(r, r.Args[0]); err != nil {
					return err
				}
				req.Name, req.Args = r.Args[0], r.Args[1:]
			}
			if req.Format = api.ScriptText; r.WantsJSON() {
				req.Format = api.ScriptJSON
			}
			if r.Given("interval") && every < time.Millisecond {
				return command.Usagef("--interval %v: shorter than 1ms", every)
			}
			req.IntervalMS = uint64(every.Milliseconds())
			if r.Given("detach") {
				if output != "" || req.Detach == "" {
					return command.Usagef("--detach takes a name, and no --output: 'guestprobe stop NAME' prints what there is")
				}
				return detachScript(ctx, r, c, req)
			}
			out := r.Stdout
			if output != "" {
				f, err := os.Create(output)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				out = f
			}
			return printScript(ctx, r, c, out, func(life context.Context) (*client.Stream, error) { return c.RunScript(life, req) }, func(s api.Start) {
				r.Note("Attached %s", command.Plural(s.Attached, "probe"))
				if verbose {
					notePlaces(r, s.Probes)
				}
			})
		}),
	}
}

// missedHits says of each probe of a script how many hits its program did not run on.
func missedHits(end api.End) (texts []string) {
	for _, p := range end.Probes {
		if n := p.Stats.Missed; n > 0 {
			texts = append(texts, fmt.Sprintf("%s missed %s of %d", place(p), command.Plural(int(n), "hit"), p.Stats.Hits))
		}
	}
	return texts
}

// readScript reads the file of a script.
func readScript(r *command.Run, path string) (string, error) {
	in := r.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxScript+1))
	if err == nil && len(b) > maxScript {
		err = fmt.Errorf("%s: a script of more than %d bytes", path, maxScript)
	}
	return string(b), err
}

// notePlaces says of each probe where it runs.
func notePlaces(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		where := "in the guest"
		if p.Runs != api.RunsInGuest {
			where = "on the host: " + p.OnHost
		}
		r.Note("%s runs %s", command.Clean(place(p)), command.Clean(where))
	}
}

// printScript prints what the stream of a script brings until its end, which Ctrl-C asks
// for.
func printScript(ctx context.Context, r *command.Run, c *client.Client, out io.Writer, open func(context.Context) (*client.Stream, error), began func(api.Start)) error {
	start := func(_ api.Record, s api.Start) error {
		began(s)
		return nil
	}
	end, err := follow(ctx, ctx, c, open, start, func(rec api.Record) error {
		switch rec.Type {
		case api.RecordOutput:
			o, err := data[api.Output](rec)
			if err != nil {
				return err
			}
			if o.Bytes == nil {
				o.Bytes = []byte(o.Text)
			}
			_, err = out.Write(o.Bytes)
			return err
		case api.RecordWarning:
			w, err := data[api.Warning](rec)
			r.Note("%s", command.Clean(w.Text))
			return err
		case api.RecordLost:
			l, err := data[api.Lost](rec)
			r.Note("Lost %d events", l.Lost)
			return err
		}
		return nil
	})
	for _, text := range missedHits(end) {
		r.Note("%s", command.Clean(text))
	}
	switch {
	case err != nil:
		return err
	case end.Reason == endCutOff:
		return client.ErrCutOff
	case end.Reason == api.EndExit && end.Code != nil && *end.Code != 0:
		return command.Status(*end.Code & 0xff)
	}
	if end.Reason != api.EndExit && end.Reason != api.EndAsked {
		noteEnd(r, end, "")
	}
	return nil
}
