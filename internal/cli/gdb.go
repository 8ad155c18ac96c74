package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) gdb() command.Spec {
	program, print := "gdb", false
	return command.Spec{
		Use:   "gdb [FILE] [-- ARGUMENT...]",
		Short: "Debug the guest with GDB",
		Long: `Start GDB on the guest, which stops for it. vCPUs are threads, breakpoints and watchpoints
are probes, and memory is shown without them. FILE is the guest's program with its debug
information, for example a Linux guest's vmlinux; guestprobe gives GDB the slide of a Linux kernel.
Without FILE the daemon gives GDB the program of the built-in guest or of guestprobed --guest, and
for a Linux guest the names of its kernel and a way to find callers. Arguments after --
go to GDB. 'monitor COMMAND' in GDB runs 'guestprobe COMMAND'. When GDB quits or detaches,
its breakpoints are removed, and the guest resumes if it was running.

Any debugger that speaks the protocol may connect: 'target remote PATH' with the path that
--print shows.`,
		Example: `  guestprobe gdb --print
  guestprobe gdb --print vmlinux -- --nx`,
		Args:  command.ArgsBetween(0, -1, ""),
		Cures: map[string]string{"-e": curesOfGDB, "-x": curesOfGDB, "-b": curesOfGDB, "-p": curesOfGDB},
		Files: []string{"gdb"},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&program, "gdb", program, "start this `program`")
			f.BoolVar(&print, "print", print, "print the command instead of running it")
		},
		Plain: true,
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			if a.core != "" {
				return command.Usagef("--core: GDB itself reads what 'guestprobe --core %s guest save --elf FILE' writes", a.core)
			}
			if a.vm.Name != "" {
				return command.Usagef("--vm: GDB connects to guestprobed's own guests")
			}
			if g, err := c.Guest(ctx); err == nil && g.VM != "" {
				return &api.Error{Code: api.CodeNotOurs, Errno: "EROFS", Message: "the guest belongs to another VMM: GDB connects to guestprobed's own guests"}
			}
			args := []string{"-q", "-l", "30"} // seconds: to collect a kernel's symbols may take longer than GDB's 2
			rest := r.Args
			if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				args = append(args, rest[0])
				rest = rest[1:]
			}
			args = append(append(args, "-ex", "target remote "+c.Path()+api.GDBSuffix), rest...)
			if print {
				line := []string{program}
				for _, arg := range args {
					line = append(line, quoteWord(arg))
				}
				return r.Print("%s\n", strings.Join(line, " "))
			}
			return debug(ctx, r, program, args)
		}),
	}
}

// curesOfGDB is the advice for flags of GDB.
const curesOfGDB = "arguments for GDB follow --, as in 'guestprobe gdb -- -ex list'"

// quoteWord quotes a word for the shell if necessary.
func quoteWord(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@+") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// debug runs a debugger in our terminal. Ctrl-C goes to the debugger.
func debug(ctx context.Context, r *command.Run, program string, args []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%w: install gdb (Debian's package of that name), or name another one by --gdb", err)
	}
	// The terminal sends SIGINT to the debugger too. Ignore it here and wait for the debugger's exit.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, os.Interrupt)
	defer signal.Stop(ignored)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.Stdin, r.Stdout, r.Stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) && exit.Exited() {
		return command.Status(exit.ExitCode())
	} else if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// monitored are the commands allowed in a debugger's "monitor". They run in the daemon, with rights that the
// debugger's user may not have, so only commands that do nothing but send requests to the daemon are allowed.
var monitored = []string{
	"arm", "attach", "blacklist", "bt", "call", "detach", "disable", "disarm", "disas", "enable", "filter", "finish",
	"guest console", "guest pause", "guest reset", "guest resume", "guest status", "guest text",
	"list", "map dump", "map list", "mem", "next", "optimization", "profile", "pt", "regs", "run", "script", "scripts", "stat",
	"step", "stop", "symbols", "tasks", "tool", "trace", "until", "vars", "version",
}

// Monitor runs a command line that was typed at a debugger's "monitor", as guestprobe
// would. guestprobed calls it.
func Monitor(ctx context.Context, socket, line string, w io.Writer) error {
	args, err := words(line)
	if err != nil {
		return err
	}
	env := func(name string) string {
		switch name {
		case api.SocketEnv:
			return socket
		case "NO_COLOR":
			return "1"
		}
		return os.Getenv(name)
	}
	status := Program().Run(ctx, command.Env{Args: args, Stdin: strings.NewReader(""), Stdout: w, Stderr: w, Getenv: env, Only: monitored})
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errors.New("it was interrupted")
	case ctx.Err() != nil:
		return errors.New("it took too long: what waits for the guest waits in vain while the debugger has stopped it")
	}
	if status != command.ExitOK {
		return fmt.Errorf("(exit status %d)", status)
	}
	return nil
}

// words splits a line into words as a shell does, but without expansions.
func words(line string) (all []string, err error) {
	var word strings.Builder
	inWord := false
	quote := rune(0)
	escaped := false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, inWord = true, true
		case c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case c == ' ' || c == '\t':
			if inWord {
				all = append(all, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("a %c has no end", quote)
	case escaped:
		return nil, errors.New(`nothing follows the last \`)
	case inWord:
		all = append(all, word.String())
	}
	return all, nil
}
