package http

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// looking is a Guest that can be inspected. The daemon's tests have one that
// cannot.
type looking interface {
	// Look runs f between two instructions of all vCPUs; see machine.Machine.Look.
	Look(f func(*machine.Look) error) error
}

// look runs f at one instant of the guest.
func (in *inspector) look(f func(*machine.Look) error) error {
	g, ok := in.guest.(looking)
	if !ok {
		return &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "this guest cannot be looked at"}
	}
	return lookError(g.Look(f))
}

// lookError converts an error of looking at the guest into an API error.
func lookError(err error) error {
	var fault *guest.PageFaultError
	switch {
	case errors.As(err, &fault):
		return &api.Error{Code: api.CodeGuestFault, Errno: "EFAULT", Message: err.Error(), Detail: "'guestprobe pt ADDRESS' shows the walk"}
	case errors.Is(err, machine.ErrNoVCPU), errors.Is(err, machine.ErrBadRegister):
		return &api.Error{Code: api.CodeBadValue, Errno: "EINVAL", Message: err.Error()}
	case errors.Is(err, machine.ErrProbed), errors.Is(err, machine.ErrEngine):
		return &api.Error{Code: api.CodeProbed, Errno: "EBUSY", Message: err.Error()}
	}
	return err
}

// lookAt says which memory a request is about.
type lookAt struct {
	at    string
	vcpu  int // -1: not given
	task  int // likewise
	space guest.GPA
}

// lookQuery reads it from the query of a request.
func lookQuery(q values) lookAt {
	a := lookAt{vcpu: -1, task: -1}
	if q.given["at"] {
		a.at = q.text("at")
	}
	if q.given["vcpu"] {
		a.vcpu = int(q.number("vcpu"))
	}
	if q.given["task"] {
		a.task = int(q.number("task"))
	}
	if q.given["space"] {
		a.space = guest.GPA(q.number("space"))
	}
	return a
}

// root returns the address of the page tables to use; 0 means the kernel's.
func (a lookAt) root(in *inspector, l *machine.Look) (guest.GPA, error) {
	named := 0
	for _, given := range []bool{a.vcpu >= 0, a.task >= 0, a.space != 0} {
		if given {
			named++
		}
	}
	switch {
	case named > 1:
		return 0, badValue("vcpu, task and space name address spaces: give one of them")
	case a.space != 0 && a.space < guest.PageSize: // lower bits of CR3 are flags
		return 0, badValue("space %#x: not the address of a page table", uint64(a.space))
	case a.vcpu >= 0:
		return l.Root(a.vcpu)
	case a.task < 0:
		return a.space, nil
	}
	t, err := in.task(a.task)
	return t.Root, err
}

// addr returns the requested address: a number, SYMBOL or %REGISTER, optionally
// followed by +OFFSET or -OFFSET. Registers are read from vCPU 0 unless the
// request names another vCPU.
func (a lookAt) addr(in *inspector, l *machine.Look) (guest.GVA, error) {
	if a.at == "" {
		return 0, badValue("at: %s", sayWhere)
	}
	base, err := in.baseAddr(a.at, max(a.vcpu, 0), l)
	if err == nil {
		return base, nil
	}
	// A name may hold a plus or a minus, as in C++.
	k := strings.LastIndexAny(a.at, "+-")
	if k <= 0 {
		return 0, err
	}
	off, bad := strconv.ParseUint(a.at[k+1:], 0, 64)
	if bad != nil && !errors.Is(bad, strconv.ErrRange) {
		return 0, err
	}
	if base, err = in.baseAddr(a.at[:k], max(a.vcpu, 0), l); err != nil {
		return 0, err
	}
	to, beyond := uint64(base)+off, off > ^uint64(base)
	if a.at[k] == '-' {
		to, beyond = uint64(base)-off, off > uint64(base)
	}
	if beyond || bad != nil {
		return 0, badValue("at %q: it has more than the 64 bits of an address", a.at)
	}
	return guest.GVA(to), nil
}

// baseAddr returns the address of a number, a name or a register of a vCPU.
func (in *inspector) baseAddr(at string, cpu int, l *machine.Look) (guest.GVA, error) {
	switch n, err := strconv.ParseUint(at, 0, 64); {
	case err == nil:
		return guest.GVA(n), nil
	case errors.Is(err, strconv.ErrRange):
		return 0, badValue("at %q: it has more than the 64 bits of an address", at)
	}
	img := in.guest.Image()
	sym, err := img.Lookup(at)
	// With the % it cannot be a symbol; without it, symbols take precedence.
	if i, ok := x86.FindReg(at); ok && (strings.HasPrefix(at, "%") || errors.Is(err, guest.ErrSymbolNotFound)) {
		r, err := l.Registers(cpu)
		if err != nil {
			return 0, err
		}
		return guest.GVA(r.Regs.Values()[i]), nil
	}
	switch {
	case strings.HasPrefix(at, "%"):
		return 0, badValue("%q: no general register", at)
	case err != nil:
		return 0, toProbeError(img, at, err)
	}
	return sym.Addr, nil
}

// nearSymbol is symbolize, or returns "" if there is no symbol.
func (in *inspector) nearSymbol(a guest.GVA) string {
	if _, ok := in.guest.Image().Find(a); !ok {
		return ""
	}
	return in.symbolize(a)
}

func (in *inspector) getRegisters(w http.ResponseWriter, _ *http.Request, q values) error {
	a := lookQuery(q)
	list := api.RegisterList{VCPUs: []api.Registers{}}
	err := in.look(func(l *machine.Look) error {
		for cpu := range l.NumVCPU() {
			if a.vcpu >= 0 {
				cpu = a.vcpu
			}
			regs, err := l.Registers(cpu)
			if err != nil {
				return err
			}
			out := in.wireRegisters(&regs)
			if q.flag("vectors") {
				v, err := l.Vectors(cpu)
				if err != nil {
					return err
				}
				out.Vectors = wireVectors(&v)
			}
			list.VCPUs = append(list.VCPUs, out)
			if a.vcpu >= 0 {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (in *inspector) getPageWalk(w http.ResponseWriter, _ *http.Request, q values) error {
	a := lookQuery(q)
	out := api.PageWalk{Steps: []api.PageStep{}}
	err := in.look(func(l *machine.Look) error {
		addr, err := a.addr(in, l)
		if err != nil {
			return err
		}
		root, err := a.root(in, l)
		if err != nil {
			return err
		}
		as, steps, m, err := l.Walk(root, addr)
		out.Addr, out.Symbol, out.Space, out.Levels = api.Hex(addr), in.nearSymbol(addr), api.Hex(as.Root()), as.Levels()
		for _, x := range steps {
			step := api.PageStep{Level: x.Level, Name: x.Name(), Index: x.Index(), At: api.Hex(x.At), Entry: api.Hex(x.Entry), Flags: x.Flags()}
			if step.Flags == nil {
				step.Flags = []string{}
			} else {
				step.Points = api.Hex(x.Points())
			}
			out.Steps = append(out.Steps, step)
		}
		if err != nil {
			out.Fault = err.Error()
			return nil
		}
		out.Mapping = &api.Mapping{Physical: api.Hex(m.PA), Size: m.Size, Writable: m.Writable, User: m.User, NoExec: m.NoExec, Region: l.Region(m.PA)}
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// task returns the task with that number.
func (in *inspector) task(pid int) (taskInfo, error) {
	t, ok := in.guest.Image().(tasker)
	if !ok {
		return taskInfo{}, errNoTasks
	}
	tasks, _, err := t.Tasks(maxTasks)
	i := slices.IndexFunc(tasks, func(t taskInfo) bool { return int(t.PID) == pid })
	switch {
	case i >= 0:
		return tasks[i], nil
	case err != nil:
		return taskInfo{}, noTasksError(err)
	}
	return taskInfo{}, &api.Error{Code: api.CodeNoTask, Errno: "ESRCH", Message: fmt.Sprintf("the guest has no task %d", pid), Detail: "'guestprobe tasks --threads' lists those it has"}
}
