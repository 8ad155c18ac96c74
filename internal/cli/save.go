package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// giveTries is how often resetTo sends its snapshot again when another client's snapshot has replaced it in the daemon.
const giveTries = 16

// savedFile describes a saved guest.
type savedFile struct {
	File    string   `json:"file"`
	Bytes   int64    `json:"bytes"` // size of the file
	ID      string   `json:"id"`
	VCPUs   int      `json:"vcpus"`
	Memory  uint64   `json:"memory"`
	LeftOut []string `json:"leftOut"` // attachments that are not in the snapshot
	Partial bool     `json:"partial"` // a core that does not have all the memory that the guest's page tables map
}

func (a *app) save() command.Spec {
	var core bool
	return command.Spec{
		Use:   "save FILE",
		Short: "Save the guest's current state to a file",
		Long: `Save the guest's current state (registers, memory and attachments) to FILE, and let the guest
resume. 'guestprobed --restore FILE' continues from there, in another process or on another day;
'guestprobe guest reset --to FILE' does so in the same process, and 'guestprobe --core FILE' inspects it without a daemon.
An existing file is replaced when everything is written; a symbolic link is replaced itself, not its target.
The snapshot does not include the disks of a Linux guest.`,
		Example: `  guestprobe guest save before.gps
  guestprobe guest reset --to before.gps
  guestprobe guest save --elf guest.core`,
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&core, "elf", false, "write an ELF core instead, for debuggers: the vCPUs are its threads, and memory is where the page tables of vCPU 0 map it")
		},
		Args: command.ArgsBetween(1, 1, "say which file to write: FILE"),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			s, err := saveTo(ctx, c, r.Args[0], core)
			if err != nil {
				return err
			}
			return r.Show(s, func() error {
				if s.Partial {
					r.Note("The guest's page tables map more than a core can say: some of it is left out.")
				}
				for _, what := range s.LeftOut {
					if core {
						break // a core has no attachments at all
					}
					r.Note("Not in the snapshot: %s.", command.Clean(what))
				}
				return r.Print("%s: %d bytes, %s, %d MiB of memory\n", command.Clean(s.File), s.Bytes, command.Plural(s.VCPUs, "vCPU"), s.Memory>>20)
			})
		}),
	}
}

// saveTo saves the guest to a file. The file appears only when it is complete.
func saveTo(ctx context.Context, c *remote.Client, path string, core bool) (savedFile, error) {
	out := savedFile{File: path, LeftOut: []string{}}
	if path == "" || path == "-" {
		return out, command.Usagef("guest save %q: a guest is saved to a file; name it, ./- for one of that name", path)
	}
	var failed error // an error of the save, not of the file
	err := files.ReplaceLink(path, 0o600, func(to *os.File) error {
		failed = out.save(ctx, c, to, core)
		return failed
	})
	if err != nil && !errors.Is(failed, err) {
		err = fmt.Errorf("save to %w", err)
	}
	return out, err
}

// save writes a snapshot of the guest to a file, or an ELF core made from one.
func (out *savedFile) save(ctx context.Context, c *remote.Client, to *os.File, core bool) error {
	f := to
	if core {
		var err error
		if f, err = os.CreateTemp(filepath.Dir(to.Name()), ".guestprobe-*"); err != nil {
			return err
		}
		defer f.Close()
		os.Remove(f.Name())
	}
	if err := c.Save(ctx, f); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	config, err := snapshot.ReadConfig(f)
	if err != nil {
		return fmt.Errorf("what the daemon has sent: %w", err)
	}
	if core {
		if out.Partial, err = writeCore(f, to); err != nil {
			return err
		}
	}
	st, err := to.Stat()
	if err != nil {
		return err
	}
	out.Bytes, out.ID, out.VCPUs, out.Memory = st.Size(), config.ID, config.VCPUs, config.Memory
	out.LeftOut = append(out.LeftOut, config.LeftOut...)
	return nil
}

// writeCore converts a snapshot to an ELF core.
func writeCore(from, to *os.File) (partial bool, err error) {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	s, err := snapshot.Read(from, guest.MaxRAM+guest.LoaderSize)
	if err != nil {
		return false, fmt.Errorf("what the daemon has sent: %w", err)
	}
	return s.WriteELF(to)
}

// resetTo resets the guest to the snapshot in a file. It reads the whole file first to detect damage, but sends it only if
// the daemon does not have this snapshot.
//
// The daemon keeps only one snapshot. Another client may replace it before the reset, so resetTo tries again.
func resetTo(ctx context.Context, c *remote.Client, path string, paused bool) (g api.Guest, err error) {
	f, _, err := files.Open(path)
	if err != nil {
		return g, fmt.Errorf("--to %w", err)
	}
	defer f.Close()
	config, err := snapshot.Check(f)
	if err != nil {
		return g, fmt.Errorf("--to %s: %w", path, err)
	}
	req := api.ResetGuest{Paused: paused, To: config.ID}
	for try := 0; ; try++ {
		g, err = c.Reset(ctx, req)
		if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != api.CodeNoSnapshot || try == giveTries {
			return g, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return g, err
		}
		if _, err := c.GiveSnapshot(ctx, f); err != nil {
			return g, fmt.Errorf("--to %s: %w", path, err)
		}
	}
}
