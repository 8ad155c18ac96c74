package http

import (
	"net/http"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxTasks bounds how many of a guest's tasks are read.
const maxTasks = 1 << 16

// tasker is a guest.View that knows the guest's tasks.
type tasker interface {
	// Tasks reads at most limit tasks, and reports whether there are more.
	Tasks(limit int) (tasks []linux.Task, more bool, err error)
}

func (in *inspector) getTasks(w http.ResponseWriter, _ *http.Request, q values) error {
	t, ok := in.guest.Image().(tasker)
	if !ok {
		return errNoTasks
	}
	tasks, more, err := t.Tasks(maxTasks)
	if err != nil {
		return noTasksError(err)
	}
	list := api.TaskList{Tasks: []api.TaskInfo{}, More: more}
	for _, x := range tasks {
		if q.flag("threads") || x.PID == x.TGID {
			list.Tasks = append(list.Tasks, wireTask(x))
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// taskInfo is a task as the guest's memory has it.
type taskInfo = linux.Task

var errNoTasks = &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "this guest is not Linux, so it has no list of tasks"}

func noTasksError(err error) error {
	return &api.Error{Code: api.CodeUnavailable, Errno: "ENODATA", Message: "the guest's tasks: " + err.Error()}
}

func wireTask(x linux.Task) api.TaskInfo {
	id := func(n uint32) *uint32 {
		if n == linux.NoID {
			return nil
		}
		return &n
	}
	return api.TaskInfo{
		PID: x.PID, TGID: x.TGID, Parent: x.Parent, NSPID: x.NSPID, Comm: x.Comm, UID: id(x.UID), GID: id(x.GID),
		Cgroup: x.Cgroup, StartNS: x.Start, Space: api.Hex(x.Root),
	}
}
