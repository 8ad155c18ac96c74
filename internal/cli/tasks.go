package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) tasks() command.Spec {
	threads := false
	return command.Spec{
		Use:   "tasks",
		Short: "List the processes of a Linux guest",
		Long: `List the processes of a Linux guest, as its kernel's memory says: numbers, parent,
number in the innermost PID namespace, user and group, cgroup (v2), start in seconds
from the boot, address space (for attach --space), and name. A name in brackets is
that of a kernel thread. - stands for what the kernel does not tell.`,
		Example: `  guestprobe tasks
  guestprobe tasks --threads --format json`,
		Args: command.ArgsBetween(0, 0, ""),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&threads, "threads", "L", false, "each thread of each process")
		},
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			l, err := c.Tasks(ctx, threads)
			if err != nil {
				return err
			}
			if err := r.Show(l, func() error { return printTasks(r, l.Tasks) }); err != nil {
				return err
			}
			if l.More {
				r.Note("There are more, which are not read.")
			}
			return nil
		}),
	}
}

func printTasks(r *command.Run, tasks []api.TaskInfo) error {
	var rows [][]string
	for _, t := range tasks {
		name, space := t.Comm, fmt.Sprintf("%#x", uint64(t.Space))
		if t.Space == 0 {
			name, space = "["+name+"]", "-"
		}
		start := "-"
		if t.StartNS != 0 {
			start = fmt.Sprintf("%.2f", time.Duration(t.StartNS).Seconds())
		}
		rows = append(rows, []string{fmt.Sprint(t.PID), fmt.Sprint(t.TGID), fmt.Sprint(t.Parent), dashIfZero(t.NSPID), dashIfNil(t.UID), dashIfNil(t.GID),
			dashIfZero(t.Cgroup), start, space, name})
	}
	return r.Table([]string{"PID", "TGID", "PARENT", "NSPID", "UID", "GID", "CGROUP", "START", "SPACE", "NAME"}, rows)
}

func dashIfZero[T int32 | uint64](n T) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func dashIfNil(id *uint32) string {
	if id == nil {
		return "-"
	}
	return fmt.Sprint(*id)
}
