package http

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// taskView is the view of a guest that has tasks.
type taskView struct {
	*guest.Image
	tasks []linux.Task
	more  bool
	err   error
}

func (v *taskView) Tasks(limit int) ([]linux.Task, bool, error) {
	return v.tasks[:min(limit, len(v.tasks))], v.more, v.err
}

func TestTasks(t *testing.T) {
	o := defaultOptions()
	g := newFakeGuest(t, o.vcpus)
	v := &taskView{Image: g.img, tasks: []linux.Task{
		{PID: 1, TGID: 1, NSPID: 1, Comm: "init", Cgroup: 3, Start: 5e7, Root: 0x5000},
		{PID: 2, TGID: 2, Comm: "kthreadd", UID: linux.NoID, GID: linux.NoID},
		{PID: 8, TGID: 1, NSPID: 8, Parent: 7, Comm: "worker", UID: 1000, GID: 100, Root: 0x5000},
	}}
	g.view = v
	h := serveGuest(t, g, o)
	id := func(n uint32) *uint32 { return &n }
	all := []api.TaskInfo{
		{PID: 1, TGID: 1, NSPID: 1, Comm: "init", UID: id(0), GID: id(0), Cgroup: 3, StartNS: 5e7, Space: 0x5000},
		{PID: 2, TGID: 2, Comm: "kthreadd"},
		{PID: 8, TGID: 1, NSPID: 8, Parent: 7, Comm: "worker", UID: id(1000), GID: id(100), Space: 0x5000},
	}
	for _, c := range []struct {
		threads bool
		want    []api.TaskInfo
	}{{true, all}, {false, all[:2]}} {
		l, err := h.c.Tasks(h.ctx, c.threads)
		if d := cmp.Diff(api.TaskList{Tasks: c.want}, l); err != nil || d != "" {
			t.Errorf("threads %v: %v (-want +got):\n%s", c.threads, err, d)
		}
	}
	v.more = true
	if l, err := h.c.Tasks(h.ctx, true); err != nil || !l.More {
		t.Errorf("more: %+v, %v", l, err)
	}
	v.err = errors.New("a list leads back into itself")
	var e *api.Error
	if _, err := h.c.Tasks(h.ctx, true); !errors.As(err, &e) || e.Code != api.CodeUnavailable || e.Message != "the guest's tasks: a list leads back into itself" {
		t.Errorf("a broken list: %v", err)
	}
}
