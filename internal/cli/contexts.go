package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// contextEnv names the variable that selects the context of commands without --context.
const contextEnv = "GUESTPROBE_CONTEXT"

// maxContexts is the maximum size of the file of contexts, in bytes.
const maxContexts = 1 << 20

// savedContext is a named daemon or fleet, as JSON and templates show it. Socket is empty for a fleet.
type savedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	Socket  string `json:"socket,omitempty"` // a path, or a name that ps shows
	Fleet   string `json:"fleet,omitempty"`  // a URL
	Creds   string `json:"creds,omitempty"`
	CA      string `json:"ca,omitempty"`
	Cert    string `json:"cert,omitempty"`
	Key     string `json:"key,omitempty"`
	Where   string `json:"where,omitempty"`
}

// contextList is the content of the file of contexts, and the JSON output of the context commands.
type contextList struct {
	Contexts []savedContext `json:"contexts"`
}

// index returns the index of a context, or -1.
func (l *contextList) index(name string) int {
	return slices.IndexFunc(l.Contexts, func(c savedContext) bool { return c.Name == name })
}

// find returns a context, or an error that lists the existing ones.
func (l *contextList) find(name string) (*savedContext, error) {
	if i := l.index(name); i >= 0 {
		return &l.Contexts[i], nil
	}
	if len(l.Contexts) == 0 {
		return nil, command.Usagef("no context %q: none is defined; 'guestprobe context set' defines one", name)
	}
	var names []string
	for _, c := range l.Contexts {
		names = append(names, c.Name)
	}
	return nil, command.Usagef("there is no context %q; defined are %s", name, strings.Join(names, ", "))
}

// use makes a context the current one; "" means none.
func (l *contextList) use(name string) {
	for i := range l.Contexts {
		l.Contexts[i].Current = l.Contexts[i].Name == name
	}
}

// contextsPath returns the path of the file of contexts, or "" where the user has no home.
func contextsPath(getenv func(string) string) string {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "guestprobe", "contexts.json")
}

// readContexts reads the file of contexts. It returns an empty list if the file does not exist, and an error for a file that
// other users can write, because it decides which guests a command changes.
func readContexts(path string) (l contextList, err error) {
	if path == "" {
		return l, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("contexts: %w; $HOME or $XDG_CONFIG_HOME is another user's: set it, or unset both to use none", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return l, fmt.Errorf("contexts: %w", err)
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	switch {
	case !st.Mode().IsRegular():
		return l, fmt.Errorf("contexts: %s is not a regular file", path)
	case uid != os.Geteuid() && uid != 0:
		return l, fmt.Errorf("contexts: %s belongs to user %d: it must be yours", path, uid)
	case st.Mode().Perm()&0o022 != 0:
		return l, fmt.Errorf("contexts: other users can write %s (mode %04o): chmod 600 it", path, st.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxContexts+1))
	if err == nil && len(b) > maxContexts {
		err = fmt.Errorf("larger than %d bytes", maxContexts)
	}
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		err = dec.Decode(&l)
	}
	if err != nil {
		return l, fmt.Errorf("contexts: %s: %w", path, err)
	}
	return l, nil
}

// write replaces the file of contexts. Only its user can read it.
func (l *contextList) write(path string) (err error) {
	if path == "" {
		return errors.New("contexts: neither $HOME nor $XDG_CONFIG_HOME is set")
	}
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // mode 0600
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// changeContexts applies f to the contexts and writes them. Concurrent commands wait for each other.
func changeContexts(getenv func(string) string, f func(*contextList) error) (l contextList, err error) {
	path := contextsPath(getenv)
	if path != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return l, fmt.Errorf("contexts: %w", err)
		}
		lock, err := os.OpenFile(path+api.LockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return l, fmt.Errorf("contexts: %w", err)
		}
		defer lock.Close()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return l, fmt.Errorf("contexts: lock %s: %w", lock.Name(), err)
		}
	}
	if l, err = readContexts(path); err != nil {
		return l, err
	}
	if err := f(&l); err != nil {
		return l, err
	}
	return l, l.write(path)
}

// useContext takes the socket or the fleet from a context if the command line names neither. The context is the one of
// --context, else of $GUESTPROBE_CONTEXT, else the current one. $GUESTPROBE_SOCKET takes precedence over the latter two.
func (a *app) useContext(getenv func(string) string) error {
	given := a.socket != "" || a.core != "" || a.fleet.URL != "" || a.fleet.all
	name := a.context
	switch {
	case name != "" && given:
		return command.Usagef("--context names a daemon or a fleet: it cannot be used with --socket, --core, --fleet and --all")
	case given, name == "" && getenv(api.SocketEnv) != "":
		return nil
	case name == "":
		name = getenv(contextEnv)
	}
	l, err := readContexts(contextsPath(getenv))
	if err != nil {
		return err
	}
	if name == "" {
		i := slices.IndexFunc(l.Contexts, func(c savedContext) bool { return c.Current })
		if i < 0 {
			return nil
		}
		name = l.Contexts[i].Name
	}
	c, err := l.find(name)
	if err != nil {
		return err
	}
	a.socket, a.fleet.URL = c.Socket, c.Fleet
	for to, value := range map[*string]string{
		&a.fleet.Creds: c.Creds, &a.fleet.CA: c.CA, &a.fleet.Cert: c.Cert, &a.fleet.Key: c.Key, &a.fleet.where: c.Where,
	} {
		if *to == "" {
			*to = value
		}
	}
	return nil
}

// contextName matches the valid names of contexts.
var contextName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// newContext returns the context that the flags describe.
func (a *app) newContext(name string) (c savedContext, err error) {
	switch {
	case !contextName.MatchString(name):
		return c, command.Usagef("context %q: a name has letters, digits and _ . - (at most 64)", name)
	case a.core != "" || a.context != "":
		return c, command.Usagef("a context is a socket or a fleet: --core and --context cannot be used here")
	case (a.socket == "") == (a.fleet.URL == ""):
		return c, command.Usagef("give the daemon or the fleet, as in: guestprobe context set %s -s NAME, or --fleet URL --fleet-creds FILE", name)
	case a.fleet.expect != 0:
		return c, command.Usagef("--expect is for one command: a context does not have it")
	}
	if _, err := a.fleet.check(); err != nil {
		return c, err
	}
	c = savedContext{Name: name, Socket: a.socket, Fleet: a.fleet.URL, Creds: a.fleet.Creds, CA: a.fleet.CA, Cert: a.fleet.Cert, Key: a.fleet.Key, Where: a.fleet.where}
	if c.Socket != "" {
		path, err := api.ParseSocket(c.Socket)
		if err != nil {
			return c, command.Usagef("--socket: %w", err)
		}
		if _, err := os.Lstat(path); err == nil || strings.Contains(path, "/") { // otherwise it is a name that ps shows
			c.Socket = path
			if c.Socket, err = filepath.Abs(path); err != nil {
				return c, err
			}
		}
	}
	for _, file := range []*string{&c.Creds, &c.CA, &c.Cert, &c.Key} {
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return c, err
		}
	}
	return c, nil
}

// target returns the daemon or the fleet of a context, for display.
func (c savedContext) target() string {
	if c.Fleet == "" {
		return c.Socket
	}
	if c.Where != "" {
		return c.Fleet + " where " + c.Where
	}
	return c.Fleet
}

func contextCommand(a *app) command.Spec {
	complete := completeFirst(func(context.Context, []string, string) []string { return contextNames(os.Getenv) })
	change := func(f func(r *command.Run, l *contextList) error, done func(r *command.Run)) func(context.Context, *command.Run) error {
		return func(_ context.Context, r *command.Run) error {
			l, err := changeContexts(r.Getenv, func(l *contextList) error { return f(r, l) })
			if err != nil {
				return err
			}
			return r.Show(l, func() error { done(r); return nil })
		}
	}
	none := false
	list := command.Spec{
		Use: "list", Short: "List the contexts", ThisMachine: true,
		Long: "List the contexts; * marks the current one.\n\n" + tableTemplateHelp,
		Example: `  guestprobe context list
  guestprobe context list --format '{{.Name}}'`,
		Row: savedContext{},
		Run: func(_ context.Context, r *command.Run) error {
			l, err := readContexts(contextsPath(r.Getenv))
			if err != nil {
				return err
			}
			l.Contexts = append([]savedContext{}, l.Contexts...)
			if r.Templated() {
				return command.PrintRows(r, l.Contexts)
			}
			return r.Show(l, func() error {
				var rows [][]string
				for _, c := range l.Contexts {
					current, creds := "", "-"
					if c.Current {
						current = "*"
					}
					if c.Creds != "" {
						creds = c.Creds
					}
					rows = append(rows, []string{current, c.Name, c.target(), creds})
				}
				return r.Table([]string{"", "NAME", "DAEMONS", "CREDENTIALS"}, rows)
			})
		},
	}
	use := command.Spec{
		Use: "use NAME | use --none", Short: "Make a context the current one", ThisMachine: true,
		Example: "  guestprobe context use farm\n  guestprobe context use --none",
		Args:    command.ArgsBetween(0, 1, ""), Complete: complete,
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&none, "none", false, "no context is the current one: commands use the daemon of this machine")
		},
		Run: change(func(r *command.Run, l *contextList) error {
			if none == (len(r.Args) == 1) {
				return command.Usagef("name one context, or --none")
			}
			if none {
				l.use("")
				return nil
			}
			c, err := l.find(r.Args[0])
			if err != nil {
				return err
			}
			l.use(c.Name)
			return nil
		}, func(r *command.Run) {
			if none {
				r.Note("No context is the current one.")
			} else {
				r.Note("%s is the current context.", r.Args[0])
			}
		}),
	}
	set := command.Spec{
		Use: "set NAME [-s SOCKET | --fleet URL [--fleet-creds FILE]...]", Short: "Add or replace a context", ThisMachine: true,
		Long: `Add or replace the context NAME: a daemon of this machine (--socket, a path or a name that 'guestprobe ps' shows), or
a fleet (--fleet, --fleet-creds, --fleet-ca, --fleet-cert, --fleet-key and --where; 'guestprobe fleet --help'
describes them). Relative paths become absolute. The files themselves are not copied.`,
		Example: `  guestprobe context set web -s web1
  guestprobe context set farm --fleet nats://farm:4222 --fleet-creds ~/farm.creds --where 'kernel=6.*'`,
		Args: command.ArgsBetween(1, 1, "name the context"), Complete: complete,
		Run: change(func(r *command.Run, l *contextList) error {
			c, err := a.newContext(r.Args[0])
			if err != nil {
				return err
			}
			if i := l.index(c.Name); i >= 0 {
				c.Current = l.Contexts[i].Current
				l.Contexts[i] = c
				return nil
			}
			l.Contexts = append(l.Contexts, c)
			slices.SortFunc(l.Contexts, func(a, b savedContext) int { return strings.Compare(a.Name, b.Name) })
			return nil
		}, func(r *command.Run) {
			r.Note("'guestprobe context use %[1]s' makes %[1]s the current context; --context %[1]s uses it once.", r.Args[0])
		}),
	}
	remove := command.Spec{
		Use: "remove NAME", Short: "Remove a context", ThisMachine: true,
		Example: "  guestprobe context remove farm",
		Args:    command.ArgsBetween(1, 1, "name the context"), Complete: complete,
		Run: change(func(r *command.Run, l *contextList) error {
			c, err := l.find(r.Args[0])
			if err != nil {
				return err
			}
			l.Contexts = slices.Delete(l.Contexts, l.index(c.Name), l.index(c.Name)+1)
			return nil
		}, func(r *command.Run) { r.Note("Removed context %s.", r.Args[0]) }),
	}
	return command.Spec{
		Use:   "context",
		Short: "Name daemons and fleets, and choose the one that commands use",
		Long: `A context is a daemon or a fleet with a name. Commands use the current context, or that of --context or
$` + contextEnv + `, as if its flags were on the command line. --socket, --core, --fleet, --all and $` + api.SocketEnv + `
take precedence; 'ps' and 'check' use no context.

Contexts are in $XDG_CONFIG_HOME/guestprobe/contexts.json (default: ~/.config), which only its user can read. A file
that other users can write is rejected.`,
		Example: `  guestprobe context set farm --fleet nats://farm:4222 --fleet-creds ~/farm.creds
  guestprobe context use farm
  guestprobe list`,
		Sub: []command.Spec{list, use, set, remove},
	}
}

// contextNames returns the names of all contexts, for completion.
func contextNames(getenv func(string) string) (names []string) {
	l, _ := readContexts(contextsPath(getenv)) // completion cannot report an error
	for _, c := range l.Contexts {
		names = append(names, c.Name)
	}
	return names
}
