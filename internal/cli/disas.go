package cli

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/daemon"
)

func (a *app) disasCmd() *cobra.Command {
	var image string
	cmd := &cobra.Command{
		Use:   "disas FUNCTION[+OFFSET]|ADDRESS",
		Short: "Show what a probe on each instruction would be",
		Long: `List the instructions of one function of the guest's image, each with how it is run
behind a probe and with what a jump in its place would displace:

  KIND      emulate, boost (from a slot that jumps back), in_place (with the world
            stopped), or refused, with the reason
  OPTIMIZE  the bytes that the jump of an optimized probe displaces, and behind @ the
            places within the jump where old instructions begin; or why there can be
            no jump: the instruction at that offset is in the way
  LINUX     the same by the rules of Linux 6.12

With an offset or an address in the function, => marks the instruction. With --image
the file is read instead of asking a daemon.`,
		Example: `  guestprobe disas vfs_read
  guestprobe disas --image guest.elf --format json main`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("say one function: FUNCTION[+OFFSET] or ADDRESS")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			d, err := a.disas(cmd, image, args[0])
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.printJSON(d)
			}
			return a.printDisas(&d)
		},
		ValidArgsFunction: a.completeSymbols,
	}
	cmd.Flags().StringVar(&image, "image", "", "read the ELF `FILE`, without a daemon")
	return cmd
}

// disas asks the daemon, or reads the file.
func (a *app) disas(cmd *cobra.Command, image, at string) (api.Disas, error) {
	if image == "" {
		c, err := a.client()
		if err != nil {
			return api.Disas{}, err
		}
		defer c.Close()
		return c.Disas(cmd.Context(), at)
	}
	img, err := guest.LoadFile(image)
	if err != nil {
		return api.Disas{}, err
	}
	d, err := new(daemon.Disassembler).Function(img, at)
	switch {
	case errors.Is(err, guest.ErrSymbolNotFound):
		err = &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: err.Error()}
	}
	return d, err
}

func (a *app) printDisas(d *api.Disas) error {
	head := fmt.Sprintf("%s: %d bytes at %#x", d.Symbol, d.Size, uint64(d.Addr))
	if d.User {
		head += ", user code"
	}
	if d.Blacklist != "" {
		head += ", not probeable: " + d.Blacklist
	}
	a.note("%s", clean(head))
	var rows [][]string
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
		rows = append(rows, []string{fmt.Sprintf("%s+%#x", mark, l.Offset), spaced(l.Bytes), text, kind, regionText(&l.Ours), regionText(&l.Kernel)})
	}
	if err := a.table([]string{"OFFSET", "BYTES", "INSTRUCTION", "KIND", "OPTIMIZE", "LINUX"}, rows); err != nil {
		return err
	}
	if d.Undecodable != "" {
		a.note("The list ends %s.", clean(d.Undecodable))
	}
	return nil
}

// regionText is a region in a cell.
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

// spaced puts spaces between hexadecimal bytes.
func spaced(s string) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		return s
	}
	return fmt.Sprintf("% x", b)
}
