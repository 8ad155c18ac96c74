package foreign

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Process is a process that has KVM VMs.
type Process struct {
	PID  int
	UID  uint32
	VMM  string // the name of its program
	Name string // of the VM, if the command line has one

	VMs   []int       // descriptors
	VCPUs map[int]int // descriptors of vCPUs, by vCPU number

	// QMP is the path of a QMP socket on the command line, or "". Only a QEMU has one.
	QMP string

	otherQMP []string // more of them
}

// List returns the processes of this host that have KVM VMs, by pid. unseen is
// how many processes could not be looked at for want of permission.
func List() (all []Process, unseen int, err error) {
	return list("/proc")
}

func list(proc string) (all []Process, unseen int, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := inspect(proc, pid)
		switch {
		case refused(err):
			unseen++
		case err == nil && len(p.VMs) > 0:
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return a.PID - b.PID })
	return all, unseen, nil
}

// Find returns the process of a VM by its pid or by its name.
func Find(what string) (Process, error) {
	if pid, err := strconv.Atoi(what); err == nil {
		p, err := inspect("/proc", pid)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
			return p, fail(CodeNoVM, nil, "there is no process %d ('guestprobe vms' lists VMs)", pid)
		case refused(err):
			return p, fail(CodeNoPermission, err, "process %d: its descriptors may be read by its owner and by root", pid)
		case err != nil:
			return p, fail(CodeNoVM, err, "process %d", pid)
		case len(p.VMs) > 0:
			return p, nil
		}
		if named, err := findNamed(what); err == nil { // a name of digits
			return named, nil
		}
		return p, fail(CodeNoVM, nil, "process %d (%s) has no KVM VM ('guestprobe vms' lists those that do)", pid, strings.ToValidUTF8(p.VMM, "?"))
	}
	return findNamed(what)
}

// findNamed returns the process of the VM of that name.
func findNamed(what string) (Process, error) {
	all, unseen, err := List()
	if err != nil {
		return Process{}, err
	}
	var found []Process
	for _, p := range all {
		if p.Name == what {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Process{}, fail(CodeSeveralVMs, nil, "%d VMs are named %q: use the pid ('guestprobe vms' lists them)", len(found), what)
	case unseen > 0:
		return Process{}, fail(CodeNoVM, nil, "no VM is named %q; processes that could not be inspected: %d (it takes their user, or root with CAP_SYS_PTRACE)", what, unseen)
	}
	return Process{}, fail(CodeNoVM, nil, "no VM is named %q ('guestprobe vms' lists VMs)", what)
}

// Targets of the links of KVM's descriptors below /proc/PID/fd (virt/kvm/kvm_main.c).
const (
	vmLink   = "anon_inode:kvm-vm"
	vcpuLink = "anon_inode:kvm-vcpu:"
)

// inspect looks for the VMs of a process.
func inspect(proc string, pid int) (Process, error) {
	p := Process{PID: pid, VCPUs: map[int]int{}}
	dir := filepath.Join(proc, strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return p, err
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		to, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if refused(err) {
			return p, err
		} else if err != nil {
			continue // it has been closed
		}
		if to == vmLink {
			p.VMs = append(p.VMs, fd)
		}
		if n, ok := strings.CutPrefix(to, vcpuLink); ok {
			if id, err := strconv.Atoi(n); err == nil {
				p.VCPUs[id] = fd
			}
		}
	}
	if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
		p.VMM = strings.TrimSuffix(string(comm), "\n")
	}
	if len(p.VMs) == 0 {
		return p, nil
	}
	slices.Sort(p.VMs)
	if st, err := os.Stat(dir); err == nil {
		if s, ok := st.Sys().(*syscall.Stat_t); ok {
			p.UID = s.Uid
		}
	}
	if exe, err := os.Readlink(filepath.Join(dir, "exe")); err == nil {
		// The name of a thread may be anything, and is cut to 15 bytes.
		p.VMM = filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return p, fmt.Errorf("command line: %w", err)
	}
	var args []string
	for _, a := range bytes.Split(bytes.TrimSuffix(cmdline, []byte{0}), []byte{0}) {
		args = append(args, string(a))
	}
	p.Name = vmName(args)
	sockets := qmpSockets(args)
	for i, path := range sockets {
		if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && !filepath.IsAbs(path) {
			sockets[i] = filepath.Join(cwd, path)
		}
	}
	if len(sockets) > 0 {
		p.QMP = sockets[0]
	}
	if len(sockets) > 1 {
		p.otherQMP = sockets[1:]
	}
	return p, nil
}

// vmName returns the name that a VMM's command line gives to its VM: -name of
// QEMU, --id of Firecracker, --name of others.
func vmName(args []string) string {
	for i, a := range args {
		var value string
		flag, v, inline := strings.Cut(a, "=")
		switch flag {
		case "-name", "--name", "-id", "--id":
		default:
			continue
		}
		switch {
		case inline && strings.HasPrefix(flag, "--"):
			value = v
		case i+1 < len(args):
			value = args[i+1]
		}
		// QEMU: -name [guest=]NAME[,OPTION=VALUE]... In a value "," is written ",,".
		for _, part := range strings.Split(strings.ReplaceAll(value, ",,", "\x00"), ",") {
			part = strings.ReplaceAll(part, "\x00", ",")
			if name, ok := strings.CutPrefix(part, "guest="); ok {
				return name
			}
			if !strings.Contains(part, "=") {
				return part
			}
		}
	}
	return ""
}

// qmpSockets returns the paths of the unix sockets that a QEMU's command line has for
// QMP: -qmp unix:PATH, or a -mon in control mode on a -chardev socket.
func qmpSockets(args []string) (all []string) {
	chardevs := map[string]string{}
	var monitors []string
	for i := 1; i+1 < len(args); i++ {
		v := args[i+1]
		switch "-" + strings.TrimLeft(args[i], "-") {
		case "-qmp", "-qmp-pretty":
			if path, ok := strings.CutPrefix(v, "unix:"); ok {
				path, _, _ = strings.Cut(path, ",")
				all = append(all, path)
			}
		case "-chardev":
			if o := options(v); o[""] == "socket" && o["path"] != "" {
				chardevs[o["id"]] = o["path"]
			}
		case "-mon":
			if o := options(v); o["mode"] == "control" {
				monitors = append(monitors, o["chardev"])
			}
		}
	}
	for _, m := range monitors {
		if path := chardevs[m]; path != "" {
			all = append(all, path)
		}
	}
	return all
}

// options splits an option of QEMU's; its first word has the name "".
func options(v string) map[string]string {
	o := map[string]string{}
	for i, part := range strings.Split(strings.ReplaceAll(v, ",,", "\x00"), ",") {
		name, value, ok := strings.Cut(strings.ReplaceAll(part, "\x00", ","), "=")
		if !ok && i == 0 {
			name, value = "", name
		}
		o[name] = value
	}
	return o
}
