package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// vmList is the JSON output of vms.
type vmList struct {
	VMs    []vmRow `json:"vms"`
	Unseen int     `json:"unseen"` // processes that could not be looked at for want of permission
}

// vmRow is a VM of this host.
type vmRow struct {
	PID     int      `json:"pid"`
	UID     uint32   `json:"uid"`
	VMM     string   `json:"vmm"`
	Name    string   `json:"name,omitempty"`
	VCPUs   int      `json:"vcpus"`
	Memory  uint64   `json:"memoryBytes,omitempty"`
	Kernel  string   `json:"kernel,omitempty"` // the release of its Linux kernel
	Slide   *api.Hex `json:"slide,omitempty"`
	Reach   string   `json:"reach,omitempty"` // qmp or ptrace
	Code    string   `json:"code,omitempty"`  // why it cannot be reached, or why its kernel is not known
	Message string   `json:"message,omitempty"`
}

func (a *app) vms() command.Spec {
	return command.Spec{
		Use:   "vms",
		Short: "List the KVM VMs of this host, whichever VMM runs them",
		Long: `List the KVM VMs of this host, whichever program runs them: QEMU, libvirt, Firecracker, another VMM or guestprobed.
'guestprobe --vm PID COMMAND' or 'guestprobe --vm NAME COMMAND' inspects one (docs/vms.md).

For each VM it reads the registers and looks for a Linux kernel. For that it stops the vCPUs for some milliseconds at
most. It changes nothing in the guest.

REACH says how the guest can be reached:

  qmp     its QEMU has its RAM in a shared file and a QMP socket: nothing but access to the two is needed
  ptrace  from outside: needs CAP_SYS_PTRACE, CAP_BPF, CAP_PERFMON and CAP_DAC_READ_SEARCH, which root has, and Linux 5.17 or later with BTF

Otherwise it has a code, and a line below the table has the reason:

  no_permission  a capability or the access to a file is missing
  busy           another process traces the VMM, or uses its QMP socket
  paused         the VMM has paused the guest, so that its registers are not known
  host_layout    this host's kernel does not say where its VMs are
  several_vms    the process has more than one VM
  no_vm          the VM has no vCPU
  gone           the VMM has ended

KERNEL is the release of the guest's Linux kernel, SLIDE the distance of its addresses from the default ones (KASLR).

` + tableTemplateHelp,
		Example: `  guestprobe vms
  guestprobe vms --format json`,
		Args:        command.ArgsBetween(0, 0, ""),
		ThisMachine: true,
		Row:         vmRow{},
		Run: func(ctx context.Context, r *command.Run) error {
			if a.fleet.URL != "" || a.core != "" || a.vm.Name != "" {
				return command.Usagef("vms lists the VMs of this machine: --fleet, --core and --vm are for others")
			}
			processes, unseen, err := foreign.List()
			if err != nil {
				return err
			}
			list := vmList{VMs: []vmRow{}, Unseen: unseen}
			for _, p := range processes {
				list.VMs = append(list.VMs, newVMRow(foreign.Survey(ctx, p)))
			}
			if r.Templated() {
				return command.PrintRows(r, list.VMs)
			}
			return r.Show(list, func() error { return printVMs(r, list) })
		},
	}
}

// newVMRow returns the row of a VM.
func newVMRow(s foreign.Surveyed) vmRow {
	row := vmRow{PID: s.PID, UID: s.UID, VMM: s.VMM, Name: s.Name, VCPUs: s.CPUs, Memory: s.Memory, Reach: string(s.Way)}
	if s.Linux != nil {
		slide := api.Hex(s.Linux.Slide)
		row.Kernel, row.Slide = s.Linux.Release, &slide
	}
	if err := cmp.Or(s.Err, s.Kind); err != nil {
		row.Code, row.Message = string(foreign.CodeOf(err)), err.Error()
	}
	if s.Err != nil {
		row.Reach = ""
	}
	return row
}

// printVMs prints the table of VMs, and why some cannot be reached.
func printVMs(r *command.Run, list vmList) error {
	var table [][]string
	for _, v := range list.VMs {
		memory, slide := "-", "-"
		if v.Memory > 0 {
			memory = fmt.Sprintf("%dM", v.Memory>>20)
		}
		if v.Slide != nil {
			slide = fmt.Sprintf("%#x", uint64(*v.Slide))
		}
		table = append(table, []string{
			strconv.Itoa(v.PID), command.Clean(v.VMM), cmp.Or(command.Clean(v.Name), "-"), strconv.Itoa(v.VCPUs), memory,
			cmp.Or(command.Clean(v.Kernel), "-"), slide, cmp.Or(v.Reach, v.Code),
		})
	}
	if err := r.Table([]string{"PID", "VMM", "NAME", "VCPUS", "MEMORY", "KERNEL", "SLIDE", "REACH"}, table); err != nil {
		return err
	}
	for _, v := range list.VMs {
		if v.Message != "" {
			r.Note("%d: %s", v.PID, command.Clean(v.Message))
		}
	}
	switch {
	case list.Unseen > 0:
		r.Note("Processes that could not be inspected: %d (it takes their user, or root with CAP_SYS_PTRACE).", list.Unseen)
	case len(list.VMs) == 0:
		r.Note("No process of this host has a KVM VM.")
	}
	return nil
}
