package http

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/scriptfiles"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// maxConfig bounds the file of --config, in bytes.
const maxConfig = 1 << 20

// notConfigured are the flags that apply to one start of the daemon only.
var notConfigured = []string{"config", "check-config", "ready-fd"}

// configure fills in, from the file of --config, the flags that the command line
// does not set, and checks all of them. Errors about the file name the line.
func (o *options) configure() error {
	if o.config != "" {
		if err := files.CheckTrusted(o.config); err != nil {
			return fmt.Errorf("--config %w", err)
		}
		text, err := files.Read(o.config, maxConfig)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		if o.configured, err = command.ApplyConfig(o.set, o.config, text, notConfigured...); err != nil {
			return err
		}
	}
	return o.placeError(o.check())
}

// flagName finds the flag that an error is about.
var flagName = regexp.MustCompile(`^--([a-z-]+)`)

// placeError prefixes an error about a flag with the flag's line in the file of
// --config.
func (o *options) placeError(err error) error {
	if err == nil {
		return nil
	}
	if m := flagName.FindStringSubmatch(err.Error()); m != nil && o.configured[m[1]] != "" {
		return command.Usagef("%s: %w", o.configured[m[1]], err)
	}
	return err
}

// flagError prefixes an error about the thing that a flag names, such as a file,
// with the flag's line in the file of --config.
func (o *options) flagError(flag string, err error) error {
	if where := o.configured[flag]; err != nil && where != "" {
		return fmt.Errorf("%s: %w", where, err)
	}
	return err
}

// checkFiles does the work of --check-config: it reads the guest's image, and
// parses each definition and script. Whether the guest has the places that they
// name is known only when they are attached.
func (o *options) checkFiles(r *command.Run) error {
	if o.restore != "" {
		if _, err := readSnapshot("--restore", o); err != nil {
			return o.placeError(err)
		}
	}
	if o.lookAt.Name != "" { // whether the VM is there, the start finds out
		if err := cmp.Or(o.checkPlaces(r.Getenv), o.lookAt.checkImage()); err != nil {
			return err
		}
		return o.printSound(r)
	}
	if err := cmp.Or(o.checkPlaces(r.Getenv), o.checkKVM()); err != nil {
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
		if err := event.ReadCommand(def).Check(); err != nil {
			return o.placeError(command.Usagef("--probe %q: %w", def, err))
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
	// Without types, errors in a script's types show only when the daemon starts,
	// through --debug.
	if types, ok := known.(script.Types); ok {
		for _, req := range scripts {
			if err := script.Check(req.Name, req.Script, scriptfiles.ForCompiler(req.Files), req.Args, types); err != nil {
				return o.placeError(command.Usagef("--script: %w", scriptError(err)))
			}
		}
	}
	return o.printSound(r)
}

// printSound says that the flags and files are accepted.
func (o *options) printSound(r *command.Run) error {
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
			return nil, o.placeError(command.Usagef("--script %s: %q is no name of a script: want a letter or _, then letters, digits and _ . -, at most %d in all", path, name, api.MaxScriptName))
		case taken:
			return nil, o.placeError(command.Usagef("--script %s: there is %s already: scripts go by their files' names", path, other))
		}
		seen[name] = path
		text, err := files.Read(path, maxScriptFile)
		switch {
		case errors.Is(err, files.ErrTooLarge):
			return nil, o.placeError(fmt.Errorf("--script %s: %w", path, err))
		case err != nil:
			return nil, o.placeError(fmt.Errorf("--script %w", err))
		}
		imported, err := scriptfiles.Read(path, string(text))
		if err != nil {
			return nil, o.placeError(fmt.Errorf("--script %w", err))
		}
		reqs = append(reqs, api.RunScript{Script: string(text), Name: path, Files: imported, Format: api.ScriptText, Detach: name})
	}
	return reqs, nil
}

// maxScriptFile bounds a script, in bytes.
const maxScriptFile = 1 << 20
