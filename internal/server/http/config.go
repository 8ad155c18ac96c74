package http

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// maxConfig bounds the file of --config, in bytes.
const maxConfig = 1 << 20

// notConfigured are the flags that are about one start of the daemon.
var notConfigured = []string{"config", "check-config", "ready-fd"}

// configure takes from the file of --config what the command line does not say, and checks all of it. What is wrong
// with something in the file is told with its line.
func (o *options) configure() error {
	if o.config != "" {
		if err := files.Trusted(o.config); err != nil {
			return fmt.Errorf("--config %w", err)
		}
		text, err := files.Read(o.config, maxConfig)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		if o.configured, err = command.Configured(o.set, o.config, text, notConfigured...); err != nil {
			return err
		}
	}
	return o.placed(o.check())
}

// flagName finds the flag that an error is about.
var flagName = regexp.MustCompile(`^--([a-z-]+)`)

// placed puts before an error about a flag where the file of --config has it.
func (o *options) placed(err error) error {
	if err == nil {
		return nil
	}
	if m := flagName.FindStringSubmatch(err.Error()); m != nil && o.configured[m[1]] != "" {
		return command.Usagef("%s: %w", o.configured[m[1]], err)
	}
	return err
}

// of puts before an error about what a flag's value names, a file say, where the file of --config has that flag.
func (o *options) of(flag string, err error) error {
	if where := o.configured[flag]; err != nil && where != "" {
		return fmt.Errorf("%s: %w", where, err)
	}
	return err
}

// checkFiles is what --check-config does: the guest's image is read, and each definition and script parsed. Whether the
// guest has what they name is found out when they are attached.
func (o *options) checkFiles(r *command.Run) error {
	if o.restore != "" {
		if _, err := readSnapshot("--restore", o); err != nil {
			return o.placed(err)
		}
	}
	if err := o.checkPlaces(); err != nil {
		return err
	}
	prog, err := loadProgram(o)
	if err != nil {
		return err
	}
	if err := o.checkBoot(prog); err != nil && o.restore == "" {
		return err
	}
	for _, def := range o.probes {
		if _, err := event.Parse(def); err != nil {
			return o.placed(command.Usagef("--probe %q: %w", def, err))
		}
	}
	scripts, err := o.readScripts()
	if err != nil {
		return err
	}
	known, err := prog.readTypes(func() guest.View { return nil })
	if err != nil {
		return err
	}
	// Without types what is wrong with a script's may be known at a start alone, by --debug.
	if types, ok := known.(script.Types); ok {
		for _, req := range scripts {
			if err := script.Check(req.Name, req.Script, types); err != nil {
				return o.placed(command.Usagef("--script: %w", scriptError(err)))
			}
		}
	}
	what := "the command line"
	if o.config != "" {
		what = o.config
	}
	return r.Print("%s is sound\n", what)
}

// readScripts reads the files of --script.
func (o *options) readScripts() (reqs []api.RunScript, err error) {
	seen := map[string]string{}
	for _, path := range o.scripts {
		name := strings.TrimSuffix(filepath.Base(path), ".bt")
		switch other, taken := seen[name]; {
		case len(name) > api.MaxScriptName || !api.ScriptName.MatchString(name):
			return nil, o.placed(command.Usagef("--script %s: %q is no name of a script: want a letter or _, then letters, digits and _ . -, at most %d in all", path, name, api.MaxScriptName))
		case taken:
			return nil, o.placed(command.Usagef("--script %s: there is %s already: scripts go by their files' names", path, other))
		}
		seen[name] = path
		text, err := files.Read(path, maxScriptFile)
		switch {
		case errors.Is(err, files.ErrTooLarge):
			return nil, o.placed(fmt.Errorf("--script %s: %w", path, err))
		case err != nil:
			return nil, o.placed(fmt.Errorf("--script %w", err))
		}
		reqs = append(reqs, api.RunScript{Script: string(text), Name: path, Format: api.ScriptText, Detach: name})
	}
	return reqs, nil
}

// maxScriptFile bounds a script, in bytes.
const maxScriptFile = 1 << 20
