package cli

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Formats for memory in addition to bytes and JSON.
const (
	formatWords   = "words"
	formatStrings = "strings"
)

func (a *app) mem() command.Spec {
	var w remote.Where
	var q remote.MemoryQuery
	var write string
	var yes bool
	return command.Spec{
		Use:   "mem ADDRESS|SYMBOL[+OFFSET]|%REGISTER[+OFFSET] [LENGTH]",
		Short: "Show the guest's memory, or change it",
		Long: `Show LENGTH bytes (64, at most 1 MiB) of the guest's memory at one instant: the kernel's
memory, or with a flag a task's, a vCPU's, or by the page tables at an address. Code and the return
addresses on stacks are the guest's own, without changes made by probes (int3s, jumps); --live
shows them as they are. --format words shows words of 8 bytes, with the symbols that they
point to, and --format strings shows text.

--as shows the memory as a C type, by the guest's BTF or debug information, in C's
words: 'struct file', 'unsigned long[4]', 'char **'. Members and elements follow as in C,
through pointers too: 'struct task_struct.comm', 'struct file.f_path.dentry->d_iname'.

--write writes bytes, given in hexadecimal, whatever the page tables allow. It needs --yes,
because it cannot be undone. It is rejected where probes have bytes of their own.`,
		Example: `  guestprobe mem vfs_bytes_read 16
  guestprobe mem %rsp --vcpu 0 --format words
  guestprobe mem vfs_bytes_read --as 'unsigned long'
  guestprobe mem files --as 'struct file.path[4]'`,
		Args:    command.ArgsBetween(1, 2, "say which address"),
		Formats: []string{formatWords, formatStrings},
		Flags: func(f *pflag.FlagSet) {
			spaceFlags(f, &w)
			f.BoolVar(&q.Live, "live", false, "with the int3s and jumps of probes")
			f.StringVar(&q.Type, "as", "", "as the C `TYPE`[.MEMBER|[INDEX]]..., with at most 4096 members and elements; ... replaces the others")
			f.StringVar(&write, "write", "", "write these `BYTES` instead, in hexadecimal")
			f.BoolVarP(&yes, "yes", "y", false, "confirm the write")
		},
		Complete: a.completeSymbols(),
		Run: func(ctx context.Context, r *command.Run) error {
			w.At = r.Args[0]
			if len(r.Args) > 1 {
				n, err := strconv.ParseUint(r.Args[1], 0, 64)
				if err != nil || n == 0 || n > api.MaxLook {
					return command.Usagef("LENGTH %q: not 1 to %d bytes", r.Args[1], api.MaxLook)
				}
				q.Length = n
			}
			switch {
			case write == "" && yes:
				return command.Usagef("--yes: nothing is written without --write")
			case write != "" && (q.Type != "" || q.Live):
				return command.Usagef("--as and --live are for showing memory: they cannot be used with --write")
			case write != "":
				return writeMemory(a, w, write, yes)(ctx, r)
			}
			q.Symbols = r.Format == formatWords
			return show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Memory, error) {
				return c.Memory(ctx, w, q)
			}, printMemory)(ctx, r)
		},
	}
}

// writeMemory returns a command that writes memory and prints the result.
func writeMemory(a *app, w remote.Where, bytes string, yes bool) func(context.Context, *command.Run) error {
	return show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Memory, error) {
		if len(r.Args) > 1 {
			return api.Memory{}, command.Usagef("LENGTH and --write: the bytes say how long they are")
		}
		req := api.WriteMemory{At: w.At, Data: strings.ReplaceAll(bytes, " ", "")}
		if b, err := hex.DecodeString(req.Data); err != nil || len(b) == 0 {
			return api.Memory{}, command.Usagef("--write %q: not bytes in hexadecimal", bytes)
		}
		for _, x := range []struct {
			text string
			to   **int
			name string
		}{{w.VCPU, &req.VCPU, "--vcpu"}, {w.Task, &req.Task, "--task"}} {
			if x.text == "" {
				continue
			}
			n, err := strconv.Atoi(x.text)
			if err != nil {
				return api.Memory{}, command.Usagef("%s %q: not a number", x.name, x.text)
			}
			*x.to = &n
		}
		if w.Space != "" {
			if err := req.Space.UnmarshalText([]byte(w.Space)); err != nil {
				return api.Memory{}, command.Usagef("--cr3: %w", err)
			}
		}
		if !yes {
			return api.Memory{}, command.Usagef("--write changes the guest, which cannot be undone: add --yes")
		}
		return c.WriteMemory(ctx, req)
	}, printMemory)
}

func printMemory(r *command.Run, m api.Memory) error {
	r.Note("%s", command.Clean(formatAddr(m.Addr, m.Symbol)+spaceNote(m.Space)))
	if m.Type != "" {
		return r.Print("(%s) %s\n", command.Clean(m.Type), cleanLines(m.Text))
	}
	b, err := hex.DecodeString(m.Data)
	if err != nil {
		return fmt.Errorf("the daemon's answer: %w", err)
	}
	switch r.Format {
	case formatWords:
		err = printWords(r, &m, b)
	case formatStrings:
		err = printStrings(r, uint64(m.Addr), b)
	default:
		err = printBytes(r, uint64(m.Addr), b)
	}
	if err == nil && m.Fault != "" {
		err = r.Print("%s\n", command.Clean(m.Fault))
	}
	return err
}

// cleanLines applies command.Clean to each line of a text.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = command.Clean(l)
	}
	return strings.Join(lines, "\n")
}

// bytesInLine is the number of bytes in a line.
const bytesInLine = 16

func printBytes(r *command.Run, addr uint64, b []byte) error {
	for len(b) > 0 {
		n := min(bytesInLine, len(b))
		var text strings.Builder
		for i, x := range b[:n] {
			if i == bytesInLine/2 {
				text.WriteByte(' ')
			}
			fmt.Fprintf(&text, "%02x ", x)
		}
		if err := r.Print("%016x  %-49s |%s|\n", addr, text.String(), printableText(b[:n])); err != nil {
			return err
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}

// printableText returns the bytes as text, with a dot for each one that is not printable ASCII.
func printableText(b []byte) string {
	out := make([]byte, len(b))
	for i, x := range b {
		if out[i] = '.'; x >= ' ' && x < 0x7f {
			out[i] = x
		}
	}
	return string(out)
}

func printWords(r *command.Run, m *api.Memory, b []byte) error {
	symbols := map[int]string{}
	for _, s := range m.Symbols {
		symbols[s.Offset] = "  " + command.Clean(s.Symbol)
	}
	off := 0
	for ; len(b)-off >= 8; off += 8 {
		if err := r.Print("%016x  %016x%s\n", uint64(m.Addr)+uint64(off), binary.LittleEndian.Uint64(b[off:]), symbols[off]); err != nil {
			return err
		}
	}
	return printBytes(r, uint64(m.Addr)+uint64(off), b[off:])
}

// shortestString is the minimum length of a string.
const shortestString = 4

func printStrings(r *command.Run, addr uint64, b []byte) error {
	for i := 0; i < len(b); {
		n := 0
		for i+n < len(b) && b[i+n] >= ' ' && b[i+n] < 0x7f {
			n++
		}
		if n >= shortestString {
			if err := r.Print("%016x  %q\n", addr+uint64(i), b[i:i+n]); err != nil {
				return err
			}
		}
		i += n + 1
	}
	return nil
}
