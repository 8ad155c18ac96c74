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
		Long: `gdb starts GDB on the guest, which stops for it: vCPUs are threads, breakpoints and
watchpoints are probes, memory is the guest's own without them. FILE has the guest's program with
its debug information, a Linux guest's vmlinux say; a Linux kernel's slide is told to GDB. Without it
GDB gets the built-in guest's, or that of guestprobed --guest, from the daemon, and of a Linux
guest the names of its kernel and how to find callers. What is behind
-- goes to GDB. 'monitor COMMAND' in GDB is 'guestprobe COMMAND'. When GDB quits or detaches,
its breakpoints go, and a guest that ran goes on.

Any debugger that speaks the protocol may connect: 'target remote PATH' with the path that
--print shows.`,
		Example: `  guestprobe gdb --print
  guestprobe gdb --print vmlinux -- --nx`,
		Args:  command.Between(0, -1, ""),
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
					line = append(line, quoted(arg))
				}
				return r.Print("%s\n", strings.Join(line, " "))
			}
			return debug(ctx, r, program, args)
		}),
	}
}

// quoted is a word as a shell takes it.
func quoted(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@+") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// debug runs a debugger in the terminal that is ours. ^C is the debugger's.
func debug(ctx context.Context, r *command.Run, program string, args []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%w: install gdb (Debian's package of that name), or name another one by --gdb", err)
	}
	// It gets the signal from the terminal itself, and we stay for its end.
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

// monitored are the commands behind a debugger's "monitor". They run in the daemon, with its rights, and
// whoever types them may have others: so they do nothing but ask the daemon.
var monitored = []string{
	"arm", "attach", "blacklist", "bt", "call", "detach", "disable", "disarm", "disas", "enable", "filter", "finish",
	"guest console", "guest pause", "guest reset", "guest resume", "guest status", "guest text",
	"list", "map dump", "map list", "mem", "next", "optimization", "profile", "pt", "regs", "run", "script", "scripts", "stat",
	"step", "stop", "symbols", "tasks", "tool", "trace", "until", "vars", "version",
}

// Monitor does a line of commands that was typed behind a debugger's "monitor", as guestprobe does
// them. It is for guestprobed.
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

// words splits a line as a shell does, without its expansions.
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
		return nil, errors.New(`there is nothing behind the last \`)
	case inWord:
		all = append(all, word.String())
	}
	return all, nil
}
