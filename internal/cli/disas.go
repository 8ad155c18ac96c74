package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/command"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) disas() command.Spec {
	var image string
	var lines bool
	return command.Spec{
		Use:   "disas FUNCTION[+OFFSET]|ADDRESS",
		Short: "Show what a probe on each instruction would be",
		Long: `List the instructions of one function of the guest's image. Each line shows how a probe
runs the instruction after a hit, and what a jump in its place would displace:

  KIND      emulate, boost (from a slot that jumps back), in_place (with the world
            stopped), or refused, with the reason
  OPTIMIZE  the bytes that the jump of an optimized probe displaces, and after @ the
            places within the jump where old instructions begin; or why a jump is not
            possible: the instruction at that offset is in the way
  LINUX     the same by the rules of Linux 6.12

Where probes are attached, PROBES shows their form: int3, jump or program (a jump to handlers in the guest),
with the displaced bytes, and their hits. The bytes in the listing are still the image's own.

With --lines each source line is printed before its instructions, if the image, or the file that
guestprobed --debug names, has debug information.

With an offset or an address in the function, => marks the instruction. With --image
the file is read, without a daemon.`,
		Example: `  guestprobe disas vfs_read
  guestprobe disas --image guest.elf --format json _start`,
		Args:  command.ArgsBetween(1, 1, "say one function: FUNCTION[+OFFSET] or ADDRESS"),
		Files: []string{"image"},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&image, "image", "", "read the ELF `FILE`, without a daemon")
			f.BoolVarP(&lines, "lines", "l", false, "show the source lines of the instructions")
		},
		Complete: a.completeSymbols(),
		Run: func(ctx context.Context, r *command.Run) error {
			if image == "" {
				return show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Disas, error) {
					return c.Disas(ctx, r.Args[0], lines)
				}, printDisas)(ctx, r)
			}
			d, err := disasFile(image, r.Args[0], lines)
			if err != nil {
				return err
			}
			return r.Show(d, func() error { return printDisas(r, d) })
		},
	}
}

// disasFile disassembles from the image, without a daemon.
func disasFile(image, at string, lines bool) (api.Disas, error) {
	img, err := guest.LoadFile(image)
	if err != nil {
		return api.Disas{}, err
	}
	d, err := new(daemon.Disassembler).Function(img, at)
	if errors.Is(err, guest.ErrSymbolNotFound) {
		err = &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: err.Error()}
	}
	if err == nil && lines {
		if err = daemon.AddSource(&d, img); err != nil {
			err = fmt.Errorf("%s: %w", image, err)
		}
	}
	return d, err
}

func printDisas(r *command.Run, d api.Disas) error {
	head := fmt.Sprintf("%s: %s at %#x", d.Symbol, command.Plural(d.Size, "byte"), uint64(d.Addr))
	if d.User {
		head += ", user code"
	}
	if d.Blacklist != "" {
		head += ", not probeable: " + d.Blacklist
	}
	r.Note("%s", command.Clean(head))
	var rows [][]string
	var sources []string
	probed := slices.ContainsFunc(d.Insts, func(i api.DisasInst) bool { return len(i.Probes) > 0 })
	for i := range d.Insts {
		l := &d.Insts[i]
		mark := ""
		if d.Offset != 0 && d.Offset == l.Offset {
			mark = "=> "
		}
		kind := l.Kind
		if l.Reason != "" {
			kind += ": " + l.Reason
		}
		text := l.Text
		if text == "" {
			text = "(" + l.Class + ")"
		}
		row := []string{fmt.Sprintf("%s+%#x", mark, l.Offset), spaceBytes(l.Bytes), text, kind, regionText(&l.Ours), regionText(&l.Kernel)}
		if probed {
			row = append(row, probesText(l.Probes))
		}
		source := ""
		if i == 0 || l.Source != d.Insts[i-1].Source {
			source = l.Source
		}
		sources = append(sources, source)
		rows = append(rows, row)
	}
	heads := []string{"OFFSET", "BYTES", "INSTRUCTION", "KIND", "OPTIMIZE", "LINUX"}
	if probed {
		heads = append(heads, "PROBES")
	}
	if err := r.TableBetween(heads, rows, sources); err != nil {
		return err
	}
	if d.Undecodable != "" {
		r.Note("The list ends %s.", command.Clean(d.Undecodable))
	}
	return nil
}

// probesText formats the probes on an instruction for a table cell.
func probesText(ps []api.DisasProbe) string {
	var out []string
	for _, p := range ps {
		s := fmt.Sprintf("%s %s", p.Name, p.How)
		if p.Region > 0 {
			s += fmt.Sprintf(" %d", p.Region)
		}
		out = append(out, s+" hits="+u64(p.Hits))
	}
	return command.Clean(strings.Join(out, ", "))
}

// regionText formats a region for a table cell.
func regionText(r *api.DisasRegion) string {
	if r.Length == 0 {
		s := r.Reason
		if r.At != nil {
			s += fmt.Sprintf(" +%#x", *r.At)
		}
		return s
	}
	s := fmt.Sprint(r.Length)
	if len(r.Boundaries) > 0 {
		s += " @" + strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Boundaries), " ", ","), "[]")
	}
	return s
}

// spaceBytes puts spaces between hexadecimal bytes.
func spaceBytes(s string) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		return s
	}
	return fmt.Sprintf("% x", b)
}
