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
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
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

	noted sync.Once // prints the note about ignored flags only once: it is the same for all daemons
}

func (p *probeFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.post, "post", false, "report the registers after the probed instruction too")
	f.BoolVar(&p.regs, "regs", false, "report the registers with every hit")
	f.BoolVar(&p.stack, "stack", false, "report the backtrace with every hit, with source lines where --debug of guestprobed has them")
	f.StringVar(&p.space, "space", "any", "only hits in this address space: `CR3`, or any")
	f.BoolVar(&p.emulate, "emulate", false, "serve watches by protecting their page: for hosts without watchpoints")
	f.IntVar(&p.args, "args", 0, "at a function's entry: a jprobe, with the first `N` arguments in its events")
	f.StringVar(&p.mirror, "mirror", "", "at a function's entry: a jprobe that runs this `FUNCTION` of the guest first")
	f.IntVar(&p.mirrorStack, "mirror-stack", 0, "restore this many `bytes` of stack after the mirror (default 64)")
	f.StringVar(&p.mirrorEnd, "mirror-end", "", "the `FUNCTION` that mirrors end in (default jprobe_return)")
	command.OnceVar(f, &p.filter, "filter", "only hits for which this `EXPRESSION` is true, such as 'count > 100 && name ~ \"/etc/*\"'")
	fileFlag(f, &p.files)
	f.StringVar(&p.stop, "stop", "", "stop the vCPU at each hit that passes the filter, or all vCPUs: `WHICH`, "+api.StopVCPU+" (the default) or "+api.StopAll)
	f.Lookup("stop").NoOptDefVal = api.StopVCPU
	f.BoolVar(&p.onHost, "on-host", false, "handle hits on the host, with a VM exit, even if the guest could handle them")
	f.BoolVar(&p.strict, "strict", false, "reject a pattern if a matching function cannot be probed, instead of leaving the function out")
	f.BoolVar(&p.atRets, "at-rets", false, "probe returns at the function's ret instructions, without changing the return address")
	f.BoolVar(&p.disabled, "disabled", false, "attach without arming")
	p.override.add(f)
}

// spaceValue returns the value of --space, or 0 for any address space.
func (p *probeFlags) spaceValue() (space api.Hex, err error) {
	if p.space != "any" {
		if err := space.UnmarshalText([]byte(p.space)); err != nil || space == 0 {
			return 0, command.Usagef("--space %q: want the value of CR3, as 0x1000000, or any", p.space)
		}
	}
	return space, nil
}

// specs returns the request for each definition, with the flags applied.
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
	if err := checkQuoted(defs); err != nil {
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

// kindFlags are the flags for session.KindOptions, by the options' names.
var kindFlags = map[string]struct {
	name  string
	given func(*api.ProbeSpec) bool
	clear func(*api.ProbeSpec)
}{
	"args":     {"args", func(s *api.ProbeSpec) bool { return s.Args != 0 }, func(s *api.ProbeSpec) { s.Args = 0 }},
	"mirror":   {"mirror", func(s *api.ProbeSpec) bool { return s.Mirror != "" }, func(s *api.ProbeSpec) { s.Mirror, s.MirrorEnd, s.MirrorStack = "", "", 0 }},
	"override": {"override", func(s *api.ProbeSpec) bool { return s.Override != nil }, func(s *api.ProbeSpec) { s.Override, s.Unsafe = nil, false }},
	"post":     {"post", func(s *api.ProbeSpec) bool { return s.Post }, func(s *api.ProbeSpec) { s.Post = false }},
	"space":    {"space", func(s *api.ProbeSpec) bool { return s.Space != 0 }, func(s *api.ProbeSpec) { s.Space = 0 }},
	"atRets":   {"at-rets", func(s *api.ProbeSpec) bool { return s.AtRets }, func(s *api.ProbeSpec) { s.AtRets = false }},
	"emulate":  {"emulate", func(s *api.ProbeSpec) bool { return s.Emulate }, func(s *api.ProbeSpec) { s.Emulate = false }},
}

// leaveOut clears options for definitions whose kind does not support them, if another kind among the definitions
// does, and notes that once. An option that no definition supports stays set, and the daemon rejects it.
func (p *probeFlags) leaveOut(r *command.Run, specs []api.ProbeSpec) {
	kinds, of := map[event.Kind]bool{}, make([]event.Kind, len(specs))
	for i, s := range specs {
		of[i] = event.ReadCommand(s.Def).Kind()
		kinds[of[i]] = true
	}
	var notes []string
	for i := range session.KindOptions {
		o := &session.KindOptions[i]
		flag := kindFlags[o.Name]
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
			s, kind := &specs[j], of[j]
			if !flag.given(s) || o.Has(kind) {
				continue
			}
			if flag.clear(s); kind != 0 {
				why, _ := o.Refusal(kind)
				notes = append(notes, fmt.Sprintf("--%s does not apply to %q: %s.", flag.name, command.Clean(s.Def), why))
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
			list, err = prog.attach(ctx, c, &probes)
		} else if list, err = probes.attach(ctx, r, c, r.Args); err != nil {
			err = nameDefinition(err, r.Args)
		}
		return list, err
	}
	return command.Spec{
		Use:   "attach [flags] DEFINITION... | attach --program FILE.o",
		Short: "Attach probes, all or none",
		Long: `Attach probes to the guest. Each argument is one command in the language of the
kernel's kprobe_events, a definition or a deletion. Either all of them are carried out,
in order, or none; an error points at the wrong column. The probes stay attached
until they are detached or the daemon ends.

  p:myread vfs_read fd=%di count=%dx:u64   a name, registers, a type
  p do_fork+4                              4 bytes into a function
  p:first vfs_read $arg1 byte=+0($arg2):u8 arguments, and the memory that one points to
  r:back vfs_read got=$retval:s64          a function's return, with its result
  r20:back vfs_read fd=$arg1 got=$retval   at most 20 calls at a time; an argument
  w:total rw@user_hot_calls+8:8            a watch: r, w, rw or x, at an address
                                           or a symbol, of 1, 2, 4 or 8 bytes
  p dummy:dummy_xmit                       a function of a module, whenever that is
                                           loaded
  p vfs_*                                  every matching function, each with an event
                                           of its own
  r:io/* vfs_* $retval                     * in EVENT is the function's name; an EVENT
                                           without * is one event for all of them
  -:myread                                 detaches the probes of an event
  -:io/                                    detaches the probes of a group

Definitions of one GROUP/EVENT are several probes of that event: of one kind, with the
same arguments, at different places. If a pattern matches functions that cannot be probed,
they are left out and reported; with --strict the pattern is rejected.

An r definition replaces the return address on the stack during a call. In programs of a
Linux guest it instead probes the instructions that leave the function.
Where a function, or a guest that walks its stacks, must not see a changed return address,
--at-rets puts probes of one event at each ret of the function and each jump to another
function (there $retval is not known yet). They report the registers from before that
instruction, no $argN, and have no limit of calls. A function whose code does not show all
its exits is rejected.

With --args or --mirror a p definition at a function's entry is a jprobe. With --args its
events have the function's arguments by the System V ABI, from registers and stack. With
--mirror a function of the guest with the same arguments runs before it, and ends in
jprobe_return. Such functions of the built-in guest are jdo_fork, jvfs_read,
jtcp_v4_rcv and jmany_args, for the functions whose names they end in.

With --fleet and --keep NAME the fleet's servers keep the definitions: the daemons that --where selects
attach them, and so do daemons that join later. 'guestprobe detach NAME' withdraws them.

Watches use the guest's debug registers, of which there are four. On a host that does
not deliver them, watches are rejected unless --emulate is given. --emulate protects the
page: each access to it costs an exit, and the answer says so.

--override N has functions return N without running, as the kernel's fault injection
does; N may be an error, such as -ENOMEM. It applies to hits that pass --filter: --after
skips the first hits, --interval takes every Nth, --probability takes a percentage, and
--times limits the number of overrides, exactly, even if the hits come from several vCPUs.
Each probe of a pattern counts on its own. The answer has the seed: with --seed the same
hits, by their numbers, are chosen again. An override changes what the guest does, so it needs
--unsafe; each hit costs an exit. 'guestprobe list' shows the number of overrides.

--filter is an expression over the values of each definition, in the language of the
kernel's event filters: == != < <= > >= & for numbers, == != ~ (with * ? [a-z]) for
text, && || ! and parentheses. A hit for which it is false counts as filtered. Besides
the definition's values it can use cpu, common_pid, comm, common_flags and
common_preempt_count.

--program attaches the eBPF programs of an object file made by clang: the programs in
sections kprobe/FUNCTION and kretprobe/FUNCTION, or in one --section. --at attaches the
program in that section to another function, --set sets a 'const volatile' global. Programs
run in the guest, without an exit, if the site can be optimized and the program needs nothing
from the host; otherwise, and with --on-host, they run on the host, at an exit. The answer
says where and why. The same holds for definitions. Definite mistakes in a program are reported
as warnings, or with --strict as errors: a map's value that is used without a check for 0, a
register or stack that is read before it is written, an access out of bounds, code that
is never executed. 'guestprobe map dump' shows the programs' counts.`,
		Example: `  guestprobe attach 'p:myread vfs_read fd=%di count=%dx:u64' 'p do_fork+4'
  guestprobe attach --filter 'count > 100 && fd == 3' 'p:big vfs_read fd=%di count=%dx:u64'
  guestprobe attach --program count.o
  guestprobe attach --post 'p:fork do_fork'
  guestprobe attach --args 8 'p:many many_args'
  guestprobe attach --mirror jdo_fork --mirror-stack 16 'p do_fork'
  guestprobe attach --unsafe --override -EINTR --probability 10 --times 5 'p:fail vfs_read'`,
		Args:     func([]string) error { return nil },
		Files:    []string{"program", "file"},
		Complete: a.completeDefinitions(),
		Flags: func(f *pflag.FlagSet) {
			probes.add(f)
			f.StringVar(&keep, "keep", "", "keep the definitions in --fleet under this `NAME`: daemons that join later attach them too, until 'guestprobe detach NAME'")
			f.StringVar(&prog.file, "program", "", "attach the eBPF programs of this object `FILE`")
			f.StringVar(&prog.at, "at", "", "attach the only program to this `FUNCTION`, with +OFFSET for a kprobe, instead of the function that its section names; or NAME=FUNCTION,... where NAME is the one in a section")
			f.StringVar(&prog.entries, "map-entries", "", "sizes of maps of the object, in place of those in the file: `NAME=N`,...; of a ring in bytes")
			f.BoolVar(&prog.skip, "skip-missing", false, "leave out programs at functions that the guest does not have; the daemon's log names them")
			f.StringArrayVar(&prog.set, "set", nil, "set a constant of the object, `NAME=VALUE`; may be repeated")
			f.Lookup("strict").Usage += "; reject a program with a mistake, instead of warning about it"
			f.StringVar(&prog.section, "section", "", "only the object file's programs in this `SECTION`, such as kprobe/vfs_read, or in these: names and patterns, separated by commas")
		},
		Run: a.fleet.keepOrRun(&keep, &probes, a.askAll(func(ctx context.Context, r *command.Run, m *members) error {
			if err := check(r); err != nil {
				return err
			}
			return askEach(ctx, r, m, func(ctx context.Context, c *remote.Client) (api.ProbeList, error) { return attach(ctx, r, c) },
				func(o answersOf[api.ProbeList]) error { return printAttached(r, probesOf{o}) })
		})),
	}
}

// attach runs attach commands. The probes stay attached after the command.
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

// printAttached prints the result of a list of commands.
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

// noteAttached prints the results of a list of commands that the table of probes does not show.
func noteAttached(r *command.Run, list api.ProbeList) {
	for _, p := range list.Detached {
		r.Note("Detached %s at %s, with %s.", command.Clean(p.Name), place(p), command.Plural(p.Stats.Hits, "hit"))
	}
	noteSkipped(r, list.Skipped)
	if len(list.Probes)+len(list.Detached)+len(list.Skipped) == 0 {
		r.Note("There was nothing to do: blank lines and comments only.")
	}
	for _, n := range list.Notes {
		r.Note("%s.", command.Clean(n))
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

// noteParts names the functions that the compiler split off a probed function, if callers call them directly. Cold
// parts alone need no note: they are reached only through the function itself.
func noteParts(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		isCold := func(part string) bool { return strings.HasPrefix(strings.TrimPrefix(part, p.Symbol+"."), "cold") }
		if !slices.ContainsFunc(p.Parts, func(part string) bool { return !isCold(part) }) {
			continue
		}
		r.Note("%s: part of %s runs as %s: calls that begin there do not hit this probe. Probe these functions too.", command.Clean(p.Name), command.Clean(p.Symbol), command.Clean(strings.Join(p.Parts, ", ")))
	}
}

// nameDefinition adds to an error which of several definitions it is about, unless the
// error already shows it.
func nameDefinition(err error, defs []string) error {
	var wire *api.Error
	if !errors.As(err, &wire) || wire.Index == nil || *wire.Index >= len(defs) || wire.Column != nil {
		return err
	}
	return fmt.Errorf("%q: %w", defs[*wire.Index], err)
}

// maxSkipped is the maximum number of skipped functions that are printed.
const maxSkipped = 10

// noteSkipped lists the functions that match a pattern but could not be probed.
func noteSkipped(r *command.Run, skipped []api.Skipped) {
	for i, s := range skipped {
		if i == maxSkipped {
			r.Note("Skipped %d more; --format json has them all.", len(skipped)-i)
			return
		}
		r.Note("Skipped %s: %s", command.Clean(s.Def), command.Clean(s.Error.Error()))
	}
}
