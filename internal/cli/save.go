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

// giveTries is how often a daemon is given a snapshot that another client's takes the place of.
const giveTries = 16

// savedFile says what was saved.
type savedFile struct {
	File    string   `json:"file"`
	Bytes   int64    `json:"bytes"` // of the file
	ID      string   `json:"id"`
	VCPUs   int      `json:"vcpus"`
	Memory  uint64   `json:"memory"`
	LeftOut []string `json:"leftOut"` // what was attached and is not in it
	Partial bool     `json:"partial"` // a core, and the guest's page tables map more than it can say
}

func (a *app) save() command.Spec {
	var core bool
	return command.Spec{
		Use:   "save FILE",
		Short: "Write the guest, as it is now, to a file",
		Long: `Write the guest as it is now, registers, memory and what is attached to it, to FILE, and
let it go on. 'guestprobed --restore FILE' has it go on from there, in another process or on another day;
'guestprobe guest reset --to FILE' in the same one, and 'guestprobe --core FILE' looks at it without a daemon.
A file that is there is replaced when all is written, and so is a symbolic link, not what it leads to.
What is on the disks of a Linux guest is not in it.`,
		Example: `  guestprobe guest save before.gps
  guestprobe guest reset --to before.gps
  guestprobe guest save --elf guest.core`,
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&core, "elf", false, "write an ELF core instead, for debuggers: the vCPUs are its threads, and memory is where the page tables of vCPU 0 map it")
		},
		Args: command.Between(1, 1, "say which file to write: FILE"),
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
						break // it has nothing of what is attached
					}
					r.Note("Not in the snapshot: %s.", command.Clean(what))
				}
				return r.Print("%s: %d bytes, %s, %d MiB of memory\n", command.Clean(s.File), s.Bytes, command.Plural(s.VCPUs, "vCPU"), s.Memory>>20)
			})
		}),
	}
}

// saveTo has the guest saved to a file, which is there when it is complete.
func saveTo(ctx context.Context, c *remote.Client, path string, core bool) (savedFile, error) {
	out := savedFile{File: path, LeftOut: []string{}}
	if path == "" || path == "-" {
		return out, command.Usagef("guest save %q: a guest is saved to a file; name it, ./- for one of that name", path)
	}
	var failed error // that is not about the file
	err := files.ReplaceLink(path, 0o600, func(to *os.File) error {
		failed = out.save(ctx, c, to, core)
		return failed
	})
	if err != nil && !errors.Is(failed, err) {
		err = fmt.Errorf("save to %w", err)
	}
	return out, err
}

// save has the guest saved to a file, or a core made of that.
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

// writeCore makes an ELF core of a snapshot.
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

// resetTo makes the guest what the file has. A daemon that has the snapshot does not get the file, which is read all the
// same: one that is damaged is no snapshot of any daemon's.
//
// The daemon keeps one, which another client may put another one in the place of before it is asked for.
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
