package linux

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/types"
)

// running is what a View knows of the kernel while it runs, by the kernel's types.
type running struct {
	types   *Types // nil: none
	tasks   *Tasks
	modules *Modules
	files   *Files
	kprobes *kprobes
	noTypes error

	// What RefreshModules has seen. mu is held while it reads the guest's memory, View.mu
	// is not: whoever stops the guest may hold locks that reading waits for.
	mu       sync.Mutex
	base     *Types               // a copy of types for the modules', which read it without its lock
	loaded   map[guest.GVA]loaded // by the address of the struct module
	lastSeen uint64               // Modules.Generation

	known atomic.Pointer[moduleList] // as of then, for who cannot wait for mu
}

// moduleList are the modules that there were when mod_tree had changed that often.
type moduleList struct {
	all     []Module
	changes uint64
}

// holds reports whether addr is text of a module now that is known. It costs one read while
// no module has come or gone since.
func (r *running) holds(addr guest.GVA, read Read) bool {
	m, known := r.modules, r.known.Load()
	if known == nil {
		return false
	}
	// The kernel takes a module's memory out of the tree before it frees it.
	if m.tree != 0 {
		if n, err := read.value(m.tree, m.changes); err == nil && n == known.changes {
			return true
		}
	}
	found := false
	_ = m.each(read, func(at guest.GVA, state ModuleState) error { // cut off where it cannot be read
		if state != ModuleUnformed && slices.ContainsFunc(known.all, func(x Module) bool { return x.Addr == at && x.text(addr) }) {
			now, err := m.Module(at, read)
			found = found || err == nil && now.text(addr)
		}
		return nil
	})
	return found
}

// loaded is a module as it was read last.
type loaded struct {
	Module
	kernel *Kernel
	cost   uint64 // as Modules.Read counts
	types  *Types // nil: nobody has asked for them
}

func newRunning(k *Kernel, lookup Lookup) *running {
	r := &running{}
	r.types, r.noTypes = k.Types()
	r.tasks, r.modules = NewTasks(r.types, lookup), NewModules(r.types, lookup)
	r.files = NewFiles(r.types, lookup, r.tasks)
	r.kprobes = newKprobes(r.types, lookup)
	return r
}

// missingReasons says what does not work, and why.
func (r *running) missingReasons() []string {
	if r.noTypes != nil {
		return []string{fmt.Sprintf("types, tasks, modules and files: %v", r.noTypes)}
	}
	return slices.Concat(r.tasks.Missing(), r.modules.Missing(), r.files.Missing(), r.kprobes.missing)
}

// Types returns the kernel's types. The error says why they are not known.
func (v *View) Types() (*Types, error) { return v.running.types, v.running.noTypes }

// ModuleTypes returns the types that a module adds to the kernel's. One goroutine at a
// time may use those of all modules.
func (v *View) ModuleTypes(name string) (*Types, error) {
	r := v.running
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, m := range r.loaded {
		if m.Name != name {
			continue
		}
		if m.types == nil {
			var err error
			if r.base == nil && r.types != nil {
				r.base = &Types{r.types.Spec.Copy()}
			}
			if m.types, err = r.modules.Types(m.Module, r.base, v.read); err != nil {
				return nil, err
			}
			r.loaded[at] = m
		}
		return m.types, nil
	}
	return nil, fmt.Errorf("there is no module %s: %w", name, guest.ErrSymbolNotFound)
}

// Info returns the kernel's types, with those of the modules that view has loaded when
// they are asked for. Errors are those of Types.
func (k *Kernel) Info(view func() guest.View) (*types.Info, error) {
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	return types.New(t.Spec, func(module string) *btf.Spec {
		v, ok := view().(*View)
		if !ok {
			return nil
		}
		t, err := v.ModuleTypes(module)
		if err != nil {
			return nil // it has gone, or has none
		}
		return t.Spec
	}), nil
}

// Profile implements guest.View.
func (v *View) Profile() (guest.Profile, error) { return v.running.tasks.Profile() }

// TaskReader returns how the tasks of this boot are read.
func (v *View) TaskReader() *Tasks { return v.running.tasks }

// Tasks reads at most limit tasks of all processes, as Tasks.All does, and reports
// whether there are more. A list that changes while it is read is read again.
func (v *View) Tasks(limit int) (tasks []Task, more bool, err error) {
	if why := v.Why(); why != "" {
		return nil, false, errors.New(why)
	}
	const attempts = 4
	for range attempts {
		if tasks, err = v.running.tasks.All(limit, v.read); err == nil || errors.Is(err, errMany) {
			return tasks, err != nil, nil
		}
	}
	return tasks, false, err
}

// RefreshModules looks which modules there are, and reports whether that has changed:
// names, text and what may be probed have, too. It costs a few reads for each module. An
// error is about the guest's list, or about a module that is left out.
func (v *View) RefreshModules() (changed bool, err error) {
	r := v.running
	if s, _ := v.System(); r.modules.head == 0 || s < StateScheduling {
		return false, nil // there is no user space yet that could load one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, err := r.modules.Generation(v.read)
	if err != nil {
		return false, err
	}
	if seen == r.lastSeen {
		return false, nil
	}
	list := &moduleList{}
	if r.modules.tree != 0 {
		if list.changes, err = v.read.value(r.modules.tree, r.modules.changes); err != nil {
			return false, err
		}
	}
	all, err := r.modules.All(v.read)
	if err != nil {
		return false, err
	}
	list.all = all
	now, kernels := map[guest.GVA]loaded{}, map[string]*Kernel{}
	left, add := uint64(maxLoaded), []Module(nil)
	for _, m := range all {
		if old := r.loaded[m.Addr]; old.kernel != nil && reflect.DeepEqual(old.Module, m) {
			now[m.Addr], kernels[m.Name] = old, old.kernel
			left -= min(left, old.cost)
		} else {
			add = append(add, m)
		}
	}
	for _, m := range add {
		before := left
		k, e := r.modules.Read(m, &left, v.read)
		if e != nil {
			err = e
			continue
		}
		now[m.Addr], kernels[m.Name] = loaded{Module: m, kernel: k, cost: before - left}, k
	}
	r.loaded, r.lastSeen = now, seen
	r.known.Store(list)
	if e := v.SetModules(kernels); e != nil {
		err = e
	}
	return true, err
}
