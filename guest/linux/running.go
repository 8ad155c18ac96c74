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

// running is a View's state of the running kernel, read by the kernel's types.
type running struct {
	types   *Types // nil if not known
	tasks   *Tasks
	modules *Modules
	files   *Files
	kprobes *kprobes
	noTypes error

	// The results of RefreshModules. mu is held while it reads the guest's memory,
	// View.mu is not: code that stops the guest may hold locks that reading waits
	// for.
	mu       sync.Mutex
	base     *Types               // a copy of types for the modules', which read it without its lock
	loaded   map[guest.GVA]loaded // by the address of the struct module
	lastSeen uint64               // Modules.generation

	known atomic.Pointer[moduleList] // as of then, for readers that cannot wait for mu
}

// moduleList is the modules that existed when mod_tree had that number of changes.
type moduleList struct {
	all     []Module
	changes uint64
	// A live module still has the memory of its init function: do_init_module
	// (kernel/module/main.c) removes it first from the tree and then from the struct
	// module, and the tree does not change any more.
	settling bool
}

// holds reports whether addr is now text of a known module. It costs one read if no
// module was loaded or unloaded since.
func (r *running) holds(addr guest.GVA, read Read) bool {
	m, known := r.modules, r.known.Load()
	if known == nil {
		return false
	}
	// The kernel removes a module's memory from the tree before it frees it.
	if m.tree != 0 && !known.settling {
		if n, err := read.value(m.tree, m.changes); err == nil && n == known.changes {
			// Names of a module that was unloaded are known a little longer than this
			// list: see RefreshModules.
			return slices.ContainsFunc(known.all, func(x Module) bool { return x.text(addr) })
		}
	}
	found := false
	_ = m.forEach(read, func(at guest.GVA, state ModuleState) error { // incomplete if it cannot be read
		if state != moduleUnformed && slices.ContainsFunc(known.all, func(x Module) bool { return x.Addr == at && x.text(addr) }) {
			now, err := m.module(at, read)
			found = found || err == nil && now.text(addr)
		}
		return nil
	})
	return found
}

// loaded is the last read state of a module.
type loaded struct {
	Module
	kernel *Kernel
	cost   uint64 // as counted by Modules.Read
	types  *Types // nil: not requested yet
}

func newRunning(k *Kernel, lookup Lookup) *running {
	r := &running{}
	r.types, r.noTypes = k.Types()
	r.tasks, r.modules = newTasks(r.types, lookup), newModules(r.types, lookup)
	r.files = newFiles(r.types, lookup, r.tasks)
	r.kprobes = newKprobes(r.types, lookup)
	return r
}

// missingReasons says which features are missing, and why.
func (r *running) missingReasons() []string {
	if r.noTypes != nil {
		return []string{fmt.Sprintf("types, tasks, modules and files: %v", r.noTypes)}
	}
	return slices.Concat(r.tasks.MissingFeatures(), r.modules.MissingFeatures(), r.files.MissingFeatures(), r.kprobes.missing)
}

// Types returns the kernel's types. The error says why they are not known.
func (v *View) Types() (*Types, error) { return v.running.types, v.running.noTypes }

// moduleTypes returns the types that a module adds to the kernel's. Only one
// goroutine at a time may use the types of any module.
func (v *View) moduleTypes(name string) (*Types, error) {
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

// Info returns the kernel's types, with the types of modules that view has loaded at
// the time of each request. It fails as Types does.
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
		t, err := v.moduleTypes(module)
		if err != nil {
			return nil // it was unloaded, or has none
		}
		return t.Spec
	}), nil
}

// Profile implements guest.View.
func (v *View) Profile() (guest.Profile, error) { return v.running.tasks.Profile() }

// TaskReader returns the reader of this boot's tasks.
func (v *View) TaskReader() *Tasks { return v.running.tasks }

// Tasks reads at most limit tasks of all processes, like Tasks.readAll, and reports
// whether there are more. A list that changes during the read is read again.
func (v *View) Tasks(limit int) (tasks []Task, more bool, err error) {
	if why := v.GoneReason(); why != "" {
		return nil, false, errors.New(why)
	}
	const attempts = 4
	for range attempts {
		if tasks, err = v.running.tasks.readAll(limit, v.read); err == nil || errors.Is(err, errMany) {
			return tasks, err != nil, nil
		}
	}
	return tasks, false, err
}

// RefreshModules reads the list of modules, and reports whether it has changed: then
// names, text and the places that may be probed have changed too. It costs a few
// reads for each module. An error is about the guest's list, or about a module that
// is left out.
func (v *View) RefreshModules() (changed bool, err error) {
	r := v.running
	if s, _ := v.System(); r.modules.head == 0 || s < StateScheduling {
		return false, nil // there is no user space yet that could load a module
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, err := r.modules.generation(v.read)
	if err != nil {
		return false, err
	}
	known := r.known.Load()
	settling := known != nil && known.settling
	if seen == r.lastSeen && !settling {
		return false, nil
	}
	list := &moduleList{}
	if r.modules.tree != 0 {
		if list.changes, err = v.read.value(r.modules.tree, r.modules.changes); err != nil {
			return false, err
		}
	}
	all, err := r.modules.readAll(v.read)
	if err != nil {
		return false, err
	}
	list.all = all
	list.settling = slices.ContainsFunc(all, func(x Module) bool {
		return x.State == moduleLive && slices.ContainsFunc(x.Memory, func(m ModuleMemory) bool { return m.Init })
	})
	if seen == r.lastSeen && reflect.DeepEqual(all, known.all) {
		return false, nil
	}
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
		for _, p := range k.mem.Sections {
			if p.X { // the kernel's own kprobes may wait for the module, and be in its text before it is seen here
				v.restoreDisplaced(guest.GVA(p.Addr), p.Data)
			}
		}
		now[m.Addr], kernels[m.Name] = loaded{Module: m, kernel: k, cost: before - left}, k
	}
	r.loaded, r.lastSeen = now, seen
	r.known.Store(list)
	if e := v.setModules(kernels); e != nil {
		err = e
	}
	return true, err
}
