package session

import (
	"errors"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/script"
)

// profiled is an image that says how its guest keeps its tasks.
type profiled interface {
	Profile() (guest.Profile, error)
}

// lacks returns why nothing is known of a guest's tasks that a name of scripts or a helper of programs is about, and
// how to provide it; "" where it is known. Unknown values are 0 or "" in every hit.
func (st *Session) lacks(what script.TaskPart) (why, cure string) {
	if !st.programs.KnowsTasks() {
		err := guest.ErrSymbolNotFound
		if p, ok := st.guest.Image().(profiled); ok {
			_, err = p.Profile()
		}
		switch {
		case st.tasks() != nil:
			return "the kernel's tasks are " + strings.TrimPrefix(err.Error(), "not known: "), needsBTF
		case err == nil || errors.Is(err, guest.ErrSymbolNotFound):
			return "the guest does not say where its tasks are", "a guest that is no Linux has an object gp_profile for it (docs/guest.md)"
		}
		return "the guest's profile is not usable: " + err.Error(), "see docs/guest.md"
	}
	if what == script.TaskItself {
		return "", ""
	}
	of := map[script.TaskPart]string{script.TaskUser: "the users of tasks", script.TaskCgroup: "the cgroups of tasks"}[what]
	t := st.tasks()
	if t == nil {
		return of + " are not known: the guest is no Linux", "compare pid, tid or comm"
	}
	users, cgroups := t.Known()
	if what == script.TaskUser && users || what == script.TaskCgroup && cgroups {
		return "", ""
	}
	for _, m := range t.Missing() {
		if strings.HasPrefix(m, of) {
			return m, needsBTF
		}
	}
	return of + " are not known", needsBTF
}

// needsBTF is what a Linux kernel must be built with.
const needsBTF = "a kernel with CONFIG_DEBUG_INFO_BTF and CONFIG_KALLSYMS_ALL says where they are"

// tasks returns how the tasks of a Linux guest are read, or nil.
func (st *Session) tasks() *linux.Tasks {
	if st.opt.Tasks == nil {
		return nil
	}
	return st.opt.Tasks()
}

// Lacks implements script.Target.
func (t scriptTarget) Lacks(what script.TaskPart) (why, cure string) { return t.st.lacks(what) }

// taskHelpers are the helpers that are about the current task.
var taskHelpers = map[bpf.Helper]script.TaskPart{
	bpf.HelperGetPIDTGID: script.TaskItself, bpf.HelperGetComm: script.TaskItself, bpf.HelperGetTask: script.TaskItself, bpf.HelperGetTaskBTF: script.TaskItself,
	bpf.HelperGetUIDGID: script.TaskUser, bpf.HelperGetCgroupID: script.TaskCgroup, bpf.HelperUnderCgroup: script.TaskCgroup,
}

// helperLacks says what a helper of a program lacks in this guest, as program.LoadOptions wants it.
func (st *Session) helperLacks(h bpf.Helper) string {
	part, ok := taskHelpers[h]
	if !ok {
		return ""
	}
	why, cure := st.lacks(part)
	if why == "" {
		return ""
	}
	return why + " (" + cure + ")"
}
