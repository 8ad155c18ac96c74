package session

import (
	"errors"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/script"
)

// profiled is an image that describes how its guest stores its tasks.
type profiled interface {
	Profile() (guest.Profile, error)
}

// missingReason returns why the part of a guest's tasks that a name of scripts or a
// helper of programs needs is not known, and how to provide it; "" if it is known.
// Unknown values are 0 or "" in every hit.
func (at *attacher) missingReason(what script.TaskPart) (why, cure string) {
	if !at.programs.KnowsTasks() {
		err := guest.ErrSymbolNotFound
		if p, ok := at.guest.Image().(profiled); ok {
			_, err = p.Profile()
		}
		switch {
		case at.tasks() != nil:
			return "the kernel's tasks are " + strings.TrimPrefix(err.Error(), "not known: "), needsBTF
		case err == nil || errors.Is(err, guest.ErrSymbolNotFound):
			return "it does not describe its tasks", "a bare guest can define the object gp_profile (docs/guest.md)"
		}
		return "the guest's profile is not usable: " + err.Error(), "see docs/guest.md"
	}
	if what == script.TaskItself {
		return "", ""
	}
	of := map[script.TaskPart]string{script.TaskUser: "the users of tasks", script.TaskCgroup: "the cgroups of tasks"}[what]
	t := at.tasks()
	if t == nil {
		return of + " are not known: the guest is no Linux", "compare pid, tid or comm"
	}
	users, cgroups := t.KnownFeatures()
	if what == script.TaskUser && users || what == script.TaskCgroup && cgroups {
		return "", ""
	}
	for _, m := range t.MissingFeatures() {
		if strings.HasPrefix(m, of) {
			return m, needsBTF
		}
	}
	return of + " are not known", needsBTF
}

// needsBTF is the required configuration of a Linux kernel.
const needsBTF = "a kernel with CONFIG_DEBUG_INFO_BTF and CONFIG_KALLSYMS_ALL says where they are"

// tasks returns the reader of a Linux guest's tasks, or nil.
func (at *attacher) tasks() *linux.Tasks {
	if at.opt.Tasks == nil {
		return nil
	}
	return at.opt.Tasks()
}

// MissingReason implements script.Target.
func (t scriptTarget) MissingReason(what script.TaskPart) (why, cure string) {
	return t.st.missingReason(what)
}

// taskHelpers are the helpers about the current task.
var taskHelpers = map[bpf.Helper]script.TaskPart{
	bpf.HelperGetPIDTGID: script.TaskItself, bpf.HelperGetComm: script.TaskItself, bpf.HelperGetTask: script.TaskItself, bpf.HelperGetTaskBTF: script.TaskItself,
	bpf.HelperGetUIDGID: script.TaskUser, bpf.HelperGetCgroupID: script.TaskCgroup, bpf.HelperUnderCgroup: script.TaskCgroup,
}

// helperLacks returns what a helper of a program lacks in this guest, for
// program.LoadOptions.
func (at *attacher) helperLacks(h bpf.Helper) string {
	switch h {
	case bpf.HelperTaskStorageGet, bpf.HelperTaskStorageDel:
		return at.featureLacks("the lives of tasks", (*linux.Tasks).KnowsLives)
	case bpf.HelperNSPIDTGID:
		return at.featureLacks("the PID namespaces of tasks", (*linux.Tasks).KnowsPIDNamespaces)
	}
	part, ok := taskHelpers[h]
	if !ok {
		return ""
	}
	why, cure := at.missingReason(part)
	if why == "" {
		return ""
	}
	return why + " (" + cure + ")"
}

// featureLacks returns why something of a Linux guest's tasks is not known, "" if it is.
func (at *attacher) featureLacks(feature string, known func(*linux.Tasks) bool) string {
	t := at.tasks()
	switch {
	case t == nil:
		return "the guest is no Linux"
	case known(t):
		return ""
	}
	for _, m := range t.MissingFeatures() {
		if strings.HasPrefix(m, feature) {
			return m + " (" + needsBTF + ")"
		}
	}
	return feature + " are not known (" + needsBTF + ")"
}
