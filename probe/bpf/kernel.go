package bpf

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Kernel describes the kernel that a guest runs: the data that libbpf reads from the
// machine that it is on. Any part may be missing; a program that needs it is then
// rejected. Its functions may be called from any goroutine.
type Kernel struct {
	Types   []*btf.Spec // of the kernel itself, then of its modules
	Version uint32      // LINUX_VERSION_CODE; 0: not known
	// Config returns the value of a CONFIG_ option as .config has it: y, m, a number,
	// or a text in quotes. An option that is not set does not exist.
	Config func(name string) (string, bool)
	// Symbol returns the address of a symbol of the kernel.
	Symbol func(name string) (uint64, bool)
}

// function returns the type of a function of the kernel.
func (k *Kernel) function(name string) (*btf.FuncProto, error) {
	if k == nil || len(k.Types) == 0 {
		return nil, fmt.Errorf("it takes its arguments by the types (BTF) of the guest's kernel, which are not known: use kprobe/ and kretprobe/")
	}
	for _, s := range k.Types {
		var f *btf.Func
		if s.TypeByName(name, &f) == nil {
			if p, ok := f.Type.(*btf.FuncProto); ok {
				return p, nil
			}
		}
	}
	return nil, fmt.Errorf("the types (BTF) of the guest's kernel have no function %q: name another one, or use kprobe/ and kretprobe/", name)
}

// perCPU reports whether each CPU has its own copy of the kernel variable at an
// address: by the kernel's types, or because the address is an offset from a CPU's
// per-CPU memory.
func (k *Kernel) perCPU(name string, addr uint64) bool {
	for _, s := range k.Types {
		var section *btf.Datasec
		if s.TypeByName(".data..percpu", &section) != nil {
			continue
		}
		for _, v := range section.Vars {
			if v.Type.TypeName() == name {
				return true
			}
		}
	}
	return int64(addr) >= 0
}

// option returns the value of a variable that libbpf puts into .kconfig; ok is false
// if the kernel has no such option.
func (k *Kernel) option(name string) (value string, ok bool) {
	switch name {
	case "LINUX_KERNEL_VERSION":
		return strconv.FormatUint(uint64(k.Version), 10), k.Version != 0
	case "LINUX_HAS_SYSCALL_WRAPPER", "LINUX_HAS_BPF_COOKIE":
		return "1", true // true of every x86-64 kernel since 4.17, and of this machine (get_attach_cookie)
	}
	if k.Config == nil {
		return "", false
	}
	return k.Config(name)
}

// encodeOption writes the value of a kernel's option as a variable of type t: a
// number, a bool, a character, a text, or enum libbpf_tristate.
func encodeOption(t btf.Type, size int, value string) ([]byte, error) {
	tristate := map[string]int64{"n": 0, "y": 1, "m": 2}
	n, letter := tristate[value]
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Enum:
		if !letter || t.Name != "libbpf_tristate" {
			return nil, fmt.Errorf("%s=%s is no value of it", t.Name, value)
		}
		return encodeValue(nil, size, strconv.FormatInt(n, 10))
	case *btf.Array:
		text, err := strconv.Unquote(value)
		if err != nil {
			return nil, fmt.Errorf("its value is no text: %s", value)
		}
		return encodeValue(t, size, text[:min(len(text), max(size-1, 0))])
	case *btf.Int:
		switch {
		case t.Encoding == btf.Bool && letter:
			return encodeValue(t, size, strconv.FormatBool(n != 0))
		case size == 1 && letter:
			return []byte(value), nil
		}
	}
	return encodeValue(t, size, strings.TrimSpace(value))
}

// KernelVersion returns the LINUX_VERSION_CODE that a release begins with, such as
// 6.1.0-48-cloud-amd64, and 0 if it has none (KERNEL_VERSION, linux/version.h).
func KernelVersion(release string) uint32 {
	var v [3]uint32
	for i := range v {
		digits := len(release) - len(strings.TrimLeft(release, "0123456789"))
		n, err := strconv.ParseUint(release[:digits], 10, 16)
		if err != nil {
			if i < 2 {
				return 0
			}
			break
		}
		v[i] = uint32(min(n, 255))
		if release = release[digits:]; !strings.HasPrefix(release, ".") {
			if i == 0 {
				return 0
			}
			break
		}
		release = release[1:]
	}
	return v[0]<<16 | v[1]<<8 | v[2]
}

// MaxKernelConfig is the size in bytes of the largest kernel configuration that is
// read; a distribution's has 300 KiB.
const MaxKernelConfig = 16 << 20

// KernelConfig reads the options of a kernel's .config, for Kernel.Config. Other
// lines are ignored.
func KernelConfig(text string) func(name string) (string, bool) {
	options := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.HasPrefix(name, "CONFIG_") {
			options[name] = value
		}
	}
	return func(name string) (string, bool) {
		v, ok := options[name]
		return v, ok
	}
}
