package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/files"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// bpfCheck loads object files as attach --program does, but for a kernel that does not
// run.
func bpfCheck() command.Spec {
	var kernel, config, section, at string
	var strict, skip bool
	return command.Spec{
		Use:   "check FILE... [--kernel FILE]",
		Short: "Say whether the programs of object files can be loaded, and where they would run",
		Long: `Load the programs of each object file as attach --program does, and say of each what
it attaches to and where it can run: in the guest, or on the host and why. Nothing runs.

--kernel is the kernel of the guest that they are for, whose types, names and release
they may depend on: a vmlinuz, or vmlinux. Its configuration is that of --config, or
of the file config-RELEASE beside it. Exit status 1 says that a file cannot be loaded.`,
		Example: `  guestprobe bpf check count.o
  guestprobe bpf check *.bpf.o --kernel /boot/vmlinuz-6.1.0-48-cloud-amd64 --section 'kprobe/*,kretprobe/*'`,
		Args:  command.Between(1, 1<<16, "at least one object file"),
		Plain: true,
		Files: []string{"kernel", "config"},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&kernel, "kernel", "", "kernel of the guest that they are for, a `FILE`")
			f.StringVar(&config, "config", "", "its configuration, a `FILE`")
			f.StringVar(&section, "section", "", "only the programs in this `section`, or these: a,b, and patterns")
			f.StringVar(&at, "at", "", "`place` of the only program, or NAME=PLACE,... for what sections name")
			f.BoolVar(&skip, "skip-missing", false, "leave out programs at functions that the kernel does not have")
			f.BoolVar(&strict, "strict", false, "a program with warnings cannot be loaded")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			places, err := bpf.ParseAt(at)
			if err != nil {
				return command.Usagef("--at: %v", err)
			}
			sel := bpf.Selection{Section: section, At: places}
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
			bad := 0
			for _, file := range r.Args {
				if err := checkObject(ctx, r, file, sel, strict); err != nil {
					bad++
					if err := r.Print("%s: %v\n", file, err); err != nil {
						return err
					}
				}
			}
			if bad > 0 {
				return fmt.Errorf("%d of %d files cannot be loaded", bad, len(r.Args))
			}
			return nil
		},
	}
}

// checkObject loads one file and prints what is in it.
func checkObject(ctx context.Context, r *command.Run, file string, sel bpf.Selection, strict bool) error {
	b, err := readObject(ctx, file)
	if err != nil {
		return err
	}
	o, err := bpf.LoadObject(b, sel)
	if err != nil {
		return err
	}
	c, err := o.Load(1, bpf.Heap{}, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	if len(o.LeftOut) > 0 {
		if err := r.Print("%s: left out, as the kernel does not have their functions: programs at %s\n", file, strings.Join(o.LeftOut, ", ")); err != nil {
			return err
		}
	}
	for _, p := range c.Programs {
		warnings := p.Warnings()
		if strict && len(warnings) > 0 {
			return fmt.Errorf("program %q in section %q: %w", p.Name(), p.Section, &warnings[0])
		}
		where := "can run in the guest"
		if why := p.HostOnly(); why != "" {
			where = "runs on the host: " + why
		}
		if err := r.Print("%s: %s: %s at %s: %s\n", file, p.Section, p.Name(), p.AttachTo, where); err != nil {
			return err
		}
		for i := range warnings {
			if err := r.Print("%s: %s: warning: %v\n", file, p.Section, &warnings[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// readKernel reads what programs may ask of a kernel from its image and its
// configuration.
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
