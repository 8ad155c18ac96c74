package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// probeFlags are the flags of every command that attaches probes.
type probeFlags struct {
	post, regs, stack, disabled, emulate bool
	space                                string
	args, mirrorStack                    int
	mirror, mirrorEnd                    string
	filter, stop                         string
	onHost, strict, atRets               bool
	files                                []string
	override                             overrideFlags

	noted sync.Once // the flags that do not apply to some of the definitions, which are the same for all daemons
}

func (p *probeFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.post, "post", false, "report the registers after the probed instruction too")
	f.BoolVar(&p.regs, "regs", false, "report the registers with every hit")
	f.BoolVar(&p.stack, "stack", false, "report with every hit where the guest stands and its callers, with their source where --debug of guestprobed has it")
	f.StringVar(&p.space, "space", "any", "hits in this address space only: `CR3`, or any")
	f.BoolVar(&p.emulate, "emulate", false, "serve watches by protecting their page: for hosts without watchpoints")
	f.IntVar(&p.args, "args", 0, "at a function's entry: a jprobe, with the first `N` arguments in its events")
	f.StringVar(&p.mirror, "mirror", "", "at a function's entry: a jprobe that runs this `FUNCTION` of the guest first")
	f.IntVar(&p.mirrorStack, "mirror-stack", 0, "put back so many `bytes` of stack behind the mirror (default 64)")
	f.StringVar(&p.mirrorEnd, "mirror-end", "", "the `FUNCTION` that mirrors end in (default jprobe_return)")
	f.StringVar(&p.filter, "filter", "", "hits for which this `EXPRESSION` is true only, as 'count > 100 && name ~ \"/etc/*\"'")
	fileFlag(f, &p.files)
	f.StringVar(&p.stop, "stop", "", "stop the vCPU at each hit that passes the filter, or all of them: `WHAT` is "+api.StopVCPU+" (also without it) or "+api.StopAll)
	f.Lookup("stop").NoOptDefVal = api.StopVCPU
	f.BoolVar(&p.onHost, "on-host", false, "serve hits at an exit, although the guest could without one")
	f.BoolVar(&p.strict, "strict", false, "refuse a pattern for a place when a function that matches cannot be probed, instead of leaving it out")
	f.BoolVar(&p.atRets, "at-rets", false, "returns by probes at the function's ret instructions, with the return address left alone")
	f.BoolVar(&p.disabled, "disabled", false, "attach without arming")
	p.override.add(f)
}

// spaceValue returns what --space says, 0 for any.
func (p *probeFlags) spaceValue() (space api.Hex, err error) {
	if p.space != "any" {
		if err := space.UnmarshalText([]byte(p.space)); err != nil || space == 0 {
			return 0, command.Usagef("--space %q: want the value of CR3, as 0x1000000, or any", p.space)
		}
	}
	return space, nil
}

// specs returns what the flags ask for of each definition.
func (p *probeFlags) specs(r *command.Run, defs []string, stay bool) ([]api.ProbeSpec, error) {
	space, err := p.spaceValue()
	if err != nil {
		return nil, err
	}
	if p.stop != "" && p.stop != api.StopVCPU && p.stop != api.StopAll {
		return nil, command.Usagef("--stop %q: not %s or %s", p.stop, api.StopVCPU, api.StopAll)
	}
	override, err := p.override.override()
	if err != nil {
		return nil, err
	}
	specs := make([]api.ProbeSpec, len(defs))
	for i, d := range defs {
		specs[i] = api.ProbeSpec{
			Def: d, Post: p.post, Regs: p.regs, Stack: p.stack, Disabled: p.disabled, Space: space, Emulate: p.emulate, Stay: stay,
			Args: p.args, Mirror: p.mirror, MirrorEnd: p.mirrorEnd, MirrorStack: p.mirrorStack,
			Filter: p.filter, Stop: p.stop, OnHost: p.onHost, Strict: p.strict, AtRets: p.atRets,
			Override: override, Unsafe: p.override.unsafe,
		}
	}
	p.leaveOut(r, specs)
	return specs, nil
}

// leaveOut takes options from the definitions whose kind does not have them, where definitions of another kind do, and
// says so once. Where none of the definitions has an option the daemon refuses it.
func (p *probeFlags) leaveOut(r *command.Run, specs []api.ProbeSpec) {
	kinds := map[string]bool{}
	for _, s := range specs {
		kinds[api.KindOf(s.Def)] = true
	}
	var notes []string
	for i := range api.KindOptions {
		o := &api.KindOptions[i]
		without := 0
		for kind := range kinds {
			if !o.Has(kind) {
				without++
			}
		}
		if without == 0 || without == len(kinds) {
			continue
		}
		for j := range specs {
			s := &specs[j]
			kind := api.KindOf(s.Def)
			if !o.Given(s) || o.Has(kind) {
				continue
			}
			if o.Clear(s); kind != "" {
				notes = append(notes, fmt.Sprintf("--%s does not apply to %q: %s.", o.Flag, command.Clean(s.Def), o.Refusal(kind).Message))
			}
		}
	}
	p.noted.Do(func() {
		for i, n := range notes {
			if i == maxSkipped {
				r.Note("%d more flags do not apply to a definition.", len(notes)-i)
				break
			}
			r.Note("%s", n)
		}
	})
}

// letter returns the letter of a definition's kind, 0 for none.
func letter(def string) byte {
	if def = strings.TrimSpace(def); def == "" {
		return 0
	}
	return def[0]
}

func (a *app) attach() command.Spec {
	var probes probeFlags
	var prog programFlags
	var keep string
	check := func(r *command.Run) error {
		if len(r.Args) == 0 && prog.file == "" {
			return command.Usagef("say what to probe: DEFINITION...")
		}
		return prog.check(&probes, r.Args)
	}
	attach := func(ctx context.Context, r *command.Run, c *remote.Client) (list api.ProbeList, err error) {
		if prog.file != "" {
			list.Probes, err = prog.attach(ctx, c, &probes)
		} else if list, err = probes.attach(ctx, r, c, r.Args); err != nil {
			err = inDefinition(err, r.Args)
		}
		return list, err
	}
	return command.Spec{
		Use:   "attach [flags] DEFINITION... | attach --program FILE.o",
		Short: "Attach probes, all or none",
		Long: `Attach probes to the guest. Each argument is one command in the language of the
kernel's kprobe_events, a definition or a deletion. Either all of them are carried out,
in their order, or none; the error points at the column that is wrong. The probes stay
until they are detached or the daemon ends.

  p:myread vfs_read fd=%di count=%dx:u64   a name, registers, a type
  p do_fork+4                              4 bytes into a function
  p:first vfs_read $arg1 byte=+0($arg2):u8 arguments, memory behind one
  r:back vfs_read got=$retval:s64          a function's return, with its result
  r20:back vfs_read fd=$arg1 got=$retval   at most 20 calls at a time; an argument
  w:total rw@user_hot_calls+8:8            a watch: r, w, rw or x, at an address
                                           or a symbol, of 1, 2, 4 or 8 bytes
  p dummy:dummy_xmit                       a function of a module, whenever that is
                                           loaded
  p vfs_*                                  every function that matches, each with an
  r:io/* vfs_* $retval                     event of its own, * in whose name is the
                                           function's; with one EVENT all of one event
  -:myread                                 detaches the probes of an event
  -:io/                                    and those of a group

Definitions of one GROUP/EVENT are several probes of that event: of one kind, with the
same arguments, at different places. Functions of a pattern that cannot be probed are left
out, which is told, or refused with --strict.

An r definition replaces the return address on the stack while a call is under way, but in
programs of a Linux guest, where it probes what the function is left by.
Where a function, or a guest that walks its stacks, must not see that, --at-rets puts
probes of one event at each ret of the function and each jump to another function
(there $retval is not known yet). They have the registers from before that
instruction, no $argN, and no limit of calls. A function whose code does not show all
its exits is refused.

With --args or --mirror a p definition at a function's entry is a jprobe: its
events have the function's arguments by the System V ABI, from registers and stack,
or a function of the guest with the same arguments runs before it, and ends in
jprobe_return. Such functions of the built-in guest are jdo_fork, jvfs_read,
jtcp_v4_rcv and jmany_args, for the functions whose names they end in.

With --fleet and --keep NAME the fleet's servers keep the definitions: daemons that --where chooses attach
them, those that come later as well, and 'guestprobe detach NAME' takes them back.

Watches are served by the guest's debug registers, of which there are four. On a
host that does not deliver them they are refused, unless --emulate is given: then
the page is protected, each access to it costs an exit, and the answer says so.

--override N has functions return N without running, as the kernel's fault injection
does; N may be an error, as -ENOMEM. Of the hits that --filter lets pass, --after leaves
the first alone, --interval takes each so manyth, --probability chooses some percent of
these, and --times is the limit, which is exact whatever vCPUs the hits come from. Each
probe of a pattern counts for itself. The answer has the seed, with which --seed chooses
the same hits again, by their numbers. This changes what the guest does, and so needs
--unsafe; it takes an exit for each hit. 'guestprobe list' says how often it was done.

--filter is an expression over the values of each definition, in the language of the
kernel's event filters: == != < <= > >= & for numbers, == != ~ (with * ? [a-z]) for
text, && || ! and parentheses. A hit for which it is false counts as filtered. Besides
its values there are cpu, common_pid, comm, common_flags and common_preempt_count.

--program attaches the eBPF programs of an object file of clang's: those in
sections kprobe/FUNCTION and kretprobe/FUNCTION, or in one --section. --at attaches the
program of that to another function, --set sets a 'const volatile' global. They run in the
guest, without an exit, where the site can be optimized and the program needs nothing of
the host; otherwise, and with --on-host, at an exit. The answer says where and why.
Definitions are treated alike. What certainly is a mistake in a program (a map's value that
is used without a check for 0, a register or stack that is read before anything is written
there, an access outside of what it is to, code that is never executed) is a warning, with
--strict an error. 'guestprobe map dump' shows what programs have counted.`,
		Example: `  guestprobe attach 'p:myread vfs_read fd=%di count=%dx:u64' 'p do_fork+4'
  guestprobe attach --filter 'count > 100 && fd == 3' 'p:big vfs_read fd=%di count=%dx:u64'
  guestprobe attach --program count.o
  guestprobe attach --post 'p:fork do_fork'
  guestprobe attach --args 8 'p:many many_args'
  guestprobe attach --mirror jdo_fork --mirror-stack 16 'p do_fork'
  guestprobe attach --unsafe --override -EINTR --probability 10 --times 5 'p:fail vfs_read'`,
		Args:  func([]string) error { return nil },
		Files: []string{"program", "file"},
		Flags: func(f *pflag.FlagSet) {
			probes.add(f)
			f.StringVar(&keep, "keep", "", "leave the definitions to --fleet by this `NAME`: daemons that come later attach them as well, until 'guestprobe detach NAME'")
			f.StringVar(&prog.file, "program", "", "attach the eBPF programs of this object `FILE`")
			f.StringVar(&prog.at, "at", "", "attach the only program to this `FUNCTION`, with +OFFSET for a kprobe, instead of what its section says; or NAME=FUNCTION,... for what sections name")
			f.BoolVar(&prog.skip, "skip-missing", false, "leave out programs at functions that the guest does not have; the daemon's log names them")
			f.StringArrayVar(&prog.set, "set", nil, "set a constant of the object, `NAME=VALUE`; may be repeated")
			f.Lookup("strict").Usage += "; or a program in which a mistake is found, instead of warning of it"
			f.StringVar(&prog.section, "section", "", "of the object file only the programs in this `SECTION`, as kprobe/vfs_read, or these: names and patterns with commas between")
		},
		Run: a.orKeep(&keep, &probes, a.askAll(func(ctx context.Context, r *command.Run, m *members) error {
			if err := check(r); err != nil {
				return err
			}
			return each(ctx, r, m, func(ctx context.Context, c *remote.Client) (api.ProbeList, error) { return attach(ctx, r, c) },
				func(o answersOf[api.ProbeList]) error { return printAttached(r, probesOf{o}) })
		})),
	}
}

// attach carries out commands; the probes stay.
func (p *probeFlags) attach(ctx context.Context, r *command.Run, c *remote.Client, defs []string) (api.ProbeList, error) {
	specs, err := p.specs(r, defs, true)
	if err == nil {
		err = giveFiles(ctx, r, c, p.files)
	}
	if err != nil {
		return api.ProbeList{}, err
	}
	return c.Apply(ctx, specs...)
}

// printAttached prints what a list of commands has done.
func printAttached(r *command.Run, o probesOf) error {
	if ps, _ := o.probes(); len(ps) > 0 || !o.alone || r.WantsJSON() {
		if err := o.print(r, nil); err != nil || r.WantsJSON() {
			return err
		}
	}
	for _, a := range o.Daemons {
		switch {
		case a.Answer == nil:
		case o.alone:
			noteAttached(r, *a.Answer)
		default:
			for _, p := range a.Answer.Detached {
				r.Note("%s: detached %s at %s, with %s.", command.Line(a.Daemon), command.Line(p.Name), place(p), command.Plural(p.Stats.Hits, "hit"))
			}
			if n := len(a.Answer.Skipped); n > 0 {
				r.Note("%s: skipped %s; --format json has them.", command.Line(a.Daemon), command.Plural(n, "function"))
			}
		}
	}
	return nil
}

// noteAttached says what a list of commands has done besides what the table of probes has.
func noteAttached(r *command.Run, list api.ProbeList) {
	for _, p := range list.Detached {
		r.Note("Detached %s at %s, with %s.", command.Clean(p.Name), place(p), command.Plural(p.Stats.Hits, "hit"))
	}
	noteSkipped(r, list.Skipped)
	if len(list.Probes)+len(list.Detached)+len(list.Skipped) == 0 {
		r.Note("There was nothing to do: blank lines and comments only.")
	}
	noteRuns(r, list.Probes)
	notePending(r, list.Probes)
	noteParts(r, list.Probes)
	noteOverrides(r, list.Probes)
	for _, p := range list.Probes {
		if p.Cost != "" {
			r.Note("%s costs %s.", command.Clean(p.Name), p.Cost)
		}
	}
}

// noteParts names the functions that the compiler has made of a probed one, if callers call them in its place. Cold
// parts alone are no reason for a note: the function itself leads there.
func noteParts(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		isCold := func(part string) bool { return strings.HasPrefix(strings.TrimPrefix(part, p.Symbol+"."), "cold") }
		if !slices.ContainsFunc(p.Parts, func(part string) bool { return !isCold(part) }) {
			continue
		}
		r.Note("%s: part of %s runs as %s: calls that begin there do not hit this probe. Probe these functions too.", command.Clean(p.Name), command.Clean(p.Symbol), command.Clean(strings.Join(p.Parts, ", ")))
	}
}

// inDefinition says which of several definitions an error is about, where the
// error itself does not show it.
func inDefinition(err error, defs []string) error {
	var wire *api.Error
	if !errors.As(err, &wire) || wire.Index == nil || *wire.Index >= len(defs) || wire.Column != nil {
		return err
	}
	return fmt.Errorf("%q: %w", defs[*wire.Index], err)
}

// maxSkipped bounds how many functions are told that a pattern has left out.
const maxSkipped = 10

// noteSkipped tells what patterns for places have left out.
func noteSkipped(r *command.Run, skipped []api.Skipped) {
	for i, s := range skipped {
		if i == maxSkipped {
			r.Note("Skipped %d more; --format json has them all.", len(skipped)-i)
			return
		}
		r.Note("Skipped %s: %s", command.Clean(s.Def), command.Clean(s.Error.Error()))
	}
}
