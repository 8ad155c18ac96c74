package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// bpfCheck loads object files as attach --program does, but needs no running
// kernel.
func bpfCheck() command.Spec {
	var kernel, config, section, at, entries string
	var set []string
	var strict, skip, unproven bool
	return command.Spec{
		Local: true,
		Use:   "check FILE... [--kernel FILE]",
		Short: "Say whether the programs of object files can be loaded, and where they would run",
		Long: `Load the programs of each object file as attach --program does, and say of each what
it attaches to, where it can run: in the guest, or on the host and why; and how large it
is, and how many steps a hit takes at most. Nothing runs.

--kernel is the kernel of the guest that they are for, whose types, names and release
they may depend on: a vmlinuz, or vmlinux. Its configuration is that of --config, or
of the file config-RELEASE beside it. Exit status 1 says that a file cannot be loaded.`,
		Example: `  guestprobe bpf check count.o
  guestprobe bpf check *.bpf.o --kernel /boot/vmlinuz-6.1.0-48-cloud-amd64 --section 'kprobe/*,kretprobe/*'`,
		Args:  command.ArgsBetween(1, 1<<16, "at least one object file"),
		Files: []string{"kernel", "config"},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&kernel, "kernel", "", "kernel of the guest that they are for, a `FILE`")
			f.StringVar(&config, "config", "", "its configuration, a `FILE`")
			f.StringVar(&section, "section", "", "only the programs in this `section`, or these: a,b, and patterns")
			f.StringVar(&at, "at", "", "`place` of the only program, or NAME=PLACE,... for what sections name")
			f.StringArrayVar(&set, "set", nil, "set a constant (const volatile), as attach does: `NAME=VALUE`; may be repeated")
			f.StringVar(&entries, "map-entries", "", "sizes of maps, in place of those in the files: `NAME=N`,...; of a ring in bytes")
			f.BoolVar(&skip, "skip-missing", false, "leave out programs at functions that the kernel does not have")
			f.BoolVar(&unproven, "unproven", false, "list accesses that are checked when they are made, because the verifier cannot prove them")
			f.BoolVar(&strict, "strict", false, "a program with warnings cannot be loaded")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			places, err := bpf.ParseAt(at)
			if err != nil {
				return command.Usagef("--at: %v", err)
			}
			sizes, err := bpf.ParseMapEntries(entries)
			if err != nil {
				return command.Usagef("--map-entries: %v", err)
			}
			constants, err := parseConstants(set)
			if err != nil {
				return err
			}
			sel := bpf.Selection{Section: section, Set: constants, At: places, MapEntries: sizes}
			if kernel != "" {
				k, err := readKernel(kernel, config)
				if err != nil {
					return err
				}
				sel.Kernel = k
				if skip {
					sel.Has = func(function string) bool { _, ok := k.Symbol(function); return ok }
				}
			}
			var out []checkedObject
			bad := 0
			for _, file := range r.Args {
				o := checkObject(ctx, file, sel, bpf.Allowed{Unsafe: true, Strict: strict}, unproven)
				if o.Error != "" {
					bad++
				}
				out = append(out, o)
			}
			if err := r.Show(map[string]any{"files": out}, func() error { return showChecked(r, out) }); err != nil {
				return err
			}
			if bad > 0 {
				return fmt.Errorf("%d of %d files cannot be loaded", bad, len(r.Args))
			}
			return nil
		},
	}
}

// checkedObject is the result for one object file, as --format json prints it.
type checkedObject struct {
	File     string           `json:"file"`
	Error    string           `json:"error,omitempty"`
	LeftOut  []string         `json:"leftOut,omitempty"` // functions that the kernel does not have
	Notes    []string         `json:"notes,omitempty"`   // differences from the file
	Programs []checkedProgram `json:"programs"`
}

// checkedProgram is the result for one program of an object file.
type checkedProgram struct {
	Name         string               `json:"name"`
	Section      string               `json:"section"`
	AttachTo     string               `json:"attachTo"`
	Runs         string               `json:"runs"` // as in a list of probes: in_guest or on_host
	Why          string               `json:"why,omitempty"`
	Unsafe       bool                 `json:"unsafe,omitempty"` // attach needs --unsafe
	Instructions int                  `json:"instructions"`
	CodeBytes    int                  `json:"codeBytes,omitempty"` // of machine code in a typical guest
	Steps        int64                `json:"steps"`               // the most of one run
	Budget       int64                `json:"budget"`
	Warnings     []api.ProgramWarning `json:"warnings,omitempty"`
	Unproven     []api.ProgramWarning `json:"unproven,omitempty"` // with --unproven
}

// checkObject loads one file and decides about its programs as attach does.
func checkObject(ctx context.Context, file string, sel bpf.Selection, allowed bpf.Allowed, unproven bool) (out checkedObject) {
	out = checkedObject{File: file, Programs: []checkedProgram{}}
	fail := func(err error) checkedObject {
		out.Error, out.Programs = err.Error(), []checkedProgram{}
		return out
	}
	b, err := readObject(ctx, file)
	if err != nil {
		return fail(err)
	}
	o, err := bpf.LoadObject(b, sel)
	if err != nil {
		return fail(err)
	}
	c, err := o.Load(1, &checkMemory{}, 0)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	out.LeftOut, out.Notes = o.LeftOut, o.Notes
	out.Notes = append(slices.Clip(out.Notes), missingPlaces(sel.Kernel, c.Programs)...)
	sizes := map[string]int{}
	at := bpf.Places(c.Programs, func(p *bpf.LoadedProgram) (string, bool) {
		why := p.HostReason()
		if why == "" {
			size, err := p.CodeSize()
			if sizes[p.Name()] = size; err != nil {
				why = err.Error()
			}
		}
		return why, p.InUser()
	})
	for i := range c.Programs {
		p := &c.Programs[i]
		warnings, err := p.Judge(allowed)
		if err != nil {
			return fail(err)
		}
		x := checkedProgram{Name: p.Name(), Section: p.Section, AttachTo: p.AttachTo, Runs: api.RunsInGuest, Why: at.Why[i], Instructions: p.Len(), Steps: p.Steps(), Budget: p.Budget()}
		x.Unsafe = slices.ContainsFunc(p.Helpers(), bpf.Helper.ChangesGuest)
		if x.CodeBytes = sizes[p.Name()]; x.Why != "" {
			x.Runs, x.CodeBytes = api.RunsOnHost, 0
		}
		x.Warnings = shownWarnings(warnings)
		if unproven {
			x.Unproven = shownWarnings(p.Unproven())
		}
		out.Programs = append(out.Programs, x)
	}
	return out
}

// missingPlaces says which programs are at places that the kernel's image does not have. It
// is no reason to reject them: a module of the guest may have the place.
func missingPlaces(k *bpf.Kernel, programs []bpf.LoadedProgram) (notes []string) {
	if k == nil || k.Symbol == nil {
		return nil
	}
	has := func(name string) bool { _, ok := k.Symbol(name); return ok }
	for i := range programs {
		p := &programs[i]
		function, _, _ := strings.Cut(p.AttachTo, "+")
		event, atEvent := strings.CutPrefix(p.AttachTo, bpf.AtTracepoint)
		_, name, _ := strings.Cut(event, ":")
		switch {
		case p.InUser() || function == "" || strings.HasPrefix(function, "/") || strings.ContainsAny(function, "*?"):
		case p.Kind() == bpf.Event && !has("event_"+name) && !has("__event_"+name):
			notes = append(notes, fmt.Sprintf("%s: the kernel has no event %s: attach rejects the program, unless a module of the guest has it", p.Section, event))
		case p.Kind() == bpf.Event:
		case atEvent && !has(bpf.TracepointFunction(event)):
			notes = append(notes, fmt.Sprintf("%s: the kernel has no tracepoint %s: attach rejects the program, unless a module of the guest has it", p.Section, event))
		case !atEvent && !has(function):
			notes = append(notes, fmt.Sprintf("%s: the kernel has no function %s: attach rejects the program, unless a module of the guest has it", p.Section, function))
		}
	}
	return notes
}

// shownWarnings are warnings as JSON has them.
func shownWarnings(ws []bpf.Warning) (out []api.ProgramWarning) {
	for _, w := range ws {
		out = append(out, api.ProgramWarning{Instruction: w.Index, Text: w.Text, What: w.What, Source: w.Source})
	}
	return out
}

// checkMemory is the memory of maps as a guest would see it.
type checkMemory struct {
	bpf.Heap
	next uint64
}

// Alloc implements bpf.Memory.
func (m *checkMemory) Alloc(size int) (bpf.Area, error) {
	a, err := m.Heap.Alloc(size)
	a.Addr = 1<<46 + m.next
	m.next += (uint64(size) + 63) &^ 63
	return a, err
}

// showChecked prints the results, one line for each program and warning.
func showChecked(r *command.Run, files []checkedObject) error {
	for _, o := range files {
		if o.Error != "" {
			if err := r.Print("%s: %s\n", o.File, o.Error); err != nil {
				return err
			}
			continue
		}
		if len(o.LeftOut) > 0 {
			if err := r.Print("%s: left out, as the kernel does not have their functions: programs at %s\n", o.File, strings.Join(o.LeftOut, ", ")); err != nil {
				return err
			}
		}
		for _, n := range o.Notes {
			if err := r.Print("%s: %s\n", o.File, n); err != nil {
				return err
			}
		}
		for _, p := range o.Programs {
			where := "can run in the guest"
			if p.Why != "" {
				where = "runs on the host: " + p.Why
			}
			if p.Unsafe {
				where += " (attach needs --unsafe)"
			}
			if err := r.Print("%s: %s: %s at %s: %s\n", o.File, p.Section, p.Name, p.AttachTo, where); err != nil {
				return err
			}
			code := ""
			if p.CodeBytes > 0 {
				code = fmt.Sprintf(", about %d bytes of code", p.CodeBytes)
			}
			if err := r.Print("%s: %s: %s: %s%s, at most %d steps a hit\n", o.File, p.Section, p.Name, command.Plural(p.Instructions, "instruction"), code, p.Steps); err != nil {
				return err
			}
			for i, w := range slices.Concat(p.Warnings, p.Unproven) {
				kind := "warning"
				if i >= len(p.Warnings) {
					kind = "unproven"
				}
				warning := bpf.Warning{Index: w.Instruction, Text: w.Text, What: w.What, Source: w.Source}
				if err := r.Print("%s: %s: %s: %v\n", o.File, p.Section, kind, &warning); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readKernel reads a kernel's image and configuration, and returns what programs may
// query about them.
func readKernel(image, config string) (*bpf.Kernel, error) {
	k, err := linux.Load(image)
	if err != nil {
		return nil, err
	}
	out := &bpf.Kernel{Version: bpf.KernelVersion(k.Version), Symbol: k.Lookup}
	switch types, err := k.Types(); {
	case err == nil:
		out.Types = append(out.Types, types.Spec)
	case !errors.Is(err, linux.ErrNoTypes):
		return nil, fmt.Errorf("%s: %w", image, err)
	}
	missing := false
	if config == "" {
		config, missing = filepath.Join(filepath.Dir(image), "config-"+k.Version), true
	}
	text, err := files.Read(config, bpf.MaxKernelConfig)
	if err == nil {
		out.Config = bpf.KernelConfig(string(text))
	} else if !missing || !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return out, nil
}
